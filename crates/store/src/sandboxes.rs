//! Persistent sandboxes: their records are in SQLite, and each has a private directory for its
//! files. A process that opens this again finds all of them.
//!
//! Two states are separate. The *intended state* of a sandbox is in the database; each change of it
//! is one transaction. Its *current users* hold a lock of its directory: shared while they use it,
//! exclusive to make or destroy it. The kernel releases a lock when the last process that holds it
//! ends, for whatever reason. So a sandbox whose maker was killed is known to be abandoned.
//!
//! This module does not know on purpose the content of the directory besides the lock, how a
//! sandbox is made or destroyed, clocks and randomness.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use stockade_model::{RequestId, SandboxId, SandboxRecord, SandboxSpec, SandboxState, SpecError, Status};

use crate::database::{self, OpenError, StoreError};
use crate::held;
use crate::place::{self, Hold, PlaceError, system};
use crate::sql::SqlError;
use crate::sql::sandbox::{Database, SCHEMA};

/// Most sandboxes that are not destroyed.
pub const MAX_ALIVE: i64 = 10_000;

/// Most sandboxes that are returned at once.
pub const MAX_LISTED: usize = 20_000;

/// Longest reason that is kept, in bytes.
pub const MAX_WHY_BYTES: usize = 4_096;

/// Most commands that are kept of one sandbox; the oldest are dropped.
pub const MAX_COMMANDS: usize = 1_000;

/// Longest text of a command that is kept, in bytes.
pub const MAX_TEXT_BYTES: usize = 4_096;

/// Time-out from the creation of a sandbox's directory until its record.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);

const DATABASE: &str = "sandboxes.db";
const LOCK: &str = "lock";

/// Error of an operation on a sandbox. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The specification is inconsistent.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No sandbox has this id.
    #[error("there is no sandbox `{0}`\nhint: `stockade sandbox list` shows them")]
    Unknown(SandboxId),
    /// The sandbox is in another state.
    #[error("the sandbox `{id}` is {state}{}{}", .why.as_ref().map(|why| format!(": {why}")).unwrap_or_default(), remedy(*.state))]
    State {
        /// Identifier of the sandbox.
        id: SandboxId,
        /// State of the sandbox.
        state: SandboxState,
        /// Reason for the state.
        why: Option<String>,
    },
    /// Another process uses the sandbox.
    #[error("the sandbox `{0}` is in use\nhint: try again when its commands have ended")]
    InUse(SandboxId),
    /// The limit of sandboxes is reached.
    #[error("there are {MAX_ALIVE} sandboxes\nhint: destroy some, or give them a time to live")]
    TooMany,
    /// The directory is unavailable.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the remedy for a state, as the rest of a message.
fn remedy(state: SandboxState) -> &'static str {
    if state == SandboxState::Paused { "\nhint: `stockade sandbox resume` lets it go on" } else { "" }
}

impl From<SqlError> for SandboxError {
    fn from(error: SqlError) -> Self {
        Self::Store(error.into())
    }
}

/// Reason why a sandbox is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Its time to live has passed.
    Expired,
    /// The sandbox was idle for the agreed time, and is not in use.
    Idle,
}

/// All sandboxes of a user. Threads share it by reference.
#[derive(Debug)]
pub struct Sandboxes {
    root: PathBuf,
    database: Mutex<Database>,
}

/// Sandbox that this process holds exclusively, to make or destroy it.
#[derive(Debug)]
pub struct Claim {
    id: SandboxId,
    path: PathBuf,
    _lock: File,
}

/// Sandbox that this process uses, as others may.
#[derive(Debug)]
pub struct Use {
    record: SandboxRecord,
    path: PathBuf,
    _lock: File,
}

/// Guard that keeps a sandbox that is being destroyed from counting as abandoned.
#[derive(Debug)]
pub struct Ending {
    _lock: File,
}

/// Command that was run in a sandbox, with its resource use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommandRecord {
    /// Request of the command in the audit log.
    pub request: RequestId,
    /// User that ran it.
    pub user: String,
    /// Text of the command.
    pub text: String,
    /// Time of the request.
    pub started_ms: u64,
    /// Time of its end.
    pub ended_ms: u64,
    /// Status of the command.
    pub status: Status,
    /// Exit code, if the command exited by itself.
    pub exit_code: Option<i32>,
    /// Peak memory use, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Peak number of processes and threads.
    pub processes_peak: Option<u64>,
}

impl Claim {
    /// Returns its identifier.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Use {
    /// Returns its record as of the start of the use.
    pub fn record(&self) -> &SandboxRecord {
        &self.record
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Sandboxes {
    /// Opens the sandboxes in this directory. Creates the directory and its database if they are
    /// missing.
    ///
    /// # Errors
    /// [`OpenError`] if others than the caller can access the path, or the database cannot be used.
    pub fn open(root: &Path) -> Result<Self, OpenError> {
        let connection = database::open(&root.join(DATABASE), &SCHEMA)?;
        let root = root.canonicalize().map_err(system("resolve", root))?;
        Ok(Self { root, database: Mutex::new(Database::on(connection)) })
    }

    /// Begins a sandbox: it is recorded and locked before any part of it is made.
    ///
    /// # Errors
    /// [`SandboxError`] if it cannot be created, there are too many, or its id is in use.
    pub fn begin(&self, id: SandboxId, spec: SandboxSpec, now_ms: u64) -> Result<Claim, SandboxError> {
        spec.check()?;
        let path = self.root.join(id.as_str());
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(system("create", &path))?;
        let begun = place::hold(&path.join(LOCK), Hold::Alone).map_err(SandboxError::from).and_then(|lock| {
            let known = self.database().insert(&SandboxRecord::begun(id.clone(), spec, now_ms))?;
            if known { Ok(lock) } else { Err(SandboxError::TooMany) }
        });
        match begun {
            Ok(lock) => Ok(Claim { id, path, _lock: lock }),
            Err(error) => {
                // The sandbox is not recorded, and its directory contains nothing else.
                let _ = fs::remove_file(path.join(LOCK));
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    /// Removes directories without a record, whose maker was killed before it wrote the record.
    /// They contain a lock at most.
    ///
    /// # Errors
    /// [`SandboxError`] if the store failed or the directory cannot be read.
    pub fn remove_strays(&self) -> Result<(), SandboxError> {
        for (id, path) in held::all::<SandboxId>(&self.root)? {
            let is_old = path.metadata().and_then(|about| about.modified()).is_ok_and(|made| {
                // With a clock that was set back, the age is unknown.
                made.elapsed().is_ok_and(|age| age > BEGUN_WITHIN)
            });
            if is_old && self.find(&id)?.is_none() && !self.is_held(&id)? {
                // The lock may not exist yet. The removal fails if there is anything else in it.
                let _ = fs::remove_file(path.join(LOCK));
                let _ = fs::remove_dir(&path);
            }
        }
        Ok(())
    }

    /// Records the backend of a sandbox that is being made; once.
    ///
    /// # Errors
    /// [`SandboxError`] if it is not being made, or its backend is recorded already.
    pub fn choose(&self, claim: &Claim, backend: &str) -> Result<(), SandboxError> {
        let noted = self.database().choose(&claim.id, backend)?;
        if noted { Ok(()) } else { Err(self.unexpected(&claim.id)?) }
    }

    /// Changes the state of a sandbox if [`SandboxState::may_become`] permits it. Returns the new
    /// record.
    ///
    /// # Errors
    /// [`SandboxError`] if it does not exist, or its state does not permit the change.
    pub fn change(
        &self,
        id: &SandboxId,
        to: SandboxState,
        why: Option<&str>,
        now_ms: u64,
    ) -> Result<SandboxRecord, SandboxError> {
        let why = why.map(|why| bounded(why, MAX_WHY_BYTES));
        match self.database().change(id, to, why, now_ms)? {
            Some((record, true)) => Ok(record),
            Some((SandboxRecord { id, state, why, .. }, false)) => Err(SandboxError::State { id, state, why }),
            None => Err(SandboxError::Unknown(id.clone())),
        }
    }

    /// Begins a use of a ready sandbox. During the use, no process makes or destroys it except by
    /// force.
    ///
    /// # Errors
    /// [`SandboxError`] if it is not ready or another process holds it exclusively.
    pub fn begin_use(&self, id: &SandboxId, now_ms: u64) -> Result<Use, SandboxError> {
        self.expect(id, SandboxState::Ready)?;
        let lock = self.lock(id, Hold::Shared)?;
        // A process that destroys it first changes the state and then waits for the lock.
        let record = self.expect(id, SandboxState::Ready)?;
        self.database().touch(id, now_ms)?;
        Ok(Use { record, path: self.directory(id), _lock: lock })
    }

    /// Ends a use. From now on the sandbox is idle, if no other process uses it.
    ///
    /// # Errors
    /// [`SandboxError`] if that cannot be recorded; the use has ended anyway.
    pub fn end_use(&self, used: Use, now_ms: u64) -> Result<(), SandboxError> {
        Ok(self.database().touch(&used.record.id, now_ms)?)
    }

    /// Locks a sandbox exclusively; waits five seconds for its users.
    ///
    /// # Errors
    /// [`SandboxError`] if it is still in use.
    pub fn claim(&self, id: &SandboxId) -> Result<Claim, SandboxError> {
        let lock = self.lock(id, Hold::Alone)?;
        Ok(Claim { id: id.clone(), path: self.directory(id), _lock: lock })
    }

    /// Marks the sandbox as being ended, in parallel to its users. Returns `None` if another
    /// process holds it exclusively, which marks it too. Does not wait.
    ///
    /// # Errors
    /// [`SandboxError`] if its lock cannot be examined.
    pub fn begin_end(&self, id: &SandboxId) -> Result<Option<Ending>, SandboxError> {
        let Some(lock) = self.lock_file(id)? else { return Ok(None) };
        Ok(place::try_hold(&lock, Hold::Shared)?.map(|lock| Ending { _lock: lock }))
    }

    /// Closes a sandbox whose directory is empty except for its lock.
    ///
    /// # Errors
    /// [`SandboxError`] if the directory is not empty, or the sandbox is not being destroyed.
    pub fn close(&self, claim: Claim, now_ms: u64) -> Result<(), SandboxError> {
        self.expect(&claim.id, SandboxState::Destroying)?;
        match fs::remove_file(claim.path.join(LOCK)).and_then(|()| fs::remove_dir(&claim.path)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(system("remove", &claim.path)(e).into()),
            _ => {}
        }
        let why = self.find(&claim.id)?.and_then(|record| record.why);
        self.change(&claim.id, SandboxState::Destroyed, why.as_deref(), now_ms).map(drop)
    }

    /// Sets the time until which a sandbox lives, later or earlier than before.
    ///
    /// # Errors
    /// [`SandboxError`] if it does not exist, or is destroyed.
    pub fn extend(&self, id: &SandboxId, expires_ms: u64) -> Result<(), SandboxError> {
        let extended = self.database().extend(id, expires_ms)?;
        if extended { Ok(()) } else { Err(self.unexpected(id)?) }
    }

    /// Returns one sandbox.
    ///
    /// # Errors
    /// [`SandboxError`] if the store failed.
    pub fn find(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, SandboxError> {
        Ok(self.database().find(id)?)
    }

    /// Returns all known sandboxes, the newest first; at most [`MAX_LISTED`].
    ///
    /// # Errors
    /// [`SandboxError`] if the store failed.
    pub fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        Ok(self.database().list()?)
    }

    /// Returns the sandboxes that are due, with the reason; the caller must destroy them.
    ///
    /// # Errors
    /// [`SandboxError`] if the store failed or a directory cannot be examined.
    pub fn due(&self, now_ms: u64) -> Result<Vec<(SandboxRecord, Due)>, SandboxError> {
        let over = self.database().due(now_ms)?;
        let mut due = Vec::new();
        for record in over {
            let expired = record.expires_ms.is_some_and(|expires| expires <= now_ms);
            if expired {
                due.push((record, Due::Expired));
            } else if !self.is_held(&record.id)? {
                due.push((record, Due::Idle));
            }
        }
        Ok(due)
    }

    /// Returns the sandboxes whose maker or destroyer died; the caller must destroy them.
    ///
    /// # Errors
    /// [`SandboxError`] if the store failed or a directory cannot be examined.
    pub fn abandoned(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        let unfinished = self.database().unfinished()?;
        let mut abandoned = Vec::new();
        for record in unfinished {
            if self.is_held(&record.id)? {
                continue;
            }
            // The user may have finished meanwhile, and changes the state before it releases the
            // lock.
            let is_now = self.find(&record.id)?;
            abandoned.extend(is_now.filter(|now| now.state == record.state));
        }
        Ok(abandoned)
    }

    /// Records a command that was run in a sandbox.
    ///
    /// # Errors
    /// [`SandboxError`] if the store failed.
    pub fn note_command(&self, id: &SandboxId, mut record: CommandRecord) -> Result<(), SandboxError> {
        record.text = bounded(&record.text, MAX_TEXT_BYTES).to_owned();
        Ok(self.database().note_command(id, &record)?)
    }

    /// Returns the commands of a sandbox, the oldest first; at most [`MAX_COMMANDS`].
    ///
    /// # Errors
    /// [`SandboxError`] if the store failed.
    pub fn commands(&self, id: &SandboxId) -> Result<Vec<CommandRecord>, SandboxError> {
        Ok(self.database().commands(id)?)
    }

    /// Removes the records of sandboxes destroyed before `before_ms`; returns their number.
    ///
    /// # Errors
    /// [`SandboxError`] if the store failed.
    pub fn prune(&self, before_ms: u64) -> Result<usize, SandboxError> {
        Ok(self.database().prune(before_ms)?)
    }

    /// Checks the whole database for damage.
    ///
    /// # Errors
    /// [`SandboxError`] with the first damage.
    pub fn check(&self) -> Result<(), SandboxError> {
        Ok(self.database().check()?)
    }

    /// Returns the directory for a sandbox's files, whether it exists or not.
    pub fn directory(&self, id: &SandboxId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// Locks a sandbox. If an interrupted removal deleted its directory, it is created again.
    fn lock(&self, id: &SandboxId, hold: Hold) -> Result<File, SandboxError> {
        let path = self.directory(id);
        if self.find(id)?.is_none_or(|record| record.state == SandboxState::Destroyed) {
            return Err(self.unexpected(id)?);
        }
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(system("create", &path)(e).into()),
            _ => {}
        }
        // May wait briefly, because a process that checks the use holds the lock meanwhile.
        place::hold(&path.join(LOCK), hold).map_err(|error| match error {
            PlaceError::Busy { .. } => SandboxError::InUse(id.clone()),
            other => other.into(),
        })
    }

    /// Returns whether a process uses it.
    fn is_held(&self, id: &SandboxId) -> Result<bool, SandboxError> {
        let Some(lock) = self.lock_file(id)? else { return Ok(false) };
        Ok(place::try_hold(&lock, Hold::Alone)?.is_none())
    }

    /// Returns the file of its lock, if it exists.
    fn lock_file(&self, id: &SandboxId) -> Result<Option<PathBuf>, SandboxError> {
        let lock = self.directory(id).join(LOCK);
        Ok(lock.try_exists().map_err(system("examine", &lock))?.then_some(lock))
    }

    /// Returns the sandbox if it is in this state.
    ///
    /// # Errors
    /// [`SandboxError`] if it does not exist, or is in another state.
    pub fn expect(&self, id: &SandboxId, state: SandboxState) -> Result<SandboxRecord, SandboxError> {
        match self.find(id)? {
            Some(record) if record.state == state => Ok(record),
            _ => Err(self.unexpected(id)?),
        }
    }

    /// Returns the error for a sandbox in the wrong state.
    fn unexpected(&self, id: &SandboxId) -> Result<SandboxError, SandboxError> {
        Ok(match self.find(id)? {
            Some(SandboxRecord { id, state, why, .. }) => SandboxError::State { id, state, why },
            None => SandboxError::Unknown(id.clone()),
        })
    }

    fn database(&self) -> MutexGuard<'_, Database> {
        // A panic elsewhere rolled its transaction back.
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the longest prefix of a text within the limit.
fn bounded(text: &str, limit_bytes: usize) -> &str {
    let mut end = text.len().min(limit_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

//! Sandboxes that last: what is known of each in SQLite, and a private directory
//! each for what it keeps. Whoever opens this again finds every one of them.
//!
//! Two things are kept apart. *What a sandbox is to be* is its state in the
//! database; each change of it is one transaction. *Who is at it now* is a lock of
//! its directory: shared by those who use it, alone for who makes or destroys it.
//! The kernel gives a lock back with the last process that has it, however that
//! ended, so a maker that was killed leaves a sandbox that is known to be nobody's.
//!
//! Absent on purpose: what is in the directory beside the lock, how a sandbox is
//! made or destroyed, clocks and randomness.

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

/// The most sandboxes that are not over.
pub const MAX_ALIVE: i64 = 10_000;

/// The most sandboxes that are returned at once.
pub const MAX_LISTED: usize = 20_000;

/// The longest reason that is kept, in bytes.
pub const MAX_WHY_BYTES: usize = 4_096;

/// The most commands that are kept of one sandbox; the oldest are forgotten.
pub const MAX_COMMANDS: usize = 1_000;

/// The longest text of a command that is kept, in bytes.
pub const MAX_TEXT_BYTES: usize = 4_096;

/// How long it may take from the directory of one until it is known.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);

const DATABASE: &str = "sandboxes.db";
const LOCK: &str = "lock";

/// Why something cannot be done with a sandbox. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// What it is to be does not go together.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is none of this id.
    #[error("there is no sandbox `{0}`\nhint: `stockade sandbox list` shows them")]
    Unknown(SandboxId),
    /// It is in another state.
    #[error("the sandbox `{id}` is {state}{}{}", .why.as_ref().map(|why| format!(": {why}")).unwrap_or_default(), remedy(*.state))]
    State {
        /// Which.
        id: SandboxId,
        /// How it is.
        state: SandboxState,
        /// Why it is so.
        why: Option<String>,
    },
    /// Somebody is at it.
    #[error("the sandbox `{0}` is in use\nhint: try again when its commands have ended")]
    InUse(SandboxId),
    /// There are as many as may be.
    #[error("there are {MAX_ALIVE} sandboxes\nhint: destroy some, or give them a time to live")]
    TooMany,
    /// Its directory cannot be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What may be done about the state of a sandbox, as the rest of a message.
fn remedy(state: SandboxState) -> &'static str {
    if state == SandboxState::Paused { "\nhint: `stockade sandbox resume` lets it go on" } else { "" }
}

impl From<SqlError> for SandboxError {
    fn from(error: SqlError) -> Self {
        Self::Store(error.into())
    }
}

/// Why a sandbox is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Its time to live is over.
    Expired,
    /// Nobody used it for as long as was agreed, and nobody does.
    Idle,
}

/// All sandboxes of a user. Share it between threads by reference.
#[derive(Debug)]
pub struct Sandboxes {
    root: PathBuf,
    database: Mutex<Database>,
}

/// A sandbox that this process alone is at: to make it or to destroy it.
#[derive(Debug)]
pub struct Claim {
    id: SandboxId,
    path: PathBuf,
    _lock: File,
}

/// A sandbox that this process uses, as others may.
#[derive(Debug)]
pub struct Use {
    record: SandboxRecord,
    path: PathBuf,
    _lock: File,
}

/// Keeps a sandbox that is being destroyed from being taken for one that was left so.
#[derive(Debug)]
pub struct Ending {
    _lock: File,
}

/// A command that was run in a sandbox, and what it used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommandRecord {
    /// What the record knows it by.
    pub request: RequestId,
    /// Who ran it.
    pub user: String,
    /// What it was.
    pub text: String,
    /// When it was asked for.
    pub started_ms: u64,
    /// When it was over.
    pub ended_ms: u64,
    /// How it ended.
    pub status: Status,
    /// Its exit code, where it ended by itself.
    pub exit_code: Option<i32>,
    /// The most memory that was in use at once, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// The most processes and threads that there were at once.
    pub processes_peak: Option<u64>,
}

impl Claim {
    /// Which.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Use {
    /// What it was when its use began.
    pub fn record(&self) -> &SandboxRecord {
        &self.record
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Sandboxes {
    /// Those in this directory, which is made with its database where it is missing.
    ///
    /// # Errors
    /// A place that is not the caller's alone, or a database that cannot be used.
    pub fn open(root: &Path) -> Result<Self, OpenError> {
        let connection = database::open(&root.join(DATABASE), &SCHEMA)?;
        let root = root.canonicalize().map_err(system("resolve", root))?;
        Ok(Self { root, database: Mutex::new(Database::on(connection)) })
    }

    /// Begins one: it is known, and nobody else's, before anything of it is made.
    ///
    /// # Errors
    /// When it cannot be, there are too many, or its id is taken.
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
                // Nothing is known by this name, and nothing else is in it.
                let _ = fs::remove_file(path.join(LOCK));
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    /// Removes directories that are nobody's: whoever began one was killed before it
    /// was known. What is in them is a lock at most.
    ///
    /// # Errors
    /// When the store failed or the directory cannot be read.
    pub fn remove_strays(&self) -> Result<(), SandboxError> {
        for (id, path) in held::all::<SandboxId>(&self.root)? {
            let is_old = path.metadata().and_then(|about| about.modified()).is_ok_and(|made| {
                // A clock that was set back says nothing.
                made.elapsed().is_ok_and(|age| age > BEGUN_WITHIN)
            });
            if is_old && self.find(&id)?.is_none() && !self.is_held(&id)? {
                // There may be no lock yet. Refused where anything else is in it.
                let _ = fs::remove_file(path.join(LOCK));
                let _ = fs::remove_dir(&path);
            }
        }
        Ok(())
    }

    /// Notes what makes the walls of one that is being made; once.
    ///
    /// # Errors
    /// When it is not being made, or that was noted.
    pub fn choose(&self, claim: &Claim, backend: &str) -> Result<(), SandboxError> {
        let noted = self.database().choose(&claim.id, backend)?;
        if noted { Ok(()) } else { Err(self.unexpected(&claim.id)?) }
    }

    /// Changes the state of one, where [`SandboxState::may_become`] says that it
    /// may; what it is then.
    ///
    /// # Errors
    /// When there is none, or it is in a state that does not lead there.
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

    /// Begins a use of one that is ready. As long as it lasts, nobody makes or
    /// destroys it but by force.
    ///
    /// # Errors
    /// When it is not ready or somebody else is alone at it.
    pub fn begin_use(&self, id: &SandboxId, now_ms: u64) -> Result<Use, SandboxError> {
        self.expect(id, SandboxState::Ready)?;
        let lock = self.lock(id, Hold::Shared)?;
        // Whoever destroys says so first and waits for the lock then.
        let record = self.expect(id, SandboxState::Ready)?;
        self.database().touch(id, now_ms)?;
        Ok(Use { record, path: self.directory(id), _lock: lock })
    }

    /// Ends a use: from now on it is idle, if nobody else uses it.
    ///
    /// # Errors
    /// When that cannot be noted; the use is over all the same.
    pub fn end_use(&self, used: Use, now_ms: u64) -> Result<(), SandboxError> {
        Ok(self.database().touch(&used.record.id, now_ms)?)
    }

    /// Takes one that nobody is at; waits five seconds for those who are.
    ///
    /// # Errors
    /// When somebody still is.
    pub fn claim(&self, id: &SandboxId) -> Result<Claim, SandboxError> {
        let lock = self.lock(id, Hold::Alone)?;
        Ok(Claim { id: id.clone(), path: self.directory(id), _lock: lock })
    }

    /// Says that somebody is at the end of one, beside whoever still uses it. Nothing
    /// where somebody is alone at it, who says the same by that. Does not wait.
    ///
    /// # Errors
    /// When its lock cannot be looked at.
    pub fn begin_end(&self, id: &SandboxId) -> Result<Option<Ending>, SandboxError> {
        let Some(lock) = self.lock_file(id)? else { return Ok(None) };
        Ok(place::try_hold(&lock, Hold::Shared)?.map(|lock| Ending { _lock: lock }))
    }

    /// Ends one whose directory is empty but for its lock: it is over.
    ///
    /// # Errors
    /// When something is left in the directory, or it is not being destroyed.
    pub fn close(&self, claim: Claim, now_ms: u64) -> Result<(), SandboxError> {
        self.expect(&claim.id, SandboxState::Destroying)?;
        match fs::remove_file(claim.path.join(LOCK)).and_then(|()| fs::remove_dir(&claim.path)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(system("remove", &claim.path)(e).into()),
            _ => {}
        }
        let why = self.find(&claim.id)?.and_then(|record| record.why);
        self.change(&claim.id, SandboxState::Destroyed, why.as_deref(), now_ms).map(drop)
    }

    /// Lets one live until then, or shortens its time.
    ///
    /// # Errors
    /// When there is none, or it is over.
    pub fn extend(&self, id: &SandboxId, expires_ms: u64) -> Result<(), SandboxError> {
        let extended = self.database().extend(id, expires_ms)?;
        if extended { Ok(()) } else { Err(self.unexpected(id)?) }
    }

    /// One of them.
    ///
    /// # Errors
    /// When the store failed.
    pub fn find(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, SandboxError> {
        Ok(self.database().find(id)?)
    }

    /// All that are known, the newest first; at most [`MAX_LISTED`].
    ///
    /// # Errors
    /// When the store failed.
    pub fn list(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        Ok(self.database().list()?)
    }

    /// Those whose time is over, and why: to be destroyed by whoever looks.
    ///
    /// # Errors
    /// When the store failed or a directory cannot be looked at.
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

    /// Those that somebody was making or destroying who is no more: to be
    /// destroyed by whoever looks.
    ///
    /// # Errors
    /// When the store failed or a directory cannot be looked at.
    pub fn abandoned(&self) -> Result<Vec<SandboxRecord>, SandboxError> {
        let unfinished = self.database().unfinished()?;
        let mut abandoned = Vec::new();
        for record in unfinished {
            if self.is_held(&record.id)? {
                continue;
            }
            // Whoever was at it may have finished meanwhile, and says so before it lets go.
            let is_now = self.find(&record.id)?;
            abandoned.extend(is_now.filter(|now| now.state == record.state));
        }
        Ok(abandoned)
    }

    /// Notes a command that was run in one.
    ///
    /// # Errors
    /// When the store failed.
    pub fn note_command(&self, id: &SandboxId, mut record: CommandRecord) -> Result<(), SandboxError> {
        record.text = bounded(&record.text, MAX_TEXT_BYTES).to_owned();
        Ok(self.database().note_command(id, &record)?)
    }

    /// What was run in one, the oldest first; at most [`MAX_COMMANDS`].
    ///
    /// # Errors
    /// When the store failed.
    pub fn commands(&self, id: &SandboxId) -> Result<Vec<CommandRecord>, SandboxError> {
        Ok(self.database().commands(id)?)
    }

    /// Forgets those that were over before `before_ms`; how many.
    ///
    /// # Errors
    /// When the store failed.
    pub fn prune(&self, before_ms: u64) -> Result<usize, SandboxError> {
        Ok(self.database().prune(before_ms)?)
    }

    /// Reads the whole database for damage.
    ///
    /// # Errors
    /// What was found first.
    pub fn check(&self) -> Result<(), SandboxError> {
        Ok(self.database().check()?)
    }

    /// The directory of what one keeps, whether it is there or not.
    pub fn directory(&self, id: &SandboxId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// The lock of a sandbox. One whose directory is gone, by a removal that was cut
    /// off, gets it anew.
    fn lock(&self, id: &SandboxId, hold: Hold) -> Result<File, SandboxError> {
        let path = self.directory(id);
        if self.find(id)?.is_none_or(|record| record.state == SandboxState::Destroyed) {
            return Err(self.unexpected(id)?);
        }
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(system("create", &path)(e).into()),
            _ => {}
        }
        // Waits for a moment: whoever asks whether it is used holds it meanwhile.
        place::hold(&path.join(LOCK), hold).map_err(|error| match error {
            PlaceError::Busy { .. } => SandboxError::InUse(id.clone()),
            other => other.into(),
        })
    }

    /// Whether anybody is at it.
    fn is_held(&self, id: &SandboxId) -> Result<bool, SandboxError> {
        let Some(lock) = self.lock_file(id)? else { return Ok(false) };
        Ok(place::try_hold(&lock, Hold::Alone)?.is_none())
    }

    /// The file of its lock, where there is one.
    fn lock_file(&self, id: &SandboxId) -> Result<Option<PathBuf>, SandboxError> {
        let lock = self.directory(id).join(LOCK);
        Ok(lock.try_exists().map_err(system("examine", &lock))?.then_some(lock))
    }

    /// One that is in this state.
    ///
    /// # Errors
    /// When there is none, or it is in another.
    pub fn expect(&self, id: &SandboxId, state: SandboxState) -> Result<SandboxRecord, SandboxError> {
        match self.find(id)? {
            Some(record) if record.state == state => Ok(record),
            _ => Err(self.unexpected(id)?),
        }
    }

    /// Why nothing can be done with it.
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

/// The beginning of a text that fits.
fn bounded(text: &str, limit_bytes: usize) -> &str {
    let mut end = text.len().min(limit_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

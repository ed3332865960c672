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

use rusqlite::Connection;
use serde::Serialize;
use stockade_model::{FinalStatus, RequestId, SandboxId, SandboxRecord, SandboxSpec, SandboxState, SpecError};

use crate::database::{self, StoreError, StoreOpenError};
use crate::database_path::{self, LockMode, StoreFileError, system_error};
use crate::live_directories;
use crate::sql::SqlError;
use crate::sql::sandbox::SCHEMA;

/// Most sandboxes that are not destroyed.
pub const MAX_ALIVE_SANDBOXES: i64 = 10_000;

/// Most sandboxes that are returned at once.
pub const MAX_LISTED: usize = 20_000;

/// Longest reason that is kept, in bytes.
pub const MAX_WHY_BYTES: usize = 4_096;

/// Most commands that are kept of one sandbox; the oldest are dropped.
pub const MAX_COMMANDS: usize = 1_000;

/// Longest text of a command that is kept, in bytes.
pub const MAX_TEXT_BYTES: usize = 4_096;

/// Time-out from the creation of a sandbox's directory until its record.
const RECORD_TIMEOUT: Duration = Duration::from_secs(60);

const DATABASE_NAME: &str = "sandboxes.db";
const LOCK_NAME: &str = "lock";

/// Error of an operation on a sandbox. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxStoreError {
    /// The specification is inconsistent.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No sandbox has this id.
    #[error("there is no sandbox `{0}`\nhint: `stockade sandbox list` shows them")]
    Unknown(SandboxId),
    /// The sandbox is in another state.
    #[error("the sandbox `{id}` is {state}{}{}", .why.as_ref().map(|why| format!(": {why}")).unwrap_or_default(), state_remedy(*.state))]
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
    #[error("there are {MAX_ALIVE_SANDBOXES} sandboxes\nhint: destroy some, or give them a time to live")]
    TooMany,
    /// The directory is unavailable.
    #[error(transparent)]
    StoreFile(#[from] StoreFileError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the remedy for a state, as the rest of a message.
fn state_remedy(state: SandboxState) -> &'static str {
    if state == SandboxState::Paused { "\nhint: resume it with `stockade sandbox resume`" } else { "" }
}

impl From<rusqlite::Error> for SandboxStoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<SqlError> for SandboxStoreError {
    fn from(error: SqlError) -> Self {
        Self::Store(error.into())
    }
}

/// Reason why a sandbox is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueReason {
    /// Its time to live has passed.
    Expired,
    /// The sandbox was idle for the agreed time, and is not in use.
    Idle,
}

/// All sandboxes of a user. Threads share it by reference.
#[derive(Debug)]
pub struct SandboxStore {
    root: PathBuf,
    database: Mutex<Connection>,
}

/// Sandbox that this process holds exclusively, to make or destroy it.
#[derive(Debug)]
pub struct SandboxClaim {
    id: SandboxId,
    path: PathBuf,
    _lock: File,
}

/// Sandbox that this process uses, as others may.
#[derive(Debug)]
pub struct SandboxLease {
    record: SandboxRecord,
    path: PathBuf,
    _lock: File,
}

/// Guard that keeps a sandbox that is being destroyed from counting as abandoned.
#[derive(Debug)]
pub struct DestroyGuard {
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
    pub status: FinalStatus,
    /// Exit code, if the command exited by itself.
    pub exit_code: Option<i32>,
    /// Peak memory use, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Peak number of processes and threads.
    pub processes_peak: Option<u64>,
}

impl SandboxClaim {
    /// Returns its identifier.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl SandboxLease {
    /// Returns its record as of the start of the use.
    pub fn record(&self) -> &SandboxRecord {
        &self.record
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl SandboxStore {
    /// Opens the sandboxes in this directory. Creates the directory and its database if they are
    /// missing.
    ///
    /// # Errors
    /// [`StoreOpenError`] if others than the caller can access the path, or the database cannot be used.
    pub fn open(root: &Path) -> Result<Self, StoreOpenError> {
        let connection = database::open_database(&root.join(DATABASE_NAME), &SCHEMA)?;
        let root = root.canonicalize().map_err(system_error("resolve", root))?;
        Ok(Self { root, database: Mutex::new(connection) })
    }

    /// Begins a sandbox: it is recorded and locked before any part of it is made.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if it cannot be created, there are too many, or its id is in use.
    pub fn begin_sandbox(
        &self,
        id: SandboxId,
        spec: SandboxSpec,
        now_ms: u64,
    ) -> Result<SandboxClaim, SandboxStoreError> {
        spec.check_consistency()?;
        let path = self.root.join(id.as_str());
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(system_error("create", &path))?;
        let begun = database_path::lock_with_mode(&path.join(LOCK_NAME), LockMode::Alone)
            .map_err(SandboxStoreError::from)
            .and_then(|lock| {
                let known = self.insert_record(&SandboxRecord::for_creation(id.clone(), spec, now_ms))?;
                if known { Ok(lock) } else { Err(SandboxStoreError::TooMany) }
            });
        match begun {
            Ok(lock) => Ok(SandboxClaim { id, path, _lock: lock }),
            Err(error) => {
                // The sandbox is not recorded, and its directory contains nothing else.
                let _ = fs::remove_file(path.join(LOCK_NAME));
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    /// Removes directories without a record, whose maker was killed before it wrote the record.
    /// They contain a lock at most.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if the store failed or the directory cannot be read.
    pub fn remove_strays(&self) -> Result<(), SandboxStoreError> {
        for directory in live_directories::list_directories::<SandboxId>(&self.root)? {
            let (id, path) = (directory.id(), directory.path());
            let is_old = path.metadata().and_then(|about| about.modified()).is_ok_and(|made| {
                // With a clock that was set back, the age is unknown.
                made.elapsed().is_ok_and(|age| age > RECORD_TIMEOUT)
            });
            if is_old && self.find_sandbox(id)?.is_none() && !self.is_held(id)? {
                // The lock may not exist yet. The removal fails if there is anything else in it.
                let _ = fs::remove_file(path.join(LOCK_NAME));
                let _ = fs::remove_dir(path);
            }
        }
        Ok(())
    }

    /// Records the backend of a sandbox that is being made; once.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if it is not being made, or its backend is recorded already.
    pub fn set_backend(&self, claim: &SandboxClaim, backend: &str) -> Result<(), SandboxStoreError> {
        let noted = self.update_backend(&claim.id, backend)?;
        if noted { Ok(()) } else { Err(self.state_error(&claim.id)?) }
    }

    /// Changes the state of a sandbox if [`SandboxState::may_become`] permits it. Returns the new
    /// record.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if it does not exist, or its state does not permit the change.
    pub fn change_state(
        &self,
        id: &SandboxId,
        to: SandboxState,
        why: Option<&str>,
        now_ms: u64,
    ) -> Result<SandboxRecord, SandboxStoreError> {
        let why = why.map(|why| truncate_text(why, MAX_WHY_BYTES));
        match self.update_state(id, to, why, now_ms)? {
            Some((record, true)) => Ok(record),
            Some((SandboxRecord { id, state, why, .. }, false)) => Err(SandboxStoreError::State { id, state, why }),
            None => Err(SandboxStoreError::Unknown(id.clone())),
        }
    }

    /// Begins a use of a ready sandbox. During the use, no process makes or destroys it except by
    /// force.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if it is not ready or another process holds it exclusively.
    pub fn begin_use(&self, id: &SandboxId, now_ms: u64) -> Result<SandboxLease, SandboxStoreError> {
        self.require_state(id, SandboxState::Ready)?;
        let lock = self.lock_sandbox(id, LockMode::Shared)?;
        // A process that destroys it first changes the state and then waits for the lock.
        let record = self.require_state(id, SandboxState::Ready)?;
        self.update_used_time(id, now_ms)?;
        Ok(SandboxLease { record, path: self.sandbox_directory(id), _lock: lock })
    }

    /// Ends a use. From now on the sandbox is idle, if no other process uses it.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if that cannot be recorded; the use has ended anyway.
    pub fn end_use(&self, used: SandboxLease, now_ms: u64) -> Result<(), SandboxStoreError> {
        Ok(self.update_used_time(&used.record.id, now_ms)?)
    }

    /// Locks a sandbox exclusively; waits five seconds for its users.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if it is still in use.
    pub fn claim_sandbox(&self, id: &SandboxId) -> Result<SandboxClaim, SandboxStoreError> {
        let lock = self.lock_sandbox(id, LockMode::Alone)?;
        Ok(SandboxClaim { id: id.clone(), path: self.sandbox_directory(id), _lock: lock })
    }

    /// Marks the sandbox as being ended, in parallel to its users. Returns `None` if another
    /// process holds it exclusively, which marks it too. Does not wait.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if its lock cannot be examined.
    pub fn begin_end(&self, id: &SandboxId) -> Result<Option<DestroyGuard>, SandboxStoreError> {
        let Some(lock) = self.lock_file(id)? else { return Ok(None) };
        Ok(database_path::try_hold(&lock, LockMode::Shared)?.map(|lock| DestroyGuard { _lock: lock }))
    }

    /// Closes a sandbox whose directory is empty except for its lock.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if the directory is not empty, or the sandbox is not being destroyed.
    pub fn close_sandbox(&self, claim: SandboxClaim, now_ms: u64) -> Result<(), SandboxStoreError> {
        self.require_state(&claim.id, SandboxState::Destroying)?;
        match fs::remove_file(claim.path.join(LOCK_NAME)).and_then(|()| fs::remove_dir(&claim.path)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(system_error("remove", &claim.path)(e).into());
            }
            _ => {}
        }
        let why = self.find_sandbox(&claim.id)?.and_then(|record| record.why);
        self.change_state(&claim.id, SandboxState::Destroyed, why.as_deref(), now_ms).map(drop)
    }

    /// Sets the time until which a sandbox lives, later or earlier than before.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if it does not exist, or is destroyed.
    pub fn extend(&self, id: &SandboxId, expires_ms: u64) -> Result<(), SandboxStoreError> {
        let extended = self.update_expiry(id, expires_ms)?;
        if extended { Ok(()) } else { Err(self.state_error(id)?) }
    }

    /// Returns the sandboxes that are due, with the reason; the caller must destroy them.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if the store failed or a directory cannot be examined.
    pub fn due_sandboxes(&self, now_ms: u64) -> Result<Vec<(SandboxRecord, DueReason)>, SandboxStoreError> {
        let over = self.select_due(now_ms)?;
        let mut due = Vec::new();
        for record in over {
            let expired = record.expires_ms.is_some_and(|expires| expires <= now_ms);
            if expired {
                due.push((record, DueReason::Expired));
            } else if !self.is_held(&record.id)? {
                due.push((record, DueReason::Idle));
            }
        }
        Ok(due)
    }

    /// Returns the sandboxes whose maker or destroyer died; the caller must destroy them.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if the store failed or a directory cannot be examined.
    pub fn abandoned_sandboxes(&self) -> Result<Vec<SandboxRecord>, SandboxStoreError> {
        let unfinished = self.select_unfinished()?;
        let mut abandoned = Vec::new();
        for record in unfinished {
            if self.is_held(&record.id)? {
                continue;
            }
            // The user may have finished meanwhile, and changes the state before it releases the
            // lock.
            let is_now = self.find_sandbox(&record.id)?;
            abandoned.extend(is_now.filter(|now| now.state == record.state));
        }
        Ok(abandoned)
    }

    /// Returns the directory for a sandbox's files, whether it exists or not.
    pub fn sandbox_directory(&self, id: &SandboxId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// Locks a sandbox. If an interrupted removal deleted its directory, it is created again.
    fn lock_sandbox(&self, id: &SandboxId, hold: LockMode) -> Result<File, SandboxStoreError> {
        let path = self.sandbox_directory(id);
        if self.find_sandbox(id)?.is_none_or(|record| record.state == SandboxState::Destroyed) {
            return Err(self.state_error(id)?);
        }
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(system_error("create", &path)(e).into());
            }
            _ => {}
        }
        // May wait briefly, because a process that checks the use holds the lock meanwhile.
        database_path::lock_with_mode(&path.join(LOCK_NAME), hold).map_err(|error| match error {
            StoreFileError::Busy { .. } => SandboxStoreError::InUse(id.clone()),
            other => other.into(),
        })
    }

    /// Returns whether a process uses it.
    fn is_held(&self, id: &SandboxId) -> Result<bool, SandboxStoreError> {
        let Some(lock) = self.lock_file(id)? else { return Ok(false) };
        Ok(database_path::try_hold(&lock, LockMode::Alone)?.is_none())
    }

    /// Returns the file of its lock, if it exists.
    fn lock_file(&self, id: &SandboxId) -> Result<Option<PathBuf>, SandboxStoreError> {
        let lock = self.sandbox_directory(id).join(LOCK_NAME);
        Ok(lock.try_exists().map_err(system_error("examine", &lock))?.then_some(lock))
    }

    /// Returns the sandbox if it is in this state.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if it does not exist, or is in another state.
    pub fn require_state(&self, id: &SandboxId, state: SandboxState) -> Result<SandboxRecord, SandboxStoreError> {
        match self.find_sandbox(id)? {
            Some(record) if record.state == state => Ok(record),
            _ => Err(self.state_error(id)?),
        }
    }

    /// Returns the error for a sandbox in the wrong state.
    fn state_error(&self, id: &SandboxId) -> Result<SandboxStoreError, SandboxStoreError> {
        Ok(match self.find_sandbox(id)? {
            Some(SandboxRecord { id, state, why, .. }) => SandboxStoreError::State { id, state, why },
            None => SandboxStoreError::Unknown(id.clone()),
        })
    }

    pub(crate) fn lock_database(&self) -> MutexGuard<'_, Connection> {
        // A panic elsewhere rolled its transaction back.
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the longest prefix of a text within the limit.
pub(crate) fn truncate_text(text: &str, limit_bytes: usize) -> &str {
    let mut end = text.len().min(limit_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

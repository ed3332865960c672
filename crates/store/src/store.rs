//! The store as the engine sees it: open it, remember, look up, take back.
//!
//! A lost or damaged store is an error with a remedy. It is never made anew in
//! silence, because with it every refusal that somebody meant for good would
//! be gone.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stockade_model::{ApprovalId, Digest, RawText, Scope, SessionId};

use crate::place::{self, PlaceError};
use crate::remembered::{Namespace, Remembered};
use crate::sql::{Database, SqlError};

/// How long to wait for another process's write, in milliseconds.
pub const BUSY_TIMEOUT_MS: u64 = 5_000;

/// The longest question that is remembered, in bytes.
pub const MAX_QUESTION_BYTES: usize = 1 << 20;

/// The most grants of one remembered answer.
pub const MAX_GRANTS: usize = 1_000;

/// The most answers that [`Store::list`] returns.
pub const MAX_LISTED: usize = 10_000;

/// Why the store cannot be opened. In each case nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or the file cannot serve.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The file is empty or damaged.
    #[error(
        "the store `{}` is damaged: {why}\nhint: restore it from a backup, or move it away together with its `-wal` and `-shm`; remembered answers, refusals too, are then asked for again",
        shown(path)
    )]
    Corrupt {
        /// Which.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// The file belongs to another program.
    #[error("`{}` is a database of another program\nhint: name another file", shown(path))]
    Foreign {
        /// Which.
        path: PathBuf,
    },
    /// The file was written by a newer version.
    #[error(
        "the store `{}` has schema version {found}; this version of Stockade knows {known}\nhint: use the newer version",
        shown(path)
    )]
    Newer {
        /// Which.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// Parts of a store are left whose main file is gone.
    #[error(
        "the store `{}` is missing, but `{}` is still there\nhint: put the store back, or move its `-wal` and `-shm` away too",
        shown(path),
        shown(left)
    )]
    Orphan {
        /// The store.
        path: PathBuf,
        /// What is left of it.
        left: PathBuf,
    },
    /// The database said no.
    #[error("cannot open the store `{}`: {source}", shown(path))]
    Database {
        /// Which.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
}

/// Why the store cannot answer. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process kept it locked.
    #[error(
        "another process has kept the store locked for {BUSY_TIMEOUT_MS} ms\nhint: find it with `fuser` and end it"
    )]
    Busy,
    /// There is no space.
    #[error("there is no space for the store\nhint: make space on its disk, then try again")]
    Full,
    /// It is damaged.
    #[error(
        "the store is damaged: {0}\nhint: restore it from a backup, or move it away together with its `-wal` and `-shm`; remembered answers, refusals too, are then asked for again"
    )]
    Corrupt(String),
    /// Anything else the database says.
    #[error("the store failed: {0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// Why an answer was not remembered.
#[derive(Debug, thiserror::Error)]
pub enum RememberError {
    /// It reaches no further than the question that it answered.
    #[error("there is nothing left of the answer to remember")]
    NothingLeft,
    /// It reaches as far as a session, and there is none.
    #[error("an answer for the session needs a session")]
    NoSession,
    /// It is not for storing.
    #[error("{what} is larger than is remembered")]
    TooLarge {
        /// Which part of it.
        what: &'static str,
    },
    /// Another answer has this id.
    #[error("an answer with the id `{0}` is remembered already")]
    Duplicate(ApprovalId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn shown(path: &Path) -> String {
    RawText::from(path).escaped()
}

impl From<SqlError> for StoreError {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Busy => Self::Busy,
            SqlError::Full => Self::Full,
            SqlError::Corrupt(why) => Self::Corrupt(why),
            SqlError::Foreign => Self::Corrupt("it is a database of another program".into()),
            SqlError::Newer { found, known } => {
                Self::Corrupt(format!("schema version {found}, where {known} is known"))
            }
            SqlError::Duplicate => Self::Other("the id is taken".into()),
            SqlError::Other(source) => Self::Other(source),
        }
    }
}

fn open_error(path: &Path, error: SqlError) -> OpenError {
    let path = path.to_owned();
    match error {
        SqlError::Corrupt(why) => OpenError::Corrupt { path, why },
        SqlError::Foreign => OpenError::Foreign { path },
        SqlError::Newer { found, known } => OpenError::Newer { path, found, known },
        other => OpenError::Database { path, source: other.into() },
    }
}

/// The open store. Share it between threads by reference.
#[derive(Debug)]
pub struct Store {
    database: Mutex<Database>,
}

impl Store {
    /// Opens the store at `path`, and makes one where there is none. Its
    /// directory becomes mode 0700 and must hold nothing of others.
    ///
    /// # Errors
    /// A place that is not the caller's alone; a file that is damaged, of
    /// another program or of a newer version.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let path = &place::private_directory(path)?;
        match place::private_file(path)? {
            Some(0) => return Err(OpenError::Corrupt { path: path.clone(), why: "it is empty".into() }),
            Some(_) => {}
            None => create(path)?,
        }
        let database = Database::open(path).map_err(|e| open_error(path, e))?;
        Ok(Self { database: Mutex::new(database) })
    }

    /// Remembers an answer. [`lasting`](crate::lasting) says what of an answer
    /// is left to remember. Durable when this returns.
    ///
    /// # Errors
    /// When it answers nothing, is too large, or the store failed.
    pub fn remember(&self, remembered: &Remembered) -> Result<(), RememberError> {
        match remembered.scope {
            Scope::Once | Scope::Times(0) => return Err(RememberError::NothingLeft),
            Scope::Session if remembered.session.is_none() => return Err(RememberError::NoSession),
            Scope::Session | Scope::Times(_) | Scope::Until(_) | Scope::Always => {}
        }
        if remembered.question.as_bytes().len() > MAX_QUESTION_BYTES {
            return Err(RememberError::TooLarge { what: "the question" });
        }
        if remembered.grants.len() > MAX_GRANTS {
            return Err(RememberError::TooLarge { what: "the list of grants" });
        }
        self.database().insert(remembered).map_err(|error| match error {
            SqlError::Duplicate => RememberError::Duplicate(remembered.id.clone()),
            other => StoreError::from(other).into(),
        })
    }

    /// The remembered answer to a question, if there is one: a refusal before
    /// an approval, and what is not used up before what is. Where its uses are
    /// counted, this was one, taken durably; the scope returned holds what is
    /// left. No more uses are given than were granted, whatever the number of
    /// processes.
    ///
    /// # Errors
    /// When the store failed: then there is no answer, and nothing may run on one.
    pub fn lookup(
        &self,
        namespace: Namespace,
        digest: &Digest,
        session: Option<&SessionId>,
        now_ms: u64,
    ) -> Result<Option<Remembered>, StoreError> {
        Ok(self.database().take(namespace, digest, session, now_ms)?)
    }

    /// Everything remembered, in force or not, the newest first; at most
    /// [`MAX_LISTED`].
    ///
    /// # Errors
    /// When the store failed.
    pub fn list(&self) -> Result<Vec<Remembered>, StoreError> {
        Ok(self.database().list()?)
    }

    /// One remembered answer.
    ///
    /// # Errors
    /// When the store failed.
    pub fn show(&self, id: &ApprovalId) -> Result<Option<Remembered>, StoreError> {
        Ok(self.database().show(id)?)
    }

    /// Takes an answer back: it answers nothing any more. False where there is
    /// none, or it was taken back before.
    ///
    /// # Errors
    /// When the store failed.
    pub fn revoke(&self, id: &ApprovalId, now_ms: u64) -> Result<bool, StoreError> {
        Ok(self.database().revoke(id, now_ms)?)
    }

    /// Ends what was answered for a session; returns how many answers.
    ///
    /// # Errors
    /// When the store failed.
    pub fn end_session(&self, session: &SessionId, now_ms: u64) -> Result<usize, StoreError> {
        Ok(self.database().end_session(session, now_ms)?)
    }

    /// Forgets answers that ceased to answer anything before `before_ms`;
    /// returns how many. (Of counted ones: those used up and answered before.)
    ///
    /// # Errors
    /// When the store failed.
    pub fn prune(&self, before_ms: u64) -> Result<usize, StoreError> {
        Ok(self.database().prune(before_ms)?)
    }

    /// Reads the whole store for damage.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] with what was found first.
    pub fn check(&self) -> Result<(), StoreError> {
        Ok(self.database().check()?)
    }

    fn database(&self) -> MutexGuard<'_, Database> {
        // A panic elsewhere rolled its transaction back.
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a whole store under another name, then gives it its own. So a store
/// is there with its schema or not at all, whoever dies or comes in between.
fn create(path: &Path) -> Result<(), OpenError> {
    let _lock = place::lock(&place::beside(path, ".lock"))?;
    if place::private_file(path)?.is_some() {
        return Ok(());
    }
    for suffix in ["-wal", "-shm", "-journal"] {
        // SQLite would replay it into the new file.
        let left = place::beside(path, suffix);
        if left.symlink_metadata().is_ok() {
            return Err(OpenError::Orphan { path: path.to_owned(), left });
        }
    }
    let fresh = place::beside(path, ".new");
    for suffix in ["", "-wal", "-shm", "-journal"] {
        // Of a maker that died; the lock says that it is not at work.
        let stale = place::beside(&fresh, suffix);
        match std::fs::remove_file(&stale) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(place::system("remove", &stale)(e).into()),
            _ => {}
        }
    }
    place::create_new(&fresh)?;
    Database::initialise(&fresh).map_err(|e| open_error(path, e))?;
    Ok(place::put_in_place(&fresh, path)?)
}

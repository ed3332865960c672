//! The store as the engine sees it: open it, remember, look up, take back.
//!
//! A lost or damaged store is an error with a remedy. It is never made anew in
//! silence, because with it every refusal that somebody meant for good would
//! be gone.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stockade_model::{ApprovalId, Digest, Scope, SessionId};

use crate::database::{self, OpenError, StoreError};
use crate::remembered::{Namespace, Remembered};
use crate::sql::SqlError;
use crate::sql::approval::{Database, SCHEMA};

/// The longest question that is remembered, in bytes.
pub const MAX_QUESTION_BYTES: usize = 1 << 20;

/// The most grants of one remembered answer.
pub const MAX_GRANTS: usize = 1_000;

/// The most answers that [`Store::list`] returns.
pub const MAX_LISTED: usize = 10_000;

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
        let database = Database::on(database::open(path, &SCHEMA)?);
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

//! The store's interface for the engine: open, remember, look up, revoke.
//!
//! A lost or damaged store is an error with a remedy. It is never replaced silently, because every
//! permanent refusal would be lost with it.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stockade_model::{ApprovalId, ApprovalScope, Digest, SessionId};

use crate::database::{self, StoreError, StoreOpenError};
use crate::remembered::{ApprovalNamespace, ApprovalRecord};
use crate::sql::SqlError;
use crate::sql::approval::{ApprovalDatabase, SCHEMA};

/// Longest question that is remembered, in bytes.
pub const MAX_QUESTION_BYTES: usize = 1 << 20;

/// Most grants of one remembered answer.
pub const MAX_GRANTS: usize = 1_000;

/// Most answers that [`ApprovalStore::list_answers`] returns.
pub const MAX_LISTED: usize = 10_000;

/// Error if an answer was not remembered.
#[derive(Debug, thiserror::Error)]
pub enum RememberError {
    /// The answer does not apply to later questions.
    #[error("there is nothing left of the answer to remember")]
    NothingLeft,
    /// The answer is for a session, and there is none.
    #[error("an answer for the session needs a session")]
    NoSession,
    /// The answer is too large.
    #[error("{what} is larger than is remembered")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
    },
    /// Another answer has this id.
    #[error("an answer with the id `{0}` is remembered already")]
    Duplicate(ApprovalId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Open store. Threads share it by reference.
#[derive(Debug)]
pub struct ApprovalStore {
    database: Mutex<ApprovalDatabase>,
}

impl ApprovalStore {
    /// Opens the store at `path`, and creates it if it does not exist. Its directory gets mode 0700
    /// and must contain no files of other users.
    ///
    /// # Errors
    /// [`StoreOpenError`] if others than the caller can access the path, or if the file is damaged, of
    /// another program or of a newer version.
    pub fn open(path: &Path) -> Result<Self, StoreOpenError> {
        let database = ApprovalDatabase::from_connection(database::open_database(path, &SCHEMA)?);
        Ok(Self { database: Mutex::new(database) })
    }

    /// Remembers an answer. [`persistent_part`](crate::persistent_part) returns the part of an answer to remember.
    /// Durable when this returns.
    ///
    /// # Errors
    /// [`RememberError`] if it applies to no later question, is too large, or the store failed.
    pub fn remember_answer(&self, remembered: &ApprovalRecord) -> Result<(), RememberError> {
        match remembered.scope {
            ApprovalScope::Once | ApprovalScope::Times(0) => return Err(RememberError::NothingLeft),
            ApprovalScope::Session if remembered.session.is_none() => return Err(RememberError::NoSession),
            ApprovalScope::Session | ApprovalScope::Times(_) | ApprovalScope::Until(_) | ApprovalScope::Always => {}
        }
        if remembered.question.as_bytes().len() > MAX_QUESTION_BYTES {
            return Err(RememberError::TooLarge { what: "the question" });
        }
        if remembered.grants.len() > MAX_GRANTS {
            return Err(RememberError::TooLarge { what: "the list of grants" });
        }
        self.lock_database().insert(remembered).map_err(|error| match error {
            SqlError::Duplicate => RememberError::Duplicate(remembered.id.clone()),
            other => StoreError::from(other).into(),
        })
    }

    /// Returns the remembered answer to a question, if there is one. Refusals precede approvals,
    /// and answers without counted uses precede counted ones. If its uses are counted, one is taken
    /// durably, and the returned scope contains the remaining uses. No more uses are given than
    /// were granted, whatever the number of processes.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed; then there is no answer, and no command may run because
    /// of one.
    pub fn look_up_answer(
        &self,
        namespace: ApprovalNamespace,
        digest: &Digest,
        session: Option<&SessionId>,
        now_ms: u64,
    ) -> Result<Option<ApprovalRecord>, StoreError> {
        Ok(self.lock_database().take_answer(namespace, digest, session, now_ms)?)
    }

    /// Returns all remembered answers, valid or not, the newest first; at most [`MAX_LISTED`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn list_answers(&self) -> Result<Vec<ApprovalRecord>, StoreError> {
        Ok(self.lock_database().list_answers()?)
    }

    /// Returns one remembered answer.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn find_answer(&self, id: &ApprovalId) -> Result<Option<ApprovalRecord>, StoreError> {
        Ok(self.lock_database().find_answer(id)?)
    }

    /// Revokes an answer, which then answers no question. Returns false if it does not exist, or
    /// was revoked before.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn revoke_answer(&self, id: &ApprovalId, now_ms: u64) -> Result<bool, StoreError> {
        Ok(self.lock_database().revoke_answer(id, now_ms)?)
    }

    /// Ends the answers of a session; returns their number.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn end_session(&self, session: &SessionId, now_ms: u64) -> Result<usize, StoreError> {
        Ok(self.lock_database().end_session(session, now_ms)?)
    }

    /// Removes answers that became invalid before `before_ms`; returns their number. (Counted
    /// answers: those used up and given before that time.)
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn prune_answers(&self, before_ms: u64) -> Result<usize, StoreError> {
        Ok(self.lock_database().prune_answers(before_ms)?)
    }

    /// Checks the whole store for damage.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] with the first damage.
    pub fn check_integrity(&self) -> Result<(), StoreError> {
        Ok(self.lock_database().check_integrity()?)
    }

    fn lock_database(&self) -> MutexGuard<'_, ApprovalDatabase> {
        // A panic elsewhere rolled its transaction back.
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The store's interface for the engine: open and remember. The look-ups are in `sql::approval`.
//!
//! A lost or damaged store is an error with a remedy. It is never replaced silently, because every
//! permanent refusal would be lost with it.

use std::path::Path;

use stockade_model::{ApprovalId, ApprovalScope};

use crate::database::{self, StoreError, StoreOpenError};
use crate::remembered::ApprovalRecord;
use crate::sql::Database;
use crate::sql::approval::SCHEMA;

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
    #[error("the answer has no later use to remember")]
    NothingLeft,
    /// The answer is for a session, and there is none.
    #[error("an answer for the session needs a session")]
    NoSession,
    /// The answer is too large.
    #[error("{what} is too large to remember")]
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
    pub(crate) database: Database,
}

impl ApprovalStore {
    /// Opens the store at `path`, and creates it if it does not exist. Its directory gets mode 0700
    /// and must contain no files of other users.
    ///
    /// # Errors
    /// [`StoreOpenError`] if others than the caller can access the path, or if the file is damaged, of
    /// another program or of a newer version.
    pub fn open(path: &Path) -> Result<Self, StoreOpenError> {
        Ok(Self { database: database::open_database(path, &SCHEMA)? })
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
        match self.insert_answer(remembered)? {
            true => Ok(()),
            false => Err(RememberError::Duplicate(remembered.id.clone())),
        }
    }
}

//! Persistent state between runs: answers with a scope beyond `once`, detached runs ([`runs`]),
//! warm sessions ([`sessions`]), persistent sandboxes ([`sandboxes`]), and the ends of audit logs
//! ([`anchors`]).
//!
//! An answer is stored under the digest of everything that consent was bound to, in the namespace
//! of its kind of question (L1). An approval to run a command never answers whether it may run
//! without a sandbox.
//!
//! The crate has on purpose no clock and no randomness, because the caller passes both. It has no
//! rules, and does not decide about the content of a digest or the answers to remember. Every SQL
//! statement is in one module, and no type of the database leaves it.

#![forbid(unsafe_code)]

pub mod anchors;
mod database;
mod database_path;
mod live_directories;
mod remembered;
pub mod runs;
pub mod sandboxes;
pub mod sessions;
mod sql;
mod store;

pub use database::{BUSY_TIMEOUT_MS, StoreError, StoreOpenError};
pub use database_path::StoreFileError;
pub use live_directories::{LiveDirectory, SupervisedDirectory};
pub use remembered::{ApprovalNamespace, ApprovalRecord, Consent, persistent_part};
pub use store::{ApprovalStore, MAX_GRANTS, MAX_LISTED, MAX_QUESTION_BYTES, RememberError};

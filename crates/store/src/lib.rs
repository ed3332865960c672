//! What Stockade remembers between runs: answers that reach further than once,
//! the runs that were detached ([`runs`]), warm sessions ([`sessions`]), sandboxes that
//! last ([`sandboxes`]), and how far audit logs reached ([`anchors`]).
//!
//! An answer is remembered under the digest of everything consent was bound to,
//! in the namespace of the kind of question it answered (L1): an approval to
//! run something never answers whether it may run without a sandbox.
//!
//! Absent on purpose: no clock and no randomness (both are passed in), no
//! opinion on what goes into a digest or what may be remembered, no rules. Every
//! SQL statement stands in one module, and no type of the database leaves it.

#![forbid(unsafe_code)]

pub mod anchors;
mod database;
mod held;
mod place;
mod remembered;
pub mod runs;
pub mod sandboxes;
pub mod sessions;
mod sql;
mod store;

pub use database::{BUSY_TIMEOUT_MS, OpenError, StoreError};
pub use place::PlaceError;
pub use remembered::{Consent, Namespace, Remembered, lasting};
pub use store::{MAX_GRANTS, MAX_LISTED, MAX_QUESTION_BYTES, RememberError, Store};

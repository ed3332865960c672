//! The record: an append-only, hash-chained file of events (L10).
//!
//! One line is one JSON object. Each line carries its number, the hash of the
//! line before it, the event, and its own hash; the last durable line is also
//! noted in a file of its own, so that neither a changed line nor a missing
//! end goes unseen. Several processes may append at once.
//!
//! What it proves: an accident, a torn write, a careless edit, and a change by
//! somebody who did not rebuild the whole chain and its head. It has no key, so
//! it does not prove the absence of a forger who owns the directory; for that,
//! keep the head that [`verify`] reports somewhere else.
//!
//! Absent on purpose: no clock, no randomness, no configuration, no decision on
//! what is worth recording. Where the directory lies is the caller's business;
//! it must be outside everything a sandbox may write (L7).

#![forbid(unsafe_code)]

mod export;
mod head;
mod line;
mod log;
mod place;
mod query;
mod scan;
mod verify;

pub use export::{ExportError, Format, export};
pub use line::{Fault, Hash, MAX_LINE_BYTES};
pub use log::{AppendError, CommitError, Log, MAX_BATCH_BYTES, OpenError, Seq, Torn};
pub use place::{LOCK_WAIT_MS, PlaceError};
pub use query::{Content, Entry, Filter, Query, QueryError, query};
pub use verify::{Verified, VerifyError, verify};

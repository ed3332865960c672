//! The record: an append-only, hash-chained file of events (L10).
//!
//! One line is one JSON object. Each line carries its number, the hash of the
//! line before it, the event, and its own hash. The last line and the last durable
//! line are also named by the head, a signed note in a file of its own, so that neither
//! a changed line nor a missing end goes unseen. Several processes may append at once.
//!
//! [`verify`] finds an accident, a careless edit, and every change of the log and its head
//! by a program that does not have the key, which lies beside the directory. An older log
//! that is put back together with its signed head is found by an [`Anchor`] that is kept
//! elsewhere ([`verify_with`]). A program that may read the key and write all of these can
//! forge a log; against it, keep the head that [`verify`] reports on another machine.
//!
//! Absent on purpose: no clock, no randomness, no configuration, no decision on
//! what is worth recording. Where the directory lies is the caller's business;
//! it must be outside everything a sandbox may write (L7).

#![forbid(unsafe_code)]

mod anchor;
mod export;
mod head;
mod key;
mod line;
mod log;
mod opening;
mod place;
mod query;
mod scan;
mod verify;

pub use anchor::{Anchor, AnchorState};
pub use export::{ExportError, Format, export};
pub use head::Boot;
pub use line::{Fault, Hash, HashError, MAX_LINE_BYTES, Witness};
pub use log::{AppendError, CommitError, Log, MAX_BATCH_BYTES, OpenError, Seq, Torn};
pub use place::{LOCK_WAIT_MS, PlaceError};
pub use query::{Content, Entry, Filter, Query, QueryError, query};
pub use verify::{Verified, VerifyError, verify, verify_with};

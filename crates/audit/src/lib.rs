//! Audit log: an append-only, hash-chained file of events (L10).
//!
//! One line is one JSON object. Each line contains its number, the hash of the line before it, the
//! event, and its own hash. The last line and the last durable line are also in the head, a signed
//! note in a file of its own. So neither a changed line nor a missing end stays undetected. Several
//! processes may append at the same time.
//!
//! [`verify_audit_log`] detects accidents, careless edits, and every change of the log and its head by a
//! program without the key, which is beside the directory. An older log that is restored together
//! with its signed head is detected by a [`LogAnchor`] that is kept elsewhere ([`verify_with`]). A
//! program that can read the key and write all of these can forge a log. Against such a program,
//! keep the head that [`verify_audit_log`] reports on another machine.
//!
//! The crate has on purpose no clock, no randomness, no configuration, and no decision about the
//! events to record. The caller chooses the directory, which must be outside everything a sandbox
//! may write (L7).

#![forbid(unsafe_code)]

mod anchor;
mod export;
mod head;
mod key;
mod line;
mod log;
mod log_directory;
mod opening;
mod query;
mod scan;
mod verify;

pub use anchor::{AnchorState, LogAnchor};
pub use export::{ExportError, ExportFormat, export_entries};
pub use head::BootId;
pub use line::{HashError, LineFault, LineHash, LogEndSource, MAX_LINE_BYTES};
pub use log::{AppendError, AuditLogWriter, LineNumber, LogCommitError, LogOpenError, MAX_BATCH_BYTES, TornTail};
pub use log_directory::{LOCK_WAIT_MS, LogFileError};
pub use query::{EntryContent, EntryFilter, LogEntry, LogQuery, QueryError, query_log};
pub use verify::{VerifyError, VerifyReport, verify_audit_log, verify_with};

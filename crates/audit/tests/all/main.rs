//! The log from outside, with real files and real processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod cutting;
mod log_location;
mod processes;
mod reading;
mod tampering;

use std::path::{Path, PathBuf};

use stockade_audit::{AuditLogWriter, VerifyReport, verify_audit_log};
use stockade_model::{Event, EventKind};

/// A directory for one test, and the log's directory in it, not yet made.
fn log_location() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("audit");
    (root, dir)
}

fn event(time_ms: u64, message: &str) -> Event {
    Event {
        time_ms,
        request: "req_1".parse().unwrap(),
        session: Some("ses_1".parse().unwrap()),
        kind: EventKind::Failed { message: message.into() },
    }
}

/// A log of `count` durable lines.
fn written(dir: &Path, count: u64) {
    let log = AuditLogWriter::open(dir).unwrap();
    for n in 0..count {
        log.append_event(&event(n, &format!("message {n}"))).unwrap();
    }
    log.commit_lines().unwrap();
}

#[track_caller]
fn holds(dir: &Path, entries: u64) -> VerifyReport {
    let verified = verify_audit_log(dir).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(verified.entries, entries);
    verified
}

//! The store from outside, with real files and real processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod answers;
mod opening;
mod processes;
mod sandboxes;

use std::path::PathBuf;

use stockade_model::{ApprovalId, ApprovalScope, Digest, SessionId};
use stockade_store::{ApprovalNamespace, ApprovalRecord, Consent};

/// A directory for one test, and the store's path in it, not yet made.
fn database_location() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("state/store.db");
    (root, path)
}

fn id(name: &str) -> ApprovalId {
    format!("apr_{name}").parse().unwrap()
}

fn session(name: &str) -> SessionId {
    format!("ses_{name}").parse().unwrap()
}

fn digest(of: &str) -> Digest {
    Digest::of_fields("test", [of.as_bytes()])
}

/// An answer to the question `d` of namespace `run`, given in session `s` at 1,000 ms.
fn answer(name: &str, consent: Consent, scope: ApprovalScope) -> ApprovalRecord {
    ApprovalRecord {
        id: id(name),
        namespace: ApprovalNamespace::Run,
        digest: digest("d"),
        question: "may `pip install x` run?\u{1b}[2J".into(),
        grants: vec!["write /home/u/.cache/pip".parse().unwrap(), "connect pypi.org:443".parse().unwrap()],
        consent,
        scope,
        session: Some(session("s")),
        by: "terminal".into(),
        created_ms: 1_000,
        request: "req_1".parse().unwrap(),
        revoked_ms: None,
        ended_ms: None,
    }
}

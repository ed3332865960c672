//! `stockade net` as scripts see it, over a record of connections.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]
#![allow(clippy::disallowed_methods, reason = "the program under test is started here")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use stockade_audit::AuditLogWriter;
use stockade_model::{
    ConnectionEnd, ConnectionRecord, Denial, DenialLayer, DenialResolution, DeniedOperation, Event, EventKind,
};
use tempfile::TempDir;

struct World {
    state: TempDir,
}

impl World {
    fn new() -> Self {
        let state = TempDir::new().unwrap();
        fs::create_dir_all(state.path().join("stockade")).unwrap();
        fs::set_permissions(state.path().join("stockade"), fs::Permissions::from_mode(0o700)).unwrap();
        Self { state }
    }

    fn record(&self, session: &str, kinds: impl IntoIterator<Item = EventKind>) {
        let log = AuditLogWriter::open(&self.state.path().join("stockade/audit")).unwrap();
        for kind in kinds {
            let request = "req_00000000000000000000000001".parse().unwrap();
            let session = Some(session.parse().unwrap());
            log.append_event(&Event { time_ms: 1_704_276_000_000, request, session, kind }).unwrap();
        }
        log.commit_lines().unwrap();
    }

    fn net(&self, arguments: &[&str]) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_stockade"));
        program.arg("net").args(arguments).env("XDG_STATE_HOME", self.state.path()).stdin(Stdio::null());
        program
    }

    #[track_caller]
    fn shown(&self, arguments: &[&str]) -> String {
        let output = self.net(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && error.is_empty(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn connection(target: &str, bytes_down: u64, end: ConnectionEnd) -> EventKind {
    let record = ConnectionRecord {
        pid: Some(7),
        program: Some("/usr/bin/pip".into()),
        target: target.parse().unwrap(),
        address: None,
        rule: "egress.allow".into(),
        tls_name: None,
        bytes_up: 0,
        bytes_down,
        duration_ms: 5,
        end,
        why: None,
    };
    EventKind::Connection { attempt: 1, connection: Box::new(record) }
}

fn denied(operation: DeniedOperation, object: &str) -> EventKind {
    EventKind::Denied {
        denial: Denial {
            operation,
            object: object.into(),
            pid: None,
            program: None,
            layer: DenialLayer::Network,
            rule: "not allowed".into(),
            grant: None,
            resolution: DenialResolution::Recorded,
            count: 1,
        },
    }
}

fn world() -> World {
    let world = World::new();
    world.record(
        "ses_a",
        [
            connection("pypi.org:443", 100, ConnectionEnd::Closed),
            denied(DeniedOperation::Write, "/etc/x"),
            denied(DeniedOperation::Connect, "evil\u{1b}[2J.example:443"),
            EventKind::Failed { message: "x".into() },
        ],
    );
    world.record("ses_b", [connection("github.com:22", 5_000, ConnectionEnd::Failed)]);
    world
}

#[test]
fn the_log_contains_the_network_events() {
    let world = world();
    let shown = world.shown(&["log"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines[0].contains("connection attempt 1: pip to pypi.org:443, 0 B up, 100 B down"), "{shown}");
    assert!(lines[1].contains(r"denied    connect to evil\u{1b}[2J.example:443"), "{shown}");
    assert!(lines[2].contains("github.com:22") && lines[2].contains("failed"), "{shown}");
    assert!(!shown.contains('\u{1b}'));
    let one = world.shown(&["log", "--session", "b", "--json"]);
    let value: Value = serde_json::from_str(one.trim_end()).unwrap();
    assert_eq!(value["event"]["kind"]["connection"]["target"]["host"], "github.com");
    assert_eq!(world.shown(&["log", "--since", "1h"]), "");
}

#[test]
fn top_counts_by_host() {
    let world = world();
    let shown = world.shown(&["top"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("HOST"), "{shown}");
    assert!(lines[1].starts_with("github.com:22") && lines[2].starts_with("pypi.org:443"), "{shown}");
    assert_eq!(lines[3], r"refused: evil\u{1b}[2J.example:443   (not allowed)");
    let value: Value = serde_json::from_str(&world.shown(&["top", "--json", "--session", "a"])).unwrap();
    assert_eq!(value["hosts"].as_array().unwrap().len(), 1);
    assert_eq!(value["hosts"][0]["connections"], 1);
    assert_eq!(value["refused"][0]["times"], 1);
}

#[test]
fn a_missing_record_is_reported() {
    let output = World::new().net(&["top"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8(output.stderr).unwrap().contains("audit"));
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn following_shows_appended_lines() {
    let world = world();
    let mut child = Ended(world.net(&["log", "--follow"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.by_ref().nth(2).unwrap().contains("github.com:22"));
    world.record(
        "ses_a",
        [denied(DeniedOperation::Write, "/etc/y"), connection("npmjs.org:443", 1, ConnectionEnd::Reset)],
    );
    assert!(lines.next().unwrap().contains("npmjs.org:443"));
}

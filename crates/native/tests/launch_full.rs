//! Level full: what a command finds inside.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use stockade_model::Level::Full;
use stockade_native::launch::Ended;
use support::{in_each_role, plan, run, script, workspace};

#[test]
fn a_command_runs_and_its_end_is_reported() {
    in_each_role("a_command_runs_and_its_end_is_reported", || {
        let ws = workspace();
        run(&plan(Full, ws.path(), &["true"])).ok();
        assert_eq!(run(&plan(Full, ws.path(), &["sh", "-c", "exit 42"])).exit.status, Ended::Exited(42));
        assert_eq!(run(&plan(Full, ws.path(), &["sh", "-c", "kill -TERM $$"])).exit.status, Ended::Signaled(15));
        assert_eq!(run(&script(Full, ws.path(), "echo out; echo err >&2; pwd")).ok(), {
            format!("out\n{}\n", ws.path().canonicalize().unwrap().display())
        });
    });
}

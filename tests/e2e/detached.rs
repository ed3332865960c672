//! Runs without a terminal: they live on, can be looked at and ended by their
//! owner alone, and leave nothing when whatever watches over them is killed.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram, TestCommand, TestUser};

use crate::life::{assert_none_left, marked};
use crate::session::ASKING;
use crate::terminal::Terminal;
use crate::world::{World, binary, each_user, one_user};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts it and gives its id.
#[track_caller]
pub fn detach(world: &World, options: &[&str], script: &str) -> String {
    detach_program(world, options, &["sh", "-c", script])
}

/// The same, of any program.
#[track_caller]
pub fn detach_program(world: &World, options: &[&str], argv: &[&str]) -> String {
    let options = [&["--detach"], options].concat();
    let output = world.run(&world.stockade(&options, argv));
    assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
    assert!(!output.held_open, "the supervisor keeps the caller's streams");
    let id = output.stdout.strip_suffix('\n').unwrap_or_default();
    assert!(id.starts_with("req_") && !id.contains('\n'), "{:?}", output.stdout);
    id.to_owned()
}

pub fn stockade(world: &World, arguments: &[&str]) -> ProgramOutput {
    world.run(&world.bare(&[&[binary().as_str()], arguments].concat()))
}

/// Looks until it is so.
#[track_caller]
pub fn eventually(what: &str, so: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !so() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20));
    }
}

/// What `ps --json` tells of it.
pub fn run_report(world: &World, id: &str) -> Value {
    let output = stockade(world, &["ps", "--all", "--json"]);
    let all = output.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.into_iter()
        .find(|run| run["id"] == id)
        .unwrap_or_else(|| panic!("{id} is not told of: {}", output.combined_text()))
}

pub fn waited(world: &World, id: &str) -> ProgramEnd {
    stockade(world, &["wait", id]).ended
}

/// A person sits down at it.
pub fn attach(world: &World, options: &[&str], id: &str) -> Terminal {
    let mut terminal = Terminal::start(world, &world.bare(&[&[&binary(), "attach"], options, &[id]].concat()));
    terminal.expect("attached to ");
    terminal
}

/// Writes this text to the run.
pub fn writing(world: &World, options: &str, id: &str, text: &str) -> TestCommand {
    let script = format!("printf '%s' \"$2\" | \"$0\" write {options} \"$1\"");
    world.bare(&["sh", "-c", &script, &binary(), id, text])
}

pub fn logs(world: &World, id: &str) -> String {
    stockade(world, &["logs", id]).stdout
}

#[track_caller]
pub fn prints(world: &World, id: &str, text: &str) {
    eventually(&format!("`{text}` is not printed"), || logs(world, id).contains(text));
}

pub fn kill(world: &World, id: &str) {
    let killed = stockade(world, &["kill", "--signal", "kill", id]);
    assert_eq!(killed.ended, ProgramEnd::Code(0), "{}", killed.combined_text());
}

#[test]
fn a_detached_run_can_be_looked_at_and_waited_for() {
    each_user(|world| {
        let go = world.workspace().join("go");
        let script = "echo out; echo err >&2; while [ ! -e go ]; do sleep 0.05; done; echo end; exit 7";
        let id = detach(world, &[], script);
        assert!(stockade(world, &["ps"]).stdout.starts_with(&format!("{id}  ")));
        assert_eq!(run_report(world, &id)["state"], "running");
        eventually("nothing is printed", || stockade(world, &["logs", &id]).stdout == "out\n");
        let follow = world.bare(&[&binary(), "logs", "--follow", &id]);
        let following = RunningProgram::start(&world.account, &follow).unwrap();
        let waiting = RunningProgram::start(&world.account, &world.bare(&[&binary(), "wait", &id[..12]])).unwrap();
        fs::write(&go, "").unwrap();
        assert_eq!(waiting.wait_for_end().unwrap().ended, ProgramEnd::Code(7));
        let followed = following.wait_for_end().unwrap();
        assert_eq!(followed.ended, ProgramEnd::Code(0));
        assert_eq!((followed.stdout.as_str(), followed.stderr.as_str()), ("out\nend\n", "err\n"));
        assert_eq!(stockade(world, &["ps"]).stdout, "");
        assert!(stockade(world, &["ps", "--all"]).stdout.contains("  exited (7)  "));
        assert_eq!(waited(world, &id), ProgramEnd::Code(7));
        assert_eq!(stockade(world, &["kill", &id]).ended, ProgramEnd::Code(1));
        fs::remove_file(go).unwrap();
    });
}

/// The same run, with and without its terminal.
#[test]
fn the_end_of_the_terminal_does_not_end_it() {
    each_user(|world| {
        for (detached, word) in [(&[][..], "ready"), (&["--detach"], "req_")] {
            let marker = format!("1732050{}", world.account.uid);
            let script = format!("echo ready; exec sleep {marker}");
            let mut terminal = Terminal::start(world, &world.stockade(detached, &["sh", "-c", &script]));
            terminal.expect(word);
            eventually("it does not run", || !marked(&format!("sleep\0{marker}")).is_empty());
            terminal.hang_up();
            if detached.is_empty() {
                assert_none_left(&marker);
                continue;
            }
            let id = stockade(world, &["ps"]).stdout.split(' ').next().unwrap().to_owned();
            assert_eq!(run_report(world, &id)["state"], "running");
            assert!(!marked(&format!("sleep\0{marker}")).is_empty());
            assert_eq!(stockade(world, &["kill", &id]).ended, ProgramEnd::Code(0));
            assert_none_left(&marker);
        }
    });
}

#[test]
fn kill_ends_whatever_the_command_does_about_it() {
    one_user(|world| {
        for level in ["full", "restricted"] {
            let marker = format!("2236067{}", world.account.uid);
            for (script, signal, code) in [
                (format!("exec sleep {marker}"), "TERM", 143),
                (format!("exec sleep {marker}"), "kill", 137),
                (format!("sleep {marker} & kill -STOP $$; wait"), "term", 143),
                (format!("trap '' TERM INT HUP; sleep {marker}; sleep {marker}"), "term", 143),
                (format!("(setsid nohup sleep {marker} &); exec sleep {marker}"), "int", 130),
            ] {
                let id = detach(world, &["--level", level], &script);
                eventually("it does not run", || !marked(&format!("sleep\0{marker}")).is_empty());
                let killed = stockade(world, &["kill", "--signal", signal, &id]);
                assert_eq!(killed.ended, ProgramEnd::Code(0), "{script}: {}", killed.combined_text());
                assert_none_left(&marker);
                assert_eq!(waited(world, &id), ProgramEnd::Code(code), "{script} at level {level}");
            }
        }
    });
}

#[test]
fn kill_9_of_the_supervisor_leaves_nothing_and_is_reported() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let marker = format!("2645751{}", world.account.uid);
            let script = format!("echo before; (setsid nohup sleep {marker} &); sleep {marker}");
            let id = detach(world, &["--level", level], &script);
            eventually("it prints nothing", || stockade(world, &["logs", &id]).stdout == "before\n");
            let supervisor = i32::try_from(run_report(world, &id)["supervisor"].as_i64().unwrap()).unwrap();
            kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
            assert_none_left(&marker);
            eventually("it still counts as running", || run_report(world, &id)["state"] == "lost");
            assert!(stockade(world, &["ps", "--all"]).stdout.contains("  lost: its supervisor was killed  "));
            let waited = stockade(world, &["wait", &id]);
            assert_eq!(waited.ended, ProgramEnd::Code(125));
            assert!(waited.stderr.contains("was killed"), "{}", waited.stderr);
            assert_eq!(stockade(world, &["logs", "-f", &id]).stdout, "before\n");
            let verified = stockade(world, &["audit", "verify"]);
            assert_eq!(verified.ended, ProgramEnd::Code(0), "{}", verified.combined_text());
        }
    });
}

#[test]
fn limits_hold() {
    each_user(|world| {
        let late = detach(world, &["--timeout", "1s"], "sleep 60");
        assert_eq!(waited(world, &late), ProgramEnd::Code(124));
        let few = detach(world, &["--limit", "open_files=17"], "ulimit -n");
        assert_eq!(waited(world, &few), ProgramEnd::Code(0));
        assert_eq!(stockade(world, &["logs", &few]).stdout, "17\n");
    });
}

#[test]
fn endless_output_is_kept_at_both_ends() {
    each_user(|world| {
        let script = "echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last";
        let id = detach(world, &[], script);
        assert_eq!(waited(world, &id), ProgramEnd::Code(0));
        let shown = stockade(world, &["logs", &id]);
        assert!(shown.stdout.starts_with("first\nxxx") && shown.stdout.ends_with("x\nlast\n"));
        assert!(shown.stdout.len() < 4_000_000, "{} bytes", shown.stdout.len());
        assert!(shown.stderr.contains("bytes were printed here and not kept"), "{}", shown.stderr);
    });
}

/// What was never started leaves nothing to look at, and says why at once.
#[test]
fn refusals_are_reported_to_the_launcher() {
    each_user(|world| {
        for (option, code, why) in
            [("--sandbox=forbid", 126, "sandbox"), ("--json", 125, "--json=FILE"), ("--profile=none", 125, "none")]
        {
            let output = world.run(&world.stockade(&["--detach", option], &["true"]));
            assert_eq!(output.ended, ProgramEnd::Code(code), "{option}: {}", output.combined_text());
            assert_eq!(output.stdout, "");
            assert!(output.stderr.contains(why), "{}", output.stderr);
        }
        assert_eq!(stockade(world, &["ps", "--all"]).stdout, "");
    });
}

/// The socket of a run, found from outside.
fn socket(world: &World, id: &str) -> PathBuf {
    world.home().join(".local/state/stockade/runs").join(id).join("supervisor")
}

#[test]
fn neither_the_command_nor_another_user_reaches_it() {
    each_user(|world| {
        let id = detach(world, &[], "sleep 600");
        let socket = socket(world, &id);
        let requests = [r#"{"Attach":{"answers":true}}"#, r#"{"End":15}"#];
        let ask = ["python3", "-c", ASKING, socket.to_str().unwrap(), requests[0], requests[1]];
        for level in ["full", "restricted"] {
            let inside = world.run(&world.stockade(&["--level", level], &ask));
            assert_ne!(inside.ended, ProgramEnd::Code(0), "from a sandbox of level {level}");
        }
        if world.account.user == TestUser::Root {
            let other = World::new(TestUser::Ordinary);
            let state = world.home().join(".local/state");
            let others: [&[&str]; 6] =
                [&["ps"], &["logs", &id], &["kill", &id], &["wait", &id], &["attach", &id], &["write", &id]];
            for arguments in others {
                let command = other.bare(&[&[binary().as_str()], arguments].concat());
                let output = other.run(&command.env("XDG_STATE_HOME", &state));
                assert_eq!(output.ended, ProgramEnd::Code(125), "{arguments:?}: {}", output.combined_text());
                assert!(!output.stdout.contains(&id));
            }
            assert_ne!(other.run(&other.bare(&ask)).ended, ProgramEnd::Code(0), "from another user");
        }
        assert_eq!(run_report(world, &id)["state"], "running");
        // The control: the same from its owner.
        let own = world.run(&world.bare(&ask));
        assert_eq!(own.ended, ProgramEnd::Code(0), "{}", own.combined_text());
        assert_eq!(waited(world, &id), ProgramEnd::Code(143));
    });
}

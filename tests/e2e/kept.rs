//! The process that keeps a sandbox that lasts: what commands leave behind goes on
//! there, whoever is killed takes only its own with it, and a keeper ends by itself.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::{Ended, Output, Running};

use crate::life::{marked, none_left};
use crate::sandbox::{create, done, exec, kept, refused, stockade};
use crate::terminal::{Terminal, ends};
use crate::world::{World, binary, each_user};

const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20));
    }
}

/// A number that nobody else sleeps for.
fn mark(number: u32) -> String {
    format!("7{number}{}.7", std::process::id())
}

/// The processes that keep a sandbox: each holds its directory.
fn keepers(world: &World, id: &str) -> Vec<u32> {
    let place = kept(world, id);
    let holds = |pid: &u32| {
        let held = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        held.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|path| path == place)
    };
    marked("sandbox\0keep\0").into_iter().filter(holds).collect()
}

#[track_caller]
fn keeper(world: &World, id: &str) -> u32 {
    let keepers = keepers(world, id);
    let [keeper] = keepers[..] else { panic!("not one keeper of {id}: {keepers:?}") };
    keeper
}

/// Starts a command in a sandbox, and waits until it says that it is ready.
fn running(world: &World, id: &str, script: &str) -> Running {
    let command = world.bare(&[&binary(), "sandbox", "exec", "--mode", "never", id, "-c", script]);
    let running = Running::start(&world.account, &command).unwrap();
    wait_until("it does not run", || running.stdout_so_far().contains("ready"));
    running
}

fn kill(process: u32) {
    kill_process(Pid::from_raw(process.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

fn leave_behind(world: &World, id: &str, mark: &str) {
    exec(world, id, &format!("(setsid sleep {mark} >/dev/null 2>&1 &); true"));
}

#[test]
fn what_a_command_leaves_goes_on_until_the_sandbox_ends() {
    each_user(|world| {
        let (id, mark) = (create(world, &[]), mark(1));
        leave_behind(world, &id, &mark);
        assert_eq!(marked(&mark).len(), 1);
        assert_eq!(exec(world, &id, "echo $(ps -e -o args= | grep -c '^[s]leep')"), "1\n");
        let first = keeper(world, &id);
        assert_eq!((exec(world, &id, "echo again"), keeper(world, &id)), ("again\n".to_owned(), first));
        done(world, &["destroy", &id]);
        none_left(&mark);
        assert!(keepers(world, &id).is_empty());
    });
}

#[test]
fn a_killed_client_takes_its_command_with_it_and_nothing_else() {
    each_user(|world| {
        let (id, stays, goes) = (create(world, &[]), mark(2), mark(3));
        leave_behind(world, &id, &stays);
        let client = running(world, &id, &format!("echo ready; sleep {goes}"));
        let kept_by = keeper(world, &id);
        client.signal(Signal::KILL).unwrap();
        client.finish().unwrap();
        none_left(&goes);
        assert_eq!((marked(&stays).len(), keeper(world, &id)), (1, kept_by));
        assert_eq!(exec(world, &id, "echo on"), "on\n");
        done(world, &["destroy", &id]);
        none_left(&stays);
    });
}

#[test]
fn a_killed_keeper_takes_all_with_it_and_the_next_command_says_so() {
    each_user(|world| {
        let (id, mark) = (create(world, &[]), mark(4));
        exec(world, &id, "echo kept > file");
        leave_behind(world, &id, &mark);
        let client = running(world, &id, &format!("echo ready; sleep {mark}"));
        kill(keeper(world, &id));
        let output: Output = client.finish().unwrap();
        assert_eq!(output.ended, Ended::Code(125), "{}", output.text());
        none_left(&mark);
        wait_until("something of it runs", || keepers(world, &id).is_empty());
        let next = stockade(world, &["exec", "--mode", "never", &id, "-c", "cat file"]);
        assert_eq!((next.ended, next.stdout.as_str()), (Ended::Code(0), "kept\n"), "{}", next.text());
        assert!(next.stderr.contains("its walls are new"), "{}", next.stderr);
        let quiet = stockade(world, &["exec", "--mode", "never", &id, "--", "true"]);
        assert!(!quiet.stderr.contains("its walls are new"), "{}", quiet.stderr);
        done(world, &["destroy", &id]);
    });
}

#[test]
fn destroying_ends_the_commands_that_run() {
    each_user(|world| {
        let (id, mark) = (create(world, &[]), mark(5));
        let client = running(world, &id, &format!("echo ready; sleep {mark}"));
        done(world, &["destroy", &id]);
        let output = client.finish().unwrap();
        assert_ne!(output.ended, Ended::Code(0), "{}", output.text());
        none_left(&mark);
        assert!(!kept(world, &id).exists() && keepers(world, &id).is_empty());
        refused(world, &["exec", &id, "--", "true"], "is destroyed");
    });
}

#[test]
fn one_whose_time_is_over_ends_though_nobody_looks() {
    each_user(|world| {
        for limit in ["--ttl", "--idle-timeout"] {
            let (id, mark) = (create(world, &[limit, "2s"]), mark(6));
            leave_behind(world, &id, &mark);
            wait_until("it is still there", || !kept(world, &id).exists() && keepers(world, &id).is_empty());
            none_left(&mark);
            assert_eq!(done(world, &["list"]), "");
        }
    });
}

#[test]
fn what_is_refused_between_commands_is_on_record() {
    each_user(|world| {
        let id = create(world, &[]);
        let late =
            "(setsid bash -c 'until [ -e go ]; do sleep 0.05; done; touch .bashrc; touch gone' >/dev/null 2>&1 &)";
        exec(world, &id, late);
        exec(world, &id, "touch go; until [ -e gone ]; do sleep 0.05; done");
        let recorded = || {
            let output = world.run(&world.bare(&[&binary(), "audit", "query", "--json"]));
            output.stdout.lines().any(|line| line.contains("\"denied\"") && line.contains("/workspace/.bashrc"))
        };
        wait_until("it is not on record", recorded);
        done(world, &["destroy", &id]);
    });
}

#[test]
fn a_command_has_a_terminal_of_its_own() {
    each_user(|world| {
        let id = create(world, &[]);
        let script = "test -t 0 && echo is a terminal; stty size </dev/tty; read line; echo got $line; read line";
        let program = binary();
        let command = world.bare(&[&program, "sandbox", "exec", "--mode", "never", "--tty", &id, "-c", script]);
        let mut terminal = Terminal::start(world, &command);
        terminal.expect("is a terminal");
        terminal.expect("40 100");
        terminal.press("typed\r");
        terminal.expect("got typed");
        terminal.press("\u{3}");
        ends(terminal, 130);
        done(world, &["destroy", &id]);
    });
}

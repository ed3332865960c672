//! Warm sessions: each command is a run like any other, nothing of one is there
//! for the next or for its neighbour, and what is killed leaves nothing.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram, TestCommand, TestUser};

use crate::detached::{eventually, stockade};
use crate::life::{assert_none_left, marked};
use crate::terminal::Terminal;
use crate::terminal_separation::stops_itself_and_continues;
use crate::world::{World, binary, each_user, one_user};

/// A session of the world's user, ended when it is dropped.
struct Session<'w> {
    world: &'w World,
    id: String,
    ended: Cell<bool>,
}

impl<'w> Session<'w> {
    /// Begins one that asks nobody.
    #[track_caller]
    fn start(world: &'w World, options: &[&str]) -> Self {
        Self::start_with(world, &[&["--mode", "never"], options].concat())
    }

    #[track_caller]
    fn start_with(world: &'w World, options: &[&str]) -> Self {
        let output = stockade(world, &[&["session", "start"], options].concat());
        assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
        assert!(!output.held_open, "the supervisor keeps the caller's streams");
        let id = output.stdout.strip_suffix('\n').unwrap_or_default().to_owned();
        assert!(id.starts_with("ses_") && !id.contains('\n'), "{:?}", output.stdout);
        Self { world, id, ended: Cell::new(false) }
    }

    /// The command line that runs a script in it.
    fn command(&self, options: &[&str], script: &str) -> TestCommand {
        let program = binary();
        let words = [&[program.as_str(), "session", "exec"], options, &[&self.id, "-c", script]].concat();
        self.world.bare(&words)
    }

    fn exec(&self, script: &str) -> ProgramOutput {
        self.world.run(&self.command(&[], script))
    }

    /// What `session list --json` tells of it.
    fn report(&self) -> Option<Value> {
        let output = stockade(self.world, &["session", "list", "--json"]);
        let mut all = output.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.find(|session| session["id"] == self.id)
    }

    fn supervisor(&self) -> Pid {
        let pid = self.report().expect("the session is known")["supervisor"].as_i64().unwrap();
        Pid::from_raw(pid.try_into().unwrap()).unwrap()
    }

    /// The processes that are in front of its commands, and the one that waits.
    fn workers(&self) -> Vec<Pid> {
        let supervisor = self.supervisor().as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
        children.unwrap().split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
    }

    fn socket(&self) -> PathBuf {
        self.world.home().join(".local/state/stockade/sessions").join(&self.id).join("supervisor")
    }

    fn end(&self) -> ProgramOutput {
        self.ended.set(true);
        stockade(self.world, &["session", "end", &self.id])
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if !self.ended.get() {
            self.end();
        }
    }
}

#[test]
fn a_command_of_a_session_is_a_run() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let session = Session::start(world, &["--name", "work", "--level", level, "--timeout", "30s"]);
            assert_eq!(session.id, "ses_work");
            let output = session.exec("echo out; echo err >&2; pwd; echo \"$CALLER\"; exit 7");
            assert_eq!(output.ended, ProgramEnd::Code(7), "{}", output.combined_text());
            assert_eq!(output.stdout, format!("out\n{}\n\n", world.workspace().display()));
            assert!(output.stderr.starts_with("err\n"), "{}", output.stderr);
            assert_eq!(session.exec("kill -KILL $$").ended, ProgramEnd::Code(137));
            let missing = world.bare(&[&binary(), "session", "exec", "work", "--", "no-such-program"]);
            assert_eq!(world.run(&missing).ended, ProgramEnd::Code(127));
            let refused = session.exec("echo x > ~/outside");
            assert!(refused.stderr.contains("outside"), "the denial is told: {}", refused.stderr);
            assert!(!world.home().join("outside").exists());
            let outcome = world.run(&session.command(&["--json"], "echo inside"));
            let outcome: Value = serde_json::from_str(&outcome.stdout).unwrap();
            assert_eq!(outcome["session"], "ses_work");
            assert_eq!(outcome["attempts"][0]["enforced"]["level"], level);
            assert_eq!(outcome["attempts"][0]["stdout"], "inside\n");
            let recorded = stockade(world, &["audit", "query", "--session", "work", "--json"]);
            assert!(recorded.stdout.contains(outcome["id"].as_str().unwrap()), "it is on record");
            assert_eq!(stockade(world, &["audit", "verify"]).ended, ProgramEnd::Code(0));
            assert_eq!(session.end().ended, ProgramEnd::Code(0));
            assert_eq!(stockade(world, &["session", "list"]).stdout, "");
        }
    });
}

/// A shell outside suspends it as it does a run, with a key or because the command stops itself;
/// in the background it stops again, for its terminal is another process's.
#[test]
fn the_shell_outside_has_job_control_over_a_command_of_a_session() {
    one_user(|world| {
        for level in ["full", "restricted"] {
            let session = Session::start(world, &["--level", level]);
            let mut shell =
                Terminal::start(world, &world.bare(&["env", "PS1=outside> ", "bash", "--norc", "--noprofile", "-i"]));
            let words = format!("'{}' session exec {} --", binary(), session.id);
            shell.expect("outside> ");
            shell.press(&format!("sandboxed() {{ {words} \"$@\"; }}\r"));
            shell.expect("outside> ");
            let counting = "for i in $(seq 1000); do echo \"at $i.\"; sleep 0.1; done";
            shell.press(&format!("sandboxed sh -c '{counting}'\r"));
            shell.expect("at 3.");
            for back in ["fg\r", "bg\r"] {
                shell.press("\u{1a}");
                shell.expect("Stopped");
                shell.expect("outside> ");
                assert!(shell.is_quiet(), "it goes on: {}", shell.text);
                shell.press("echo $((6 * 7))\r");
                shell.expect("42");
                shell.expect("outside> ");
                shell.press(back);
                if back == "bg\r" {
                    shell.expect("outside> ");
                    assert!(shell.is_quiet(), "it goes on: {}", shell.text);
                    shell.press("jobs\r");
                    shell.expect("Stopped");
                    shell.press("fg\r");
                }
                shell.expect("at ");
            }
            shell.press("\u{3}");
            shell.expect("outside> ");
            stops_itself_and_continues(&mut shell);
        }
    });
}

/// The caller's, not those of whoever started the session.
#[test]
fn directory_variables_mask_and_streams_are_the_callers() {
    each_user(|world| {
        let session = Session::start(world, &[]);
        let inner = world.dir("ws/inner");
        let script = "pwd; umask; echo \"$LANG\"; cat";
        let caller = "umask 027; printf typed | \"$@\"";
        let mut command = session.command(&[], script).env("LANG", "C").with_prefix(["sh", "-c", caller, "-"]);
        command.cwd = inner.clone();
        let output = world.run(&command);
        assert_eq!(output.stdout, format!("{}\n0027\nC\ntyped", inner.display()), "{}", output.combined_text());
        fs::remove_dir(inner).unwrap();
    });
}

/// A process to be planted: told by its name from all others of the machine, also
/// from those of a test beside this.
struct Planted {
    start: String,
    until_started: String,
    is_there: String,
}

impl Planted {
    fn new(what: &str) -> Self {
        let name = format!("{what}{}", std::process::id());
        assert!(name.len() < 16, "the kernel keeps 15 bytes of a name");
        let python = format!("import ctypes, time; ctypes.CDLL(None).prctl(15, b\"{name}\", 0, 0, 0); time.sleep(600)");
        let is_there = format!("grep -qsx {name} /proc/[0-9]*/comm");
        Self {
            start: format!("python3 -c '{python}'"),
            until_started: format!("until {is_there}; do sleep 0.01; done"),
            is_there,
        }
    }
}

const LISTENING: &str =
    "python3 -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 4567)); time.sleep(600)' >/dev/null 2>&1 &
     until grep -qs ':11D7 ' /proc/net/tcp; do sleep 0.01; done";

/// What a command may leave, how it is left, and how one sees that it is there.
pub fn leavings(level: &str) -> Vec<(&'static str, String, String)> {
    let Planted { start, until_started, is_there } = Planted::new("left");
    let mut all: Vec<(&str, String, String)> = vec![
        ("environment", "export LEFT=1".into(), "[ \"$LEFT\" = 1 ]".into()),
        ("directory", "cd /usr".into(), "[ \"$(pwd)\" = /usr ]".into()),
        ("mask", "umask 0123".into(), "[ \"$(umask)\" = 0123 ]".into()),
        ("limits", "ulimit -n 19".into(), "[ \"$(ulimit -n)\" = 19 ]".into()),
        ("ignored signals", "trap '' USR1".into(), "sh -c 'kill -USR1 $$' 2>/dev/null".into()),
        ("background", format!("{start} & {until_started}"), is_there.clone()),
        ("double fork", format!("(setsid nohup {start} >/dev/null 2>&1 &); {until_started}"), is_there),
        ("temp", "touch \"${TMPDIR:-/tmp}/left\"".into(), "[ -e \"${TMPDIR:-/tmp}/left\" ]".into()),
    ];
    if level == "full" {
        all.extend([
            ("/var/tmp", "touch /var/tmp/left".into(), "[ -e /var/tmp/left ]".into()),
            ("/run", "touch /run/lock/left".into(), "[ -e /run/lock/left ]".into()),
            ("/dev/shm", "touch /dev/shm/left".into(), "[ -e /dev/shm/left ]".into()),
            ("mode of temp", "chmod 700 /tmp".into(), "[ \"$(stat -c %a /tmp)\" = 700 ]".into()),
            ("System V", "ipcmk -Q >/dev/null".into(), "ipcs -q | grep -q 0x".into()),
            ("loopback", LISTENING.into(), "grep -qs ':11D7 ' /proc/net/tcp".into()),
        ]);
    }
    all
}

#[test]
fn nothing_of_a_command_is_there_for_the_next() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let session = Session::start(world, &["--level", level]);
            for (what, plant, probe) in leavings(level) {
                let probe = format!("if {probe}; then echo left; else echo clean; fi");
                // The control: within one command the probe sees it.
                let control = session.exec(&format!("{plant}\n{probe}"));
                assert!(control.stdout.ends_with("left\n"), "{level}, {what}: {}", control.combined_text());
                let planted = session.exec(&plant);
                assert_eq!(planted.ended, ProgramEnd::Code(0), "{level}, {what}: {}", planted.combined_text());
                assert_eq!(session.exec(&probe).stdout, "clean\n", "{level}, {what}");
            }
            // What is written in the workspace is meant to stay.
            session.exec("echo kept > kept");
            assert_eq!(session.exec("cat kept; rm kept").stdout, "kept\n");
        }
    });
}

#[test]
fn two_at_once_know_nothing_of_each_other() {
    each_user(|world| {
        let session = Session::start(world, &[]);
        let Planted { start, until_started, is_there } = Planted::new("beside");
        let go = world.workspace().join("go");
        let first = format!(
            "touch /tmp/left; {start} & {until_started}; {LISTENING}; touch ready; until [ -e go ]; do sleep 0.02; done; echo over"
        );
        let first = RunningProgram::start(&world.account, &session.command(&[], &first)).unwrap();
        eventually("the first does not run", || world.workspace().join("ready").exists());
        let seen = format!(
            "ls -A /tmp; {is_there} && echo process; grep -s ':11D7 ' /proc/net/tcp; ls -d /proc/[0-9]* | wc -l"
        );
        let second = session.exec(&seen);
        let processes: u32 = second.stdout.trim().parse().unwrap_or_else(|_| panic!("it saw {}", second.stdout));
        assert!(processes < 8, "{processes} processes are seen");
        fs::write(&go, "").unwrap();
        assert_eq!(first.wait_for_end().unwrap().stdout, "over\n");
        fs::remove_file(go).unwrap();
        fs::remove_file(world.workspace().join("ready")).unwrap();
    });
}

#[test]
fn signals_and_the_end_of_the_caller_reach_the_command() {
    each_user(|world| {
        let session = Session::start(world, &[]);
        let marker = format!("6457513{}", world.account.uid);
        for (signal, ended) in [
            (Signal::INT, ProgramEnd::Code(130)),
            (Signal::TERM, ProgramEnd::Code(143)),
            (Signal::KILL, ProgramEnd::Signal(9)),
        ] {
            let script = format!("(setsid nohup sleep {marker} &); exec sleep {marker}");
            let running = RunningProgram::start(&world.account, &session.command(&[], &script)).unwrap();
            eventually("it does not run", || marked(&format!("sleep\0{marker}")).len() == 2);
            running.send_signal(signal).unwrap();
            assert_eq!(running.wait_for_end().unwrap().ended, ended);
            assert_none_left(&marker);
        }
        assert_eq!(session.exec("echo still").stdout, "still\n");
    });
}

#[test]
fn kill_9_of_the_supervisor_leaves_nothing_and_is_reported() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let session = Session::start(world, &["--name", "killed", "--level", level]);
            let marker = format!("7416573{}", world.account.uid);
            let script = format!("(setsid nohup sleep {marker} &); exec sleep {marker}");
            let running = RunningProgram::start(&world.account, &session.command(&[], &script)).unwrap();
            eventually("it does not run", || marked(&format!("sleep\0{marker}")).len() == 2);
            let workers = session.workers();
            kill_process(session.supervisor(), Signal::KILL).unwrap();
            let report = running.wait_for_end().unwrap();
            assert_eq!(report.ended, ProgramEnd::Code(125), "{}", report.combined_text());
            assert_none_left(&marker);
            eventually("a front is left", || {
                workers
                    .iter()
                    .all(|worker| !stockade_testkit::process_alive(worker.as_raw_nonzero().get().unsigned_abs()))
            });
            assert_eq!(session.report().unwrap()["state"], "lost");
            let after = session.exec("true");
            assert_eq!(after.ended, ProgramEnd::Code(125));
            assert!(after.stderr.contains("was killed"), "{}", after.stderr);
            let next_session = Session::start(world, &["--name", "killed", "--level", level]);
            assert_eq!(next_session.exec("echo again").stdout, "again\n");
            session.ended.set(true);
        }
    });
}

#[test]
fn kill_9_of_a_worker_ends_its_command_alone() {
    each_user(|world| {
        let session = Session::start(world, &[]);
        let waiting = session.workers();
        waiting.iter().for_each(|worker| kill_process(*worker, Signal::KILL).unwrap());
        assert_eq!(session.exec("echo next").stdout, "next\n");
        let marker = format!("8660254{}", world.account.uid);
        let running =
            RunningProgram::start(&world.account, &session.command(&[], &format!("exec sleep {marker}"))).unwrap();
        eventually("it does not run", || !marked(&format!("sleep\0{marker}")).is_empty());
        session.workers().iter().for_each(|worker| kill_process(*worker, Signal::KILL).unwrap());
        let report = running.wait_for_end().unwrap();
        assert_eq!(report.ended, ProgramEnd::Code(125), "{}", report.combined_text());
        assert_none_left(&marker);
        assert_eq!(session.exec("echo next").stdout, "next\n");
    });
}

#[test]
fn the_end_of_a_session_ends_its_processes() {
    each_user(|world| {
        let session = Session::start(world, &[]);
        let marker = format!("9746794{}", world.account.uid);
        let script = format!("(setsid nohup sleep {marker} &); exec sleep {marker}");
        let running = RunningProgram::start(&world.account, &session.command(&[], &script)).unwrap();
        eventually("it does not run", || marked(&format!("sleep\0{marker}")).len() == 2);
        assert_eq!(session.end().ended, ProgramEnd::Code(0));
        assert_eq!(running.wait_for_end().unwrap().ended, ProgramEnd::Code(143));
        assert_none_left(&marker);
        assert_eq!(session.exec("true").ended, ProgramEnd::Code(125));
        let idle = Session::start(world, &["--idle-timeout", "300ms"]);
        eventually("it is still open", || idle.report().is_none());
        idle.ended.set(true);
    });
}

#[test]
fn an_answer_for_the_session_counts_for_its_next_command_and_once_does_not() {
    each_user(|world| {
        let session = Session::start_with(world, &[]);
        let script = "echo x >> ~/outside";
        let outside = || fs::read_to_string(world.home().join("outside")).unwrap_or_default();
        for (key, then) in [("o", "x\n"), ("s", "x\nx\n")] {
            let mut terminal = Terminal::start(world, &session.command(&[], script));
            terminal.expect("allow?");
            terminal.press(key);
            let (code, text) = terminal.finish();
            assert_eq!((code, outside().as_str()), (0, then), "{text}");
        }
        assert_eq!(session.exec(script).ended, ProgramEnd::Code(0));
        assert_eq!(outside(), "x\nx\nx\n");
    });
}

#[test]
fn an_answer_for_a_session_ends_with_it_or_with_its_supervisor() {
    each_user(|world| {
        let script = "echo x >> ~/outside";
        let outside = || fs::read_to_string(world.home().join("outside")).unwrap_or_default();
        let answered = |session: &Session<'_>| {
            let mut terminal = Terminal::start(world, &session.command(&[], script));
            terminal.expect("allow?");
            terminal.press("s");
            assert_eq!(terminal.finish().0, 0);
            assert_eq!(session.exec(script).ended, ProgramEnd::Code(0));
        };
        let session = Session::start_with(world, &["--name", "named"]);
        answered(&session);
        session.end();
        let session = Session::start_with(world, &["--name", "named"]);
        assert_ne!(session.exec(script).ended, ProgramEnd::Code(0));
        assert_eq!(outside(), "x\nx\n");
        answered(&session);
        kill_process(session.supervisor(), Signal::KILL).unwrap();
        session.ended.set(true);
        eventually("it is not lost", || session.report().is_some_and(|report| report["state"] == "lost"));
        let session = Session::start_with(world, &["--name", "named"]);
        assert_ne!(session.exec(script).ended, ProgramEnd::Code(0));
        assert_eq!(outside(), "x\nx\nx\nx\n");
    });
}

/// What came into the workspace after the sandbox was begun is protected in it.
#[test]
fn a_name_that_is_protected_since_the_last_command_is_protected() {
    each_user(|world| {
        let session = Session::start(world, &[]);
        world.file("ws/write.py", "open('.git/hooks/post-commit', 'w')");
        for _ in 0..3 {
            assert_eq!(session.exec("echo inside > plain; cat plain").stdout, "inside\n");
            world.dir("ws/.git");
            world.dir("ws/.git/hooks");
            let output = session.exec("cat plain; python3 write.py");
            assert_eq!(
                (output.ended, output.stdout.as_str()),
                (ProgramEnd::Code(1), "inside\n"),
                "{}",
                output.combined_text()
            );
            assert_eq!(fs::read_dir(world.workspace().join(".git/hooks")).unwrap().count(), 0);
            fs::remove_dir_all(world.workspace().join(".git")).unwrap();
        }
    });
}

/// Sends each of its further arguments as a request to the supervisor whose socket is the first;
/// exit code 0 where all were accepted.
pub const ASKING: &str = "import os, socket, sys\n\
    os.chdir(os.path.dirname(sys.argv[1]))\n\
    def ask(request):\n\
    \x20   s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect('supervisor')\n\
    \x20   file = os.memfd_create('request'); os.write(file, request.encode())\n\
    \x20   socket.send_fds(s, [b'\\x01'], [file])\n\
    \x20   return s.recv(64)[4:]\n\
    heard = [ask(request).startswith(b'{\"Ok\":') for request in sys.argv[2:]]\n\
    sys.exit(0 if all(heard) else 3)";

#[test]
fn neither_its_processes_nor_another_user_reach_it() {
    each_user(|world| {
        let script = world.file("ws/ask.py", ASKING);
        for level in ["full", "restricted"] {
            let session = Session::start(world, &["--level", level]);
            let socket = session.socket();
            let ask = ["python3", script.to_str().unwrap(), socket.to_str().unwrap(), r#"{"End":null}"#];
            let inside = session.exec(&format!("{} '{}'", ask[..3].join(" "), ask[3]));
            assert_ne!(inside.ended, ProgramEnd::Code(0), "from a command of level {level}");
            if world.account.user == TestUser::Root {
                let other = World::new(TestUser::Ordinary);
                assert_ne!(other.run(&other.bare(&ask)).ended, ProgramEnd::Code(0), "from another user");
            }
            assert_eq!(session.report().unwrap()["state"], "open");
            // The control: the same from its owner.
            let own = world.run(&world.bare(&ask));
            assert_eq!(own.ended, ProgramEnd::Code(0), "{}", own.combined_text());
            eventually("it is still open", || session.report().is_none());
            session.ended.set(true);
        }
    });
}

#[test]
fn impossible_options_are_reported_at_once() {
    each_user(|world| {
        for (arguments, why) in [
            (&["session", "exec", "nobody", "--", "true"][..], "there is no session"),
            (&["session", "end", "nobody"], "there is no session"),
            (&["session", "start", "--name", "a/b"], "not a session name"),
            (&["session", "start", "--profile", "none"], "none"),
            (&["session", "start", "--workspace", "/nonexistent"], "workspace"),
        ] {
            let output = stockade(world, arguments);
            assert_eq!(output.ended, ProgramEnd::Code(125), "{arguments:?}: {}", output.combined_text());
            assert!(output.stderr.contains(why), "{arguments:?}: {}", output.stderr);
        }
        let session = Session::start(world, &["--name", "one"]);
        let second = stockade(world, &["session", "start", "--name", "one"]);
        assert_eq!(second.ended, ProgramEnd::Code(125));
        assert!(second.stderr.contains("a session `ses_one` already exists"), "{}", second.stderr);
        assert_eq!(session.exec("echo still").stdout, "still\n");
        assert_eq!(stockade(world, &["session", "list"]).stdout.lines().count(), 1);
    });
}

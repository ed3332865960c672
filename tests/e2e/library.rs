//! The library's sessions: a program that links it runs many commands, of which
//! nothing is there for the next, nothing stays, and nothing outlives the program.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};

use crate::detached::eventually;
use crate::life::{assert_none_left, descendants, marked, mounts};
use crate::session::leavings;
use crate::world::{World, each_user, one_user};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::few_or_all;

/// How long the program may take to say what it was asked for.
const REPORT_TIMEOUT: Timespec = Timespec { tv_sec: 150, tv_nsec: 0 };

/// The program, told line by line what to do.
struct Program {
    child: Child,
    program_input: ChildStdin,
    program_output: BufReader<ChildStdout>,
}

impl Program {
    fn start(world: &World, level: &str) -> Self {
        let mut process = Process::new(program(world));
        process.arg(level).env_clear().current_dir(world.workspace());
        process.stdin(Stdio::piped()).stdout(Stdio::piped());
        if rustix::process::geteuid().as_raw() != world.account.uid {
            process.uid(world.account.uid).gid(world.account.gid);
        }
        let mut child = process.spawn().unwrap();
        let (program_input, program_output) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut program = Self { child, program_input, program_output };
        assert_eq!(program.hear(), "ready");
        program
    }

    /// The next line that is printed, by the program or by a command.
    fn hear(&mut self) -> String {
        if self.program_output.buffer().is_empty() {
            let mut program_output = [PollFd::new(self.program_output.get_ref(), PollFlags::IN)];
            assert!(poll(&mut program_output, Some(&REPORT_TIMEOUT)).unwrap() > 0, "the program says nothing");
        }
        let mut line = String::new();
        self.program_output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn say(&mut self, line: &str) {
        self.program_input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Runs this; what it prints, and then its exit code.
    fn run(&mut self, script: &str) -> Vec<String> {
        self.say(script);
        let mut output_lines = vec![self.hear()];
        while output_lines.last().is_some_and(|line| line.parse::<u8>().is_err() && !line.is_empty()) {
            output_lines.push(self.hear());
        }
        output_lines
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn helper(&self) -> u32 {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn end(mut self) {
        drop(self.program_input);
        assert!(self.child.wait().unwrap().success());
    }
}

/// Where the user can execute it.
fn program(world: &World) -> PathBuf {
    let copy = world.workspace().join("many-commands");
    if !copy.exists() {
        // By another process: what is open for writing here may be so for a moment in a
        // process that a test beside this forks, and is no program meanwhile.
        assert!(Process::new("cp").arg(env!("CARGO_BIN_EXE_many-commands")).arg(&copy).status().unwrap().success());
    }
    copy
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn kill_9(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn commands_of_a_program_are_run_one_after_the_other() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let mut program = Program::start(world, level);
            assert_eq!(program.run("echo out; exit 7"), ["out", "7"]);
            let outside = world.home().join("outside");
            assert_eq!(program.run(&format!("echo x > {} || exit 9", outside.display())), ["9"], "of level {level}");
            assert!(!outside.exists(), "of level {level}");
            assert_eq!(program.run("echo inside > file; cat file; rm file"), ["inside", "0"]);
            assert_eq!(program.run("umask -S"), ["u=rwx,g=rx,o=rx", "0"]);
            program.say("kill -KILL $$");
            assert_eq!(program.hear(), "Signaled(9)");
            program.end();
        }
    });
}

#[test]
fn nothing_of_a_command_is_there_for_the_next() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let mut program = Program::start(world, level);
            for (what, plant, probe) in leavings(level) {
                let plant = plant.replace('\n', " ");
                let probe = format!("if {probe}; then echo left; else echo clean; fi");
                // The control: within one command the probe sees it.
                let control = program.run(&format!("{plant}; {probe}"));
                assert!(control.contains(&"left".to_owned()), "{level}, {what}: {control:?}");
                program.run(&plant);
                assert_eq!(program.run(&probe), ["clean", "0"], "{level}, {what}");
            }
            program.end();
        }
    });
}

#[test]
fn hundreds_of_commands_leave_nothing() {
    one_user(|world| {
        let mut program = Program::start(world, "full");
        let (pid, helper) = (program.pid(), program.helper());
        for _ in 0..20 {
            assert_eq!(program.run("true"), ["0"]);
        }
        // The helper, and the front that waits with its init.
        let rests = || descendants(pid).len() == 3;
        eventually("it never rests", rests);
        let of_all = || (descriptors(pid), descriptors(helper));
        let (before, mounts_before) = (of_all(), mounts());
        for number in 0..few_or_all(200, 1000) {
            assert_eq!(program.run(&format!("echo {number}.")), [format!("{number}."), "0".to_owned()]);
        }
        // Fewer are no leak: what was still closing at the first look was counted.
        let grew = |now: (usize, usize)| now.0 > before.0 || now.1 > before.1;
        eventually("something of them is left", || rests() && !grew(of_all()));
        assert_eq!(mounts(), mounts_before);
        program.end();
    });
}

#[test]
fn a_held_call_is_granted_in_place() {
    each_user(|world| {
        for (level, code) in [("full", 2), ("full+", 0), ("restricted+", 0)] {
            let outside = world.dir("out").join("held");
            let mut program = Program::start(world, level);
            assert_eq!(program.run(&format!("echo x >> {}", outside.display())), [code.to_string()], "{level}");
            assert_eq!(outside.exists(), code == 0, "{level}");
            program.end();
            let _ = fs::remove_file(outside);
        }
    });
}

#[test]
fn side_by_side_and_ended_with_the_session() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let marker = format!("1732060{}", world.account.uid);
            let mut program = Program::start(world, level);
            for _ in 0..3 {
                program.say(&format!("& sleep {marker}; true"));
                assert_eq!(program.hear(), "started");
            }
            assert_eq!(program.run("echo beside"), ["beside", "0"]);
            program.say("kill");
            assert_eq!(program.hear(), "Signaled(9)");
            assert!(!marked(&format!("sleep\0{marker}")).is_empty());
            program.say("drop");
            for _ in 0..2 {
                assert!(program.hear().starts_with("Lost"), "of level {level}");
            }
            assert_none_left(&marker);
            program.end();
        }
    });
}

#[test]
fn kill_9_of_the_program_or_its_helper_leaves_nothing() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let marker = format!("1732061{}", world.account.uid);
            for kills_helper in [false, true] {
                let mut program = Program::start(world, level);
                program.say(&format!("& (setsid nohup sleep {marker} &) ; sleep {marker}"));
                assert_eq!(program.hear(), "started");
                eventually("it does not run", || marked(&format!("sleep\0{marker}")).len() == 2);
                let all = descendants(program.pid());
                kill_9(if kills_helper { program.helper() } else { program.pid() });
                assert_none_left(&marker);
                if kills_helper {
                    program.say("true");
                    let lost = program.hear();
                    assert!(lost.contains("helper has ended"), "{lost}");
                }
                drop(program.program_input);
                program.child.wait().unwrap();
                eventually("a process is left", || !all.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()));
            }
        }
    });
}

#[test]
fn a_program_with_threads_gets_an_error() {
    each_user(|world| {
        let output = world.run(&world.bare(&[program(world).to_str().unwrap(), "threads"]));
        assert_eq!(output.ended, stockade_testkit::ProgramEnd::Code(1), "{}", output.combined_text());
        assert!(
            output.stderr.contains("more than one thread") && output.stderr.contains("hint: "),
            "{}",
            output.combined_text()
        );
    });
}

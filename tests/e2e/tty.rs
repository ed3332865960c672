//! Commands with a terminal of their own: what they see of it is as on any
//! terminal, what they do to it is not done to the person's, and that is given
//! back whatever ends the run.

use std::fs;

use rustix::process::Signal;
use stockade_testkit::ProgramEnd;

use crate::life::assert_none_left;
use crate::terminal::{Terminal, ends};
use crate::world::{World, each_user, one_user};

const LEVELS: [&str; 2] = ["full", "restricted"];
const INTERRUPT: &str = "\u{3}";
const SUSPEND: &str = "\u{1a}";
const QUIT: &str = "\u{1c}";

fn start(world: &World, options: &[&str], argv: &[&str]) -> Terminal {
    Terminal::start(world, &world.stockade(&[&["--tty"], options].concat(), argv))
}

#[test]
fn the_command_has_a_terminal_that_follows_the_persons_size() {
    // A shell forgets a signal that comes while it handles the last.
    const FOLLOWING: &str = "import os, signal\n\
        signal.signal(signal.SIGINT, signal.SIG_DFL)\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})\n\
        os.system('stty size; stty size </dev/tty; echo ready')\n\
        while True:\n\
        \x20   signal.sigwait({signal.SIGWINCH})\n\
        \x20   os.system('stty size')";
    each_user(|world| {
        for level in LEVELS {
            let mut terminal = start(world, &["--level", level], &["python3", "-c", FOLLOWING]);
            for text in ["40 100", "40 100", "ready"] {
                terminal.expect(text);
            }
            assert!(!terminal.is_cooked(), "keys are edited before the command has them");
            for (rows, columns) in [(30, 90), (51, 207)] {
                terminal.resize(rows, columns);
                terminal.expect(&format!("{rows} {columns}"));
            }
            terminal.press(INTERRUPT);
            ends(terminal, 130);
        }
    });
}

#[test]
fn keys_reach_raw_programs_as_they_are() {
    const READING: &str = "import os, sys, tty\n\
        tty.setraw(0)\n\
        os.write(1, b'raw')\n\
        keys = b''\n\
        while not keys.endswith(b'q'): keys += os.read(0, 1)\n\
        os.write(1, keys.hex().encode())\n\
        sys.exit(6)";
    each_user(|world| {
        for level in LEVELS {
            let mut terminal = start(world, &["--level", level], &["python3", "-c", READING]);
            terminal.expect("raw");
            terminal.press("\u{1b}[A\u{3}\u{1a}\u{1c}\u{4}\u{11}\u{13}\r\nq");
            terminal.expect("1b5b41031a1c0411130d0a71");
            ends(terminal, 6);
        }
    });
}

#[test]
fn a_shell_has_job_control() {
    each_user(|world| {
        for level in LEVELS {
            let marker = format!("1732053{}", world.account.uid);
            let shell = ["env", "PS1=prompt> ", "bash", "--norc", "--noprofile", "-i"];
            let mut terminal = start(world, &["--level", level], &shell);
            let mut types = |line: &str, text: &str| {
                terminal.expect("prompt> ");
                terminal.press(line);
                terminal.expect(text);
            };
            types("echo $((6 * 7))\r", "42");
            types(&format!("sleep {marker}\r"), &marker);
            terminal.press(SUSPEND);
            terminal.expect("Stopped");
            let mut types = |line: &str, text: &str| {
                terminal.expect("prompt> ");
                terminal.press(line);
                terminal.expect(text);
            };
            types("jobs\r", "Stopped");
            types("fg\r", &format!("sleep {marker}"));
            terminal.press(INTERRUPT);
            terminal.expect("prompt> ");
            terminal.press("echo \"code $?\"; exit 5\r");
            terminal.expect("code 130");
            let text = ends(terminal, 5);
            for complaint in ["job control", "terminal process group", "Inappropriate ioctl"] {
                assert!(!text.contains(complaint), "{text}");
            }
            assert_none_left(&marker);
        }
    });
}

#[test]
fn ctrl_backslash_reaches_the_command() {
    each_user(|world| {
        let script = "trap 'echo quit; exit 3' QUIT; echo ready; while :; do sleep 0.05; done";
        let mut terminal = start(world, &[], &["bash", "-c", script]);
        terminal.expect("ready");
        terminal.press(QUIT);
        terminal.expect("quit");
        ends(terminal, 3);
    });
}

/// All that it prints is there, also what it printed last.
#[test]
fn nothing_that_is_shown_is_lost() {
    const LINES: usize = 100_000;
    each_user(|world| {
        for level in LEVELS {
            let script = format!("seq 1 {LINES}; printf last");
            let text = ends(start(world, &["--level", level], &["sh", "-c", &script]), 0);
            // What is said once to a new user is no number.
            let numbers: Vec<usize> = text.lines().filter_map(|line| line.parse().ok()).collect();
            assert_eq!(numbers.len(), LINES);
            assert!(numbers.into_iter().eq(1..=LINES));
            assert!(text.contains("last"));
        }
    });
}

/// Answers a question about a file outside with `key`, and types a line for the command,
/// whose write then ended with `code`.
#[track_caller]
pub fn answers_and_types_on(world: &World, mut terminal: Terminal, key: &str, code: i32) {
    terminal.expect("outside");
    terminal.expect("allow?");
    terminal.press(key);
    terminal.expect(&format!("code {code}"));
    terminal.press("abc\r");
    terminal.expect("got abc.");
    ends(terminal, 0);
    assert_eq!(world.home().join("outside").exists(), code == 0);
}

/// The keys of the answer are the person's, those after it the command's.
#[test]
fn a_question_has_the_persons_terminal_meanwhile() {
    each_user(|world| {
        for (key, code) in [("n", 2), ("o", 0)] {
            let script = "sh -c 'echo x >> ~/outside'; echo \"code $?\"; read -r line; echo \"got $line.\"";
            let terminal = start(world, &["--mode", "on-failure"], &["sh", "-c", script]);
            answers_and_types_on(world, terminal, key, code);
        }
        fs::remove_file(world.home().join("outside")).unwrap();
    });
}

#[test]
fn the_terminal_is_given_back_whatever_ends_the_run() {
    one_user(|world| {
        for level in LEVELS {
            let marker = format!("1732055{}", world.account.uid);
            let script = format!("stty raw -echo; trap '' INT HUP; echo ready; sleep {marker}; sleep {marker}");
            for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
                let mut terminal = start(world, &["--level", level], &["sh", "-c", &script]);
                terminal.expect("ready");
                terminal.signal(signal);
                ends(terminal, code);
                assert_none_left(&marker);
            }
            let late = start(world, &["--level", level, "--timeout", "1s"], &["sh", "-c", &script]);
            ends(late, 124);
            ends(start(world, &["--level", level], &["no-such-program"]), 127);
            let mut lost_terminal = start(world, &["--level", level], &["sh", "-c", &script]);
            lost_terminal.expect("ready");
            lost_terminal.hang_up();
            assert_none_left(&marker);
        }
    });
}

/// Its terminal is another than the person's, which it can neither type into nor
/// take, nor even name.
#[test]
fn the_persons_terminal_is_out_of_reach() {
    const TRYING: &str = "import fcntl, os, sys\n\
        for name, request in (('TIOCSTI', 0x5412), ('TIOCCONS', 0x541d), ('TIOCSETD', 0x5423)):\n\
        \x20   try:\n\
        \x20       fcntl.ioctl(0, request, b'x\\0\\0\\0')\n\
        \x20       print('reached', name)\n\
        \x20   except OSError as error: print(name, error.errno)\n\
        print(sorted({os.fstat(fd).st_rdev for fd in (0, 1, 2)}) == [os.fstat(0).st_rdev], os.getpgrp() == os.getpid())\n\
        print('controls', os.tcgetpgrp(0) == os.getpgrp())";
    each_user(|world| {
        for level in LEVELS {
            let text = ends(start(world, &["--level", level], &["python3", "-c", TRYING]), 0);
            for expected_text in ["TIOCSTI 1\n", "TIOCCONS 1\n", "TIOCSETD 1\n", "True True\n", "controls True\n"] {
                assert!(text.contains(expected_text), "`{expected_text}` at level {level}: {text}");
            }
        }
    });
}

#[test]
fn without_a_terminal_there_is_none_to_relay() {
    each_user(|world| {
        for (options, why) in [(&["--tty"][..], "needs a terminal"), (&["-t", "--json"], "terminal")] {
            let output = world.run(&world.stockade(options, &["true"]));
            assert_eq!(output.ended, ProgramEnd::Code(125), "{}", output.combined_text());
            assert!(
                output.stderr.contains(why) || output.stdout.contains(why),
                "{options:?}: {}",
                output.combined_text()
            );
        }
    });
}

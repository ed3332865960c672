//! Detached runs with a terminal, and people who sit down at it: it is as any
//! terminal, it outlives whoever looks at it, and theirs is given back whatever
//! happens.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::{ProgramEnd, ProgramOutput, TestCommand};

use crate::detached::{attach, detach_program, eventually, kill, logs, prints, run_report, stockade, waited, writing};
use crate::life::{assert_none_left, marked};
use crate::terminal::{Terminal, ends};
use crate::tty::answers_and_types_on;
use crate::world::{World, binary, each_user};

const LEVELS: [&str; 2] = ["full", "restricted"];
const INTERRUPT: &str = "\u{3}";
const SUSPEND: &str = "\u{1a}";
const LEAVE: &str = "\u{10}\u{11}";
/// A shell that asks before each line.
const SHELL: [&str; 7] = ["env", "PS1=prompt> ", "HISTFILE=", "bash", "--norc", "--noprofile", "-i"];

fn detach(world: &World, options: &[&str], argv: &[&str]) -> String {
    detach_program(world, &[&["--tty"], options].concat(), argv)
}

/// By somebody who is no person at a terminal.
fn write(world: &World, options: &str, id: &str, text: &str) -> ProgramOutput {
    world.run(&writing(world, options, id, text))
}

#[test]
fn a_shell_is_left_and_met_again_as_on_any_terminal() {
    each_user(|world| {
        for level in LEVELS {
            let marker = format!("1414213{}", world.account.uid);
            let id = detach(world, &["--level", level], &SHELL);
            prints(world, &id, "prompt> ");
            let mut terminal = attach(world, &[], &id);
            terminal.expect("prompt> ");
            assert!(!terminal.is_cooked(), "keys are edited before the command has them");
            terminal.press("tty >/dev/null; test -t 0 && test -t 1 && test -t 2 && echo $((6 * 7))\r");
            terminal.expect("42");
            terminal.press(&format!("sleep {marker}\r"));
            eventually("it does not run", || !marked(&format!("sleep\0{marker}")).is_empty());
            terminal.press(SUSPEND);
            terminal.expect("Stopped");
            terminal.press(LEAVE);
            let text = ends(terminal, 0);
            assert!(text.ends_with(&format!("{id} continues\n")), "{text}");
            assert_eq!(run_report(world, &id)["state"], "running");
            assert!(!marked(&format!("sleep\0{marker}")).is_empty());

            let mut second_terminal = attach(world, &[], &id);
            second_terminal.expect("42");
            second_terminal.expect("Stopped");
            second_terminal.press("fg\r");
            second_terminal.expect(&format!("sleep {marker}"));
            second_terminal.press(INTERRUPT);
            second_terminal.expect("prompt> ");
            second_terminal.press("echo \"code $?\"; exit 5\r");
            second_terminal.expect("code 130");
            let text = ends(second_terminal, 5);
            for complaint in ["job control", "terminal process group", "Inappropriate ioctl"] {
                assert!(!text.contains(complaint), "{text}");
            }
            assert_none_left(&marker);
        }
    });
}

/// Tells of each new size, and ends with `q`.
const SIZES: &str = "import os, signal, sys, tty\n\
    tty.setcbreak(0)\n\
    def tell(*_): os.write(1, b'size %d %d.\\n' % tuple(reversed(os.get_terminal_size(0))))\n\
    signal.signal(signal.SIGWINCH, tell)\n\
    os.write(1, b'ready\\n')\n\
    while os.read(0, 1) != b'q': pass\n\
    sys.exit(6)";

#[test]
fn the_size_is_that_of_the_latest_client() {
    each_user(|world| {
        let id = detach(world, &[], &["python3", "-c", SIZES]);
        prints(world, &id, "ready");
        let mut one = attach(world, &[], &id);
        one.expect("size 40 100.");
        one.resize(30, 90);
        one.expect("size 30 90.");
        let mut two = attach(world, &["--new"], &id);
        two.expect("size 40 100.");
        one.expect("size 40 100.");
        one.resize(25, 70);
        two.expect("size 25 70.");
        two.press(LEAVE);
        ends(two, 0);
        // Whoever sits down has all drawn again, whatever the size was.
        for _ in 0..2 {
            let mut next = attach(world, &["--new"], &id);
            next.expect("size 40 100.");
            next.press(LEAVE);
            ends(next, 0);
        }
        one.press("q");
        ends(one, 6);
    });
}

#[test]
fn all_terminal_clients_see_and_type_the_same() {
    each_user(|world| {
        let id = detach(world, &[], &["sh", "-c", "while read -r line; do echo \"got $line.\"; done; exit 3"]);
        let (mut one, mut two) = (attach(world, &[], &id), attach(world, &[], &id));
        let mut watching =
            Terminal::start(world, &world.bare(&["sh", "-c", "\"$0\" attach \"$1\" | cat", &binary(), &id]));
        one.press("from one\r");
        for terminal in [&mut one, &mut two, &mut watching] {
            terminal.expect("got from one.");
        }
        two.press("from two\r");
        for terminal in [&mut one, &mut two, &mut watching] {
            terminal.expect("got from two.");
        }
        // Ctrl-D is the command's.
        one.press("\u{4}");
        for terminal in [one, two] {
            ends(terminal, 3);
        }
        watching.finish();
    });
}

#[test]
fn every_key_is_the_commands_but_those_that_leave() {
    const READING: &str = "import os, sys, tty\n\
        tty.setraw(0)\n\
        os.write(1, b'raw')\n\
        keys = b''\n\
        while not keys.endswith(b'q'): keys += os.read(0, 1)\n\
        os.write(1, keys.hex().encode())\n\
        sys.exit(6)";
    each_user(|world| {
        let id = detach(world, &[], &["python3", "-c", READING]);
        prints(world, &id, "raw");
        for (options, leave) in [(&[][..], LEAVE), (&["--detach-keys", "ctrl-a,d"], "\u{1}d")] {
            let mut terminal = attach(world, options, &id);
            terminal.expect("raw");
            terminal.press(leave);
            ends(terminal, 0);
        }
        let mut terminal = attach(world, &["--detach-keys", "~,."], &id);
        terminal.expect("raw");
        terminal.press("\u{1b}[A\u{3}\u{1a}\u{1c}\u{4}\u{10}\u{11}\u{13}~\r\nq");
        terminal.expect("1b5b41031a1c041011137e0d0a71");
        ends(terminal, 6);
        let typed = stockade(world, &["attach", "--detach-keys", "ctrl-P", &id]);
        assert_eq!(typed.ended, ProgramEnd::Code(125), "{}", typed.combined_text());
    });
}

/// What a command did to the screen is undone where that is left, and what it asks
/// the terminal is not asked again by those who come late.
#[test]
fn screens_are_left_as_they_were_and_asked_nothing_twice() {
    const FULL: &str = "printf '\\033[?1049h\\033[?25l\\033[?2004h\\033[6nfull\\033]0;title\\007 screen\\n'; cat";
    each_user(|world| {
        let id = detach(world, &[], &["sh", "-c", FULL]);
        prints(world, &id, "screen");
        let mut terminal = attach(world, &[], &id);
        terminal.expect("full screen");
        assert!(!terminal.text.contains("\u{1b}[6n"), "{:?}", terminal.text);
        terminal.press("x\r");
        terminal.expect("x\r\nx");
        terminal.press(LEAVE);
        let text = ends(terminal, 0);
        assert!(text.contains("\u{1b}[?25h\u{1b}[?1049l\u{1b}[?2004l\u{1b}[m"), "{text:?}");
        kill(world, &id);
    });
}

#[test]
fn the_terminal_is_given_back_whatever_ends_it() {
    each_user(|world| {
        for level in LEVELS {
            let marker = format!("1414214{}", world.account.uid);
            let script = format!("stty raw -echo; trap '' HUP; echo ready; sleep {marker}; sleep {marker}");
            let id = detach(world, &["--level", level], &["sh", "-c", &script]);
            for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
                let mut terminal = attach(world, &[], &id);
                terminal.expect("ready");
                for pid in marked(&format!("attach\0{id}")) {
                    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
                }
                ends(terminal, 0);
            }
            let mut lost_terminal = attach(world, &[], &id);
            lost_terminal.expect("ready");
            lost_terminal.hang_up();
            assert_eq!(run_report(world, &id)["state"], "running", "a hang-up is the person's alone");
            let mut terminal = attach(world, &[], &id);
            terminal.expect("ready");
            kill(world, &id);
            ends(terminal, 137);
            assert_none_left(&marker);

            let id = detach(world, &["--level", level], &["sh", "-c", &script]);
            let mut terminal = attach(world, &[], &id);
            terminal.expect("ready");
            let supervisor = i32::try_from(run_report(world, &id)["supervisor"].as_i64().unwrap()).unwrap();
            kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
            let text = ends(terminal, 125);
            assert!(text.contains("was killed"), "{text}");
            assert_none_left(&marker);
        }
    });
}

/// Who types at a terminal decides alone; what is written by others is judged, and
/// only where it reaches the shell as it was.
#[test]
fn text_from_others_to_a_shell_at_a_terminal_is_assessed() {
    each_user(|world| {
        world.dir("home/.config");
        let directory = world.dir("home/.config/stockade");
        let rules = "[[rules]]\nprefix = [\"touch\", \"forbidden\"]\neffect = \"deny\"\njustification = \"never\"\n";
        world.file("home/.config/stockade/config.toml", rules);
        fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let forbidden = world.workspace().join("forbidden");
        let id = detach(world, &["--mode", "on-failure"], &SHELL);
        let passes = |text: &str, printed: &str| {
            let output = write(world, "", &id, text);
            assert_eq!(output.ended, ProgramEnd::Code(0), "{text}: {}", output.combined_text());
            prints(world, &id, printed);
        };
        let is_refused = |text: &str| {
            let refused = write(world, "", &id, text);
            assert_eq!(refused.ended, ProgramEnd::Code(126), "{text:?}: {}", refused.combined_text());
            assert!(refused.stderr.contains("refused"), "{}", refused.combined_text());
        };
        prints(world, &id, "prompt> ");
        passes("echo $((6 * 7))\n", "\n42\r\n");
        passes(": touch forbidX\n", ": touch forbidX\r\nprompt> ");
        for text in [
            "touch forbidden\n",
            "!!:1-2:s/X/den/\n",
            "^: ^^:s/X/den/\n",
            "echo\u{15}touch forbidden\n",
            "tou\tforbidden\n",
            "\u{1b}[A\n",
        ] {
            is_refused(text);
        }
        // Nor is the end of what a person has begun.
        let mut terminal = attach(world, &[], &id);
        terminal.press("touch forbidden #");
        terminal.expect("touch forbidden #");
        for text in ["\n", "\r", "echo\n"] {
            let output = write(world, "", &id, text);
            assert_ne!(output.ended, ProgramEnd::Code(0), "{text:?}: {}", output.combined_text());
        }
        assert!(!forbidden.exists());
        terminal.press(INTERRUPT);
        terminal.expect("prompt> ");
        passes("echo $((7 * 7))\n", "\n49\r\n");
        terminal.expect("49");
        // The control: who sits there is not asked.
        terminal.press("touch forbidden\r");
        eventually("the person's own word does not count", || forbidden.exists());
        let closed = write(world, "--close", &id, "");
        assert_eq!(closed.ended, ProgramEnd::Code(0), "{}", closed.combined_text());
        ends(terminal, 0);
        assert_eq!(waited(world, &id), ProgramEnd::Code(0));
        assert_eq!(stockade(world, &["audit", "verify"]).ended, ProgramEnd::Code(0));
        // Who sat there, and that keys were pressed, is on record once.
        let typed = stockade(world, &["audit", "query", "--type", "typed", "--json"]).stdout;
        assert_eq!((typed.lines().count(), typed.contains("\"keys\":true")), (1, true), "{typed}");
        let attached = stockade(world, &["audit", "query", "--type", "attached", "--json"]).stdout;
        assert!(attached.lines().any(|line| line.contains("\"answers\":true")), "{attached}");
    });
}

/// The keys of the answer are the person's, those after it the command's.
#[test]
fn a_question_has_the_persons_terminal_meanwhile() {
    each_user(|world| {
        for (key, code) in [("n", 2), ("o", 0)] {
            let script =
                "read -r line; sh -c 'echo x >> ~/outside'; echo \"code $?\"; read -r line; echo \"got $line.\"";
            let id = detach(world, &["--mode", "on-failure"], &["sh", "-c", script]);
            let mut terminal = attach(world, &[], &id);
            terminal.press("go\r");
            answers_and_types_on(world, terminal, key, code);
        }
        fs::remove_file(world.home().join("outside")).unwrap();
    });
}

/// Nobody need ever look: it is drained, kept at both ends, and its summary is told.
#[test]
fn it_needs_no_approver() {
    each_user(|world| {
        let script = "echo first; seq 1 300000; printf last; test -t 0 && test -t 2 && exit 9";
        let id = detach(world, &["--interactive"], &["sh", "-c", script]);
        assert_eq!(waited(world, &id), ProgramEnd::Code(9));
        let shown = logs(world, &id);
        assert!(shown.starts_with("first\r\n1\r\n2\r\n") && shown.ends_with("300000\r\nlast"), "{} bytes", shown.len());
        let sized = detach(world, &[], &["stty", "size"]);
        assert_eq!(waited(world, &sized), ProgramEnd::Code(0));
        assert_eq!(logs(world, &sized), "24 80\r\n");
        // Like the launcher's, where that has one.
        let command: TestCommand = world.stockade(&["--detach", "--tty"], &["stty", "size"]);
        let (code, text) = Terminal::start(world, &command).finish();
        assert_eq!(code, 0, "{text}");
        let id = text.lines().find(|line| line.starts_with("req_")).unwrap().to_owned();
        assert_eq!(waited(world, &id), ProgramEnd::Code(0));
        assert_eq!(logs(world, &id), "40 100\r\n");
    });
}

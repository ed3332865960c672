//! The person's terminal and the command's are two: whatever a command does, it has none
//! on which a person is asked, and none of what it has a terminal send is an answer.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::termios::{InputModes, LocalModes};

use crate::sandbox::{create, done};
use crate::terminal::{Terminal, ends};
use crate::world::{World, binary, each_user, one_user};

const LEVELS: [&str; 2] = ["full", "restricted"];

/// Writes to every terminal that it has or can open, by whatever name: `$1` is the
/// person's. The command's own is nobody's to be counted.
const REACHING: &str = "import fcntl, os, sys, termios\n\
    person = sys.argv[1]\n\
    device = int(sys.argv[2])\n\
    for fd in range(3):\n\
    \x20   if os.fstat(fd).st_rdev == device: print('HAS-IT', fd)\n\
    names = [person, '/dev/tty', '/dev/console', '/proc/self/fd/0', '/proc/self/fd/1', '/proc/self/fd/2']\n\
    names += ['/proc/%s/fd/%d' % (pid, fd) for pid in os.listdir('/proc') if pid.isdigit() for fd in range(3)]\n\
    for name in names:\n\
    \x20   for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):\n\
    \x20       try: fd = os.open(name, flags | os.O_NOCTTY | os.O_NONBLOCK)\n\
    \x20       except OSError: continue\n\
    \x20       if os.fstat(fd).st_rdev != device: continue\n\
    \x20       print('OPENED-IT', name, flags)\n\
    \x20       try: fcntl.ioctl(fd, termios.TIOCEXCL)\n\
    \x20       except OSError: pass\n\
    print('tried')";

#[test]
fn a_command_has_and_opens_no_terminal_of_the_persons() {
    each_user(|world| {
        let reach = |mut terminal: Terminal| {
            terminal.expect("tried");
            ends(terminal, 0)
        };
        let script = world.file("ws/reach.py", REACHING);
        let script = script.to_str().unwrap();
        let start = |options: &[&str], wrapped: bool| {
            // Its own name is known once it is there: the shell outside says it.
            let outside = "exec \"$@\" \"$(tty)\" \"$(python3 -c 'import os; print(os.fstat(0).st_rdev)')\"";
            let mut words = vec!["sh", "-c", outside, "sh"];
            let stockade = world.stockade(options, &["python3", script]);
            let inside: Vec<&str> = match wrapped {
                true => stockade.argv.iter().map(|word| word.to_str().unwrap()).collect(),
                false => vec!["python3", script],
            };
            words.extend(inside);
            Terminal::start(world, &world.bare(&words))
        };
        let bare = reach(start(&[], false));
        assert!(bare.contains("HAS-IT 0") && bare.contains("OPENED-IT"), "without a sandbox it can be had: {bare}");
        for level in LEVELS {
            for options in [&["--level", level][..], &["--level", level, "--tty"]] {
                let text = reach(start(options, true));
                assert!(!text.contains("HAS-IT") && !text.contains("OPENED-IT"), "{options:?}: {text}");
            }
        }
    });
}

/// The same where the outcome goes to standard output, and for commands of sandboxes that last.
#[test]
fn no_way_to_run_a_command_gives_it_the_persons_terminal() {
    each_user(|world| {
        // The shell outside says which it is.
        let outside = "exec \"$@\" \"$(tty)\" \"$(python3 -c 'import os; print(os.fstat(0).st_rdev)')\"";
        let script = world.file("ws/reach.py", REACHING);
        let (program, workspace) = (binary(), world.workspace());
        let (script, workspace) = (script.to_str().unwrap(), workspace.to_str().unwrap());
        let id = create(world, &[]);
        let run = |level| ["run", "--mode", "never", "--json", "--level", level, "--workspace", workspace, "--"];
        let exec = ["sandbox", "exec", "--mode", "never", &id, "--"];
        let ways = [(&run("full")[..], &[script][..]), (&run("restricted"), &[script]), (&exec, &["-c", REACHING])];
        for (way, script) in ways {
            let words = [&["sh", "-c", outside, "sh", &program], way, &["python3"], script].concat();
            let mut terminal = Terminal::start(world, &world.bare(&words));
            terminal.expect("tried");
            let text = ends(terminal, 0);
            assert!(!text.contains("HAS-IT") && !text.contains("OPENED-IT"), "{way:?}: {text}");
        }
        done(world, &["destroy", &id]);
    });
}

/// Has the terminal send reports, makes one letter another, takes all but the last part of
/// what comes, and then waits for the question.
const ANSWERING: &str = "import os, subprocess, sys, termios\n\
    os.write(2, b'\\x1b[?1004h\\x1b[?1000h\\x1b[?9h\\x1b[2l')\n\
    for name in (0, 1, 2, '/dev/tty'):\n\
    \x20   try: fd = os.open(name, os.O_RDWR) if isinstance(name, str) else name\n\
    \x20   except OSError: continue\n\
    \x20   try: modes = termios.tcgetattr(fd)\n\
    \x20   except termios.error: continue\n\
    \x20   modes[0] |= getattr(termios, 'IUCLC', 0o1000)\n\
    \x20   modes[3] = (modes[3] & ~(termios.ICANON | termios.ECHO)) | termios.IEXTEN\n\
    \x20   modes[6][termios.VMIN] = 2\n\
    \x20   termios.tcsetattr(fd, termios.TCSANOW, modes)\n\
    \x20   if os.fork() == 0:\n\
    \x20       os.read(fd, 2)\n\
    \x20       os._exit(0)\n\
    print('set', flush=True)\n\
    code = subprocess.call(['sh', '-c', 'echo x >> ~/outside'])\n\
    print('code', code)";

#[test]
fn nothing_that_a_terminal_sends_by_itself_answers() {
    each_user(|world| {
        let script = world.file("ws/answer.py", ANSWERING);
        for level in LEVELS {
            let options = ["--mode", "on-failure", "--level", level];
            let mut terminal =
                Terminal::start(world, &world.stockade(&options, &["python3", script.to_str().unwrap()]));
            for sent in ["\u{1b}[O", "\u{1b}[I", "\u{1b}[Moo", "\u{1b}[1;1R"] {
                terminal.expect("[?] > ");
                terminal.press(sent);
                terminal.expect("press one key only");
            }
            terminal.expect("[?] > ");
            terminal.press("n");
            terminal.expect("code 2");
            ends(terminal, 0);
            assert!(!world.home().join("outside").exists(), "{level}");
        }
    });
}

/// A question of a command that writes `~/outside`, and says how that ended.
fn asking(world: &World, level: &str) -> Terminal {
    let script = "echo ready; sh -c 'echo x >> ~/outside'; echo \"code $?\"";
    let options = ["--mode", "on-failure", "--level", level];
    Terminal::start(world, &world.stockade(&options, &["sh", "-c", script]))
}

/// What a slow terminal still had to say before it answers, and what follows its answer so
/// closely that nobody can have pressed it.
#[test]
fn input_before_the_terminals_reply_is_no_key() {
    each_user(|world| {
        let is_tried_in_time = |level| {
            let mut terminal = asking(world, level);
            terminal.tells = false;
            terminal.expect("grant    write");
            terminal.press("o");
            sleep(Duration::from_millis(100));
            let answered = Instant::now();
            terminal.sends("\u{1b}[24;1R");
            sleep(Duration::from_millis(20));
            terminal.sends("o");
            let in_time = answered.elapsed() < Duration::from_millis(100);
            terminal.expect(" > ");
            // On a slow machine its answer came too late: then a word is typed.
            let key = if terminal.text.contains("and Enter > ") { "no\r" } else { "n" };
            terminal.press(key);
            terminal.expect("code ");
            let text = ends(terminal, 0);
            let made = fs::remove_file(world.home().join("outside")).is_ok();
            assert!(!in_time || !made && text.contains("code 2"), "{level}: {text}");
            in_time
        };
        for level in LEVELS {
            assert!((0..10).any(|_| is_tried_in_time(level)), "{level}: this machine is too slow for it");
        }
    });
}

/// Whoever else uses the terminal, as the rest of a pipeline does, changes what a key means
/// for one key at most; and afterwards the terminal is as it was before the question.
#[test]
fn modes_are_set_for_each_key_and_given_back() {
    each_user(|world| {
        let script = "echo ready; read line; sh -c 'echo x >> ~/outside'; echo \"code $?\"; read line";
        for level in LEVELS {
            let options = ["--mode", "on-failure", "--level", level];
            let mut terminal = Terminal::start(world, &world.stockade(&options, &["sh", "-c", script]));
            terminal.expect("ready");
            let before = terminal.modes();
            terminal.press("\r");
            terminal.expect("[?] > ");
            let mut modes = terminal.modes();
            assert!(!modes.local_modes.contains(LocalModes::ICANON), "{level}");
            modes.local_modes |= LocalModes::ICANON | LocalModes::ECHO;
            modes.input_modes |= InputModes::INLCR;
            terminal.set_modes(&modes);
            terminal.press("x\r");
            terminal.expect("one of the keys in brackets");
            terminal.expect("[?] > ");
            terminal.press("n");
            terminal.expect("code 2");
            let after = terminal.modes();
            assert_eq!(
                (after.local_modes, after.input_modes, after.output_modes),
                (before.local_modes, before.input_modes, before.output_modes),
                "{level}"
            );
            terminal.press("\r");
            ends(terminal, 0);
        }
    });
}

/// What another program has left on the screen is undone by the question itself.
#[test]
fn a_question_resets_the_terminal_modes_of_other_programs() {
    let expected_sequences =
        ["\u{1b}[?2026l", "\u{1b}[?47l", "\u{1b}(B", "\u{1b}[r", ";1000;", ";2004;", "\u{1b}[>4m", "\u{1b}[J", "25h"];
    each_user(|world| {
        for level in LEVELS {
            let argv = ["sh", "-c", "echo x >> ~/outside"];
            let stockade = world.stockade(&["--mode", "on-failure", "--level", level], &argv);
            let words: Vec<String> = stockade.argv.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
            let script = format!("printf '\\033[?2026h\\033[8m\\033[5;6r'; {} | cat", words.join(" "));
            let mut terminal = Terminal::start(world, &world.bare(&["bash", "-c", &script]));
            terminal.expect("[?] > ");
            let [set_right] = &terminal.set_right[..] else { panic!("{level}: {:?}", terminal.set_right) };
            for sequence in expected_sequences {
                assert!(set_right.contains(sequence), "{level}: {sequence:?} is not in {set_right:?}");
            }
            terminal.press("n");
            terminal.outlives_its_program();
        }
    });
}

#[test]
fn a_terminal_that_does_not_answer_gets_a_word_typed() {
    each_user(|world| {
        for (word, code) in [("o\r", None), ("no\r", Some(2)), ("once\r", Some(0))] {
            let script = "sh -c 'echo x >> ~/outside'; echo \"code $?\"";
            let command = world.stockade(&["--mode", "on-failure"], &["sh", "-c", script]);
            let mut terminal = Terminal::start(world, &command);
            terminal.tells = false;
            terminal.expect("and Enter > ");
            terminal.press(word);
            match code {
                Some(code) => terminal.expect(&format!("code {code}")),
                None => {
                    terminal.expect("one of these words");
                    terminal.expect("and Enter > ");
                    terminal.press("no\r");
                    terminal.expect("code 2");
                }
            }
            ends(terminal, 0);
            assert_eq!(world.home().join("outside").exists(), code == Some(0));
        }
        fs::remove_file(world.home().join("outside")).unwrap();
    });
}

/// A question stands there to be read, whatever the screen was made of before it.
#[test]
fn text_hiding_modes_are_reset_before_a_question_and_restored_after() {
    let begun = "\\033[?1049h\\033[?2026h\\033[?25l\\033]10;#000000\\007\\033(0\\033]0;unfinished";
    each_user(|world| {
        for level in LEVELS {
            let script = format!("printf '{begun}'; sleep 0.5; sh -c 'echo x >> ~/outside'; echo \"code $?\"");
            let command = world.stockade(&["--mode", "on-failure", "--level", level], &["sh", "-c", &script]);
            let mut terminal = Terminal::start(world, &command);
            terminal.expect("unfinished");
            // In this order: it is cut off, colours get their look, the other screen is left.
            for undone in ["\u{18}\u{1b}\\", "\u{1b}]110\u{1b}\\", "\u{1b}[?25h", "\u{1b}[?1049l", "\u{1b}[?2026l"] {
                terminal.expect(undone);
            }
            terminal.expect("[?] > ");
            terminal.press("n");
            for screen_text in ["\u{1b}[?25l", "\u{1b}[?1049h", "\u{1b}(0", "code 2", "\u{1b}[?1049l"] {
                terminal.expect(screen_text);
            }
            ends(terminal, 0);
        }
    });
}

/// The same programs as on any terminal: what is typed, what has to be seen, and how they
/// end. Those of a pipeline are the shell's outside.
fn outside(world: &World, level: &str, script: &str) -> Terminal {
    let stockade = world.stockade(&["--level", level], &[]);
    let words: Vec<String> = stockade.argv.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let script = format!("sandboxed() {{ {} \"$@\"; }}; {script}", words.join(" "));
    Terminal::start(world, &world.bare(&["bash", "-c", &script]))
}

#[test]
fn programs_at_a_terminal_behave_as_outside() {
    one_user(|world| {
        world.file("ws/lines", &(1..=500).map(|line| format!("line {line}.\n")).collect::<String>());
        for level in LEVELS {
            let mut vim = outside(world, level, "sandboxed vim -u NONE -N written");
            vim.expect("written");
            vim.press("ihello\u{1b}");
            vim.press(":wq\r");
            ends(vim, 0);
            let written = world.workspace().join("written");
            assert_eq!(fs::read_to_string(&written).unwrap(), "hello\n", "{level}");
            fs::remove_file(written).unwrap();

            for command in ["sandboxed less lines", "cat lines | sandboxed less"] {
                let mut less = outside(world, level, command);
                less.expect("line 30.");
                less.press("G");
                less.expect("line 500.");
                less.press("q");
                ends(less, 0);
            }

            let mut top = outside(world, level, "sandboxed top -d 0.3");
            top.expect("load average");
            top.press("q");
            ends(top, 0);

            let mut python = outside(world, level, "sandboxed python3 -q");
            python.expect(">>> ");
            python.press("6 * 7\r");
            python.expect("42");
            python.press("while True: pass\r\r");
            python.press("\u{3}");
            python.expect("KeyboardInterrupt");
            python.press("\u{4}");
            // As outside: a loop that was interrupted is remembered to the end.
            ends(python, 130);

            let progress = "for i in 1 2 3; do printf '\\r%d%%' $((i * 33)); sleep 0.05; done; test -t 1 && echo shown";
            let text = ends(
                outside(
                    world,
                    level,
                    &format!("sandboxed sh -c \"{}\"", progress.replace('"', "\\\"").replace('$', "\\$")),
                ),
                0,
            );
            assert!(text.contains("33%66%99%shown") || text.contains("99%shown"), "{text:?}");

            // What comes behind in a pipeline has the person's terminal, with whole lines.
            let mut head = outside(world, level, "sandboxed seq 1 100000 | head -3; echo \"codes ${PIPESTATUS[*]}\"");
            head.expect("1\r\n2\r\n3\r\n");
            head.expect("codes 141 0");
            ends(head, 0);

            let mut interrupted = outside(world, level, "sandboxed sh -c 'echo begun >&2; sleep 100' | cat; echo over");
            interrupted.expect("begun");
            interrupted.press("\u{3}");
            let (code, text) = interrupted.finish();
            assert!(code == 130 || text.contains("over"), "{code} {text}");

            let mut inner = outside(world, level, "sandboxed python3 -c 'import pty; pty.spawn([\"tty\"])'");
            inner.expect("/dev/pts/");
            ends(inner, 0);
        }
    });
}

/// Keys that interrupt do so before there is a command, too.
#[test]
fn a_run_that_is_not_there_yet_is_interrupted() {
    each_user(|world| {
        let command = world.stockade(&["--mode", "untrusted"], &["sh", "-c", "touch made"]);
        let mut terminal = Terminal::start(world, &command);
        terminal.expect("[?] > ");
        terminal.press("\u{3}");
        terminal.outlives_its_program();
        assert!(terminal.is_cooked());
        assert!(!world.workspace().join("made").exists());
        let (code, text) = terminal.finish();
        assert_ne!(code, 0, "{text}");
    });
}

/// What `sandboxed` runs stops itself and goes on with the job; then the shell ends.
pub fn stops_itself_and_continues(shell: &mut Terminal) {
    for signal in ["TSTP", "STOP"] {
        shell.press(&format!("sandboxed sh -c 'kill -{signal} $$; echo on again: $((6 * 7))'\r"));
        shell.expect("Stopped");
        shell.expect("outside> ");
        shell.press("fg\r");
        shell.expect("on again: 42");
        shell.expect("outside> ");
    }
    shell.press("exit\r");
    shell.outlives_its_program();
}

/// A shell outside suspends a run as it does any program, and has it go on.
#[test]
fn the_shell_outside_has_job_control_over_a_run() {
    one_user(|world| {
        for level in LEVELS {
            let mut shell =
                Terminal::start(world, &world.bare(&["env", "PS1=outside> ", "bash", "--norc", "--noprofile", "-i"]));
            let stockade = world.stockade(&["--level", level], &[]);
            let words: Vec<String> = stockade.argv.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
            shell.expect("outside> ");
            shell.press(&format!("sandboxed() {{ {} \"$@\"; }}\r", words.join(" ")));
            shell.expect("outside> ");
            let counting = "for i in $(seq 1000); do echo \"at $i.\"; sleep 0.1; done";
            shell.press(&format!("sandboxed sh -c '{counting}'\r"));
            shell.expect("at 3.");
            shell.press("\u{1a}");
            shell.expect("Stopped");
            shell.expect("outside> ");
            assert!(shell.is_quiet(), "it goes on: {}", shell.text);
            shell.press("fg\r");
            shell.expect("at ");
            shell.press("\u{3}");
            shell.expect("outside> ");
            // What handles the key itself, and stops by itself.
            world.file("ws/text", "one\ntwo\n");
            shell.press("sandboxed vim -u NONE -N text\r");
            shell.expect("two");
            shell.press("\u{1a}");
            shell.expect("Stopped");
            shell.expect("outside> ");
            shell.press("echo $((6 * 7))\r");
            shell.expect("42");
            shell.press("fg\r");
            shell.expect("two");
            shell.press(":q\r");
            shell.expect("outside> ");
            // No key: a program stops itself, also by the signal that nothing can handle.
            stops_itself_and_continues(&mut shell);
        }
    });
}

//! Clients of runs that live on: what they see, what they write and what they are
//! asked; what a run has of one that is slow, killed, or not alone.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram};

use crate::detached::{
    attach, detach, detach_program, eventually, kill, logs, prints, run_report, stockade, waited, writing,
};
use crate::life::marked;
use crate::world::{World, binary, each_user};

/// Takes input, and asks where something is denied or lacking.
const ASKING: [&str; 3] = ["--interactive", "--mode", "on-failure"];
/// Denied by the judge, and leaves a mark.
const ENCODED: &str = "echo dG91Y2ggbWFyaw== | base64 -d | sh\n";
/// What a supervisor may need, in KiB, however much goes through it.
const SUPERVISOR_KIB: u64 = 64 << 10;

fn write(world: &World, id: &str, text: &str) -> ProgramOutput {
    world.run(&writing(world, "", id, text))
}

/// Writes what is to be passed on.
#[track_caller]
fn passes(world: &World, id: &str, text: &str) {
    let output = write(world, id, text);
    assert_eq!(output.ended, ProgramEnd::Code(0), "{text}: {}", output.combined_text());
}

/// Ends processes with these arguments at once.
#[track_caller]
fn kill_9(arguments: &str) {
    let found = marked(arguments);
    assert!(!found.is_empty(), "{arguments} does not run");
    for pid in found {
        // One of them may go with another.
        let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
    }
}

fn mark(world: &World) -> PathBuf {
    world.workspace().join("mark")
}

/// The most memory that the supervisor had, in KiB.
fn supervisor_kib(world: &World, id: &str) -> u64 {
    let supervisor = run_report(world, id)["supervisor"].as_u64().unwrap();
    let status = fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_run_is_left_and_met_again_with_nothing_lost() {
    each_user(|world| {
        let script = "while read -r line; do echo \"got $line.\"; echo err >&2; done; echo end; exit 7";
        let id = detach(world, &["--interactive"], script);
        let mut first = attach(world, &[], &id);
        first.press("one\n");
        first.expect("got one.");
        first.press("\u{3}");
        first.expect("continues");
        assert_eq!(first.finish().0, 0);
        assert_eq!(run_report(world, &id)["state"], "running");
        passes(world, &id, "two\n");
        prints(world, &id, "got two.");
        let mut new = attach(world, &["--new"], &id);
        let mut second_terminal = attach(world, &[], &id);
        for text in ["got one.", "err", "got two."] {
            second_terminal.expect(text);
        }
        second_terminal.press("three\n");
        new.expect("got three.");
        assert!(!new.text.contains("got two."), "{}", new.text);
        second_terminal.expect("got three.");
        // Ctrl-D ends the input, and with it this run: its exit code is told to all.
        second_terminal.press("\u{4}");
        for terminal in [second_terminal, new] {
            let (code, text) = terminal.finish();
            assert_eq!(code, 7, "{text}");
            assert!(text.ends_with("end\n"), "{text}");
        }
    });
}

#[test]
fn input_is_taken_where_the_run_has_one() {
    each_user(|world| {
        let id = detach(world, &[], "cat; while [ ! -e go ]; do sleep 0.05; done; echo end");
        let refused = write(world, &id, "x\n");
        assert_eq!(refused.ended, ProgramEnd::Code(125), "{}", refused.combined_text());
        assert!(refused.stderr.contains("--interactive"), "{}", refused.combined_text());
        let mut watching = attach(world, &[], &id);
        fs::write(world.workspace().join("go"), "").unwrap();
        watching.expect("end");
        assert_eq!(watching.finish().0, 0);
        for arguments in [["attach", id.as_str()], ["write", &id]] {
            let late = stockade(world, &arguments);
            assert_eq!(late.ended, ProgramEnd::Code(125), "{}", late.combined_text());
            assert!(late.stderr.contains("is over"), "{}", late.combined_text());
        }
        let data = detach(world, &["--interactive"], "cat");
        assert_eq!(write(world, &data, ENCODED).ended, ProgramEnd::Code(0), "data is not judged");
        assert_eq!(world.run(&writing(world, "--close", &data, "last")).ended, ProgramEnd::Code(0));
        assert_eq!(waited(world, &data), ProgramEnd::Code(0));
        assert_eq!(logs(world, &data), format!("{ENCODED}last"));
        let detach_events = stockade(world, &["audit", "query", "--type", "left", "--json"]).stdout;
        let all = format!("\"unjudged_bytes\":{}", ENCODED.len());
        assert!(detach_events.contains(&all), "{detach_events}");
    });
}

/// Each line is judged; what is denied is refused as a whole, and what is around
/// it does not run either.
#[test]
fn a_line_for_a_shell_is_assessed_like_a_request() {
    each_user(|world| {
        world.dir("home/.config");
        let directory = world.dir("home/.config/stockade");
        let rules = "[[rules]]\nprefix = [\"touch\", \"forbidden\"]\neffect = \"deny\"\njustification = \"never\"\n";
        world.file("home/.config/stockade/config.toml", rules);
        fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        for shell in [&["bash"][..], &["env", "sh"], &["bash", "-i"]] {
            let id = detach_program(world, &ASKING, shell);
            passes(world, &id, ": touch forbidX\necho $((6 * 7))\n");
            prints(world, &id, "42\n");
            // With a history, the fourth would be what was denied before.
            for text in [
                ENCODED,
                "touch forbidden\n",
                "touch mark\ntouch forbidden\n",
                "!-2:1-2:s/X/den/\n",
                "if true; then\n",
                "touch 'mark",
            ] {
                let refused = write(world, &id, text);
                assert_eq!(refused.ended, ProgramEnd::Code(126), "{text}: {}", refused.combined_text());
                assert!(refused.stderr.contains("refused"), "{text}: {}", refused.combined_text());
            }
            // A shell leaves a NUL out, and touches what is forbidden.
            let script = "printf 'touch for\\0bidden\\n' | \"$0\" write \"$1\"";
            let refused = world.run(&world.bare(&["sh", "-c", script, &binary(), &id]));
            assert_eq!(refused.ended, ProgramEnd::Code(126), "{}", refused.combined_text());
            // Without its line feed, it is a line all the same.
            passes(world, &id, "echo $((7 * 7))");
            prints(world, &id, "49\n");
            assert!(!mark(world).exists() && !world.workspace().join("forbidden").exists());
            // It may be over before its writer hears that it has it.
            write(world, &id, "exit 9\n");
            assert_eq!(waited(world, &id), ProgramEnd::Code(9));
        }
        let record = stockade(world, &["audit", "query", "--type", "decided", "--json"]).stdout;
        assert!(record.contains("forbidden") || record.contains("never"), "{record}");
        assert_eq!(stockade(world, &["audit", "verify"]).ended, ProgramEnd::Code(0));
    });
}

#[test]
fn a_program_for_an_interpreter_is_assessed_too() {
    each_user(|world| {
        let id = detach_program(world, &ASKING, &["python3", "-iq"]);
        passes(world, &id, "print(6 * 7)\n");
        prints(world, &id, "42\n");
        let refused = write(world, &id, "import os; os.system('rm -rf /')\n");
        assert_eq!(refused.ended, ProgramEnd::Code(126), "{}", refused.combined_text());
        // It may be over before its writer hears that it has it.
        write(world, &id, "exit(3)\n");
        assert_eq!(waited(world, &id), ProgramEnd::Code(3));
    });
}

#[test]
fn a_line_that_is_asked_about_is_asked_at_the_attached_terminal() {
    each_user(|world| {
        let id = detach_program(world, &ASKING, &["bash"]);
        let mut terminal = attach(world, &[], &id);
        for (key, expected_text, runs) in [("n", "refused", false), ("o", "", true)] {
            terminal.press(ENCODED);
            terminal.expect("may this command run");
            terminal.expect("[?] > ");
            terminal.press(key);
            terminal.expect(expected_text);
            terminal.press("echo $((6 * 7)); rm -f x\n");
            terminal.expect("42");
            assert_eq!(mark(world).exists(), runs, "{}", terminal.text);
        }
        // Written by somebody who cannot be asked: who is attached is.
        fs::remove_file(mark(world)).unwrap();
        let writer = RunningProgram::start(&world.account, &writing(world, "", &id, ENCODED)).unwrap();
        terminal.expect("[?] > ");
        terminal.press("o");
        assert_eq!(writer.wait_for_end().unwrap().ended, ProgramEnd::Code(0));
        eventually("it does not run", || mark(world).exists());
        // What is not whole yet waits for its rest.
        terminal.press("for i in 1 2; do\n");
        terminal.expect("waits for the rest");
        terminal.press("echo $((i * 50))\ndone\n");
        terminal.expect("50");
        terminal.expect("100");
        terminal.press("exit 4\n");
        let (code, text) = terminal.finish();
        assert_eq!(code, 4, "{text}");
        fs::remove_file(mark(world)).unwrap();
    });
}

/// Starts a run that writes beyond its workspace once it may.
fn lacking(world: &World) -> String {
    let script = "while [ ! -e go ]; do sleep 0.05; done; sh -c 'echo x >> ~/outside'; echo \"code $?\"; cat";
    detach(world, &ASKING, script)
}

fn go(world: &World) {
    fs::write(world.workspace().join("go"), "").unwrap();
}

fn is_outside(world: &World) -> bool {
    world.home().join("outside").exists()
}

#[test]
fn questions_of_the_run_are_answered_by_an_attached_client() {
    each_user(|world| {
        let world = &World::new(world.account.user);
        let alone = lacking(world);
        go(world);
        prints(world, &alone, "code 2");
        assert!(!is_outside(world), "nobody was there to ask");
        kill(world, &alone);
        fs::remove_file(world.workspace().join("go")).unwrap();

        let id = lacking(world);
        let (mut one, mut two) = (attach(world, &[], &id), attach(world, &[], &id));
        go(world);
        for terminal in [&mut one, &mut two] {
            terminal.expect("outside");
            terminal.expect("allow?");
        }
        assert!(!is_outside(world));
        one.press("o");
        two.expect("withdrawn");
        for terminal in [&mut one, &mut two] {
            terminal.expect("code 0");
        }
        assert!(is_outside(world));
        kill(world, &id);
        assert_eq!((one.finish().0, two.finish().0), (137, 137));
        let record = stockade(world, &["audit", "query", "--type", "answered", "--json"]).stdout;
        assert!(record.contains("attached terminal"), "{record}");
    });
}

#[test]
fn a_client_that_is_killed_or_leaves_takes_its_questions_along() {
    each_user(|world| {
        for killed in [true, false] {
            let world = &World::new(world.account.user);
            let id = lacking(world);
            let mut terminal = attach(world, &[], &id);
            go(world);
            terminal.expect("allow?");
            if killed {
                kill_9(&format!("attach\0{id}"));
            } else {
                terminal.hang_up();
            }
            prints(world, &id, "code 2");
            assert!(!is_outside(world));
            assert_eq!(run_report(world, &id)["state"], "running");
            let mut next = attach(world, &[], &id);
            next.expect("code 2");
            next.press("\u{4}");
            assert_eq!(next.finish().0, 0);
        }
    });
}

/// One that reads late, or never, misses what is not kept and stops nothing.
#[test]
fn a_slow_client_blocks_no_other_and_learns_its_gap() {
    const PRINTED: usize = 1 << 30;
    each_user(|world| {
        let script = format!("head -c {PRINTED} /dev/zero; touch printed; while [ ! -e go ]; do sleep 0.05; done");
        let id = detach(world, &[], &script);
        let late = "\"$0\" attach \"$1\" 2>missed | { while [ ! -e go ]; do sleep 0.05; done; wc -c; }";
        let late = world.bare(&["sh", "-c", late, &binary(), &id]);
        let late = RunningProgram::start(&world.account, &late).unwrap();
        let never = world.bare(&["sh", "-c", "\"$0\" attach \"$1\" | sleep 1732051", &binary(), &id]);
        let never = RunningProgram::start(&world.account, &never).unwrap();
        eventually("nobody is attached", || marked(&format!("attach\0{id}")).len() == 2);
        let deadline = Instant::now() + Duration::from_secs(120);
        while !world.workspace().join("printed").exists() {
            assert!(Instant::now() < deadline, "the run is stopped");
            sleep(Duration::from_millis(50));
        }
        let peak = supervisor_kib(world, &id);
        assert!(peak < SUPERVISOR_KIB, "the supervisor had {peak} KiB");
        go(world);
        assert_eq!(waited(world, &id), ProgramEnd::Code(0));
        let seen: usize = late.wait_for_end().unwrap().stdout.trim().parse().unwrap();
        let missed = fs::read_to_string(world.workspace().join("missed")).unwrap();
        let run_report =
            missed.lines().filter_map(|line| line.strip_prefix("• ")?.split(' ').next()?.parse::<usize>().ok());
        assert_eq!(seen + run_report.sum::<usize>(), PRINTED, "{missed}");
        assert!(seen < PRINTED / 10, "{seen} bytes of it are kept");
        kill_9(&format!("attach\0{id}"));
        kill_9("sleep\x001732051");
        never.wait_for_end().unwrap();
        for name in ["go", "printed", "missed"] {
            fs::remove_file(world.workspace().join(name)).unwrap();
        }
    });
}

/// Input is taken as fast as the command reads, and kept nowhere.
#[test]
fn a_writer_waits_for_the_command() {
    const WRITTEN: usize = 50_000_000;
    each_user(|world| {
        let world = &World::new(world.account.user);
        let script = "while [ ! -e go ]; do sleep 0.05; done; wc -c; while [ -e go ]; do sleep 0.05; done";
        let id = detach(world, &["--interactive"], script);
        let much = format!("head -c {WRITTEN} /dev/zero | \"$0\" write \"$1\"");
        let much = world.bare(&["sh", "-c", &much, &binary(), &id]);
        let lost = RunningProgram::start(&world.account, &much).unwrap();
        eventually("it does not write", || !marked(&format!("write\0{id}")).is_empty());
        // Once its first piece is in the pipe; where it is not yet, the count is less.
        sleep(Duration::from_millis(300));
        kill_9(&format!("write\0{id}"));
        lost.wait_for_end().unwrap();
        let whole = RunningProgram::start(&world.account, &much).unwrap();
        go(world);
        assert_eq!(whole.wait_for_end().unwrap().ended, ProgramEnd::Code(0));
        assert_eq!(world.run(&writing(world, "--close", &id, "end")).ended, ProgramEnd::Code(0));
        eventually("it counts nothing", || !logs(world, &id).is_empty());
        let counted: usize = logs(world, &id).trim().parse().unwrap();
        let pipe_and_piece = 128 << 10;
        assert!((WRITTEN + 3..=WRITTEN + 3 + pipe_and_piece).contains(&counted), "{counted} bytes");
        let peak = supervisor_kib(world, &id);
        assert!(peak < SUPERVISOR_KIB, "the supervisor had {peak} KiB");
        fs::remove_file(world.workspace().join("go")).unwrap();
        assert_eq!(waited(world, &id), ProgramEnd::Code(0));
    });
}

#[test]
fn clients_are_bounded_and_go_without_a_trace() {
    each_user(|world| {
        let id = detach(world, &["--interactive"], "echo ready; cat");
        let supervisor = run_report(world, &id)["supervisor"].as_u64().unwrap();
        let descriptors = || fs::read_dir(format!("/proc/{supervisor}/fd")).unwrap().count();
        let threads = || fs::read_dir(format!("/proc/{supervisor}/task")).unwrap().count();
        prints(world, &id, "ready");
        let counts = || (descriptors(), threads());
        let are_steady = || {
            let first = counts();
            sleep(Duration::from_millis(300));
            counts() == first
        };
        // The first round is not compared: the supervisor makes some of its own threads and
        // descriptors at their first use, and a few more later.
        let mut before = None;
        for _ in 0..3 {
            let attached = world.bare(&[&binary(), "attach", &id]);
            let all: Vec<_> = (0..16).map(|_| RunningProgram::start(&world.account, &attached).unwrap()).collect();
            eventually("they see nothing", || all.iter().all(|client| client.stdout_so_far() == "ready\n"));
            let refused = stockade(world, &["attach", &id]);
            assert_eq!(refused.ended, ProgramEnd::Code(125), "{}", refused.combined_text());
            assert!(refused.stderr.contains("too many"), "{}", refused.combined_text());
            for client in all {
                client.send_signal(Signal::KILL).unwrap();
                client.wait_for_end().unwrap();
            }
            eventually("it has no rest", are_steady);
            let (most_descriptors, most_threads) = *before.get_or_insert_with(counts);
            // If a client leaves anything, sixteen leave it sixteen times.
            eventually("something of them is left", || {
                descriptors() < most_descriptors + 8 && threads() < most_threads + 8
            });
        }
        assert_eq!(world.run(&writing(world, "--close", &id, "x")).ended, ProgramEnd::Code(0));
        assert_eq!(waited(world, &id), ProgramEnd::Code(0));
    });
}

//! A limit is raised by a person while everything stands still, and the run goes
//! on where it stood.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use stockade_testkit::slowness_factor;

use crate::life::assert_none_left;
use crate::terminal::Terminal;
use crate::world::{World, binary, each_user, one_user};

const LEVELS: [&str; 2] = ["full", "restricted"];

/// Adds a line to `log` for each step that it gets done; the number of steps and
/// what one of them does are put in.
fn steps(count: u32, step: &str) -> String {
    format!(
        "import os, time\nheld = []\nfor number in range({count}):\n    {step}\n    \
         print(number, file=open('log', 'a'))\n"
    )
}

/// Some of the clock, of a processor, of memory that stays, of a disk.
const WAITS: &str = "time.sleep(0.25)";
const COUNTS: &str = "until = time.process_time() + 0.1\n    while time.process_time() < until: pass";
const TAKES: &str = "held.append(bytearray(b'x' * (4 << 20))); time.sleep(0.1)";
const WRITES: &str = "\
    with open(f'file{number}', 'wb') as file: file.write(os.urandom(1 << 20)); file.flush(); os.fsync(file.fileno())
    time.sleep(0.05)";

/// One file that becomes larger than what a question leaves room for.
const GROWS: &str = "\
    with open('grown', 'ab') as file: file.write(bytes(1 << 20))
    time.sleep(0.01)";

/// A person sees one run with one limit.
struct Seen<'world> {
    world: &'world World,
    terminal: Terminal,
    report: String,
}

impl<'world> Seen<'world> {
    fn start(world: &'world World, level: &str, limit: &str, argv: &[&str]) -> Self {
        let _ = fs::remove_file(world.workspace().join("log"));
        let report = world.home().join("outcome.json").display().to_string();
        let (workspace, json) = (world.workspace().display().to_string(), format!("--json={report}"));
        let program = binary();
        let mut all = vec![program.as_str(), "run", "--workspace", &workspace, "--level", level];
        all.extend(["--limit", limit, &json, "--"]);
        all.extend(argv);
        Self { world, terminal: Terminal::start(world, &world.bare(&all)), report }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.world.workspace().join("log")).unwrap_or_default()
    }

    /// Waits for the question, longer than any step takes: nothing is done meanwhile.
    #[track_caller]
    fn stands_still_for(&mut self, grant: &str) {
        self.terminal.expect(grant);
        self.terminal.expect("all its processes are frozen");
        self.terminal.expect("allow?");
        let before = self.log();
        sleep(Duration::from_secs(1));
        assert_eq!(self.log(), before, "it went on while somebody was asked: {}", self.terminal.text);
    }

    #[track_caller]
    fn finish(self) -> (i32, String, Value) {
        let (code, text) = self.terminal.finish();
        let outcome = fs::read_to_string(&self.report).unwrap_or_else(|error| panic!("{error}: {text}"));
        (code, text, serde_json::from_str(&outcome).unwrap())
    }
}

/// As slow as the machine: nothing is asked about what is taken between two looks.
fn slowly(step: &str) -> String {
    step.replace("sleep(0.", &format!("sleep({} * 0.", slowness_factor()))
}

#[test]
fn an_approval_raises_a_limit_of_the_running_command() {
    one_user(|world| {
        for level in LEVELS {
            let cases = [
                ("wall=4s", "wall 8s", steps(20, WAITS)),
                ("cpu_time=700ms", "cpu_time 1400ms", steps(10, COUNTS)),
                ("memory=60MiB", "memory 120MiB", steps(18, &slowly(TAKES))),
                ("disk=6MiB", "disk 12MiB", steps(10, WRITES)),
                ("disk=6MiB", "disk 12MiB", steps(100, &slowly(GROWS))),
            ];
            for (limit, grant, program) in cases {
                let mut seen = Seen::start(world, level, limit, &["python3", "-c", &program]);
                seen.stands_still_for(grant);
                seen.terminal.press("o");
                // Where the machine is slow it comes to more of them.
                while seen.terminal.sees_before_its_end("allow?", Duration::from_secs(60)) {
                    seen.terminal.press("o");
                }
                let count = program.split_once("range(").unwrap().1.split_once(')').unwrap().0.parse().unwrap();
                let expected_log: String = (0..count).map(|number: u32| format!("{number}\n")).collect();
                let log = seen.world.workspace().join("log");
                let (code, text, outcome) = seen.finish();
                assert_eq!(code, 0, "{level} {limit}: {text}");
                let _ = fs::remove_file(world.workspace().join("grown"));
                assert_eq!(fs::read_to_string(log).unwrap(), expected_log, "every step once: {text}");
                let attempts = outcome["attempts"].as_array().unwrap();
                assert_eq!(attempts.len(), 1, "{level} {limit}: {text}");
                assert_eq!(attempts[0]["grants"][0], json!(grant), "{level}: {text}");
                assert_eq!(attempts[0]["denials"][0]["resolution"], "granted", "{level} {limit}: {outcome}");
                let detail = attempts[0]["enforced"]["layers"]["limits"]["detail"].as_str().unwrap();
                assert!(detail.contains("raised in place after a question"), "{detail}");
            }
        }
    });
}

#[test]
fn a_no_ends_it_as_without_a_question() {
    one_user(|world| {
        for (number, level) in LEVELS.into_iter().enumerate() {
            for (kind, limit, then, status) in [
                ("wall", "wall=1s", "sleep 100", "timed_out"),
                ("cpu", "cpu_time=500ms", "while :; do :; done", "limit"),
            ] {
                let marker = format!("3141{}.{number}{}", world.account.uid, kind.len());
                // It cannot be asked to end, and has put a process where nobody waits for it.
                let script = format!("trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep {marker}' &); {then}");
                let mut seen = Seen::start(world, level, limit, &["sh", "-c", &script]);
                seen.terminal.expect("allow?");
                seen.terminal.press("n");
                let (_, text, outcome) = seen.finish();
                assert_eq!(outcome["status"], status, "{level} {kind}: {text}");
                assert_eq!(outcome["attempts"].as_array().unwrap().len(), 1, "{text}");
                assert_eq!(outcome["attempts"][0]["denials"][0]["resolution"], "refused", "{outcome}");
                assert_none_left(&marker);
            }
        }
    });
}

/// Who ends the run while a question stands ends what stands still, too.
#[test]
fn frozen_processes_end_with_their_supervisor() {
    each_user(|world| {
        for (number, level) in LEVELS.into_iter().enumerate() {
            for keys in [Some("q"), Some("\x03"), None] {
                let marker = format!("1618{}.{number}{}", world.account.uid, keys.map_or(0, str::len));
                let mut seen = Seen::start(world, level, "wall=1s", &["sleep", &marker]);
                seen.terminal.expect("allow?");
                match keys {
                    Some(keys) => seen.terminal.press(keys),
                    None => seen.terminal.signal(rustix::process::Signal::KILL),
                }
                seen.terminal.finish();
                assert_none_left(&marker);
            }
        }
    });
}

/// A caller's own time is the end: nobody is asked for more of it.
#[test]
fn powers_given_by_the_caller_are_not_asked_about() {
    each_user(|world| {
        let workspace = world.workspace().display().to_string();
        let argv = [&binary(), "run", "--workspace", &workspace, "--timeout", "1s", "--", "sleep", "60"];
        let (code, text) = Terminal::start(world, &world.bare(&argv)).finish();
        assert_eq!(code, 124, "{text}");
        assert!(!text.contains("allow?"), "{text}");
    });
}

/// Forks that fail are tried again by the program; where the kernel counts them for
/// the run they succeed after a yes.
#[test]
fn more_processes_are_possible_if_a_group_counts_them() {
    const FORKS: &str = "\
import os, time
for number in range(8):
    while True:
        try:
            if os.fork() == 0:
                time.sleep(4)
                os._exit(0)
            break
        except BlockingIOError:
            time.sleep(0.1)
print('all are there')
";
    each_user(|world| {
        let options = ["--limit", "processes=6", "--timeout", "3s"];
        // Not in the text of the command, which would be taken for a fork bomb.
        world.file("ws/forks.py", FORKS);
        let control = world.outcome(&options, &["python3", "forks.py"]);
        assert_eq!(control["status"], "timed_out", "{control}");
        let held = control["attempts"][0]["enforced"]["layers"]["limits"]["detail"].as_str().unwrap();
        if !held.contains("processes 6: control group") {
            eprintln!("not run: {held}");
            return;
        }
        let mut seen = Seen::start(world, "full", "processes=6", &["python3", "forks.py"]);
        seen.stands_still_for("processes 12");
        seen.terminal.press("o");
        let (code, text, outcome) = seen.finish();
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("all are there"), "{text}");
        assert_eq!(outcome["attempts"].as_array().unwrap().len(), 1, "{text}");
    });
}

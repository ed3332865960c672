//! Nothing outlives its run (L8): not when the front is killed at any moment,
//! not when the person presses Ctrl-C, not when the command leaves children.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::{ProgramEnd, RunningProgram, few_or_all};
use tempfile::TempDir;

use crate::world::{each_user, one_user};

/// Processes whose arguments hold `marker`.
pub fn marked(marker: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let Ok(arguments) = fs::read(entry.path().join("cmdline")) else { continue };
        if arguments.windows(marker.len()).any(|w| w == marker.as_bytes()) {
            found.push(pid);
        }
    }
    found
}

/// Every living descendant of `pid`, parents first.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|c| c.parse().ok()) {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

/// Waits until no process has `marker` in its arguments.
#[track_caller]
pub fn assert_none_left(marker: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !marked(marker).is_empty() {
        assert!(Instant::now() < deadline, "still alive: {:?}", marked(marker));
        sleep(Duration::from_millis(5));
    }
}

/// What a directory holds.
pub fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

/// What the directories of container engines under test begin with.
const ENGINES: &str = "stockade-engine-";

/// A directory for a container engine and what it needs.
pub fn engine_directory() -> TempDir {
    tempfile::Builder::new().prefix(ENGINES).tempdir_in("/var/tmp").unwrap()
}

/// The host's mounts, less those of container engines under test beside this, and
/// of a root tree that is being made there.
pub fn mounts() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| !line.contains(ENGINES) && !line.contains("mmdebstrap")).map(str::to_owned).collect()
}

#[test]
fn kill_9_of_the_worker_at_any_moment() {
    const ROUNDS: u64 = 60;
    one_user(|world| {
        for level in ["full", "restricted"] {
            // Once before the snapshots: what a first run makes is meant to stay.
            world.passes(&["--level", level], &["true"]);
            let (mounts_before, temp_before) = (mounts(), names(Path::new("/tmp")));
            let workspace_before = names(&world.workspace());
            for round in (0..ROUNDS).step_by(few_or_all(3, 1)) {
                let marker = format!("3141592{}.{round}", world.account.uid);
                let script = format!("(setsid sleep {marker} &) ; sleep {marker} & exec sleep {marker}");
                let command = world.stockade(&["--level", level], &["sh", "-c", &script]);
                let running = RunningProgram::start(&world.account, &command).unwrap();
                sleep(Duration::from_micros(round * 500));
                running.send_signal(Signal::KILL).unwrap();
                assert_eq!(running.wait_for_end().unwrap().ended, ProgramEnd::Signal(9));
                assert_none_left(&marker);
            }
            assert_eq!(mounts(), mounts_before, "level {level} left a mount");
            assert_eq!(list_temp_leftovers(&temp_before), [""; 0], "level {level} left them in /tmp");
            assert_eq!(names(&world.workspace()), workspace_before);
            let verified = world.run(&world.bare(&[&crate::world::binary(), "audit", "verify"]));
            assert_eq!(verified.ended, ProgramEnd::Code(0), "{}", verified.combined_text());
        }
    });
}

/// What is new in `/tmp` and stays there: what is being used at the moment, by a
/// run of another test, goes with that run.
fn list_temp_leftovers(before: &BTreeSet<String>) -> Vec<String> {
    let new = || -> BTreeSet<String> {
        names(Path::new("/tmp")).difference(before).filter(|name| name.contains("stockade")).cloned().collect()
    };
    let mut leftovers = new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !leftovers.is_empty() && Instant::now() < deadline {
        sleep(Duration::from_millis(50));
        leftovers = leftovers.intersection(&new()).cloned().collect();
    }
    leftovers.into_iter().collect()
}

#[test]
fn background_children_end_with_the_command() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let marker = format!("2718281{}", world.account.uid);
            let script = format!(
                "(setsid nohup sh -c 'trap \"\" TERM HUP INT; sleep {marker}; sleep {marker}' &) ; sleep 0.2; echo done"
            );
            let output = world.passes(&["--level", level], &["sh", "-c", &script]);
            assert_eq!(output.stdout, "done\n");
            assert!(!output.held_open, "a child still held the output at level {level}");
            assert_none_left(&marker);
        }
    });
}

#[test]
fn an_interrupt_ends_the_tree() {
    each_user(|world| {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            for level in ["full", "restricted"] {
                let marker = format!("1618033{}", world.account.uid);
                let script = format!("sleep {marker} & echo ready; wait");
                let command = world.stockade(&["--level", level], &["sh", "-c", &script]);
                let running = RunningProgram::start(&world.account, &command).unwrap();
                let deadline = Instant::now() + Duration::from_secs(10);
                while !running.stdout_so_far().contains("ready") {
                    assert!(Instant::now() < deadline, "the command did not start");
                    sleep(Duration::from_millis(5));
                }
                running.send_signal(signal).unwrap();
                let output = running.wait_for_end().unwrap();
                assert_eq!(output.ended, ProgramEnd::Code(code), "level {level}: {}", output.stderr);
                assert_none_left(&marker);
            }
        }
    });
}

/// Kill -9 of the sandbox's own processes one after the other: the front says
/// so and nothing stays.
#[test]
fn kill_9_of_each_inner_process() {
    each_user(|world| {
        let marker = format!("1414213{}", world.account.uid);
        let command = world.stockade(&[], &["sh", "-c", &format!("sleep {marker} & echo ready; wait")]);
        for victim in 0..3 {
            let running = RunningProgram::start(&world.account, &command).unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            while !running.stdout_so_far().contains("ready") {
                assert!(Instant::now() < deadline, "the command did not start");
                sleep(Duration::from_millis(5));
            }
            let inner = descendants(running.pid());
            if let Some(pid) = inner.get(victim).and_then(|&pid| Pid::from_raw(pid.cast_signed())) {
                kill_process(pid, Signal::KILL).unwrap();
            }
            running.send_signal(Signal::TERM).ok();
            let output = running.wait_for_end().unwrap();
            assert_ne!(output.ended, ProgramEnd::TimedOut, "victim {victim}: {}", output.stderr);
            assert_none_left(&marker);
        }
    });
}

/// Programs look so whether they are traced, and go on: a stop is no end.
#[test]
fn a_program_that_wants_to_be_traced_runs_to_its_end() {
    const TRACED: &str = "import ctypes, os, signal, subprocess, sys\n\
        libc = ctypes.CDLL(None)\n\
        heard = []\n\
        signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))\n\
        libc.ptrace(0, 0, 0, 0)\n\
        os.kill(os.getpid(), signal.SIGUSR1)\n\
        print('heard', len(heard), flush=True)\n\
        os.execvp('sh', ['sh', '-c', 'echo went on; exit 7'])";
    each_user(|world| {
        for level in ["full", "restricted"] {
            let output = world.run(&world.stockade(&["--level", level], &["python3", "-c", TRACED]));
            assert_eq!(output.ended, ProgramEnd::Code(7), "{level} {}", output.combined_text());
            assert!(output.stdout.contains("heard 1\nwent on\n"), "{level} {}", output.combined_text());
        }
    });
}

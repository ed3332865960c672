//! What happens at a limit: who is told what, what is left, and what is not.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use stockade_testkit::{ProgramEnd, RunningProgram, TestUser};

use crate::life::assert_none_left;
use crate::world::{World, each_user, one_user};

const LEVELS: [&str; 2] = ["full", "restricted"];

/// Prints, then takes memory that it uses, piece by piece.
const HUNGRY: &str = "\
import time
print('before', flush=True)
held = []
for _ in range(40):
    held.append(bytearray(b'x' * (10 << 20)))
    time.sleep(0.05)
time.sleep(20)
";

/// Cannot be asked to end, and has put a process where nobody waits for it.
fn stubborn(marker: &str, then: &str) -> String {
    format!("trap '' TERM INT HUP; (setsid sh -c 'trap \"\" TERM; sleep {marker}' &); {then}")
}

#[test]
fn the_outcome_and_the_record_name_the_limit() {
    each_user(|world| {
        for level in LEVELS {
            let options = ["--level", level, "--limit", "memory=100MiB"];
            let outcome = world.outcome(&options, &["python3", "-c", HUNGRY]);
            assert_eq!(outcome["status"], "limit", "{outcome}");
            assert!(outcome["error"].as_str().unwrap().starts_with("limit memory: at most 100MiB; "), "{outcome}");
            let attempt = &outcome["attempts"][0];
            assert_eq!(attempt["stdout"], "before\n", "what was printed stays");
            let denial = &attempt["denials"][0];
            let denial_fields =
                ["operation", "object", "layer", "grant"].map(|key| denial[key].as_str().unwrap_or_default());
            assert_eq!(denial_fields, ["limit", "memory", "limits", "memory 200MiB"]);
            let holder = attempt["enforced"]["layers"]["limits"]["detail"].as_str().unwrap();
            assert!(holder.contains("memory 100MiB: "), "{holder}");
            // A watch knows who took the most; the kernel tells nobody.
            if holder.contains("memory 100MiB: watched") {
                assert!(denial["pid"].is_u64() && denial["program"].as_str().unwrap().contains("python"), "{denial}");
            }
            let audit = world.bare(&[&crate::world::binary(), "audit", "show", "--json"]);
            let recorded = world.run(&audit).stdout;
            assert!(recorded.lines().any(|line| line.contains("memory 200MiB")), "{recorded}");
        }
    });
}

/// Writes one file and does not stop.
const ONE_FILE: &str = "\
with open('fill', 'wb') as file:
    while True:
        file.write(bytes(1 << 20))
";

/// Opens what it can, and keeps it for longer than a watch may take to look.
const OPENS: &str = "\
import os, time
try:
    while True:
        os.open('/dev/null', 0)
except OSError as error:
    print(error.errno, flush=True)
    time.sleep(6)
";

#[test]
fn one_large_file_and_too_many_open_ones_are_named() {
    one_user(|world| {
        for level in LEVELS {
            let run = |limit: &str, text: &str| {
                world.outcome(&["--level", level, "--limit", limit], &["python3", "-c", text])
            };
            let outcome = run("disk=64MiB", ONE_FILE);
            assert_eq!(outcome["status"], "limit", "{outcome}");
            assert_eq!(outcome["attempts"][0]["denials"][0]["object"], "disk", "{outcome}");
            let _ = fs::remove_file(world.workspace().join("fill"));

            let outcome = run("open_files=100", OPENS);
            assert_eq!(outcome["exit_code"], 0, "{outcome}");
            let attempt = &outcome["attempts"][0];
            assert_eq!(attempt["stdout"], "24\n", "EMFILE");
            let denial = &attempt["denials"][0];
            let denial_fields =
                ["operation", "object", "layer", "grant"].map(|key| denial[key].as_str().unwrap_or_default());
            assert_eq!(denial_fields, ["limit", "open_files", "limits", "open_files 200"], "{denial}");
            assert!(denial["pid"].is_u64() && denial["program"].as_str().unwrap().contains("python"), "{denial}");
        }
    });
}

/// Ways to put 200 MiB on a disk as fast as it takes them, by the name of each.
const FILLS: &str = "\
import mmap, os, signal, sys, time
MIB = 1 << 20
piece = bytes(MIB)

def write(name, count):
    file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644)
    for _ in range(count):
        os.write(file, piece)
    os.close(file)

def children(count, body):
    made = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            body(number)
            os._exit(0)
        made.append(pid)
    for pid in made:
        os.waitpid(pid, 0)

def one():
    write('one', 200)

def four():
    children(4, lambda number: write(f'four{number}', 50))

def many():
    for number in range(200):
        write(f'many{number}', 1)

def orphans():
    def leave(number):
        if os.fork() == 0:
            write(f'orphan{number}', 1)
    for number in range(200):
        children(1, lambda _: leave(number))
    # They end with the run.
    while sum(entry.stat().st_size for entry in os.scandir('.')) < 200 * MIB:
        time.sleep(0.01)

def reserved():
    for number in range(20):
        file = os.open(f'reserved{number}', os.O_WRONLY | os.O_CREAT, 0o644)
        os.posix_fallocate(file, 0, 10 * MIB)

def mapped():
    for number in range(40):
        file = os.open(f'mapped{number}', os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(file, 5 * MIB)
        memory = mmap.mmap(file, 5 * MIB, mmap.MAP_SHARED)
        for at in range(0, 5 * MIB, MIB):
            memory[at:at + MIB] = piece

# Asked to end it goes on.
def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    many()

globals()[sys.argv[1]]()
";

/// Bytes that the files in a directory take on the disk; they are removed.
fn measure_and_remove(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).unwrap().flatten() {
        bytes += entry.metadata().unwrap().blocks() * 512;
        fs::remove_file(entry.path()).unwrap();
    }
    bytes
}

/// Judged from outside, when the run has ended.
#[test]
fn little_more_is_on_the_disk_than_the_limit() {
    const MIB: u64 = 1 << 20;
    one_user(|world| {
        let fills = world.file("fills.py", FILLS);
        let fills = fills.to_str().unwrap();
        let reads = format!("read {fills}");
        for fill in ["one", "four", "many", "orphans", "reserved", "mapped", "stubborn"] {
            world.passes(&["--grant", &reads], &["python3", fills, fill]);
            let unlimited = measure_and_remove(&world.workspace());
            assert!(unlimited >= 195 * MIB, "{fill} fills {unlimited} bytes without the limit");
            for level in LEVELS {
                let options = ["--grant", &reads, "--level", level, "--limit", "disk=10MiB"];
                let outcome = world.outcome(&options, &["python3", fills, fill]);
                let bytes = measure_and_remove(&world.workspace());
                assert!(bytes <= 60 * MIB, "{level} {fill}: {bytes} bytes, {outcome}");
                assert_eq!(outcome["status"], "limit", "{level} {fill}: {outcome}");
                let attempt = &outcome["attempts"][0];
                assert_eq!(attempt["denials"][0]["object"], "disk", "{level} {fill}: {outcome}");
                let layer = &attempt["enforced"]["layers"]["limits"];
                let detail = layer["detail"].as_str().unwrap();
                assert!(detail.contains("disk 10MiB: watched, may be passed by about"), "{detail}");
                assert_ne!(layer["state"], "enforced", "{detail}");
            }
        }
    });
}

/// A file with a hole takes nothing, but may not be larger than the limit all the same.
#[test]
fn a_file_over_its_size_limit_is_reported() {
    const MAKES: &str = "\
with open('hole', 'wb') as file:
    file.truncate(4 << 20)
    file.truncate(0)
    file.truncate(100 << 20)
";
    each_user(|world| {
        for level in LEVELS {
            let options = ["--level", level, "--limit", "disk=10MiB"];
            let outcome = world.outcome(&options, &["python3", "-c", MAKES]);
            assert_eq!((&outcome["status"], &outcome["exit_code"]), (&"exited".into(), &1.into()), "{outcome}");
            let denials = outcome["attempts"][0]["denials"].as_array().unwrap();
            assert_eq!(denials.len(), 1, "{outcome}");
            let denial_fields = ["operation", "object", "layer", "grant"].map(|key| denials[0][key].as_str().unwrap());
            assert_eq!(denial_fields, ["limit", "disk", "limits", "disk 100MiB"], "{outcome}");
            assert!(outcome["attempts"][0]["stderr"].as_str().unwrap().contains("File too large"), "{outcome}");
            let more = world.outcome(&["--level", level, "--limit", "disk=200MiB"], &["python3", "-c", MAKES]);
            assert_eq!(more["exit_code"], 0, "{more}");
        }
    });
}

/// The limit is of what the run writes, not of what was there.
#[test]
fn a_file_larger_than_the_disk_limit_can_be_written_to() {
    const WRITES: &str = "\
with open('large', 'r+b') as file:
    file.seek(0, 2)
    file.write(bytes(1 << 20))
print('written', flush=True)
import os, resource
try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 29, 1 << 29))
    print('raised')
except (OSError, ValueError):
    print('not raised')
";
    each_user(|world| {
        let large = world.file("ws/large", "");
        for level in LEVELS {
            fs::write(&large, vec![1; 30 << 20]).unwrap();
            let options = ["--level", level, "--limit", "disk=10MiB"];
            let outcome = world.outcome(&options, &["python3", "-c", WRITES]);
            assert_eq!(outcome["exit_code"], 0, "{level}: {outcome}");
            assert_eq!(outcome["attempts"][0]["stdout"], "written\nnot raised\n", "{level}: {outcome}");
            assert_eq!(fs::metadata(&large).unwrap().len(), 31 << 20);
        }
    });
}

#[test]
fn nothing_survives_a_limit() {
    one_user(|world| {
        for (number, level) in LEVELS.into_iter().enumerate() {
            for (kind, limit, then) in [
                ("wall", "wall=1s", "sleep 100"),
                ("cpu", "cpu_time=500ms", "while :; do :; done"),
                ("stopped", "wall=1s", "kill -STOP $$"),
            ] {
                let marker = format!("2718{}.{number}{}", world.account.uid, kind.len());
                let script = stubborn(&marker, then);
                let outcome = world.outcome(&["--level", level, "--limit", limit], &["sh", "-c", &script]);
                let expected = if kind == "cpu" { "limit" } else { "timed_out" };
                assert_eq!(outcome["status"], expected, "{level} {kind}: {outcome}");
                assert_none_left(&marker);
            }
        }
    });
}

#[test]
fn a_limit_is_lowered_by_any_caller_and_raised_by_a_grant() {
    each_user(|world| {
        let held = |options: &[&str]| {
            let outcome = world.outcome(options, &["sh", "-c", "ulimit -n"]);
            outcome["attempts"][0]["stdout"].as_str().unwrap_or_default().trim().to_owned()
        };
        assert_eq!(held(&["--limit", "open_files=200"]), "200");
        assert_eq!(held(&["--limit", "open_files=200", "--limit", "open_files=300"]), "200");
        assert_eq!(held(&["--limit", "open_files=200", "--grant", "open_files 250"]), "250");
    });
}

#[test]
fn a_limit_that_nothing_holds_is_refused() {
    if !TestUser::available_users().contains(&TestUser::Ordinary) {
        return;
    }
    let world = World::new(TestUser::Ordinary);
    let output = world.run(&world.stockade(&["--limit", "cpus=0.5"], &["true"]));
    if output.ended == ProgramEnd::Code(0) {
        // It was given a part of the control groups.
        assert!(output.stderr.is_empty(), "{}", output.stderr);
        return;
    }
    assert_eq!(output.ended, ProgramEnd::Code(125), "{}", output.stderr);
    assert!(output.stderr.contains("cannot enforce the limit cpus 0.5"), "{}", output.stderr);
    assert!(output.stderr.contains("hint: remove cpus"), "{}", output.stderr);
}

/// Control groups of runs, and those of a front that is gone.
fn groups_of(supervisor_pid: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("stockade.") && name.split('.').nth(2) == Some(&supervisor_pid.to_string()) {
                    found.push(entry.path());
                }
                waiting.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn a_group_is_removed_with_its_run_or_after_a_crash_by_the_next() {
    if !TestUser::available_users().contains(&TestUser::Root) {
        return;
    }
    let world = World::new(TestUser::Root);
    for level in LEVELS {
        let marker = format!("1618.{}", level.len());
        let command = world.stockade(&["--level", level], &["sh", "-c", &format!("echo up; sleep {marker}")]);
        let running = RunningProgram::start(&world.account, &command).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !running.stdout_so_far().contains("up") {
            assert!(Instant::now() < deadline, "it does not start");
            sleep(Duration::from_millis(10));
        }
        let supervisor_pid = running.pid();
        assert!(!groups_of(supervisor_pid).is_empty(), "no control group at level {level}");
        running.send_signal(Signal::KILL).unwrap();
        running.wait_for_end().unwrap();
        assert_none_left(&marker);
        let outcome: Value = world.outcome(&["--level", level], &["true"]);
        assert_eq!(outcome["status"], "exited");
        assert_eq!(groups_of(supervisor_pid), Vec::<PathBuf>::new());
    }
}

//! Several processes, sudden death, a full disk (L6), threads. The children are this
//! test binary, started anew with one test named.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stockade_audit::{AppendError, AuditLogWriter, LineNumber, LogCommitError, verify_audit_log};

use crate::{event, holds, log_location, written};

const DIR: &str = "STOCKADE_AUDIT_TEST_DIR";
const COUNT: u64 = 400;

/// A command that runs the ignored test `name` of this binary on `dir`.
#[allow(clippy::disallowed_methods, reason = "tests start themselves")]
fn child(name: &str, dir: &Path, before: &[&str]) -> Command {
    let me = std::env::current_exe().unwrap();
    let args = ["--exact", name, "--ignored", "--nocapture", "--test-threads=1"];
    let mut command = match before {
        [] => Command::new(&me),
        [program, rest @ ..] => {
            let mut command = Command::new(program);
            command.args(rest).arg(&me);
            command
        }
    };
    command.args(args).env(DIR, dir).stdout(Stdio::null());
    command
}

/// Where to work; `None` where nobody started this as a child.
fn read_child_dir() -> Option<std::path::PathBuf> {
    std::env::var_os(DIR).map(Into::into)
}

fn finish(mut child: Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("the child did not end");
}

#[test]
#[ignore = "child of two_processes_keep_one_chain"]
fn child_appends() {
    let Some(dir) = read_child_dir() else { return };
    let log = AuditLogWriter::open(&dir).unwrap();
    for n in 0..COUNT {
        log.append_event(&event(n, &format!("from {}", std::process::id()))).unwrap();
        if n % 50 == 0 {
            log.commit_lines().unwrap();
        }
    }
    log.commit_lines().unwrap();
}

#[test]
fn two_processes_keep_one_chain() {
    let (_root, dir) = log_location();
    let children: Vec<Child> = (0..3).map(|_| child("processes::child_appends", &dir, &[]).spawn().unwrap()).collect();
    children.into_iter().for_each(finish);
    let verified = holds(&dir, 3 * COUNT);
    assert_eq!(verified.durable, LineNumber(3 * COUNT));
    let text = fs::read_to_string(dir.join("audit.jsonl")).unwrap();
    let by: Vec<&str> = text.lines().map(|line| line.split("from ").nth(1).unwrap()).collect();
    let turns = by.windows(2).filter(|pair| pair[0].split('"').next() != pair[1].split('"').next()).count();
    assert!(turns > 3, "the processes did not overlap: {turns} turns");
}

#[test]
#[ignore = "child of sudden_death_is_recovered"]
fn child_appends_forever() {
    let Some(dir) = read_child_dir() else { return };
    let log = AuditLogWriter::open(&dir).unwrap();
    for n in 0.. {
        log.append_batch(&[event(n, "a"), event(n, &"b".repeat(20_000))]).unwrap();
    }
}

#[test]
fn sudden_death_is_recovered() {
    let (_root, dir) = log_location();
    let mut last = 0;
    for round in 0..12 {
        let mut running = child("processes::child_appends_forever", &dir, &[]).spawn().unwrap();
        let size = || fs::metadata(dir.join("audit.jsonl")).map_or(0, |log| log.len());
        let (before, deadline) = (size(), Instant::now() + Duration::from_secs(30));
        while size() < before + 100_000 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(130 * round));
        running.kill().unwrap();
        running.wait().unwrap();
        let log = AuditLogWriter::open(&dir).unwrap();
        let LineNumber(seq) = log.append_event(&event(round, "after the kill")).unwrap();
        log.commit_lines().unwrap();
        assert!(seq > last, "{seq}");
        last = seq;
        holds(&dir, seq);
    }
    assert!(last > 50, "the children wrote nothing");
}

/// Adds `tail` to a log of three lines, of which `durable` are by the head.
#[track_caller]
fn torn(tail: &[u8], recovers: bool) {
    let (_root, dir) = log_location();
    written(&dir, 3);
    let path = dir.join("audit.jsonl");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole, tail].concat()).unwrap();
    if !recovers {
        assert!(AuditLogWriter::open(&dir).is_err());
        assert_eq!(fs::read(&path).unwrap(), [&whole, tail].concat(), "a refusal changes nothing");
        return;
    }
    for round in 0..2 {
        let log = AuditLogWriter::open(&dir).unwrap();
        let found = log.recovered_tail().unwrap();
        assert_eq!((found.seq, found.bytes), (4, tail.len() as u64));
        assert_eq!(fs::read(&found.file).unwrap(), tail);
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert_eq!(holds(&dir, 3).torn_files.len(), 1 + round);
        if round == 0 {
            fs::write(&path, [&whole, tail].concat()).unwrap();
        } else {
            assert_eq!(log.append_event(&event(9, "goes on")).unwrap(), LineNumber(4));
            holds(&dir, 4);
        }
    }
}

#[test]
fn a_torn_end_is_set_aside() {
    torn(b"{\"seq\":4,\"prev\":\"", true);
    torn(b"x", true);
    torn(b"not a line\n", true);
    torn(&[0; 9000], true);
    torn(&[b'x'; 3 << 20], true);
}

#[test]
fn a_foreign_line_is_no_torn_end() {
    let (_root, dir) = log_location();
    written(&dir, 3);
    let text = fs::read_to_string(dir.join("audit.jsonl")).unwrap();
    let first = text.split_inclusive('\n').next().unwrap();
    torn(first.as_bytes(), false);
    torn(format!("broken\n{first}").as_bytes(), false);
}

#[test]
fn a_torn_end_of_another_process_is_set_aside_while_open() {
    let (_root, dir) = log_location();
    written(&dir, 2);
    let log = AuditLogWriter::open(&dir).unwrap();
    let path = dir.join("audit.jsonl");
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend_from_slice(b"{\"seq\":3");
    fs::write(&path, bytes).unwrap();
    assert_eq!(verify_audit_log(&dir).unwrap().torn_bytes, 8);
    assert_eq!(log.append_event(&event(3, "goes on")).unwrap(), LineNumber(3));
    assert_eq!(log.recovered_tail().unwrap().bytes, 8);
    holds(&dir, 3);
}

#[test]
#[ignore = "child of the full disk tests"]
fn child_fills_the_disk() {
    let Some(dir) = read_child_dir() else { return };
    let log = AuditLogWriter::open(&dir).unwrap();
    let mut done = 0;
    let error = loop {
        match log.append_event(&event(done, &"x".repeat(3000))) {
            Ok(LineNumber(seq)) => done = seq,
            Err(e) => break e,
        }
        assert!(done < 1000, "the disk is not full");
    };
    assert!(matches!(error, AppendError::NoSpace { .. }), "{error}");
    assert!(done > 3, "{done}");
    assert!(matches!(log.append_batch(&vec![event(0, &"y".repeat(3000)); 8]), Err(AppendError::NoSpace { .. })));
    let verified = holds(&dir, done);
    assert_eq!(verified.torn_bytes, 0);
    log.commit_lines().unwrap();
    assert_eq!(holds(&dir, done).durable, LineNumber(done));
    drop(log);
    let log = AuditLogWriter::open(&dir).unwrap();
    assert_eq!(log.recovered_tail(), None);
    assert!(matches!(log.append_event(&event(0, &"x".repeat(5000))), Err(AppendError::NoSpace { .. })));
}

#[test]
fn a_file_size_limit_fails_cleanly() {
    let (_root, dir) = log_location();
    // bash counts `ulimit -f` in KiB; an ignored signal stays ignored over exec.
    let limit = ["bash", "-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""];
    finish(child("processes::child_fills_the_disk", &dir, &limit).spawn().unwrap());
    // With room again, it goes on.
    let before = verify_audit_log(&dir).unwrap().entries;
    AuditLogWriter::open(&dir).unwrap().append_event(&event(0, &"x".repeat(5000))).unwrap();
    holds(&dir, before + 1);
}

#[test]
fn a_full_disk_fails_cleanly() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: a full file system (needs root)");
        return;
    }
    let (root, dir) = log_location();
    let mount = "mount -t tmpfs -o size=128k tmpfs \"$0\" && exec \"$@\"";
    let root = root.path().to_str().unwrap();
    let full = ["unshare", "-m", "--propagation", "private", "sh", "-c", mount, root];
    finish(child("processes::child_fills_the_disk", &dir, &full).spawn().unwrap());
    assert!(!dir.exists(), "the tmpfs was not mounted");
}

#[test]
fn threads_share_syncs_and_lose_nothing() {
    let (_root, dir) = log_location();
    let log = AuditLogWriter::open(&dir).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let log = &log;
            let dir = &dir;
            scope.spawn(move || {
                for n in 0..20 {
                    let seq = log.append_event(&event(n, &format!("thread {thread}"))).unwrap();
                    log.commit_lines().unwrap();
                    // The head may be ahead, never behind what was acknowledged.
                    assert!(verify_audit_log(dir).unwrap().durable >= seq);
                }
            });
        }
    });
    holds(&dir, 160);
}

#[test]
fn a_commit_without_a_readable_head_is_no_commit() {
    let (_root, dir) = log_location();
    let log = AuditLogWriter::open(&dir).unwrap();
    log.append_event(&event(0, "x")).unwrap();
    fs::write(dir.join("head"), "nonsense").unwrap();
    assert!(matches!(log.commit_lines(), Err(LogCommitError::LogFile(_))));
}

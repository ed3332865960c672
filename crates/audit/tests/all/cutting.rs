//! A log whose last lines were cut off is found, and told from a write that was torn.

use std::fs;
use std::path::{Path, PathBuf};

use stockade_audit::{
    AnchorState, AppendError, AuditLogWriter, LineFault, LogAnchor, LogEndSource, LogOpenError, VerifyError,
    verify_audit_log, verify_with,
};

use crate::{event, holds, log_location, written};

const LINES: u64 = 9;
const DURABLE: u64 = 4;

/// A log of nine lines of which five were never made durable: as a run leaves it.
fn ended_run(dir: &Path) -> LogAnchor {
    let log = AuditLogWriter::open(dir).unwrap();
    for n in 0..LINES {
        log.append_event(&event(n, &format!("message {n}"))).unwrap();
        if n + 1 == DURABLE {
            log.commit_lines().unwrap();
        }
    }
    log.current_anchor().unwrap().unwrap()
}

fn log_file(dir: &Path) -> PathBuf {
    dir.join("audit.jsonl")
}

fn cut(dir: &Path, lines: u64) {
    let bytes = fs::read(log_file(dir)).unwrap();
    let all: Vec<&[u8]> = bytes.split_inclusive(|&b| b == b'\n').collect();
    fs::write(log_file(dir), all[..all.len() - usize::try_from(lines).unwrap()].concat()).unwrap();
}

#[track_caller]
fn is_cut(dir: &Path, anchors: &[LogAnchor], lines: u64, by: LogEndSource) {
    match verify_with(dir, anchors) {
        Err(VerifyError::Broken { line, why: LineFault::Missing { last: LINES, count, end_source } }) => {
            assert_eq!((line, count, end_source), (LINES - lines + 1, lines, by));
        }
        other => panic!("{lines} lines cut: {other:?}"),
    }
}

#[test]
fn lines_cut_off_the_end_are_counted() {
    for lines in [1, 2, 3, 5, 7, LINES] {
        let (_root, dir) = log_location();
        let anchor = ended_run(&dir);
        assert_eq!(holds(&dir, LINES).signed.unwrap().0, LINES);
        cut(&dir, lines);
        is_cut(&dir, &[], lines, LogEndSource::Head);
        is_cut(&dir, &[anchor], lines, LogEndSource::Head);
        // Nothing is appended to what is left, so the evidence stays.
        let before = fs::read(log_file(&dir)).unwrap();
        match AuditLogWriter::open(&dir) {
            Err(LogOpenError::Broken { fault: LineFault::Missing { last: LINES, count, .. }, .. }) => {
                assert_eq!(count, lines)
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(fs::read(log_file(&dir)).unwrap(), before);
    }
}

#[test]
fn a_torn_last_line_is_not_a_cut() {
    let (_root, dir) = log_location();
    ended_run(&dir);
    let whole = fs::read(log_file(&dir)).unwrap();
    fs::write(log_file(&dir), [&whole[..], b"{\"seq\":10,\"prev\":\"00"].concat()).unwrap();
    assert_eq!(holds(&dir, LINES).torn_bytes, 20);
    // The same bytes in the place of the last line were acknowledged before.
    fs::write(log_file(&dir), &whole[..whole.len() - 20]).unwrap();
    assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Broken { line: LINES, why: LineFault::Malformed(_) })));
}

#[test]
fn a_cut_with_the_head_rewritten_is_found() {
    // The head of another log with fewer lines, an unsigned head as an earlier version
    // wrote it, and one that is signed with a key of the attacker's.
    let (_root, dir) = log_location();
    ended_run(&dir);
    let (_other_root, other) = log_location();
    written(&other, LINES - 2);
    cut(&dir, 2);
    fs::copy(other.join("head"), dir.join("head")).unwrap();
    assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Head { .. })));
    assert!(matches!(AuditLogWriter::open(&dir), Err(LogOpenError::Head { .. })));
    fs::write(dir.join("head"), unsigned_head(&dir)).unwrap();
    assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Head { .. })));
    assert!(matches!(AuditLogWriter::open(&dir), Err(LogOpenError::Head { .. })));
    fs::remove_file(dir.join("head")).unwrap();
    assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Head { .. })));
    assert!(matches!(AuditLogWriter::open(&dir), Err(LogOpenError::Head { .. })));
}

/// The head that earlier versions wrote for the log as it is.
fn unsigned_head(dir: &Path) -> Vec<u8> {
    use sha2::Digest as _;
    let text = fs::read_to_string(log_file(dir)).unwrap();
    let (seq, end) = (text.lines().count(), text.len());
    let last = text.lines().last().unwrap();
    let hash = &last[last.len() - 66..last.len() - 2];
    let check = sha2::Sha256::digest(format!("stockade head {seq} {hash} {end}"));
    let check: String = check.iter().map(|byte| format!("{byte:02x}")).collect();
    let record = format!(r#"{{"seq":{seq},"hash":"{hash}","end":{end},"check":"{check}"}}"#);
    format!("{record:<255}\n").into_bytes()
}

#[test]
fn a_missing_key_is_reported() {
    let (root, dir) = log_location();
    ended_run(&dir);
    let key = root.path().join("audit.key");
    fs::rename(&key, root.path().join("away")).unwrap();
    assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Key { .. })));
    let error = AuditLogWriter::open(&dir).unwrap_err();
    assert!(matches!(error, LogOpenError::Key { .. }) && error.to_string().contains("\nhint: "), "{error}");
    assert!(!key.exists(), "no other key is made for a signed log");
    fs::rename(root.path().join("away"), &key).unwrap();
    holds(&dir, LINES);
}

#[test]
fn an_older_log_with_its_own_head_is_found_by_the_anchor() {
    let (_root, dir) = log_location();
    written(&dir, 3);
    let saved = ["audit.jsonl", "head"].map(|name| (name, fs::read(dir.join(name)).unwrap()));
    let log = AuditLogWriter::open(&dir).unwrap();
    for n in 3..LINES {
        log.append_event(&event(n, "x")).unwrap();
    }
    log.commit_lines().unwrap();
    let anchor = log.current_anchor().unwrap().unwrap();
    drop(log);
    verify_with(&dir, std::slice::from_ref(&anchor)).unwrap();
    saved.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).unwrap());
    // By themselves the two fit each other; that is what the anchor is for.
    holds(&dir, 3);
    is_cut(&dir, std::slice::from_ref(&anchor), LINES - 3, LogEndSource::Store);
    // Lines that are appended then do not hide it.
    let log = AuditLogWriter::open(&dir).unwrap();
    assert_eq!(log.check_anchor(&anchor).unwrap(), AnchorState::Missing);
    for n in 3..LINES + 3 {
        log.append_event(&event(n, "forged")).unwrap();
    }
    assert_eq!(log.check_anchor(&anchor).unwrap(), AnchorState::Missing);
    let found = verify_with(&dir, &[anchor]);
    assert!(matches!(found, Err(VerifyError::Broken { line: LINES, why: LineFault::NotAnchor })), "{found:?}");
}

#[test]
fn an_emptied_or_removed_log_is_found_by_the_anchor() {
    let (_root, dir) = log_location();
    drop(AuditLogWriter::open(&dir).unwrap());
    let saved = fs::read(dir.join("head")).unwrap();
    let anchor = ended_run(&dir);
    fs::write(log_file(&dir), "").unwrap();
    fs::write(dir.join("head"), saved).unwrap();
    is_cut(&dir, std::slice::from_ref(&anchor), LINES, LogEndSource::Store);
    fs::remove_dir_all(&dir).unwrap();
    is_cut(&dir, &[anchor], LINES, LogEndSource::Store);
}

#[test]
fn a_log_that_is_longer_than_its_head_or_anchor_is_no_fault() {
    // A process that is killed between its append and its notes leaves this.
    let (_root, dir) = log_location();
    written(&dir, 3);
    let head = fs::read(dir.join("head")).unwrap();
    let log = AuditLogWriter::open(&dir).unwrap();
    let anchor = log.current_anchor().unwrap().unwrap();
    log.append_event(&event(3, "x")).unwrap();
    drop(log);
    fs::write(dir.join("head"), head).unwrap();
    let found = verify_with(&dir, &[anchor]).unwrap();
    assert_eq!((found.entries, found.anchored.unwrap().0, found.signed.unwrap().0), (4, 3, 3));
    AuditLogWriter::open(&dir).unwrap().append_event(&event(4, "y")).unwrap();
    assert_eq!(holds(&dir, 5).signed.unwrap().0, 5);
}

#[test]
fn the_anchor_is_missed_once_it_was_kept() {
    let (_root, dir) = log_location();
    let anchor = ended_run(&dir);
    verify_with(&dir, &[]).unwrap();
    AuditLogWriter::open(&dir).unwrap().note_anchored().unwrap();
    assert!(matches!(verify_with(&dir, &[]), Err(VerifyError::NoAnchor { .. })));
    verify_with(&dir, std::slice::from_ref(&anchor)).unwrap();
    // A log that was begun after this one was moved away has none yet.
    fs::rename(&dir, dir.with_extension("old")).unwrap();
    let log = AuditLogWriter::open(&dir).unwrap();
    log.append_batch(&[event(70, "another"), event(71, "log")]).unwrap();
    let found = verify_with(&dir, std::slice::from_ref(&anchor)).unwrap();
    assert_eq!((found.entries, found.anchored), (2, None));
    assert_eq!(log.check_anchor(&anchor).unwrap(), AnchorState::OtherLog);
}

#[test]
fn a_log_of_an_earlier_version_is_signed_when_it_is_opened() {
    let (root, dir) = log_location();
    written(&dir, 3);
    fs::write(dir.join("head"), unsigned_head(&dir)).unwrap();
    fs::remove_file(root.path().join("audit.key")).unwrap();
    let found = holds(&dir, 3);
    assert_eq!((found.signed, found.key), (None, None));
    AuditLogWriter::open(&dir).unwrap().append_event(&event(3, "x")).unwrap();
    assert_eq!(holds(&dir, 4).signed.unwrap().0, 4);
    // Once signed it cannot go back to unsigned.
    fs::write(dir.join("head"), unsigned_head(&dir)).unwrap();
    assert!(matches!(AuditLogWriter::open(&dir), Err(LogOpenError::Head { .. })));
}

#[test]
fn an_interrupted_first_signing_is_finished() {
    let (root, dir) = log_location();
    written(&dir, 3);
    let [key, pending] = ["audit.key", "audit.key.new"].map(|name| root.path().join(name));
    // Killed after the head was written, before the key had its name.
    fs::rename(&key, &pending).unwrap();
    assert_eq!(holds(&dir, 3).signed.unwrap().0, 3);
    AuditLogWriter::open(&dir).unwrap();
    assert!(key.exists() && !pending.exists());
    // Killed before the head was written, and in the middle of writing the key.
    fs::rename(&key, &pending).unwrap();
    fs::write(dir.join("head"), unsigned_head(&dir)).unwrap();
    assert_eq!(holds(&dir, 3).signed, None);
    fs::write(&pending, "stockade-audit-k").unwrap();
    AuditLogWriter::open(&dir).unwrap();
    assert_eq!(holds(&dir, 3).signed.unwrap().0, 3);
}

#[test]
fn a_running_process_notices_lines_that_another_truncated() {
    let (_root, dir) = log_location();
    let [one, other] = [AuditLogWriter::open(&dir).unwrap(), AuditLogWriter::open(&dir).unwrap()];
    one.append_event(&event(0, "x")).unwrap();
    let saved = ["audit.jsonl", "head"].map(|name| (name, fs::read(dir.join(name)).unwrap()));
    other.append_event(&event(1, "y")).unwrap();
    cut(&dir, 1);
    let error = one.append_event(&event(2, "z")).unwrap_err();
    assert!(matches!(error, AppendError::Broken { line: 2, fault: LineFault::Missing { .. }, .. }), "{error}");
    // The one that wrote the line notices an older head as well.
    fs::write(dir.join("head"), &saved[1].1).unwrap();
    assert!(other.append_event(&event(2, "z")).is_err());
    assert!(other.commit_lines().is_err());
}

//! Whatever is done to a finished log, `verify` sees it and names the line (L10).

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use stockade_audit::{
    AppendError, AuditLogWriter, LineFault, LogCommitError, LogOpenError, VerifyError, verify_audit_log,
};

use crate::{event, holds, log_location, written};

const LINES: usize = 12;

fn lines(dir: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(dir.join("audit.jsonl")).unwrap();
    bytes.split_inclusive(|&b| b == b'\n').map(<[u8]>::to_vec).collect()
}

fn put(dir: &Path, lines: &[Vec<u8>]) {
    fs::write(dir.join("audit.jsonl"), lines.concat()).unwrap();
}

#[derive(Clone, Debug)]
enum Tamper {
    Flip { line: usize, byte: prop::sample::Index, bit: u8 },
    Remove { line: usize },
    Swap { line: usize, with: usize },
    Duplicate { line: usize, before: usize },
    InsertBytes { line: usize, at: prop::sample::Index, bytes: Vec<u8> },
    CutBytes { line: usize, at: prop::sample::Index },
    CutLines { keep: usize },
    Foreign { line: usize },
}

fn tamper() -> impl Strategy<Value = Tamper> {
    let line = 0..LINES;
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (line.clone(), index(), 0..8u8).prop_map(|(line, byte, bit)| Tamper::Flip { line, byte, bit }),
        line.clone().prop_map(|line| Tamper::Remove { line }),
        (line.clone(), line.clone()).prop_map(|(line, with)| Tamper::Swap { line, with }),
        (line.clone(), line.clone()).prop_map(|(line, before)| Tamper::Duplicate { line, before }),
        (line.clone(), index(), prop::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(line, at, bytes)| Tamper::InsertBytes { line, at, bytes }),
        (line.clone(), index()).prop_map(|(line, at)| Tamper::CutBytes { line, at }),
        line.clone().prop_map(|keep| Tamper::CutLines { keep }),
        line.prop_map(|line| Tamper::Foreign { line }),
    ]
}

/// Does it to `lines`; returns the first line that is then wrong, from 1, or
/// `None` where nothing changed.
fn apply(tamper: Tamper, lines: &mut Vec<Vec<u8>>, foreign: &[Vec<u8>]) -> Option<usize> {
    let before = lines.concat();
    let named = match tamper {
        Tamper::Flip { line, byte, bit } => {
            let at = byte.index(lines[line].len());
            lines[line][at] ^= 1 << bit;
            line
        }
        Tamper::Remove { line } => {
            lines.remove(line);
            line
        }
        Tamper::Swap { line, with } => {
            lines.swap(line, with);
            line.min(with)
        }
        Tamper::Duplicate { line, before } => {
            let copy = lines[line].clone();
            lines.insert(before, copy);
            // A copy right before or behind its original is one line too many there.
            if line == before { before + 1 } else { before }
        }
        Tamper::InsertBytes { line, at, bytes } => {
            let at = at.index(lines[line].len());
            lines[line].splice(at..at, bytes);
            line
        }
        Tamper::CutBytes { line, at } => {
            let at = at.index(lines[line].len());
            lines[line].truncate(at);
            lines.truncate(line + 1);
            line
        }
        Tamper::CutLines { keep } => {
            lines.truncate(keep);
            keep
        }
        Tamper::Foreign { line } => {
            lines[line] = foreign[line].clone();
            // The first line of two logs has the same predecessor: the chain breaks behind it.
            if line == 0 { 1 } else { line }
        }
    };
    (lines.concat() != before).then_some(named + 1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_change_is_seen_and_named(tamper in tamper()) {
        let (_root, dir) = log_location();
        written(&dir, LINES as u64);
        let (_other_root, other) = log_location();
        {
            let log = AuditLogWriter::open(&other).unwrap();
            for n in 0..LINES as u64 {
                log.append_event(&event(n, "another history")).unwrap();
            }
            log.commit_lines().unwrap();
        }
        holds(&dir, LINES as u64);
        let mut changed = lines(&dir);
        let Some(line) = apply(tamper, &mut changed, &lines(&other)) else { return Ok(()) };
        put(&dir, &changed);
        match verify_audit_log(&dir) {
            Err(VerifyError::Broken { line: named, .. }) => prop_assert_eq!(named, line as u64),
            // The last line of a foreign history has the right place and predecessor of none.
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[test]
fn a_rebuilt_end_is_seen_by_the_head() {
    let (_root, dir) = log_location();
    written(&dir, 5);
    let (_other_root, other) = log_location();
    {
        let log = AuditLogWriter::open(&other).unwrap();
        for n in 0..5 {
            let message = if n == 4 { "forged".to_owned() } else { format!("message {n}") };
            log.append_event(&event(n, &message)).unwrap();
        }
    }
    // A sound chain of the same length whose last line alone differs.
    put(&dir, &lines(&other));
    assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Broken { line: 5, why: LineFault::NotHead })));
    assert!(matches!(AuditLogWriter::open(&dir), Err(LogOpenError::Broken { line: 5, .. })));
}

#[test]
fn a_lost_end_is_seen_when_the_log_is_opened() {
    let (_root, dir) = log_location();
    written(&dir, 5);
    put(&dir, &lines(&dir)[..3]);
    assert!(matches!(
        verify_audit_log(&dir),
        Err(VerifyError::Broken { line: 4, why: LineFault::Missing { last: 5, .. } })
    ));
    let error = AuditLogWriter::open(&dir).unwrap_err();
    assert!(
        matches!(error, LogOpenError::Broken { line: 5, fault: LineFault::Missing { last: 5, .. }, .. }),
        "{error}"
    );
    fs::remove_file(dir.join("audit.jsonl")).unwrap();
    assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Broken { line: 1, .. })));
    assert!(AuditLogWriter::open(&dir).is_err());
}

#[test]
fn a_changed_or_missing_head_is_no_head() {
    let (_root, dir) = log_location();
    written(&dir, 2);
    let head = dir.join("head");
    let good = fs::read(&head).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 2;
        fs::write(&head, &bytes).unwrap();
        assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Head { .. })), "byte {at}");
    }
    assert!(matches!(AuditLogWriter::open(&dir), Err(LogOpenError::Head { .. })));
    fs::write(&head, b"").unwrap();
    assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Head { .. })));
    assert!(matches!(AuditLogWriter::open(&dir), Err(LogOpenError::Head { .. })));
    fs::remove_file(&head).unwrap();
    assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Head { .. })));
    assert!(matches!(AuditLogWriter::open(&dir), Err(LogOpenError::Head { .. })));
    assert!(!head.exists(), "opening must not make up a head");
}

#[test]
fn an_open_log_notices_a_change_under_it() {
    let (_root, dir) = log_location();
    let log = AuditLogWriter::open(&dir).unwrap();
    for n in 0..3 {
        log.append_event(&event(n, "x")).unwrap();
    }
    let all = lines(&dir);
    put(&dir, &all[..2]);
    assert!(log.append_event(&event(9, "y")).unwrap_err().to_string().contains("changed by another program"));
    // A sound line with the wrong predecessor is no torn write.
    put(&dir, &[&all[..], &all[1..2]].concat());
    assert!(log.append_event(&event(9, "y")).unwrap_err().to_string().contains("line 4"));
}

#[test]
fn a_log_that_lost_its_name_acknowledges_nothing() {
    let spoil: [fn(&Path); 3] = [
        |log| fs::remove_file(log).unwrap(),
        |log| fs::rename(log, log.with_extension("moved")).unwrap(),
        |log| {
            fs::copy(log, log.with_extension("copy")).unwrap();
            fs::rename(log.with_extension("copy"), log).unwrap();
        },
    ];
    for spoil in spoil {
        let (_root, dir) = log_location();
        let log = AuditLogWriter::open(&dir).unwrap();
        log.append_event(&event(1, "x")).unwrap();
        spoil(&dir.join("audit.jsonl"));
        assert!(matches!(log.commit_lines(), Err(LogCommitError::Replaced { .. })));
        assert!(matches!(log.append_event(&event(9, "y")), Err(AppendError::Replaced { .. })));
    }
}

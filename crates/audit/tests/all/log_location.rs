//! Where a log may lie, and what stands in its files (L7).

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use stockade_audit::{AppendError, AuditLogWriter, MAX_LINE_BYTES, query_log, verify_audit_log};

use crate::{event, holds, log_location, written};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn directory_and_files_are_private() {
    let (_root, dir) = log_location();
    written(&dir, 1);
    assert_eq!(mode(&dir), 0o700);
    for name in ["audit.jsonl", "head"] {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
}

/// Prepares a bad place and demands that opening refuses with `words`.
#[track_caller]
fn refused(prepare: impl FnOnce(&Path), words: &str) {
    let (_root, dir) = log_location();
    prepare(&dir);
    let error = AuditLogWriter::open(&dir).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn a_directory_that_others_could_prepare_is_refused() {
    refused(|dir| symlink(dir.parent().unwrap(), dir).unwrap(), "not a real directory");
    refused(|dir| symlink("/nonexistent", dir).unwrap(), "not a real directory");
    refused(|dir| fs::write(dir, "").unwrap(), "not a real directory");
    for bad in [0o770, 0o702, 0o755] {
        refused(
            |dir| {
                fs::create_dir(dir).unwrap();
                fs::set_permissions(dir, Permissions::from_mode(bad)).unwrap();
            },
            "other users can access",
        );
    }
    for name in ["audit.jsonl", "head"] {
        let fresh = |dir: &Path| {
            written(dir, 1);
            dir.join(name)
        };
        refused(
            |dir| fs::set_permissions(fresh(dir), Permissions::from_mode(0o620)).unwrap(),
            "other users can access",
        );
        refused(
            |dir| {
                let file = fresh(dir);
                fs::rename(&file, dir.join("moved")).unwrap();
                symlink("moved", file).unwrap();
            },
            "not a real file",
        );
        refused(|dir| fs::hard_link(fresh(dir), dir.join("second")).unwrap(), "not a real file");
        refused(
            |dir| {
                let file = fresh(dir);
                fs::remove_file(&file).unwrap();
                fs::create_dir(file).unwrap();
            },
            "not a real file",
        );
        if rustix::process::geteuid().is_root() {
            refused(|dir| std::os::unix::fs::chown(fresh(dir), Some(1), None).unwrap(), "belongs to user 1");
        } else {
            eprintln!("not run: a file of another owner (needs root)");
        }
    }
    if rustix::process::geteuid().is_root() {
        refused(
            |dir| {
                fs::create_dir(dir).unwrap();
                fs::set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
                std::os::unix::fs::chown(dir, Some(1), None).unwrap();
            },
            "belongs to user 1",
        );
    }
}

#[test]
fn reading_follows_no_link() {
    let (_root, dir) = log_location();
    written(&dir, 1);
    fs::rename(dir.join("audit.jsonl"), dir.join("moved")).unwrap();
    symlink("moved", dir.join("audit.jsonl")).unwrap();
    assert!(verify_audit_log(&dir).unwrap_err().to_string().contains("not a real file"));
    assert!(query_log(&dir, Default::default()).is_err());
}

#[test]
fn a_fifo_instead_of_the_file_blocks_no_process() {
    let (_root, dir) = log_location();
    written(&dir, 1);
    fs::remove_file(dir.join("audit.jsonl")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("audit.jsonl"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from(0o600),
        0,
    )
    .unwrap();
    assert!(AuditLogWriter::open(&dir).is_err());
    assert!(verify_audit_log(&dir).is_err());
}

#[test]
fn an_event_over_the_bound_is_named_and_leaves_nothing() {
    let (_root, dir) = log_location();
    let log = AuditLogWriter::open(&dir).unwrap();
    log.append_event(&event(0, "fits")).unwrap();
    for size in [MAX_LINE_BYTES, MAX_LINE_BYTES - 100] {
        let batch = [event(1, "small"), event(2, &"x".repeat(size))];
        let error = log.append_batch(&batch).unwrap_err();
        assert!(
            matches!(&error, AppendError::TooLarge { index: 1, kind, request, .. } if kind == "failed" && request == "req_1"),
            "{error}"
        );
    }
    log.append_event(&event(3, &"y".repeat(MAX_LINE_BYTES - 1000))).unwrap();
    log.commit_lines().unwrap();
    holds(&dir, 2);
    let many = vec![event(4, &"z".repeat(1 << 19)); 40];
    assert!(matches!(log.append_batch(&many), Err(AppendError::BatchTooLarge)));
    holds(&dir, 2);
}

#[test]
fn the_file_is_harmless_to_cat() {
    let (_root, dir) = log_location();
    let log = AuditLogWriter::open(&dir).unwrap();
    let nasty = "\u{1b}]0;x\u{7} \u{9b}31m \u{202e}\u{2028}\u{200b}\u{7f}\r\n{\"seq\":1}\n";
    log.append_event(&event(0, nasty)).unwrap();
    log.commit_lines().unwrap();
    let text = fs::read_to_string(dir.join("audit.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 1);
    assert!(!text.trim_end_matches('\n').chars().any(stockade_model::is_deceptive), "{text:?}");
    holds(&dir, 1);
}

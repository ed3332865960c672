//! Which files may be a store (L7), and that no other file is touched (L6).

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rusqlite::Connection;
use stockade_model::ApprovalScope;
use stockade_store::{ApprovalNamespace, ApprovalStore, Consent, StoreOpenError};

use crate::{answer, database_location, digest, id};

fn made(path: &Path) {
    ApprovalStore::open(path).unwrap().remember_answer(&answer("a", Consent::Denied, ApprovalScope::Always)).unwrap();
}

#[test]
fn directory_and_files_are_private() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    store.remember_answer(&answer("a", Consent::Denied, ApprovalScope::Always)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let dir = path.parent().unwrap();
    assert_eq!(mode(dir), 0o700);
    let names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(names.iter().any(|name| name.ends_with("store.db-wal")), "{names:?}");
    for name in names {
        assert_eq!(mode(&name), 0o600, "{name:?}");
    }
}

/// Makes a store, spoils it, and demands a refusal with `words` that changes nothing.
#[track_caller]
fn refused(spoil: impl FnOnce(&Path), words: &str) {
    let (_root, path) = database_location();
    made(&path);
    spoil(&path);
    let before = fs::read(&path).ok();
    let error = ApprovalStore::open(&path).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
    assert_eq!(fs::read(&path).ok(), before, "a refusal changes nothing");
}

#[test]
fn a_directory_that_others_could_prepare_is_refused() {
    refused(|path| fs::set_permissions(path, Permissions::from_mode(0o660)).unwrap(), "other users can access");
    refused(
        |path| fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o750)).unwrap(),
        "other users can access",
    );
    refused(|path| fs::hard_link(path, path.with_extension("second")).unwrap(), "not a real file");
    refused(
        |path| {
            fs::rename(path, path.with_extension("moved")).unwrap();
            symlink("store.moved", path).unwrap();
        },
        "not a real file",
    );
    refused(
        |path| {
            fs::remove_file(path).unwrap();
            symlink("nowhere", path).unwrap();
        },
        "not a real file",
    );
    refused(
        |path| {
            let dir = path.parent().unwrap();
            fs::rename(dir, dir.with_extension("moved")).unwrap();
            symlink("state.moved", dir).unwrap();
        },
        "not a real directory",
    );
    if rustix::process::geteuid().is_root() {
        refused(|path| std::os::unix::fs::chown(path, Some(1), None).unwrap(), "belongs to user 1");
        refused(|path| std::os::unix::fs::chown(path.parent().unwrap(), Some(1), None).unwrap(), "belongs to user 1");
    } else {
        eprintln!("not run: places of another owner (needs root)");
    }
}

#[test]
fn a_link_above_the_directory_is_the_owners_business() {
    let (root, path) = database_location();
    made(&path);
    symlink(root.path(), root.path().join("link")).unwrap();
    let store = ApprovalStore::open(&root.path().join("link/state/store.db")).unwrap();
    assert!(store.look_up_answer(ApprovalNamespace::Run, &digest("d"), None, 0).unwrap().is_some());
}

#[test]
fn a_damaged_or_foreign_file_is_refused_and_kept() {
    refused(|path| fs::write(path, "").unwrap(), "is damaged: it is empty");
    refused(
        |path| fs::write(path, "not a database, but long enough to look like a file".repeat(99)).unwrap(),
        "is damaged",
    );
    refused(
        |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[..16].fill(0);
            fs::write(path, bytes).unwrap();
        },
        "is damaged",
    );
    refused(
        |path| {
            fs::remove_file(path).unwrap();
            Connection::open(path).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        },
        "a database of another program",
    );
    refused(
        |path| Connection::open(path).unwrap().pragma_update(None, "user_version", 999).unwrap(),
        "schema version 999; this version of Stockade knows 1",
    );
    refused(
        |path| {
            fs::remove_file(path).unwrap();
            fs::write(path.with_extension("db-wal"), "left").unwrap();
        },
        "is still there",
    );
}

#[test]
fn a_row_that_does_not_read_back_is_no_answer() {
    for (column, value) in
        [("grants", "'[\"fly /x\"]'"), ("request", "'../x'"), ("created_ms", "1e300"), ("digest", "'d'")]
    {
        let (_root, path) = database_location();
        made(&path);
        let raw = Connection::open(&path).unwrap();
        raw.pragma_update(None, "ignore_check_constraints", true).unwrap();
        let changed = raw.execute(&format!("UPDATE approval SET {column} = {value}"), []);
        drop(raw);
        if column == "created_ms" {
            assert!(changed.is_err(), "STRICT columns hold their type");
            continue;
        }
        let store = ApprovalStore::open(&path).unwrap();
        match column {
            // Not found under its digest; and a listing is honest about it.
            "digest" => assert!(store.list_answers().is_ok()),
            _ => {
                let error = store.look_up_answer(ApprovalNamespace::Run, &digest("d"), None, 0).unwrap_err();
                assert!(error.to_string().contains("damaged"), "{error}");
            }
        }
    }
}

#[test]
fn a_damaged_page_is_found() {
    let (_root, path) = database_location();
    {
        let store = ApprovalStore::open(&path).unwrap();
        for n in 0..200 {
            let r = answer(&n.to_string(), Consent::Denied, ApprovalScope::Always);
            store.remember_answer(&r).unwrap();
        }
    }
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let failed = match ApprovalStore::open(&path) {
        Err(e) => e.to_string(),
        Ok(store) => {
            assert!(store.check_integrity().is_err());
            store.look_up_answer(ApprovalNamespace::Run, &digest("d"), None, 0).unwrap_err().to_string()
        }
    };
    assert!(failed.contains("damaged"), "{failed}");
}

#[test]
fn a_maker_that_died_is_no_hindrance() {
    let (_root, path) = database_location();
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o700)).unwrap();
    fs::write(path.with_extension("db.new"), "half").unwrap();
    fs::write(path.with_extension("db.new-journal"), "half").unwrap();
    made(&path);
    assert!(ApprovalStore::open(&path).unwrap().find_answer(&id("a")).unwrap().is_some());
}

#[test]
fn errors_name_a_remedy() {
    let (_root, path) = database_location();
    made(&path);
    fs::write(&path, "").unwrap();
    let error = ApprovalStore::open(&path).unwrap_err();
    assert!(matches!(error, StoreOpenError::Corrupt { .. }));
    assert!(error.to_string().contains("\nhint: "));
}

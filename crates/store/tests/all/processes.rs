//! Several processes and threads at once. The children are this test binary,
//! started anew with one test named.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stockade_model::ApprovalScope;
use stockade_store::{ApprovalNamespace, ApprovalStore, Consent};

use crate::{answer, database_location, digest, id};

const PATH: &str = "STOCKADE_STORE_TEST_PATH";
const USES: u32 = 60;

#[allow(clippy::disallowed_methods, reason = "tests start themselves")]
pub(crate) fn child(name: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .env(PATH, path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

pub(crate) fn finish(mut child: Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("the child did not end");
}

/// Waits until another process has made this file.
pub(crate) fn wait_for(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < deadline, "nobody made {}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Where to work; `None` where nobody started this as a child.
pub(crate) fn read_child_path() -> Option<PathBuf> {
    std::env::var_os(PATH).map(Into::into)
}

#[test]
#[ignore = "child of uses_are_counted_across_processes"]
fn child_uses_up() {
    let Some(path) = read_child_path() else { return };
    let store = ApprovalStore::open(&path).unwrap();
    let mut used = 0;
    while store.look_up_answer(ApprovalNamespace::Run, &digest("d"), None, 0).unwrap().is_some() {
        used += 1;
    }
    std::fs::write(path.with_extension(format!("used-{}", std::process::id())), used.to_string()).unwrap();
}

#[test]
fn uses_are_counted_across_processes() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    store.remember_answer(&answer("a", Consent::Approved, ApprovalScope::Times(USES))).unwrap();
    let children: Vec<Child> = (0..3).map(|_| child("processes::child_uses_up", &path)).collect();
    let pids: Vec<u32> = children.iter().map(Child::id).collect();
    children.into_iter().for_each(finish);
    let used = |pid: &u32| -> u32 {
        std::fs::read_to_string(path.with_extension(format!("used-{pid}"))).unwrap().parse().unwrap()
    };
    assert_eq!(pids.iter().map(used).sum::<u32>(), USES);
    assert_eq!(store.find_answer(&id("a")).unwrap().unwrap().scope, ApprovalScope::Times(0));
}

#[test]
#[ignore = "child of many_may_make_it_at_once"]
fn child_makes_and_remembers() {
    let Some(path) = read_child_path() else { return };
    let name = std::process::id().to_string();
    ApprovalStore::open(&path)
        .unwrap()
        .remember_answer(&answer(&name, Consent::Denied, ApprovalScope::Always))
        .unwrap();
}

#[test]
fn many_may_make_it_at_once() {
    for _ in 0..5 {
        let (_root, path) = database_location();
        let children: Vec<Child> = (0..4).map(|_| child("processes::child_makes_and_remembers", &path)).collect();
        children.into_iter().for_each(finish);
        assert_eq!(ApprovalStore::open(&path).unwrap().list_answers().unwrap().len(), 4);
    }
}

#[test]
#[ignore = "child of sudden_death_keeps_remembered_answers"]
fn child_remembers_forever() {
    let Some(path) = read_child_path() else { return };
    let store = ApprovalStore::open(&path).unwrap();
    // One byte for each that is acknowledged: an append of one byte is not torn.
    let mut count = std::fs::File::create(path.with_extension("count")).unwrap();
    for n in 0.. {
        store.remember_answer(&answer(&n.to_string(), Consent::Denied, ApprovalScope::Always)).unwrap();
        count.write_all(b".").unwrap();
    }
}

#[test]
fn sudden_death_keeps_remembered_answers() {
    let (_root, path) = database_location();
    let mut running = child("processes::child_remembers_forever", &path);
    let count = || std::fs::metadata(path.with_extension("count")).map_or(0, |count| count.len());
    let deadline = Instant::now() + Duration::from_secs(60);
    while count() < 200 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill().unwrap();
    running.wait().unwrap();
    let acknowledged = count();
    assert!(acknowledged >= 200, "the child remembered nothing");
    let store = ApprovalStore::open(&path).unwrap();
    store.check_integrity().unwrap();
    assert!(store.list_answers().unwrap().len() as u64 >= acknowledged);
}

#[test]
fn threads_share_one_store() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    // A second store in this process must not disturb the first one's locks.
    let second = ApprovalStore::open(&path).unwrap();
    store.remember_answer(&answer("a", Consent::Approved, ApprovalScope::Times(USES))).unwrap();
    let used = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let store = if n % 2 == 0 { &store } else { &second };
            let used = &used;
            scope.spawn(move || {
                while store.look_up_answer(ApprovalNamespace::Run, &digest("d"), None, 0).unwrap().is_some() {
                    used.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(used.into_inner(), USES);
}

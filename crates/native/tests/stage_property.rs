//! Random operations, once in a stage that is then committed and once natively
//! on a copy: each operation ends the same in both, and so do the trees.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

#[path = "../../stage/tests/stage_support/mod.rs"]
mod stage_support;
mod support;

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde::{Deserialize, Serialize};
use stage_support::{Picture, Scene, assert_same, copy_tree, picture};
use stockade_backend_api::{AttemptEvent, AttemptEventSender, Backend, StdioMode};
use stockade_model::{IsolationLevel, StageId};
use stockade_native::{NativeBackend, NativeOptions};
use stockade_stage::recover_all;

/// Set in the process that runs the operations inside the overlay.
const OPERATIONS: &str = "STOCKADE_TEST_OPERATIONS";
const FRESH: i64 = 1_600_000_000;
/// How many sequences are played, unless `STOCKADE_TEST_SEQUENCES` says another
/// number.
const SEQUENCES: u32 = 60;

/// The workspace before: no file with two names, which an overlay cannot keep
/// together (it says so in the difference).
const BEFORE: &str = "echo one >a; echo two >b; mkdir -p d/e f; echo three >d/a; echo four >d/e/b; ln -s a c; \
    truncate -s 1M f/a; echo five >f/b; chmod 640 f/b; setfattr -n user.k -v v a; \
    touch -d 2001-01-01 a d/a d/e d .";

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Operation {
    Create(PathBuf),
    Write(PathBuf, Vec<u8>, u64),
    Append(PathBuf, Vec<u8>),
    Truncate(PathBuf, u64),
    Mode(PathBuf, u32),
    Times(PathBuf, i64),
    MakeDirectory(PathBuf),
    RemoveDirectory(PathBuf),
    RemoveAll(PathBuf),
    Rename(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Symlink(String, PathBuf),
    Unlink(PathBuf),
    Attribute(PathBuf, String),
    DropAttribute(PathBuf),
}

/// Few names, so that operations meet.
fn paths() -> impl Strategy<Value = PathBuf> {
    let name = prop::sample::select(vec!["a", "b", "c", "d", "e", "f"]);
    prop::collection::vec(name, 1..=3).prop_map(|names| names.iter().collect())
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let bytes = prop::collection::vec(any::<u8>(), 0..20);
    let mode = prop::sample::select(vec![0o644, 0o600, 0o755, 0o444, 0o555, 0o000, 0o700, 0o1777]);
    let one = prop_oneof![
        paths().prop_map(Operation::Create),
        (paths(), bytes.clone(), prop::sample::select(vec![0, 1, 3_000_000]))
            .prop_map(|(path, bytes, at)| Operation::Write(path, bytes, at)),
        (paths(), bytes).prop_map(|(path, bytes)| Operation::Append(path, bytes)),
        (paths(), prop::sample::select(vec![0, 2, 5_000_000])).prop_map(|(path, size)| Operation::Truncate(path, size)),
        (paths(), mode).prop_map(|(path, mode)| Operation::Mode(path, mode)),
        (paths(), 1..1_000_000_000i64).prop_map(|(path, time)| Operation::Times(path, time)),
        paths().prop_map(Operation::MakeDirectory),
        paths().prop_map(Operation::RemoveDirectory),
        paths().prop_map(Operation::RemoveAll),
        (paths(), paths()).prop_map(|(old, new)| Operation::Rename(old, new)),
        (paths(), paths()).prop_map(|(old, new)| Operation::Link(old, new)),
        ("[a-f/.]{1,4}", paths()).prop_map(|(text, path)| Operation::Symlink(text, path)),
        paths().prop_map(Operation::Unlink),
        (paths(), "[a-z]{0,8}").prop_map(|(path, value)| Operation::Attribute(path, value)),
        paths().prop_map(Operation::DropAttribute),
    ];
    prop::collection::vec(one, 1..40)
}

/// Does it in the current directory; the errno where it fails. Links in the way
/// are refused, so that nothing leads out.
fn apply(root: &Path, operation: &Operation) -> i32 {
    let at = |path: &Path| root.join(path);
    let leads_away = |path: &Path| path.ancestors().any(|path| !path.as_os_str().is_empty() && at(path).is_symlink());
    let touched: Vec<&Path> = match operation {
        Operation::Rename(old, new) | Operation::Link(old, new) => {
            [old, new].iter().filter_map(|path| path.parent()).collect()
        }
        Operation::Symlink(_, path) | Operation::Unlink(path) => path.parent().into_iter().collect(),
        Operation::Create(path)
        | Operation::Write(path, ..)
        | Operation::Append(path, _)
        | Operation::Truncate(path, _)
        | Operation::Mode(path, _)
        | Operation::Times(path, _)
        | Operation::MakeDirectory(path)
        | Operation::RemoveDirectory(path)
        | Operation::RemoveAll(path)
        | Operation::Attribute(path, _)
        | Operation::DropAttribute(path) => vec![path],
    };
    if touched.into_iter().any(leads_away) {
        return libc::ELOOP;
    }
    let done = match operation {
        Operation::Create(path) => OpenOptions::new().write(true).create_new(true).open(at(path)).map(drop),
        Operation::Write(path, bytes, offset) => {
            OpenOptions::new().write(true).open(at(path)).and_then(|file| file.write_all_at(bytes, *offset))
        }
        Operation::Append(path, bytes) => {
            use std::io::Write;
            OpenOptions::new().append(true).create(true).open(at(path)).and_then(|mut file| file.write_all(bytes))
        }
        Operation::Truncate(path, size) => {
            OpenOptions::new().write(true).open(at(path)).and_then(|file| file.set_len(*size))
        }
        Operation::Mode(path, mode) => std::fs::set_permissions(at(path), std::fs::Permissions::from_mode(*mode)),
        Operation::Times(path, seconds) => std::fs::File::open(at(path)).and_then(|file| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::try_from(*seconds).unwrap());
            file.set_modified(time)
        }),
        Operation::MakeDirectory(path) => std::fs::create_dir(at(path)),
        Operation::RemoveDirectory(path) => std::fs::remove_dir(at(path)),
        Operation::RemoveAll(path) => std::fs::remove_dir_all(at(path)),
        Operation::Rename(old, new) => std::fs::rename(at(old), at(new)),
        Operation::Link(old, new) => std::fs::hard_link(at(old), at(new)),
        Operation::Symlink(text, path) => symlink(text, at(path)),
        Operation::Unlink(path) => std::fs::remove_file(at(path)),
        Operation::Attribute(path, value) => {
            rustix::fs::setxattr(at(path), "user.k", value.as_bytes(), rustix::fs::XattrFlags::empty())
                .map_err(Into::into)
        }
        Operation::DropAttribute(path) => rustix::fs::removexattr(at(path), "user.k").map_err(Into::into),
    };
    done.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |()| 0)
}

/// Runs in a process of its own, in the overlay.
#[test]
fn inside() {
    let Some(text) = std::env::var_os(OPERATIONS) else { return };
    let operations: Vec<Operation> = serde_json::from_str(text.to_str().unwrap()).unwrap();
    let here = std::env::current_dir().unwrap();
    let results: Vec<i32> = operations.iter().map(|operation| apply(&here, operation)).collect();
    println!("results:{}", serde_json::to_string(&results).unwrap());
}

/// The results of `operations` in an overlay of a new stage, and the stage.
fn staged(scene: &Scene, operations: &[Operation]) -> (StageId, Vec<i32>) {
    let stage = scene.stage();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "inside", "--nocapture", "--test-threads", "1"])
        .env(OPERATIONS, serde_json::to_string(operations).unwrap());
    let output = scene.in_overlay(&stage, &command);
    let text = String::from_utf8_lossy(&output.stdout);
    let results = text.lines().find_map(|line| line.split_once("results:"));
    let Some((_, results)) = results else {
        panic!("{text}{}", String::from_utf8_lossy(&output.stderr));
    };
    (stage.id().clone(), serde_json::from_str(results).unwrap())
}

/// The same at level restricted, without an overlay: the run writes in the
/// workspace, and is taken back at its end.
fn staged_in_place(scene: &Scene, operations: &[Operation]) -> (Option<StageId>, Vec<i32>) {
    let program = std::env::current_exe().unwrap();
    let argv = [program.to_str().unwrap(), "--exact", "inside", "--nocapture", "--test-threads", "1"];
    let mut plan = support::plan(IsolationLevel::Restricted, &scene.workspace(), &argv);
    plan.profile.filesystem.stage = true;
    let text = serde_json::to_string(operations).unwrap();
    plan.environment.insert(OPERATIONS.to_owned(), text.as_str().into());
    let (sender, events) = channel();
    let sender = AttemptEventSender::new(move |event| drop(sender.send(event)));
    let backend = NativeBackend::with_options(
        None,
        NativeOptions { stages: Some(scene.root.join("stages")), ..NativeOptions::default() },
    );
    let mut attempt =
        backend.prepare_attempt(&plan, &StdioMode::Capture { limit_bytes: 1 << 20 }, false, sender).unwrap();
    attempt.release_command().unwrap();
    let end = loop {
        if let AttemptEvent::Ended(end) = events.recv_timeout(support::TIMEOUT).expect("it ends") {
            break end;
        }
    };
    let output = end.stdout.unwrap();
    let output = output.to_str().unwrap();
    let results = output.lines().find_map(|line| line.split_once("results:"));
    let (_, results) = results.unwrap_or_else(|| panic!("{output} {:?}", end.stderr));
    assert_eq!(recover_all(&scene.stages(), None).unwrap(), [], "the workspace was put back at the end of the run");
    (end.staged.map(|staged| staged.stage), serde_json::from_str(results).unwrap())
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Overlay,
    /// With the stage on another filesystem.
    OverlayApart,
    InPlace,
}

fn check(operations: &[Operation], stage_mode: Way) {
    let scene =
        if matches!(stage_mode, Way::OverlayApart) { Scene::other_filesystem(BEFORE) } else { Scene::new(BEFORE) };
    let native = scene.beside();
    copy_tree(&scene.workspace(), &native);
    let untouched = scene.picture();
    let (id, results) = match stage_mode {
        Way::Overlay | Way::OverlayApart => {
            let (id, results) = staged(&scene, operations);
            (Some(id), results)
        }
        Way::InPlace => staged_in_place(&scene, operations),
    };
    assert_same(&untouched, &scene.picture(), "staged only");
    for (operation, result) in operations.iter().zip(&results) {
        // An overlay does not rename directories that the workspace has.
        if *result == libc::EXDEV {
            continue;
        }
        let natively = apply(&native, operation);
        // Where two things are wrong, the broker may name the other one.
        let is_other = matches!(stage_mode, Way::InPlace) && natively == libc::EACCES && *result != 0;
        assert!(natively == *result || is_other, "{operation:?}: {natively} natively, {result} staged");
    }
    if let Some(id) = &id {
        scene.commit_all(id);
    }
    let mut trees = [picture(&native, FRESH), picture(&scene.workspace(), FRESH)];
    // What was made and removed again is no change: there is no stage that could
    // keep the times of its directory.
    if id.is_none() {
        trees.iter_mut().for_each(forget_times_of_directories);
    }
    assert_same(&trees[0], &trees[1], "committed");
}

fn forget_times_of_directories(tree: &mut Picture) {
    let directories = tree.values_mut().filter(|seen| seen.kind == libc::S_IFDIR);
    directories.for_each(|seen| seen.modified = None);
}

#[test]
fn committed_is_the_same_as_run_natively() {
    support::in_each_role("committed_is_the_same_as_run_natively", || {
        play(prop::sample::select(vec![Way::Overlay, Way::OverlayApart]));
    });
}

/// The sandbox takes root's capabilities, so what root does without one is no
/// measure: an ordinary user's run is.
#[test]
fn without_an_overlay_committed_is_the_same_as_run_natively() {
    support::in_each_role("without_an_overlay_committed_is_the_same_as_run_natively", || {
        if rustix::process::geteuid().is_root() {
            eprintln!("not run as root: its capabilities would show");
        } else {
            play(Just(Way::InPlace));
        }
    });
}

fn play(stage_modes: impl Strategy<Value = Way>) {
    let case_count = std::env::var("STOCKADE_TEST_SEQUENCES").ok().and_then(|number| number.parse().ok());
    let config = Config {
        cases: case_count.unwrap_or(SEQUENCES),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    runner
        .run(&(operations(), stage_modes), |(operations, stage_mode)| {
            check(&operations, stage_mode);
            Ok(())
        })
        .unwrap();
}

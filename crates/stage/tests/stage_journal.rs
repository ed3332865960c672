//! Journals of any content: whatever stands in the file that says how far a
//! commit came, a recovery ends, tells what it cannot read, and touches nothing
//! outside of the workspace.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod stage_support;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use stage_support::{Scene, assert_same, picture, run_in};
use stockade_model::StageId;
use stockade_stage::{RecoveryResult, StageCommitError, recover_all};

const BEFORE: &str = "echo a >a; mkdir d; echo x >d/x; ln -s ../outside way; ln -s ../outside/f link; chmod 500 d";
/// How many journals are read, unless `STOCKADE_TEST_SEQUENCES` says another
/// number.
const JOURNALS: u32 = 100;
/// Objects in the depot.
const SLOTS: u32 = 3;

/// A workspace with ways out of it, what lies outside, and a stage with a depot.
struct CutOff {
    scene: Scene,
    id: StageId,
}

impl CutOff {
    fn new() -> Self {
        let scene = Scene::new(BEFORE);
        run_in(&scene.root, "mkdir outside; echo kept >outside/f; chmod 640 outside/f");
        let stage = scene.stage();
        let id = stage.id().clone();
        drop(stage);
        let cut_off = Self { scene, id };
        std::fs::create_dir(cut_off.directory("depot")).unwrap();
        for slot in 0..SLOTS {
            std::fs::write(cut_off.directory(&format!("depot/{slot}")), "new").unwrap();
        }
        cut_off
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.scene.root.join("stages").join(self.id.as_str()).join(name)
    }

    /// Recovers with `journal` in the file `name`; nothing outside may change.
    fn recover(&self, name: &str, journal: &[u8]) -> Result<Vec<RecoveryResult>, StageCommitError> {
        let outside = || picture(&self.scene.root.join("outside"), i64::MAX);
        let before = outside();
        std::fs::write(self.directory(name), journal).unwrap();
        let recovered = recover_all(&self.scene.stages(), None);
        assert_same(&before, &outside(), "outside of the workspace");
        recovered
    }
}

fn play<S: Strategy>(strategy: S, check: impl Fn(S::Value)) {
    let choice = std::env::var("STOCKADE_TEST_SEQUENCES").ok().and_then(|number| number.parse().ok());
    let config = Config { cases: choice.unwrap_or(JOURNALS), failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&strategy, |value| {
            check(value);
            Ok(())
        })
        .unwrap();
}

const NAMES: [&str; 2] = ["journal", "journal-done"];

#[test]
fn a_malformed_journal_is_reported_and_nothing_is_done() {
    let valid = br#"{"depot":"stage","checked":{"seconds":1,"nanoseconds":2},"steps":[{"open":{"path":"d","before":1}}],"settled":[],"is_all":false}"#;
    let any = prop::collection::vec(any::<u8>(), 0..200);
    // A journal cut short, as one that is being written would be.
    let cut = (0..valid.len()).prop_map(|length| valid[..length].to_vec());
    let spoilt = (0..valid.len(), 1..=255_u8).prop_map(|(at, by)| {
        let mut bytes = valid.to_vec();
        bytes[at] = if b"{}[]:,\"".contains(&bytes[at]) { by % 32 } else { bytes[at] };
        bytes
    });
    let is_journal = |bytes: &[u8]| bytes == valid;
    let journals = prop_oneof![any, cut, spoilt].prop_filter("a journal", move |bytes| !is_journal(bytes));
    play((journals, prop::sample::select(NAMES.to_vec())), |(journal, name)| {
        let cut_off = CutOff::new();
        let before = cut_off.scene.picture();
        let failed = cut_off.recover(name, &journal).expect_err("it is no journal").to_string();
        assert!(failed.contains("journal"), "{failed}");
        assert_same(&before, &cut_off.scene.picture(), "the workspace");
        assert!(cut_off.directory("upper").is_dir(), "what is staged is still there");
    });
}

/// Paths that lead out, nowhere, or are none.
fn paths() -> impl Strategy<Value = String> {
    let hostile = [
        "a",
        "d",
        "d/x",
        "n",
        "d/n",
        "link",
        "way",
        "way/f",
        "way/n",
        "../outside/f",
        "d/../../outside/f",
        "/etc/passwd",
        "/",
        "",
        ".",
        "..",
        "d/..",
        "d//x",
        "./a",
        "a/b",
        "a\0b",
        "\u{202e}",
        "d/x/",
        ".git/config",
    ];
    prop_oneof![8 => prop::sample::select(hostile.to_vec()).prop_map(str::to_owned), 1 => Just("x/".repeat(3000))]
}

/// A step that fits what is there about every second time.
fn steps() -> impl Strategy<Value = (String, u8, u32, bool, bool, u32)> {
    (paths(), 0..4_u8, prop_oneof![4 => 0..SLOTS, 1 => any::<u32>()], any::<bool>(), any::<bool>(), any::<u32>())
}

fn step(cut_off: &CutOff, (path, kind, slot, fits, replaces, number): (String, u8, u32, bool, bool, u32)) -> Value {
    let inode = |path: PathBuf| path.symlink_metadata().map_or(1, |meta| if fits { meta.ino() } else { 1 });
    let here = cut_off.scene.workspace().join(path.trim_start_matches('/').replace('\0', "0"));
    let mark = here.symlink_metadata().ok().map(|meta| {
        let kind = if meta.is_dir() {
            "directory"
        } else if meta.is_symlink() {
            "link"
        } else {
            "file"
        };
        let modified = json!({"seconds": meta.mtime(), "nanoseconds": meta.mtime_nsec()});
        let changed = json!({"seconds": meta.ctime(), "nanoseconds": meta.ctime_nsec()});
        json!({"kind": kind, "inode": inode(here.clone()), "size": meta.size(), "mode": meta.mode() & 0o7777,
               "modified": modified, "changed": changed})
    });
    let settings = json!({"mode": number, "modified": {"seconds": number, "nanoseconds": number}, "attributes": null});
    match (kind, mark) {
        (0, Some(mark)) => json!({"remove": {"path": path, "slot": slot, "old": mark}}),
        (1, mark) => {
            let new = inode(cut_off.directory(&format!("depot/{slot}")));
            json!({"put": {"path": path, "slot": slot, "new": new, "old": if replaces { mark } else { None }}})
        }
        (2, _) => json!({"attributes": {"path": path, "inode": inode(here), "before": settings, "after": settings}}),
        _ => json!({"open": {"path": path, "before": number}}),
    }
}

#[test]
fn a_journal_of_any_steps_reaches_nothing_outside() {
    let done = std::cell::Cell::new((0, 0));
    let journals = (prop::collection::vec(steps(), 1..4), paths(), any::<bool>(), prop::sample::select(NAMES.to_vec()));
    play(journals, |(steps, settled, is_all, name)| {
        let cut_off = CutOff::new();
        let steps: Vec<Value> = steps.into_iter().map(|choice| step(&cut_off, choice)).collect();
        let journal = json!({"commit_area": "stage", "checked": {"seconds": 9_999_999_999_i64, "nanoseconds": 0},
                             "steps": steps, "settled": [settled], "is_all": is_all});
        let (finished, failed) = done.get();
        match cut_off.recover(name, journal.to_string().as_bytes()) {
            Ok(_) => done.set((finished + 1, failed)),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                done.set((finished, failed + 1));
            }
        }
    });
    let (finished, failed) = done.get();
    println!("{finished} recovered, {failed} refused");
    // Two of three are, on average.
    assert!(finished * 10 > finished + failed, "few journals were carried out: little is shown");
}

//! A commit that ends at any of its points, by a kill or by a full disk: after
//! recovery the workspace is what it was or what it was to become, and nothing
//! else is left. The positive control is that both ends are seen.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod stage_support;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use stage_support::{Picture, Scene, assert_same, copy_tree, picture, run_in};
use stockade_model::StageId;
use stockade_stage::{
    CommitObserver, CommitPoint, CommitRequest, RecoveryEnd, SilentObserver, StageCommitError, recover_all,
};
use stockade_sys::Errno;

/// Set in the process that is to be killed: at which point, from 0.
const VICTIM: &str = "STOCKADE_TEST_VICTIM";
const FRESH: i64 = 1_600_000_000;

/// Something of every kind of step.
const BEFORE: &str = "echo a >a; echo gone >gone; mkdir -p d/e old/deep; echo x >d/x; echo y >d/e/y; \
    echo z >old/deep/z; ln -s a l; echo f >f; echo m >m; chmod 600 m; mkdir t; echo t >t/t; \
    touch -d 2001-01-01 d t .";
const SCRIPT: &str = "echo b >>a; rm gone; rm -r old; mkdir -p n/m; echo 1 >n/m/1; ln n/m/1 n/2; ln -sf b l; rm f; \
    mkdir f; echo in >f/in; chmod 640 m; touch -d 2002-02-02 m; rm -r d; mkdir d; echo X >d/X; rm -r t; echo t >t";

/// Ends the process at a point.
struct Killer {
    remaining: usize,
}

impl CommitObserver for Killer {
    fn on_point(&mut self, _point: CommitPoint) -> Result<(), Errno> {
        if self.remaining == 0 {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        self.remaining -= 1;
        Ok(())
    }
}

/// Fails when a commit is done, and ends the process while that commit is undone.
struct UndoKiller {
    killer: Killer,
    is_undone: bool,
}

impl CommitObserver for UndoKiller {
    fn on_point(&mut self, point: CommitPoint) -> Result<(), Errno> {
        if self.is_undone {
            return self.killer.on_point(point);
        }
        self.is_undone = point == CommitPoint::Done;
        if self.is_undone { Err(Errno::IO) } else { Ok(()) }
    }
}

/// Fails at a point as a full disk does.
struct Filler {
    remaining: usize,
    points: Vec<CommitPoint>,
}

impl CommitObserver for Filler {
    fn on_point(&mut self, point: CommitPoint) -> Result<(), Errno> {
        self.points.push(point);
        if self.points.len() == self.remaining + 1 { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

/// The workspace and what it is to become.
struct Ends {
    scene: Scene,
    before: PathBuf,
    old: Picture,
    new: Picture,
}

impl Ends {
    fn new(other_filesystem: bool) -> Self {
        let scene = if other_filesystem { Scene::other_filesystem(BEFORE) } else { Scene::new(BEFORE) };
        let native = scene.beside();
        copy_tree(&scene.workspace(), &native);
        run_in(&native, SCRIPT);
        let new = picture(&native, FRESH);
        let before = native.with_file_name("before");
        copy_tree(&scene.workspace(), &before);
        let old = picture(&scene.workspace(), FRESH);
        Self { scene, before, old, new }
    }

    /// The workspace as it was, and a stage of it.
    fn restage(&self) -> StageId {
        std::fs::remove_dir_all(self.scene.workspace()).unwrap();
        copy_tree(&self.before, &self.scene.workspace());
        self.scene.staged(SCRIPT)
    }

    /// Which of the two the workspace is, after recovery.
    #[track_caller]
    fn end(&self, what: &str) -> &'static str {
        let now = picture(&self.scene.workspace(), FRESH);
        if now == self.old {
            return "old";
        }
        assert_same(&self.new, &now, what);
        "new"
    }

    /// Nothing of a commit is left in the stage or anywhere.
    #[track_caller]
    fn assert_clean(&self, what: &str) {
        for listed in self.scene.stages().list_stages().unwrap() {
            assert!(!listed.cut_off, "{what}");
            let directory = self.scene.root.join("stages").join(listed.id.as_str());
            for name in ["journal", "journal-done", "depot", "borrowed"] {
                assert!(!directory.join(name).exists(), "{what}: {name}");
            }
        }
        assert!(!self.scene.workspace().join(".stockade").exists(), "{what}");
    }
}

/// Runs when it is told to, in a process of its own: commits and is killed.
#[test]
fn victim() {
    let Ok(point) = std::env::var(VICTIM) else { return };
    let path = |name: &str| PathBuf::from(std::env::var_os(name).unwrap());
    let scene = Scene::at(&path("ROOT"), &path("WORKSPACE"));
    let id: StageId = std::env::var("STAGE").unwrap().parse().unwrap();
    let mut killer = Killer { remaining: point.parse().unwrap() };
    let stage = scene.stages().open_for_changes(&id).unwrap();
    match std::env::var("WHAT").unwrap().as_str() {
        "commit" => drop(stage.commit_changes(&CommitRequest::default(), &mut killer).unwrap()),
        "undo" => {
            let mut killer = UndoKiller { killer, is_undone: false };
            let result = stage.commit_changes(&CommitRequest::default(), &mut killer);
            assert!(matches!(result, Err(StageCommitError::Undone(_))), "{result:?}");
        }
        _ => drop(stage.recover_commit(&mut killer).unwrap()),
    }
}

/// Whether the process was killed before it came to its end.
fn killed(scene: &Scene, id: &StageId, what: &str, point: usize) -> bool {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture", "--test-threads", "1"])
        .env(VICTIM, point.to_string())
        .env("ROOT", &scene.root)
        .env("WORKSPACE", scene.workspace())
        .env("STAGE", id.as_str())
        .env("WHAT", what)
        .output()
        .unwrap();
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    killed
}

fn check_kills(other_filesystem: bool) {
    let ends = Ends::new(other_filesystem);
    let mut seen = BTreeSet::new();
    for point in 0.. {
        let id = ends.restage();
        let was_killed = killed(&ends.scene, &id, "commit", point);
        recover_all(&ends.scene.stages(), None).unwrap();
        let what = format!("killed at point {point}");
        ends.assert_clean(&what);
        seen.insert(ends.end(&what));
        if !was_killed {
            assert!(point > 20, "the points were not reached");
            break;
        }
        // What was not committed can still be.
        if ends.scene.stages().list_stages().unwrap().iter().any(|listed| listed.id == id) {
            ends.scene.commit_all(&id);
        }
        assert_eq!(ends.end(&what), "new");
    }
    assert_eq!(seen, BTreeSet::from(["new", "old"]));
}

#[test]
fn a_killed_commit_leaves_the_old_tree_or_the_new_one() {
    check_kills(false);
}

#[test]
fn a_killed_commit_across_filesystems_does_as_well() {
    check_kills(true);
}

#[test]
fn a_killed_recovery_can_be_recovered_from() {
    let ends = Ends::new(false);
    let mut counter = Filler { remaining: usize::MAX - 1, points: Vec::new() };
    let id = ends.restage();
    ends.scene.stages().open_for_changes(&id).unwrap().commit_changes(&CommitRequest::default(), &mut counter).unwrap();
    let decided = counter.points.iter().position(|point| *point == CommitPoint::Decided).unwrap();
    for (first, second) in [(decided, 0), (decided + 2, 3), (decided + 5, 7), (counter.points.len() - 1, 0)] {
        let id = ends.restage();
        assert!(killed(&ends.scene, &id, "commit", first));
        killed(&ends.scene, &id, "recover", second);
        recover_all(&ends.scene.stages(), None).unwrap();
        ends.assert_clean("twice killed");
        assert_eq!(ends.end("twice killed"), "new");
    }
}

/// The failure is behind the mark that all steps are done, as that of an fsync is.
#[test]
fn a_killed_undo_of_a_done_commit_leaves_the_old_tree_or_the_new_one() {
    let ends = Ends::new(false);
    for point in 0.. {
        let id = ends.restage();
        let was_killed = killed(&ends.scene, &id, "undo", point);
        recover_all(&ends.scene.stages(), None).unwrap();
        let what = format!("killed at point {point} of the undo");
        ends.assert_clean(&what);
        let end = ends.end(&what);
        if !was_killed {
            assert!(point > 5 && end == "old", "{what}: {end}");
            break;
        }
    }
}

fn check_full(other_filesystem: bool) {
    let ends = Ends::new(other_filesystem);
    let mut seen = BTreeSet::new();
    for point in 0.. {
        let id = ends.restage();
        let mut filler = Filler { remaining: point, points: Vec::new() };
        let result =
            ends.scene.stages().open_for_changes(&id).unwrap().commit_changes(&CommitRequest::default(), &mut filler);
        let what = format!("full at {point}: {:?}", filler.points.get(point));
        let expected = match result {
            Err(StageCommitError::Prepare(error) | StageCommitError::Undone(error)) => {
                assert!(error.is_full, "{what}");
                "old"
            }
            Err(StageCommitError::Stage(_)) | Ok(_) => "new",
            Err(other) => panic!("{what}: {other}"),
        };
        recover_all(&ends.scene.stages(), None).unwrap();
        ends.assert_clean(&what);
        assert_eq!(ends.end(&what), expected, "{what}");
        seen.insert(expected);
        if filler.points.len() <= point {
            break;
        }
    }
    assert_eq!(seen, BTreeSet::from(["new", "old"]));
}

#[test]
fn a_full_disk_at_any_point_leaves_the_old_tree_or_the_new_one() {
    check_full(false);
    check_full(true);
}

/// Runs a script in the workspace at one point of a commit, which must then be undone because of `path`.
fn intrude(at: CommitPoint, script: &str, path: &str, after: &str) {
    struct Intruder<'a>(&'a Scene, CommitPoint, &'a str);
    impl CommitObserver for Intruder<'_> {
        fn on_point(&mut self, point: CommitPoint) -> Result<(), Errno> {
            if point == self.1 {
                self.0.native(self.2);
            }
            Ok(())
        }
    }
    let ends = Ends::new(false);
    let id = ends.restage();
    let result = ends
        .scene
        .stages()
        .open_for_changes(&id)
        .unwrap()
        .commit_changes(&CommitRequest::default(), &mut Intruder(&ends.scene, at, script));
    assert!(matches!(&result, Err(StageCommitError::Undone(error)) if error.path == Path::new(path)), "{result:?}");
    ends.assert_clean("an intruder");
    run_in(&ends.scene.workspace(), after);
}

#[test]
fn changes_after_the_decision_are_not_overwritten() {
    let after = "test \"$(cat a)\" = \"$(printf 'a\\nmine')\"; test -e gone; test ! -e n";
    intrude(CommitPoint::Decided, "echo mine >>a", "a", after);
}

/// A file is put into a directory that is to go, when everything was looked at.
#[test]
fn files_added_after_the_check_are_not_lost_with_the_directory() {
    let after = "grep -q mine old/deep/mine; test -e gone; test ! -e n";
    intrude(CommitPoint::Ready, "echo mine >old/deep/mine", "old", after);
}

#[test]
fn preparations_alone_are_swept_away() {
    let ends = Ends::new(true);
    let id = ends.restage();
    assert!(killed(&ends.scene, &id, "commit", 3));
    let recovered = recover_all(&ends.scene.stages(), Some(&ends.scene.workspace())).unwrap();
    assert_eq!(recovered.len(), 1);
    assert_eq!(recovered[0].end, RecoveryEnd::Unbegun);
    assert!(recover_all(&ends.scene.stages(), None).unwrap().is_empty());
    assert_eq!(ends.end("swept"), "old");
    let stage = ends.scene.stages().open_for_changes(&id).unwrap();
    assert_eq!(stage.recover_commit(&mut SilentObserver).unwrap(), None);
}

/// Runs when it is told to, with a filesystem of 1 MiB for its workspace.
#[test]
fn on_a_small_disk() {
    let Some(directory) = std::env::var_os("SMALL_DISK") else { return };
    let scene = Scene::over("echo a >a; head -c 600000 /dev/zero >hog", Some(Path::new(&directory)));
    let before = scene.picture();
    let id = scene.staged("echo b >>a; head -c 700000 /dev/urandom >big; mkdir d; echo x >d/x");
    let refused = scene.commit(&id, &CommitRequest::default()).unwrap_err();
    assert!(matches!(&refused, StageCommitError::Prepare(error) if error.is_full), "{refused}");
    assert!(refused.to_string().contains("make room"), "{refused}");
    assert_same(&before, &scene.picture(), "a full disk");
    assert!(recover_all(&scene.stages(), None).unwrap().is_empty());
    // The stage is as it was: with room, everything is committed.
    scene.native("rm hog");
    scene.commit_all(&id);
    scene.native("test $(stat -c %s big) = 700000; grep -q b a; test -e d/x");
    println!("done");
}

#[test]
fn a_full_disk_is_reported_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=1m small \"$0\" && SMALL_DISK=\"$0\" exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", mount])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "on_a_small_disk", "--nocapture", "--test-threads", "1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("done"), "{text}");
}

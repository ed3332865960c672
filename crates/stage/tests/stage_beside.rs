//! A commit while somebody else changes the workspace: what it puts there is judged by what
//! is there at that moment, not at its end, and after an interruption too.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod stage_support;

use std::path::{Path, PathBuf};
use std::process::Command;

use stage_support::Scene;
use stockade_stage::{
    CommitObserver, CommitPoint, CommitRequest, RecoveryEnd, RecoveryResult, StageCommitError, recover_all,
};
use stockade_sys::Errno;

/// Set in the process that is to be killed: where its stage is.
const VICTIM: &str = "STOCKADE_TEST_VICTIM";
/// What makes a directory a repository, together with `refs`, in the order of a commit.
const PARTS: [&str; 2] = ["HEAD", "objects"];
const STAGED: &str = "echo ref: refs/heads/main >d/HEAD; mkdir d/objects";

fn is_complete(directory: &Path) -> bool {
    PARTS.iter().chain(&["refs"]).all(|part| directory.join(part).exists())
}

/// Makes the last part beside what is committed once a step is done, and looks at each later point.
struct Beside {
    directory: PathBuf,
    was_complete: bool,
    /// Whether the process ends after the first step.
    ends: bool,
}

impl CommitObserver for Beside {
    fn on_point(&mut self, point: CommitPoint) -> Result<(), Errno> {
        if point == CommitPoint::Step {
            if self.ends {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            let _ = std::fs::create_dir(self.directory.join("refs"));
        }
        self.was_complete |= is_complete(&self.directory);
        Ok(())
    }
}

#[test]
fn no_repository_exists_for_a_moment() {
    let scene = Scene::new("mkdir d");
    let id = scene.staged(STAGED);
    let directory = scene.workspace().join("d");
    let mut watch = Beside { directory: directory.clone(), was_complete: false, ends: false };
    let failed = scene
        .stages()
        .open_for_changes(&id)
        .unwrap()
        .commit_changes(&CommitRequest::default(), &mut watch)
        .unwrap_err();
    assert!(matches!(failed, StageCommitError::Undone(_)), "{failed}");
    assert!(failed.to_string().contains("a repository that is not called .git, or a part of one"), "{failed}");
    assert!(!watch.was_complete, "it stood for a moment");
    assert!(PARTS.iter().all(|part| !directory.join(part).exists()), "nothing of it is left");
    assert!(directory.join("refs").exists(), "what the other made is");
    std::fs::remove_dir(directory.join("refs")).unwrap();
    scene.commit_all(&id);
    assert!(PARTS.iter().all(|part| directory.join(part).exists()));
}

/// Runs when it is told to, in a process of its own: commits and is killed after a step.
#[test]
fn victim() {
    let Some(root) = std::env::var_os(VICTIM).map(PathBuf::from) else { return };
    let scene = Scene::at(&root, &root.join("w"));
    let id = std::env::var("STAGE").unwrap().parse().unwrap();
    let mut watch = Beside { directory: scene.workspace().join("d"), was_complete: false, ends: true };
    let _ = scene.stages().open_for_changes(&id).unwrap().commit_changes(&CommitRequest::default(), &mut watch);
}

/// A commit is cut off after a step, and what `beside` makes is
/// there when it is finished.
fn cut_off(scene: &Scene, beside: &str) -> Vec<RecoveryResult> {
    let id = scene.staged(STAGED);
    let mut line = Command::new(std::env::current_exe().unwrap());
    line.args(["victim", "--exact"]).env(VICTIM, &scene.root).env("STAGE", id.as_str());
    assert!(!line.output().unwrap().status.success(), "it is killed");
    scene.native(beside);
    recover_all(&scene.stages(), None).unwrap()
}

#[test]
fn an_interrupted_commit_is_checked_when_it_is_finished() {
    let scene = Scene::new("mkdir d");
    let recovered = cut_off(&scene, "mkdir d/refs");
    assert!(matches!(recovered[..], [RecoveryResult { end: RecoveryEnd::Undone(_), .. }]), "{recovered:?}");
    assert!(!is_complete(&scene.workspace().join("d")));
    // The positive control: with nothing beside it, it is finished.
    let scene = Scene::new("mkdir d");
    let recovered = cut_off(&scene, "true");
    assert!(matches!(recovered[..], [RecoveryResult { end: RecoveryEnd::Finished, .. }]), "{recovered:?}");
}

//! A stage as a sandbox writes to it: through the broker, as root and as an
//! ordinary user, and what comes of it at a commit.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

#[path = "../../stage/tests/stage_support/mod.rs"]
mod stage_support;
mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use stage_support::{assert_same, copy_tree, picture, run_in};
use stockade_backend_api::{AttemptEnd, AttemptEvent, AttemptEventSender, Backend, CommandEnd, HeldAnswer, StdioMode};
use stockade_model::{AttemptPlan, Denial, Grant, IsolationLevel, StageId};
use stockade_native::{NativeBackend, NativeOptions};
use stockade_stage::{CommitRequest, SilentObserver, StageCommitError, StageDirectory, WorkspaceChange, recover_all};
use support::{TIMEOUT, in_each_role, plan, script};

const CAPTURE: StdioMode = StdioMode::Capture { limit_bytes: 1 << 20 };
const FRESH: i64 = 1_600_000_000;

/// A workspace and a place for stages; both in the directory of temporary files,
/// which is private inside.
struct Scene {
    scratch: tempfile::TempDir,
    level: IsolationLevel,
}

/// With an overlay, and without one.
const LEVELS: [IsolationLevel; 2] = [IsolationLevel::Full, IsolationLevel::Restricted];

impl Scene {
    fn new(before: &str) -> Self {
        Self::at(IsolationLevel::Full, before)
    }

    fn at(level: IsolationLevel, before: &str) -> Self {
        let scene = Self { scratch: tempfile::Builder::new().prefix("stage-").tempdir().unwrap(), level };
        fs::create_dir(scene.workspace()).unwrap();
        run_in(&scene.workspace(), before);
        scene
    }

    fn top(&self) -> PathBuf {
        self.scratch.path().canonicalize().unwrap()
    }

    fn workspace(&self) -> PathBuf {
        self.top().join("w")
    }

    fn stages(&self) -> StageDirectory {
        StageDirectory::open(&self.top().join("stages")).unwrap()
    }

    fn backend(&self) -> NativeBackend {
        NativeBackend::with_options(
            None,
            NativeOptions { stages: Some(self.top().join("stages")), ..NativeOptions::default() },
        )
    }

    fn plan(&self, text: &str) -> AttemptPlan {
        let mut plan = script(self.level, &self.workspace(), text);
        plan.profile.filesystem.stage = true;
        plan
    }

    /// Runs a script, staged. It must succeed.
    #[track_caller]
    fn run(&self, text: &str) -> (Option<StageId>, Vec<Denial>) {
        let (end, denials) = self.try_run(&self.plan(text));
        let errors = String::from_utf8_lossy(end.stderr.as_ref().unwrap().as_bytes()).into_owned();
        assert_eq!(end.end, CommandEnd::Exited(0), "{text}\n{errors}{denials:?}");
        (end.staged.map(|staged| staged.stage), denials)
    }

    fn try_run(&self, plan: &AttemptPlan) -> (AttemptEnd, Vec<Denial>) {
        let (sender, events) = channel();
        let sender = AttemptEventSender::new(move |event| drop(sender.send(event)));
        let mut attempt = self.backend().prepare_attempt(plan, &CAPTURE, false, sender).unwrap();
        attempt.release_command().unwrap();
        drain(&events)
    }

    #[track_caller]
    fn commit(&self, id: &StageId) {
        let stage = self.stages().open_for_changes(id).unwrap();
        let committed = stage.commit_changes(&CommitRequest::default(), &mut SilentObserver).unwrap();
        assert!(committed.is_gone, "{committed:?}");
    }
}

fn drain(events: &Receiver<AttemptEvent>) -> (AttemptEnd, Vec<Denial>) {
    let mut denials = Vec::new();
    let give_up = Instant::now() + TIMEOUT;
    loop {
        let remaining = give_up.saturating_duration_since(Instant::now());
        match events.recv_timeout(remaining).expect("the attempt ends") {
            AttemptEvent::Denied(denial) | AttemptEvent::Breached(denial) => denials.push(denial),
            AttemptEvent::Executed { .. } | AttemptEvent::Connection(_) | AttemptEvent::Signed { .. } => {}
            AttemptEvent::Held { .. } | AttemptEvent::Withdrawn(_) | AttemptEvent::Stopped(_) => {
                panic!("it was not told to hold")
            }
            AttemptEvent::Ended(end) => return (end, denials),
        }
    }
}

/// What a staged run is compared by: everything that the broker does on behalf.
const WORK: &str = "set -e; echo new >n; echo more >>a; : >b; rm gone; mkdir -p x/y; echo deep >x/y/z; mv x/y/z d/z; \
    ln a hard; ln -s a soft; chmod 750 a; touch -d 2001-01-01 b; truncate -s 2M holes; mkfifo pipe; rm -r old; \
    mkdir old; echo fresh >old/new; mv new_dir renamed 2>/dev/null || true; cp -a d copy; rmdir x/y; \
    setfattr -n user.k -v v n 2>/dev/null || true; cat a n d/z old/new >all";
const BEFORE: &str = "echo a >a; echo b >b; touch gone; mkdir d; echo d >d/d; mkdir old; touch old/old";

#[test]
fn a_stage_has_the_changes_of_a_native_run() {
    in_each_role("a_stage_has_the_changes_of_a_native_run", || {
        for level in LEVELS {
            let scene = Scene::at(level, BEFORE);
            let native = scene.top().join("native");
            copy_tree(&scene.workspace(), &native);
            run_in(&native, WORK);
            let untouched = picture(&scene.workspace(), i64::MAX);
            let (id, denials) = scene.run(WORK);
            assert_eq!(denials, []);
            assert_same(&untouched, &picture(&scene.workspace(), i64::MAX), "while it is staged");
            scene.commit(&id.unwrap());
            assert_same(&picture(&native, FRESH), &picture(&scene.workspace(), FRESH), "committed");
            assert!(scene.stages().list_stages().unwrap().is_empty());
        }
    });
}

#[test]
fn a_run_that_changes_nothing_leaves_no_stage() {
    in_each_role("a_run_that_changes_nothing_leaves_no_stage", || {
        let scene = Scene::new("echo a >a");
        let (id, _) = scene.run("cat a; touch t; rm t; : >>a; echo x >/tmp/private");
        assert_eq!(id, None);
        assert!(scene.stages().list_stages().unwrap().is_empty());
    });
}

#[test]
fn the_working_directory_and_reads_are_staged_too() {
    in_each_role("the_working_directory_and_reads_are_staged_too", || {
        for level in LEVELS {
            let scene = Scene::at(level, "mkdir d; echo below >d/f; chmod 700 d");
            let mut plan = scene.plan("pwd; cat f; echo above >f; cat f; echo x >../top; ls ..");
            plan.cwd = scene.workspace().join("d").into();
            let (end, denials) = scene.try_run(&plan);
            let expected = format!("{}\nbelow\nabove\nd\ntop\n", scene.workspace().join("d").display());
            assert_eq!(String::from_utf8_lossy(end.stdout.unwrap().as_bytes()), expected, "{denials:?}");
            assert_eq!(fs::read_to_string(scene.workspace().join("d/f")).unwrap(), "below\n");
        }
    });
}

#[test]
fn protected_names_are_refused_in_a_stage_as_well() {
    in_each_role("protected_names_are_refused_in_a_stage_as_well", || {
        for level in LEVELS {
            let scene = Scene::at(level, "mkdir -p .git/hooks; echo c >.git/config");
            let (_, denials) =
                scene.run("echo x >.git/hooks/pre-commit; echo y >>.git/config; mkdir .vscode; mv .git moved; true");
            let objects: Vec<String> = denials
                .iter()
                .map(|denial| {
                    let path = denial.object.as_path().strip_prefix(scene.workspace()).unwrap();
                    path.display().to_string()
                })
                .collect();
            assert_eq!(objects, [".git/hooks/pre-commit", ".git/config", ".vscode", ".git"]);
            assert!(scene.stages().list_stages().unwrap().is_empty());
        }
    });
}

#[test]
fn writes_granted_at_the_start_are_staged() {
    in_each_role("writes_granted_at_the_start_are_staged", || {
        for level in LEVELS {
            let scene = Scene::at(level, "mkdir -p .git; echo c >.git/index");
            let mut plan = scene.plan("echo new >.git/index; echo m >.git/made; mkdir .vscode; echo t >.vscode/t");
            for name in [".git", ".vscode"] {
                let path = scene.workspace().join(name);
                plan.profile.filesystem.write.push(path.clone().into());
                plan.grants.push(Grant::Write(path));
            }
            let (end, denials) = scene.try_run(&plan);
            assert_eq!((end.end, denials), (CommandEnd::Exited(0), vec![]));
            assert_eq!(fs::read_to_string(scene.workspace().join(".git/index")).unwrap(), "c\n");
            assert!(!scene.workspace().join(".vscode").exists());
            // The yes was for the run. The commit asks for itself.
            let stage = scene.stages().open_for_changes(&end.staged.unwrap().stage).unwrap();
            let committed = stage.commit_changes(&CommitRequest::default(), &mut SilentObserver).unwrap();
            assert_eq!((committed.paths.len(), committed.held.len()), (0, 4));
        }
    });
}

#[test]
fn writes_granted_later_are_staged() {
    in_each_role("writes_granted_later_are_staged", || {
        for level in LEVELS {
            let scene = Scene::at(level, "mkdir -p .git; echo c >.git/index; touch .git/gone");
            let plan =
                scene.plan("set -e; echo new >.git/index; rm .git/gone; echo m >.git/made; mv .git/made .git/moved");
            let (sender, events) = channel();
            let sender = AttemptEventSender::new(move |event| drop(sender.send(event)));
            let mut attempt = scene.backend().prepare_attempt(&plan, &CAPTURE, true, sender).unwrap();
            attempt.release_command().unwrap();
            let staged = loop {
                match events.recv_timeout(TIMEOUT).unwrap() {
                    AttemptEvent::Held { id, .. } => {
                        let grant = Grant::Write(scene.workspace().join(".git"));
                        attempt.answer_call(id, HeldAnswer::Granted(vec![grant]));
                    }
                    AttemptEvent::Ended(end) => {
                        assert_eq!(end.end, CommandEnd::Exited(0), "{:?}", end.stderr);
                        break end.staged.unwrap();
                    }
                    AttemptEvent::Denied(denial) | AttemptEvent::Breached(denial) => panic!("{denial:?}"),
                    _ => {}
                }
            };
            assert_eq!(fs::read_to_string(scene.workspace().join(".git/index")).unwrap(), "c\n");
            assert!(scene.workspace().join(".git/gone").exists() && !scene.workspace().join(".git/moved").exists());
            assert_eq!(staged.changes, 3);
            let stage = scene.stages().open_for_changes(&staged.stage).unwrap();
            let agreed = CommitRequest { agreed: vec![".git".into()], ..CommitRequest::default() };
            assert!(stage.commit_changes(&agreed, &mut SilentObserver).unwrap().is_gone);
            run_in(&scene.workspace(), "grep -q new .git/index; test ! -e .git/gone; grep -q m .git/moved");
        }
    });
}

#[test]
fn a_directory_from_below_is_not_renamed_but_copied() {
    in_each_role("a_directory_from_below_is_not_renamed_but_copied", || {
        for level in LEVELS {
            let scene = Scene::at(level, "mkdir d; echo x >d/x");
            let rename = "python3 -c 'import os, errno\ntry: os.rename(\"d\", \"e\")\n\
                          except OSError as e: assert e.errno == errno.EXDEV, e\nelse: raise SystemExit(3)'";
            let (id, denials) = scene.run(&format!("set -e; {rename}; mv d e; test -e e/x; test ! -e d"));
            assert_eq!(denials, []);
            scene.commit(&id.unwrap());
            run_in(&scene.workspace(), "test -e e/x; test ! -e d");
        }
    });
}

/// Runs `script`, with `meanwhile` done to the workspace while it waits between
/// its two halves: what stands against a commit.
#[track_caller]
fn check_conflict(first: &str, meanwhile: &str, second: &str, expected: &[(&str, WorkspaceChange)]) {
    let scene = Scene::new("echo a >a; echo big >big; mkdir d; echo x >d/x; echo l >l");
    // An overlay does not look for what appears below: word comes by another way.
    let flags = scene.top().join("flags");
    fs::create_dir(&flags).unwrap();
    let go = flags.join("go");
    let wait = format!("until test -e {}; do sleep 0.02; done", go.display());
    let mut plan = scene.plan(&format!("set -e; {first}; mkfifo told; {wait}; {second}; rm told"));
    plan.profile.filesystem.write.push(flags.into());
    let (sender, events) = channel();
    let sender = AttemptEventSender::new(move |event| drop(sender.send(event)));
    let mut attempt = scene.backend().prepare_attempt(&plan, &CAPTURE, false, sender).unwrap();
    attempt.release_command().unwrap();
    let upper = |name: &str| {
        let listed = scene.stages().list_stages().unwrap();
        scene.top().join("stages").join(listed[0].id.as_str()).join("upper").join(name)
    };
    support::wait_until("the first half is done", || upper("told").exists());
    run_in(&scene.workspace(), meanwhile);
    fs::write(&go, "").unwrap();
    let (end, denials) = drain(&events);
    assert_eq!(end.end, CommandEnd::Exited(0), "{:?} {denials:?}", end.stderr);
    let stage = scene.stages().open_for_changes(&end.staged.unwrap().stage).unwrap();
    match stage.commit_changes(&CommitRequest::default(), &mut SilentObserver) {
        Err(StageCommitError::Conflicts(found)) => {
            let found: Vec<(&str, WorkspaceChange)> =
                found.iter().map(|conflict| (conflict.path.to_str().unwrap(), conflict.meanwhile)).collect();
            assert_eq!(found, expected, "{first}; {second} against {meanwhile}");
        }
        Ok(_) => assert_eq!(expected, [], "{first}; {second} against {meanwhile} was committed"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn the_baseline_distinguishes_content_from_times() {
    use WorkspaceChange::{Changed, Created, Removed};
    in_each_role("the_baseline_distinguishes_content_from_times", || {
        // Touched, or changed and changed back: still what it was.
        check_conflict("echo b >>a", "touch a", "true", &[]);
        check_conflict("echo b >>a", "echo c >a; echo a >a", "true", &[]);
        check_conflict("echo b >>a", "cp a t; mv t a", "true", &[]);
        check_conflict("rm -r d", "touch d d/x", "true", &[]);
        // Changed for good.
        check_conflict("echo b >>a", "echo c >a", "true", &[("a", Changed)]);
        check_conflict("echo b >>a", "chmod 600 a", "true", &[("a", Changed)]);
        check_conflict("echo b >>a", "rm a", "true", &[("a", Removed)]);
        check_conflict("echo n >n", "echo m >n", "true", &[("n", Created)]);
        check_conflict("rm -r d", "echo y >d/y", "true", &[("d/y", Changed)]);
        // Changed before the run first looked: it may have acted on what was.
        check_conflict("true", "echo c >a; echo a >a", "echo b >>a", &[("a", Changed)]);
        check_conflict("true", "echo c >l", "rm l", &[("l", Changed)]);
    });
}

#[test]
fn a_second_attempt_begins_anew() {
    in_each_role("a_second_attempt_begins_anew", || {
        for level in LEVELS {
            let scene = Scene::at(level, "echo a >a");
            let (first, _) = scene.run("echo once >>a");
            let mut plan = scene.plan("echo twice >>a");
            plan.attempt = 2;
            let (end, _) = scene.try_run(&plan);
            let second = end.staged.unwrap().stage;
            assert_ne!(first.unwrap(), second);
            assert_eq!(scene.stages().list_stages().unwrap().len(), 1);
            scene.commit(&second);
            assert_eq!(fs::read_to_string(scene.workspace().join("a")).unwrap(), "a\ntwice\n");
        }
    });
}

#[test]
fn an_unstageable_run_does_not_start() {
    in_each_role("an_unstageable_run_does_not_start", || {
        let scene = Scene::new("true");
        let refused = |plan: &AttemptPlan, backend: NativeBackend| {
            let (sender, _events) = channel();
            let sender = AttemptEventSender::new(move |event| drop(sender.send(event)));
            backend.prepare_attempt(plan, &CAPTURE, false, sender).err().expect("it is refused")
        };
        let mut restricted = scene.plan("touch ran");
        restricted.level = IsolationLevel::Restricted;
        let other_filesystem = tempfile::tempdir_in("/dev/shm").unwrap();
        let elsewhere = NativeBackend::with_options(
            None,
            NativeOptions {
                stages: Some(other_filesystem.path().canonicalize().unwrap().join("stages")),
                ..NativeOptions::default()
            },
        );
        let error = refused(&restricted, elsewhere);
        assert!(error.what.contains("another filesystem"), "{error:?}");
        let error = refused(&scene.plan("touch ran"), NativeBackend::default());
        assert!(error.what.contains("no directory for stages"), "{error:?}");
        let inside = NativeBackend::with_options(
            None,
            NativeOptions { stages: Some(scene.workspace().join("stages")), ..NativeOptions::default() },
        );
        let error = refused(&scene.plan("touch ran"), inside);
        assert!(error.what.contains("cannot be staged"), "{error:?}");
        assert!(!scene.workspace().join("ran").exists());
    });
}

/// Not by any way to it: by its name, by a descriptor, by another of its names.
#[test]
fn backups_are_never_written_to() {
    const WAYS: &str = "python3 -c 'import os
fd = os.open(\"a\", os.O_RDONLY)
os.fchmod(fd, 0o600)
os.utime(fd, (5, 5))
os.setxattr(fd, b\"user.k\", b\"v\")
os.fchmod(fd, 0o640)
with open(\"/proc/self/fd/%d\" % fd, \"a\") as file: file.write(\"again\")
os.truncate(\"b\", 1)
os.link(\"c\", \"n\")
open(\"n\", \"w\").write(\"through another name\")
os.rename(\"e\", \"f\")
open(\"f\", \"w\").write(\"elsewhere\")
os.link(\"/proc/self/fd/%d\" % fd, \"m\", src_dir_fd=os.open(\".\", 0))
open(\"m\", \"w\").write(\"by a link\")
'";
    in_each_role("backups_are_never_written_to", || {
        let before = "echo a >a; ln a b; echo c >c; echo e >e; touch -d 2001-01-01 a c e .";
        let scene = Scene::at(IsolationLevel::Restricted, before);
        let identities = || ["a", "b", "c", "e"].map(|name| fs::metadata(scene.workspace().join(name)).unwrap().ino());
        let held = fs::File::open(scene.workspace().join("a")).unwrap();
        let (untouched, known) = (picture(&scene.workspace(), i64::MAX), identities());
        let (id, denials) = scene.run(WAYS);
        assert_eq!(denials, []);
        assert_same(&untouched, &picture(&scene.workspace(), i64::MAX), "taken back");
        assert_eq!(identities(), known, "the very objects");
        assert_eq!(std::io::read_to_string(held).unwrap(), "a\n");
        scene.commit(&id.unwrap());
        run_in(&scene.workspace(), "grep -q link a; grep -q link m; test $(stat -c %s b) = 1; grep -q elsewhere f");
        run_in(&scene.workspace(), "grep -q another c; grep -q another n; test ! -e e; test $(stat -c %a a) = 640");
    });
}

/// Set in the process that is to be killed: what it does, and where.
const VICTIM: &str = "STOCKADE_TEST_VICTIM";
const PLACE: &str = "STOCKADE_TEST_PLACE";
/// Of every kind of change; then it waits to be killed.
const CUT_OFF: &str = "for n in $(seq 200); do echo $n >n$n; done; echo b >>a; rm -r d; mkdir d; echo y >d/y; chmod 600 e; \
    mkdir made; mv a made/a; ln -s x l; touch done; sleep 60";

/// Not a test: runs without an overlay, or puts back what that left.
#[test]
fn victim() {
    let (Ok(what), Some(top)) = (std::env::var(VICTIM), std::env::var_os(PLACE)) else { return };
    let top = PathBuf::from(top);
    if what == "recover" {
        let _ = recover_all(&StageDirectory::open(&top.join("stages")).unwrap(), None);
        return;
    }
    let mut plan = script(IsolationLevel::Restricted, &top.join("w"), CUT_OFF);
    plan.profile.filesystem.stage = true;
    let backend = NativeBackend::with_options(
        None,
        NativeOptions { stages: Some(top.join("stages")), ..NativeOptions::default() },
    );
    let mut attempt = backend.prepare_attempt(&plan, &CAPTURE, false, AttemptEventSender::new(|_| {})).unwrap();
    attempt.release_command().unwrap();
    std::thread::sleep(TIMEOUT);
}

fn start_victim(what: &str, top: &Path) -> std::process::Child {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "victim", "--nocapture", "--test-threads", "1"]).env(VICTIM, what).env(PLACE, top);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap()
}

#[test]
fn a_run_without_an_overlay_that_was_killed_is_taken_back() {
    in_each_role("a_run_without_an_overlay_that_was_killed_is_taken_back", || {
        let before = "echo a >a; mkdir d; echo x >d/x; echo e >e; touch -d 2001-01-01 a d e .";
        let scene = Scene::at(IsolationLevel::Restricted, before);
        let native = scene.top().join("native");
        copy_tree(&scene.workspace(), &native);
        let untouched = picture(&scene.workspace(), i64::MAX);
        let mut run = start_victim("run", &scene.top());
        support::wait_until("it wrote everything", || scene.workspace().join("done").exists());
        run.kill().unwrap();
        run.wait().unwrap();
        let id = scene.stages().list_stages().unwrap()[0].id.clone();
        support::wait_until("nobody writes any more", || scene.stages().open_for_changes(&id).is_ok());
        assert!(scene.stages().list_stages().unwrap()[0].cut_off);
        // What was put aside is never thrown away.
        assert!(scene.stages().open_for_changes(&id).unwrap().remove().is_err());
        // Killed again while it is put back, wherever that is.
        for delay_ms in [0, 1, 2, 4, 8, 16, 32] {
            let mut recovery = start_victim("recover", &scene.top());
            std::thread::sleep(std::time::Duration::from_millis(delay_ms));
            recovery.kill().unwrap();
            recovery.wait().unwrap();
        }
        recover_all(&scene.stages(), None).unwrap();
        assert_same(&untouched, &picture(&scene.workspace(), i64::MAX), "taken back");
        scene.commit(&id);
        run_in(&native, CUT_OFF.strip_suffix("sleep 60").unwrap());
        assert_same(&picture(&native, FRESH), &picture(&scene.workspace(), FRESH), "committed");
    });
}

#[test]
fn a_read_only_run_needs_no_stage() {
    let scene = Scene::new("echo a >a");
    let mut plan = plan(IsolationLevel::Full, &scene.workspace(), &["cat", "a"]);
    plan.profile.filesystem.write.clear();
    plan.profile.filesystem.stage = true;
    let (end, _) = scene.try_run(&plan);
    assert_eq!((end.end, end.staged), (CommandEnd::Exited(0), None));
    assert!(!Path::new(&scene.top().join("stages")).exists());
}

#[test]
fn a_file_that_is_open_in_the_workspace_is_not_reached() {
    // Neither by its name nor by a descriptor that leads there.
    in_each_role("a_file_that_is_open_in_the_workspace_is_not_reached", || {
        for level in LEVELS {
            let scene = Scene::at(level, "echo a >a");
            let (id, _) =
                scene.run("exec 3<>a; echo b >&3; echo c >/proc/self/fd/3; exec 4<a; echo d >/dev/fd/4 || true");
            assert_eq!(fs::read_to_string(scene.workspace().join("a")).unwrap(), "a\n");
            assert!(id.is_some());
        }
    });
}

//! A stage against a run on a copy of the workspace: after the commit both trees
//! are equal, after a discard nothing happened. One case for every pair of what
//! is staged and what is there, and one for every kind of metadata.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod roles;
mod stage_support;

use std::path::{Path, PathBuf};

use stage_support::{Scene, assert_same, copy_tree, picture, run_in};
use stockade_stage::{
    ChangeKind, CommitRequest, HoldReason, ObjectKind, StageChange, StageCommitError, WorkspaceChange,
};
use stockade_testkit::few_or_all;

/// Seconds since the epoch before which no test runs: older times were set.
const FRESH: i64 = 1_600_000_000;

/// Runs `script` on a workspace made by `before`: natively, staged and
/// discarded, staged and committed.
#[track_caller]
fn check(before: &str, script: &str) {
    check_in(&Scene::new(before), script);
    check_in(&Scene::other_filesystem(before), script);
}

#[track_caller]
fn check_in(scene: &Scene, script: &str) {
    let untouched = scene.picture();
    let native = scene.beside();
    copy_tree(&scene.workspace(), &native);
    run_in(&native, script);

    let id = scene.staged(script);
    assert_same(&untouched, &scene.picture(), "staged only");
    scene.stages().open_for_changes(&id).unwrap().discard_changes(&[]).unwrap();
    assert_same(&untouched, &scene.picture(), "discarded");
    assert!(scene.stages().list_stages().unwrap().is_empty());

    let id = scene.staged(script);
    scene.commit_all(&id);
    assert_same(&picture(&native, FRESH), &picture(&scene.workspace(), FRESH), script);
    let stage_entries: Vec<_> = std::fs::read_dir(scene.root.join("stages")).unwrap().collect();
    assert!(stage_entries.is_empty(), "{stage_entries:?}");
}

/// What may be there before, by name.
const PRESENT: [(&str, &str); 4] = [
    ("nothing", "true"),
    ("file", "echo old >x"),
    ("directory", "mkdir -p x/in; echo deep >x/in/file; echo old >x/a; ln -s a x/b"),
    ("link", "ln -s /nowhere x"),
];

/// What a run may make of it. Each begins by removing what is there.
const STAGED: [(&str, &str); 7] = [
    ("nothing", "true"),
    ("file", "echo new >x"),
    ("empty directory", "mkdir x"),
    ("directory", "mkdir -p x/in; echo fresh >x/new; echo deeper >x/in/other"),
    ("link", "ln -s target x"),
    ("broken link", "ln -s /this/is/nowhere x"),
    ("pipe", "mkfifo x"),
];

#[test]
fn whatever_is_there_becomes_whatever_is_staged() {
    for (_, present) in PRESENT {
        for (_, staged) in STAGED {
            check(present, &format!("rm -rf x; {staged}"));
        }
    }
}

#[test]
fn sockets_are_kept_as_names() {
    let make = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"x\")'";
    for (_, present) in PRESENT {
        check(present, &format!("rm -rf x; {make}"));
    }
}

#[test]
fn an_object_made_and_removed_is_no_change() {
    let scene = Scene::new("echo a >a");
    let id = scene.staged("touch absent; sync; rm absent; : >>a");
    let changes = scene.stages().open_for_reading(&id).unwrap().read_changes().unwrap();
    assert!(changes.is_empty(), "{changes:?}");
    scene.commit_all(&id);
}

#[test]
fn content_and_names() {
    check("echo a >a", "echo b >>a");
    check("echo aaaa >a", "truncate -s 2 a");
    check("echo a >a; mkdir d", "mv a d/b");
    check("mkdir -p d/e; echo x >d/e/f", "mv d/e/f d/g; rmdir d/e");
    check("mkdir -p d/e; echo x >d/e/f", "cp -a d c; rm -r d");
    check("echo a >a; echo b >b", "mv a t; mv b a; mv t b");
    check("echo a >a", "printf 'new\\nline' >'new\nname'; echo x >'  spaces '; echo y >-dash");
    check("echo a >a", "echo x >\"$(printf 'bad\\377name')\"");
    check("mkdir d; echo a >d/a", "rm d/a; mkdir d/a; echo b >d/a/b");
    check("mkdir d; echo a >d/a", "rm -r d; mkdir d; echo n >d/n");
    check("mkdir d", "mkdir -p e/f/g; touch e/f/g/h; rmdir d");
}

#[test]
fn metadata() {
    check("echo a >a", "chmod 600 a");
    check("echo a >a", "touch -d '2001-02-03 04:05:06.789' a");
    check("echo a >a; touch -d 2001-01-01 a", "echo b >>a; touch -d '1999-12-31 23:59:59.5' a");
    check("mkdir d; touch -d 2001-01-01 d", "chmod 750 d; touch -d 2002-02-02 d");
    check("mkdir d; touch -d 2001-01-01 d; chmod 1777 d", "echo x >d/x; touch -d 2003-03-03 d");
    check("mkdir d; echo a >d/a; touch -d 2001-01-01 d", "echo b >>d/a");
    check("echo a >a; setfattr -n user.k -v v a", "setfattr -x user.k a; setfattr -n user.n -v m a");
    check("echo a >a; setfattr -n user.k -v v a", "echo b >a; setfattr -n user.k -v w a");
    check("mkdir d", "setfattr -n user.k -v v d; mkdir e; setfattr -n user.l -v w e");
    // An access list: user::rw, its owner by number:r, group::r, mask::r, other::r. In
    // the namespace where it is staged that number may be another.
    let acl = "python3 -c 'import os,struct
os.setxattr(\"a\", \"system.posix_acl_access\", struct.pack(\"<I\", 2) + b\"\".join(struct.pack(\"<HHI\", *e)
  for e in [(1,6,2**32-1),(2,4,os.getuid()),(4,4,2**32-1),(16,4,2**32-1),(32,4,2**32-1)]))'";
    check("echo a >a", acl);
    check("true", &format!("echo b >a; {acl}"));
    check("true", "chmod 755 .; setfattr -n user.root -v yes .; touch -d 2004-04-04 .");
    check("mkdir d; echo a >d/a; chmod 555 d", "chmod 755 d; echo b >d/b; rm d/a; chmod 555 d");
    check("mkdir d", "mkdir n; echo x >n/x; chmod 555 n; touch -d 2005-05-05 n");
    check("mkdir s; chmod 2755 s", "echo x >s/x; mkdir s/d");
}

#[test]
fn objects_read_only_for_their_owner_are_changed_and_stay_so() {
    roles::in_each_role("objects_read_only_for_their_owner_are_changed_and_stay_so", || {
        let closed = "mkdir -p d/e; echo a >d/a; echo x >d/e/x; touch -d 2001-01-01 d; chmod 555 d/e d";
        check(closed, "chmod 755 d; echo b >d/b; rm d/a; touch -d 2002-02-02 d; chmod 555 d");
        check(closed, "chmod 755 d d/e; rm -r d");
        check(closed, "chmod 755 d d/e; rm -r d; echo f >d");
        check(closed, "chmod 755 d; mv d/a d/z; chmod 500 d");
        check("true", "mkdir -p n/m; echo x >n/m/x; chmod 400 n/m/x; touch -d 2001-01-01 n/m n; chmod 555 n/m n");
        check("echo a >a; chmod 444 a", "chmod 644 a; echo b >>a; chmod 444 a");
        check("echo a >a", "chmod 000 a; mkdir -m 000 closed");
        check("echo f >f", "rm f; mkdir f; echo in >f/in; chmod 500 f");
    });
}

#[test]
fn several_names_of_one_file() {
    check("echo a >a", "ln a b");
    check("echo a >a", "ln a b; echo more >>b");
    check("echo a >a", "ln a b; rm a");
    check("echo a >a; mkdir d", "ln a d/b; ln d/b c; chmod 600 c");
    check("true", "echo n >n; ln n m; mkdir d; ln n d/o; ln -s n l; ln -P l d/l");
    check("echo a >a", "ln a b; touch -d 2001-01-01 b");
}

#[test]
fn holes_stay_holes() {
    let sparse = "truncate -s 8M s; printf x | dd of=s bs=1 seek=4000000 conv=notrunc status=none";
    check("true", sparse);
    check(&format!("{sparse}; sync"), "printf y | dd of=s bs=1 seek=6000000 conv=notrunc status=none");
    check("echo a >s", "rm s; truncate -s 8M s");
}

/// The changes of a stage as lines: how, kind, path.
fn lines(changes: &[StageChange]) -> Vec<String> {
    let shown = changes.iter().filter(|change| !change.is_incidental);
    shown
        .map(|change| {
            let kind = change.staged.or(change.present).map(|facts| facts.kind).unwrap();
            format!("{:?} {kind:?} {}", change.how, change.path.display())
        })
        .collect()
}

#[test]
fn the_difference_names_every_change() {
    let scene = Scene::new("echo fail >file_2; touch target gone; mkdir keep; echo k >keep/k; ln -s a l; echo w >why");
    let id = scene.staged(
        "touch file_1; echo test >file_2; rm gone target; mkdir target; mkdir -p new/nested; \
         : >>keep/k; ln -sf b l; chmod 600 why; touch target/in",
    );
    let changes = scene.stages().open_for_reading(&id).unwrap().read_changes().unwrap();
    let expected = [
        "Added File file_1",
        "Modified File file_2",
        "Removed File gone",
        "Modified Link l",
        "Added Directory new",
        "Added Directory new/nested",
        "Replaced Directory target",
        "Added File target/in",
        "Metadata File why",
    ];
    assert_eq!(lines(&changes.list), expected);
}

#[test]
fn a_part_is_committed_and_the_rest_stays() {
    let scene = Scene::new("echo a >a; echo b >b; mkdir d; echo x >d/x; echo y >d/y");
    let script = "echo A >a; echo B >b; rm -r d; mkdir d; echo X >d/x; mkdir -p n/m; echo 1 >n/m/1; echo 2 >n/2";
    let native = scene.beside();
    copy_tree(&scene.workspace(), &native);
    run_in(&native, script);
    let id = scene.staged(script);
    let part = |paths: &[&str]| CommitRequest { paths: paths.iter().map(PathBuf::from).collect(), agreed: Vec::new() };
    let committed = scene.commit(&id, &part(&["a", "d/x", "n/m"])).unwrap();
    assert!(!committed.is_gone);
    assert_eq!(committed.paths, ["a", "d/x", "n/m", "n/m/1"].map(PathBuf::from));
    run_in(&scene.workspace(), "test \"$(cat a b d/x d/y n/m/1)\" = \"$(printf 'A\\nb\\nX\\ny\\n1')\"; test ! -e n/2");
    let changes = scene.stages().open_for_reading(&id).unwrap().read_changes().unwrap();
    assert_eq!(lines(&changes.list), ["Modified File b", "Removed File d/y", "Added File n/2"]);
    let (forgotten, is_gone) = scene.stages().open_for_changes(&id).unwrap().discard_changes(&["b".into()]).unwrap();
    assert_eq!((forgotten, is_gone), (vec![PathBuf::from("b")], false));
    scene.commit_all(&id);
    run_in(&native, "echo b >b");
    assert_same(&picture(&native, FRESH), &picture(&scene.workspace(), FRESH), "in parts");
}

#[test]
fn a_part_of_an_indivisible_change_is_refused() {
    let scene = Scene::new("mkdir d; echo x >d/x; echo f >f");
    let id = scene.staged("rm -r d; rm f; mkdir f; echo in >f/in; touch g");
    for (path, within) in [("d/x", Some("d")), ("f/in", Some("f")), ("nothing", None), ("g/x", None)] {
        let commit_request = CommitRequest { paths: vec![path.into()], agreed: Vec::new() };
        match scene.commit(&id, &commit_request) {
            Err(StageCommitError::Nothing { path: named, within: found }) => {
                assert_eq!((named.as_path(), found.as_deref()), (Path::new(path), within.map(Path::new)));
            }
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn protected_names_wait_for_their_own_yes() {
    let scene = Scene::new("mkdir -p .git/hooks sub/.git; echo old >.git/config; touch sub/.git/HEAD; echo a >a");
    let script = "echo new >.git/config; echo evil >.git/hooks/pre-commit; echo x >.git/index; rm -r sub; \
                  echo b >>a; mkdir .vscode; echo t >.vscode/tasks.json; cp /bin/true suid; chmod 4755 suid";
    let id = scene.staged(script);
    let committed = scene.commit(&id, &CommitRequest::default()).unwrap();
    assert_eq!(committed.paths, [PathBuf::from("a")]);
    let held: Vec<(String, Option<String>)> = committed
        .held
        .iter()
        .map(|held| {
            let unit = match &held.why {
                HoldReason::Protected { unit, .. } => Some(unit.display().to_string()),
                HoldReason::Special(_) => None,
            };
            (held.path.display().to_string(), unit)
        })
        .collect();
    let unit = |path: &str, unit: &str| (path.to_owned(), Some(unit.to_owned()));
    assert_eq!(
        held,
        [
            unit(".git/config", ".git/config"),
            unit(".git/hooks/pre-commit", ".git/hooks"),
            unit(".git/index", ".git"),
            unit(".vscode", ".vscode"),
            unit(".vscode/tasks.json", ".vscode"),
            unit("sub", "sub/.git"),
            ("suid".to_owned(), None),
        ]
    );
    run_in(&scene.workspace(), "grep -q old .git/config; test ! -e .git/index; test -e sub; test ! -e suid");
    // A yes for a name stops at the next protected one.
    let agreed = CommitRequest { paths: Vec::new(), agreed: vec![".git".into(), "sub/.git".into()] };
    let committed = scene.commit(&id, &agreed).unwrap();
    assert_eq!(committed.paths, [".git/index", "sub"].map(PathBuf::from));
    run_in(&scene.workspace(), "grep -q old .git/config; test -e .git/index; test ! -e .git/hooks/pre-commit");
}

/// Stages `script`, then changes the workspace by `meanwhile`: what stands
/// against a commit.
#[track_caller]
fn conflicts(before: &str, script: &str, meanwhile: &str, expected: &[(&str, WorkspaceChange)]) {
    let scene = Scene::new(before);
    let id = scene.staged(script);
    scene.native(meanwhile);
    let as_it_is = scene.picture();
    match scene.commit(&id, &CommitRequest::default()) {
        Err(StageCommitError::Conflicts(found)) => {
            let found: Vec<(&str, WorkspaceChange)> =
                found.iter().map(|conflict| (conflict.path.to_str().unwrap(), conflict.meanwhile)).collect();
            assert_eq!(found, expected, "{script} against {meanwhile}");
            assert_same(&as_it_is, &scene.picture(), "a conflict");
        }
        Ok(_) => assert!(expected.is_empty(), "{script} against {meanwhile} was committed"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn changes_of_the_workspace_are_never_overwritten() {
    use WorkspaceChange::Changed;
    let one = "echo a >a; mkdir -p d/e; echo x >d/e/x";
    conflicts(one, "echo b >>a", "echo c >>a", &[("a", Changed)]);
    conflicts(one, "echo b >>a", "echo c >other", &[]);
    conflicts(one, "rm a", "echo c >>a", &[("a", Changed)]);
    conflicts(one, "rm a", "rm a", &[]);
    conflicts(one, "chmod 600 a", "echo c >a", &[("a", Changed)]);
    conflicts(one, "rm -r d", "echo new >d/e/new", &[("d/e/new", Changed)]);
    conflicts(one, "rm -r d", "echo more >>d/e/x", &[("d/e/x", Changed)]);
    conflicts(one, "rm -r d", "rm d/e/x", &[("d/e", Changed)]);
    conflicts(one, "rm -r d; mkdir d", "echo more >d/new", &[("d/new", Changed)]);
    conflicts(one, "echo n >n", "echo m >n", &[("n", Changed)]);
    conflicts(one, "mkdir n", "echo m >n", &[("n", Changed)]);
    conflicts(one, "mkdir n; touch n/x", "mkdir n; touch n/y", &[]);
    conflicts(one, "echo same >n", "echo same >n", &[]);
    conflicts(one, "echo b >a", "mv a t; mv t a", &[("a", Changed)]);
    conflicts(one, "rm a; mkdir a", "echo c >>a", &[("a", Changed)]);
}

#[test]
fn a_long_name_of_directories_is_walked_and_a_longer_one_refused() {
    let deep = |levels: usize| {
        format!(
            "python3 -c 'import os\nfor i in range({levels}): os.mkdir(\"d\"); os.chdir(\"d\")\nopen(\"end\",\"w\")'"
        )
    };
    let scene = Scene::new("true");
    let id = scene.staged(&deep(150));
    scene.commit_all(&id);
    let scene = Scene::new("true");
    let id = scene.staged(&deep(1500));
    let refused = scene.stages().open_for_reading(&id).unwrap().read_changes().unwrap_err().to_string();
    assert!(refused.contains("too deep"), "{refused}");
    scene.stages().open_for_changes(&id).unwrap().discard_changes(&[]).unwrap();
    assert!(scene.root.join("stages").read_dir().unwrap().next().is_none());
}

#[test]
fn the_kinds_are_printed() {
    let scene = Scene::new("true");
    let id = scene.staged("mkfifo p; ln -s x l; mkdir d; touch f");
    let changes = scene.stages().open_for_reading(&id).unwrap().read_changes().unwrap();
    let kinds: Vec<(ChangeKind, ObjectKind)> = changes
        .list
        .iter()
        .filter(|change| !change.is_incidental)
        .map(|change| (change.how, change.staged.unwrap().kind))
        .collect();
    assert_eq!(
        kinds,
        [
            (ChangeKind::Added, ObjectKind::Directory),
            (ChangeKind::Added, ObjectKind::File),
            (ChangeKind::Added, ObjectKind::Link),
            (ChangeKind::Added, ObjectKind::Pipe)
        ]
    );
}

#[test]
fn thousands_of_files_are_committed_with_progress() {
    struct RecordedProgress(Vec<(usize, usize)>);
    impl stockade_stage::CommitObserver for RecordedProgress {
        fn on_progress(&mut self, done: usize, total: usize) {
            self.0.push((done, total));
        }
    }
    let scene = Scene::new("true");
    let stage = scene.stage();
    let id = stage.id().clone();
    drop(stage);
    // As an overlay would leave them, without the cost of one.
    let upper = scene.root.join("stages").join(id.as_str()).join("upper");
    // Fifty thousand of them where everything is asked for.
    let each = few_or_all(100, 500);
    for directory in 0..100 {
        std::fs::create_dir(upper.join(format!("d{directory}"))).unwrap();
        for file in 0..each {
            std::fs::write(upper.join(format!("d{directory}/f{file}")), "x").unwrap();
        }
    }
    let mut progress = RecordedProgress(Vec::new());
    let committed =
        scene.stages().open_for_changes(&id).unwrap().commit_changes(&CommitRequest::default(), &mut progress).unwrap();
    assert_eq!((committed.paths.len(), committed.is_gone), (100 * each + 100, true));
    let count = |name: &str| scene.workspace().join(name).read_dir().unwrap().count();
    assert_eq!((count(""), count("d7")), (100, each));
    assert!(progress.0.len() > 100 * each && progress.0.iter().all(|(done, total)| done <= total));
    assert_eq!(progress.0.last().map(|(done, total)| done == total), Some(true));
}

#[test]
fn content_torn_by_a_power_failure_is_not_committed() {
    let scene = Scene::new("echo a >a");
    let id = scene.staged("echo b >>a");
    let meta = scene.root.join("stages").join(id.as_str()).join("meta.json");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = std::fs::read_to_string(&meta).unwrap().replace(boot.trim(), "another");
    std::fs::write(&meta, text).unwrap();
    let refused = scene.commit(&id, &CommitRequest::default()).unwrap_err().to_string();
    assert!(refused.contains("machine went down"), "{refused}");
    assert_eq!(std::fs::read_to_string(scene.workspace().join("a")).unwrap(), "a\n");
    scene.stages().open_for_changes(&id).unwrap().record_end("exited 0").unwrap();
    scene.commit_all(&id);
}

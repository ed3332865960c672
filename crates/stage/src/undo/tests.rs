//! A small model of a sandbox's calls on a real tree, compared with a snapshot of the tree.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags, renameat_with, utimensat};
use stockade_model::{DEFAULT_PROTECTED_NAMES, RequestId};
use stockade_sys::Errno;

use super::journal::{JournalLine, open_journal};
use super::store::count_slots;
use super::*;

#[path = "tests_beside.rs"]
mod beside;

const LIMIT_BYTES: u64 = 1 << 20;

/// Visible state of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    kind: String,
    mode: u32,
    modified: (i64, i64),
    content: Vec<u8>,
    attribute: Vec<u8>,
    /// The first path that is the same file.
    first: PathBuf,
}

fn snapshot(root: &Path) -> BTreeMap<PathBuf, Shown> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.insert(path.strip_prefix(root).unwrap().to_owned(), (path, meta));
    }
    let mut firsts: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let show = |(name, (path, meta)): (PathBuf, (PathBuf, fs::Metadata))| {
        let content = if meta.is_file() {
            fs::read(&path).unwrap()
        } else if meta.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let mut attribute = vec![0; 64];
        let length = match meta.is_file() || meta.is_dir() {
            true => rustix::fs::lgetxattr(&path, "user.test", &mut attribute).unwrap_or(0),
            false => 0,
        };
        attribute.truncate(length);
        let first = firsts.entry(meta.ino()).or_insert_with(|| name.clone()).clone();
        // A restored symbolic link has a new time, which nothing depends on.
        let modified = (meta.mtime(), meta.mtime_nsec());
        let shown =
            Shown { kind: format!("{:?}", meta.file_type()), mode: meta.mode(), modified, content, attribute, first };
        (name, shown)
    };
    found.into_iter().map(show).collect()
}

fn new_run(request: RequestId, workspace: PathBuf, limit_bytes: u64) -> NewUndoRun {
    NewUndoRun { request, command: "test".into(), workspace, limit_bytes, protect: protected() }
}

fn protected() -> Vec<String> {
    DEFAULT_PROTECTED_NAMES.iter().map(|name| (*name).to_owned()).collect()
}

/// Waits longer than a tick of the clock of file times.
fn tick() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

struct Scene {
    scratch: tempfile::TempDir,
    request: RequestId,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { scratch: tempfile::tempdir().unwrap(), request: RequestId::from_random([7; 16]) };
        let root = scene.root();
        for directory in ["a/b/c", "b/a", "c"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for (path, text) in [("a/a", "one"), ("a/b/a", "two"), ("a/b/c/d", "deep"), ("b/b", ""), ("d", "top")] {
            fs::write(root.join(path), text).unwrap();
        }
        fs::hard_link(root.join("a/a"), root.join("b/a/a")).unwrap();
        fs::hard_link(root.join("d"), root.join("c/d")).unwrap();
        symlink("../d", root.join("b/c")).unwrap();
        fs::set_permissions(root.join("a/b/a"), fs::Permissions::from_mode(0o400)).unwrap();
        fs::set_permissions(root.join("c"), fs::Permissions::from_mode(0o750)).unwrap();
        let _ = rustix::fs::setxattr(root.join("d"), "user.test", b"kept", XattrFlags::empty());
        for (path, seconds) in [("a/a", 1_000_000), ("a/b", 2_000_000), ("c", 3_000_000), ("", 4_000_000)] {
            set_time(&root.join(path), seconds);
        }
        scene
    }

    fn root(&self) -> PathBuf {
        let root = self.scratch.path().canonicalize().unwrap().join("w");
        fs::create_dir_all(&root).unwrap();
        root
    }

    fn store(&self) -> UndoStore {
        UndoStore::open_or_create(&self.scratch.path().join("undo")).unwrap()
    }

    fn begin(&self, limit_bytes: u64) -> (UndoRun, UndoRecorder) {
        let new = new_run(self.request.clone(), self.root(), limit_bytes);
        self.store().begin_run(&new).unwrap()
    }

    fn restore(&self, paths: &[&str]) -> RestoreResult {
        let run = self.store().open_run(&self.request).unwrap();
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        run.restore_paths(&paths, false, &mut |_| Ok(())).unwrap()
    }

    /// Carries out one call of a run: records it, then makes it. Skips calls that the kernel
    /// refuses.
    fn act(&self, recorder: &mut UndoRecorder, act: u8, one: u8, other: u8) {
        let (one, other) = (self.path(one), self.path(other));
        let (from, to) = (one.as_os_str().as_bytes(), other.as_os_str().as_bytes());
        if self.leads_through_link(&one) || self.leads_through_link(&other) {
            return;
        }
        let is_link = one.is_symlink();
        match act % 13 {
            0 if !is_link => {
                recorder.before_open(from, true, true).unwrap();
                let _ = fs::write(&one, [act, 1, 2]);
            }
            1 if !is_link && !one.is_dir() => {
                recorder.before_open(from, false, true).unwrap();
                let opened = fs::OpenOptions::new().append(true).open(&one);
                let _ = opened.map(|mut file| std::io::Write::write_all(&mut file, b"more"));
            }
            2 => {
                recorder.before_remove(from).unwrap();
                let _ = fs::remove_file(&one);
            }
            3 => {
                recorder.before_remove(from).unwrap();
                let _ = fs::remove_dir(&one);
            }
            4 => {
                recorder.before_create(from).unwrap();
                let _ = fs::create_dir(&one);
            }
            5 | 6 => {
                recorder.before_rename(from, to, false).unwrap();
                let _ = fs::rename(&one, &other);
            }
            7 => {
                recorder.before_rename(from, to, true).unwrap();
                let _ = renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
            }
            8 if !one.is_dir() => {
                recorder.before_link(from, to).unwrap();
                let _ = fs::hard_link(&one, &other);
            }
            9 => {
                recorder.before_create(from).unwrap();
                let _ = symlink("somewhere", &one);
            }
            10 if one.exists() && !is_link => {
                recorder.before_metadata(from).unwrap();
                let _ = fs::set_permissions(&one, fs::Permissions::from_mode(0o700 | u32::from(act)));
            }
            11 if one.exists() && !is_link => {
                recorder.before_metadata(from).unwrap();
                set_time(&one, 5_000_000);
                let _ = rustix::fs::setxattr(&one, "user.test", b"new", XattrFlags::empty());
            }
            12 if one.is_dir() && !is_link && one != self.root() => self.remove_all(recorder, &one),
            _ => {}
        }
    }

    fn remove_all(&self, recorder: &mut UndoRecorder, path: &Path) {
        if path.is_dir() && !path.is_symlink() {
            for entry in fs::read_dir(path).unwrap() {
                self.remove_all(recorder, &entry.unwrap().path());
            }
            recorder.before_remove(path.as_os_str().as_bytes()).unwrap();
            fs::remove_dir(path).unwrap();
        } else {
            recorder.before_remove(path.as_os_str().as_bytes()).unwrap();
            fs::remove_file(path).unwrap();
        }
    }

    /// Returns one of a few paths, so that calls often meet on a path.
    fn path(&self, number: u8) -> PathBuf {
        let name = |bits: u8| ["a", "b", "c", "d"][usize::from(bits & 3)];
        let mut path = self.root().join(name(number));
        for level in 1..=(number >> 6).min(3) {
            path.push(name(number >> (2 * level)));
        }
        path
    }

    fn leads_through_link(&self, path: &Path) -> bool {
        path.ancestors().skip(1).take_while(|above| above.starts_with(self.root())).any(Path::is_symlink)
    }
}

fn set_time(path: &Path, seconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Checks that the tree is restored for any calls of a run, and for any interruption of the run
    /// and the restoration.
    #[test]
    fn any_run_is_undone(
        acts in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 1..40),
        is_killed in any::<bool>(),
        attempts_end in any::<u8>(),
        stops in proptest::collection::vec(0_usize..12, 0..4),
    ) {
        let scene = Scene::new();
        let before = snapshot(&scene.root());
        let (run, mut recorder) = scene.begin(LIMIT_BYTES);
        for (number, (act, one, other)) in acts.iter().enumerate() {
            if number == usize::from(attempts_end) {
                // A further attempt continues the same journal.
                run.record_final_state().unwrap();
                drop(recorder);
                let held = rustix::io::fcntl_dupfd_cloexec(&run.root, 3).unwrap();
                use std::os::fd::AsFd as _;
                recorder = UndoRecorder::open(held, &scene.root(), run.directory.as_fd(), (LIMIT_BYTES, &protected())).unwrap();
            }
            scene.act(&mut recorder, *act, *one, *other);
        }
        if !is_killed {
            run.record_final_state().unwrap();
        }
        drop((run, recorder));
        for stop in stops {
            let run = scene.store().open_run(&scene.request).unwrap();
            let mut remaining = stop;
            let mut watch = |_: &Path| {
                remaining = remaining.checked_sub(1).ok_or(Errno::INTR)?;
                Ok(())
            };
            let _ = run.restore_paths(&[], false, &mut watch);
        }
        let restored = scene.restore(&[]);
        prop_assert_eq!(&restored.failed, &[]);
        prop_assert_eq!(&restored.comparison.conflicts, &[]);
        let (after, before) = (snapshot(&scene.root()), before);
        for path in before.keys().chain(after.keys()) {
            prop_assert_eq!(after.get(path), before.get(path), "{}", path.display());
        }
    }
}

#[test]
fn changes_after_the_run_stay() {
    let scene = Scene::new();
    let root = scene.root();
    let (run, mut recorder) = scene.begin(LIMIT_BYTES);
    let at = |name: &str| root.join(name).as_os_str().as_bytes().to_vec();
    for name in ["d", "b/b"] {
        recorder.before_open(&at(name), false, true).unwrap();
        fs::write(root.join(name), "run").unwrap();
    }
    recorder.before_create(&at("new")).unwrap();
    fs::create_dir(root.join("new")).unwrap();
    fs::write(root.join("new/x"), "run").unwrap();
    run.record_final_state().unwrap();
    drop((run, recorder));
    fs::write(root.join("d"), "person").unwrap();
    fs::write(root.join("new/y"), "person").unwrap();
    // `c/d` is another name of the same file. The same content again is no conflict.
    fs::write(root.join("b/b"), "run").unwrap();
    let refused = scene.restore(&[]);
    let names = |found: &RestoreResult| -> Vec<String> {
        found.comparison.conflicts.iter().map(|(path, _)| path.display().to_string()).collect()
    };
    assert_eq!(names(&refused), ["c/d", "d", "new/y"]);
    assert!(!refused.is_done);
    assert_eq!(fs::read(root.join("b/b")).unwrap(), b"run");
    let partly = scene.restore(&["b"]);
    assert!(partly.is_done && partly.restored == 1, "{partly:?}");
    assert_eq!(fs::read(root.join("b/b")).unwrap(), b"");
    let run = scene.store().open_run(&scene.request).unwrap();
    let rest = run.restore_paths(&[], true, &mut |_| Ok(())).unwrap();
    assert_eq!((rest.is_done, rest.failed), (true, Vec::new()));
    assert!(!root.join("new/x").exists());
    assert_eq!(fs::read(root.join("new/y")).unwrap(), b"person");
    assert_eq!(fs::read(root.join("d")).unwrap(), b"person");
}

#[test]
fn an_entry_that_does_not_fit_is_refused_and_evicts_nothing() {
    let scene = Scene::new();
    let root = scene.root();
    fs::write(root.join("large"), vec![1; 200_000]).unwrap();
    let (run, mut recorder) = scene.begin(100_000);
    let at = |name: &str| root.join(name).as_os_str().as_bytes().to_vec();
    recorder.before_open(&at("d"), false, true).unwrap();
    assert_eq!(recorder.before_open(&at("large"), false, true), Err(UndoRecordError::Full { limit_bytes: 100_000 }));
    assert_eq!(recorder.before_remove(&at("large")), Err(UndoRecordError::Full { limit_bytes: 100_000 }));
    recorder.before_remove(&at("d")).unwrap();
    assert_eq!(count_slots(&run), 1);
    // New content needs no space.
    recorder.before_open(&at("larger"), true, true).unwrap();
    fs::write(root.join("larger"), vec![1; 400_000]).unwrap();
    recorder.before_remove(&at("larger")).unwrap();
}

#[test]
fn a_descriptor_cannot_change_kept_content() {
    let scene = Scene::new();
    let root = scene.root();
    fs::write(root.join("x"), "old").unwrap();
    let (run, mut recorder) = scene.begin(LIMIT_BYTES);
    let path = root.join("x").as_os_str().as_bytes().to_vec();
    let held = rustix::fs::open(root.join("x"), OFlags::PATH, Mode::empty()).unwrap();
    recorder.before_remove(&path).unwrap();
    fs::remove_file(root.join("x")).unwrap();
    let second = rustix::io::fcntl_dupfd_cloexec(&held, 3).unwrap();
    recorder.before_rewrite(&path, second).unwrap();
    use std::os::fd::AsRawFd as _;
    fs::write(format!("/proc/self/fd/{}", held.as_raw_fd()), "changed").unwrap();
    drop((run, recorder));
    scene.restore(&[]);
    assert_eq!(fs::read(root.join("x")).unwrap(), b"old");
}

#[test]
fn runs_are_found_by_their_beginning_and_forgotten() {
    let scene = Scene::new();
    let store = scene.store();
    let (run, recorder) = scene.begin(LIMIT_BYTES);
    let id = scene.request.as_str().to_owned();
    assert_eq!(store.find_run(&id[..10]).unwrap().request, scene.request);
    assert_eq!(store.find_run(&id[4..10]).unwrap().request, scene.request);
    assert_eq!(store.find_run("req_"), Err(UndoError::Absent("req_".to_owned())), "no digits name no run");
    assert_eq!(store.find_run(&id[..9]), Err(UndoError::Absent(id[..9].to_owned())));
    assert_eq!(store.find_run("zzz"), Err(UndoError::Absent("zzz".to_owned())));
    assert_eq!(store.open_run(&scene.request).unwrap_err(), UndoError::Busy(id.clone()));
    assert_eq!(store.remove_run(&scene.request), Err(UndoError::Busy(id.clone())));
    drop((run, recorder));
    store.remove_run(&scene.request).unwrap();
    assert_eq!(store.list_runs().unwrap(), []);
    for number in 0..25_u8 {
        let request = RequestId::from_random([number; 16]);
        let new = new_run(request, scene.root(), 1);
        drop(store.begin_run(&new).unwrap());
    }
    assert_eq!(store.list_runs().unwrap().len(), 25, "no run pushes out one of the same day");
}

#[test]
fn old_and_many_runs_go() {
    let (day, now) = (24 * 60 * 60 * 1000, 100 * 24 * 60 * 60 * 1000);
    for (number, days, goes) in
        [(1, 6, false), (1, 8, true), (20, 6, true), (19, 6, false), (20, 0, false), (199, 0, false), (200, 0, true)]
    {
        assert_eq!(store::is_over(number, now - days * day, now), goes, "{number} newer ones, {days} days");
    }
}

/// Puts a user's own file, older than the run, at a path and keeps its time.
fn put_old(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
    set_time(to, 1_000_000);
}

#[test]
fn a_conflict_stays_one_however_old_its_time() {
    for is_cut_off in [false, true] {
        let scene = Scene::new();
        let root = scene.root();
        let mine = scene.scratch.path().join("mine");
        fs::write(&mine, "person").unwrap();
        let (run, mut recorder) = scene.begin(LIMIT_BYTES);
        let at = |name: &str| root.join(name).as_os_str().as_bytes().to_vec();
        for name in ["b/b", "a/b/a"] {
            recorder.before_metadata(&at(name)).unwrap();
            recorder.before_open(&at(name), false, true).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o644)).unwrap();
            fs::write(root.join(name), "run").unwrap();
        }
        recorder.before_create(&at("new")).unwrap();
        fs::create_dir(root.join("new")).unwrap();
        fs::write(root.join("new/x"), "run").unwrap();
        run.record_final_state().unwrap();
        drop((run, recorder));
        if is_cut_off {
            let run = scene.store().open_run(&scene.request).unwrap();
            let mut remaining = 1;
            let mut watch = |_: &Path| {
                remaining = i32::checked_sub(remaining, 1).filter(|remaining| *remaining >= 0).ok_or(Errno::INTR)?;
                Ok(())
            };
            run.restore_paths(&[], false, &mut watch).unwrap_err();
        }
        put_old(&mine, &root.join("b/b"));
        put_old(&mine, &root.join("new/kept"));
        let run = scene.store().open_run(&scene.request).unwrap();
        let refused = run.restore_paths(&[], false, &mut |_| Ok(())).unwrap();
        assert!(!refused.is_done && refused.comparison.conflicts.len() == 2, "{refused:?}");
        let rest = run.restore_paths(&[], true, &mut |_| Ok(())).unwrap();
        assert!(rest.is_done, "{rest:?}");
        assert_eq!(fs::read(root.join("b/b")).unwrap(), b"person", "{is_cut_off}");
        assert_eq!(fs::read(root.join("new/kept")).unwrap(), b"person", "{is_cut_off}");
        assert!(!root.join("new/x").exists());
        // Objects that the restoration touched belong to the user again as well.
        assert_eq!(fs::read(root.join("a/b/a")).unwrap(), b"two");
        put_old(&mine, &root.join("b/b"));
        let second = run.restore_paths(&[], true, &mut |_| Ok(())).unwrap();
        assert_eq!(second.comparison.conflicts.len(), 2, "{second:?}");
        assert_eq!(fs::read(root.join("b/b")).unwrap(), b"person");
    }
}

/// Makes a repository with a setting that names a program, one without a work tree, and names that
/// are always guarded. Returns the paths and repositories that a survey finds.
fn furnish_guarded(root: &Path) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    for directory in [".git/hooks", ".git/objects", ".git/refs", "bare/objects", "bare/refs", "bare/hooks", "own"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let files = [".git/HEAD", ".git/hooks/x", "bare/HEAD", "bare/config", "bare/hooks/x", ".envrc", "own/mon"];
    files.iter().for_each(|file| fs::write(root.join(file), "person").unwrap());
    fs::write(root.join(".git/config"), "[core]\nfsmonitor = own/mon\n").unwrap();
    let bytes = |name: &str| root.join(name).as_os_str().as_bytes().to_vec();
    (vec![bytes("own/mon")], vec![bytes(".git"), bytes("bare")])
}

#[test]
fn paths_guarded_before_the_run_are_restored_completely() {
    let scene = Scene::new();
    let root = scene.root();
    let (guarded_paths, repositories) = furnish_guarded(&root);
    let before = snapshot(&root);
    let (run, mut recorder) = scene.begin(LIMIT_BYTES);
    recorder.note_guarded(&guarded_paths, &repositories).unwrap();
    for name in fs::read_dir(&root).unwrap() {
        scene.remove_all(&mut recorder, &name.unwrap().path());
    }
    run.record_final_state().unwrap();
    drop((run, recorder));
    let restored = scene.restore(&[]);
    assert_eq!((restored.failed, restored.comparison.conflicts), (Vec::new(), Vec::new()));
    let after = snapshot(&root);
    for path in before.keys().chain(after.keys()) {
        assert_eq!(before.get(path), after.get(path), "{}", path.display());
    }
}

#[test]
fn links_to_newer_objects_are_not_put_back() {
    for (name, is_meanwhile) in [("own/mon", false), ("other", false), ("own/mon", true), ("other", true)] {
        let scene = Scene::new();
        let root = scene.root();
        let (guarded_paths, repositories) = furnish_guarded(&root);
        let (run, mut recorder) = scene.begin(LIMIT_BYTES);
        recorder.note_guarded(&guarded_paths, &repositories).unwrap();
        tick();
        scene.remove_all(&mut recorder, &root.join(".git"));
        recorder.before_remove(root.join("d").as_os_str().as_bytes()).unwrap();
        fs::remove_file(root.join("d")).unwrap();
        let write = || fs::write(root.join(name), "another run").unwrap();
        // The other run may work at the same time.
        if is_meanwhile {
            write()
        }
        run.record_final_state().unwrap();
        drop((run, recorder));
        if !is_meanwhile {
            write()
        }
        let run = scene.store().open_run(&scene.request).unwrap();
        let done = run.restore_paths(&[], true, &mut |_| Ok(())).unwrap();
        let is_kept_away = name == "own/mon";
        assert_eq!(root.join(".git/config").exists(), !is_kept_away, "{done:?}");
        assert_eq!(done.comparison.conflicts.is_empty(), !is_kept_away, "{done:?}");
        assert!(root.join("d").exists());
    }
}

/// The run's own objects in such a path are removed first; any that stay keep it closed.
#[test]
fn leftovers_of_the_run_are_removed_before_a_link_reaches_them() {
    for paths in [vec![], vec![PathBuf::from(".git")]] {
        let scene = Scene::new();
        let root = scene.root();
        let (_, repositories) = furnish_guarded(&root);
        let guarded_paths = vec![root.join(".githooks").as_os_str().as_bytes().to_vec()];
        let (run, mut recorder) = scene.begin(LIMIT_BYTES);
        recorder.note_guarded(&guarded_paths, &repositories).unwrap();
        tick();
        scene.remove_all(&mut recorder, &root.join(".git/HEAD"));
        recorder.before_create(&guarded_paths[0]).unwrap();
        fs::create_dir(root.join(".githooks")).unwrap();
        fs::write(root.join(".githooks/x"), "run").unwrap();
        run.record_final_state().unwrap();
        drop((run, recorder));
        let run = scene.store().open_run(&scene.request).unwrap();
        let mut watch = |_: &Path| {
            assert!(!(root.join(".git/HEAD").exists() && root.join(".githooks/x").exists()));
            Ok(())
        };
        let done = run.restore_paths(&paths, true, &mut watch).unwrap();
        assert_eq!(root.join(".git/HEAD").exists(), paths.is_empty(), "{done:?}");
        assert_eq!(root.join(".githooks/x").exists(), !paths.is_empty(), "{done:?}");
    }
}

/// An object that a user moves into the run's directory is older than the run, and the user's.
#[test]
fn files_moved_into_a_new_directory_stay() {
    for is_known in [true, false] {
        let scene = Scene::new();
        let root = scene.root();
        let photos = scene.scratch.path().join("photos");
        fs::create_dir_all(photos.join("2020")).unwrap();
        fs::write(photos.join("2020/a"), "precious").unwrap();
        fs::write(photos.join("b"), "precious").unwrap();
        // Longer than the largest difference between the clocks.
        std::thread::sleep(std::time::Duration::from_millis(150));
        let (run, mut recorder) = scene.begin(LIMIT_BYTES);
        for name in ["out", "top"] {
            recorder.before_create(root.join(name).as_os_str().as_bytes()).unwrap();
            fs::create_dir_all(root.join(name).join("inner")).unwrap();
            fs::write(root.join(name).join("inner/made"), "run").unwrap();
        }
        run.record_final_state().unwrap();
        if !is_known {
            use std::os::fd::AsFd as _;
            let mut writer = open_journal(run.directory.as_fd()).unwrap();
            let meta = fs::metadata(root.join("out/inner")).unwrap();
            let line = JournalLine::Made { device: meta.dev(), inode: meta.ino(), inner: None };
            writer.append_line(&line).unwrap();
        }
        drop((run, recorder));
        fs::rename(&photos, root.join("out/inner/photos")).unwrap();
        fs::remove_dir_all(root.join("top")).unwrap();
        fs::rename(root.join("c"), root.join("top")).unwrap();
        let refused = scene.restore(&[]);
        let found = refused.comparison.conflicts.iter().map(|(path, _)| path.display().to_string());
        assert_eq!(found.collect::<Vec<_>>(), ["out/inner/photos", "top"], "{is_known}");
        let run = scene.store().open_run(&scene.request).unwrap();
        let rest = run.restore_paths(&[], true, &mut |_| Ok(())).unwrap();
        assert_eq!((rest.is_done, rest.failed), (true, Vec::new()), "{is_known}");
        for path in ["out/inner/photos/2020/a", "out/inner/photos/b", "top/d"] {
            assert!(root.join(path).exists(), "{is_known}: {path}");
        }
        assert!(!root.join("out/inner/made").exists(), "{is_known}");
    }
}

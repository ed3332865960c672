//! Restoration while another process works in the workspace.

use super::*;

/// Other processes could open the file while it had another name.
#[test]
fn a_guarded_file_that_was_moved_comes_back_as_a_new_file() {
    use std::io::Write as _;
    let scene = Scene::new();
    let root = scene.root();
    fs::write(root.join(".envrc"), "person").unwrap();
    let inode = fs::metadata(root.join(".envrc")).unwrap().ino();
    let (run, mut recorder) = scene.begin(LIMIT_BYTES);
    recorder.note_guarded(&[], &[]).unwrap();
    let at = |name: &str| root.join(name).as_os_str().as_bytes().to_vec();
    recorder.before_rename(&at(".envrc"), &at("x"), false).unwrap();
    fs::rename(root.join(".envrc"), root.join("x")).unwrap();
    let mut other = fs::OpenOptions::new().write(true).open(root.join("x")).unwrap();
    other.write_all(b"evil").unwrap();
    set_time(&root.join("x"), 1_000_000);
    run.record_final_state().unwrap();
    drop((run, recorder));
    let restored = scene.restore(&[]);
    assert!(restored.is_done && restored.failed.is_empty(), "{restored:?}");
    other.write_all(b" more").unwrap();
    assert_eq!(fs::read(root.join(".envrc")).unwrap(), b"person");
    assert_ne!(fs::metadata(root.join(".envrc")).unwrap().ino(), inode);
    assert!(!root.join("x").exists());
}

#[test]
fn changes_by_the_user_during_a_restore_stay() {
    let scene = Scene::new();
    let root = scene.root();
    let (run, mut recorder) = scene.begin(LIMIT_BYTES);
    for name in ["a/b/a", "b/b"] {
        let path = root.join(name);
        recorder.before_metadata(path.as_os_str().as_bytes()).unwrap();
        recorder.before_open(path.as_os_str().as_bytes(), false, true).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&path, "run").unwrap();
    }
    run.record_final_state().unwrap();
    drop((run, recorder));
    let run = scene.store().open_run(&scene.request).unwrap();
    let mut watch = |path: &Path| {
        if path == Path::new("a/b/a") {
            fs::write(root.join("b/b"), "new").unwrap();
        }
        Ok(())
    };
    let done = run.restore_paths(&[], false, &mut watch).unwrap();
    assert_eq!(done.failed.len(), 1, "{done:?}");
    assert_eq!(fs::read(root.join("a/b/a")).unwrap(), b"two");
    assert_eq!(fs::read(root.join("b/b")).unwrap(), b"new");
}

#[test]
fn files_put_in_a_moving_directory_are_taken_back() {
    use super::compare::RunComparer;
    use super::held_name::RestoreTarget;
    use super::restore::WorkspaceRestorer;
    use std::os::fd::AsFd as _;
    let scene = Scene::new();
    let root = scene.root();
    let (run, recorder) = scene.begin(LIMIT_BYTES);
    run.record_final_state().unwrap();
    drop(recorder);
    let (comparing, _) = RunComparer::new(&run).unwrap();
    let writer = open_journal(run.directory.as_fd()).unwrap();
    let mut restoring = WorkspaceRestorer::new(&comparing, &[], writer);
    let take_back =
        |spot: &RestoreTarget<'_>| rustix::fs::unlinkat(&spot.held, spot.name, rustix::fs::AtFlags::empty());
    for is_moved_before in [true, false] {
        let spot = RestoreTarget::at_path(&run, b"a/b/config.toml").unwrap();
        let rename = || fs::rename(root.join("a/b"), root.join("a/.cargo")).unwrap();
        if is_moved_before {
            rename();
        }
        let give = || {
            fs::write(root.join("a/b/config.toml"), "person").unwrap();
            rename();
            Ok(())
        };
        assert_eq!(restoring.give_name(&spot, give, || take_back(&spot)), Err(Errno::STALE));
        assert!(!root.join("a/.cargo/config.toml").exists(), "{is_moved_before}");
        fs::rename(root.join("a/.cargo"), root.join("a/b")).unwrap();
    }
}

/// A new object may get the inode number of a removed one.
#[test]
fn restored_objects_are_not_recognized_by_inode() {
    use std::os::fd::AsFd as _;
    let scene = Scene::new();
    let root = scene.root();
    let (run, mut recorder) = scene.begin(LIMIT_BYTES);
    for name in ["new", "b/new"] {
        recorder.before_create(root.join(name).as_os_str().as_bytes()).unwrap();
        fs::write(root.join(name), "run").unwrap();
    }
    run.record_final_state().unwrap();
    drop((run, recorder));
    assert!(scene.restore(&["new"]).is_done);
    let run = scene.store().open_run(&scene.request).unwrap();
    assert!(run.read_journal().unwrap().touched.values().all(|touched| touched.changed.is_some()));
    // As after an interrupted restoration.
    fs::write(root.join("b/new"), "person").unwrap();
    set_time(&root.join("b/new"), 1_000_000);
    let meta = fs::metadata(root.join("b/new")).unwrap();
    let born = Some(stockade_files::object::FileTime::default());
    let line = JournalLine::Touched { device: meta.dev(), inode: meta.ino(), changed: None, born };
    open_journal(run.directory.as_fd()).unwrap().append_line(&line).unwrap();
    let refused = run.restore_paths(&[], false, &mut |_| Ok(())).unwrap();
    assert!(!refused.is_done, "{refused:?}");
    assert_eq!(fs::read(root.join("b/new")).unwrap(), b"person");
}

#[test]
fn a_path_that_became_guarded_during_a_restore_is_reverted() {
    let scene = Scene::new();
    let root = scene.root();
    fs::create_dir_all(root.join("r/hooks")).unwrap();
    fs::write(root.join("r/config"), "run").unwrap();
    fs::write(root.join("r/hooks/x"), "run").unwrap();
    let (run, mut recorder) = scene.begin(LIMIT_BYTES);
    recorder.note_guarded(&[], &[]).unwrap();
    for name in ["r/config", "r/hooks"] {
        scene.remove_all(&mut recorder, &root.join(name));
    }
    run.record_final_state().unwrap();
    drop((run, recorder));
    let run = scene.store().open_run(&scene.request).unwrap();
    let mut watch = |_: &Path| {
        for name in ["r/objects", "r/refs", "r/HEAD"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        Ok(())
    };
    let done = run.restore_paths(&[], false, &mut watch).unwrap();
    assert!(done.is_done && !done.failed.is_empty(), "{done:?}");
    assert!(!root.join("r/config").exists() && !root.join("r/hooks/x").exists(), "{done:?}");
}

//! What the tree does where nobody attacks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use stockade_files::object::ObjectKind;
use stockade_files::{ContentLimits, ExistsCallback, FileTree, FilesError, TreePath, WatchEvent, WatchNotice};

use crate::{BOUNDS, Ground, held, path};

#[test]
fn files_are_written_read_listed_moved_and_removed() {
    let ground = Ground::new();
    let tree = &ground.tree;
    tree.make_directory(&path("a/b"), true).unwrap();
    tree.make_directory(&path("a/b"), true).unwrap();
    assert_eq!(tree.make_directory(&path("a/b"), false), Err(FilesError::Exists(path("a/b"))));
    let written = tree.write_file(&path("a/b/file"), &mut &b"one two"[..], 0o6755, BOUNDS).unwrap();
    assert_eq!((written.kind, written.size, written.mode), (ObjectKind::File, 7, 0o755));
    assert_eq!(tree.read_file(&path("a/b/file"), 0, 100).unwrap(), (b"one two".to_vec(), 7));
    assert_eq!(tree.read_file(&path("a/b/file"), 4, 2).unwrap(), (b"tw".to_vec(), 7));
    assert_eq!(tree.read_file(&path("a/b/file"), 9, 2).unwrap(), (Vec::new(), 7));
    symlink("nowhere", ground.root.join("a/link")).unwrap();
    let listed = tree.list_directory(&path("a")).unwrap();
    let shown: Vec<_> = listed.iter().map(|entry| (entry.path.to_string(), entry.kind)).collect();
    assert_eq!(shown, [("a/b".to_owned(), ObjectKind::Directory), ("a/link".to_owned(), ObjectKind::Link)]);
    assert_eq!(listed[1].leads_to, Some("nowhere".into()));
    tree.rename(&path("a/b/file"), &path("a/other"), false).unwrap();
    tree.write_file(&path("a/b/file"), &mut &b"x"[..], 0o600, BOUNDS).unwrap();
    assert_eq!(tree.rename(&path("a/other"), &path("a/b/file"), false), Err(FilesError::Exists(path("a/b/file"))));
    tree.rename(&path("a/other"), &path("a/b/file"), true).unwrap();
    assert_eq!(tree.read_file(&path("a/b/file"), 0, 9).unwrap().0, b"one two");
    assert_eq!(tree.rename(&path("a/link"), &path("a/b"), true), Err(FilesError::Exists(path("a/b"))));
    tree.make_directory(&path("a/empty"), false).unwrap();
    assert_eq!(tree.rename(&path("a/b"), &path("a/empty"), true), Err(FilesError::Exists(path("a/empty"))));
    tree.remove(&path("a/empty"), false).unwrap();
    assert_eq!(tree.remove(&path("a"), false), Err(FilesError::NotEmpty(path("a"))));
    tree.remove(&path("a"), true).unwrap();
    assert_eq!(ground.inside(), Default::default());
    for missing in
        [tree.stat(&path("a")).map(drop), tree.remove(&path("a"), true), tree.list_directory(&path("a/b")).map(drop)]
    {
        assert!(matches!(missing, Err(FilesError::NotFound(_))), "{missing:?}");
    }
}

#[test]
fn a_failed_write_keeps_the_old_content() {
    let ground = Ground::new();
    fs::write(ground.root.join("file"), "before").unwrap();
    fs::create_dir(ground.root.join("directory")).unwrap();
    let before = ground.inside();
    let small = ContentLimits { bytes: 9, entries: 1 };
    let too_much = ground.tree.write_file(&path("file"), &mut &b"ten bytes!"[..], 0o644, small).unwrap_err();
    assert_eq!(too_much, FilesError::TooMuch { limit: 9, unit: "bytes" });
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
    assert!(matches!(
        ground.tree.write_file(&path("file"), &mut Broken, 0o644, BOUNDS),
        Err(FilesError::Stream { .. })
    ));
    for bad in ["directory", "file/x", "missing/x", ""] {
        assert!(ground.tree.write_file(&path(bad), &mut &b"x"[..], 0o644, BOUNDS).is_err(), "{bad}");
    }
    assert_eq!(ground.inside(), before);
    assert!(ground.tree.write_file(&path("file"), &mut &b"ten bytes"[..], 0o644, small).is_ok());
}

#[test]
fn leftovers_of_a_killed_writer_are_removed_by_the_next_and_never_seen() {
    let ground = Ground::new();
    let leftover = ground.root.join(".stockade-incoming-0123");
    fs::create_dir_all(leftover.join("tree/deep")).unwrap();
    assert_eq!(ground.tree.list_directory(&path("")).unwrap(), []);
    ground.tree.write_file(&path("file"), &mut &b"x"[..], 0o644, BOUNDS).unwrap();
    assert!(!leftover.exists());
    assert_eq!(ground.inside().len(), 1);
}

#[test]
fn a_new_object_has_the_owner_of_its_directory() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: files of another owner (needs root)");
        return;
    }
    let ground = Ground::new();
    std::os::unix::fs::chown(&ground.root, Some(12_345), Some(54_321)).unwrap();
    ground.tree.make_directory(&path("a/b"), true).unwrap();
    ground.tree.write_file(&path("a/b/file"), &mut &b"x"[..], 0o644, BOUNDS).unwrap();
    for made in ["a", "a/b", "a/b/file"] {
        let meta = fs::metadata(ground.root.join(made)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (12_345, 54_321), "{made}");
    }
}

#[test]
fn a_guarded_path_is_not_changed_by_its_parent_directory_either() {
    let ground = Ground::new();
    fs::create_dir_all(ground.root.join("a/.git/hooks")).unwrap();
    let guard = |path: &TreePath, _: ObjectKind, _: ExistsCallback<'_>| {
        path.as_path().components().any(|part| part.as_os_str() == ".git").then(|| "protected".to_owned())
    };
    let tree = FileTree::with_guard(held(&ground.root), std::sync::Arc::new(guard));
    let before = ground.inside();
    let refused =
        |result: Result<(), FilesError>| assert!(matches!(result, Err(FilesError::Guarded { .. })), "{result:?}");
    refused(tree.write_file(&path("a/.git/config"), &mut &b"x"[..], 0o644, BOUNDS).map(drop));
    refused(tree.make_directory(&path(".git"), false));
    refused(tree.remove(&path("a"), true));
    refused(tree.rename(&path("a"), &path("b"), false));
    refused(tree.remove(&path("a/.git/hooks"), false));
    refused(tree.open_subtree(&path("a")).unwrap().remove(&path(".git/hooks"), false));
    let other = Ground::new();
    fs::create_dir(other.root.join(".git")).unwrap();
    fs::create_dir(ground.root.join("copy")).unwrap();
    fs::write(other.root.join("file"), "content").unwrap();
    let copied = tree.open_subtree(&path("copy")).unwrap().copy_from(&other.tree, BOUNDS).unwrap();
    assert_eq!((copied.entries, copied.withheld, copied.left_out[0].path.clone()), (1, 1, path(".git")));
    assert!(copied.left_out[0].is_withheld);
    assert!(!ground.root.join("copy/.git").exists() && ground.root.join("copy/file").exists());
    fs::remove_dir_all(ground.root.join("copy")).unwrap();
    assert_eq!(ground.inside(), before);
    // The control: nothing else holds them.
    ground.tree.rename(&path("a"), &path("b"), false).unwrap();
}

#[test]
fn a_watch_reports_changes_in_its_directory() {
    let ground = Ground::new();
    ground.tree.make_directory(&path("d"), false).unwrap();
    let mut watch = ground.tree.watch_directory(&path("d")).unwrap();
    assert_eq!(watch.next(Duration::ZERO).unwrap(), []);
    fs::write(ground.root.join("d/file"), "x").unwrap();
    fs::set_permissions(ground.root.join("d/file"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(ground.root.join("d/file")).unwrap();
    let event = |event| WatchNotice::Event { path: path("d/file"), event };
    let expected = [WatchEvent::Created, WatchEvent::Written, WatchEvent::Metadata, WatchEvent::Removed].map(event);
    assert_eq!(watch.next(Duration::from_secs(60)).unwrap(), expected);
    fs::remove_dir(ground.root.join("d")).unwrap();
    assert_eq!(watch.next(Duration::from_secs(60)).unwrap(), [WatchNotice::Gone]);
    assert_eq!(watch.next(Duration::from_secs(60)).unwrap(), []);
    assert!(matches!(ground.tree.watch_directory(&path("d")), Err(FilesError::NotFound(_))));
}

/// Once a part was judged, somebody puts something beside it with which it may not be there.
#[test]
fn conflicting_objects_are_taken_back_one_by_one() {
    let (from, to) = (Ground::new(), Ground::new());
    fs::create_dir(from.root.join("d")).unwrap();
    fs::write(from.root.join("d/a"), "content").unwrap();
    fs::write(from.root.join("part"), "content").unwrap();
    let root = to.root.clone();
    let guard = move |path: &TreePath, _, exists: ExistsCallback<'_>| {
        let is_part = path.as_path().ends_with("part");
        let was_there = exists(&TreePath::root().join("beside".as_ref()));
        if is_part {
            fs::write(root.join("beside"), "").unwrap();
        }
        (is_part && was_there).then(|| "a part".to_owned())
    };
    let tree = FileTree::with_guard(held(&to.root), std::sync::Arc::new(guard));
    let done = tree.copy_from(&from.tree, BOUNDS).unwrap();
    assert_eq!((done.withheld, done.left_out[0].path.clone()), (1, path("part")));
    assert!(!to.root.join("part").exists() && to.root.join("d/a").exists());
}

#[test]
fn a_copy_contains_links_and_not_their_targets() {
    let (from, to) = (Ground::new(), Ground::new());
    fs::create_dir_all(from.root.join("d/locked")).unwrap();
    fs::write(from.root.join("d/file"), "content").unwrap();
    fs::set_permissions(from.root.join("d/file"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::write(from.root.join("d/locked/file"), "inner").unwrap();
    fs::set_permissions(from.root.join("d/locked"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&from.outside, from.root.join("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.root.join("socket")).unwrap();
    let done = to.tree.copy_from(&from.tree, BOUNDS).unwrap();
    assert_eq!((done.entries, done.bytes, done.withheld), (5, 12, 0));
    assert_eq!(done.left_out.iter().map(|leftover| leftover.path.clone()).collect::<Vec<_>>(), [path("socket")]);
    let mut expected = from.inside();
    expected.remove(std::path::Path::new("socket"));
    expected.insert("d/file".into(), "file 755 content".to_owned());
    assert_eq!(to.inside(), expected);
    let few = ContentLimits { bytes: 11, entries: 9 };
    assert_eq!(Ground::new().tree.copy_from(&from.tree, few), Err(FilesError::TooMuch { limit: 11, unit: "bytes" }));
}

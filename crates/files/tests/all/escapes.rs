//! Links, pipes and climbs that would lead whoever looks out of the tree.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use stockade_files::object::ObjectKind;
use stockade_files::{FilesError, TreePath, UploadTarget};

use crate::{BOUNDS, Ground, path};

/// A tree with a link to the directory outside, absolute and climbing.
fn linked() -> Ground {
    let ground = Ground::new();
    symlink(&ground.outside, ground.root.join("absolute")).unwrap();
    symlink("../outside", ground.root.join("climbing")).unwrap();
    symlink("climbing", ground.root.join("chain")).unwrap();
    symlink("/proc/self/cwd", ground.root.join("magic")).unwrap();
    ground
}

const LINKS: [&str; 3] = ["absolute", "climbing", "chain"];

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, FilesError>) {
    let refused = matches!(result, Err(FilesError::ByLink(_) | FilesError::Kind { found: ObjectKind::Link, .. }));
    assert!(refused, "{result:?}");
}

#[test]
fn no_call_goes_through_a_link() {
    let ground = linked();
    fs::write(ground.root.join("mine"), "x").unwrap();
    let before = (ground.inside(), ground.outside());
    let tree = &ground.tree;
    for link in LINKS.into_iter().chain(["magic"]) {
        let beneath = path(link).join("secret".as_ref());
        assert_refused(tree.stat(&beneath));
        assert_refused(tree.read_file(&beneath, 0, 10));
        assert_refused(tree.list_directory(&path(link)));
        assert_refused(tree.write_file(&beneath, &mut &b"x"[..], 0o644, BOUNDS));
        assert_refused(tree.make_directory(&path(link).join("new".as_ref()), false));
        assert_refused(tree.make_directory(&path(link).join("new".as_ref()), true));
        assert_refused(tree.remove(&beneath, true));
        assert_refused(tree.rename(&path("mine"), &path(link).join("new".as_ref()), true));
        assert_refused(tree.rename(&beneath, &path("taken"), true));
        assert_refused(tree.watch_directory(&path(link)));
        assert_refused(tree.download_archive(&beneath, &mut Vec::new(), BOUNDS));
        assert_refused(tree.upload_archive(
            &path(link),
            &mut &[0; 1024][..],
            UploadTarget::Into { replace: true },
            BOUNDS,
        ));
        assert_refused(tree.upload_archive(
            &path(link).join("new".as_ref()),
            &mut &[0; 1024][..],
            UploadTarget::New,
            BOUNDS,
        ));
    }
    assert_eq!((ground.inside(), ground.outside()), before);
    // The control: all of these names lead out where links are followed.
    for link in LINKS {
        let beneath = ground.root.join(link).join("secret");
        assert_eq!(fs::read_to_string(&beneath).unwrap(), "kept");
        fs::write(&beneath, "overwritten").unwrap();
        assert_ne!(ground.outside(), before.1);
        fs::write(&beneath, "kept").unwrap();
    }
}

#[test]
fn a_link_at_the_end_is_the_link() {
    let ground = Ground::new();
    let link = ground.root.join("link");
    symlink("../outside/secret", &link).unwrap();
    assert_refused(ground.tree.open_file(&path("link")).map(drop));
    assert_eq!(ground.tree.stat(&path("link")).unwrap().leads_to, Some("../outside/secret".into()));
    let before = ground.outside();
    // The control: a plain write goes to what the link leads to.
    fs::write(&link, "overwritten").unwrap();
    assert_ne!(ground.outside(), before);
    fs::write(&link, "kept").unwrap();
    ground.tree.write_file(&path("link"), &mut &b"mine"[..], 0o644, BOUNDS).unwrap();
    assert_eq!((ground.outside(), fs::read_to_string(&link).unwrap().as_str()), (before.clone(), "mine"));
    fs::remove_file(&link).unwrap();
    symlink("../outside", &link).unwrap();
    ground.tree.remove(&path("link"), true).unwrap();
    assert_eq!((ground.outside(), link.symlink_metadata().is_err()), (before, true));
}

#[test]
fn a_removal_removes_links_and_not_their_targets() {
    let ground = linked();
    fs::create_dir_all(ground.root.join("d/e")).unwrap();
    symlink(&ground.outside, ground.root.join("d/e/link")).unwrap();
    let before = ground.outside();
    ground.tree.remove(&path("d"), true).unwrap();
    assert_eq!(ground.outside(), before);
    assert!(!ground.root.join("d").exists());
}

#[test]
fn nothing_but_a_file_is_opened() {
    let ground = Ground::new();
    // Whoever opens a pipe on whose other end nobody is waits for ever.
    mknodat(CWD, ground.root.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(ground.root.join("socket")).unwrap();
    for (name, kind) in [("pipe", ObjectKind::Pipe), ("socket", ObjectKind::Socket), ("", ObjectKind::Directory)] {
        let refused = ground.tree.open_file(&path(name)).unwrap_err();
        assert_eq!(refused, FilesError::Kind { path: path(name), found: kind, expected: ObjectKind::File });
    }
    if rustix::process::geteuid().is_root() {
        let null = rustix::fs::makedev(1, 3);
        mknodat(CWD, ground.root.join("device"), FileType::CharacterDevice, Mode::RUSR, null).unwrap();
        assert_eq!(fs::read(ground.root.join("device")).unwrap(), b"", "the control: it is one");
        assert!(matches!(
            ground.tree.open_file(&path("device")),
            Err(FilesError::Kind { found: ObjectKind::Device, .. })
        ));
    } else {
        eprintln!("not run: devices (needs root)");
    }
}

#[test]
fn the_root_stays() {
    let ground = Ground::new();
    let root = TreePath::root();
    assert!(matches!(ground.tree.remove(&root, true), Err(FilesError::Guarded { .. })));
    assert!(matches!(ground.tree.rename(&root, &path("x"), true), Err(FilesError::Guarded { .. })));
    assert!(Path::new(&ground.root).exists());
}

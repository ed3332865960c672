//! Trees packed, and what was packed unpacked again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use stockade_files::{ContentLimits, FilesError, TreePath, UploadTarget};

use crate::{BOUNDS, Ground, path};

#[test]
fn a_tree_is_packed_without_the_targets_of_its_links() {
    let ground = Ground::new();
    fs::create_dir(ground.root.join("d")).unwrap();
    fs::write(ground.root.join("d/file"), "content").unwrap();
    symlink(&ground.outside, ground.root.join("d/link")).unwrap();
    mknodat(CWD, ground.root.join("d/pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut packed = Vec::new();
    let done = ground.tree.download_archive(&path("d"), &mut packed, BOUNDS).unwrap();
    assert_eq!((done.entries, done.bytes, done.withheld), (2, 7, 0));
    assert_eq!(done.left_out.iter().map(|object| object.path.clone()).collect::<Vec<_>>(), [path("d/pipe")]);
    let mut names = Vec::new();
    for entry in tar::Archive::new(packed.as_slice()).entries().unwrap().map(Result::unwrap) {
        names.push((entry.path().unwrap().into_owned(), entry.header().entry_type()));
    }
    let expected = [("file", tar::EntryType::Regular), ("link", tar::EntryType::Symlink)];
    assert_eq!(names, expected.map(|(name, kind)| (PathBuf::from(name), kind)));
    assert!(!packed.windows(4).any(|bytes| bytes == b"kept"), "what is outside is in it");
}

#[test]
fn one_file_is_packed_by_its_name() {
    let ground = Ground::new();
    fs::create_dir(ground.root.join("d")).unwrap();
    fs::write(ground.root.join("d/file"), "content").unwrap();
    let mut packed = Vec::new();
    ground.tree.download_archive(&path("d/file"), &mut packed, BOUNDS).unwrap();
    ground.tree.upload_archive(&path("new"), &mut packed.as_slice(), UploadTarget::New, BOUNDS).unwrap();
    assert_eq!(fs::read_to_string(ground.root.join("new/file")).unwrap(), "content");
}

#[test]
fn a_download_is_bounded() {
    let ground = Ground::new();
    // A hole costs nothing to make and much to carry.
    fs::File::create(ground.root.join("hole")).unwrap().set_len(1 << 40).unwrap();
    let refused = ground.tree.download_archive(&path(""), &mut Vec::new(), BOUNDS).unwrap_err();
    assert_eq!(refused, FilesError::TooMuch { limit: BOUNDS.bytes, unit: "bytes" });
    fs::remove_file(ground.root.join("hole")).unwrap();
    for n in 0..5 {
        fs::write(ground.root.join(n.to_string()), "").unwrap();
    }
    let few = ContentLimits { entries: 4, ..BOUNDS };
    let refused = ground.tree.download_archive(&path(""), &mut Vec::new(), few).unwrap_err();
    assert_eq!(refused, FilesError::TooMuch { limit: 4, unit: "entries" });
}

/// What a generated tree holds at a path.
#[derive(Clone, Debug)]
enum Thing {
    File(Vec<u8>, bool),
    Directory,
    Link(String),
}

fn thing() -> impl Strategy<Value = Thing> {
    prop_oneof![
        (proptest::collection::vec(any::<u8>(), 0..1_500), any::<bool>()).prop_map(|(bytes, x)| Thing::File(bytes, x)),
        Just(Thing::Directory),
        "[a-c]{1,3}(/[a-c]{1,120}){0,2}".prop_map(Thing::Link),
    ]
}

/// Few names, so that they meet; some that need an extension.
fn trees() -> impl Strategy<Value = BTreeMap<String, Thing>> {
    let name = prop_oneof!["[a-c]", "[a-c]{1,2}\u{e9}", "[ab]{90,200}"];
    let path = proptest::collection::vec(name, 1..5).prop_map(|parts| parts.join("/"));
    proptest::collection::btree_map(path, thing(), 0..20)
}

fn fill(ground: &Ground, things: &BTreeMap<String, Thing>) {
    for (name, thing) in things {
        let at = ground.root.join(name);
        let _ = fs::create_dir_all(at.parent().unwrap());
        let _ = match thing {
            Thing::File(bytes, executable) => fs::write(&at, bytes).and_then(|()| {
                fs::set_permissions(&at, fs::Permissions::from_mode(if *executable { 0o755 } else { 0o640 }))
            }),
            Thing::Directory => fs::create_dir(&at),
            Thing::Link(text) => symlink(text, &at),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn packed_files_are_unpacked_unchanged(things in trees()) {
        let (from, to) = (Ground::new(), Ground::new());
        fill(&from, &things);
        let mut packed = Vec::new();
        let done = from.tree.download_archive(&TreePath::root(), &mut packed, BOUNDS).unwrap();
        let upload_summary = to.tree.upload_archive(&path(""), &mut packed.as_slice(), UploadTarget::Into { replace: false }, BOUNDS).unwrap();
        prop_assert_eq!((done.entries, done.bytes), (upload_summary.entries, upload_summary.bytes));
        prop_assert_eq!(from.inside(), to.inside());
    }
}

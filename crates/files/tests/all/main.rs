//! Trees from outside, as whoever writes in them would attack those who look.
//!
//! Each attack has its positive control: the same names lead out where they are
//! followed as the standard library or `tar` follows them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod archives;
mod downloads;
mod escapes;
mod files;
mod race;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_files::{ContentLimits, FileTree, TreePath};

/// Enough for every test that is about something else.
const BOUNDS: ContentLimits = ContentLimits { bytes: 1 << 20, entries: 1_000 };

/// A directory with a tree in it, and something outside the tree.
struct Ground {
    _dir: tempfile::TempDir,
    root: PathBuf,
    outside: PathBuf,
    tree: FileTree,
}

impl Ground {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "kept").unwrap();
        let tree = FileTree::from_fd(held(&root));
        Self { _dir: dir, root, outside, tree }
    }

    /// All that is outside, for a comparison.
    fn outside(&self) -> BTreeMap<PathBuf, String> {
        shown(&self.outside)
    }

    fn inside(&self) -> BTreeMap<PathBuf, String> {
        shown(&self.root)
    }
}

fn held(directory: &Path) -> std::os::fd::OwnedFd {
    openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn path(text: &str) -> TreePath {
    TreePath::new(text.as_bytes()).unwrap()
}

/// What is in a directory: by path, its kind, mode and content.
fn shown(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).unwrap().map(Result::unwrap) {
            let (meta, at) = (entry.metadata().unwrap(), entry.path());
            let mode = meta.permissions().mode() & 0o7777;
            let what = if meta.is_dir() {
                waiting.push(at.clone());
                format!("directory {mode:o}")
            } else if meta.is_symlink() {
                format!("link {}", fs::read_link(&at).unwrap().as_os_str().as_bytes().escape_ascii())
            } else if meta.is_file() {
                format!("file {mode:o} {}", fs::read(&at).unwrap().escape_ascii())
            } else {
                "special".to_owned()
            };
            found.insert(at.strip_prefix(directory).unwrap().to_owned(), what);
        }
    }
    found
}

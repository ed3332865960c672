//! State of a directory tree, and the differences of two states. Symbolic links are never followed,
//! and only regular files are opened.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Depth below which directories are not entered.
const MAX_DEPTH: usize = 32;
/// Most bytes of a file that are compared.
const CONTENT_BYTES_MAX: u64 = 64 << 20;
const XATTR_BYTES_MAX: usize = 65536;

/// Kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotEntryKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Link,
    /// Fifo, socket or device.
    Special,
}

/// Directory entry, with every property that an attack could change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Its kind.
    pub kind: SnapshotEntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Length in bytes; 0 for directories, whose length is no content.
    pub len: u64,
    /// Hash of the content, or of a symbolic link's target.
    pub content: u64,
    /// Modification time, seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// Extended attributes, names and values in one text.
    pub xattrs: String,
    /// Inode flags (`chattr`), 0 if the filesystem has none.
    pub flags: u32,
}

/// A tree at one moment: entries by path relative to its top.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeSnapshot {
    /// The entries; the top itself has the empty path.
    pub entries: BTreeMap<PathBuf, SnapshotEntry>,
}

/// Difference of two trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeChange {
    /// Path relative to the top.
    pub path: PathBuf,
    /// The change: `created`, `removed`, or the names of the properties.
    pub what: String,
}

impl fmt::Display for TreeChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.what)
    }
}

impl TreeSnapshot {
    /// Reads the tree under `top`, without the paths in `skip` (relative to it). Unreadable entries
    /// are omitted, and appear as `removed`.
    pub fn read_tree(top: &Path, skip: &[&Path]) -> Self {
        let mut entries = BTreeMap::new();
        let mut open = vec![(PathBuf::new(), 0)];
        while let Some((relative, depth)) = open.pop() {
            if skip.contains(&relative.as_path()) {
                continue;
            }
            let path = top.join(&relative);
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            let entry = read_entry(&path, &metadata);
            if entry.kind == SnapshotEntryKind::Directory
                && depth < MAX_DEPTH
                && let Ok(children) = fs::read_dir(&path)
            {
                open.extend(children.flatten().map(|child| (relative.join(child.file_name()), depth + 1)));
            }
            entries.insert(relative, entry);
        }
        Self { entries }
    }

    /// Returns the differences of `later` from `self`, ordered by path.
    pub fn list_changes(&self, later: &Self) -> Vec<TreeChange> {
        let mut changes = Vec::new();
        for (path, before) in &self.entries {
            let what = match later.entries.get(path) {
                None => "removed".to_owned(),
                Some(after) => describe_differences(before, after),
            };
            if !what.is_empty() {
                changes.push(TreeChange { path: path.clone(), what });
            }
        }
        for path in later.entries.keys().filter(|path| !self.entries.contains_key(*path)) {
            changes.push(TreeChange { path: path.clone(), what: "created".to_owned() });
        }
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes
    }
}

fn describe_differences(before: &SnapshotEntry, after: &SnapshotEntry) -> String {
    let pairs = [
        ("kind", before.kind != after.kind),
        ("mode", before.mode != after.mode),
        ("owner", before.owner != after.owner),
        ("length", before.len != after.len),
        ("content", before.content != after.content),
        ("time", before.mtime != after.mtime),
        ("xattr", before.xattrs != after.xattrs),
        ("flags", before.flags != after.flags),
    ];
    let names: Vec<&str> = pairs.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect();
    names.join("+")
}

fn read_entry(path: &Path, metadata: &Metadata) -> SnapshotEntry {
    let file_type = metadata.file_type();
    let kind = if file_type.is_file() {
        SnapshotEntryKind::File
    } else if file_type.is_dir() {
        SnapshotEntryKind::Directory
    } else if file_type.is_symlink() {
        SnapshotEntryKind::Link
    } else {
        debug_assert!(
            file_type.is_fifo() || file_type.is_socket() || file_type.is_block_device() || file_type.is_char_device()
        );
        SnapshotEntryKind::Special
    };
    let (content, flags) = match kind {
        SnapshotEntryKind::File => file_content(path),
        SnapshotEntryKind::Link => (fs::read_link(path).map_or(0, |target| hash(target.as_os_str().as_bytes())), 0),
        SnapshotEntryKind::Directory | SnapshotEntryKind::Special => (0, 0),
    };
    SnapshotEntry {
        kind,
        mode: metadata.mode() & 0o7777,
        owner: (metadata.uid(), metadata.gid()),
        len: if kind == SnapshotEntryKind::Directory { 0 } else { metadata.len() },
        content,
        mtime: (metadata.mtime(), metadata.mtime_nsec()),
        xattrs: read_xattrs(path),
        flags,
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn file_content(path: &Path) -> (u64, u32) {
    // The attempt may replace the file after the check.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let opened = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let Ok(file) = opened else { return (0, 0) };
    if !file.metadata().is_ok_and(|m| m.is_file()) {
        return (0, 0);
    }
    let inode_flags = rustix::fs::ioctl_getflags(&file).map_or(0, |flags| flags.bits());
    let mut bytes = Vec::new();
    if file.take(CONTENT_BYTES_MAX).read_to_end(&mut bytes).is_err() {
        return (0, 0);
    }
    (hash(&bytes), inode_flags)
}

fn read_xattrs(path: &Path) -> String {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names) else { return String::new() };
    let mut text = String::new();
    for name in names.get(..len).unwrap_or_default().split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_BYTES_MAX];
        let len = rustix::fs::lgetxattr(path, name, &mut value).unwrap_or(0);
        let value = value.get(..len).unwrap_or_default();
        text.push_str(&format!("{}={};", name.escape_ascii(), value.escape_ascii()));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[track_caller]
    fn check(act: impl FnOnce(&Path), expected: &[(&str, &str)]) {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("d")).unwrap();
        fs::write(top.path().join("d/f"), "one").unwrap();
        symlink("f", top.path().join("d/l")).unwrap();
        let before = TreeSnapshot::read_tree(top.path(), &[]);
        act(top.path());
        let changes = before.list_changes(&TreeSnapshot::read_tree(top.path(), &[]));
        for (path, what) in expected {
            assert!(
                changes.iter().any(|c| c.path == Path::new(path) && c.what.contains(what)),
                "{path} {what} not in {changes:?}"
            );
        }
        if expected.is_empty() {
            assert_eq!(changes, []);
        }
    }

    #[test]
    fn every_kind_of_change_is_seen() {
        check(|_| {}, &[]);
        check(|top| fs::write(top.join("d/f"), "two").unwrap(), &[("d/f", "content")]);
        check(|top| fs::remove_file(top.join("d/f")).unwrap(), &[("d/f", "removed"), ("d", "time")]);
        check(|top| fs::write(top.join("n"), "").unwrap(), &[("n", "created")]);
        let mode = |top: &Path| fs::set_permissions(top.join("d/f"), fs::Permissions::from_mode(0o600)).unwrap();
        check(mode, &[("d/f", "mode")]);
        let link = |top: &Path| {
            fs::remove_file(top.join("d/l")).unwrap();
            symlink("g", top.join("d/l")).unwrap();
        };
        check(link, &[("d/l", "content")]);
    }
}

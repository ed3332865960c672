//! The changes of a stage: the overlay's upper directory compared with the workspace as it is now.
//! Reads only, except that unreadable directories of the stage are opened up meanwhile.
//!
//! An overlay marks a removed path with a device of number 0/0 (a whiteout), and a directory that
//! hides the one below as opaque. With `userxattr`, which a user namespace needs, its marks are
//! attributes `user.overlay.*`. Renames of directories and copies of mere metadata are off, so
//! every other object in the upper directory is whole (Documentation/filesystems/overlayfs.rst).
//!
//! Opening a file for writing copies it up, even if it is not written. So an object that is equal
//! above and below is not a change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stockade_files::object::{
    ChangeMark, ExtendedAttributes, FileTime, OVERLAY_ATTRIBUTES, ObjectKind, TreeObject, same_content,
};
use stockade_sys::Errno;

use super::error::{PathContext, PathError};

/// Most levels of directories that are scanned, because each level holds two descriptors.
const MAX_DEPTH: usize = 200;
/// Most changes of one stage.
const MAX_CHANGES: usize = 2_000_000;
/// Attribute that keeps the mode of a directory while the directory is opened up for reading.
const MODE_ATTRIBUTE: &[u8] = b"user.overlay.stockade-mode";

/// Type of the change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// The path is new.
    Added,
    /// The path is removed, with everything beneath it.
    Removed,
    /// The bytes of the file or the target of the symbolic link change.
    Modified,
    /// The path becomes another kind of object; everything beneath the old object is removed.
    Replaced,
    /// Only the mode, times or attributes change.
    Metadata,
}

/// Metadata of an object, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectFacts {
    /// File type.
    pub kind: ObjectKind,
    /// Permission bits and the three special bits.
    pub mode: u32,
    /// Size in bytes; for a symbolic link, the length of its target.
    pub size: u64,
    /// Time of the last change of the content.
    pub modified: FileTime,
}

impl ObjectFacts {
    fn from_object(object: &TreeObject, mode: u32) -> Self {
        Self { kind: object.kind(), mode, size: object.size(), modified: object.modified_time() }
    }
}

/// A change of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageChange {
    /// Path relative to the workspace; empty for its root.
    pub path: PathBuf,
    /// Type of the change.
    pub how: ChangeKind,
    /// Object in the stage; absent if the path is removed.
    pub staged: Option<ObjectFacts>,
    /// Object in the workspace now; absent if there is none.
    pub present: Option<ObjectFacts>,
    /// True for a file with further names (hard links) in the workspace. An overlay does not know
    /// these names, so they keep their old content.
    pub other_names: bool,
    /// True for a directory whose time changed only because an entry in it did. A whole commit
    /// includes it; lists do not show it.
    pub is_incidental: bool,
    pub(super) below: Option<ChangeMark>,
    pub(super) attributes: Option<ExtendedAttributes>,
}

/// All changes of a stage, each directory before its entries.
#[derive(Clone, Debug, Default)]
pub struct StageChanges {
    /// Changes, sorted by path.
    pub list: Vec<StageChange>,
    /// For staged files with several names: one of the names whose content equals that of the
    /// workspace, by inode.
    pub(super) unchanged_names: HashMap<u64, PathBuf>,
    /// Directories that exist both in the stage and in the workspace.
    pub(super) merged: BTreeMap<PathBuf, MergedTimes>,
    /// Directories that were opened up, and stay so as long as these changes are in use.
    opened: Vec<Arc<ReadableDirectory>>,
}

/// Times of a directory that exists in both trees.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergedTimes {
    /// Modification time of the directory in the stage.
    pub modified: FileTime,
    /// Change time (`ctime`) of the directory in the workspace.
    pub changed_below: FileTime,
}

impl StageChanges {
    /// Returns whether there is no change to show or to keep.
    pub fn is_empty(&self) -> bool {
        self.list.iter().all(|change| change.is_incidental)
    }

    /// Returns the number of changes to show.
    pub fn visible_count(&self) -> usize {
        self.list.iter().filter(|change| !change.is_incidental).count()
    }
}

/// Compares `upper` with `lower`. Skips the paths in `settled`. A directory time later than `began`
/// comes from changes of entries during the run.
pub(super) fn compare_trees(
    upper: TreeObject,
    lower: TreeObject,
    settled: &BTreeSet<PathBuf>,
    began: FileTime,
) -> Result<StageChanges, PathError> {
    let mut scan = TreeScan { settled, began, found: StageChanges::default() };
    let root = PathBuf::new();
    let upper = ReadableDirectory::from_object(upper).at_path(&root)?;
    scan.both_directories(&upper, &lower, &root)?;
    scan.compare_merged(&upper, &lower, &root, ScanPosition { opaque: false, depth: 0 })?;
    scan.keep_open(upper);
    scan.found.list.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(scan.found)
}

/// Position of a directory in the stage.
#[derive(Clone, Copy)]
struct ScanPosition {
    /// The directory, or one above it, hides the lower directory. A directory that was made in a
    /// new directory has no mark of its own.
    opaque: bool,
    depth: usize,
}

struct TreeScan<'a> {
    settled: &'a BTreeSet<PathBuf>,
    began: FileTime,
    found: StageChanges,
}

impl TreeScan<'_> {
    /// Compares two directories that the overlay merges.
    fn compare_merged(
        &mut self,
        upper: &ReadableDirectory,
        lower: &TreeObject,
        path: &Path,
        below: ScanPosition,
    ) -> Result<(), PathError> {
        check_limits(below.depth, self.found.list.len(), path)?;
        let opaque = below.opaque || is_opaque(&upper.object).at_path(path)?;
        let below = ScanPosition { opaque, depth: below.depth + 1 };
        let mut mine = BTreeSet::new();
        for (name, staged) in upper.object.entries().at_path(path)? {
            let path = path.join(&name);
            let present = TreeObject::open_entry(lower.fd.as_fd(), &name).at_path(&path)?;
            self.compare_pair(staged.at_path(&path)?, present, &path, below)?;
            mine.insert(name);
        }
        if opaque {
            let removed = lower.entries().at_path(path)?.filter(|(name, _)| !mine.contains(name));
            for (name, present) in removed {
                let path = path.join(name);
                let present = present.at_path(&path)?;
                self.push(StageChange::new(&path, ChangeKind::Removed, None, Some(&present)));
            }
        }
        Ok(())
    }

    fn compare_pair(
        &mut self,
        staged: TreeObject,
        present: Option<TreeObject>,
        path: &Path,
        below: ScanPosition,
    ) -> Result<(), PathError> {
        if is_whiteout(&staged) {
            if let Some(present) = present {
                self.push(StageChange::new(path, ChangeKind::Removed, None, Some(&present)));
            }
            return Ok(());
        }
        match present {
            None => self.add_object(staged, None, ChangeKind::Added, path, below.depth),
            Some(present) if present.kind() != staged.kind() => {
                self.add_object(staged, Some(&present), ChangeKind::Replaced, path, below.depth)
            }
            Some(present) if staged.is_directory() => {
                let staged = ReadableDirectory::from_object(staged).at_path(path)?;
                self.both_directories(&staged, &present, path)?;
                self.compare_merged(&staged, &present, path, below)?;
                self.keep_open(staged);
                Ok(())
            }
            Some(present) => self.compare_same_kind(&staged, &present, path),
        }
    }

    /// Adds an object that the workspace lacks or has as another kind.
    fn add_object(
        &mut self,
        staged: TreeObject,
        present: Option<&TreeObject>,
        how: ChangeKind,
        path: &Path,
        depth: usize,
    ) -> Result<(), PathError> {
        check_limits(depth, self.found.list.len(), path)?;
        if !staged.is_directory() {
            self.push(StageChange::new(path, how, Some((&staged, staged.mode())), present));
            return Ok(());
        }
        let staged = ReadableDirectory::from_object(staged).at_path(path)?;
        self.push(StageChange::new(path, how, Some((&staged.object, staged.mode)), present));
        for (name, inner) in staged.object.entries().at_path(path)? {
            let path = path.join(name);
            let inner = inner.at_path(&path)?;
            if !is_whiteout(&inner) {
                self.add_object(inner, None, ChangeKind::Added, &path, depth + 1)?;
            }
        }
        self.keep_open(staged);
        Ok(())
    }

    fn keep_open(&mut self, directory: ReadableDirectory) {
        if directory.opened {
            self.found.opened.push(Arc::new(directory));
        }
    }

    /// Compares two objects of one kind that are not directories.
    fn compare_same_kind(&mut self, staged: &TreeObject, present: &TreeObject, path: &Path) -> Result<(), PathError> {
        let same = staged.opened_up(|| same_content(staged, present)).at_path(path)?;
        if same && staged.stat.st_nlink > 1 && !self.settled.contains(path) {
            self.found.unchanged_names.entry(staged.inode()).or_insert_with(|| path.to_owned());
        }
        let mut change = StageChange::new(path, ChangeKind::Modified, Some((staged, staged.mode())), Some(present));
        if same {
            // The time of a symbolic link alone is not a change, because no program depends on it.
            let timed = staged.kind() != ObjectKind::Link && staged.modified_time() != present.modified_time();
            let attributes = staged.opened_up(|| staged.read_attributes()).at_path(path)?;
            if !timed && staged.mode() == present.mode() && attributes == present.read_attributes().at_path(path)? {
                return Ok(());
            }
            change.how = ChangeKind::Metadata;
            change.attributes = Some(attributes);
        } else {
            change.other_names = present.stat.st_nlink > 1;
        }
        self.push(change);
        Ok(())
    }

    fn both_directories(
        &mut self,
        staged: &ReadableDirectory,
        present: &TreeObject,
        path: &Path,
    ) -> Result<(), PathError> {
        let object = &staged.object;
        let merged = MergedTimes { modified: object.modified_time(), changed_below: present.changed_time() };
        self.found.merged.insert(path.to_owned(), merged);
        let attributes = object.read_attributes().at_path(path)?;
        let same = staged.mode == present.mode() && attributes == present.read_attributes().at_path(path)?;
        if same && object.modified_time() == present.modified_time() {
            return Ok(());
        }
        let mut change = StageChange::new(path, ChangeKind::Metadata, Some((object, staged.mode)), Some(present));
        change.is_incidental = same && object.modified_time() > self.began;
        change.attributes = Some(attributes);
        self.push(change);
        Ok(())
    }

    fn push(&mut self, change: StageChange) {
        if !self.settled.contains(&change.path) {
            self.found.list.push(change);
        }
    }
}

impl StageChange {
    /// Makes a change that is only displayed, not applied.
    pub fn for_show(
        path: impl Into<PathBuf>,
        how: ChangeKind,
        staged: Option<ObjectFacts>,
        present: Option<ObjectFacts>,
    ) -> Self {
        Self {
            path: path.into(),
            how,
            staged,
            present,
            other_names: false,
            is_incidental: false,
            below: None,
            attributes: None,
        }
    }

    fn new(path: &Path, how: ChangeKind, staged: Option<(&TreeObject, u32)>, present: Option<&TreeObject>) -> Self {
        let staged = staged.map(|(object, mode)| ObjectFacts::from_object(object, mode));
        let below = present.map(TreeObject::change_mark);
        let present = present.map(|object| ObjectFacts::from_object(object, object.mode()));
        Self { below, ..Self::for_show(path, how, staged, present) }
    }
}

fn check_limits(depth: usize, count: usize, path: &Path) -> Result<(), PathError> {
    if depth > MAX_DEPTH {
        return Err(PathError::from_reason(path, "it is nested too deeply to be examined"));
    }
    if count > MAX_CHANGES {
        return Err(PathError::from_reason(path, "too many changes are staged to be examined"));
    }
    Ok(())
}

pub(super) fn is_whiteout(object: &TreeObject) -> bool {
    object.kind() == ObjectKind::Device && object.stat.st_rdev == 0
}

fn is_opaque(directory: &TreeObject) -> Result<bool, Errno> {
    let name = [OVERLAY_ATTRIBUTES, b"opaque"].concat();
    Ok(directory.read_attribute(&name)?.is_some_and(|value| value == b"y"))
}

/// A staged directory whose entries can be read and looked up, whatever its mode is. Restores the
/// mode on drop if this value changed it. If the drop never runs, the mode is read from the
/// attribute [`MODE_ATTRIBUTE`].
#[derive(Debug)]
pub(super) struct ReadableDirectory {
    pub object: TreeObject,
    pub mode: u32,
    opened: bool,
}

impl ReadableDirectory {
    pub fn from_object(object: TreeObject) -> Result<Self, Errno> {
        let mode = object.mode();
        if rustix::process::geteuid().is_root() {
            return Ok(Self { object, mode, opened: false });
        }
        let stored_mode = match object.read_attribute(MODE_ATTRIBUTE) {
            Err(Errno::ACCESS) => None,
            other => other?,
        };
        let stored_mode = stored_mode.and_then(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?)));
        let mode = stored_mode.unwrap_or(mode);
        let opened = mode & 0o500 != 0o500 && stored_mode.is_none();
        if opened {
            object.set_mode(mode | 0o700)?;
            object.set_attribute(MODE_ATTRIBUTE, &mode.to_le_bytes())?;
        }
        Ok(Self { object, mode, opened })
    }
}

impl Drop for ReadableDirectory {
    fn drop(&mut self) {
        if self.opened && self.object.remove_attribute(MODE_ATTRIBUTE).is_ok() {
            // No recovery is possible here; the mode is only wider than before.
            let _ = self.object.set_mode(self.mode);
        }
    }
}

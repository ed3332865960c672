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
use stockade_sys::Errno;

use super::error::{At, PathError};
use stockade_files::object::{Attributes, Kind, Mark, OVERLAY_ATTRIBUTES, Object, Time, names, os, same_content};

/// Most levels of directories that are scanned, because each level holds two descriptors.
const DEPTH_MAX: usize = 200;
/// Most changes of one stage.
const CHANGES_MAX: usize = 2_000_000;
/// Attribute that keeps the mode of a directory while the directory is opened up for reading.
const KEPT_MODE: &[u8] = b"user.overlay.stockade-mode";

/// Type of the change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
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
pub struct Facts {
    /// File type.
    pub kind: Kind,
    /// Permission bits and the three special bits.
    pub mode: u32,
    /// Size in bytes; for a symbolic link, the length of its target.
    pub size: u64,
    /// Time of the last change of the content.
    pub modified: Time,
}

impl Facts {
    fn of(object: &Object, mode: u32) -> Self {
        Self { kind: object.kind(), mode, size: object.size(), modified: object.modified() }
    }
}

/// A change of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Path relative to the workspace; empty for its root.
    pub path: PathBuf,
    /// Type of the change.
    pub how: How,
    /// Object in the stage; absent if the path is removed.
    pub staged: Option<Facts>,
    /// Object in the workspace now; absent if there is none.
    pub present: Option<Facts>,
    /// True for a file with further names (hard links) in the workspace. An overlay does not know
    /// these names, so they keep their old content.
    pub other_names: bool,
    /// True for a directory whose time changed only because an entry in it did. A whole commit
    /// includes it; lists do not show it.
    pub is_incidental: bool,
    pub(super) below: Option<Mark>,
    pub(super) attributes: Option<Attributes>,
}

/// All changes of a stage, each directory before its entries.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Changes, sorted by path.
    pub list: Vec<Change>,
    /// For staged files with several names: one of the names whose content equals that of the
    /// workspace, by inode.
    pub(super) unchanged_names: HashMap<u64, PathBuf>,
    /// Directories that exist both in the stage and in the workspace.
    pub(super) merged: BTreeMap<PathBuf, Merged>,
    /// Directories that were opened up, and stay so as long as these changes are in use.
    opened: Vec<Arc<Readable>>,
}

/// Times of a directory that exists in both trees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merged {
    /// Modification time of the directory in the stage.
    pub modified: Time,
    /// Change time (`ctime`) of the directory in the workspace.
    pub changed_below: Time,
}

impl Changes {
    /// Returns whether there is no change to show or to keep.
    pub fn is_empty(&self) -> bool {
        self.list.iter().all(|change| change.is_incidental)
    }

    /// Returns the number of changes to show.
    pub fn count(&self) -> usize {
        self.list.iter().filter(|change| !change.is_incidental).count()
    }
}

/// Compares `upper` with `lower`. Skips the paths in `settled`. A directory time later than `began`
/// comes from changes of entries during the run.
pub(super) fn changes(
    upper: Object,
    lower: Object,
    settled: &BTreeSet<PathBuf>,
    began: Time,
) -> Result<Changes, PathError> {
    let mut scan = Scan { settled, began, found: Changes::default() };
    let root = PathBuf::new();
    let upper = Readable::of(upper).at(&root)?;
    scan.both_directories(&upper, &lower, &root)?;
    scan.merged(&upper, &lower, &root, Below { opaque: false, depth: 0 })?;
    scan.keep(upper);
    scan.found.list.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(scan.found)
}

/// Position of a directory in the stage.
#[derive(Clone, Copy)]
struct Below {
    /// The directory, or one above it, hides the lower directory. A directory that was made in a
    /// new directory has no mark of its own.
    opaque: bool,
    depth: usize,
}

struct Scan<'a> {
    settled: &'a BTreeSet<PathBuf>,
    began: Time,
    found: Changes,
}

impl Scan<'_> {
    /// Compares two directories that the overlay merges.
    fn merged(&mut self, upper: &Readable, lower: &Object, path: &Path, below: Below) -> Result<(), PathError> {
        limit(below.depth, self.found.list.len(), path)?;
        let opaque = below.opaque || is_opaque(&upper.object).at(path)?;
        let below = Below { opaque, depth: below.depth + 1 };
        let mine = names(upper.object.fd.as_fd()).at(path)?;
        for name in &mine {
            let path = path.join(os(name));
            let Some(staged) = Object::find(upper.object.fd.as_fd(), os(name)).at(&path)? else { continue };
            let present = Object::find(lower.fd.as_fd(), os(name)).at(&path)?;
            self.pair(staged, present, &path, below)?;
        }
        if opaque {
            for name in names(lower.fd.as_fd()).at(path)? {
                if mine.binary_search(&name).is_err() {
                    let path = path.join(os(&name));
                    if let Some(present) = Object::find(lower.fd.as_fd(), os(&name)).at(&path)? {
                        self.push(Change::new(&path, How::Removed, None, Some(&present)));
                    }
                }
            }
        }
        Ok(())
    }

    fn pair(&mut self, staged: Object, present: Option<Object>, path: &Path, below: Below) -> Result<(), PathError> {
        if is_whiteout(&staged) {
            if let Some(present) = present {
                self.push(Change::new(path, How::Removed, None, Some(&present)));
            }
            return Ok(());
        }
        match present {
            None => self.added(staged, None, How::Added, path, below.depth),
            Some(present) if present.kind() != staged.kind() => {
                self.added(staged, Some(&present), How::Replaced, path, below.depth)
            }
            Some(present) if staged.is_directory() => {
                let staged = Readable::of(staged).at(path)?;
                self.both_directories(&staged, &present, path)?;
                self.merged(&staged, &present, path, below)?;
                self.keep(staged);
                Ok(())
            }
            Some(present) => self.both(&staged, &present, path),
        }
    }

    /// Adds an object that the workspace lacks or has as another kind.
    fn added(
        &mut self,
        staged: Object,
        present: Option<&Object>,
        how: How,
        path: &Path,
        depth: usize,
    ) -> Result<(), PathError> {
        limit(depth, self.found.list.len(), path)?;
        if !staged.is_directory() {
            self.push(Change::new(path, how, Some((&staged, staged.mode())), present));
            return Ok(());
        }
        let staged = Readable::of(staged).at(path)?;
        self.push(Change::new(path, how, Some((&staged.object, staged.mode)), present));
        for name in names(staged.object.fd.as_fd()).at(path)? {
            let path = path.join(os(&name));
            match Object::find(staged.object.fd.as_fd(), os(&name)).at(&path)? {
                Some(inner) if !is_whiteout(&inner) => self.added(inner, None, How::Added, &path, depth + 1)?,
                _ => {}
            }
        }
        self.keep(staged);
        Ok(())
    }

    fn keep(&mut self, directory: Readable) {
        if directory.opened {
            self.found.opened.push(Arc::new(directory));
        }
    }

    /// Compares two objects of one kind that are not directories.
    fn both(&mut self, staged: &Object, present: &Object, path: &Path) -> Result<(), PathError> {
        let same = staged.opened_up(|| same_content(staged, present)).at(path)?;
        if same && staged.stat.st_nlink > 1 && !self.settled.contains(path) {
            self.found.unchanged_names.entry(staged.inode()).or_insert_with(|| path.to_owned());
        }
        let mut change = Change::new(path, How::Modified, Some((staged, staged.mode())), Some(present));
        if same {
            // The time of a symbolic link alone is not a change, because no program depends on it.
            let timed = staged.kind() != Kind::Link && staged.modified() != present.modified();
            let attributes = staged.opened_up(|| staged.attributes()).at(path)?;
            if !timed && staged.mode() == present.mode() && attributes == present.attributes().at(path)? {
                return Ok(());
            }
            change.how = How::Metadata;
            change.attributes = Some(attributes);
        } else {
            change.other_names = present.stat.st_nlink > 1;
        }
        self.push(change);
        Ok(())
    }

    fn both_directories(&mut self, staged: &Readable, present: &Object, path: &Path) -> Result<(), PathError> {
        let object = &staged.object;
        let merged = Merged { modified: object.modified(), changed_below: present.changed() };
        self.found.merged.insert(path.to_owned(), merged);
        let attributes = object.attributes().at(path)?;
        let same = staged.mode == present.mode() && attributes == present.attributes().at(path)?;
        if same && object.modified() == present.modified() {
            return Ok(());
        }
        let mut change = Change::new(path, How::Metadata, Some((object, staged.mode)), Some(present));
        change.is_incidental = same && object.modified() > self.began;
        change.attributes = Some(attributes);
        self.push(change);
        Ok(())
    }

    fn push(&mut self, change: Change) {
        if !self.settled.contains(&change.path) {
            self.found.list.push(change);
        }
    }
}

impl Change {
    /// Makes a change that is only displayed, not applied.
    pub fn for_show(path: impl Into<PathBuf>, how: How, staged: Option<Facts>, present: Option<Facts>) -> Self {
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

    fn new(path: &Path, how: How, staged: Option<(&Object, u32)>, present: Option<&Object>) -> Self {
        Self {
            path: path.to_owned(),
            how,
            staged: staged.map(|(object, mode)| Facts::of(object, mode)),
            present: present.map(|object| Facts::of(object, object.mode())),
            other_names: false,
            is_incidental: false,
            below: present.map(Object::mark),
            attributes: None,
        }
    }
}

fn limit(depth: usize, count: usize, path: &Path) -> Result<(), PathError> {
    if depth > DEPTH_MAX {
        return Err(PathError::because(path, "it lies too deep to be looked at"));
    }
    if count > CHANGES_MAX {
        return Err(PathError::because(path, "too much is staged to be looked at"));
    }
    Ok(())
}

pub(super) fn is_whiteout(object: &Object) -> bool {
    object.kind() == Kind::Device && object.stat.st_rdev == 0
}

fn is_opaque(directory: &Object) -> Result<bool, Errno> {
    let name = [OVERLAY_ATTRIBUTES, b"opaque"].concat();
    Ok(directory.attribute(&name)?.is_some_and(|value| value == b"y"))
}

/// A staged directory whose entries can be read and looked up, whatever its mode is. Restores the
/// mode on drop if this value changed it. If the drop never runs, the mode is read from the
/// attribute [`KEPT_MODE`].
#[derive(Debug)]
pub(super) struct Readable {
    pub object: Object,
    pub mode: u32,
    opened: bool,
}

impl Readable {
    pub fn of(object: Object) -> Result<Self, Errno> {
        let mode = object.mode();
        if rustix::process::geteuid().is_root() {
            return Ok(Self { object, mode, opened: false });
        }
        let kept = match object.attribute(KEPT_MODE) {
            Err(Errno::ACCESS) => None,
            other => other?,
        };
        let kept = kept.and_then(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?)));
        let mode = kept.unwrap_or(mode);
        let opened = mode & 0o500 != 0o500 && kept.is_none();
        if opened {
            object.set_mode(mode | 0o700)?;
            object.set_attribute(KEPT_MODE, &mode.to_le_bytes())?;
        }
        Ok(Self { object, mode, opened })
    }
}

impl Drop for Readable {
    fn drop(&mut self) {
        if self.opened && self.object.remove_attribute(KEPT_MODE).is_ok() {
            // No recovery is possible here; the mode is only wider than before.
            let _ = self.object.set_mode(self.mode);
        }
    }
}

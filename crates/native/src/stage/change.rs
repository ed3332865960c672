//! What a stage would change: read from the overlay's upper directory, compared
//! with the workspace as it is now. Only reads.
//!
//! An overlay marks what is gone with a device of number 0/0 (a whiteout), and a
//! directory that hides the one below as opaque. With `userxattr`, which a user
//! namespace needs, its marks are attributes `user.overlay.*`; renames of
//! directories and copies of mere metadata are off, so every other object in the
//! upper directory is whole (Documentation/filesystems/overlayfs.rst).
//!
//! Opening a file for writing copies it up, whether or not it is written. What
//! is the same above and below is therefore no change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stockade_sys::Errno;

use super::error::{At, PathError};
use stockade_files::object::{Attributes, Kind, Mark, OVERLAY_ATTRIBUTES, Object, Time, names, os, same_content};

/// Levels of directories that are looked into: each holds two descriptors.
const DEPTH_MAX: usize = 200;
/// Most changes of one stage.
const CHANGES_MAX: usize = 2_000_000;
/// Where the mode of a directory is kept while it is opened up to be read.
const KEPT_MODE: &[u8] = b"user.overlay.stockade-mode";

/// How a path changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// It is new.
    Added,
    /// It goes, with everything beneath it.
    Removed,
    /// Its bytes change, or where the link leads.
    Modified,
    /// It becomes another kind of object; everything beneath the old one goes.
    Replaced,
    /// Only its mode, times or attributes change.
    Metadata,
}

/// What somebody may want to know of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// Permission bits and the three special ones.
    pub mode: u32,
    /// In bytes; of a link, the length of its text.
    pub size: u64,
    /// When its content last changed.
    pub modified: Time,
}

impl Facts {
    fn of(object: &Object, mode: u32) -> Self {
        Self { kind: object.kind(), mode, size: object.size(), modified: object.modified() }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Relative to the workspace; empty for its root.
    pub path: PathBuf,
    /// How.
    pub how: How,
    /// What the stage holds; absent where the path goes.
    pub staged: Option<Facts>,
    /// What the workspace holds now; absent where there is nothing.
    pub present: Option<Facts>,
    /// For a file of which the workspace has other names too: those names keep
    /// what they show, because an overlay cannot know them.
    pub other_names: bool,
    /// A directory whose time changed because something in it did. Taken along
    /// with a whole commit, and not worth showing.
    pub is_incidental: bool,
    pub(super) below: Option<Mark>,
    pub(super) attributes: Option<Attributes>,
}

/// All changes of a stage, parents before what is in them.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// In the order of their paths.
    pub list: Vec<Change>,
    /// For files with several names in the stage: one of them whose content is
    /// that of the workspace, by inode.
    pub(super) unchanged_names: HashMap<u64, PathBuf>,
    /// Directories of the stage that the workspace has as well.
    pub(super) merged: BTreeMap<PathBuf, Merged>,
    /// Directories that were opened up, and stay so while anybody looks at these
    /// changes.
    opened: Vec<Arc<Readable>>,
}

/// A directory that both have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merged {
    /// When the stage's was last changed.
    pub modified: Time,
    /// When anything about the workspace's last changed.
    pub changed_below: Time,
}

impl Changes {
    /// Nothing that anybody would want to see, or keep.
    pub fn is_empty(&self) -> bool {
        self.list.iter().all(|change| change.is_incidental)
    }

    /// How many there are to see.
    pub fn count(&self) -> usize {
        self.list.iter().filter(|change| !change.is_incidental).count()
    }
}

/// Compares `upper` with `lower`. Paths in `settled` are done with. A directory
/// whose time is later than `began` has it from what happened inside it.
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

/// Where in the stage a directory lies.
#[derive(Clone, Copy)]
struct Below {
    /// It, or one above it, hides what is below: a directory that was made in a
    /// new one carries no mark of its own.
    opaque: bool,
    depth: usize,
}

struct Scan<'a> {
    settled: &'a BTreeSet<PathBuf>,
    began: Time,
    found: Changes,
}

impl Scan<'_> {
    /// Two directories that show as one.
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

    /// What the workspace does not have, or has as something else.
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

    /// Two objects of one kind that are no directories.
    fn both(&mut self, staged: &Object, present: &Object, path: &Path) -> Result<(), PathError> {
        let same = staged.opened_up(|| same_content(staged, present)).at(path)?;
        if same && staged.stat.st_nlink > 1 && !self.settled.contains(path) {
            self.found.unchanged_names.entry(staged.inode()).or_insert_with(|| path.to_owned());
        }
        let mut change = Change::new(path, How::Modified, Some((staged, staged.mode())), Some(present));
        if same {
            // The time of a link is not worth a change: nothing looks at it.
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
    /// One that is only looked at, not made.
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

/// A directory of the stage whose names can be read and looked up, whatever its
/// mode says; whoever opened it up puts the mode back when it is dropped. If that
/// never happens, it is read from where it was kept.
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
            // Nothing more can be done here; the mode is only wider than it was.
            let _ = self.object.set_mode(self.mode);
        }
    }
}

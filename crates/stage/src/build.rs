//! Prepares the new objects of a commit in its commit area. Each object is complete: content with
//! its holes, mode, time, attributes, names that share a file. Leaves the workspace untouched and
//! does not read its content.
//!
//! If stage and workspace are on one filesystem, the new object is the staged one under a second
//! name (hard link), so nothing is copied.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fsync, mkdirat, mknodat, symlinkat, syncfs};
use stockade_files::content::copy_content;
use stockade_files::object::{ObjectKind, TreeObject, to_os_str};
use stockade_sys::Errno;

use super::apply::{apply_settings, slot_name};
use super::change::{ReadableDirectory, is_whiteout};
use super::error::{PathContext, PathError};
use super::journal::ObjectMetadata;
use super::state_files::{open_directory, open_to_write};
use super::watch::{CommitObserver, CommitPoint};

/// Most files that are flushed one by one; if there are more, the whole filesystem is flushed.
const MAX_SINGLE_FLUSHES: usize = 64;

/// Makes objects in a commit area.
pub(super) struct ObjectBuilder<'a> {
    pub upper: BorrowedFd<'a>,
    pub workspace: BorrowedFd<'a>,
    pub commit_area: BorrowedFd<'a>,
    /// True if the commit area shares a filesystem with the stage.
    pub links: bool,
    /// True if nothing of the stage is left afterwards.
    pub is_whole: bool,
    /// Paths to make, with the directories above them.
    pub target_paths: &'a BTreeSet<PathBuf>,
    /// For each inode of a staged file: a name in the workspace with the same content.
    pub unchanged_names: &'a HashMap<u64, PathBuf>,
    pub watch: &'a mut dyn CommitObserver,
    pub progress: BuildProgress,
}

/// Objects made until now.
#[derive(Default)]
pub(super) struct BuildProgress {
    made: HashMap<u64, TreeObject>,
    slots: u32,
    flush: Vec<TreeObject>,
    built: usize,
}

/// Object in a slot of the commit area.
pub(super) struct CommitSlot {
    pub number: u32,
    pub inode: u64,
    /// Metadata to set after the object is moved to its path. Until then a directory is open to its
    /// owner, because it could not be moved otherwise.
    pub settings: Option<ObjectMetadata>,
}

impl ObjectBuilder<'_> {
    /// Reserves a number for an object that will be moved into the commit area.
    pub fn reserve_slot(&mut self) -> u32 {
        self.progress.slots += 1;
        self.progress.slots - 1
    }

    /// Makes the object that is staged at `path`, with all wanted objects beneath it.
    pub fn build_object(&mut self, path: &Path) -> Result<CommitSlot, PathError> {
        let number = self.reserve_slot();
        let staged = TreeObject::open_beneath(self.upper, path).at_path(path)?;
        let staged = staged.ok_or_else(|| PathError::new(path, Errno::NOENT))?;
        let name = slot_name(number);
        let settings = self.make_object(staged, path, self.commit_area, OsStr::new(&name))?;
        let object = TreeObject::require_entry(self.commit_area, &name).at_path(path)?;
        if let Some(settings) = &settings {
            let open = ObjectMetadata { mode: settings.mode.map(|mode| mode | 0o700), ..settings.clone() };
            apply_settings(&object, &open).at_path(path)?;
        }
        Ok(CommitSlot { number, inode: object.inode(), settings })
    }

    /// Makes one object. The caller sets the metadata of a directory.
    fn make_object(
        &mut self,
        staged: TreeObject,
        path: &Path,
        into: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<Option<ObjectMetadata>, PathError> {
        let made = if staged.is_directory() {
            self.make_directory(staged, path, into, name).map(Some)
        } else {
            self.make_leaf(&staged, path, into, name).map(|()| None)
        }?;
        self.progress.built += 1;
        self.watch.on_point(CommitPoint::Built).at_path(path)?;
        self.watch.on_progress(self.progress.built, self.target_paths.len().max(self.progress.built));
        Ok(made)
    }

    fn make_directory(
        &mut self,
        staged: TreeObject,
        path: &Path,
        into: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<ObjectMetadata, PathError> {
        let staged = ReadableDirectory::from_object(staged).at_path(path)?;
        mkdirat(into, name, Mode::RWXU).at_path(path)?;
        let made = TreeObject::require_entry(into, name).at_path(path)?;
        made.set_owner(staged.object.owner()).at_path(path)?;
        for (inner, object) in staged.object.entries().at_path(path)? {
            let path = path.join(&inner);
            if !self.target_paths.contains(&path) {
                continue;
            }
            let object = object.at_path(&path)?;
            if is_whiteout(&object) {
                continue;
            }
            if let Some(settings) = self.make_object(object, &path, made.fd.as_fd(), &inner)? {
                let object = TreeObject::require_entry(&made.fd, &inner);
                object.and_then(|object| apply_settings(&object, &settings)).at_path(&path)?;
            }
        }
        Ok(ObjectMetadata {
            mode: Some(staged.mode),
            modified: Some(staged.object.modified_time()),
            attributes: Some(staged.object.read_attributes().at_path(path)?),
        })
    }

    fn make_leaf(
        &mut self,
        staged: &TreeObject,
        path: &Path,
        into: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<(), PathError> {
        // The file already has a name in the workspace that stays, so this name becomes another
        // link.
        if let Some(other) = self.unchanged_names.get(&staged.inode())
            && let Some(there) = TreeObject::open_beneath(self.workspace, other).at_path(other)?
            && there.link_at(into, name).is_ok()
        {
            return Ok(());
        }
        // If another link to the file remains in the stage, a later write to either would change
        // both.
        if self.links && (self.is_whole || staged.stat.st_nlink == 1) {
            let own = staged.overlay_attributes().at_path(path)?;
            let remove = || own.iter().try_for_each(|attribute| staged.remove_attribute(attribute));
            staged.opened_up(remove).at_path(path)?;
            match staged.link_at(into, name) {
                Ok(()) => return self.flush_later(staged, path),
                // Too many links, or links to it are not allowed: copy.
                Err(Errno::MLINK | Errno::PERM | Errno::XDEV | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(PathError::new(path, errno)),
            }
        }
        if staged.stat.st_nlink > 1
            && let Some(first) = self.progress.made.get(&staged.inode())
        {
            return first.link_at(into, name).at_path(path);
        }
        let made = duplicate_object(staged, into, name).at_path(path)?;
        self.flush_later(&made, path)?;
        if staged.stat.st_nlink > 1 {
            self.progress.made.insert(staged.inode(), made);
        }
        Ok(())
    }

    fn flush_later(&mut self, object: &TreeObject, path: &Path) -> Result<(), PathError> {
        if object.kind() == ObjectKind::File && self.progress.flush.len() <= MAX_SINGLE_FLUSHES {
            self.progress.flush.push(TreeObject::duplicate(&object.fd).at_path(path)?);
        }
        Ok(())
    }

    /// Flushes all objects made so far to the disk.
    pub fn flush(&mut self) -> Result<(), PathError> {
        let path = Path::new("");
        let flushed_singly = self.progress.flush.len() <= MAX_SINGLE_FLUSHES
            && self.progress.flush.iter().all(|object| object.open_file().and_then(fsync).is_ok());
        let commit_area = open_directory(self.commit_area, c".").at_path(path)?;
        if flushed_singly { fsync(commit_area) } else { syncfs(commit_area) }.at_path(path)
    }
}

/// Copies an object that is not a directory, with owner, mode, time and attributes.
pub(super) fn duplicate_object(model: &TreeObject, into: BorrowedFd<'_>, name: &OsStr) -> Result<TreeObject, Errno> {
    copy_object(model, into, name)?;
    let made = TreeObject::require_entry(into, name)?;
    made.set_owner(model.owner())?;
    let settings = ObjectMetadata {
        mode: Some(model.mode()),
        modified: Some(model.modified_time()),
        attributes: Some(model.opened_up(|| model.read_attributes())?),
    };
    apply_settings(&made, &settings)?;
    Ok(made)
}

/// Makes a new object of the same kind and content.
fn copy_object(staged: &TreeObject, into: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match staged.kind() {
        ObjectKind::File => copy_file(staged, into, name),
        ObjectKind::Link => symlinkat(to_os_str(&staged.link_text()?), into, name),
        ObjectKind::Pipe => mknodat(into, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0),
        ObjectKind::Socket => mknodat(into, name, FileType::Socket, Mode::RUSR | Mode::WUSR, 0),
        ObjectKind::Directory | ObjectKind::Device => Err(Errno::INVAL),
    }
}

fn copy_file(staged: &TreeObject, into: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let from = staged.opened_up(|| staged.open_file())?;
    let to = open_to_write(into, name, OFlags::WRONLY | OFlags::EXCL)?;
    copy_content(&from, &to, staged.size(), u64::MAX).map(drop)
}

/// Returns the metadata of a directory before a name is moved in or out of it.
pub(super) fn settings_of(object: &TreeObject) -> ObjectMetadata {
    ObjectMetadata { mode: Some(object.mode()), modified: Some(object.modified_time()), attributes: None }
}

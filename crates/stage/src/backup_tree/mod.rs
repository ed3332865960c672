//! A stage without an overlay (level `restricted`): the run writes in the workspace itself. Before
//! the first change of a path, the original is kept in a backup tree (directory `aside`). When the
//! run ends, [`put_back`] moves the run's changes into the stage, in the form that an overlay would
//! have left, and restores the workspace.
//!
//! The backup tree is the inverse of the stage's tree. A device 0/0 marks a path without an object,
//! a directory marks a directory, and any other entry is the original object. An original is never
//! written to: before a write to a file, a copy replaces the file. All this is names on one
//! filesystem, so after a crash the tree itself shows the state, and `recover` restores the
//! workspace.
//!
//! All of it runs on the thread of the broker. A run can change names only through that thread, so
//! no name moves between a check and the operation.

mod move_back;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, linkat, mkdirat, mknodat, openat, renameat, renameat_with, unlinkat,
};
use serde::{Deserialize, Serialize};
use stockade_files::object::{ObjectKind, TreeObject};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::build::duplicate_object;
use super::commit_area::mount_of;
use super::error::{PathContext, PathError, StageError};
use super::journal::ObjectMetadata;
use super::stage_directory::{OpenStage, make_private};
use super::state_files::{LIST_LIMITS, LineWriter, has_any};

pub(super) use move_back::{clear, put_back};

const BACKUP_DIRECTORY: &str = "aside";
/// Directory for copies before they move into the workspace, and directories before they move back.
const TEMPORARY_DIRECTORY: &str = "aside-making";
/// File with the metadata of directories.
const DIRECTORY_NOTES_FILE: &str = "aside-directories";
/// The only name in [`TEMPORARY_DIRECTORY`].
const NEW_OBJECT_NAME: &str = "new";
/// Most paths in the backup tree; further changes of the run are refused.
const MAX_BACKUPS: usize = 1_000_000;

/// Metadata of a directory before the run. The last line of a path is valid.
#[derive(Debug, Serialize, Deserialize)]
struct DirectoryNote {
    path: RawText,
    inode: u64,
    settings: ObjectMetadata,
    /// Metadata that the run left, recorded when the restoration of the directory begins.
    #[serde(default)]
    after: Option<ObjectMetadata>,
    /// True if the directory was made again because the run removed it. Then a counterpart in the
    /// stage is another directory.
    #[serde(default)]
    is_remade: bool,
}

/// How the original of a path was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackupMethod {
    /// There was no object.
    Nothing,
    /// A directory with this inode.
    Directory(u64),
    /// The original has a second name. The path may be removed or replaced, but not written to.
    Named,
    /// The path holds a copy.
    Copied,
}

/// Backs up the objects that a run is about to change.
#[derive(Debug)]
pub struct BackupTree {
    root: PathBuf,
    workspace: OwnedFd,
    tree: OwnedFd,
    making: OwnedFd,
    notes: LineWriter,
    backup_method: HashMap<PathBuf, BackupMethod>,
    /// Paths of the copies, by device and inode of the originals.
    copies: HashMap<(u64, u64), PathBuf>,
}

impl BackupTree {
    /// Makes the backup tree for the run that writes to `stage`.
    ///
    /// # Errors
    /// [`StageError::Unfit`] if stage and workspace are on two filesystems; other errors if the
    /// tree cannot be made.
    pub fn new(stage: &OpenStage) -> Result<Self, StageError> {
        let workspace = stage.open_workspace()?;
        let path = stage.workspace();
        if mount_of(workspace.as_fd()).at_path(path)? != mount_of(stage.directory.as_fd()).at_path(path)? {
            let why = "it is on another filesystem than the stages; level restricted needs the same one";
            return Err(StageError::Unfit(PathError::from_reason(path, why)));
        }
        let tree = make_private(stage.directory.as_fd(), BACKUP_DIRECTORY).at_path(Path::new(BACKUP_DIRECTORY))?;
        let making =
            make_private(stage.directory.as_fd(), TEMPORARY_DIRECTORY).at_path(Path::new(TEMPORARY_DIRECTORY))?;
        let notes = open_notes(stage)?;
        let mut new = Self {
            root: path.to_owned(),
            workspace,
            tree,
            making,
            notes,
            backup_method: HashMap::new(),
            copies: HashMap::new(),
        };
        let root = TreeObject::duplicate(&new.workspace).at_path(path)?;
        note_directory(&mut new.notes, Path::new(""), &root)?;
        Ok(new)
    }

    /// Prepares a change of the object at the absolute `path`; call it before the change.
    /// `rewrites` is true if the object itself may change, not only its name. Ignores paths outside
    /// the workspace.
    ///
    /// # Errors
    /// [`PathError`] if the object cannot be backed up: the change must not be made then.
    pub fn before_change(&mut self, path: &Path, rewrites: bool) -> Result<(), PathError> {
        let Ok(path) = path.strip_prefix(&self.root) else { return Ok(()) };
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else { return Ok(()) };
        let known = self.backup_method.get(path).copied();
        if !matches!(known, None | Some(BackupMethod::Named)) || known == Some(BackupMethod::Named) && !rewrites {
            return Ok(());
        }
        if self.backup_method.len() >= MAX_BACKUPS {
            return Err(PathError::from_reason(path, "the run changes too many paths for a stage without an overlay"));
        }
        let Some((directory, into)) = self.back_up_parents(parent)? else { return Ok(()) };
        // A path that cannot be looked up cannot be changed either.
        let Some(there) = ignore_unreachable(TreeObject::open_entry(directory.fd.as_fd(), name)).at_path(path)? else {
            return Ok(());
        };
        let backup_method = match there {
            Some(there) if !there.is_directory() => self.back_up_original(
                OriginalEntry { path, name, directory: &directory, into: into.as_fd() },
                &there,
                rewrites,
            )?,
            // Kept already; the present object belongs to the run.
            _ if known.is_some() => BackupMethod::Copied,
            Some(there) => {
                mkdirat(&into, name, Mode::RWXU).at_path(path)?;
                note_directory(&mut self.notes, path, &there)?;
                BackupMethod::Directory(there.inode())
            }
            None => {
                mknodat(&into, name, FileType::CharacterDevice, Mode::empty(), 0).at_path(path)?;
                BackupMethod::Nothing
            }
        };
        self.backup_method.insert(path.to_owned(), backup_method);
        Ok(())
    }

    /// Returns the directory at `path` and its counterpart in the backup tree. `None` if the
    /// directory cannot be reached, or if the run made it, because its entries need no backup.
    fn back_up_parents(&mut self, path: &Path) -> Result<Option<(TreeObject, OwnedFd)>, PathError> {
        let mut here = TreeObject::duplicate(&self.workspace).at_path(path)?;
        let mut into = rustix::io::fcntl_dupfd_cloexec(&self.tree, 3).at_path(path)?;
        let mut prefix = PathBuf::new();
        for name in path {
            prefix.push(name);
            let found = ignore_unreachable(TreeObject::open_entry(here.fd.as_fd(), name)).at_path(&prefix)?.flatten();
            let Some(found) = found.filter(TreeObject::is_directory) else { return Ok(None) };
            match self.backup_method.get(&prefix) {
                Some(BackupMethod::Directory(inode)) if *inode == found.inode() => {}
                Some(_) => return Ok(None),
                None => {
                    mkdirat(&into, name, Mode::RWXU).at_path(&prefix)?;
                    note_directory(&mut self.notes, &prefix, &found)?;
                    self.backup_method.insert(prefix.clone(), BackupMethod::Directory(found.inode()));
                }
            }
            into = step_into(into.as_fd(), name).at_path(&prefix)?;
            here = found;
        }
        Ok(Some((here, into)))
    }

    /// Gives the original a second name in the backup tree. Leaves a copy at the path if the object
    /// may be rewritten.
    fn back_up_original(
        &mut self,
        spot: OriginalEntry<'_>,
        there: &TreeObject,
        rewrites: bool,
    ) -> Result<BackupMethod, PathError> {
        let named = if self.backup_method.get(spot.path) == Some(&BackupMethod::Named) {
            let original = TreeObject::open_entry(spot.into, spot.name).at_path(spot.path)?;
            if original.is_none_or(|original| original.inode() != there.inode()) {
                // The run has put an object of its own at the name.
                return Ok(BackupMethod::Copied);
            }
            true
        } else {
            match linkat(&spot.directory.fd, spot.name, spot.into, spot.name, AtFlags::empty()) {
                Ok(()) => true,
                // A file of another user, or one with too many names.
                Err(Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP) => false,
                Err(errno) => return Err(PathError::new(spot.path, errno)),
            }
        };
        if named && !rewrites {
            return Ok(BackupMethod::Named);
        }
        self.replace_by_copy(&spot, there, named).at_path(spot.path)?;
        self.copies.insert((there.stat.st_dev, there.inode()), spot.path.to_owned());
        Ok(BackupMethod::Copied)
    }

    /// Replaces an original by a copy. Restores the time of the directory, so that the replacement
    /// is invisible.
    fn replace_by_copy(&self, spot: &OriginalEntry<'_>, there: &TreeObject, named: bool) -> Result<(), Errno> {
        match unlinkat(&self.making, NEW_OBJECT_NAME, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        if there.kind() == ObjectKind::Device {
            return Err(Errno::PERM);
        }
        duplicate_object(there, self.making.as_fd(), OsStr::new(NEW_OBJECT_NAME))?;
        let exchange = || {
            let directory = &spot.directory.fd;
            if named {
                return renameat(&self.making, NEW_OBJECT_NAME, directory, spot.name);
            }
            renameat_with(&self.making, NEW_OBJECT_NAME, directory, spot.name, RenameFlags::EXCHANGE)?;
            renameat(&self.making, NEW_OBJECT_NAME, spot.into, spot.name)
        };
        spot.directory.opened_up(exchange)?;
        spot.directory.set_modified(spot.directory.modified_time())
    }

    /// Returns the path of the copy that replaced an original. `path` is the path at which the
    /// original was seen.
    pub fn copy_of(&self, path: &Path, device: u64, inode: u64) -> Option<PathBuf> {
        let known = self.copies.get(&(device, inode))?;
        let at = |path: &Path| TreeObject::open_beneath(self.workspace.as_fd(), path).ok().flatten();
        let seen = path.strip_prefix(&self.root).ok().filter(|path| !path.as_os_str().is_empty());
        match seen.and_then(|path| Some((path, at(path)?))) {
            // Another name of the original, which was not changed.
            Some((_, there)) if there.inode() == inode => None,
            Some((path, _)) if self.backup_method.get(path) == Some(&BackupMethod::Copied) => {
                Some(self.root.join(path))
            }
            _ => Some(self.root.join(known)),
        }
    }

    /// Returns whether `path` is a directory that existed before the run. As in an overlay, such a
    /// directory cannot be renamed.
    pub fn is_original_directory(&self, path: &Path) -> bool {
        let Ok(path) = path.strip_prefix(&self.root) else { return false };
        let Some(BackupMethod::Directory(inode)) = self.backup_method.get(path) else { return false };
        let there = TreeObject::open_beneath(self.workspace.as_fd(), path);
        there.is_ok_and(|there| there.is_some_and(|there| there.is_directory() && there.inode() == *inode))
    }
}

/// A name in the workspace and its counterpart in the backup tree.
struct OriginalEntry<'a> {
    path: &'a Path,
    name: &'a OsStr,
    directory: &'a TreeObject,
    into: BorrowedFd<'a>,
}

/// Returns `None` for errors with which the change itself will fail, too.
fn ignore_unreachable<T>(found: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Errno::ACCESS | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn step_into(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn open_notes(stage: &OpenStage) -> Result<LineWriter, PathError> {
    let opened = LineWriter::open(stage.directory.as_fd(), DIRECTORY_NOTES_FILE, LIST_LIMITS);
    opened.at_path(Path::new(DIRECTORY_NOTES_FILE))
}

fn note_directory(notes: &mut LineWriter, path: &Path, directory: &TreeObject) -> Result<(), PathError> {
    let settings = settings_of(directory).at_path(path)?;
    let inode = directory.inode();
    notes
        .append_line(&DirectoryNote { path: path.into(), inode, settings, after: None, is_remade: false })
        .at_path(path)
}

/// Returns all metadata of a directory.
fn settings_of(directory: &TreeObject) -> Result<ObjectMetadata, Errno> {
    let attributes = match directory.read_attributes() {
        Err(Errno::ACCESS) => match directory.opened_up(|| directory.read_attributes()) {
            // The directory of another user: only that user can change it.
            Err(Errno::ACCESS | Errno::PERM) => None,
            other => Some(other?),
        },
        other => Some(other?),
    };
    Ok(ObjectMetadata { mode: Some(directory.mode()), modified: Some(directory.modified_time()), attributes })
}

/// Returns whether the stage in `directory` contains a backup tree of a run.
pub(super) fn is_there(directory: BorrowedFd<'_>) -> bool {
    has_any(directory, &[BACKUP_DIRECTORY])
}

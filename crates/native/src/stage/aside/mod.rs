//! A stage where no overlay can be had (level `restricted`): the run writes in
//! the workspace itself, and before the first change of a path what is there is
//! put aside. When the run ends, [`put_back`] moves what it made into the stage,
//! in the form that an overlay would have left, and the workspace is what it was.
//!
//! The tree `aside` is an inverse of the stage's: a device 0/0 where there was
//! nothing, a directory where there was one, and otherwise the very object. An
//! original is never written to: a file that is to be changed is replaced by a
//! copy first. All this is names on one filesystem, so what a crash leaves is
//! told by the tree itself, and `recover` puts it back.
//!
//! Everything runs on the thread of the broker, the only one through which a run
//! can change a name, so nothing moves between a look and an act.

mod back;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, linkat, mkdirat, mknodat, openat, renameat, renameat_with, unlinkat,
};
use serde::{Deserialize, Serialize};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::build::duplicate;
use super::depot::mount_of;
use super::error::{At, PathError, StageError};
use super::journal::Settings;
use super::place::{Stage, make_private};
use stockade_files::object::{Kind, Object};

pub(super) use back::{clear, put_back};

const ASIDE: &str = "aside";
/// Copies on their way into the workspace, and directories on their way back.
const MAKING: &str = "aside-making";
/// What directories carried.
const DIRECTORIES: &str = "aside-directories";
/// The only name in `MAKING`.
const NEW: &str = "new";
/// Paths that are kept; a run that changes more of them is refused the next.
const KEPT_MAX: usize = 1_000_000;

/// What a directory carried before the run. The last line of a path counts.
#[derive(Debug, Serialize, Deserialize)]
struct Directory {
    path: RawText,
    inode: u64,
    settings: Settings,
    /// What the run left it with, from when it is begun to be put back.
    #[serde(default)]
    after: Option<Settings>,
    /// Made anew because the run removed it: its counterpart in the stage, if there
    /// is one, is another directory.
    #[serde(default)]
    is_remade: bool,
}

/// How a path was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// There was nothing.
    Nothing,
    /// A directory with this inode.
    Directory(u64),
    /// Under a second name: it may be removed or replaced, and not yet written to.
    Named,
    /// The path holds a copy.
    Copied,
}

/// Puts aside what a run is about to change.
#[derive(Debug)]
pub struct Aside {
    root: PathBuf,
    workspace: OwnedFd,
    aside: OwnedFd,
    making: OwnedFd,
    notes: File,
    kept: HashMap<PathBuf, Kept>,
    /// Where the copies of originals are, by device and inode of those.
    copies: HashMap<(u64, u64), PathBuf>,
}

impl Aside {
    /// For the run that writes to `stage`.
    ///
    /// # Errors
    /// [`StageError::Unfit`] where stage and workspace lie on two filesystems;
    /// others where the place cannot be made.
    pub fn new(stage: &Stage) -> Result<Self, StageError> {
        let workspace = stage.open_workspace()?;
        let path = stage.workspace();
        if mount_of(workspace.as_fd()).at(path)? != mount_of(stage.directory.as_fd()).at(path)? {
            let why = "it lies on another filesystem than the stages, which level restricted needs on the same";
            return Err(StageError::Unfit(PathError::because(path, why)));
        }
        let aside = make_private(stage.directory.as_fd(), ASIDE).at(Path::new(ASIDE))?;
        let making = make_private(stage.directory.as_fd(), MAKING).at(Path::new(MAKING))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let notes = openat(&stage.directory, DIRECTORIES, flags, Mode::RUSR | Mode::WUSR).at(Path::new(DIRECTORIES))?;
        let mut new = Self {
            root: path.to_owned(),
            workspace,
            aside,
            making,
            notes: File::from(notes),
            kept: HashMap::new(),
            copies: HashMap::new(),
        };
        let root = Object::beneath(new.workspace.as_fd(), Path::new("")).at(path)?;
        let root = root.ok_or_else(|| PathError::new(path, Errno::NOENT))?;
        note(&mut new.notes, Path::new(""), &root)?;
        Ok(new)
    }

    /// To be called before the object at the absolute `path` is changed;
    /// `rewrites` where the object itself may be, and not only its name. Paths
    /// outside the workspace are not its matter.
    ///
    /// # Errors
    /// Where it cannot be put aside: the change must not be made then.
    pub fn before_change(&mut self, path: &Path, rewrites: bool) -> Result<(), PathError> {
        let Ok(path) = path.strip_prefix(&self.root) else { return Ok(()) };
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else { return Ok(()) };
        let known = self.kept.get(path).copied();
        if !matches!(known, None | Some(Kept::Named)) || known == Some(Kept::Named) && !rewrites {
            return Ok(());
        }
        if self.kept.len() >= KEPT_MAX {
            return Err(PathError::because(path, "the run changes too many paths for a stage without an overlay"));
        }
        let Some((directory, into)) = self.parents(parent)? else { return Ok(()) };
        // What cannot be looked up cannot be changed either.
        let Some(there) = reachable(Object::find(directory.fd.as_fd(), name)).at(path)? else { return Ok(()) };
        let kept = match there {
            Some(there) if !there.is_directory() => {
                self.keep(Spot { path, name, directory: &directory, into: into.as_fd() }, &there, rewrites)?
            }
            // Kept already; what is or is not there now is the run's own.
            _ if known.is_some() => Kept::Copied,
            Some(there) => {
                mkdirat(&into, name, Mode::RWXU).at(path)?;
                note(&mut self.notes, path, &there)?;
                Kept::Directory(there.inode())
            }
            None => {
                mknodat(&into, name, FileType::CharacterDevice, Mode::empty(), 0).at(path)?;
                Kept::Nothing
            }
        };
        self.kept.insert(path.to_owned(), kept);
        Ok(())
    }

    /// The directory at `path` and its counterpart aside. None where it cannot be
    /// reached, and where it is the run's own: nothing in that is to be kept.
    fn parents(&mut self, path: &Path) -> Result<Option<(Object, OwnedFd)>, PathError> {
        let start = Object::beneath(self.workspace.as_fd(), Path::new("")).at(path)?;
        let mut here = start.ok_or_else(|| PathError::new(path, Errno::NOENT))?;
        let mut into = rustix::io::fcntl_dupfd_cloexec(&self.aside, 3).at(path)?;
        let mut prefix = PathBuf::new();
        for name in path {
            prefix.push(name);
            let found = reachable(Object::find(here.fd.as_fd(), name)).at(&prefix)?.flatten();
            let Some(found) = found.filter(Object::is_directory) else { return Ok(None) };
            match self.kept.get(&prefix) {
                Some(Kept::Directory(inode)) if *inode == found.inode() => {}
                Some(_) => return Ok(None),
                None => {
                    mkdirat(&into, name, Mode::RWXU).at(&prefix)?;
                    note(&mut self.notes, &prefix, &found)?;
                    self.kept.insert(prefix.clone(), Kept::Directory(found.inode()));
                }
            }
            into = step_into(into.as_fd(), name).at(&prefix)?;
            here = found;
        }
        Ok(Some((here, into)))
    }

    /// Gives what is there a second name aside, and leaves a copy in its place
    /// where it may be rewritten.
    fn keep(&mut self, spot: Spot<'_>, there: &Object, rewrites: bool) -> Result<Kept, PathError> {
        let named = if self.kept.get(spot.path) == Some(&Kept::Named) {
            let original = Object::find(spot.into, spot.name).at(spot.path)?;
            if original.is_none_or(|original| original.inode() != there.inode()) {
                // The name was given to something of the run's own.
                return Ok(Kept::Copied);
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
            return Ok(Kept::Named);
        }
        self.replace(&spot, there, named).at(spot.path)?;
        self.copies.insert((there.stat.st_dev, there.inode()), spot.path.to_owned());
        Ok(Kept::Copied)
    }

    /// Puts a copy in the place of an original. The directory keeps its time: to
    /// whoever looks nothing happened.
    fn replace(&self, spot: &Spot<'_>, there: &Object, named: bool) -> Result<(), Errno> {
        match unlinkat(&self.making, NEW, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        if there.kind() == Kind::Device {
            return Err(Errno::PERM);
        }
        duplicate(there, self.making.as_fd(), OsStr::new(NEW))?;
        let exchange = || {
            let directory = &spot.directory.fd;
            if named {
                return renameat(&self.making, NEW, directory, spot.name);
            }
            renameat_with(&self.making, NEW, directory, spot.name, RenameFlags::EXCHANGE)?;
            renameat(&self.making, NEW, spot.into, spot.name)
        };
        writable(spot.directory, exchange)?;
        spot.directory.set_modified(spot.directory.modified())
    }

    /// What stands in the place of an original that was put aside. `path` is
    /// where the original was seen.
    pub fn copy_of(&self, path: &Path, device: u64, inode: u64) -> Option<PathBuf> {
        let known = self.copies.get(&(device, inode))?;
        let at = |path: &Path| Object::beneath(self.workspace.as_fd(), path).ok().flatten();
        let seen = path.strip_prefix(&self.root).ok().filter(|path| !path.as_os_str().is_empty());
        match seen.and_then(|path| Some((path, at(path)?))) {
            // One more name of it, which was not changed.
            Some((_, there)) if there.inode() == inode => None,
            Some((path, _)) if self.kept.get(path) == Some(&Kept::Copied) => Some(self.root.join(path)),
            _ => Some(self.root.join(known)),
        }
    }

    /// Whether `path` is a directory that was there before the run. As in an
    /// overlay, it cannot be renamed.
    pub fn is_original_directory(&self, path: &Path) -> bool {
        let Ok(path) = path.strip_prefix(&self.root) else { return false };
        let Some(Kept::Directory(inode)) = self.kept.get(path) else { return false };
        let there = Object::beneath(self.workspace.as_fd(), path);
        there.is_ok_and(|there| there.is_some_and(|there| there.is_directory() && there.inode() == *inode))
    }
}

/// A name in the workspace and its counterpart.
struct Spot<'a> {
    path: &'a Path,
    name: &'a OsStr,
    directory: &'a Object,
    into: BorrowedFd<'a>,
}

/// Errors with which the change itself will fail, as nothing.
fn reachable<T>(found: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Errno::ACCESS | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Does something with a directory or the names in it that its mode would not let
/// its owner do; the mode is put back.
fn writable<T>(directory: &Object, act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let mode = directory.mode();
    if mode & 0o700 == 0o700 || rustix::process::geteuid().is_root() {
        return act();
    }
    directory.set_mode(mode | 0o700)?;
    let done = act();
    directory.set_mode(mode)?;
    done
}

fn step_into(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn note(notes: &mut File, path: &Path, directory: &Object) -> Result<(), PathError> {
    let settings = settings_of(directory).at(path)?;
    write_note(
        notes,
        &Directory { path: path.into(), inode: directory.inode(), settings, after: None, is_remade: false },
    )
}

fn write_note(notes: &mut File, noted: &Directory) -> Result<(), PathError> {
    let path = noted.path.as_path();
    let mut line = serde_json::to_vec(noted).map_err(std::io::Error::from).at(path)?;
    line.push(b'\n');
    notes.write_all(&line).at(path)
}

/// All that a directory carries.
fn settings_of(directory: &Object) -> Result<Settings, Errno> {
    let attributes = match directory.attributes() {
        Err(Errno::ACCESS) => match writable(directory, || directory.attributes()) {
            // Another user's: nobody but them can change it.
            Err(Errno::ACCESS | Errno::PERM) => None,
            other => Some(other?),
        },
        other => Some(other?),
    };
    Ok(Settings { mode: Some(directory.mode()), modified: Some(directory.modified()), attributes })
}

/// Whether a run left something aside in the stage that `directory` holds.
pub(super) fn is_there(directory: BorrowedFd<'_>) -> bool {
    matches!(Object::find(directory, OsStr::new(ASIDE)), Ok(Some(_)))
}

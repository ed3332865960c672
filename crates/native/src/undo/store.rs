//! The place of all runs that can be undone, and the directory of one of them. Must not
//! know what the lines of a journal mean.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags, flock, fstat, openat, openat2, renameat};
use serde::{Deserialize, Serialize};
use stockade_files::object::{make_where_missing, names};
use stockade_files::removal::{LEAVING, remove_tree, sweep};
use stockade_model::{DEFAULT_PROTECTED_NAMES, RawText, RequestId};
use stockade_sys::Errno;

use super::recorder::{Recorder, Unkept};
use crate::stage::PathError;

const LOCK: &str = "lock";
const META: &str = "run";
const OBJECTS: &str = "objects";
/// Largest description of a run.
const MAX_META_BYTES: u64 = 256 * 1024;
/// The form of what is kept.
const VERSION: u32 = 1;
/// Runs kept of one workspace; of the last day there may be more.
const MAX_RUNS: usize = 20;
const MAX_RECENT_RUNS: usize = 200;
/// How long a run is recent: a caller cannot push one out by many others.
const RECENT_MS: u64 = 24 * 60 * 60 * 1000;
/// Shortest beginning of an id, without its prefix, that is taken for one.
const MIN_ID_CHARS: usize = 6;
/// How long a run is kept.
const MAX_AGE_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// How paths are looked up in a workspace: no link is followed and nothing leads out. Mounts
/// in it belong to it.
pub(super) const IN_WORKSPACE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// What a run is, for the store.
#[derive(Clone, Debug)]
pub struct NewUndoRun {
    /// Which request it carries out.
    pub request: RequestId,
    /// Its command, for people.
    pub command: RawText,
    /// Its workspace on the host.
    pub workspace: PathBuf,
    /// The bytes that its pre-images may take.
    pub limit_bytes: u64,
    /// The protected names of its profile.
    pub protect: Vec<String>,
}

/// What is known of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoMeta {
    version: u32,
    /// Which request it carried out.
    pub request: RequestId,
    /// Its command, for people.
    pub command: RawText,
    /// Its workspace on the host.
    pub workspace: RawText,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// Device and inode of the workspace.
    root: (u64, u64),
    /// The protected names of its profile.
    #[serde(default = "default_names")]
    pub(super) protect: Vec<String>,
}

fn default_names() -> Vec<String> {
    DEFAULT_PROTECTED_NAMES.iter().map(|name| (*name).to_owned()).collect()
}

/// Why a run cannot be recorded, looked at or undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndoError {
    /// There is none of this name.
    #[error("no run `{0}` is kept for undo")]
    Absent(String),
    /// Several names begin so.
    #[error("`{0}` is the beginning of several runs' ids")]
    Ambiguous(String),
    /// It goes on, or another command restores it.
    #[error("the run `{0}` goes on, or is being undone")]
    Busy(String),
    /// The workspace is another directory now.
    #[error("the workspace {0} is not the directory that it was")]
    Moved(String),
    /// More paths are to be looked at than this process may have open.
    #[error(
        "the run changed {0} paths, more than may be open at once: name some of them, or raise the limit of open files"
    )]
    TooMany(usize),
    /// What is kept cannot be used.
    #[error("what is kept for undo cannot be used: {0}")]
    Damaged(PathError),
    /// The workspace or the store cannot be read or written.
    #[error("cannot undo: {0}")]
    Path(#[from] PathError),
    /// Nothing can be recorded.
    #[error("{0}")]
    Unkept(#[from] Unkept),
    /// The state directory cannot be used.
    #[error("cannot {what} the directory of runs that can be undone: {errno}")]
    Place {
        /// What was to be done.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

fn place(what: &'static str) -> impl Fn(Errno) -> UndoError {
    move |errno| UndoError::Place { what, errno }
}

/// Where all runs are.
#[derive(Debug)]
pub struct UndoStore {
    place: OwnedFd,
}

/// One run, locked: nobody else records or restores it.
#[derive(Debug)]
pub struct UndoRun {
    pub(super) directory: OwnedFd,
    pub(super) root: OwnedFd,
    pub(super) objects: OwnedFd,
    /// What it is.
    pub meta: UndoMeta,
    _lock: OwnedFd,
}

impl UndoStore {
    /// Those at `path`; none where nothing is there.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub fn open(path: &Path) -> Result<Option<Self>, UndoError> {
        match open_directory(CWD, path) {
            Ok(place) => Ok(Some(Self { place })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(place("open")(errno)),
        }
    }

    /// Those at `path`, which is made where it is missing.
    ///
    /// # Errors
    /// Where it cannot be made or opened.
    pub fn make(path: &Path) -> Result<Self, UndoError> {
        make_where_missing(CWD, path, Mode::RWXU).map_err(place("make"))?;
        open_directory(CWD, path).map(|place| Self { place }).map_err(place("open"))
    }

    /// Begins to record a run, or goes on with what an earlier attempt of it recorded. The
    /// oldest runs are removed first where there are too many.
    ///
    /// # Errors
    /// Where nothing can be recorded; the run must not start then.
    pub fn begin(&self, new: &NewUndoRun) -> Result<(UndoRun, Recorder), UndoError> {
        self.remove_old(&new.workspace)?;
        let root = open_root(&new.workspace).map_err(|errno| PathError::new(&new.workspace, errno))?;
        let stat = fstat(&root).map_err(|errno| PathError::new(&new.workspace, errno))?;
        let id = new.request.as_str();
        make_where_missing(&self.place, id, Mode::RWXU).map_err(place("write in"))?;
        let directory = open_directory(self.place.as_fd(), id).map_err(place("write in"))?;
        let lock = lock(directory.as_fd(), id)?;
        make_where_missing(&directory, OBJECTS, Mode::RWXU).map_err(place("write in"))?;
        let meta = UndoMeta {
            version: VERSION,
            request: new.request.clone(),
            command: new.command.clone(),
            workspace: RawText::from(new.workspace.as_path()),
            started_ms: now_ms(),
            root: (stat.st_dev, stat.st_ino),
            protect: new.protect.clone(),
        };
        if read_meta(directory.as_fd()).is_err() {
            write_meta(directory.as_fd(), &meta).map_err(place("write in"))?;
        }
        let held = rustix::io::fcntl_dupfd_cloexec(&root, 3).map_err(place("open"))?;
        let recorder = Recorder::open(held, &new.workspace, directory.as_fd(), (new.limit_bytes, &new.protect))?;
        let objects = open_objects(directory.as_fd()).map_err(place("open"))?;
        Ok((UndoRun { directory, root, objects, meta, _lock: lock }, recorder))
    }

    /// All runs, the newest first. What is damaged is left out.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn list(&self) -> Result<Vec<UndoMeta>, UndoError> {
        let mut found: Vec<UndoMeta> = self.ids()?.iter().filter_map(|id| self.look_at(id).ok()).collect();
        found.sort_by_key(|meta| std::cmp::Reverse(meta.started_ms));
        Ok(found)
    }

    fn ids(&self) -> Result<Vec<String>, UndoError> {
        let names = names(self.place.as_fd()).map_err(place("list"))?;
        let names = names.into_iter().filter_map(|name| String::from_utf8(name).ok());
        Ok(names.filter(|name| !name.starts_with('.')).collect())
    }

    fn look_at(&self, id: &str) -> Result<UndoMeta, UndoError> {
        let directory = open_directory(self.place.as_fd(), id).map_err(place("read"))?;
        read_meta(directory.as_fd()).map_err(UndoError::Damaged)
    }

    /// The run whose id is, or alone begins with, `typed`.
    ///
    /// # Errors
    /// Where there is none, or more than one.
    pub fn find(&self, typed: &str) -> Result<UndoMeta, UndoError> {
        let all = self.list()?;
        if let Some(found) = all.iter().find(|meta| meta.request.as_str() == typed) {
            return Ok(found.clone());
        }
        let digits = typed.strip_prefix("req_").unwrap_or(typed);
        let is_long = digits.len() >= MIN_ID_CHARS;
        let mut found = all.into_iter().filter(|meta| is_long && begins(meta.request.as_str(), typed));
        match (found.next(), found.next()) {
            (Some(meta), None) => Ok(meta),
            (None, _) => Err(UndoError::Absent(typed.to_owned())),
            (Some(_), Some(_)) => Err(UndoError::Ambiguous(typed.to_owned())),
        }
    }

    /// Takes a run to look at or restore it.
    ///
    /// # Errors
    /// Where it goes on, or its workspace is not there.
    pub fn take(&self, request: &RequestId) -> Result<UndoRun, UndoError> {
        let id = request.as_str();
        let directory = match open_directory(self.place.as_fd(), id) {
            Err(Errno::NOENT) => return Err(UndoError::Absent(id.to_owned())),
            other => other.map_err(place("read"))?,
        };
        let lock = lock(directory.as_fd(), id)?;
        let meta = read_meta(directory.as_fd()).map_err(UndoError::Damaged)?;
        let workspace = meta.workspace.as_path();
        let root = open_root(workspace).map_err(|errno| PathError::new(workspace, errno))?;
        let stat = fstat(&root).map_err(|errno| PathError::new(workspace, errno))?;
        if (stat.st_dev, stat.st_ino) != meta.root {
            return Err(UndoError::Moved(meta.workspace.escaped()));
        }
        let objects = open_objects(directory.as_fd()).map_err(place("read"))?;
        Ok(UndoRun { directory, root, objects, meta, _lock: lock })
    }

    /// Removes all that is kept of a run.
    ///
    /// # Errors
    /// Where it goes on, or cannot be removed.
    pub fn forget(&self, request: &RequestId) -> Result<(), UndoError> {
        let id = request.as_str();
        let directory = match open_directory(self.place.as_fd(), id) {
            Err(Errno::NOENT) => return Err(UndoError::Absent(id.to_owned())),
            other => other.map_err(place("read"))?,
        };
        let _lock = lock(directory.as_fd(), id)?;
        let aside = format!("{LEAVING}{id}");
        remove_tree(self.place.as_fd(), aside.as_bytes())?;
        renameat(&self.place, id, &self.place, aside.as_str()).map_err(place("write in"))?;
        remove_tree(self.place.as_fd(), aside.as_bytes()).map_err(UndoError::Path)
    }

    /// Removes runs that are too old, and the oldest of the workspace where there are too
    /// many. A run that goes on stays.
    fn remove_old(&self, workspace: &Path) -> Result<(), UndoError> {
        sweep(self.place.as_fd())?;
        let (now, mut kept) = (now_ms(), 0);
        // A run that was killed before it was described.
        for id in self.ids()?.iter().filter(|id| self.is_stale(id, now)) {
            remove_tree(self.place.as_fd(), id.as_bytes())?;
        }
        for meta in self.list()? {
            let is_of_workspace = meta.workspace.as_path() == workspace;
            kept += usize::from(is_of_workspace);
            if is_over(if is_of_workspace { kept } else { 0 }, meta.started_ms, now) {
                match self.forget(&meta.request) {
                    Ok(()) | Err(UndoError::Busy(_) | UndoError::Absent(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn is_stale(&self, id: &str, now_ms: u64) -> bool {
        let Ok(directory) = open_directory(self.place.as_fd(), id) else { return false };
        let modified_ms = fstat(&directory).map_or(0, |stat| u64::try_from(stat.st_mtime).unwrap_or(0) * 1000);
        modified_ms.saturating_add(MAX_AGE_MS) < now_ms && read_meta(directory.as_fd()).is_err()
    }
}

/// Whether a run goes: one that is too old, or that has too many others of its workspace since,
/// itself counted.
pub(super) fn is_over(number: usize, started_ms: u64, now_ms: u64) -> bool {
    let is_younger = |age_ms| started_ms.saturating_add(age_ms) > now_ms;
    let most = if is_younger(RECENT_MS) { MAX_RECENT_RUNS } else { MAX_RUNS };
    !is_younger(MAX_AGE_MS) || number >= most
}

/// Whether an id begins as typed, its prefix left out or not.
fn begins(id: &str, typed: &str) -> bool {
    id.starts_with(typed) || id.split_once('_').is_some_and(|(_, rest)| rest.starts_with(typed))
}

fn open_directory<P: rustix::path::Arg>(parent: BorrowedFd<'_>, path: P) -> Result<OwnedFd, Errno> {
    openat(parent, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Holds a workspace, by a path without links.
fn open_root(workspace: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, workspace, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)
}

pub(super) fn open_objects(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    open_directory(directory, OBJECTS)
}

fn lock(directory: BorrowedFd<'_>, id: &str) -> Result<OwnedFd, UndoError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = openat(directory, LOCK, flags, Mode::RUSR | Mode::WUSR).map_err(place("lock a run in"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(UndoError::Busy(id.to_owned())),
        Err(errno) => Err(place("lock a run in")(errno)),
    }
}

fn read_meta(directory: BorrowedFd<'_>) -> Result<UndoMeta, PathError> {
    let at = Path::new(META);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, META, flags, Mode::empty()).map_err(|errno| PathError::new(at, errno))?;
    let mut text = Vec::new();
    let read = File::from(file).take(MAX_META_BYTES).read_to_end(&mut text);
    read.map_err(|error| PathError::because(at, &error.to_string()))?;
    let meta: UndoMeta =
        serde_json::from_slice(&text).map_err(|error| PathError::because(at, &format!("it is damaged: {error}")))?;
    match meta.version {
        VERSION => Ok(meta),
        other => Err(PathError::because(at, &format!("its form {other} is not known to this version"))),
    }
}

/// Writes it whole or not at all.
fn write_meta(directory: BorrowedFd<'_>, meta: &UndoMeta) -> Result<(), Errno> {
    let partial = "run.partial";
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let text = serde_json::to_vec(meta).map_err(|_| Errno::INVAL)?;
    let mut file = File::from(openat(directory, partial, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(&text).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    renameat(directory, partial, directory, META)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Files in the directory `objects`, for tests.
#[cfg(test)]
pub(super) fn slots(run: &UndoRun) -> usize {
    names(run.objects.as_fd()).unwrap().len()
}

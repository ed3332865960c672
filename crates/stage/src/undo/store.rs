//! The directory of all runs that can be undone, and the directory of each run. Must not depend on
//! the meaning of journal lines.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags, flock, fstat, renameat};
use serde::{Deserialize, Serialize};
use stockade_files::object::{list_entry_names, make_where_missing};
use stockade_files::removal::{REMOVAL_PREFIX, remove_tree, sweep_removals};
use stockade_model::{DEFAULT_PROTECTED_NAMES, RawText, RequestId};
use stockade_sys::Errno;

use super::recorder::{UndoRecordError, UndoRecorder};
use crate::PathError;
use crate::error::PathContext;
use crate::state_files::{Durability, open_directory, open_to_write, open_workspace, read_file, write_json};

const LOCK_FILE: &str = "lock";
const META_FILE: &str = "run";
const OBJECTS_DIRECTORY: &str = "objects";
/// Largest description of a run.
const MAX_META_BYTES: u64 = 256 * 1024;
/// Version of the storage format.
const STORAGE_VERSION: u32 = 1;
/// Most runs kept for one workspace; of the last day there may be [`MAX_RECENT_RUNS`].
const MAX_RUNS: usize = 20;
const MAX_RECENT_RUNS: usize = 200;
/// Age up to which a run is recent, so that a caller cannot displace a run by starting many others.
const RECENT_AGE_MS: u64 = 24 * 60 * 60 * 1000;
/// Shortest prefix of an id, without `req_`, that is accepted as an id.
const MIN_ID_CHARS: usize = 6;
/// Time for which a run is kept.
const MAX_AGE_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// Flags of path lookups in a workspace: no symbolic link is followed and no path leads out. Mounts
/// in the workspace belong to it.
pub(super) const WORKSPACE_RESOLVE_FLAGS: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Parameters of a new run.
#[derive(Clone, Debug)]
pub struct NewUndoRun {
    /// Request that the run carries out.
    pub request: RequestId,
    /// Command of the run, for display.
    pub command: RawText,
    /// Path of the workspace on the host.
    pub workspace: PathBuf,
    /// Size limit of the pre-images, in bytes.
    pub limit_bytes: u64,
    /// Protected names of the profile.
    pub protect: Vec<String>,
}

/// Description of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoMeta {
    version: u32,
    /// Request that the run carried out.
    pub request: RequestId,
    /// Command of the run, for display.
    pub command: RawText,
    /// Path of the workspace on the host.
    pub workspace: RawText,
    /// Start time, in milliseconds since 1970.
    pub started_ms: u64,
    /// Device and inode of the workspace.
    root: (u64, u64),
    /// Protected names of the profile.
    #[serde(default = "default_names")]
    pub(super) protect: Vec<String>,
}

fn default_names() -> Vec<String> {
    DEFAULT_PROTECTED_NAMES.iter().map(|name| (*name).to_owned()).collect()
}

/// Error of recording, comparing or undoing a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndoError {
    /// No run has this id.
    #[error("no run `{0}` is kept for undo")]
    Absent(String),
    /// Several ids have this prefix.
    #[error("`{0}` is a prefix of several run ids")]
    Ambiguous(String),
    /// The run has not ended, or another command restores it.
    #[error("the run `{0}` is still running, or is being undone")]
    Busy(String),
    /// The workspace path names another directory now.
    #[error("the workspace {0} was replaced by another directory")]
    Moved(String),
    /// More paths must be compared than this process may have open.
    #[error(
        "the run changed {0} paths, more than may be open at once: name some of them, or raise the limit of open files"
    )]
    TooMany(usize),
    /// The stored data is damaged.
    #[error("the data for undo cannot be used: {0}")]
    Damaged(PathError),
    /// The workspace or the store cannot be read or written.
    #[error("cannot undo: {0}")]
    Path(#[from] PathError),
    /// A change cannot be recorded.
    #[error("{0}")]
    Unkept(#[from] UndoRecordError),
    /// The state directory cannot be used.
    #[error("cannot {what} the directory of runs that can be undone: {errno}")]
    Directory {
        /// Operation that failed.
        what: &'static str,
        /// Error of the kernel.
        errno: Errno,
    },
}

fn store_error(what: &'static str) -> impl Fn(Errno) -> UndoError {
    move |errno| UndoError::Directory { what, errno }
}

/// The directory of all runs.
#[derive(Debug)]
pub struct UndoStore {
    directory: OwnedFd,
}

/// A locked run: no other process records or restores it.
#[derive(Debug)]
pub struct UndoRun {
    pub(super) directory: OwnedFd,
    pub(super) root: OwnedFd,
    pub(super) objects: OwnedFd,
    /// Description of the run.
    pub meta: UndoMeta,
    _lock: File,
}

impl UndoStore {
    /// Opens the store at `path`; `None` if it does not exist.
    ///
    /// # Errors
    /// [`UndoError::Place`] if it cannot be opened.
    pub fn open(path: &Path) -> Result<Option<Self>, UndoError> {
        match open_directory(CWD, path) {
            Ok(directory) => Ok(Some(Self { directory })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(store_error("open")(errno)),
        }
    }

    /// Opens the store at `path`. Makes it if it is missing.
    ///
    /// # Errors
    /// [`UndoError::Place`] if it cannot be made or opened.
    pub fn open_or_create(path: &Path) -> Result<Self, UndoError> {
        make_where_missing(CWD, path, Mode::RWXU).map_err(store_error("make"))?;
        open_directory(CWD, path).map(|directory| Self { directory }).map_err(store_error("open"))
    }

    /// Begins to record a run, or continues the record of an earlier attempt. Removes the oldest
    /// runs first if there are too many.
    ///
    /// # Errors
    /// [`UndoError`] if the run cannot be recorded; it must not start then.
    pub fn begin_run(&self, new: &NewUndoRun) -> Result<(UndoRun, UndoRecorder), UndoError> {
        self.remove_old(&new.workspace)?;
        let root = open_workspace(&new.workspace)?;
        let stat = fstat(&root).at_path(&new.workspace)?;
        let id = new.request.as_str();
        make_where_missing(&self.directory, id, Mode::RWXU).map_err(store_error("write in"))?;
        let directory = open_directory(self.directory.as_fd(), id).map_err(store_error("write in"))?;
        let lock = lock_run(directory.as_fd(), id)?;
        make_where_missing(&directory, OBJECTS_DIRECTORY, Mode::RWXU).map_err(store_error("write in"))?;
        let meta = UndoMeta {
            version: STORAGE_VERSION,
            request: new.request.clone(),
            command: new.command.clone(),
            workspace: RawText::from(new.workspace.as_path()),
            started_ms: now_ms(),
            root: (stat.st_dev, stat.st_ino),
            protect: new.protect.clone(),
        };
        if read_meta(directory.as_fd()).is_err() {
            write_json(&directory, META_FILE, &meta, Durability::Unflushed).map_err(store_error("write in"))?;
        }
        let held = rustix::io::fcntl_dupfd_cloexec(&root, 3).map_err(store_error("open"))?;
        let recorder = UndoRecorder::open(held, &new.workspace, directory.as_fd(), (new.limit_bytes, &new.protect))?;
        let objects = open_objects(directory.as_fd()).map_err(store_error("open"))?;
        Ok((UndoRun { directory, root, objects, meta, _lock: lock }, recorder))
    }

    /// Lists all runs, newest first. Skips damaged ones.
    ///
    /// # Errors
    /// [`UndoError::Place`] if the directory cannot be read.
    pub fn list_runs(&self) -> Result<Vec<UndoMeta>, UndoError> {
        let mut found: Vec<UndoMeta> = self.list_ids()?.iter().filter_map(|id| self.look_at(id).ok()).collect();
        found.sort_by_key(|meta| std::cmp::Reverse(meta.started_ms));
        Ok(found)
    }

    fn list_ids(&self) -> Result<Vec<String>, UndoError> {
        let names = list_entry_names(self.directory.as_fd()).map_err(store_error("list"))?;
        let names = names.into_iter().filter_map(|name| String::from_utf8(name).ok());
        Ok(names.filter(|name| !name.starts_with('.')).collect())
    }

    fn look_at(&self, id: &str) -> Result<UndoMeta, UndoError> {
        let directory = open_directory(self.directory.as_fd(), id).map_err(store_error("read"))?;
        read_meta(directory.as_fd()).map_err(UndoError::Damaged)
    }

    /// Finds the run with the id `typed`, or the only run whose id has this prefix.
    ///
    /// # Errors
    /// [`UndoError::Absent`] if there is none, [`UndoError::Ambiguous`] if there are several.
    pub fn find_run(&self, typed: &str) -> Result<UndoMeta, UndoError> {
        let all = self.list_runs()?;
        if let Some(found) = all.iter().find(|meta| meta.request.as_str() == typed) {
            return Ok(found.clone());
        }
        let digits = typed.strip_prefix("req_").unwrap_or(typed);
        let is_long = digits.len() >= MIN_ID_CHARS;
        let mut found = all.into_iter().filter(|meta| is_long && has_id_prefix(meta.request.as_str(), typed));
        match (found.next(), found.next()) {
            (Some(meta), None) => Ok(meta),
            (None, _) => Err(UndoError::Absent(typed.to_owned())),
            (Some(_), Some(_)) => Err(UndoError::Ambiguous(typed.to_owned())),
        }
    }

    /// Opens and locks the directory of a run.
    fn lock_existing(&self, id: &str) -> Result<(OwnedFd, File), UndoError> {
        let directory = match open_directory(&self.directory, id) {
            Err(Errno::NOENT) => return Err(UndoError::Absent(id.to_owned())),
            other => other.map_err(store_error("read"))?,
        };
        let lock = lock_run(directory.as_fd(), id)?;
        Ok((directory, lock))
    }

    /// Opens a run for comparison or restoration.
    ///
    /// # Errors
    /// [`UndoError`] if the run has not ended, or if its workspace is missing.
    pub fn open_run(&self, request: &RequestId) -> Result<UndoRun, UndoError> {
        let id = request.as_str();
        let (directory, lock) = self.lock_existing(id)?;
        let meta = read_meta(directory.as_fd()).map_err(UndoError::Damaged)?;
        let workspace = meta.workspace.as_path();
        let root = open_workspace(workspace)?;
        let stat = fstat(&root).at_path(workspace)?;
        if (stat.st_dev, stat.st_ino) != meta.root {
            return Err(UndoError::Moved(meta.workspace.to_escaped()));
        }
        let objects = open_objects(directory.as_fd()).map_err(store_error("read"))?;
        Ok(UndoRun { directory, root, objects, meta, _lock: lock })
    }

    /// Removes all data of a run.
    ///
    /// # Errors
    /// [`UndoError`] if the run has not ended, or cannot be removed.
    pub fn remove_run(&self, request: &RequestId) -> Result<(), UndoError> {
        let id = request.as_str();
        let (_, _lock) = self.lock_existing(id)?;
        let removal_name = format!("{REMOVAL_PREFIX}{id}");
        remove_tree(self.directory.as_fd(), removal_name.as_bytes())?;
        renameat(&self.directory, id, &self.directory, removal_name.as_str()).map_err(store_error("write in"))?;
        remove_tree(self.directory.as_fd(), removal_name.as_bytes()).map_err(UndoError::Path)
    }

    /// Removes runs that are too old, and the oldest of the workspace if there are too many. Keeps
    /// a run that has not ended.
    fn remove_old(&self, workspace: &Path) -> Result<(), UndoError> {
        sweep_removals(self.directory.as_fd())?;
        let (now, mut run_count) = (now_ms(), 0);
        // A run that was killed before its description was written.
        for id in self.list_ids()?.iter().filter(|id| self.is_stale(id, now)) {
            remove_tree(self.directory.as_fd(), id.as_bytes())?;
        }
        for meta in self.list_runs()? {
            let is_of_workspace = meta.workspace.as_path() == workspace;
            run_count += usize::from(is_of_workspace);
            if is_over(if is_of_workspace { run_count } else { 0 }, meta.started_ms, now) {
                match self.remove_run(&meta.request) {
                    Ok(()) | Err(UndoError::Busy(_) | UndoError::Absent(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn is_stale(&self, id: &str, now_ms: u64) -> bool {
        let Ok(directory) = open_directory(self.directory.as_fd(), id) else { return false };
        let modified_ms = fstat(&directory).map_or(0, |stat| u64::try_from(stat.st_mtime).unwrap_or(0) * 1000);
        modified_ms.saturating_add(MAX_AGE_MS) < now_ms && read_meta(directory.as_fd()).is_err()
    }
}

/// Returns whether a run is to be removed because of its age, or because of its `number` among the
/// runs of its workspace, counted from the newest.
pub(super) fn is_over(number: usize, started_ms: u64, now_ms: u64) -> bool {
    let is_younger = |age_ms| started_ms.saturating_add(age_ms) > now_ms;
    let most = if is_younger(RECENT_AGE_MS) { MAX_RECENT_RUNS } else { MAX_RUNS };
    !is_younger(MAX_AGE_MS) || number >= most
}

/// Returns whether an id begins with the typed text, with or without its prefix.
fn has_id_prefix(id: &str, typed: &str) -> bool {
    id.starts_with(typed) || id.split_once('_').is_some_and(|(_, rest)| rest.starts_with(typed))
}

pub(super) fn open_objects(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    open_directory(directory, OBJECTS_DIRECTORY)
}

fn lock_run(directory: BorrowedFd<'_>, id: &str) -> Result<File, UndoError> {
    let lock = open_to_write(directory, LOCK_FILE, OFlags::RDWR).map_err(store_error("lock a run in"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(UndoError::Busy(id.to_owned())),
        Err(errno) => Err(store_error("lock a run in")(errno)),
    }
}

fn read_meta(directory: BorrowedFd<'_>) -> Result<UndoMeta, PathError> {
    let at = Path::new(META_FILE);
    let text = read_file(directory, META_FILE, MAX_META_BYTES)?.ok_or_else(|| PathError::new(at, Errno::NOENT))?;
    let meta: UndoMeta = serde_json::from_slice(&text)
        .map_err(|error| PathError::from_reason(at, &format!("it is damaged: {error}")))?;
    match meta.version {
        STORAGE_VERSION => Ok(meta),
        other => Err(PathError::from_reason(at, &format!("this version does not know its format {other}"))),
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Counts the files in the directory `objects`, for tests.
#[cfg(test)]
pub(super) fn count_slots(run: &UndoRun) -> usize {
    list_entry_names(run.objects.as_fd()).unwrap().len()
}

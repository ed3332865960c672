//! All caches of this user's workspaces: lists them, clears them, limits their size.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat, renameat, statat};
use stockade_files::object::{list_entries, list_entry_names};
use stockade_files::removal::{REMOVAL_PREFIX, sweep_removals};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::lease::key_of;
use super::seal::{current_name, list_names, open_home_path, reseal_directories};
use super::{MERGED_DIR_NAME, PLAIN_DIR_NAME, WORKSPACE_FILE_NAME, is_key, open_directory, open_lock};

/// Deepest level of directories that is counted.
const MAX_DEPTH: usize = 64;

/// Longest workspace path that is read.
const MAX_PATH_BYTES: usize = 4096;

/// Time-out for the removal of a directory that its layer server still uses, and the interval
/// between two attempts.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);
const REMOVAL_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The directory with the caches of all workspaces.
#[derive(Debug)]
pub struct CacheStore {
    store_directory: OwnedFd,
}

/// The caches of one workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceCaches {
    /// Name of its directory.
    pub key: String,
    /// Path of the workspace.
    pub workspace: RawText,
    /// True if a run uses the caches.
    pub is_used: bool,
    /// True if no run can use the caches again: the workspace no longer exists, or another
    /// directory is at its path.
    pub is_gone: bool,
    /// Time of the last use by a run, in milliseconds since 1970.
    pub used_ms: u64,
    /// Allocated bytes by tool.
    pub tools: Vec<(String, u64)>,
}

impl WorkspaceCaches {
    /// Returns the allocated bytes of all tools.
    pub fn allocated_bytes(&self) -> u64 {
        self.tools.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Result of clearing the caches of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearResult {
    /// The caches are removed.
    Removed,
    /// A run uses the caches, so they stay.
    Used,
}

/// The caches cannot be read or cleared.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the caches of runs in {}: {errno}", path.display())]
pub struct CacheStoreError {
    what: &'static str,
    path: PathBuf,
    errno: Errno,
}

impl CacheStore {
    /// Opens the caches at `store_directory`; `None` if nothing is there.
    ///
    /// # Errors
    /// [`CacheStoreError`] if the directory cannot be opened.
    pub fn open(store_directory: &Path) -> Result<Option<Self>, CacheStoreError> {
        match open_directory(CWD, store_directory) {
            Ok(store_directory) => Ok(Some(Self { store_directory })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(CacheStoreError { what: "open", path: store_directory.to_owned(), errno }),
        }
    }

    /// Returns the caches of each workspace, the last used first.
    ///
    /// # Errors
    /// [`CacheStoreError`] if the directory cannot be read.
    pub fn list_workspaces(&self) -> Result<Vec<WorkspaceCaches>, CacheStoreError> {
        let found = list_entry_names(self.store_directory.as_fd()).map_err(|errno| store_error("list", "", errno))?;
        let keys = found.into_iter().filter_map(|name| String::from_utf8(name).ok());
        let mut found: Vec<_> = keys.filter(|key| is_key(key)).filter_map(|key| self.look_at(key)).collect();
        found.sort_by_key(|caches| std::cmp::Reverse(caches.used_ms));
        Ok(found)
    }

    fn look_at(&self, key: String) -> Option<WorkspaceCaches> {
        let home = open_home_path(self.store_directory.as_fd(), &key).ok()?;
        let held = lock_exclusive(home.as_fd());
        let is_used = matches!(held, Ok(None));
        let mut tools = std::collections::BTreeMap::new();
        let mut add = |directory: BorrowedFd<'_>| {
            for (name, bytes) in directory_sizes(directory) {
                *tools.entry(name).or_insert(0) += bytes;
            }
        };
        let found = list_names(home.as_fd()).unwrap_or_default();
        let open = |name| open_directory(home.as_fd(), current_name(&found, name).ok_or(Errno::NOENT)?);
        let [plain, sets] = [PLAIN_DIR_NAME, MERGED_DIR_NAME].map(open);
        // The directory was listable for a moment, and the holder of the exclusive lock must leave
        // it sealed.
        if let Ok(Some(_held)) = held {
            let _ = reseal_directories(home.as_fd());
        }
        if let Ok(plain) = plain {
            add(plain.as_fd());
        }
        if let Ok(sets) = sets {
            for (name, _) in list_entries(sets.as_fd()).unwrap_or_default() {
                if let Ok(set) = open_directory(sets.as_fd(), name.as_slice()) {
                    add(set.as_fd());
                }
            }
        }
        let (workspace, used_ms) = workspace_of(home.as_fd());
        let is_gone = key_of(workspace.as_path()) != key;
        Some(WorkspaceCaches { key, workspace, is_used, is_gone, used_ms, tools: tools.into_iter().collect() })
    }

    /// Removes the caches of a workspace, unless a run uses them.
    ///
    /// # Errors
    /// [`CacheStoreError`] if they cannot be removed.
    pub fn clear(&self, key: &str) -> Result<ClearResult, CacheStoreError> {
        let failed = |errno| store_error("clear", key, errno);
        let home = match open_home_path(self.store_directory.as_fd(), key) {
            Err(Errno::NOENT) => return Ok(ClearResult::Removed),
            other => other.map_err(failed)?,
        };
        let Some(_held) = lock_exclusive(home.as_fd()).map_err(failed)? else { return Ok(ClearResult::Used) };
        // A run that starts now creates a new directory.
        let removal_name = format!("{REMOVAL_PREFIX}{key}");
        self.sweep().map_err(failed)?;
        renameat(&self.store_directory, key, &self.store_directory, removal_name.as_str()).map_err(failed)?;
        self.sweep().map_err(failed)?;
        Ok(ClearResult::Removed)
    }

    /// Removes what was moved aside. A layer server that still has the directory may create
    /// something in it meanwhile, until it finds that the directory is gone.
    fn sweep(&self) -> Result<(), Errno> {
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        while sweep_removals(self.store_directory.as_fd()).is_err() {
            if Instant::now() >= deadline {
                return Err(Errno::BUSY);
            }
            std::thread::sleep(REMOVAL_RETRY_INTERVAL);
        }
        Ok(())
    }

    /// Removes the caches of workspaces that are gone. Then removes the least recently used caches
    /// until at most `limit_bytes` are left, or all others are in use. Returns the removed caches.
    ///
    /// # Errors
    /// [`CacheStoreError`] if they cannot be read or removed.
    pub fn keep_within(&self, limit_bytes: u64) -> Result<Vec<WorkspaceCaches>, CacheStoreError> {
        self.sweep().map_err(|errno| store_error("clear", "", errno))?;
        let all = self.list_workspaces()?;
        let mut remaining_bytes: u64 = all.iter().map(WorkspaceCaches::allocated_bytes).sum();
        let mut removed = Vec::new();
        let (orphans, others): (Vec<_>, Vec<_>) = all.into_iter().rev().partition(|caches| caches.is_gone);
        for caches in orphans.into_iter().chain(others) {
            if (caches.is_gone || remaining_bytes > limit_bytes) && self.clear(&caches.key)? == ClearResult::Removed {
                remaining_bytes = remaining_bytes.saturating_sub(caches.allocated_bytes());
                removed.push(caches);
            }
        }
        Ok(removed)
    }
}

fn store_error(what: &'static str, key: &str, errno: Errno) -> CacheStoreError {
    CacheStoreError { what, path: PathBuf::from(if key.is_empty() { "the state directory" } else { key }), errno }
}

/// Takes the exclusive lock of a workspace's directory; `None` if a run holds it.
fn lock_exclusive(home: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let lock = open_lock(home)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the path of the workspace and the time of its last use.
fn workspace_of(home: BorrowedFd<'_>) -> (RawText, u64) {
    let mut text = vec![0; MAX_PATH_BYTES];
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(home, WORKSPACE_FILE_NAME, flags, Mode::empty()) else { return (RawText::from(""), 0) };
    let length = rustix::io::read(&file, &mut text).unwrap_or(0);
    text.truncate(length);
    let ms = |stat: rustix::fs::Stat| {
        let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
        seconds.saturating_mul(1000) + stat.st_mtime_nsec / 1_000_000
    };
    (RawText::from(text), fstat(&file).map(ms).unwrap_or(0))
}

/// Returns the allocated bytes of each directory in `directory`.
fn directory_sizes(directory: BorrowedFd<'_>) -> Vec<(String, u64)> {
    let found = list_entries(directory).unwrap_or_default();
    let directories = found.into_iter().filter(|(_, kind)| matches!(kind, FileType::Directory | FileType::Unknown));
    let size = |name: Vec<u8>| {
        let held = open_directory(directory, name.as_slice()).ok()?;
        Some((String::from_utf8_lossy(&name).into_owned(), bytes_in(held.as_fd(), MAX_DEPTH)))
    };
    directories.filter_map(|(name, _)| size(name)).collect()
}

fn bytes_in(directory: BorrowedFd<'_>, depth: usize) -> u64 {
    let mut bytes = 0;
    for (name, kind) in list_entries(directory).unwrap_or_default() {
        if let Ok(stat) = statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        }
        if matches!(kind, FileType::Directory | FileType::Unknown)
            && depth > 0
            && let Ok(inner) = open_directory(directory, name.as_slice())
        {
            bytes += bytes_in(inner.as_fd(), depth - 1);
        }
    }
    bytes
}

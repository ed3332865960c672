//! All caches of this user's workspaces: listed, cleared, kept within a size.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat, renameat, statat};
use stockade_files::object::{entries, names};
use stockade_files::removal::{LEAVING, remove_tree, sweep};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::lease::key_of;
use super::seal::{current_name, list_names, open_home_path, reseal};
use super::{MERGED, PLAIN, WORKSPACE, is_key, open_directory, open_lock};

/// How deep directories are looked into for their size.
const MAX_DEPTH: usize = 64;

/// Longest path of a workspace that is read back.
const MAX_PATH_BYTES: usize = 4096;

/// Where the caches of all workspaces are.
#[derive(Debug)]
pub struct CacheStore {
    place: OwnedFd,
}

/// The caches of one workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceCaches {
    /// The name of its directory.
    pub key: String,
    /// The workspace they belong to.
    pub workspace: RawText,
    /// Whether a run uses them.
    pub is_used: bool,
    /// Whether no run can use them again: the workspace is no more, or another directory is at
    /// its path.
    pub is_gone: bool,
    /// When a run used them last, in milliseconds since 1970.
    pub used_ms: u64,
    /// What they take on the disk, by tool.
    pub tools: Vec<(String, u64)>,
}

impl WorkspaceCaches {
    /// What they take on the disk.
    pub fn bytes(&self) -> u64 {
        self.tools.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// What clearing did to the caches of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearResult {
    /// They are gone.
    Removed,
    /// A run uses them: they stay.
    Used,
}

/// The caches cannot be looked at or cleared.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the caches of runs in {}: {errno}", path.display())]
pub struct CacheStoreError {
    what: &'static str,
    path: PathBuf,
    errno: Errno,
}

impl CacheStore {
    /// Those at `place`; none where nothing is there.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub fn open(place: &Path) -> Result<Option<Self>, CacheStoreError> {
        match open_directory(CWD, place) {
            Ok(place) => Ok(Some(Self { place })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(CacheStoreError { what: "open", path: place.to_owned(), errno }),
        }
    }

    /// The caches of each workspace, the one used last at first.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn list(&self) -> Result<Vec<WorkspaceCaches>, CacheStoreError> {
        let found = names(self.place.as_fd()).map_err(|errno| error("list", "", errno))?;
        let keys = found.into_iter().filter_map(|name| String::from_utf8(name).ok());
        let mut found: Vec<_> = keys.filter(|key| is_key(key)).filter_map(|key| self.look_at(key)).collect();
        found.sort_by_key(|caches| std::cmp::Reverse(caches.used_ms));
        Ok(found)
    }

    fn look_at(&self, key: String) -> Option<WorkspaceCaches> {
        let home = open_home_path(self.place.as_fd(), &key).ok()?;
        let held = lock(home.as_fd());
        let is_used = matches!(held, Ok(None));
        let mut tools = std::collections::BTreeMap::new();
        let mut add = |directory: BorrowedFd<'_>| {
            for (name, bytes) in sizes(directory) {
                *tools.entry(name).or_insert(0) += bytes;
            }
        };
        let found = list_names(home.as_fd()).unwrap_or_default();
        let open = |name| open_directory(home.as_fd(), current_name(&found, name).ok_or(Errno::NOENT)?);
        let [plain, sets] = [PLAIN, MERGED].map(open);
        // Whoever has it alone leaves it sealed, and it could be listed for a moment.
        if let Ok(Some(_held)) = held {
            let _ = reseal(home.as_fd());
        }
        if let Ok(plain) = plain {
            add(plain.as_fd());
        }
        if let Ok(sets) = sets {
            for (name, _) in entries(sets.as_fd()).unwrap_or_default() {
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
    /// Where they cannot be removed.
    pub fn clear(&self, key: &str) -> Result<ClearResult, CacheStoreError> {
        let failed = |errno| error("clear", key, errno);
        let home = match open_home_path(self.place.as_fd(), key) {
            Err(Errno::NOENT) => return Ok(ClearResult::Removed),
            other => other.map_err(failed)?,
        };
        let Some(_held) = lock(home.as_fd()).map_err(failed)? else { return Ok(ClearResult::Used) };
        // Whoever comes now makes a new one.
        let aside = format!("{LEAVING}{key}");
        remove_tree(self.place.as_fd(), aside.as_bytes()).map_err(|_| failed(Errno::BUSY))?;
        renameat(&self.place, key, &self.place, aside.as_str()).map_err(failed)?;
        remove_tree(self.place.as_fd(), aside.as_bytes()).map_err(|_| failed(Errno::BUSY))?;
        Ok(ClearResult::Removed)
    }

    /// Removes the caches of workspaces that are gone, and then those that were used
    /// longest ago, until no more than `limit_bytes` are left or all others are used.
    /// Gives those that were removed.
    ///
    /// # Errors
    /// Where they cannot be looked at or removed.
    pub fn keep_within(&self, limit_bytes: u64) -> Result<Vec<WorkspaceCaches>, CacheStoreError> {
        sweep(self.place.as_fd()).map_err(|_| error("clear", "", Errno::BUSY))?;
        let all = self.list()?;
        let mut left: u64 = all.iter().map(WorkspaceCaches::bytes).sum();
        let mut removed = Vec::new();
        let (gone, others): (Vec<_>, Vec<_>) = all.into_iter().rev().partition(|caches| caches.is_gone);
        for caches in gone.into_iter().chain(others) {
            if (caches.is_gone || left > limit_bytes) && self.clear(&caches.key)? == ClearResult::Removed {
                left = left.saturating_sub(caches.bytes());
                removed.push(caches);
            }
        }
        Ok(removed)
    }
}

fn error(what: &'static str, key: &str, errno: Errno) -> CacheStoreError {
    CacheStoreError { what, path: PathBuf::from(if key.is_empty() { "the state directory" } else { key }), errno }
}

/// The lock of a workspace's directory, held alone; none where a run holds it.
fn lock(home: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let lock = open_lock(home)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The path of the workspace, and when it was noted last.
fn workspace_of(home: BorrowedFd<'_>) -> (RawText, u64) {
    let mut text = vec![0; MAX_PATH_BYTES];
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(home, WORKSPACE, flags, Mode::empty()) else { return (RawText::from(""), 0) };
    let length = rustix::io::read(&file, &mut text).unwrap_or(0);
    text.truncate(length);
    let ms = |stat: rustix::fs::Stat| {
        let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
        seconds.saturating_mul(1000) + stat.st_mtime_nsec / 1_000_000
    };
    (RawText::from(text), fstat(&file).map(ms).unwrap_or(0))
}

/// What each directory in `directory` takes on the disk.
fn sizes(directory: BorrowedFd<'_>) -> Vec<(String, u64)> {
    let found = entries(directory).unwrap_or_default();
    let directories = found.into_iter().filter(|(_, kind)| matches!(kind, FileType::Directory | FileType::Unknown));
    let size = |name: Vec<u8>| {
        let held = open_directory(directory, name.as_slice()).ok()?;
        Some((String::from_utf8_lossy(&name).into_owned(), bytes_in(held.as_fd(), MAX_DEPTH)))
    };
    directories.filter_map(|(name, _)| size(name)).collect()
}

fn bytes_in(directory: BorrowedFd<'_>, depth: usize) -> u64 {
    let mut bytes = 0;
    for (name, kind) in entries(directory).unwrap_or_default() {
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

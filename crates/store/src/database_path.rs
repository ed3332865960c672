//! Path of the database: a file in a directory, both accessible only to the caller (L7).
//!
//! An existing database is examined without being opened. Closing any descriptor of it would drop
//! the locks that SQLite holds on it elsewhere in this process (fcntl_locking(2)).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use stockade_model::{RawText, shell_quoted};

/// Time-out for another process that creates the database, in milliseconds.
const LOCK_WAIT_MS: u64 = 5_000;

/// Error if a directory or file is unsuitable.
#[derive(Debug, thiserror::Error)]
pub enum StoreFileError {
    /// A system call failed.
    #[error("cannot {what} `{}`: {source}", display_path(path))]
    System {
        /// The attempted operation.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The path is a symbolic link, or neither a file nor a directory.
    #[error(
        "`{}` is not a real {expected}: links are not followed here\nhint: remove it, or name another place",
        display_path(path)
    )]
    Kind {
        /// The expected type.
        expected: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// The file belongs to another user.
    #[error("`{}` belongs to user {owner}, not to the caller\nhint: name a place of your own", display_path(path))]
    Owner {
        /// Path of the file.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
    },
    /// Other users may read or write the file.
    #[error("other users can access `{}` (mode {mode:04o})\nhint: chmod go= {}", display_path(path), shell_quoted(&display_path(path)))]
    Mode {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// Another process is creating the database and does not finish.
    #[error(
        "another process has kept `{}` locked for {LOCK_WAIT_MS} ms\nhint: find it with `fuser` and end it",
        display_path(path)
    )]
    Busy {
        /// Path of the file.
        path: PathBuf,
    },
}

fn display_path(path: &Path) -> String {
    RawText::from(path).to_escaped()
}

/// Converts an error to [`StoreFileError::System`].
pub(crate) fn system_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreFileError {
    let path = path.to_owned();
    move |source| StoreFileError::System { what, path, source }
}

/// Requires a private directory, and creates it if it is missing. Returns the path of the file in
/// it, with every symbolic link above the directory resolved.
pub(crate) fn private_directory(file: &Path) -> Result<PathBuf, StoreFileError> {
    use std::os::unix::fs::DirBuilderExt;
    let no_name = || system_error("use as a file", file)(io::ErrorKind::InvalidInput.into());
    let name = file.file_name().ok_or_else(no_name)?;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).or_else(|source| {
        // A symbolic link or a file at this path is reported below, by its name.
        if dir.symlink_metadata().is_ok() { Ok(()) } else { Err(system_error("create", dir)(source)) }
    })?;
    let stat = stat_path(dir)?.ok_or_else(|| system_error("open", dir)(io::ErrorKind::NotFound.into()))?;
    require_private(&stat, FileType::Directory, dir)?;
    Ok(dir.canonicalize().map_err(system_error("resolve", dir))?.join(name))
}

/// Returns the length of the file if it exists; it must be private then.
pub(crate) fn private_file(path: &Path) -> Result<Option<u64>, StoreFileError> {
    let Some(stat) = stat_path(path)? else { return Ok(None) };
    require_private(&stat, FileType::RegularFile, path)?;
    if stat.st_nlink != 1 {
        return Err(StoreFileError::Kind { expected: "file", path: path.to_owned() });
    }
    Ok(Some(u64::try_from(stat.st_size).unwrap_or(0)))
}

fn stat_path(path: &Path) -> Result<Option<Stat>, StoreFileError> {
    match rustix::fs::statat(CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(system_error("examine", path)(e.into())),
    }
}

fn require_private(stat: &Stat, kind: FileType, path: &Path) -> Result<(), StoreFileError> {
    if FileType::from_raw_mode(stat.st_mode) != kind {
        let expected = if kind == FileType::Directory { "directory" } else { "file" };
        return Err(StoreFileError::Kind { expected, path: path.to_owned() });
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(StoreFileError::Owner { path: path.to_owned(), owner: stat.st_uid });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o077 != 0 {
        return Err(StoreFileError::Mode { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Creates an empty private file.
pub(crate) fn create_new(path: &Path) -> Result<(), StoreFileError> {
    open_file(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).map(drop)
}

/// Mode of a file lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// Shared with other holders.
    Shared,
    /// Exclusive.
    Alone,
}

/// Locks a file exclusively until the result is dropped; creates it if it is missing.
pub(crate) fn lock_exclusive(path: &Path) -> Result<File, StoreFileError> {
    lock_with_mode(path, LockMode::Alone)
}

/// Locks a file until the result is dropped; creates it if it is missing. Waits.
pub(crate) fn lock_with_mode(path: &Path, how: LockMode) -> Result<File, StoreFileError> {
    let file = open_file(path, OFlags::RDWR | OFlags::CREATE)?;
    let deadline = Instant::now() + Duration::from_millis(LOCK_WAIT_MS);
    while !try_lock(&file, path, how)? {
        if Instant::now() >= deadline {
            return Err(StoreFileError::Busy { path: path.to_owned() });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(file)
}

/// Does the same without waiting; `None` if another process holds a conflicting lock.
pub(crate) fn try_hold(path: &Path, how: LockMode) -> Result<Option<File>, StoreFileError> {
    let file = open_file(path, OFlags::RDWR | OFlags::CREATE)?;
    Ok(try_lock(&file, path, how)?.then_some(file))
}

fn try_lock(file: &File, path: &Path, how: LockMode) -> Result<bool, StoreFileError> {
    let operation = match how {
        LockMode::Shared => FlockOperation::NonBlockingLockShared,
        LockMode::Alone => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(e) => Err(system_error("lock", path)(e.into())),
    }
}

fn open_file(path: &Path, flags: OFlags) -> Result<File, StoreFileError> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd =
        rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| system_error("open", path)(e.into()))?;
    Ok(File::from(fd))
}

/// Renames a finished file to its final name and makes the name durable.
pub(crate) fn put_in_place(from: &Path, to: &Path) -> Result<(), StoreFileError> {
    std::fs::rename(from, to).map_err(system_error("create", to))?;
    let dir = to.parent().unwrap_or(Path::new("/"));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(system_error("sync", dir))
}

/// Returns `path` with `suffix` appended to the name.
pub(crate) fn append_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hint_ends_its_own_quotes() {
        let error = StoreFileError::Mode { path: "/a/it's".into(), mode: 0o644 }.to_string();
        assert!(error.ends_with(r"hint: chmod go= '/a/it'\''s'"), "{error}");
    }
}

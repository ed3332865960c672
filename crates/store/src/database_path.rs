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
pub use stockade_files::private::PrivateFileError as StoreFileError;
pub(crate) use stockade_files::private::system_error;
use stockade_files::private::{create_private_directory, require_private};

/// Time-out for another process that creates the database, in milliseconds.
const LOCK_WAIT_MS: u64 = 5_000;

/// Noun for what the user names.
const PATH_NOUN: &str = "path";

/// Requires a private directory, and creates it if it is missing. Returns the path of the file in
/// it, with every symbolic link above the directory resolved.
pub(crate) fn private_directory(file: &Path) -> Result<PathBuf, StoreFileError> {
    let no_name = || system_error("use as a file", file)(io::ErrorKind::InvalidInput);
    let name = file.file_name().ok_or_else(no_name)?;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_private_directory(dir)?;
    let stat = stat_path(dir)?.ok_or_else(|| system_error("open", dir)(io::ErrorKind::NotFound))?;
    require_private(&stat, FileType::Directory, dir, PATH_NOUN)?;
    Ok(dir.canonicalize().map_err(system_error("resolve", dir))?.join(name))
}

/// Returns the length of the file if it exists; it must be private then.
pub(crate) fn private_file(path: &Path) -> Result<Option<u64>, StoreFileError> {
    let Some(stat) = stat_path(path)? else { return Ok(None) };
    require_private(&stat, FileType::RegularFile, path, PATH_NOUN)?;
    Ok(Some(u64::try_from(stat.st_size).unwrap_or(0)))
}

fn stat_path(path: &Path) -> Result<Option<Stat>, StoreFileError> {
    match rustix::fs::statat(CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(system_error("examine", path)(e)),
    }
}

/// Creates an empty private file.
pub(crate) fn create_new(path: &Path) -> Result<(), StoreFileError> {
    open_file(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).map(drop)
}

/// Locks a file exclusively until the result is dropped; creates it if it is missing.
pub(crate) fn lock_exclusive(path: &Path) -> Result<File, StoreFileError> {
    lock_with_mode(path, FlockOperation::NonBlockingLockExclusive)
}

/// Locks a file until the result is dropped; creates it if it is missing. Waits.
pub(crate) fn lock_with_mode(path: &Path, how: FlockOperation) -> Result<File, StoreFileError> {
    let file = open_file(path, OFlags::RDWR | OFlags::CREATE)?;
    let deadline = Instant::now() + Duration::from_millis(LOCK_WAIT_MS);
    while !try_lock(&file, path, how)? {
        if Instant::now() >= deadline {
            let (holders, remedy) = ("another process has", "find it with `fuser` and end it");
            let duration = format!("{LOCK_WAIT_MS} ms");
            return Err(StoreFileError::Busy { path: path.to_owned(), holders, duration, remedy });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(file)
}

/// Does the same without waiting; `None` if another process holds a conflicting lock.
pub(crate) fn try_hold(path: &Path, how: FlockOperation) -> Result<Option<File>, StoreFileError> {
    let file = open_file(path, OFlags::RDWR | OFlags::CREATE)?;
    Ok(try_lock(&file, path, how)?.then_some(file))
}

fn try_lock(file: &File, path: &Path, how: FlockOperation) -> Result<bool, StoreFileError> {
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(e) => Err(system_error("lock", path)(e)),
    }
}

fn open_file(path: &Path, flags: OFlags) -> Result<File, StoreFileError> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map(File::from).map_err(system_error("open", path))
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

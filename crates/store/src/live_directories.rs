//! Private directories that represent running processes: a directory is alive as long as a process
//! holds its lock. The kernel releases a lock when the last process that holds it ends, for
//! whatever reason, and never transfers it.
//!
//! This module must not depend on the kind of process.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::database_path::{StoreFileError, put_in_place, system_error};

/// Longest file that is read, in bytes.
const TEXT_LIMIT_BYTES: u64 = 64 << 20;

const LOCK_FILE_NAME: &str = "lock";

/// Directory of something that a process supervises, with an id as its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveDirectory<Id> {
    id: Id,
    path: PathBuf,
}

/// Such a directory that this process supervises.
#[derive(Debug)]
pub struct SupervisedDirectory<Id> {
    directory: LiveDirectory<Id>,
    _lock: File,
}

impl<Id> LiveDirectory<Id> {
    /// Returns the id.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether its supervisor is running, without which nothing of it can be alive.
    pub fn is_supervised(&self) -> bool {
        is_held(&self.path)
    }

    /// Removes the directory.
    ///
    /// # Errors
    /// [`StoreFileError`] if it cannot be removed.
    pub fn remove(&self) -> Result<(), StoreFileError> {
        fs::remove_dir_all(&self.path).map_err(system_error("remove", &self.path))
    }
}

impl<Id> Deref for SupervisedDirectory<Id> {
    type Target = LiveDirectory<Id>;

    fn deref(&self) -> &LiveDirectory<Id> {
        &self.directory
    }
}

/// Creates the directory of `id` at `path` and locks it. It is hidden until it is locked and `fill`
/// has written its files.
pub(crate) fn create_supervised<Id>(
    id: Id,
    path: PathBuf,
    fill: impl FnOnce(&Path) -> Result<(), StoreFileError>,
) -> Result<SupervisedDirectory<Id>, StoreFileError> {
    let mut hidden = OsString::from(".");
    hidden.push(path.file_name().unwrap_or_default());
    hidden.push(format!(".{}", std::process::id()));
    let hidden = path.with_file_name(hidden);
    fs::DirBuilder::new().mode(0o700).create(&hidden).map_err(system_error("create", &hidden))?;
    let made = lock_in(&hidden).and_then(|lock| {
        fill(&hidden)?;
        put_in_place(&hidden, &path)?;
        Ok(lock)
    });
    if made.is_err() {
        // The directory is not known by this name.
        let _ = fs::remove_dir_all(&hidden);
    }
    Ok(SupervisedDirectory { directory: LiveDirectory { id, path }, _lock: made? })
}

fn lock_in(directory: &Path) -> Result<File, StoreFileError> {
    let lock = new_file(&directory.join(LOCK_FILE_NAME)).map_err(system_error("create", directory))?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|e| system_error("lock", directory)(e.into()))?;
    Ok(lock)
}

/// Returns whether a process holds the lock of this directory.
fn is_held(directory: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(lock) = rustix::fs::open(directory.join(LOCK_FILE_NAME), flags, Mode::empty()) else { return false };
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// Returns the directories in `root` whose name is an id, in no order.
pub(crate) fn list_directories<Id: FromStr>(root: &Path) -> Result<Vec<LiveDirectory<Id>>, StoreFileError> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => Some(entries),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(system_error("read", root)(e)),
    };
    let named =
        |entry: fs::DirEntry| Some(LiveDirectory { id: entry.file_name().to_str()?.parse().ok()?, path: entry.path() });
    Ok(entries.into_iter().flatten().flatten().filter_map(named).collect())
}

/// Returns the content of a file in the directory, if it can be read.
pub(crate) fn read_json<T: for<'a> Deserialize<'a>>(directory: &Path, name: &str) -> Option<T> {
    let mut bytes = Vec::new();
    File::open(directory.join(name)).ok()?.take(TEXT_LIMIT_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Writes a file in the directory atomically.
pub(crate) fn write_json(directory: &Path, name: &str, value: &impl Serialize) -> Result<(), StoreFileError> {
    let (path, unfinished) = (directory.join(name), directory.join(format!("{name}.partial")));
    let text = serde_json::to_vec(value).map_err(|e| system_error("write", &path)(e.into()))?;
    new_file(&unfinished).and_then(|mut file| file.write_all(&text)).map_err(system_error("write", &unfinished))?;
    put_in_place(&unfinished, &path)
}

/// Creates a new private file.
pub(crate) fn new_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

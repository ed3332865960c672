//! Directory and files of a log: opened without following symbolic links, and only if no other user
//! could have replaced them (L7).
//!
//! This module does not depend on the content of the files.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
pub use stockade_files::private::PrivateFileError as LogFileError;
pub(crate) use stockade_files::private::system_error;
use stockade_files::private::{create_private_directory, require_private};

/// Time-out for another process's append, in milliseconds. An append holds the lock for
/// microseconds.
pub const LOCK_WAIT_MS: u64 = 5_000;
/// Total time-out while other processes continue to append, in milliseconds. A thousand runs that
/// start at the same time can all append within it.
const CROWD_WAIT_MS: u64 = 60_000;
/// Longest pause between two attempts. Many processes that poll often would leave no processor to
/// the one that appends.
const MAX_RETRY_DELAY: Duration = Duration::from_millis(16);

/// Noun for what the user names.
const DIRECTORY_NOUN: &str = "directory";

/// Open directory, with the path that was used to open it.
#[derive(Debug)]
pub(crate) struct LogDirectory {
    pub fd: OwnedFd,
    pub path: PathBuf,
}

impl LogDirectory {
    /// Opens the directory, creates it with mode 0700 if it is missing, and requires that only the
    /// caller can access it.
    pub fn open_or_create(path: &Path) -> Result<Self, LogFileError> {
        create_private_directory(path)?;
        let directory = Self::open_existing(path)?;
        let stat = rustix::fs::fstat(&directory.fd).map_err(system_error("examine", path))?;
        require_private(&stat, FileType::Directory, path, DIRECTORY_NOUN)?;
        Ok(directory)
    }

    /// Opens the directory for reading. Its owner is not checked, because an auditor may read
    /// another user's log.
    pub fn open_existing(path: &Path) -> Result<Self, LogFileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR => kind_error("directory", path.to_owned()),
            e => system_error("open", path)(e),
        })?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens the parent directory of a log. Symbolic links to it are followed, because they are the
    /// caller's choice, like those above the log's directory.
    pub fn open_parent(path: &Path) -> Result<Self, LogFileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(system_error("open", path))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a file of the directory that only the caller may access. `None` if it is missing and
    /// `flags` do not create it.
    pub fn open_private(&self, name: impl AsRef<Path>, flags: OFlags) -> Result<Option<File>, LogFileError> {
        let name = name.as_ref();
        let path = self.path.join(name);
        let Some((file, stat)) = self.open_file(name, flags)? else { return Ok(None) };
        require_private(&stat, FileType::RegularFile, &path, DIRECTORY_NOUN)?;
        Ok(Some(file))
    }

    /// Opens a file of the directory to read it, whichever user owns it.
    pub fn open_to_read(&self, name: &str) -> Result<Option<File>, LogFileError> {
        Ok(self.open_file(name.as_ref(), OFlags::RDONLY)?.map(|(file, _)| file))
    }

    fn open_file(&self, name: &Path, flags: OFlags) -> Result<Option<(File, Stat)>, LogFileError> {
        let path = self.path.join(name);
        // Non-blocking, so that a fifo at this path cannot block; it has no effect on a regular
        // file.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(kind_error("file", path)),
            Err(e) => return Err(system_error("open", &path)(e)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(system_error("examine", &path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(kind_error("file", path));
        }
        Ok(Some((File::from(fd), stat)))
    }

    /// Makes the names in the directory durable.
    pub fn sync_names(&self) -> Result<(), LogFileError> {
        rustix::fs::fsync(&self.fd).map_err(system_error("sync", &self.path))
    }
}

fn kind_error(expected: &'static str, path: PathBuf) -> LogFileError {
    LogFileError::Kind { expected, path, noun: DIRECTORY_NOUN }
}

/// Lock of the log; released when dropped.
///
/// The lock belongs to the open file and not to the thread. Two threads that share one open file do
/// not exclude each other, and must hold a mutex around it.
pub(crate) struct FileLock<'a> {
    file: &'a File,
}

impl<'a> FileLock<'a> {
    pub fn lock_exclusive(file: &'a File, path: &Path) -> Result<Self, LogFileError> {
        Self::acquire_lock(file, path, FlockOperation::NonBlockingLockExclusive)
    }

    pub fn lock_shared(file: &'a File, path: &Path) -> Result<Self, LogFileError> {
        Self::acquire_lock(file, path, FlockOperation::NonBlockingLockShared)
    }

    fn acquire_lock(file: &'a File, path: &Path, operation: FlockOperation) -> Result<Self, LogFileError> {
        let (start, mut pause) = (Instant::now(), Duration::from_micros(20));
        let mut progress = (start, None);
        loop {
            match rustix::fs::flock(file.as_fd(), operation) {
                Ok(()) => return Ok(Self { file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(e) => return Err(system_error("lock", path)(e)),
            }
            let size = rustix::fs::fstat(file).ok().map(|stat| stat.st_size);
            if size != progress.1 {
                progress = (Instant::now(), size);
            }
            let stands = progress.0.elapsed() >= Duration::from_millis(LOCK_WAIT_MS);
            if stands || start.elapsed() >= Duration::from_millis(CROWD_WAIT_MS) {
                let (holders, remedy) = ("other processes have", "find them with `fuser` and end them");
                let duration = format!("{LOCK_WAIT_MS} ms and more");
                return Err(LogFileError::Busy { path: path.to_owned(), holders, duration, remedy });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_RETRY_DELAY);
        }
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        // Unlocking a held lock cannot fail; closing the file would unlock it too.
        let _ = rustix::fs::flock(self.file.as_fd(), FlockOperation::Unlock);
    }
}

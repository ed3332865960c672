//! Directory and files of a log: opened without following symbolic links, and only if no other user
//! could have replaced them (L7).
//!
//! This module does not depend on the content of the files.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use stockade_model::{RawText, shell_quoted};

/// Time-out for another process's append, in milliseconds. An append holds the lock for
/// microseconds.
pub const LOCK_WAIT_MS: u64 = 5_000;
/// Total time-out while other processes continue to append, in milliseconds. A thousand runs that
/// start at the same time can all append within it.
const CROWD_WAIT_MS: u64 = 60_000;
/// Longest pause between two attempts. Many processes that poll often would leave no processor to
/// the one that appends.
const MAX_RETRY_DELAY: Duration = Duration::from_millis(16);

/// Error if a directory or file is unsuitable.
#[derive(Debug, thiserror::Error)]
pub enum LogFileError {
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
        "`{}` is not a real {expected}: links are not followed here\nhint: remove it, or name another directory",
        display_path(path)
    )]
    Kind {
        /// The expected type.
        expected: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// The file belongs to another user.
    #[error("`{}` belongs to user {owner}, not to the caller\nhint: name a directory of your own", display_path(path))]
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
    /// Another process kept the log locked.
    #[error(
        "other processes have kept `{}` locked for {LOCK_WAIT_MS} ms and more\nhint: find them with `fuser` and end them",
        display_path(path)
    )]
    Busy {
        /// Path of the log.
        path: PathBuf,
    },
}

fn display_path(path: &Path) -> String {
    RawText::from(path).to_escaped()
}

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
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).or_else(|source| {
            // `open_existing` reports a symbolic link or a file at this path, by its name.
            if path.symlink_metadata().is_ok() { Ok(()) } else { Err(system_error("create", path)(source)) }
        })?;
        let directory = Self::open_existing(path)?;
        let stat = rustix::fs::fstat(&directory.fd).map_err(|e| system_error("examine", path)(e.into()))?;
        require_private(&stat, path)?;
        Ok(directory)
    }

    /// Opens the directory for reading. Its owner is not checked, because an auditor may read
    /// another user's log.
    pub fn open_existing(path: &Path) -> Result<Self, LogFileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR => LogFileError::Kind { expected: "directory", path: path.to_owned() },
            e => system_error("open", path)(e.into()),
        })?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens the parent directory of a log. Symbolic links to it are followed, because they are the
    /// caller's choice, like those above the log's directory.
    pub fn open_parent(path: &Path) -> Result<Self, LogFileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| system_error("open", path)(e.into()))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a file of the directory that only the caller may access. `None` if it is missing and
    /// `flags` do not create it.
    pub fn open_private(&self, name: impl AsRef<Path>, flags: OFlags) -> Result<Option<File>, LogFileError> {
        let name = name.as_ref();
        let path = self.path.join(name);
        let Some((file, stat)) = self.open_file(name, flags)? else { return Ok(None) };
        require_private(&stat, &path)?;
        if stat.st_nlink != 1 {
            return Err(LogFileError::Kind { expected: "file", path });
        }
        Ok(Some(file))
    }

    /// Opens a file of the directory to read it, whoever owns it.
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
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(LogFileError::Kind { expected: "file", path }),
            Err(e) => return Err(system_error("open", &path)(e.into())),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| system_error("examine", &path)(e.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(LogFileError::Kind { expected: "file", path });
        }
        Ok(Some((File::from(fd), stat)))
    }

    /// Makes the names in the directory durable.
    pub fn sync_names(&self) -> Result<(), LogFileError> {
        rustix::fs::fsync(&self.fd).map_err(|e| system_error("sync", &self.path)(e.into()))
    }
}

fn require_private(stat: &Stat, path: &Path) -> Result<(), LogFileError> {
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(LogFileError::Owner { path: path.to_owned(), owner: stat.st_uid });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o077 != 0 {
        return Err(LogFileError::Mode { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Converts an error to [`LogFileError::System`].
pub(crate) fn system_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogFileError {
    let path = path.to_owned();
    move |source| LogFileError::System { what, path, source }
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
                Err(e) => return Err(system_error("lock", path)(e.into())),
            }
            let size = rustix::fs::fstat(file).ok().map(|stat| stat.st_size);
            if size != progress.1 {
                progress = (Instant::now(), size);
            }
            let stands = progress.0.elapsed() >= Duration::from_millis(LOCK_WAIT_MS);
            if stands || start.elapsed() >= Duration::from_millis(CROWD_WAIT_MS) {
                return Err(LogFileError::Busy { path: path.to_owned() });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hint_ends_its_own_quotes() {
        let error = LogFileError::Mode { path: "/a/it's".into(), mode: 0o644 }.to_string();
        assert!(error.ends_with(r"hint: chmod go= '/a/it'\''s'"), "{error}");
    }
}

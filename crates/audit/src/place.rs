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
const PAUSE_MAX: Duration = Duration::from_millis(16);

/// Error if a directory or file is unsuitable.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// A system call failed.
    #[error("cannot {what} `{}`: {source}", shown(path))]
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
        "`{}` is not a {expected} of its own: links are not followed here\nhint: remove it, or name another directory",
        shown(path)
    )]
    Kind {
        /// The expected type.
        expected: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// The file belongs to another user.
    #[error("`{}` belongs to user {owner}, not to the caller\nhint: name a directory of your own", shown(path))]
    Owner {
        /// Path of the file.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
    },
    /// Other users may read or write the file.
    #[error("others may reach `{}` (mode {mode:04o})\nhint: chmod go= {}", shown(path), shell_quoted(&shown(path)))]
    Mode {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// Another process kept the log locked.
    #[error(
        "other processes have kept `{}` locked for {LOCK_WAIT_MS} ms and more\nhint: find them with `fuser` and end them",
        shown(path)
    )]
    Busy {
        /// Path of the log.
        path: PathBuf,
    },
}

fn shown(path: &Path) -> String {
    RawText::from(path).escaped()
}

/// Open directory, with the path that was used to open it.
#[derive(Debug)]
pub(crate) struct Place {
    pub fd: OwnedFd,
    pub path: PathBuf,
}

impl Place {
    /// Opens the directory, creates it with mode 0700 if it is missing, and requires that only the
    /// caller can access it.
    pub fn create(path: &Path) -> Result<Self, PlaceError> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).or_else(|source| {
            // `open_existing` reports a symbolic link or a file at this path, by its name.
            if path.symlink_metadata().is_ok() { Ok(()) } else { Err(system("create", path)(source)) }
        })?;
        let place = Self::open_existing(path)?;
        let stat = rustix::fs::fstat(&place.fd).map_err(|e| system("examine", path)(e.into()))?;
        demand_private(&stat, path)?;
        Ok(place)
    }

    /// Opens the directory for reading. Its owner is not checked, because an auditor may read
    /// another user's log.
    pub fn open_existing(path: &Path) -> Result<Self, PlaceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR => PlaceError::Kind { expected: "directory", path: path.to_owned() },
            e => system("open", path)(e.into()),
        })?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens the parent directory of a log. Symbolic links to it are followed, because they are the
    /// caller's choice, like those above the log's directory.
    pub fn open_parent(path: &Path) -> Result<Self, PlaceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| system("open", path)(e.into()))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a file of the directory that only the caller may access. `None` if it is missing and
    /// `flags` do not create it.
    pub fn open_private(&self, name: impl AsRef<Path>, flags: OFlags) -> Result<Option<File>, PlaceError> {
        let name = name.as_ref();
        let path = self.path.join(name);
        let Some((file, stat)) = self.open_file(name, flags)? else { return Ok(None) };
        demand_private(&stat, &path)?;
        if stat.st_nlink != 1 {
            return Err(PlaceError::Kind { expected: "file", path });
        }
        Ok(Some(file))
    }

    /// Opens a file of the directory to read it, whoever owns it.
    pub fn open_to_read(&self, name: &str) -> Result<Option<File>, PlaceError> {
        Ok(self.open_file(name.as_ref(), OFlags::RDONLY)?.map(|(file, _)| file))
    }

    fn open_file(&self, name: &Path, flags: OFlags) -> Result<Option<(File, Stat)>, PlaceError> {
        let path = self.path.join(name);
        // Non-blocking, so that a fifo at this path cannot block; it has no effect on a regular
        // file.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(PlaceError::Kind { expected: "file", path }),
            Err(e) => return Err(system("open", &path)(e.into())),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| system("examine", &path)(e.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(PlaceError::Kind { expected: "file", path });
        }
        Ok(Some((File::from(fd), stat)))
    }

    /// Makes the names in the directory durable.
    pub fn sync(&self) -> Result<(), PlaceError> {
        rustix::fs::fsync(&self.fd).map_err(|e| system("sync", &self.path)(e.into()))
    }
}

fn demand_private(stat: &Stat, path: &Path) -> Result<(), PlaceError> {
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(PlaceError::Owner { path: path.to_owned(), owner: stat.st_uid });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o077 != 0 {
        return Err(PlaceError::Mode { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Converts an error to [`PlaceError::System`].
pub(crate) fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PlaceError {
    let path = path.to_owned();
    move |source| PlaceError::System { what, path, source }
}

/// Lock of the log; released when dropped.
///
/// The lock belongs to the open file and not to the thread. Two threads that share one open file do
/// not exclude each other, and must hold a mutex around it.
pub(crate) struct FileLock<'a> {
    file: &'a File,
}

impl<'a> FileLock<'a> {
    pub fn exclusive(file: &'a File, path: &Path) -> Result<Self, PlaceError> {
        Self::acquire(file, path, FlockOperation::NonBlockingLockExclusive)
    }

    pub fn shared(file: &'a File, path: &Path) -> Result<Self, PlaceError> {
        Self::acquire(file, path, FlockOperation::NonBlockingLockShared)
    }

    fn acquire(file: &'a File, path: &Path, operation: FlockOperation) -> Result<Self, PlaceError> {
        let (start, mut pause) = (Instant::now(), Duration::from_micros(20));
        let mut progress = (start, None);
        loop {
            match rustix::fs::flock(file.as_fd(), operation) {
                Ok(()) => return Ok(Self { file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(e) => return Err(system("lock", path)(e.into())),
            }
            let size = rustix::fs::fstat(file).ok().map(|stat| stat.st_size);
            if size != progress.1 {
                progress = (Instant::now(), size);
            }
            let stands = progress.0.elapsed() >= Duration::from_millis(LOCK_WAIT_MS);
            if stands || start.elapsed() >= Duration::from_millis(CROWD_WAIT_MS) {
                return Err(PlaceError::Busy { path: path.to_owned() });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
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
        let error = PlaceError::Mode { path: "/a/it's".into(), mode: 0o644 }.to_string();
        assert!(error.ends_with(r"hint: chmod go= '/a/it'\''s'"), "{error}");
    }
}

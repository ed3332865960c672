//! The directory and the files of a log: opened without following links, and
//! only where nobody but the owner could have put something else (L7).
//!
//! Knows nothing of what the files hold.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use stockade_model::RawText;

/// How long to wait for another process's append before giving up, in
/// milliseconds. An append holds the lock for microseconds.
pub const LOCK_WAIT_MS: u64 = 5_000;
/// How long to wait in all while others go on appending, in milliseconds: a thousand
/// runs that start at once all get their turn.
const CROWD_WAIT_MS: u64 = 60_000;
/// Longest pause between two tries. Many who wait and look often would leave no
/// processor to those who append.
const PAUSE_MAX: Duration = Duration::from_millis(16);

/// Why a directory or file cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The system said no.
    #[error("cannot {what} `{}`: {source}", shown(path))]
    System {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is a link, or not a file or directory at all.
    #[error(
        "`{}` is not a {expected} of its own: links are not followed here\nhint: remove it, or name another directory",
        shown(path)
    )]
    Kind {
        /// What it should be.
        expected: &'static str,
        /// Which.
        path: PathBuf,
    },
    /// It belongs to somebody else.
    #[error("`{}` belongs to user {owner}, not to the caller\nhint: name a directory of your own", shown(path))]
    Owner {
        /// Which.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
    },
    /// Others may read or write it.
    #[error("others may reach `{}` (mode {mode:04o})\nhint: chmod go= '{}'", shown(path), shown(path))]
    Mode {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another process kept the log locked.
    #[error(
        "other processes have kept `{}` locked for {LOCK_WAIT_MS} ms and more\nhint: find them with `fuser` and end them",
        shown(path)
    )]
    Busy {
        /// Which.
        path: PathBuf,
    },
}

fn shown(path: &Path) -> String {
    RawText::from(path).escaped()
}

/// An open directory and the name it was opened by.
#[derive(Debug)]
pub(crate) struct Place {
    pub fd: OwnedFd,
    pub path: PathBuf,
}

impl Place {
    /// Opens the directory, made with mode 0700 where it is missing, and
    /// demands that it is the caller's alone.
    pub fn create(path: &Path) -> Result<Self, PlaceError> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).or_else(|source| {
            // A link or a file in its place is reported by `open_existing`, by its name.
            if path.symlink_metadata().is_ok() { Ok(()) } else { Err(system("create", path)(source)) }
        })?;
        let place = Self::open_existing(path)?;
        let stat = rustix::fs::fstat(&place.fd).map_err(|e| system("examine", path)(e.into()))?;
        demand_private(&stat, path)?;
        Ok(place)
    }

    /// Opens the directory for reading; no demand is made on its owner, for an
    /// auditor may read another's log.
    pub fn open_existing(path: &Path) -> Result<Self, PlaceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR => PlaceError::Kind { expected: "directory", path: path.to_owned() },
            e => system("open", path)(e.into()),
        })?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens the directory around a log's. Links that lead to it are followed: they are
    /// the caller's choice of a place, as those above the log's directory are.
    pub fn open_parent(path: &Path) -> Result<Self, PlaceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| system("open", path)(e.into()))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a file of the directory that must be the caller's alone. `None`
    /// where it is missing and `flags` do not make it.
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
        // Non-blocking, so that a fifo put there cannot hold us; a regular file does not care.
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

/// Makes a [`PlaceError::System`] of an error.
pub(crate) fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PlaceError {
    let path = path.to_owned();
    move |source| PlaceError::System { what, path, source }
}

/// A held lock of the log; gone when dropped.
///
/// It belongs to the open file, not to the thread: two threads that share one
/// open file do not exclude each other, and must hold a mutex around it.
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
        // Unlocking a lock that is held cannot fail; closing the file would do it too.
        let _ = rustix::fs::flock(self.file.as_fd(), FlockOperation::Unlock);
    }
}

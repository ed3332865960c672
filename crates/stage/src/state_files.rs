//! Files and directories of the state: whole files, files of lines that only grow, and the
//! directories that hold them. Must not depend on the content.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, fsync, openat, openat2, renameat, statat};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stockade_files::object::read_block;
use stockade_sys::Errno;

use crate::error::{PathContext, PathError};

/// Largest file of lines or paths that is read, in bytes.
pub(crate) const MAX_LIST_BYTES: u64 = 1 << 30;
/// Limits of a file of lines whose lines have no limit of their own.
pub(crate) const LIST_LIMITS: LineLimits = (1 << 30, MAX_LIST_BYTES);

/// Opens a directory so that it can be locked and flushed.
pub(crate) fn open_directory(parent: impl AsFd, path: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    openat(parent, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a workspace by a path without symbolic links.
pub(crate) fn open_workspace(path: &Path) -> Result<OwnedFd, PathError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS).at_path(path)
}

/// Returns whether a directory has an entry with one of these names.
pub(crate) fn has_any(directory: BorrowedFd<'_>, names: &[&str]) -> bool {
    names.iter().any(|name| statat(directory, *name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
}

/// Opens a file for writing with these further flags. Makes it private if it is new.
pub(crate) fn open_to_write(directory: impl AsFd, name: impl rustix::path::Arg, flags: OFlags) -> Result<File, Errno> {
    let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | flags;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

/// Returns the content of a file; `None` if it does not exist.
pub(crate) fn read_file(directory: impl AsFd, name: &str, limit_bytes: u64) -> Result<Option<Vec<u8>>, PathError> {
    let path = Path::new(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(PathError::new(path, errno)),
    };
    let mut text = Vec::new();
    file.take(limit_bytes + 1).read_to_end(&mut text).at_path(path)?;
    if text.len() as u64 > limit_bytes {
        return Err(PathError::from_reason(path, "it is too large"));
    }
    Ok(Some(text))
}

/// Parses the content of the file `name`.
pub(crate) fn parse_json<T: DeserializeOwned>(name: &str, text: &[u8]) -> Result<T, PathError> {
    serde_json::from_slice(text).map_err(|e| PathError::from_reason(Path::new(name), &e.to_string()))
}

/// Durability of a written file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It survives a power failure.
    Flushed,
    /// It is not needed after a power failure.
    Unflushed,
}

/// Writes a file atomically.
pub(crate) fn write_json(
    directory: &OwnedFd,
    name: &str,
    content: &impl Serialize,
    durability: Durability,
) -> Result<(), Errno> {
    let partial = format!("{name}.partial");
    let text = serde_json::to_vec(content).map_err(|_| Errno::INVAL)?;
    let mut file = open_to_write(directory, &partial, OFlags::WRONLY | OFlags::TRUNC)?;
    file.write_all(&text).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let flush = |file: BorrowedFd<'_>| if durability == Durability::Flushed { fsync(file) } else { Ok(()) };
    flush(file.as_fd())?;
    renameat(directory, &partial, directory, name)?;
    flush(directory.as_fd())
}

/// Reads the complete lines of a file; none if it does not exist. Ignores an incomplete last line,
/// because its change was never made.
pub(crate) fn read_lines<T: DeserializeOwned>(
    directory: BorrowedFd<'_>,
    name: &str,
    mut each: impl FnMut(Result<T, PathError>) -> Result<(), PathError>,
) -> Result<(), PathError> {
    let text = read_file(directory, name, MAX_LIST_BYTES)?.unwrap_or_default();
    let mut lines = text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    lines.try_for_each(|line| {
        let damaged = |e| PathError::from_reason(Path::new(name), &format!("it is damaged: {e}"));
        each(serde_json::from_slice(line).map_err(damaged))
    })
}

/// Largest line, and largest file, in bytes.
pub(crate) type LineLimits = (usize, u64);

/// A file of lines, open for appending.
#[derive(Debug)]
pub(crate) struct LineWriter {
    file: File,
    bytes: u64,
    limits: LineLimits,
}

impl LineWriter {
    /// Opens the file. Cuts off an incomplete line of a killed writer.
    pub fn open(directory: BorrowedFd<'_>, name: &str, limits: LineLimits) -> Result<Self, Errno> {
        let file = open_to_write(directory, name, OFlags::RDWR | OFlags::APPEND)?;
        let bytes = whole_lines(&file, limits.0 as u64)?;
        rustix::fs::ftruncate(&file, bytes)?;
        Ok(Self { file, bytes, limits })
    }

    /// Appends a line in one write, so that the file contains all of it or nothing.
    ///
    /// # Errors
    /// `FBIG` if the line or the file becomes too long.
    pub fn append_line(&mut self, line: &impl Serialize) -> Result<(), Errno> {
        let mut text = serde_json::to_vec(line).map_err(|_| Errno::INVAL)?;
        text.push(b'\n');
        if text.len() > self.limits.0 || self.bytes + text.len() as u64 > self.limits.1 {
            return Err(Errno::FBIG);
        }
        if let Err(error) = self.file.write_all(&text) {
            // A partial line would make the next line unreadable.
            let _ = self.file.set_len(self.bytes);
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        self.bytes += text.len() as u64;
        Ok(())
    }

    pub fn sync(&self) -> Result<(), Errno> {
        fsync(&self.file)
    }
}

/// Returns the length of the complete lines, of which the last ends in the last `tail_bytes`.
fn whole_lines(file: &File, tail_bytes: u64) -> Result<u64, Errno> {
    let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    let from = size.saturating_sub(tail_bytes);
    let mut tail = vec![0; usize::try_from(size - from).unwrap_or(0)];
    let length = read_block(file, &mut tail, from)?;
    let end = tail[..length].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Ok(from + end as u64)
}

//! Keeps the content of single files in the store: by a second name (hard link), or by a copy if a
//! process could change the file afterwards. Must not depend on the reason.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, linkat, openat, renameat, seek, statat,
    unlinkat,
};
use stockade_files::object::TreeObject;
use stockade_sys::{Errno, actor};

use super::journal::key_of;

/// Bytes copied at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Returns the name of a slot.
pub(super) fn slot_name(slot: u32) -> String {
    slot.to_string()
}

/// Reason why the content of a file is not kept.
pub(super) enum KeepError {
    Full,
    Errno(Errno),
}

impl From<Errno> for KeepError {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Returns the size of a file on the disk.
pub(super) fn bytes_of(object: &TreeObject) -> u64 {
    u64::try_from(object.stat.st_blocks).unwrap_or(0) * 512
}

/// Links the file `name` in `directory` to a slot. Returns false if that is impossible, or if a
/// process could change the file by another name or descriptor.
pub(super) fn link_to_slot(
    (directory, name): (BorrowedFd<'_>, &OsStr),
    object: &TreeObject,
    (objects, slot): (BorrowedFd<'_>, u32),
) -> bool {
    if object.stat.st_nlink != 1 || may_have_writer(object) {
        return false;
    }
    let slot = slot_name(slot);
    // Remains of a killed run, without a line in the journal.
    let _ = unlinkat(objects, slot.as_str(), AtFlags::empty());
    if linkat(directory, name, objects, slot.as_str(), AtFlags::empty()).is_err() {
        return false;
    }
    let is_same = statat(objects, slot.as_str(), AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == key_of(object));
    if !is_same {
        let _ = unlinkat(objects, slot.as_str(), AtFlags::empty());
    }
    is_same
}

/// Returns whether another process may have the file open for writing. For a file that cannot be
/// opened, this process cannot find a writer; the mode excludes most.
pub(super) fn may_have_writer(object: &TreeObject) -> bool {
    match object.open_file() {
        Err(Errno::ACCESS) => false,
        Err(_) => true,
        Ok(file) => actor::has_writer(file.as_fd()).unwrap_or(true),
    }
}

/// Copies at most `remaining_bytes` of the content of `object` to a slot. Returns the bytes taken.
pub(super) fn copy_to_slot(
    object: &TreeObject,
    objects: BorrowedFd<'_>,
    slot: u32,
    remaining_bytes: u64,
) -> Result<u64, KeepError> {
    let content = object.open_file()?;
    let name = slot_name(slot);
    let partial = format!("{name}.partial");
    let made = new_file(objects, &partial)?;
    let copied = if ioctl_ficlone(&made, &content).is_ok() {
        let bytes = object.size();
        if bytes > remaining_bytes { Err(KeepError::Full) } else { Ok(bytes) }
    } else {
        copy_data(&content, &made, object.size(), remaining_bytes)
    };
    let put = copied.and_then(|bytes| {
        // Atomically replaces a slot that was a second name of the file.
        renameat(objects, partial.as_str(), objects, name.as_str())?;
        Ok(bytes)
    });
    if put.is_err() {
        let _ = unlinkat(objects, partial.as_str(), AtFlags::empty());
    }
    put
}

fn new_file(objects: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match openat(objects, name, flags, mode) {
        Err(Errno::EXIST) => {
            unlinkat(objects, name, AtFlags::empty())?;
            openat(objects, name, flags, mode)
        }
        other => other,
    }
}

/// Copies `size` bytes and keeps holes. Returns the number of bytes that are not holes.
pub(super) fn copy_data(from: &File, to: &OwnedFd, size: u64, remaining_bytes: u64) -> Result<u64, KeepError> {
    let (mut at, mut copied) = (0_u64, 0_u64);
    while at < size {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(from, SeekFrom::Hole(data)).unwrap_or(size).clamp(data + 1, size.max(data + 1));
        if copied + (end - data) > remaining_bytes {
            return Err(KeepError::Full);
        }
        copy_range(from, to, data, end)?;
        copied += end - data;
        at = end;
    }
    ftruncate(to, size)?;
    Ok(copied)
}

fn copy_range(from: &File, to: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let length = usize::try_from(end - read_at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return copy_by_hand(from, to, read_at, end);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &OwnedFd, mut at: u64, end: u64) -> Result<(), Errno> {
    let mut block = vec![0; BLOCK_BYTES];
    while at < end {
        let chunk_bytes = usize::try_from(end - at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        let length = match rustix::io::pread(from, &mut block[..chunk_bytes], at) {
            Ok(0) => return Ok(()),
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let mut written = 0;
        while written < length {
            written += rustix::io::pwrite(to, &block[written..length], at + written as u64)?;
        }
        at += length as u64;
    }
    Ok(())
}

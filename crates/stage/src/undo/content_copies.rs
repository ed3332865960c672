//! Keeps the content of single files in the store: by a second name (hard link), or by a copy if a
//! process could change the file afterwards. Must not depend on the reason.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, OFlags, linkat, renameat, statat, unlinkat};
use stockade_files::content::copy_content;
use stockade_files::object::TreeObject;
use stockade_sys::{Errno, actor};

use super::journal::key_of;
use crate::state_files::open_to_write;

/// Returns the name of a slot.
pub(super) fn slot_name(slot: u32) -> String {
    slot.to_string()
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

/// Copies the content of `object` to a slot. Returns the bytes taken; `None` if these would be more
/// than `remaining_bytes`.
pub(super) fn copy_to_slot(
    object: &TreeObject,
    objects: BorrowedFd<'_>,
    slot: u32,
    remaining_bytes: u64,
) -> Result<Option<u64>, Errno> {
    let content = object.open_file()?;
    let name = slot_name(slot);
    let partial = format!("{name}.partial");
    // Remains of a killed run.
    let _ = unlinkat(objects, partial.as_str(), AtFlags::empty());
    let made = open_to_write(objects, partial.as_str(), OFlags::RDWR | OFlags::EXCL)?;
    let put = copy_content(&content, &made, object.size(), remaining_bytes).and_then(|bytes| {
        // Atomically replaces a slot that was a second name of the file.
        bytes.map(|bytes| renameat(objects, partial.as_str(), objects, name.as_str()).map(|()| bytes)).transpose()
    });
    if !matches!(put, Ok(Some(_))) {
        let _ = unlinkat(objects, partial.as_str(), AtFlags::empty());
    }
    put
}

//! Removes whole trees in private directories.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, renameat, unlinkat};
use stockade_sys::Errno;

use crate::error::{PathContext, PathError};
use crate::object::{TreeObject, list_entries, list_entry_names, to_os_str};

/// Prefix of names that are being removed.
pub const REMOVAL_PREFIX: &str = ".leaving-";

/// Removes `name` in a private directory, whatever its kind is. Moves inner directories up first,
/// so any depth can be removed.
///
/// # Errors
/// [`PathError`] of the first object that could not be removed.
pub fn remove_tree(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), PathError> {
    let mut waiting = vec![name.to_vec()];
    while let Some(name) = waiting.pop() {
        let path = Path::new(to_os_str(&name));
        let Some(object) = TreeObject::open_entry(directory, to_os_str(&name)).at_path(path)? else { continue };
        if !object.is_directory() {
            unlinkat(directory, to_os_str(&name), AtFlags::empty()).at_path(path)?;
            continue;
        }
        open_up(&object).at_path(path)?;
        for (inner, kind) in list_entries(object.fd.as_fd()).at_path(path)? {
            let path = path.join(to_os_str(&inner));
            if !matches!(kind, FileType::Directory | FileType::Unknown) {
                unlinkat(&object.fd, to_os_str(&inner), AtFlags::empty()).at_path(&path)?;
                continue;
            }
            let Some(found) = TreeObject::open_entry(object.fd.as_fd(), to_os_str(&inner)).at_path(&path)? else {
                continue;
            };
            if found.is_directory() {
                open_up(&found).at_path(&path)?;
                let removal_name = format!("{REMOVAL_PREFIX}{}", found.inode());
                renameat(&object.fd, to_os_str(&inner), directory, &removal_name).at_path(&path)?;
                waiting.push(removal_name.into_bytes());
            } else {
                unlinkat(&object.fd, to_os_str(&inner), AtFlags::empty()).at_path(&path)?;
            }
        }
        unlinkat(directory, to_os_str(&name), AtFlags::REMOVEDIR).at_path(path)?;
    }
    Ok(())
}

/// Removes the content of a private directory, whatever its modes are.
///
/// # Errors
/// [`PathError`] of the first object that could not be removed.
pub fn empty_tree(directory: BorrowedFd<'_>) -> Result<(), PathError> {
    let here = Path::new(".");
    TreeObject::duplicate(directory).and_then(|held| open_up(&held)).at_path(here)?;
    list_entry_names(directory).at_path(here)?.iter().try_for_each(|name| remove_tree(directory, name))
}

/// Removes the remains of an interrupted removal in `directory`.
///
/// # Errors
/// [`PathError`] of the first object that could not be removed.
pub fn sweep_removals(directory: BorrowedFd<'_>) -> Result<(), PathError> {
    for name in list_entry_names(directory).at_path(Path::new(REMOVAL_PREFIX))? {
        if name.starts_with(REMOVAL_PREFIX.as_bytes()) {
            remove_tree(directory, &name)?;
        }
    }
    Ok(())
}

/// Gives the owner full access to a directory.
fn open_up(directory: &TreeObject) -> Result<(), Errno> {
    if directory.mode() & 0o700 == 0o700 { Ok(()) } else { directory.set_mode(0o700) }
}

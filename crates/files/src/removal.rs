//! Removes whole trees in private directories.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, renameat, unlinkat};
use stockade_sys::Errno;

use crate::error::{At, PathError};
use crate::object::{Object, entries, names, os};

/// Prefix of names that are being removed.
pub const LEAVING: &str = ".leaving-";

/// Removes `name` in a private directory, whatever its kind is. Moves inner directories up first,
/// so any depth can be removed.
///
/// # Errors
/// [`PathError`] of the first object that could not be removed.
pub fn remove_tree(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), PathError> {
    let mut waiting = vec![name.to_vec()];
    while let Some(name) = waiting.pop() {
        let path = Path::new(os(&name));
        let Some(object) = Object::find(directory, os(&name)).at(path)? else { continue };
        if !object.is_directory() {
            unlinkat(directory, os(&name), AtFlags::empty()).at(path)?;
            continue;
        }
        open_up(&object).at(path)?;
        for (inner, kind) in entries(object.fd.as_fd()).at(path)? {
            let path = path.join(os(&inner));
            if !matches!(kind, FileType::Directory | FileType::Unknown) {
                unlinkat(&object.fd, os(&inner), AtFlags::empty()).at(&path)?;
                continue;
            }
            let Some(found) = Object::find(object.fd.as_fd(), os(&inner)).at(&path)? else { continue };
            if found.is_directory() {
                open_up(&found).at(&path)?;
                let aside = format!("{LEAVING}{}", found.inode());
                renameat(&object.fd, os(&inner), directory, &aside).at(&path)?;
                waiting.push(aside.into_bytes());
            } else {
                unlinkat(&object.fd, os(&inner), AtFlags::empty()).at(&path)?;
            }
        }
        unlinkat(directory, os(&name), AtFlags::REMOVEDIR).at(path)?;
    }
    Ok(())
}

/// Removes the content of a private directory, whatever its modes are.
///
/// # Errors
/// [`PathError`] of the first object that could not be removed.
pub fn empty_tree(directory: BorrowedFd<'_>) -> Result<(), PathError> {
    let here = Path::new(".");
    let held = rustix::io::fcntl_dupfd_cloexec(directory, 3).and_then(Object::of).at(here)?;
    open_up(&held).at(here)?;
    names(directory).at(here)?.iter().try_for_each(|name| remove_tree(directory, name))
}

/// Removes the remains of an interrupted removal in `directory`.
///
/// # Errors
/// [`PathError`] of the first object that could not be removed.
pub fn sweep(directory: BorrowedFd<'_>) -> Result<(), PathError> {
    for name in names(directory).at(Path::new(LEAVING))? {
        if name.starts_with(LEAVING.as_bytes()) {
            remove_tree(directory, &name)?;
        }
    }
    Ok(())
}

/// Gives the owner full access to a directory.
fn open_up(directory: &Object) -> Result<(), Errno> {
    if directory.mode() & 0o700 == 0o700 { Ok(()) } else { directory.set_mode(0o700) }
}

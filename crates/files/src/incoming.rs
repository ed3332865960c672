//! Directories in the tree in which new objects are prepared, so that a rename alone puts them in
//! place.
//!
//! A process that works in such a directory holds its lock (flock(2)). An unlocked directory is
//! left by a killed process and is removed by the next one.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, mkdirat, openat};
use stockade_sys::Errno;

use crate::error::PathContext;
use crate::object::{list_entry_names, to_os_str, unguessable_name};
use crate::removal::{remove_tree, sweep_removals};
use crate::{PathError, TreePath};

/// Prefix of the names of these directories.
pub const INCOMING_PREFIX: &str = ".stockade-incoming-";

/// Returns whether a name is that of such a directory, which is no file of the tree.
pub(crate) fn is_passing(directory: &TreePath, name: &[u8]) -> bool {
    directory.is_root() && name.starts_with(INCOMING_PREFIX.as_bytes())
}

/// Such a directory. Removed on drop.
#[derive(Debug)]
pub(crate) struct IncomingDirectory<'t> {
    tree: BorrowedFd<'t>,
    name: OsString,
    directory: OwnedFd,
}

impl<'t> IncomingDirectory<'t> {
    /// Makes a directory at the root of the tree, and removes abandoned ones.
    pub fn create_in(tree: BorrowedFd<'t>) -> Result<Self, PathError> {
        let root = TreePath::root();
        sweep_abandoned(tree)?;
        let name: OsString = format!("{INCOMING_PREFIX}{}", unguessable_name().at_path(root.as_path())?).into();
        mkdirat(tree, &name, Mode::RWXU).at_path(name.as_ref())?;
        let made = lock_directory(tree, &name).at_path(name.as_ref());
        match made {
            Ok(directory) => Ok(Self { tree, name, directory }),
            Err(error) => {
                let _ = remove_tree(tree, name.as_encoded_bytes());
                Err(error)
            }
        }
    }

    /// Returns the directory for new objects.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for IncomingDirectory<'_> {
    fn drop(&mut self) {
        // The next process removes any remains.
        let _ = remove_tree(self.tree, self.name.as_encoded_bytes());
        let _ = sweep_removals(self.tree);
    }
}

fn lock_directory(tree: BorrowedFd<'_>, name: &OsString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(tree, name, flags, Mode::empty())?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

fn sweep_abandoned(tree: BorrowedFd<'_>) -> Result<(), PathError> {
    for name in list_entry_names(tree).at_path(TreePath::root().as_path())? {
        if !name.starts_with(INCOMING_PREFIX.as_bytes()) {
            continue;
        }
        // From here on this process has the lock, so its maker has ended.
        if lock_directory(tree, &to_os_str(&name).to_owned()).is_ok() {
            remove_tree(tree, &name)?;
        }
    }
    sweep_removals(tree)
}

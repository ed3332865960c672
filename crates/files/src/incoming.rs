//! Where what is coming is made ready: a directory of its own in the tree, so that
//! it is put into its place by a rename alone.
//!
//! Whoever works in it holds its lock (flock(2)); one that nobody holds is what a
//! killed writer left, and goes with the next.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, mkdirat, openat};
use stockade_sys::Errno;

use crate::error::At;
use crate::object::{names, os, unguessable_name};
use crate::removal::{remove_tree, sweep};
use crate::{PathError, TreePath};

/// How the name of a directory begins in which something is made ready.
pub const INCOMING_PREFIX: &str = ".stockade-incoming-";

/// Whether a name in a directory is such a one: nobody's file.
pub(crate) fn is_passing(directory: &TreePath, name: &[u8]) -> bool {
    directory.is_root() && name.starts_with(INCOMING_PREFIX.as_bytes())
}

/// Such a directory, until it is dropped.
#[derive(Debug)]
pub(crate) struct Incoming<'t> {
    tree: BorrowedFd<'t>,
    name: OsString,
    directory: OwnedFd,
}

impl<'t> Incoming<'t> {
    /// Makes one at the root of the tree, and removes what nobody works in.
    pub fn begin(tree: BorrowedFd<'t>) -> Result<Self, PathError> {
        let root = TreePath::root();
        sweep_abandoned(tree)?;
        let name: OsString = format!("{INCOMING_PREFIX}{}", unguessable_name().at(root.as_path())?).into();
        mkdirat(tree, &name, Mode::RWXU).at(name.as_ref())?;
        let made = hold(tree, &name).at(name.as_ref());
        match made {
            Ok(directory) => Ok(Self { tree, name, directory }),
            Err(error) => {
                let _ = remove_tree(tree, name.as_encoded_bytes());
                Err(error)
            }
        }
    }

    /// To make things in.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        // What is left of it is what nobody works in, and goes with the next.
        let _ = remove_tree(self.tree, self.name.as_encoded_bytes());
        let _ = sweep(self.tree);
    }
}

fn hold(tree: BorrowedFd<'_>, name: &OsString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(tree, name, flags, Mode::empty())?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

fn sweep_abandoned(tree: BorrowedFd<'_>) -> Result<(), PathError> {
    for name in names(tree).at(TreePath::root().as_path())? {
        if !name.starts_with(INCOMING_PREFIX.as_bytes()) {
            continue;
        }
        // Held by this process from here on: whoever made it is no more.
        if hold(tree, &os(&name).to_owned()).is_ok() {
            remove_tree(tree, &name)?;
        }
    }
    sweep(tree)
}

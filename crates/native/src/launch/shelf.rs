//! Layers that a process holds for many runs: namespaces in which it may mount them, and
//! where they are attached there.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, mkdirat};
use stockade_sys::Errno;
use stockade_sys::clone::{flags, unshare};
use stockade_sys::mount::{Forbids, attach_at, new_filesystem};

use super::blueprint::claim_identity;
use super::error::LaunchError;
use super::merge::overlay_of;
use super::step::Site;

/// The namespaces of a process that holds layers: it may mount there, with its user as
/// the only one. What the host unmounts is unmounted there too. The process must have one
/// thread.
pub(crate) fn enter_own_mounts() -> Result<(), LaunchError> {
    let identity = claim_identity()?;
    unshare(flags::NEW_USER | flags::NEW_MOUNT).map_err(|errno| LaunchError::Clone { errno, namespaces: true })?;
    identity.apply(&mut Site::new(rustix::stdio::stdin(), None)).map_err(LaunchError::call("map the own user"))
}

/// A filesystem of this process's own, to hold mounts in: out of the way of every path of
/// the host's that may be held. Another one lies on it, so that no path leads there, and who
/// may look into this process from outside finds nothing.
pub(crate) fn mount_shelf() -> Result<OwnedFd, Errno> {
    let forbids = Forbids { devices: true, setuid: true, ..Forbids::default() };
    let new = || new_filesystem(c"tmpfs", &[(c"mode", c"0700")], forbids);
    let shelf = new()?;
    attach_at(shelf.as_fd(), CWD, c"/sys")?;
    attach_at(new()?.as_fd(), CWD, c"/sys")?;
    Ok(shelf)
}

/// A directory of the host beneath what is written in it, at `name` on a shelf. Only of
/// what is attached can copies be had.
pub(crate) fn shelve(
    shelf: BorrowedFd<'_>,
    name: &CStr,
    lower: BorrowedFd<'_>,
    (upper, work): (BorrowedFd<'_>, BorrowedFd<'_>),
) -> Result<OwnedFd, Errno> {
    let tree = overlay_of(lower, (upper, work), c"on")?;
    match mkdirat(shelf, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    attach_at(tree.as_fd(), shelf, name)?;
    Ok(tree)
}

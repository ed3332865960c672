//! Layers that a process holds for many runs: the namespaces in which it mounts them, and their
//! mount points there.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, mkdirat};
use stockade_sys::Errno;
use stockade_sys::clone::{flags, unshare_namespaces};
use stockade_sys::mount::{MountRestrictions, attach_at, new_filesystem};

use super::blueprint::claim_identity;
use super::error::LaunchError;
use super::merge::overlay_of;
use super::step::BuildContext;

/// Moves this process into namespaces in which it may mount, with its user as the only one.
/// Unmounts on the host propagate into them. The process must have one thread.
pub fn enter_own_mounts() -> Result<(), LaunchError> {
    let identity = claim_identity()?;
    unshare_namespaces(flags::NEW_USER | flags::NEW_MOUNT)
        .map_err(|errno| LaunchError::Clone { errno, namespaces: true })?;
    identity
        .apply(&mut BuildContext::new(rustix::stdio::stdin(), None))
        .map_err(LaunchError::call_error("map the own user"))
}

/// Mounts a filesystem of this process that holds further mounts, away from every path of the host
/// that may be in use. Another filesystem covers it, so that no path leads to it. A process that
/// inspects this one from outside finds nothing.
pub fn mount_overlay_root() -> Result<OwnedFd, Errno> {
    let forbids = MountRestrictions { devices: true, setuid: true, ..MountRestrictions::default() };
    let new = || new_filesystem(c"tmpfs", &[(c"mode", c"0700")], forbids);
    let overlay_root = new()?;
    attach_at(overlay_root.as_fd(), CWD, c"/sys")?;
    attach_at(new()?.as_fd(), CWD, c"/sys")?;
    Ok(overlay_root)
}

/// Mounts an overlay at `name` on a shelf, with a directory of the host as its lower directory.
/// Only mounts that are attached can be copied.
pub fn mount_overlay(
    overlay_root: BorrowedFd<'_>,
    name: &CStr,
    lower: BorrowedFd<'_>,
    (upper, work): (BorrowedFd<'_>, BorrowedFd<'_>),
) -> Result<OwnedFd, Errno> {
    let tree = overlay_of(lower, (upper, work), c"on")?;
    match mkdirat(overlay_root, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    attach_at(tree.as_fd(), overlay_root, name)?;
    Ok(tree)
}

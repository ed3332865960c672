//! The mount calls that work on descriptors (kernel 5.2, `mount_setattr` 5.12).
//!
//! Every mount is attached before others are attached in it: moving onto a detached tree needs
//! kernel 6.15.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, move_mount,
    open_tree, unmount,
};

use crate::Errno;
use crate::call::raw_syscall;

/// Restrictions of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountRestrictions {
    /// Writing.
    pub write: bool,
    /// Device nodes.
    pub devices: bool,
    /// Set-user-id bits and file capabilities.
    pub setuid: bool,
    /// Executing.
    pub exec: bool,
}

impl MountRestrictions {
    /// Returns the `MOUNT_ATTR_*` bits (linux/mount.h).
    const fn attribute_bits(self) -> u64 {
        (self.write as u64) | (self.setuid as u64) << 1 | (self.devices as u64) << 2 | (self.exec as u64) << 3
    }
}

/// `struct mount_attr` (linux/mount.h).
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Makes a new filesystem instance, detached.
///
/// # Errors
/// EPERM if this user namespace may not mount `kind` (for proc: if the visible proc is partly
/// covered), ENODEV if the kernel lacks it.
pub fn new_filesystem(kind: &CStr, options: &[(&CStr, &CStr)], forbids: MountRestrictions) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(context.as_fd(), *key)?;
        } else {
            fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
    }
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::from_bits_retain(forbids.attribute_bits() as u32);
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Makes a detached copy of the mount tree at `path` beneath `directory`, with all mounts in it.
/// Does not follow a symbolic link at the end of `path`.
///
/// # Errors
/// The errors of open_tree(2).
pub fn copy_tree(directory: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(directory, path, flags)
}

/// Attaches the detached mount `what` onto the open object `target`.
///
/// # Errors
/// The errors of move_mount(2).
pub fn attach_mount(what: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(what, c"", target, c"", flags)
}

/// Attaches the detached mount `what` at `path` beneath `directory`. For paths of one component
/// that this process made itself.
///
/// # Errors
/// The errors of move_mount(2).
pub fn attach_at(what: BorrowedFd<'_>, directory: BorrowedFd<'_>, path: &CStr) -> Result<(), Errno> {
    move_mount(what, c"", directory, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Adds restrictions to the mount `what`, and to all mounts beneath it if `recursive`.
///
/// # Errors
/// ENOSYS below kernel 5.12, EPERM if a flag is locked.
pub fn restrict_mount(what: BorrowedFd<'_>, forbids: MountRestrictions, recursive: bool) -> Result<(), Errno> {
    let attributes = MountAttr { set: forbids.attribute_bits(), clear: 0, propagation: 0, userns_fd: 0 };
    set_attributes(what, c"", attributes, recursive)
}

/// Disables mount propagation to and from other namespaces for the whole tree at `/`.
///
/// # Errors
/// ENOSYS below kernel 5.12, EPERM without CAP_SYS_ADMIN in this namespace.
pub fn make_private() -> Result<(), Errno> {
    let attributes = MountAttr { set: 0, clear: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    set_attributes(CWD, c"/", attributes, true)
}

fn set_attributes(directory: BorrowedFd<'_>, path: &CStr, attributes: MountAttr, recursive: bool) -> Result<(), Errno> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    let (directory, attributes) = (directory.as_raw_fd() as usize, &raw const attributes as usize);
    let args = [directory, path.as_ptr() as usize, flags as usize, attributes, size_of::<MountAttr>(), 0];
    // SAFETY: `path` is a C string and `attributes` a mount_attr of the size given; both outlive
    // the call.
    unsafe { raw_syscall(libc::SYS_mount_setattr, args) }.map(drop)
}

/// Drops unused names from the lookup cache of the filesystem of `mount`, so that an overlay looks
/// at its lower directories again. Other settings stay unchanged. (A reconfiguration begins with
/// that, fs/super.c.)
///
/// # Errors
/// EPERM if this process may not administer the filesystem.
pub fn forget_names(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let context = fspick(mount, c"", flags)?;
    fsconfig_reconfigure(context.as_fd())
}

/// Detaches the mount at `name` in `directory`; the kernel removes it after its last use.
///
/// # Errors
/// The errors of umount2(2).
pub fn detach_at(directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let path = [format!("/proc/self/fd/{}/", directory.as_raw_fd()).as_bytes(), name.to_bytes()].concat();
    unmount(path.as_slice(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}

/// Makes the current directory the root, and unmounts the old root with all mounts in it.
///
/// # Errors
/// EINVAL if the current root is the initial ramfs.
pub fn swap_root() -> Result<(), Errno> {
    rustix::process::pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)
}

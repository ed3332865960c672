//! Landlock system calls (landlock(7), linux/landlock.h).
//!
//! The caller decides which rights a run needs. This file defines the bits and the ABI versions
//! that have them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::Errno;
use crate::call::{own_descriptor, raw_syscall};
use crate::fd_passing::above_stdio;

/// Rights on files and directories, `LANDLOCK_ACCESS_FS_*`.
pub mod access {
    /// Open a file for writing.
    pub const WRITE_FILE: u64 = 1 << 1;
    /// Open a file for reading.
    pub const READ_FILE: u64 = 1 << 2;
    /// Remove or make any object in a directory: the rights from `REMOVE_DIR` (bit 4) to `MAKE_SYM` (bit
    /// 12).
    pub const CHANGE_ENTRIES: u64 = (1 << 13) - (1 << 4);
    /// Make a unix socket.
    pub const MAKE_SOCK: u64 = 1 << 9;
    /// Link or rename between directories (ABI 2).
    pub const REFER: u64 = 1 << 13;
    /// Truncate (ABI 3).
    pub const TRUNCATE: u64 = 1 << 14;
    /// ioctl on devices (ABI 5).
    pub const IOCTL_DEV: u64 = 1 << 15;

    /// Returns every right of ABI `abi` that allows a change.
    pub const fn change_rights(abi: u32) -> u64 {
        WRITE_FILE
            | CHANGE_ENTRIES
            | if abi >= 2 { REFER } else { 0 }
            | if abi >= 3 { TRUNCATE } else { 0 }
            | if abi >= 5 { IOCTL_DEV } else { 0 }
    }
}

/// Rights on ports, `LANDLOCK_ACCESS_NET_*` (ABI 4).
pub mod network {
    /// Bind a TCP socket.
    pub const BIND_TCP: u64 = 1;
    /// Connect a TCP socket.
    pub const CONNECT_TCP: u64 = 2;
}

/// Objects outside its domain that a process cannot reach, `LANDLOCK_SCOPE_*` (ABI 6).
pub mod scope {
    /// Abstract unix sockets made outside.
    pub const ABSTRACT_UNIX_SOCKET: u64 = 1;
    /// Signals to processes outside.
    pub const SIGNAL: u64 = 2;
}

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION_QUERY_FLAG: usize = 1;
/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: usize = 1;

/// `struct landlock_ruleset_attr`; the size argument selects its valid part.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`, packed as in the kernel.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// Returns the ABI version of this kernel.
///
/// # Errors
/// ENOSYS if Landlock is not built in, EOPNOTSUPP if it is disabled.
pub fn query_abi_version() -> Result<u32, Errno> {
    // SAFETY: a null attribute of size 0 asks for the version.
    let version = unsafe { raw_syscall(libc::SYS_landlock_create_ruleset, [0, 0, VERSION_QUERY_FLAG, 0, 0, 0]) }?;
    Ok(version as u32)
}

/// A set of rules under construction.
#[derive(Debug)]
pub struct Ruleset {
    fd: OwnedFd,
    handled: u64,
}

impl Ruleset {
    /// Makes a ruleset that refuses every right in `handled` until rules allow it, and every right
    /// in `ports` permanently. Also restricts the scopes in `scoped`. `abi` selects the size of the
    /// structure; bits that it does not know are an error of the caller.
    ///
    /// # Errors
    /// EINVAL for bits that this kernel does not know.
    pub fn new(abi: u32, handled: u64, ports: u64, scoped: u64) -> Result<Self, Errno> {
        let attributes = RulesetAttr { handled_access_fs: handled, handled_access_net: ports, scoped };
        let size = match abi {
            ..=3 => 8,
            4 | 5 => 16,
            _ => size_of::<RulesetAttr>(),
        };
        // SAFETY: `attributes` is valid for `size` bytes.
        let fd = unsafe {
            raw_syscall(libc::SYS_landlock_create_ruleset, [&raw const attributes as usize, size, 0, 0, 0, 0])
        }?;
        // SAFETY: a new descriptor that has no other owner.
        let fd = unsafe { own_descriptor(fd) };
        Ok(Self { fd: above_stdio(fd)?, handled })
    }

    /// Returns the same rules, for a descriptor that another process received as a copy.
    pub fn with_descriptor(&self, fd: OwnedFd) -> Self {
        Self { fd, handled: self.handled }
    }

    /// Allows `rights` (those that are handled) on the open object `object` and everything beneath
    /// it.
    ///
    /// # Errors
    /// EINVAL if a right does not apply to a file, EBADFD if the object cannot carry rules.
    pub fn allow_beneath(&self, object: BorrowedFd<'_>, rights: u64) -> Result<(), Errno> {
        let rights = rights & self.handled;
        if rights == 0 {
            return Ok(());
        }
        let rule = PathBeneathAttr { allowed_access: rights, parent_fd: object.as_raw_fd() };
        // SAFETY: `rule` is valid for the call; both descriptors are open.
        unsafe {
            raw_syscall(
                libc::SYS_landlock_add_rule,
                [self.fd.as_raw_fd() as usize, PATH_BENEATH, &raw const rule as usize, 0, 0, 0],
            )
        }
        .map(drop)
    }

    /// Applies the rules to this thread and to all processes and threads that it starts from now
    /// on. `no_new_privs` must be set.
    ///
    /// # Errors
    /// EPERM without `no_new_privs`, E2BIG at 16 nested domains.
    pub fn restrict_self(&self) -> Result<(), Errno> {
        // SAFETY: plain integers.
        unsafe { raw_syscall(libc::SYS_landlock_restrict_self, [self.fd.as_raw_fd() as usize, 0, 0, 0, 0, 0]) }
            .map(drop)
    }
}

impl AsFd for Ruleset {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

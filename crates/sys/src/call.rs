//! Raw system calls for the rest of the crate.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::Errno;

/// Makes system call `number`; unused arguments are zero.
///
/// # Safety
/// The arguments must be correct for this call: pointers valid for the whole call, lengths that
/// match them.
pub(crate) unsafe fn raw_syscall(number: libc::c_long, args: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller vouches for the arguments; `syscall` itself only moves them into
    // registers.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { Err(last_errno()) } else { Ok(result as usize) }
}

/// Returns the errno of the call that just failed.
pub(crate) fn last_errno() -> Errno {
    // SAFETY: returns the address of a thread-local integer, always valid.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Takes ownership of a descriptor that a system call just made.
///
/// # Safety
/// `fd` must be a descriptor that has no other owner.
pub(crate) unsafe fn own_descriptor(fd: usize) -> OwnedFd {
    // SAFETY: the caller vouches for it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

//! Closing inherited descriptors, and setting the standard streams.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::Errno;
use crate::call::raw_syscall;

/// `CLOSE_RANGE_CLOEXEC` (kernel 5.11).
const CLOEXEC_ONLY: usize = 4;

/// Closes every descriptor of this process that is not in `exceptions`, which must be sorted. The
/// caller's own `OwnedFd`s among them become dangling: for a new child that never returns into code
/// that holds them.
///
/// # Errors
/// ENOSYS below kernel 5.9.
pub fn close_all_but(exceptions: &[RawFd]) -> Result<(), Errno> {
    let mut first = 0;
    for &fd in exceptions {
        let fd = fd as u32;
        if fd > first {
            close_range(first, fd - 1, 0)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first, u32::MAX, 0)
}

/// Marks every descriptor from `first` on close-on-exec.
///
/// # Errors
/// EINVAL below kernel 5.11.
pub fn mark_close_on_exec_from(first: u32) -> Result<(), Errno> {
    close_range(first, u32::MAX, CLOEXEC_ONLY)
}

fn close_range(first: u32, last: u32, flags: usize) -> Result<(), Errno> {
    // SAFETY: plain integers. That descriptors of this process are closed under their owners is
    // documented at `close_all_but`.
    unsafe { raw_syscall(libc::SYS_close_range, [first as usize, last as usize, flags, 0, 0, 0]) }.map(drop)
}

/// Makes `streams` this process's descriptors 0, 1 and 2, inherited by exec. Accepts any
/// descriptors, these three included, in any order.
///
/// # Errors
/// EMFILE.
pub fn place_stdio(streams: [BorrowedFd<'_>; 3]) -> Result<(), Errno> {
    // Copies above 2 first: a source may be the target of another.
    let [stdin, stdout, stderr] = streams.map(|stream| fcntl_dupfd_cloexec(stream, 3));
    let (stdin, stdout, stderr) = (stdin?, stdout?, stderr?);
    dup2_stdin(&stdin)?;
    dup2_stdout(&stdout)?;
    dup2_stderr(&stderr)
}

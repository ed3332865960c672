//! Holding a process or thread, and copying descriptors out of it.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::Errno;
use crate::call::{owned, raw};

/// `PIDFD_THREAD` (kernel 6.9).
const THREAD: usize = libc::O_EXCL as usize;

/// A descriptor for thread `tid`. Below kernel 6.9 only the first thread of a
/// process can be held.
///
/// # Errors
/// ESRCH where it is gone, EINVAL or ENOENT for another thread below 6.9.
pub fn open_thread(tid: u32) -> Result<OwnedFd, Errno> {
    match open(tid, THREAD) {
        Err(Errno::INVAL) => open(tid, 0),
        other => other,
    }
}

/// A copy of descriptor `number` of the process held by `pidfd`, close-on-exec
/// (kernel 5.6).
///
/// # Errors
/// EBADF where it has no such descriptor, EPERM where it may not be traced.
pub fn copy_descriptor(pidfd: BorrowedFd<'_>, number: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: plain integers; the result is a new descriptor.
    unsafe { raw(libc::SYS_pidfd_getfd, [pidfd.as_raw_fd() as usize, number as usize, 0, 0, 0, 0]).map(|fd| owned(fd)) }
}

fn open(tid: u32, flags: usize) -> Result<OwnedFd, Errno> {
    // SAFETY: plain integers; the result is a new descriptor.
    unsafe { raw(libc::SYS_pidfd_open, [tid as usize, flags, 0, 0, 0, 0]).map(|fd| owned(fd)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_copy_is_the_same_open_file() {
        let own = open_thread(std::process::id()).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let copy = copy_descriptor(own.as_fd(), write.as_raw_fd()).unwrap();
        drop(write);
        rustix::io::write(&copy, b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 4]).unwrap(), 1);
        assert_eq!(copy_descriptor(own.as_fd(), 1_000_000).unwrap_err(), Errno::BADF);
    }
}

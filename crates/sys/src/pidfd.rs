//! Holding a process or thread, and copying descriptors out of it.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::Errno;
use crate::call::{owned, raw};

/// `PIDFD_THREAD` (kernel 6.9).
const THREAD: usize = libc::O_EXCL as usize;

/// `KCMP_FILES`: do two threads share their table of descriptors?
const FILES: usize = 2;

/// A descriptor through which the descriptors of thread `tid` can be copied.
/// Below kernel 6.9 only the first thread of a process can be held: it serves
/// for every thread that shares its table. `process` tells the number of that
/// first thread, where it is needed.
///
/// # Errors
/// ESRCH where it is gone; below 6.9 EINVAL for a thread with a table of its own
/// and where the kernel cannot compare (`CONFIG_KCMP`).
pub fn open_for_descriptors(tid: u32, process: impl FnOnce() -> Result<u32, Errno>) -> Result<OwnedFd, Errno> {
    match open(tid, THREAD) {
        Err(Errno::INVAL) => {}
        other => return other,
    }
    let first = process()?;
    if first == tid || have_one_table(tid, first)? { open(first, 0) } else { Err(Errno::INVAL) }
}

/// Whether `tid` is the first thread of its process, whose number is the
/// process's: only such a one can be held without `PIDFD_THREAD`. A tenth of the
/// cost of reading it in `/proc`.
pub fn is_first_thread(tid: u32) -> bool {
    open(tid, 0).is_ok()
}

fn have_one_table(one: u32, other: u32) -> Result<bool, Errno> {
    // SAFETY: plain integers; nothing is written.
    let compared = unsafe { raw(libc::SYS_kcmp, [one as usize, other as usize, FILES, 0, 0, 0]) };
    match compared {
        Ok(order) => Ok(order == 0),
        Err(Errno::NOSYS | Errno::OPNOTSUPP) => Err(Errno::INVAL),
        Err(errno) => Err(errno),
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
        let own = open_for_descriptors(std::process::id(), || unreachable!()).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let copy = copy_descriptor(own.as_fd(), write.as_raw_fd()).unwrap();
        drop(write);
        rustix::io::write(&copy, b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 4]).unwrap(), 1);
        assert_eq!(copy_descriptor(own.as_fd(), 1_000_000).unwrap_err(), Errno::BADF);
    }

    #[test]
    fn a_process_is_called_like_its_first_thread() {
        assert!(is_first_thread(std::process::id()));
        let other = std::thread::spawn(|| is_first_thread(rustix::thread::gettid().as_raw_nonzero().get() as u32));
        assert!(!other.join().unwrap());
    }

    #[test]
    fn threads_share_their_table_and_processes_do_not() {
        let first = std::process::id();
        std::thread::spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            assert!(have_one_table(own, first).unwrap());
        })
        .join()
        .unwrap();
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get() as u32;
        assert!(!have_one_table(first, parent).unwrap_or(false));
    }
}

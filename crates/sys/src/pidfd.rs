//! Descriptors of processes and threads, and copies of their descriptors.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::Errno;
use crate::call::raw_syscall;

/// `PIDFD_THREAD` (kernel 6.9).
const THREAD_FLAG: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);

/// `KCMP_FILES`: compares the descriptor tables of two threads.
const COMPARE_FILES: usize = 2;

/// Opens a descriptor (pidfd) for copying descriptors of thread `tid`. Below kernel 6.9 only the
/// first thread of a process can be opened; it serves every thread that shares its table. `process`
/// returns the id of that first thread, if it is needed.
///
/// # Errors
/// ESRCH if the thread is gone. Below 6.9 EINVAL for a thread with a table of its own, and if the
/// kernel cannot compare tables (`CONFIG_KCMP`).
pub fn open_for_descriptors(tid: u32, process: impl FnOnce() -> Result<u32, Errno>) -> Result<OwnedFd, Errno> {
    match open_pidfd(tid, THREAD_FLAG) {
        Err(Errno::INVAL) => {}
        other => return other,
    }
    let first = process()?;
    if first == tid || have_one_table(tid, first)? { open_pidfd(first, PidfdFlags::empty()) } else { Err(Errno::INVAL) }
}

/// Returns whether `tid` is the first thread of its process, whose id is the process id. Only such
/// a thread can be opened without `PIDFD_THREAD`. Costs a tenth of reading the id in `/proc`.
pub fn is_first_thread(tid: u32) -> bool {
    open_pidfd(tid, PidfdFlags::empty()).is_ok()
}

fn have_one_table(one: u32, other: u32) -> Result<bool, Errno> {
    // SAFETY: plain integers; nothing is written.
    let compared = unsafe { raw_syscall(libc::SYS_kcmp, [one as usize, other as usize, COMPARE_FILES, 0, 0, 0]) };
    match compared {
        Ok(order) => Ok(order == 0),
        Err(Errno::NOSYS | Errno::OPNOTSUPP) => Err(Errno::INVAL),
        Err(errno) => Err(errno),
    }
}

/// Copies descriptor `number` of the process behind `pidfd`, close-on-exec (kernel 5.6).
///
/// # Errors
/// EBADF if the process has no such descriptor, EPERM if it may not be traced.
pub fn copy_descriptor(pidfd: BorrowedFd<'_>, number: i32) -> Result<OwnedFd, Errno> {
    pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())
}

fn open_pidfd(tid: u32, flags: PidfdFlags) -> Result<OwnedFd, Errno> {
    let tid = i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
    pidfd_open(tid, flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

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

//! Signal masks and dispositions around a fork, and a descriptor for SIGCHLD.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::Errno;
use crate::call::{last_errno, own_descriptor};

/// Blocks every signal for this thread until dropped, so that a handler of the parent never runs in
/// the child before the child resets it.
pub struct SignalBlockGuard {
    before: libc::sigset_t,
}

impl SignalBlockGuard {
    /// Blocks all signals of this thread.
    ///
    /// # Errors
    /// Never in practice (sigprocmask(2) with valid arguments).
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: sigset_t is plain data; both sets are filled by the calls.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        // SAFETY: valid pointers to sets of our own.
        let failed = unsafe {
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before)
        };
        if failed != 0 { Err(Errno::from_raw_os_error(failed)) } else { Ok(Self { before }) }
    }
}

impl Drop for SignalBlockGuard {
    fn drop(&mut self) {
        // SAFETY: `before` was filled by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Unblocks every signal and restores the default of SIGPIPE, which Rust's runtime ignores. For a
/// child, before its exec.
pub fn reset_for_exec() {
    // SAFETY: an empty set of our own, and a default disposition.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Makes a descriptor that becomes readable when the state of a child changes, or when the terminal
/// of this process's session hangs up (signalfd(2)). SIGCHLD and SIGHUP must be blocked.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM.
pub fn child_end_descriptor() -> Result<OwnedFd, Errno> {
    // SAFETY: a set of our own that holds one signal; SIGCHLD must not be ignored, or the kernel
    // would reap by itself.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigaddset(&raw mut set, libc::SIGHUP);
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: a new descriptor that has no other owner.
    Ok(unsafe { own_descriptor(fd as usize) })
}

/// Empties a descriptor made by [`child_end_descriptor`]. Returns whether the terminal has hung up.
pub fn drain_descriptor(descriptor: BorrowedFd<'_>) -> bool {
    // SAFETY: plain data; all zeroes is a valid value.
    let mut signal_infos: [libc::signalfd_siginfo; 4] = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer is ours and as long as said; the descriptor does not block, and each of
    // two signals is there once at most, so one read suffices.
    unsafe { libc::read(descriptor.as_raw_fd(), signal_infos.as_mut_ptr().cast(), size_of_val(&signal_infos)) };
    signal_infos.iter().any(|one| one.ssi_signo == libc::SIGHUP as u32)
}

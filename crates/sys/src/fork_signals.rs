//! Signal masks and dispositions around a fork, and a descriptor for SIGCHLD.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::Errno;
use crate::signals::{INFO_BYTES, open_descriptor, signal_in};

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
    // SAFETY: a default disposition. SIGCHLD must not be ignored, or the kernel would reap by itself.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    open_descriptor(&[libc::SIGCHLD, libc::SIGHUP], libc::SFD_NONBLOCK)
}

/// Empties a descriptor made by [`child_end_descriptor`]. Returns whether the terminal has hung up.
pub fn drain_descriptor(descriptor: BorrowedFd<'_>) -> bool {
    // Each of two signals is there once at most, so one read suffices.
    let mut infos = [0; 4 * INFO_BYTES];
    let length = rustix::io::read(descriptor, &mut infos).unwrap_or_default();
    infos.chunks(INFO_BYTES).take(length / INFO_BYTES).any(|info| signal_in(info) == Some(libc::SIGHUP))
}

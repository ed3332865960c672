//! Signals that are read from a descriptor. Independent of their use.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;

use crate::Errno;
use crate::call::{last_errno, own_descriptor};

/// Bytes that a read returns for each signal.
pub(crate) const INFO_BYTES: usize = size_of::<libc::signalfd_siginfo>();

/// Signals of this process, blocked and read instead (signalfd(2)).
///
/// The mask applies to the calling thread and to threads that it starts later, so the call must
/// precede all threads. The mask is inherited over fork and execve: a launcher must clear it in the
/// child, see [`reset_for_exec`](crate::fork_signals::reset_for_exec).
#[derive(Debug)]
pub struct SignalDescriptor {
    fd: OwnedFd,
}

impl SignalDescriptor {
    /// Blocks `requested_signals` for this thread and makes them readable. Signals that the caller ignores
    /// (nohup, a shell's background job) stay ignored: a blocked signal would reach the descriptor
    /// although it is ignored.
    ///
    /// # Errors
    /// Out of descriptors, or a number that is not a signal.
    pub fn block_and_read(requested_signals: &[i32]) -> io::Result<Self> {
        let mut effective_signals = Vec::with_capacity(requested_signals.len());
        for &signal in requested_signals {
            if !is_ignored(signal)? {
                effective_signals.push(signal);
            }
        }
        block_signals(&effective_signals)?;
        Ok(Self { fd: open_descriptor(&effective_signals, 0)? })
    }

    /// Waits for the next signal, without a time-out; poll the descriptor first if one is needed.
    ///
    /// # Errors
    /// Never in practice: the descriptor belongs to this value and blocks.
    pub fn next(&self) -> io::Result<i32> {
        let mut info = [0; INFO_BYTES];
        let length = retry_on_intr(|| rustix::io::read(&self.fd, &mut info))?;
        info.get(..length).and_then(signal_in).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl AsFd for SignalDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Blocks `signals` for this thread and threads that it starts later.
///
/// # Errors
/// A number that is not a signal.
pub fn block_signals(signals: &[i32]) -> io::Result<()> {
    let set = set_of(signals)?;
    // SAFETY: `set` is initialised; no old set is asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Restores the default action of SIGPIPE, which the Rust runtime ignores. For a program that only
/// prints, a closed reader is not an error.
pub fn die_of_sigpipe() {
    // SAFETY: no handler is installed, only the default action restored.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only reads; `old` is valid for writing.
    if unsafe { libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded and filled it.
    Ok(unsafe { old.assume_init() }.sa_sigaction == libc::SIG_IGN)
}

fn set_of(signals: &[i32]) -> Result<libc::sigset_t, Errno> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is valid for writing; sigemptyset initialises all of it.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for &signal in signals {
        // SAFETY: `set` is initialised.
        if unsafe { libc::sigaddset(&raw mut set, signal) } != 0 {
            return Err(last_errno());
        }
    }
    Ok(set)
}

/// Opens a descriptor from which these signals are read, which must be blocked. Makes only system
/// calls.
pub(crate) fn open_descriptor(signals: &[i32], flags: i32) -> Result<OwnedFd, Errno> {
    let set = set_of(signals)?;
    // SAFETY: `set` is an initialised signal set; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | flags) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: signalfd just returned this descriptor, and it has no other owner.
    Ok(unsafe { own_descriptor(fd as usize) })
}

/// Returns the signal in one complete `struct signalfd_siginfo`, whose first field it is.
pub(crate) fn signal_in(info: &[u8]) -> Option<i32> {
    info.first_chunk::<4>().filter(|_| info.len() == INFO_BYTES).map(|number| i32::from_ne_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_and_not_acted_upon() {
        let signals = SignalDescriptor::block_and_read(&[libc::SIGUSR1]).unwrap();
        // SAFETY: directed at this thread, where it is blocked.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
        assert_eq!(signals.next().unwrap(), libc::SIGUSR1);
    }

    #[test]
    fn an_ignored_signal_stays_ignored() {
        // SAFETY: nothing else in this test binary uses SIGUSR2.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        let signals = SignalDescriptor::block_and_read(&[libc::SIGUSR2]).unwrap();
        // SAFETY: the signal is ignored.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        let mut poll = [rustix::event::PollFd::new(&signals, rustix::event::PollFlags::IN)];
        let soon = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        assert_eq!(rustix::event::poll(&mut poll, Some(&soon)).unwrap(), 0);
    }

    #[test]
    fn unknown_signals_are_refused() {
        assert!(SignalDescriptor::block_and_read(&[4_096]).is_err());
    }
}

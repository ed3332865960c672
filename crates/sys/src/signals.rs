//! Signals as something to read. Knows nothing of what they are good for here.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Signals of this process, blocked and read instead (signalfd(2)).
///
/// The mask is of the thread that asked and of those it starts later, so ask
/// before any thread is started. It is inherited over fork and execve: a
/// launcher has to clear it in the child, see
/// [`reset_for_exec`](crate::fork_signals::reset_for_exec).
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks `wanted` for this thread and makes them readable. Signals that
    /// the caller ignores (nohup, a shell's background job) stay ignored: a
    /// blocked signal would reach the descriptor although it is ignored.
    ///
    /// # Errors
    /// Out of descriptors, or a number that is no signal.
    pub fn take(wanted: &[i32]) -> io::Result<Self> {
        let mut heard = Vec::with_capacity(wanted.len());
        for &signal in wanted {
            if !is_ignored(signal)? {
                heard.push(signal);
            }
        }
        let set = set_of(&heard)?;
        block(&heard)?;
        // SAFETY: `set` is an initialised signal set; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd just returned this descriptor and nobody else has it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Waits for the next signal, without a limit; poll the descriptor first
    /// where one is needed.
    ///
    /// # Errors
    /// Never in practice: the descriptor is ours and blocking.
    pub fn next(&self) -> io::Result<i32> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        loop {
            // SAFETY: the buffer is valid for `size` bytes for the whole call.
            let got = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
            if got == size.cast_signed() {
                // SAFETY: the kernel filled the whole structure, of integers only.
                return Ok(unsafe { info.assume_init() }.ssi_signo.cast_signed());
            }
            let error = io::Error::last_os_error();
            if got >= 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Blocks `signals` for this thread and those it starts later.
///
/// # Errors
/// A number that is no signal.
pub fn block(signals: &[i32]) -> io::Result<()> {
    let set = set_of(signals)?;
    // SAFETY: `set` is initialised; no old set is asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Lets SIGPIPE end the process again: the Rust runtime ignores it, and a
/// reader that went away is no error for a program that only prints.
pub fn die_of_sigpipe() {
    // SAFETY: no handler is installed, only the default action restored.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Stops this process as an unhandled job control signal would.
///
/// # Errors
/// Never in practice.
pub fn stop_self() -> io::Result<()> {
    // SAFETY: raise has no preconditions; SIGSTOP cannot be handled.
    match unsafe { libc::raise(libc::SIGSTOP) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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

fn set_of(signals: &[i32]) -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is valid for writing; sigemptyset initialises all of it.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for &signal in signals {
        // SAFETY: `set` is initialised.
        if unsafe { libc::sigaddset(&raw mut set, signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_and_not_acted_upon() {
        let signals = Signals::take(&[libc::SIGUSR1]).unwrap();
        // SAFETY: directed at this thread, where it is blocked.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
        assert_eq!(signals.next().unwrap(), libc::SIGUSR1);
    }

    #[test]
    fn an_ignored_signal_stays_ignored() {
        // SAFETY: nothing else in this test binary uses SIGUSR2.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        let signals = Signals::take(&[libc::SIGUSR2]).unwrap();
        // SAFETY: the signal is ignored.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        let mut poll = [rustix::event::PollFd::new(&signals, rustix::event::PollFlags::IN)];
        let soon = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        assert_eq!(rustix::event::poll(&mut poll, Some(&soon)).unwrap(), 0);
    }

    #[test]
    fn what_is_no_signal_is_refused() {
        assert!(Signals::take(&[4_096]).is_err());
    }
}

//! Waiting for children, and what they used.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::Pid;

use crate::Errno;
use crate::call::last_errno;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

impl Ended {
    fn from_status(status: i32) -> Self {
        if libc::WIFEXITED(status) {
            Self::Exited(libc::WEXITSTATUS(status))
        } else {
            Self::Signaled(libc::WTERMSIG(status))
        }
    }
}

/// What processes used, from getrusage(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// User and system time, in microseconds.
    pub cpu_us: u64,
    /// Largest resident size of one process, in bytes.
    pub memory_peak_bytes: u64,
}

/// Reaps one child that has ended, without waiting. `None` while children
/// remain but none has ended.
///
/// # Errors
/// ECHILD where there are no children.
pub fn reap_any() -> Result<Option<(Pid, Ended)>, Errno> {
    let mut status = 0;
    // SAFETY: `status` is a valid out pointer.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL) };
    match pid {
        0 => Ok(None),
        pid if pid < 0 => Err(last_errno()),
        pid => Ok(Pid::from_raw(pid).map(|pid| (pid, Ended::from_status(status)))),
    }
}

/// Reaps the child behind `pidfd`, without waiting. `None` while it runs.
///
/// # Errors
/// ECHILD where it is not (or no longer) a child of this process.
pub fn wait_pidfd(pidfd: BorrowedFd<'_>) -> Result<Option<Ended>, Errno> {
    wait_pidfd_with(pidfd, libc::WNOHANG)
}

/// As [`wait_pidfd`], but does not return before the end: for children that
/// were sent SIGKILL.
///
/// # Errors
/// ECHILD where it is not (or no longer) a child of this process.
pub fn wait_pidfd_end(pidfd: BorrowedFd<'_>) -> Result<Option<Ended>, Errno> {
    wait_pidfd_with(pidfd, 0)
}

fn wait_pidfd_with(pidfd: BorrowedFd<'_>, extra: i32) -> Result<Option<Ended>, Errno> {
    // SAFETY: siginfo_t is plain data; all zeroes is a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::__WALL | extra;
    // SAFETY: `info` is a valid out pointer and `pidfd` an open descriptor.
    while unsafe { libc::waitid(libc::P_PIDFD, pidfd.as_raw_fd() as u32, &raw mut info, options) } < 0 {
        match last_errno() {
            Errno::INTR => {}
            errno => return Err(errno),
        }
    }
    // SAFETY: waitid succeeded, so the SIGCHLD fields are the ones in use (or
    // all zero where nothing has ended).
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok(match (pid, info.si_code) {
        (0, _) => None,
        (_, libc::CLD_EXITED) => Some(Ended::Exited(status)),
        _ => Some(Ended::Signaled(status)),
    })
}

/// What all reaped children used so far.
pub fn children_used() -> Used {
    // SAFETY: rusage is plain data; all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid out pointer; RUSAGE_CHILDREN cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let microseconds = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    Used {
        cpu_us: microseconds(usage.ru_utime) + microseconds(usage.ru_stime),
        memory_peak_bytes: usage.ru_maxrss as u64 * 1024,
    }
}

/// Makes this process the new parent of orphaned descendants (kernel 3.4).
///
/// # Errors
/// Never in practice.
pub fn adopt_orphans() -> Result<(), Errno> {
    // SAFETY: plain integers.
    let failed = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } < 0;
    if failed { Err(last_errno()) } else { Ok(()) }
}

/// Sends `signal` to the process group that `leader` leads; best effort.
pub fn signal_group(leader: Pid, signal: i32) {
    // SAFETY: plain integers.
    unsafe { libc::kill(-leader.as_raw_nonzero().get(), signal) };
}

/// As process 1 of a PID namespace: kills every other process in it and waits
/// until they are gone. In any other process it does nothing at all.
pub fn end_namespace() {
    // SAFETY: plain integers; -1 means every process this one may signal, which
    // for process 1 of a namespace is the namespace.
    unsafe {
        if libc::getpid() != 1 {
            return;
        }
        libc::kill(-1, libc::SIGKILL);
        while libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL) > 0 || last_errno() == Errno::INTR {}
    }
}

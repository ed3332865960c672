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

/// What processes used, from getrusage(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// User and system time, in microseconds.
    pub cpu_us: u64,
    /// Largest resident size of one process, in bytes.
    pub memory_peak_bytes: u64,
}

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// It has ended, and was reaped.
    Ended(Ended),
    /// It was stopped by this signal, and stands still.
    Stopped(i32),
}

/// Reaps one child that has ended, without waiting, or tells of one that was stopped.
/// `None` while children remain but nothing became of any. One that has made this process
/// its tracer (PTRACE_TRACEME) is let go, and goes on as if nobody traced it.
///
/// # Errors
/// ECHILD where there are no children.
pub fn reap_any() -> Result<Option<(Pid, Became)>, Errno> {
    loop {
        // SAFETY: siginfo_t is plain data; all zeroes is a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
        // SAFETY: `info` is a valid out pointer.
        if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } < 0 {
            return Err(last_errno());
        }
        // SAFETY: waitid succeeded, so the SIGCHLD fields are the ones in use (or
        // all zero where nothing became of any).
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
        let became = match info.si_code {
            libc::CLD_EXITED => Became::Ended(Ended::Exited(status)),
            libc::CLD_KILLED | libc::CLD_DUMPED => Became::Ended(Ended::Signaled(status)),
            libc::CLD_TRAPPED => {
                stop_tracing(pid, status);
                continue;
            }
            _ => Became::Stopped(status),
        };
        return Ok(Some((pid, became)));
    }
}

/// Lets a traced child go on with the signal that stopped it, but for the one that is sent
/// for the tracer's sake (ptrace(2)).
fn stop_tracing(child: Pid, signal: i32) {
    let signal = if signal & 0x7f == libc::SIGTRAP { 0 } else { libc::c_long::from(signal) };
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: it detaches from a child that is stopped, and takes no memory of ours.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, child.as_raw_nonzero().get(), nothing, signal) };
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

//! Waiting for children, and their resource usage.

use std::os::fd::BorrowedFd;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitId, WaitIdOptions, set_child_subreaper, waitid};

use crate::Errno;
use crate::call::last_errno;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessExit {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

/// Resource usage of processes, from getrusage(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// User and system time, in microseconds.
    pub cpu_us: u64,
    /// Largest resident size of one process, in bytes.
    pub memory_peak_bytes: u64,
}

/// Change of a child's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildStateChange {
    /// The child has ended and was reaped.
    Ended(ProcessExit),
    /// The child was stopped by this signal.
    Stopped(i32),
}

/// Reaps one ended child without waiting, or reports a stopped child. Returns `None` if children
/// exist but none has changed. Detaches a child that has made this process its tracer
/// (PTRACE_TRACEME); the child continues untraced.
///
/// # Errors
/// ECHILD if there are no children.
pub fn reap_any() -> Result<Option<(Pid, ChildStateChange)>, Errno> {
    loop {
        // SAFETY: siginfo_t is plain data; all zeroes is a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
        // SAFETY: `info` is a valid out pointer.
        if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } < 0 {
            return Err(last_errno());
        }
        // SAFETY: waitid succeeded, so the SIGCHLD fields are the ones in use (or all zero if no
        // child has changed).
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
        let became = match info.si_code {
            libc::CLD_EXITED => ChildStateChange::Ended(ProcessExit::Exited(status)),
            libc::CLD_KILLED | libc::CLD_DUMPED => ChildStateChange::Ended(ProcessExit::Signaled(status)),
            libc::CLD_TRAPPED => {
                stop_tracing(pid, status);
                continue;
            }
            _ => ChildStateChange::Stopped(status),
        };
        return Ok(Some((pid, became)));
    }
}

/// Continues a traced child with the signal that stopped it. Suppresses SIGTRAP, which is sent only
/// for the tracer (ptrace(2)).
fn stop_tracing(child: Pid, signal: i32) {
    let signal = if signal & 0x7f == libc::SIGTRAP { 0 } else { libc::c_long::from(signal) };
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: it detaches from a child that is stopped, and takes no memory of ours.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, child.as_raw_nonzero().get(), nothing, signal) };
}

/// Reaps the child behind `pidfd` without waiting. Returns `None` while it runs.
///
/// # Errors
/// ECHILD if the process is not (or no longer) a child of this process.
pub fn wait_pidfd(pidfd: BorrowedFd<'_>) -> Result<Option<ProcessExit>, Errno> {
    wait_pidfd_with(pidfd, WaitIdOptions::NOHANG)
}

/// As [`wait_pidfd`], but waits for the end: for children that were sent SIGKILL.
///
/// # Errors
/// ECHILD if the process is not (or no longer) a child of this process.
pub fn wait_pidfd_end(pidfd: BorrowedFd<'_>) -> Result<Option<ProcessExit>, Errno> {
    wait_pidfd_with(pidfd, WaitIdOptions::empty())
}

fn wait_pidfd_with(pidfd: BorrowedFd<'_>, extra: WaitIdOptions) -> Result<Option<ProcessExit>, Errno> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL as u32) | extra;
    let ended = retry_on_intr(|| waitid(WaitId::PidFd(pidfd), options))?;
    Ok(ended.map(|status| match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ProcessExit::Exited(code),
        (None, signal) => ProcessExit::Signaled(signal.unwrap_or_default()),
    }))
}

/// Returns the total usage of all reaped children.
pub fn children_used() -> ProcessUsage {
    // SAFETY: rusage is plain data; all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid out pointer; RUSAGE_CHILDREN cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let microseconds = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    ProcessUsage {
        cpu_us: microseconds(usage.ru_utime) + microseconds(usage.ru_stime),
        memory_peak_bytes: usage.ru_maxrss as u64 * 1024,
    }
}

/// Makes this process the new parent of orphaned descendants (kernel 3.4).
///
/// # Errors
/// Never in practice.
pub fn adopt_orphans() -> Result<(), Errno> {
    // The kernel only checks whether the number is zero.
    set_child_subreaper(Some(Pid::INIT))
}

/// Sends `signal` to the process group of `leader`; best effort.
pub fn signal_group(leader: Pid, signal: i32) {
    // SAFETY: plain integers.
    unsafe { libc::kill(-leader.as_raw_nonzero().get(), signal) };
}

/// In process 1 of a PID namespace, kills every other process in it and waits for their end. Does
/// nothing in any other process.
pub fn end_namespace() {
    // SAFETY: plain integers; -1 means every process this one may signal, which for process 1 of a
    // namespace is the namespace.
    unsafe {
        if libc::getpid() != 1 {
            return;
        }
        libc::kill(-1, libc::SIGKILL);
        while libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL) > 0 || last_errno() == Errno::INTR {}
    }
}

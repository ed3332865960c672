//! Making a child with raw `clone3` and fork semantics (no shared memory).
//!
//! The child of a threaded process may make only system calls: no allocation, no locks. The parent
//! prepares its data before.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::process::abort;

use rustix::process::{Pid, Signal, kill_process};

use crate::Errno;
use crate::call::{own_descriptor, raw_syscall};

/// Namespaces and other `CLONE_*` bits for [`fork_with`] (linux/sched.h).
pub mod flags {
    /// User namespace.
    pub const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
    /// Mount namespace.
    pub const NEW_MOUNT: u64 = libc::CLONE_NEWNS as u64;
    /// PID namespace.
    pub const NEW_PID: u64 = libc::CLONE_NEWPID as u64;
    /// Network namespace.
    pub const NEW_NET: u64 = libc::CLONE_NEWNET as u64;
    /// System V IPC and POSIX queues.
    pub const NEW_IPC: u64 = libc::CLONE_NEWIPC as u64;
    /// Host and domain name.
    pub const NEW_UTS: u64 = libc::CLONE_NEWUTS as u64;
    /// Control group namespace.
    pub const NEW_CGROUP: u64 = libc::CLONE_NEWCGROUP as u64;
}

/// `CLONE_PIDFD` (kernel 5.2).
const PIDFD: u64 = 0x1000;
/// `CLONE_CLEAR_SIGHAND` (kernel 5.5): resets signal handlers in the child.
const CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// `struct clone_args`, the fields of kernel 5.3 (`CLONE_ARGS_SIZE_VER0`).
#[derive(Default)]
#[repr(C, align(8))]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// A new child.
#[derive(Debug)]
pub struct ClonedChild {
    /// Process id in the caller's PID namespace.
    pub pid: Pid,
    /// Descriptor of the child (pidfd), close-on-exec.
    pub pidfd: OwnedFd,
}

/// Makes a child that runs `body` and exits with its result, without returning.
///
/// The kernel sends `exit_signal` to the parent at the child's end. With 0 it sends none, and only
/// waits with `__WALL` see the child, so the parent's other children and their waits are not
/// disturbed.
///
/// `body` must make only system calls. The memory is a copy of a process that may have had other
/// threads, and their locks stay locked in it. A panic in `body` aborts the child.
///
/// `clone3` resets signal handlers in the child. The older `clone`, used if `clone3` is not
/// available, does not, so `body` must run with signals blocked.
///
/// # Errors
/// The errors of the kernel: EPERM and ENOSPC if namespaces are refused, EAGAIN at the process
/// limit.
pub fn fork_with(clone_flags: u64, exit_signal: i32, body: impl FnOnce() -> i32) -> Result<ClonedChild, Errno> {
    let mut pidfd: i32 = -1;
    let args = CloneArgs {
        flags: clone_flags | PIDFD | CLEAR_SIGHAND,
        pidfd: &raw mut pidfd as u64,
        exit_signal: exit_signal as u64,
        ..CloneArgs::default()
    };
    // SAFETY: `args` is a valid clone_args of the given size and `pidfd` lives past the call.
    // Without CLONE_VM and with stack 0 the child continues on a copy of this stack, as after
    // fork(2).
    let made = unsafe { raw_syscall(libc::SYS_clone3, [&raw const args as usize, size_of::<CloneArgs>(), 0, 0, 0, 0]) };
    let pid = match made {
        // Containers return ENOSYS, because their filters cannot read the flags.
        Err(Errno::NOSYS) => {
            let flags = (clone_flags | PIDFD | exit_signal as u64) as usize;
            // SAFETY: as above; with CLONE_PIDFD the third argument is where the descriptor is
            // stored (clone(2)), the last two are unused.
            unsafe { raw_syscall(libc::SYS_clone, [flags, 0, &raw mut pidfd as usize, 0, 0, 0]) }
        }
        other => other,
    }?;
    if pid == 0 {
        run_and_exit(body);
    }
    let Some(pid) = Pid::from_raw(pid as i32) else { abort() };
    if pidfd < 0 {
        end_unheld(pid);
        return Err(Errno::NOSYS);
    }
    // SAFETY: the kernel stored a new descriptor that has no other owner.
    let pidfd = unsafe { own_descriptor(pidfd as usize) };
    Ok(ClonedChild { pid, pidfd })
}

/// Ends a child for which the kernel returned no descriptor: gVisor ignores the unknown flag
/// without an error.
fn end_unheld(child: Pid) {
    // The child is not reaped yet, so the process id is still its own.
    let _ = kill_process(child, Signal::KILL);
    // SAFETY: no pointer is given.
    let _ = unsafe {
        raw_syscall(libc::SYS_wait4, [child.as_raw_nonzero().get() as usize, 0, libc::__WALL as usize, 0, 0, 0])
    };
}

/// Runs `body` in the child. The parent's stack must not be unwound or dropped here, so a panic
/// aborts and the child exits by `_exit`.
fn run_and_exit(body: impl FnOnce() -> i32) -> ! {
    struct AbortOnUnwind;
    impl Drop for AbortOnUnwind {
        fn drop(&mut self) {
            abort();
        }
    }
    let guard = AbortOnUnwind;
    let code = body();
    std::mem::forget(guard);
    exit_now(code)
}

/// Moves this process, which must have one thread, into new namespaces. The kernel does its setup
/// work here, and not while a parent waits.
///
/// # Errors
/// EPERM without the capability, ENOSPC at a limit of namespaces.
pub fn unshare_namespaces(namespaces: u64) -> Result<(), Errno> {
    // SAFETY: plain integers.
    unsafe { raw_syscall(libc::SYS_unshare, [namespaces as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Moves this process, which must have one thread, into the namespace behind `namespace`, which
/// must be of this `kind`. A PID namespace applies only to children forked later (setns(2)).
///
/// # Errors
/// EPERM without the capability for the namespace, EINVAL if it is of another kind.
pub fn enter_namespace(namespace: BorrowedFd<'_>, kind: u64) -> Result<(), Errno> {
    // SAFETY: plain integers.
    unsafe { raw_syscall(libc::SYS_setns, [namespace.as_raw_fd() as usize, kind as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Ends the process at once: no destructors, no exit handlers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reap::{ProcessExit, wait_pidfd_end};
    use std::os::fd::AsFd;

    #[test]
    fn a_child_runs_its_body_and_its_end_is_seen() {
        let child = fork_with(0, 0, || 42).unwrap();
        assert_eq!(wait_pidfd_end(child.pidfd.as_fd()).unwrap(), Some(ProcessExit::Exited(42)));
    }

    #[test]
    fn a_panic_in_the_child_does_not_reach_the_parents_code() {
        let child = fork_with(0, 0, || {
            // The hook would print; the test checks that nothing unwinds past it.
            std::panic::resume_unwind(Box::new(()))
        })
        .unwrap();
        assert_eq!(wait_pidfd_end(child.pidfd.as_fd()).unwrap(), Some(ProcessExit::Signaled(libc::SIGABRT)));
    }
}

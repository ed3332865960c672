//! Installation of a compiled filter.

use std::os::fd::OwnedFd;

use crate::Errno;
use crate::bpf::{BpfInstruction, SeccompProgram};
use crate::call::{own_descriptor, raw_syscall};

/// `SECCOMP_SET_MODE_FILTER`.
const SET_MODE_FILTER: usize = 1;
/// `SECCOMP_FILTER_FLAG_NEW_LISTENER` (kernel 5.0).
const NEW_LISTENER: usize = 1 << 3;
/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` (kernel 5.19). Bit 5: bit 4 is another flag, which the
/// kernel accepts silently.
const WAIT_KILLABLE_RECV: usize = 1 << 5;

/// `struct sock_fprog`.
#[repr(C)]
struct FilterProgram {
    length: u16,
    filter: *const BpfInstruction,
}

/// The descriptor on which trapped calls arrive.
#[derive(Debug)]
pub struct SeccompListener {
    /// See seccomp_unotify(2).
    pub fd: OwnedFd,
    /// False if a signal to the caller can cancel a pending notification (below kernel 5.19). Then
    /// no call may be held while a user decides.
    pub wait_killable: bool,
}

/// Installs `program` for this thread and everything it starts. `no_new_privs` must be set.
///
/// # Errors
/// EACCES without `no_new_privs`, ENOMEM if filters grow too large.
pub fn install_filter(program: &SeccompProgram) -> Result<(), Errno> {
    set_filter(program, 0).map(drop)
}

/// As [`install_filter`], and returns the descriptor on which [`SeccompAction::Notify`] calls arrive.
///
/// [`SeccompAction::Notify`]: crate::bpf::SeccompAction::Notify
///
/// # Errors
/// EBUSY if this thread already has a listener (a nested sandbox).
pub fn install_with_listener(program: &SeccompProgram) -> Result<SeccompListener, Errno> {
    let (fd, wait_killable) = match set_filter(program, NEW_LISTENER | WAIT_KILLABLE_RECV) {
        Err(Errno::INVAL) => (set_filter(program, NEW_LISTENER)?, false),
        other => (other?, true),
    };
    // SAFETY: a new descriptor that has no other owner.
    Ok(SeccompListener { fd: unsafe { own_descriptor(fd) }, wait_killable })
}

fn set_filter(program: &SeccompProgram, flags: usize) -> Result<usize, Errno> {
    // The compiler bounds a program by 4096 instructions.
    let length = program.instructions.len() as u16;
    let described = FilterProgram { length, filter: program.instructions.as_ptr() };
    // SAFETY: `described` points at `length` instructions that outlive the call; Instruction has
    // the layout of struct sock_filter.
    unsafe { raw_syscall(libc::SYS_seccomp, [SET_MODE_FILTER, flags, &raw const described as usize, 0, 0, 0]) }
}

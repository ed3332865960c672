//! Permanent removal of privilege.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
pub use rustix::thread::CapabilitySet;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySets, clear_ambient_capability_set, set_capabilities,
    set_capabilities_secure_bits, set_no_new_privs,
};

use crate::Errno;
use crate::call::raw_syscall;

/// Largest possible capability number (two 32-bit words).
const MAX_CAPABILITY: usize = 63;

/// Removes every capability of this thread in every set and prevents their return. The bounding set
/// is empty, root gets no capability at exec, and ambient capabilities cannot be raised. Then sets
/// `no_new_privs`.
///
/// Skips the bounding set and the secure bits if the thread may not change them (an ordinary user
/// without a user namespace). Such a thread has no capability that they could restore, and
/// `no_new_privs` covers exec.
///
/// # Errors
/// Any failure other than that EPERM.
pub fn drop_all() -> Result<(), Errno> {
    drop_all_but(CapabilitySet::empty())
}

/// As [`drop_all`], but keeps `capabilities` for this thread alone: no program that it executes gets them.
///
/// # Errors
/// As [`drop_all`]; EPERM if the thread does not have `capabilities`.
pub fn drop_all_but(capabilities: CapabilitySet) -> Result<(), Errno> {
    drop_bounding_set()?;
    match set_capabilities_secure_bits(locked_bits()) {
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno),
    }
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: capabilities, permitted: capabilities, inheritable: none })
}

/// Empties the effective, permitted and inheritable sets of this thread.
///
/// # Errors
/// Never in practice: removal is always allowed.
pub fn drop_held() -> Result<(), Errno> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Protects this process from ptrace and `/proc/PID/mem` of processes with equal credentials.
///
/// # Errors
/// Never in practice.
pub fn make_opaque() -> Result<(), Errno> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Reverts [`make_opaque`].
///
/// # Errors
/// Never in practice.
pub fn make_transparent() -> Result<(), Errno> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)
}

fn drop_bounding_set() -> Result<(), Errno> {
    for capability in 0..=MAX_CAPABILITY {
        // SAFETY: PR_CAPBSET_DROP takes plain integers.
        match unsafe { raw_syscall(libc::SYS_prctl, [libc::PR_CAPBSET_DROP as usize, capability, 0, 0, 0, 0]) } {
            Ok(_) => {}
            // Past the last capability of this kernel, or not permitted.
            Err(Errno::INVAL | Errno::PERM) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn locked_bits() -> CapabilitiesSecureBits {
    CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED
}

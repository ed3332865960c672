//! Giving up privilege for good.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
pub use rustix::thread::CapabilitySet;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySets, clear_ambient_capability_set, set_capabilities,
    set_capabilities_secure_bits, set_no_new_privs,
};

use crate::Errno;
use crate::call::raw;

/// No capability numbers above this exist or can (two 32-bit words).
const MAX_CAPABILITY: usize = 63;

/// Gives up every capability of this thread in every set and locks the door:
/// bounding set empty, root gets nothing at exec, ambient raising forbidden.
/// Then `no_new_privs`.
///
/// Where the thread may not change the bounding set or the secure bits (an
/// ordinary user without a user namespace), those two are skipped: it has
/// nothing that they could give back, and `no_new_privs` closes exec.
///
/// # Errors
/// Any failure other than that EPERM.
pub fn drop_all() -> Result<(), Errno> {
    drop_all_but(CapabilitySet::empty())
}

/// As [`drop_all`], but keeps `kept` for this thread alone: no program that it
/// may ever execute gets it.
///
/// # Errors
/// As [`drop_all`]; EPERM where it does not hold `kept`.
pub fn drop_all_but(kept: CapabilitySet) -> Result<(), Errno> {
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
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
}

/// Empties the effective, permitted and inheritable sets of this thread.
///
/// # Errors
/// Never in practice: giving up is always allowed.
pub fn drop_held() -> Result<(), Errno> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Makes this process opaque to ptrace and `/proc/PID/mem` of equals.
///
/// # Errors
/// Never in practice.
pub fn make_opaque() -> Result<(), Errno> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Undoes [`make_opaque`].
///
/// # Errors
/// Never in practice.
pub fn make_transparent() -> Result<(), Errno> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)
}

fn drop_bounding_set() -> Result<(), Errno> {
    for capability in 0..=MAX_CAPABILITY {
        // SAFETY: PR_CAPBSET_DROP takes plain integers.
        match unsafe { raw(libc::SYS_prctl, [libc::PR_CAPBSET_DROP as usize, capability, 0, 0, 0, 0]) } {
            Ok(_) => {}
            // Past the last capability of this kernel, or not ours to change.
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

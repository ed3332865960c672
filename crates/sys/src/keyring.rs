//! Key rings (keyrings(7)): leaving the caller's behind.

use crate::Errno;
use crate::call::raw;

/// `KEYCTL_JOIN_SESSION_KEYRING`.
const JOIN_SESSION: usize = 1;

/// Starts a new, empty, anonymous session key ring for this process. A kernel
/// without key rings has nothing to leave behind, and where a container's filter
/// refuses the call (EPERM), no process of it can use the old one either.
///
/// # Errors
/// EDQUOT or ENOMEM.
pub fn join_new_session() -> Result<(), Errno> {
    // SAFETY: a null name asks for an anonymous ring.
    match unsafe { raw(libc::SYS_keyctl, [JOIN_SESSION, 0, 0, 0, 0, 0]) } {
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

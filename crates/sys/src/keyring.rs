//! Key rings (keyrings(7)): separation from the caller's key ring.

use rustix::thread::{Timespec, nanosleep};

use crate::Errno;
use crate::call::raw_syscall;

/// `KEYCTL_JOIN_SESSION_KEYRING`.
const JOIN_SESSION: usize = 1;

/// Number of retries for a user with too many keys, and the delay between them.
const RETRIES_MAX: usize = 50;
const RETRY_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Starts a new, empty, anonymous session key ring for this process. Succeeds on a kernel without
/// key rings. Also succeeds if a container's filter refuses the call (EPERM), because then no
/// process of the container can use the old ring either. An ordinary user may have 200 keys. Keys
/// of ended processes count until the kernel has removed them; waits for that up to five seconds.
///
/// # Errors
/// EDQUOT or ENOMEM.
pub fn join_new_session() -> Result<(), Errno> {
    for _ in 0..RETRIES_MAX {
        match join_keyring() {
            Err(Errno::DQUOT) => drop(nanosleep(&RETRY_DELAY)),
            joined => return joined,
        }
    }
    join_keyring()
}

fn join_keyring() -> Result<(), Errno> {
    // SAFETY: a null name asks for an anonymous ring.
    match unsafe { raw_syscall(libc::SYS_keyctl, [JOIN_SESSION, 0, 0, 0, 0, 0]) } {
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

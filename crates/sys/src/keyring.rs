//! Key rings (keyrings(7)): leaving the caller's behind.

use rustix::thread::{Timespec, nanosleep};

use crate::Errno;
use crate::call::raw;

/// `KEYCTL_JOIN_SESSION_KEYRING`.
const JOIN_SESSION: usize = 1;

/// How often it is tried again where a user has too many, and how long after.
const TRIES: usize = 50;
const BETWEEN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Starts a new, empty, anonymous session key ring for this process. A kernel
/// without key rings has nothing to leave behind, and where a container's filter
/// refuses the call (EPERM), no process of it can use the old one either. An ordinary
/// user may have 200 keys, and those of processes that have ended count until the kernel
/// has swept them away: that is waited for, up to five seconds.
///
/// # Errors
/// EDQUOT or ENOMEM.
pub fn join_new_session() -> Result<(), Errno> {
    for _ in 0..TRIES {
        match join() {
            Err(Errno::DQUOT) => drop(nanosleep(&BETWEEN)),
            joined => return joined,
        }
    }
    join()
}

fn join() -> Result<(), Errno> {
    // SAFETY: a null name asks for an anonymous ring.
    match unsafe { raw(libc::SYS_keyctl, [JOIN_SESSION, 0, 0, 0, 0, 0]) } {
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

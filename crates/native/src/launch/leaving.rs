//! Inits that have said their last word and are on their way out. Nothing of
//! the run is alive by then, but the kernel may take milliseconds to take down
//! the mounts, the network namespace and the watches that hang on the init: it
//! is not waited for where somebody else surely reaps it.
//!
//! It must not know what ran.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stockade_sys::ready::readable_before;
use stockade_sys::reap::wait_pidfd;

/// How long an init may take to end what it adopted, and itself.
pub(super) const CLEANS_WITHIN: Duration = Duration::from_secs(6);

/// Inits of this process that were left so far and not yet reaped; past that,
/// the oldest is waited for.
const MAX_LEAVING: usize = 64;

/// The inode of the first PID namespace (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xeffffffc;

static LEAVING: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Lets the init behind `pidfd` go. It must have nothing left to do but exit.
///
/// Whoever outlives us reaps it. Process 1 of a container often reaps nobody:
/// there it is waited for, so that none stays behind as a zombie.
pub(super) fn let_go(pidfd: OwnedFd) {
    if !first_process_reaps() {
        return wait(&pidfd);
    }
    let mut leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    leaving.retain(|pidfd| matches!(wait_pidfd(pidfd.as_fd()), Ok(None)));
    if leaving.len() >= MAX_LEAVING {
        wait(&leaving.remove(0));
    }
    leaving.push(pidfd);
}

/// Waits for an init. One that the kernel cannot end (it hangs in a dead
/// filesystem) is left to it.
pub(super) fn wait(pidfd: &OwnedFd) {
    let _ = readable_before(&[pidfd.as_fd()], Instant::now() + CLEANS_WITHIN);
    let _ = wait_pidfd(pidfd.as_fd());
}

fn first_process_reaps() -> bool {
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == FIRST_PID_NAMESPACE)
}

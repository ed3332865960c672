//! Inits that have sent their last message and are exiting. No other process of the run is alive by
//! then. The kernel may take milliseconds to remove the init's mounts, network namespace and
//! watches. The caller does not wait for that if another process surely reaps the init.
//!
//! This module must not know the command.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stockade_sys::ready::readable_before;
use stockade_sys::reap::wait_pidfd;

/// Time-out for an init to kill its adopted processes and to exit.
pub(super) const INIT_EXIT_TIMEOUT: Duration = Duration::from_secs(6);

/// Most inits of this process that are exiting and not yet reaped. Beyond that, the oldest is
/// waited for.
const MAX_EXITING_INITS: usize = 64;

/// The inode of the first PID namespace (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const FIRST_PID_NAMESPACE_INODE: u64 = 0xeffffffc;

static EXITING_INITS: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Lets the init behind `pidfd` exit by itself. The init must have nothing left to do but exit.
///
/// If this process exits first, process 1 reaps the init. Process 1 of a container often reaps no
/// process: there this waits, so that no zombie stays behind.
pub(super) fn let_go(pidfd: OwnedFd) {
    if !first_process_reaps() {
        return wait_for_init(&pidfd);
    }
    let mut leaving = EXITING_INITS.lock().unwrap_or_else(PoisonError::into_inner);
    leaving.retain(|pidfd| matches!(wait_pidfd(pidfd.as_fd()), Ok(None)));
    if leaving.len() >= MAX_EXITING_INITS {
        wait_for_init(&leaving.remove(0));
    }
    leaving.push(pidfd);
}

/// Waits for an init. If the kernel cannot kill it, because it hangs in a dead filesystem, it is
/// left to the kernel.
pub(super) fn wait_for_init(pidfd: &OwnedFd) {
    let _ = readable_before(&[pidfd.as_fd()], Instant::now() + INIT_EXIT_TIMEOUT);
    let _ = wait_pidfd(pidfd.as_fd());
}

fn first_process_reaps() -> bool {
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == FIRST_PID_NAMESPACE_INODE)
}

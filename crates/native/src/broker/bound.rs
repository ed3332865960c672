//! The sockets that a run has bound to paths: it may connect to them again, and to no
//! other. Each is held, so that nothing else is ever taken for it: neither its name nor
//! its inode number says whose a socket is. The commands of a sandbox that lasts have
//! them in common.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Stat, fstat};
use stockade_sys::Errno;

/// Sockets that are held at a time; those whose last name is gone do not count. Each
/// takes a descriptor of the broker's process.
pub(super) const MAX_BOUND: usize = 400;

/// The sockets, by device and inode. Copies are of the same run or sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound(Arc<Mutex<HashMap<(u64, u64), OwnedFd>>>);

impl Bound {
    /// Whether one more can be held. What has no name any more is let go: no name can
    /// lead to it again.
    pub(super) fn has_room(&self) -> bool {
        let mut bound = self.lock();
        if bound.len() >= MAX_BOUND {
            bound.retain(|_, held| fstat(held).is_ok_and(|stat| stat.st_nlink > 0));
        }
        bound.len() < MAX_BOUND
    }

    /// The run has bound this socket.
    pub(super) fn hold(&self, socket: OwnedFd) -> Result<(), Errno> {
        let stat = fstat(&socket)?;
        self.lock().insert((stat.st_dev, stat.st_ino), socket);
        Ok(())
    }

    /// Whether the run has bound this very socket.
    pub(super) fn has(&self, stat: &Stat) -> bool {
        self.lock().contains_key(&(stat.st_dev, stat.st_ino))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u64), OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

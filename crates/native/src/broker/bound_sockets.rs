//! Sockets that a run has bound to paths. The run may connect to these sockets and, without a
//! grant, to no other. Each is held open, so that its inode number cannot be reused: neither a name
//! nor an inode number proves whose socket a file is. All commands of a persistent sandbox share
//! one table.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use crate::locks::lock_ignoring_poison;
use rustix::fs::{Stat, fstat};
use stockade_sys::Errno;

/// Most sockets that are held at a time, because each takes a descriptor of the broker's process.
/// Sockets without a remaining name do not count.
pub(super) const MAX_BOUND_SOCKETS: usize = 400;

/// Sockets by device and inode. Clones share the table of one run or sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct BoundSockets(Arc<Mutex<HashMap<(u64, u64), OwnedFd>>>);

impl BoundSockets {
    /// Returns whether one more socket can be held. Drops sockets without a remaining name, because
    /// no path can lead to them again.
    pub(super) fn has_room(&self) -> bool {
        let mut bound = lock_ignoring_poison(&self.0);
        if bound.len() >= MAX_BOUND_SOCKETS {
            bound.retain(|_, held| fstat(held).is_ok_and(|stat| stat.st_nlink > 0));
        }
        bound.len() < MAX_BOUND_SOCKETS
    }

    /// Adds a socket that the run has bound.
    pub(super) fn add_socket(&self, socket: OwnedFd) -> Result<(), Errno> {
        let stat = fstat(&socket)?;
        lock_ignoring_poison(&self.0).insert((stat.st_dev, stat.st_ino), socket);
        Ok(())
    }

    /// Returns whether the run has bound this very socket.
    pub(super) fn has_socket(&self, stat: &Stat) -> bool {
        lock_ignoring_poison(&self.0).contains_key(&(stat.st_dev, stat.st_ino))
    }
}

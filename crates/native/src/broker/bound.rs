//! Names under which a run has bound sockets: it may connect to them again, and to no
//! other. The commands of a sandbox that lasts have them in common.

use std::collections::HashSet;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::fstat;

use super::walk::Place;

/// Sockets that are remembered; past that, a connect to a newer one is refused,
/// which is the safe side.
const MAX_BOUND: usize = 10_000;

/// The names, by their directories. Copies are of the same run or sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound(Arc<Mutex<HashSet<(u64, u64, CString)>>>);

impl Bound {
    /// A socket will stand at `place`.
    pub(super) fn note(&self, place: &Place) {
        let Ok(directory) = fstat(&place.directory.fd) else { return };
        let mut bound = self.lock();
        if bound.len() < MAX_BOUND {
            bound.insert((directory.st_dev, directory.st_ino, place.name.clone()));
        }
    }

    /// Whether one was to stand there.
    pub(super) fn has(&self, place: &Place) -> bool {
        fstat(&place.directory.fd)
            .is_ok_and(|directory| self.lock().contains(&(directory.st_dev, directory.st_ino, place.name.clone())))
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(u64, u64, CString)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

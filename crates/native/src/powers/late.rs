//! Roots that are not there yet: what leads to them can be made, and at level restricted the
//! kernel does not let the run read them, whose rules are about what was there at the start.

use std::path::PathBuf;

use super::{Powers, covers, normal};

impl Powers {
    /// Names writable roots that the kernel does not let the run read.
    pub(crate) fn read_late(&mut self, roots: &[PathBuf]) {
        self.late.extend(roots.iter().map(|root| normal(root)));
    }

    /// Whether the broker is asked about each open for reading.
    pub(crate) fn asks_reads(&self) -> bool {
        self.traced || !self.late.is_empty()
    }

    /// Whether it opens some of what is read.
    pub(crate) fn reads_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Whether the broker opens what is at `path` for reading: the run may, and the kernel does
    /// not let it.
    pub(crate) fn is_read_late(&self, path: &[u8]) -> bool {
        let mut roots = self.late.iter().chain(&self.added);
        roots.any(|root| covers(root, path)) && self.hides(path).is_none()
    }

    /// Whether a writable root lies beneath `path`, which has no guarded name.
    pub(super) fn leads_to_root(&self, path: &[u8]) -> bool {
        self.names.matches(path).is_none() && self.writable.iter().any(|root| root != path && covers(path, root))
    }
}

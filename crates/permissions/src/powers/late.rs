//! Writable roots that do not exist yet. The run may create the directories that lead to them. At
//! level restricted the kernel does not let the run read them, because Landlock rules apply to
//! objects that existed at the start.

use super::AttemptPermissions;

impl AttemptPermissions {
    /// Returns whether the broker decides on each open for reading.
    pub fn asks_reads(&self) -> bool {
        self.traced || !self.late.paths().is_empty()
    }

    /// Returns whether the broker opens some files for reading.
    pub fn reads_late(&self) -> bool {
        !self.late.paths().is_empty()
    }

    /// Returns whether the broker opens the object at `path` for reading, because the run may read
    /// it and the kernel does not let it.
    pub fn is_read_late(&self, path: &[u8]) -> bool {
        (self.late.covers(path) || self.added.covers(path)) && self.hidden_refusal(path).is_none()
    }

    /// Returns whether a writable root is beneath `path`, which has no guarded name.
    pub(super) fn leads_to_root(&self, path: &[u8]) -> bool {
        self.names.find_match(path).is_none() && self.writable.reaches_beneath(path)
    }
}

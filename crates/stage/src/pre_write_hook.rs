//! Hook before a staged run changes a path. Must not depend on how the change is made.

use std::path::{Path, PathBuf};

use super::backup_tree::BackupTree;
use super::conflict::BaselineRecorder;
use super::error::PathError;

/// Hook before a change, for one of the two trees that can receive the run's writes.
#[derive(Debug)]
pub enum PreWriteHook {
    /// An overlay receives them; the hook records the lower object.
    Noted(BaselineRecorder),
    /// The workspace itself receives them; the hook keeps the original in the backup tree.
    BackUp(BackupTree),
}

impl PreWriteHook {
    /// Prepares a change of the object at the absolute `path`; call it before the change.
    /// `rewrites` is true if the object itself may change, not only its name.
    ///
    /// # Errors
    /// [`PathError`]; the change must not be made then.
    pub fn before_change(&mut self, path: &Path, rewrites: bool) -> Result<(), PathError> {
        match self {
            Self::Noted(recorder) => recorder.before_change(path),
            Self::BackUp(backup) => backup.before_change(path, rewrites),
        }
    }

    /// See [`BackupTree::copy_of`].
    pub fn copy_of(&self, path: &Path, device: u64, inode: u64) -> Option<PathBuf> {
        match self {
            Self::Noted(_) => None,
            Self::BackUp(backup) => backup.copy_of(path, device, inode),
        }
    }

    /// See [`BackupTree::is_original_directory`]. Returns false for an overlay, which refuses such
    /// renames itself.
    pub fn is_original_directory(&self, path: &Path) -> bool {
        match self {
            Self::Noted(_) => false,
            Self::BackUp(backup) => backup.is_original_directory(path),
        }
    }
}

//! What is done before a staged run changes a path. It must not know how the
//! change is made.

use std::path::{Path, PathBuf};

use super::aside::Aside;
use super::conflict::Witness;
use super::error::PathError;

/// One of two, by what holds the run's writes.
#[derive(Debug)]
pub enum Precaution {
    /// An overlay does; what lies below is noted.
    Noted(Witness),
    /// The workspace itself does; what was there is put aside.
    PutAside(Aside),
}

impl Precaution {
    /// To be called before the object at the absolute `path` is changed;
    /// `rewrites` where the object itself may be, and not only its name.
    ///
    /// # Errors
    /// The change must not be made then.
    pub fn before_change(&mut self, path: &Path, rewrites: bool) -> Result<(), PathError> {
        match self {
            Self::Noted(witness) => witness.before_change(path),
            Self::PutAside(aside) => aside.before_change(path, rewrites),
        }
    }

    /// See [`Aside::copy_of`].
    pub fn copy_of(&self, path: &Path, device: u64, inode: u64) -> Option<PathBuf> {
        match self {
            Self::Noted(_) => None,
            Self::PutAside(aside) => aside.copy_of(path, device, inode),
        }
    }

    /// See [`Aside::is_original_directory`]. An overlay says so itself.
    pub fn is_original_directory(&self, path: &Path) -> bool {
        match self {
            Self::Noted(_) => false,
            Self::PutAside(aside) => aside.is_original_directory(path),
        }
    }
}

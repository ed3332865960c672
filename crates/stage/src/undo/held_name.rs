//! A name in the workspace with its open directory. Another run may rename the directory at any
//! moment; an object put in it is then at another path than intended. Must not depend on the object
//! or the reason.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};

use stockade_files::object::{TreeObject, to_os_str};
use stockade_sys::Errno;

use super::end_record::{find_beneath, open_directory_beneath};
use super::journal::key_of;
use super::paths::split_path;
use super::restore::WorkspaceRestorer;
use super::store::UndoRun;

/// A path, and its directory as it was found there.
pub(super) struct RestoreTarget<'p> {
    pub path: &'p [u8],
    pub held: OwnedFd,
    pub name: &'p OsStr,
}

impl<'p> RestoreTarget<'p> {
    pub fn at_path(run: &UndoRun, path: &'p [u8]) -> Result<Self, Errno> {
        let (above, name) = split_path(path);
        Ok(Self { path, held: open_directory_beneath(run.root.as_fd(), above)?, name: to_os_str(name) })
    }

    /// Finds the object with the name in the open directory.
    pub fn find_object(&self) -> Result<Option<TreeObject>, Errno> {
        TreeObject::open_entry(self.held.as_fd(), self.name)
    }

    /// Returns the open directory as an object.
    pub fn directory_object(&self) -> Result<TreeObject, Errno> {
        TreeObject::duplicate(&self.held)
    }

    /// Returns whether the open directory is still at the path.
    fn is_in_place(&self, run: &UndoRun) -> Result<bool, Errno> {
        let held = self.directory_object()?;
        let found = find_beneath(run.root.as_fd(), split_path(self.path).0)?;
        Ok(found.is_some_and(|found| key_of(&found) == key_of(&held)))
    }
}

impl WorkspaceRestorer<'_, '_> {
    /// Gives an object the name of a spot. Before and after, checks that the name is still at its
    /// path, and that it is not newly guarded there. Another run may have moved the directory, or
    /// made a file beside it. Then takes the name back, out of the open directory, wherever that is
    /// now. Returns whether the name stays.
    pub(super) fn give_name(
        &mut self,
        spot: &RestoreTarget<'_>,
        give: impl FnOnce() -> Result<(), Errno>,
        take_back: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        let run = self.comparing.run;
        if !spot.is_in_place(run)? {
            return Err(Errno::STALE);
        }
        if self.is_planted(spot.path) {
            return Ok(false);
        }
        give()?;
        let put = spot.find_object();
        if let Ok(Some(put)) = &put {
            self.put.insert(key_of(put), put.changed_time());
        }
        let is_in_place = put.is_ok_and(|put| put.is_some()) && spot.is_in_place(run).unwrap_or(false);
        if is_in_place && !self.is_planted(spot.path) {
            return Ok(true);
        }
        take_back()?;
        if is_in_place { Ok(false) } else { Err(Errno::STALE) }
    }
}

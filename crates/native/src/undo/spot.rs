//! A name of the workspace whose directory is held. The directory may get another name at any
//! moment, by a run that goes on: what is put in it then is at another path than was judged.
//! Must not know what is put, or why.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};

use stockade_files::object::{Object, os};
use stockade_sys::Errno;

use super::journal::key_of;
use super::restore::Restoring;
use super::settle::{directory, find};
use super::store::UndoRun;

/// A path, and its directory as it was found there.
pub(super) struct Spot<'p> {
    pub path: &'p [u8],
    pub held: OwnedFd,
    pub name: &'p OsStr,
}

impl<'p> Spot<'p> {
    pub fn of(run: &UndoRun, path: &'p [u8]) -> Result<Self, Errno> {
        let (above, name) = split(path);
        Ok(Self { path, held: directory(run.root.as_fd(), above)?, name: os(name) })
    }

    /// What has the name in the directory that is held.
    pub fn find(&self) -> Result<Option<Object>, Errno> {
        Object::find(self.held.as_fd(), self.name)
    }

    /// The directory that is held.
    pub fn directory(&self) -> Result<Object, Errno> {
        Object::of(rustix::io::fcntl_dupfd_cloexec(&self.held, 3)?)
    }

    /// Whether the directory that is held is still the one of the path.
    fn is_in_place(&self, run: &UndoRun) -> Result<bool, Errno> {
        let held = self.directory()?;
        let found = find(run.root.as_fd(), split(self.path).0)?;
        Ok(found.is_some_and(|found| key_of(&found) == key_of(&held)))
    }
}

/// The path of the directory, and the name in it.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

impl Restoring<'_, '_> {
    /// Gives something the name of a spot. Before and after, it is looked whether the name is
    /// still at its path, and whether it would be run or obeyed there: a run that goes on may
    /// have moved the directory, or made something beside it. Then it is taken back, out of
    /// the directory that is held, wherever that is now. Tells whether it stays.
    pub(super) fn give(
        &mut self,
        spot: &Spot<'_>,
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
        let put = spot.find();
        if let Ok(Some(put)) = &put {
            self.put.insert(key_of(put), put.changed());
        }
        let is_in_place = put.is_ok_and(|put| put.is_some()) && spot.is_in_place(run).unwrap_or(false);
        if is_in_place && !self.is_planted(spot.path) {
            return Ok(true);
        }
        take_back()?;
        if is_in_place { Ok(false) } else { Err(Errno::STALE) }
    }
}

//! Carries out the steps of a decided commit, and undoes them. Each step first checks whether it
//! was done, so both can be repeated after any interruption. An object that appeared at a path
//! after the preparation is never replaced: the step fails, and the commit is undone.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{RenameFlags, renameat_with};
use stockade_sys::Errno;

use super::error::{At, PathError};
use super::journal::{Settings, Step};
use super::watch::{Point, Watch};
use stockade_files::object::{Kind, Mark, Object, Time, directory_beneath, names, os};

/// Most levels of a directory to be removed that are scanned.
const DEPTH_MAX: usize = 400;

/// Directories and checks that the steps use.
pub(super) struct Ground<'a> {
    pub workspace: BorrowedFd<'a>,
    pub depot: BorrowedFd<'a>,
    /// Start of the conflict check; later changes were not checked before the decision.
    pub checked: Time,
    /// Returns an error if the object that was just put at a path must be removed again. The flag
    /// is true if the path was free before; otherwise only the content beneath it is new.
    pub stays: &'a dyn Fn(&Path, bool) -> Result<(), PathError>,
}

/// Carries out all steps.
pub(super) fn forward(ground: &Ground<'_>, steps: &[Step], watch: &mut dyn Watch) -> Result<(), PathError> {
    for (done, step) in steps.iter().enumerate() {
        ground.carry_out(step, watch)?;
        watch.reached(Point::Step).at(step.path())?;
        watch.progress(done + 1, steps.len());
    }
    Ok(())
}

/// Undoes all steps, the last one first. Moves change the times of directories, so these are
/// restored at the end.
pub(super) fn backward(ground: &Ground<'_>, steps: &[Step], watch: &mut dyn Watch) -> Result<(), PathError> {
    for step in steps.iter().rev() {
        ground.take_back(step, watch)?;
        watch.reached(Point::Back).at(step.path())?;
    }
    for step in steps {
        if let Step::Attributes { path, inode, before, .. } = step {
            ground.set(path.as_path(), *inode, before)?;
        }
    }
    // Last, because the other paths may be reachable only through directories that were opened up.
    for step in steps.iter().rev() {
        if let Step::Open { path, before } = step {
            ground.set_mode(path.as_path(), *before)?;
        }
    }
    Ok(())
}

impl Ground<'_> {
    fn carry_out(&self, step: &Step, watch: &mut dyn Watch) -> Result<(), PathError> {
        match step {
            Step::Open { path, before } => self.set_mode(path.as_path(), before | 0o700),
            Step::Remove { path, slot, old } => self.remove(path.as_path(), *slot, old),
            Step::Put { path, slot, new, old } => self.put(path.as_path(), *slot, *new, old.as_ref(), watch),
            Step::Attributes { path, inode, after, .. } => self.set(path.as_path(), *inode, after),
        }
    }

    fn take_back(&self, step: &Step, watch: &mut dyn Watch) -> Result<(), PathError> {
        match step {
            Step::Open { .. } => Ok(()),
            Step::Remove { path, slot, old } => self.put_back(path.as_path(), &slot_name(*slot), old.inode),
            Step::Put { path, slot, new, old } => self.take_out(path.as_path(), *slot, *new, old.as_ref(), watch),
            Step::Attributes { path, inode, before, .. } => self.set(path.as_path(), *inode, before),
        }
    }

    /// Opens the parent directory of a path and looks up its last name.
    fn place<'p>(&self, path: &'p Path) -> Result<Place<'p>, PathError> {
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            return Err(PathError::because(path, "it cannot be replaced"));
        };
        let directory = directory_beneath(self.workspace, parent).at(path)?;
        let there = Object::find(directory.as_fd(), name).at(path)?;
        Ok(Place { path, directory, name, there })
    }

    fn in_depot(&self, slot: &str, path: &Path) -> Result<Option<Object>, PathError> {
        Object::find(self.depot, OsStr::new(slot)).at(path)
    }

    fn remove(&self, path: &Path, slot: u32, old: &Mark) -> Result<(), PathError> {
        let name = slot_name(slot);
        let place = self.place(path)?;
        match &place.there {
            Some(there) if is_the_same(there, old) => {
                place.move_to(self.depot, &name)?;
                self.must_be_old(&place, &name, old)
            }
            None => Ok(()),
            Some(_) if self.in_depot(&name, path)?.is_some() => Ok(()),
            Some(_) => Err(meanwhile(path)),
        }
    }

    /// Checks a removed object again in the commit area, out of reach of other processes. Between
    /// the check and the move another process may have changed it, or put an entry in it.
    fn must_be_old(&self, place: &Place<'_>, slot: &str, old: &Mark) -> Result<(), PathError> {
        let moved = self.in_depot(slot, place.path)?;
        let moved = moved.ok_or_else(|| PathError::new(place.path, Errno::NOENT))?;
        if is_the_same(&moved, old) && !self.holds_newer(&moved, place.path, 0)? {
            return Ok(());
        }
        place.take_from(self.depot, slot)?;
        Err(meanwhile(place.path))
    }

    /// Returns whether an entry of a directory is newer than the conflict check.
    fn holds_newer(&self, directory: &Object, path: &Path, depth: usize) -> Result<bool, PathError> {
        if !directory.is_directory() {
            return Ok(false);
        }
        if depth > DEPTH_MAX {
            return Err(PathError::because(path, "it lies too deep to be looked at"));
        }
        for name in names(directory.fd.as_fd()).at(path)? {
            let path = path.join(os(&name));
            let Some(inner) = Object::find(directory.fd.as_fd(), os(&name)).at(&path)? else { continue };
            if inner.changed() >= self.checked || self.holds_newer(&inner, &path, depth + 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn put(
        &self,
        path: &Path,
        slot: u32,
        new: u64,
        old: Option<&Mark>,
        watch: &mut dyn Watch,
    ) -> Result<(), PathError> {
        let name = slot_name(slot);
        let place = self.place(path)?;
        if place.holds(new) {
            return Ok(());
        }
        if self.in_depot(&name, path)?.is_none_or(|object| object.inode() != new) {
            return Err(PathError::because(path, "its new content is gone"));
        }
        let Some(there) = &place.there else {
            // The old object was moved away before an interruption, or another process removed it.
            place.take_from(self.depot, &name)?;
            return self.must_stay(&place, new, old.is_none(), || place.move_to(self.depot, &name));
        };
        if !old.is_some_and(|old| is_the_same(there, old)) {
            return Err(meanwhile(path));
        }
        match place.exchange(self.depot, &name) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                place.move_to(self.depot, &aside(slot))?;
                watch.reached(Point::Aside).at(path)?;
                place.take_from(self.depot, &name)?;
                return self.must_stay(&place, new, false, || place.move_to(self.depot, &name));
            }
            Err(errno) => return Err(PathError::new(path, errno)),
        }
        // Between the check and the exchange another process may have put a different object.
        let came_out = self.in_depot(&name, path)?;
        if !came_out.is_some_and(|object| old.is_some_and(|old| is_the_same(&object, old))) {
            place.exchange(self.depot, &name).at(path)?;
            return Err(meanwhile(path));
        }
        self.must_stay(&place, new, false, || place.exchange(self.depot, &name).at(path))
    }

    /// Checks the object that was just put. Meanwhile its directory may have been renamed, or
    /// another process may have put a file beside it that makes it protected. Then the object is
    /// removed again, from the open directory, wherever that directory is now.
    fn must_stay(
        &self,
        place: &Place<'_>,
        new: u64,
        is_new: bool,
        take_back: impl Fn() -> Result<(), PathError>,
    ) -> Result<(), PathError> {
        let here = Object::beneath(self.workspace, place.path).at(place.path)?;
        let stays = match here {
            Some(object) if object.inode() == new => (self.stays)(place.path, is_new),
            _ => Err(meanwhile(place.path)),
        };
        let still = || Object::find(place.directory.as_fd(), place.name);
        if stays.is_err() && matches!(still(), Ok(Some(object)) if object.inode() == new) {
            take_back()?;
        }
        stays
    }

    fn take_out(
        &self,
        path: &Path,
        slot: u32,
        new: u64,
        old: Option<&Mark>,
        watch: &mut dyn Watch,
    ) -> Result<(), PathError> {
        let name = slot_name(slot);
        let place = self.place(path)?;
        let Some(old) = old else {
            return if place.holds(new) { place.move_to(self.depot, &name) } else { Ok(()) };
        };
        if self.in_depot(&aside(slot), path)?.is_some() {
            if place.holds(new) {
                place.move_to(self.depot, &name)?;
                watch.reached(Point::Aside).at(path)?;
            }
            return self.put_back(path, &aside(slot), old.inode);
        }
        if !place.holds(new) {
            return Ok(());
        }
        match self.in_depot(&name, path)? {
            Some(object) if object.inode() == old.inode => place.exchange(self.depot, &name).at(path),
            // Another process had removed the old object.
            _ => place.move_to(self.depot, &name),
        }
    }

    fn put_back(&self, path: &Path, slot: &str, inode: u64) -> Result<(), PathError> {
        let place = self.place(path)?;
        let kept = self.in_depot(slot, path)?.is_some_and(|object| object.inode() == inode);
        if kept && place.there.is_none() { place.take_from(self.depot, slot) } else { Ok(()) }
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<(), PathError> {
        match Object::beneath(self.workspace, path).at(path)? {
            Some(object) if object.is_directory() => object.set_mode(mode).at(path),
            _ => Ok(()),
        }
    }

    fn set(&self, path: &Path, inode: u64, settings: &Settings) -> Result<(), PathError> {
        match Object::beneath(self.workspace, path).at(path)? {
            Some(object) if object.inode() == inode => apply_settings(&object, settings).at(path),
            _ => Ok(()),
        }
    }
}

/// Sets the given metadata, the time last because every other change updates it.
pub(super) fn apply_settings(object: &Object, settings: &Settings) -> Result<(), Errno> {
    if let Some(wanted) = &settings.attributes {
        let present = object.attributes()?;
        for (name, _) in present.iter().filter(|(name, _)| !wanted.iter().any(|(other, _)| other == name)) {
            object.remove_attribute(name.as_bytes())?;
        }
        for (name, value) in wanted.iter().filter(|pair| !present.contains(pair)) {
            object.set_attribute(name.as_bytes(), value.as_bytes())?;
        }
    }
    if let Some(mode) = settings.mode
        && object.kind() != Kind::Link
    {
        object.set_mode(mode)?;
    }
    settings.modified.map_or(Ok(()), |time| object.set_modified(time))
}

/// A name in the workspace, with its parent directory open.
struct Place<'p> {
    path: &'p Path,
    directory: OwnedFd,
    name: &'p OsStr,
    there: Option<Object>,
}

impl Place<'_> {
    fn holds(&self, inode: u64) -> bool {
        self.there.as_ref().is_some_and(|there| there.inode() == inode)
    }

    fn move_to(&self, depot: BorrowedFd<'_>, slot: &str) -> Result<(), PathError> {
        move_name(self.directory.as_fd(), self.name, depot, OsStr::new(slot)).at(self.path)
    }

    fn take_from(&self, depot: BorrowedFd<'_>, slot: &str) -> Result<(), PathError> {
        match move_name(depot, OsStr::new(slot), self.directory.as_fd(), self.name) {
            Err(Errno::EXIST) => Err(meanwhile(self.path)),
            other => other.at(self.path),
        }
    }

    fn exchange(&self, depot: BorrowedFd<'_>, slot: &str) -> Result<(), Errno> {
        renameat_with(depot, OsStr::new(slot), &self.directory, self.name, RenameFlags::EXCHANGE)
    }
}

/// Moves a name to a free name.
fn move_name(from: BorrowedFd<'_>, old: &OsStr, to: BorrowedFd<'_>, new: &OsStr) -> Result<(), Errno> {
    match renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        // Some filesystems do not support the flag.
        Err(Errno::INVAL | Errno::NOSYS) => match Object::find(to, new)? {
            Some(_) => Err(Errno::EXIST),
            None => rustix::fs::renameat(from, old, to, new),
        },
        other => other,
    }
}

/// Returns whether the object is the marked one, unchanged. Ignores the change time (`ctime`),
/// which moves with the name. The content of a directory is checked before.
fn is_the_same(object: &Object, mark: &Mark) -> bool {
    object.inode() == mark.inode
        && object.kind() == mark.kind
        && (object.is_directory() || (object.size(), object.modified()) == (mark.size, mark.modified))
}

fn meanwhile(path: &Path) -> PathError {
    PathError::because(path, "it changed in the workspace at this moment")
}

/// Returns the name of a slot.
pub(super) fn slot_name(slot: u32) -> String {
    slot.to_string()
}

/// Returns the name of the old object on filesystems that cannot exchange names.
fn aside(slot: u32) -> String {
    format!("{slot}.old")
}

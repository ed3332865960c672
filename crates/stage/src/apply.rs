//! Carries out the steps of a decided commit, and undoes them. Each step first checks whether it
//! was done, so both can be repeated after any interruption. An object that appeared at a path
//! after the preparation is never replaced: the step fails, and the commit is undone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{RenameFlags, renameat_with};
use stockade_files::object::{ChangeMark, ObjectKind, TreeObject, directory_beneath};
use stockade_sys::Errno;

use super::error::{PathContext, PathError};
use super::journal::{CommitStep, ObjectMetadata, StageJournal};
use super::select::CommitGuard;
use super::stage_directory::OpenStage;
use super::watch::{CommitObserver, CommitPoint};

/// Most levels of a directory to be removed that are scanned.
const MAX_DEPTH: usize = 400;

/// A decided commit, with the directories and checks that its steps use.
pub(super) struct CommitContext<'a> {
    pub stage: &'a OpenStage,
    pub journal: &'a StageJournal,
    pub workspace: BorrowedFd<'a>,
    pub commit_area: BorrowedFd<'a>,
    pub guard: &'a CommitGuard<'a>,
    settled: BTreeSet<&'a Path>,
}

impl<'a> CommitContext<'a> {
    pub fn new(
        stage: &'a OpenStage,
        journal: &'a StageJournal,
        (workspace, commit_area): (BorrowedFd<'a>, BorrowedFd<'a>),
        guard: &'a CommitGuard<'a>,
    ) -> Self {
        let settled = journal.settled.iter().map(|path| path.as_path()).collect();
        Self { stage, journal, workspace, commit_area, guard, settled }
    }

    /// Checks again the object that a step just put at a path, with its content. `is_new` is true
    /// if the path was free before; otherwise only the content beneath it is new.
    fn recheck(&self, put: &Path, is_new: bool) -> Result<(), PathError> {
        if is_new {
            self.guard.recheck_path(put)?;
        }
        let beneath = self.settled.range::<Path, _>((Bound::Excluded(put), Bound::Unbounded));
        beneath.take_while(|path| path.starts_with(put)).try_for_each(|path| self.guard.recheck_path(path))
    }
}

/// Carries out all steps.
pub(super) fn carry_out_steps(ground: &CommitContext<'_>, watch: &mut dyn CommitObserver) -> Result<(), PathError> {
    let steps = &ground.journal.steps;
    for (done, step) in steps.iter().enumerate() {
        ground.carry_out(step, watch)?;
        watch.on_point(CommitPoint::Step).at_path(step.path())?;
        watch.on_progress(done + 1, steps.len());
    }
    Ok(())
}

/// Undoes all steps, the last one first. Moves change the times of directories, so these are
/// restored at the end.
pub(super) fn undo_steps(ground: &CommitContext<'_>, watch: &mut dyn CommitObserver) -> Result<(), PathError> {
    let steps = &ground.journal.steps;
    for step in steps.iter().rev() {
        ground.take_back(step, watch)?;
        watch.on_point(CommitPoint::Back).at_path(step.path())?;
    }
    for step in steps {
        if let CommitStep::Attributes { path, inode, before, .. } = step {
            ground.apply_metadata(path.as_path(), *inode, before)?;
        }
    }
    // Last, because the other paths may be reachable only through directories that were opened up.
    for step in steps.iter().rev() {
        if let CommitStep::Open { path, before } = step {
            ground.set_mode(path.as_path(), *before)?;
        }
    }
    Ok(())
}

impl CommitContext<'_> {
    fn carry_out(&self, step: &CommitStep, watch: &mut dyn CommitObserver) -> Result<(), PathError> {
        match step {
            CommitStep::Open { path, before } => self.set_mode(path.as_path(), before | 0o700),
            CommitStep::Remove { path, slot, old } => self.remove(path.as_path(), *slot, old),
            CommitStep::Put { path, slot, new, old } => {
                self.put_object(path.as_path(), *slot, *new, old.as_ref(), watch)
            }
            CommitStep::Attributes { path, inode, after, .. } => self.apply_metadata(path.as_path(), *inode, after),
        }
    }

    fn take_back(&self, step: &CommitStep, watch: &mut dyn CommitObserver) -> Result<(), PathError> {
        match step {
            CommitStep::Open { .. } => Ok(()),
            CommitStep::Remove { path, slot, old } => self.put_back(path.as_path(), &slot_name(*slot), old.inode),
            CommitStep::Put { path, slot, new, old } => self.take_out(path.as_path(), *slot, *new, old.as_ref(), watch),
            CommitStep::Attributes { path, inode, before, .. } => self.apply_metadata(path.as_path(), *inode, before),
        }
    }

    /// Opens the parent directory of a path and looks up its last name.
    fn open_entry<'p>(&self, path: &'p Path) -> Result<WorkspaceEntry<'p>, PathError> {
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            return Err(PathError::from_reason(path, "it cannot be replaced"));
        };
        let directory = directory_beneath(self.workspace, parent).at_path(path)?;
        let there = TreeObject::open_entry(directory.as_fd(), name).at_path(path)?;
        Ok(WorkspaceEntry { path, directory, name, there })
    }

    fn find_in_slot(&self, slot: &str, path: &Path) -> Result<Option<TreeObject>, PathError> {
        TreeObject::open_entry(self.commit_area, OsStr::new(slot)).at_path(path)
    }

    fn remove(&self, path: &Path, slot: u32, old: &ChangeMark) -> Result<(), PathError> {
        let name = slot_name(slot);
        let entry = self.open_entry(path)?;
        match &entry.there {
            Some(there) if is_the_same(there, old) => {
                entry.move_to(self.commit_area, &name)?;
                self.must_be_old(&entry, &name, old)
            }
            None => Ok(()),
            Some(_) if self.find_in_slot(&name, path)?.is_some() => Ok(()),
            Some(_) => Err(concurrent_change_error(path)),
        }
    }

    /// Checks a removed object again in the commit area, out of reach of other processes. Between
    /// the check and the move another process may have changed it, or put an entry in it.
    fn must_be_old(&self, entry: &WorkspaceEntry<'_>, slot: &str, old: &ChangeMark) -> Result<(), PathError> {
        let moved = self.find_in_slot(slot, entry.path)?;
        let moved = moved.ok_or_else(|| PathError::new(entry.path, Errno::NOENT))?;
        if is_the_same(&moved, old) && !self.holds_newer(&moved, entry.path, 0)? {
            return Ok(());
        }
        entry.take_from(self.commit_area, slot)?;
        Err(concurrent_change_error(entry.path))
    }

    /// Returns whether an entry of a directory is newer than the conflict check.
    fn holds_newer(&self, directory: &TreeObject, path: &Path, depth: usize) -> Result<bool, PathError> {
        if !directory.is_directory() {
            return Ok(false);
        }
        if depth > MAX_DEPTH {
            return Err(PathError::from_reason(path, "it is nested too deeply to be examined"));
        }
        for (name, inner) in directory.entries().at_path(path)? {
            let path = path.join(name);
            let inner = inner.at_path(&path)?;
            if inner.changed_time() >= self.journal.checked || self.holds_newer(&inner, &path, depth + 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn put_object(
        &self,
        path: &Path,
        slot: u32,
        new: u64,
        old: Option<&ChangeMark>,
        watch: &mut dyn CommitObserver,
    ) -> Result<(), PathError> {
        let name = slot_name(slot);
        let entry = self.open_entry(path)?;
        if entry.has_inode(new) {
            return Ok(());
        }
        if self.find_in_slot(&name, path)?.is_none_or(|object| object.inode() != new) {
            return Err(PathError::from_reason(path, "its new content is missing"));
        }
        let Some(there) = &entry.there else {
            // The old object was moved away before an interruption, or another process removed it.
            entry.take_from(self.commit_area, &name)?;
            return self.must_stay(&entry, new, old.is_none(), || entry.move_to(self.commit_area, &name));
        };
        if !old.is_some_and(|old| is_the_same(there, old)) {
            return Err(concurrent_change_error(path));
        }
        match entry.exchange_with_slot(self.commit_area, &name) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                entry.move_to(self.commit_area, &old_slot_name(slot))?;
                watch.on_point(CommitPoint::Backup).at_path(path)?;
                entry.take_from(self.commit_area, &name)?;
                return self.must_stay(&entry, new, false, || entry.move_to(self.commit_area, &name));
            }
            Err(errno) => return Err(PathError::new(path, errno)),
        }
        // Between the check and the exchange another process may have put a different object.
        let came_out = self.find_in_slot(&name, path)?;
        if !came_out.is_some_and(|object| old.is_some_and(|old| is_the_same(&object, old))) {
            entry.exchange_with_slot(self.commit_area, &name).at_path(path)?;
            return Err(concurrent_change_error(path));
        }
        self.must_stay(&entry, new, false, || entry.exchange_with_slot(self.commit_area, &name).at_path(path))
    }

    /// Checks the object that was just put. Meanwhile its directory may have been renamed, or
    /// another process may have put a file beside it that makes it protected. Then the object is
    /// removed again, from the open directory, wherever that directory is now.
    fn must_stay(
        &self,
        entry: &WorkspaceEntry<'_>,
        new: u64,
        is_new: bool,
        take_back: impl Fn() -> Result<(), PathError>,
    ) -> Result<(), PathError> {
        let here = TreeObject::open_beneath(self.workspace, entry.path).at_path(entry.path)?;
        let stays = match here {
            Some(object) if object.inode() == new => self.recheck(entry.path, is_new),
            _ => Err(concurrent_change_error(entry.path)),
        };
        let still = || TreeObject::open_entry(entry.directory.as_fd(), entry.name);
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
        old: Option<&ChangeMark>,
        watch: &mut dyn CommitObserver,
    ) -> Result<(), PathError> {
        let name = slot_name(slot);
        let entry = self.open_entry(path)?;
        let Some(old) = old else {
            return if entry.has_inode(new) { entry.move_to(self.commit_area, &name) } else { Ok(()) };
        };
        if self.find_in_slot(&old_slot_name(slot), path)?.is_some() {
            if entry.has_inode(new) {
                entry.move_to(self.commit_area, &name)?;
                watch.on_point(CommitPoint::Backup).at_path(path)?;
            }
            return self.put_back(path, &old_slot_name(slot), old.inode);
        }
        if !entry.has_inode(new) {
            return Ok(());
        }
        match self.find_in_slot(&name, path)? {
            Some(object) if object.inode() == old.inode => {
                entry.exchange_with_slot(self.commit_area, &name).at_path(path)
            }
            // Another process had removed the old object.
            _ => entry.move_to(self.commit_area, &name),
        }
    }

    fn put_back(&self, path: &Path, slot: &str, inode: u64) -> Result<(), PathError> {
        let entry = self.open_entry(path)?;
        let is_in_slot = self.find_in_slot(slot, path)?.is_some_and(|object| object.inode() == inode);
        if is_in_slot && entry.there.is_none() { entry.take_from(self.commit_area, slot) } else { Ok(()) }
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<(), PathError> {
        match TreeObject::open_beneath(self.workspace, path).at_path(path)? {
            Some(object) if object.is_directory() => object.set_mode(mode).at_path(path),
            _ => Ok(()),
        }
    }

    fn apply_metadata(&self, path: &Path, inode: u64, settings: &ObjectMetadata) -> Result<(), PathError> {
        match TreeObject::open_beneath(self.workspace, path).at_path(path)? {
            Some(object) if object.inode() == inode => apply_settings(&object, settings).at_path(path),
            _ => Ok(()),
        }
    }
}

/// Sets the given metadata, the time last because every other change updates it.
pub(super) fn apply_settings(object: &TreeObject, settings: &ObjectMetadata) -> Result<(), Errno> {
    settings.attributes.iter().try_for_each(|after| object.replace_attributes(after))?;
    if let Some(mode) = settings.mode
        && object.kind() != ObjectKind::Link
    {
        object.set_mode(mode)?;
    }
    settings.modified.map_or(Ok(()), |time| object.set_modified(time))
}

/// A name in the workspace, with its parent directory open.
struct WorkspaceEntry<'p> {
    path: &'p Path,
    directory: OwnedFd,
    name: &'p OsStr,
    there: Option<TreeObject>,
}

impl WorkspaceEntry<'_> {
    fn has_inode(&self, inode: u64) -> bool {
        self.there.as_ref().is_some_and(|there| there.inode() == inode)
    }

    fn move_to(&self, commit_area: BorrowedFd<'_>, slot: &str) -> Result<(), PathError> {
        move_name(self.directory.as_fd(), self.name, commit_area, OsStr::new(slot)).at_path(self.path)
    }

    fn take_from(&self, commit_area: BorrowedFd<'_>, slot: &str) -> Result<(), PathError> {
        match move_name(commit_area, OsStr::new(slot), self.directory.as_fd(), self.name) {
            Err(Errno::EXIST) => Err(concurrent_change_error(self.path)),
            other => other.at_path(self.path),
        }
    }

    fn exchange_with_slot(&self, commit_area: BorrowedFd<'_>, slot: &str) -> Result<(), Errno> {
        renameat_with(commit_area, OsStr::new(slot), &self.directory, self.name, RenameFlags::EXCHANGE)
    }
}

/// Moves a name to a free name.
fn move_name(from: BorrowedFd<'_>, old: &OsStr, to: BorrowedFd<'_>, new: &OsStr) -> Result<(), Errno> {
    match renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        // Some filesystems do not support the flag.
        Err(Errno::INVAL | Errno::NOSYS) => match TreeObject::open_entry(to, new)? {
            Some(_) => Err(Errno::EXIST),
            None => rustix::fs::renameat(from, old, to, new),
        },
        other => other,
    }
}

/// Returns whether the object is the marked one, unchanged. Ignores the change time (`ctime`),
/// which moves with the name. The content of a directory is checked before.
fn is_the_same(object: &TreeObject, mark: &ChangeMark) -> bool {
    object.inode() == mark.inode
        && object.kind() == mark.kind
        && (object.is_directory() || (object.size(), object.modified_time()) == (mark.size, mark.modified))
}

fn concurrent_change_error(path: &Path) -> PathError {
    PathError::from_reason(path, "it changed in the workspace during the operation")
}

/// Returns the name of a slot.
pub(super) fn slot_name(slot: u32) -> String {
    slot.to_string()
}

/// Returns the name of the old object on filesystems that cannot exchange names.
fn old_slot_name(slot: u32) -> String {
    format!("{slot}.old")
}

//! Restores a workspace to its state before a run. Every step first checks whether it was done, so
//! it can be repeated after any interruption. No symbolic link is followed, and an object in the
//! way is replaced only if it is still the one that was compared.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, RenameFlags, renameat_with, unlinkat};
use stockade_files::object::{FileTime, ObjectKind, TreeObject, list_entries, to_os_str};
use stockade_sys::Errno;

use super::compare::{
    ComparedPath, ContentSource, RestoreAction, RunComparer, UndoComparison, UndoConflict, has_metadata, is_beneath,
};
use super::end_record::{find_beneath, in_journal};
use super::guard::{REOPENED_REASON, RestoreMoment};
use super::held_name::RestoreTarget;
use super::journal::{JournalLine, ObjectKey, OriginalObject, key_of, open_journal};
use super::newer::creation_time;
use super::paths::{join_path, split_path};
use super::reopen::RestoreOutcome;
use super::store::{UndoError, UndoRun};
use crate::PathError;
use crate::state_files::LineWriter;

/// Most levels of a directory that is removed.
const MAX_DEPTH: usize = 400;

/// Result of a restoration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreResult {
    /// Conflicts, that is, paths that were not restored. `changes` stays empty.
    pub comparison: UndoComparison,
    /// Number of restored paths.
    pub restored: u64,
    /// Paths at which an error occurred.
    pub failed: Vec<PathError>,
    /// False if nothing was done, because of conflicts or because all changes were already
    /// restored.
    pub is_done: bool,
}

/// Callback for each step. An error ends the work there, like a kill.
pub type RestoreCallback<'w> = &'w mut dyn FnMut(&Path) -> Result<(), Errno>;

/// State of one restoration.
pub(super) struct WorkspaceRestorer<'c, 'r> {
    pub(super) comparing: &'c RunComparer<'r>,
    item: &'c [ComparedPath],
    /// True if every object is removed that can be removed before any reference to it is restored.
    is_cleared: bool,
    /// Restored objects, with their change times afterwards.
    pub(super) put: HashMap<ObjectKey, FileTime>,
    /// Directories whose modes were opened up, with their original modes.
    opened: HashMap<Vec<u8>, u32>,
    /// Path of the first restored name of each file with several names.
    pub(super) placed: HashMap<ObjectKey, Vec<u8>>,
    /// Paths that are still needed as a source, with the number of uses.
    pub(super) needed: HashMap<Vec<u8>, usize>,
    failed: Vec<PathError>,
    /// Paths of the touched objects.
    touched: HashMap<ObjectKey, Vec<u8>>,
    writer: LineWriter,
    /// Objects that were in the way and are still needed, moved from the first path to the second.
    backup_paths: Vec<(Vec<u8>, Vec<u8>)>,
    /// Prefix of names that only this run's restoration uses.
    prefix: String,
}

impl UndoRun {
    /// Restores these paths and everything beneath, or all changes. If a path was changed after the
    /// run, does nothing; with `skips_conflicts`, restores the other paths.
    ///
    /// # Errors
    /// [`UndoError`] if the journal or the workspace cannot be read, or if `watch` returns an
    /// error.
    pub fn restore_paths(
        &self,
        paths: &[PathBuf],
        skips_conflicts: bool,
        watch: RestoreCallback<'_>,
    ) -> Result<RestoreResult, UndoError> {
        if self.read_journal()?.is_restored {
            let comparison = UndoComparison { is_restored: true, ..UndoComparison::default() };
            return Ok(RestoreResult { comparison, ..RestoreResult::default() });
        }
        let (mut comparing, was_killed) = RunComparer::new(self)?;
        let item = comparing.compare_entries(paths)?;
        let mut comparison =
            UndoComparison { conflicts: comparing.list_conflicts(&item), was_killed, ..UndoComparison::default() };
        if !comparison.conflicts.is_empty() && !skips_conflicts {
            return Ok(RestoreResult { comparison, ..RestoreResult::default() });
        }
        let mut writer = open_journal(self.directory.as_fd()).map_err(in_journal)?;
        writer.append_line(&JournalLine::Restoring).map_err(in_journal)?;
        comparing.note_directories(&item, &mut writer)?;
        writer.sync().map_err(in_journal)?;
        let conflicts = item.into_iter().filter_map(|one| Some((one.path, one.conflict?))).collect();
        let first = (conflicts, std::mem::take(&mut comparing.newer));
        let (mut comparing, _) = RunComparer::new(self)?;
        let mut item = comparing.compare_entries(paths)?;
        comparing.keep_conflicts(&mut item, first);
        comparison.conflicts = comparing.list_conflicts(&item);
        let changed = item.iter().filter(|item| item.effect.is_some() && item.conflict.is_none()).count();
        let mut restoring = WorkspaceRestorer::new(&comparing, &item, writer);
        restoring.restore_all(watch)?;
        let WorkspaceRestorer { failed, mut writer, .. } = restoring;
        let restored = (changed as u64).saturating_sub(failed.len() as u64);
        if paths.is_empty() && failed.is_empty() && comparison.conflicts.is_empty() {
            writer.append_line(&JournalLine::Restored).and_then(|()| writer.sync()).map_err(in_journal)?;
            self.empty_objects();
        }
        Ok(RestoreResult { comparison, restored, failed, is_done: true })
    }

    /// Removes all kept content, which is not needed any more.
    fn empty_objects(&self) {
        for (name, _) in list_entries(self.objects.as_fd()).unwrap_or_default() {
            // Remaining files use space until the run is forgotten.
            let _ = unlinkat(&self.objects, to_os_str(&name), AtFlags::empty());
        }
    }
}

impl RunComparer<'_> {
    /// Keeps the conflicts of the first comparison.
    fn keep_conflicts(
        &mut self,
        item: &mut [ComparedPath],
        (first, newer): (HashMap<Vec<u8>, UndoConflict>, Vec<Vec<u8>>),
    ) {
        for one in item.iter_mut().filter(|one| one.conflict.is_none()) {
            one.conflict = first.get(&one.path).cloned();
        }
        self.newer.extend(newer);
    }

    /// Records the times of directories in which the restoration changes names but the run did not.
    fn note_directories(&self, item: &[ComparedPath], writer: &mut LineWriter) -> Result<(), UndoError> {
        let acted = item.iter().filter(|item| item.plan != RestoreAction::Stay && item.conflict.is_none());
        let mut noted = BTreeSet::new();
        for path in acted.map(|item| item.path.as_slice()) {
            let above = split_path(path).0;
            if !self.journal.entries.contains_key(above) && !self.is_new(above) && noted.insert(above) {
                let found = find_beneath(self.run.root.as_fd(), above).ok().flatten().filter(TreeObject::is_directory);
                let Some(before) = found.and_then(|found| OriginalObject::from_object(&found).ok()) else { continue };
                let entry = JournalLine::Entry { path: above.into(), before: Some(before) };
                writer.append_line(&entry).map_err(in_journal)?;
            }
        }
        Ok(())
    }
}

impl<'c, 'r> WorkspaceRestorer<'c, 'r> {
    pub(super) fn new(comparing: &'c RunComparer<'r>, item: &'c [ComparedPath], writer: LineWriter) -> Self {
        let mut needed = HashMap::new();
        for item in item.iter().filter(|item| item.conflict.is_none()) {
            if let RestoreAction::Put(Some(ContentSource::Moved(from) | ContentSource::Linked(from))) = &item.plan {
                *needed.entry(from.clone()).or_insert(0) += 1;
            }
        }
        Self {
            comparing,
            item,
            is_cleared: false,
            put: HashMap::new(),
            opened: HashMap::new(),
            placed: HashMap::new(),
            needed,
            failed: Vec::new(),
            touched: HashMap::new(),
            writer,
            backup_paths: Vec::new(),
            prefix: comparing.run.temporary_prefix(),
        }
    }

    /// Carries out all steps in this order:
    /// 1. objects without references to other paths, from the top, each directory before its
    ///    content;
    /// 2. removal of new objects, from the bottom;
    /// 3. objects that make other paths guarded, and then removal of new objects needed until now;
    /// 4. modes and times of directories.
    fn restore_all(&mut self, watch: RestoreCallback<'_>) -> Result<(), UndoError> {
        let item = self.item;
        let puts = item.iter().filter(|one| one.conflict.is_none() && one.plan != RestoreAction::Remove);
        let (mut leading, plain): (Vec<&ComparedPath>, Vec<&ComparedPath>) = puts.partition(|one| self.leads_on(one));
        leading.sort_by_key(|one| self.comparing.leading_order(one));
        let goes = item.iter().rev().filter(|one| one.conflict.is_none() && one.plan == RestoreAction::Remove);
        self.put_all(&plain, watch)?;
        let is_needed = |one: &&ComparedPath| self.is_needed(&one.path, true);
        let (needed, free): (Vec<&ComparedPath>, Vec<&ComparedPath>) = goes.partition(is_needed);
        self.remove_all(&free, watch)?;
        self.is_cleared = true;
        self.put_all(&leading, watch)?;
        self.remove_all(&needed, watch)?;
        for (_, backup_path) in std::mem::take(&mut self.backup_paths) {
            let now = self.find_object(&backup_path).ok().flatten();
            self.step(watch, &backup_path, |this| this.remove(&backup_path, now.as_ref()))?;
        }
        for one in item.iter().rev() {
            self.step(watch, &one.path, |this| this.finish_directory(one))?;
        }
        let opened_modes: Vec<(Vec<u8>, u32)> = std::mem::take(&mut self.opened).into_iter().collect();
        for (path, mode) in opened_modes {
            if let Ok(Some(object)) = self.find_object(&path) {
                let done = object.set_mode(mode);
                self.note_failure(&path, done);
            }
        }
        self.note_touched()
    }

    fn leads_on(&self, one: &ComparedPath) -> bool {
        let kind = one.before.as_ref().map(|before| before.kind);
        one.effect.is_some() && kind.is_some_and(|kind| self.comparing.leads_on(&one.path, kind))
    }

    /// Carries out one step, and notes its failure.
    fn step(
        &mut self,
        watch: RestoreCallback<'_>,
        path: &[u8],
        act: impl FnOnce(&mut Self) -> Result<(), Errno>,
    ) -> Result<(), UndoError> {
        let done = act(self);
        self.note_failure(path, done);
        let path = Path::new(to_os_str(path));
        watch(path).map_err(|errno| PathError::new(path, errno).into())
    }

    fn put_all(&mut self, item: &[&ComparedPath], watch: RestoreCallback<'_>) -> Result<(), UndoError> {
        item.iter().try_for_each(|one| self.step(watch, &one.path, |this| this.restore_path(one)))
    }

    fn remove_all(&mut self, item: &[&ComparedPath], watch: RestoreCallback<'_>) -> Result<(), UndoError> {
        item.iter().try_for_each(|one| self.step(watch, &one.path, |this| this.remove(&one.path, one.now.as_ref())))
    }

    /// Records the change time of an object after it is restored.
    pub(super) fn note_put(&mut self, path: &[u8], object: &TreeObject) -> Result<(), Errno> {
        let found = self.find_object(path)?.filter(|found| key_of(found) == key_of(object)).ok_or(Errno::STALE)?;
        self.put.insert(key_of(&found), found.changed_time());
        Ok(())
    }

    /// Records an object before the restoration changes it or one of its names.
    pub(super) fn record_touch(&mut self, path: &[u8], object: &TreeObject) -> Result<(), Errno> {
        let (device, inode) = key_of(object);
        if self.touched.insert((device, inode), path.to_vec()).is_none() {
            self.writer.append_line(&JournalLine::Touched {
                device,
                inode,
                changed: None,
                born: creation_time(object),
            })?;
        }
        Ok(())
    }

    /// Records the last change times of touched objects; later changes are made by other processes.
    fn note_touched(&mut self) -> Result<(), UndoError> {
        for ((device, inode), path) in std::mem::take(&mut self.touched) {
            let found = self.find_object(&path).ok().flatten().filter(|found| key_of(found) == (device, inode));
            // A new object may get the inode number of a removed one.
            let changed = found.map_or_else(FileTime::default, |found| found.changed_time());
            let line = JournalLine::Touched { device, inode, changed: Some(changed), born: None };
            self.writer.append_line(&line).map_err(in_journal)?;
        }
        Ok(())
    }

    fn note_failure(&mut self, path: &[u8], done: Result<(), Errno>) {
        if let Err(errno) = done {
            let path = if path.is_empty() { Path::new(".") } else { Path::new(to_os_str(path)) };
            self.failed.push(PathError::new(path, errno));
        }
    }

    pub(super) fn find_object(&self, path: &[u8]) -> Result<Option<TreeObject>, Errno> {
        find_beneath(self.comparing.run.root.as_fd(), path)
    }

    /// Opens the parent directory of `path`, makes it writable, and returns the name in it.
    pub(super) fn open_writable_entry<'p>(&mut self, path: &'p [u8]) -> Result<RestoreTarget<'p>, Errno> {
        let spot = RestoreTarget::at_path(self.comparing.run, path)?;
        let above = split_path(path).0;
        self.record_touch(above, &spot.directory_object()?)?;
        self.open_up(above, &spot.held)?;
        Ok(spot)
    }

    fn open_up(&mut self, path: &[u8], held: &OwnedFd) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(held)?;
        let mode = stat.st_mode & stockade_files::object::MODE_BITS;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        if mode & 0o700 != 0o700 && is_own && !rustix::process::geteuid().is_root() {
            self.record_touch(path, &TreeObject::duplicate(held)?)?;
            stockade_sys::actor::change_mode(held.as_fd(), mode | 0o700)?;
            self.opened.entry(path.to_vec()).or_insert(mode);
        }
        Ok(())
    }

    /// Returns whether an object put at this path would be newly guarded. If so, reports it as a
    /// failure.
    pub(super) fn is_planted(&mut self, path: &[u8]) -> bool {
        let rule = if path.is_empty() { None } else { self.comparing.newly_guarded(path, RestoreMoment::Now) };
        let Some(rule) = rule.or_else(|| self.reopening_reason(path)) else { return false };
        let why = UndoConflict::Guarded(rule).to_string();
        self.failed.push(PathError::from_reason(Path::new(to_os_str(path)), &why));
        true
    }

    /// Returns the reason why no reference to other paths may be restored at this path: another
    /// process has put an object at such a path.
    fn reopening_reason(&self, path: &[u8]) -> Option<String> {
        let may_reopen = self.is_cleared && !self.comparing.is_within_mark(path);
        let reopens = || self.comparing.is_reopened(&RestoreOutcome::as_reached(self.item, &self.put));
        (may_reopen && reopens()).then(|| REOPENED_REASON.to_owned())
    }

    /// Returns whether an object is still the one that was compared. Ignores times of an object
    /// that the restoration touched, because restoring another name of it changes them.
    pub(super) fn matches_comparison(&self, item: &TreeObject, now: &TreeObject) -> bool {
        let times = |object: &TreeObject| (object.size(), object.modified_time(), object.changed_time());
        key_of(now) == key_of(item)
            && now.kind() == item.kind()
            && (now.is_directory() || self.touched.contains_key(&key_of(now)) || times(now) == times(item))
    }

    /// Removes the object at a path. If it is still needed, moves it aside and records its new
    /// path, so that it is removed even after an interruption.
    pub(super) fn clear(&mut self, item: &ComparedPath) -> Result<(), Errno> {
        let Some(now) = &item.now else { return Ok(()) };
        if !self.is_needed(&item.path, now.is_directory()) {
            return self.remove(&item.path, Some(now));
        }
        let path = &item.path;
        if !self.find_object(path)?.is_some_and(|found| self.matches_comparison(now, &found)) {
            return Err(Errno::STALE);
        }
        let backup_path = join_path(split_path(path).0, format!("{}-{}", self.prefix, now.inode()).as_bytes());
        self.writer.append_line(&JournalLine::Entry { path: backup_path.as_slice().into(), before: None })?;
        self.record_touch(&backup_path, now)?;
        let spot = self.open_writable_entry(path)?;
        let (held, name, backup_name) = (&spot.held, spot.name, to_os_str(split_path(&backup_path).1));
        renameat_with(held, name, held, backup_name, RenameFlags::NOREPLACE)?;
        if self.find_object(&backup_path)?.is_none_or(|found| key_of(&found) != key_of(now)) {
            renameat_with(held, backup_name, held, name, RenameFlags::NOREPLACE)?;
            return Err(Errno::STALE);
        }
        self.backup_paths.push((path.clone(), backup_path));
        Ok(())
    }

    /// Returns the present path of an object that was at `path` during the comparison.
    pub(super) fn now_at(&self, path: &[u8]) -> Vec<u8> {
        self.backup_paths.iter().fold(path.to_vec(), |path, (old, new)| match path.strip_prefix(old.as_slice()) {
            Some(rest) if rest.is_empty() || rest[0] == b'/' => [new, rest].concat(),
            _ => path,
        })
    }

    /// Returns whether an object at or beneath `path` is still needed as a source.
    fn is_needed(&self, path: &[u8], is_directory: bool) -> bool {
        if self.backup_paths.is_empty() && !is_directory {
            return self.needed.contains_key(path);
        }
        self.needed.keys().map(|needed| self.now_at(needed)).any(|needed| needed == path || is_beneath(&needed, path))
    }

    /// Decreases the number of uses of `path` as a source.
    pub(super) fn release_source(&mut self, path: &[u8]) {
        if let Some(count) = self.needed.get_mut(path) {
            *count -= 1;
            if *count == 0 {
                self.needed.remove(path);
            }
        }
    }

    /// Returns the temporary name, beside `name`, of an incomplete object.
    pub(super) fn partial_name(&self, name: &std::ffi::OsStr) -> OsString {
        use std::os::unix::ffi::OsStrExt as _;
        // Deterministic for each name, so that the next attempt finds the file.
        let sum = name.as_bytes().iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        OsString::from(format!("{}-{sum:x}", self.prefix))
    }

    /// Removes the object at a path, if it is the one that was compared.
    fn remove(&mut self, path: &[u8], item: Option<&TreeObject>) -> Result<(), Errno> {
        if self.is_needed(path, false) {
            return Err(Errno::BUSY);
        }
        let Some(item) = item.filter(|_| !matches!(self.find_object(path), Ok(None))) else { return Ok(()) };
        let spot = self.open_writable_entry(path)?;
        // In the open directory, because the path may name another directory a moment later.
        let now = spot.find_object()?.filter(|now| self.matches_comparison(item, now)).ok_or(Errno::STALE)?;
        if now.is_directory() {
            return self.remove_directory((&spot.held, spot.name), path, now, 0);
        }
        self.record_touch(path, &now)?;
        unlinkat(&spot.held, spot.name, AtFlags::empty())
    }

    /// Removes a directory that the run made. Objects that were changed after the run stay in it.
    fn remove_directory(
        &mut self,
        (held, name): (&OwnedFd, &std::ffi::OsStr),
        path: &[u8],
        directory: TreeObject,
        depth: usize,
    ) -> Result<(), Errno> {
        if depth > MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        self.record_touch(path, &directory)?;
        self.open_up(path, &directory.fd)?;
        for (inner, object) in directory.entries()? {
            let (inner, object) = (inner.as_encoded_bytes(), object?);
            let path = join_path(path, inner);
            if self.is_needed(&path, false)
                || self.comparing.newer.contains(&path)
                || !self.comparing.may_go(&directory, inner, &object)
            {
                continue;
            }
            if object.is_directory() {
                match self.remove_directory((&directory.fd, to_os_str(inner)), &path, object, depth + 1) {
                    Ok(()) | Err(Errno::NOTEMPTY) => {}
                    Err(errno) => return Err(errno),
                }
            } else if self.is_old(&object) || self.is_partial(inner) {
                if object.stat.st_nlink > 1 {
                    self.record_touch(&path, &object)?;
                }
                unlinkat(&directory.fd, to_os_str(inner), AtFlags::empty())?;
            }
        }
        let removed = unlinkat(held, name, AtFlags::REMOVEDIR);
        match removed {
            Ok(()) => {
                self.opened.remove(path);
                Ok(())
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) if depth > 0 => Err(Errno::NOTEMPTY),
            // The remaining entries were reported as conflicts.
            Err(Errno::NOTEMPTY | Errno::EXIST) if !self.comparing.newer.is_empty() => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Returns whether only this or an earlier restoration changed the object after the run.
    fn is_old(&self, object: &TreeObject) -> bool {
        self.comparing.is_content_old(object) || self.touched.contains_key(&key_of(object))
    }

    fn is_partial(&self, name: &[u8]) -> bool {
        name.starts_with(self.prefix.as_bytes())
    }

    /// Sets mode, owner, attributes and time of a directory after all work in it.
    fn finish_directory(&mut self, item: &ComparedPath) -> Result<(), Errno> {
        let Some(before) = item.before.as_ref().filter(|before| before.kind == ObjectKind::Directory) else {
            return Ok(());
        };
        let Some(now) = self.find_object(&item.path)?.filter(TreeObject::is_directory) else { return Ok(()) };
        self.record_touch(&item.path, &now)?;
        let opened = self.opened.remove(&item.path);
        if item.conflict.is_some() {
            return opened.map_or(Ok(()), |mode| now.set_mode(mode));
        }
        if !has_metadata(&now, before) {
            set_attributes(&now, before)?;
        }
        if item.keeps_time { Ok(()) } else { now.set_modified(before.modified) }
    }
}

/// Sets all metadata of an object, the time last because every other change updates it.
pub(super) fn set_metadata(object: &TreeObject, before: &OriginalObject) -> Result<(), Errno> {
    set_attributes(object, before)?;
    object.set_modified(before.modified)
}

pub(super) fn set_attributes(object: &TreeObject, before: &OriginalObject) -> Result<(), Errno> {
    // This also clears the set-user-ID bits, so the mode is set afterwards.
    object.set_owner((before.user, before.group))?;
    if before.kind == ObjectKind::Link {
        return Ok(());
    }
    object.replace_attributes(&before.attributes)?;
    object.set_mode(before.mode)
}

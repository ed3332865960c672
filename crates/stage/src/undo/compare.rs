//! Compares the workspace with the record of a run: the run's changes, and later changes of the
//! same paths. Leaves the workspace unchanged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use stockade_files::object::{FileTime, ObjectKind, TreeObject, same_content, to_os_str};
use stockade_permissions::powers::UNDO_PREFIX;
use stockade_sys::Errno;
use stockade_sys::descriptor_limit;

use super::content_copies::slot_name;
use super::guard::RestoreGuard;
use super::guarded::GuardedBaseline;
use super::journal::{JournalEntry, ObjectKey, OriginalObject, UndoJournal, key_of};
use super::paths::{join_path, paths_above};
use super::store::{UndoError, UndoRun};
use crate::PathError;

/// Most conflicts that are listed.
pub(super) const MAX_CONFLICTS: usize = 1000;

/// Descriptors needed besides those of changed paths: files of the store, parent directories.
const RESERVED_DESCRIPTORS: usize = 512;

/// Most levels of a directory that are scanned.
pub(super) const MAX_DEPTH: usize = 400;

/// Effect of a run on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoEffect {
    /// The path is new.
    Created,
    /// The content or the kind changed.
    Changed,
    /// The object was removed.
    Deleted,
    /// Mode, owner or attributes changed.
    Metadata,
}

/// Reason why a path is not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndoConflict {
    /// The object was changed after the run.
    #[error("it was changed after the run")]
    Changed,
    /// The original is neither kept nor found.
    #[error("the run moved the original, which does not exist any more")]
    Lost,
    /// The original still exists under another name, by which other runs may have changed it.
    #[error("the run moved the original to a path where other runs could change it")]
    Unproven,
    /// The path would be newly guarded, that is, executed or used as configuration.
    #[error("it would be executed or used as configuration there now, and was not before the run: {0}")]
    Guarded(String),
    /// The search for guarded paths failed.
    #[error("cannot check whether it would be executed or used as configuration: {0}")]
    Unsurveyed(String),
    /// Undo cannot make this kind of object again.
    #[error("it was {}, which undo cannot create again", .0.with_article())]
    Special(ObjectKind),
    /// The object cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(Errno),
}

/// A change of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoChange {
    /// Path relative to the workspace.
    pub path: PathBuf,
    /// Effect on the path.
    pub effect: UndoEffect,
    /// Kind of the object, now or before.
    pub kind: ObjectKind,
    /// Modes before and now.
    pub modes: Option<(u32, u32)>,
}

/// All changes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndoComparison {
    /// Changes, sorted by path.
    pub changes: Vec<UndoChange>,
    /// Paths that would not be restored, with the reasons.
    pub conflicts: Vec<(PathBuf, UndoConflict)>,
    /// True if the run was killed, and its end was recorded only now: later changes cannot be
    /// distinguished from its own.
    pub was_killed: bool,
    /// True if all changes were already restored.
    pub is_restored: bool,
}

/// Location of the content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContentSource {
    Slot(u32),
    /// At another path of the workspace, which is temporary.
    Moved(Vec<u8>),
    /// At another path of the workspace, one of several names of the file.
    Linked(Vec<u8>),
}

/// Action for a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RestoreAction {
    /// None, except for metadata.
    Stay,
    /// Removes the present object.
    Remove,
    /// Makes the original again, replacing the present object.
    Put(Option<ContentSource>),
}

/// A path after the comparison.
#[derive(Debug)]
pub(super) struct ComparedPath {
    pub path: Vec<u8>,
    pub before: Option<OriginalObject>,
    pub plan: RestoreAction,
    pub effect: Option<UndoEffect>,
    pub conflict: Option<UndoConflict>,
    /// For a directory: another process changed its names, so the directory keeps its time.
    pub keeps_time: bool,
    /// The object at the time of the comparison.
    pub now: Option<TreeObject>,
}

/// Comparison of one run with its workspace.
pub(super) struct RunComparer<'r> {
    pub run: &'r UndoRun,
    pub journal: UndoJournal,
    pub end: FileTime,
    /// Paths of objects that have lost their names or may have further ones.
    pub names: HashMap<ObjectKey, Vec<Vec<u8>>>,
    pub newer: Vec<Vec<u8>>,
    pub guard: RestoreGuard,
    pub guarded_before: GuardedBaseline,
    /// Directories that are not repositories any more.
    pub closed: Vec<Vec<u8>>,
}

impl UndoRun {
    /// Returns the run's changes at and beneath these paths, or all changes if there are no paths.
    ///
    /// # Errors
    /// [`UndoError`] if the journal or the workspace cannot be read.
    pub fn compare_paths(&self, paths: &[PathBuf]) -> Result<UndoComparison, UndoError> {
        if self.read_journal()?.is_restored {
            return Ok(UndoComparison { is_restored: true, ..UndoComparison::default() });
        }
        let (mut comparing, was_killed) = RunComparer::new(self)?;
        let compared_path = comparing.compare_entries(paths)?;
        let changes = compared_path.iter().filter_map(ComparedPath::to_change).collect();
        let conflicts = comparing.list_conflicts(&compared_path);
        Ok(UndoComparison { changes, conflicts, was_killed, is_restored: false })
    }

    /// Returns the original content of a path, if it was kept.
    ///
    /// # Errors
    /// [`UndoError`] if the journal cannot be read.
    pub fn open_original(&self, path: &Path) -> Result<Option<TreeObject>, UndoError> {
        let journal = self.read_journal()?;
        let entry = journal.entries.get(path.as_os_str().as_encoded_bytes());
        let Some(before) = entry.and_then(|entry| entry.before.as_ref()) else { return Ok(None) };
        let Some((slot, _)) = journal.slots.get(&before.key()) else { return Ok(None) };
        self.open_slot(*slot).map_err(|errno| PathError::new(path, errno).into())
    }

    /// Returns the object at a path now.
    ///
    /// # Errors
    /// [`UndoError`] if it cannot be read.
    pub fn open_present(&self, path: &Path) -> Result<Option<TreeObject>, UndoError> {
        self.find_object(path.as_os_str().as_encoded_bytes()).map_err(|errno| PathError::new(path, errno).into())
    }

    /// Returns the prefix of names that only the restoration of this run uses.
    pub(super) fn temporary_prefix(&self) -> String {
        format!("{UNDO_PREFIX}{}", self.meta.request.as_str())
    }

    pub(super) fn open_slot(&self, slot: u32) -> Result<Option<TreeObject>, Errno> {
        TreeObject::open_entry(self.objects.as_fd(), slot_name(slot).as_ref())
    }
}

impl ComparedPath {
    fn to_change(&self) -> Option<UndoChange> {
        let kind = self.before.as_ref().map(|before| before.kind).or(self.now.as_ref().map(TreeObject::kind))?;
        let modes = match (&self.before, &self.now) {
            (Some(before), Some(now)) if before.mode != now.mode() && kind != ObjectKind::Link => {
                Some((before.mode, now.mode()))
            }
            _ => None,
        };
        Some(UndoChange { path: to_os_str(&self.path).into(), effect: self.effect?, kind, modes })
    }
}

impl<'r> RunComparer<'r> {
    pub fn new(run: &'r UndoRun) -> Result<(Self, bool), UndoError> {
        let (journal, was_killed) = run.settled_journal()?;
        let end = journal.end.unwrap_or_default();
        let guard = RestoreGuard::new(run)?;
        let mut guarded_before = GuardedBaseline::new(run.meta.workspace.as_path(), &run.meta.protect);
        guarded_before.add_guarded(&journal.guarded, &journal.repositories);
        let (names, newer) = (HashMap::new(), Vec::new());
        let closed = Vec::new();
        let mut comparing = Self { run, journal, end, names, newer, guard, guarded_before, closed };
        comparing.closed = comparing.closed_repositories();
        comparing.find_names()?;
        Ok((comparing, was_killed))
    }

    /// Compares the paths. Keeps the present object of each path open.
    ///
    /// # Errors
    /// [`UndoError::TooMany`] if this process may not open so many: without a descriptor a path
    /// cannot be compared.
    pub fn compare_entries(&mut self, paths: &[PathBuf]) -> Result<Vec<ComparedPath>, UndoError> {
        let selected = self.select_entries(paths);
        let room = usize::try_from(descriptor_limit::raise_limit().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let (count, mut open, mut compared_path) = (selected.len(), RESERVED_DESCRIPTORS.min(room / 2), Vec::new());
        for (path, entry) in selected {
            let one = self.compare_path(path, entry);
            open += usize::from(one.now.is_some());
            if open > room {
                return Err(UndoError::TooMany(count));
            }
            compared_path.push(one);
        }
        self.guard_all(&mut compared_path);
        Ok(compared_path)
    }

    pub fn list_conflicts(&self, compared_path: &[ComparedPath]) -> Vec<(PathBuf, UndoConflict)> {
        let of = |compared_path: &ComparedPath| {
            Some((PathBuf::from(to_os_str(&compared_path.path)), compared_path.conflict.clone()?))
        };
        let inner = self.newer.iter().map(|path| (PathBuf::from(to_os_str(path)), UndoConflict::Changed));
        let mut all: Vec<_> = compared_path.iter().filter_map(of).chain(inner).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all.dedup_by(|one, other| one.0 == other.0);
        all.truncate(MAX_CONFLICTS);
        all
    }

    /// Returns the entries at and beneath `paths`, with the directories above them.
    fn select_entries(&self, paths: &[PathBuf]) -> BTreeMap<Vec<u8>, JournalEntry> {
        if paths.is_empty() {
            return self.journal.entries.clone();
        }
        let mut selected = BTreeMap::new();
        for path in paths {
            let path = path.as_os_str().as_encoded_bytes();
            for (other, entry) in &self.journal.entries {
                let is_beneath_or_root = |path: &[u8], above: &[u8]| above.is_empty() || is_beneath(path, above);
                let holds = is_beneath_or_root(path, other) && entry.before.is_some();
                if other == path || is_beneath_or_root(other, path) || holds {
                    selected.insert(other.clone(), entry.clone());
                }
            }
            if self.is_new(path) {
                selected.insert(path.to_vec(), JournalEntry::default());
            }
        }
        selected
    }

    /// Returns whether a path is beneath an object that the run made.
    pub fn is_new(&self, path: &[u8]) -> bool {
        let is_absent = |above: &[u8]| self.journal.entries.get(above).is_some_and(|entry| entry.before.is_none());
        paths_above(path).any(is_absent)
    }

    /// Searches the workspace for moved objects, if there are files whose content was not kept or
    /// that have several names.
    fn find_names(&mut self) -> Result<(), UndoError> {
        let mut keys_to_find = HashSet::new();
        for (path, entry) in &self.journal.entries {
            let Some(before) = entry.before.as_ref().filter(|before| before.kind == ObjectKind::File) else { continue };
            let before = self.journal.first.get(&before.key()).unwrap_or(before);
            let is_kept = self.journal.slots.contains_key(&before.key());
            let is_there =
                || self.run.find_object(path).is_ok_and(|now| now.is_some_and(|now| before.is_same_object(&now)));
            if is_kept && before.links > 1 || !is_kept && !is_there() {
                keys_to_find.insert(before.key());
            }
        }
        let mut waiting = if keys_to_find.is_empty() { Vec::new() } else { vec![(Vec::new(), 0)] };
        while let Some((path, depth)) = waiting.pop() {
            let Ok(Some(directory)) = self.run.find_object(&path) else { continue };
            let Ok(inner) = entries_readable(&directory) else { continue };
            for (name, object) in inner {
                let path = join_path(&path, name.as_encoded_bytes());
                let Ok(object) = object else { continue };
                if object.is_directory() && depth < MAX_DEPTH {
                    waiting.push((path, depth + 1));
                } else if object.kind() == ObjectKind::File && keys_to_find.contains(&key_of(&object)) {
                    self.names.entry(key_of(&object)).or_default().push(path);
                }
            }
        }
        Ok(())
    }

    fn compare_path(&mut self, path: Vec<u8>, entry: JournalEntry) -> ComparedPath {
        let mut compared_path = ComparedPath {
            path,
            before: entry.before.clone(),
            plan: RestoreAction::Stay,
            effect: None,
            conflict: None,
            keeps_time: false,
            now: None,
        };
        compared_path.now = match self.run.find_object(&compared_path.path) {
            Ok(now) => now,
            Err(errno) => {
                compared_path.conflict = Some(UndoConflict::Unreadable(errno));
                return compared_path;
            }
        };
        match &entry.before {
            None => self.compare_new_path(&mut compared_path),
            Some(before) if before.kind == ObjectKind::Directory => {
                self.compare_directory(&mut compared_path, before, &entry)
            }
            Some(before) => self.compare_object(&mut compared_path, before, &entry),
        }
        compared_path
    }

    fn compare_new_path(&mut self, compared_path: &mut ComparedPath) {
        let Some(now) = &compared_path.now else { return };
        compared_path.effect = Some(UndoEffect::Created);
        compared_path.plan = RestoreAction::Remove;
        if now.is_directory() {
            if self.is_foreign(&compared_path.path, now) || self.is_newer_directory(now) {
                compared_path.conflict = Some(UndoConflict::Changed);
            } else {
                self.look_for_newer(&compared_path.path, now, 0);
            }
        } else if self.is_foreign(&compared_path.path, now) || self.is_newer(now, &JournalEntry::default()) {
            compared_path.conflict = Some(UndoConflict::Changed);
        }
    }

    fn compare_directory(&mut self, compared_path: &mut ComparedPath, before: &OriginalObject, entry: &JournalEntry) {
        match &compared_path.now {
            None => {
                compared_path.effect = Some(UndoEffect::Deleted);
                compared_path.plan = RestoreAction::Put(None);
            }
            Some(now) if now.is_directory() => {
                compared_path.keeps_time =
                    now.modified_time() > self.end && now.modified_time() != before.modified && !self.is_left(now);
                if !has_metadata(now, before) {
                    compared_path.effect = Some(UndoEffect::Metadata);
                    let mode_after = entry.after.as_ref().map_or(before.mode, |(mode, _)| *mode);
                    if now.mode() != mode_after && now.changed_time() > self.end && !self.is_left(now) {
                        compared_path.conflict = Some(UndoConflict::Changed);
                    }
                }
            }
            Some(now) => {
                compared_path.effect = Some(UndoEffect::Changed);
                compared_path.plan = RestoreAction::Put(None);
                if self.is_newer(now, entry) {
                    compared_path.conflict = Some(UndoConflict::Changed);
                }
            }
        }
    }

    /// Compares a file, a symbolic link or a special file.
    fn compare_object(&mut self, compared_path: &mut ComparedPath, before: &OriginalObject, entry: &JournalEntry) {
        let is_same = match &compared_path.now {
            Some(now) => self.is_unchanged(now, before),
            None => Ok(false),
        };
        // True if the content is equal, but the object is no longer the same file as its other
        // names.
        let is_separate = |now: &TreeObject| {
            before.links > 1
                && !before.is_same_object(now)
                && matches!(self.source(&compared_path.path, before), Ok(Some(ContentSource::Linked(_))))
        };
        let is_same = is_same.map(|is_same| is_same && !compared_path.now.as_ref().is_some_and(is_separate));
        match (is_same, &compared_path.now) {
            (Err(errno), _) => compared_path.conflict = Some(UndoConflict::Unreadable(errno)),
            (Ok(true), Some(now)) => {
                let before = self.journal.first.get(&before.key()).unwrap_or(before);
                if !has_metadata(now, before) {
                    compared_path.effect = Some(UndoEffect::Metadata);
                    if self.is_newer(now, entry) {
                        compared_path.conflict = Some(UndoConflict::Changed);
                    }
                }
            }
            (Ok(_), now) => {
                compared_path.effect = Some(if now.is_some() { UndoEffect::Changed } else { UndoEffect::Deleted });
                let is_newer = match now {
                    Some(now) if now.is_directory() => {
                        self.look_for_newer(&compared_path.path, now, 0);
                        self.is_foreign(&compared_path.path, now)
                            || self.is_newer_directory(now)
                            || self.newer.iter().any(|newer| is_beneath(newer, &compared_path.path))
                    }
                    Some(now) => self.is_newer(now, entry),
                    None => false,
                };
                compared_path.conflict = is_newer.then_some(UndoConflict::Changed);
                match self.source(&compared_path.path, before) {
                    Ok(source) => compared_path.plan = RestoreAction::Put(source),
                    Err(conflict) => compared_path.conflict = Some(conflict),
                }
            }
        }
    }

    /// Returns whether the present object has the original content.
    fn is_unchanged(&self, now: &TreeObject, before: &OriginalObject) -> Result<bool, Errno> {
        if now.kind() != before.kind {
            return Ok(false);
        }
        match before.kind {
            ObjectKind::File => match self.journal.slots.get(&before.key()) {
                Some((slot, _)) => match self.run.open_slot(*slot)? {
                    Some(saved_copy) => same_content(now, &saved_copy),
                    // The file was already restored.
                    None => Ok(before.is_same_object(now)),
                },
                None => Ok(before.is_same_object(now)),
            },
            ObjectKind::Link => Ok(Some(now.link_text()?) == before.text.as_ref().map(|text| text.as_bytes().to_vec())),
            _ => Ok(true),
        }
    }

    fn source(&self, path: &[u8], before: &OriginalObject) -> Result<Option<ContentSource>, UndoConflict> {
        match before.kind {
            ObjectKind::Link | ObjectKind::Pipe | ObjectKind::Directory => return Ok(None),
            ObjectKind::Socket | ObjectKind::Device => return Err(UndoConflict::Special(before.kind)),
            ObjectKind::File => {}
        }
        let before = self.journal.first.get(&before.key()).unwrap_or(before);
        let names = self.names.get(&before.key()).map(Vec::as_slice).unwrap_or_default();
        let saved_copy = self.journal.slots.get(&before.key());
        let saved_copy = saved_copy.and_then(|(slot, _)| Some((*slot, self.run.open_slot(*slot).ok()??)));
        let is_guarded = self.guarded_before.is_guarded(path);
        if before.links > 1 && !is_guarded {
            let unchanged = |object: &TreeObject| match &saved_copy {
                Some((_, saved_copy)) => same_content(object, saved_copy).unwrap_or(false),
                None => self.is_content_old(object),
            };
            let is_it = |path: &&Vec<u8>| {
                self.run
                    .find_object(path)
                    .is_ok_and(|found| found.is_some_and(|found| before.is_same_object(&found) && unchanged(&found)))
            };
            if let Some(path) = names.iter().find(is_it) {
                return Ok(Some(ContentSource::Linked(path.clone())));
            }
        }
        if let Some((slot, _)) = saved_copy {
            return Ok(Some(ContentSource::Slot(slot)));
        }
        if is_guarded && !names.is_empty() {
            return Err(UndoConflict::Unproven);
        }
        let Some(moved) = names.first() else { return Err(UndoConflict::Lost) };
        match self.run.find_object(moved) {
            Ok(Some(object)) if before.is_same_object(&object) && self.is_content_old(&object) => {
                Ok(Some(ContentSource::Moved(moved.clone())))
            }
            Ok(Some(object)) if before.is_same_object(&object) => Err(UndoConflict::Changed),
            _ => Err(UndoConflict::Lost),
        }
    }
}

/// Returns the entries of a directory, but does not open up an unreadable one: changes nothing.
pub(super) fn entries_readable(
    directory: &TreeObject,
) -> Result<impl Iterator<Item = (OsString, Result<TreeObject, Errno>)>, Errno> {
    if !rustix::process::geteuid().is_root() && directory.mode() & 0o500 != 0o500 {
        return Err(Errno::ACCESS);
    }
    directory.entries()
}

/// Returns whether mode, owner and attributes are the original ones. Ignores the time of a
/// directory, which depends on its entries.
pub(super) fn has_metadata(now: &TreeObject, before: &OriginalObject) -> bool {
    let is_link = before.kind == ObjectKind::Link;
    (is_link || now.mode() == before.mode)
        && (now.stat.st_uid, now.stat.st_gid) == (before.user, before.group)
        && (before.kind == ObjectKind::Directory || is_link || now.modified_time() == before.modified)
        && (is_link || now.read_attributes().is_ok_and(|attributes| attributes == before.attributes))
}

/// Returns whether `path` is beneath `above`.
pub(super) fn is_beneath(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.first() == Some(&b'/'))
}

//! Records and keeps the objects that a run is about to change. Each function must be called before
//! the change in its name. If it fails, the change must not be made.
//!
//! In any order of calls, three rules apply. The first line about a path describes the object
//! before the run. The content of every file that existed before the run is in a slot or still in
//! the file. A path without a line is unchanged, or is beneath a new path.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::FileType;
use stockade_files::object::{ObjectKind, TreeObject, list_entries, to_os_str};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::content_copies;
use super::end_record::{find_beneath, open_directory_beneath, time_now};
use super::guarded::GuardedBaseline;
use super::journal::{JournalLine, ObjectKey, OriginalObject, UndoJournal, key_of, open_journal};
use super::paths::{join_path, parent_path, split_path};
use super::store::open_objects;
use crate::state_files::LineWriter;

/// Most paths that are recorded for one run.
const MAX_ENTRIES: usize = 1_000_000;
/// Most levels of a directory that is moved.
const MAX_DEPTH: usize = 400;

/// Recorded state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordedState {
    /// No object existed: every object there now is new.
    Absent,
    /// An object existed.
    Present,
    /// The object was removed or renamed; everything beneath it is recorded.
    Gone,
}

/// Known state of a path, with or without a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathKnowledge {
    Recorded(RecordedState),
    /// The path is beneath a recorded new path.
    Covered,
    /// The path is new, beneath an object that existed before and is gone.
    Fresh,
    /// The path is as before the run.
    Untouched,
}

/// Location of the content of a file that existed before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentLocation {
    /// In the file, which is unchanged.
    Live,
    /// In the file, which has a slot as its second name.
    Linked(u32),
    /// In a slot.
    Copied,
}

/// The original object cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndoRecordError {
    /// The content would exceed the budget of the run.
    #[error(
        "the original cannot be kept for undo: the run's {limit_bytes} bytes are used up; \
         raise `undo_bytes` of the profile, or run without undo"
    )]
    Full {
        /// Budget in bytes.
        limit_bytes: u64,
    },
    /// The run has changed too many paths.
    #[error("the original cannot be kept for undo: more than {MAX_ENTRIES} changes; run without undo")]
    TooMany,
    /// The object cannot be read.
    #[error("the original cannot be kept for undo, because it cannot be read: {0}; run without undo")]
    Unreadable(Errno),
    /// The object cannot be written to the store.
    #[error("the original cannot be kept for undo: {0}; free space in the state directory, or run without undo")]
    Store(Errno),
}

/// Recorder of the changes of one run.
#[derive(Debug)]
pub struct UndoRecorder {
    /// The workspace on the host.
    root: OwnedFd,
    /// Path of the workspace in the run.
    workspace: Vec<u8>,
    objects: OwnedFd,
    journal: LineWriter,
    seen: HashMap<Vec<u8>, RecordedState>,
    contents: HashMap<ObjectKey, ContentLocation>,
    /// Names of files that had several when the workspace was searched, which is done once.
    names: Option<HashMap<ObjectKey, Vec<Vec<u8>>>>,
    next_slot: u32,
    limit_bytes: u64,
    remaining_bytes: u64,
    /// True if an object that existed before the run has got another name. Only then can a new path
    /// lead to such an object.
    has_moved: bool,
    has_surveyed: bool,
    guarded: GuardedBaseline,
}

impl UndoRecorder {
    /// Opens the recorder in the directory of a run. Keeps the records of an earlier attempt.
    pub(super) fn open(
        root: OwnedFd,
        workspace: &Path,
        directory: BorrowedFd<'_>,
        (limit_bytes, protect): (u64, &[String]),
    ) -> Result<Self, UndoRecordError> {
        let mut writer = open_journal(directory).map_err(UndoRecordError::Store)?;
        let journal = UndoJournal::read_from(directory).map_err(|_| UndoRecordError::Store(Errno::IO))?;
        let objects = open_objects(directory).map_err(UndoRecordError::Store)?;
        if journal.end.is_some() {
            writer.append_line(&JournalLine::Repeat).map_err(UndoRecordError::Store)?;
        }
        if journal.begun.is_none() && journal.entries.is_empty() {
            writer.append_line(&JournalLine::Begun { at: time_now(root.as_fd()) }).map_err(UndoRecordError::Store)?;
        }
        let mut guarded = GuardedBaseline::new(workspace, protect);
        guarded.add_guarded(&journal.guarded, &journal.repositories);
        let seen = journal.entries.iter().map(|(path, entry)| {
            let seen = match (&entry.before, entry.is_gone) {
                (None, _) => RecordedState::Absent,
                (Some(_), true) => RecordedState::Gone,
                (Some(_), false) => RecordedState::Present,
            };
            (path.clone(), seen)
        });
        let seen: HashMap<_, _> = seen.collect();
        let mut contents = HashMap::new();
        for before in journal.first.values().filter(|before| before.kind == ObjectKind::File) {
            let content = match journal.slots.get(&before.key()) {
                None => ContentLocation::Live,
                Some((slot, _)) => {
                    match TreeObject::open_entry(objects.as_fd(), OsStr::new(&content_copies::slot_name(*slot))) {
                        Ok(Some(object)) if before.is_same_object(&object) => ContentLocation::Linked(*slot),
                        _ => ContentLocation::Copied,
                    }
                }
            };
            contents.insert(before.key(), content);
        }
        Ok(Self {
            root,
            workspace: workspace.as_os_str().as_bytes().to_vec(),
            objects,
            journal: writer,
            has_moved: !seen.is_empty(),
            has_surveyed: journal.is_surveyed,
            guarded,
            seen,
            contents,
            names: None,
            next_slot: journal.next_slot(),
            limit_bytes,
            remaining_bytes: limit_bytes.saturating_sub(journal.slot_bytes()),
        })
    }

    /// Returns the path of the workspace in the run.
    pub fn workspace(&self) -> &[u8] {
        &self.workspace
    }

    /// Returns whether the paths that were guarded before the run are recorded.
    pub fn has_surveyed(&self) -> bool {
        self.has_surveyed
    }

    /// Records the paths that were guarded before the run because of a reference to them, and the
    /// directories that were repositories.
    ///
    /// # Errors
    /// See [`UndoRecordError`]; the same applies below.
    pub fn note_guarded(&mut self, guarded_paths: &[Vec<u8>], repositories: &[Vec<u8>]) -> Result<(), UndoRecordError> {
        let guarded_paths: Vec<Vec<u8>> =
            guarded_paths.iter().filter_map(|guarded_path| self.relative_path(guarded_path)).collect();
        let repositories: Vec<Vec<u8>> =
            repositories.iter().filter_map(|guarded_path| self.relative_path(guarded_path)).collect();
        for guarded_path in &guarded_paths {
            self.append_line(&JournalLine::Guarded { path: RawText::from(guarded_path.as_slice()) })?;
        }
        for directory in &repositories {
            self.append_line(&JournalLine::Repository { path: RawText::from(directory.as_slice()) })?;
        }
        self.guarded.add_guarded(&guarded_paths, &repositories);
        self.append_line(&JournalLine::Surveyed)?;
        self.has_surveyed = true;
        Ok(())
    }

    /// Prepares an open of a file for writing, or an open that may create the file.
    ///
    /// # Errors
    /// See [`UndoRecordError`].
    pub fn before_open(&mut self, path: &[u8], creates: bool, writes: bool) -> Result<(), UndoRecordError> {
        let Some(path) = self.relative_path(path) else { return Ok(()) };
        let known = self.known_state(&path);
        if known == PathKnowledge::Covered && !self.has_moved {
            return Ok(());
        }
        match self.find_object(&path)? {
            None if creates => self.before_new(&path),
            Some(object) if writes && object.kind() == ObjectKind::File => {
                self.record_path(&path, known, Some(&object))?;
                self.keep_content(&object)
            }
            _ => Ok(()),
        }
    }

    /// Prepares any other call that makes a name.
    ///
    /// # Errors
    /// See [`UndoRecordError`].
    pub fn before_create(&mut self, path: &[u8]) -> Result<(), UndoRecordError> {
        let Some(path) = self.relative_path(path) else { return Ok(()) };
        if self.known_state(&path) == PathKnowledge::Covered || self.find_object(&path)?.is_some() {
            return Ok(());
        }
        self.before_new(&path)
    }

    /// Prepares a second name `new` for the object at `source`.
    ///
    /// # Errors
    /// See [`UndoRecordError`].
    pub fn before_link(&mut self, source: &[u8], new: &[u8]) -> Result<(), UndoRecordError> {
        if let Some(source) = self.relative_path(source)
            && let Some(object) = self.find_object(&source)?
        {
            self.record_path(&source, self.known_state(&source), Some(&object))?;
            self.keep_guarded(&source, &object)?;
            self.has_moved = true;
        }
        self.before_create(new)
    }

    /// Prepares the removal of a name.
    ///
    /// # Errors
    /// See [`UndoRecordError`].
    pub fn before_remove(&mut self, path: &[u8]) -> Result<(), UndoRecordError> {
        match self.relative_path(path) {
            Some(path) => self.before_name_removal(&path),
            None => Ok(()),
        }
    }

    /// Prepares a rename. With `exchanges`, the two objects swap their names.
    ///
    /// # Errors
    /// See [`UndoRecordError`].
    pub fn before_rename(&mut self, old: &[u8], new: &[u8], exchanges: bool) -> Result<(), UndoRecordError> {
        let (Some(old), Some(new)) = (self.relative_path(old), self.relative_path(new)) else { return Ok(()) };
        self.before_move(&old)?;
        match self.find_object(&new)? {
            Some(_) if exchanges => {
                self.before_move(&new)?;
                self.before_arrival(&new, &old)?;
            }
            Some(_) => self.before_name_removal(&new)?,
            None => self.before_new(&new)?,
        }
        self.before_arrival(&old, &new)
    }

    /// Records the entries of a moved directory as new, if its new path held another object before.
    fn before_arrival(&mut self, from: &[u8], to: &[u8]) -> Result<(), UndoRecordError> {
        let mut waiting = vec![(from.to_vec(), to.to_vec())];
        while let Some((from, to)) = waiting.pop() {
            // Otherwise all entries count as new already, or the call fails.
            if self.known_state(&to) != PathKnowledge::Recorded(RecordedState::Gone) {
                continue;
            }
            let Some(object) = self.find_object(&from)?.filter(TreeObject::is_directory) else { continue };
            for (name, _) in list_entries(object.fd.as_fd()).map_err(UndoRecordError::Unreadable)? {
                let inner = join_path(&to, &name);
                self.record_path(&inner, self.known_state(&inner), None)?;
                waiting.push((join_path(&from, &name), inner));
            }
        }
        Ok(())
    }

    /// Prepares a change of mode, owner, times or attributes of the object at this path.
    ///
    /// # Errors
    /// See [`UndoRecordError`].
    pub fn before_metadata(&mut self, path: &[u8]) -> Result<(), UndoRecordError> {
        let Some(path) = self.relative_path(path) else { return Ok(()) };
        let known = self.known_state(&path);
        if known != PathKnowledge::Untouched {
            return Ok(());
        }
        let object = self.find_object(&path)?;
        self.record_path(&path, known, object.as_ref())?;
        object.map_or(Ok(()), |object| self.record_names(&object))
    }

    /// Prepares a change of the content of an open object, which may be reachable only by its
    /// descriptor.
    ///
    /// # Errors
    /// See [`UndoRecordError`].
    pub fn before_rewrite(&mut self, path: &[u8], object: OwnedFd) -> Result<(), UndoRecordError> {
        let object = TreeObject::from_fd(object).map_err(UndoRecordError::Unreadable)?;
        if object.kind() != ObjectKind::File {
            return Ok(());
        }
        if let Some(path) = self.relative_path(path)
            && let Some(found) = self.find_object(&path)?
            && key_of(&found) == key_of(&object)
        {
            self.record_path(&path, self.known_state(&path), Some(&found))?;
        }
        self.keep_content(&object)
    }

    fn relative_path(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = path.strip_prefix(&self.workspace[..])?;
        match rest.strip_prefix(b"/") {
            Some(rest) => Some(rest.to_vec()),
            None if rest.is_empty() => Some(Vec::new()),
            // The path of the root directory already ends in a slash.
            None if self.workspace.ends_with(b"/") => Some(rest.to_vec()),
            None => None,
        }
    }

    fn known_state(&self, path: &[u8]) -> PathKnowledge {
        if let Some(seen) = self.seen.get(path) {
            return PathKnowledge::Recorded(*seen);
        }
        let mut above = path;
        while let Some(parent) = parent_path(above) {
            match self.seen.get(parent) {
                Some(RecordedState::Absent) => return PathKnowledge::Covered,
                Some(RecordedState::Gone) => return PathKnowledge::Fresh,
                Some(RecordedState::Present) | None => above = parent,
            }
        }
        PathKnowledge::Untouched
    }

    /// Finds the object at a path now.
    fn find_object(&self, path: &[u8]) -> Result<Option<TreeObject>, UndoRecordError> {
        find_beneath(self.root.as_fd(), path).map_err(UndoRecordError::Unreadable)
    }

    /// Records all names of a file, because a change of the file affects each of them.
    fn record_names(&mut self, object: &TreeObject) -> Result<(), UndoRecordError> {
        let key = key_of(object);
        if object.kind() != ObjectKind::File || object.stat.st_nlink < 2 || !self.contents.contains_key(&key) {
            return Ok(());
        }
        if self.names.is_none() {
            self.names = Some(self.find_names()?);
        }
        // A single search is enough, because later names are new.
        let names = self.names.as_mut().and_then(|names| names.remove(&key)).unwrap_or_default();
        for path in names {
            if let Some(found) = self.find_object(&path)?.filter(|found| key_of(found) == key) {
                self.record_path(&path, self.known_state(&path), Some(&found))?;
            }
        }
        Ok(())
    }

    /// Finds the names of all files of the workspace that have several.
    fn find_names(&self) -> Result<HashMap<ObjectKey, Vec<Vec<u8>>>, UndoRecordError> {
        let (mut names, mut count) = (HashMap::<_, Vec<_>>::new(), 0);
        let mut waiting = vec![(Vec::new(), 0_usize)];
        while let Some((path, depth)) = waiting.pop() {
            let Some(directory) = self.find_object(&path)?.filter(TreeObject::is_directory) else { continue };
            // A directory that cannot be listed cannot be changed by the run either.
            let Ok(inner) = list_entries(directory.fd.as_fd()) else { continue };
            for (name, kind) in inner {
                let path = join_path(&path, &name);
                if matches!(kind, FileType::Directory) && depth < MAX_DEPTH {
                    waiting.push((path, depth + 1));
                    continue;
                }
                let Ok(object) = TreeObject::require_entry(&directory.fd, to_os_str(&name)) else { continue };
                if object.is_directory() && depth < MAX_DEPTH {
                    waiting.push((path, depth + 1));
                } else if object.kind() == ObjectKind::File && object.stat.st_nlink > 1 {
                    count += 1;
                    names.entry(key_of(&object)).or_default().push(path);
                }
                if count > MAX_ENTRIES {
                    return Err(UndoRecordError::TooMany);
                }
            }
        }
        Ok(names)
    }

    fn before_new(&mut self, path: &[u8]) -> Result<(), UndoRecordError> {
        self.names_change(path)?;
        self.record_path(path, self.known_state(path), None)
    }

    /// Records a directory before a name in it changes, because its times change, too.
    fn names_change(&mut self, path: &[u8]) -> Result<(), UndoRecordError> {
        let Some(above) = parent_path(path) else { return Ok(()) };
        let known = self.known_state(above);
        if known != PathKnowledge::Untouched {
            return Ok(());
        }
        match self.find_object(above)? {
            Some(object) => self.record_path(above, known, Some(&object)),
            // The call fails.
            None => Ok(()),
        }
    }

    fn before_name_removal(&mut self, path: &[u8]) -> Result<(), UndoRecordError> {
        self.names_change(path)?;
        let known = self.known_state(path);
        if known == PathKnowledge::Covered && !self.has_moved {
            return Ok(());
        }
        let (Some(above), Some(object)) = (parent_path(path), self.find_object(path)?) else { return Ok(()) };
        self.record_path(path, known, Some(&object))?;
        if object.kind() == ObjectKind::File && self.contents.get(&key_of(&object)) == Some(&ContentLocation::Live) {
            let directory = open_directory_beneath(self.root.as_fd(), above).map_err(UndoRecordError::Unreadable)?;
            self.keep_removed(directory.as_fd(), to_os_str(split_path(path).1), &object)?;
        }
        // The remaining entries of a directory are recorded when they are removed or moved.
        let is_empty = || list_entries(object.fd.as_fd()).is_ok_and(|inner| inner.is_empty());
        if object.kind() != ObjectKind::Directory || is_empty() { self.mark_gone(path) } else { Ok(()) }
    }

    /// Records an object that gets another name, with everything beneath it.
    fn before_move(&mut self, path: &[u8]) -> Result<(), UndoRecordError> {
        self.names_change(path)?;
        self.has_moved = true;
        let (mut waiting, mut moved) = (vec![(path.to_vec(), 0_usize)], Vec::new());
        while let Some((path, depth)) = waiting.pop() {
            let known = self.known_state(&path);
            if !matches!(known, PathKnowledge::Untouched | PathKnowledge::Recorded(RecordedState::Present)) {
                continue;
            }
            let Some(object) = self.find_object(&path)? else { continue };
            self.record_path(&path, known, Some(&object))?;
            self.keep_guarded(&path, &object)?;
            if object.is_directory() {
                if depth == MAX_DEPTH {
                    return Err(UndoRecordError::TooMany);
                }
                let inner = list_entries(object.fd.as_fd()).map_err(UndoRecordError::Unreadable)?;
                waiting.extend(inner.into_iter().map(|(name, _)| (join_path(&path, &name), depth + 1)));
            }
            moved.push(path);
        }
        // Only now, because paths beneath a gone object count as new.
        moved.iter().try_for_each(|path| self.mark_gone(path))
    }

    fn mark_gone(&mut self, path: &[u8]) -> Result<(), UndoRecordError> {
        match self.seen.get_mut(path) {
            Some(seen @ RecordedState::Present) => *seen = RecordedState::Gone,
            _ => return Ok(()),
        }
        self.append_line(&JournalLine::Gone { path: RawText::from(path) })
    }

    /// Writes the line about a path, if one is needed.
    fn record_path(
        &mut self,
        path: &[u8],
        known: PathKnowledge,
        found: Option<&TreeObject>,
    ) -> Result<(), UndoRecordError> {
        let before = match known {
            PathKnowledge::Recorded(_) | PathKnowledge::Covered => return Ok(()),
            PathKnowledge::Fresh => None,
            PathKnowledge::Untouched => {
                found.map(OriginalObject::from_object).transpose().map_err(UndoRecordError::Unreadable)?
            }
        };
        if self.seen.len() >= MAX_ENTRIES {
            return Err(UndoRecordError::TooMany);
        }
        let seen = if before.is_some() { RecordedState::Present } else { RecordedState::Absent };
        let key = before.as_ref().filter(|before| before.kind == ObjectKind::File).map(OriginalObject::key);
        self.append_line(&JournalLine::Entry { path: RawText::from(path), before })?;
        self.seen.insert(path.to_vec(), seen);
        if let Some(key) = key {
            self.contents.entry(key).or_insert(ContentLocation::Live);
        }
        Ok(())
    }

    /// Keeps the content of a guarded file that gets another name. Under that name other runs may
    /// change the file, so its times prove nothing.
    fn keep_guarded(&mut self, path: &[u8], object: &TreeObject) -> Result<(), UndoRecordError> {
        match object.kind() == ObjectKind::File && self.guarded.is_guarded(path) {
            true => self.keep_content(object),
            false => Ok(()),
        }
    }

    /// Keeps the content of a file that loses a name.
    fn keep_removed(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        object: &TreeObject,
    ) -> Result<(), UndoRecordError> {
        let bytes = content_copies::bytes_of(object);
        let slot = self.next_slot;
        if bytes <= self.remaining_bytes
            && content_copies::link_to_slot((directory, name), object, (self.objects.as_fd(), slot))
        {
            self.note_slot(object, bytes)?;
            self.contents.insert(key_of(object), ContentLocation::Linked(slot));
            return Ok(());
        }
        self.keep_content(object)
    }

    /// Keeps the content of a file in a separate copy. A file that did not exist before the run is
    /// unknown here and is not copied.
    fn keep_content(&mut self, object: &TreeObject) -> Result<(), UndoRecordError> {
        let key = key_of(object);
        match self.contents.get(&key).copied() {
            None | Some(ContentLocation::Copied) => return Ok(()),
            Some(ContentLocation::Live) => {
                self.record_names(object)?;
                let slot = self.next_slot;
                let bytes = self.copy_to_slot(object, slot, self.remaining_bytes)?;
                self.note_slot(object, bytes)?;
            }
            Some(ContentLocation::Linked(slot)) => {
                let own = content_copies::bytes_of(object);
                self.copy_to_slot(object, slot, self.remaining_bytes.saturating_add(own))?;
            }
        }
        self.contents.insert(key, ContentLocation::Copied);
        Ok(())
    }

    fn copy_to_slot(&self, object: &TreeObject, slot: u32, remaining_bytes: u64) -> Result<u64, UndoRecordError> {
        match content_copies::copy_to_slot(object, self.objects.as_fd(), slot, remaining_bytes) {
            Ok(copied) => copied.ok_or(UndoRecordError::Full { limit_bytes: self.limit_bytes }),
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => Err(UndoRecordError::Unreadable(errno)),
            Err(errno) => Err(UndoRecordError::Store(errno)),
        }
    }

    fn note_slot(&mut self, object: &TreeObject, bytes: u64) -> Result<(), UndoRecordError> {
        let (device, inode) = key_of(object);
        self.append_line(&JournalLine::Data { device, inode, slot: self.next_slot, bytes })?;
        self.next_slot += 1;
        self.remaining_bytes = self.remaining_bytes.saturating_sub(bytes);
        Ok(())
    }

    fn append_line(&mut self, line: &JournalLine) -> Result<(), UndoRecordError> {
        self.journal.append_line(line).map_err(|errno| match errno {
            Errno::FBIG => UndoRecordError::TooMany,
            errno => UndoRecordError::Store(errno),
        })
    }
}

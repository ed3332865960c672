//! The end of a run: records the state that it left, so that later changes can be distinguished
//! from its own. Must not depend on the restoration.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use stockade_files::object::{FileTime, ObjectKind, TreeObject, directory_resolved, to_os_str};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::compare::entries_readable;
use super::journal::{JournalLine, ObjectKey, UndoJournal, key_of, open_journal};
use super::store::{UndoError, UndoRun, WORKSPACE_RESOLVE_FLAGS};
use crate::PathError;
use crate::digest::digest_file;
use crate::stage_directory::file_time_now;
use crate::state_files::LineWriter;

/// Size limit for the digest of a file's content.
const MAX_DIGEST_BYTES: u64 = 16 << 20;
/// Size limit for all digests together.
const MAX_ALL_DIGESTS_BYTES: u64 = 256 << 20;
/// Interval between two reads of the clock of file times, and their largest number.
const TICK_INTERVAL: Duration = Duration::from_micros(200);
const MAX_TICKS: u32 = 500;

/// Most names that are recorded beneath new directories.
const MAX_CREATED_NAMES: usize = 200_000;
/// Most names in one line.
const MAX_NAMES_IN_LINE: usize = 500;
/// Most levels of a new directory that are scanned.
const MAX_DEPTH: usize = 400;

/// Records the objects beneath the names that a run made. An object found later that is not
/// recorded does not belong to the run, whatever its times are.
struct CreatedNameRecorder<'n> {
    run: &'n UndoRun,
    writer: &'n mut LineWriter,
    remaining_names: usize,
}

impl CreatedNameRecorder<'_> {
    fn record_directories(&mut self, journal: &UndoJournal) -> Result<(), UndoError> {
        for (path, entry) in &journal.entries {
            let now = self.run.find_object(path).ok().flatten();
            let is_directory = now.as_ref().is_some_and(TreeObject::is_directory);
            let was_directory = entry.before.as_ref().is_some_and(|before| before.kind == ObjectKind::Directory);
            if let Some(now) = now.filter(|_| is_directory && !was_directory) {
                self.note_directory(now, 0)?;
            }
        }
        Ok(())
    }

    fn note_directory(&mut self, directory: TreeObject, depth: usize) -> Result<(), UndoError> {
        let (device, inode) = key_of(&directory);
        let inner = if depth < MAX_DEPTH { self.list_entries(&directory) } else { None };
        let Some(inner) = inner else {
            return self.writer.append_line(&JournalLine::Made { device, inode, inner: None }).map_err(in_journal);
        };
        // An empty directory has a line, too.
        let parts = inner.chunks(MAX_NAMES_IN_LINE).chain(inner.is_empty().then_some(&[][..]));
        for part in parts {
            let named =
                part.iter().map(|(name, (device, inode), _)| (RawText::from(name.as_os_str()), *device, *inode));
            let line = JournalLine::Made { device, inode, inner: Some(named.collect()) };
            self.writer.append_line(&line).map_err(in_journal)?;
        }
        for (name, _, _) in inner.into_iter().filter(|(_, _, is_directory)| *is_directory) {
            if let Ok(inner) = TreeObject::require_entry(&directory.fd, &name) {
                self.note_directory(inner, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Returns the names in a directory; `None` if they cannot be read or are too many.
    fn list_entries(&mut self, directory: &TreeObject) -> Option<Vec<(OsString, ObjectKey, bool)>> {
        let mut inner = Vec::new();
        for (name, object) in entries_readable(directory).ok()? {
            let object = object.ok()?;
            inner.push((name, key_of(&object), object.is_directory()));
            if inner.len() > self.remaining_names {
                return None;
            }
        }
        self.remaining_names -= inner.len();
        Some(inner)
    }
}

impl UndoRun {
    /// Records the state that the run left, and returns the number of recorded paths. Call it after
    /// the last process of the run has exited.
    ///
    /// # Errors
    /// [`UndoError`] if the workspace cannot be read, or the journal not written.
    pub fn record_final_state(&self) -> Result<u64, UndoError> {
        let journal = self.read_journal()?;
        let mut writer = open_journal(self.directory.as_fd()).map_err(in_journal)?;
        let mut remaining_bytes = MAX_ALL_DIGESTS_BYTES;
        for (path, entry) in &journal.entries {
            let Some(before) = entry.before.as_ref() else { continue };
            let Ok(Some(now)) = self.find_object(path) else { continue };
            let was_kept = journal.slots.contains_key(&before.key());
            let digest = match now.kind() {
                ObjectKind::File if was_kept && now.size() <= MAX_DIGEST_BYTES.min(remaining_bytes) => {
                    remaining_bytes -= now.size();
                    digest_of(&now)
                }
                _ => None,
            };
            if digest.is_some() || now.mode() != before.mode {
                let after = JournalLine::After { path: path.as_slice().into(), mode: now.mode(), digest };
                writer.append_line(&after).map_err(in_journal)?;
            }
        }
        CreatedNameRecorder { run: self, writer: &mut writer, remaining_names: MAX_CREATED_NAMES }
            .record_directories(&journal)?;
        let at = self.time_now();
        writer.append_line(&JournalLine::End { at }).map_err(in_journal)?;
        // From now on every change has a later time.
        for _ in 0..MAX_TICKS {
            if self.time_now() > at {
                break;
            }
            thread::sleep(TICK_INTERVAL);
        }
        Ok(journal.entries.len() as u64)
    }

    /// Returns the journal, and whether the end of a killed run had to be recorded first.
    pub(super) fn settled_journal(&self) -> Result<(UndoJournal, bool), UndoError> {
        let journal = self.read_journal()?;
        if journal.end.is_some() || journal.is_restoring {
            return Ok((journal, false));
        }
        self.record_final_state()?;
        Ok((self.read_journal()?, true))
    }

    pub(super) fn read_journal(&self) -> Result<UndoJournal, UndoError> {
        UndoJournal::read_from(self.directory.as_fd()).map_err(UndoError::Damaged)
    }

    /// Finds the object at a path of the workspace now.
    pub(super) fn find_object(&self, path: &[u8]) -> Result<Option<TreeObject>, Errno> {
        find_beneath(self.root.as_fd(), path)
    }

    fn time_now(&self) -> FileTime {
        time_now(self.root.as_fd())
    }
}

/// Returns the current time of the clock of file times, which may differ between filesystems.
pub(super) fn time_now(root: BorrowedFd<'_>) -> FileTime {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = openat(root, c".", flags, Mode::RUSR | Mode::WUSR);
    made.and_then(TreeObject::from_fd).map_or_else(|_| file_time_now(), |made| made.changed_time())
}

pub(super) fn in_journal(errno: Errno) -> UndoError {
    UndoError::Path(PathError::new(Path::new("journal"), errno))
}

/// Finds the object at `path` beneath `root`.
pub(super) fn find_beneath(root: BorrowedFd<'_>, path: &[u8]) -> Result<Option<TreeObject>, Errno> {
    TreeObject::open_resolved(root, Path::new(to_os_str(path)), WORKSPACE_RESOLVE_FLAGS)
}

/// Opens the directory at `path` beneath `root`.
pub(super) fn open_directory_beneath(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    directory_resolved(root, Path::new(to_os_str(path)), WORKSPACE_RESOLVE_FLAGS)
}

/// Returns the digest of a file's content; `None` if it cannot be read or is too large.
pub(super) fn digest_of(file: &TreeObject) -> Option<String> {
    digest_file(file.open_file().ok()?, MAX_DIGEST_BYTES).ok()?
}

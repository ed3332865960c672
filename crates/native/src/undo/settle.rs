//! The end of a run: what it left is noted, so that later changes can be told from its own.
//! Must not know how anything is restored.

use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, openat2, statat};
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest as _, Sha256};
use stockade_files::object::{Kind, Object, Time, os};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::compare::entries_readable;
use super::journal::{Journal, JournalWriter, Line, ObjectKey, key_of};
use super::store::{IN_WORKSPACE, UndoError, UndoRun};
use crate::stage::PathError;

/// Files up to this size are known by a digest of their content.
const MAX_DIGEST_BYTES: u64 = 16 << 20;
/// Bytes of all of them.
const MAX_ALL_DIGESTS_BYTES: u64 = 256 << 20;
/// Bytes read at once.
const BLOCK_BYTES: usize = 64 * 1024;
/// How often the clock of files is looked at, and how long.
const TICK_INTERVAL: Duration = Duration::from_micros(200);
const MAX_TICKS: u32 = 500;

/// Names that are noted of what a run made.
const MAX_MADE: usize = 200_000;
/// Names of one line.
const MAX_NAMES_IN_LINE: usize = 500;
/// Levels of a new directory that are looked into.
const MAX_DEPTH: usize = 400;

/// Notes what lies beneath the names that a run made: what is found there later and is not
/// among it is not the run's, whatever its times say.
struct MadeNotes<'n> {
    run: &'n UndoRun,
    writer: &'n mut JournalWriter,
    left: usize,
}

impl MadeNotes<'_> {
    fn note(&mut self, journal: &Journal) -> Result<(), UndoError> {
        for (path, entry) in &journal.entries {
            let now = self.run.find(path).ok().flatten();
            let is_directory = now.as_ref().is_some_and(Object::is_directory);
            let was_directory = entry.before.as_ref().is_some_and(|before| before.kind == Kind::Directory);
            if let Some(now) = now.filter(|_| is_directory && !was_directory) {
                self.note_directory(now, 0)?;
            }
        }
        Ok(())
    }

    fn note_directory(&mut self, directory: Object, depth: usize) -> Result<(), UndoError> {
        let (device, inode) = key_of(&directory);
        let inner = if depth < MAX_DEPTH { self.inner(&directory) } else { None };
        let Some(inner) = inner else {
            return self.writer.append(&Line::Made { device, inode, inner: None }).map_err(in_journal);
        };
        for part in inner.chunks(MAX_NAMES_IN_LINE) {
            let named = part.iter().map(|(name, (device, inode), _)| (RawText::from(name.as_slice()), *device, *inode));
            let line = Line::Made { device, inode, inner: Some(named.collect()) };
            self.writer.append(&line).map_err(in_journal)?;
        }
        if inner.is_empty() {
            self.writer.append(&Line::Made { device, inode, inner: Some(Vec::new()) }).map_err(in_journal)?;
        }
        for (name, _, _) in inner.into_iter().filter(|(_, _, is_directory)| *is_directory) {
            if let Ok(Some(inner)) = Object::find(directory.fd.as_fd(), os(&name)) {
                self.note_directory(inner, depth + 1)?;
            }
        }
        Ok(())
    }

    /// The names in a directory; none where they cannot be read or are too many.
    fn inner(&mut self, directory: &Object) -> Option<Vec<(Vec<u8>, ObjectKey, bool)>> {
        let names = entries_readable(directory).ok()?;
        self.left = self.left.checked_sub(names.len())?;
        let mut inner = Vec::with_capacity(names.len());
        for (name, _) in names {
            match statat(&directory.fd, os(&name), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                    inner.push((name, (stat.st_dev, stat.st_ino), is_directory));
                }
                Err(Errno::NOENT) => {}
                Err(_) => return None,
            }
        }
        Some(inner)
    }
}

impl UndoRun {
    /// Notes what the run left, and tells how many paths are kept. To be called when no
    /// process of it is there any more.
    ///
    /// # Errors
    /// Where the workspace cannot be read, or the journal written.
    pub fn settle(&self) -> Result<u64, UndoError> {
        let journal = self.journal()?;
        let mut writer = JournalWriter::open(self.directory.as_fd()).map_err(in_journal)?;
        let mut left_bytes = MAX_ALL_DIGESTS_BYTES;
        for (path, entry) in &journal.entries {
            let Some(before) = entry.before.as_ref() else { continue };
            let Ok(Some(now)) = self.find(path) else { continue };
            let was_kept = journal.slots.contains_key(&before.key());
            let digest = match now.kind() {
                Kind::File if was_kept && now.size() <= MAX_DIGEST_BYTES.min(left_bytes) => {
                    left_bytes -= now.size();
                    digest_of(&now)
                }
                _ => None,
            };
            if digest.is_some() || now.mode() != before.mode {
                let after = Line::After { path: path.as_slice().into(), mode: now.mode(), digest };
                writer.append(&after).map_err(in_journal)?;
            }
        }
        MadeNotes { run: self, writer: &mut writer, left: MAX_MADE }.note(&journal)?;
        let at = self.time_now();
        writer.append(&Line::End { at }).map_err(in_journal)?;
        // What is changed from now on has a later time.
        for _ in 0..MAX_TICKS {
            if self.time_now() > at {
                break;
            }
            thread::sleep(TICK_INTERVAL);
        }
        Ok(journal.entries.len() as u64)
    }

    /// The journal; the end of a run that was killed is noted first. Tells whether it was.
    pub(super) fn settled(&self) -> Result<(Journal, bool), UndoError> {
        let journal = self.journal()?;
        if journal.end.is_some() || journal.is_restoring {
            return Ok((journal, false));
        }
        self.settle()?;
        Ok((self.journal()?, true))
    }

    pub(super) fn journal(&self) -> Result<Journal, UndoError> {
        Journal::read(self.directory.as_fd()).map_err(UndoError::Damaged)
    }

    /// What is at a path of the workspace now.
    pub(super) fn find(&self, path: &[u8]) -> Result<Option<Object>, Errno> {
        find(self.root.as_fd(), path)
    }

    fn time_now(&self) -> Time {
        time_now(self.root.as_fd())
    }
}

/// The time that files of a workspace get now. Another filesystem may have another clock.
pub(super) fn time_now(root: BorrowedFd<'_>) -> Time {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = openat(root, c".", flags, Mode::RUSR | Mode::WUSR);
    match made.and_then(fstat) {
        Ok(stat) => Time { seconds: stat.st_ctime, nanoseconds: u32::try_from(stat.st_ctime_nsec).unwrap_or(0) },
        Err(_) => {
            let time = clock_gettime(ClockId::RealtimeCoarse);
            Time { seconds: time.tv_sec, nanoseconds: u32::try_from(time.tv_nsec).unwrap_or(0) }
        }
    }
}

pub(super) fn in_journal(errno: Errno) -> UndoError {
    UndoError::Path(PathError::new(Path::new("journal"), errno))
}

/// What is at `path` beneath `root`.
pub(super) fn find(root: BorrowedFd<'_>, path: &[u8]) -> Result<Option<Object>, Errno> {
    let path = Path::new(os(path));
    let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
        return Object::of(rustix::io::fcntl_dupfd_cloexec(root, 3)?).map(Some);
    };
    match directory(root, parent.as_os_str().as_bytes()) {
        Ok(parent) => Object::find(parent.as_fd(), name),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Holds the directory at `path` beneath `root`.
pub(super) fn directory(root: BorrowedFd<'_>, path: &[u8]) -> Result<rustix::fd::OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = if path.is_empty() { os(b".") } else { os(path) };
    openat2(root, path, flags, Mode::empty(), IN_WORKSPACE)
}

/// The digest of the content of a file; none where it cannot be read.
pub(super) fn digest_of(file: &Object) -> Option<String> {
    let mut content = file.open().ok()?.take(MAX_DIGEST_BYTES + 1);
    let (mut hasher, mut block, mut total) = (Sha256::new(), vec![0; BLOCK_BYTES], 0_u64);
    loop {
        match content.read(&mut block) {
            Ok(0) => break,
            Ok(length) => {
                hasher.update(&block[..length]);
                total += length as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    let hex = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    (total <= MAX_DIGEST_BYTES).then_some(hex)
}

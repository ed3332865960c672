//! The journal of one run. The run appends lines; later the journal is read as a whole. Must not
//! depend on the tree that the lines describe.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};
use stockade_files::object::{ExtendedAttributes, FileTime, ObjectKind, TreeObject};
use stockade_model::RawText;
use stockade_sys::Errno;

use crate::PathError;
use crate::state_files::{LineWriter, read_lines};

const JOURNAL_FILE: &str = "journal";

/// Longest line. A path takes 8 KiB at most; attributes may take the rest.
pub(super) const MAX_LINE_BYTES: usize = 512 * 1024;

/// Largest size of a journal.
pub(super) const MAX_JOURNAL_BYTES: u64 = 512 << 20;

/// Device and inode of an object.
pub(super) type ObjectKey = (u64, u64);

/// The object at a path before the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OriginalObject {
    pub kind: ObjectKind,
    pub mode: u32,
    pub user: u32,
    pub group: u32,
    pub modified: FileTime,
    pub device: u64,
    pub inode: u64,
    /// Number of names (hard links).
    pub links: u64,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: ExtendedAttributes,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<RawText>,
}

impl OriginalObject {
    pub fn from_object(object: &TreeObject) -> Result<Self, Errno> {
        let kind = object.kind();
        Ok(Self {
            kind,
            mode: object.mode(),
            user: object.stat.st_uid,
            group: object.stat.st_gid,
            modified: object.modified_time(),
            device: object.stat.st_dev,
            inode: object.inode(),
            links: object.stat.st_nlink,
            size: object.size(),
            attributes: object.read_attributes()?,
            text: if kind == ObjectKind::Link { Some(object.link_text()?.into()) } else { None },
        })
    }

    pub fn key(&self) -> ObjectKey {
        (self.device, self.inode)
    }

    /// Returns whether `object` is the same object, by device, inode and kind.
    pub fn is_same_object(&self, object: &TreeObject) -> bool {
        self.key() == key_of(object) && self.kind == object.kind()
    }
}

pub(super) fn key_of(object: &TreeObject) -> ObjectKey {
    (object.stat.st_dev, object.inode())
}

/// A name in a directory, with device and inode of its object.
pub(super) type CreatedName = (RawText, u64, u64);

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum JournalLine {
    /// The original object at a path, or `None`. The first such line of a path is valid.
    Entry { path: RawText, before: Option<OriginalObject> },
    /// The object at the path is removed or renamed; everything beneath it is recorded.
    Gone { path: RawText },
    /// The content of this object is kept in a slot.
    Data { device: u64, inode: u64, slot: u32, bytes: u64 },
    /// State of a path at the end of the run.
    After { path: RawText, mode: u32, digest: Option<String> },
    /// Before the run, a symbolic link or a setting led to this path, so it was executed or used as
    /// configuration.
    Guarded { path: RawText },
    /// Before the run, git took this directory for a repository because of its content.
    Repository { path: RawText },
    /// All `Guarded` and `Repository` lines are written.
    Surveyed,
    /// Begin of the run, by the clock of file times.
    Begun { at: FileTime },
    /// Names at the end of the run in a directory that the run made or filled. `None` if they are
    /// unknown.
    Made { device: u64, inode: u64, inner: Option<Vec<CreatedName>> },
    /// Another attempt of the same run begins, so an earlier `End` is void. Earlier versions wrote
    /// `again`.
    #[serde(alias = "again")]
    Repeat,
    /// The run has ended. Later changes do not belong to it.
    End { at: FileTime },
    /// The restoration is about to change this object or its names. At the end of the restoration
    /// the line is repeated with the last change time.
    Touched {
        device: u64,
        inode: u64,
        changed: Option<FileTime>,
        /// Creation time, because another object may get the same inode number.
        #[serde(default)]
        born: Option<FileTime>,
    },
    /// The restoration was decided.
    Restoring,
    /// The restoration is complete.
    Restored,
}

/// State of one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JournalEntry {
    pub before: Option<OriginalObject>,
    pub is_gone: bool,
    /// Mode and digest of the content at the end of the run.
    pub after: Option<(u32, Option<String>)>,
}

/// Record of an object that the restoration changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TouchedObject {
    /// Time of the last change by the restoration; `None` if it was interrupted.
    pub changed: Option<FileTime>,
    pub born: Option<FileTime>,
}

/// A journal, read as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UndoJournal {
    /// Entries by path relative to the workspace, so a directory comes before its content.
    pub entries: BTreeMap<Vec<u8>, JournalEntry>,
    /// Slot and size of each object whose content is kept.
    pub slots: HashMap<ObjectKey, (u32, u64)>,
    /// First record of each object, because it may have changed later under another name.
    pub first: HashMap<ObjectKey, OriginalObject>,
    /// Paths that were executed or used as configuration before the run, whatever their names.
    pub guarded: BTreeSet<Vec<u8>>,
    /// Directories that git took for repositories before the run.
    pub repositories: BTreeSet<Vec<u8>>,
    pub is_surveyed: bool,
    /// Names in each new directory at the end of the run, if they are known.
    pub made: HashMap<ObjectKey, Option<HashMap<Vec<u8>, ObjectKey>>>,
    /// Objects that the restoration changed.
    pub touched: HashMap<ObjectKey, TouchedObject>,
    /// Paths that the restoration recorded; their entries do not describe the time before the run.
    pub late: BTreeSet<Vec<u8>>,
    pub begun: Option<FileTime>,
    pub end: Option<FileTime>,
    pub is_restoring: bool,
    pub is_restored: bool,
}

impl UndoJournal {
    /// Reads the complete lines. Ignores an incomplete last line, because its call was never
    /// carried out.
    pub fn read_from(directory: BorrowedFd<'_>) -> Result<Self, PathError> {
        let mut journal = Self::default();
        read_lines(directory, JOURNAL_FILE, |line| {
            journal.add_line(line?);
            Ok(())
        })?;
        Ok(journal)
    }

    fn add_line(&mut self, line: JournalLine) {
        match line {
            JournalLine::Entry { path, before } => {
                if let Some(before) = &before {
                    self.first.entry(before.key()).or_insert_with(|| before.clone());
                }
                let entry = JournalEntry { before, is_gone: false, after: None };
                if self.is_restoring && !self.entries.contains_key(path.as_bytes()) {
                    self.late.insert(path.as_bytes().to_vec());
                }
                self.entries.entry(path.as_bytes().to_vec()).or_insert(entry);
            }
            JournalLine::Gone { path } => {
                if let Some(entry) = self.entries.get_mut(path.as_bytes()) {
                    entry.is_gone = true;
                }
            }
            JournalLine::Data { device, inode, slot, bytes } => {
                self.slots.entry((device, inode)).or_insert((slot, bytes));
            }
            JournalLine::After { path, mode, digest } => {
                if let Some(entry) = self.entries.get_mut(path.as_bytes()) {
                    entry.after = Some((mode, digest));
                }
            }
            JournalLine::Guarded { path } => {
                self.guarded.insert(path.as_bytes().to_vec());
            }
            JournalLine::Repository { path } => {
                self.repositories.insert(path.as_bytes().to_vec());
            }
            JournalLine::Surveyed => self.is_surveyed = true,
            JournalLine::Made { device, inode, inner } => self.add_made((device, inode), inner),
            JournalLine::Repeat => {
                self.end = None;
                self.made.clear();
            }
            JournalLine::End { at } => self.end = Some(at),
            JournalLine::Touched { device, inode, changed, born } => {
                self.touched.insert((device, inode), TouchedObject { changed, born });
            }
            // A further attempt belongs to the same run.
            JournalLine::Begun { at } => {
                self.begun.get_or_insert(at);
            }
            JournalLine::Restoring => self.is_restoring = true,
            JournalLine::Restored => self.is_restored = true,
        }
    }

    fn add_made(&mut self, key: ObjectKey, inner: Option<Vec<CreatedName>>) {
        let known = self.made.entry(key).or_insert_with(|| Some(HashMap::new()));
        match (known, inner) {
            (Some(known), Some(inner)) => {
                let inner = inner.into_iter().map(|(name, device, inode)| (name.as_bytes().to_vec(), (device, inode)));
                known.extend(inner);
            }
            (known, _) => *known = None,
        }
    }

    /// Returns the slot after the highest.
    pub fn next_slot(&self) -> u32 {
        self.slots.values().map(|(slot, _)| slot + 1).max().unwrap_or(0)
    }

    /// Returns the size of all slots.
    pub fn slot_bytes(&self) -> u64 {
        self.slots.values().map(|(_, bytes)| bytes).sum()
    }
}

/// Opens the journal of a run for appending.
pub(super) fn open_journal(directory: BorrowedFd<'_>) -> Result<LineWriter, Errno> {
    LineWriter::open(directory, JOURNAL_FILE, (MAX_LINE_BYTES, MAX_JOURNAL_BYTES))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn a_line_that_was_cut_off_is_not_there() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = rustix::fs::open(scratch.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let line = |path: &str| JournalLine::Entry { path: path.into(), before: None };
        let mut writer = open_journal(directory.as_fd()).unwrap();
        writer.append_line(&line("a")).unwrap();
        writer.append_line(&JournalLine::Gone { path: "a".into() }).unwrap();
        let path = scratch.path().join(JOURNAL_FILE);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"{\"entry\":{\"pa"].concat()).unwrap();
        let journal = UndoJournal::read_from(directory.as_fd()).unwrap();
        assert_eq!(journal.entries.len(), 1);
        assert!(journal.entries[b"a".as_slice()].is_gone);
        let mut writer = open_journal(directory.as_fd()).unwrap();
        writer.append_line(&line("b")).unwrap();
        assert_eq!(UndoJournal::read_from(directory.as_fd()).unwrap().entries.len(), 2);
        let long = JournalLine::Entry { path: "x".repeat(MAX_LINE_BYTES).into(), before: None };
        assert_eq!(writer.append_line(&long), Err(Errno::FBIG));
        std::fs::write(&path, b"no line\n").unwrap();
        assert!(UndoJournal::read_from(directory.as_fd()).is_err());
    }
}

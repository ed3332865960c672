//! Record of a decided commit on the disk. The journal exists from the decision until all steps are
//! done. Before it exists, the workspace is untouched. While it exists, the commit can be finished
//! or undone. The identities of the objects show whether a step was done.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::renameat;
use serde::{Deserialize, Serialize};
use stockade_files::object::{ChangeMark, ExtendedAttributes, FileTime};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::error::{PathContext, PathError};
use super::stage_directory::OpenStage;
use super::state_files::has_any;

const JOURNAL_FILE: &str = "journal";
const DONE_FILE: &str = "journal-done";
const SETTLED_FILE: &str = "settled";

/// Location of the commit area, which holds new objects before and old objects after their
/// exchange. Always on the filesystem of the workspace, because only there an exchange is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CommitAreaLocation {
    /// In the stage.
    Stage,
    /// In the workspace, under a protected name.
    Workspace,
}

/// A decided commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StageJournal {
    #[serde(alias = "depot")]
    pub commit_area: CommitAreaLocation,
    /// Start of the conflict check, by the clock of file times.
    pub checked: FileTime,
    /// Steps in this order; undone in reverse order.
    pub steps: Vec<CommitStep>,
    /// Paths that are settled afterwards.
    pub settled: Vec<RawText>,
    /// Protected paths that the user approved.
    #[serde(default)]
    pub agreed: Vec<RawText>,
    /// True if nothing remains staged afterwards.
    pub is_all: bool,
}

/// A step of a commit. Paths are relative to the workspace; a slot is a name in the commit area.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CommitStep {
    /// Gives the owner write access to a directory.
    Open { path: RawText, before: u32 },
    /// Moves the object at the path into the commit area.
    Remove { path: RawText, slot: u32, old: ChangeMark },
    /// Moves the object from the commit area to the path, and the old object into the commit area.
    Put { path: RawText, slot: u32, new: u64, old: Option<ChangeMark> },
    /// Sets mode, time and attributes of the object with this inode.
    Attributes { path: RawText, inode: u64, before: ObjectMetadata, after: ObjectMetadata },
}

/// Metadata of an object. Absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObjectMetadata {
    pub mode: Option<u32>,
    pub modified: Option<FileTime>,
    pub attributes: Option<ExtendedAttributes>,
}

impl CommitStep {
    pub fn path(&self) -> &Path {
        match self {
            Self::Open { path, .. } | Self::Remove { path, .. } | Self::Put { path, .. } => path.as_path(),
            Self::Attributes { path, .. } => path.as_path(),
        }
    }
}

/// Returns whether a commit was interrupted in the stage in `directory`.
pub(super) fn is_there(directory: BorrowedFd<'_>) -> bool {
    has_any(directory, &[JOURNAL_FILE, DONE_FILE])
}

/// Records the decision durably.
pub(super) fn record_decision(stage: &OpenStage, journal: &StageJournal) -> Result<(), PathError> {
    stage.write_whole(JOURNAL_FILE, journal)
}

/// Records durably that all steps are done.
pub(super) fn mark_done(stage: &OpenStage) -> Result<(), PathError> {
    renameat(&stage.directory, JOURNAL_FILE, &stage.directory, DONE_FILE).at_path(Path::new(JOURNAL_FILE))?;
    rustix::fs::fsync(&stage.directory).at_path(Path::new(JOURNAL_FILE))
}

/// Takes the record of [`mark_done`] back durably, before the commit is undone.
pub(super) fn unmark_done(stage: &OpenStage) -> Result<(), PathError> {
    match renameat(&stage.directory, DONE_FILE, &stage.directory, JOURNAL_FILE) {
        Err(Errno::NOENT) => Ok(()),
        other => other.and_then(|()| rustix::fs::fsync(&stage.directory)).at_path(Path::new(DONE_FILE)),
    }
}

/// Removes the journal, after all work is done.
pub(super) fn remove_journal(stage: &OpenStage) -> Result<(), PathError> {
    stage.remove_file(JOURNAL_FILE)?;
    stage.remove_file(DONE_FILE)
}

/// Returns the decided commit, and whether all its steps are done and durable. `None` if there is
/// none, or one that was not decided yet.
pub(super) fn read_state(stage: &OpenStage) -> Result<Option<(StageJournal, bool)>, PathError> {
    match stage.read_whole(DONE_FILE)? {
        Some(journal) => Ok(Some((journal, true))),
        None => Ok(stage.read_whole(JOURNAL_FILE)?.map(|journal| (journal, false))),
    }
}

/// Reads the settled paths.
pub(super) fn read_settled(stage: &OpenStage) -> Result<Vec<RawText>, PathError> {
    Ok(stage.read_whole(SETTLED_FILE)?.unwrap_or_default())
}

/// Adds paths to the settled paths.
pub(super) fn add_settled(stage: &OpenStage, more: &[RawText]) -> Result<(), PathError> {
    let mut all = read_settled(stage)?;
    all.extend_from_slice(more);
    all.sort_unstable();
    all.dedup();
    stage.write_whole(SETTLED_FILE, &all)
}

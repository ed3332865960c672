//! Record of a decided commit on the disk. The journal exists from the decision until all steps are
//! done. Before it exists, the workspace is untouched. While it exists, the commit can be finished
//! or undone. The identities of the objects show whether a step was done.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{AtFlags, renameat, statat};
use serde::{Deserialize, Serialize};
use stockade_model::RawText;

use super::error::{At, PathError};
use super::place::Stage;
use stockade_files::object::{Attributes, Mark, Time};

const JOURNAL: &str = "journal";
const DONE: &str = "journal-done";
const SETTLED: &str = "settled";

/// Location of the commit area, which holds new objects before and old objects after their
/// exchange. Always on the filesystem of the workspace, because only there an exchange is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DepotPlace {
    /// In the stage.
    Stage,
    /// In the workspace, under a protected name.
    Workspace,
}

/// A decided commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Journal {
    pub depot: DepotPlace,
    /// Start of the conflict check, by the clock of file times.
    pub checked: Time,
    /// Steps in this order; undone in reverse order.
    pub steps: Vec<Step>,
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
pub(super) enum Step {
    /// Gives the owner write access to a directory.
    Open { path: RawText, before: u32 },
    /// Moves the object at the path into the commit area.
    Remove { path: RawText, slot: u32, old: Mark },
    /// Moves the object from the commit area to the path, and the old object into the commit area.
    Put { path: RawText, slot: u32, new: u64, old: Option<Mark> },
    /// Sets mode, time and attributes of the object with this inode.
    Attributes { path: RawText, inode: u64, before: Settings, after: Settings },
}

/// Metadata of an object. Absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub mode: Option<u32>,
    pub modified: Option<Time>,
    pub attributes: Option<Attributes>,
}

impl Step {
    pub fn path(&self) -> &Path {
        match self {
            Self::Open { path, .. } | Self::Remove { path, .. } | Self::Put { path, .. } => path.as_path(),
            Self::Attributes { path, .. } => path.as_path(),
        }
    }
}

/// Progress of a commit.
#[derive(Debug)]
pub(super) enum Found {
    /// No commit, or one that was not decided yet.
    Nothing,
    /// The commit was decided.
    Decided(Journal),
    /// All steps are done and durable.
    Done(Journal),
}

/// Returns whether a commit was interrupted in the stage in `directory`.
pub(super) fn is_there(directory: BorrowedFd<'_>) -> bool {
    [JOURNAL, DONE].iter().any(|name| statat(directory, *name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
}

/// Records the decision durably.
pub(super) fn decide(stage: &Stage, journal: &Journal) -> Result<(), PathError> {
    stage.write_whole(JOURNAL, |out| serde_json::to_writer(out, journal).map_err(Into::into))
}

/// Records durably that all steps are done.
pub(super) fn mark_done(stage: &Stage) -> Result<(), PathError> {
    renameat(&stage.directory, JOURNAL, &stage.directory, DONE).at(Path::new(JOURNAL))?;
    rustix::fs::fsync(&stage.directory).at(Path::new(JOURNAL))
}

/// Removes the journal, after all work is done.
pub(super) fn forget(stage: &Stage) -> Result<(), PathError> {
    stage.remove_file(JOURNAL)?;
    stage.remove_file(DONE)
}

pub(super) fn find(stage: &Stage) -> Result<Found, PathError> {
    let parse = |text: Vec<u8>| {
        serde_json::from_slice::<Journal>(&text).map_err(|e| PathError::because(Path::new(JOURNAL), &e.to_string()))
    };
    if let Some(text) = stage.read_whole(DONE)? {
        return Ok(Found::Done(parse(text)?));
    }
    match stage.read_whole(JOURNAL)? {
        Some(text) => Ok(Found::Decided(parse(text)?)),
        None => Ok(Found::Nothing),
    }
}

/// Reads the settled paths.
pub(super) fn settled(stage: &Stage) -> Result<Vec<RawText>, PathError> {
    match stage.read_whole(SETTLED)? {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_slice(&text).map_err(|e| PathError::because(Path::new(SETTLED), &e.to_string())),
    }
}

/// Adds paths to the settled paths.
pub(super) fn settle(stage: &Stage, more: &[RawText]) -> Result<(), PathError> {
    let mut all = settled(stage)?;
    all.extend_from_slice(more);
    all.sort_unstable();
    all.dedup();
    stage.write_whole(SETTLED, |out| serde_json::to_writer(out, &all).map_err(Into::into))
}

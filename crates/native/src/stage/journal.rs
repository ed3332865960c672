//! What a commit has decided to do, as it stands on the disk. The journal is
//! there from the moment of the decision until nothing of it is left to do:
//! before it, the workspace is untouched; with it, the commit can be finished or
//! undone; each step can tell by the identities of the objects whether it was
//! done.

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

/// Where a commit keeps new objects before, and old ones after their exchange:
/// on the filesystem of the workspace, because only there an exchange is one
/// step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DepotPlace {
    /// In the stage.
    Stage,
    /// In the workspace, under a protected name.
    Workspace,
}

/// A commit that was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Journal {
    pub depot: DepotPlace,
    /// When it was begun to look for conflicts, by the clock of files.
    pub checked: Time,
    /// In this order; undone in the other.
    pub steps: Vec<Step>,
    /// Paths that are done with afterwards.
    pub settled: Vec<RawText>,
    /// Protected paths that were agreed to.
    #[serde(default)]
    pub agreed: Vec<RawText>,
    /// Nothing is staged any more afterwards.
    pub is_all: bool,
}

/// One step. Paths are relative to the workspace; a slot is a name in the depot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    /// Lets the owner change what is in a directory.
    Open { path: RawText, before: u32 },
    /// Moves what is there into the depot.
    Remove { path: RawText, slot: u32, old: Mark },
    /// Puts the object of the depot there, and what was there into the depot.
    Put { path: RawText, slot: u32, new: u64, old: Option<Mark> },
    /// Sets mode, time and attributes of the object with this inode.
    Attributes { path: RawText, inode: u64, before: Settings, after: Settings },
}

/// What an object carries. What is absent stays as it is.
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

/// How far a commit came.
#[derive(Debug)]
pub(super) enum Found {
    /// There is none, or it was not decided yet.
    Nothing,
    /// It was decided.
    Decided(Journal),
    /// All its steps are done and durable.
    Done(Journal),
}

/// Whether a commit was cut off in the stage that `directory` holds.
pub(super) fn is_there(directory: BorrowedFd<'_>) -> bool {
    [JOURNAL, DONE].iter().any(|name| statat(directory, *name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
}

/// The decision: durable when this returns.
pub(super) fn decide(stage: &Stage, journal: &Journal) -> Result<(), PathError> {
    stage.write_whole(JOURNAL, |out| serde_json::to_writer(out, journal).map_err(Into::into))
}

/// All steps are done and durable.
pub(super) fn mark_done(stage: &Stage) -> Result<(), PathError> {
    renameat(&stage.directory, JOURNAL, &stage.directory, DONE).at(Path::new(JOURNAL))?;
    rustix::fs::fsync(&stage.directory).at(Path::new(JOURNAL))
}

/// Nothing is left to do.
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

/// The paths that are done with.
pub(super) fn settled(stage: &Stage) -> Result<Vec<RawText>, PathError> {
    match stage.read_whole(SETTLED)? {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_slice(&text).map_err(|e| PathError::because(Path::new(SETTLED), &e.to_string())),
    }
}

/// Adds paths to those that are done with.
pub(super) fn settle(stage: &Stage, more: &[RawText]) -> Result<(), PathError> {
    let mut all = settled(stage)?;
    all.extend_from_slice(more);
    all.sort_unstable();
    all.dedup();
    stage.write_whole(SETTLED, |out| serde_json::to_writer(out, &all).map_err(Into::into))
}

//! Why a stage could not be made, read, committed or discarded. Each says what
//! happened, why, and the one thing to do.

use std::path::{Path, PathBuf};

pub(super) use stockade_files::At;
pub use stockade_files::PathError;
use stockade_model::{RawText, StageId};

use super::conflict::Conflict;

/// Why a stage cannot be made, found or read.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The directory of all stages cannot be used.
    #[error("cannot use the directory of stages, {0}\nhint: it must be yours alone: chmod 700")]
    Place(PathError),
    /// It lies on a filesystem without extended attributes of users.
    #[error(
        "cannot keep stages where no extended attributes are kept, {0}\nhint: set XDG_STATE_HOME to a directory on a disk"
    )]
    Bare(PathError),
    /// There is none of this name.
    #[error("there is no {0}\nhint: `stockade stage list` shows what there is")]
    Absent(StageId),
    /// A run still writes to it, or another command works on it.
    #[error("{0} is in use\nhint: wait for the run that writes to it, or end that run")]
    Busy(StageId),
    /// Its own records cannot be read.
    #[error("{id} is damaged: {why}\nhint: `stockade stage discard {id}` removes it")]
    Damaged {
        /// Which one.
        id: StageId,
        /// What was found.
        why: String,
    },
    /// The workspace is not the one that it was made for.
    #[error("the workspace of {id} is not in its place: {why}\nhint: put it back, or discard the stage")]
    Workspace {
        /// Which one.
        id: StageId,
        /// What was found.
        why: PathError,
    },
    /// A commit was cut off and must be finished or undone first.
    #[error("a commit of {0} was cut off\nhint: `stockade stage recover` finishes or undoes it")]
    CutOff(StageId),
    /// The machine went down while a run wrote to it.
    #[error(
        "{0} was being written to when the machine went down: what it holds may be torn\nhint: discard it and run again"
    )]
    Torn(StageId),
    /// The workspace cannot be staged.
    #[error("{0} cannot be staged\nhint: run without --stage, or in a directory without mounts beneath it")]
    Unfit(PathError),
    /// Something in it cannot be read.
    #[error("cannot read the stage: {0}")]
    Read(#[from] PathError),
}

/// Why nothing was committed or discarded.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// As when it is read.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The workspace changed meanwhile where the stage would change it.
    #[error("{}", conflicts(.0))]
    Conflicts(Vec<Conflict>),
    /// A path that was named holds nothing staged.
    #[error("nothing is staged at `{}`{}\nhint: `stockade stage diff` shows what is", RawText::from(path.as_path()).escaped(), inside(.within.as_deref()))]
    Nothing {
        /// As it was named.
        path: PathBuf,
        /// The change above it that can only be taken whole.
        within: Option<PathBuf>,
    },
    /// It could not be made ready; the workspace is as it was.
    #[error("cannot make the commit ready, {why}; the workspace is as it was{room}", why = .0, room = room(.0))]
    Prepare(PathError),
    /// It failed half way, and what had been done was taken back.
    #[error("the commit failed, {why}; it was undone, the workspace is as it was{room}", why = .0, room = room(.0))]
    Undone(PathError),
    /// It failed half way, and could not be undone either.
    #[error(
        "the commit failed, {failed}, and could not be undone, {undo}\nhint: mend that, then `stockade stage recover`"
    )]
    Stuck {
        /// What failed first.
        failed: PathError,
        /// What failed after that.
        undo: PathError,
    },
}

impl From<PathError> for CommitError {
    fn from(error: PathError) -> Self {
        Self::Stage(StageError::Read(error))
    }
}

fn room(error: &PathError) -> &'static str {
    if error.is_full { "\nhint: make room on that disk and commit again" } else { "" }
}

fn inside(change: Option<&Path>) -> String {
    change.map_or_else(String::new, |path| {
        format!(": `{}` is removed or replaced as a whole", RawText::from(path).escaped())
    })
}

/// Paths named in one message; `diff` has all of them.
const SHOWN: usize = 20;

fn conflicts(found: &[Conflict]) -> String {
    let mut text = "nothing was committed: the workspace changed meanwhile".to_owned();
    for conflict in found.iter().take(SHOWN) {
        text += &format!("\n  {conflict}");
    }
    if found.len() > SHOWN {
        text += &format!("\n  and {} more", found.len() - SHOWN);
    }
    text + "\nhint: commit the other paths by name, or discard these and run again"
}

//! Errors of making, reading, committing and discarding a stage. Each message reports the failure,
//! the reason, and one remedy.

use std::path::{Path, PathBuf};

pub(super) use stockade_files::PathContext;
pub use stockade_files::PathError;
use stockade_model::{RawText, StageId};

use super::conflict::StageConflict;

/// Error of making, finding or reading a stage.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The directory of all stages cannot be used.
    #[error("cannot use the directory of stages, {0}\nhint: it must be yours alone: chmod 700")]
    Directory(PathError),
    /// The stages are on a filesystem without extended user attributes.
    #[error("cannot keep stages without extended attributes, {0}\nhint: set XDG_STATE_HOME to a directory on a disk")]
    Bare(PathError),
    /// No stage has this id.
    #[error("there is no {0}\nhint: `stockade stage list` shows all stages")]
    Absent(StageId),
    /// A run still writes to the stage, or another command works on it.
    #[error("{0} is in use\nhint: wait for the run that writes to it, or end that run")]
    Busy(StageId),
    /// The stage's own records cannot be read.
    #[error("{id} is damaged: {why}\nhint: `stockade stage discard {id}` removes it")]
    Damaged {
        /// Id of the stage.
        id: StageId,
        /// Description of the damage.
        why: String,
    },
    /// The workspace is not the directory for which the stage was made.
    #[error("the workspace of {id} was moved or replaced: {why}\nhint: move it back, or discard the stage")]
    Workspace {
        /// Id of the stage.
        id: StageId,
        /// Reason.
        why: PathError,
    },
    /// A commit was interrupted and must be finished or undone first.
    #[error("a commit of {0} was interrupted\nhint: `stockade stage recover` finishes or undoes it")]
    CutOff(StageId),
    /// The machine went down while a run wrote to the stage.
    #[error(
        "the machine went down while a run wrote to {0}: its content may be incomplete\nhint: discard it and run again"
    )]
    Torn(StageId),
    /// The workspace cannot be staged.
    #[error("{0} cannot be staged\nhint: run without --stage, or in a directory without mounts beneath it")]
    Unfit(PathError),
    /// An object in the stage cannot be read.
    #[error("cannot read the stage: {0}")]
    Read(#[from] PathError),
}

/// Error of a commit or discard.
#[derive(Debug, thiserror::Error)]
pub enum StageCommitError {
    /// The stage cannot be read or used.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The workspace changed meanwhile at paths that the stage would change.
    #[error("{}", describe_conflicts(.0))]
    Conflicts(Vec<StageConflict>),
    /// Nothing is staged at a named path.
    #[error("nothing is staged at `{}`{}\nhint: `stockade stage diff` shows what is", RawText::from(path.as_path()).to_escaped(), parent_change_text(.within.as_deref()))]
    Nothing {
        /// Path as the user named it.
        path: PathBuf,
        /// Change of a directory above, which can only be committed as a whole.
        within: Option<PathBuf>,
    },
    /// The preparation failed; the workspace is unchanged.
    #[error("cannot prepare the commit, {why}; the workspace is unchanged{room}", why = .0, room = full_disk_hint(.0))]
    Prepare(PathError),
    /// The commit failed half way, and its steps were undone.
    #[error("the commit failed, {why}; it was undone, the workspace is unchanged{room}", why = .0, room = full_disk_hint(.0))]
    Undone(PathError),
    /// The commit failed half way, and the undo failed, too.
    #[error(
        "the commit failed, {failed}, and could not be undone, {undo}\nhint: fix that, then `stockade stage recover`"
    )]
    Stuck {
        /// First failure.
        failed: PathError,
        /// Failure of the undo.
        undo: PathError,
    },
}

impl From<PathError> for StageCommitError {
    fn from(error: PathError) -> Self {
        Self::Stage(StageError::Read(error))
    }
}

fn full_disk_hint(error: &PathError) -> &'static str {
    if error.is_full { "\nhint: make room on that disk and commit again" } else { "" }
}

fn parent_change_text(change: Option<&Path>) -> String {
    change.map_or_else(String::new, |path| {
        format!(": `{}` is removed or replaced as a whole", RawText::from(path).to_escaped())
    })
}

/// Most paths in one message; `diff` lists all of them.
const MAX_SHOWN_CONFLICTS: usize = 20;

fn describe_conflicts(found: &[StageConflict]) -> String {
    let mut text = "nothing was committed: the workspace changed meanwhile".to_owned();
    for conflict in found.iter().take(MAX_SHOWN_CONFLICTS) {
        text += &format!("\n  {conflict}");
    }
    if found.len() > MAX_SHOWN_CONFLICTS {
        text += &format!("\n  and {} more", found.len() - MAX_SHOWN_CONFLICTS);
    }
    text + "\nhint: commit the other paths by name, or discard these and run again"
}

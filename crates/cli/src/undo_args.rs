//! Arguments of `stockade changes` and `stockade undo`. Types only, as in [`crate::args`].

use std::ffi::OsString;

use clap::Args;

/// `stockade changes`.
#[derive(Args, Debug)]
pub struct ChangesArgs {
    /// The run, and paths in its workspace [default: the last run of this workspace, everything].
    /// An id may be shortened.
    #[arg(value_name = "RUN|PATH", conflicts_with = "runs")]
    pub target: Vec<OsString>,
    /// List the runs that can be undone, the newest first.
    #[arg(long)]
    pub runs: bool,
    /// Show the changed lines.
    #[arg(long, conflicts_with = "runs")]
    pub diff: bool,
    /// Answer as one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// `stockade undo`.
#[derive(Args, Debug)]
pub struct UndoArgs {
    /// The run, and paths in its workspace [default: the last run of this workspace, everything].
    /// An id may be shortened.
    #[arg(value_name = "RUN|PATH")]
    pub target: Vec<OsString>,
    /// Restore the rest if some files were changed after the run. Without it nothing is restored
    /// then.
    #[arg(long)]
    pub skip_conflicts: bool,
    /// Remove the backups of the run, and restore nothing.
    #[arg(long, conflicts_with = "skip_conflicts")]
    pub forget: bool,
    /// Answer as one JSON object.
    #[arg(long)]
    pub json: bool,
}

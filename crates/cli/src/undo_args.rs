//! What was typed of `stockade changes` and `stockade undo`. Types only, as in
//! [`crate::args`].

use std::ffi::OsString;

use clap::Args;

/// `stockade changes`.
#[derive(Args, Debug)]
pub struct ChangesArgs {
    /// Which run, and which paths of its workspace [default: the last one of this
    /// workspace, everything]. An id may be shortened.
    #[arg(value_name = "RUN|PATH", conflicts_with = "runs")]
    pub target: Vec<OsString>,
    /// List the runs that can be undone, the newest first.
    #[arg(long)]
    pub runs: bool,
    /// Show the lines that differ.
    #[arg(long, conflicts_with = "runs")]
    pub diff: bool,
    /// Answer as one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// `stockade undo`.
#[derive(Args, Debug)]
pub struct UndoArgs {
    /// Which run, and which paths of its workspace [default: the last one of this
    /// workspace, everything]. An id may be shortened.
    #[arg(value_name = "RUN|PATH")]
    pub target: Vec<OsString>,
    /// Restore the rest where something was changed after the run. Without, nothing is
    /// done then.
    #[arg(long)]
    pub skip_conflicts: bool,
    /// Remove what is kept of the run, and restore nothing.
    #[arg(long, conflicts_with = "skip_conflicts")]
    pub forget: bool,
    /// Answer as one JSON object.
    #[arg(long)]
    pub json: bool,
}

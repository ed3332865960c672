//! What was typed of `stockade cache`. Types only, as in [`crate::args`].

use std::path::PathBuf;

use clap::Subcommand;
use stockade_model::quantity::size_bytes;

/// `stockade cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List the caches of each workspace, the one used last at first.
    List {
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Remove caches; what a run uses stays.
    Clear {
        /// Those of this workspace [default: the current directory's].
        #[arg(value_name = "WORKSPACE")]
        workspace: Option<PathBuf>,
        /// Those of every workspace.
        #[arg(long, conflicts_with_all = ["workspace", "over"])]
        all: bool,
        /// Those of workspaces that are gone, and those used longest ago, until no
        /// more than SIZE is left, e.g. `5GiB`.
        #[arg(long, value_name = "SIZE", conflicts_with = "workspace", value_parser = size_bytes)]
        over: Option<u64>,
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Hold the layers of a workspace for its runs. A run starts it.
    #[command(hide = true)]
    Hold {
        /// The directory of the workspace's caches.
        directory: PathBuf,
    },
}

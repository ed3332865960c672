//! Arguments of `stockade cache`. Types only, as in [`crate::args`].

use std::path::PathBuf;

use clap::Subcommand;
use stockade_model::quantity::size_bytes;

/// `stockade cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List the caches of each workspace, the most recently used first.
    List {
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Remove caches, except those in use.
    Clear {
        /// Only the caches of this workspace [default: the current directory].
        #[arg(value_name = "WORKSPACE")]
        workspace: Option<PathBuf>,
        /// The caches of every workspace.
        #[arg(long, conflicts_with_all = ["workspace", "over"])]
        all: bool,
        /// The caches of deleted workspaces, then the least recently used ones, until no more than
        /// SIZE is left, e.g. `5GiB`.
        #[arg(long, value_name = "SIZE", conflicts_with = "workspace", value_parser = size_bytes)]
        over: Option<u64>,
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Serve the layers of a workspace to its runs. Started by a run.
    #[command(hide = true)]
    Hold {
        /// The directory of the workspace's caches.
        directory: PathBuf,
    },
}

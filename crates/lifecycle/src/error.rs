//! Why something could not be done with a sandbox.

use stockade_engine::SandboxError;
use stockade_files::{FilesError, PathError};
use stockade_model::{RawText, SandboxId};
use stockade_store::sandboxes::SandboxError as KeptError;

/// Why something could not be done. Shown to a person.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// It is not known, in another state, or in use; or the store failed.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// Its walls could not be made or found.
    #[error("{}", said(.0))]
    Walls(#[from] SandboxError),
    /// No kind of sandbox can do what is asked for.
    #[error("no sandbox can be had: {0}\nhint: `stockade doctor` shows what this machine can do")]
    NoKind(String),
    /// A directory of the host cannot serve.
    #[error("`{}` cannot be a workspace: {why}\nhint: name a directory of yours by its ordinary path", directory.escaped())]
    Directory {
        /// Which.
        directory: RawText,
        /// Why not.
        why: String,
    },
    /// The workspace could not be copied.
    #[error("the workspace could not be copied: {0}")]
    Copy(#[from] FilesError),
    /// What it keeps could not be made or removed.
    #[error("what the sandbox `{id}` keeps could not be {what}: {source}")]
    Place {
        /// Which.
        id: SandboxId,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: PathError,
    },
}

fn said(error: &SandboxError) -> String {
    match error.hint() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}

//! Errors of the lifecycle of sandboxes.

use stockade_backend_api::SandboxError;
use stockade_files::{FilesError, PathError};
use stockade_model::{RawText, SandboxId};
use stockade_store::sandboxes::SandboxStoreError as KeptError;

/// Error of an operation on a sandbox. Shown to a user.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// The sandbox is not known, in another state, or in use; or the store failed.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// The isolation of the sandbox could not be set up or found.
    #[error("{}", error_text(.0))]
    Isolation(#[from] SandboxError),
    /// No kind of sandbox meets the requirements.
    #[error("no sandbox is available: {0}\nhint: `stockade doctor` shows what this machine can do")]
    NoKind(String),
    /// A directory of the host cannot be a workspace.
    #[error("`{}` cannot be a workspace: {why}\nhint: name a directory of yours by its ordinary path", directory.to_escaped())]
    Directory {
        /// The directory.
        directory: RawText,
        /// The reason.
        why: String,
    },
    /// The workspace could not be copied.
    #[error("the workspace could not be copied: {0}")]
    Copy(#[from] FilesError),
    /// The files of the sandbox could not be created or removed.
    #[error("the files of the sandbox `{id}` could not be {what}: {source}")]
    DirectoryFailed {
        /// Id of the sandbox.
        id: SandboxId,
        /// The failed operation.
        what: &'static str,
        /// The cause.
        source: PathError,
    },
}

fn error_text(error: &SandboxError) -> String {
    match error.hint() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}

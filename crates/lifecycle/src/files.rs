//! Access to the files of a sandbox from the host, without its namespaces.

use std::path::Path;

use stockade_backend_api::SandboxTree as Which;
use stockade_files::{ChangeGuard, FileTree, PathContext, PathError};
use stockade_model::WorkspaceSource;
use stockade_store::sandboxes::SandboxLease;

use crate::LifecycleError;
use crate::directories::{self, SandboxDirectories};

/// Opens a tree of a sandbox in use. If the workspace is a directory of the host, `guard` gets its
/// path and returns the rules for changes in it: the host trusts files with protected names. No
/// program of the host trusts files in a workspace of the sandbox's own.
///
/// # Errors
/// [`LifecycleError::Place`] if the tree cannot be opened.
pub fn open_files(
    used: &SandboxLease,
    which: Which,
    guard: impl FnOnce(&Path) -> ChangeGuard,
) -> Result<FileTree, LifecycleError> {
    let source = &used.record().spec.workspace;
    let sandbox_directories = SandboxDirectories::from_source(used.path(), source);
    let path = match which {
        Which::Workspace => &sandbox_directories.workspace,
        Which::Home => &sandbox_directories.home,
    };
    let held = directories::hold_plain(path).at_path(path).map_err(|source: PathError| {
        LifecycleError::DirectoryFailed { id: used.record().id.clone(), what: "opened", source }
    })?;
    match (which, source) {
        (Which::Workspace, WorkspaceSource::Bind { .. }) => Ok(FileTree::with_guard(held, guard(path))),
        _ => Ok(FileTree::from_fd(held)),
    }
}

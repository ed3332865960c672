//! The files of a sandbox, reached without its walls.

use std::path::Path;

use stockade_engine::Tree as Which;
use stockade_files::{At, Guard, PathError, Tree};
use stockade_model::WorkspaceSource;
use stockade_store::sandboxes::Use;

use crate::LifecycleError;
use crate::places::{self, Places};

/// A tree of a sandbox that is used. `guard` gets the path of a workspace that is a
/// directory of the host, and makes the rules for changes in it: the host trusts what its
/// protected names hold. In a workspace of the sandbox's own no program outside does.
///
/// # Errors
/// When it is not there.
pub fn files(used: &Use, which: Which, guard: impl FnOnce(&Path) -> Guard) -> Result<Tree, LifecycleError> {
    let source = &used.record().spec.workspace;
    let places = Places::of(used.path(), source);
    let path = match which {
        Which::Workspace => &places.workspace,
        Which::Home => &places.home,
    };
    let held = places::hold_plain(path).at(path).map_err(|source: PathError| LifecycleError::Place {
        id: used.record().id.clone(),
        what: "opened",
        source,
    })?;
    match (which, source) {
        (Which::Workspace, WorkspaceSource::Bind { .. }) => Ok(Tree::guarded(held, guard(path))),
        _ => Ok(Tree::of(held)),
    }
}

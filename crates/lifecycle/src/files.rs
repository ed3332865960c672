//! The files of a sandbox, reached without its walls.

use std::path::Path;
use std::sync::Arc;

use stockade_engine::Tree as Which;
use stockade_files::{At, Guard, PathError, Tree, TreePath};
use stockade_model::WorkspaceSource;
use stockade_store::sandboxes::Use;

use crate::LifecycleError;
use crate::places::{self, Places};

/// A tree of a sandbox that is used. In a workspace that is a directory of the
/// host the protected names are not changed: the host trusts what they hold. In
/// one of the sandbox's own nobody outside does.
///
/// # Errors
/// When it is not there.
pub fn files(used: &Use, which: Which, protect: &[String]) -> Result<Tree, LifecycleError> {
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
        (Which::Workspace, WorkspaceSource::Bind { .. }) => Ok(Tree::guarded(held, guard(protect.to_vec()))),
        _ => Ok(Tree::of(held)),
    }
}

/// Refuses what is, or lies in, something of a protected name, under any spelling
/// of its letters.
fn guard(protect: Vec<String>) -> Guard {
    Arc::new(move |path: &TreePath| {
        let name = protect.iter().find(|name| holds(path.as_path(), name))?;
        Some(format!("`{name}` is protected in a directory of the host"))
    })
}

/// Whether the components of a name follow one another somewhere in a path.
fn holds(path: &Path, name: &str) -> bool {
    let parts: Vec<&[u8]> = path.components().map(|part| part.as_os_str().as_encoded_bytes()).collect();
    let name: Vec<&[u8]> = name.split('/').map(str::as_bytes).collect();
    parts.windows(name.len()).any(|window| window.iter().zip(&name).all(|(part, name)| part.eq_ignore_ascii_case(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_names_are_found_wherever_and_however_they_are_written() {
        let guard = guard(vec![".git".to_owned(), ".cargo/config.toml".to_owned()]);
        let refuses = |path: &str| guard(&TreePath::new(path.as_bytes()).unwrap()).is_some();
        for path in [".git", "a/.GIT/hooks/x", ".git/config", ".cargo/config.toml", "a/.cargo/Config.TOML"] {
            assert!(refuses(path), "{path}");
        }
        for path in ["", "git", ".github/x", ".cargo", ".cargo/bin/config.toml", "config.toml"] {
            assert!(!refuses(path), "{path}");
        }
    }
}

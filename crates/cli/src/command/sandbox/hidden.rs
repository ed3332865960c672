//! Finds hidden files of the host in a workspace.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, quoted};

/// Returns the hidden paths in `workspace`, relative to it. `workspace` is absolute and without
/// links. The result includes the canonical path of each entry of `hide`.
///
/// # Errors
/// [`Failure`] if the whole workspace is hidden.
pub fn beneath<'a>(workspace: &Path, hide: impl Iterator<Item = &'a Path>) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for hidden in hide {
        let real = hidden.canonicalize().unwrap_or_else(|_| hidden.to_owned());
        for path in [hidden, real.as_path()] {
            if workspace.starts_with(path) {
                let what =
                    format!("the workspace {} is {}, which is hidden from runs", quoted(workspace), quoted(hidden));
                return Err(Failure::new(what).hint("name the directory of a project"));
            }
            found.extend(path.strip_prefix(workspace).ok().map(Path::to_owned));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_paths_are_relative_to_the_workspace_and_never_all_of_it() {
        let hide = ["/w/project/secret", "/w/elsewhere", "/w/project/a/b"].map(Path::new);
        let found = beneath(Path::new("/w/project"), hide.into_iter()).unwrap();
        assert_eq!(found, [PathBuf::from("a/b"), "secret".into()]);
        assert!(beneath(Path::new("/w/elsewhere/project"), hide.into_iter()).is_err());
    }
}

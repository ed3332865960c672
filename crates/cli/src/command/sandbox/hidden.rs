//! Finds hidden files of the host in a workspace.

use std::path::{Path, PathBuf};

use crate::failure::{CliError, quote_path};

/// Returns the hidden paths in `workspace`, relative to it. `workspace` is absolute and without
/// links. The result includes the canonical path of each entry of `hide`.
///
/// # Errors
/// [`CliError`] if the whole workspace is hidden.
pub fn find_hidden_paths<'a>(workspace: &Path, hide: impl Iterator<Item = &'a Path>) -> Result<Vec<PathBuf>, CliError> {
    let mut found = Vec::new();
    for hidden in hide {
        let real = hidden.canonicalize().unwrap_or_else(|_| hidden.to_owned());
        for path in [hidden, real.as_path()] {
            if workspace.starts_with(path) {
                let what = format!(
                    "the workspace {} is {}, which is hidden from runs",
                    quote_path(workspace),
                    quote_path(hidden)
                );
                return Err(CliError::new(what).with_hint("name the directory of a project"));
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
        let found = find_hidden_paths(Path::new("/w/project"), hide.into_iter()).unwrap();
        assert_eq!(found, [PathBuf::from("a/b"), "secret".into()]);
        assert!(find_hidden_paths(Path::new("/w/elsewhere/project"), hide.into_iter()).is_err());
    }
}

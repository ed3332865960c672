//! Guarded paths before a run: paths that were executed or used as configuration, because of their
//! names or a reference to them. Must not depend on the present state.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use stockade_files::object::to_os_str;
use stockade_permissions::powers::AttemptPermissions;

use super::compare::is_beneath;

/// Directory of a repository that git neither executes nor uses as configuration; may be large.
const OBJECTS_DIRECTORY: &[u8] = b"objects";

/// The guarded paths before a run, relative to its workspace.
#[derive(Debug)]
pub(super) struct GuardedBaseline {
    root: PathBuf,
    powers: AttemptPermissions,
    guarded_paths: BTreeSet<Vec<u8>>,
    repositories: BTreeSet<Vec<u8>>,
}

impl GuardedBaseline {
    pub fn new(root: &Path, protect: &[String]) -> Self {
        let powers = AttemptPermissions::for_workspace(root, protect);
        Self { root: root.to_owned(), powers, guarded_paths: BTreeSet::new(), repositories: BTreeSet::new() }
    }

    /// Adds paths that were guarded because of a reference, and directories that were repositories.
    pub fn add_guarded<'p>(
        &mut self,
        guarded_paths: impl IntoIterator<Item = &'p Vec<u8>>,
        repositories: impl IntoIterator<Item = &'p Vec<u8>>,
    ) {
        self.guarded_paths.extend(guarded_paths.into_iter().cloned());
        self.repositories.extend(repositories.into_iter().cloned());
    }

    /// Returns whether a file at this path is guarded. A process that can write to the file by
    /// another name or a descriptor would change executed code or configuration.
    pub fn is_guarded(&self, path: &[u8]) -> bool {
        let whole = self.root.join(to_os_str(path));
        self.powers.has_guarded_name(whole.as_os_str().as_bytes())
            || self.guarded_paths.iter().any(|guarded_path| guarded_path == path || is_beneath(path, guarded_path))
            || self.repositories.iter().any(|repository| is_obeyed_in(repository, path))
    }
}

fn is_obeyed_in(repository: &[u8], path: &[u8]) -> bool {
    let inner = match repository {
        [] => Some(path),
        _ if is_beneath(path, repository) => path.get(repository.len() + 1..),
        _ => None,
    };
    inner.is_some_and(|inner| inner.split(|byte| *byte == b'/').next() != Some(OBJECTS_DIRECTORY))
}

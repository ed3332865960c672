//! What was run or obeyed before a run, by its name or by what led to it. Must not know what
//! is so now.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use stockade_files::object::os;

use super::compare::is_beneath;
use crate::powers::Powers;

/// What git neither runs nor obeys of a repository, and there may be much of it.
const OBJECTS: &[u8] = b"objects";

/// What was guarded before a run, relative to its workspace.
#[derive(Debug)]
pub(super) struct GuardedBefore {
    root: PathBuf,
    powers: Powers,
    places: BTreeSet<Vec<u8>>,
    repositories: BTreeSet<Vec<u8>>,
}

impl GuardedBefore {
    pub fn new(root: &Path, protect: &[String]) -> Self {
        let powers = Powers::over(root, protect);
        Self { root: root.to_owned(), powers, places: BTreeSet::new(), repositories: BTreeSet::new() }
    }

    /// With places to which something led, and directories that were repositories.
    pub fn add<'p>(
        &mut self,
        places: impl IntoIterator<Item = &'p Vec<u8>>,
        repositories: impl IntoIterator<Item = &'p Vec<u8>>,
    ) {
        self.places.extend(places.into_iter().cloned());
        self.repositories.extend(repositories.into_iter().cloned());
    }

    /// Whether a file at this path is of that kind. Whoever could write to it, by another name
    /// or a descriptor, would write what is run or obeyed.
    pub fn holds(&self, path: &[u8]) -> bool {
        let whole = self.root.join(os(path));
        self.powers.has_guarded_name(whole.as_os_str().as_bytes())
            || self.places.iter().any(|place| place == path || is_beneath(path, place))
            || self.repositories.iter().any(|repository| is_obeyed_in(repository, path))
    }
}

fn is_obeyed_in(repository: &[u8], path: &[u8]) -> bool {
    let inner = match repository {
        [] => Some(path),
        _ if is_beneath(path, repository) => path.get(repository.len() + 1..),
        _ => None,
    };
    inner.is_some_and(|inner| inner.split(|byte| *byte == b'/').next() != Some(OBJECTS))
}

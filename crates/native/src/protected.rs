//! The protected names of the host's own directories, for writes that no command makes:
//! a copy out of a sandbox, or into a directory of the host that a sandbox has bound.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use stockade_model::{Grant, Operation};

use crate::powers::{Powers, Probe, Refusal, Verdict};

/// Decides which paths of the host such a write may not make or replace.
#[derive(Debug)]
pub struct ProtectedNames {
    powers: Powers,
    names: Vec<String>,
    granted: Vec<PathBuf>,
    /// What the links in a directory protect, by the directory.
    linked: Mutex<HashMap<PathBuf, Arc<[PathBuf]>>>,
}

impl ProtectedNames {
    /// Protects `names` at every depth. `granted` are absolute paths that may be written
    /// all the same, without the protected names beneath them.
    pub fn new(names: &[String], granted: &[PathBuf]) -> Self {
        let mut powers = Powers::over(Path::new("/"), names);
        powers.agree(granted.iter().cloned());
        Self { powers, names: names.to_vec(), granted: granted.to_vec(), linked: Mutex::default() }
    }

    /// Says why nothing may be made or replaced at `path`, which is absolute and has no
    /// links above its last component. `exists` tells what is there, or will be.
    pub fn refusal(&self, path: &Path, is_link: bool, exists: Probe<'_>) -> Option<Refusal> {
        if let Verdict::Refuse(refusal) = self.powers.decide(Operation::Create, path, exists) {
            return Some(refusal);
        }
        if self.granted.iter().any(|granted| path.starts_with(granted)) {
            return None;
        }
        let refusal = |rule: String| Refusal { rule, grant: Some(Grant::Write(path.to_owned())) };
        let directories = path.ancestors().skip(1);
        if directories.flat_map(|directory| self.linked_in(directory).to_vec()).any(|target| path.starts_with(target)) {
            return Some(refusal("the target of a link with a protected name".to_owned()));
        }
        // A link here would give whatever it leads to a protected name.
        let carried = self.powers.units_carried_by(path);
        let carried = carried.first().filter(|_| is_link)?;
        Some(refusal(format!("a link that could lead to a protected name: {}", carried.display())))
    }

    /// The places that protected names in this directory lead to.
    fn linked_in(&self, directory: &Path) -> Arc<[PathBuf]> {
        let mut known = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || linked_in(directory, &self.names).into();
        Arc::clone(known.entry(directory.to_owned()).or_insert_with(find))
    }
}

/// See [`ProtectedNames::linked_in`]. Links at the parents of protected names count, such as
/// `.cargo` of `.cargo/config.toml`, and so do git's own pointers.
fn linked_in(directory: &Path, names: &[String]) -> Vec<PathBuf> {
    let Ok(mut entries) = fs::read_dir(directory) else { return Vec::new() };
    let points = |entry: fs::DirEntry| {
        entry.file_type().is_ok_and(|kind| kind.is_symlink()) || entry.file_name().eq_ignore_ascii_case(".git")
    };
    // Most directories have neither.
    if !entries.any(|entry| entry.is_ok_and(points)) {
        return Vec::new();
    }
    let mut found = crate::broker::linked_units_of(&[directory], names);
    for name in names.iter().filter(|name| name.contains('/')) {
        let path = directory.join(name);
        let mut parents = path.ancestors().skip(1).take_while(|parent| *parent != directory);
        if parents.any(Path::is_symlink) {
            // Whatever is there already, and what would be made there.
            found.extend(path.canonicalize().ok());
            let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
            found.extend(parent.zip(path.file_name()).map(|(parent, name)| parent.join(name)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use stockade_model::DEFAULT_PROTECTED_NAMES;

    use super::*;

    fn names() -> Vec<String> {
        DEFAULT_PROTECTED_NAMES.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn names_are_protected_under_every_spelling_and_through_links_that_are_there() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        for directory in ["project/b", "bare.git/objects", "bare.git/refs"] {
            fs::create_dir_all(top.join(directory)).unwrap();
        }
        fs::write(top.join("bare.git/HEAD"), "").unwrap();
        symlink("b", top.join("project/.cargo")).unwrap();
        symlink("b/rc", top.join("project/.envrc")).unwrap();
        let protected = ProtectedNames::new(&names(), &[top.join("granted/.git")]);
        let refuses = |path: &str, is_link| {
            protected.refusal(&top.join(path), is_link, &|path| path.symlink_metadata().is_ok()).is_some()
        };
        for path in [
            "project/.git",
            "project/.GIT/config",
            "project/.git./config",
            "project/.g\u{200c}it/hooks/x",
            "other/.git",
            "project/b/config.toml",
            "project/b/rc",
            "bare.git/config",
            "bare.git/hooks/post-update",
        ] {
            assert!(refuses(path, false), "{path}");
        }
        for path in ["project/file", "project/b/other", "project/b", "granted/.git/HEAD", "granted/.git", "x/.cargo"] {
            assert!(!refuses(path, false), "{path}");
        }
        assert!(refuses("x/.cargo", true), "a link there would carry one");
        assert!(!refuses("x/cargo", true) && !refuses("granted/.git/.cargo", true));
        for path in ["granted/.envrc", "granted/.git/config"] {
            assert!(refuses(path, false), "a grant is for its path alone: {path}");
        }
    }
}

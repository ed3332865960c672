//! Protected names in the host's own directories, for writes that no command makes. Such writes
//! copy files out of a sandbox, or into a directory of the host that a sandbox has bound.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use stockade_model::{DeniedOperation, Grant};

use crate::guards::{GuardedPaths, RootView, SurveyError, open_host_root, survey_directory};
use crate::powers::{AttemptPermissions, ExistsProbe, PermissionRefusal, PermissionVerdict};

/// Decides which paths of the host such a write must not make or replace.
#[derive(Debug)]
pub struct ProtectedNames {
    powers: AttemptPermissions,
    granted: Vec<PathBuf>,
    /// Targets of the links and settings in a directory, by the directory.
    surveyed: Mutex<HashMap<PathBuf, Arc<Result<GuardedPaths, SurveyError>>>>,
}

impl ProtectedNames {
    /// Protects `names` at every depth. `granted` are absolute paths that may be written all the
    /// same, without the protected names beneath them.
    pub fn new(names: &[String], granted: &[PathBuf]) -> Self {
        let mut powers = AttemptPermissions::for_workspace(Path::new("/"), names);
        powers.writable.extend(granted);
        Self { powers, granted: granted.to_vec(), surveyed: Mutex::default() }
    }

    /// Returns the reason why nothing may be made or replaced at `path`, which is absolute and has
    /// no links above its last component. `exists` reports whether a path exists or will exist.
    pub fn creation_refusal(&self, path: &Path, is_link: bool, exists: ExistsProbe<'_>) -> Option<PermissionRefusal> {
        if let PermissionVerdict::Refuse(refusal) = self.powers.decide_operation(DeniedOperation::Create, path, exists)
        {
            return Some(refusal);
        }
        if self.granted.iter().any(|granted| path.starts_with(granted)) {
            return None;
        }
        let refusal = |rule: String| PermissionRefusal { rule, grant: Some(Grant::Write(path.to_owned())) };
        for directory in path.ancestors().skip(1) {
            match &*self.survey_directory(directory) {
                Ok(entries) => {
                    if let Some(found) = entries.find_refusal(0, path.as_os_str().as_encoded_bytes()) {
                        return Some(refusal(found.rule));
                    }
                }
                Err(error) => return Some(refusal(error.to_string())),
            }
        }
        // A link here would give its target a protected name.
        let carried = self.powers.units_carried_by(path);
        let carried = carried.first().filter(|_| is_link)?;
        Some(refusal(format!("a link that could lead to a protected name: {}", carried.display())))
    }

    /// Returns the targets of protected names in this directory.
    fn survey_directory(&self, directory: &Path) -> Arc<Result<GuardedPaths, SurveyError>> {
        let mut known = self.surveyed.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || {
            let host = open_host_root().map_err(|_| SurveyError::Unreadable)?;
            let directory = directory.as_os_str().as_encoded_bytes();
            survey_directory(RootView::new(host.as_fd()), directory, self.powers.guarded_names())
        };
        Arc::clone(known.entry(directory.to_owned()).or_insert_with(|| Arc::new(find())))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use stockade_model::DEFAULT_PROTECTED_NAMES;

    use super::*;

    fn names() -> Vec<String> {
        DEFAULT_PROTECTED_NAMES.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn names_are_protected_under_every_spelling_and_through_links_that_are_there() {
        let test_directory = tempfile::tempdir().unwrap();
        let top = test_directory.path().canonicalize().unwrap();
        for directory in ["project/b", "bare.git/objects", "bare.git/refs"] {
            fs::create_dir_all(top.join(directory)).unwrap();
        }
        fs::write(top.join("bare.git/HEAD"), "").unwrap();
        symlink("b", top.join("project/.cargo")).unwrap();
        symlink("b/rc", top.join("project/.envrc")).unwrap();
        let protected = ProtectedNames::new(&names(), &[top.join("granted/.git")]);
        let refuses = |path: &str, is_link| {
            protected.creation_refusal(&top.join(path), is_link, &|path| path.symlink_metadata().is_ok()).is_some()
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

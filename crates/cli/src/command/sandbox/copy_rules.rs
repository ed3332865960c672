//! Rules for the files that a copy between the host and a sandbox leaves out. To the host these are
//! files with a protected name, because the host runs or obeys them. Into a sandbox these are files
//! that are hidden from runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_backend_api::{INSIDE_HOME, INSIDE_WORKSPACE, SandboxTree as Which};
use stockade_files::object::ObjectKind;
use stockade_files::{ChangeGuard, ExistsCallback, FileTree, TreePath, WithholdRule};
use stockade_lifecycle::HiddenFiles;
use stockade_model::{DEFAULT_PROTECTED_NAMES, Grant, SandboxSpec};
use stockade_permissions::ProtectedNames;
use stockade_policy::{PolicySettings, resolve_profile};

use super::super::{configuration, read_variable};
use crate::failure::CliError;
use crate::{locations, resolved_args};

/// Reason for refusing a copy to the directories of Stockade's own files.
pub const OWN_FILES_REFUSAL: &str = "Stockade's own files are never written by a copy";

/// Rules of one copy.
pub struct CopyRules {
    protected: Arc<ProtectedNames>,
    /// Settings with the locations of Stockade's own files.
    own: Arc<PolicySettings>,
    hidden: HiddenFiles,
    readable: Vec<PathBuf>,
}

impl CopyRules {
    /// Creates the rules of the sandbox's profile and of the user's grants for this copy.
    ///
    /// # Errors
    /// [`CliError`] if a grant cannot be parsed or does not apply to a copy, or if the configuration
    /// cannot be used.
    pub fn new(spec: &SandboxSpec, grants: &[OsString]) -> Result<Self, CliError> {
        let cwd = locations::current_directory()?;
        let grants = resolved_args::parse_grants(grants, &read_variable, &cwd, &cwd)?;
        let (mut written, mut read) = (Vec::new(), Vec::new());
        for grant in grants {
            match grant {
                Grant::Write(path) => written.push(path),
                Grant::Read(path) => read.push(path),
                other => {
                    return Err(CliError::new(format!("`{other}` is not a power that a copy can have"))
                        .with_hint("for example --grant 'write ~/new/.git'"));
                }
            }
        }
        let settings = configuration::load_config(&cwd)?.settings;
        let files = resolve_profile(&settings, &spec.profile, INSIDE_WORKSPACE.as_ref(), &[])?.filesystem;
        let mut names: Vec<String> = DEFAULT_PROTECTED_NAMES.iter().map(|&name| name.to_owned()).collect();
        names.extend(files.protect);
        let is_hidden = |path: &PathBuf| !read.iter().any(|granted| path.starts_with(granted));
        let hide = files.hide.iter().map(|path| path.as_path().to_owned());
        Ok(Self {
            protected: Arc::new(ProtectedNames::new(&names, &written)),
            hidden: HiddenFiles::from_paths(hide.filter(is_hidden)),
            readable: read,
            own: settings,
        })
    }

    /// Returns the rules for changes in a directory of the host. `coming` is the tree that is
    /// copied there, with its path in that directory.
    pub fn build_destination_guard(&self, directory: &Path, coming: Option<(FileTree, TreePath)>) -> ChangeGuard {
        let (protected, own) = (Arc::clone(&self.protected), Arc::clone(&self.own));
        let directory = directory.to_owned();
        Arc::new(move |path: &TreePath, kind: ObjectKind, exists: ExistsCallback<'_>| {
            let whole = directory.join(path.as_path());
            if own.own_reached(&whole, kind == ObjectKind::Link).is_some() {
                return Some(OWN_FILES_REFUSAL.to_owned());
            }
            let exists = |candidate: &Path| {
                let Some(inner) = inner_path(candidate, &directory) else {
                    return candidate.symlink_metadata().is_ok();
                };
                let comes = coming.as_ref().and_then(|(tree, at)| Some(tree.stat(&inner.relative_to(at)?).is_ok()));
                candidate != whole && comes == Some(true) || exists(&inner)
            };
            let refusal = protected.creation_refusal(&whole, kind == ObjectKind::Link, &exists)?;
            Some(refusal.rule)
        })
    }

    /// Returns the rules for an archive of a tree of the sandbox, by the paths inside. `tree` is a
    /// second handle of that tree.
    pub fn build_archive_filter(&self, which: Which, tree: FileTree) -> WithholdRule {
        let inside = match which {
            Which::Workspace => INSIDE_WORKSPACE,
            Which::Home => INSIDE_HOME,
        };
        let protected = Arc::clone(&self.protected);
        Arc::new(move |path: &TreePath, stat| {
            let exists = |path: &Path| inner_path(path, inside.as_ref()).is_some_and(|inner| tree.stat(&inner).is_ok());
            let is_link = ObjectKind::of_mode(stat.st_mode) == ObjectKind::Link;
            let refusal = protected.creation_refusal(&Path::new(inside).join(path.as_path()), is_link, &exists)?;
            Some(refusal.rule)
        })
    }

    /// Checks that a file or directory of the host may be copied. `path` must be without links.
    pub fn require_readable(&self, path: &Path) -> Result<(), CliError> {
        if self.readable.iter().any(|granted| path.starts_with(granted)) || !self.hidden.covers_path(path) {
            return Ok(());
        }
        let what = format!("{} is hidden from runs", crate::failure::quote_path(path));
        Err(CliError::new(what).with_hint("to copy it into the sandbox: --grant 'read PATH'"))
    }

    /// Returns the rules for the content of a directory of the host. Its path must be without
    /// links.
    pub fn withhold_hidden(&self, directory: &Path) -> WithholdRule {
        self.hidden.clone().withhold_from(directory.to_owned())
    }
}

/// Returns a guard that refuses nothing, for a copy that no program of the host obeys.
pub fn allow_all_guard() -> ChangeGuard {
    Arc::new(|_, _, _| None)
}

fn inner_path(path: &Path, directory: &Path) -> Option<TreePath> {
    TreePath::new(path.strip_prefix(directory).ok()?.as_os_str().as_encoded_bytes()).ok()
}

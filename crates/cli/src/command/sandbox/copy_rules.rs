//! Rules for the files that a copy between the host and a sandbox leaves out. To the host these are
//! files with a protected name, because the host runs or obeys them. Into a sandbox these are files
//! that are hidden from runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_engine::{INSIDE_HOME, INSIDE_WORKSPACE, Tree as Which};
use stockade_files::object::Kind;
use stockade_files::{Exists, Guard, Tree, TreePath, Withhold};
use stockade_lifecycle::HiddenFiles;
use stockade_model::{DEFAULT_PROTECTED_NAMES, Grant, SandboxSpec};
use stockade_native::ProtectedNames;
use stockade_policy::{Settings, resolve_profile};

use super::super::{setting, variable};
use crate::failure::Failure;
use crate::{meaning, places};

/// Reason for refusing a copy to the directories of Stockade's own files.
pub const OWN_FILES: &str = "Stockade's own files are never written by a copy";

/// Rules of one copy.
pub struct CopyRules {
    protected: Arc<ProtectedNames>,
    /// Settings with the locations of Stockade's own files.
    own: Arc<Settings>,
    hidden: HiddenFiles,
    readable: Vec<PathBuf>,
}

impl CopyRules {
    /// Creates the rules of the sandbox's profile and of the user's grants for this copy.
    ///
    /// # Errors
    /// [`Failure`] if a grant cannot be parsed or does not apply to a copy, or if the configuration
    /// cannot be used.
    pub fn new(spec: &SandboxSpec, grants: &[OsString]) -> Result<Self, Failure> {
        let cwd = places::current_directory()?;
        let grants = meaning::grants(grants, &variable, &cwd, &cwd)?;
        let (mut written, mut read) = (Vec::new(), Vec::new());
        for grant in grants {
            match grant {
                Grant::Write(path) => written.push(path),
                Grant::Read(path) => read.push(path),
                other => {
                    return Err(Failure::new(format!("`{other}` is no power of a copy"))
                        .hint("for example --grant 'write ~/new/.git'"));
                }
            }
        }
        let settings = setting::load(&cwd)?.settings;
        let files = resolve_profile(&settings, &spec.profile, INSIDE_WORKSPACE.as_ref(), &[])?.filesystem;
        let mut names: Vec<String> = DEFAULT_PROTECTED_NAMES.iter().map(|&name| name.to_owned()).collect();
        names.extend(files.protect);
        let is_hidden = |path: &PathBuf| !read.iter().any(|granted| path.starts_with(granted));
        let hide = files.hide.iter().map(|path| path.as_path().to_owned());
        Ok(Self {
            protected: Arc::new(ProtectedNames::new(&names, &written)),
            hidden: HiddenFiles::of(hide.filter(is_hidden)),
            readable: read,
            own: settings,
        })
    }

    /// Returns the rules for changes in a directory of the host. `coming` is the tree that is
    /// copied there, with its path in that directory.
    pub fn guard(&self, directory: &Path, coming: Option<(Tree, TreePath)>) -> Guard {
        let (protected, own) = (Arc::clone(&self.protected), Arc::clone(&self.own));
        let directory = directory.to_owned();
        Arc::new(move |path: &TreePath, kind: Kind, exists: Exists<'_>| {
            let whole = directory.join(path.as_path());
            if own.own_reached(&whole, kind == Kind::Link).is_some() {
                return Some(OWN_FILES.to_owned());
            }
            let exists = |asked: &Path| {
                let Some(inner) = inner_path(asked, &directory) else { return asked.symlink_metadata().is_ok() };
                let comes = coming.as_ref().and_then(|(tree, at)| Some(tree.stat(&inner.within(at)?).is_ok()));
                asked != whole && comes == Some(true) || exists(&inner)
            };
            let refusal = protected.refusal(&whole, kind == Kind::Link, &exists)?;
            Some(refusal.rule)
        })
    }

    /// Returns the rules for an archive of a tree of the sandbox, by the paths inside. `tree` is a
    /// second handle of that tree.
    pub fn withhold(&self, which: Which, tree: Tree) -> Withhold {
        let inside = match which {
            Which::Workspace => INSIDE_WORKSPACE,
            Which::Home => INSIDE_HOME,
        };
        let protected = Arc::clone(&self.protected);
        Arc::new(move |path: &TreePath, stat| {
            let exists = |path: &Path| inner_path(path, inside.as_ref()).is_some_and(|inner| tree.stat(&inner).is_ok());
            let is_link = Kind::of_mode(stat.st_mode) == Kind::Link;
            let refusal = protected.refusal(&Path::new(inside).join(path.as_path()), is_link, &exists)?;
            Some(refusal.rule)
        })
    }

    /// Checks that a file or directory of the host may be copied. `path` must be without links.
    pub fn demand_readable(&self, path: &Path) -> Result<(), Failure> {
        if self.readable.iter().any(|granted| path.starts_with(granted)) || !self.hidden.holds(path) {
            return Ok(());
        }
        let what = format!("{} is hidden from runs", crate::failure::quoted(path));
        Err(Failure::new(what).hint("if it is meant to go into the sandbox: --grant 'read PATH'"))
    }

    /// Returns the rules for the content of a directory of the host. Its path must be without
    /// links.
    pub fn withhold_hidden(&self, directory: &Path) -> Withhold {
        self.hidden.clone().withhold_from(directory.to_owned())
    }
}

/// Returns a guard that refuses nothing, for a copy that no program of the host obeys.
pub fn unguarded() -> Guard {
    Arc::new(|_, _, _| None)
}

fn inner_path(path: &Path, directory: &Path) -> Option<TreePath> {
    TreePath::new(path.strip_prefix(directory).ok()?.as_os_str().as_encoded_bytes()).ok()
}

//! Launch options of a run, beside its plan: the overlay, variables, and files that replace the
//! host's. This module must not know their purpose.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use stockade_model::{AttemptPlan, RawText};

use super::error::LaunchError;
use super::layout::{MergedDirectory, OverlayWriteLayer, c_string, hidden_there};

/// Launch options of a run, beside its plan.
#[derive(Clone, Debug, Default)]
pub struct LaunchOptions {
    /// The overlay that holds the run's writes in the workspace.
    pub overlay: Option<OverlayWriteLayer>,
    /// True if one of the standard streams is a terminal of the run's own, which becomes its
    /// controlling terminal.
    pub terminal: bool,
    /// The file mode creation mask, if it differs from that of this process.
    pub umask: Option<u32>,
    /// Variables that override those of the plan.
    pub environment: BTreeMap<String, RawText>,
    /// Read-only files that replace files of the host. At level full only.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Files of the run's own, in any suitable directory, and the variables that name them.
    pub named: Vec<NamedFile>,
    /// Directories that belong to the surrounding sandbox and replace the private directory that is
    /// otherwise made for the run. At level restricted only, within existing isolation.
    pub private: Vec<PathBuf>,
    /// A persistent directory of the host that the run may use as it uses its private temporary
    /// directory.
    pub kept: Option<PathBuf>,
    /// Directories of the host that are the lower directories of overlays for the run's writes. At
    /// level full only.
    pub merged: Vec<MergedDirectory>,
    /// The existing hidden paths, canonical, if they were looked up already.
    pub hidden: Option<Vec<PathBuf>>,
    /// Writable roots that no Landlock rule lets the run read. At level restricted only.
    pub late: Vec<PathBuf>,
    /// True if an approver may be asked for more than the limits.
    pub asks: bool,
    /// True if the surrounding network belongs to the sandbox, at level restricted. Its ports are
    /// then not restricted.
    pub own_network: bool,
}

/// See [`LaunchOptions::named`].
#[derive(Clone, Debug)]
pub struct NamedFile {
    /// File name, unique within a run.
    pub name: &'static str,
    /// Content of the file.
    pub content: Vec<u8>,
    /// Variables that get its path.
    pub variables: Vec<NamingVariable>,
}

/// A variable that gets the path of a file, with text around it.
#[derive(Clone, Debug)]
pub struct NamingVariable {
    /// Name of the variable.
    pub name: String,
    /// Text before the path.
    pub before: &'static str,
    /// Text after the path.
    pub after: &'static str,
}

impl NamingVariable {
    /// Makes a variable that contains the path alone.
    pub fn path_only(name: &str) -> Self {
        Self { name: name.to_owned(), before: "", after: "" }
    }
}

impl NamedFile {
    fn values_in(&self, directory: &Path) -> impl Iterator<Item = (String, RawText)> {
        let path = directory.join(self.name);
        self.variables.iter().map(move |variable| {
            let path = path.as_os_str().as_bytes();
            let value = [variable.before.as_bytes(), path, variable.after.as_bytes()].concat();
            (variable.name.clone(), RawText::from(value))
        })
    }

    pub(super) fn file_name(&self) -> Result<CString, LaunchError> {
        c_string(self.name.as_ref())
    }
}

impl LaunchOptions {
    /// Returns the hidden paths that exist.
    pub(super) fn hidden_there(&self, plan: &AttemptPlan) -> Cow<'_, [PathBuf]> {
        self.hidden.as_deref().map_or_else(|| Cow::Owned(hidden_there(plan)), Cow::Borrowed)
    }

    /// Returns whether another process lends layers.
    pub(super) fn has_borrowed_layers(&self) -> bool {
        self.merged.iter().any(|merged| merged.overlay.is_none())
    }

    /// Returns whether the run is inside isolation that another process has set up.
    pub(super) fn is_within_isolation(&self) -> bool {
        !self.private.is_empty()
    }

    /// Returns whether the broker decides on each open for reading.
    pub fn asks_reads(&self, plan: &AttemptPlan) -> bool {
        plan.profile.filesystem.trace || !self.late.is_empty()
    }

    /// Returns the variables of a run; `directory` holds its own files.
    pub(super) fn build_environment(&self, plan: &AttemptPlan, directory: &Path) -> BTreeMap<String, RawText> {
        let mut all = plan.environment.clone();
        all.extend(self.environment.clone());
        all.extend(self.named.iter().flat_map(|named| named.values_in(directory)));
        all
    }
}

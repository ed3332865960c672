//! What a run is given besides its plan: where its writes wait, variables, files
//! that are not the host's. It must not know what they are for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use stockade_model::{Plan, RawText};

use super::error::LaunchError;
use super::layout::{MergedDirectory, Overlay, c_string, hidden_there};

/// What a run is given besides its plan.
#[derive(Clone, Debug, Default)]
pub struct Outfit {
    /// Where what it writes in the workspace waits.
    pub overlay: Option<Overlay>,
    /// Whether one of its standard streams is a terminal of its own, to control its session.
    pub terminal: bool,
    /// Its file mode creation mask, where that is not this process's.
    pub umask: Option<u32>,
    /// Variables that outweigh those of the plan.
    pub environment: BTreeMap<String, RawText>,
    /// Files with other content than the host's, read-only: at level full alone.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Files of the run's own, wherever there is room, and the variables that
    /// name them.
    pub named: Vec<NamedFile>,
    /// Directories that are the place's own already, in the place of one that is made
    /// for the run: at level restricted alone, within walls that others made.
    pub private: Vec<PathBuf>,
    /// A directory of the host that is the run's own as its private temp is, and lasts.
    pub kept: Option<PathBuf>,
    /// Directories of the host that are seen beneath what runs write in them: at level
    /// full alone.
    pub merged: Vec<MergedDirectory>,
    /// What of the paths to hide is there, without links, where it was looked for already.
    pub hidden: Option<Vec<PathBuf>>,
    /// Writable roots that no rule of the kernel's lets it read: at level restricted alone.
    pub late: Vec<PathBuf>,
    /// Whether somebody may be asked for more than the limits.
    pub asks: bool,
    /// Whether the network around is the sandbox's own, at level restricted: then its
    /// ports are no walls.
    pub own_network: bool,
}

/// See [`Outfit::named`].
#[derive(Clone, Debug)]
pub struct NamedFile {
    /// What it is called: no two of a run alike.
    pub name: &'static str,
    /// What it holds.
    pub content: Vec<u8>,
    /// Variables that get its path.
    pub variables: Vec<NamingVariable>,
}

/// A variable that gets the path of a file, and text around it.
#[derive(Clone, Debug)]
pub struct NamingVariable {
    /// What it is called.
    pub name: String,
    /// What stands before the path.
    pub before: &'static str,
    /// What stands after it.
    pub after: &'static str,
}

impl NamingVariable {
    /// One that is the path alone.
    pub fn plain(name: &str) -> Self {
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

impl Outfit {
    /// What of the paths to hide is there.
    pub(super) fn hidden_there(&self, plan: &Plan) -> Cow<'_, [PathBuf]> {
        self.hidden.as_deref().map_or_else(|| Cow::Owned(hidden_there(plan)), Cow::Borrowed)
    }

    /// Whether another process lends layers.
    pub(super) fn borrows(&self) -> bool {
        self.merged.iter().any(|merged| merged.overlay.is_none())
    }

    /// Whether others have walled the place in.
    pub(super) fn is_within_walls(&self) -> bool {
        !self.private.is_empty()
    }

    /// Whether the broker is asked about each open for reading.
    pub(crate) fn asks_reads(&self, plan: &Plan) -> bool {
        plan.profile.filesystem.trace || !self.late.is_empty()
    }

    /// The variables of a run whose own directory for files is `directory`.
    pub(super) fn variables(&self, plan: &Plan, directory: &Path) -> BTreeMap<String, RawText> {
        let mut all = plan.environment.clone();
        all.extend(self.environment.clone());
        all.extend(self.named.iter().flat_map(|named| named.values_in(directory)));
        all
    }
}

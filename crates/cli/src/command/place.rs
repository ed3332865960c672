//! Where the command of a run is run: in a sandbox of its own, or in one that
//! lasts, whose paths are others than the host's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_engine::{Backend, INSIDE_HOME, INSIDE_WORKSPACE};
use stockade_model::{CallerApproval, Grant, Limits, RawText, Request};
use stockade_native::launch::Nursery;
use stockade_native::{NativeBackend, SigningPerson};

use crate::failure::Failure;
use crate::meaning::Meant;
use crate::places;
use crate::places::State;

/// What of the caller's environment means the same inside.
const PASSED: [&str; 6] = ["TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ"];

/// What holds in every sandbox that lasts.
const OWN: [(&str, &str); 3] = [
    ("HOME", INSIDE_HOME),
    ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"),
    ("USER", "agent"),
];

/// Where the command of a run is run.
pub enum Place {
    /// In a sandbox of its own; it may be begun already.
    Own(Option<Nursery>),
    /// In one that lasts.
    Lasting(Box<Inside>),
}

/// A sandbox that lasts, as a run needs it.
pub struct Inside {
    /// What runs commands in it.
    pub backend: Arc<dyn Backend>,
    /// Its workspace, on the host.
    pub workspace: PathBuf,
    /// The profile whose powers its commands have.
    pub profile: String,
    /// Powers that they have besides.
    pub grants: Vec<Grant>,
    /// What they may take.
    pub limits: Limits,
    /// Who agreed to the command already.
    pub agreed: Option<CallerApproval>,
}

impl Place {
    /// The same run, with the paths that are meant there.
    ///
    /// # Errors
    /// Where a run of root's would work in what holds the system.
    pub fn within(&self, mut meant: Meant) -> Result<Meant, Failure> {
        if matches!(self, Self::Own(_)) && rustix::process::geteuid().is_root() {
            places::refuse_system(&meant.workspace, "the workspace")?;
        }
        if let Self::Lasting(inside) = self {
            meant.cwd = INSIDE_WORKSPACE.into();
            meant.workspace = INSIDE_WORKSPACE.into();
            meant.profile = Some(inside.profile.clone());
            meant.grants.extend(inside.grants.iter().cloned());
            meant.limits.lower_to(&inside.limits);
        }
        Ok(meant)
    }

    /// Powers that each command there has.
    pub fn standing(&self) -> Vec<Grant> {
        match self {
            Self::Own(_) => Vec::new(),
            Self::Lasting(inside) => inside.grants.clone(),
        }
    }

    /// The workspace on the host.
    pub fn workspace<'a>(&'a self, meant: &'a Meant) -> &'a Path {
        match self {
            Self::Own(_) => &meant.workspace,
            Self::Lasting(inside) => &inside.workspace,
        }
    }

    /// The workspace on the host of a sandbox that lasts.
    pub fn inside(&self) -> Option<&Path> {
        match self {
            Self::Own(_) => None,
            Self::Lasting(inside) => Some(&inside.workspace),
        }
    }

    /// The same request, with nothing of the host in its environment.
    pub fn of(&self, mut request: Request) -> Request {
        if let Self::Lasting(inside) = self {
            request.environment = environment(&request.environment);
            request.caller_approval.clone_from(&inside.agreed);
        }
        request
    }

    /// What runs it; `person` is whose keys may sign there.
    pub fn backend(self, state: &State, person: SigningPerson) -> Arc<dyn Backend> {
        match self {
            Self::Own(nursery) => {
                let backend = NativeBackend::with(nursery).staging(state.stages());
                let backend = backend.caching(state.caches()).holding(super::cache::holder());
                Arc::new(backend.undoing(state.undo()).signing(person))
            }
            Self::Lasting(inside) => inside.backend,
        }
    }
}

fn environment(callers: &BTreeMap<String, RawText>) -> BTreeMap<String, RawText> {
    let passed = PASSED.iter().filter_map(|name| Some(((*name).to_owned(), callers.get(*name)?.clone())));
    passed.chain(OWN.map(|(name, value)| (name.to_owned(), value.into()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_host_is_in_the_environment_inside() {
        let callers =
            [("HOME", "/root"), ("PATH", "/opt/bin"), ("TERM", "xterm"), ("AWS_PROFILE", "x"), ("GIT_DIR", "y")];
        let callers = callers.map(|(name, value)| (name.to_owned(), RawText::from(value))).into();
        let inside = environment(&callers);
        let names: Vec<&str> = inside.keys().map(String::as_str).collect();
        assert_eq!(names, ["HOME", "PATH", "TERM", "USER"]);
        assert_eq!(inside["HOME"], RawText::from(INSIDE_HOME));
    }
}

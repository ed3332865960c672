//! Sandbox in which the command of a run runs: one of its own, or a persistent one, whose paths
//! differ from the host's.

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

/// Variables of the caller's environment that have the same meaning inside.
const PASSED: [&str; 6] = ["TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ"];

/// Variables that are the same in every persistent sandbox.
const OWN: [(&str, &str); 3] = [
    ("HOME", INSIDE_HOME),
    ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"),
    ("USER", "agent"),
];

/// Sandbox in which the command of a run runs.
pub enum Place {
    /// A sandbox of its own, which may be prewarmed.
    Own(Option<Nursery>),
    /// A persistent sandbox.
    Lasting(Box<Inside>),
}

/// Parameters of a persistent sandbox for a run.
pub struct Inside {
    /// Backend that runs commands in it.
    pub backend: Arc<dyn Backend>,
    /// Workspace on the host.
    pub workspace: PathBuf,
    /// Profile of its commands.
    pub profile: String,
    /// Further grants of its commands.
    pub grants: Vec<Grant>,
    /// Limits of its commands.
    pub limits: Limits,
    /// Approval of the command that the caller has given already.
    pub agreed: Option<CallerApproval>,
}

impl Place {
    /// Returns the same run, with the paths inside the sandbox.
    ///
    /// # Errors
    /// [`Failure`] if a run of root has a system directory as its workspace.
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

    /// Returns the grants that each command there has.
    pub fn standing(&self) -> Vec<Grant> {
        match self {
            Self::Own(_) => Vec::new(),
            Self::Lasting(inside) => inside.grants.clone(),
        }
    }

    /// Returns the workspace on the host.
    pub fn workspace<'a>(&'a self, meant: &'a Meant) -> &'a Path {
        match self {
            Self::Own(_) => &meant.workspace,
            Self::Lasting(inside) => &inside.workspace,
        }
    }

    /// Returns the workspace on the host of a persistent sandbox.
    pub fn inside(&self) -> Option<&Path> {
        match self {
            Self::Own(_) => None,
            Self::Lasting(inside) => Some(&inside.workspace),
        }
    }

    /// Returns the same request, without the host's environment.
    pub fn of(&self, mut request: Request) -> Request {
        if let Self::Lasting(inside) = self {
            request.environment = environment(&request.environment);
            request.caller_approval.clone_from(&inside.agreed);
        }
        request
    }

    /// Returns the backend that runs the command; the keys of `person` may sign there.
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

//! Sandbox in which the command of a run runs: one of its own, or a persistent one, whose paths
//! differ from the host's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_backend_api::{Backend, INSIDE_HOME, INSIDE_WORKSPACE};
use stockade_launch::PrewarmedInit;
use stockade_model::{CallerApproval, Grant, Limits, RawText, RunRequest};
use stockade_native::{NativeBackend, NativeOptions, SigningUser};

use crate::failure::CliError;
use crate::locations;
use crate::locations::StateDirectory;
use crate::resolved_args::ResolvedArgs;

/// Variables of the caller's environment that have the same meaning inside.
const PASSED_VARIABLES: [&str; 6] = ["TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ"];

/// Variables that are the same in every persistent sandbox.
const SANDBOX_VARIABLES: [(&str, &str); 3] = [
    ("HOME", INSIDE_HOME),
    ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"),
    ("USER", "agent"),
];

/// Sandbox in which the command of a run runs.
pub enum RunSandbox {
    /// A sandbox of its own, which may be prewarmed.
    Own(Option<PrewarmedInit>),
    /// A persistent sandbox.
    Lasting(Box<PersistentRunContext>),
}

/// Parameters of a persistent sandbox for a run.
pub struct PersistentRunContext {
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

impl RunSandbox {
    /// Returns the same run, with the paths inside the sandbox.
    ///
    /// # Errors
    /// [`CliError`] if a run of root has a system directory as its workspace.
    pub fn resolve_inside(&self, mut request_args: ResolvedArgs) -> Result<ResolvedArgs, CliError> {
        if matches!(self, Self::Own(_)) && rustix::process::geteuid().is_root() {
            locations::refuse_system(&request_args.workspace, "the workspace")?;
        }
        if let Self::Lasting(inside) = self {
            request_args.cwd = INSIDE_WORKSPACE.into();
            request_args.workspace = INSIDE_WORKSPACE.into();
            request_args.options.profile = Some(inside.profile.clone());
            request_args.grants.extend(inside.grants.iter().cloned());
            request_args.limits.lower_to(&inside.limits);
        }
        Ok(request_args)
    }

    /// Returns the grants that each command there has.
    pub fn common_grants(&self) -> Vec<Grant> {
        self.persistent_context().map(|inside| inside.grants.clone()).unwrap_or_default()
    }

    /// Returns the workspace on the host.
    pub fn host_workspace<'a>(&'a self, request_args: &'a ResolvedArgs) -> &'a Path {
        self.persistent_workspace().unwrap_or(&request_args.workspace)
    }

    /// Returns the workspace on the host of a persistent sandbox.
    pub fn persistent_workspace(&self) -> Option<&Path> {
        self.persistent_context().map(|inside| inside.workspace.as_path())
    }

    fn persistent_context(&self) -> Option<&PersistentRunContext> {
        match self {
            Self::Own(_) => None,
            Self::Lasting(inside) => Some(inside),
        }
    }

    /// Returns the same request, without the host's environment.
    pub fn adapt_request(&self, mut request: RunRequest) -> RunRequest {
        if let Self::Lasting(inside) = self {
            request.environment = build_environment(&request.environment);
            request.caller_approval.clone_from(&inside.agreed);
        }
        request
    }

    /// Returns the backend that runs the command; the keys of `person` may sign there.
    pub fn into_backend(self, state: &StateDirectory, person: SigningUser) -> Arc<dyn Backend> {
        match self {
            Self::Own(prewarmed_init) => {
                let options = NativeOptions {
                    stages: Some(state.stages_directory()),
                    caches: Some(state.caches_directory()),
                    layer_server: Some(super::cache::describe_layer_server()),
                    undo: Some(state.undo_directory()),
                    signing: Some(person),
                    ..NativeOptions::default()
                };
                Arc::new(NativeBackend::with_options(prewarmed_init, options))
            }
            Self::Lasting(inside) => inside.backend,
        }
    }
}

fn build_environment(callers: &BTreeMap<String, RawText>) -> BTreeMap<String, RawText> {
    let passed = PASSED_VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), callers.get(*name)?.clone())));
    passed.chain(SANDBOX_VARIABLES.map(|(name, value)| (name.to_owned(), value.into()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_host_is_in_the_environment_inside() {
        let callers =
            [("HOME", "/root"), ("PATH", "/opt/bin"), ("TERM", "xterm"), ("AWS_PROFILE", "x"), ("GIT_DIR", "y")];
        let callers = callers.map(|(name, value)| (name.to_owned(), RawText::from(value))).into();
        let inside = build_environment(&callers);
        let names: Vec<&str> = inside.keys().map(String::as_str).collect();
        assert_eq!(names, ["HOME", "PATH", "TERM", "USER"]);
        assert_eq!(inside["HOME"], RawText::from(INSIDE_HOME));
    }
}

//! Persistent sandboxes of the native backend: namespaces that stay, one control group, one
//! network, and two directories of the host.
//!
//! One process keeps each sandbox: it holds the connection to the init, so that the sandbox ends
//! with it. The keeping process is the creator, or a process for this purpose ([`out_of_process`]). This
//! module must not know rules, questions, the log or the store.

mod command;
mod out_of_process;
mod supervisor_state;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use stockade_backend_api::{
    Backend, GuestSystem, INSIDE_HOME, INSIDE_WORKSPACE, ProviderCapabilities, Sandbox, SandboxError,
    SandboxEventSender, SandboxPlan, SandboxProvider, SandboxTree, StartError,
};
use stockade_egress::NameResolver;
use stockade_limits::can_have_group;
use stockade_model::SandboxUsage;
use stockade_model::{BackgroundPolicy, EnforcementReport, IsolationLevel, SandboxId};

use self::command::SandboxCommandBackend;
use self::out_of_process::SupervisorProgram;
pub use self::out_of_process::{SupervisorHooks, run_sandbox_supervisor};
use self::supervisor_state::HostedSandbox;

/// Name of the backend.
const BACKEND_NAME: &str = "native";

/// Creates persistent sandboxes of this backend.
#[derive(Default)]
pub struct NativeSandboxes {
    resolver: Option<Arc<dyn NameResolver>>,
    supervisor_program: Option<SupervisorProgram>,
}

impl std::fmt::Debug for NativeSandboxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeSandboxes").finish_non_exhaustive()
    }
}

impl NativeSandboxes {
    /// Sets the resolver of host names for the sandboxes' egress proxies, in place of the host's resolver.
    #[must_use]
    pub fn with_resolver(self, resolver: Arc<dyn NameResolver>) -> Self {
        Self { resolver: Some(resolver), ..self }
    }

    /// Keeps each sandbox in a process of its own, so that it survives its creator. The process
    /// runs `program` with `arguments`, and must call [`run_sandbox_supervisor`]. Program and arguments are
    /// visible inside, because the first process of a sandbox is a copy of the supervisor. `root` has a
    /// private directory for each sandbox, named by its id, in which the supervisor is found. Host
    /// names are resolved by the host's resolver.
    #[must_use]
    pub fn with_supervisor(self, program: PathBuf, arguments: Vec<OsString>, root: PathBuf) -> Self {
        Self { supervisor_program: Some(SupervisorProgram { program, arguments, root }), ..self }
    }
}

impl SandboxProvider for NativeSandboxes {
    fn name(&self) -> &'static str {
        BACKEND_NAME
    }

    fn capabilities(&self) -> ProviderCapabilities {
        let groups = can_have_group();
        ProviderCapabilities {
            adopts: self.supervisor_program.is_some(),
            pauses: groups,
            snapshots: false,
            keeps_background: true,
            ends_background: groups,
            holds: true,
            shows_files: true,
        }
    }

    fn check_plan(&self, plan: &SandboxPlan) -> Result<(), SandboxError> {
        require_possible(plan)
    }

    fn create_sandbox(&self, plan: &SandboxPlan, events: SandboxEventSender) -> Result<Box<dyn Sandbox>, SandboxError> {
        require_possible(plan)?;
        if let Some(supervisor_program) = &self.supervisor_program {
            return Ok(Box::new(supervisor_program.create_sandbox(plan, events)?));
        }
        let hosted_sandbox = HostedSandbox::build_and_monitor(plan, events, self.resolver.clone())?;
        Ok(Box::new(NativeSandbox { id: plan.id.clone(), hosted_sandbox: Arc::new(hosted_sandbox) }))
    }

    /// Without supervisor processes there is never one to adopt: its processes ended with its creator.
    fn adopt_sandbox(&self, plan: &SandboxPlan, events: SandboxEventSender) -> Result<Box<dyn Sandbox>, SandboxError> {
        match &self.supervisor_program {
            Some(supervisor_program) => Ok(Box::new(supervisor_program.connect_sandbox(plan, events)?)),
            None => Err(SandboxError::Gone(plan.id.clone())),
        }
    }

    /// Without supervisor processes the kernel has cleaned up; an empty control group is removed when
    /// the next is made.
    fn clear(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.supervisor_program.as_ref().map_or(Ok(()), |supervisor_program| supervisor_program.clear(id))
    }
}

fn unsupported_error(what: &'static str, why: impl Into<String>) -> SandboxError {
    SandboxError::Unsupported { backend: BACKEND_NAME, what, why: why.into() }
}

fn require_possible(plan: &SandboxPlan) -> Result<(), SandboxError> {
    if plan.level != IsolationLevel::Full {
        let why = "without namespaces nothing can isolate several commands together";
        return Err(unsupported_error("a level below `full`", why));
    }
    if !plan.profile.sandboxed {
        return Err(unsupported_error("a profile without a sandbox", "it would be the host itself"));
    }
    if let Some(GuestSystem::Image(image)) = &plan.system {
        let why = format!("{image} is an image of a container engine; name a root tree");
        return Err(unsupported_error("an image", why));
    }
    if let Some(GuestSystem::Tree(tree)) = &plan.system
        && !tree.join("usr").is_dir()
    {
        let what = format!("{} is not a root tree: it has no `usr`", tree.display());
        let hint = "name a directory with a complete system, e.g. from `mmdebstrap` or `docker export`";
        return Err(StartError { what, hint: Some(hint.to_owned()) }.into());
    }
    if plan.runtime.is_some() {
        return Err(unsupported_error("a runtime", "it uses no container engine"));
    }
    if plan.background == BackgroundPolicy::End && !can_have_group() {
        let why = "no control group is available here, and without one its processes cannot be identified";
        return Err(unsupported_error("ending background processes of a command", why));
    }
    Ok(())
}

/// A sandbox that this process keeps.
#[derive(Debug)]
struct NativeSandbox {
    id: SandboxId,
    hosted_sandbox: Arc<HostedSandbox>,
}

impl Sandbox for NativeSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn enforcement_report(&self) -> &EnforcementReport {
        &self.hosted_sandbox.enforced
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(SandboxCommandBackend::new(Arc::clone(&self.hosted_sandbox)))
    }

    fn pause(&self) -> Result<(), SandboxError> {
        self.hosted_sandbox.pause()
    }

    fn resume(&self) -> Result<(), SandboxError> {
        self.hosted_sandbox.resume()
    }

    fn snapshot_files(&self, _to: &Path) -> Result<(), SandboxError> {
        Err(unsupported_error("a snapshot", "its directories are on the host: copy them while it is paused"))
    }

    fn read_usage(&self) -> Result<SandboxUsage, SandboxError> {
        self.hosted_sandbox.read_usage()
    }

    fn open_tree(&self, which: SandboxTree) -> Result<OwnedFd, SandboxError> {
        let (inside, path) = self.hosted_sandbox.tree_paths(which);
        open_tree(inside, path)
    }

    fn destroy(&self) -> Result<(), SandboxError> {
        self.hosted_sandbox.end_sandbox()
    }
}

impl Drop for NativeSandbox {
    fn drop(&mut self) {
        if let Err(error) = self.hosted_sandbox.end_sandbox() {
            tracing::error!("cannot end the sandbox {}: {error}", self.id);
        }
    }
}

/// Opens the tree that is at `inside`, on the host.
fn open_tree(inside: &str, path: &Path) -> Result<OwnedFd, SandboxError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| failed_error(format!("cannot open the host directory of {inside}: {errno}")))
}

fn failed_error(what: String) -> SandboxError {
    SandboxError::Failed(StartError { what, hint: None })
}

/// Returns the path of a tree inside.
fn tree_path_inside(which: SandboxTree) -> &'static str {
    match which {
        SandboxTree::Workspace => INSIDE_WORKSPACE,
        SandboxTree::Home => INSIDE_HOME,
    }
}

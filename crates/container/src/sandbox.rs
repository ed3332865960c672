//! Containers as sandboxes: made, found again, removed.

use std::collections::HashMap;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{CreateContainerOptionsBuilder, ListContainersOptionsBuilder};
use rustix::process::{getegid, geteuid, getgroups};
use serde::Serialize;
use stockade_backend_api::{
    GuestSystem, INSIDE_HOME, INSIDE_WORKSPACE, ProviderCapabilities, Sandbox, SandboxError, SandboxEventSender,
    SandboxPlan, SandboxProvider, StartError,
};
use stockade_egress::NameResolver;
use stockade_model::{BackgroundPolicy, ImageDigest, IsolationLevel, RawText, RuntimeName, SandboxId};
use tokio::sync::watch;

use crate::accounts::BindMountPair;
use crate::client::{CALL_TIMEOUT, CREATE_TIMEOUT, CallError, ContainerClient, is_running};
use crate::command::ContainerCommandBackend;
use crate::images::{ImageProperties, PullProgressSink};
use crate::in_container::ReachableObject;
use crate::mount_check::{ExpectedMounts, SharedObject};
use crate::persistent::{ContainerSandbox, remove_container, start_time};
use crate::spec::{
    ContainerContext, ContainerUser, LAUNCHER_PATH, OWNER_LABEL, SANDBOX_LABEL, container_name, create_request,
    owner_labels, text_of,
};
use crate::verification::HostFileSet;
use crate::{
    ContainerEngineKind, ContainerSettings, accounts, cannot, covers, filter, images, limits, links, mount_check,
    sessions, socket, verification,
};

/// Makes sandboxes with one engine.
pub struct ContainerSandboxes {
    kind: ContainerEngineKind,
    settings: ContainerSettings,
    connected: OnceLock<ContainerEngineConnection>,
    resolver: Option<Arc<dyn NameResolver>>,
    tell_pull: Option<PullProgressSink>,
}

/// An engine that answered.
#[derive(Clone, Debug)]
struct ContainerEngineConnection {
    client: ContainerClient,
    info: ContainerEngineInfo,
}

/// Properties of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ContainerEngineInfo {
    /// Version in the engine's own words.
    pub version: Option<String>,
    /// True if it runs as an ordinary user.
    pub rootless: bool,
    /// Default runtime.
    pub runtime: Option<String>,
    /// The runtimes that can be selected.
    pub runtimes: Vec<String>,
}

impl fmt::Debug for ContainerSandboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSandboxes").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl ContainerSandboxes {
    /// Creates the sandboxes of an engine, which is not contacted before it is needed.
    pub fn new(kind: ContainerEngineKind, settings: ContainerSettings) -> Self {
        Self { kind, settings, connected: OnceLock::new(), resolver: None, tell_pull: None }
    }

    /// Sets the resolver of the egress proxies, instead of the host's own.
    #[must_use]
    pub fn with_resolver(self, resolver: Arc<dyn NameResolver>) -> Self {
        Self { resolver: Some(resolver), ..self }
    }

    /// Sets the receiver for the progress of pulls.
    #[must_use]
    pub fn telling_pulls(self, tell: PullProgressSink) -> Self {
        Self { tell_pull: Some(tell), ..self }
    }

    /// Returns the engine that answers.
    ///
    /// # Errors
    /// [`StartError`] with the reason if none does.
    pub fn find_engine(&self) -> Result<ContainerEngineInfo, StartError> {
        Ok(self.connect_engine()?.info)
    }

    fn connect_engine(&self) -> Result<ContainerEngineConnection, StartError> {
        if let Some(connected) = self.connected.get() {
            return Ok(connected.clone());
        }
        let socket = socket::find_socket(self.kind, self.settings.socket.as_deref(), |name| std::env::var_os(name))?;
        let cannot = |error: CallError| error.to_start_error(&format!("use {}", self.kind.name()));
        let client = ContainerClient::connect_socket(&socket).map_err(cannot)?;
        let info = client.call(CALL_TIMEOUT, |docker| async move { docker.info().await }).map_err(cannot)?;
        let rootless = info.security_options.iter().flatten().any(|option| option.contains("rootless"));
        // Podman's list contains known names, but its API accepts none of them.
        let named = info.runtimes.filter(|_| self.kind == ContainerEngineKind::Docker).unwrap_or_default();
        let mut runtimes: Vec<String> = named.into_keys().collect();
        runtimes.sort_unstable();
        let (version, runtime) = (info.server_version, info.default_runtime);
        let info = ContainerEngineInfo { version, rootless, runtime, runtimes };
        Ok(self.connected.get_or_init(|| ContainerEngineConnection { client, info }).clone())
    }

    fn unsupported_error(&self, what: &'static str, why: impl Into<String>) -> SandboxError {
        SandboxError::Unsupported { backend: self.kind.name(), what, why: why.into() }
    }

    fn require_possible<'a>(&self, plan: &'a SandboxPlan) -> Result<&'a ImageDigest, SandboxError> {
        if !plan.profile.sandboxed || plan.level == IsolationLevel::None {
            return Err(self.unsupported_error("a profile without a sandbox", "it would be the host itself"));
        }
        if plan.background == BackgroundPolicy::Keep {
            let why = "no supervisor would enforce the grants of its background processes";
            return Err(self.unsupported_error("keeping background processes of a command", why));
        }
        match &plan.system {
            Some(GuestSystem::Image(image)) => Ok(image),
            Some(GuestSystem::Tree(tree)) => {
                let why = format!("{} is a directory; import it, and name the image", tree.display());
                Err(self.unsupported_error("a root tree", why))
            }
            None => {
                let why = "a container needs its own root filesystem; name an image by its digest";
                Err(self.unsupported_error("the host's system", why))
            }
        }
    }

    /// Checks the runtime. Podman's API accepts none, because its service was started with one.
    fn require_runtime(&self, connected: &ContainerEngineConnection, plan: &SandboxPlan) -> Result<(), SandboxError> {
        let Some(requested_name) = plan.runtime.as_ref().map(RuntimeName::as_str) else { return Ok(()) };
        let own = connected.info.runtime.as_deref();
        if own == Some(requested_name) || connected.info.runtimes.iter().any(|runtime| runtime == requested_name) {
            return Ok(());
        }
        let why = match self.kind {
            ContainerEngineKind::Docker => {
                let known = connected.info.runtimes.join(", ");
                format!("{requested_name} is not one of its runtimes ({known}); configure others in its daemon.json")
            }
            ContainerEngineKind::Podman => {
                let own = own.unwrap_or("another");
                format!("it uses {own}; select another one with `podman --runtime NAME system service`")
            }
        };
        Err(self.unsupported_error("this runtime", why))
    }

    /// Makes a container and its command backend. Does so again with covers if nothing in the
    /// container could hide the hidden paths.
    fn make_whole(
        &self,
        connected: &ContainerEngineConnection,
        plan: &SandboxPlan,
        image: &ImageDigest,
    ) -> Result<ContainerCommandBackend, StartError> {
        let facts = images::require_image(&connected.client, image, self.tell_pull.as_ref())?;
        limits::require_enforced(&plan.profile.limits)?;
        let own = (format!("{}-image", container_name(&plan.id)), owner_labels(&plan.id, &self.settings.owner));
        let user = user_of(self.kind, connected, &look_at("workspace", &plan.workspace)?)?;
        links::require_none(&connected.client, image, own, &self.placed_files(user, &facts, &plan.id)?)?;
        let (backend, reached) = self.start_container(connected, plan, (image, &facts, &[]))?;
        if reached.is_empty() {
            return Ok(backend);
        }
        self.remove(connected, &plan.id)?;
        let (backend, reached) = self.start_container(connected, plan, (image, &facts, &reached))?;
        match reached.first() {
            None => Ok(backend),
            Some(ReachableObject { path, .. }) => Err(StartError {
                what: format!("{} must be hidden, but it is reachable in the container", path.to_escaped()),
                hint: Some("use a container runtime whose kernel has Landlock".to_owned()),
            }),
        }
    }

    /// Makes and starts a container with these paths covered, and finds the paths that are still
    /// reachable.
    fn start_container(
        &self,
        connected: &ContainerEngineConnection,
        plan: &SandboxPlan,
        (image, facts, covered): (&ImageDigest, &ImageProperties, &[ReachableObject]),
    ) -> Result<(ContainerCommandBackend, Vec<ReachableObject>), StartError> {
        // An engine may create a missing path.
        let shared = self.look_at_shared(plan)?;
        let user = user_of(self.kind, connected, &shared.workspace)?;
        [&plan.workspace, &plan.home, &self.settings.launcher]
            .into_iter()
            .try_for_each(|path| text_of(path).map(drop))?;
        let own = self.placed_files(user, facts, &plan.id)?;
        let mut placed = own.clone();
        let filter = filter::security_option(self.kind, &self.settings.accounts, &plan.id)?;
        if !covered.is_empty() {
            placed.extend(covers::cover_paths(&self.settings.accounts, covered)?);
        }
        let around = ContainerContext {
            kind: self.kind,
            image,
            launcher: &self.settings.launcher,
            placed: &placed,
            owner: &self.settings.owner,
            user,
            filter: &filter,
            rootless: connected.info.rootless && self.kind == ContainerEngineKind::Podman,
        };
        let body = create_request(plan, around);
        let options = CreateContainerOptionsBuilder::new().name(&container_name(&plan.id)).build();
        let made = connected.client.call(CREATE_TIMEOUT, |docker| async move {
            let made = docker.create_container(Some(options), body).await?;
            docker.inspect_container(&made.id, None).await
        });
        let made = made.map_err(|error| error.to_start_error("make the container"))?;
        // Before any process runs in it.
        let brought = HostFileSet { settings: &self.settings, placed: &own, image: facts };
        verification::verify_container(self.kind, plan, (user, brought), &made)?;
        let id = container_id(&made)?;
        let found = connected.client.call(CREATE_TIMEOUT, |docker| async move {
            docker.start_container(&id, None).await?;
            docker.inspect_container(&id, None).await
        });
        let found = found.map_err(|error| error.to_start_error("start the container"))?;
        let mut backend = self.verified_backend(connected, plan, (user, brought), &found)?;
        let expected = ExpectedMounts::new(self.kind, shared.objects, verification::read_only_mounts(&found));
        let reached = backend.look_inside(plan, &expected)?;
        Ok((backend, reached))
    }

    /// Returns the mounts that replace the image's own files in each container: its user files, and
    /// empty directories for volumes of the image.
    fn placed_files(
        &self,
        user: ContainerUser,
        image: &ImageProperties,
        id: &SandboxId,
    ) -> Result<Vec<BindMountPair>, StartError> {
        let mut placed = accounts::create_account_files(&self.settings.accounts, user, id)?;
        placed.extend(covers::over_volumes(&self.settings.accounts, &image.volumes)?);
        Ok(placed)
    }

    /// Examines the shared files of the host before the engine gets their paths, because the engine
    /// resolves them with its own permissions.
    fn look_at_shared(&self, plan: &SandboxPlan) -> Result<SharedHostFiles, StartError> {
        let workspace = look_at("workspace", &plan.workspace)?;
        let (home, launcher) = (look_at("home", &plan.home)?, look_at("launcher", &self.settings.launcher)?);
        let objects = vec![
            mount_check::record_host_file(&plan.workspace, INSIDE_WORKSPACE, &workspace),
            mount_check::record_host_file(&plan.home, INSIDE_HOME, &home),
            mount_check::record_host_file(&self.settings.launcher, LAUNCHER_PATH, &launcher),
        ];
        require_own("workspace", &plan.workspace, &workspace)?;
        require_own("home", &plan.home, &home)?;
        Ok(SharedHostFiles { workspace, objects })
    }

    /// Compares a container with its plan, and creates the backend for its commands.
    fn verified_backend(
        &self,
        connected: &ContainerEngineConnection,
        plan: &SandboxPlan,
        (user, brought): (ContainerUser, HostFileSet<'_>),
        found: &ContainerInspectResponse,
    ) -> Result<ContainerCommandBackend, StartError> {
        let enforced = verification::verify_container(self.kind, plan, (user, brought), found)?;
        Ok(ContainerCommandBackend {
            kind: self.kind,
            client: connected.client.clone(),
            sandbox: plan.id.clone(),
            container: container_id(found)?,
            started: start_time(found),
            user: user.to_string(),
            enforced,
            profile: plan.profile.clone(),
            has_isolation: true,
            resolver: self.resolver.clone(),
            has_ended: watch::Sender::new(false),
        })
    }

    /// Removes every container of a sandbox.
    fn remove(&self, connected: &ContainerEngineConnection, id: &SandboxId) -> Result<(), StartError> {
        let labels = vec![format!("{SANDBOX_LABEL}={id}"), format!("{OWNER_LABEL}={}", self.settings.owner)];
        let removed = connected.client.call(CREATE_TIMEOUT, |docker| async move {
            let options = ListContainersOptionsBuilder::new().all(true);
            let options = options.filters(&HashMap::from([("label", labels)])).build();
            for one in docker.list_containers(Some(options)).await? {
                remove_container(&docker, &one.id.unwrap_or_default()).await?;
            }
            Ok(())
        });
        removed.map_err(|error| error.to_start_error(&format!("remove the container of the sandbox {id}")))
    }
}

fn container_id(found: &ContainerInspectResponse) -> Result<String, StartError> {
    found.id.clone().ok_or_else(|| StartError { what: "the container has no id".to_owned(), hint: None })
}

impl SandboxProvider for ContainerSandboxes {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn capabilities(&self) -> ProviderCapabilities {
        ProviderCapabilities {
            adopts: true,
            pauses: true,
            snapshots: false,
            keeps_background: false,
            ends_background: true,
            holds: true,
            shows_files: true,
        }
    }

    fn check_plan(&self, plan: &SandboxPlan) -> Result<(), SandboxError> {
        self.require_possible(plan)?;
        self.require_runtime(&self.connect_engine()?, plan)
    }

    fn create_sandbox(&self, plan: &SandboxPlan, events: SandboxEventSender) -> Result<Box<dyn Sandbox>, SandboxError> {
        let image = self.require_possible(plan)?;
        let connected = self.connect_engine()?;
        self.require_runtime(&connected, plan)?;
        // An ended container, which is made again with its kept files.
        self.remove(&connected, &plan.id)?;
        let backend = self.make_whole(&connected, plan, image).inspect_err(|_| {
            if let Err(error) = self.remove(&connected, &plan.id) {
                tracing::warn!("cannot remove a container: {}", error.what);
            }
        })?;
        Ok(Box::new(ContainerSandbox::watch_started(plan, backend, events)))
    }

    fn adopt_sandbox(&self, plan: &SandboxPlan, events: SandboxEventSender) -> Result<Box<dyn Sandbox>, SandboxError> {
        let image = self.require_possible(plan)?;
        let connected = self.connect_engine()?;
        let requested_name = container_name(&plan.id);
        let found = match connected.client.inspect_container(&requested_name) {
            Ok(found) if is_ours(&found, plan, &self.settings.owner) && is_running(&found) => found,
            Ok(_) | Err(CallError::NotFound(_)) => return Err(SandboxError::Gone(plan.id.clone())),
            Err(error) => return Err(error.to_start_error("look for the container").into()),
        };
        let shared = self.look_at_shared(plan)?;
        let user = user_of(self.kind, &connected, &shared.workspace)?;
        let facts = images::image_properties(&connected.client, image)?;
        let placed = self.placed_files(user, &facts, &plan.id)?;
        let brought = HostFileSet { settings: &self.settings, placed: &placed, image: &facts };
        let mut backend = self.verified_backend(&connected, plan, (user, brought), &found)?;
        sessions::require_own(&connected.client, user, &found)?;
        let expected = ExpectedMounts::new(self.kind, shared.objects, verification::read_only_mounts(&found));
        let is_paused = found.state.as_ref().is_some_and(|state| state.paused == Some(true));
        backend.recheck_container(plan, &expected, is_paused)?;
        Ok(Box::new(ContainerSandbox::watch_started(plan, backend, events)))
    }

    fn clear(&self, id: &SandboxId) -> Result<(), SandboxError> {
        Ok(self.remove(&self.connect_engine()?, id)?)
    }
}

/// Files of the host that a container shares.
struct SharedHostFiles {
    workspace: Metadata,
    objects: Vec<SharedObject>,
}

/// Returns the user for the commands: the owner of the workspace, whose permissions the caller has
/// itself.
fn user_of(
    kind: ContainerEngineKind,
    connected: &ContainerEngineConnection,
    workspace: &Metadata,
) -> Result<ContainerUser, StartError> {
    // An engine of an ordinary user maps that user to root of its containers, unless it maps the
    // user to itself.
    if connected.info.rootless && kind == ContainerEngineKind::Docker {
        return Ok(ContainerUser { user: 0, group: 0 });
    }
    let (caller, own) = (geteuid(), getegid().as_raw());
    let groups = getgroups().map_err(cannot("read the groups of the caller"))?;
    // A directory can belong to a group that its owner is not in.
    let is_callers = |group: u32| caller.is_root() || group == own || groups.iter().any(|one| one.as_raw() == group);
    let group = if is_callers(workspace.gid()) { workspace.gid() } else { own };
    Ok(ContainerUser { user: workspace.uid(), group })
}

/// Refuses another user's directory, because an engine that runs as root would grant its owner's
/// permissions.
fn require_own(what: &str, directory: &Path, found: &Metadata) -> Result<(), StartError> {
    let caller = geteuid();
    if caller.is_root() || found.uid() == caller.as_raw() {
        return Ok(());
    }
    let path = RawText::from(directory).to_escaped();
    Err(StartError {
        what: format!("the {what} {path} belongs to uid {}, not to you", found.uid()),
        hint: Some("name a directory of your own, or copy it".to_owned()),
    })
}

fn look_at(what: &str, directory: &Path) -> Result<Metadata, StartError> {
    std::fs::metadata(directory).map_err(cannot(format!("access the {what} {}", directory.display())))
}

fn is_ours(found: &ContainerInspectResponse, plan: &SandboxPlan, owner: &str) -> bool {
    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
    let has = |key: &str, value: &str| labels.and_then(|labels| labels.get(key)).is_some_and(|found| found == value);
    has(SANDBOX_LABEL, plan.id.as_str()) && has(OWNER_LABEL, owner)
}

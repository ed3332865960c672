//! Containers as sandboxes: made, found again, stopped, counted, removed.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerInspectResponse, ContainerStatsResponse};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, StatsOptionsBuilder,
};
use futures_util::StreamExt;
use rustix::fs::{Mode, OFlags};
use stockade_engine::{
    Backend, Capabilities, INSIDE_HOME, INSIDE_WORKSPACE, Sandbox, SandboxError, SandboxEvent, SandboxEvents,
    SandboxPlan, SandboxUsage, Sandboxes, StartError, System, Tree,
};
use stockade_model::{Background, EnforcementReport, ImageDigest, Level, RuntimeName, SandboxId, Usage};
use tokio::task::AbortHandle;

use crate::client::{ANSWERS_WITHIN, CallError, Client, MAKES_WITHIN};
use crate::command::CommandBackend;
use crate::filter::FilterOption;
use crate::spec::{OWNER_LABEL, SANDBOX_LABEL, Surroundings, User, container, name};
use crate::{Kind, Settings, images, socket, verified};

/// How soon the end of a container is looked for again, where the engine broke off.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Makes them, by one engine.
pub struct ContainerSandboxes {
    kind: Kind,
    settings: Settings,
    connected: OnceLock<Connected>,
}

/// An engine that answered.
#[derive(Clone, Debug)]
struct Connected {
    client: Client,
    rootless: bool,
    /// What the engine chooses where nothing is said.
    runtime: Option<String>,
}

impl fmt::Debug for ContainerSandboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSandboxes").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl ContainerSandboxes {
    /// Those of an engine. Nothing is asked of it before it is needed.
    pub fn new(kind: Kind, settings: Settings) -> Self {
        Self { kind, settings, connected: OnceLock::new() }
    }

    /// The engine that answers, with its version; for a person.
    ///
    /// # Errors
    /// Why none does.
    pub fn engine(&self) -> Result<String, StartError> {
        let client = self.connected()?.client;
        let version = client.call(ANSWERS_WITHIN, |docker| async move { docker.version().await });
        let version = version.map_err(|error| error.to_start_error("ask the container engine for its version"))?;
        Ok(format!("{} {}", self.kind.name(), version.version.unwrap_or_default()))
    }

    fn connected(&self) -> Result<Connected, StartError> {
        if let Some(connected) = self.connected.get() {
            return Ok(connected.clone());
        }
        let socket = socket::find(self.kind, self.settings.socket.as_deref(), |name| std::env::var_os(name))?;
        let cannot = |error: CallError| error.to_start_error(&format!("use {}", self.kind.name()));
        let client = Client::connect(&socket).map_err(cannot)?;
        let info = client.call(ANSWERS_WITHIN, |docker| async move { docker.info().await }).map_err(cannot)?;
        let rootless = info.security_options.iter().flatten().any(|option| option.contains("rootless"));
        Ok(self.connected.get_or_init(|| Connected { client, rootless, runtime: info.default_runtime }).clone())
    }

    fn unsupported(&self, what: &'static str, why: impl Into<String>) -> SandboxError {
        SandboxError::Unsupported { backend: self.kind.name(), what, why: why.into() }
    }

    fn demand_possible<'a>(&self, plan: &'a SandboxPlan) -> Result<&'a ImageDigest, SandboxError> {
        if !plan.profile.sandboxed || plan.level == Level::None {
            return Err(self.unsupported("a profile without a sandbox", "it would be the host itself"));
        }
        if plan.background == Background::Keep {
            let why = "what a command leaves behind would have nobody who answers for its powers";
            return Err(self.unsupported("keeping what a command leaves behind", why));
        }
        match &plan.system {
            Some(System::Image(image)) => Ok(image),
            Some(System::Tree(tree)) => {
                let why = format!("{} is a directory; import it, and name the image", tree.display());
                Err(self.unsupported("a root tree", why))
            }
            None => {
                let why = "a container has a system of its own; name an image by its digest";
                Err(self.unsupported("the host's system", why))
            }
        }
    }

    /// Podman's API takes no runtime: what serves it was started with one.
    fn demand_runtime(&self, connected: &Connected, plan: &SandboxPlan) -> Result<(), SandboxError> {
        let wanted = plan.runtime.as_ref().map(RuntimeName::as_str);
        if self.kind == Kind::Docker || wanted.is_none() || wanted == connected.runtime.as_deref() {
            return Ok(());
        }
        let own = connected.runtime.as_deref().unwrap_or("another");
        let why = format!("it has {own}, and is given another with `podman --runtime NAME system service`");
        Err(self.unsupported("another runtime than its own", why))
    }

    /// Makes and starts a container.
    fn make(&self, connected: &Connected, plan: &SandboxPlan, image: &ImageDigest) -> Result<Container, StartError> {
        images::demand(&connected.client, image)?;
        let user = self.user_of(connected, &plan.workspace)?;
        let filter = FilterOption::of(self.kind).map_err(|error| StartError {
            what: format!("cannot write the container's filter of system calls: {error}"),
            hint: Some("TMPDIR names where".to_owned()),
        })?;
        let around = Surroundings {
            kind: self.kind,
            image,
            launcher: &self.settings.launcher,
            owner: &self.settings.owner,
            user,
            filter: &filter.text,
            rootless: connected.rootless && self.kind == Kind::Podman,
        };
        let body = container(plan, around);
        let options = CreateContainerOptionsBuilder::new().name(&name(&plan.id)).build();
        let made = connected.client.call(MAKES_WITHIN, |docker| async move {
            let made = docker.create_container(Some(options), body).await?;
            docker.start_container(&made.id, None).await?;
            docker.inspect_container(&made.id, None).await
        });
        let found = made.map_err(|error| error.to_start_error("make the container"))?;
        let enforced = verified::report(self.kind, plan, user, &found)?;
        let id = found.id.ok_or_else(|| StartError { what: "the container has no id".to_owned(), hint: None })?;
        Ok(Container { id, user, enforced })
    }

    /// Commands run as the one whose the workspace is.
    fn user_of(&self, connected: &Connected, workspace: &Path) -> Result<User, StartError> {
        let metadata = std::fs::metadata(workspace);
        let owner =
            metadata.map_err(|error| StartError { what: format!("cannot see the workspace: {error}"), hint: None })?;
        // An engine of an ordinary user has that user as the root of its containers,
        // unless it maps it to itself.
        if connected.rootless && self.kind == Kind::Docker {
            return Ok(User { user: 0, group: 0 });
        }
        Ok(User { user: owner.uid(), group: owner.gid() })
    }

    fn sandbox(
        &self,
        connected: Connected,
        plan: &SandboxPlan,
        made: Container,
        events: SandboxEvents,
    ) -> ContainerSandbox {
        let Container { id: container, user, enforced } = made;
        let ended = Arc::<AtomicBool>::default();
        let watch = watch(connected.client.docker(), container.clone(), events, Arc::clone(&ended));
        let watch = connected.client.spawn(watch);
        let backend = CommandBackend {
            kind: self.kind,
            client: connected.client,
            container,
            user: user.to_string(),
            enforced,
            limits: plan.profile.limits.clone(),
        };
        ContainerSandbox {
            id: plan.id.clone(),
            workspace: plan.workspace.clone(),
            home: plan.home.clone(),
            backend: Arc::new(backend),
            ended,
            watch,
        }
    }

    /// Removes every container of a sandbox.
    fn remove(&self, connected: &Connected, id: &SandboxId) -> Result<(), StartError> {
        let labels = vec![format!("{SANDBOX_LABEL}={id}"), format!("{OWNER_LABEL}={}", self.settings.owner)];
        let removed = connected.client.call(MAKES_WITHIN, |docker| async move {
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

/// A container that runs, and was looked at.
struct Container {
    id: String,
    user: User,
    enforced: EnforcementReport,
}

impl Sandboxes for ContainerSandboxes {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            adopts: true,
            pauses: true,
            snapshots: false,
            keeps_background: false,
            ends_background: true,
            holds: true,
            shows_files: true,
        }
    }

    fn create(&self, plan: &SandboxPlan, events: SandboxEvents) -> Result<Box<dyn Sandbox>, SandboxError> {
        let image = self.demand_possible(plan)?;
        let connected = self.connected()?;
        self.demand_runtime(&connected, plan)?;
        // One that has ended, and is made anew around what it keeps.
        self.remove(&connected, &plan.id)?;
        let made = self.make(&connected, plan, image).and_then(|made| {
            let sandbox = self.sandbox(connected.clone(), plan, made, events);
            sandbox.backend.demand_level(plan).map(|()| sandbox)
        });
        let sandbox = made.inspect_err(|_| {
            if let Err(error) = self.remove(&connected, &plan.id) {
                tracing::warn!("a container is left: {}", error.what);
            }
        })?;
        Ok(Box::new(sandbox))
    }

    fn adopt(&self, plan: &SandboxPlan, events: SandboxEvents) -> Result<Box<dyn Sandbox>, SandboxError> {
        self.demand_possible(plan)?;
        let connected = self.connected()?;
        let wanted = name(&plan.id);
        let found = connected
            .client
            .call(ANSWERS_WITHIN, |docker| async move { docker.inspect_container(&wanted, None).await });
        let found = match found {
            Ok(found) if is_ours(&found, plan, &self.settings.owner) && is_running(&found) => found,
            Ok(_) | Err(CallError::NotFound(_)) => return Err(SandboxError::Gone(plan.id.clone())),
            Err(error) => return Err(error.to_start_error("look for the container").into()),
        };
        let user = self.user_of(&connected, &plan.workspace)?;
        let enforced = verified::report(self.kind, plan, user, &found)?;
        let made = Container { id: found.id.unwrap_or_default(), user, enforced };
        Ok(Box::new(self.sandbox(connected, plan, made, events)))
    }

    fn clear(&self, id: &SandboxId) -> Result<(), SandboxError> {
        Ok(self.remove(&self.connected()?, id)?)
    }
}

fn is_ours(found: &ContainerInspectResponse, plan: &SandboxPlan, owner: &str) -> bool {
    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
    let has = |key: &str, value: &str| labels.and_then(|labels| labels.get(key)).is_some_and(|found| found == value);
    has(SANDBOX_LABEL, plan.id.as_str()) && has(OWNER_LABEL, owner)
}

fn is_running(found: &ContainerInspectResponse) -> bool {
    found.state.as_ref().is_some_and(|state| state.running == Some(true))
}

async fn remove_container(docker: &Docker, container: &str) -> Result<(), bollard::errors::Error> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match docker.remove_container(container, Some(options)).await {
        // Somebody else was faster, or is at it.
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
        removed => removed,
    }
}

/// Tells when a container ends that nobody destroyed.
async fn watch(docker: Docker, container: String, events: SandboxEvents, ended: Arc<AtomicBool>) {
    loop {
        // Its first answer, or that the engine broke off: then it is looked at.
        let _ = docker.wait_container(&container, None).next().await;
        let runs = match docker.inspect_container(&container, None).await {
            Ok(found) => is_running(&found),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => false,
            Err(_) => true,
        };
        if ended.load(Ordering::Acquire) {
            return;
        }
        if !runs {
            events.tell(SandboxEvent::Lost("its container was ended from outside".to_owned()));
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// One of them.
struct ContainerSandbox {
    id: SandboxId,
    workspace: PathBuf,
    home: PathBuf,
    backend: Arc<CommandBackend>,
    ended: Arc<AtomicBool>,
    watch: AbortHandle,
}

impl ContainerSandbox {
    fn failed(&self, what: &str, error: CallError) -> SandboxError {
        match error {
            CallError::NotFound(_) => SandboxError::Gone(self.id.clone()),
            error => error.to_start_error(&format!("{what} the sandbox {}", self.id)).into(),
        }
    }

    /// A call about its container.
    fn call<T, F>(&self, what: &str, call: impl FnOnce(Docker, String) -> F) -> Result<T, SandboxError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, bollard::errors::Error>> + Send + 'static,
    {
        let container = self.backend.container.clone();
        let done = self.backend.client.call(MAKES_WITHIN, |docker| call(docker, container));
        done.map_err(|error| self.failed(what, error))
    }
}

impl Sandbox for ContainerSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn enforced(&self) -> &EnforcementReport {
        &self.backend.enforced
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<CommandBackend>::clone(&self.backend)
    }

    fn pause(&self) -> Result<(), SandboxError> {
        self.call("pause", |docker, container| async move { docker.pause_container(&container).await })
    }

    fn resume(&self) -> Result<(), SandboxError> {
        self.call("resume", |docker, container| async move {
            let found = docker.inspect_container(&container, None).await?;
            match found.state.and_then(|state| state.paused) {
                Some(true) => docker.unpause_container(&container).await,
                _ => Ok(()),
            }
        })
    }

    fn snapshot(&self, _to: &Path) -> Result<(), SandboxError> {
        let why = "its directories are the host's own: copy them while it is paused";
        Err(SandboxError::Unsupported { backend: self.backend.kind.name(), what: "a snapshot", why: why.to_owned() })
    }

    fn usage(&self) -> Result<SandboxUsage, SandboxError> {
        let stats = self.call("count what is used in", |docker, container| async move {
            let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
            docker.stats(&container, Some(options)).next().await.transpose()
        })?;
        stats.map(|stats| used(&stats)).ok_or_else(|| SandboxError::Gone(self.id.clone()))
    }

    fn tree(&self, which: Tree) -> Result<OwnedFd, SandboxError> {
        let (inside, path) = match which {
            Tree::Workspace => (INSIDE_WORKSPACE, &self.workspace),
            Tree::Home => (INSIDE_HOME, &self.home),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
            StartError { what: format!("cannot open what {inside} is on the host: {errno}"), hint: None }.into()
        })
    }

    fn destroy(&self) -> Result<(), SandboxError> {
        self.ended.store(true, Ordering::Release);
        let removed =
            self.call("destroy", |docker, container| async move { remove_container(&docker, &container).await });
        match removed {
            Err(SandboxError::Gone(_)) | Ok(()) => Ok(()),
            Err(error) => {
                self.ended.store(false, Ordering::Release);
                Err(error)
            }
        }
    }
}

impl Drop for ContainerSandbox {
    /// The container goes on: whoever needs it next finds it again.
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn used(stats: &ContainerStatsResponse) -> SandboxUsage {
    let memory = stats.memory_stats.as_ref();
    let cpu = stats.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref()).and_then(|cpu| cpu.total_usage);
    let total = Usage {
        cpu_ms: cpu.map(|nanoseconds| nanoseconds / 1_000_000).unwrap_or_default(),
        memory_peak_bytes: memory.and_then(|memory| memory.max_usage).unwrap_or_default(),
        ..Usage::default()
    };
    SandboxUsage {
        total,
        memory_bytes: memory.and_then(|memory| memory.usage),
        processes: stats.pids_stats.as_ref().and_then(|pids| pids.current),
    }
}

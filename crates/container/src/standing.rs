//! Container as a sandbox: paused, measured, watched, removed.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bollard::Docker;
use bollard::models::{ContainerInspectResponse, ContainerStatsResponse};
use bollard::query_parameters::{RemoveContainerOptionsBuilder, StatsOptionsBuilder};
use futures_util::StreamExt;
use rustix::fs::{Mode, OFlags};
use stockade_engine::{
    Backend, INSIDE_HOME, INSIDE_WORKSPACE, Sandbox, SandboxError, SandboxEvent, SandboxEvents, SandboxPlan,
    SandboxUsage, StartError, Tree,
};
use stockade_model::{EnforcementReport, SandboxId, Usage};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::client::{CallError, MAKES_WITHIN};
use crate::command::{CommandBackend, Condition};

/// Delay before the next check for the end of a container, if the engine closed the connection.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(crate) fn is_running(found: &ContainerInspectResponse) -> bool {
    found.state.as_ref().is_some_and(|state| state.running == Some(true))
}

/// Returns its start time, if the engine reports it.
pub(crate) fn started(found: &ContainerInspectResponse) -> Option<SystemTime> {
    let text = found.state.as_ref()?.started_at.as_deref()?;
    OffsetDateTime::parse(text, &Rfc3339).ok().map(SystemTime::from)
}

/// Removes a container; does nothing if it is gone.
pub(crate) async fn remove_container(docker: &Docker, container: &str) -> Result<(), bollard::errors::Error> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match docker.remove_container(container, Some(options)).await {
        // Another process has removed it, or is doing so.
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
        removed => removed,
    }
}

/// Watches for the end of a container. Reports it to the running attempts, and as an event if the
/// sandbox was not destroyed.
async fn watch(
    docker: Docker,
    container: String,
    (events, ended): (SandboxEvents, Arc<AtomicBool>),
    gone: watch::Sender<bool>,
) {
    loop {
        // The first answer, or the engine closed the connection: then the container is inspected.
        let _ = docker.wait_container(&container, None).next().await;
        let runs = match docker.inspect_container(&container, None).await {
            Ok(found) => is_running(&found),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => false,
            Err(_) => true,
        };
        if !runs {
            gone.send_replace(true);
        }
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

/// Sandbox in a container.
pub(crate) struct ContainerSandbox {
    id: SandboxId,
    workspace: PathBuf,
    home: PathBuf,
    started: Option<SystemTime>,
    backend: Arc<CommandBackend>,
    ended: Arc<AtomicBool>,
    watch: AbortHandle,
}

impl ContainerSandbox {
    /// Starts to watch a running container.
    pub(crate) fn of(
        plan: &SandboxPlan,
        started: Option<SystemTime>,
        backend: CommandBackend,
        events: SandboxEvents,
    ) -> Self {
        let ended = Arc::<AtomicBool>::default();
        let container = backend.container.clone();
        let telling = (events, Arc::clone(&ended));
        let watch = watch(backend.client.docker(), container, telling, backend.gone.clone());
        Self {
            id: plan.id.clone(),
            workspace: plan.workspace.clone(),
            home: plan.home.clone(),
            started,
            watch: backend.client.spawn(watch),
            backend: Arc::new(backend),
            ended,
        }
    }

    fn failed(&self, what: &str, error: CallError) -> SandboxError {
        match self.backend.condition() {
            Condition::Gone => SandboxError::Gone(self.id.clone()),
            Condition::Paused | Condition::Goes => {
                error.to_start_error(&format!("{what} the sandbox {}", self.id)).into()
            }
        }
    }

    /// Makes a call about its container.
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
        if self.backend.condition() == Condition::Paused {
            return Ok(());
        }
        self.call("pause", |docker, container| async move { docker.pause_container(&container).await })
    }

    fn resume(&self) -> Result<(), SandboxError> {
        if self.backend.condition() == Condition::Goes {
            return Ok(());
        }
        self.call("resume", |docker, container| async move { docker.unpause_container(&container).await })
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
        let mut usage = stats.map(|stats| used(&stats)).ok_or_else(|| SandboxError::Gone(self.id.clone()))?;
        let since = self.started.and_then(|started| SystemTime::now().duration_since(started).ok());
        usage.total.wall_ms = since.unwrap_or_default().as_millis() as u64;
        Ok(usage)
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
        let remove =
            || self.call("destroy", |docker, container| async move { remove_container(&docker, &container).await });
        let removed = match remove() {
            // A runtime may not be able to end a paused container.
            Err(SandboxError::Failed(_)) if self.backend.condition() == Condition::Paused => {
                self.resume().and_then(|()| remove())
            }
            removed => removed,
        };
        match removed {
            Err(SandboxError::Gone(_)) | Ok(()) => {
                // Callers that wait for a command in it learn of its end.
                self.backend.gone.send_replace(true);
                Ok(())
            }
            Err(error) => {
                self.ended.store(false, Ordering::Release);
                Err(error)
            }
        }
    }
}

impl Drop for ContainerSandbox {
    /// The container continues and can be found again later.
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

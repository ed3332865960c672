//! Container as a sandbox: paused, measured, watched, removed.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bollard::Docker;
use bollard::models::{ContainerInspectResponse, ContainerStatsResponse};
use bollard::query_parameters::{RemoveContainerOptionsBuilder, StatsOptionsBuilder};
use futures_util::StreamExt;
use rustix::fs::{Mode, OFlags};
use stockade_backend_api::{
    Backend, INSIDE_HOME, INSIDE_WORKSPACE, Sandbox, SandboxError, SandboxEvent, SandboxEventSender, SandboxPlan,
    SandboxTree,
};
use stockade_model::SandboxUsage;
use stockade_model::{EnforcementReport, ResourceUsage, SandboxId};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::cannot;
use crate::client::{CREATE_TIMEOUT, container_runs};
use crate::command::{ContainerCommandBackend, ContainerCondition};

/// Delay before the next check for the end of a container, if the engine closed the connection.
const RECHECK_DELAY: Duration = Duration::from_secs(1);

/// Returns its start time, if the engine reports it.
pub(crate) fn start_time(found: &ContainerInspectResponse) -> Option<SystemTime> {
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
async fn watch_container(
    docker: Docker,
    container: String,
    (events, ended): (SandboxEventSender, Arc<AtomicBool>),
    has_ended: watch::Sender<bool>,
) {
    loop {
        // The first answer, or the engine closed the connection: then the container is inspected.
        let _ = docker.wait_container(&container, None).next().await;
        let runs = container_runs(&docker, &container).await.unwrap_or(true);
        if !runs {
            has_ended.send_replace(true);
        }
        if ended.load(Ordering::Acquire) {
            return;
        }
        if !runs {
            events.send_event(SandboxEvent::Lost("another process ended its container".to_owned()));
            return;
        }
        tokio::time::sleep(RECHECK_DELAY).await;
    }
}

/// Sandbox in a container.
pub(crate) struct ContainerSandbox {
    plan: SandboxPlan,
    backend: Arc<ContainerCommandBackend>,
    ended: Arc<AtomicBool>,
    watch: AbortHandle,
}

impl ContainerSandbox {
    /// Starts to watch a running container.
    pub(crate) fn watch_started(
        plan: &SandboxPlan,
        backend: ContainerCommandBackend,
        events: SandboxEventSender,
    ) -> Self {
        let ended = Arc::<AtomicBool>::default();
        let container = backend.container.clone();
        let telling = (events, Arc::clone(&ended));
        let watch = watch_container(backend.client.api_client(), container, telling, backend.has_ended.clone());
        Self {
            plan: plan.clone(),
            watch: backend.client.runtime_handle().spawn(watch).abort_handle(),
            backend: Arc::new(backend),
            ended,
        }
    }

    /// Makes a call about its container.
    fn call_engine<T, F>(&self, what: &str, call: impl FnOnce(Docker, String) -> F) -> Result<T, SandboxError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, bollard::errors::Error>> + Send + 'static,
    {
        let container = self.backend.container.clone();
        let done = self.backend.client.call(CREATE_TIMEOUT, |docker| call(docker, container));
        done.map_err(|error| match self.backend.query_condition() {
            ContainerCondition::Gone => SandboxError::Gone(self.plan.id.clone()),
            ContainerCondition::Paused | ContainerCondition::Goes => {
                error.to_start_error(&format!("{what} the sandbox {}", self.plan.id)).into()
            }
        })
    }
}

impl Sandbox for ContainerSandbox {
    fn id(&self) -> &SandboxId {
        &self.plan.id
    }

    fn enforcement_report(&self) -> &EnforcementReport {
        &self.backend.enforced
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<ContainerCommandBackend>::clone(&self.backend)
    }

    fn pause(&self) -> Result<(), SandboxError> {
        if self.backend.query_condition() == ContainerCondition::Paused {
            return Ok(());
        }
        self.call_engine("pause", |docker, container| async move { docker.pause_container(&container).await })
    }

    fn resume(&self) -> Result<(), SandboxError> {
        if self.backend.query_condition() == ContainerCondition::Goes {
            return Ok(());
        }
        self.call_engine("resume", |docker, container| async move { docker.unpause_container(&container).await })
    }

    fn snapshot_files(&self, _to: &Path) -> Result<(), SandboxError> {
        let why = "its directories are on the host: copy them while it is paused";
        Err(SandboxError::Unsupported { backend: self.backend.kind.name(), what: "a snapshot", why: why.to_owned() })
    }

    fn read_usage(&self) -> Result<SandboxUsage, SandboxError> {
        let stats = self.call_engine("read the resource usage of", |docker, container| async move {
            let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
            docker.stats(&container, Some(options)).next().await.transpose()
        })?;
        let mut usage =
            stats.map(|stats| sandbox_usage(&stats)).ok_or_else(|| SandboxError::Gone(self.plan.id.clone()))?;
        let since = self.backend.started.and_then(|started| SystemTime::now().duration_since(started).ok());
        usage.total.wall_ms = since.unwrap_or_default().as_millis() as u64;
        Ok(usage)
    }

    fn open_tree(&self, which: SandboxTree) -> Result<OwnedFd, SandboxError> {
        let (inside, path) = match which {
            SandboxTree::Workspace => (INSIDE_WORKSPACE, &self.plan.workspace),
            SandboxTree::Home => (INSIDE_HOME, &self.plan.home),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        Ok(opened.map_err(cannot(format!("open the host directory of {inside}")))?)
    }

    fn destroy(&self) -> Result<(), SandboxError> {
        self.ended.store(true, Ordering::Release);
        let remove = || {
            self.call_engine("destroy", |docker, container| async move { remove_container(&docker, &container).await })
        };
        let removed = match remove() {
            // A runtime may not be able to end a paused container.
            Err(SandboxError::Failed(_)) if self.backend.query_condition() == ContainerCondition::Paused => {
                self.resume().and_then(|()| remove())
            }
            removed => removed,
        };
        match removed {
            Err(SandboxError::Gone(_)) | Ok(()) => {
                // Callers that wait for a command in it learn of its end.
                self.backend.has_ended.send_replace(true);
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

fn sandbox_usage(stats: &ContainerStatsResponse) -> SandboxUsage {
    let memory = stats.memory_stats.as_ref();
    let cpu = stats.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref()).and_then(|cpu| cpu.total_usage);
    let total = ResourceUsage {
        cpu_ms: cpu.map(|nanoseconds| nanoseconds / 1_000_000).unwrap_or_default(),
        memory_peak_bytes: memory.and_then(|memory| memory.max_usage).unwrap_or_default(),
        ..ResourceUsage::default()
    };
    SandboxUsage {
        total,
        memory_bytes: memory.and_then(|memory| memory.usage),
        processes: stats.pids_stats.as_ref().and_then(|pids| pids.current),
    }
}

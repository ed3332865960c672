//! Launcher of one command, from the view of the engine: examined when its channel is closed
//! without a reported end.

use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;

use crate::client::{CREATE_TIMEOUT, ContainerClient, container_runs};

/// Time-out for such a launcher to end.
const LAUNCHER_END_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two checks.
const END_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Exit codes from here on are those of signals.
const SIGNAL_EXIT_BASE: i64 = 128;

/// Launcher of a command.
#[derive(Clone)]
pub(crate) struct CommandLauncher {
    pub(crate) client: ContainerClient,
    pub(crate) container: String,
    /// The engine's identifier of its exec.
    pub(crate) exec: String,
    /// True if its command always ends with it.
    pub(crate) has_isolation: bool,
}

impl CommandLauncher {
    /// Ensures that no process of its command continues, and returns the reason for the closed
    /// channel.
    pub(crate) fn ensure_ended(&self) -> String {
        let Self { client, container, exec, has_isolation } = self.clone();
        match client.call(CREATE_TIMEOUT, move |docker| kill_and_explain(docker, container, exec, has_isolation)) {
            Ok(why) => why.to_owned(),
            Err(error) => format!("its launcher does not answer any more, and {error}"),
        }
    }
}

async fn kill_and_explain(
    docker: Docker,
    container: String,
    exec: String,
    has_isolation: bool,
) -> Result<&'static str, Error> {
    if !container_runs(&docker, &container).await? {
        return Ok("its container has ended");
    }
    if has_isolation || ends_by_itself(&docker, &exec).await {
        return Ok("its launcher in the container ended without a report");
    }
    match docker.kill_container(&container, None).await {
        // The container has ended meanwhile.
        Ok(()) | Err(Error::DockerResponseServerError { status_code: 404 | 409, .. }) => {
            Ok("a process in the container killed or stopped its launcher, so Stockade killed the container")
        }
        Err(error) => Err(error),
    }
}

/// Returns whether it exits by itself and not by a signal; then it has ended its command before. An
/// unknown exec counts as false.
async fn ends_by_itself(docker: &Docker, exec: &str) -> bool {
    let give_up = Instant::now() + LAUNCHER_END_TIMEOUT;
    while let Ok(found) = docker.inspect_exec(exec).await {
        if found.running == Some(false) {
            return found.exit_code.is_some_and(|code| code < SIGNAL_EXIT_BASE);
        }
        if Instant::now() > give_up {
            break;
        }
        tokio::time::sleep(END_POLL_INTERVAL).await;
    }
    false
}

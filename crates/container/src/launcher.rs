//! The launcher of one command as its engine knows it: looked at when it is heard no
//! more and told no end.

use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;

use crate::client::{Client, MAKES_WITHIN};
use crate::standing::is_running;

/// How long one that is heard no more may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How soon it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The exit codes from here on are those of signals.
const SIGNALS: i64 = 128;

/// One launcher.
#[derive(Clone)]
pub(crate) struct Launcher {
    pub(crate) client: Client,
    pub(crate) container: String,
    /// What the engine calls the exec that it is.
    pub(crate) exec: String,
    /// Whether its command ends with it, whatever ended it.
    pub(crate) has_walls: bool,
}

impl Launcher {
    /// Sees to it that nothing of its command goes on, and says why it is heard no more.
    pub(crate) fn bury(&self) -> String {
        let Self { client, container, exec, has_walls } = self.clone();
        match client.call(MAKES_WITHIN, move |docker| bury(docker, container, exec, has_walls)) {
            Ok(why) => why.to_owned(),
            Err(error) => format!("its launcher is heard no more, and {error}"),
        }
    }
}

async fn bury(docker: Docker, container: String, exec: String, has_walls: bool) -> Result<&'static str, Error> {
    match docker.inspect_container(&container, None).await {
        Ok(found) if is_running(&found) => {}
        Ok(_) | Err(Error::DockerResponseServerError { status_code: 404, .. }) => return Ok("its container has ended"),
        Err(error) => return Err(error),
    }
    if has_walls || ends_by_itself(&docker, &exec).await {
        return Ok("its launcher in the container ended without a word");
    }
    match docker.kill_container(&container, None).await {
        // It has ended meanwhile.
        Ok(()) | Err(Error::DockerResponseServerError { status_code: 404 | 409, .. }) => {
            Ok("its launcher was killed or stopped from within, and so the container was ended with all that went on")
        }
        Err(error) => Err(error),
    }
}

/// Whether it does, rather than by a signal: then it has ended its command before. One
/// that nothing is known of does not.
async fn ends_by_itself(docker: &Docker, exec: &str) -> bool {
    let give_up = Instant::now() + ENDS_WITHIN;
    while let Ok(found) = docker.inspect_exec(exec).await {
        if found.running == Some(false) {
            return found.exit_code.is_some_and(|code| code < SIGNALS);
        }
        if Instant::now() > give_up {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    false
}

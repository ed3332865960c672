//! Synchronous calls to a container engine. The asynchronous code has one thread of its own, and
//! every call has a time-out.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::ContainerInspectResponse;
use bollard::{API_DEFAULT_VERSION, Docker};
use stockade_backend_api::StartError;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Time-out for an ordinary call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time-out for the engine to make, start or remove a container.
pub(crate) const CREATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Extra time to wait for the thread, which applies the time-out of a call itself.
const THREAD_GRACE_TIMEOUT: Duration = Duration::from_secs(5);

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No engine answers at its socket.
    #[error("no container engine answers at {}: {why}", socket.display())]
    Unreachable { socket: PathBuf, why: String },
    /// The object does not exist.
    #[error("the container engine cannot find the object: {0}")]
    NotFound(String),
    /// The engine refused the call.
    #[error("the container engine says: {0}")]
    Refused(String),
    /// The engine did not answer in time.
    #[error("the container engine did not answer within {} s", .0.as_secs())]
    Late(Duration),
}

impl CallError {
    fn from_api_error(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError { status_code: 404, message } => Self::NotFound(message),
            Error::DockerResponseServerError { message, .. } => Self::Refused(message.trim().to_owned()),
            error => Self::Refused(error.to_string()),
        }
    }

    /// Converts it to the error of an operation.
    pub(crate) fn to_start_error(&self, what: &str) -> StartError {
        let is_absent = matches!(self, Self::Unreachable { .. });
        let hint = is_absent.then(|| "start it, or name its socket with DOCKER_HOST".to_owned());
        StartError { what: format!("cannot {what}: {self}"), hint }
    }
}

/// Returns `None` for an object that the engine does not have.
pub(crate) fn none_if_missing<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// Returns whether a container exists and runs.
pub(crate) async fn container_runs(docker: &Docker, container: &str) -> Result<bool, Error> {
    let found = none_if_missing(docker.inspect_container(container, None).await)?;
    Ok(found.is_some_and(|found| is_running(&found)))
}

pub(crate) fn is_running(found: &ContainerInspectResponse) -> bool {
    found.state.as_ref().is_some_and(|state| state.running == Some(true))
}

/// Client of an engine, at its socket.
#[derive(Clone, Debug)]
pub(crate) struct ContainerClient {
    docker: Docker,
    runtime: Arc<ClientRuntime>,
}

/// Thread for the calls, which ends with its last user.
#[derive(Debug)]
struct ClientRuntime {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl ContainerClient {
    /// Connects, and negotiates a version of the engine's API.
    pub(crate) fn connect_socket(socket: &Path) -> Result<Self, CallError> {
        let unreachable = |why: String| CallError::Unreachable { socket: socket.to_owned(), why };
        let path = socket.to_str().ok_or_else(|| unreachable("its path is not valid UTF-8".to_owned()))?;
        let runtime = Arc::new(ClientRuntime::start_thread().map_err(|error| unreachable(error.to_string()))?);
        let _inside = runtime.handle.enter();
        let docker = Docker::connect_with_unix(path, CREATE_TIMEOUT.as_secs(), API_DEFAULT_VERSION)
            .map_err(|error| unreachable(error.to_string()))?;
        drop(_inside);
        let client = Self { docker, runtime };
        let agreed = client.call(CALL_TIMEOUT, |docker| docker.negotiate_version());
        Ok(Self { docker: agreed.map_err(|error| unreachable(error.to_string()))?, ..client })
    }

    /// Makes a call and waits for its answer.
    pub(crate) fn call<T, F>(&self, within: Duration, call: impl FnOnce(Docker) -> F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (tell, answer) = sync_channel(1);
        let called = call(self.docker.clone());
        self.runtime.handle.spawn(async move {
            let answered = tokio::time::timeout(within, called).await;
            // The caller has stopped waiting if this fails.
            let _ = tell.send(answered);
        });
        match answer.recv_timeout(within + THREAD_GRACE_TIMEOUT) {
            Ok(Ok(answered)) => answered.map_err(CallError::from_api_error),
            Ok(Err(_)) | Err(_) => Err(CallError::Late(within)),
        }
    }

    /// Returns the engine's description of a container.
    pub(crate) fn inspect_container(&self, container: &str) -> Result<ContainerInspectResponse, CallError> {
        let container = container.to_owned();
        self.call(CALL_TIMEOUT, |docker| async move { docker.inspect_container(&container, None).await })
    }

    /// Returns the runtime of the thread for the calls.
    pub(crate) fn runtime_handle(&self) -> Handle {
        self.runtime.handle.clone()
    }

    /// Returns the API client, for tasks that make calls themselves.
    pub(crate) fn api_client(&self) -> Docker {
        self.docker.clone()
    }
}

impl ClientRuntime {
    fn start_thread() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (_end, ended) = oneshot::channel::<()>();
        let serve = move || {
            // The sender is never used: only its drop is awaited.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        };
        thread::Builder::new().name("stockade-containers".to_owned()).spawn(serve)?;
        Ok(Self { handle, _end })
    }
}

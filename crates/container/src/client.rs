//! Calls to a container engine, from threads that wait. What is asynchronous has one
//! thread of its own; every call has a time in which it is over.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use bollard::errors::Error;
use bollard::{API_DEFAULT_VERSION, Docker};
use stockade_engine::StartError;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// How long an ordinary call may take.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// How long the engine may take to make, start or remove a container.
pub(crate) const MAKES_WITHIN: Duration = Duration::from_secs(120);
/// How much longer than a call its thread is waited for: it keeps the time itself.
const THREAD_WITHIN: Duration = Duration::from_secs(5);

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// There is no engine at its socket.
    #[error("no container engine answers at {}: {why}", socket.display())]
    Unreachable { socket: PathBuf, why: String },
    /// There is no such object.
    #[error("the container engine has none: {0}")]
    NotFound(String),
    /// The engine refused it.
    #[error("the container engine says: {0}")]
    Refused(String),
    /// It did not answer in time.
    #[error("the container engine did not answer within {} s", .0.as_secs())]
    Late(Duration),
}

impl CallError {
    fn of(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError { status_code: 404, message } => Self::NotFound(message),
            Error::DockerResponseServerError { message, .. } => Self::Refused(message.trim().to_owned()),
            error => Self::Refused(error.to_string()),
        }
    }

    /// As why something could not be done.
    pub(crate) fn to_start_error(&self, what: &str) -> StartError {
        let hint = match self {
            Self::Unreachable { .. } => Some("start it, or name its socket with DOCKER_HOST".to_owned()),
            Self::NotFound(_) | Self::Refused(_) | Self::Late(_) => None,
        };
        StartError { what: format!("cannot {what}: {self}"), hint }
    }
}

/// One engine, at its socket.
#[derive(Clone)]
pub(crate) struct Client {
    docker: Docker,
    runtime: Arc<Runtime>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// The thread, which ends with the last who uses it.
struct Runtime {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl Client {
    /// Connects, and agrees on a version of the engine's API.
    pub(crate) fn connect(socket: &Path) -> Result<Self, CallError> {
        let unreachable = |why: String| CallError::Unreachable { socket: socket.to_owned(), why };
        let path = socket.to_str().ok_or_else(|| unreachable("its path is no text".to_owned()))?;
        let runtime = Arc::new(Runtime::start().map_err(|error| unreachable(error.to_string()))?);
        let _inside = runtime.handle.enter();
        let docker = Docker::connect_with_unix(path, MAKES_WITHIN.as_secs(), API_DEFAULT_VERSION)
            .map_err(|error| unreachable(error.to_string()))?;
        let agreed = runtime.wait(ANSWERS_WITHIN, docker.negotiate_version());
        let docker = agreed.map_err(|error| unreachable(error.to_string()))?;
        drop(_inside);
        Ok(Self { docker, runtime })
    }

    /// Makes a call, and waits for its answer.
    pub(crate) fn call<T, F>(&self, within: Duration, call: impl FnOnce(Docker) -> F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.runtime.wait(within, call(self.docker.clone()))
    }

    /// Lets something go on in the thread that makes the calls.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> tokio::task::AbortHandle {
        self.runtime.handle.spawn(task).abort_handle()
    }

    /// Where such things go on.
    pub(crate) fn runtime(&self) -> Handle {
        self.runtime.handle.clone()
    }

    /// For tasks that make calls themselves.
    pub(crate) fn docker(&self) -> Docker {
        self.docker.clone()
    }
}

impl Runtime {
    fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (_end, ended) = oneshot::channel::<()>();
        let serve = move || {
            // Its sender is never used: its end is what is waited for.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        };
        thread::Builder::new().name("stockade-containers".to_owned()).spawn(serve)?;
        Ok(Self { handle, _end })
    }

    fn wait<T, F>(&self, within: Duration, call: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (tell, answer) = sync_channel(1);
        self.handle.spawn(async move {
            let answered = tokio::time::timeout(within, call).await;
            // Nobody waits any more where this fails.
            let _ = tell.send(answered);
        });
        match answer.recv_timeout(within + THREAD_WITHIN) {
            Ok(Ok(answered)) => answered.map_err(CallError::of),
            Ok(Err(_)) | Err(_) => Err(CallError::Late(within)),
        }
    }
}

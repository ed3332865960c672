//! Protocol between a client and a keeper. Each connection carries one request, with the
//! descriptors that it needs, and the response.

use serde::{Deserialize, Serialize};
use stockade_backend_api::remote::AttemptOrder;
use stockade_backend_api::{SandboxError, StartError};

use super::super::unsupported_error;

/// Name of a keeper's socket, in the directory of its sandbox.
pub(super) const SOCKET_NAME: &str = "keeper";

/// Request to a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SupervisorRequest {
    /// Returns the enforcement report of the sandbox.
    Enforced,
    /// Runs a command, with the passed standard streams.
    Run(Box<AttemptOrder>),
    /// Freezes every process.
    Pause,
    /// Thaws every process.
    Resume,
    /// Returns the resource usage.
    Usage,
    /// Sends events until the client disconnects.
    Watch,
    /// Ends the sandbox and the keeper.
    End,
}

/// Reason for a failed request: a sandbox error without the backend, the operation and the id,
/// which the client knows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SupervisorRefusal {
    Unsupported(String),
    Gone,
    Failed(StartError),
}

impl From<SandboxError> for SupervisorRefusal {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Unsupported { why, .. } => Self::Unsupported(why),
            SandboxError::Gone(_) => Self::Gone,
            SandboxError::Failed(error) => Self::Failed(error),
        }
    }
}

impl SupervisorRefusal {
    /// Returns the client's error for the operation `what` on this sandbox.
    pub(super) fn into_sandbox_error(self, what: &'static str, id: &stockade_model::SandboxId) -> SandboxError {
        match self {
            Self::Unsupported(why) => unsupported_error(what, why),
            Self::Gone => SandboxError::Gone(id.clone()),
            Self::Failed(error) => SandboxError::Failed(error),
        }
    }
}

//! Protocol between a client and a keeper. Each connection carries one request, with the
//! descriptors that it needs, and the response.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};
use stockade_backend_api::remote::AttemptOrder;
use stockade_backend_api::{SandboxError, StartError};
use stockade_sys::fd_passing;

use super::super::unsupported_error;
use crate::remote::{ORDER_BYTE, SocketChannel, receive_order, to_file};
use serde::de::DeserializeOwned;

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

/// Sends a request with descriptors. Returns the connection for the response.
pub(super) fn send_request(
    stream: UnixStream,
    what: &impl Serialize,
    along: &[BorrowedFd<'_>],
) -> io::Result<SocketChannel> {
    let file = to_file(what)?;
    let all: Vec<BorrowedFd<'_>> = std::iter::once(file.as_fd()).chain(along.iter().copied()).collect();
    fd_passing::send_message(stream.as_fd(), &[ORDER_BYTE], &all)?;
    SocketChannel::from_stream(stream)
}

/// Receives a request. Returns it with its descriptors and the connection for the response.
pub(super) fn receive_request<T: DeserializeOwned>(
    stream: UnixStream,
) -> io::Result<(T, [Option<OwnedFd>; 3], SocketChannel)> {
    let order = receive_order(stream.as_fd())?;
    let (what, [one, two, three, _]) = order.ok_or(io::ErrorKind::InvalidData)?;
    Ok((what, [one, two, three], SocketChannel::from_stream(stream)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_arrives_with_its_descriptors_and_anything_else_does_not() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let line = send_request(ours, &SupervisorRequest::Pause, &[theirs.as_fd(), theirs.as_fd()]).unwrap();
        let (request, along, answers) = receive_request::<SupervisorRequest>(theirs).unwrap();
        assert!(matches!(request, SupervisorRequest::Pause), "{request:?}");
        assert_eq!(along.iter().flatten().count(), 2);
        answers.send_message(&Err::<(), _>(SupervisorRefusal::Gone)).unwrap();
        assert!(matches!(line.receive_message().unwrap(), Some(Err::<(), _>(SupervisorRefusal::Gone))));
        for bytes in [&[ORDER_BYTE][..], b"x", b""] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            fd_passing::send_message(ours.as_fd(), bytes, &[]).unwrap();
            drop(ours);
            assert!(receive_request::<SupervisorRequest>(theirs).is_err(), "{bytes:?}");
        }
    }
}

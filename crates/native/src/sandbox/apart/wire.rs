//! Protocol between a client and a keeper. Each connection carries one request, with the
//! descriptors that it needs, and the response.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};
use stockade_engine::remote::Order;
use stockade_engine::{SandboxError, StartError};
use stockade_sys::passing;

use super::super::unsupported;
use crate::remote::{Line, ORDER, from_file, to_file};

/// Name of a keeper's socket, in the directory of its sandbox.
pub(super) const SOCKET: &str = "keeper";

/// Request to a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Asked {
    /// Returns the enforcement report of the sandbox.
    Enforced,
    /// Runs a command, with the passed standard streams.
    Run(Box<Order>),
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
pub(super) enum Refusal {
    Unsupported(String),
    Gone,
    Failed(StartError),
}

impl From<SandboxError> for Refusal {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Unsupported { why, .. } => Self::Unsupported(why),
            SandboxError::Gone(_) => Self::Gone,
            SandboxError::Failed(error) => Self::Failed(error),
        }
    }
}

impl Refusal {
    /// Returns the client's error for the operation `what` on this sandbox.
    pub(super) fn of(self, what: &'static str, id: &stockade_model::SandboxId) -> SandboxError {
        match self {
            Self::Unsupported(why) => unsupported(what, why),
            Self::Gone => SandboxError::Gone(id.clone()),
            Self::Failed(error) => SandboxError::Failed(error),
        }
    }
}

/// Sends a request with descriptors. Returns the connection for the response.
pub(super) fn say(stream: UnixStream, what: &impl Serialize, along: &[BorrowedFd<'_>]) -> io::Result<Line> {
    let file = to_file(what)?;
    let all: Vec<BorrowedFd<'_>> = std::iter::once(file.as_fd()).chain(along.iter().copied()).collect();
    passing::send(stream.as_fd(), &[ORDER], &all)?;
    Line::over(stream)
}

/// Receives a request. Returns it with its descriptors and the connection for the response.
pub(super) fn hear<T: for<'a> Deserialize<'a>>(stream: UnixStream) -> io::Result<(T, [Option<OwnedFd>; 3], Line)> {
    let mut word = [0];
    let received = passing::receive(stream.as_fd(), &mut word, true)?;
    let [Some(file), one, two, three, ..] = received.descriptors else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if word != [ORDER] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((from_file(file)?, [one, two, three], Line::over(stream)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_arrives_with_its_descriptors_and_anything_else_does_not() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let line = say(ours, &Asked::Pause, &[theirs.as_fd(), theirs.as_fd()]).unwrap();
        let (asked, along, answers) = hear::<Asked>(theirs).unwrap();
        assert!(matches!(asked, Asked::Pause), "{asked:?}");
        assert_eq!(along.iter().flatten().count(), 2);
        answers.send(&Err::<(), _>(Refusal::Gone)).unwrap();
        assert!(matches!(line.receive().unwrap(), Some(Err::<(), _>(Refusal::Gone))));
        for bytes in [&[ORDER][..], b"x", b""] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            passing::send(ours.as_fd(), bytes, &[]).unwrap();
            drop(ours);
            assert!(hear::<Asked>(theirs).is_err(), "{bytes:?}");
        }
    }
}

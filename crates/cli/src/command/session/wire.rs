//! Messages between a session and `session exec` or `session end`: short messages over a socket in
//! the session's directory. The command is sent as a file in memory; the client's directory,
//! streams and terminal are sent as descriptors.
//!
//! Both sides accept only a peer of the same user. The directory keeps other users out; this check
//! holds even if its mode was changed.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen};
use serde::{Deserialize, Serialize};
use stockade_model::RawText;
use stockade_sys::Errno;
use stockade_sys::fd_passing::{self, MAX_DESCRIPTORS};
use stockade_sys::ready::readable_before;
use stockade_sys::socket::{UnixSocketAddress, require_own};

/// Time-out of either side for an expected message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most clients that wait to be accepted.
const MAX_BACKLOG: i32 = 128;
/// Longest description of a command, in bytes: the longest command and the largest environment,
/// with every byte escaped, are shorter.
const MAX_REQUEST_BYTES: u64 = 32 << 20;
/// Name of the socket in the session's directory.
const SOCKET_NAME: &str = "socket";
/// Size of a message in bytes.
const MESSAGE_BYTES: usize = 8;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionMessage {
    /// To a session: run the command in the attached file.
    Exec,
    /// To a session: end.
    End,
    /// To a session: this signal is for the command.
    Signal(i32),
    /// From a session: the request was accepted.
    Accepted,
    /// From a session: the command has ended, with this exit code.
    Over(u8),
    /// From a session: the command was stopped. The client that lent the terminal stops too, and
    /// reports when it continues.
    Stopped,
}

impl SessionMessage {
    fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let (kind, value) = match self {
            Self::Exec => (1, 0),
            Self::End => (2, 0),
            Self::Signal(signal) => (3, signal),
            Self::Accepted => (4, 0),
            Self::Over(code) => (5, code.into()),
            Self::Stopped => (6, 0),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&u32::to_ne_bytes(kind));
        bytes[4..].copy_from_slice(&i32::to_ne_bytes(value));
        bytes
    }

    fn from_bytes(bytes: [u8; MESSAGE_BYTES]) -> Option<Self> {
        let (kind, value) = (u32::from_ne_bytes(*bytes.first_chunk()?), i32::from_ne_bytes(*bytes.last_chunk()?));
        Some(match kind {
            1 => Self::Exec,
            2 => Self::End,
            3 => Self::Signal(value),
            4 => Self::Accepted,
            5 => Self::Over(value.try_into().ok()?),
            6 => Self::Stopped,
            _ => return None,
        })
    }
}

/// Request to run a command for a client.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// A script, instead of words.
    pub script: Option<RawText>,
    /// Program and arguments.
    pub words: Vec<RawText>,
    /// Grants to request, as typed. Absent means none, because clients write this themselves.
    #[serde(default)]
    pub requests: Vec<RawText>,
    /// Destination of the outcome.
    pub report: OutcomeDestination,
    /// The caller's variables.
    pub environment: Vec<(RawText, RawText)>,
    /// The caller's file mode creation mask.
    pub umask: u32,
}

/// Destination of the outcome: `--json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutcomeDestination {
    /// None.
    Nowhere,
    /// Standard output.
    StandardOutput,
    /// A file.
    File(RawText),
}

impl ExecRequest {
    /// Serializes the request to a file that can be sent.
    ///
    /// # Errors
    /// [`io::Error`] if no memory or descriptors are left.
    pub fn to_file(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(rustix::fs::memfd_create("stockade-exec", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file.into())
    }

    /// Parses such a file.
    ///
    /// # Errors
    /// [`io::Error`] if it is too long or malformed.
    pub fn from_file(file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        let length = file.metadata()?.len();
        if length > MAX_REQUEST_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut text = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        file.read_exact_at(&mut text, 0)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct SessionChannel(OwnedFd);

impl AsFd for SessionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl SessionChannel {
    /// Connects to the session in this directory.
    ///
    /// # Errors
    /// [`io::Error`] if no process listens there, or a process of another user.
    pub fn connect_to(session: &Path) -> io::Result<Self> {
        let socket = create_socket()?;
        let at = UnixSocketAddress::in_directory(session, SOCKET_NAME)?;
        connect(&socket, &SocketAddrUnix::new(at.path())?)?;
        Self::of_own(socket)
    }

    fn of_own(socket: OwnedFd) -> io::Result<Self> {
        require_own(&socket)?;
        Ok(Self(socket))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`io::Error`] if the other side is gone.
    pub fn send_message(&self, word: SessionMessage, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        Ok(fd_passing::send_message(self.0.as_fd(), &word.to_bytes(), descriptors)?)
    }

    /// Waits for the next message; `None` if the other side is gone.
    ///
    /// # Errors
    /// [`io::Error`] if it is malformed.
    pub fn receive_message(&self) -> io::Result<Option<(SessionMessage, [Option<OwnedFd>; MAX_DESCRIPTORS])>> {
        let mut bytes = [0; MESSAGE_BYTES];
        let received = match fd_passing::receive_message(self.0.as_fd(), &mut bytes, true) {
            Err(Errno::CONNRESET) => return Ok(None),
            other => other?,
        };
        match (received.length, SessionMessage::from_bytes(bytes)) {
            (0, _) => Ok(None),
            (MESSAGE_BYTES, Some(word)) => Ok(Some((word, received.descriptors))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Waits as [`receive_message`](Self::receive_message), with a time-out.
    ///
    /// # Errors
    /// [`io::Error`] if no message arrives in time, or as there.
    pub fn hear_soon(&self) -> io::Result<Option<(SessionMessage, [Option<OwnedFd>; MAX_DESCRIPTORS])>> {
        let deadline = Instant::now() + MESSAGE_TIMEOUT;
        if readable_before(&[self.0.as_fd()], deadline)? {
            self.receive_message()
        } else {
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}

/// Listening socket of a session.
#[derive(Debug)]
pub struct SessionListener(OwnedFd);

impl AsFd for SessionListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl SessionListener {
    /// Listens in the session's directory.
    ///
    /// # Errors
    /// [`io::Error`] if no socket can be created.
    pub fn bind_in(session: &Path) -> io::Result<Self> {
        let socket = create_socket()?;
        let at = UnixSocketAddress::in_directory(session, SOCKET_NAME)?;
        bind(&socket, &SocketAddrUnix::new(at.path())?)?;
        listen(&socket, MAX_BACKLOG)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(socket))
    }

    /// Accepts a waiting client; `None` if none waits any more, or if it belongs to another user.
    ///
    /// # Errors
    /// [`io::Error`] if no descriptors are left.
    pub fn accept_client(&self) -> io::Result<Option<SessionChannel>> {
        match accept_with(&self.0, SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(SessionChannel::of_own(socket).ok()),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn create_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_unchanged_with_its_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let listener = SessionListener::bind_in(dir.path()).unwrap();
        assert!(listener.accept_client().unwrap().is_none());
        let line = SessionChannel::connect_to(dir.path()).unwrap();
        let worker_channel = listener.accept_client().unwrap().unwrap();
        for word in [
            SessionMessage::Exec,
            SessionMessage::End,
            SessionMessage::Signal(15),
            SessionMessage::Accepted,
            SessionMessage::Over(255),
            SessionMessage::Stopped,
        ] {
            line.send_message(word, &[dir_fd(dir.path()).as_fd()]).unwrap();
            let (same, descriptors) = worker_channel.hear_soon().unwrap().unwrap();
            assert_eq!((same, descriptors.iter().flatten().count()), (word, 1));
        }
        fd_passing::send_message(line.as_fd(), b"something else", &[]).unwrap();
        assert!(worker_channel.hear_soon().is_err());
        drop(line);
        assert!(worker_channel.hear_soon().unwrap().is_none());
    }

    fn dir_fd(path: &Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn requests_keep_their_bytes() {
        let request = ExecRequest {
            script: None,
            words: vec![b"\xff\0"[..1].into(), "x\n".into()],
            requests: vec![b"write /\xff"[..].into()],
            report: OutcomeDestination::File(b"\xfe"[..].into()),
            environment: vec![("A".into(), b"\x80"[..].into())],
            umask: 0o27,
        };
        assert_eq!(ExecRequest::from_file(request.to_file().unwrap()).unwrap(), request);
        let other = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert!(ExecRequest::from_file(other).is_err());
    }
}

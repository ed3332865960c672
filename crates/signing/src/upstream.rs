//! The user's agent: lists its keys, and lets one sign. Sends no other request to it. Each request
//! has a connection and a time-out of its own.
//!
//! This module must not know which data may be signed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use stockade_model::KeyFingerprint;

use crate::filter::{AgentKeys, message};
use crate::host_key::{compute_fingerprint, read_key_kind};
use crate::wire::{SshWireReader, put_string};

/// Longest message in either direction, as in OpenSSH.
pub(crate) const MAX_MESSAGE_BYTES: usize = 256 << 10;
/// Time-out for the list of keys.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out for a signature: the user may be asked, or touch a token.
const SIGN_TIMEOUT: Duration = Duration::from_secs(120);
/// Part of the name of every certificate kind.
const CERTIFICATE_MARK: &str = "-cert-v0";
/// Most keys that are read.
const MAX_KEYS: u32 = 2048;

/// Reason why the user's agent cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The caller has no agent.
    #[error(
        "there is no ssh agent: SSH_AUTH_SOCK is not set\nhint: start one and add a key: eval \"$(ssh-agent)\" && ssh-add"
    )]
    None,
    /// The agent does not answer.
    #[error(
        "the ssh agent at {path} does not answer: {errno}\nhint: start one and add a key: eval \"$(ssh-agent)\" && ssh-add"
    )]
    Silent {
        /// Path of its socket, escaped.
        path: String,
        /// Error of the kernel.
        errno: Errno,
    },
    /// The agent does not have a granted key.
    #[error("the ssh agent does not have the key of `{grant}`\nhint: add it: ssh-add; `ssh-add -l` lists what it has")]
    NoKey {
        /// The grant.
        grant: String,
    },
    /// The key of a server is not known.
    #[error("no key of the server of `{grant}` is known\nhint: connect to it once yourself: {command}")]
    UnknownServer {
        /// The grant.
        grant: String,
        /// Command that makes the key known.
        command: String,
    },
    /// The run's own agent cannot be started.
    #[error("cannot make the ssh agent of the run: {0}")]
    Own(String),
}

/// A key of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentIdentity {
    /// Fingerprint, its name in grants.
    pub fingerprint: KeyFingerprint,
    /// The public key.
    pub key: Vec<u8>,
    /// The user's comment.
    pub comment: String,
}

/// The user's agent, by its socket.
#[derive(Clone, Debug)]
pub struct UserSshAgent {
    socket: PathBuf,
}

impl UserSshAgent {
    /// Names the agent that listens at this path.
    pub fn at_socket(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns its keys.
    ///
    /// # Errors
    /// [`AgentError::Silent`] if it does not answer.
    pub fn list_identities(&self) -> Result<Vec<AgentIdentity>, AgentError> {
        let silent =
            |errno| AgentError::Silent { path: self.socket.display().to_string().escape_debug().to_string(), errno };
        let answer = self.send_request(&[message::REQUEST_IDENTITIES], LIST_TIMEOUT, None).map_err(silent)?;
        parse_identities(&answer).ok_or_else(|| silent(Errno::PROTO))
    }

    /// Sends one request and returns its answer. `end` becomes readable when the answer is not
    /// needed any more.
    fn send_request(&self, question: &[u8], at_most: Duration, end: Option<BorrowedFd<'_>>) -> Result<Vec<u8>, Errno> {
        let deadline = Instant::now() + at_most;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Does not block: an agent with a full queue is busy with other clients.
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        let link = MessageSocket { socket, end };
        link.write_message(question, deadline)?;
        link.read_message(deadline)?.ok_or(Errno::CONNRESET)
    }
}

fn parse_identities(answer: &[u8]) -> Option<Vec<AgentIdentity>> {
    let mut reader = SshWireReader::new(answer);
    reader.expect_bytes(&[message::IDENTITIES_ANSWER])?;
    let count = reader.read_number()?.min(MAX_KEYS);
    let mut all = Vec::new();
    for _ in 0..count {
        let (key, comment) = (reader.read_string()?, reader.read_string()?);
        let comment = String::from_utf8_lossy(comment).into_owned();
        // The key of a certificate is listed besides it.
        if read_key_kind(key).is_some_and(|kind| kind.contains(CERTIFICATE_MARK)) {
            continue;
        }
        all.push(AgentIdentity { fingerprint: compute_fingerprint(key)?, key: key.to_vec(), comment });
    }
    Some(all)
}

/// The agent for one connection of the run; `end` is readable when the run has ended.
pub(crate) struct UpstreamAgent<'a> {
    pub agent: &'a UserSshAgent,
    pub end: BorrowedFd<'a>,
}

impl AgentKeys for UpstreamAgent<'_> {
    fn sign_data(&self, key: &[u8], data: &[u8], flags: u32) -> Option<Vec<u8>> {
        let mut question = vec![message::SIGN_REQUEST];
        put_string(&mut question, key);
        put_string(&mut question, data);
        question.extend_from_slice(&flags.to_be_bytes());
        let answer = self.agent.send_request(&question, SIGN_TIMEOUT, Some(self.end)).ok()?;
        let mut reader = SshWireReader::new(&answer);
        reader.expect_bytes(&[message::SIGN_RESPONSE])?;
        let signature = reader.read_string()?.to_vec();
        reader.expect_end()?;
        Some(signature)
    }
}

/// Socket with length-prefixed messages and a deadline for each.
pub(crate) struct MessageSocket<'a> {
    /// Non-blocking socket.
    pub socket: OwnedFd,
    /// Readable when the transfer must stop.
    pub end: Option<BorrowedFd<'a>>,
}

impl MessageSocket<'_> {
    /// Reads the next message; `None` if the other side closed before one.
    pub(crate) fn read_message(&self, deadline: Instant) -> Result<Option<Vec<u8>>, Errno> {
        let mut length = [0; 4];
        match self.fill_buffer(&mut length, deadline)? {
            0 => return Ok(None),
            4 => {}
            _ => return Err(Errno::CONNRESET),
        }
        let length = u32::from_be_bytes(length) as usize;
        if length == 0 || length > MAX_MESSAGE_BYTES {
            return Err(Errno::MSGSIZE);
        }
        let mut message = vec![0; length];
        if self.fill_buffer(&mut message, deadline)? < length {
            return Err(Errno::CONNRESET);
        }
        Ok(Some(message))
    }

    /// Sends one message.
    pub(crate) fn write_message(&self, message: &[u8], deadline: Instant) -> Result<(), Errno> {
        let mut framed = Vec::with_capacity(message.len() + 4);
        put_string(&mut framed, message);
        let mut rest = &framed[..];
        while !rest.is_empty() {
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN) => self.wait_until_ready(PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Fills a buffer. Returns fewer bytes if the other side closed.
    fn fill_buffer(&self, buffer: &mut [u8], deadline: Instant) -> Result<usize, Errno> {
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::net::recv(&self.socket, &mut buffer[filled..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => break,
                Ok((count, _)) => filled += count,
                Err(Errno::AGAIN) => self.wait_until_ready(PollFlags::IN, deadline)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(filled)
    }

    fn wait_until_ready(&self, poll_flags: PollFlags, deadline: Instant) -> Result<(), Errno> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).map_err(|_| Errno::INVAL)?;
        let mut waited = vec![PollFd::from_borrowed_fd(self.socket.as_fd(), poll_flags)];
        waited.extend(self.end.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        match poll(&mut waited, Some(&timeout)) {
            Ok(0) => Err(Errno::TIMEDOUT),
            Ok(_) if waited.get(1).is_some_and(|end| !end.revents().is_empty()) => Err(Errno::CANCELED),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_key::tests::TestKey;

    fn answer(keys: &[Vec<u8>]) -> Vec<u8> {
        let mut out = vec![message::IDENTITIES_ANSWER];
        out.extend_from_slice(&u32::try_from(keys.len()).unwrap().to_be_bytes());
        for key in keys {
            put_string(&mut out, key);
            put_string(&mut out, b"me@here");
        }
        out
    }

    #[test]
    fn keys_are_listed_without_their_certificates() {
        let key = TestKey::new(1).public_key_bytes();
        let mut certificate = Vec::new();
        put_string(&mut certificate, b"ssh-ed25519-cert-v01@openssh.com");
        let found = parse_identities(&answer(&[certificate, key.clone()])).unwrap();
        assert_eq!(found.iter().map(|identity| &identity.key).collect::<Vec<_>>(), [&key]);
        assert_eq!(found[0].comment, "me@here");
        let whole = answer(&[key]);
        for length in 0..whole.len() {
            assert_eq!(parse_identities(&whole[..length]), None, "{length}");
        }
    }
}

//! The person's agent: its keys are listed, and one signs. Nothing else is ever asked of it,
//! and each question has a connection of its own and a time limit.
//!
//! Must not know what may be signed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use stockade_model::KeyFingerprint;

use crate::filter::{Keys, message};
use crate::host_key::{fingerprint, kind};
use crate::wire::{Reader, put_string};

/// The longest message in either direction: as OpenSSH has it.
pub(crate) const MAX_MESSAGE: usize = 256 << 10;
/// How long the agent may take to list its keys.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a signature may take: the person may be asked, or touch a token.
const SIGN_TIMEOUT: Duration = Duration::from_secs(120);
/// What the kinds of certificates have in their name.
const CERTIFICATE: &str = "-cert-v0";
/// More keys are not looked at.
const MAX_KEYS: u32 = 2048;

/// Why the person's agent does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The caller has none.
    #[error(
        "no ssh agent is there: SSH_AUTH_SOCK is not set\nhint: start one and add a key: eval \"$(ssh-agent)\" && ssh-add"
    )]
    None,
    /// It cannot be spoken to.
    #[error(
        "the ssh agent at {path} does not answer: {errno}\nhint: start one and add a key: eval \"$(ssh-agent)\" && ssh-add"
    )]
    Silent {
        /// Its socket, escaped.
        path: String,
        /// What the kernel said.
        errno: Errno,
    },
    /// It does not have a key that was granted.
    #[error("the ssh agent does not have the key of `{grant}`\nhint: add it: ssh-add; `ssh-add -l` lists what it has")]
    NoKey {
        /// The grant.
        grant: String,
    },
    /// Which key a server has is not known.
    #[error("no key of the server of `{grant}` is known\nhint: connect to it once yourself: {command}")]
    UnknownServer {
        /// The grant.
        grant: String,
        /// What makes it known.
        command: String,
    },
    /// The run's own agent cannot be made.
    #[error("cannot make the ssh agent of the run: {0}")]
    Own(String),
}

/// A key of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its name in grants.
    pub fingerprint: KeyFingerprint,
    /// Its public half.
    pub key: Vec<u8>,
    /// What the person calls it.
    pub comment: String,
}

/// The agent of the person, by its socket.
#[derive(Clone, Debug)]
pub struct PersonsAgent {
    socket: PathBuf,
}

impl PersonsAgent {
    /// The one that listens here.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its keys.
    ///
    /// # Errors
    /// [`AgentError::Silent`] where it does not answer.
    pub fn identities(&self) -> Result<Vec<Identity>, AgentError> {
        let silent =
            |errno| AgentError::Silent { path: self.socket.display().to_string().escape_debug().to_string(), errno };
        let answer = self.ask(&[message::REQUEST_IDENTITIES], LIST_TIMEOUT, None).map_err(silent)?;
        identities(&answer).ok_or_else(|| silent(Errno::PROTO))
    }

    /// One question and its answer. `end` is readable when nobody waits for it any more.
    fn ask(&self, question: &[u8], at_most: Duration, end: Option<BorrowedFd<'_>>) -> Result<Vec<u8>, Errno> {
        let deadline = Instant::now() + at_most;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // It does not wait: an agent whose queue is full serves others.
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        let link = Link { socket, end };
        link.write(question, deadline)?;
        link.read(deadline)?.ok_or(Errno::CONNRESET)
    }
}

fn identities(answer: &[u8]) -> Option<Vec<Identity>> {
    let mut reader = Reader::new(answer);
    reader.exactly(&[message::IDENTITIES_ANSWER])?;
    let count = reader.number()?.min(MAX_KEYS);
    let mut all = Vec::new();
    for _ in 0..count {
        let (key, comment) = (reader.string()?, reader.string()?);
        let comment = String::from_utf8_lossy(comment).into_owned();
        // A certificate stands beside the key that it is for.
        if kind(key).is_some_and(|kind| kind.contains(CERTIFICATE)) {
            continue;
        }
        all.push(Identity { fingerprint: fingerprint(key)?, key: key.to_vec(), comment });
    }
    Some(all)
}

/// The agent for one connection of the run; `end` is readable when the run is over.
pub(crate) struct Upstream<'a> {
    pub agent: &'a PersonsAgent,
    pub end: BorrowedFd<'a>,
}

impl Keys for Upstream<'_> {
    fn sign(&self, key: &[u8], data: &[u8], flags: u32) -> Option<Vec<u8>> {
        let mut question = vec![message::SIGN_REQUEST];
        put_string(&mut question, key);
        put_string(&mut question, data);
        question.extend_from_slice(&flags.to_be_bytes());
        let answer = self.agent.ask(&question, SIGN_TIMEOUT, Some(self.end)).ok()?;
        let mut reader = Reader::new(&answer);
        reader.exactly(&[message::SIGN_RESPONSE])?;
        let signature = reader.string()?.to_vec();
        reader.end()?;
        Some(signature)
    }
}

/// A socket on which messages with their length before them pass, none later than its deadline.
pub(crate) struct Link<'a> {
    /// One that does not wait.
    pub socket: OwnedFd,
    /// Readable when nothing more is to pass.
    pub end: Option<BorrowedFd<'a>>,
}

impl Link<'_> {
    /// The next message; nothing where the other side closed before one.
    pub(crate) fn read(&self, deadline: Instant) -> Result<Option<Vec<u8>>, Errno> {
        let mut length = [0; 4];
        match self.fill(&mut length, deadline)? {
            0 => return Ok(None),
            4 => {}
            _ => return Err(Errno::CONNRESET),
        }
        let length = u32::from_be_bytes(length) as usize;
        if length == 0 || length > MAX_MESSAGE {
            return Err(Errno::MSGSIZE);
        }
        let mut message = vec![0; length];
        if self.fill(&mut message, deadline)? < length {
            return Err(Errno::CONNRESET);
        }
        Ok(Some(message))
    }

    /// Sends one message.
    pub(crate) fn write(&self, message: &[u8], deadline: Instant) -> Result<(), Errno> {
        let mut framed = Vec::with_capacity(message.len() + 4);
        put_string(&mut framed, message);
        let mut rest = &framed[..];
        while !rest.is_empty() {
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Fills a buffer, and says how far where the other side closed.
    fn fill(&self, buffer: &mut [u8], deadline: Instant) -> Result<usize, Errno> {
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::net::recv(&self.socket, &mut buffer[filled..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => break,
                Ok((count, _)) => filled += count,
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(filled)
    }

    fn wait(&self, wanted: PollFlags, deadline: Instant) -> Result<(), Errno> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        let mut waited = vec![PollFd::from_borrowed_fd(self.socket.as_fd(), wanted)];
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
        let key = TestKey::new(1).public();
        let mut certificate = Vec::new();
        put_string(&mut certificate, b"ssh-ed25519-cert-v01@openssh.com");
        let found = identities(&answer(&[certificate, key.clone()])).unwrap();
        assert_eq!(found.iter().map(|identity| &identity.key).collect::<Vec<_>>(), [&key]);
        assert_eq!(found[0].comment, "me@here");
        let whole = answer(&[key]);
        for length in 0..whole.len() {
            assert_eq!(identities(&whole[..length]), None, "{length}");
        }
    }
}

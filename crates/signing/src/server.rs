//! The sockets and threads of a run's agent. Its listener has no name: it is bound in a directory
//! of its own, which is removed at once. Only the run's broker holds the socket and can connect to
//! it. So no other run and no process of the host can find it.
//!
//! This module must not know which data may be signed, nor how a sandbox connects.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::rand::{GetRandomFlags, getrandom};
use stockade_model::SignUse;

use crate::filter::{AgentConnection, AgentFilter, AgentSignature, SigningRefusal, SigningRules, UnmetGrantError};
use crate::host_key::public_key_text;
use crate::known_hosts::KnownHosts;
use crate::upstream::{AgentError, MessageSocket, UpstreamAgent, UserSshAgent};

/// Most concurrent connections. Further ones are closed.
const MAX_CONNECTIONS: usize = 16;
/// Time-out for the next message of a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time-out for the client to read an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most different refusals that are reported for one run.
const MAX_REFUSALS: usize = 200;
/// Prefix of the temporary directory in which the socket is bound.
const DIRECTORY_PREFIX: &str = ".stockade-agent-";

/// Name of the socket in it.
const SOCKET_NAME: &str = "socket";

/// Event of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SigningEvent {
    /// A key signed.
    Signed(AgentSignature),
    /// A request was refused, for the first time.
    Refused(SigningRefusal),
}

/// Agent that does not answer yet: its grants are resolved, and clients can connect.
#[derive(Debug)]
pub struct AgentListener {
    listener: OwnedFd,
    socket: Arc<OwnedFd>,
    agent: UserSshAgent,
    filter: AgentFilter,
    git_key: Option<String>,
    known_hosts: String,
}

/// Running agent. Dropping it ends its threads.
#[derive(Debug)]
pub struct AgentHandle {
    ended: Arc<OwnedFd>,
}

impl Drop for AgentHandle {
    fn drop(&mut self) {
        // The write cannot fail, because the counter is written only once.
        let _ = rustix::io::write(&*self.ended, &1_u64.to_ne_bytes());
    }
}

impl AgentListener {
    /// Prepares an agent for these grants; `home` is the user's home, `directory` one for temporary
    /// files.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub fn prepare_agent(
        uses: &[SignUse],
        agent: UserSshAgent,
        (home, directory): (&Path, &Path),
    ) -> Result<Self, AgentError> {
        let identities = agent.list_identities()?;
        let known = KnownHosts::of_person(home);
        let known_hosts = known.file_for(uses.iter().filter_map(SignUse::target));
        let rules = SigningRules::new(uses, &identities, known).map_err(unmet_grant_error)?;
        let git_key = rules.git_key().and_then(public_key_text);
        let (listener, socket) = nameless_listener(directory).map_err(|errno| AgentError::Own(errno.to_string()))?;
        let socket = Arc::new(socket);
        Ok(Self { listener, socket, agent, filter: AgentFilter::new(rules), git_key, known_hosts })
    }

    /// Returns the socket to connect to, by descriptor.
    pub fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Returns the key that signs for git, in the format of git's settings; `None` if there are
    /// several.
    pub fn git_key(&self) -> Option<&str> {
        self.git_key.as_deref()
    }

    /// Returns a file of known servers that contains only those of the grants.
    pub fn known_hosts(&self) -> &str {
        &self.known_hosts
    }

    /// Starts answering. `sink` must not block.
    ///
    /// # Errors
    /// [`AgentError`] if no thread or descriptor is available.
    pub fn start_serving(self, sink: impl Fn(SigningEvent) + Send + Sync + 'static) -> Result<AgentHandle, AgentError> {
        let own = |error: &dyn std::fmt::Display| AgentError::Own(error.to_string());
        // Not a pipe, because a process that was forked meanwhile could hold its other end.
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| own(&errno))?;
        let ended = Arc::new(ended);
        let serving = Arc::new(AgentState {
            agent: self.agent,
            filter: self.filter,
            ended: Arc::clone(&ended),
            connections: AtomicUsize::new(0),
            reports: Mutex::default(),
            sink: Box::new(sink),
        });
        let listener = self.listener;
        let body = move || accept_until_end(&listener, &serving);
        thread::Builder::new().name("ssh agent".to_owned()).spawn(body).map_err(|error| own(&error))?;
        Ok(AgentHandle { ended })
    }
}

fn unmet_grant_error(missing: UnmetGrantError) -> AgentError {
    match missing {
        UnmetGrantError::Key(key_use) => AgentError::NoKey { grant: key_use.into_grant().to_string() },
        UnmetGrantError::Server(key_use) => {
            let command = match key_use.target() {
                Some(target) if target.port == stockade_model::SSH_PORT => format!("ssh {}", target.host),
                Some(target) => format!("ssh -p {} {}", target.port, target.host),
                None => "ssh HOST".to_owned(),
            };
            AgentError::UnknownServer { grant: key_use.into_grant().to_string(), command }
        }
    }
}

/// Creates a listener, and opens its socket file. The name is removed when this returns.
fn nameless_listener(directory: &Path) -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut bytes = [0_u8; 16];
    if getrandom(&mut bytes, GetRandomFlags::empty())? != bytes.len() {
        return Err(Errno::AGAIN);
    }
    let own = directory.join(format!("{DIRECTORY_PREFIX}{}", data_encoding::HEXLOWER.encode(&bytes)));
    rustix::fs::mkdirat(CWD, &own, Mode::RWXU)?;
    let made = bind_and_hold(&own);
    let _ = rustix::fs::unlinkat(CWD, own.join(SOCKET_NAME), AtFlags::empty());
    let _ = rustix::fs::unlinkat(CWD, &own, AtFlags::REMOVEDIR);
    made
}

fn bind_and_hold(directory: &Path) -> Result<(OwnedFd, OwnedFd), Errno> {
    let held = openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // By descriptor, because the directory's own path may be longer than a socket address.
    let path = format!("/proc/self/fd/{}/{SOCKET_NAME}", held.as_raw_fd());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
    let socket = openat(&held, SOCKET_NAME, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    rustix::net::listen(&listener, i32::try_from(MAX_CONNECTIONS).unwrap_or(i32::MAX))?;
    Ok((listener, socket))
}

/// State that all connections of a run share.
struct AgentState {
    agent: UserSshAgent,
    filter: AgentFilter,
    /// Readable when the run has ended.
    ended: Arc<OwnedFd>,
    connections: AtomicUsize,
    reports: Mutex<Vec<SigningRefusal>>,
    sink: Box<dyn Fn(SigningEvent) + Send + Sync>,
}

/// Slot of a connection; freed when the connection ends for any reason.
struct AgentConnectionSlot(Arc<AgentState>);

impl Drop for AgentConnectionSlot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

fn accept_until_end(listener: &OwnedFd, serving: &Arc<AgentState>) {
    loop {
        let mut waited = [
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(serving.ended.as_fd(), PollFlags::IN),
        ];
        match poll(&mut waited, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if !waited[1].revents().is_empty() {
            return;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Ok(socket) => admit_connection(socket, serving),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // No descriptors are left; some become free when connections end.
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn admit_connection(socket: OwnedFd, serving: &Arc<AgentState>) {
    let is_full = serving.connections.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS;
    let slot = AgentConnectionSlot(Arc::clone(serving));
    if is_full {
        return;
    }
    // If no thread can be started, the connection is closed and its slot is freed.
    let _ = thread::Builder::new().name("ssh agent link".to_owned()).spawn(move || serve_connection(socket, &slot.0));
}

/// Answers messages until the client closes, is silent for too long, or sends a malformed message.
fn serve_connection(socket: OwnedFd, serving: &AgentState) {
    let link = MessageSocket { socket, end: Some(serving.ended.as_fd()) };
    let keys = UpstreamAgent { agent: &serving.agent, end: serving.ended.as_fd() };
    let mut connection = AgentConnection::default();
    while let Ok(Some(message)) = link.read_message(Instant::now() + IDLE_TIMEOUT) {
        let (answer, report) = serving.filter.answer_message(&mut connection, &message, &keys);
        // Reported before the answer, so that later actions of the run follow it in the audit log.
        match report {
            Some(Ok(signed)) => (serving.sink)(SigningEvent::Signed(signed)),
            Some(Err(refused)) => serving.tell_refusal(refused),
            None => {}
        }
        if link.write_message(&answer, Instant::now() + WRITE_TIMEOUT).is_err() {
            return;
        }
    }
}

impl AgentState {
    fn tell_refusal(&self, refused: SigningRefusal) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if reports.len() < MAX_REFUSALS && !reports.contains(&refused) {
            reports.push(refused.clone());
            (self.sink)(SigningEvent::Refused(refused));
        }
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;

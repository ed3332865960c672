//! The supervisor process of a sandbox (the "keeper"), from its start to its exit.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use stockade_backend_api::{SandboxError, SandboxEvent, SandboxEventSender, SandboxPlan, StartError};
use stockade_model::SandboxId;
use stockade_permissions::guards::{SettingsVariables, use_settings_variables};
use stockade_supervisor::{Channel, leave_creator, serve_remote_attempt};
use stockade_sys::ready::readable_before;
use stockade_sys::socket::{UnixSocketAddress, demand_own};

use super::super::command::{CallerAttributes, SandboxCommandBackend};
use super::super::supervisor_state::HostedSandbox;
use super::event_clients::EventClients;
use super::wire::{SOCKET_NAME, SupervisorRefusal, SupervisorRequest};

/// Most connections at the same time. Each has a thread, and a command keeps one as long as it runs.
const MAX_CONNECTIONS: usize = 512;
/// Time-out for the request of a new connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait between two checks of the loop.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Longest interval between two calls of [`SupervisorHooks::next_check_delay`].
const MAX_EXPIRY_INTERVAL: Duration = Duration::from_secs(60);
/// Time-out for the clients of commands to learn of the end.
const CLIENT_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Callbacks of the keeper's program.
pub struct SupervisorHooks {
    /// Receiver of the events, besides the clients of the sandbox.
    pub events: SandboxEventSender,
    /// Returns the time until the next call, or `None` if the sandbox must end: it has expired, or
    /// is no longer registered.
    pub next_check_delay: Box<dyn FnMut() -> Option<Duration>>,
}

impl std::fmt::Debug for SupervisorHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keep").finish_non_exhaustive()
    }
}

/// Runs a keeper, from its start to its exit. The program that
/// [`NativeSandboxes`](crate::NativeSandboxes) starts for its sandboxes must call this first. Reads
/// the plan from standard input, builds the isolation, keeps it, and returns when the sandbox has
/// ended. `begin` receives the sandbox's id and its directory.
///
/// # Errors
/// [`io::Error`] if standard input is no connection with a plan. Other errors are sent over it.
pub fn run_sandbox_supervisor(
    begin: impl FnOnce(&SandboxId, &Path) -> Result<SupervisorHooks, StartError>,
) -> io::Result<()> {
    let creator = leave_creator()?;
    let order = creator.receive_request::<(SandboxPlan, SettingsVariables)>(Some(REQUEST_TIMEOUT))?;
    let ((plan, variables), along) = order.ok_or(io::ErrorKind::InvalidData)?;
    use_settings_variables(variables);
    let [directory] = <[OwnedFd; 1]>::try_from(along).map_err(|_| io::ErrorKind::InvalidData)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).read_link()?;
    let made = begin(&plan.id, &path).and_then(|hooks| SandboxSupervisor::build_sandbox(&plan, &path, hooks));
    match made {
        Ok(supervisor) => {
            // A creator that is gone can find the sandbox by its name.
            let _ = creator.send(&Ok::<(), StartError>(()));
            drop(creator);
            supervisor.serve_until_end();
            Ok(())
        }
        Err(error) => creator.send(&Err::<(), StartError>(error)),
    }
}

/// Reason for the end of a sandbox.
enum EndReason {
    /// A client requested it; the client receives the result.
    Asked(Channel),
    /// The sandbox's processes are gone.
    Lost,
}

struct SandboxSupervisor {
    connections: Arc<SupervisorConnections>,
    listener: UnixListener,
    socket: SupervisorSocket,
    ending: Receiver<EndReason>,
    wake: Arc<OwnedFd>,
    next_check_delay: Box<dyn FnMut() -> Option<Duration>>,
    /// Held by every thread that serves a client.
    busy: (Arc<()>, Sender<()>),
    idle: Receiver<()>,
}

/// A listening socket's name, which is removed with this value.
struct SupervisorSocket {
    address: UnixSocketAddress,
    inode: u64,
}

impl SupervisorSocket {
    /// Listens in this directory, replacing the socket of a keeper that is gone.
    fn listen_in(directory: &Path) -> io::Result<(UnixListener, Self)> {
        let address = UnixSocketAddress::in_directory(directory, SOCKET_NAME)?;
        match fs::remove_file(address.path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(address.path())?;
        listener.set_nonblocking(true)?;
        let inode = fs::symlink_metadata(address.path())?.ino();
        Ok((listener, Self { address, inode }))
    }

    /// Returns whether the socket still has its name.
    fn is_there(&self) -> bool {
        fs::symlink_metadata(self.address.path()).is_ok_and(|found| found.ino() == self.inode)
    }
}

impl Drop for SupervisorSocket {
    fn drop(&mut self) {
        if self.is_there() {
            // Another process may be removing the whole directory.
            let _ = fs::remove_file(self.address.path());
        }
    }
}

impl SandboxSupervisor {
    fn build_sandbox(plan: &SandboxPlan, directory: &Path, hooks: SupervisorHooks) -> Result<Self, StartError> {
        let cannot =
            |error: io::Error| StartError { what: format!("cannot supervise the sandbox: {error}"), hint: None };
        let (end, ending) = channel();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| cannot(e.into()))?;
        let wake = Arc::new(wake);
        let watchers = Arc::new(EventClients::default());
        let events = fan_out(hooks.events, Arc::clone(&watchers), end.clone(), Arc::clone(&wake));
        let hosted_sandbox = Arc::new(HostedSandbox::build_and_monitor(plan, events, None)?);
        // Clients can find the sandbox from here on.
        let (listener, socket) = SupervisorSocket::listen_in(directory).map_err(cannot)?;
        let connections =
            Arc::new(SupervisorConnections { hosted_sandbox, watchers, end: Mutex::new(end), wake: Arc::clone(&wake) });
        let (busy, idle) = channel();
        Ok(Self {
            connections,
            listener,
            socket,
            ending,
            wake,
            next_check_delay: hooks.next_check_delay,
            busy: (Arc::new(()), busy),
            idle,
        })
    }

    /// Serves until the sandbox must end, or has ended.
    fn serve_until_end(mut self) {
        let mut ask_at = Instant::now();
        let ending = loop {
            self.wait_for_event(ask_at);
            if let Ok(ending) = self.ending.try_recv() {
                break Some(ending);
            }
            if !self.socket.is_there() {
                break None;
            }
            if Instant::now() >= ask_at {
                let Some(interval) = (self.next_check_delay)() else { break None };
                ask_at = Instant::now() + interval.min(MAX_EXPIRY_INTERVAL);
            }
            while let Ok((stream, _)) = self.listener.accept() {
                self.take_in(stream);
            }
        };
        self.end_sandbox(ending);
    }

    fn wait_for_event(&self, ask_at: Instant) {
        let at_most = ask_at.saturating_duration_since(Instant::now()).min(MAX_POLL_INTERVAL);
        // An error only makes the next check come sooner.
        let _ = readable_before(&[self.listener.as_fd(), self.wake.as_fd()], Instant::now() + at_most);
    }

    /// Serves a connection on its own thread. Closes it if there are too many, which the client sees.
    fn take_in(&self, stream: UnixStream) {
        let (count, busy) = self.busy.clone();
        if Arc::strong_count(&self.busy.0) > MAX_CONNECTIONS {
            return;
        }
        let connections = Arc::clone(&self.connections);
        let serve = move || {
            // A malformed request or a closed connection concerns only that client.
            if let Err(error) = connections.handle_connection(stream) {
                tracing::debug!(%error, "a client got no answer");
            }
            drop((count, busy));
        };
        if let Err(error) = thread::Builder::new().name("desk".to_owned()).spawn(serve) {
            tracing::warn!(%error, "cannot start a connection handler");
        }
    }

    fn end_sandbox(self, ending: Option<EndReason>) {
        let Self { connections, listener, socket, busy, idle, .. } = self;
        drop((listener, socket));
        let done = connections.hosted_sandbox.end_sandbox();
        connections.watchers.close();
        drop(busy);
        // The clients of commands learn of their ends first.
        if idle.recv_timeout(CLIENT_END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a client is not informed that the sandbox has ended");
        }
        if let Some(EndReason::Asked(channel)) = ending {
            let _ = channel.send(&done.map_err(SupervisorRefusal::from));
        }
    }
}

/// Returns events that are sent to the keeper's program and to all watching clients. If the sandbox
/// is lost, the keeper ends too.
fn fan_out(
    own: SandboxEventSender,
    watchers: Arc<EventClients>,
    end: Sender<EndReason>,
    wake: Arc<OwnedFd>,
) -> SandboxEventSender {
    let end = Mutex::new(end);
    SandboxEventSender::new(move |event| {
        watchers.send_event(&event);
        let is_lost = matches!(event, SandboxEvent::Lost(_));
        own.send_event(event);
        if is_lost {
            let _ = end.lock().unwrap_or_else(PoisonError::into_inner).send(EndReason::Lost);
            wake_supervisor(&wake);
        }
    })
}

fn wake_supervisor(wake: &OwnedFd) {
    // A full counter is readable, which suffices.
    let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
}

/// Connection handler of the keeper.
struct SupervisorConnections {
    hosted_sandbox: Arc<HostedSandbox>,
    watchers: Arc<EventClients>,
    end: Mutex<Sender<EndReason>>,
    wake: Arc<OwnedFd>,
}

impl SupervisorConnections {
    fn handle_connection(&self, stream: UnixStream) -> io::Result<()> {
        demand_own(&stream)?;
        // An accepted connection may block, unlike the listener.
        stream.set_nonblocking(false)?;
        let channel = Channel::from_stream(stream)?;
        let Some((request, along)) = channel.receive_request(Some(REQUEST_TIMEOUT))? else { return Ok(()) };
        let refused = |done: Result<(), SandboxError>| done.map_err(SupervisorRefusal::from);
        match request {
            SupervisorRequest::Enforced => channel.send(&Ok::<_, SupervisorRefusal>(&self.hosted_sandbox.enforced)),
            SupervisorRequest::Pause => channel.send(&refused(self.hosted_sandbox.pause())),
            SupervisorRequest::Resume => channel.send(&refused(self.hosted_sandbox.resume())),
            SupervisorRequest::Usage => {
                channel.send(&self.hosted_sandbox.read_usage().map_err(SupervisorRefusal::from))
            }
            SupervisorRequest::Watch => {
                self.watchers.serve_client(&channel);
                Ok(())
            }
            SupervisorRequest::Run(order) => {
                let streams = along.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
                let caller = CallerAttributes { streams: Some(streams), umask: Some(order.umask) };
                let backend = SandboxCommandBackend::new(Arc::clone(&self.hosted_sandbox));
                serve_remote_attempt(channel, |events| {
                    backend.begin_command(&order.plan, order.io, order.hold, events, caller)
                })
            }
            SupervisorRequest::End => {
                let _ = self.end.lock().unwrap_or_else(PoisonError::into_inner).send(EndReason::Asked(channel));
                wake_supervisor(&self.wake);
                Ok(())
            }
        }
    }
}

//! The loop of a supervisor with threads: it accepts clients and serves each on a thread of its own,
//! until its end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use stockade_sys::ready::readable_before;

use crate::channel::Channel;
use crate::listener::Listener;
use crate::message::{Reply, Request};

/// Delay after a connection that cannot be accepted, because no descriptors are left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Most connections at the same time. Each has a thread, and a command keeps one as long as it runs.
const MAX_CONNECTIONS: usize = 512;
/// Longest wait between two checks of the loop.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Longest interval between two checks of the lifetime.
const MAX_LIFETIME_INTERVAL: Duration = Duration::from_secs(60);
/// Time-out for clients to learn of the end.
const CLIENT_END_TIMEOUT: Duration = Duration::from_secs(5);

/// What a supervisor does for its clients.
pub trait Service: Send + Sync {
    /// Handles the request of a client, with its descriptors and the connection for the reply. Each
    /// client has a thread of its own.
    ///
    /// # Errors
    /// [`io::Error`] if the connection fails. It concerns only this client.
    fn handle_request(&self, request: Request, along: Vec<OwnedFd>, channel: Channel) -> io::Result<()>;
}

/// Request to end a supervisor, from any thread.
#[derive(Debug)]
pub struct EndSignal {
    /// Clients that wait for the end; `None` as long as it is not requested.
    clients: Mutex<Option<Vec<Channel>>>,
    wake: OwnedFd,
}

impl EndSignal {
    /// Creates the signal of a supervisor.
    ///
    /// # Errors
    /// [`io::Error`] if no descriptors are left.
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { clients: Mutex::default(), wake })
    }

    /// Requests the end. A client that requested it receives the result.
    pub fn request_end(&self, client: Option<Channel>) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().extend(client);
        // A full counter is readable, which suffices.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn take_clients(&self) -> Option<Vec<Channel>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A supervisor that listens for clients.
pub struct Supervisor {
    listener: Listener,
    service: Arc<dyn Service>,
    end: Arc<EndSignal>,
    /// Held by every thread that serves a client.
    busy: Arc<Sender<()>>,
    /// Disconnected when no thread serves a client.
    idle: Receiver<()>,
}

impl Supervisor {
    /// Listens in this directory. Clients can connect from here on.
    ///
    /// # Errors
    /// [`io::Error`] if no socket can be created.
    pub fn listen_in(directory: &Path, service: Arc<dyn Service>, end: Arc<EndSignal>) -> io::Result<Self> {
        let (busy, idle) = channel();
        Ok(Self { listener: Listener::listen_in(directory)?, service, end, busy: Arc::new(busy), idle })
    }

    /// Serves until the end is requested, or the socket has lost its name, or the lifetime is over:
    /// `next_check_delay` returns the time until its next call, or `None`. Then runs `end_service`,
    /// and sends its result to the clients that requested the end.
    pub fn serve_until_end(
        self,
        mut next_check_delay: impl FnMut() -> Option<Duration>,
        end_service: impl FnOnce() -> Reply<()>,
    ) {
        let mut check_at = Instant::now();
        loop {
            let wait = check_at.saturating_duration_since(Instant::now()).min(MAX_POLL_INTERVAL);
            // An error only makes the next check come sooner.
            let _ = readable_before(&[self.listener.as_fd(), self.end.wake.as_fd()], Instant::now() + wait);
            if self.end.clients.lock().unwrap_or_else(PoisonError::into_inner).is_some() || !self.listener.has_name() {
                break;
            }
            if Instant::now() >= check_at {
                let Some(interval) = next_check_delay() else { break };
                check_at = Instant::now() + interval.min(MAX_LIFETIME_INTERVAL);
            }
            match self.listener.accept_client() {
                Ok(Some(client)) => self.serve_client(client),
                Ok(None) => {}
                // The connection stays in the queue, so the next check would come at once.
                Err(_) => thread::sleep(ACCEPT_RETRY_DELAY),
            }
        }
        let Self { listener, end, busy, idle, .. } = self;
        listener.close();
        let result = end_service();
        drop(busy);
        // The other clients learn of the end first.
        if idle.recv_timeout(CLIENT_END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a client is not informed of the end");
        }
        for client in end.take_clients().into_iter().flatten() {
            let _ = client.send(&result);
        }
    }

    /// Serves a client on its own thread. Closes the connection if there are too many, which the
    /// client sees.
    fn serve_client(&self, client: Channel) {
        if Arc::strong_count(&self.busy) > MAX_CONNECTIONS {
            return;
        }
        let (busy, service) = (Arc::clone(&self.busy), Arc::clone(&self.service));
        let serve = move || {
            let served = client.accept_request().and_then(|request| match request {
                Some((request, along)) => service.handle_request(request, along, client),
                None => Ok(()),
            });
            // A malformed request or a closed connection concerns only that client.
            if let Err(error) = served {
                tracing::info!(%error, "a client got no answer");
            }
            drop(busy);
        };
        if let Err(error) = thread::Builder::new().name("stockade-client".to_owned()).spawn(serve) {
            tracing::warn!(%error, "cannot serve a client");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::connect_in;

    struct EndService(Arc<EndSignal>);

    impl Service for EndService {
        fn handle_request(&self, request: Request, _: Vec<OwnedFd>, channel: Channel) -> io::Result<()> {
            match request {
                Request::End(_) => self.0.request_end(Some(channel)),
                _ => channel.send(&Reply::Ok(()))?,
            }
            Ok(())
        }
    }

    fn ask(directory: &Path, request: &impl serde::Serialize) -> Option<Reply<()>> {
        let client = connect_in(directory).unwrap();
        client.send_request(request, &[]).unwrap();
        client.receive_within(CLIENT_END_TIMEOUT).unwrap()
    }

    #[test]
    fn clients_are_served_until_one_requests_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let end = Arc::new(EndSignal::new().unwrap());
        let service = Arc::new(EndService(Arc::clone(&end)));
        let supervisor = Supervisor::listen_in(dir.path(), service, end).unwrap();
        let serving = thread::spawn(move || {
            supervisor.serve_until_end(|| Some(Duration::MAX), || Err(crate::Refusal::because("ended")));
        });
        assert_eq!(ask(dir.path(), &Request::Pause), Some(Ok(())));
        assert!(matches!(ask(dir.path(), &"no request"), Some(Err(_))));
        assert_eq!(ask(dir.path(), &Request::End(None)), Some(Err(crate::Refusal::because("ended"))));
        serving.join().unwrap();
        assert!(connect_in(dir.path()).is_err());
    }

    #[test]
    fn a_supervisor_ends_with_its_lifetime_or_its_name() {
        for loses_name in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let end = Arc::new(EndSignal::new().unwrap());
            let service = Arc::new(EndService(Arc::clone(&end)));
            let supervisor = Supervisor::listen_in(dir.path(), service, end).unwrap();
            if loses_name {
                std::fs::remove_file(dir.path().join("supervisor")).unwrap();
            }
            let mut checks = 0;
            supervisor.serve_until_end(
                || {
                    checks += 1;
                    (checks < 3).then_some(Duration::ZERO)
                },
                || Ok(()),
            );
            assert_eq!(checks, if loses_name { 0 } else { 3 });
        }
    }
}

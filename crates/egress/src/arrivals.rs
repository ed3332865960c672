//! Matches connections of programs at the egress proxy with their announcements. The code that
//! carries out a program's `connect` announces it first, and afterwards reports its local address.
//! So every connection has a decision and a process. A connection without announcement is reset.
//!
//! This module must not depend on the purpose of a connection.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::accept::{accept_next, async_listener};
use crate::ports::EgressNamespace;
use crate::relay::break_off;

/// Most listeners at once. The one that was unused longest is closed first.
const LISTENERS_MAX: usize = 256;
/// Time after which an unused listener is closed.
const LISTENER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out for an accepted connection to be claimed, and for an announcement to get its
/// connection.
pub(crate) const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);
/// Most unclaimed connections of a listener.
const UNCLAIMED_MAX: usize = 256;

/// All listeners in the sandbox.
pub(crate) struct EgressListeners {
    namespace: Arc<dyn EgressNamespace>,
    listeners: tokio::sync::Mutex<HashMap<SocketAddr, Arc<SandboxListener>>>,
}

struct SandboxListener {
    /// The address that it really listens on.
    address: SocketAddr,
    state: Mutex<SandboxListenerState>,
    /// Accepts connections as long as the listener exists.
    _accepting: JoinSet<()>,
}

struct SandboxListenerState {
    used: Instant,
    /// Announcements whose local address is not known yet.
    open: usize,
    expected: HashMap<SocketAddr, oneshot::Sender<TcpStream>>,
    orphans: Vec<(SocketAddr, TcpStream, Instant)>,
}

/// Returns the same address for IPv4 and mapped IPv6 sockets.
fn canonical_address(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl EgressListeners {
    pub(crate) fn new(namespace: Arc<dyn EgressNamespace>) -> Self {
        Self { namespace, listeners: tokio::sync::Mutex::default() }
    }

    pub(crate) fn namespace(&self) -> &Arc<dyn EgressNamespace> {
        &self.namespace
    }

    /// Announces a connection to `dialled`. The receiver gets it.
    pub(crate) async fn announce_connection(
        &self,
        dialled: SocketAddr,
    ) -> io::Result<(AnnouncedConnection, oneshot::Receiver<TcpStream>)> {
        let dialled = canonical_address(dialled);
        // Held while the listener is made, because two on one address would conflict.
        let mut listeners = self.listeners.lock().await;
        let listening = match listeners.get(&dialled) {
            Some(listening) => Arc::clone(listening),
            None => {
                make_room(&mut listeners)?;
                let listening = SandboxListener::open_listener(&self.namespace, dialled).await?;
                listeners.insert(dialled, Arc::clone(&listening));
                listening
            }
        };
        let (sender, receiver) = oneshot::channel();
        let mut state = listening.lock_state();
        state.open += 1;
        state.used = Instant::now();
        drop(state);
        Ok((AnnouncedConnection { listening, sender: Some(sender) }, receiver))
    }

    /// Closes unused listeners, in an endless loop.
    pub(crate) async fn close_idle_listeners(&self) {
        loop {
            sleep(LISTENER_IDLE_TIMEOUT / 2).await;
            let mut listeners = self.listeners.lock().await;
            listeners.retain(|_, listening| {
                let mut state = listening.lock_state();
                state.drop_stale_entries();
                !state.is_idle() || state.used.elapsed() < LISTENER_IDLE_TIMEOUT
            });
        }
    }
}

fn make_room(listeners: &mut HashMap<SocketAddr, Arc<SandboxListener>>) -> io::Result<()> {
    if listeners.len() < LISTENERS_MAX {
        return Ok(());
    }
    let idlest = listeners
        .iter()
        .filter_map(|(address, listening)| {
            let state = listening.lock_state();
            state.is_idle().then_some((state.used, *address))
        })
        .min_by_key(|(used, _)| *used);
    match idlest {
        Some((_, address)) => {
            listeners.remove(&address);
            Ok(())
        }
        None => Err(io::Error::from_raw_os_error(rustix::io::Errno::ADDRNOTAVAIL.raw_os_error())),
    }
}

impl SandboxListener {
    async fn open_listener(namespace: &Arc<dyn EgressNamespace>, dialled: SocketAddr) -> io::Result<Arc<Self>> {
        let namespace = Arc::clone(namespace);
        let socket =
            tokio::task::spawn_blocking(move || namespace.listen_at(dialled)).await.map_err(io::Error::other)??;
        let socket = async_listener(socket)?;
        let address = socket.local_addr()?;
        let state =
            SandboxListenerState { used: Instant::now(), open: 0, expected: HashMap::new(), orphans: Vec::new() };
        Ok(Arc::new_cyclic(|weak: &Weak<Self>| {
            let (weak, mut accepting) = (Weak::clone(weak), JoinSet::new());
            accepting.spawn(async move {
                loop {
                    let (stream, peer) = accept_next(&socket).await;
                    match weak.upgrade() {
                        Some(listening) => listening.dispatch_stream(stream, peer),
                        None => return,
                    }
                }
            });
            Self { address, state: Mutex::new(state), _accepting: accepting }
        }))
    }

    fn lock_state(&self) -> MutexGuard<'_, SandboxListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dispatch_stream(&self, stream: TcpStream, peer: SocketAddr) {
        let peer = canonical_address(peer);
        let mut state = self.lock_state();
        state.drop_stale_entries();
        if let Some(sender) = state.expected.remove(&peer) {
            if let Err(stream) = sender.send(stream) {
                break_off(&stream);
            }
        } else if state.open > 0 && state.orphans.len() < UNCLAIMED_MAX {
            state.orphans.push((peer, stream, Instant::now()));
        } else {
            break_off(&stream);
        }
    }
}

impl SandboxListenerState {
    fn is_idle(&self) -> bool {
        self.open == 0 && self.expected.is_empty() && self.orphans.is_empty()
    }

    /// Drops announcements without a receiver, and resets connections that are not claimed.
    fn drop_stale_entries(&mut self) {
        self.expected.retain(|_, sender| !sender.is_closed());
        let nobody_comes = self.open == 0;
        self.orphans.retain(|(_, stream, since)| {
            let is_claimable = !nobody_comes && since.elapsed() < CLAIM_TIMEOUT;
            if !is_claimable {
                break_off(stream);
            }
            is_claimable
        });
    }
}

/// Connection that is about to be made to the egress proxy for a program. If this is dropped, the
/// connection will not be made.
pub struct AnnouncedConnection {
    listening: Arc<SandboxListener>,
    sender: Option<oneshot::Sender<TcpStream>>,
}

impl std::fmt::Debug for AnnouncedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announced").field("address", &self.listening.address).finish_non_exhaustive()
    }
}

impl AnnouncedConnection {
    /// Returns the address for the program's socket: the address that the program dialled, or at
    /// level restricted an address of the host's loopback.
    pub fn address(&self) -> SocketAddr {
        self.listening.address
    }

    /// Reports that the socket was connected, or its connect was started, from this address.
    pub fn report_connected(mut self, local: SocketAddr) {
        let local = canonical_address(local);
        let Some(sender) = self.sender.take() else { return };
        let mut state = self.listening.lock_state();
        state.open = state.open.saturating_sub(1);
        state.used = Instant::now();
        match state.orphans.iter().position(|(peer, ..)| *peer == local) {
            Some(at) => {
                let (_, stream, _) = state.orphans.swap_remove(at);
                if let Err(stream) = sender.send(stream) {
                    break_off(&stream);
                }
            }
            None => {
                state.expected.insert(local, sender);
            }
        }
        state.drop_stale_entries();
    }
}

impl Drop for AnnouncedConnection {
    fn drop(&mut self) {
        if self.sender.take().is_some() {
            let mut state = self.listening.lock_state();
            state.open = state.open.saturating_sub(1);
            state.drop_stale_entries();
        }
    }
}

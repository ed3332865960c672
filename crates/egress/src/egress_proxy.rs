//! Egress proxy: the thread that runs all its tasks, and its interface.
//!
//! This module must not depend on the construction of a sandbox, nor on the code that decides.

use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use stockade_model::{EgressRules, NetworkTarget};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::arrivals::{AnnouncedConnection, CLAIM_TIMEOUT, EgressListeners};
use crate::dial::{DialError, OutgoingConnection, dial_target};
use crate::dns::NameServer;
use crate::drain_guard::DrainTracker;
use crate::events::{ConnectionRecorder, EgressEventSink};
use crate::interception::PreparedInterception;
use crate::limits::TrafficMeter;
use crate::names::HostNameTable;
use crate::ports::{
    EgressCaller, EgressDecision, EgressDestination, EgressPermit, EgressPolicy, EgressProxySetup, EgressRequest,
    NameResolver, ProxyService, TunnelConnector,
};
use crate::proxy;
use crate::published;
use crate::relay::{RelayBuffers, break_off};
use crate::session::{EgressSession, report_limit};
use crate::tunnel;

/// Most lookups and listeners in progress at once.
const BLOCKING_MAX: usize = 16;
/// Time-out at the end of a run for sending data that programs wrote before they ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Error if the egress proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EgressProxyError {
    /// The thread or its event loop cannot be created.
    #[error("the egress proxy could not be started: {0}")]
    Start(#[from] std::io::Error),
    /// A requirement of the rules was not prepared.
    #[error("the rules need TLS interception or secrets, but the egress proxy was not prepared for that")]
    Unprepared,
}

/// Approved connect.
#[derive(Clone, Debug)]
pub struct ConnectOrder {
    /// The target.
    pub target: NetworkTarget,
    /// The address that the program connects to.
    pub dialled: SocketAddr,
    /// The process that connects.
    pub caller: EgressCaller,
    /// The permission.
    pub permit: EgressPermit,
    /// Time for which the caller waits for the target. After it the socket is connected anyway, and
    /// a later failure resets the connection. `None`: as long as dialling takes.
    pub connect_timeout: Option<Duration>,
}

/// State that all connections share.
pub(crate) struct ProxyShared {
    pub(crate) rules: EgressRules,
    pub(crate) policy: Arc<dyn EgressPolicy>,
    pub(crate) resolver: Arc<dyn NameResolver>,
    pub(crate) events: Arc<EgressEventSink>,
    pub(crate) meter: Arc<TrafficMeter>,
    pub(crate) buffers: RelayBuffers,
    pub(crate) name_server: Arc<NameServer>,
    pub(crate) interception: Arc<PreparedInterception>,
    pub(crate) arrivals: EgressListeners,
    pub(crate) drain_tracker: DrainTracker,
    /// See [`EgressProxySetup::connector`].
    pub(crate) connector: Option<Arc<dyn TunnelConnector>>,
}

/// Egress proxy: the only network access of one sandbox. A drop has the effect of [`EgressProxy::stop`].
pub struct EgressProxy {
    shared: Arc<ProxyShared>,
    names: Arc<HostNameTable>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A connect in progress. A drop cancels it, and its answer never comes.
#[derive(Debug)]
#[must_use = "dropping it gives the connect up"]
pub struct PendingDial(JoinSet<()>);

impl PendingDial {
    /// Detaches the connect, which cannot be cancelled any more.
    pub fn detach(mut self) {
        self.0.detach_all();
    }
}

impl EgressProxy {
    /// Starts the thread, which sleeps until it gets work.
    ///
    /// # Errors
    /// See [`EgressProxyError`].
    pub fn start(setup: EgressProxySetup) -> Result<Self, EgressProxyError> {
        if !setup.interception.is_prepared_for(&setup.rules) {
            return Err(EgressProxyError::Unprepared);
        }
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_MAX).build()?;
        let handle = runtime.handle().clone();
        let events = Arc::new(EgressEventSink::new(Arc::clone(&setup.sink)));
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // Without IPv6 in the sandbox, its addresses would only make programs wait. If another
        // egress proxy dials, one address is sufficient; with two, a resolver would try each.
        let has_v6 = match &setup.dns {
            Some(dns) => is_v6(&dns.udp),
            None => setup.connector.is_none() && has_own_v6(),
        };
        let name_server = Arc::new(NameServer::new(&setup, Arc::clone(&events), has_v6));
        let meter = Arc::new(TrafficMeter::new(&setup.rules.limits, descriptors));
        let shared = Arc::new(ProxyShared {
            rules: setup.rules,
            policy: setup.policy,
            resolver: setup.resolver,
            events,
            meter,
            buffers: RelayBuffers::default(),
            name_server,
            interception: setup.interception,
            arrivals: EgressListeners::new(setup.namespace),
            drain_tracker: DrainTracker::default(),
            connector: setup.connector,
        });
        if let Some(dns) = setup.dns {
            handle.spawn(Arc::clone(&shared.name_server).serve_datagrams(dns.udp));
            handle.spawn(Arc::clone(&shared.name_server).serve_connections(dns.tcp));
        }
        let (stop, stopped) = oneshot::channel();
        let inner = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("egress-proxy".into()).spawn(move || {
            runtime.block_on(async {
                let over = async {
                    let _ = stopped.await;
                    let _ = timeout(DRAIN_TIMEOUT, inner.drain_tracker.all_quiet()).await;
                };
                tokio::select! {
                    () = over => {}
                    () = inner.arrivals.close_idle_listeners() => {}
                }
            });
            inner.events.stopping.store(true, Ordering::Relaxed);
            // Drops every task, which writes the records of connections that are still open.
            runtime.shutdown_background();
            inner.events.flush();
        })?;
        Ok(Self { shared, names: setup.names, handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Forwards every connection at this listener to `port` of the sandbox's own loopback, until
    /// the end.
    pub fn publish_port(&self, listener: TcpListener, port: u16) {
        self.handle.spawn(published::serve_listener(Arc::clone(&self.shared), listener, port));
    }

    /// Serves every connection at this listener, until the end. The peer's process is not known.
    pub fn serve_listener(&self, listener: TcpListener, service: ProxyService) {
        self.handle.spawn(tunnel::serve_listener(Arc::clone(&self.shared), listener, service));
    }

    /// Dials an approved target for an egress proxy without network access of its own (see
    /// [`TunnelConnector`]). `done` is called once on the proxy's thread and must not block. Its argument is
    /// the connection, or the reason for the failure. This proxy reports the events.
    pub fn dial_for_tunnel(
        &self,
        target: NetworkTarget,
        caller: EgressCaller,
        permit: EgressPermit,
        done: impl FnOnce(Result<TcpStream, DialError>) + Send + 'static,
    ) -> PendingDial {
        let shared = Arc::clone(&self.shared);
        self.start_dial(tunnel::from(shared, (target, caller, permit), done))
    }

    fn start_dial(&self, dialling: impl Future<Output = ()> + Send + 'static) -> PendingDial {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(dialling, &self.handle);
        PendingDial(tasks)
    }

    /// Returns the meaning of an address that a program connects to.
    pub fn resolve_destination(&self, dialled: SocketAddr) -> EgressDestination {
        self.names.resolve_destination(dialled)
    }

    /// Dials an approved target. `done` is called once on the proxy's thread and must not block.
    /// Its argument is the address for the program's socket, or the reason for the failure. The
    /// proxy reports all events, including failures.
    pub fn connect_target(
        &self,
        order: ConnectOrder,
        done: impl FnOnce(Result<AnnouncedConnection, DialError>) + Send + 'static,
    ) -> PendingDial {
        let shared = Arc::clone(&self.shared);
        self.start_dial(async move { done(shared.execute_order(order).await) })
    }

    /// Connects to one of the proxy's own services, which needs no permission.
    pub fn connect_service(
        &self,
        service: ProxyService,
        dialled: SocketAddr,
        caller: EgressCaller,
        done: impl FnOnce(Result<AnnouncedConnection, DialError>) + Send + 'static,
    ) -> PendingDial {
        let shared = Arc::clone(&self.shared);
        self.start_dial(async move { done(shared.announce_service(service, dialled, caller).await) })
    }

    /// Stops the proxy after the programs in the sandbox are gone. Sends the data that they had
    /// written, for a second at most, resets all connections, reports the last records, and waits
    /// for the thread.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for EgressProxy {
    fn drop(&mut self) {
        self.shut_down();
    }
}

type ConnectAnswer = Result<AnnouncedConnection, DialError>;

/// Returns whether the egress proxy's own network namespace has IPv6.
fn has_own_v6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

fn is_v6(socket: &OwnedFd) -> bool {
    rustix::net::getsockname(socket.as_fd()).is_ok_and(|a| a.address_family() == rustix::net::AddressFamily::INET6)
}

impl ProxyShared {
    /// Creates a session for an approved target, if the limits permit it.
    pub(crate) fn create_session(
        self: &Arc<Self>,
        target: &NetworkTarget,
        caller: &EgressCaller,
        permit: &EgressPermit,
    ) -> Result<EgressSession, DialError> {
        let slot = self.meter.acquire_outgoing_slot().map_err(|reached| {
            report_limit(self, target, caller, reached);
            DialError::Refused { rule: reached.to_string() }
        })?;
        Ok(EgressSession {
            shared: Arc::clone(self),
            target: target.clone(),
            caller: caller.clone(),
            recorder: ConnectionRecorder::new(&self.events, caller, target, &permit.rule),
            speaking: Some(self.drain_tracker.start_guard()),
            _slot: slot,
        })
    }

    async fn execute_order(self: &Arc<Self>, order: ConnectOrder) -> ConnectAnswer {
        let ConnectOrder { target, dialled, caller, permit, connect_timeout } = order;
        let session = self.create_session(&target, &caller, &permit)?;
        let shared = Arc::clone(self);
        let mut dialling = Box::pin({
            let caller = caller.clone();
            async move { shared.dial_target(&target, &caller).await }
        });
        let made = match connect_timeout {
            Some(connect_timeout) => timeout(connect_timeout, &mut dialling).await.ok(),
            None => Some((&mut dialling).await),
        };
        let outside = match made {
            Some(Err(failure)) => {
                session.record_dial_error(&failure);
                return Err(failure);
            }
            Some(Ok(outside)) => Some(outside),
            None => None,
        };
        let (announced, arrival) = match self.announce_connection(dialled).await {
            Ok(announced) => announced,
            Err(failure) => {
                session.record_dial_error(&failure);
                return Err(failure);
            }
        };
        tokio::spawn(async move {
            let outside = async {
                match outside {
                    Some(outside) => Ok(outside),
                    None => dialling.await,
                }
            };
            match tokio::join!(timeout(CLAIM_TIMEOUT, arrival), outside) {
                (Ok(Ok(inside)), Ok(outside)) => session.carry_connection(inside, Vec::new(), outside).await,
                (Ok(Ok(inside)), Err(failure)) => {
                    break_off(&inside);
                    session.record_dial_error(&failure);
                }
                _ => session.record_no_client(),
            }
        });
        Ok(announced)
    }

    async fn announce_connection(
        &self,
        dialled: SocketAddr,
    ) -> Result<(AnnouncedConnection, oneshot::Receiver<tokio::net::TcpStream>), DialError> {
        self.arrivals.announce_connection(dialled).await.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::CONNREFUSED, Errno::from_raw_os_error);
            DialError::Failed { errno, why: format!("no listener inside: {error}") }
        })
    }

    async fn announce_service(
        self: &Arc<Self>,
        service: ProxyService,
        dialled: SocketAddr,
        caller: EgressCaller,
    ) -> ConnectAnswer {
        let slot = self.meter.acquire_slot().map_err(|reached| DialError::Refused { rule: reached.to_string() })?;
        let (announced, arrival) = self.announce_connection(dialled).await?;
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let _slot = slot;
            if let Ok(Ok(inside)) = timeout(CLAIM_TIMEOUT, arrival).await {
                shared.serve_client(service, caller, inside).await;
            }
        });
        Ok(announced)
    }

    /// Serves a client of one of the proxy's own services.
    pub(crate) async fn serve_client(
        self: Arc<Self>,
        service: ProxyService,
        caller: EgressCaller,
        inside: tokio::net::TcpStream,
    ) {
        match service {
            ProxyService::NameServer => self.name_server.serve_stream(inside).await,
            ProxyService::HttpProxy => proxy::http::serve_connection(self, caller, inside).await,
            ProxyService::Socks => proxy::socks::serve_connection(self, caller, inside).await,
        }
    }

    /// Asks for a decision and waits for the answer. A question has its own time-out, and the end
    /// of the run counts as an answer.
    pub(crate) async fn request_decision(&self, request: EgressRequest, caller: &EgressCaller) -> EgressDecision {
        let (sender, receiver) = oneshot::channel();
        let answer = Box::new(move |judgement| {
            let _ = sender.send(judgement);
        });
        self.policy.decide_request(request, caller, answer);
        receiver.await.unwrap_or_else(|_| EgressDecision::Refused {
            rule: "the approval request got no answer".into(),
            grant: None,
        })
    }

    /// Dials an approved target, or lets the tunnel connect to it.
    pub(crate) async fn dial_target(
        &self,
        target: &NetworkTarget,
        caller: &EgressCaller,
    ) -> Result<OutgoingConnection, DialError> {
        if let Some(connector) = &self.connector {
            return tunnel::connect_through_tunnel(&**connector, target, caller).await;
        }
        dial_target(&self.resolver, &self.rules, self.interception.upstream_credentials(), target).await
    }
}

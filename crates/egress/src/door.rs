//! Egress proxy: the thread that runs all its tasks, and its interface.
//!
//! This module must not depend on the construction of a sandbox, nor on the code that decides.

use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use stockade_model::{Egress, Target};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::arrivals::{Announced, Arrivals, CLAIM_MAX};
use crate::dial::{DialFailure, Dialled, dial};
use crate::dns::NameServer;
use crate::edge::Edge;
use crate::events::{Events, Recorder};
use crate::led;
use crate::limits::Meter;
use crate::names::Names;
use crate::proxy;
use crate::published;
use crate::relay::Buffers;
use crate::seam::{Destination, Judge, Judgement, Lead, Permit, Resolve, Service, Setup, Wanted, Who};
use crate::session::{Session, limit, refuse};
use crate::speakers::Speakers;

/// Most lookups and listeners in progress at once.
const BLOCKING_MAX: usize = 16;
/// Time-out at the end of a run for sending data that programs wrote before they ended.
const SAID_WITHIN: Duration = Duration::from_secs(1);
/// Time-out in [`Door::connect_and_wait`]: longer than dialling takes.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Error if the egress proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The thread or its event loop cannot be created.
    #[error("the door could not be started: {0}")]
    Start(#[from] std::io::Error),
    /// A requirement of the rules was not prepared.
    #[error("the rules look into traffic or put secrets in, and `Edge::prepare` was not asked for that")]
    Unprepared,
}

/// Approved connect.
#[derive(Clone, Debug)]
pub struct Order {
    /// The target.
    pub target: Target,
    /// The address that the program connects to.
    pub dialled: SocketAddr,
    /// The process that connects.
    pub who: Who,
    /// The permission.
    pub permit: Permit,
    /// Time for which the caller waits for the target. After it the socket is connected anyway, and
    /// a later failure resets the connection. `None`: as long as dialling takes.
    pub patience: Option<Duration>,
}

/// State that all connections share.
pub(crate) struct Shared {
    pub(crate) rules: Egress,
    pub(crate) judge: Arc<dyn Judge>,
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) events: Arc<Events>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) buffers: Buffers,
    pub(crate) name_server: Arc<NameServer>,
    pub(crate) edge: Arc<Edge>,
    pub(crate) arrivals: Arrivals,
    pub(crate) speakers: Arc<Speakers>,
    /// See [`Setup::lead`].
    pub(crate) lead: Option<Arc<dyn Lead>>,
}

/// Egress proxy: the only network access of one sandbox. A drop has the effect of [`Door::stop`].
pub struct Door {
    shared: Arc<Shared>,
    names: Arc<Names>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A connect in progress. A drop cancels it, and its answer never comes.
#[derive(Debug)]
#[must_use = "dropping it gives the connect up"]
pub struct Dialling(Option<AbortHandle>);

impl Dialling {
    /// Detaches the connect, which cannot be cancelled any more.
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for Dialling {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Door {
    /// Starts the thread, which sleeps until it gets work.
    ///
    /// # Errors
    /// See [`DoorError`].
    pub fn start(setup: Setup) -> Result<Self, DoorError> {
        if !setup.edge.serves(&setup.rules) {
            return Err(DoorError::Unprepared);
        }
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_MAX).build()?;
        let handle = runtime.handle().clone();
        let events = Arc::new(Events::new(setup.sink));
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // Without IPv6 in the sandbox, its addresses would only make programs wait. If another
        // egress proxy dials, one address is sufficient; with two, a resolver would try each.
        let has_v6 = match &setup.dns {
            Some(dns) => is_v6(&dns.udp),
            None => setup.lead.is_none() && has_own_v6(),
        };
        let name_server = Arc::new(NameServer::new(
            Arc::clone(&setup.names),
            Arc::clone(&setup.judge),
            Arc::clone(&setup.resolver),
            Arc::clone(&events),
            has_v6,
            setup.rules.upstream.clone(),
        ));
        let meter = Arc::new(Meter::new(&setup.rules.limits, descriptors));
        let shared = Arc::new(Shared {
            rules: setup.rules,
            judge: setup.judge,
            resolver: setup.resolver,
            events,
            meter,
            buffers: Buffers::default(),
            name_server,
            edge: setup.edge,
            arrivals: Arrivals::new(setup.namespace),
            speakers: Arc::default(),
            lead: setup.lead,
        });
        if let Some(dns) = setup.dns {
            handle.spawn(Arc::clone(&shared.name_server).serve_datagrams(dns.udp));
            handle.spawn(Arc::clone(&shared.name_server).serve_connections(dns.tcp));
        }
        let (stop, stopped) = oneshot::channel();
        let inner = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("door".into()).spawn(move || {
            runtime.block_on(async {
                let over = async {
                    let _ = stopped.await;
                    let _ = timeout(SAID_WITHIN, inner.speakers.all_quiet()).await;
                };
                tokio::select! {
                    () = over => {}
                    () = inner.arrivals.sweep() => {}
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
    pub fn publish(&self, listener: TcpListener, port: u16) {
        self.handle.spawn(published::serve(Arc::clone(&self.shared), listener, port));
    }

    /// Serves every connection at this listener, until the end. The peer's process is not known.
    pub fn offer(&self, listener: TcpListener, service: Service) {
        self.handle.spawn(led::offer(Arc::clone(&self.shared), listener, service));
    }

    /// Dials an approved target for an egress proxy without network access of its own (see
    /// [`Lead`]). `done` is called once on the proxy's thread and must not block. Its argument is
    /// the connection, or the reason for the failure. This proxy reports the events.
    pub fn lead(
        &self,
        target: Target,
        who: Who,
        permit: Permit,
        done: impl FnOnce(Result<TcpStream, DialFailure>) + Send + 'static,
    ) -> Dialling {
        let shared = Arc::clone(&self.shared);
        let task = self.handle.spawn(led::from(shared, (target, who, permit), done));
        Dialling(Some(task.abort_handle()))
    }

    /// Returns the meaning of an address that a program connects to.
    pub fn destination(&self, dialled: SocketAddr) -> Destination {
        self.names.destination(dialled)
    }

    /// Dials an approved target. `done` is called once on the proxy's thread and must not block.
    /// Its argument is the address for the program's socket, or the reason for the failure. The
    /// proxy reports all events, including failures.
    pub fn connect(
        &self,
        order: Order,
        done: impl FnOnce(Result<Announced, DialFailure>) + Send + 'static,
    ) -> Dialling {
        let shared = Arc::clone(&self.shared);
        let task = self.handle.spawn(async move { done(shared.order(order).await) });
        Dialling(Some(task.abort_handle()))
    }

    /// Connects to one of the proxy's own services, which needs no permission.
    pub fn connect_service(
        &self,
        service: Service,
        dialled: SocketAddr,
        who: Who,
        done: impl FnOnce(Result<Announced, DialFailure>) + Send + 'static,
    ) -> Dialling {
        let shared = Arc::clone(&self.shared);
        let task = self.handle.spawn(async move { done(shared.service(service, dialled, who).await) });
        Dialling(Some(task.abort_handle()))
    }

    /// Calls [`connect`](Self::connect) and waits for the answer, at most a minute.
    ///
    /// # Errors
    /// See [`DialFailure`].
    pub fn connect_and_wait(&self, order: Order) -> Result<Announced, DialFailure> {
        wait(|done| self.connect(order, done))
    }

    /// Calls [`connect_service`](Self::connect_service) and waits for the answer.
    ///
    /// # Errors
    /// See [`DialFailure`].
    pub fn connect_service_and_wait(
        &self,
        service: Service,
        dialled: SocketAddr,
        who: Who,
    ) -> Result<Announced, DialFailure> {
        wait(|done| self.connect_service(service, dialled, who, done))
    }

    /// Stops the proxy after the programs in the sandbox are gone. Sends the data that they had
    /// written, for a second at most, resets all connections, reports the last records, and waits
    /// for the thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.end();
    }
}

type Answer = Result<Announced, DialFailure>;

fn wait(start: impl FnOnce(Box<dyn FnOnce(Answer) + Send>) -> Dialling) -> Answer {
    let (sender, receiver) = mpsc::sync_channel(1);
    let _dialling = start(Box::new(move |answer| {
        let _ = sender.try_send(answer);
    }));
    receiver
        .recv_timeout(WAIT_MAX)
        .unwrap_or_else(|_| Err(DialFailure::Failed { errno: Errno::TIMEDOUT, why: "the door did not answer".into() }))
}

/// Returns whether the egress proxy's own network namespace has IPv6.
fn has_own_v6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

fn is_v6(socket: &OwnedFd) -> bool {
    rustix::net::getsockname(socket.as_fd()).is_ok_and(|a| a.address_family() == rustix::net::AddressFamily::INET6)
}

impl Shared {
    /// Creates a session for an approved target, if the limits permit it.
    pub(crate) fn session(
        self: &Arc<Self>,
        target: &Target,
        who: &Who,
        permit: &Permit,
    ) -> Result<Session, DialFailure> {
        let place = self.meter.connection().map_err(|reached| {
            limit(self, target, who, reached);
            DialFailure::Refused { rule: reached.to_string() }
        })?;
        Ok(Session {
            shared: Arc::clone(self),
            target: target.clone(),
            who: who.clone(),
            recorder: Recorder::new(&self.events, who, target, &permit.rule),
            speaking: Some(self.speakers.begin()),
            _place: place,
        })
    }

    async fn order(self: &Arc<Self>, order: Order) -> Answer {
        let Order { target, dialled, who, permit, patience } = order;
        let session = self.session(&target, &who, &permit)?;
        let shared = Arc::clone(self);
        let mut dialling = Box::pin({
            let who = who.clone();
            async move { shared.dial(&target, &who).await }
        });
        let made = match patience {
            Some(patience) => timeout(patience, &mut dialling).await.ok(),
            None => Some((&mut dialling).await),
        };
        let outside = match made {
            Some(Err(failure)) => {
                session.failed(&failure);
                return Err(failure);
            }
            Some(Ok(outside)) => Some(outside),
            None => None,
        };
        let (announced, arrival) = match self.announce(dialled).await {
            Ok(announced) => announced,
            Err(failure) => {
                session.failed(&failure);
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
            match tokio::join!(timeout(CLAIM_MAX, arrival), outside) {
                (Ok(Ok(inside)), Ok(outside)) => session.carry(inside, Vec::new(), outside).await,
                (Ok(Ok(inside)), Err(failure)) => {
                    refuse(inside);
                    session.failed(&failure);
                }
                _ => session.deserted(),
            }
        });
        Ok(announced)
    }

    async fn announce(
        &self,
        dialled: SocketAddr,
    ) -> Result<(Announced, oneshot::Receiver<tokio::net::TcpStream>), DialFailure> {
        self.arrivals.announce(dialled).await.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::CONNREFUSED, Errno::from_raw_os_error);
            DialFailure::Failed { errno, why: format!("no listener inside: {error}") }
        })
    }

    async fn service(self: &Arc<Self>, service: Service, dialled: SocketAddr, who: Who) -> Answer {
        let place = self.meter.place().map_err(|reached| DialFailure::Refused { rule: reached.to_string() })?;
        let (announced, arrival) = self.announce(dialled).await?;
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let _place = place;
            if let Ok(Ok(inside)) = timeout(CLAIM_MAX, arrival).await {
                shared.serve(service, who, inside).await;
            }
        });
        Ok(announced)
    }

    /// Serves a client of one of the proxy's own services.
    pub(crate) async fn serve(self: Arc<Self>, service: Service, who: Who, inside: tokio::net::TcpStream) {
        match service {
            Service::NameServer => self.name_server.serve_stream(inside).await,
            Service::HttpProxy => proxy::http::serve(self, who, inside).await,
            Service::Socks => proxy::socks::serve(self, who, inside).await,
        }
    }

    /// Asks for a decision and waits for the answer. A question has its own time-out, and the end
    /// of the run counts as an answer.
    pub(crate) async fn judged(&self, wanted: Wanted, who: &Who) -> Judgement {
        let (sender, receiver) = oneshot::channel();
        let answer = Box::new(move |judgement| {
            let _ = sender.send(judgement);
        });
        self.judge.judge(wanted, who, answer);
        receiver.await.unwrap_or_else(|_| Judgement::Refused { rule: "nobody answered".into(), grant: None })
    }

    /// Dials an approved target, or lets the tunnel connect to it.
    pub(crate) async fn dial(&self, target: &Target, who: &Who) -> Result<Dialled, DialFailure> {
        if let Some(lead) = &self.lead {
            return led::to(&**lead, target, who).await;
        }
        dial(&self.resolver, &self.rules, self.edge.credentials(), target).await
    }
}

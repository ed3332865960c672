//! The door itself: a thread with everything on it, and the ways to it.
//!
//! Must not know: how a sandbox is built, who decides.

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

/// Lookups and listeners under way at once.
const BLOCKING_MAX: usize = 16;
/// How long the end waits until what programs said before theirs is sent on.
const SAID_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait in [`Door::connect_and_wait`]: longer than dialling takes.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Why the door did not start.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// No thread, or no way to wait for sockets.
    #[error("the door could not be started: {0}")]
    Start(#[from] std::io::Error),
    /// What the rules want was not made ready.
    #[error("the rules look into traffic or put secrets in, and `Edge::prepare` was not asked for that")]
    Unprepared,
}

/// One connect that was agreed to.
#[derive(Clone, Debug)]
pub struct Order {
    /// Where to.
    pub target: Target,
    /// The address that the program connects to.
    pub dialled: SocketAddr,
    /// Whose it is.
    pub who: Who,
    /// Why it may.
    pub permit: Permit,
    /// How long the caller waits for the target. Past that its socket is connected
    /// all the same, and a failure breaks the connection off. `None`: as long as
    /// dialling takes.
    pub patience: Option<Duration>,
}

/// Everything that connections share.
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

/// The only way out of one sandbox. Dropped: as [`Door::stop`].
pub struct Door {
    shared: Arc<Shared>,
    names: Arc<Names>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A connect under way. Dropped: it is given up, and its answer never comes.
#[derive(Debug)]
#[must_use = "dropping it gives the connect up"]
pub struct Dialling(Option<AbortHandle>);

impl Dialling {
    /// Lets it go on without a way to give it up.
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
    /// Starts the thread. Until something is asked of it, it sleeps.
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
        // Without IPv6 inside, its addresses would only make programs wait.
        // Where another door dials, one address says all; of two a resolver would try each.
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
            // Drops every task, and with it the record of what still stood.
            runtime.shutdown_background();
            inner.events.flush();
        })?;
        Ok(Self { shared, names: setup.names, handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Leads everybody who connects to this listener to `port` of the sandbox's
    /// own loopback, until the end.
    pub fn publish(&self, listener: TcpListener, port: u16) {
        self.handle.spawn(published::serve(Arc::clone(&self.shared), listener, port));
    }

    /// Offers a service to everybody who connects to this listener, until the end.
    /// Nobody knows who that is.
    pub fn offer(&self, listener: TcpListener, service: Service) {
        self.handle.spawn(led::offer(Arc::clone(&self.shared), listener, service));
    }

    /// Dials what was agreed to, for a door that has no way there itself (see
    /// [`Lead`]). `done` is called once on the door's thread and must not wait; it gets
    /// the connection, or why there is none. Events are told by this door.
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

    /// What an address that a program connects to stands for.
    pub fn destination(&self, dialled: SocketAddr) -> Destination {
        self.names.destination(dialled)
    }

    /// Dials what was agreed to. `done` is called once on the door's thread and
    /// must not wait; it gets where to connect the program's socket to, or why
    /// not. Events are told by the door, failures included.
    pub fn connect(
        &self,
        order: Order,
        done: impl FnOnce(Result<Announced, DialFailure>) + Send + 'static,
    ) -> Dialling {
        let shared = Arc::clone(&self.shared);
        let task = self.handle.spawn(async move { done(shared.order(order).await) });
        Dialling(Some(task.abort_handle()))
    }

    /// The same for one of the door's own services, which needs no leave.
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

    /// [`connect`](Self::connect), waiting for the answer: a minute at most.
    ///
    /// # Errors
    /// See [`DialFailure`].
    pub fn connect_and_wait(&self, order: Order) -> Result<Announced, DialFailure> {
        wait(|done| self.connect(order, done))
    }

    /// [`connect_service`](Self::connect_service), waiting for the answer.
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

    /// The programs inside are gone: sends on what they had said, for a second at
    /// most, breaks everything off, tells the last records, and waits for the thread.
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

/// Whether the place that the door itself stands in has IPv6.
fn has_own_v6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

fn is_v6(socket: &OwnedFd) -> bool {
    rustix::net::getsockname(socket.as_fd()).is_ok_and(|a| a.address_family() == rustix::net::AddressFamily::INET6)
}

impl Shared {
    /// A session for a target that was agreed to, if limits allow it.
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

    /// Serves one who connected to one of the door's own services.
    pub(crate) async fn serve(self: Arc<Self>, service: Service, who: Who, inside: tokio::net::TcpStream) {
        match service {
            Service::NameServer => self.name_server.serve_stream(inside).await,
            Service::HttpProxy => proxy::http::serve(self, who, inside).await,
            Service::Socks => proxy::socks::serve(self, who, inside).await,
        }
    }

    /// Asks whoever decides, and waits for the answer: a question has its own
    /// time-out, and the end of the run is an answer.
    pub(crate) async fn judged(&self, wanted: Wanted, who: &Who) -> Judgement {
        let (sender, receiver) = oneshot::channel();
        let answer = Box::new(move |judgement| {
            let _ = sender.send(judgement);
        });
        self.judge.judge(wanted, who, answer);
        receiver.await.unwrap_or_else(|_| Judgement::Refused { rule: "nobody answered".into(), grant: None })
    }

    /// Dials a target that was agreed to, or has it led to.
    pub(crate) async fn dial(&self, target: &Target, who: &Who) -> Result<Dialled, DialFailure> {
        if let Some(lead) = &self.lead {
            return led::to(&**lead, target, who).await;
        }
        dial(&self.resolver, &self.rules, self.edge.credentials(), target).await
    }
}

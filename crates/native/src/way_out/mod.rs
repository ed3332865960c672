//! The egress of a run: the addresses that names were given, the sockets for DNS requests, and the
//! egress proxy (the "door"). The proxy starts at its first use, so that a run without network use
//! has no cost.
//!
//! This module must not know rules, questions, or the handling of trapped calls.

mod common;
mod lost;
mod outfit;
mod places;
mod published;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stockade_egress::{
    Announced, Destination, DialFailure, Dialling, DnsSockets, Door, DoorEvent, Edge, Judge, Lead, Names, Namespace,
    Order, Resolve, Service, Setup, Who,
};
use stockade_model::Egress;
use stockade_sys::{Errno, net};

use crate::descriptors;
use crate::launch::NetworkEnds;
pub(crate) use common::CommonNetwork;
pub(crate) use lost::LostDatagrams;
pub use outfit::proxy_variables;
pub(crate) use outfit::{layer, outfit, resolver_settings};
use places::{Inside, OnHost};
pub(crate) use published::Published;

/// Receiver of the proxy's events, which must not block.
pub(crate) type Sink = Arc<dyn Fn(DoorEvent) + Send + Sync>;

/// Options of the egress proxy of a run.
pub(crate) struct Terms {
    /// Special addresses, limits, and the intercepted traffic.
    pub(crate) rules: Egress,
    /// TLS interception that was prepared for these rules.
    pub(crate) edge: Arc<Edge>,
    /// Decides on requests to the proxy itself.
    pub(crate) judge: Arc<dyn Judge>,
    /// Receiver of its events.
    pub(crate) sink: Sink,
    /// Resolver of host names.
    pub(crate) resolver: Arc<dyn Resolve>,
    /// Ports of the run that are published on the host's loopback.
    pub(crate) published: Published,
    /// See [`Setup::lead`].
    pub(crate) lead: Option<Arc<dyn Lead>>,
}

impl Terms {
    /// Returns the options for a tunnel through another proxy, which reports the traffic.
    pub(crate) fn led_by(self, lead: Arc<dyn Lead>) -> Self {
        Self { lead: Some(lead), sink: Arc::new(|_| {}), ..self }
    }
}

/// The egress of one run.
pub(crate) struct WayOut {
    names: Arc<Names>,
    namespace: Arc<dyn Namespace>,
    /// UDP socket for DNS requests, in a network namespace of the run's own.
    asked: Option<OwnedFd>,
    state: Mutex<State>,
}

enum State {
    /// Not used yet.
    Shut(Box<Terms>),
    Open(Door),
    /// The run has ended, or the proxy could not start.
    Over,
}

impl WayOut {
    /// Creates the egress for a network namespace of the run's own. Returns also the reporter of
    /// lost datagrams.
    pub(crate) fn of_namespace(ends: NetworkEnds, terms: Terms) -> (Self, LostDatagrams) {
        let has_ipv6 = ends.has_ipv6();
        let namespace = Inside::new(ends.sockets, has_ipv6);
        let way = Self::new(Arc::new(namespace), Some(ends.names), terms);
        let lost = LostDatagrams::new(ends.unreachable, Arc::clone(&way.names));
        (way, lost)
    }

    /// Creates the egress in the host's network: the proxy listens on the host's loopback.
    pub(crate) fn of_host(terms: Terms) -> Self {
        Self::new(Arc::new(OnHost), None, terms)
    }

    fn new(namespace: Arc<dyn Namespace>, asked: Option<OwnedFd>, terms: Terms) -> Self {
        Self { names: Arc::default(), namespace, asked, state: Mutex::new(State::Shut(Box::new(terms))) }
    }

    /// The same, with a table of names that other commands share.
    fn naming(self, names: Arc<Names>) -> Self {
        Self { names, ..self }
    }

    /// Returns whether a socket is of the run's own network namespace. Returns true if the run has
    /// none, or if the kernel does not report namespaces of sockets (before 5.14).
    pub(crate) fn is_own(&self, socket: BorrowedFd<'_>) -> bool {
        let own = self.asked().map(net::namespace_cookie);
        matches!(own, None | Some(Err(Errno::NOPROTOOPT))) || own == Some(net::namespace_cookie(socket))
    }

    /// Returns the socket for DNS requests. If it is readable, the caller must [open](Self::open)
    /// the proxy.
    pub(crate) fn asked(&self) -> Option<BorrowedFd<'_>> {
        self.asked.as_ref().map(OwnedFd::as_fd)
    }

    /// Returns whether a DNS request waits.
    pub(crate) fn is_asked(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.asked.as_ref().is_some_and(|asked| poll(&mut [PollFd::new(asked, PollFlags::IN)], Some(&now)) == Ok(1))
    }

    /// Returns the destination of an address that a program dialled.
    pub(crate) fn destination(&self, dialled: SocketAddr) -> Destination {
        self.names.destination(dialled)
    }

    /// Starts the egress proxy, if it does not run yet. Its threads inherit the confinement of the
    /// calling thread.
    ///
    /// # Errors
    /// `ENETDOWN` if the proxy cannot run any more.
    pub(crate) fn open(&self) -> Result<(), Errno> {
        self.with_door(|_| ())
    }

    /// Dials a permitted target; see [`Door::connect`].
    ///
    /// # Errors
    /// As [`open`](Self::open); `done` is not called then.
    pub(crate) fn connect(
        &self,
        order: Order,
        done: impl FnOnce(Result<Announced, DialFailure>) + Send + 'static,
    ) -> Result<Dialling, Errno> {
        self.with_door(|door| door.connect(order, done))
    }

    /// Connects to a service of the proxy itself; see [`Door::connect_service`].
    ///
    /// # Errors
    /// As [`open`](Self::open); `done` is not called then.
    pub(crate) fn connect_service(
        &self,
        service: Service,
        dialled: SocketAddr,
        who: Who,
        done: impl FnOnce(Result<Announced, DialFailure>) + Send + 'static,
    ) -> Result<Dialling, Errno> {
        self.with_door(|door| door.connect_service(service, dialled, who, done))
    }

    /// Closes every connection and reports the last records.
    pub(crate) fn close(&self) {
        let state = std::mem::replace(&mut *self.lock(), State::Over);
        if let State::Open(door) = state {
            door.stop();
        }
    }

    fn with_door<T>(&self, then: impl FnOnce(&Door) -> T) -> Result<T, Errno> {
        let mut state = self.lock();
        if let State::Shut(_) = &*state
            && let State::Shut(terms) = std::mem::replace(&mut *state, State::Over)
        {
            match self.start(*terms) {
                Ok(door) => *state = State::Open(door),
                Err(why) => tracing::error!("the way out stays shut: {why}"),
            }
        }
        match &*state {
            State::Open(door) => Ok(then(door)),
            State::Shut(_) | State::Over => Err(Errno::NETDOWN),
        }
    }

    fn start(&self, terms: Terms) -> std::io::Result<Door> {
        let dns = match &self.asked {
            Some(asked) => {
                Some(DnsSockets { udp: asked.try_clone()?, tcp: self.namespace.listen(places::names_of_all(asked)?)? })
            }
            None => None,
        };
        descriptors::raise();
        let Terms { rules, edge, judge, sink, resolver, published, lead } = terms;
        let (names, namespace) = (Arc::clone(&self.names), Arc::clone(&self.namespace));
        let setup = Setup { rules, names, dns, edge, namespace, judge, sink, resolver, lead };
        let door = Door::start(setup).map_err(std::io::Error::other)?;
        published.lead_in(&door);
        Ok(door)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_egress::{Judgement, LookupError, Wanted};
    use stockade_model::HostName;

    struct Nobody;

    impl Judge for Nobody {
        fn judge(&self, _: Wanted, _: &Who, answer: Box<dyn FnOnce(Judgement) + Send>) {
            answer(Judgement::Refused { rule: "nobody".to_owned(), grant: None });
        }
        fn is_agreed(&self, _: &HostName) -> bool {
            false
        }
    }

    impl Resolve for Nobody {
        fn resolve(&self, _: &HostName) -> Result<Vec<std::net::IpAddr>, LookupError> {
            Err(LookupError::NoSuchName)
        }
    }

    #[test]
    fn the_door_is_started_by_the_first_who_needs_it_and_not_after_the_end() {
        let way = WayOut::of_host(Terms {
            rules: Egress::default(),
            edge: Arc::default(),
            judge: Arc::new(Nobody),
            sink: Arc::new(|_| {}),
            resolver: Arc::new(Nobody),
            published: Published::default(),
            lead: None,
        });
        let proxy = SocketAddr::new(stockade_egress::DOOR_V4.into(), stockade_egress::HTTP_PROXY_PORT);
        assert_eq!(way.destination(proxy), Destination::Service(Service::HttpProxy));
        assert!(matches!(*way.lock(), State::Shut(_)));
        way.open().unwrap();
        assert!(matches!(*way.lock(), State::Open(_)));
        way.close();
        assert!(matches!(*way.lock(), State::Over));
        assert_eq!(way.open(), Err(Errno::NETDOWN));
        let never = |_: Result<Announced, DialFailure>| panic!("there is no door");
        assert!(way.connect_service(Service::Socks, proxy, Who::default(), never).is_err());
    }
}

//! The egress of a run: the addresses that names were given, the sockets for DNS requests, and the
//! egress proxy. The proxy starts at its first use, so that a run without network use
//! has no cost.
//!
//! This module must not know rules, questions, or the handling of trapped calls.

mod lost_datagrams;
mod networks;
mod options;
mod published;
mod shared_network;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use stockade_egress::{
    DnsSockets, EgressDestination, EgressEvent, EgressNamespace, EgressPolicy, EgressProxy, EgressProxySetup,
    HostNameTable, NameResolver, PreparedInterception, TunnelConnector,
};
use stockade_model::EgressRules;
use stockade_sys::{Errno, net};

use crate::locks::lock_ignoring_poison;
pub(crate) use lost_datagrams::LostDatagrams;
use networks::HostNetwork;
pub use options::proxy_variables;
pub(crate) use options::{launch_options, network_layer, resolver_settings};
pub(crate) use published::PublishedPorts;
pub(crate) use shared_network::{CommandEgress, CommonNetwork};
use std::time::Instant;
use stockade_sys::descriptor_limit;
use stockade_sys::ready::readable_before;

/// Receiver of the proxy's events, which must not block.
pub(crate) type ProxyEventSink = Arc<dyn Fn(EgressEvent) + Send + Sync>;

/// Options of the egress proxy of a run.
pub(crate) struct RunEgressOptions {
    /// Special addresses, limits, and the intercepted traffic.
    pub(crate) rules: EgressRules,
    /// TLS interception that was prepared for these rules.
    pub(crate) interception: Arc<PreparedInterception>,
    /// Decides on requests to the proxy itself.
    pub(crate) policy: Arc<dyn EgressPolicy>,
    /// Receiver of its events.
    pub(crate) sink: ProxyEventSink,
    /// Resolver of host names.
    pub(crate) resolver: Arc<dyn NameResolver>,
    /// Ports of the run that are published on the host's loopback.
    pub(crate) published: PublishedPorts,
    /// See [`EgressProxySetup::connector`].
    pub(crate) connector: Option<Arc<dyn TunnelConnector>>,
}

/// The egress of one run.
pub(crate) struct RunEgress {
    names: Arc<HostNameTable>,
    namespace: Arc<dyn EgressNamespace>,
    /// UDP socket for DNS requests, in a network namespace of the run's own.
    dns_udp_socket: Option<OwnedFd>,
    state: Mutex<RunEgressState>,
}

enum RunEgressState {
    /// Not used yet.
    Shut(Box<RunEgressOptions>),
    Open(EgressProxy),
    /// The run has ended, or the proxy could not start.
    Over,
}

impl RunEgress {
    /// Creates the egress in the host's network: the proxy listens on the host's loopback.
    pub(crate) fn of_host(egress_options: RunEgressOptions) -> Self {
        Self::new(Arc::default(), Arc::new(HostNetwork), None, egress_options)
    }

    fn new(
        names: Arc<HostNameTable>,
        namespace: Arc<dyn EgressNamespace>,
        dns_udp_socket: Option<OwnedFd>,
        egress_options: RunEgressOptions,
    ) -> Self {
        let state = Mutex::new(RunEgressState::Shut(Box::new(egress_options)));
        Self { names, namespace, dns_udp_socket, state }
    }

    /// Returns whether a socket is of the run's own network namespace. Returns true if the run has
    /// none, or if the kernel does not report namespaces of sockets (before 5.14).
    pub(crate) fn is_own(&self, socket: BorrowedFd<'_>) -> bool {
        let own = self.dns_socket().map(net::namespace_cookie);
        matches!(own, None | Some(Err(Errno::NOPROTOOPT))) || own == Some(net::namespace_cookie(socket))
    }

    /// Returns the socket for DNS requests. If it is readable, the caller must [open](Self::start_proxy)
    /// the proxy.
    pub(crate) fn dns_socket(&self) -> Option<BorrowedFd<'_>> {
        self.dns_udp_socket.as_ref().map(OwnedFd::as_fd)
    }

    /// Returns whether a DNS request waits.
    pub(crate) fn has_dns_request(&self) -> bool {
        self.dns_udp_socket
            .as_ref()
            .is_some_and(|dns_udp_socket| readable_before(&[dns_udp_socket.as_fd()], Instant::now()) == Ok(true))
    }

    /// Returns the destination of an address that a program dialled.
    pub(crate) fn destination_of(&self, dialled: SocketAddr) -> EgressDestination {
        self.names.resolve_destination(dialled)
    }

    /// Starts the egress proxy, if it does not run yet. Its threads inherit the confinement of the
    /// calling thread.
    ///
    /// # Errors
    /// `ENETDOWN` if the proxy cannot run any more.
    pub(crate) fn start_proxy(&self) -> Result<(), Errno> {
        self.with_proxy(|_| ())
    }

    /// Closes every connection and reports the last records.
    pub(crate) fn close_connections(&self) {
        let state = std::mem::replace(&mut *lock_ignoring_poison(&self.state), RunEgressState::Over);
        if let RunEgressState::Open(egress_proxy) = state {
            egress_proxy.stop();
        }
    }

    /// Uses the egress proxy, which starts if it does not run yet. Its threads inherit the
    /// confinement of the calling thread.
    pub(crate) fn with_proxy<T>(&self, then: impl FnOnce(&EgressProxy) -> T) -> Result<T, Errno> {
        let mut state = lock_ignoring_poison(&self.state);
        if let RunEgressState::Shut(_) = &*state
            && let RunEgressState::Shut(egress_options) = std::mem::replace(&mut *state, RunEgressState::Over)
        {
            match self.build_proxy(*egress_options) {
                Ok(egress_proxy) => *state = RunEgressState::Open(egress_proxy),
                Err(why) => tracing::error!("cannot start the egress proxy: {why}"),
            }
        }
        match &*state {
            RunEgressState::Open(egress_proxy) => Ok(then(egress_proxy)),
            RunEgressState::Shut(_) | RunEgressState::Over => Err(Errno::NETDOWN),
        }
    }

    fn build_proxy(&self, egress_options: RunEgressOptions) -> std::io::Result<EgressProxy> {
        let dns = match &self.dns_udp_socket {
            Some(dns_udp_socket) => Some(DnsSockets {
                udp: dns_udp_socket.try_clone()?,
                tcp: self.namespace.listen_at(networks::names_of_all(dns_udp_socket)?)?,
            }),
            None => None,
        };
        descriptor_limit::raise_limit();
        let RunEgressOptions { rules, interception, policy, sink, resolver, published, connector } = egress_options;
        // The other end of a tunnel reports the traffic.
        let sink = if connector.is_some() { Arc::new(|_| {}) } else { sink };
        let (names, namespace) = (Arc::clone(&self.names), Arc::clone(&self.namespace));
        let setup = EgressProxySetup { rules, names, dns, interception, namespace, policy, sink, resolver, connector };
        let egress_proxy = EgressProxy::start(setup).map_err(std::io::Error::other)?;
        published.publish_ports(&egress_proxy);
        Ok(egress_proxy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_egress::{
        AnnouncedConnection, DialError, EgressCaller, EgressDecision, EgressRequest, NameLookupError, ProxyService,
    };
    use stockade_model::HostName;

    struct Nobody;

    impl EgressPolicy for Nobody {
        fn decide_request(&self, _: EgressRequest, _: &EgressCaller, answer: Box<dyn FnOnce(EgressDecision) + Send>) {
            answer(EgressDecision::Refused { rule: "nobody".to_owned(), grant: None });
        }
        fn is_agreed(&self, _: &HostName) -> bool {
            false
        }
    }

    impl NameResolver for Nobody {
        fn resolve_name(&self, _: &HostName) -> Result<Vec<std::net::IpAddr>, NameLookupError> {
            Err(NameLookupError::NoSuchName)
        }
    }

    #[test]
    fn the_proxy_is_started_on_first_use_and_not_after_the_end() {
        let run_egress = RunEgress::of_host(RunEgressOptions {
            rules: EgressRules::default(),
            interception: Arc::default(),
            policy: Arc::new(Nobody),
            sink: Arc::new(|_| {}),
            resolver: Arc::new(Nobody),
            published: PublishedPorts::default(),
            connector: None,
        });
        let proxy = SocketAddr::new(stockade_egress::PROXY_ADDRESS_V4.into(), stockade_egress::HTTP_PROXY_PORT);
        assert_eq!(run_egress.destination_of(proxy), EgressDestination::Service(ProxyService::HttpProxy));
        assert!(matches!(*lock_ignoring_poison(&run_egress.state), RunEgressState::Shut(_)));
        run_egress.start_proxy().unwrap();
        assert!(matches!(*lock_ignoring_poison(&run_egress.state), RunEgressState::Open(_)));
        run_egress.close_connections();
        assert!(matches!(*lock_ignoring_poison(&run_egress.state), RunEgressState::Over));
        assert_eq!(run_egress.start_proxy(), Err(Errno::NETDOWN));
        let never = |_: Result<AnnouncedConnection, DialError>| panic!("there is no door");
        let connects = run_egress.with_proxy(|egress_proxy| {
            drop(egress_proxy.connect_service(ProxyService::Socks, proxy, EgressCaller::default(), never));
        });
        assert_eq!(connects, Err(Errno::NETDOWN));
    }
}

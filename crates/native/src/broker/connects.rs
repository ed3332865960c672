//! Connects to internet addresses. Connections inside the run's own network need no decision. For a
//! target outside, the broker decides by name or address, and the egress proxy dials it. The broker
//! then connects the program's socket, on its behalf, to the listener of the proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, getsockname};
use stockade_egress::{
    AnnouncedConnection, ConnectOrder, DialError, EgressDestination, EgressPermit, ProxyService as Offer,
};
use stockade_model::{DenialLayer, DeniedOperation, Host, IsolationLevel, NetworkTarget};
use stockade_permissions::powers::PermissionRefusal;
use stockade_sys::notify::{NotificationAnswer, SeccompNotifier};
use stockade_sys::{Errno, actor};

use super::call_result::{CallFailure, CallProgress, CallResult};
use super::denials::{CallerProcess, RefusedOperation};
use super::pool::WorkerPool;
use super::reserved_ports::ReservedPort;
use super::servers::{ListenerOwner, is_served, is_served_around};
use super::service::BrokerService;
use super::sockets::PreparedConnect;
use crate::egress::RunEgress;

/// Port of DNS name servers.
const DNS_PORT: u16 = 53;
/// Time-out of a dial for a non-blocking socket. Most targets answer or refuse by then, and the
/// call reports their true outcome. A longer wait would delay the program's other work.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Route of a connect.
enum ConnectRoute {
    /// To a program of the run itself, or to an address without a listener.
    Inside,
    /// To a service of the egress proxy itself.
    Offered(Offer),
    /// To a server of the run on the host's loopback.
    Server(Arc<ReservedPort>),
    /// To a target outside.
    Out(NetworkTarget, EgressPermit),
}

impl BrokerService {
    /// Carries out a connect of a stream socket to an internet address.
    pub(super) fn connect_out(
        &self,
        id: u64,
        connection: &PreparedConnect,
        (dialled, caller): (SocketAddr, &CallerProcess),
    ) -> CallResult {
        let Some(run_egress) = &self.run_egress else {
            if self.has_own_network() {
                return self.connect_natively(id, connection);
            }
            let server = self.own_server(dialled)?.ok_or(Errno::NETUNREACH)?;
            return self.connect_server(id, connection, server);
        };
        let road = self.choose_route(run_egress, (dialled, caller))?;
        let ready = || {
            let socket = connection.socket.try_clone().map_err(|_| Errno::MFILE)?;
            let (notifier, pool) = (self.notifier.clone(), self.pool.clone());
            Ok::<_, Errno>(PendingConnect { id, socket, address: connection.address.clone(), dialled, notifier, pool })
        };
        let dialling = match road {
            ConnectRoute::Inside => return self.connect_natively(id, connection),
            ConnectRoute::Server(server) => return self.connect_server(id, connection, server),
            ConnectRoute::Offered(offer) => {
                let arrival = ready()?;
                run_egress.with_proxy(|proxy| {
                    proxy.connect_service(offer, dialled, caller.clone(), move |dial_result| {
                        arrival.complete_dial(dial_result)
                    })
                })?
            }
            ConnectRoute::Out(target, permit) => {
                let arrival = ready()?;
                let connect_timeout = (!connection.waits).then_some(DIAL_TIMEOUT);
                let order = ConnectOrder { target, dialled, caller: caller.clone(), permit, connect_timeout };
                run_egress.with_proxy(|proxy| {
                    proxy.connect_target(order, move |dial_result| arrival.complete_dial(dial_result))
                })?
            }
        };
        Ok(CallProgress::Dialling(dialling))
    }

    /// Returns whether a connect to this address may lead out of the run's own network. The caller
    /// must then be known.
    pub(super) fn may_lead_out(&self, dialled: SocketAddr) -> bool {
        let target = NetworkTarget { host: Host::from_address(dialled.ip()), port: dialled.port() };
        !self.has_own_network()
            || !dialled.ip().is_loopback()
            || self.host_serves(dialled.port())
            || self.powers.reach.decide_target(&target).is_ok()
    }

    /// Returns whether a loopback address stays in the run's own network, at a level where it has
    /// one. A port of a server on the host is an exception. With a grant, the connect leads to that
    /// server. Without a grant it does so only if no process of the run listens on the port.
    fn stays_inside(&self, (dialled, caller): (SocketAddr, &CallerProcess), is_granted: bool) -> bool {
        if !self.has_own_network() || !dialled.ip().is_loopback() {
            return false;
        }
        match (caller.pid, is_granted) {
            (_, true) => self.level == IsolationLevel::Full && !is_served(dialled.port()),
            // The caller is known only if the host has the port, see `may_lead_out`.
            (Some(pid), false) => !self.host_serves(dialled.port()) || is_served_around(pid, dialled.port()),
            (None, false) => true,
        }
    }

    /// Returns whether a server of the host has a port, if this run has a network of its own. In a
    /// container only the servers from before the command's start are known.
    fn host_serves(&self, port: u16) -> bool {
        match &self.powers.own_network {
            Some(hosts) => hosts.contains(&port),
            None => self.level == IsolationLevel::Full && is_served(port),
        }
    }

    /// Returns whether the run has a network of its own, so that all listeners in it are the run's.
    pub(super) fn has_own_network(&self) -> bool {
        self.level == IsolationLevel::Full || self.powers.own_network.is_some()
    }

    fn choose_route(
        &self,
        run_egress: &RunEgress,
        (dialled, caller): (SocketAddr, &CallerProcess),
    ) -> CallResult<ConnectRoute> {
        let answers_all = self.level == IsolationLevel::Full;
        let names = || {
            run_egress.start_proxy()?;
            Ok(if answers_all { ConnectRoute::Inside } else { ConnectRoute::Offered(Offer::NameServer) })
        };
        match run_egress.destination_of(dialled) {
            EgressDestination::Target(target) => match self.powers.reach.decide_target(&target) {
                Err(_) if target.port == DNS_PORT => names(),
                decided if self.stays_inside((dialled, caller), decided.is_ok()) => Ok(ConnectRoute::Inside),
                Ok(rule) => Ok(ConnectRoute::Out(target, EgressPermit { rule })),
                Err(refusal) => match self.own_server(dialled)? {
                    Some(server) => Ok(ConnectRoute::Server(server)),
                    None => Err(CallFailure::Refused(deny_target(&target, refusal))),
                },
            },
            EgressDestination::Service(Offer::NameServer) => names(),
            EgressDestination::Service(offer) => Ok(ConnectRoute::Offered(offer)),
            EgressDestination::Nobody if answers_all => Ok(ConnectRoute::Inside),
            EgressDestination::Nobody => Err(Errno::CONNREFUSED.into()),
        }
    }

    /// Returns the run's own server at an address of the host's loopback, if no other process
    /// listens on the port. Without any listener the connect is refused, because there is nothing
    /// to decide on.
    fn own_server(&self, dialled: SocketAddr) -> Result<Option<Arc<ReservedPort>>, Errno> {
        if self.has_own_network() || !dialled.ip().is_loopback() {
            return Ok(None);
        }
        match self.servers.find_listeners(dialled) {
            Ok(ListenerOwner::Own(server)) => Ok(Some(server)),
            Ok(ListenerOwner::Nobody) => Err(Errno::CONNREFUSED),
            Ok(ListenerOwner::Others) | Err(_) => Ok(None),
        }
    }
}

/// Returns a refusal of a target, ready to be recorded.
pub(super) fn deny_target(target: &NetworkTarget, refusal: PermissionRefusal) -> RefusedOperation {
    RefusedOperation::new(DeniedOperation::Connect, target.to_string(), DenialLayer::Network, refusal)
}

/// Returns the address that a connect to `ip` reaches, in canonical form: the unspecified address
/// means the loopback.
pub(super) fn canonical_address(ip: IpAddr, port: u16) -> SocketAddr {
    let ip = match ip.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    SocketAddr::new(ip, port)
}

/// A program's socket that waits for the egress proxy.
struct PendingConnect {
    id: u64,
    socket: OwnedFd,
    /// The address as the program passed it.
    address: Vec<u8>,
    dialled: SocketAddr,
    notifier: Arc<SeccompNotifier>,
    pool: WorkerPool,
}

impl PendingConnect {
    /// Connects the socket to the address that the proxy announced, and answers the call.
    fn complete_dial(self, dial_result: Result<AnnouncedConnection, DialError>) {
        let announced = match dial_result {
            Ok(announced) => announced,
            Err(failure) => return self.answer_call(Err(failure.errno())),
        };
        let (id, notifier, pool) = (self.id, self.notifier.clone(), self.pool.clone());
        // The connect may block if the proxy's accept queue is full.
        let job = Box::new(move || {
            let answer = self.connect_socket(announced);
            self.answer_call(answer);
        });
        if let Err(errno) = pool.run_job(job) {
            let _ = notifier.answer_call(id, NotificationAnswer::Error(errno));
        }
    }

    fn connect_socket(&self, announced: AnnouncedConnection) -> Result<(), Errno> {
        let to = announced.address();
        let changed = if to == self.dialled { None } else { Some(address_for(socket_domain(&self.socket)?, to)) };
        let connected = actor::connect_socket(self.socket.as_fd(), changed.as_ref().unwrap_or(&self.address));
        if matches!(connected, Ok(()) | Err(Errno::INPROGRESS)) {
            announced.report_connected(SocketAddr::try_from(getsockname(&self.socket)?)?);
        }
        connected
    }

    fn answer_call(&self, connected: Result<(), Errno>) {
        // Fails only if the caller is gone, so the error has no receiver.
        let _ = self.notifier.answer_call(self.id, connected.into());
    }
}

/// Encodes an address for a socket of `domain` (`struct sockaddr_in`, `struct sockaddr_in6`).
pub(super) fn address_for(domain: AddressFamily, to: SocketAddr) -> Vec<u8> {
    let mut bytes = domain.as_raw().to_ne_bytes().to_vec();
    bytes.extend_from_slice(&to.port().to_be_bytes());
    match to.ip() {
        IpAddr::V4(ip) if domain == AddressFamily::INET => {
            bytes.extend_from_slice(&ip.octets());
            bytes.extend_from_slice(&[0; 8]);
        }
        ip => {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&ip.octets());
            bytes.extend_from_slice(&[0; 4]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_fits_the_family_of_its_socket() {
        let four: SocketAddr = "1.2.3.4:258".parse().unwrap();
        assert_eq!(address_for(AddressFamily::INET, four), [&[2, 0, 1, 2, 1, 2, 3, 4][..], &[0; 8]].concat());
        let mapped = address_for(AddressFamily::INET6, four);
        assert_eq!((mapped.len(), &mapped[18..24]), (28, &[0xff, 0xff, 1, 2, 3, 4][..]));
        let six = address_for(AddressFamily::INET6, "[::1]:1".parse().unwrap());
        assert_eq!((six.len(), six[2..4].to_vec(), six[23]), (28, vec![0, 1], 1));
    }

    #[test]
    fn forms_of_one_address_are_one() {
        for (ip, expected) in [
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("0.0.0.0", "127.0.0.1"),
            ("::", "::1"),
            ("::ffff:0.0.0.0", "127.0.0.1"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(canonical_address(ip.parse().unwrap(), 7), SocketAddr::new(expected.parse().unwrap(), 7));
        }
    }
}

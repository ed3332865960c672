//! Networks in which the egress proxy listens for the programs of a run.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use stockade_egress::{EgressNamespace, PROXY_ADDRESS_V4, PROXY_ADDRESS_V6};
use stockade_sys::{Errno, net};

use stockade_launch::NamespaceSockets;

/// Network namespace of the run, in which every address is local.
pub(super) struct NamespaceNetwork {
    sockets: NamespaceSockets,
    ipv6: bool,
}

impl NamespaceNetwork {
    pub(super) fn new(sockets: NamespaceSockets, ipv6: bool) -> Self {
        Self { sockets, ipv6 }
    }
}

impl EgressNamespace for NamespaceNetwork {
    /// Listens at `at`. If a program of the run has the port on every address, the proxy listens on
    /// a port of its own address. The program's socket is then connected to that address in place
    /// of the dialled one.
    fn listen_at(&self, at: SocketAddr) -> io::Result<OwnedFd> {
        match self.sockets.open_listener(at) {
            Err(Errno::ADDRINUSE) => {
                let own =
                    if at.is_ipv6() && self.ipv6 { IpAddr::V6(PROXY_ADDRESS_V6) } else { IpAddr::V4(PROXY_ADDRESS_V4) };
                Ok(self.sockets.open_listener(SocketAddr::new(own, 0))?)
            }
            made => Ok(made?),
        }
    }

    fn connecting_socket(&self, like: SocketAddr) -> io::Result<OwnedFd> {
        Ok(self.sockets.open_socket(like)?)
    }
}

/// The host's own network. A connection of any other process was not announced, and the proxy
/// closes it.
pub(super) struct HostNetwork;

impl EgressNamespace for HostNetwork {
    fn listen_at(&self, at: SocketAddr) -> io::Result<OwnedFd> {
        let own = if at.is_ipv6() { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
        Ok(net::tcp_listener(SocketAddr::new(own, 0))?)
    }

    fn connecting_socket(&self, like: SocketAddr) -> io::Result<OwnedFd> {
        Ok(net::tcp_socket(like)?)
    }
}

/// Returns the address for DNS requests over TCP, which is that of the bound UDP socket.
pub(super) fn names_of_all(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    let bound = rustix::net::getsockname(socket)?;
    SocketAddr::try_from(bound)
}

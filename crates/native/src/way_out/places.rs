//! Networks in which the egress proxy listens for the programs of a run.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use stockade_egress::{DOOR_V4, DOOR_V6, Namespace};
use stockade_sys::{Errno, net};

use crate::launch::Sockets;

/// Network namespace of the run, in which every address is local.
pub(super) struct Inside {
    sockets: Sockets,
    ipv6: bool,
}

impl Inside {
    pub(super) fn new(sockets: Sockets, ipv6: bool) -> Self {
        Self { sockets, ipv6 }
    }
}

impl Namespace for Inside {
    /// Listens at `at`. If a program of the run has the port on every address, the proxy listens on
    /// a port of its own address. The program's socket is then connected to that address in place
    /// of the dialled one.
    fn listen(&self, at: SocketAddr) -> io::Result<OwnedFd> {
        match self.sockets.listen(at) {
            Err(Errno::ADDRINUSE) => {
                let own = if at.is_ipv6() && self.ipv6 { IpAddr::V6(DOOR_V6) } else { IpAddr::V4(DOOR_V4) };
                Ok(self.sockets.listen(SocketAddr::new(own, 0))?)
            }
            made => Ok(made?),
        }
    }

    fn socket(&self, like: SocketAddr) -> io::Result<OwnedFd> {
        Ok(self.sockets.socket(like)?)
    }
}

/// The host's own network. A connection of any other process was not announced, and the proxy
/// closes it.
pub(super) struct OnHost;

impl Namespace for OnHost {
    fn listen(&self, at: SocketAddr) -> io::Result<OwnedFd> {
        let own = if at.is_ipv6() { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
        Ok(net::tcp_listener(SocketAddr::new(own, 0))?)
    }

    fn socket(&self, like: SocketAddr) -> io::Result<OwnedFd> {
        Ok(net::tcp_socket(like)?)
    }
}

/// Returns the address for DNS requests over TCP, which is that of the bound UDP socket.
pub(super) fn names_of_all(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    let bound = rustix::net::getsockname(socket)?;
    SocketAddr::try_from(bound)
}

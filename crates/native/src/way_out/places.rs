//! Where the door listens for the programs of a run.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use stockade_egress::{DOOR_V4, DOOR_V6, Namespace};
use stockade_sys::{Errno, net};

use crate::launch::Sockets;

/// A network of the run's own, in which every address is its own.
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
    /// Where a program of the run has the port on every address, the door
    /// listens on a port of its own address: the program's socket is connected
    /// there in place of the address that it dialled.
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

/// The host's own network. Whoever else connects there was not announced and is
/// broken off.
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

/// The port for names on every address, in the family of this socket.
pub(super) fn names_of_all(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    let bound = rustix::net::getsockname(socket)?;
    SocketAddr::try_from(bound)
}

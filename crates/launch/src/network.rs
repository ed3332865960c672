//! The network namespace of a run. The init sets it up and later makes sockets in it for the
//! caller, which cannot enter the namespace itself.
//!
//! This module must not know the connections of the run or the meaning of names.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stockade_sys::fd_passing::{self, ReceivedMessage};
use stockade_sys::ready::readable_before;
use stockade_sys::{Errno, net};

/// Addresses of the run's network, beside the loopback addresses. Programs use a network only if it
/// has an address that is not a loopback address.
pub const RUN_ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// See [`RUN_ADDRESS_V4`].
pub const RUN_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd5d, 0, 0, 0, 0, 0, 0, 1);
/// Port of DNS queries.
pub const DNS_PORT: u16 = 53;
/// Time-out for the init to make a socket.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a request and of its reply.
const REQUEST_BYTES: usize = 64;

/// Sockets of the namespace, made by the init.
#[derive(Debug)]
pub(super) struct RunNetwork {
    pub(super) names: OwnedFd,
    pub(super) unreachable: OwnedFd,
    /// Absent if the kernel has no IPv6.
    pub(super) unreachable_v6: Option<OwnedFd>,
    /// The caller's end of the socket pair for further requests.
    pub(super) asking: OwnedFd,
    /// The init's end.
    pub(super) serving: OwnedFd,
}

impl RunNetwork {
    /// Sets up the network. Uses system calls only.
    pub(super) fn set_up() -> Result<Self, Errno> {
        let ipv6 = net::own_every_address(RUN_ADDRESS_V4, RUN_ADDRESS_V6)?;
        // Where the settings are read-only, e.g. in a container, the kernel refuses such ports.
        let _ = net::permit_every_port();
        let any = if ipv6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        let (asking, serving) = fd_passing::socket_pair()?;
        Ok(Self {
            names: net::udp_receiver(SocketAddr::new(any, DNS_PORT))?,
            unreachable: net::unreachable_receiver(false)?,
            unreachable_v6: if ipv6 { Some(net::unreachable_receiver(true)?) } else { None },
            asking,
            serving,
        })
    }
}

/// The sockets of a run's network that the caller gets.
#[derive(Debug)]
pub struct NetworkSockets {
    /// Receives DNS queries to any server; each datagram carries the address of the server.
    pub names: OwnedFd,
    /// Raw ICMP sockets that report the datagrams without a receiver, IPv4 first.
    pub unreachable: Vec<OwnedFd>,
    /// Makes further sockets in the namespace.
    pub sockets: NamespaceSockets,
    pub(super) ipv6: bool,
}

impl NetworkSockets {
    /// Returns false if the kernel has no IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.ipv6
    }
}

/// Makes sockets in the namespace of a run, through its init.
#[derive(Debug)]
pub struct NamespaceSockets(Mutex<OwnedFd>);

/// Request for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketRequest {
    Listener(SocketAddr),
    Socket(SocketAddr),
}

impl NamespaceSockets {
    pub(super) fn new(asking: OwnedFd) -> Self {
        Self(Mutex::new(asking))
    }

    /// Returns a non-blocking TCP socket that listens on `at`. The address may be any address,
    /// because the loopback interface accepts all.
    ///
    /// # Errors
    /// EADDRINUSE if a program of the run uses that port; EPIPE after the end of the run;
    /// ETIMEDOUT.
    pub fn open_listener(&self, at: SocketAddr) -> Result<OwnedFd, Errno> {
        self.request_socket(SocketRequest::Listener(at))
    }

    /// Returns a non-blocking TCP socket for the address family of `like`.
    ///
    /// # Errors
    /// EAFNOSUPPORT without IPv6; EPIPE after the end of the run; ETIMEDOUT.
    pub fn open_socket(&self, like: SocketAddr) -> Result<OwnedFd, Errno> {
        self.request_socket(SocketRequest::Socket(like))
    }

    /// Stops making sockets. Later requests are refused at once.
    pub fn close(&self) {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
    }

    fn request_socket(&self, socket_request: SocketRequest) -> Result<OwnedFd, Errno> {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fd_passing::send_message(socket.as_fd(), &socket_request.to_bytes(), &[])?;
        if !readable_before(&[socket.as_fd()], Instant::now() + SOCKET_TIMEOUT)? {
            // A late reply would be read as the reply to the next request.
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
            return Err(Errno::TIMEDOUT);
        }
        let mut reply = [0; REQUEST_BYTES];
        let received = fd_passing::receive_message(socket.as_fd(), &mut reply, false)?;
        socket_from_reply(&reply, received)
    }
}

/// Returns the socket in the init's reply, or its error.
fn socket_from_reply(reply: &[u8; REQUEST_BYTES], received: ReceivedMessage) -> Result<OwnedFd, Errno> {
    if received.length != REQUEST_BYTES {
        return Err(Errno::PIPE);
    }
    let [made, ..] = received.descriptors;
    let errno = reply.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    match (errno, made) {
        (0, Some(made)) => Ok(made),
        (1..4096, _) => Err(Errno::from_raw_os_error(errno)),
        _ => Err(Errno::PROTO),
    }
}

/// Answers one request of the caller, in the init. Returns false if no more requests will come.
/// Uses system calls only.
pub(super) fn serve_one(serving: BorrowedFd<'_>) -> bool {
    let mut request = [0; REQUEST_BYTES];
    match fd_passing::receive_message(serving, &mut request, false) {
        Ok(received) if received.length == REQUEST_BYTES => {}
        Err(Errno::AGAIN) => return true,
        _ => return false,
    }
    let made = match SocketRequest::from_bytes(&request) {
        Some(SocketRequest::Listener(at)) => net::tcp_listener(at),
        Some(SocketRequest::Socket(like)) => net::tcp_socket(like),
        None => Err(Errno::INVAL),
    };
    let mut reply = [0; REQUEST_BYTES];
    match made {
        Ok(made) => fd_passing::send_message(serving, &reply, &[made.as_fd()]),
        Err(errno) => {
            reply[..4].copy_from_slice(&errno.raw_os_error().to_ne_bytes());
            fd_passing::send_message(serving, &reply, &[])
        }
    }
    .is_ok()
}

impl SocketRequest {
    /// Returns a byte for the kind, and the address as text with NUL bytes after it.
    fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let (kind, address) = match self {
            Self::Listener(at) => (1, at),
            Self::Socket(like) => (2, like),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = kind;
        // An IPv6 address with its port has at most 47 letters.
        let _ = write!(&mut bytes[1..], "{}", SocketAddr::new(address.ip(), address.port()));
        bytes
    }

    fn from_bytes(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let text = bytes[1..].split(|byte| *byte == 0).next()?;
        let address = std::str::from_utf8(text).ok()?.parse().ok()?;
        match bytes[0] {
            1 => Some(Self::Listener(address)),
            2 => Some(Self::Socket(address)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_arrive_with_their_intended_meaning() {
        for address in ["1.2.3.4:443", "[2001:db8::1]:80", "[::]:53"] {
            let address = address.parse().unwrap();
            for socket_request in [SocketRequest::Listener(address), SocketRequest::Socket(address)] {
                assert_eq!(SocketRequest::from_bytes(&socket_request.to_bytes()), Some(socket_request));
            }
        }
        assert_eq!(SocketRequest::from_bytes(&[0; REQUEST_BYTES]), None);
        assert_eq!(SocketRequest::from_bytes(&[9; REQUEST_BYTES]), None);
    }

    #[test]
    fn an_exited_or_silent_init_is_an_error_at_once_or_in_time() {
        let (asking, serving) = fd_passing::socket_pair().unwrap();
        let sockets = NamespaceSockets::new(asking);
        let at = "127.0.0.1:0".parse().unwrap();
        std::thread::scope(|scope| {
            let listener_thread = scope.spawn(|| sockets.open_listener(at));
            while !readable_before(&[serving.as_fd()], Instant::now() + SOCKET_TIMEOUT).unwrap() {}
            assert!(serve_one(serving.as_fd()));
            assert!(listener_thread.join().unwrap().is_ok());
        });
        assert_eq!(sockets.open_socket(at).unwrap_err(), Errno::TIMEDOUT);
        assert!(sockets.open_socket(at).is_err());
        drop(serving);
        assert!(sockets.open_socket(at).is_err());
    }
}

//! Reserves the ports of a run's servers on the loopback of the host. For each listener the broker
//! has a socket of its own, bound to the same address, which does not share the address and does
//! not listen. So no other process can listen there, even if the run closes its listener at any
//! time. A connect to such an address reaches the run's own server, or the kernel refuses it. A
//! port is released soon after its listener is closed ([`ListenerTable::let_go`]).
//!
//! This module must not know which processes may connect.
//!
//! [`ListenerTable::let_go`]: super::servers::ListenerTable::let_go

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::locks::lock_ignoring_poison;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_reuseaddr, socket_reuseaddr};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, bind, getpeername, listen, shutdown, socket_with};
use stockade_sys::{Errno, actor};

/// Time-out for a non-blocking connect: a server that accepts no connections leaves it pending.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Most interruptions of the wait for a connect.
const MAX_INTERRUPTS: usize = 64;

/// The address of one listener, reserved as long as this value lives.
#[derive(Debug)]
pub(super) struct ReservedPort {
    at: SocketAddr,
    _holder: OwnedFd,
    /// Sockets that are connecting to the address.
    connecting: Mutex<Vec<Arc<OwnedFd>>>,
}

impl ReservedPort {
    /// Lets a socket listen that is bound to `at`, and reserves that address from then on.
    ///
    /// # Errors
    /// ADDRINUSE if another process has the address or still reserves it. The socket does not
    /// listen then.
    pub fn listen_and_reserve(socket: BorrowedFd<'_>, at: SocketAddr, backlog: i32) -> Result<Self, Errno> {
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let holder = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The kernel compares the options of the two sockets at bind and at listen, and not
        // afterwards.
        let was_shared = socket_reuseaddr(socket)?;
        set_socket_reuseaddr(socket, true)?;
        set_socket_reuseaddr(&holder, true)?;
        let listens = bind(&holder, &at).and_then(|()| listen(socket, backlog));
        let reservation = listens.and_then(|()| set_socket_reuseaddr(&holder, false));
        set_socket_reuseaddr(socket, was_shared)?;
        if let Err(errno) = reservation {
            if listens.is_ok() {
                shutdown(socket, Shutdown::Both)?;
            }
            return Err(errno);
        }
        Ok(Self { at, _holder: holder, connecting: Mutex::default() })
    }

    /// Returns the address, an IPv4 one in IPv4 form.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// Connects a socket to this very address, encoded in `address` for the socket, and reports the
    /// outcome to `tell`. Returns once no packet of the connect can reach another process's listener.
    pub fn connect_socket(&self, socket: &Arc<OwnedFd>, address: &[u8], tell: impl FnOnce(Result<(), Errno>)) {
        lock_ignoring_poison(&self.connecting).push(socket.clone());
        let connected = match actor::connect_socket(socket.as_fd(), address) {
            // Aborted by `break_off`, see `let_go`.
            Err(Errno::CONNRESET | Errno::CONNABORTED) => Err(Errno::CONNREFUSED),
            // With TCP_FASTOPEN_CONNECT the first message would connect, at any later time.
            Ok(()) if is_underway(socket.as_fd()) => {
                break_off(socket.as_fd());
                Err(Errno::CONNREFUSED)
            }
            other => other,
        };
        tell(connected);
        // An earlier connect that is still pending is waited for by its own call.
        if !matches!(connected, Ok(()) | Err(Errno::ALREADY | Errno::ISCONN)) && !wait_until_connected(socket.as_fd()) {
            break_off(socket.as_fd());
        }
        lock_ignoring_poison(&self.connecting).retain(|other| !Arc::ptr_eq(other, socket));
    }

    /// Aborts the pending connects: the listener is closed, so they can only fail.
    pub fn break_off(&self) {
        lock_ignoring_poison(&self.connecting)
            .iter()
            .filter(|socket| is_underway(socket.as_fd()))
            .for_each(|socket| break_off(socket.as_fd()));
    }
}

/// Returns whether a socket has begun to connect and has no answer yet.
fn is_underway(socket: BorrowedFd<'_>) -> bool {
    let over = PollFlags::HUP | PollFlags::ERR;
    getpeername(socket).is_err_and(|errno| errno == Errno::NOTCONN)
        && !poll_socket(socket, Duration::ZERO).is_ok_and(|ready| ready.intersects(over))
}

/// Waits until a socket is no longer connecting. Returns false after a time-out.
fn wait_until_connected(socket: BorrowedFd<'_>) -> bool {
    let end = Instant::now() + CONNECT_TIMEOUT;
    for _ in 0..MAX_INTERRUPTS {
        match poll_socket(socket, end.saturating_duration_since(Instant::now())) {
            Err(Errno::INTR) => {}
            _ => break,
        }
    }
    !is_underway(socket)
}

/// Returns the ready events of a socket, waiting at most `within`.
fn poll_socket(socket: BorrowedFd<'_>, within: Duration) -> Result<PollFlags, Errno> {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    poll(&mut polled, Some(&Timespec::try_from(within).map_err(|_| Errno::INVAL)?))?;
    Ok(polled.iter().fold(PollFlags::empty(), |all, one| all | one.revents()))
}

fn break_off(socket: BorrowedFd<'_>) {
    // Fails only if there is no connection any more.
    let _ = shutdown(socket, Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, TcpListener};
    use std::sync::mpsc::channel;

    use rustix::net::getsockname;
    use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseport};

    use crate::broker::connects::address_for;

    /// Options of a bind: the address, SO_REUSEADDR and SO_REUSEPORT.
    type Asked<'a> = (&'a str, bool, bool);

    fn bound((ip, reuses, shares): Asked<'_>, port: u16) -> Result<OwnedFd, Errno> {
        let ip: IpAddr = ip.parse().unwrap();
        let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let made = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        if ip.is_ipv6() && ip != IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]) {
            set_ipv6_v6only(&made, false)?;
        }
        set_socket_reuseaddr(&made, reuses)?;
        set_socket_reuseport(&made, shares)?;
        bind(&made, &SocketAddr::new(ip, port))?;
        Ok(made)
    }

    fn server(ip: &str, reuses: bool) -> (OwnedFd, SocketAddr) {
        let made = bound((ip, reuses, false), 0).unwrap();
        let at = SocketAddr::try_from(getsockname(&made).unwrap()).unwrap();
        (made, SocketAddr::new(at.ip().to_canonical(), at.port()))
    }

    /// Connects a new socket by way of `reserved_port`. Returns the socket and the reported outcome.
    fn connected(reserved_port: &ReservedPort, waits: bool) -> (Arc<OwnedFd>, Result<(), Errno>) {
        let family = if reserved_port.address().is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = if waits { SocketFlags::CLOEXEC } else { SocketFlags::CLOEXEC | SocketFlags::NONBLOCK };
        let client = Arc::new(socket_with(family, SocketType::STREAM, flags, None).unwrap());
        let mut reply = Err(Errno::IO);
        reserved_port.connect_socket(&client, &address_for(family, reserved_port.address()), |outcome| reply = outcome);
        assert!(lock_ignoring_poison(&reserved_port.connecting).is_empty());
        (client, reply)
    }

    #[test]
    fn no_other_process_listens_at_a_reserved_address() {
        let each = [(false, false), (false, true), (true, false), (true, true)];
        let four = ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"];
        for (ip, rivals) in [("127.0.0.1", &four[..]), ("::ffff:127.0.0.1", &four), ("::1", &["::1", "::"])] {
            // With a rival that was bound before the server listened, if the kernel permits that.
            for (reuses, (early, shares)) in [false, true].into_iter().flat_map(|r| each.map(|e| (r, e))) {
                let (socket, at) = server(ip, reuses);
                let early = bound((rivals[0], early, shares), at.port());
                let reserved_port = ReservedPort::listen_and_reserve(socket.as_fd(), at, 8).unwrap();
                assert_eq!(socket_reuseaddr(&socket), Ok(reuses));
                let mut server = Some(socket);
                for is_served in [true, false] {
                    for (rival, (reuses, shares)) in rivals.iter().flat_map(|rival| each.map(|e| (rival, e))) {
                        let rival_result =
                            bound((rival, reuses, shares), at.port()).and_then(|socket| listen(&socket, 8));
                        assert_eq!(rival_result, Err(Errno::ADDRINUSE), "{at} {rival} {reuses} {shares} {is_served}");
                    }
                    let early_listens = early.as_ref().is_ok_and(|early| listen(early, 8).is_ok());
                    assert!(!early_listens, "{at} {is_served}");
                    let (_client, reply) = connected(&reserved_port, true);
                    assert_eq!(reply, if is_served { Ok(()) } else { Err(Errno::CONNREFUSED) }, "{at}");
                    drop(server.take());
                }
                drop((reserved_port, early));
                assert!(TcpListener::bind(at).is_ok(), "{at}");
            }
        }
    }

    #[test]
    fn a_socket_that_cannot_be_kept_does_not_listen() {
        let (one, at) = server("127.0.0.1", true);
        let other = bound(("127.0.0.1", true, false), at.port()).unwrap();
        let reserved_port = ReservedPort::listen_and_reserve(one.as_fd(), at, 8).unwrap();
        assert_eq!(ReservedPort::listen_and_reserve(other.as_fd(), at, 8).map(drop), Err(Errno::ADDRINUSE));
        drop((reserved_port, one));
        assert!(TcpListener::bind(at).is_ok(), "neither listens");
    }

    /// A server with a full queue leaves connects pending: its address stays reserved until they
    /// end, even if their callers do not wait.
    #[test]
    fn an_open_connect_keeps_the_address_until_it_is_reset() {
        for waits in [false, true] {
            let (socket, at) = server("127.0.0.1", true);
            let reserved_port = Arc::new(ReservedPort::listen_and_reserve(socket.as_fd(), at, 0).unwrap());
            let fillers: Vec<_> = (0..2).map(|_| connector(at)).collect();
            let (reply, tells) = channel();
            let connecting = reserved_port.clone();
            let waiting = std::thread::spawn(move || {
                let family = AddressFamily::INET;
                let flags = if waits { SocketFlags::CLOEXEC } else { SocketFlags::CLOEXEC | SocketFlags::NONBLOCK };
                let client = Arc::new(socket_with(family, SocketType::STREAM, flags, None).unwrap());
                connecting.connect_socket(&client, &address_for(family, at), |outcome| reply.send(outcome).unwrap());
            });
            if !waits {
                assert_eq!(tells.recv(), Ok(Err(Errno::INPROGRESS)), "it is told at once");
            }
            let begun =
                || lock_ignoring_poison(&reserved_port.connecting).iter().any(|socket| is_underway(socket.as_fd()));
            assert!((0..1000).any(|_| begun() || (std::thread::sleep(Duration::from_millis(2)), false).1));
            let break_start = Instant::now();
            reserved_port.break_off();
            if waits {
                assert_eq!(tells.recv(), Ok(Err(Errno::CONNREFUSED)));
            }
            waiting.join().unwrap();
            assert!(break_start.elapsed() < CONNECT_TIMEOUT);
            drop((socket, fillers));
            assert!(TcpListener::bind(at).is_err());
            drop(reserved_port);
            assert!(TcpListener::bind(at).is_ok());
        }
    }

    fn connector(at: SocketAddr) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        assert!(matches!(rustix::net::connect(&made, &at), Ok(()) | Err(Errno::INPROGRESS)));
        made
    }
}

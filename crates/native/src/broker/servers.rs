//! Servers of a run without a network namespace of its own: they listen on the loopback of the
//! host, for the run's own processes. The broker identifies the run's listeners by their socket
//! cookies (`SO_COOKIE`), which the kernel never reuses. The kernel itself reports the listeners of
//! a port (`sock_diag(7)`). Their addresses are reserved (`reserved_ports.rs`). So a run reaches its
//! own servers there and no others.
//!
//! This module must not know grants: a connect to another listener may be granted, which is decided
//! elsewhere.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_cookie};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, bind, getsockname, listen, recv, sendto,
    shutdown, socket_with,
};
use stockade_sys::Errno;

use super::reserved_ports::ReservedPort;

/// Most servers of a run at a time. Each takes a descriptor of the broker's process.
pub(super) const MAX_SERVERS: usize = 128;
/// Interval between two checks for closed listeners. A port stays reserved for at most this long after.
const CLOSED_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Number of attempts to take a port that the run gives back, and the pause between them.
const MAX_GIVE_BACK_TRIES: usize = 20;
const GIVE_BACK_RETRY_DELAY: Duration = Duration::from_millis(1);
/// First port that is not reserved for system services.
pub(super) const FIRST_PORT: u16 = 1024;
/// Ports of the kernel's choice that are tried for one server.
pub(super) const MAX_PORTS_TRIED: usize = 16;
/// Time-out for the kernel's report of listeners. The kernel answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest answer that the kernel sends (netlink(7)).
const MAX_ANSWER_BYTES: usize = 32 * 1024;
/// Most answers to one request: far more than one port has listeners.
const MAX_ANSWERS: usize = 64;

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP` (linux/netlink.h).
const DUMP_REQUEST_FLAGS: u16 = 0x301;
/// `NLMSG_DONE`.
const NLMSG_DONE: u16 = 3;
/// Size of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// Offset of the cookie in a message: after the header, four bytes of `struct inet_diag_msg` and 40
/// of `struct inet_diag_sockid` (linux/inet_diag.h).
const COOKIE_OFFSET: usize = HEADER_BYTES + 44;
/// `1 << TCP_LISTEN`.
const LISTEN_STATE_BIT: u32 = 1 << 10;
const TCP_PROTOCOL: u8 = 6;
/// Most bytes that are read of a socket table.
const MAX_TABLE_BYTES: u64 = 4 << 20;
/// `TCP_LISTEN` as written in such a table.
const LISTEN_STATE_TEXT: &str = "0A";

/// The run's own listeners by cookie, with their reserved addresses.
#[derive(Debug, Default)]
pub(super) struct ListenerTable {
    own: RefCell<HashMap<u64, Arc<ReservedPort>>>,
    looked: Cell<Option<Instant>>,
}

impl ListenerTable {
    /// Lets a socket listen that is bound to the loopback; refuses any other.
    pub fn listen_on_loopback(&self, socket: BorrowedFd<'_>, backlog: i32) -> Result<(), Errno> {
        let at = served_address(socket)?.ok_or(Errno::ACCESS)?;
        if self.own.borrow().len() >= MAX_SERVERS {
            self.let_go(None)?;
        }
        self.retry_after_release(at.port(), || self.listen_at(socket, at, backlog))
    }

    fn listen_at(&self, socket: BorrowedFd<'_>, at: SocketAddr, backlog: i32) -> Result<(), Errno> {
        let cookie = socket_cookie(socket)?;
        let there = query_listener_cookies(Some(at.port()))?;
        // With SO_REUSEPORT the socket would take connections of another process.
        if !self.has_all(&there) {
            return Err(Errno::ADDRINUSE);
        }
        if there.contains(&cookie) {
            return listen(socket, backlog);
        }
        if self.own.borrow().len() >= MAX_SERVERS {
            return Err(Errno::NFILE);
        }
        let reserved_port = ReservedPort::listen_and_reserve(socket, at, backlog)?;
        self.own.borrow_mut().insert(cookie, Arc::new(reserved_port));
        if self.has_all(&query_listener_cookies(Some(at.port()))?) {
            return Ok(());
        }
        shutdown(socket, Shutdown::Both)?;
        self.own.borrow_mut().remove(&cookie);
        Err(Errno::ADDRINUSE)
    }

    /// Returns the listeners at a loopback address. A listener on the same port at another address
    /// counts too.
    pub fn find_listeners(&self, address: SocketAddr) -> Result<ListenerOwner, Errno> {
        let there = query_listener_cookies(Some(address.port()))?;
        if !self.has_all(&there) {
            return Ok(ListenerOwner::Others);
        }
        let own = self.own.borrow();
        let reserved_port =
            own.values().find(|reserved_port| reserved_port.address() == address).filter(|_| !there.is_empty());
        Ok(reserved_port.map_or(ListenerOwner::Nobody, |reserved_port| ListenerOwner::Own(reserved_port.clone())))
    }

    /// Takes an address by `take`. If it is in use, first releases the addresses of that port on
    /// which the run no longer listens.
    pub fn retry_after_release(&self, port: u16, take: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        match take() {
            Err(Errno::ADDRINUSE) if self.let_go(Some(port))? => {}
            result => return result,
        }
        // Connections to the old listener need a moment to fail.
        for _ in 0..MAX_GIVE_BACK_TRIES {
            match take() {
                Err(Errno::ADDRINUSE) => std::thread::sleep(GIVE_BACK_RETRY_DELAY),
                result => return result,
            }
        }
        Err(Errno::ADDRINUSE)
    }

    /// Releases the addresses, of one port or of all, on which the run has closed its listener.
    /// Returns whether there were any.
    pub fn let_go(&self, port: Option<u16>) -> Result<bool, Errno> {
        let is_of_port = |reserved_port: &ReservedPort| port.is_none_or(|port| port == reserved_port.address().port());
        if !self.own.borrow().values().any(|reserved_port| is_of_port(reserved_port)) {
            return Ok(false);
        }
        let there = query_listener_cookies(port)?;
        // A long answer may omit a listener; an answer about one port is short.
        let listens =
            |cookie: &u64, port| query_listener_cookies(Some(port)).map_or(true, |there| there.contains(cookie));
        let is_gone = |cookie: &u64, port| !there.contains(cookie) && !listens(cookie, port);
        let mut own = self.own.borrow_mut();
        let closed_ports = own.extract_if(|cookie, reserved_port| {
            is_of_port(reserved_port) && is_gone(cookie, reserved_port.address().port())
        });
        Ok(closed_ports.map(|(_, reserved_port)| reserved_port.break_off()).count() > 0)
    }

    /// Returns the time until the next check for closed listeners.
    pub fn look_within(&self) -> Option<Duration> {
        let since = self.looked.get().map_or(CLOSED_CHECK_INTERVAL, |looked| looked.elapsed());
        (!self.own.borrow().is_empty()).then(|| CLOSED_CHECK_INTERVAL.saturating_sub(since))
    }

    /// Checks for closed listeners, if the check is due.
    pub fn check_closed_listeners(&self) {
        if self.looked.get().is_none_or(|looked| looked.elapsed() >= CLOSED_CHECK_INTERVAL) {
            self.looked.set(Some(Instant::now()));
            // On an error the addresses stay reserved until the next check.
            let _ = self.let_go(None);
        }
    }

    fn has_all(&self, cookies: &HashSet<u64>) -> bool {
        let own = self.own.borrow();
        cookies.iter().all(|cookie| own.contains_key(cookie))
    }
}

/// Returns a port of the kernel's choice that is free at `address`. No process listens on it at
/// another address, because the socket could not listen then ([`ListenerTable::listen_on_loopback`]). Fails with
/// `ADDRINUSE` after some tries. Another process may take the port at any time.
pub(super) fn free_port(address: IpAddr, is_served: impl Fn(u16) -> bool) -> Result<u16, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    for _ in 0..MAX_PORTS_TRIED {
        let tried = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&tried, &SocketAddr::new(address, 0))?;
        match served_address(tried.as_fd())? {
            Some(at) if !is_served(at.port()) => return Ok(at.port()),
            _ => {}
        }
    }
    Err(Errno::ADDRINUSE)
}

/// Listeners at a loopback address.
#[derive(Debug)]
pub(super) enum ListenerOwner {
    /// No listener.
    Nobody,
    /// The run itself, and no other process on that port.
    Own(Arc<ReservedPort>),
    /// Another process, possibly besides the run.
    Others,
}

/// Returns whether a process on the host listens on a port; false if unknown.
pub(super) fn is_served(port: u16) -> bool {
    query_listener_cookies(Some(port)).is_ok_and(|there| !there.is_empty())
}

/// Returns whether a process in the network namespace of process `pid` listens on a port; true if
/// unknown (proc_pid_net(5)).
pub(super) fn is_served_around(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].into_iter().any(|table| {
        let (text, is_whole) = read_table(&pid.to_string(), table);
        !is_whole || text.lines().any(|line| parse_listening_port(line) == Some(port))
    })
}

/// Reads a table of sockets in the network namespace of `process`. Returns also whether it is whole.
fn read_table(process: &str, table: &str) -> (String, bool) {
    let mut text = String::new();
    let file = File::open(format!("/proc/{process}/net/{table}"));
    let read = file.and_then(|file| file.take(MAX_TABLE_BYTES).read_to_string(&mut text));
    let is_whole = read.is_ok() && (text.len() as u64) < MAX_TABLE_BYTES;
    (text, is_whole)
}

/// Returns the ports with a listener in this process's own network namespace, as far as they are known.
pub fn served_ports() -> BTreeSet<u16> {
    let tables = ["tcp", "tcp6"].map(|table| read_table("self", table).0);
    tables.iter().flat_map(|text| text.lines()).filter_map(parse_listening_port).collect()
}

/// Returns the port in a line of such a table, if the line is of a listening socket.
fn parse_listening_port(line: &str) -> Option<u16> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let local = fields.next().and_then(|local| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok())?;
    (fields.nth(1) == Some(LISTEN_STATE_TEXT)).then_some(local)
}

/// Returns the address of a socket that is bound to the loopback.
fn served_address(socket: BorrowedFd<'_>) -> Result<Option<SocketAddr>, Errno> {
    let at = SocketAddr::try_from(getsockname(socket)?)?;
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    Ok((at.ip().is_loopback() && at.port() != 0).then_some(at))
}

/// Returns the cookies of all listeners, on one port or on any.
fn query_listener_cookies(port: Option<u16>) -> Result<HashSet<u64>, Errno> {
    let diag = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
    set_socket_timeout(&diag, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    let mut found = HashSet::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        query_family(&diag, family, port, &mut found)?;
    }
    Ok(found)
}

fn query_family(
    diag: &OwnedFd,
    family: AddressFamily,
    port: Option<u16>,
    found: &mut HashSet<u64>,
) -> Result<(), Errno> {
    sendto(diag, &encode_diag_request(family, port), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = vec![0; MAX_ANSWER_BYTES];
    for _ in 0..MAX_ANSWERS {
        let (length, _) = recv(diag, &mut answer[..], RecvFlags::empty())?;
        if read_answer(answer.get(..length).ok_or(Errno::MSGSIZE)?, found)? {
            return Ok(());
        }
    }
    Err(Errno::OVERFLOW)
}

/// Encodes `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn encode_diag_request(family: AddressFamily, port: Option<u16>) -> Vec<u8> {
    let family = u8::try_from(family.as_raw()).unwrap_or_default();
    let parts: [&[u8]; 7] = [
        &72_u32.to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &DUMP_REQUEST_FLAGS.to_ne_bytes(),
        &[0; 8],
        &[family, TCP_PROTOCOL, 0, 0],
        &LISTEN_STATE_BIT.to_ne_bytes(),
        &port.unwrap_or_default().to_be_bytes(),
    ];
    let mut text = parts.concat();
    text.resize(72, 0);
    text
}

/// Adds the cookies of one answer. Returns whether it was the last.
fn read_answer(mut answer: &[u8], found: &mut HashSet<u64>) -> Result<bool, Errno> {
    while let Some(header) = answer.first_chunk::<HEADER_BYTES>() {
        let [l0, l1, l2, l3, t0, t1, ..] = *header;
        let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        match u16::from_ne_bytes([t0, t1]) {
            NLMSG_DONE => return Ok(true),
            SOCK_DIAG_BY_FAMILY => {
                let message = answer.get(..length).ok_or(Errno::BADMSG)?;
                let cookie =
                    message.get(COOKIE_OFFSET..).and_then(|rest| rest.first_chunk::<8>()).ok_or(Errno::BADMSG)?;
                let [c0, c1, c2, c3, c4, c5, c6, c7] = *cookie;
                let halves = [[c0, c1, c2, c3], [c4, c5, c6, c7]].map(u32::from_ne_bytes);
                found.insert(u64::from(halves[0]) | u64::from(halves[1]) << 32);
            }
            // An error or an unexpected message: the listeners are unknown.
            _ => return Err(Errno::PROTO),
        }
        if length < HEADER_BYTES {
            return Err(Errno::BADMSG);
        }
        answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn listeners_are_found_by_cookies() {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = one.local_addr().unwrap().port();
        let six = TcpListener::bind(("::1", port)).unwrap();
        let cookies = [one.as_fd(), six.as_fd()].map(|socket| socket_cookie(socket).unwrap());
        assert_eq!(query_listener_cookies(Some(port)).unwrap(), HashSet::from(cookies));
        assert!(query_listener_cookies(None).unwrap().is_superset(&HashSet::from(cookies)));
        drop(one);
        assert_eq!(query_listener_cookies(Some(port)).unwrap(), HashSet::from([cookies[1]]));
    }

    #[test]
    fn a_port_is_released_when_its_server_ends() {
        let servers = ListenerTable::default();
        let serve = |at: SocketAddr| {
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            servers.retry_after_release(at.port(), || bind(&socket, &at)).unwrap();
            servers.listen_on_loopback(socket.as_fd(), 8).unwrap();
            let at = served_address(socket.as_fd()).unwrap().unwrap();
            (socket, at)
        };
        let (socket, at) = serve("127.0.0.1:0".parse().unwrap());
        let is_own = |at| matches!(servers.find_listeners(at), Ok(ListenerOwner::Own(reserved_port)) if reserved_port.address() == at);
        assert!(
            is_own(at) && matches!(servers.find_listeners("127.0.0.2:1".parse().unwrap()), Ok(ListenerOwner::Nobody))
        );
        let elsewhere = SocketAddr::new("127.0.0.2".parse().unwrap(), at.port());
        assert!(
            matches!(servers.find_listeners(elsewhere), Ok(ListenerOwner::Nobody)),
            "the run does not listen at that address"
        );
        assert_eq!(servers.listen_on_loopback(socket.as_fd(), 9), Ok(()), "it may change its queue");
        assert_eq!(servers.let_go(None), Ok(false));
        drop(socket);
        assert!(matches!(servers.find_listeners(at), Ok(ListenerOwner::Nobody)) && TcpListener::bind(at).is_err());
        // The run itself can take the port at once.
        let (socket, second_address) = serve(at);
        assert!(second_address == at && is_own(at) && servers.look_within().is_some());
        drop(socket);
        servers.check_closed_listeners();
        assert_eq!(servers.look_within(), None);
        let rival = TcpListener::bind(at).unwrap();
        assert!(matches!(servers.find_listeners(at), Ok(ListenerOwner::Others)));
        drop(rival);
    }

    #[test]
    fn a_port_without_other_listeners_is_chosen() {
        for address in ["127.0.0.1", "::1"].map(|text| text.parse::<IpAddr>().unwrap()) {
            let refused = RefCell::new(Vec::new());
            let is_served = |port| {
                refused.borrow_mut().push(port);
                refused.borrow().len() <= 3
            };
            let port = free_port(address, is_served).unwrap();
            assert_eq!(refused.borrow().len(), 4);
            assert_eq!(refused.borrow()[3], port);
            assert_eq!(free_port(address, |_| true), Err(Errno::ADDRINUSE));
        }
    }

    #[test]
    fn listeners_are_found_by_a_table() {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = one.local_addr().unwrap().port();
        assert!(is_served(port) && is_served_around(std::process::id(), port) && served_ports().contains(&port));
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let own = client.local_addr().unwrap().port();
        assert!(!is_served(own) && !is_served_around(std::process::id(), own) && !served_ports().contains(&own));
        drop(one);
        // Another process may have taken that port by now, but not several times in a row.
        let is_found_again = || {
            let one = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = one.local_addr().unwrap().port();
            let was_served = is_served_around(std::process::id(), port);
            drop(one);
            was_served && !is_served_around(std::process::id(), port)
        };
        assert!(!is_served_around(std::process::id(), port) || (0..5).any(|_| is_found_again()));
        assert!(["", "  sl  local_address rem_address   st"].map(parse_listening_port) == [None, None]);
    }

    #[test]
    fn answers_of_any_content_are_read_or_refused() {
        let mut found = HashSet::new();
        assert_eq!(read_answer(&[], &mut found), Ok(false));
        let message = |kind: u16, length: u32, bytes: usize| {
            let mut text = length.to_ne_bytes().to_vec();
            text.extend_from_slice(&kind.to_ne_bytes());
            text.resize(bytes, 7);
            text
        };
        assert_eq!(read_answer(&message(NLMSG_DONE, 20, 20), &mut found), Ok(true));
        assert_eq!(read_answer(&message(SOCK_DIAG_BY_FAMILY, 88, 88), &mut found), Ok(false));
        assert_eq!(found, HashSet::from([0x0707_0707_0707_0707]));
        for (kind, length, bytes) in [
            (SOCK_DIAG_BY_FAMILY, 88, 40),
            (SOCK_DIAG_BY_FAMILY, 0, 88),
            (SOCK_DIAG_BY_FAMILY, u32::MAX, 88),
            (2, 36, 36),
        ] {
            assert!(read_answer(&message(kind, length, bytes), &mut found).is_err(), "{kind} {length} {bytes}");
        }
    }
}

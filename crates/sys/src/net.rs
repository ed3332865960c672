//! The network of a new namespace: its loopback interface, on which every address is local, and
//! sockets in it.
//!
//! Must not depend on the meaning of the addresses, or on the clients.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, ipproto, listen, recv, send, socket_with,
    sockopt,
};

use crate::Errno;
use crate::call::last_errno;

/// The index of `lo`: the first interface of every namespace (`LOOPBACK_IFINDEX`, net/flow.h).
const LOOPBACK_INDEX: u32 = 1;
/// Message types and flags of rtnetlink(7).
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const REQUEST_FLAG: u16 = 1;
const CREATE_EXCLUSIVE_FLAGS: u16 = 0x400 | 0x200;
const ERROR_MESSAGE: u16 = 2;
/// Attributes.
const ADDRESS_ATTRIBUTE: u16 = 1;
const LOCAL_ADDRESS_ATTRIBUTE: u16 = 2;
const ROUTE_OUT_ATTRIBUTE: u16 = 4;
/// Header length of a message, and of an attribute.
const MESSAGE_HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: u16 = 4;
/// Buffer size of a batch: twice the size of all messages.
const BATCH_BYTES: usize = 512;
/// Index of the first IPv6 message in the batch, counted from 0.
const FIRST_IPV6_MESSAGE: u32 = 3;
/// Setting of a network namespace: ports below need CAP_NET_BIND_SERVICE (ip(7)).
const FIRST_ORDINARY_PORT: &CStr = c"/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// Backlog of the listening sockets made here.
const LISTEN_BACKLOG: i32 = 128;

/// Brings `lo` up and routes every address to it: a connection to an address and port without a
/// listener is refused at once. Adds the addresses `v4` and `v6` besides 127.0.0.1 and ::1, so that
/// programs see a machine with addresses. Sends all of it in one message. Returns false if the
/// kernel has no IPv6 (built without it, or disabled): then it applies only to IPv4.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN over the namespace.
pub fn own_every_address(v4: Ipv4Addr, v6: Ipv6Addr) -> Result<bool, Errno> {
    // Protocol 0, the default, is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut batch = NetlinkBatch::default();
    batch.loopback_up();
    batch.add_address(IpAddr::V4(v4));
    batch.add_route(AddressFamily::INET);
    batch.add_address(IpAddr::V6(v6));
    batch.add_route(AddressFamily::INET6);
    send(&socket, batch.bytes(), SendFlags::empty())?;
    // The kernel processes the batch before `send` returns, and replies only to failed messages.
    let mut ipv6 = true;
    let mut reply = [0_u8; BATCH_BYTES];
    loop {
        match recv(&socket, &mut reply, RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::AGAIN) => return Ok(ipv6),
            Ok((_, length)) => {
                let failed = parse_refusal(reply.get(..length).unwrap_or_default()).ok_or(Errno::PROTO)?;
                match failed {
                    (message, errno) if message < FIRST_IPV6_MESSAGE => return Err(errno),
                    _ => ipv6 = false,
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Returns the index of the refused message and the error, from `struct nlmsgerr`.
fn parse_refusal(reply: &[u8]) -> Option<(u32, Errno)> {
    let half = |at: usize| reply.get(at..at + 2)?.try_into().map(u16::from_ne_bytes).ok();
    let word = |at: usize| reply.get(at..at + 4)?.try_into().map(u32::from_ne_bytes).ok();
    if half(4)? != ERROR_MESSAGE {
        return None;
    }
    let errno = (word(MESSAGE_HEADER_BYTES)? as i32).checked_neg().filter(|errno| (1..4096).contains(errno))?;
    // The sequence number of the refused message.
    Some((word(8)?, Errno::from_raw_os_error(errno)))
}

/// Messages to rtnetlink, in sequence.
struct NetlinkBatch {
    space: [u8; BATCH_BYTES],
    length: usize,
    messages: u32,
}

impl Default for NetlinkBatch {
    fn default() -> Self {
        Self { space: [0; BATCH_BYTES], length: 0, messages: 0 }
    }
}

impl NetlinkBatch {
    fn bytes(&self) -> &[u8] {
        self.space.get(..self.length).unwrap_or_default()
    }

    /// Adds `struct ifinfomsg`: family, padding, type, index, flags, their mask.
    fn loopback_up(&mut self) {
        let flags = (libc::IFF_UP as u32).to_ne_bytes();
        self.add_message(NEW_LINK, REQUEST_FLAG, &[&[0; 4], &LOOPBACK_INDEX.to_ne_bytes(), &flags, &flags]);
    }

    /// Adds `struct ifaddrmsg`: family, prefix, flags, scope, index.
    fn add_address(&mut self, address: IpAddr) {
        let index = LOOPBACK_INDEX.to_ne_bytes();
        // The address is unique here, so duplicate detection is disabled.
        let body = |family: AddressFamily, bits| {
            [family.as_raw() as u8, bits, libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE]
        };
        match address {
            IpAddr::V4(address) => {
                let (local, other) = (attribute(LOCAL_ADDRESS_ATTRIBUTE, 4), attribute(ADDRESS_ATTRIBUTE, 4));
                let address = address.octets();
                self.create(NEW_ADDRESS, &[&body(AddressFamily::INET, 32), &index, &local, &address, &other, &address]);
            }
            IpAddr::V6(address) => {
                let header = attribute(ADDRESS_ATTRIBUTE, 16);
                self.create(NEW_ADDRESS, &[&body(AddressFamily::INET6, 128), &index, &header, &address.octets()]);
            }
        }
    }

    /// Adds `struct rtmsg`: family, both prefixes, service, table, origin, scope, type, flags.
    fn add_route(&mut self, family: AddressFamily) {
        let (table, origin) = (libc::RT_TABLE_LOCAL, libc::RTPROT_BOOT);
        let body = [family.as_raw() as u8, 0, 0, 0, table, origin, libc::RT_SCOPE_HOST, libc::RTN_LOCAL, 0, 0, 0, 0];
        self.create(NEW_ROUTE, &[&body, &attribute(ROUTE_OUT_ATTRIBUTE, 4), &LOOPBACK_INDEX.to_ne_bytes()]);
    }

    fn create(&mut self, kind: u16, parts: &[&[u8]]) {
        self.add_message(kind, REQUEST_FLAG | CREATE_EXCLUSIVE_FLAGS, parts);
    }

    /// Adds a message that consists of `struct nlmsghdr` and these parts. The length of each part is a
    /// multiple of four, as the alignment of attributes requires.
    fn add_message(&mut self, kind: u16, flags: u16, parts: &[&[u8]]) {
        let length = MESSAGE_HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let (kind, flags) = (kind.to_ne_bytes(), flags.to_ne_bytes());
        let header: [&[u8]; 5] = [&(length as u32).to_ne_bytes(), &kind, &flags, &self.messages.to_ne_bytes(), &[0; 4]];
        self.messages += 1;
        for part in header.iter().chain(parts) {
            if let Some(space) = self.space.get_mut(self.length..self.length + part.len()) {
                space.copy_from_slice(part);
                self.length += part.len();
            }
        }
    }
}

/// Returns the header of an attribute with a value of this length.
fn attribute(kind: u16, value_bytes: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = ((ATTRIBUTE_HEADER_BYTES + value_bytes).to_ne_bytes(), kind.to_ne_bytes());
    [a, b, c, d]
}

/// Makes a socket in this thread's namespace, close-on-exec and non-blocking, for the family of
/// `like`.
///
/// # Errors
/// EAFNOSUPPORT without IPv6, EMFILE.
pub fn tcp_socket(like: SocketAddr) -> Result<OwnedFd, Errno> {
    internet_socket(address_family(like), SocketType::STREAM)
}

/// Makes a TCP socket that listens on `at`, even if no interface has that address. An IPv6 socket
/// accepts IPv4, too, if `at` is the unspecified address.
///
/// # Errors
/// EADDRINUSE; EACCES for a port that only root may use.
pub fn tcp_listener(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = bind_socket(at, SocketType::STREAM)?;
    listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

/// Makes a UDP socket on `at` like [`tcp_listener`]. The socket reports the destination address of
/// each datagram.
///
/// # Errors
/// EADDRINUSE; EACCES for a port that only root may use.
pub fn udp_receiver(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = bind_socket(at, SocketType::DGRAM)?;
    // An IPv6 socket reports IPv4 addresses, too, as mapped ones.
    let (level, option) = match at {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    set_option(socket.as_fd(), level, option, &[1])?;
    Ok(socket)
}

/// Makes a raw socket that receives only "unreachable" messages for undelivered datagrams.
///
/// # Errors
/// EPERM without CAP_NET_RAW over the namespace; EAFNOSUPPORT without IPv6.
pub fn unreachable_receiver(ipv6: bool) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    if ipv6 {
        let socket = socket_with(AddressFamily::INET6, SocketType::RAW, flags, Some(ipproto::ICMPV6))?;
        // ICMP6_FILTER: 256 bits, set if a type is blocked; 1 is "unreachable".
        let mut blocked = [u32::MAX; 8];
        blocked[0] = !(1 << 1);
        set_option(socket.as_fd(), libc::IPPROTO_ICMPV6, ICMP_FILTER, &blocked)?;
        return Ok(socket);
    }
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
    // ICMP_FILTER (linux/icmp.h): a bit is set if a type is blocked; 3 is "unreachable".
    set_option(socket.as_fd(), libc::SOL_RAW, ICMP_FILTER, &[!(1_u32 << 3)])?;
    Ok(socket)
}

/// Returns the cookie of a socket's network namespace, unique since the start of the machine
/// (`SO_NETNS_COOKIE`, kernel 5.14).
///
/// # Errors
/// ENOPROTOOPT below that kernel; ENOTSOCK.
pub fn namespace_cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut cookie = 0_u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: both are valid for the kernel's write, `length` bytes at most.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(last_errno()) } else { Ok(cookie) }
}

/// `ICMP_FILTER` and `ICMP6_FILTER` have the same number.
const ICMP_FILTER: i32 = 1;

fn address_family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET }
}

fn internet_socket(family: AddressFamily, kind: SocketType) -> Result<OwnedFd, Errno> {
    socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

fn bind_socket(at: SocketAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
    let socket = internet_socket(address_family(at), kind)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !at.ip().is_unspecified())?;
        set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, &[1])?;
    } else {
        set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_FREEBIND, &[1])?;
    }
    bind(&socket, &at)?;
    Ok(socket)
}

/// Lets programs without capabilities bind every port of the calling thread's network namespace.
///
/// # Errors
/// EACCES without CAP_NET_ADMIN over the namespace; EROFS if the system's settings are read-only.
pub fn permit_every_port() -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let setting = rustix::fs::open(FIRST_ORDINARY_PORT, flags, Mode::empty())?;
    rustix::io::write(setting, b"0").map(drop)
}

fn set_option<const N: usize>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &[u32; N]) -> Result<(), Errno> {
    let length = size_of_val(value) as libc::socklen_t;
    // SAFETY: `value` is valid for `length` bytes, and the kernel only reads it.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), length) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Returns whether the address belongs to this machine. Then a datagram socket can be bound to it.
/// If the kernel binds to any address, the result is false; an address for documentation detects
/// that case.
pub fn is_own_address(address: IpAddr) -> bool {
    let binds = |address: &str| address.parse().is_ok_and(|a: IpAddr| std::net::UdpSocket::bind((a, 0)).is_ok());
    let probe = if address.is_ipv4() { "192.0.2.1" } else { "2001:db8::1" };
    std::net::UdpSocket::bind((address, 0)).is_ok() && !binds(probe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clone::{flags, fork_with};
    use crate::reap::{ProcessExit, wait_pidfd_end};
    use rustix::io::{read, write};
    use rustix::net::{acceptfrom, connect};

    #[test]
    fn addresses_of_this_machine_are_special() {
        assert!(is_own_address(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(!is_own_address("1.1.1.1".parse().unwrap()));
    }

    const V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
    const V6: Ipv6Addr = Ipv6Addr::new(0xfd5d, 0, 0, 0, 0, 0, 0, 1);

    /// Runs `body` in a namespace of its own; its errno is the exit code.
    #[track_caller]
    fn inside(body: impl FnOnce() -> Result<(), Errno>) {
        let child =
            fork_with(flags::NEW_USER | flags::NEW_NET, 0, || match own_every_address(V4, V6).and_then(|_| body()) {
                Ok(()) => 0,
                Err(errno) => errno.raw_os_error(),
            })
            .unwrap();
        rustix::event::poll(&mut [rustix::event::PollFd::new(&child.pidfd, rustix::event::PollFlags::IN)], None)
            .unwrap();
        let ended = wait_pidfd_end(child.pidfd.as_fd()).unwrap();
        let text = match ended {
            Some(ProcessExit::Exited(errno @ 1..)) => Errno::from_raw_os_error(errno).to_string(),
            _ => String::new(),
        };
        assert_eq!(ended, Some(ProcessExit::Exited(0)), "{text}");
    }

    fn must(condition: bool) -> Result<(), Errno> {
        if condition { Ok(()) } else { Err(Errno::BADMSG) }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    fn blocking(kind: SocketType, like: SocketAddr) -> Result<OwnedFd, Errno> {
        socket_with(address_family(like), kind, SocketFlags::CLOEXEC, None)
    }

    #[test]
    fn every_address_is_its_own_and_refuses_at_once() {
        inside(|| {
            for address in ["8.8.8.8:80", "198.18.7.7:443", "127.0.0.1:1", "[2001:db8::1]:443", "[fd5d::9]:1"] {
                let refused = connect(&blocking(SocketType::STREAM, at(address))?, &at(address));
                must(refused == Err(Errno::CONNREFUSED))?;
            }
            Ok(())
        });
    }

    #[test]
    fn every_port_is_permitted_where_the_settings_can_be_changed() {
        inside(|| {
            let here = || rustix::fs::open(FIRST_ORDINARY_PORT, OFlags::RDONLY, Mode::empty());
            let mut text = [0; 8];
            match permit_every_port() {
                Err(Errno::ROFS) => Ok(()),
                done => done.and_then(|()| must(read(here()?, &mut text)? == 2 && text[..2] == *b"0\n")),
            }
        });
        let host = std::fs::read(FIRST_ORDINARY_PORT.to_str().unwrap()).unwrap();
        assert_ne!(host, b"0\n", "the setting of another namespace was changed");
    }

    #[test]
    fn namespaces_are_distinguished_by_their_sockets() {
        let like = at("127.0.0.1:0");
        let here = namespace_cookie(tcp_socket(like).unwrap().as_fd()).unwrap();
        assert_eq!(namespace_cookie(tcp_socket(like).unwrap().as_fd()), Ok(here));
        inside(|| must(namespace_cookie(tcp_socket(like)?.as_fd())? != here));
    }

    #[test]
    fn a_listener_is_bound_to_any_address_and_only_there() {
        inside(|| {
            for (address, other) in [("1.2.3.4:1443", "1.2.3.5:1443"), ("[2001:db8::1]:1443", "[2001:db8::2]:1443")] {
                let listener = tcp_listener(at(address))?;
                must(tcp_listener(at(address)).err() == Some(Errno::ADDRINUSE))?;
                let caller = blocking(SocketType::STREAM, at(address))?;
                connect(&caller, &at(address))?;
                let (accepted, peer) = acceptfrom(&listener)?;
                must(peer.and_then(|p| SocketAddr::try_from(p).ok()).is_some())?;
                write(&caller, b"x")?;
                must(read(&accepted, &mut [0; 2])? == 1)?;
                must(connect(&blocking(SocketType::STREAM, at(other))?, &at(other)) == Err(Errno::CONNREFUSED))?;
                drop(tcp_socket(at(address))?);
            }
            Ok(())
        });
    }

    #[test]
    fn datagrams_for_any_address_arrive_and_undeliverable_ones_are_reported() {
        inside(|| {
            let receiver = udp_receiver(at("[::]:1053"))?;
            let receivers = [unreachable_receiver(false)?, unreachable_receiver(true)?];
            for (index, address) in ["8.8.8.8:1053", "[2001:db8::8]:1053"].into_iter().enumerate() {
                let caller = blocking(SocketType::DGRAM, at(address))?;
                connect(&caller, &at(address))?;
                write(&caller, b"question")?;
                must(read(&receiver, &mut [0; 64])? == 8)?;
                let nobody = SocketAddr::new(at(address).ip(), 1);
                let caller = blocking(SocketType::DGRAM, nobody)?;
                connect(&caller, &nobody)?;
                write(&caller, b"lost")?;
                must(read(&receivers[index], &mut [0; 256])? > 8)?;
            }
            Ok(())
        });
    }

    #[test]
    fn a_reply_is_read_within_its_bounds() {
        let error = |sequence: u32, errno: i32| {
            let mut reply = vec![0; 36];
            reply[4..6].copy_from_slice(&ERROR_MESSAGE.to_ne_bytes());
            reply[8..12].copy_from_slice(&sequence.to_ne_bytes());
            reply[16..20].copy_from_slice(&errno.to_ne_bytes());
            reply
        };
        assert_eq!(parse_refusal(&error(3, -95)), Some((3, Errno::OPNOTSUPP)));
        assert_eq!(parse_refusal(&error(3, i32::MIN)), None);
        assert_eq!(parse_refusal(&error(3, -95)[..18]), None);
        assert_eq!(parse_refusal(&[]), None);
    }
}

//! From a host's name to its addresses: `/etc/hosts`, then the machine's name
//! servers, over UDP.
//!
//! The binary is static: the C library's own way would load the machine's
//! modules into it. What a name server says is not trusted with anything: the
//! other end proves its name with a certificate.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// The largest `/etc/hosts` and `resolv.conf` that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Name servers that are asked. MAXNS of resolv.conf(5).
const MAX_SERVERS: usize = 3;
/// How long one server is waited for before the next.
const PATIENCE: Duration = Duration::from_millis(800);
/// Rounds over all servers.
const ROUNDS: usize = 2;
/// Addresses that are used of an answer.
const MAX_ADDRESSES: usize = 8;
/// RFC 1035, 4.2.1: without extensions no answer over UDP is longer.
const MAX_ANSWER_BYTES: usize = 512;
/// Types of records (RFC 1035, 3.2.2; RFC 3596, 2.1).
const A: u16 = 1;
const AAAA: u16 = 28;

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("there is no host of this name")]
    NoSuchName,
    #[error("no name server answered in time")]
    TimedOut,
    #[error("no name server can be asked: {0}")]
    Unreachable(io::Error),
}

/// The addresses of a host, IPv4 first.
pub(crate) fn resolve(host: &str, deadline: Instant, random: impl Fn() -> u16) -> Result<Vec<IpAddr>, ResolveError> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    if host == "localhost" {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let listed = in_hosts(&read(Path::new("/etc/hosts")), host);
    if !listed.is_empty() {
        return Ok(listed);
    }
    let servers = servers(&read(Path::new("/etc/resolv.conf")));
    ask_all(host, &servers, deadline, random)
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    // Without the file nothing stands in it.
    let _ = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// hosts(5): address, then names.
fn in_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let line = |line: &str| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
    };
    text.lines().filter_map(line).take(MAX_ADDRESSES).collect()
}

/// resolv.conf(5): the local machine's where none is named.
fn servers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next())??.parse::<IpAddr>().ok()
    };
    let mut servers: Vec<_> = text.lines().filter_map(server).take(MAX_SERVERS).collect();
    if servers.is_empty() {
        servers.push(Ipv4Addr::LOCALHOST.into());
    }
    servers.into_iter().map(|address| SocketAddr::new(address, 53)).collect()
}

fn ask_all(
    host: &str,
    servers: &[SocketAddr],
    deadline: Instant,
    random: impl Fn() -> u16,
) -> Result<Vec<IpAddr>, ResolveError> {
    let mut last = ResolveError::TimedOut;
    for server in std::iter::repeat_n(servers, ROUNDS).flatten() {
        let until = deadline.min(Instant::now() + PATIENCE);
        if until <= Instant::now() {
            return Err(ResolveError::TimedOut);
        }
        match ask(host, *server, until, &random) {
            Ok(Some(addresses)) if addresses.is_empty() => return Err(ResolveError::NoSuchName),
            Ok(Some(addresses)) => return Ok(addresses),
            Ok(None) => {}
            Err(error) => last = ResolveError::Unreachable(error),
        }
    }
    Err(last)
}

/// Asks one server for both kinds of address. `None` where it did not answer in
/// time, or not usefully.
fn ask(host: &str, server: SocketAddr, until: Instant, random: &impl Fn() -> u16) -> io::Result<Option<Vec<IpAddr>>> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Only what this server sends is received from here on.
    socket.connect(server)?;
    let questions = [(random(), A), (random(), AAAA)];
    for (id, kind) in questions {
        socket.send(&query(id, host, kind))?;
    }
    let mut found: [Option<Vec<IpAddr>>; 2] = [None, None];
    let mut datagram = [0; MAX_ANSWER_BYTES];
    while found.iter().any(Option::is_none) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        socket.set_read_timeout(Some(left))?;
        let length = match socket.recv(&mut datagram) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for ((id, kind), found) in questions.iter().zip(&mut found) {
            if found.is_none() {
                *found = answer(&datagram[..length], *id, host, *kind);
            }
        }
    }
    // One kind alone will do, unless it has nothing and the other was not heard.
    let complete = found.iter().all(Option::is_some);
    let addresses: Vec<IpAddr> = found.into_iter().flatten().flatten().take(MAX_ADDRESSES).collect();
    Ok((complete || !addresses.is_empty()).then_some(addresses))
}

/// One question, recursion desired (RFC 1035, 4.1).
fn query(id: u16, host: &str, kind: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(host.len() + 18);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&[0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&name(host));
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&[0, 1]);
    out
}

/// A name as labels. `host` is of at most 253 bytes in labels of at most 63.
fn name(host: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(host.len() + 2);
    for label in host.trim_end_matches('.').split('.') {
        out.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out
}

/// The addresses in a datagram, where it answers this question; of a name that
/// is not there, none. `None` for anything else.
fn answer(datagram: &[u8], id: u16, host: &str, kind: u16) -> Option<Vec<IpAddr>> {
    let word = |at: usize| Some(u16::from_be_bytes([*datagram.get(at)?, *datagram.get(at + 1)?]));
    let flags = word(2)?;
    // A response, to an ordinary query, to one question.
    if word(0)? != id || flags & 0xf800 != 0x8000 || word(4)? != 1 {
        return None;
    }
    let asked = name(host);
    let end = 12 + asked.len();
    if !datagram.get(12..end)?.eq_ignore_ascii_case(&asked) || word(end)? != kind || word(end + 2)? != 1 {
        return None;
    }
    match flags & 0xf {
        0 => {}
        3 => return Some(Vec::new()),
        _ => return None,
    }
    let mut at = end + 4;
    let mut addresses = Vec::new();
    for _ in 0..word(6)? {
        at = skip_name(datagram, at)?;
        let (found, class, length) = (word(at)?, word(at + 2)?, usize::from(word(at + 8)?));
        let data = datagram.get(at + 10..at + 10 + length)?;
        if class == 1 && found == kind {
            let address = match kind {
                A => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
                _ => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
            };
            addresses.push(address?);
        }
        at += 10 + length;
    }
    // A part of an answer that was too long will do, none of it will not.
    let truncated = flags & 0x0200 != 0;
    (!truncated || !addresses.is_empty()).then_some(addresses)
}

/// Behind a name; a pointer ends it (RFC 1035, 4.1.4) and is not followed.
fn skip_name(datagram: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *datagram.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            0xc0.. => return Some(at + 2),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An answer to a question: the flags, and records of type, class and data.
    fn reply(query: &[u8], flags: u16, records: &[(u16, u16, &[u8])]) -> Vec<u8> {
        let mut out = query.to_vec();
        out[2..4].copy_from_slice(&flags.to_be_bytes());
        out[6..8].copy_from_slice(&u16::try_from(records.len()).unwrap().to_be_bytes());
        for (kind, class, data) in records {
            out.extend_from_slice(&[0xc0, 12]);
            out.extend_from_slice(&kind.to_be_bytes());
            out.extend_from_slice(&class.to_be_bytes());
            out.extend_from_slice(&[0, 0, 0, 60]);
            out.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
            out.extend_from_slice(data);
        }
        out
    }

    #[test]
    fn answers_are_read() {
        let query = query(7, "api.example.com", A);
        let read = |datagram: &[u8]| answer(datagram, 7, "api.example.com", A);
        let alias: (u16, u16, &[u8]) = (5, 1, &[1, b'x', 0xc0, 12]);
        let good = reply(&query, 0x8180, &[alias, (A, 1, &[192, 0, 2, 1]), (A, 1, &[192, 0, 2, 2])]);
        assert_eq!(read(&good), Some(vec!["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()]));
        assert_eq!(read(&reply(&query, 0x8183, &[])), Some(vec![]), "no such name");
        assert_eq!(read(&reply(&query, 0x8180, &[])), Some(vec![]), "no address");
        assert_eq!(read(&reply(&query, 0x8182, &[])), None, "the server failed");
        assert_eq!(read(&reply(&query, 0x8380, &[])), None, "all of it cut off");
        assert_eq!(read(&query), None, "a question");
        assert_eq!(read(&reply(&query, 0x8180, &[(A, 1, &[1, 2, 3])])), None, "no address of four bytes");
        assert_eq!(answer(&good, 8, "api.example.com", A), None, "another id");
        assert_eq!(answer(&good, 7, "api.example.org", A), None, "another name");
        assert_eq!(answer(&good, 7, "api.example.com", AAAA), None, "another type");
        for length in 0..good.len() {
            assert_eq!(read(&good[..length]), None, "cut at {length}");
        }
    }

    #[test]
    fn files_are_read() {
        let hosts = "127.0.0.1 localhost\n# 192.0.2.9 a.example\n192.0.2.1\tA.example b # c.example\nx a.example\n";
        assert_eq!(in_hosts(hosts, "a.example"), ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert!(in_hosts(hosts, "c.example").is_empty());
        let named = servers("search x\nnameserver 192.0.2.53\nnameserver bad\nnameserver ::1\n");
        assert_eq!(named, ["192.0.2.53:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
        assert_eq!(servers(""), ["127.0.0.1:53".parse().unwrap()]);
    }

    #[test]
    fn a_server_is_asked() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let serve = std::thread::spawn(move || {
            let mut datagram = [0; 512];
            for _ in 0..2 {
                let (length, from) = server.recv_from(&mut datagram).unwrap();
                let query = &datagram[..length];
                server.send_to(b"noise", from).unwrap();
                let is_v4 = query[length - 3] == 1;
                let records: &[(u16, u16, &[u8])] = if is_v4 { &[(A, 1, &[192, 0, 2, 1])] } else { &[] };
                server.send_to(&reply(query, 0x8180, records), from).unwrap();
            }
        });
        let deadline = Instant::now() + Duration::from_secs(5);
        let found = ask_all("api.example.com", &[address], deadline, || 3).unwrap();
        assert_eq!(found, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        serve.join().unwrap();
    }

    #[test]
    fn silence_is_not_waited_for() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let start = Instant::now();
        let silent = ask_all("a.example", &[server.local_addr().unwrap()], start + Duration::from_millis(300), || 3);
        assert!(matches!(silent, Err(ResolveError::TimedOut)), "{silent:?}");
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    proptest! {
        #[test]
        fn every_datagram_is_taken(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            answer(&bytes, 7, "api.example.com", A);
            let mut likely = query(7, "api.example.com", A);
            likely[2] = 0x81;
            likely[7] = 9;
            likely.extend(bytes);
            answer(&likely, 7, "api.example.com", A);
        }
    }
}

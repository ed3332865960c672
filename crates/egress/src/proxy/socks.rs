//! SOCKS proxy: version 5, only CONNECT, without a password, because only this sandbox can reach
//! it.
//!
//! This module must not depend on the code that decides, or on how a target is dialled.
//!
//! Facts: RFC 1928.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use stockade_model::{Host, NetworkTarget};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{UnreachedTarget, reach_target};
use crate::dial::DialError;
use crate::egress_proxy::ProxyShared;
use crate::ports::EgressCaller;
use crate::relay::{RelayError, set_tcp_options};

/// Time-out for the request of a program.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

const SOCKS_VERSION: u8 = 5;

/// Replies of this proxy (RFC 1928, 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SocksReply {
    /// Connected.
    Succeeded = 0,
    /// The name or the message is invalid.
    Failure = 1,
    /// A rule or a person refused it.
    NotAllowed = 2,
    /// No route, or no such name.
    Unreachable = 4,
    /// No listener.
    Refused = 5,
    /// No answer in time.
    Expired = 6,
    /// BIND and UDP.
    NotSupported = 7,
    /// The address type does not exist.
    AddressKind = 8,
}

/// Parses the request after the greeting: command, reserved, kind, address, port. `Ok(None)` if
/// more bytes are needed. The number is the length of the request.
///
/// # Errors
/// The reply to send.
pub fn parse_request(bytes: &[u8]) -> Result<Option<(NetworkTarget, usize)>, SocksReply> {
    let [version, command, _, kind, rest @ ..] = bytes else { return Ok(None) };
    if *version != SOCKS_VERSION {
        return Err(SocksReply::Failure);
    }
    if *command != 1 {
        return Err(SocksReply::NotSupported);
    }
    let (host, length) = match *kind {
        1 => match rest.first_chunk::<4>() {
            Some(octets) => (Host::from_address(Ipv4Addr::from(*octets).into()), 4),
            None => return Ok(None),
        },
        4 => match rest.first_chunk::<16>() {
            Some(octets) => (Host::from_address(Ipv6Addr::from(*octets).into()), 16),
            None => return Ok(None),
        },
        3 => {
            let Some(length) = rest.first().map(|n| usize::from(*n)) else { return Ok(None) };
            let Some(name) = rest.get(1..1 + length) else { return Ok(None) };
            let name = std::str::from_utf8(name).ok().filter(|n| !n.starts_with('['));
            (name.and_then(|n| n.parse().ok()).ok_or(SocksReply::Failure)?, 1 + length)
        }
        _ => return Err(SocksReply::AddressKind),
    };
    let Some(port) = rest.get(length..length + 2) else { return Ok(None) };
    match u16::from_be_bytes([port[0], port[1]]) {
        0 => Err(SocksReply::Failure),
        port => Ok(Some((NetworkTarget { host, port }, 4 + length + 2))),
    }
}

/// Serves one connection of a program.
pub(crate) async fn serve_connection(shared: Arc<ProxyShared>, caller: EgressCaller, mut inside: TcpStream) {
    set_tcp_options(&inside);
    let parsed_request = match timeout(REQUEST_TIMEOUT, read_request(&mut inside)).await {
        Ok(Ok(parsed_request)) => parsed_request,
        _ => return,
    };
    let (target, held) = match parsed_request {
        Ok(parsed_request) => parsed_request,
        Err(reply) => return send_reply(&mut inside, reply).await.unwrap_or(()),
    };
    match reach_target(&shared, &target, &caller).await {
        Ok((session, dialled)) => match send_reply(&mut inside, SocksReply::Succeeded).await {
            Ok(()) => session.carry_connection(inside, held, dialled).await,
            Err(error) => session.record_end(Err(RelayError::Reset(error))),
        },
        Err(unreached) => {
            let reply = match unreached {
                UnreachedTarget::Checked { .. } | UnreachedTarget::Dialling(DialError::Refused { .. }) => {
                    SocksReply::NotAllowed
                }
                UnreachedTarget::Dialling(DialError::Failed { errno, .. }) => match errno {
                    Errno::CONNREFUSED => SocksReply::Refused,
                    Errno::TIMEDOUT => SocksReply::Expired,
                    _ => SocksReply::Unreachable,
                },
            };
            let _ = send_reply(&mut inside, reply).await;
        }
    }
}

/// Reads the greeting and the request. The outer error is that of the connection.
async fn read_request(inside: &mut TcpStream) -> std::io::Result<Result<(NetworkTarget, Vec<u8>), SocksReply>> {
    let broken = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    if inside.read_u8().await? != SOCKS_VERSION {
        return Err(broken());
    }
    let mut methods = vec![0; usize::from(inside.read_u8().await?)];
    inside.read_exact(&mut methods).await?;
    if !methods.contains(&0) {
        inside.write_all(&[SOCKS_VERSION, 0xff]).await?;
        return Err(broken());
    }
    inside.write_all(&[SOCKS_VERSION, 0]).await?;
    // Bounded: a request is at most 4 + 1 + 255 + 2 bytes.
    let mut held = Vec::with_capacity(512);
    loop {
        match parse_request(&held) {
            Ok(Some((target, request_length))) => return Ok(Ok((target, held.split_off(request_length)))),
            Ok(None) if inside.read_buf(&mut held).await? == 0 => return Err(broken()),
            Ok(None) => {}
            Err(reply) => return Ok(Err(reply)),
        }
    }
}

async fn send_reply(inside: &mut TcpStream, reply: SocksReply) -> std::io::Result<()> {
    inside.write_all(&[SOCKS_VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(name: &[u8], port: u16) -> Vec<u8> {
        let mut out = vec![5, 1, 0, 3, name.len() as u8];
        out.extend(name);
        out.extend(port.to_be_bytes());
        out
    }

    #[test]
    fn requests() {
        let read = |bytes: &[u8]| {
            parse_request(bytes).map(|found| found.map(|(target, request_length)| (target.to_string(), request_length)))
        };
        let full = named(b"A.test", 443);
        assert_eq!(read(&full), Ok(Some(("a.test:443".into(), 13))));
        for length in 0..full.len() {
            assert_eq!(read(&full[..length]), Ok(None), "{length}");
        }
        assert_eq!(read(&[5, 1, 0, 1, 127, 0, 0, 1, 0, 80, 9]), Ok(Some(("127.0.0.1:80".into(), 10))));
        let mapped = [&[5, 1, 0, 4][..], &[0; 10], &[255, 255, 10, 0, 0, 1, 0, 80]].concat();
        assert_eq!(read(&mapped), Ok(Some(("10.0.0.1:80".into(), 22))));
        assert_eq!(read(&named(b"127.0.0.1", 80)), Ok(Some(("127.0.0.1:80".into(), 16))));
    }

    #[test]
    fn refused_input() {
        for name in [
            &b"denied.test\0.allowed.test"[..],
            b"",
            b"a b",
            b"a.test\n",
            b"2130706433",
            b"0x7f.1",
            b"127.1",
            b"a..b",
            b"\xff",
            b"[::1]",
            b"a@b",
            b"a/b",
            b"xn--\xc3\xbc",
        ] {
            assert_eq!(parse_request(&named(name, 80)), Err(SocksReply::Failure), "{}", name.escape_ascii());
        }
        assert_eq!(parse_request(&named(b"a.test", 0)), Err(SocksReply::Failure));
        assert_eq!(parse_request(&[5, 2, 0, 1]), Err(SocksReply::NotSupported));
        assert_eq!(parse_request(&[5, 3, 0, 1]), Err(SocksReply::NotSupported));
        assert_eq!(parse_request(&[5, 1, 0, 9]), Err(SocksReply::AddressKind));
        assert_eq!(parse_request(&[4, 1, 0, 1]), Err(SocksReply::Failure));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fall_over(bytes: Vec<u8>) {
            let _ = parse_request(&bytes);
            let _ = parse_request(&[&[5, 1, 0, 3][..], &bytes].concat());
        }
    }
}

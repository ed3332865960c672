//! Connections through an external proxy, as company networks require: HTTP CONNECT or SOCKS5. That
//! proxy resolves the names.
//!
//! This module must not depend on the sandbox or on the code that decides.
//!
//! Facts: RFC 9110, 9.3.6 (CONNECT); RFC 1928 and RFC 1929 (SOCKS5).

use std::io;
use std::sync::Arc;

use data_encoding::BASE64;
use rustix::io::Errno;
use stockade_model::{EgressRules, Host, HostName, NetworkTarget, UpstreamKind, UpstreamProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::dial::{DialError, OutgoingConnection, connect_first_reachable, look_up};
use crate::http::head::{ResponseHead, end_of_head};
use crate::ports::{NameResolver, is_localhost};

/// Bytes of an answer that are examined together.
const ANSWER_PEEK_BYTES: usize = 4 << 10;
/// Longest user name or password of SOCKS.
const MAX_CREDENTIAL_BYTES: usize = 255;

/// Returns the upstream proxy for a target, if any.
pub(crate) fn upstream_for_target<'a>(rules: &'a EgressRules, target: &NetworkTarget) -> Option<&'a UpstreamProxy> {
    rules.upstream.as_ref().filter(|upstream| !upstream.except.iter().any(|pattern| pattern.matches_target(target)))
}

/// Returns whether a name is resolved here for every port.
pub(crate) fn is_looked_up_here(upstream: Option<&UpstreamProxy>, name: &HostName) -> bool {
    let host = Host::Name(name.clone());
    let excepts = |upstream: &UpstreamProxy| {
        upstream.except.iter().any(|pattern| pattern.ports().next().is_none() && pattern.host().matches_host(&host))
    };
    upstream.is_none_or(excepts)
}

/// Dials a target through a proxy. `credentials`: `USER:PASSWORD`.
pub(crate) async fn dial_through_proxy(
    resolver: &Arc<dyn NameResolver>,
    upstream: &UpstreamProxy,
    credentials: Option<&[u8]>,
    target: &NetworkTarget,
) -> Result<OutgoingConnection, DialError> {
    if target.host.name().is_some_and(|name| is_localhost(name.as_str())) {
        return Err(DialError::Refused { rule: format!("{} would be the proxy's own machine", target.host) });
    }
    let proxy = &upstream.proxy;
    let addresses = match &proxy.host {
        Host::Name(name) => look_up(resolver, name).await?,
        Host::Address(address) => vec![*address],
    };
    let failed = |error: io::Error| DialError::Failed {
        errno: error.raw_os_error().map_or(Errno::HOSTUNREACH, Errno::from_raw_os_error),
        why: format!("the proxy {proxy}: {error}"),
    };
    let (mut stream, address) = connect_first_reachable(&addresses, proxy.port).await.map_err(failed)?;
    let proxy_answer = match upstream.kind {
        UpstreamKind::Http => connect_http(&mut stream, credentials, target).await,
        UpstreamKind::Socks5 => connect_socks(&mut stream, credentials, target).await,
    };
    match proxy_answer.map_err(failed)? {
        Ok(()) => Ok(OutgoingConnection { stream, address, note: Some(format!("through the proxy {proxy}")) }),
        Err((errno, why)) => Err(DialError::Failed { errno, why: format!("the proxy {proxy} {why}") }),
    }
}

/// Answer of a proxy: success, or the reason for a failure.
type UpstreamAnswer = io::Result<Result<(), (Errno, String)>>;

async fn connect_http(stream: &mut TcpStream, credentials: Option<&[u8]>, target: &NetworkTarget) -> UpstreamAnswer {
    let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    if let Some(credentials) = credentials {
        head.push_str(&format!("Proxy-Authorization: Basic {}\r\n", BASE64.encode(credentials)));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    let invalid = |why: &'static str| io::Error::new(io::ErrorKind::InvalidData, why);
    let answer = ResponseHead::parse_head(&read_head(stream).await?, "CONNECT").map_err(invalid)?;
    let errno = match answer.status {
        200..=299 => return Ok(Ok(())),
        403 | 407 => Errno::ACCESS,
        504 => Errno::TIMEDOUT,
        502 | 503 => Errno::HOSTUNREACH,
        _ => Errno::CONNREFUSED,
    };
    let reason: String = answer.reason.chars().filter(|c| !c.is_control()).take(100).collect();
    Ok(Err((errno, format!("answered {} {reason}", answer.status))))
}

/// Reads exactly a head, because the bytes after it come from the server.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let mut bytes = [0; ANSWER_PEEK_BYTES];
        let seen = stream.peek(&mut bytes).await?;
        if seen == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = head.len();
        head.extend_from_slice(&bytes[..seen]);
        let end = end_of_head(&head).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        let part = end.unwrap_or(head.len()) - before;
        stream.read_exact(&mut bytes[..part]).await?;
        if let Some(end) = end {
            head.truncate(end);
            return Ok(head);
        }
    }
}

async fn connect_socks(stream: &mut TcpStream, credentials: Option<&[u8]>, target: &NetworkTarget) -> UpstreamAnswer {
    let methods: &[u8] = if credentials.is_some() { &[5, 2, 0, 2] } else { &[5, 1, 0] };
    stream.write_all(methods).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    match (chosen, credentials) {
        ([5, 0], _) => {}
        ([5, 2], Some(credentials)) => {
            let Some(words) = encode_socks_credentials(credentials) else {
                return Ok(Err((Errno::ACCESS, "takes user names and passwords of 1 to 255 bytes".into())));
            };
            stream.write_all(&words).await?;
            let mut answer = [0; 2];
            stream.read_exact(&mut answer).await?;
            if answer[1] != 0 {
                return Ok(Err((Errno::ACCESS, "does not take these credentials".into())));
            }
        }
        _ => return Ok(Err((Errno::ACCESS, "requires another authentication method".into()))),
    }
    stream.write_all(&socks_request(target)).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    let length = match answer[3] {
        1 => 4,
        4 => 16,
        3 => usize::from(stream.read_u8().await?),
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "no SOCKS5 answer")),
    };
    stream.read_exact(&mut [0; MAX_CREDENTIAL_BYTES + 2][..length + 2]).await?;
    let (errno, why) = match answer[1] {
        0 => return Ok(Ok(())),
        2 => (Errno::ACCESS, "does not allow it"),
        3 => (Errno::NETUNREACH, "has no route to that network"),
        4 => (Errno::HOSTUNREACH, "has no route to that host"),
        5 => (Errno::CONNREFUSED, "got a refusal from that host"),
        6 => (Errno::TIMEDOUT, "got no answer from that host"),
        _ => (Errno::CONNREFUSED, "failed"),
    };
    Ok(Err((errno, why.into())))
}

/// Returns user name and password in the format of SOCKS.
fn encode_socks_credentials(credentials: &[u8]) -> Option<Vec<u8>> {
    let at = credentials.iter().position(|byte| *byte == b':')?;
    let (user, password) = (&credentials[..at], &credentials[at + 1..]);
    let fits = |word: &[u8]| (1..=MAX_CREDENTIAL_BYTES).contains(&word.len());
    (fits(user) && fits(password)).then(|| [&[1, user.len() as u8], user, &[password.len() as u8], password].concat())
}

fn socks_request(target: &NetworkTarget) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0];
    match &target.host {
        Host::Address(std::net::IpAddr::V4(address)) => {
            bytes.push(1);
            bytes.extend(address.octets());
        }
        Host::Address(std::net::IpAddr::V6(address)) => {
            bytes.push(4);
            bytes.extend(address.octets());
        }
        Host::Name(name) => {
            bytes.extend([3, name.as_str().len() as u8]);
            bytes.extend(name.as_str().as_bytes());
        }
    }
    bytes.extend(target.port.to_be_bytes());
    bytes
}

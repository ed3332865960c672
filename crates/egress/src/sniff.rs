//! Examines the first bytes of a program, and whether they fit the name that it connected to.
//!
//! This module must not depend on sockets.

use stockade_model::{Host, NetworkTarget, RawText};

use crate::hello::{self, ClientHello, FirstBytesKind};
use crate::relay::FirstLineDecision;

/// Longest first line that is waited for.
const MAX_FIRST_LINE_BYTES: usize = 8 << 10;

/// Decision about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstBytesDecision {
    /// More bytes are needed.
    Undecided,
    /// Relayed unchanged.
    Opaque,
    /// TLS for the correct server.
    Tls(ClientHello),
    /// Requests, to be parsed one by one.
    Http,
    /// Refused.
    Refused(String),
}

/// Refusal of a connection whose requests must be parsed.
pub(crate) const UNREADABLE_REFUSAL: &str =
    "requests to this host are inspected, but this is neither TLS nor HTTP/1; `inspect.except` exempts the host";

/// Examines the first bytes of a connection to this target. `is_read`: its requests must be parsed,
/// so no other protocol may pass.
///
/// `is_counted`: there is a limit of requests, so that addresses are examined too.
///
/// The rules for names are as follows. A client hello must ask for exactly that name. A hello
/// without a name is refused, because the server would choose. An encrypted hello looks like the
/// dummy that browsers send, so the outer name counts. HTTP/1 is parsed request by request, on
/// every port. HTTP/2 without TLS cannot be checked and is refused. Port 80 carries only HTTP/1.
/// Connections to addresses are not checked, because approval of an address includes all that it
/// serves.
pub fn examine_first_bytes(
    bytes: &[u8],
    target: &NetworkTarget,
    is_read: bool,
    is_counted: bool,
) -> FirstBytesDecision {
    let name = target.host.name();
    let is_checked = is_read || name.is_some();
    match hello::parse_first_bytes(bytes) {
        FirstBytesKind::Incomplete => FirstBytesDecision::Undecided,
        FirstBytesKind::Malformed(why) if is_checked => FirstBytesDecision::Refused(why.into()),
        FirstBytesKind::Malformed(_) => FirstBytesDecision::Opaque,
        FirstBytesKind::Hello(hello) => match name {
            None => FirstBytesDecision::Tls(hello),
            Some(name) => match &hello.server_name {
                None => FirstBytesDecision::Refused(format!("a TLS client hello to {name} names no server")),
                Some(requested_name) if is_same(requested_name, &target.host) => FirstBytesDecision::Tls(hello),
                Some(requested_name) => {
                    let requested_name = RawText::from(requested_name.as_slice()).to_escaped();
                    FirstBytesDecision::Refused(format!("a TLS client hello to {name} asks for {requested_name}"))
                }
            },
        },
        FirstBytesKind::Other if !is_checked && !is_counted => FirstBytesDecision::Opaque,
        FirstBytesKind::Other => match first_line(bytes) {
            FirstLineKind::Http1 => FirstBytesDecision::Http,
            FirstLineKind::Http2 if is_checked => {
                FirstBytesDecision::Refused("HTTP/2 without TLS cannot be checked".into())
            }
            FirstLineKind::Http2 => FirstBytesDecision::Refused("HTTP/2 without TLS cannot be counted".into()),
            FirstLineKind::Unfinished => FirstBytesDecision::Undecided,
            FirstLineKind::Else if is_read => FirstBytesDecision::Refused(UNREADABLE_REFUSAL.into()),
            FirstLineKind::Else if is_checked && target.port == 80 => {
                FirstBytesDecision::Refused("port 80 carries nothing but HTTP/1".into())
            }
            FirstLineKind::Else => FirstBytesDecision::Opaque,
        },
    }
}

/// Examines a first line whose pieces are forwarded as they arrive. If it becomes a request, it is
/// too late to check it.
pub fn examine_first_line(first_bytes: &[u8], target: &NetworkTarget, is_counted: bool) -> FirstLineDecision {
    match examine_first_bytes(first_bytes, target, false, is_counted) {
        FirstBytesDecision::Undecided => FirstLineDecision::More,
        FirstBytesDecision::Opaque => FirstLineDecision::Done,
        FirstBytesDecision::Http | FirstBytesDecision::Tls(_) => {
            FirstLineDecision::Refuse("a request came too slowly to be checked".into())
        }
        FirstBytesDecision::Refused(rule) => FirstLineDecision::Refuse(rule),
    }
}

fn is_same(requested_name: &[u8], host: &Host) -> bool {
    std::str::from_utf8(requested_name)
        .ok()
        .and_then(|text| text.parse::<Host>().ok())
        .is_some_and(|requested_name| requested_name == *host)
}

enum FirstLineKind {
    Http1,
    Http2,
    Unfinished,
    Else,
}

/// Returns the kind of the first line. Anything that a server might take for HTTP is HTTP here, and
/// is parsed strictly afterwards.
fn first_line(bytes: &[u8]) -> FirstLineKind {
    let start = bytes.iter().position(|b| !matches!(b, b'\r' | b'\n')).unwrap_or(bytes.len());
    let rest = &bytes[start..];
    let end = rest.iter().position(|b| *b == b'\n');
    let line = &rest[..end.unwrap_or(rest.len())];
    if line.iter().any(|b| *b < b' ' && !matches!(b, b'\t' | b'\r')) || line.len() > MAX_FIRST_LINE_BYTES {
        return FirstLineKind::Else;
    }
    let holds = |part: &[u8]| line.windows(part.len()).any(|w| w.eq_ignore_ascii_case(part));
    match end {
        None if start < MAX_FIRST_LINE_BYTES => FirstLineKind::Unfinished,
        _ if holds(b"HTTP/2") => FirstLineKind::Http2,
        _ if holds(b"HTTP/") => FirstLineKind::Http1,
        _ => FirstLineKind::Else,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::tests::{build_hello_body, server_name_extension, split_into_records};

    #[track_caller]
    fn check(bytes: &[u8], target: &str, expected: &FirstBytesDecision) {
        let seen = examine_first_bytes(bytes, &target.parse().unwrap(), false, false);
        let same = match (&seen, expected) {
            (FirstBytesDecision::Refused(why), FirstBytesDecision::Refused(part)) => why.contains(part.as_str()),
            (FirstBytesDecision::Tls(_), FirstBytesDecision::Tls(_)) => true,
            (seen, expected) => seen == expected,
        };
        assert!(same, "{seen:?} {}", bytes.escape_ascii());
    }

    #[test]
    fn the_server_name_must_be_the_name_asked_for() {
        let tls = |name: &[u8]| split_into_records(&build_hello_body(&[server_name_extension(name)]), 999);
        let good = FirstBytesDecision::Tls(ClientHello::default());
        check(&tls(b"a.test"), "a.test:443", &good);
        check(&tls(b"A.TEST"), "a.test:443", &good);
        check(&tls(b"b.test"), "1.1.1.1:443", &good);
        check(&split_into_records(&build_hello_body(&[]), 9), "1.1.1.1:443", &good);
        let refused = |part: &str| FirstBytesDecision::Refused(part.into());
        check(&tls(b"b.test"), "a.test:443", &refused("asks for b.test"));
        check(&tls(b"b.test"), "a.test:8443", &refused("asks for b.test"));
        check(&tls(b"a.test\0.b"), "a.test:443", &refused("\\u{0}"));
        check(&tls(b"127.0.0.1"), "a.test:443", &refused("asks for"));
        check(&tls(b"x.a.test"), "a.test:443", &refused("asks for"));
        check(&split_into_records(&build_hello_body(&[]), 9), "a.test:443", &refused("names no server"));
        check(&[22, 3, 1, 0, 0], "a.test:443", &refused("record"));
        check(&tls(b"b.test")[..20], "a.test:443", &FirstBytesDecision::Undecided);
    }

    #[test]
    fn where_requests_are_read_nothing_else_passes() {
        let look = |bytes: &[u8], target: &str| examine_first_bytes(bytes, &target.parse().unwrap(), true, false);
        for target in ["a.test:22", "1.1.1.1:443"] {
            assert_eq!(look(b"SSH-2.0-x\r\n", target), FirstBytesDecision::Refused(UNREADABLE_REFUSAL.into()));
            assert_eq!(look(b"GET / HTTP/1.1\r\n", target), FirstBytesDecision::Http);
            assert!(matches!(look(&[22, 3, 1, 0, 0], target), FirstBytesDecision::Refused(_)));
        }
        assert!(matches!(
            look(&split_into_records(&build_hello_body(&[]), 9), "1.1.1.1:443"),
            FirstBytesDecision::Tls(_)
        ));
    }

    #[test]
    fn http_is_found_on_every_port_and_in_odd_dress() {
        for text in
            ["GET / HTTP/1.1\r\n", "\r\nGET / HTTP/1.1\r\n", "get\t/\thttp/1.0\n", "X HTTP/1.1\n", "GET / HTTP/9\n"]
        {
            check(text.as_bytes(), "a.test:80", &FirstBytesDecision::Http);
            check(text.as_bytes(), "a.test:8123", &FirstBytesDecision::Http);
            check(text.as_bytes(), "1.1.1.1:80", &FirstBytesDecision::Opaque);
        }
        check(b"PRI * HTTP/2.0\r\n\r\nSM", "a.test:50051", &FirstBytesDecision::Refused("HTTP/2".into()));
        check(b"GET / HTT", "a.test:80", &FirstBytesDecision::Undecided);
        check(b"", "a.test:80", &FirstBytesDecision::Undecided);
        for other in
            [&b"SSH-2.0-x\r\n"[..], b"\0\0\0\x08\x04\xd2\x16\x2f", b"*1\r\n$4\r\nPING\r\n", b"EHLO a\r\n", b"0032git\0"]
        {
            check(other, "a.test:22", &FirstBytesDecision::Opaque);
            check(other, "a.test:80", &FirstBytesDecision::Refused("port 80".into()));
        }
        check(&[b'a'; 9000], "a.test:1", &FirstBytesDecision::Opaque);
        check(&[b'\n'; 9000], "a.test:1", &FirstBytesDecision::Opaque);
    }
}

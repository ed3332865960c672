//! Examines the first bytes of a program, and whether they fit the name that it connected to.
//!
//! This module must not depend on sockets.

use stockade_model::{Host, RawText, Target};

use crate::hello::{self, Hello, Seen};
use crate::relay::Watch;

/// Longest first line that is waited for.
const LINE_MAX: usize = 8 << 10;

/// Decision about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// More bytes are needed.
    Undecided,
    /// Relayed unchanged.
    Opaque,
    /// TLS for the correct server.
    Tls(Hello),
    /// Requests, to be parsed one by one.
    Http,
    /// Refused.
    Refused(String),
}

/// Refusal of a connection whose requests must be parsed.
pub(crate) const NOT_READ: &str = "requests to this host are looked into, and what is said is neither TLS nor HTTP/1; `inspect.except` leaves it closed";

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
pub fn look(bytes: &[u8], target: &Target, is_read: bool, is_counted: bool) -> First {
    let name = target.host.name();
    let is_checked = is_read || name.is_some();
    match hello::read(bytes) {
        Seen::Incomplete => First::Undecided,
        Seen::Malformed(why) if is_checked => First::Refused(why.into()),
        Seen::Malformed(_) => First::Opaque,
        Seen::Hello(hello) => match name {
            None => First::Tls(hello),
            Some(name) => match &hello.server_name {
                None => First::Refused(format!("a TLS client hello to {name} names no server")),
                Some(asked) if is_same(asked, &target.host) => First::Tls(hello),
                Some(asked) => {
                    let asked = RawText::from(asked.as_slice()).escaped();
                    First::Refused(format!("a TLS client hello to {name} asks for {asked}"))
                }
            },
        },
        Seen::Other if !is_checked && !is_counted => First::Opaque,
        Seen::Other => match first_line(bytes) {
            Line::Http1 => First::Http,
            Line::Http2 if is_checked => First::Refused("HTTP/2 without TLS cannot be checked".into()),
            Line::Http2 => First::Refused("HTTP/2 without TLS cannot be counted".into()),
            Line::Unfinished => First::Undecided,
            Line::Else if is_read => First::Refused(NOT_READ.into()),
            Line::Else if is_checked && target.port == 80 => {
                First::Refused("port 80 carries nothing but HTTP/1".into())
            }
            Line::Else => First::Opaque,
        },
    }
}

/// Examines a first line whose pieces are forwarded as they arrive. If it becomes a request, it is
/// too late to check it.
pub fn watch(said: &[u8], target: &Target, is_counted: bool) -> Watch {
    match look(said, target, false, is_counted) {
        First::Undecided => Watch::More,
        First::Opaque => Watch::Done,
        First::Http | First::Tls(_) => Watch::Refuse("a request came too slowly to be checked".into()),
        First::Refused(rule) => Watch::Refuse(rule),
    }
}

fn is_same(asked: &[u8], host: &Host) -> bool {
    std::str::from_utf8(asked).ok().and_then(|text| text.parse::<Host>().ok()).is_some_and(|asked| asked == *host)
}

enum Line {
    Http1,
    Http2,
    Unfinished,
    Else,
}

/// Returns the kind of the first line. Anything that a server might take for HTTP is HTTP here, and
/// is parsed strictly afterwards.
fn first_line(bytes: &[u8]) -> Line {
    let start = bytes.iter().position(|b| !matches!(b, b'\r' | b'\n')).unwrap_or(bytes.len());
    let rest = &bytes[start..];
    let end = rest.iter().position(|b| *b == b'\n');
    let line = &rest[..end.unwrap_or(rest.len())];
    if line.iter().any(|b| *b < b' ' && !matches!(b, b'\t' | b'\r')) || line.len() > LINE_MAX {
        return Line::Else;
    }
    let holds = |part: &[u8]| line.windows(part.len()).any(|w| w.eq_ignore_ascii_case(part));
    match end {
        None if start < LINE_MAX => Line::Unfinished,
        _ if holds(b"HTTP/2") => Line::Http2,
        _ if holds(b"HTTP/") => Line::Http1,
        _ => Line::Else,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::tests::{body, records, sni};

    #[track_caller]
    fn check(bytes: &[u8], target: &str, expected: &First) {
        let seen = look(bytes, &target.parse().unwrap(), false, false);
        let same = match (&seen, expected) {
            (First::Refused(why), First::Refused(part)) => why.contains(part.as_str()),
            (First::Tls(_), First::Tls(_)) => true,
            (seen, expected) => seen == expected,
        };
        assert!(same, "{seen:?} {}", bytes.escape_ascii());
    }

    #[test]
    fn the_server_name_must_be_the_name_asked_for() {
        let tls = |name: &[u8]| records(&body(&[sni(name)]), 999);
        let good = First::Tls(Hello::default());
        check(&tls(b"a.test"), "a.test:443", &good);
        check(&tls(b"A.TEST"), "a.test:443", &good);
        check(&tls(b"b.test"), "1.1.1.1:443", &good);
        check(&records(&body(&[]), 9), "1.1.1.1:443", &good);
        let refused = |part: &str| First::Refused(part.into());
        check(&tls(b"b.test"), "a.test:443", &refused("asks for b.test"));
        check(&tls(b"b.test"), "a.test:8443", &refused("asks for b.test"));
        check(&tls(b"a.test\0.b"), "a.test:443", &refused("\\u{0}"));
        check(&tls(b"127.0.0.1"), "a.test:443", &refused("asks for"));
        check(&tls(b"x.a.test"), "a.test:443", &refused("asks for"));
        check(&records(&body(&[]), 9), "a.test:443", &refused("names no server"));
        check(&[22, 3, 1, 0, 0], "a.test:443", &refused("record"));
        check(&tls(b"b.test")[..20], "a.test:443", &First::Undecided);
    }

    #[test]
    fn where_requests_are_read_nothing_else_passes() {
        let look = |bytes: &[u8], target: &str| look(bytes, &target.parse().unwrap(), true, false);
        for target in ["a.test:22", "1.1.1.1:443"] {
            assert_eq!(look(b"SSH-2.0-x\r\n", target), First::Refused(NOT_READ.into()));
            assert_eq!(look(b"GET / HTTP/1.1\r\n", target), First::Http);
            assert!(matches!(look(&[22, 3, 1, 0, 0], target), First::Refused(_)));
        }
        assert!(matches!(look(&records(&body(&[]), 9), "1.1.1.1:443"), First::Tls(_)));
    }

    #[test]
    fn http_is_found_on_every_port_and_in_odd_dress() {
        for text in
            ["GET / HTTP/1.1\r\n", "\r\nGET / HTTP/1.1\r\n", "get\t/\thttp/1.0\n", "X HTTP/1.1\n", "GET / HTTP/9\n"]
        {
            check(text.as_bytes(), "a.test:80", &First::Http);
            check(text.as_bytes(), "a.test:8123", &First::Http);
            check(text.as_bytes(), "1.1.1.1:80", &First::Opaque);
        }
        check(b"PRI * HTTP/2.0\r\n\r\nSM", "a.test:50051", &First::Refused("HTTP/2".into()));
        check(b"GET / HTT", "a.test:80", &First::Undecided);
        check(b"", "a.test:80", &First::Undecided);
        for other in
            [&b"SSH-2.0-x\r\n"[..], b"\0\0\0\x08\x04\xd2\x16\x2f", b"*1\r\n$4\r\nPING\r\n", b"EHLO a\r\n", b"0032git\0"]
        {
            check(other, "a.test:22", &First::Opaque);
            check(other, "a.test:80", &First::Refused("port 80".into()));
        }
        check(&[b'a'; 9000], "a.test:1", &First::Opaque);
        check(&[b'\n'; 9000], "a.test:1", &First::Opaque);
    }
}

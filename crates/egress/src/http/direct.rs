//! Plain HTTP on a connection to a name. Every request on it must be for that name, whatever its
//! Host field or its target contains.
//!
//! This module must not depend on how the connection was made.

use std::sync::Arc;

use stockade_model::{DeniedOperation, Host, NetworkTarget};
use tokio::io::{AsyncRead, AsyncWrite};

use super::admit::RequestAdmission;
use super::exchange::{ExchangeOutcome, HttpPeer, HttpRefusal, forward_exchange, relay_upgraded};
use super::head::{FIELDS_MAX, RequestHead, field_values};
use super::stream::MessageError;
use crate::interception::ConnectionGuard;
use crate::relay::{RelayContext, RelayError};
use crate::session::EgressSession;

/// Number of fields that the egress proxy may add to a request: Host and Accept-Encoding. A head
/// must stay within the limit with them.
const FIELDS_ADDED: usize = 2;

/// Parses a host and an optional port, as in a Host field.
pub(crate) fn parse_authority(text: &str) -> Option<(Host, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    if host.contains(':') && !host.starts_with('[') {
        return None;
    }
    let port = match port {
        None => None,
        Some(port) => {
            let digits = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
            Some(port.parse().ok().filter(|p| digits && *p != 0)?)
        }
    };
    Some((host.parse().ok()?, port))
}

/// Splits an absolute `http://` target into the authority and the rest.
pub(crate) fn split_absolute_target(target: &str) -> Option<(&str, String)> {
    let (scheme, rest) = target.split_at_checked(7)?;
    if !scheme.eq_ignore_ascii_case("http://") {
        return None;
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Some((authority, path))
}

/// Checks that a request is for exactly this target. If an address `serves_all`, the request may be
/// for any name.
pub fn check_target(request: &mut RequestHead, target: &NetworkTarget, serves_all: bool) -> Result<(), HttpRefusal> {
    let elsewhere = |what: &str| {
        HttpRefusal::new(403, format!("a request on a connection to {target} is for {}", what.escape_default()))
    };
    if request.fields.len() + FIELDS_ADDED > FIELDS_MAX {
        return Err(HttpRefusal::new(431, "the head has too many fields"));
    }
    let is_ours = |text: &str| {
        let (host, port) = parse_authority(text)?;
        Some(serves_all || host == target.host && port.is_none_or(|p| p == target.port))
    };
    if request.method.eq_ignore_ascii_case("CONNECT") {
        return Err(elsewhere(&request.target));
    }
    if let Some((authority, path)) = split_absolute_target(&request.target) {
        match is_ours(authority) {
            Some(true) => request.target = path,
            Some(false) => return Err(elsewhere(authority)),
            None => return Err(HttpRefusal::new(400, "the request target has no valid host")),
        }
    }
    let is_plain = request.target.starts_with('/') || (request.target == "*" && request.method == "OPTIONS");
    if !is_plain || request.target.contains('#') {
        return Err(HttpRefusal::new(400, "the request target is not a path"));
    }
    let hosts: Vec<Vec<u8>> = field_values(&request.fields, "host").map(<[u8]>::to_vec).collect();
    match (hosts.first(), hosts.get(1)) {
        (None, _) if request.minor == 0 => {}
        (None, _) => return Err(HttpRefusal::new(400, "the Host field is missing")),
        (Some(_), Some(_)) => return Err(HttpRefusal::new(400, "there are two Host fields")),
        (Some(host), None) => match std::str::from_utf8(host).ok().and_then(|text| Some((text, is_ours(text)?))) {
            Some((_, true)) => {}
            Some((text, false)) => return Err(elsewhere(text)),
            None => return Err(HttpRefusal::new(400, "the Host field contains no host name")),
        },
    }
    // After an upgrade to one of these, requests could not be parsed.
    let unreadable = |field: &[u8]| [&b"h2c"[..], b"http/", b"tls/"].iter().any(|p| starts_with(field, p));
    if field_values(&request.fields, "upgrade")
        .flat_map(|v| v.split(|b| *b == b','))
        .any(|v| unreadable(v.trim_ascii()))
    {
        request.remove("Upgrade");
        request.remove("HTTP2-Settings");
        request.remove_words("Connection", &["upgrade", "http2-settings"]);
    }
    if request.minor == 0 {
        request.set_field("Host", &host_field(target, 80));
    }
    Ok(())
}

fn starts_with(text: &[u8], start: &[u8]) -> bool {
    text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

/// Returns a target in the form of a Host field.
pub(crate) fn host_field(target: &NetworkTarget, default_port: u16) -> String {
    let text = target.to_string();
    match text.strip_suffix(&format!(":{default_port}")) {
        Some(host) => host.to_owned(),
        None => text,
    }
}

/// Serves the requests of one connection.
pub(crate) async fn serve_requests(
    session: EgressSession,
    mut client: HttpPeer<impl AsyncRead + Unpin, impl AsyncWrite + Unpin>,
    mut server: HttpPeer<impl AsyncRead + Unpin, impl AsyncWrite + Unpin>,
    is_encrypted: bool,
) {
    let shared = Arc::clone(&session.shared);
    let counts = Arc::clone(&session.recorder.counts);
    let (target, caller) = (session.target.clone(), session.caller.clone());
    let guard = ConnectionGuard::new(&shared.interception.secrets, &target, is_encrypted);
    let guard = guard.as_ref();
    let context = RelayContext { buffers: &shared.buffers, meter: &shared.meter, counts: &counts, guard };
    let admission = RequestAdmission { shared: &shared, target: &target, caller: &caller, is_encrypted };
    loop {
        let request = tokio::select! {
            request = client.reader.read_request() => request,
            // No answer is pending: the server usually closed the connection.
            _ = server.reader.fill_buffer() => return session.record_end(Ok(())),
        };
        let next = match request {
            Ok(None) => return session.record_end(Ok(())),
            Ok(Some(request)) => serve_request(&admission, &mut client, &mut server, request, &context).await,
            Err(trouble) => Err(trouble.into()),
        };
        match next {
            Ok(ExchangeOutcome::Next) => {}
            Ok(ExchangeOutcome::Close) => return session.record_end(Ok(())),
            Ok(ExchangeOutcome::Tunnel) => {
                let ended = relay_upgraded(&mut client, &mut server, &context).await;
                return session.record_end(ended);
            }
            Err(ConnectionFault::Refused(refusal)) => {
                refusal.send_response(&mut client.writer).await;
                return session.record_refused(&refusal.text);
            }
            Err(ConnectionFault::Broken(broken)) => return session.record_end(Err(broken)),
        }
    }
}

/// Reason for the end of a connection for requests.
pub(crate) enum ConnectionFault {
    /// The client gets an answer.
    Refused(HttpRefusal),
    /// The client cannot get an answer.
    Broken(RelayError),
}

impl From<HttpRefusal> for ConnectionFault {
    fn from(refusal: HttpRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<MessageError> for ConnectionFault {
    /// Makes the fault for an error in the client's message.
    fn from(trouble: MessageError) -> Self {
        let (status, why) = match trouble {
            MessageError::Malformed(why @ ("the head is too long" | "the head has too many fields")) => (431, why),
            MessageError::Malformed(why) => (400, why),
            MessageError::Slow => (408, "the request took too long"),
            MessageError::Broken(broken) => return Self::Broken(broken),
        };
        HttpRefusal::new(status, why).into()
    }
}

async fn serve_request(
    admission: &RequestAdmission<'_>,
    client: &mut HttpPeer<impl AsyncRead + Unpin, impl AsyncWrite + Unpin>,
    server: &mut HttpPeer<impl AsyncRead + Unpin, impl AsyncWrite + Unpin>,
    mut request: RequestHead,
    context: &RelayContext<'_>,
) -> Result<ExchangeOutcome, ConnectionFault> {
    admission.count_request()?;
    // Approval of an address includes every name that it serves.
    let serves_all =
        admission.target.host.name().is_none() && !admission.shared.rules.requires_inspection(admission.target);
    check_target(&mut request, admission.target, serves_all).inspect_err(|refusal| {
        if refusal.status == 403 {
            let (events, object) = (&admission.shared.events, admission.target.to_string());
            events.report_denial(DeniedOperation::Connect, object, admission.caller, &refusal.text, None);
        }
    })?;
    admission.check_upgrade(&request)?;
    let admitted = admission.admit_request(&mut request, &mut client.reader).await;
    admission.still_there(admitted, &mut server.reader).await?;
    // The answer may have begun, so that no other can be sent.
    let broken = |trouble: MessageError| ConnectionFault::Broken(trouble.into_relay_error());
    forward_exchange(client, server, &request, context).await.map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(line: &str, fields: &str) -> Result<String, u16> {
        let text = format!("{line}\r\n{fields}\r\n");
        let mut request = RequestHead::parse_head(text.as_bytes()).map_err(|_| 400_u16)?;
        check_target(&mut request, &"a.test:80".parse().unwrap(), false).map_err(|refusal| refusal.status)?;
        Ok(String::from_utf8(request.encode_head()).unwrap().replace("\r\n", "|"))
    }

    #[test]
    fn added_fields_keep_a_head_readable() {
        let most = FIELDS_MAX - FIELDS_ADDED;
        let sent = checked("GET / HTTP/1.0", &"A: b\r\n".repeat(most)).unwrap().replace('|', "\r\n");
        assert!(RequestHead::parse_head(sent.as_bytes()).is_ok());
        assert_eq!(checked("GET / HTTP/1.0", &"A: b\r\n".repeat(most + 1)), Err(431));
    }

    #[test]
    fn a_request_is_for_the_name_that_was_asked_for() {
        let ok = |line, fields, sent: &str| assert_eq!(checked(line, fields).as_deref(), Ok(sent));
        ok("GET /x HTTP/1.1", "Host: a.test\r\n", "GET /x HTTP/1.1|Host: a.test||");
        ok("GET /x HTTP/1.1", "Host: A.Test.:80\r\n", "GET /x HTTP/1.1|Host: A.Test.:80||");
        ok("GET http://a.test?q HTTP/1.1", "Host: a.test\r\n", "GET /?q HTTP/1.1|Host: a.test||");
        ok("OPTIONS * HTTP/1.1", "Host: a.test\r\n", "OPTIONS * HTTP/1.1|Host: a.test||");
        let upgrade = "Host: a.test\r\nUpgrade: x, H2C\r\nHTTP2-Settings: AA\r\n";
        ok("GET / HTTP/1.1", upgrade, "GET / HTTP/1.1|Host: a.test||");
        let upgrade = "Host: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n";
        ok("GET / HTTP/1.1", upgrade, "GET / HTTP/1.1|Host: a.test||");
        let upgrade = "Host: a.test\r\nUpgrade: websocket\r\n";
        ok("GET / HTTP/1.1", upgrade, "GET / HTTP/1.1|Host: a.test|Upgrade: websocket||");
        ok("GET / HTTP/1.0", "", "GET / HTTP/1.0|Host: a.test||");
        for (line, fields, status) in [
            ("GET / HTTP/1.1", "Host: b.test\r\n", 403),
            ("GET / HTTP/1.1", "Host: a.test:81\r\n", 403),
            ("GET / HTTP/1.1", "Host: 127.0.0.1\r\n", 403),
            ("GET http://b.test/ HTTP/1.1", "Host: a.test\r\n", 403),
            ("GET http://a.test/ HTTP/1.1", "Host: b.test\r\n", 403),
            ("CONNECT b.test:443 HTTP/1.1", "Host: a.test\r\n", 403),
            ("GET / HTTP/1.1", "", 400),
            ("GET / HTTP/1.1", "Host: a.test\r\nhost: a.test\r\n", 400),
            ("GET / HTTP/1.1", "Host: a.test, b.test\r\n", 400),
            ("GET / HTTP/1.1", "Host: x@a.test\r\n", 400),
            ("GET / HTTP/1.1", "Host:\r\n", 400),
            ("GET https://a.test/ HTTP/1.1", "Host: a.test\r\n", 400),
            ("GET http://x@a.test/ HTTP/1.1", "Host: a.test\r\n", 400),
            ("GET http:///b HTTP/1.1", "Host: a.test\r\n", 400),
            ("GET b.test HTTP/1.1", "Host: a.test\r\n", 400),
            ("GET * HTTP/1.1", "Host: a.test\r\n", 400),
            ("GET /#x HTTP/1.1", "Host: a.test\r\n", 400),
        ] {
            assert_eq!(checked(line, fields), Err(status), "{line} {fields}");
        }
    }

    #[test]
    fn authorities() {
        let read = |text| parse_authority(text).map(|(host, port)| (host.to_string(), port));
        assert_eq!(read("[::1]:8"), Some(("::1".into(), Some(8))));
        assert_eq!(read("[::1]"), Some(("::1".into(), None)));
        assert_eq!(read("A.b"), Some(("a.b".into(), None)));
        for bad in ["", "::1", "a:", "a:0", "a:+1", "a:443abc", "a:65536", "a:000443", "a b", "a/b", "u@a"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}

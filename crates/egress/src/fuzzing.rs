//! Properties of the parsers of hostile bytes, for `fuzz/`. The parsers do not panic and have
//! exactly one result for each input. Other parsers of the same bytes agree on everything that
//! matters.

use hickory_resolver::proto::op::{Message, ResponseCode};
use rustls::server::Acceptor;
use stockade_model::{Host, InspectionRules, NetworkTarget, RequestPattern, RequestRuling};

use crate::dns::message::{DnsQuestion, pointer_to};
use crate::hello::{self, ClientHello, FirstBytesKind};
use crate::http::direct;
use crate::http::head::{RequestHead, ResponseHead, check_trailer, end_of_head, field_values};
use crate::interception::{PeerMasks, StreamKind, StreamMask};
use crate::proxy::socks;

fn fuzz_target() -> NetworkTarget {
    NetworkTarget { host: Host::from_address(std::net::Ipv4Addr::LOCALHOST.into()), port: 80 }
}

/// Checks a question for a name: the answer is well formed and repeats the name.
pub fn check_dns_message(bytes: &[u8]) {
    let question = match DnsQuestion::parse_query(bytes) {
        Ok(question) => question,
        Err(unanswerable) => {
            assert!(unanswerable.answer.is_none_or(|answer| answer.len() >= 12 && answer[2] & 0x80 != 0));
            return;
        }
    };
    let address = std::net::IpAddr::from(std::net::Ipv4Addr::LOCALHOST);
    let records = vec![address.into(), pointer_to("a.test").expect("a name")];
    let answer = question.encode_answer(ResponseCode::NoError, records).expect("two records fit");
    let Ok(read) = Message::from_vec(&answer) else { panic!("an answer that cannot be read: {answer:?}") };
    assert_eq!((read.queries.len(), read.answers.len()), (1, 2));
    if let Some(name) = &question.name {
        let labels: Vec<&[u8]> = read.queries[0].name().iter().collect();
        assert_eq!(labels.join(&b'.').to_ascii_lowercase(), name.as_bytes());
    }
}

/// Checks the head of a message: if it is accepted, the forwarded head is parsed the same way and
/// is for one host.
pub fn check_message_head(bytes: &[u8]) {
    let _ = check_trailer(bytes);
    let Ok(Some(end)) = end_of_head(bytes) else { return };
    let head = &bytes[..end];
    if let Ok(answer) = ResponseHead::parse_head(head, "GET") {
        assert_eq!(ResponseHead::parse_head(&answer.bytes_with(|_| {}), "GET").as_ref(), Ok(&answer));
    }
    let Ok(mut request) = RequestHead::parse_head(head) else { return };
    assert_eq!(RequestHead::parse_head(&request.encode_head()).as_ref(), Ok(&request));
    if direct::check_target(&mut request, &fuzz_target(), false).is_ok() {
        let sent = request.encode_head();
        assert_eq!(end_of_head(&sent), Ok(Some(sent.len())));
        assert_eq!(RequestHead::parse_head(&sent).as_ref(), Ok(&request));
        let hosts: Vec<_> = field_values(&request.fields, "host").collect();
        assert!(hosts.len() == 1 && hosts[0].starts_with(b"127.0.0.1"), "{hosts:?}");
        assert!(request.target.starts_with('/') || request.target == "*");
    }
}

/// Checks the mask. The input has texts to mask, each with a NUL after it, and after two NULs a
/// stream. However the stream is split, every text in it is masked and nothing else is.
pub fn check_mask(bytes: &[u8]) {
    let Some(end) = memchr::memmem::find(bytes, b"\0\0") else { return };
    let texts: Vec<&[u8]> = bytes[..end].split(|byte| *byte == 0).take(8).collect();
    let stream = &bytes[end + 2..];
    let mut whole = stream.to_vec();
    for text in texts.iter().filter(|text| !text.is_empty()) {
        for (at, _) in stream.windows(text.len()).enumerate().filter(|(_, window)| window == text) {
            whole[at..at + text.len()].fill(b'*');
        }
    }
    let size = usize::from(bytes[0] & 63) + 1;
    for kind in [StreamKind::Message, StreamKind::Relay] {
        let masks = PeerMasks::from_texts(&texts[..texts.len() / 2], &texts[texts.len() / 2..]);
        let mut masked = StreamMask::new(kind);
        let mut out: Vec<u8> = stream.chunks(size).flat_map(|piece| masked.push(piece, &masks)).collect();
        out.extend(masked.finish());
        assert_eq!(out, whole);
    }
}

/// Checks a path against the path of a rule. A refused path is refused in every case of its
/// letters. A path with one reading is text in its only form.
pub fn check_rule_path(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some((rule, path)) = text.split_once(' ') else { return };
    let Ok(rule) = format!("* http://127.0.0.1{rule}").parse::<RequestPattern>() else { return };
    let inspection = InspectionRules { deny: vec![rule.clone()], ..InspectionRules::default() };
    assert_eq!(rule.to_string().parse().as_ref(), Ok(&rule));
    let ruled = |path: &str| inspection.apply_rules(false, &fuzz_target(), "GET", path);
    let ruling = ruled(path);
    if let RequestRuling::Denied(_) = ruling {
        assert_eq!(ruled(&path.to_ascii_uppercase()), ruling);
    }
    if ruling != RequestRuling::Unclear {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let odd = ["//", "/./", "/../", "\\", ";", "%2f", "%2F", "%5c", "%c0", "%00", "%25"];
        assert!(path.starts_with('/') && path.is_ascii() && !odd.iter().any(|odd| path.contains(odd)), "{path}");
    }
}

/// Checks a SOCKS request: it is parsed when it is complete and not before, and its host has
/// exactly one spelling.
pub fn check_socks_request(bytes: &[u8]) {
    if let Ok(Some((target, request_length))) = socks::parse_request(bytes) {
        assert!((0..request_length).all(|length| socks::parse_request(&bytes[..length]) == Ok(None)));
        assert_eq!(target.to_string().parse().as_ref(), Ok(&target));
    }
}

/// Checks a client hello. A truncated hello is incomplete, and another server's parser finds the
/// same name.
pub fn check_client_hello(bytes: &[u8]) {
    let seen = hello::parse_first_bytes(bytes);
    if let FirstBytesKind::Hello(_) = seen {
        let step = bytes.len() / 16 + 1;
        for cut in (0..bytes.len()).step_by(step) {
            let part = hello::parse_first_bytes(&bytes[..cut]);
            assert!(part == seen || part == FirstBytesKind::Incomplete, "{cut}: {part:?}, whole {seen:?}");
        }
    }
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() && acceptor.read_tls(&mut rest).is_ok_and(|read| read > 0) {
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                return assert_same_name(&seen, accepted.client_hello().server_name());
            }
            Ok(None) => {}
            Err(_) => return,
        }
    }
}

fn assert_same_name(seen: &FirstBytesKind, other_name: Option<&str>) {
    match seen {
        FirstBytesKind::Malformed(_) => {}
        FirstBytesKind::Hello(ClientHello { server_name, .. }) => {
            let plain = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
            let ours = server_name.as_ref().map(|name| plain(&String::from_utf8_lossy(name)));
            // The other parser drops a name that is no host name; it is refused later here.
            let is_dropped = other_name.is_none() && ours.is_some();
            assert!(is_dropped || ours == other_name.map(plain), "{ours:?} {other_name:?}");
        }
        FirstBytesKind::Other | FirstBytesKind::Incomplete => panic!("a server takes it, and we saw {seen:?}"),
    }
}

//! Any bytes as the head of an HTTP message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_egress::fuzzing::{RequestHead, ResponseHead, check_target, check_trailer, end_of_head, field_values};
use stockade_model::{Host, NetworkTarget};

fuzz_target!(|bytes: &[u8]| check_message_head(bytes));

fn request_target() -> NetworkTarget {
    NetworkTarget { host: Host::from_address(std::net::Ipv4Addr::LOCALHOST.into()), port: 80 }
}

/// Checks the head of a message: if it is accepted, the forwarded head is parsed the same way and
/// is for one host.
fn check_message_head(bytes: &[u8]) {
    let _ = check_trailer(bytes);
    let Ok(Some(end)) = end_of_head(bytes) else { return };
    let head = &bytes[..end];
    if let Ok(answer) = ResponseHead::parse_head(head, "GET") {
        assert_eq!(ResponseHead::parse_head(&answer.bytes_with(|_| {}), "GET").as_ref(), Ok(&answer));
    }
    let Ok(mut request) = RequestHead::parse_head(head) else { return };
    assert_eq!(RequestHead::parse_head(&request.encode_head()).as_ref(), Ok(&request));
    if check_target(&mut request, &request_target(), false).is_ok() {
        let sent = request.encode_head();
        assert_eq!(end_of_head(&sent), Ok(Some(sent.len())));
        assert_eq!(RequestHead::parse_head(&sent).as_ref(), Ok(&request));
        let hosts: Vec<_> = field_values(&request.fields, "host").collect();
        assert!(hosts.len() == 1 && hosts[0].starts_with(b"127.0.0.1"), "{hosts:?}");
        assert!(request.target.starts_with('/') || request.target == "*");
    }
}

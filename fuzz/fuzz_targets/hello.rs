//! Any bytes as the first of a TLS client.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_egress::fuzzing::{Acceptor, ClientHello, FirstBytesKind, parse_first_bytes};

fuzz_target!(|bytes: &[u8]| check_client_hello(bytes));

/// Checks a client hello. A truncated hello is incomplete, and another server's parser finds the
/// same name.
fn check_client_hello(bytes: &[u8]) {
    let seen = parse_first_bytes(bytes);
    if let FirstBytesKind::Hello(_) = seen {
        let step = bytes.len() / 16 + 1;
        for cut in (0..bytes.len()).step_by(step) {
            let part = parse_first_bytes(&bytes[..cut]);
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

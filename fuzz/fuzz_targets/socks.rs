//! Any bytes as a request of SOCKS.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_egress::fuzzing::parse_request;

fuzz_target!(|bytes: &[u8]| check_socks_request(bytes));

/// Checks a SOCKS request: it is parsed when it is complete and not before, and its host has
/// exactly one spelling.
fn check_socks_request(bytes: &[u8]) {
    if let Ok(Some((target, request_length))) = parse_request(bytes) {
        assert!((0..request_length).all(|length| parse_request(&bytes[..length]) == Ok(None)));
        assert_eq!(target.to_string().parse().as_ref(), Ok(&target));
    }
}

//! Any bytes as a request of SOCKS.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| stockade_egress::fuzzing::check_socks_request(bytes));

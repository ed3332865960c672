//! Any bytes as the first of a TLS client.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| stockade_egress::fuzzing::check_client_hello(bytes));

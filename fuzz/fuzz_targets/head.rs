//! Any bytes as the head of an HTTP message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| stockade_egress::fuzzing::check_message_head(bytes));

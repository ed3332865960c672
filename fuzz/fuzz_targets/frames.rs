//! Any bytes as what a launcher in a container sends.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| stockade_container::fuzzing::check_frames(bytes));

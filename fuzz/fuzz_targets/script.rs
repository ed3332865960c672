//! Any bytes as a script.
#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    let context = shared::context();
    shared::hold(script.len(), || stockade_shell::assess_script(script, &context));
});

//! Any bytes as arguments, which a NUL parts.
#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;
use stockade_model::RawText;

fuzz_target!(|text: &[u8]| {
    let context = shared::context();
    let argv: Vec<RawText> = text.split(|b| *b == 0).map(RawText::from).collect();
    shared::hold(text.len(), || stockade_shell::assess_argv(&argv, &context));
});

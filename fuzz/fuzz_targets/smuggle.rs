//! Whatever stands before it, a command that nobody knows is never allowed.
#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;
use stockade_model::Tier;

/// Ways a command may follow another, and a name that is no program.
const BEHIND: &[&[u8]] =
    &[b"\nzq_unknown", b";zq_unknown", b" && zq_unknown", b"|zq_unknown", b" & zq_unknown x", b" $(zq_unknown)"];

fuzz_target!(|script: &[u8]| {
    let context = shared::context();
    // A backslash joins what follows to its line, a name that is in the text may
    // end a here-document.
    let Some(last) = script.last() else { return };
    if *last == b'\\' || script.windows(3).any(|w| w == b"zq_") {
        return;
    }
    // Only what is allowed by itself can smuggle anything.
    if shared::hold(script.len(), || stockade_shell::assess_script(script, &context)) != Tier::Allow {
        return;
    }
    // Behind a comment only a new line begins a command.
    let behind = if script.contains(&b'#') { &BEHIND[..1] } else { BEHIND };
    for tail in behind {
        let whole = [script, *tail].concat();
        let tier = shared::hold(whole.len(), || stockade_shell::assess_script(&whole, &context));
        assert_ne!(tier, Tier::Allow, "{}", String::from_utf8_lossy(&whole));
    }
});

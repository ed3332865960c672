//! Bytes of a repository's files: no panic, and no driver passes for plain.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let _ = stockade_shell::has_no_submodules(text);
    let _ = stockade_shell::default_toolchain(text);
    if stockade_shell::is_plain_configuration(text) {
        // git reads a section's name without regard to case, wherever its line
        // begins; comments may say anything.
        let lower = text.to_ascii_lowercase();
        for line in lower.split(|b| *b == b'\n') {
            let line = line.trim_ascii_start();
            for section in [&b"[filter"[..], b"[include", b"[submodule", b"[diff ", b"[diff.", b"[merge ", b"[merge."] {
                assert!(!line.starts_with(section), "{}", String::from_utf8_lossy(text));
            }
        }
    }
});

//! Checks that text reaches an interpreter as it was assessed (L5): neither the interpreter nor the
//! terminal before it may change it first.

/// Longest line that a terminal passes on, in bytes; the rest of a longer one is dropped
/// (termios(3), canonical mode).
const MAX_TERMINAL_LINE_BYTES: usize = 4095;

/// Returns the reason why the shell, or another interpreter, would read other text than this;
/// `None` if it reads this text.
pub fn find_alteration(text: &[u8], for_shell: bool, at_terminal: bool) -> Option<&'static str> {
    // Shells drop a NUL from their input and continue with the rest of the word, so that `to`, NUL,
    // `uch` is `touch`. Other interpreters end the text there.
    if text.contains(&0) {
        return Some("it holds a NUL byte, which interpreters leave out or take for the end");
    }
    let mut lines = text.split(|byte| *byte == b'\n');
    if for_shell && lines.clone().any(is_from_history) {
        return Some("a shell may replace `!` and `^` in it by an earlier command");
    }
    if !at_terminal {
        return None;
    }
    if text.iter().any(|byte| *byte != b'\n' && !(b' '..=b'~').contains(byte)) {
        return Some("at a terminal it may hold printable ASCII characters only: others edit or complete the line");
    }
    lines.any(|line| line.len() > MAX_TERMINAL_LINE_BYTES).then_some("it has a line that is too long for a terminal")
}

/// Returns whether history(3) could expand the line. May return true for a quoted one, because
/// quotes protect from less than expected.
fn is_from_history(line: &[u8]) -> bool {
    let designates = |pair: &[u8]| matches!(pair, [b'!', next] if !b" \t\r=(".contains(next));
    line.starts_with(b"^") || line.windows(2).any(designates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, in_pipe: bool, at_terminal: bool) {
        assert_eq!(find_alteration(text.as_bytes(), true, false).is_none(), in_pipe, "{text:?}");
        assert_eq!(find_alteration(text.as_bytes(), true, true).is_none(), at_terminal, "{text:?}");
        assert!(find_alteration(text.as_bytes(), false, false).is_none(), "{text:?}");
    }

    #[test]
    fn altered_text_is_reported() {
        check("echo a; [ 1 != 2 ] && ! false\nkill $! \n", true, true);
        for expanded in ["!!\n", "echo !$\n", "x\n!rm\n", "^a^b\n", "x\n^a^b\n", "echo \"!x\"\n", "!-2", "a!\"b"] {
            check(expanded, false, false);
        }
        for edited in ["a\tb\n", "a\x15b\n", "a\x1b[Ab\n", "a\rb\n", "a\x7fb\n", "\u{e4}\n", "\x04\n"] {
            check(edited, true, false);
        }
        for dropped in [&b"to\0uch x\n"[..], b"\0", b"a\n\0b\n"] {
            for for_shell in [true, false] {
                assert!(find_alteration(dropped, for_shell, false).is_some(), "{dropped:?}");
            }
        }
        check(&format!("{}\n", "a".repeat(4095)), true, true);
        check(&format!("{}\n", "a".repeat(4096)), true, false);
    }
}

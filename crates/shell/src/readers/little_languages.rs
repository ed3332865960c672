//! Programs in arguments: sed, awk, jq. Only a small harmless part of each language is understood;
//! the rest is `ask`.

use crate::classify::Classifier;
use crate::knowledge::{ValueKind, lists};
use crate::words::ExpandedArgument;

/// Accepts a program in a language that has this kind, if it surely only reads.
pub(super) fn accept_program(classifier: &mut Classifier, kind: ValueKind, value: &ExpandedArgument) {
    let (is_harmless, code, message): (fn(&[u8]) -> bool, _, _) = match kind {
        ValueKind::Sed => (is_harmless_sed, "sed-script", "A sed script that may do more than print."),
        ValueKind::Awk => (is_harmless_awk, "awk-program", "An awk program that may do more than print."),
        _ => (is_harmless_jq, "jq-filter", "A filter that may do more than read its input."),
    };
    if !value.literal_value().is_some_and(|program| is_harmless(&program)) {
        classifier.record_ask(code, message, value.span);
    }
}

/// Returns whether a sed script has only addresses and commands that print, delete or substitute
/// (sed(1) 4.9). `e`, `r`, `R`, `w`, `W` and the flags `e` and `w` of `s` run programs or access
/// files.
fn is_harmless_sed(script: &[u8]) -> bool {
    SedReader { script, at: 0 }.is_harmless()
}

struct SedReader<'a> {
    script: &'a [u8],
    at: usize,
}

impl SedReader<'_> {
    fn peek(&self) -> Option<u8> {
        self.script.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Skips the next byte if it is one of these.
    fn skip_one(&mut self, bytes: &[u8]) -> bool {
        let is_it = self.peek().is_some_and(|byte| bytes.contains(&byte));
        self.at += usize::from(is_it);
        is_it
    }

    fn skip_bytes(&mut self, matches_byte: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&matches_byte) {
            self.at += 1;
        }
    }

    fn is_harmless(&mut self) -> bool {
        loop {
            self.skip_bytes(|b| b.is_ascii_whitespace() || b == b';' || b == b'{' || b == b'}');
            if self.peek().is_none() {
                return true;
            }
            if self.parse_command().is_none() {
                return false;
            }
        }
    }

    /// Parses one command with its addresses; `None` if it is unknown.
    fn parse_command(&mut self) -> Option<()> {
        if self.parse_address()? {
            self.skip_bytes(|b| b == b' ');
            if self.skip_one(b",") {
                self.skip_bytes(|b| b == b' ');
                self.skip_one(b"+~");
                if !self.parse_address()? {
                    return None;
                }
            }
        }
        self.skip_bytes(|b| b == b' ' || b == b'!');
        match self.next()? {
            b'p' | b'P' | b'd' | b'D' | b'=' | b'n' | b'N' | b'g' | b'G' | b'h' | b'H' | b'x' | b'z' | b'F' => {}
            b'l' | b'q' | b'Q' => self.skip_bytes(|b| b.is_ascii_digit() || b == b' '),
            b'{' => return Some(()),
            b's' => self.parse_substitution()?,
            b'y' => {
                let delimiter = self.take_delimiter()?;
                self.skip_past(delimiter, false)?;
                self.skip_past(delimiter, false)?;
            }
            _ => return None,
        }
        self.skip_bytes(|b| b == b' ');
        matches!(self.peek(), None | Some(b';' | b'\n' | b'}')).then_some(())
    }

    /// Parses an address; returns whether there is one.
    fn parse_address(&mut self) -> Option<bool> {
        if self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.skip_bytes(|b| b.is_ascii_digit() || b == b'~');
        } else if self.peek() == Some(b'/') || self.skip_one(b"\\") {
            let delimiter = self.take_delimiter()?;
            self.skip_past(delimiter, true)?;
            self.skip_bytes(|b| b == b'I' || b == b'M');
        } else {
            return Some(self.skip_one(b"$"));
        }
        Some(true)
    }

    fn take_delimiter(&mut self) -> Option<u8> {
        let delimiter = self.next()?;
        (!delimiter.is_ascii_alphanumeric()
            && !delimiter.is_ascii_whitespace()
            && delimiter != b'\\'
            && delimiter < 128)
            .then_some(delimiter)
    }

    /// Skips past the next delimiter that is not escaped. In the brackets of a pattern, a delimiter
    /// is an ordinary byte for some versions of sed and the end for others, so it is unknown.
    fn skip_past(&mut self, delimiter: u8, in_pattern: bool) -> Option<()> {
        loop {
            let byte = self.next()?;
            match byte {
                b'\\' => self.at += 1,
                b'\n' => return None,
                _ if byte == delimiter => return Some(()),
                b'[' if in_pattern => self.parse_brackets(delimiter)?,
                _ => {}
            }
        }
    }

    /// Parses the rest of a bracket expression as in regex(7).
    fn parse_brackets(&mut self, delimiter: u8) -> Option<()> {
        self.skip_one(b"^");
        self.skip_one(b"]");
        loop {
            let byte = self.next()?;
            match byte {
                b']' => return Some(()),
                b'[' if self.peek().is_some_and(|b| b":.=".contains(&b)) => {
                    let kind = self.next()?;
                    while !(self.peek()? == kind && self.script.get(self.at + 1) == Some(&b']')) {
                        if matches!(self.peek(), Some(b'\n' | b'\\')) || self.peek() == Some(delimiter) {
                            return None;
                        }
                        self.at += 1;
                    }
                    self.at += 2;
                }
                // A backslash is literal here for some versions and escapes for others.
                b'\n' => return None,
                b'\\' if matches!(self.peek(), Some(b']' | b'\\')) => return None,
                _ if byte == delimiter => return None,
                _ => {}
            }
        }
    }

    fn parse_substitution(&mut self) -> Option<()> {
        let delimiter = self.take_delimiter()?;
        self.skip_past(delimiter, true)?;
        self.skip_past(delimiter, false)?;
        self.skip_bytes(|b| b.is_ascii_digit() || matches!(b, b'g' | b'p' | b'i' | b'I' | b'm' | b'M'));
        Some(())
    }
}

/// Returns whether an awk program cannot run, write or connect: no pipes, no output redirection, no
/// `@`, no harmful name.
fn is_harmless_awk(program: &[u8]) -> bool {
    let Some(code) = without_strings(program) else { return false };
    for (i, &byte) in code.iter().enumerate() {
        match byte {
            b'@' | b'`' => return false,
            b'|' if code.get(i + 1) != Some(&b'|') && (i == 0 || code[i - 1] != b'|') => return false,
            // `>` compares in a pattern or in parentheses, otherwise it writes.
            b'>' if writes_at(&code, i) => return false,
            _ => {}
        }
    }
    awk_names(&code).all(|name| !lists::AWK_HARMFUL.iter().any(|h| is_called(name, h.as_bytes())))
}

/// Returns whether a sequence of letters and digits is this name, or a number followed by this
/// name: awk needs no space between them.
fn is_called(run: &[u8], name: &[u8]) -> bool {
    run == name || (run.first().is_some_and(u8::is_ascii_digit) && run.ends_with(name))
}

/// Returns whether a `>` is in an action after `print`.
fn writes_at(code: &[u8], at: usize) -> bool {
    let before = &code[..at];
    let statement = before.iter().rposition(|b| matches!(b, b'{' | b';' | b'\n' | b'}')).map_or(0, |i| i + 1);
    awk_names(&before[statement..]).any(|n| is_called(n, b"print") || is_called(n, b"printf"))
}

fn awk_names(code: &[u8]) -> impl Iterator<Item = &[u8]> {
    code.split(|b| !b.is_ascii_alphanumeric() && *b != b'_').filter(|n| !n.is_empty())
}

/// Returns the program without string contents and patterns; `None` if the strings cannot be
/// determined.
fn without_strings(program: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(program.len());
    let mut at = 0;
    while at < program.len() {
        let byte = program[at];
        at += 1;
        let opens_pattern = byte == b'/' && opens_pattern(&out);
        // After `)` it may be either, so the rest must be the same in both cases.
        let either = byte == b'/' && out.iter().rev().find(|b| !b.is_ascii_whitespace()) == Some(&b')');
        if either && program[at..].iter().any(|b| matches!(b, b'"' | b'/')) {
            return None;
        }
        if byte == b'#' {
            return None;
        }
        if byte != b'"' && !opens_pattern {
            out.push(byte);
            continue;
        }
        out.push(b' ');
        loop {
            let inside = *program.get(at)?;
            at += 1;
            match inside {
                b'\\' => at += 1,
                b'\n' => return None,
                // A slash in brackets is read differently by different versions of awk.
                b'[' if opens_pattern && program[at..].iter().take_while(|b| **b != b']').any(|b| *b == b'/') => {
                    return None;
                }
                _ if inside == byte => break,
                _ => {}
            }
        }
        // A separate value, not the beginning of a name.
        out.extend(b"0 ");
    }
    Some(out)
}

/// Returns whether a slash begins a pattern: at the start, after an operator, or after a keyword
/// that takes a value.
fn opens_pattern(before: &[u8]) -> bool {
    let before = before.trim_ascii_end();
    let Some(last) = before.last() else { return true };
    if last.is_ascii_alphanumeric() || *last == b'_' {
        let start = before.iter().rposition(|b| !b.is_ascii_alphanumeric() && *b != b'_').map_or(0, |i| i + 1);
        return lists::has_word(lists::VALUE_KEYWORDS, &before[start..]);
    }
    !matches!(last, b')' | b']' | b'$' | b'\'' | b'`' | b'.') && !before.ends_with(b"++") && !before.ends_with(b"--")
}

/// Returns whether a jq filter only reads its input: no `env`, no `$ENV`, no modules, no use of
/// `input_filename` (jq(1) 1.6).
fn is_harmless_jq(filter: &[u8]) -> bool {
    !awk_names(filter).any(|name| lists::has_word(lists::JQ_HARMFUL, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_sed(script: &str, harmless: bool) {
        assert_eq!(SedReader { script: script.as_bytes(), at: 0 }.is_harmless(), harmless, "{script}");
    }

    #[test]
    fn sed_scripts_that_hide_a_command_are_seen() {
        for harmless in ["p", "1,5p", "$=", "/^fn/,/^}/p", "s/a/b/g", "s|a|b|", "s/[a/]*b", "y/ab/cd/", "s/[^]x]/y/"] {
            check_sed(harmless, harmless != "s/[a/]*b");
        }
        for hidden in [
            "s/[]/]/;s/;e id;/x/;",
            "s/[^]/]/;s/;e id;/x/;",
            "s/[[:alpha:]/]/;s/;e id;/x/;",
            "/[]/]/;s/;e id;/x/;",
            "1e id",
            "s/a/b/e",
            "s/a/b/w f",
            "w f",
            "r /etc/shadow",
            "a\\x",
        ] {
            check_sed(hidden, false);
        }
    }

    #[test]
    fn awk_programs_that_hide_a_write_are_seen() {
        for harmless in [
            "{print $1}",
            "$3 >= 1000 {print $1}",
            "/x/ {print}",
            "{print ($1+$2)/2}",
            "NR==1 || /\"/ {print \"a/b\"}",
            "{n += $1 / 2} END {print n}",
        ] {
            assert!(is_harmless_awk(harmless.as_bytes()), "{harmless}");
        }
        for hidden in [
            "{ print /\"/ ; print \"x\" > \"f\" ; print /\"/ }",
            "{ x = y ~ 1 ? 1 : /\"/ ; print \"x\" > \"f\" ; print /\"/ }",
            "{ if (1) /\"/ ; print \"x\" > \"f\" ; print /\"/ }",
            "{ return /\"/ ; print \"x\" | \"sh\" ; print /\"/ }",
            "/x/system(\"id\")",
            "1$1system(\"id\")",
            "1e1system(\"id\")",
            "1print >\"f\"",
            "\"x\"system(\"id\")",
            "BEGIN{system(\"id\")}",
            "{print > \"f\"}",
            "{\"id\" | getline}",
            "@load \"x\"",
        ] {
            assert!(!is_harmless_awk(hidden.as_bytes()), "{hidden}");
        }
    }
}

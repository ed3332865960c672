//! The text of git's settings (git-config(1), "Syntax") as entries. Pure: it knows neither files
//! nor the meaning of a key.
//!
//! Two readers look for entries, and the result is the union of both: the exact reader of
//! `settings_reader`, so that no entry that was checked is missing here, and a lenient one for the
//! texts that the exact reader refuses.

use std::collections::HashSet;

use super::settings_reader;

/// One setting: section and key in lower case, and the value.
type Entry = (String, String, Vec<u8>);

/// Returns the settings of a file as (section, key, value); section and key are in lower case.
pub(super) fn parse_entries(text: &[u8]) -> Vec<Entry> {
    let exact = settings_reader::parse_settings(text).unwrap_or_default();
    let exact = exact.into_iter().map(|one| (one.section, one.key, one.value.unwrap_or_default()));
    let mut known = HashSet::new();
    exact.chain(lenient_entries(text)).filter(|entry| known.insert(entry.clone())).collect()
}

fn lenient_entries(text: &[u8]) -> impl Iterator<Item = Entry> {
    let mut section = String::new();
    logical_lines(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)).into_iter().filter_map(move |line| {
        let mut line = line.trim_ascii();
        while let Some(header) = line.strip_prefix(b"[") {
            let end = header_end(header)?;
            let first = header[..end].split(|b| b.is_ascii_whitespace() || *b == b'.' || *b == b'"').next()?;
            section = String::from_utf8_lossy(first).to_ascii_lowercase();
            line = header[end + 1..].trim_ascii();
        }
        if line.is_empty() || matches!(line[0], b'#' | b';') {
            return None;
        }
        let (key, value) = match line.iter().position(|b| *b == b'=') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        let key = String::from_utf8_lossy(key.trim_ascii()).to_ascii_lowercase();
        Some((section.clone(), key, unquote_value(value)))
    })
}

/// Returns the position of the bracket that ends a header. Brackets within the quotes of a
/// subsection do not count.
fn header_end(header: &[u8]) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    header.iter().position(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b']' => return !quoted,
            _ => {}
        }
        false
    })
}

/// Returns the lines, with lines that end in a backslash joined to the next one.
fn logical_lines(text: &[u8]) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = Vec::new();
    let (mut continues, mut quoted) = (false, false);
    for line in text.split(|b| *b == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let goes_on = is_continued(line, &mut quoted);
        let line = line.strip_suffix(b"\\").filter(|_| goes_on).unwrap_or(line);
        match lines.last_mut().filter(|_| continues) {
            Some(last) => last.extend_from_slice(line),
            None => lines.push(line.to_vec()),
        }
        continues = goes_on;
    }
    lines
}

/// Returns whether the next line continues this one. A comment is never continued, even if it ends
/// in a backslash. `quoted` is the state of the quotes at the beginning and then at the end.
fn is_continued(line: &[u8], quoted: &mut bool) -> bool {
    let mut escaped = false;
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => *quoted = !*quoted,
            b'#' | b';' if !*quoted => return false,
            _ => {}
        }
    }
    *quoted = escaped && *quoted;
    escaped
}

/// Returns a value without quotes, escapes and comment.
fn unquote_value(value: &[u8]) -> Vec<u8> {
    let (mut plain, mut quoted, mut escaped) = (Vec::new(), false, false);
    for byte in value.trim_ascii() {
        match byte {
            _ if escaped => {
                plain.push(match byte {
                    b'n' => b'\n',
                    b't' => b'\t',
                    other => *other,
                });
                escaped = false;
            }
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'#' | b';' if !quoted => break,
            _ => plain.push(*byte),
        }
    }
    if quoted { plain } else { plain.trim_ascii_end().to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, &str, &str)]) {
        let found: Vec<(String, String, Vec<u8>)> = parse_entries(text.as_bytes());
        let expected: Vec<_> =
            expected.iter().map(|(s, k, v)| ((*s).to_owned(), (*k).to_owned(), v.as_bytes().to_vec())).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn subsections_hold_brackets_and_quotes() {
        check("[filter \"x]y\"] clean=a\n", &[("filter", "clean", "a")]);
        check("[Diff \"a\\\"]b\"]\nTextConv = t\n", &[("diff", "textconv", "t")]);
        check("[a.b] k=1\n[c]d\n", &[("a", "k", "1"), ("c", "d", "")]);
        check("[open \"x] k=1\n", &[]);
    }

    #[test]
    fn a_comment_hides_no_line_after_it() {
        for comment in ["[a] k = 1 # \\", "[a] ; \\", "[a]\n# \\", "[a]\nk = \"#\" ; \\", "[a \"#\"] k = 1 ;\\\\\\"] {
            for end in ["\n", "\r\n"] {
                let text = format!("{comment}{end}[core]{end}hooksPath = to\\{end}ols{end}");
                let found = parse_entries(text.as_bytes());
                assert!(found.contains(&("core".into(), "hookspath".into(), b"tools".to_vec())), "{text:?}: {found:?}");
            }
        }
    }

    /// The judge of a text and the search for the paths that it names must read the same settings.
    /// Only the exact reader keeps the blanks before a continued line.
    #[test]
    fn the_lenient_reader_finds_all_that_the_exact_one_finds() {
        let parts = ["[a]", "[a \"#\"]", "k=", "v", "\"", "\\", "\n", "#", ";", " ", "k2 = x", "[b]\nz"];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut read = 0;
        for _ in 0..200_000 {
            let mut text = String::from("[s]\n");
            for _ in 0..12 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                text.push_str(parts[usize::try_from(state >> 32).unwrap() % parts.len()]);
            }
            text.push_str("\n[core]\nhooksPath = h\n");
            let Some(exact) = settings_reader::parse_settings(text.as_bytes()) else { continue };
            read += 1;
            let trimmed = |(section, key, value): Entry| (section, key, value.trim_ascii().to_vec());
            let lenient: Vec<Entry> = lenient_entries(text.as_bytes()).map(trimmed).collect();
            for one in exact {
                let entry = trimmed((one.section, one.key, one.value.unwrap_or_default()));
                assert!(lenient.contains(&entry), "{text:?}: {entry:?} is not in {lenient:?}");
            }
        }
        assert!(read > 10_000, "only {read} texts were read");
    }

    #[test]
    fn values_without_quotes_escapes_and_comments() {
        check("[a]k = \"x ; y\" z # c\n", &[("a", "k", "x ; y z")]);
        check("[a]k = !sh\\tz.sh\\nx\n", &[("a", "k", "!sh\tz.sh\nx")]);
        check("[a]k = on\\\ne\n;c \\\nj = 2\n", &[("a", "k", "one"), ("a", "j", "2")]);
    }
}

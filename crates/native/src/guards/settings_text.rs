//! The text of git's settings (git-config(1), "Syntax") as entries. Pure: it knows neither files
//! nor the meaning of a key.

/// Returns the settings of a file as (section, key, value); section and key are in lower case.
pub(super) fn parse_entries(text: &[u8]) -> impl Iterator<Item = (String, String, Vec<u8>)> {
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
    let mut continues = false;
    for line in text.split(|b| *b == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (line, goes_on) = match line.strip_suffix(b"\\") {
            Some(rest) if !rest.ends_with(b"\\") && (continues || !is_comment(line)) => (rest, true),
            _ => (line, false),
        };
        match lines.last_mut().filter(|_| continues) {
            Some(last) => last.extend_from_slice(line),
            None => lines.push(line.to_vec()),
        }
        continues = goes_on;
    }
    lines
}

fn is_comment(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start().first(), Some(b'#' | b';'))
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
        let found: Vec<(String, String, Vec<u8>)> = parse_entries(text.as_bytes()).collect();
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
    fn values_without_quotes_escapes_and_comments() {
        check("[a]k = \"x ; y\" z # c\n", &[("a", "k", "x ; y z")]);
        check("[a]k = !sh\\tz.sh\\nx\n", &[("a", "k", "!sh\tz.sh\nx")]);
        check("[a]k = on\\\ne\n;c \\\nj = 2\n", &[("a", "k", "one"), ("a", "j", "2")]);
    }
}

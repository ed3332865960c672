//! Parses the files of the knowledge base: a small part of TOML. The values are borrowed from the
//! text, and one table is parsed at a time, because classifying one command must not cost hundreds
//! of tables. A test checks that the result equals that of the `toml` crate.

/// Value; the files need no other kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableValue {
    Text(&'static str),
    Flag(bool),
    List(Vec<&'static str>),
}

/// Name of a table, and the text up to the next one.
pub(crate) type TextTable = (&'static str, &'static str);

/// Returns the tables of a file in order. Only a header starts a line with a bracket.
pub(crate) fn parse_tables(text: &'static str) -> impl Iterator<Item = TextTable> {
    let mut rest = text.find("\n[").map_or("", |at| &text[at + 1..]);
    std::iter::from_fn(move || {
        let end = rest.find("]\n")?;
        let name = rest.get(1..end)?;
        let body = &rest[end + 2..];
        let next = body.find("\n[").map_or(body.len(), |at| at + 1);
        rest = &body[next..];
        Some((name.trim_matches('"'), &body[..next]))
    })
}

/// Returns the keys of a table; `Err` contains the line that could not be parsed.
pub(crate) fn parse_pairs(
    body: &'static str,
) -> impl Iterator<Item = Result<(&'static str, TableValue), &'static str>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        loop {
            let line = rest.split('\n').next()?;
            if rest.is_empty() {
                return None;
            }
            if !line.trim().is_empty() && !line.starts_with('#') {
                let Some((key, value, after)) = parse_pair(rest) else {
                    rest = "";
                    return Some(Err(line));
                };
                rest = after;
                return Some(Ok((key, value)));
            }
            rest = rest.get(line.len() + 1..).unwrap_or_default();
        }
    })
}

/// Parses one key with its value; also returns the rest.
fn parse_pair(text: &'static str) -> Option<(&'static str, TableValue, &'static str)> {
    let (key, rest) = text.split_once(" = ")?;
    if !key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') {
        return None;
    }
    let (value, rest) = if let Some(rest) = rest.strip_prefix('[') {
        parse_list(rest)?
    } else if let Some(rest) = rest.strip_prefix("true") {
        (TableValue::Flag(true), rest)
    } else if let Some(rest) = rest.strip_prefix("false") {
        (TableValue::Flag(false), rest)
    } else {
        let (text, rest) = parse_string(rest)?;
        (TableValue::Text(text), rest)
    };
    let line_end = rest.find('\n').unwrap_or(rest.len());
    rest[..line_end].trim().is_empty().then(|| (key, value, rest.get(line_end + 1..).unwrap_or_default()))
}

/// Parses a string without escapes, in either kind of quotes.
fn parse_string(text: &'static str) -> Option<(&'static str, &'static str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (inside, rest) = text[1..].split_once(quote)?;
    let plain = !inside.contains('\n') && (quote == '\'' || !inside.contains('\\'));
    plain.then_some((inside, rest))
}

fn parse_list(text: &'static str) -> Option<(TableValue, &'static str)> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix(']') {
            return Some((TableValue::List(out), after));
        }
        let (item, after) = parse_string(rest)?;
        out.push(item);
        rest = after.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if rest.starts_with(']') => rest,
            None => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read() {
        let text = "# top\n\n[a]\nsource = \"x\"\n# why\nnumeric = true\nallow = [\n  'a \"b\"',\n  \"c\",\n]\n\n[\"a b\"]\nflags = \"-x\"\n";
        let all: Vec<TextTable> = parse_tables(text).collect();
        assert_eq!(all.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "a b"]);
        let keys: Vec<_> = parse_pairs(all[0].1).collect::<Result<_, _>>().unwrap();
        let expected = [
            ("source", TableValue::Text("x")),
            ("numeric", TableValue::Flag(true)),
            ("allow", TableValue::List(vec!["a \"b\"", "c"])),
        ];
        assert_eq!(keys, expected);
        assert_eq!(parse_pairs(all[1].1).count(), 1);
    }

    #[test]
    fn unsupported_syntax_is_refused() {
        for text in ["a = 5\n", "a = \"x\\n\"\n", "a = \"x\" y\n", "A = true\n", "a = [\"x\" \"y\"]\n", "a\n"] {
            assert!(parse_pairs(text).any(|p| p.is_err()), "{text:?}");
        }
    }
}

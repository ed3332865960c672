//! A JSON parser that keeps the line and column of every value, so that a note can refer to an entry that
//! cannot be imported. RFC 8259; on request, comments and a trailing comma are skipped, as in editors'
//! settings.
//!
//! Must not know the meaning of the text. Limited in depth; never panics.

use crate::error::{LineIndex, TextPosition};

/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// A value and its start position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpannedJson {
    pub at: TextPosition,
    pub value: JsonValue,
}

/// A JSON value. A number keeps its text, because no caller computes with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JsonValue {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<SpannedJson>),
    Object(Vec<(JsonKey, SpannedJson)>),
}

/// A name in an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonKey {
    pub at: TextPosition,
    pub name: String,
}

/// An error in a text, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PositionedError {
    pub at: TextPosition,
    pub why: String,
}

impl SpannedJson {
    pub(crate) fn as_text(&self) -> Option<&str> {
        if let JsonValue::Text(text) = &self.value { Some(text) } else { None }
    }

    pub(crate) fn as_bool(&self) -> Option<bool> {
        if let JsonValue::Bool(value) = self.value { Some(value) } else { None }
    }

    pub(crate) fn as_list(&self) -> Option<&[SpannedJson]> {
        if let JsonValue::List(items) = &self.value { Some(items) } else { None }
    }

    pub(crate) fn as_object(&self) -> Option<&[(JsonKey, SpannedJson)]> {
        if let JsonValue::Object(entries) = &self.value { Some(entries) } else { None }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&SpannedJson> {
        self.as_object()?.iter().find(|(key, _)| key.name == name).map(|(_, value)| value)
    }

    /// Returns the kind of the value: `a string`, `a list` ...
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.value {
            JsonValue::Null => "null",
            JsonValue::Bool(_) => "true or false",
            JsonValue::Number(_) => "a number",
            JsonValue::Text(_) => "a string",
            JsonValue::List(_) => "a list",
            JsonValue::Object(_) => "an object",
        }
    }
}

/// Parses a whole text.
pub(crate) fn parse_json(source: &str, comments: bool) -> Result<SpannedJson, PositionedError> {
    let mut reader =
        JsonReader { source, bytes: source.as_bytes(), at: 0, lines: LineIndex::from_source(source), comments };
    if source.starts_with('\u{feff}') {
        reader.at = 3;
    }
    let value = reader.parse_value(0)?;
    reader.skip_blanks()?;
    if reader.at < reader.bytes.len() { reader.fail_here("something follows the value") } else { Ok(value) }
}

struct JsonReader<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
    lines: LineIndex<'a>,
    comments: bool,
}

impl JsonReader<'_> {
    fn fail_here<T>(&self, why: impl Into<String>) -> Result<T, PositionedError> {
        Err(PositionedError { at: self.lines.position_at(self.at), why: why.into() })
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_blanks(&mut self) -> Result<(), PositionedError> {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                b'/' if self.comments => self.skip_comment()?,
                _ => break,
            }
        }
        Ok(())
    }

    fn skip_comment(&mut self) -> Result<(), PositionedError> {
        let rest = &self.source[self.at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            match rest.find("*/") {
                Some(end) => end + 2,
                None => return self.fail_here("the comment does not end"),
            }
        } else {
            return self.fail_here("expected a value");
        };
        self.at += length;
        Ok(())
    }

    fn parse_value(&mut self, depth: usize) -> Result<SpannedJson, PositionedError> {
        self.skip_blanks()?;
        if depth > MAX_DEPTH {
            return self.fail_here(format!("nested deeper than {MAX_DEPTH}"));
        }
        let at = self.lines.position_at(self.at);
        let value = match self.peek() {
            Some(b'{') => self.parse_entries(depth)?,
            Some(b'[') => self.parse_items(depth)?,
            Some(b'"') => JsonValue::Text(self.parse_string()?),
            Some(b'-' | b'0'..=b'9') => self.parse_number()?,
            _ => self.parse_word()?,
        };
        Ok(SpannedJson { at, value })
    }

    fn parse_word(&mut self) -> Result<JsonValue, PositionedError> {
        let words = [("null", JsonValue::Null), ("true", JsonValue::Bool(true)), ("false", JsonValue::Bool(false))];
        let rest = &self.bytes[self.at..];
        match words.into_iter().find(|(word, _)| rest.starts_with(word.as_bytes())) {
            Some((word, value)) => {
                self.at += word.len();
                Ok(value)
            }
            None if rest.is_empty() => self.fail_here("the text ends too early"),
            None => self.fail_here("expected a value"),
        }
    }

    fn parse_number(&mut self) -> Result<JsonValue, PositionedError> {
        let start = self.at;
        let fits = |b: u8| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E');
        while self.peek().is_some_and(fits) {
            self.at += 1;
        }
        let text = &self.source[start..self.at];
        if text.parse::<f64>().is_err() {
            self.at = start;
            return self.fail_here("this is no number");
        }
        Ok(JsonValue::Number(text.to_owned()))
    }

    fn parse_items(&mut self, depth: usize) -> Result<JsonValue, PositionedError> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.skip_blanks()?;
            if self.peek() == Some(b']') && (items.is_empty() || self.comments) {
                break;
            }
            items.push(self.parse_value(depth + 1)?);
            if !self.parse_separator(b']')? {
                break;
            }
        }
        self.at += 1;
        Ok(JsonValue::List(items))
    }

    fn parse_entries(&mut self, depth: usize) -> Result<JsonValue, PositionedError> {
        self.at += 1;
        let mut entries: Vec<(JsonKey, SpannedJson)> = Vec::new();
        loop {
            self.skip_blanks()?;
            if self.peek() == Some(b'}') && (entries.is_empty() || self.comments) {
                break;
            }
            let at = self.lines.position_at(self.at);
            if self.peek() != Some(b'"') {
                return self.fail_here(if self.peek().is_none() {
                    "the text ends too early"
                } else {
                    "expected a name in quotes"
                });
            }
            let name = self.parse_string()?;
            if entries.iter().any(|(key, _)| key.name == name) {
                return Err(PositionedError { at, why: format!("`{name}` stands here twice") });
            }
            self.skip_blanks()?;
            if self.peek() != Some(b':') {
                return self.fail_here("expected `:`");
            }
            self.at += 1;
            entries.push((JsonKey { at, name }, self.parse_value(depth + 1)?));
            if !self.parse_separator(b'}')? {
                break;
            }
        }
        self.at += 1;
        Ok(JsonValue::Object(entries))
    }

    /// Returns true after a comma; false at the end.
    fn parse_separator(&mut self, end: u8) -> Result<bool, PositionedError> {
        self.skip_blanks()?;
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == end => Ok(false),
            None => self.fail_here("the text ends too early"),
            Some(_) => self.fail_here(format!("expected `,` or `{}`", char::from(end))),
        }
    }

    fn parse_string(&mut self) -> Result<String, PositionedError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(c) = self.source[self.at..].chars().next() else {
                return self.fail_here("the string does not end");
            };
            match c {
                '"' => break,
                '\\' => text.push(self.parse_escape()?),
                c if c < ' ' => return self.fail_here("a control stands in a string"),
                c => {
                    text.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
        self.at += 1;
        Ok(text)
    }

    fn parse_escape(&mut self) -> Result<char, PositionedError> {
        let c = match self.bytes.get(self.at + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.parse_unicode_escape(),
            _ => return self.fail_here("this escape is not known"),
        };
        self.at += 2;
        Ok(c)
    }

    fn parse_unicode_escape(&mut self) -> Result<char, PositionedError> {
        let code = |at: usize| {
            let digits = self.bytes.get(at + 2..at + 6).and_then(|d| std::str::from_utf8(d).ok());
            let plain = digits.filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
            plain.and_then(|d| u32::from_str_radix(d, 16).ok())
        };
        let Some(first) = code(self.at) else { return self.fail_here("four hexadecimal digits follow `\\u`") };
        let (value, length) = match first {
            0xd800..0xdc00 if self.bytes.get(self.at + 6..self.at + 8) == Some(b"\\u") => match code(self.at + 6) {
                Some(second @ 0xdc00..0xe000) => (0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00), 12),
                _ => return self.fail_here("half of a character"),
            },
            _ => (first, 6),
        };
        let Some(c) = char::from_u32(value) else { return self.fail_here("half of a character") };
        self.at += length;
        Ok(c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn wrong(source: &str, comments: bool, line: usize, column: usize) {
        let fault = parse_json(source, comments).unwrap_err();
        assert_eq!((fault.at.line, fault.at.column), (line, column), "{source:?}: {}", fault.why);
    }

    #[test]
    fn values_know_their_place() {
        let value = parse_json("{\n  \"a\": [1, \"x\\u00e9\\n\", true],\n  \"b\": null\n}", false).unwrap();
        let a = value.get("a").unwrap();
        assert_eq!((a.at.line, a.at.column), (2, 8));
        assert_eq!(a.as_list().unwrap()[1].as_text(), Some("xé\n"));
        assert_eq!(value.get("b").unwrap().value, JsonValue::Null);
        assert_eq!(parse_json("\"\\ud83d\\ude00\"", false).unwrap().as_text(), Some("😀"));
        let commented = "// a\n{ /* b */ \"a\": [1,], // c\n}";
        assert!(parse_json(commented, true).is_ok() && parse_json(commented, false).is_err());
    }

    #[test]
    fn faults_know_their_place() {
        wrong("", false, 1, 1);
        wrong("{\n \"a\" 1}", false, 2, 6);
        wrong("[1,\n]", false, 2, 1);
        wrong("{\"a\": 1, \"a\": 2}", false, 1, 10);
        wrong("[1] x", false, 1, 5);
        wrong("\"a\nb\"", false, 1, 3);
        wrong("\"\\ud800\"", false, 1, 2);
        wrong("[-]", false, 1, 2);
        wrong("/* x", true, 1, 1);
        wrong(&"[".repeat(100), false, 1, 66);
    }
}

//! A JSON parser that keeps the line and column of every value, so that a note can refer to an entry that
//! cannot be imported. RFC 8259; on request, comments and a trailing comma are skipped, as in editors'
//! settings.
//!
//! Must not know the meaning of the text. Limited in depth; never panics.

use crate::error::{Lines, Place};

/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// A value and its start position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spanned {
    pub at: Place,
    pub value: Json,
}

/// A JSON value. A number keeps its text, because no caller computes with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Spanned>),
    Object(Vec<(Key, Spanned)>),
}

/// A name in an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub at: Place,
    pub name: String,
}

/// An error in a text, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub at: Place,
    pub why: String,
}

impl Spanned {
    pub(crate) fn text(&self) -> Option<&str> {
        if let Json::Text(text) = &self.value { Some(text) } else { None }
    }

    pub(crate) fn bool(&self) -> Option<bool> {
        if let Json::Bool(value) = self.value { Some(value) } else { None }
    }

    pub(crate) fn list(&self) -> Option<&[Spanned]> {
        if let Json::List(items) = &self.value { Some(items) } else { None }
    }

    pub(crate) fn object(&self) -> Option<&[(Key, Spanned)]> {
        if let Json::Object(entries) = &self.value { Some(entries) } else { None }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Spanned> {
        self.object()?.iter().find(|(key, _)| key.name == name).map(|(_, value)| value)
    }

    /// Returns the kind of the value: `a string`, `a list` ...
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Json::Null => "null",
            Json::Bool(_) => "true or false",
            Json::Number(_) => "a number",
            Json::Text(_) => "a string",
            Json::List(_) => "a list",
            Json::Object(_) => "an object",
        }
    }
}

/// Parses a whole text.
pub(crate) fn read(source: &str, comments: bool) -> Result<Spanned, Fault> {
    let mut reader = Reader { source, bytes: source.as_bytes(), at: 0, lines: Lines::of(source), comments };
    if source.starts_with('\u{feff}') {
        reader.at = 3;
    }
    let value = reader.value(0)?;
    reader.blank()?;
    if reader.at < reader.bytes.len() { reader.fail("something follows the value") } else { Ok(value) }
}

struct Reader<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
    lines: Lines<'a>,
    comments: bool,
}

impl Reader<'_> {
    fn fail<T>(&self, why: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { at: self.lines.place(self.at), why: why.into() })
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blank(&mut self) -> Result<(), Fault> {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                b'/' if self.comments => self.comment()?,
                _ => break,
            }
        }
        Ok(())
    }

    fn comment(&mut self) -> Result<(), Fault> {
        let rest = &self.source[self.at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            match rest.find("*/") {
                Some(end) => end + 2,
                None => return self.fail("the comment does not end"),
            }
        } else {
            return self.fail("expected a value");
        };
        self.at += length;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Spanned, Fault> {
        self.blank()?;
        if depth > MAX_DEPTH {
            return self.fail(format!("nested deeper than {MAX_DEPTH}"));
        }
        let at = self.lines.place(self.at);
        let value = match self.peek() {
            Some(b'{') => self.entries(depth)?,
            Some(b'[') => self.items(depth)?,
            Some(b'"') => Json::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => self.word()?,
        };
        Ok(Spanned { at, value })
    }

    fn word(&mut self) -> Result<Json, Fault> {
        let words = [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))];
        let rest = &self.bytes[self.at..];
        match words.into_iter().find(|(word, _)| rest.starts_with(word.as_bytes())) {
            Some((word, value)) => {
                self.at += word.len();
                Ok(value)
            }
            None if rest.is_empty() => self.fail("the text ends too early"),
            None => self.fail("expected a value"),
        }
    }

    fn number(&mut self) -> Result<Json, Fault> {
        let start = self.at;
        let fits = |b: u8| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E');
        while self.peek().is_some_and(fits) {
            self.at += 1;
        }
        let text = &self.source[start..self.at];
        if text.parse::<f64>().is_err() {
            self.at = start;
            return self.fail("this is no number");
        }
        Ok(Json::Number(text.to_owned()))
    }

    fn items(&mut self, depth: usize) -> Result<Json, Fault> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.blank()?;
            if self.peek() == Some(b']') && (items.is_empty() || self.comments) {
                break;
            }
            items.push(self.value(depth + 1)?);
            if !self.more(b']')? {
                break;
            }
        }
        self.at += 1;
        Ok(Json::List(items))
    }

    fn entries(&mut self, depth: usize) -> Result<Json, Fault> {
        self.at += 1;
        let mut entries: Vec<(Key, Spanned)> = Vec::new();
        loop {
            self.blank()?;
            if self.peek() == Some(b'}') && (entries.is_empty() || self.comments) {
                break;
            }
            let at = self.lines.place(self.at);
            if self.peek() != Some(b'"') {
                return self.fail(if self.peek().is_none() {
                    "the text ends too early"
                } else {
                    "expected a name in quotes"
                });
            }
            let name = self.string()?;
            if entries.iter().any(|(key, _)| key.name == name) {
                return Err(Fault { at, why: format!("`{name}` stands here twice") });
            }
            self.blank()?;
            if self.peek() != Some(b':') {
                return self.fail("expected `:`");
            }
            self.at += 1;
            entries.push((Key { at, name }, self.value(depth + 1)?));
            if !self.more(b'}')? {
                break;
            }
        }
        self.at += 1;
        Ok(Json::Object(entries))
    }

    /// Returns true after a comma; false at the end.
    fn more(&mut self, end: u8) -> Result<bool, Fault> {
        self.blank()?;
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == end => Ok(false),
            None => self.fail("the text ends too early"),
            Some(_) => self.fail(format!("expected `,` or `{}`", char::from(end))),
        }
    }

    fn string(&mut self) -> Result<String, Fault> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(c) = self.source[self.at..].chars().next() else { return self.fail("the string does not end") };
            match c {
                '"' => break,
                '\\' => text.push(self.escape()?),
                c if c < ' ' => return self.fail("a control stands in a string"),
                c => {
                    text.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
        self.at += 1;
        Ok(text)
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let c = match self.bytes.get(self.at + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => return self.fail("this escape is not known"),
        };
        self.at += 2;
        Ok(c)
    }

    fn unicode(&mut self) -> Result<char, Fault> {
        let code = |at: usize| {
            let digits = self.bytes.get(at + 2..at + 6).and_then(|d| std::str::from_utf8(d).ok());
            let plain = digits.filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
            plain.and_then(|d| u32::from_str_radix(d, 16).ok())
        };
        let Some(first) = code(self.at) else { return self.fail("four hexadecimal digits follow `\\u`") };
        let (value, length) = match first {
            0xd800..0xdc00 if self.bytes.get(self.at + 6..self.at + 8) == Some(b"\\u") => match code(self.at + 6) {
                Some(second @ 0xdc00..0xe000) => (0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00), 12),
                _ => return self.fail("half of a character"),
            },
            _ => (first, 6),
        };
        let Some(c) = char::from_u32(value) else { return self.fail("half of a character") };
        self.at += length;
        Ok(c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn wrong(source: &str, comments: bool, line: usize, column: usize) {
        let fault = read(source, comments).unwrap_err();
        assert_eq!((fault.at.line, fault.at.column), (line, column), "{source:?}: {}", fault.why);
    }

    #[test]
    fn values_know_their_place() {
        let value = read("{\n  \"a\": [1, \"x\\u00e9\\n\", true],\n  \"b\": null\n}", false).unwrap();
        let a = value.get("a").unwrap();
        assert_eq!((a.at.line, a.at.column), (2, 8));
        assert_eq!(a.list().unwrap()[1].text(), Some("xé\n"));
        assert_eq!(value.get("b").unwrap().value, Json::Null);
        assert_eq!(read("\"\\ud83d\\ude00\"", false).unwrap().text(), Some("😀"));
        let commented = "// a\n{ /* b */ \"a\": [1,], // c\n}";
        assert!(read(commented, true).is_ok() && read(commented, false).is_err());
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

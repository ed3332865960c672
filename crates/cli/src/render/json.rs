//! JSON that is harmless on a terminal: characters that move the cursor, reorder or hide text are
//! written as escapes, which every JSON parser decodes.

use std::io;

use serde::Serialize;
use serde_json::ser::Formatter;
use stockade_model::is_deceptive;

/// Serializes `value` on one line, with a line feed.
///
/// # Errors
/// If it has no JSON form: a map with keys that are not strings.
pub fn to_json_line<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, EscapingFormatter))?;
    bytes.push(b'\n');
    // The serializer writes UTF-8 only.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

struct EscapingFormatter;

impl Formatter for EscapingFormatter {
    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_deceptive) {
            writer.write_all(&rest.as_bytes()[..at])?;
            let c = rest[at..].chars().next().unwrap_or_default();
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + c.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_string_comes_back_and_nothing_acts() {
        let text = "a\u{7f}b\u{9b}2J\u{202e}\u{e0041}\n\u{1b}ü\"\\";
        let shown = to_json_line(&text).unwrap();
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        assert!(shown.trim_end().chars().all(|c| !is_deceptive(c)), "{shown:?}");
        assert_eq!(to_json_line(&"plain").unwrap(), "\"plain\"\n");
    }
}

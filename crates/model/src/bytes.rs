//! Text from outside that need not be UTF-8: arguments, paths, output.
//!
//! The bytes stay unchanged, because the assessed, shown, executed and logged bytes must be the same (L5).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Bytes that are usually text. JSON form: a string if the bytes are UTF-8, otherwise `{"hex": "..."}`, so
/// that no byte is lost.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawText(Vec<u8>);

impl RawText {
    /// Returns the unchanged bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text if it is UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Returns the bytes as a platform string, without loss.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Returns the bytes as a path, without loss.
    pub fn as_path(&self) -> &Path {
        Path::new(self.as_os_str())
    }

    /// Returns one line that is safe on a terminal. Control, bidirectional and invisible characters and
    /// bytes that are not UTF-8 are written as escapes. The line is never shortened.
    pub fn to_escaped(&self) -> String {
        let mut out = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if is_deceptive(c) {
                    out.extend(c.escape_default());
                } else {
                    out.push(c);
                }
            }
            for b in chunk.invalid() {
                out.push_str(&format!("\\x{b:02x}"));
            }
        }
        out
    }

    /// Like [`to_escaped`](Self::to_escaped), with backslashes doubled, so that
    /// [`from_escaped`](Self::from_escaped) returns the same bytes. Blanks at the ends are escapes too,
    /// because a reader cannot see them and a parser may trim them.
    pub fn escaped_reversibly(&self) -> String {
        let mut doubled = Vec::with_capacity(self.0.len());
        for &b in &self.0 {
            doubled.extend(std::iter::repeat_n(b, if b == b'\\' { 2 } else { 1 }));
        }
        let text = Self(doubled).to_escaped();
        let from_first = text.trim_start_matches(' ');
        let inner = from_first.trim_end_matches(' ');
        let blanks = |count| "\\x20".repeat(count);
        blanks(text.len() - from_first.len()) + inner + &blanks(from_first.len() - inner.len())
    }

    /// Returns the bytes that [`escaped_reversibly`](Self::escaped_reversibly) wrote; `None` if a backslash
    /// starts no known escape.
    pub fn from_escaped(text: &str) -> Option<Self> {
        let mut out = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            out.extend_from_slice(&rest.as_bytes()[..at]);
            let escape = &rest[at + 1..];
            let kind = escape.chars().next()?;
            let escape_length = match kind {
                '\\' | '\'' | '"' | 'n' | 'r' | 't' => {
                    out.push(match kind {
                        'n' => b'\n',
                        'r' => b'\r',
                        't' => b'\t',
                        quoted => quoted as u8,
                    });
                    1
                }
                'x' => {
                    out.extend(HEXLOWER_PERMISSIVE.decode(escape.get(1..3)?.as_bytes()).ok()?);
                    3
                }
                'u' => {
                    let (digits, _) = escape.strip_prefix("u{")?.split_once('}')?;
                    let c = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    digits.len() + 3
                }
                _ => return None,
            };
            rest = &escape[escape_length..];
        }
        out.extend_from_slice(rest.as_bytes());
        Some(Self(out))
    }
}

/// Returns whether a character moves the cursor, reorders the line or is invisible. A reader could not see
/// such a character if it were printed unescaped.
pub fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{2000}'..='\u{200f}' | '\u{2028}'..='\u{202f}'
            | '\u{205f}'..='\u{206f}' | '\u{2800}' | '\u{3000}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{00a0}' | '\u{1680}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Quotes a word for a POSIX shell, in single quotes. Every hint quotes a name or a path with it, because a
/// run may have chosen the name, and a user may copy the hint.
pub fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

impl fmt::Debug for RawText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_escaped())
    }
}

impl fmt::Display for RawText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_escaped())
    }
}

macro_rules! from_bytes_of {
    ($($source:ty: $into_bytes:expr),+ $(,)?) => {$(
        impl From<$source> for RawText {
            fn from(source: $source) -> Self {
                Self($into_bytes(source))
            }
        }
    )+};
}

from_bytes_of! {
    Vec<u8>: Vec::from,
    &[u8]: Vec::from,
    String: String::into_bytes,
    &str: |text: &str| text.as_bytes().to_vec(),
    OsString: OsString::into_vec,
    &OsStr: |text: &OsStr| text.as_bytes().to_vec(),
    PathBuf: |path: PathBuf| path.into_os_string().into_vec(),
    &Path: |path: &Path| path.as_os_str().as_bytes().to_vec(),
}

impl Serialize for RawText {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.to_str() {
            Some(text) => s.serialize_str(text),
            None => {
                let mut map = s.serialize_map(Some(1))?;
                map.serialize_entry("hex", &HEXLOWER.encode(&self.0))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for RawText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct RawVisitor;
        impl<'de> Visitor<'de> for RawVisitor {
            type Value = RawText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or {\"hex\": \"...\"} for bytes that are not UTF-8")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<RawText, E> {
                Ok(RawText::from(v))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawText, A::Error> {
                let Some((key, hex)) = map.next_entry::<String, String>()? else {
                    return Err(de::Error::missing_field("hex"));
                };
                if key != "hex" {
                    return Err(de::Error::unknown_field(&key, &["hex"]));
                }
                if map.next_key::<String>()?.is_some() {
                    return Err(de::Error::custom("expected the one field `hex`"));
                }
                let bytes = HEXLOWER_PERMISSIVE.decode(hex.as_bytes());
                bytes.map(RawText).map_err(|_| de::Error::custom("`hex` must be pairs of hexadecimal digits"))
            }
        }
        d.deserialize_any(RawVisitor)
    }
}

impl JsonSchema for RawText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RawText".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Text, or the hexadecimal form of bytes that are not UTF-8.",
            "oneOf": [
                { "type": "string" },
                { "type": "object", "properties": { "hex": { "type": "string" } },
                  "required": ["hex"], "additionalProperties": false }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn round_trip(bytes: &[u8], json: &str) {
        let text = RawText::from(bytes);
        assert_eq!(serde_json::to_string(&text).unwrap(), json);
        assert_eq!(serde_json::from_str::<RawText>(json).unwrap(), text);
    }

    #[test]
    fn json_keeps_every_byte() {
        round_trip(b"plain", "\"plain\"");
        round_trip(b"\xff\x00a", "{\"hex\":\"ff0061\"}");
        assert!(serde_json::from_str::<RawText>("{\"hex\":\"f\"}").is_err());
        assert!(serde_json::from_str::<RawText>("{\"hex\":\"+f\"}").is_err());
        assert!(serde_json::from_str::<RawText>("{\"hex\":\"ff\",\"x\":\"\"}").is_err());
    }

    #[test]
    fn reversible_text_survives_trimming() {
        for c in (0..=0x0011_0000).filter_map(char::from_u32).filter(|c| c.is_whitespace() || *c == '\\') {
            for text in [format!("{c}"), format!("{c}{c}a{c} {c}b{c}{c}"), format!(" {c}\\ {c} ")] {
                let shown = RawText::from(text.as_str()).escaped_reversibly();
                assert_eq!(shown.trim(), shown);
                assert_eq!(RawText::from_escaped(&shown), Some(text.into()), "{shown}");
            }
        }
        assert_eq!(RawText::from("  a b ").escaped_reversibly(), r"\x20\x20a b\x20");
    }

    #[test]
    fn quoting_survives_a_shell() {
        assert_eq!(shell_quoted("write /a b"), "'write /a b'");
        assert_eq!(shell_quoted("it's"), "'it'\\''s'");
    }

    #[test]
    fn escaping_leaves_nothing_a_terminal_would_act_on() {
        let shown = RawText::from(&b"rm \x1b[2J\xe2\x80\xae\xff\n"[..]).to_escaped();
        assert_eq!(shown, "rm \\u{1b}[2J\\u{202e}\\xff\\n");
    }
}

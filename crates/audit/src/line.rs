//! Format of one line: how it is written and checked.
//!
//! The format is `{"seq":N,"prev":"HASH","event":{...},"hash":"HASH"}` and a newline. `hash` is the
//! SHA-256 of every byte of the line before `,"hash"`, so a line can be checked with a text editor
//! and `sha256sum`. `prev` is the `hash` of the line before, and 64 zeros in the first. No byte of
//! a line is outside this, so a line is parsed by position and not by a JSON parser.
//!
//! This module does not access files.

use std::fmt;
use std::io;

use data_encoding::HEXLOWER;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::ser::{CompactFormatter, Formatter};
use sha2::{Digest as _, Sha256};
use stockade_model::is_deceptive;

/// Longest line, its newline included. A larger event is an error.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Length of `,"hash":"`, 64 digits and `"}`.
const SUFFIX_BYTES: usize = 9 + 64 + 2;

/// SHA-256 hash, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct LineHash([u8; 32]);

impl TryFrom<String> for LineHash {
    type Error = HashError;

    fn try_from(text: String) -> Result<Self, HashError> {
        text.parse()
    }
}

impl LineHash {
    /// Predecessor of the first line.
    pub(crate) const GENESIS: Self = Self([0; 32]);

    pub(crate) fn hash_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(crate) fn from_hex(hex: &[u8]) -> Option<Self> {
        parse_hex(hex).map(Self)
    }

    fn push_hex(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(hex_digits(&self.0).as_bytes());
    }
}

/// Error if a text is no SHA-256 in lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not 64 lower-case hexadecimal digits")]
pub struct HashError;

impl std::str::FromStr for LineHash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        Self::from_hex(text.as_bytes()).ok_or(HashError)
    }
}

/// Parses lower-case hexadecimal digits, two for each byte, exactly `N` bytes.
pub(crate) fn parse_hex<const N: usize>(hex: &[u8]) -> Option<[u8; N]> {
    HEXLOWER.decode(hex).ok()?.try_into().ok()
}

/// Writes bytes as lower-case hexadecimal digits.
pub(crate) fn hex_digits(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

impl fmt::Display for LineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex_digits(&self.0))
    }
}

impl fmt::Debug for LineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Fault of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineFault {
    /// The line does not have the format of this crate.
    #[error("it is not a line of this log: {0}")]
    Malformed(&'static str),
    /// The line is longer than [`MAX_LINE_BYTES`].
    #[error("it is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// The hash does not match the bytes.
    #[error("it was changed: its hash does not fit its bytes")]
    Hash,
    /// The number is not the next one.
    #[error("it has number {found} where {expected} follows: a line was removed, moved or inserted")]
    Sequence {
        /// The expected number.
        expected: u64,
        /// The found number.
        found: u64,
    },
    /// The line does not contain the hash of the line before it.
    #[error("it does not follow the line before it: a line was replaced")]
    Link,
    /// A note outside the log contains a later line, and the log ends before it.
    #[error("it is missing: {end_source} says that the log reaches line {last}; {} cut off", describe_lines(*count))]
    Missing {
        /// The last line of the note.
        last: u64,
        /// Number of missing complete lines.
        count: u64,
        /// The note with the last line.
        end_source: LogEndSource,
    },
    /// The same as [`Missing`](Self::Missing), for lines that were not on the disk when the machine
    /// last stopped.
    #[error(
        "it is missing, and so is everything up to line {last} ({count} in all): lost when the machine stopped before it was on the disk, or cut off since"
    )]
    LostOrCut {
        /// The last line of the note.
        last: u64,
        /// Number of missing complete lines.
        count: u64,
    },
    /// The store has this line with another hash or at another offset.
    #[error("it is not the line that the store names")]
    NotAnchor,
    /// The head has this line with another hash or at another offset.
    #[error("it is not the line that the head names")]
    NotHead,
}

/// Note outside the log that reveals a missing end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEndSource {
    /// The signed head beside the log.
    Head,
    /// The anchor in the store.
    Store,
}

impl fmt::Display for LogEndSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "the head",
            Self::Store => "the store",
        })
    }
}

fn describe_lines(count: u64) -> String {
    if count == 1 { "1 whole line is".to_owned() } else { format!("{count} whole lines are") }
}

/// Parsed line that is valid by itself.
#[derive(Debug)]
pub(crate) struct LogLine<'a> {
    pub seq: u64,
    pub prev: LineHash,
    pub hash: LineHash,
    /// JSON of the event.
    pub event: &'a [u8],
}

/// Returns a value as JSON without characters that move a cursor or are invisible.
pub(crate) fn value_json<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(512);
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, PlainFormatter))?;
    Ok(out)
}

/// Adds one complete line to `out` and returns its hash.
pub(crate) fn push_line(out: &mut Vec<u8>, seq: u64, prev: LineHash, event: &[u8]) -> LineHash {
    let start = out.len();
    out.extend_from_slice(b"{\"seq\":");
    out.extend_from_slice(seq.to_string().as_bytes());
    out.extend_from_slice(b",\"prev\":\"");
    prev.push_hex(out);
    out.extend_from_slice(b"\",\"event\":");
    out.extend_from_slice(event);
    let hash = LineHash::hash_bytes(&out[start..]);
    out.extend_from_slice(&hash_suffix(hash));
    out.push(b'\n');
    hash
}

/// Returns the last bytes of the line with this hash, without its newline.
pub(crate) fn hash_suffix(hash: LineHash) -> Vec<u8> {
    let mut out = Vec::with_capacity(SUFFIX_BYTES);
    out.extend_from_slice(b",\"hash\":\"");
    hash.push_hex(&mut out);
    out.extend_from_slice(b"\"}");
    out
}

/// Parses a line without its newline.
///
/// # Errors
/// [`LineFault::Malformed`] or [`LineFault::Hash`]. Does not check whether it follows the line before.
pub(crate) fn parse_line(bytes: &[u8]) -> Result<LogLine<'_>, LineFault> {
    let malformed = |why| move || LineFault::Malformed(why);
    let at = bytes.len().checked_sub(SUFFIX_BYTES).ok_or_else(malformed("too short"))?;
    let (body, end) = bytes.split_at(at);
    let hash = end
        .strip_prefix(b",\"hash\":\"")
        .and_then(|rest| rest.strip_suffix(b"\"}"))
        .and_then(LineHash::from_hex)
        .ok_or_else(malformed("no hash at its end"))?;
    let rest = body.strip_prefix(b"{\"seq\":").ok_or_else(malformed("no number at its start"))?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let seq = std::str::from_utf8(&rest[..digits]).ok().and_then(|text| text.parse().ok());
    let seq = seq.filter(|_| rest[0] != b'0').ok_or_else(malformed("no number at its start"))?;
    let rest = rest[digits..].strip_prefix(b",\"prev\":\"").ok_or_else(malformed("no hash of the line before"))?;
    let (prev, rest) = rest.split_at_checked(64).ok_or_else(malformed("no hash of the line before"))?;
    let prev = LineHash::from_hex(prev).ok_or_else(malformed("no hash of the line before"))?;
    let event = rest.strip_prefix(b"\",\"event\":").ok_or_else(malformed("no event"))?;
    if LineHash::hash_bytes(body) != hash {
        return Err(LineFault::Hash);
    }
    serde_json::from_slice::<IgnoredAny>(event).map_err(|_| LineFault::Malformed("its event is not JSON"))?;
    Ok(LogLine { seq, prev, hash, event })
}

/// Compact JSON formatter. Characters that a terminal would interpret or not show are written as
/// `\uXXXX`, which JSON permits.
struct PlainFormatter;

impl Formatter for PlainFormatter {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if fragment.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            return CompactFormatter.write_string_fragment(writer, fragment);
        }
        let mut plain_from = 0;
        for (at, c) in fragment.char_indices().filter(|&(_, c)| is_deceptive(c)) {
            writer.write_all(&fragment.as_bytes()[plain_from..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain_from = at + c.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[plain_from..])
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::{Event, EventKind};

    use super::*;

    fn event(message: &str) -> Event {
        Event {
            time_ms: 1,
            request: "req_1".parse().unwrap(),
            session: None,
            kind: EventKind::Failed { message: message.into() },
        }
    }

    #[test]
    fn a_line_comes_back() {
        let json = value_json(&event("x")).unwrap();
        let mut out = Vec::new();
        let hash = push_line(&mut out, 7, LineHash::GENESIS, &json);
        let line = parse_line(out.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!((line.seq, line.prev, line.hash, line.event), (7, LineHash::GENESIS, hash, &json[..]));
        let _: serde_json::Value = serde_json::from_slice(&out).unwrap();
    }

    #[test]
    fn no_changed_byte_is_accepted() {
        let mut out = Vec::new();
        push_line(&mut out, 12, LineHash::hash_bytes(b"x"), &value_json(&event("y")).unwrap());
        out.pop();
        for at in 0..out.len() {
            for bit in 0..8 {
                let mut changed = out.clone();
                changed[at] ^= 1 << bit;
                assert!(parse_line(&changed).is_err(), "byte {at} bit {bit}");
            }
        }
        for cut in 0..out.len() {
            assert!(parse_line(&out[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn cat_is_harmless_and_nothing_is_lost() {
        let nasty = "a\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{2028}\u{2029}\u{200b}\u{feff}\u{e0041}\n\"é世😀\0";
        let json = value_json(&event(nasty)).unwrap();
        let text = std::str::from_utf8(&json).unwrap();
        assert!(!text.chars().any(is_deceptive), "{text}");
        assert!(text.contains("é世😀"), "{text}");
        assert_eq!(serde_json::from_str::<Event>(text).unwrap(), event(nasty));
    }
}

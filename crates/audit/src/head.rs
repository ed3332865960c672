//! Head of a log: a signed note in a file of its own, with the last appended line and the last
//! durable line. It reveals that a log lost its end.
//!
//! The head is one record of fixed size, overwritten in place, within one disk sector and without
//! allocation. So neither a crash nor a full disk leaves half of it, and neither an append nor a
//! commit costs a sync for it. It follows the log: it is written after its lines, and only moves
//! forward.
//!
//! Lines that are not durable may be lost when the machine stops. Therefore the note contains the
//! boot in which it was written: within one boot no appended line is lost.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::Deserialize;

use crate::key::{SIGNATURE_BYTES, SigningKey};
use crate::line::{Hash, hex_digits, parse_hex};
use crate::scan::Tip;

/// Name of the file.
pub(crate) const HEAD_NAME: &str = "head";

/// Length of the file, in bytes: one disk sector.
const HEAD_BYTES: usize = 512;

/// Length of an unsigned head, which earlier versions wrote.
const UNSIGNED_HEAD_BYTES: usize = 256;

/// File with the kernel's boot identifier (random(4)).
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Boot of a machine: the first half of the kernel's random boot identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot(u64);

impl Boot {
    /// Unknown boot: `/proc` is missing.
    const UNKNOWN: Self = Self(0);

    /// Returns the current boot.
    pub(crate) fn current() -> Self {
        let digits: Option<Vec<u8>> = std::fs::read(BOOT_ID_FILE)
            .ok()
            .map(|text| text.into_iter().filter(u8::is_ascii_hexdigit).take(16).collect());
        digits.and_then(|digits| parse_hex(&digits)).map_or(Self::UNKNOWN, |bytes| Self(u64::from_be_bytes(bytes)))
    }

    /// Returns whether no machine has stopped between the two.
    pub(crate) fn is_same(self, other: Self) -> bool {
        self == other && self != Self::UNKNOWN
    }

    /// Returns whether a machine has certainly stopped between the two.
    pub(crate) fn differs(self, other: Self) -> bool {
        self != other && self != Self::UNKNOWN && other != Self::UNKNOWN
    }

    /// Returns the text form.
    pub fn to_text(self) -> String {
        hex_digits(&self.0.to_be_bytes())
    }

    /// Parses the output of [`to_text`](Self::to_text).
    pub fn parse(text: &str) -> Option<Self> {
        parse_hex(text.as_bytes()).map(|bytes| Self(u64::from_be_bytes(bytes)))
    }
}

/// Content of a signed head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadNote {
    /// The last appended line.
    pub last: Tip,
    /// The last durable line.
    pub durable: Tip,
    /// The boot in which `last` was written.
    pub boot: Boot,
    /// Total number of lines that were lost when machines stopped.
    pub lost: u32,
    /// True if the store has an anchor of this log.
    pub is_anchored: bool,
}

impl HeadNote {
    /// Returns the note of an empty log.
    pub fn start(boot: Boot) -> Self {
        Self { last: Tip::START, durable: Tip::START, boot, lost: 0, is_anchored: false }
    }

    /// Returns the bytes of the file.
    pub fn render(&self, key: &SigningKey) -> Vec<u8> {
        let text = self.text();
        let signature = hex_digits(&key.sign(&signed_text(&text)));
        let mut out = format!(r#"{text},"sig":"{signature}"}}"#).into_bytes();
        out.resize(HEAD_BYTES - 1, b' ');
        out.push(b'\n');
        out
    }

    /// Returns the record without its signature and end.
    fn text(&self) -> String {
        let tip = |tip: Tip| format!(r#"{{"seq":{},"hash":"{}","end":{}}}"#, tip.seq, tip.hash, tip.end);
        format!(
            r#"{{"v":2,"last":{},"durable":{},"boot":"{}","lost":{},"anchor":{}"#,
            tip(self.last),
            tip(self.durable),
            self.boot.to_text(),
            self.lost,
            self.is_anchored
        )
    }

    fn parse(bytes: &[u8]) -> Option<(Self, [u8; SIGNATURE_BYTES])> {
        let record: Record = serde_json::from_slice(bytes).ok()?;
        let note = Self {
            last: record.last.tip()?,
            durable: record.durable.tip()?,
            boot: Boot::parse(&record.boot)?,
            lost: record.lost,
            is_anchored: record.anchor,
        };
        let signature = parse_hex(record.sig.as_bytes())?;
        (record.v == 2).then_some((note, signature))
    }
}

/// Returns the text to sign. Its first line keeps the signature from being valid for another
/// purpose.
fn signed_text(text: &str) -> Vec<u8> {
    format!("stockade audit head\n{text}").into_bytes()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    v: u32,
    last: TipRecord,
    durable: TipRecord,
    boot: String,
    lost: u32,
    anchor: bool,
    sig: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TipRecord {
    seq: u64,
    hash: String,
    end: u64,
}

impl TipRecord {
    fn tip(&self) -> Option<Tip> {
        Some(Tip { seq: self.seq, hash: Hash::parse(self.hash.as_bytes())?, end: self.end })
    }
}

/// Head of an earlier version: the last durable line, unsigned.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnsignedRecord {
    seq: u64,
    hash: String,
    end: u64,
    check: String,
}

fn parse_unsigned(bytes: &[u8]) -> Option<Tip> {
    let UnsignedRecord { seq, hash, end, check } = serde_json::from_slice(bytes).ok()?;
    let tip = Tip { seq, hash: Hash::parse(hash.as_bytes())?, end };
    (check == unsigned_check(tip) && render_unsigned(tip) == bytes).then_some(tip)
}

fn unsigned_check(Tip { seq, hash, end }: Tip) -> String {
    Hash::of(format!("stockade head {seq} {hash} {end}").as_bytes()).to_string()
}

fn render_unsigned(tip: Tip) -> Vec<u8> {
    let (Tip { seq, hash, end }, check) = (tip, unsigned_check(tip));
    let mut out = format!(r#"{{"seq":{seq},"hash":"{hash}","end":{end},"check":"{check}"}}"#).into_bytes();
    out.resize(UNSIGNED_HEAD_BYTES - 1, b' ');
    out.push(b'\n');
    out
}

/// Content of a head file.
pub(crate) enum Found {
    /// A signed head; its signature is not checked yet.
    Signed(SignedHead),
    /// The last durable line of a head of an earlier version.
    Unsigned(Tip),
    /// Empty: its creation was interrupted.
    Empty,
    /// Anything else.
    Broken,
}

impl Found {
    /// Returns the last line of the head, whether or not its signature is valid.
    pub fn last_line(&self) -> Option<u64> {
        match self {
            Self::Signed(signed) => Some(signed.note.last.seq),
            Self::Unsigned(tip) => Some(tip.seq),
            Self::Empty | Self::Broken => None,
        }
    }
}

/// Head with a signature that is not checked.
pub(crate) struct SignedHead {
    note: HeadNote,
    signature: [u8; SIGNATURE_BYTES],
}

impl SignedHead {
    /// Returns the note if this key signed it.
    pub fn checked(&self, key: &SigningKey) -> Option<HeadNote> {
        key.is_signature(&signed_text(&self.note.text()), &self.signature).then_some(self.note)
    }
}

/// Reads the bytes of the head. The caller holds the log's lock, shared or exclusive.
pub(crate) fn read_bytes(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEAD_BYTES + 1];
    let mut have = 0;
    while have < bytes.len() {
        match file.read_at(&mut bytes[have..], have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(have);
    Ok(bytes)
}

/// Parses the bytes of a head.
pub(crate) fn parse(bytes: &[u8]) -> Found {
    if bytes.is_empty() {
        return Found::Empty;
    }
    if let Some(tip) = parse_unsigned(bytes) {
        return Found::Unsigned(tip);
    }
    match HeadNote::parse(bytes) {
        // A head must have exactly the bytes that would be written.
        Some((note, signature)) if is_rendered(&note, &signature, bytes) => {
            Found::Signed(SignedHead { note, signature })
        }
        _ => Found::Broken,
    }
}

fn is_rendered(note: &HeadNote, signature: &[u8], bytes: &[u8]) -> bool {
    let text = format!(r#"{},"sig":"{}"}}"#, note.text(), hex_digits(signature));
    let rest = bytes.strip_prefix(text.as_bytes()).and_then(|rest| rest.strip_suffix(b"\n"));
    bytes.len() == HEAD_BYTES && rest.is_some_and(|rest| rest.iter().all(|&b| b == b' '))
}

/// Writes the bytes of a head. The caller holds the log's exclusive lock.
pub(crate) fn write(file: &File, bytes: &[u8]) -> io::Result<()> {
    file.write_all_at(bytes, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyFiles;

    fn key(root: &tempfile::TempDir) -> SigningKey {
        KeyFiles::of_log(&root.path().join("audit")).unwrap().unwrap().create_pending().unwrap()
    }

    #[test]
    fn only_what_was_written_and_signed_is_a_head() {
        let root = tempfile::tempdir().unwrap();
        let key = key(&root);
        let most = Tip { seq: u64::MAX, hash: Hash::of(b"x"), end: u64::MAX };
        let full = HeadNote { last: most, durable: most, boot: Boot(u64::MAX), lost: u32::MAX, is_anchored: false };
        for note in [HeadNote::start(Boot::current()), full] {
            let bytes = note.render(&key);
            assert_eq!(bytes.len(), HEAD_BYTES);
            let read = |bytes: &[u8]| match parse(bytes) {
                Found::Signed(head) => head.checked(&key),
                _ => None,
            };
            assert_eq!(read(&bytes), Some(note));
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert_eq!(read(&changed), None, "byte {at}");
            }
        }
    }

    #[test]
    fn a_head_of_another_key_is_no_head() {
        let [one, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let Found::Signed(head) = parse(&HeadNote::start(Boot(1)).render(&key(&one))) else { panic!("no head") };
        assert!(head.checked(&key(&other)).is_none());
    }

    #[test]
    fn an_unsigned_head_of_an_earlier_version_is_read() {
        let tip = Tip { seq: 7, hash: Hash::of(b"x"), end: 900 };
        let bytes = render_unsigned(tip);
        assert!(matches!(parse(&bytes), Found::Unsigned(found) if found == tip));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(matches!(parse(&changed), Found::Broken), "byte {at}");
        }
    }

    #[test]
    fn a_boot_is_the_same_only_where_it_is_known() {
        let now = Boot::current();
        assert!(now.is_same(Boot::current()), "{now:?}");
        assert!(!Boot::UNKNOWN.is_same(Boot::UNKNOWN));
        assert_eq!(Boot::parse(&now.to_text()), Some(now));
    }
}

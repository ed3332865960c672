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
use crate::line::{LineHash, hex_digits, parse_hex};
use crate::scan::LogTip;

/// Name of the file.
pub(crate) const HEAD_NAME: &str = "head";

/// Length of the file, in bytes: one disk sector.
const HEAD_BYTES: usize = 512;

/// Length of an unsigned head, which earlier versions wrote.
const UNSIGNED_HEAD_BYTES: usize = 256;

/// File with the kernel's boot identifier (random(4)).
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Boot of a machine: the first half of the kernel's random boot identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct BootId(u64);

impl TryFrom<String> for BootId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse_text(&text).ok_or("not a boot identifier")
    }
}

impl BootId {
    /// Unknown boot: `/proc` is missing.
    const UNKNOWN: Self = Self(0);

    /// Returns the current boot.
    pub(crate) fn read_current() -> Self {
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
    pub(crate) fn is_other_boot(self, other: Self) -> bool {
        self != other && self != Self::UNKNOWN && other != Self::UNKNOWN
    }

    /// Returns the text form.
    pub fn to_text(self) -> String {
        hex_digits(&self.0.to_be_bytes())
    }

    /// Parses the output of [`to_text`](Self::to_text).
    pub fn parse_text(text: &str) -> Option<Self> {
        parse_hex(text.as_bytes()).map(|bytes| Self(u64::from_be_bytes(bytes)))
    }
}

/// Content of a signed head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadNote {
    /// The last appended line.
    pub last: LogTip,
    /// The last durable line.
    pub durable: LogTip,
    /// The boot in which `last` was written.
    pub boot: BootId,
    /// Total number of lines that were lost when machines stopped.
    pub lost: u32,
    /// True if the store has an anchor of this log.
    pub is_anchored: bool,
}

impl HeadNote {
    /// Returns the note of an empty log.
    pub fn for_empty_log(boot: BootId) -> Self {
        Self { last: LogTip::START, durable: LogTip::START, boot, lost: 0, is_anchored: false }
    }

    /// Returns the bytes of the file.
    pub fn render_signed(&self, key: &SigningKey) -> Vec<u8> {
        self.render_with(&key.sign(&signed_text(&self.unsigned_text())))
    }

    fn render_with(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8> {
        pad_line(format!(r#"{},"sig":"{}"}}"#, self.unsigned_text(), hex_digits(signature)), HEAD_BYTES)
    }

    /// Returns the record without its signature and end.
    fn unsigned_text(&self) -> String {
        let tip = |tip: LogTip| format!(r#"{{"seq":{},"hash":"{}","end":{}}}"#, tip.seq, tip.hash, tip.end);
        format!(
            r#"{{"v":2,"last":{},"durable":{},"boot":"{}","lost":{},"anchor":{}"#,
            tip(self.last),
            tip(self.durable),
            self.boot.to_text(),
            self.lost,
            self.is_anchored
        )
    }

    /// Parses the bytes of a head, which must be exactly those that would be written.
    fn parse_bytes(bytes: &[u8]) -> Option<(Self, [u8; SIGNATURE_BYTES])> {
        let HeadRecord { last, durable, boot, lost, anchor, sig, .. } = serde_json::from_slice(bytes).ok()?;
        let note = Self { last, durable, boot, lost, is_anchored: anchor };
        let signature = parse_hex(sig.as_bytes())?;
        (note.render_with(&signature) == bytes).then_some((note, signature))
    }
}

/// Fills a record up with blanks to a line of this length.
fn pad_line(record: String, line_bytes: usize) -> Vec<u8> {
    let mut out = record.into_bytes();
    out.resize(line_bytes - 1, b' ');
    out.push(b'\n');
    out
}

/// Returns the text to sign. Its first line keeps the signature from being valid for another
/// purpose.
fn signed_text(text: &str) -> Vec<u8> {
    format!("stockade audit head\n{text}").into_bytes()
}

#[derive(Deserialize)]
struct HeadRecord {
    last: LogTip,
    durable: LogTip,
    boot: BootId,
    lost: u32,
    anchor: bool,
    sig: String,
}

/// Parses a head of an earlier version: the last durable line, unsigned.
fn parse_unsigned(bytes: &[u8]) -> Option<LogTip> {
    let tip = serde_json::from_slice(bytes).ok()?;
    (render_unsigned(tip) == bytes).then_some(tip)
}

fn render_unsigned(LogTip { seq, hash, end }: LogTip) -> Vec<u8> {
    let check = LineHash::hash_bytes(format!("stockade head {seq} {hash} {end}").as_bytes());
    pad_line(format!(r#"{{"seq":{seq},"hash":"{hash}","end":{end},"check":"{check}"}}"#), UNSIGNED_HEAD_BYTES)
}

/// Content of a head file.
pub(crate) enum HeadContent {
    /// A signed head; its signature is not checked yet.
    Signed(SignedHead),
    /// The last durable line of a head of an earlier version.
    Unsigned(LogTip),
    /// Empty: its creation was interrupted.
    Empty,
    /// Anything else.
    Broken,
}

impl HeadContent {
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
    pub fn verify_signature(&self, key: &SigningKey) -> Option<HeadNote> {
        key.is_signature(&signed_text(&self.note.unsigned_text()), &self.signature).then_some(self.note)
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
pub(crate) fn parse_head(bytes: &[u8]) -> HeadContent {
    if bytes.is_empty() {
        return HeadContent::Empty;
    }
    if let Some(tip) = parse_unsigned(bytes) {
        return HeadContent::Unsigned(tip);
    }
    HeadNote::parse_bytes(bytes)
        .map_or(HeadContent::Broken, |(note, signature)| HeadContent::Signed(SignedHead { note, signature }))
}

/// Writes the bytes of a head. The caller holds the log's exclusive lock.
pub(crate) fn write_head_bytes(file: &File, bytes: &[u8]) -> io::Result<()> {
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
    fn only_written_and_signed_bytes_are_a_head() {
        let root = tempfile::tempdir().unwrap();
        let key = key(&root);
        let most = LogTip { seq: u64::MAX, hash: LineHash::hash_bytes(b"x"), end: u64::MAX };
        let full = HeadNote { last: most, durable: most, boot: BootId(u64::MAX), lost: u32::MAX, is_anchored: false };
        for note in [HeadNote::for_empty_log(BootId::read_current()), full] {
            let bytes = note.render_signed(&key);
            assert_eq!(bytes.len(), HEAD_BYTES);
            let read = |bytes: &[u8]| match parse_head(bytes) {
                HeadContent::Signed(head) => head.verify_signature(&key),
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
        let HeadContent::Signed(head) = parse_head(&HeadNote::for_empty_log(BootId(1)).render_signed(&key(&one)))
        else {
            panic!("no head")
        };
        assert!(head.verify_signature(&key(&other)).is_none());
    }

    #[test]
    fn an_unsigned_head_of_an_earlier_version_is_read() {
        let tip = LogTip { seq: 7, hash: LineHash::hash_bytes(b"x"), end: 900 };
        let bytes = render_unsigned(tip);
        assert!(matches!(parse_head(&bytes), HeadContent::Unsigned(found) if found == tip));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(matches!(parse_head(&changed), HeadContent::Broken), "byte {at}");
        }
    }

    #[test]
    fn a_boot_is_the_same_only_where_it_is_known() {
        let now = BootId::read_current();
        assert!(now.is_same(BootId::read_current()), "{now:?}");
        assert!(!BootId::UNKNOWN.is_same(BootId::UNKNOWN));
        assert_eq!(BootId::parse_text(&now.to_text()), Some(now));
    }
}

//! The head: which line was the last one made durable, kept apart from the log
//! so that a log that lost its end is seen to have lost it.
//!
//! It is one record of fixed size in a file of its own, overwritten in place:
//! within one disk sector, without allocation, so neither a crash nor a full
//! disk leaves half of it, and a commit pays no second sync for it. It follows
//! the log and never leads it: it is written after the log's sync, and only
//! forward.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use crate::line::Hash;
use crate::scan::Tip;

/// Name of the file.
pub(crate) const HEAD_NAME: &str = "head";

/// Length of the file, in bytes.
const HEAD_BYTES: usize = 256;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    seq: u64,
    hash: String,
    end: u64,
    check: String,
}

fn render(tip: Tip) -> Vec<u8> {
    let Tip { seq, hash, end } = tip;
    let check = Hash::of(format!("stockade head {seq} {hash} {end}").as_bytes());
    let mut out = format!(r#"{{"seq":{seq},"hash":"{hash}","end":{end},"check":"{check}"}}"#).into_bytes();
    out.resize(HEAD_BYTES - 1, b' ');
    out.push(b'\n');
    out
}

fn parse(bytes: &[u8]) -> Option<Tip> {
    let record: Record = serde_json::from_slice(bytes).ok()?;
    let tip = Tip { seq: record.seq, hash: Hash::parse(record.hash.as_bytes())?, end: record.end };
    // Only the exact bytes that would be written are a head.
    (render(tip) == bytes).then_some(tip)
}

/// What the file says.
pub(crate) enum Found {
    /// A head.
    Tip(Tip),
    /// Nothing: its making was interrupted.
    Empty,
    /// Something else.
    Broken,
}

/// Reads the head. The caller holds the log's lock, shared or exclusive.
pub(crate) fn read(file: &File) -> io::Result<Found> {
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
    Ok(match (bytes.is_empty(), parse(&bytes)) {
        (true, _) => Found::Empty,
        (false, Some(tip)) => Found::Tip(tip),
        (false, None) => Found::Broken,
    })
}

/// Writes the head. The caller holds the log's exclusive lock.
pub(crate) fn write(file: &File, tip: Tip) -> io::Result<()> {
    file.write_all_at(&render(tip), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_is_a_head() {
        for tip in [Tip::START, Tip { seq: u64::MAX, hash: Hash::of(b"x"), end: u64::MAX }] {
            let bytes = render(tip);
            assert_eq!(bytes.len(), HEAD_BYTES);
            assert_eq!(parse(&bytes), Some(tip));
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert_eq!(parse(&changed), None, "byte {at}");
            }
        }
    }
}

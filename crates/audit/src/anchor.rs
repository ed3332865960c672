//! Anchors: data about a log that is kept outside its directory. They reveal that a log and its
//! head were both restored to an earlier state.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::head::BootId;
use crate::line::{self, LineHash};
use crate::scan::{LineReader, LogTip};

/// A line that a log once contained, to be kept elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogAnchor {
    /// Identifier of the log: the hash of its first line.
    pub log: LineHash,
    /// Number of the line.
    pub seq: u64,
    /// Hash of the line.
    pub hash: LineHash,
    /// End of the line, in bytes from the start of the log.
    pub end: u64,
    /// Number of the last line that was durable then.
    pub durable: u64,
    /// Boot in which the anchor was recorded.
    pub boot: BootId,
}

impl LogAnchor {
    pub(crate) fn tip(&self) -> LogTip {
        LogTip { seq: self.seq, hash: self.hash, end: self.end }
    }

    /// Returns whether the line may be missing without an attack, because it was not on the disk
    /// when the machine stopped.
    pub(crate) fn may_be_lost(&self, now: BootId) -> bool {
        self.seq > self.durable && !self.boot.is_same(now)
    }
}

/// Relation of an anchor to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorState {
    /// The log contains the line.
    Holds,
    /// The anchor belongs to another log.
    OtherLog,
    /// The line is missing, and may have been lost when the machine stopped.
    MayBeLost,
    /// The log does not contain the line: it was truncated or restored.
    Missing,
}

/// Returns the hash of the first line; `None` if there is none.
pub(crate) fn first_line_hash(log: &File, size: u64) -> io::Result<Option<LineHash>> {
    let mut lines = LineReader::new(log, 0, size);
    let Some(piece) = lines.next_piece()? else { return Ok(None) };
    let is_whole = piece.terminated && !piece.too_long;
    Ok(is_whole.then(|| line::parse_line(&lines.bytes).ok().map(|line| line.hash)).flatten())
}

/// Returns whether the line of `tip` ends at the offset of `tip`.
pub(crate) fn holds_tip(log: &File, size: u64, tip: LogTip) -> io::Result<bool> {
    if tip == LogTip::START {
        return Ok(true);
    }
    let mut expected = line::hash_suffix(tip.hash);
    expected.push(b'\n');
    let Some(start) = tip.end.checked_sub(expected.len() as u64) else { return Ok(false) };
    if size < tip.end {
        return Ok(false);
    }
    let mut found = vec![0; expected.len()];
    log.read_exact_at(&mut found, start)?;
    Ok(found == expected)
}

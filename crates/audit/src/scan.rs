//! Reads lines in order with bounded memory, and follows the chain.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;

use serde::Deserialize;

use crate::line::{self, LineFault, LineHash, MAX_LINE_BYTES};

/// Name of the log.
pub(crate) const LOG_NAME: &str = "audit.jsonl";

/// Last line of a valid part of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct LogTip {
    /// Number of the line; also its line number, because the first line is 1.
    pub seq: u64,
    pub hash: LineHash,
    /// End of the line, in bytes from the start of the file.
    pub end: u64,
}

impl LogTip {
    /// Tip of an empty log.
    pub const START: Self = Self { seq: 0, hash: LineHash::GENESIS, end: 0 };

    /// Returns the tip after `piece`, if that is valid and follows.
    pub fn follow_piece(self, piece: &LogPiece, bytes: &[u8]) -> Result<Self, LineFault> {
        if piece.too_long {
            return Err(LineFault::TooLong);
        }
        let line = line::parse_line(bytes)?;
        if line.seq != self.seq + 1 {
            return Err(LineFault::Sequence { expected: self.seq + 1, found: line.seq });
        }
        if line.prev != self.hash {
            return Err(LineFault::Link);
        }
        Ok(Self { seq: line.seq, hash: line.hash, end: piece.end })
    }
}

/// Position of a piece between two newlines.
pub(crate) struct LogPiece {
    pub start: u64,
    /// Offset after its newline.
    pub end: u64,
    /// True if it ends in a newline.
    pub terminated: bool,
    /// True if it exceeds the limit; its bytes were dropped.
    pub too_long: bool,
}

/// Lines of a part of a file. Holds at most one line.
pub(crate) struct LineReader<R> {
    reader: BufReader<FileRange<R>>,
    at: u64,
    pub bytes: Vec<u8>,
}

impl<R: std::borrow::Borrow<File>> LineReader<R> {
    pub fn new(file: R, start: u64, end: u64) -> Self {
        let reader = BufReader::with_capacity(1 << 16, FileRange { file, at: start, end });
        Self { reader, at: start, bytes: Vec::new() }
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        self.reader.get_ref().file.borrow()
    }

    /// Moves the end of the part; returns false if it is before the previous end.
    pub fn extend(&mut self, end: u64) -> bool {
        let stretch = self.reader.get_mut();
        let grows = end >= stretch.end;
        stretch.end = stretch.end.max(end);
        grows
    }

    /// Reads the next piece; its bytes, without the newline, are in `self.bytes`.
    pub fn next_piece(&mut self) -> io::Result<Option<LogPiece>> {
        let mut piece = LogPiece { start: self.at, end: self.at, terminated: false, too_long: false };
        self.bytes.clear();
        while !piece.terminated {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if available.is_empty() {
                break;
            }
            let newline = available.iter().position(|&b| b == b'\n');
            let chunk = &available[..newline.unwrap_or(available.len())];
            piece.terminated = newline.is_some();
            piece.too_long |= self.bytes.len() + chunk.len() >= MAX_LINE_BYTES;
            if !piece.too_long {
                self.bytes.extend_from_slice(chunk);
            }
            let consumed = chunk.len() + usize::from(piece.terminated);
            piece.end += consumed as u64;
            self.reader.consume(consumed);
        }
        self.at = piece.end;
        if piece.too_long {
            self.bytes.clear();
        }
        Ok((piece.end > piece.start).then_some(piece))
    }
}

/// A file between two offsets, independent of its cursor.
struct FileRange<R> {
    file: R,
    at: u64,
    end: u64,
}

impl<R: std::borrow::Borrow<File>> Read for FileRange<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = buffer.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let length = self.file.borrow().read_at(&mut buffer[..want], self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

/// Content after a known tip.
pub(crate) enum ChainEnd {
    /// A chain up to the end.
    Whole(LogTip),
    /// A chain, followed by an incomplete piece.
    Torn(LogTip),
}

/// Break that a torn write does not explain.
pub(crate) struct ChainBreak {
    pub line: u64,
    pub fault: LineFault,
}

/// Follows the chain from `tip` to `size`.
///
/// A torn write leaves one invalid end with nothing valid after it. Any other fault was caused by a
/// change, and is an error.
pub(crate) fn follow_chain(file: &File, tip: LogTip, size: u64) -> io::Result<Result<ChainEnd, ChainBreak>> {
    let mut lines = LineReader::new(file, tip.end, size);
    let mut tip = tip;
    let mut torn: Option<LineFault> = None;
    while let Some(piece) = lines.next_piece()? {
        if let Some(fault) = torn {
            if line::parse_line(&lines.bytes).is_ok() {
                return Ok(Err(ChainBreak { line: tip.seq + 1, fault }));
            }
            torn = Some(fault);
            continue;
        }
        match tip.follow_piece(&piece, &lines.bytes) {
            Ok(next) if piece.terminated => tip = next,
            Ok(_) => torn = Some(LineFault::Malformed("no newline at its end")),
            Err(fault @ (LineFault::Malformed(_) | LineFault::Hash | LineFault::TooLong)) => torn = Some(fault),
            Err(fault) => return Ok(Err(ChainBreak { line: tip.seq + 1, fault })),
        }
    }
    Ok(Ok(if torn.is_some() { ChainEnd::Torn(tip) } else { ChainEnd::Whole(tip) }))
}

/// Copies a part of `from` to `to`.
pub(crate) fn copy_stretch(from: &File, start: u64, end: u64, to: &File) -> io::Result<()> {
    let mut to = to;
    io::copy(&mut FileRange { file: from, at: start, end }, &mut to).map(drop)
}

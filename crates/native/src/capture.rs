//! Keeps an output stream within a limit: half from its head, half from its tail; the bytes between
//! are counted. It must not know the source of the output.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// Bytes read from a pipe at once.
const CHUNK_BYTES: usize = 64 << 10;

/// One captured stream.
#[derive(Debug)]
pub(crate) struct StreamCapture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    half_bytes: usize,
    dropped_bytes: u64,
}

impl StreamCapture {
    /// Makes an empty capture that keeps at most this many bytes.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let half_bytes = usize::try_from(limit_bytes / 2).unwrap_or(usize::MAX);
        Self { head: Vec::new(), tail: VecDeque::new(), half_bytes, dropped_bytes: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        let to_head = bytes.len().min(self.half_bytes - self.head.len());
        let (first, rest) = bytes.split_at(to_head);
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.half_bytes);
        self.tail.drain(..over);
        self.dropped_bytes += over as u64;
    }

    /// Reads one chunk from a pipe. Returns false at the end of the stream.
    pub(crate) fn read_chunk(&mut self, pipe: BorrowedFd<'_>) -> bool {
        let mut chunk = [0; CHUNK_BYTES];
        match rustix::io::read(pipe, &mut chunk) {
            Ok(0) => false,
            Ok(n) => {
                self.push(chunk.get(..n).unwrap_or_default());
                true
            }
            Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
        }
    }

    /// Returns whether bytes were dropped.
    pub(crate) fn is_truncated(&self) -> bool {
        self.dropped_bytes > 0
    }

    /// Returns the text, with a line in place of the dropped bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.head;
        if self.dropped_bytes > 0 {
            bytes.extend_from_slice(format!("\n[... {} bytes dropped ...]\n", self.dropped_bytes).as_bytes());
        }
        bytes.extend(self.tail);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pieces: &[&str], limit: u64, expected: &str) {
        let mut capture = StreamCapture::new(limit);
        for piece in pieces {
            capture.push(piece.as_bytes());
        }
        assert_eq!(String::from_utf8(capture.into_bytes()).unwrap(), expected);
    }

    #[test]
    fn head_and_tail_stay() {
        check(&["ab", "cd"], 8, "abcd");
        check(&["abcdefgh"], 8, "abcdefgh");
        check(&["abcdefghi"], 8, "abcd\n[... 1 bytes dropped ...]\nfghi");
        check(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"], 4, "ab\n[... 6 bytes dropped ...]\nij");
        check(&["abc"], 0, "\n[... 3 bytes dropped ...]\n");
    }
}

//! Output of a run: its beginning and its end, in files of bounded size.
//!
//! Each file begins with the number of bytes that were printed before it (8 bytes, little endian).
//! Then follow chunks: the stream (1 byte), the length (4 bytes), the bytes. The first files stay,
//! and the last of the later ones. A reader at a gap gets its length from the next file. Files are
//! only appended to, so they may be read while they are written, and after any interruption.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::live_directories::new_file;

/// Length from which a file is not appended to, in bytes.
const MAX_FILE_BYTES: u64 = 512 << 10;
/// Number of files kept from the beginning.
const MAX_FIRST_FILES: u64 = 2;
/// Number of files kept from the end.
const MAX_LAST_FILES: u64 = 3;
/// Longest chunk, in bytes.
const MAX_CHUNK_BYTES: usize = 64 << 10;
/// Bytes before the first chunk.
const FILE_HEADER_BYTES: u64 = 8;
/// Bytes of a chunk's head.
const CHUNK_HEADER_BYTES: usize = 5;

/// Stream of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Out = 1,
    /// Standard error.
    Err = 2,
}

/// Writer of the output.
#[derive(Debug)]
pub struct OutputWriter {
    directory: PathBuf,
    file: Option<File>,
    file_bytes: u64,
    next: u64,
    printed_bytes: u64,
}

impl OutputWriter {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, file: None, file_bytes: 0, next: 0, printed_bytes: 0 }
    }

    /// Stores output. Bytes that cannot be written count as omitted.
    ///
    /// # Errors
    /// [`io::Error`] if they cannot be written; more may be appended anyway.
    pub fn append_output(&mut self, stream: OutputStream, bytes: &[u8]) -> io::Result<()> {
        bytes.chunks(MAX_CHUNK_BYTES).try_for_each(|chunk| self.append_chunk(stream, chunk))
    }

    fn append_chunk(&mut self, stream: OutputStream, bytes: &[u8]) -> io::Result<()> {
        let before = self.printed_bytes;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.printed_bytes += u64::from(length);
        let mut file = match self.file.take() {
            Some(file) if self.file_bytes < MAX_FILE_BYTES => file,
            _ => self.next_file(before)?,
        };
        let mut chunk = Vec::with_capacity(CHUNK_HEADER_BYTES + bytes.len());
        chunk.push(stream as u8);
        chunk.extend(length.to_le_bytes());
        chunk.extend(bytes);
        // After a failure the file is not continued, because it may end within a chunk.
        file.write_all(&chunk)?;
        self.file_bytes += chunk.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    fn next_file(&mut self, printed_bytes: u64) -> io::Result<File> {
        let number = self.next;
        self.next += 1;
        if let Some(old) = number.checked_sub(MAX_LAST_FILES).filter(|old| *old >= MAX_FIRST_FILES) {
            // A reader continues with the open file.
            let _ = fs::remove_file(self.directory.join(file_name(old)));
        }
        let mut file = new_file(&self.directory.join(file_name(number)))?;
        file.write_all(&printed_bytes.to_le_bytes())?;
        self.file_bytes = FILE_HEADER_BYTES;
        Ok(file)
    }
}

fn file_name(number: u64) -> String {
    format!("output.{number}")
}

/// Piece of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPiece {
    /// Bytes of this stream.
    Bytes(OutputStream, Vec<u8>),
    /// This many bytes were printed here and not kept.
    LeftOut(u64),
}

/// Reader of the output, usable in any process at any time.
#[derive(Debug)]
pub struct OutputReader {
    directory: PathBuf,
    file: Option<File>,
    number: u64,
    at: u64,
    reported_bytes: u64,
}

impl OutputReader {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, file: None, number: 0, at: 0, reported_bytes: 0 }
    }

    /// Returns the next piece; `None` if there is no more at present.
    ///
    /// # Errors
    /// [`io::Error`] if a file cannot be read or is damaged.
    pub fn next_piece(&mut self) -> io::Result<Option<OutputPiece>> {
        loop {
            let Some(file) = &self.file else {
                match self.open_next()? {
                    Some(0) => continue,
                    Some(omitted_bytes) => return Ok(Some(OutputPiece::LeftOut(omitted_bytes))),
                    None => return Ok(None),
                }
            };
            // Before the read: if a next file exists, this one is complete.
            let followed = self.lowest_from(self.number + 1)?.is_some();
            if let Some((stream, bytes)) = read_chunk(file, self.at)? {
                self.at += (CHUNK_HEADER_BYTES + bytes.len()) as u64;
                self.reported_bytes += bytes.len() as u64;
                return Ok(Some(OutputPiece::Bytes(stream, bytes)));
            }
            if !followed {
                return Ok(None);
            }
            self.file = None;
            self.number += 1;
        }
    }

    /// Opens the next existing file. Returns the number of bytes missing before it.
    fn open_next(&mut self) -> io::Result<Option<u64>> {
        let Some(number) = self.lowest_from(self.number)? else { return Ok(None) };
        let file = match File::open(self.directory.join(file_name(number))) {
            Ok(file) => file,
            // Removed meanwhile: a later one exists.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Some(0)),
            Err(e) => return Err(e),
        };
        let mut beginning = [0; FILE_HEADER_BYTES as usize];
        if !read_whole(&file, &mut beginning, 0)? {
            // A file whose beginning could not be written is ignored.
            let Some(later) = self.lowest_from(number + 1)? else { return Ok(None) };
            self.number = later;
            return Ok(Some(0));
        }
        let printed_bytes = u64::from_le_bytes(beginning);
        let omitted_bytes = printed_bytes.saturating_sub(self.reported_bytes);
        (self.file, self.number, self.at, self.reported_bytes) = (Some(file), number, FILE_HEADER_BYTES, printed_bytes);
        Ok(Some(omitted_bytes))
    }

    fn lowest_from(&self, first: u64) -> io::Result<Option<u64>> {
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("output.")?.parse().ok();
        let entries = fs::read_dir(&self.directory)?;
        Ok(entries.flatten().filter_map(number).filter(|number| *number >= first).min())
    }
}

/// Returns the chunk at this offset, if it is complete.
fn read_chunk(file: &File, at: u64) -> io::Result<Option<(OutputStream, Vec<u8>)>> {
    let mut head = [0; CHUNK_HEADER_BYTES];
    if !read_whole(file, &mut head, at)? {
        return Ok(None);
    }
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the stored output is damaged");
    let stream = match head[0] {
        1 => OutputStream::Out,
        2 => OutputStream::Err,
        _ => return Err(damaged()),
    };
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > MAX_CHUNK_BYTES {
        return Err(damaged());
    }
    let mut bytes = vec![0; length];
    Ok(read_whole(file, &mut bytes, at + CHUNK_HEADER_BYTES as u64)?.then_some((stream, bytes)))
}

/// Fills the buffer; returns false if the file is not that long yet.
fn read_whole(file: &File, buffer: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(buffer, at) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(reader: &mut OutputReader) -> Vec<OutputPiece> {
        std::iter::from_fn(|| reader.next_piece().unwrap()).collect()
    }

    fn length(pieces: &[OutputPiece]) -> u64 {
        let length = |piece: &OutputPiece| match piece {
            OutputPiece::Bytes(_, bytes) => bytes.len() as u64,
            OutputPiece::LeftOut(bytes) => *bytes,
        };
        pieces.iter().map(length).sum()
    }

    #[test]
    fn output_is_read_in_order_while_it_grows() {
        let dir = tempfile::tempdir().unwrap();
        let mut reader = OutputReader::new(dir.path().to_owned());
        assert_eq!(all(&mut reader), []);
        let mut output = OutputWriter::new(dir.path().to_owned());
        output.append_output(OutputStream::Out, b"one").unwrap();
        output.append_output(OutputStream::Err, b"two").unwrap();
        let expected = [
            OutputPiece::Bytes(OutputStream::Out, b"one".to_vec()),
            OutputPiece::Bytes(OutputStream::Err, b"two".to_vec()),
        ];
        assert_eq!(all(&mut reader), expected);
        output.append_output(OutputStream::Out, b"three").unwrap();
        assert_eq!(all(&mut reader), [OutputPiece::Bytes(OutputStream::Out, b"three".to_vec())]);
    }

    #[test]
    fn beginning_and_end_are_kept_and_the_gap_is_counted() {
        const PRINTED: u64 = 20 << 20;
        let dir = tempfile::tempdir().unwrap();
        let mut follower = OutputReader::new(dir.path().to_owned());
        let mut followed = Vec::new();
        let mut output = OutputWriter::new(dir.path().to_owned());
        output.append_output(OutputStream::Out, b"first").unwrap();
        let chunk = vec![b'x'; 32 << 10];
        for _ in 0..PRINTED / chunk.len() as u64 {
            output.append_output(OutputStream::Out, &chunk).unwrap();
            followed.extend(all(&mut follower));
        }
        output.append_output(OutputStream::Err, b"last").unwrap();
        followed.extend(all(&mut follower));
        assert_eq!(length(&followed), PRINTED + 9);
        assert!(!followed.iter().any(|piece| matches!(piece, OutputPiece::LeftOut(_))), "who follows misses nothing");

        let late = all(&mut OutputReader::new(dir.path().to_owned()));
        assert_eq!(late.first(), Some(&OutputPiece::Bytes(OutputStream::Out, b"first".to_vec())));
        assert_eq!(late.last(), Some(&OutputPiece::Bytes(OutputStream::Err, b"last".to_vec())));
        assert_eq!(length(&late), PRINTED + 9);
        let gaps: Vec<_> = late.iter().filter(|piece| matches!(piece, OutputPiece::LeftOut(_))).collect();
        assert!(matches!(gaps[..], [OutputPiece::LeftOut(bytes)] if *bytes > PRINTED / 2), "{gaps:?}");
        let stored_bytes: u64 = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        assert!(
            stored_bytes
                < (MAX_FIRST_FILES + MAX_LAST_FILES) * (MAX_FILE_BYTES + (MAX_CHUNK_BYTES + CHUNK_HEADER_BYTES) as u64),
            "{stored_bytes} bytes"
        );
    }

    #[test]
    fn truncated_reports_are_dropped_and_damaged_ones_are_no_output() {
        let dir = tempfile::tempdir().unwrap();
        let mut output = OutputWriter::new(dir.path().to_owned());
        output.append_output(OutputStream::Out, b"whole").unwrap();
        let path = dir.path().join(file_name(0));
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], &[1, 9, 0, 0, 0, b'p']].concat()).unwrap();
        let mut reader = OutputReader::new(dir.path().to_owned());
        assert_eq!(all(&mut reader), [OutputPiece::Bytes(OutputStream::Out, b"whole".to_vec())]);
        fs::write(&path, [&whole[..], &[1, 255, 255, 255, 255]].concat()).unwrap();
        assert_eq!(reader.next_piece().unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::write(&path, [&whole[..], &[7, 0, 0, 0, 0]].concat()).unwrap();
        assert_eq!(reader.next_piece().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

//! What goes over a single stream of bytes to an attempt that can be given no
//! descriptors: messages, the bytes of the command's streams, and how much of those
//! was taken. No I/O is done here.
//!
//! A frame is one byte that says what it is, its length (four bytes, little endian),
//! and so many bytes. Of each stream at most [`WINDOW_BYTES`] are on their way: who
//! sends more is broken off, so a side that is slow costs the other no more memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most bytes of one stream that were sent and not yet taken.
pub(crate) const WINDOW_BYTES: usize = 256 << 10;
/// Most bytes of a stream in one frame.
pub(crate) const DATA_BYTES: usize = 32 << 10;
/// The longest question to the door, and the longest answer.
pub(crate) const QUESTION_BYTES: usize = 16 << 10;
/// The longest message that holds no output of a command, in bytes.
pub(crate) const MESSAGE_BYTES: usize = 4 << 20;

/// Bytes before what a frame says.
const HEAD_BYTES: usize = 5;
/// Bytes of a number.
const NUMBER_BYTES: usize = 4;

/// Which of a command's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stream {
    /// Standard input.
    Input,
    /// Standard output; all that is shown, where the command has a terminal.
    Output,
    /// Standard error.
    Errors,
}

impl Stream {
    /// All of them, in the order of their descriptors.
    const ALL: [Self; 3] = [Self::Input, Self::Output, Self::Errors];

    fn code(self) -> u8 {
        self as u8
    }

    fn of_code(code: u8) -> Result<Self, FrameError> {
        Self::ALL.into_iter().find(|stream| stream.code() == code).ok_or(FrameError::NO_STREAM)
    }
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Lines.
    pub(crate) rows: u16,
    /// Characters of a line.
    pub(crate) columns: u16,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message; what it says is not looked at here.
    Message(Vec<u8>),
    /// Bytes of a stream; none of them is its end.
    Data(Stream, Vec<u8>),
    /// So many bytes of a stream were taken.
    Taken(Stream, u32),
    /// Nobody takes this stream any more.
    Closed(Stream),
    /// The size of the command's terminal.
    Resized(Size),
    /// The inside asks the door for something, by a number of its own.
    Asked(u32, Vec<u8>),
    /// What the door makes of that.
    Answered(u32, Vec<u8>),
    /// Bytes of the connection of that number; none of them is the end of this way.
    Piece(u32, Vec<u8>),
    /// So many bytes of a connection were taken.
    PieceTaken(u32, u32),
    /// A connection is broken off.
    Broken(u32),
    /// Nothing more is said this way.
    Over,
}

/// What came is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameError(&'static str);

impl FrameError {
    /// Something about a stream that the command does not have.
    pub(crate) const NO_STREAM: Self = Self("a stream that there is not");
    /// A number that stands for something else already.
    pub(crate) const TAKEN_NUMBER: Self = Self("a number that is in use");
    /// What only the other side of a way sends.
    pub(crate) const WRONG_WAY: Self = Self("what is for itself");
    /// A question that is none.
    pub(crate) const NO_QUESTION: Self = Self("a question that is none");
    /// A stream goes on after its end.
    pub(crate) const AFTER_END: Self = Self("more of a stream that had ended");
    /// More than may be on its way.
    pub(crate) const TOO_MUCH: Self = Self("more than was taken");
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the other side sent {}", self.0)
    }
}

impl std::error::Error for FrameError {}

impl From<FrameError> for std::io::Error {
    fn from(error: FrameError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

const MESSAGE: u8 = b'm';
const DATA: u8 = b'd';
const TAKEN: u8 = b't';
const CLOSED: u8 = b'c';
const RESIZED: u8 = b'r';
const ASKED: u8 = b'q';
const ANSWERED: u8 = b'a';
const PIECE: u8 = b'p';
const PIECE_TAKEN: u8 = b'n';
const BROKEN: u8 = b'b';
const OVER: u8 = b'o';

impl Frame {
    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Message(message) => whole(MESSAGE, &[message]),
            Self::Data(stream, bytes) => whole(DATA, &[&[stream.code()], bytes]),
            Self::Taken(stream, bytes) => whole(TAKEN, &[&[stream.code()], &bytes.to_le_bytes()]),
            Self::Closed(stream) => whole(CLOSED, &[&[stream.code()]]),
            Self::Resized(size) => whole(RESIZED, &[&size.rows.to_le_bytes(), &size.columns.to_le_bytes()]),
            Self::Asked(id, question) => whole(ASKED, &[&id.to_le_bytes(), question]),
            Self::Answered(id, answer) => whole(ANSWERED, &[&id.to_le_bytes(), answer]),
            Self::Piece(id, bytes) => whole(PIECE, &[&id.to_le_bytes(), bytes]),
            Self::PieceTaken(id, bytes) => whole(PIECE_TAKEN, &[&id.to_le_bytes(), &bytes.to_le_bytes()]),
            Self::Broken(id) => whole(BROKEN, &[&id.to_le_bytes()]),
            Self::Over => whole(OVER, &[]),
        }
    }

    /// Whether it is about connections.
    pub(crate) fn is_of_connections(&self) -> bool {
        match self {
            Self::Asked(..) | Self::Answered(..) | Self::Piece(..) | Self::PieceTaken(..) | Self::Broken(_) => true,
            Self::Message(_) | Self::Data(..) | Self::Taken(..) | Self::Closed(_) | Self::Resized(_) | Self::Over => {
                false
            }
        }
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Self, FrameError> {
        const SHORT: FrameError = FrameError("a frame that is too short or too long");
        match (kind, body) {
            (MESSAGE, message) => Ok(Self::Message(message.to_vec())),
            (DATA, [stream, bytes @ ..]) => Ok(Self::Data(Stream::of_code(*stream)?, bytes.to_vec())),
            (TAKEN, [stream, number @ ..]) => {
                let number = <[u8; NUMBER_BYTES]>::try_from(number).map_err(|_| SHORT)?;
                Ok(Self::Taken(Stream::of_code(*stream)?, u32::from_le_bytes(number)))
            }
            (CLOSED, [stream]) => Ok(Self::Closed(Stream::of_code(*stream)?)),
            (OVER, []) => Ok(Self::Over),
            (RESIZED, &[a, b, c, d]) => {
                let (rows, columns) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
                Ok(Self::Resized(Size { rows, columns }))
            }
            (ASKED | ANSWERED | PIECE | PIECE_TAKEN | BROKEN, body) => {
                let (id, rest) = body.split_first_chunk::<NUMBER_BYTES>().ok_or(SHORT)?;
                Self::of_connection(kind, u32::from_le_bytes(*id), rest).ok_or(SHORT)
            }
            _ => Err(SHORT),
        }
    }

    fn of_connection(kind: u8, id: u32, rest: &[u8]) -> Option<Self> {
        match kind {
            ASKED => Some(Self::Asked(id, rest.to_vec())),
            ANSWERED => Some(Self::Answered(id, rest.to_vec())),
            PIECE => Some(Self::Piece(id, rest.to_vec())),
            PIECE_TAKEN => rest.try_into().ok().map(|number| Self::PieceTaken(id, u32::from_le_bytes(number))),
            _ => rest.is_empty().then_some(Self::Broken(id)),
        }
    }
}

fn whole(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    // Longer than any frame that is taken.
    let head = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + length);
    bytes.push(kind);
    bytes.extend_from_slice(&head);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn longest(kind: u8, message_bytes: usize) -> Result<usize, FrameError> {
    match kind {
        MESSAGE => Ok(message_bytes),
        DATA => Ok(1 + DATA_BYTES),
        ASKED | ANSWERED => Ok(NUMBER_BYTES + QUESTION_BYTES),
        PIECE => Ok(NUMBER_BYTES + DATA_BYTES),
        PIECE_TAKEN | BROKEN => Ok(2 * NUMBER_BYTES),
        TAKEN | CLOSED | RESIZED | OVER => Ok(1 + NUMBER_BYTES),
        _ => Err(FrameError("something that is no frame")),
    }
}

/// Bytes as they come, to frames.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The longest message that is one.
    message_bytes: usize,
    bytes: Vec<u8>,
    /// Those before are done.
    from: usize,
}

impl Decoder {
    /// One that takes messages up to so many bytes.
    pub(crate) fn new(message_bytes: usize) -> Self {
        Self { message_bytes, bytes: Vec::new(), from: 0 }
    }

    /// What came.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.from);
        self.from = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, as soon as all of it is there.
    ///
    /// # Errors
    /// When what came is none: nothing behind it can be understood.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = &self.bytes[self.from..];
        let Some((&[kind, a, b, c, d], rest)) = rest.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > longest(kind, self.message_bytes)? {
            return Err(FrameError("a frame that is too long"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = Frame::decode(kind, body)?;
        self.from += HEAD_BYTES + length;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Frame> {
        vec![
            Frame::Message(b"{}".to_vec()),
            Frame::Message(vec![b'x'; 100_000]),
            Frame::Data(Stream::Input, Vec::new()),
            Frame::Data(Stream::Errors, vec![0; DATA_BYTES]),
            Frame::Taken(Stream::Output, 77_777),
            Frame::Closed(Stream::Output),
            Frame::Resized(Size { rows: 24, columns: 300 }),
            Frame::Asked(7, b"{}".to_vec()),
            Frame::Answered(u32::MAX, vec![b'x'; QUESTION_BYTES]),
            Frame::Piece(0, Vec::new()),
            Frame::Piece(1, vec![1; DATA_BYTES]),
            Frame::PieceTaken(1, 77_777),
            Frame::Broken(1),
            Frame::Over,
        ]
    }

    #[test]
    fn frames_arrive_whole_however_their_bytes_are_cut() {
        let bytes: Vec<u8> = all().iter().flat_map(Frame::encode).collect();
        for cut in [1, 3, 7, 4096, bytes.len()] {
            let (mut decoder, mut got) = (Decoder::new(MESSAGE_BYTES), Vec::new());
            for part in bytes.chunks(cut) {
                decoder.push(part);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, all(), "cut every {cut} bytes");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_before_it_is_waited_for() {
        let huge = u32::MAX.to_le_bytes();
        let long = |kind: u8| [&[kind][..], &huge].concat();
        let short = |kind: u8, body: &[u8]| whole(kind, &[body]);
        for bytes in [
            long(MESSAGE),
            long(DATA),
            short(b'x', b""),
            short(DATA, b""),
            short(DATA, b"\x03x"),
            short(DATA, &vec![0; DATA_BYTES + 2]),
            short(TAKEN, b"\x01\x00"),
            short(CLOSED, b""),
            short(RESIZED, b"\x01\x02\x03"),
            short(ASKED, b"\x01\x00"),
            short(ASKED, &vec![0; QUESTION_BYTES + 5]),
            short(PIECE, b"\x01"),
            short(PIECE, &vec![0; DATA_BYTES + 5]),
            short(PIECE_TAKEN, b"\x01\x00\x00\x00\x02"),
            short(BROKEN, b"\x01\x00\x00\x00\x02"),
            short(OVER, b"x"),
        ] {
            let mut decoder = Decoder::new(MESSAGE_BYTES);
            decoder.push(&bytes);
            assert!(decoder.next_frame().is_err(), "{:?}", &bytes[..bytes.len().min(8)]);
        }
    }
}

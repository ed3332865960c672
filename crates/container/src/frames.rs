//! Protocol on a single stream of bytes to an attempt that cannot get descriptors: messages, the
//! bytes of the command's streams, and acknowledgements of those. This module does no I/O.
//!
//! A frame is one byte for its type, its length (four bytes, little endian), and that many bytes.
//! Of each stream at most [`WINDOW_BYTES`] are in transit. A side that sends more is disconnected,
//! so that a slow side costs the other no more memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most bytes of one stream that were sent and not yet acknowledged.
pub(crate) const WINDOW_BYTES: usize = 256 << 10;
/// Most bytes of a stream in one frame.
pub(crate) const MAX_DATA_BYTES: usize = 32 << 10;
/// Longest request to the egress proxy, and longest answer.
pub(crate) const MAX_QUESTION_BYTES: usize = 16 << 10;
/// Longest message without output of a command, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Bytes of a frame's head.
const HEAD_BYTES: usize = 5;
/// Bytes of a number.
const NUMBER_BYTES: usize = 4;

/// Stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StdioStream {
    /// Standard input.
    Input,
    /// Standard output; all output, if the command has a terminal.
    Output,
    /// Standard error.
    Errors,
}

impl StdioStream {
    /// All of them, in the order of their descriptors.
    const ALL: [Self; 3] = [Self::Input, Self::Output, Self::Errors];

    fn code(self) -> u8 {
        self as u8
    }

    fn of_code(code: u8) -> Result<Self, FrameError> {
        Self::ALL.into_iter().find(|stream| stream.code() == code).ok_or(FrameError::UNKNOWN_STREAM)
    }
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TerminalSize {
    /// Lines.
    pub(crate) rows: u16,
    /// Characters of a line.
    pub(crate) columns: u16,
}

/// Frame of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChannelFrame {
    /// A message, whose content is not parsed here.
    Message(Vec<u8>),
    /// Bytes of a stream; no bytes mean its end.
    Data(StdioStream, Vec<u8>),
    /// Acknowledges this many bytes of a stream.
    Taken(StdioStream, u32),
    /// The receiver of this stream is gone.
    Closed(StdioStream),
    /// The size of the command's terminal.
    Resized(TerminalSize),
    /// A request of the container to the egress proxy, with a number that the container chooses.
    Asked(u32, Vec<u8>),
    /// The egress proxy's answer to that request.
    Answered(u32, Vec<u8>),
    /// Bytes of the connection with that number; no bytes mean the end of this direction.
    Piece(u32, Vec<u8>),
    /// Acknowledges this many bytes of a connection.
    PieceTaken(u32, u32),
    /// A connection is reset.
    Broken(u32),
    /// The last frame of this direction.
    Over,
}

/// Error for bytes that are no valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameError(&'static str);

impl FrameError {
    /// A stream that the command does not have.
    pub(crate) const UNKNOWN_STREAM: Self = Self("data for an unknown stream");
    /// A number that is already in use.
    pub(crate) const NUMBER_IN_USE: Self = Self("a number that is in use");
    /// A frame that only the other side sends.
    pub(crate) const WRONG_DIRECTION: Self = Self("a frame of the wrong direction");
    /// A malformed request.
    pub(crate) const MALFORMED_REQUEST: Self = Self("a malformed request");
    /// Data of a stream after its end.
    pub(crate) const DATA_AFTER_END: Self = Self("data after the end of a stream");
    /// More bytes than the window permits.
    pub(crate) const WINDOW_EXCEEDED: Self = Self("more data than the window permits");
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

const MESSAGE_TAG: u8 = b'm';
const DATA_TAG: u8 = b'd';
const DATA_ACK_TAG: u8 = b't';
const CLOSED_TAG: u8 = b'c';
const RESIZED_TAG: u8 = b'r';
const REQUEST_TAG: u8 = b'q';
const RESPONSE_TAG: u8 = b'a';
const TUNNEL_DATA_TAG: u8 = b'p';
const TUNNEL_ACK_TAG: u8 = b'n';
const TUNNEL_RESET_TAG: u8 = b'b';
const LAST_FRAME_TAG: u8 = b'o';

impl ChannelFrame {
    /// Encodes the frame as bytes.
    pub(crate) fn encode_frame(&self) -> Vec<u8> {
        match self {
            Self::Message(message) => encode_parts(MESSAGE_TAG, &[message]),
            Self::Data(stream, bytes) => encode_parts(DATA_TAG, &[&[stream.code()], bytes]),
            Self::Taken(stream, bytes) => encode_parts(DATA_ACK_TAG, &[&[stream.code()], &bytes.to_le_bytes()]),
            Self::Closed(stream) => encode_parts(CLOSED_TAG, &[&[stream.code()]]),
            Self::Resized(size) => encode_parts(RESIZED_TAG, &[&size.rows.to_le_bytes(), &size.columns.to_le_bytes()]),
            Self::Asked(id, question) => encode_parts(REQUEST_TAG, &[&id.to_le_bytes(), question]),
            Self::Answered(id, answer) => encode_parts(RESPONSE_TAG, &[&id.to_le_bytes(), answer]),
            Self::Piece(id, bytes) => encode_parts(TUNNEL_DATA_TAG, &[&id.to_le_bytes(), bytes]),
            Self::PieceTaken(id, bytes) => encode_parts(TUNNEL_ACK_TAG, &[&id.to_le_bytes(), &bytes.to_le_bytes()]),
            Self::Broken(id) => encode_parts(TUNNEL_RESET_TAG, &[&id.to_le_bytes()]),
            Self::Over => encode_parts(LAST_FRAME_TAG, &[]),
        }
    }

    /// Returns whether the frame is about connections.
    pub(crate) fn is_of_connections(&self) -> bool {
        match self {
            Self::Asked(..) | Self::Answered(..) | Self::Piece(..) | Self::PieceTaken(..) | Self::Broken(_) => true,
            Self::Message(_) | Self::Data(..) | Self::Taken(..) | Self::Closed(_) | Self::Resized(_) | Self::Over => {
                false
            }
        }
    }

    fn decode_body(kind: u8, body: &[u8]) -> Result<Self, FrameError> {
        const WRONG_LENGTH: FrameError = FrameError("a frame of the wrong length");
        match (kind, body) {
            (MESSAGE_TAG, message) => Ok(Self::Message(message.to_vec())),
            (DATA_TAG, [stream, bytes @ ..]) => Ok(Self::Data(StdioStream::of_code(*stream)?, bytes.to_vec())),
            (DATA_ACK_TAG, [stream, number @ ..]) => {
                let number = <[u8; NUMBER_BYTES]>::try_from(number).map_err(|_| WRONG_LENGTH)?;
                Ok(Self::Taken(StdioStream::of_code(*stream)?, u32::from_le_bytes(number)))
            }
            (CLOSED_TAG, [stream]) => Ok(Self::Closed(StdioStream::of_code(*stream)?)),
            (LAST_FRAME_TAG, []) => Ok(Self::Over),
            (RESIZED_TAG, &[a, b, c, d]) => {
                let (rows, columns) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
                Ok(Self::Resized(TerminalSize { rows, columns }))
            }
            (REQUEST_TAG | RESPONSE_TAG | TUNNEL_DATA_TAG | TUNNEL_ACK_TAG | TUNNEL_RESET_TAG, body) => {
                let (id, rest) = body.split_first_chunk::<NUMBER_BYTES>().ok_or(WRONG_LENGTH)?;
                Self::of_connection(kind, u32::from_le_bytes(*id), rest).ok_or(WRONG_LENGTH)
            }
            _ => Err(WRONG_LENGTH),
        }
    }

    fn of_connection(kind: u8, id: u32, rest: &[u8]) -> Option<Self> {
        match kind {
            REQUEST_TAG => Some(Self::Asked(id, rest.to_vec())),
            RESPONSE_TAG => Some(Self::Answered(id, rest.to_vec())),
            TUNNEL_DATA_TAG => Some(Self::Piece(id, rest.to_vec())),
            TUNNEL_ACK_TAG => rest.try_into().ok().map(|number| Self::PieceTaken(id, u32::from_le_bytes(number))),
            _ => rest.is_empty().then_some(Self::Broken(id)),
        }
    }
}

fn encode_parts(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    // Longer than any accepted frame.
    let head = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + length);
    bytes.push(kind);
    bytes.extend_from_slice(&head);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn max_body_bytes(kind: u8, message_bytes: usize) -> Result<usize, FrameError> {
    match kind {
        MESSAGE_TAG => Ok(message_bytes),
        DATA_TAG => Ok(1 + MAX_DATA_BYTES),
        REQUEST_TAG | RESPONSE_TAG => Ok(NUMBER_BYTES + MAX_QUESTION_BYTES),
        TUNNEL_DATA_TAG => Ok(NUMBER_BYTES + MAX_DATA_BYTES),
        TUNNEL_ACK_TAG | TUNNEL_RESET_TAG => Ok(2 * NUMBER_BYTES),
        DATA_ACK_TAG | CLOSED_TAG | RESIZED_TAG | LAST_FRAME_TAG => Ok(1 + NUMBER_BYTES),
        _ => Err(FrameError("a frame of an unknown type")),
    }
}

/// Decodes received bytes to frames.
#[derive(Debug)]
pub(crate) struct FrameDecoder {
    /// Longest accepted message.
    message_bytes: usize,
    bytes: Vec<u8>,
    /// Offset of the first byte that is not decoded.
    from: usize,
}

impl FrameDecoder {
    /// Creates a decoder for messages of at most this many bytes.
    pub(crate) fn new(message_bytes: usize) -> Self {
        Self { message_bytes, bytes: Vec::new(), from: 0 }
    }

    /// Adds received bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.from);
        self.from = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next frame once it is complete.
    ///
    /// # Errors
    /// [`FrameError`] if the bytes are no frame; the bytes after it cannot be decoded.
    pub(crate) fn next_frame(&mut self) -> Result<Option<ChannelFrame>, FrameError> {
        let rest = &self.bytes[self.from..];
        let Some((&[kind, a, b, c, d], rest)) = rest.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > max_body_bytes(kind, self.message_bytes)? {
            return Err(FrameError("a frame that is too long"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = ChannelFrame::decode_body(kind, body)?;
        self.from += HEAD_BYTES + length;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<ChannelFrame> {
        vec![
            ChannelFrame::Message(b"{}".to_vec()),
            ChannelFrame::Message(vec![b'x'; 100_000]),
            ChannelFrame::Data(StdioStream::Input, Vec::new()),
            ChannelFrame::Data(StdioStream::Errors, vec![0; MAX_DATA_BYTES]),
            ChannelFrame::Taken(StdioStream::Output, 77_777),
            ChannelFrame::Closed(StdioStream::Output),
            ChannelFrame::Resized(TerminalSize { rows: 24, columns: 300 }),
            ChannelFrame::Asked(7, b"{}".to_vec()),
            ChannelFrame::Answered(u32::MAX, vec![b'x'; MAX_QUESTION_BYTES]),
            ChannelFrame::Piece(0, Vec::new()),
            ChannelFrame::Piece(1, vec![1; MAX_DATA_BYTES]),
            ChannelFrame::PieceTaken(1, 77_777),
            ChannelFrame::Broken(1),
            ChannelFrame::Over,
        ]
    }

    #[test]
    fn frames_arrive_whole_however_their_bytes_are_cut() {
        let bytes: Vec<u8> = all().iter().flat_map(ChannelFrame::encode_frame).collect();
        for cut in [1, 3, 7, 4096, bytes.len()] {
            let (mut decoder, mut decoded_frames) = (FrameDecoder::new(MAX_MESSAGE_BYTES), Vec::new());
            for part in bytes.chunks(cut) {
                decoder.push(part);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    decoded_frames.push(frame);
                }
            }
            assert_eq!(decoded_frames, all(), "cut every {cut} bytes");
        }
    }

    #[test]
    fn a_malformed_frame_is_refused_before_its_body() {
        let huge = u32::MAX.to_le_bytes();
        let long = |kind: u8| [&[kind][..], &huge].concat();
        let short = |kind: u8, body: &[u8]| encode_parts(kind, &[body]);
        for bytes in [
            long(MESSAGE_TAG),
            long(DATA_TAG),
            short(b'x', b""),
            short(DATA_TAG, b""),
            short(DATA_TAG, b"\x03x"),
            short(DATA_TAG, &vec![0; MAX_DATA_BYTES + 2]),
            short(DATA_ACK_TAG, b"\x01\x00"),
            short(CLOSED_TAG, b""),
            short(RESIZED_TAG, b"\x01\x02\x03"),
            short(REQUEST_TAG, b"\x01\x00"),
            short(REQUEST_TAG, &vec![0; MAX_QUESTION_BYTES + 5]),
            short(TUNNEL_DATA_TAG, b"\x01"),
            short(TUNNEL_DATA_TAG, &vec![0; MAX_DATA_BYTES + 5]),
            short(TUNNEL_ACK_TAG, b"\x01\x00\x00\x00\x02"),
            short(TUNNEL_RESET_TAG, b"\x01\x00\x00\x00\x02"),
            short(LAST_FRAME_TAG, b"x"),
        ] {
            let mut decoder = FrameDecoder::new(MAX_MESSAGE_BYTES);
            decoder.push(&bytes);
            assert!(decoder.next_frame().is_err(), "{:?}", &bytes[..bytes.len().min(8)]);
        }
    }
}

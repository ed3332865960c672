//! Messages of a stream: heads and bodies in sequence. Surplus bytes are kept for the next message.
//!
//! This module must not depend on the purpose of a request.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::head::{BodyFraming, MAX_HEAD_BYTES, RequestHead, check_trailer, end_of_head};
use crate::interception::{MaskedStream, StreamKind};
use crate::limits::TrafficDirection;
use crate::relay::{RelayContext, RelayError};

/// Time-out for a head, from its first byte to its last.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out for a body that is needed before its head is forwarded.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out for a connection without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Bytes of one read of a body.
const BODY_READ_BYTES: usize = 16 << 10;
/// Bytes of any other read, so that waiting connections use little memory.
const HEAD_READ_BYTES: usize = 2 << 10;
/// Longest line at the start of a chunk.
const MAX_CHUNK_LINE_BYTES: usize = 256;

/// Error of a message.
#[derive(Debug)]
pub(crate) enum MessageError {
    /// The message is malformed.
    Malformed(&'static str),
    /// The message took too long.
    Slow,
    /// The connection failed, or a limit was reached.
    Broken(RelayError),
}

impl MessageError {
    /// Returns the reason for the end of a connection on which no other answer can be sent.
    pub(crate) fn into_relay_error(self) -> RelayError {
        RelayError::Reset(match self {
            Self::Malformed(why) => io::Error::new(io::ErrorKind::InvalidData, why),
            Self::Slow => io::ErrorKind::TimedOut.into(),
            Self::Broken(broken) => return broken,
        })
    }
}

impl From<io::Error> for MessageError {
    fn from(error: io::Error) -> Self {
        Self::Broken(RelayError::Reset(error))
    }
}

impl From<RelayError> for MessageError {
    fn from(broken: RelayError) -> Self {
        Self::Broken(broken)
    }
}

impl From<&'static str> for MessageError {
    fn from(why: &'static str) -> Self {
        Self::Malformed(why)
    }
}

/// Reading side of a stream.
#[derive(Debug)]
pub(crate) struct HttpReader<R> {
    pub(crate) inner: R,
    /// Bytes that were read and not used.
    pub(crate) held: Vec<u8>,
}

impl<R: AsyncRead + Unpin> HttpReader<R> {
    pub(crate) fn new(inner: R, held: Vec<u8>) -> Self {
        Self { inner, held }
    }

    /// Reads more bytes; returns 0 at the end. Cancellation loses no data.
    pub(crate) async fn fill_buffer(&mut self) -> io::Result<usize> {
        self.fill_with(HEAD_READ_BYTES).await
    }

    async fn fill_with(&mut self, room: usize) -> io::Result<usize> {
        self.held.reserve(room);
        self.inner.read_buf(&mut self.held).await
    }

    /// Returns the next head. `None` if the stream ended before its first byte, or nothing arrived
    /// for `quiet`. Skips one empty line before it (RFC 9112, 2.2).
    pub(crate) async fn read_head(&mut self, quiet: Duration) -> Result<Option<Vec<u8>>, MessageError> {
        while self.held.is_empty() || self.held == b"\r" || self.held == b"\r\n" {
            match timeout(quiet, self.fill_buffer()).await {
                Ok(Ok(0)) | Err(_) => return Ok(None),
                // Between messages, many peers end TLS without a close notification.
                Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof && self.held.is_empty() => return Ok(None),
                Ok(read) => read?,
            };
        }
        if self.held.starts_with(b"\r\n") {
            self.held.drain(..2);
        }
        timeout(HEAD_TIMEOUT, self.rest_of_head()).await.map_err(|_| MessageError::Slow)?.map(Some)
    }

    /// Returns the head of the next request; as [`read_head`](Self::read_head).
    pub(crate) async fn read_request(&mut self) -> Result<Option<RequestHead>, MessageError> {
        match self.read_head(IDLE_TIMEOUT).await? {
            Some(head) => Ok(Some(RequestHead::parse_head(&head)?)),
            None => Ok(None),
        }
    }

    async fn rest_of_head(&mut self) -> Result<Vec<u8>, MessageError> {
        loop {
            if let Some(end) = end_of_head(&self.held)? {
                return Ok(self.held.drain(..end).collect());
            }
            if self.fill_buffer().await? == 0 {
                return Err(MessageError::Malformed("the head is not complete"));
            }
        }
    }

    /// Returns some bytes, at most `most`; empty at the end.
    async fn read_some(&mut self, most: u64) -> Result<Vec<u8>, MessageError> {
        if self.held.is_empty() {
            self.fill_with(BODY_READ_BYTES).await?;
        }
        let count = self.held.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(self.held.drain(..count).collect())
    }

    /// Waits for this many bytes of a body and returns them; they are read again afterwards.
    pub(crate) async fn peek_body(&mut self, length: usize) -> Result<&[u8], MessageError> {
        let read = async {
            while self.held.len() < length {
                if self.fill_with(BODY_READ_BYTES).await? == 0 {
                    return Err(MessageError::from(io::Error::from(io::ErrorKind::UnexpectedEof)));
                }
            }
            Ok(())
        };
        timeout(BODY_TIMEOUT, read).await.map_err(|_| MessageError::Slow)??;
        Ok(&self.held[..length])
    }

    /// Reads one line without its end.
    async fn read_line(&mut self) -> Result<Vec<u8>, MessageError> {
        loop {
            if let Some(at) = self.held.iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.held.drain(..=at).collect();
                line.pop();
                return match line.pop() {
                    Some(b'\r') if !line.contains(&b'\r') => Ok(line),
                    _ => Err(MessageError::Malformed("a line ends in a bare line feed")),
                };
            }
            if self.held.len() > MAX_CHUNK_LINE_BYTES {
                return Err(MessageError::Malformed("a line of a chunk is too long"));
            }
            if self.fill_buffer().await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Copies a body with new framing.
    pub(crate) async fn copy_body<W: AsyncWrite + Unpin>(
        &mut self,
        to: &mut W,
        framing: BodyFraming,
        context: &RelayContext<'_>,
        direction: TrafficDirection,
    ) -> Result<(), MessageError> {
        let mut flow = BodyForwarder::new(context, direction, framing, StreamKind::Message);
        match framing {
            BodyFraming::None => Ok(()),
            BodyFraming::Length(length) => {
                self.copy_bytes(to, length, &mut flow).await?;
                flow.finish_body(to).await
            }
            BodyFraming::UntilClose => self.copy_rest(to, &mut flow).await,
            BodyFraming::Chunked => loop {
                let size = chunk_size(&flow.wait_and_release(to, self.read_line()).await??)?;
                if size == 0 {
                    flow.finish_body(to).await?;
                    to.write_all(b"0\r\n").await?;
                    return self.copy_trailer(to, context, direction).await;
                }
                self.copy_bytes(to, size, &mut flow).await?;
                if !flow.wait_and_release(to, self.read_line()).await??.is_empty() {
                    return Err(MessageError::Malformed("a chunk is longer than its declared size"));
                }
            },
        }
    }

    async fn copy_bytes<W: AsyncWrite + Unpin>(
        &mut self,
        to: &mut W,
        mut length: u64,
        flow: &mut BodyForwarder<'_>,
    ) -> Result<(), MessageError> {
        while length > 0 {
            let bytes = flow.wait_and_release(to, self.read_some(length)).await??;
            if bytes.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            length -= bytes.len() as u64;
            flow.forward_bytes(to, bytes).await?;
        }
        Ok(())
    }

    async fn copy_rest<W: AsyncWrite + Unpin>(
        &mut self,
        to: &mut W,
        flow: &mut BodyForwarder<'_>,
    ) -> Result<(), MessageError> {
        loop {
            let bytes = flow.wait_and_release(to, self.read_some(u64::MAX)).await??;
            if bytes.is_empty() {
                return flow.finish_body(to).await;
            }
            flow.forward_bytes(to, bytes).await?;
        }
    }

    /// Copies the fields after the last chunk, and the empty line.
    async fn copy_trailer<W: AsyncWrite + Unpin>(
        &mut self,
        to: &mut W,
        context: &RelayContext<'_>,
        direction: TrafficDirection,
    ) -> Result<(), MessageError> {
        let end = loop {
            // An immediate empty line is the complete trailer.
            let found = if self.held.starts_with(b"\r\n") { Some(2) } else { end_of_head(&self.held)? };
            match found {
                Some(end) => break end,
                None if self.held.len() >= MAX_HEAD_BYTES => return Err("the trailer fields are too long".into()),
                None if self.fill_buffer().await? == 0 => {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                None => {}
            }
        };
        let mut lines: Vec<u8> = self.held.drain(..end).collect();
        check_trailer(&lines)?;
        context.check_and_count(direction, &lines).await?;
        if let (TrafficDirection::Down, Some(guard)) = (direction, context.guard) {
            guard.mask_bytes(&mut lines);
        }
        to.write_all(&lines).await?;
        Ok(to.flush().await?)
    }

    /// Copies all bytes unchanged, and then closes the other side.
    pub(crate) async fn copy_all<W: AsyncWrite + Unpin>(
        &mut self,
        to: &mut W,
        context: &RelayContext<'_>,
        direction: TrafficDirection,
    ) -> Result<(), RelayError> {
        let mut flow = BodyForwarder::new(context, direction, BodyFraming::UntilClose, StreamKind::Relay);
        match self.copy_rest(to, &mut flow).await {
            Err(MessageError::Broken(broken)) => Err(broken),
            // A body without framing is never malformed.
            Ok(()) | Err(MessageError::Malformed(_) | MessageError::Slow) => {
                let _ = to.shutdown().await;
                Ok(())
            }
        }
    }
}

/// Body in transit: checked, counted, masked and framed.
struct BodyForwarder<'a> {
    context: &'a RelayContext<'a>,
    direction: TrafficDirection,
    is_chunked: bool,
    masked: Option<MaskedStream<'a>>,
}

impl<'a> BodyForwarder<'a> {
    fn new(context: &'a RelayContext<'a>, direction: TrafficDirection, framing: BodyFraming, kind: StreamKind) -> Self {
        let guard = context.guard.filter(|_| direction == TrafficDirection::Down);
        let masked = guard.map(|guard| guard.masked_stream(kind));
        Self { context, direction, is_chunked: framing == BodyFraming::Chunked, masked }
    }

    /// Forwards bytes, except those that a mask holds back.
    async fn forward_bytes<W: AsyncWrite + Unpin>(&mut self, to: &mut W, bytes: Vec<u8>) -> Result<(), MessageError> {
        self.context.check_and_count(self.direction, &bytes).await?;
        let ready = match &mut self.masked {
            Some(masked) => masked.push(bytes),
            None => bytes,
        };
        self.write_framed(to, &ready).await
    }

    /// Waits for `next`. Sends bytes meanwhile that may be held for a limited time only.
    async fn wait_and_release<W: AsyncWrite + Unpin, T>(
        &mut self,
        to: &mut W,
        next: impl Future<Output = T>,
    ) -> Result<T, MessageError> {
        tokio::pin!(next);
        while let Some(pause) = self.masked.as_ref().and_then(MaskedStream::flush_delay) {
            if let Ok(done) = timeout(pause, &mut next).await {
                return Ok(done);
            }
            let held = self.masked.as_mut().map(MaskedStream::release_held).unwrap_or_default();
            self.write_framed(to, &held).await?;
        }
        Ok(next.await)
    }

    /// Sends the rest.
    async fn finish_body<W: AsyncWrite + Unpin>(&mut self, to: &mut W) -> Result<(), MessageError> {
        let rest = self.masked.as_mut().map(MaskedStream::finish).unwrap_or_default();
        self.write_framed(to, &rest).await
    }

    async fn write_framed<W: AsyncWrite + Unpin>(&self, to: &mut W, bytes: &[u8]) -> Result<(), MessageError> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.is_chunked {
            to.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
        }
        to.write_all(bytes).await?;
        if self.is_chunked {
            to.write_all(b"\r\n").await?;
        }
        Ok(to.flush().await?)
    }
}

/// Parses the size at the start of a chunk. The part after `;` is not forwarded.
fn chunk_size(line: &[u8]) -> Result<u64, &'static str> {
    let digits = line.split(|b| *b == b';').next().unwrap_or_default().trim_ascii_end();
    let hex = !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_hexdigit);
    let number = std::str::from_utf8(digits).ok().filter(|_| hex).and_then(|t| u64::from_str_radix(t, 16).ok());
    number.ok_or("the size of a chunk is not a number")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::ByteCounts;
    use crate::limits::TrafficMeter;
    use crate::relay::RelayBuffers;
    use stockade_model::EgressLimits;

    async fn copied(body: &[u8], framing: BodyFraming) -> Result<(Vec<u8>, Vec<u8>), MessageError> {
        let (meter, counts, buffers) =
            (TrafficMeter::new(&EgressLimits::default(), 1000), ByteCounts::default(), RelayBuffers::default());
        let context = RelayContext { buffers: &buffers, meter: &meter, counts: &counts, guard: None };
        let mut reader = HttpReader::new(body, Vec::new());
        let mut out = Vec::new();
        reader.copy_body(&mut out, framing, &context, TrafficDirection::Up).await?;
        Ok((out, reader.held))
    }

    #[tokio::test]
    async fn bodies_end_at_their_declared_length() {
        let (out, rest) = copied(b"hello more", BodyFraming::Length(5)).await.unwrap();
        assert_eq!((out.as_slice(), rest.as_slice()), (&b"hello"[..], &b" more"[..]));
        let chunked = b"5;ext=1\r\nhello\r\n00a \r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\nGET";
        let (out, rest) = copied(chunked, BodyFraming::Chunked).await.unwrap();
        assert_eq!(out, b"5\r\nhello\r\na\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\n");
        assert_eq!(rest, b"GET");
        let (out, rest) = copied(b"0\r\n\r\nGET", BodyFraming::Chunked).await.unwrap();
        assert_eq!((out.as_slice(), rest.as_slice()), (&b"0\r\n\r\n"[..], &b"GET"[..]));
    }

    #[tokio::test]
    async fn chunks_that_lie_are_refused() {
        for bad in [
            &b"5\r\nhelloX\r\n0\r\n\r\n"[..],
            b"5\nhello\r\n0\r\n\r\n",
            b"+5\r\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"\r\nhello\r\n",
            b"ffffffffffffffff\r\n",
            b"0\r\nHost: b\r\n\r\n",
            b"0\r\n bad\r\n\r\n",
            b"5\r\nhel",
        ] {
            assert!(copied(bad, BodyFraming::Chunked).await.is_err(), "{}", bad.escape_ascii());
        }
        let long = [&b"5;"[..], &[b'x'; 20_000], b"\r\nhello\r\n0\r\n\r\n"].concat();
        assert!(copied(&long, BodyFraming::Chunked).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_drips_is_given_up() {
        let (client, mut far) = tokio::io::duplex(64);
        let drip = tokio::spawn(async move {
            for byte in b"GET / HTTP/1.1\r\nA: bbbbbbbbbbbbbbbbbbbbb\r\n\r\n" {
                if far.write_all(&[*byte]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let start = tokio::time::Instant::now();
        let mut reader = HttpReader::new(client, Vec::new());
        assert!(matches!(reader.read_head(IDLE_TIMEOUT).await, Err(MessageError::Slow)));
        assert!(start.elapsed() < HEAD_TIMEOUT * 2);
        drop(reader);
        drip.await.unwrap();
    }
}

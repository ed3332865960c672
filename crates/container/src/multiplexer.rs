//! Streams between a launcher and the host over one channel of bytes, multiplexed by HTTP/2
//! (RFC 9113, crate `h2`). The host is the server, because that side of the library is made for hostile
//! peers.
//!
//! The library bounds the number of streams, the bytes in transit of each and of all, and the
//! number of small pieces that it holds. A stream that its receiver abandons is reset.
//!
//! This module must not depend on the purpose of a stream.

use std::future::poll_fn;
use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream, client, server};
use http::Request;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Most connections of a command at once.
pub(crate) const TUNNEL_STREAMS_MAX: usize = 256;
/// Most bytes of one direction of a stream that were sent and not yet accepted by its receiver.
pub(crate) const WINDOW_BYTES: u32 = 128 << 10;
/// Most bytes of a stream that are read or sent at once.
pub(crate) const MAX_DATA_BYTES: usize = 32 << 10;
/// Longest message without output of a command, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Most streams at once: those of the command, and connections of which one side knows the end.
const STREAMS_MAX: u32 = TUNNEL_STREAMS_MAX as u32 + 16;
/// All windows together, so that no stream waits for the receiver of another.
const ALL_WINDOWS_BYTES: u32 = STREAMS_MAX * WINDOW_BYTES;
/// Most bytes of a stream that wait to be sent besides its window.
const MAX_QUEUED_BYTES: usize = 2 * MAX_DATA_BYTES;
/// Longest header of a request. It has nothing but its path.
const MAX_HEADER_BYTES: u32 = 1024;
/// Allowance for the pieces of a hostile side that are received and not yet taken: a piece below
/// 256 bytes counts as that many. One read of the transport contains fewer.
const SMALL_PIECES_BYTES: usize = 4 << 20;
/// Bytes of a message's length, little endian.
const LENGTH_BYTES: usize = 4;

/// Channel of bytes in both directions.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Transport for T {}

/// Begins the host's end over this channel.
///
/// # Errors
/// [`h2::Error`] if the other side does not speak the protocol.
pub(crate) async fn accept_streams<T: Transport>(channel: T) -> Result<server::Connection<T, Bytes>, h2::Error> {
    server::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(ALL_WINDOWS_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .max_concurrent_reset_streams(TUNNEL_STREAMS_MAX)
        .max_pending_accept_reset_streams(TUNNEL_STREAMS_MAX)
        .max_frame_size(MAX_DATA_BYTES as u32)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buffer_size(MAX_QUEUED_BYTES)
        .data_frame_budget(SMALL_PIECES_BYTES)
        .handshake(channel)
        .await
}

/// Begins the launcher's end over this channel. The returned connection must be polled.
///
/// # Errors
/// [`h2::Error`] if the channel fails.
pub(crate) async fn connect_streams<T: Transport>(
    channel: T,
) -> Result<(client::SendRequest<Bytes>, client::Connection<T, Bytes>), h2::Error> {
    client::Builder::new()
        .enable_push(false)
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(ALL_WINDOWS_BYTES)
        .max_frame_size(MAX_DATA_BYTES as u32)
        .max_send_buffer_size(MAX_QUEUED_BYTES)
        // The host is trusted, and a launcher may have been paused while pieces arrived.
        .data_frame_budget(ALL_WINDOWS_BYTES as usize)
        .handshake(channel)
        .await
}

/// Opens a stream at the launcher's end. If the launcher only receives, its direction ends at once.
///
/// # Errors
/// [`io::Error`] if the host is gone.
pub(crate) async fn open_stream(
    requests: &client::SendRequest<Bytes>,
    path: &str,
    only_receives: bool,
) -> io::Result<(client::ResponseFuture, SendStream<Bytes>)> {
    // The protocol requires an authority.
    let request = Request::post(format!("http://host{path}")).body(()).map_err(io::Error::other)?;
    let mut requests = requests.clone().ready().await.map_err(io::Error::other)?;
    requests.send_request(request, only_receives).map_err(io::Error::other)
}

/// Sends bytes as the window permits.
///
/// # Errors
/// [`io::Error`] if the receiver is gone.
pub(crate) async fn send_bytes(stream: &mut SendStream<Bytes>, mut bytes: Bytes) -> io::Result<()> {
    while !bytes.is_empty() {
        let credit = wait_for_credit(stream, bytes.len().min(MAX_DATA_BYTES), 1).await?;
        let piece = bytes.split_to(credit.min(bytes.len()));
        stream.send_data(piece, false).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Requests this many bytes of credit, and waits until there are at least so many.
async fn wait_for_credit(stream: &mut SendStream<Bytes>, requested: usize, least: usize) -> io::Result<usize> {
    stream.reserve_capacity(requested);
    while stream.capacity() < least {
        let changed = poll_fn(|context| stream.poll_capacity(context)).await;
        changed.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)?;
    }
    Ok(stream.capacity())
}

/// Ends the sending direction of a stream.
///
/// # Errors
/// [`io::Error`] if the receiver is gone.
pub(crate) fn finish_sending(stream: &mut SendStream<Bytes>) -> io::Result<()> {
    stream.send_data(Bytes::new(), true).map_err(io::Error::other)
}

/// Sends all bytes of a reader, and the end. They have left for the channel when this returns, in
/// front of what other streams send from then on.
///
/// # Errors
/// [`io::Error`] if the reader fails, or the receiver is gone.
pub(crate) async fn send_from(mut from: impl AsyncRead + Unpin, stream: &mut SendStream<Bytes>) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(MAX_DATA_BYTES);
        let length = tokio::select! {
            length = from.read_buf(&mut buffer) => length?,
            _ = poll_fn(|context| stream.poll_reset(context)) => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        if length == 0 {
            // The credit is full only if nothing is queued.
            wait_for_credit(stream, MAX_QUEUED_BYTES, MAX_QUEUED_BYTES).await?;
            return finish_sending(stream);
        }
        send_bytes(stream, buffer.split().freeze()).await?;
    }
}

/// Writes all bytes of a stream, after `inspect` has returned what to write of each piece. Its
/// argument is `None` at the end of the stream. `buffer` holds what is not written after an error.
///
/// Each piece is taken out of the library at once, because there it costs more than its bytes. The
/// window opens again only for bytes that are written, so that it bounds the buffer.
///
/// # Errors
/// [`io::Error`] if the stream was reset or the writer fails.
pub(crate) async fn receive_into(
    mut stream: RecvStream,
    mut to: impl AsyncWrite + Unpin,
    buffer: &mut BytesMut,
    mut inspect: impl FnMut(Option<Bytes>) -> Bytes,
) -> io::Result<()> {
    let mut is_open = true;
    while is_open || !buffer.is_empty() {
        let accepted = tokio::select! {
            piece = stream.data(), if is_open => {
                let piece = piece.transpose().map_err(io::Error::other)?;
                let (length, kept) = (piece.as_ref().map(Bytes::len), inspect(piece));
                is_open = length.is_some();
                buffer.extend_from_slice(&kept);
                length.unwrap_or(0).saturating_sub(kept.len())
            }
            written = to.write_buf(buffer), if !buffer.is_empty() => match written? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => written,
            },
        };
        stream.flow_control().release_capacity(accepted).map_err(io::Error::other)?;
    }
    // The reader may be gone already.
    let _ = to.shutdown().await;
    Ok(())
}

/// Writes all bytes of a stream, also those that arrived before it was reset.
///
/// # Errors
/// As for [`receive_into`].
pub(crate) async fn receive_output(stream: RecvStream, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    let received = receive_into(stream, &mut to, &mut buffer, Option::unwrap_or_default).await;
    to.write_all_buf(&mut buffer).await?;
    received
}

/// Error of a side that violates the protocol.
pub(crate) fn violation(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other side sent {what}"))
}

/// Encodes a message: its length, and the message as JSON.
///
/// # Errors
/// [`io::Error`] if it cannot be encoded.
pub(crate) fn encode_message(message: &impl Serialize) -> io::Result<Bytes> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - LENGTH_BYTES).map_err(io::Error::other)?;
    bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(bytes.into())
}

/// Reads one message of at most so many bytes, and nothing of what follows.
///
/// # Errors
/// [`io::Error`] if the reader fails or ends, or the message is too long.
pub(crate) fn read_message(mut from: impl io::Read, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; LENGTH_BYTES];
    from.read_exact(&mut length)?;
    let mut message = vec![0; message_length(length, max_bytes)?];
    from.read_exact(&mut message)?;
    Ok(message)
}

/// Receives messages of at most so many bytes from a stream.
pub(crate) struct MessageReceiver {
    stream: RecvStream,
    max_bytes: usize,
    buffer: BytesMut,
}

impl MessageReceiver {
    pub(crate) fn new(stream: RecvStream, max_bytes: usize) -> Self {
        Self { stream, max_bytes, buffer: BytesMut::new() }
    }

    /// Returns the next message; `None` at the end of the stream.
    ///
    /// # Errors
    /// [`io::Error`] if the stream was reset or ends within a message, or a message is too long.
    pub(crate) async fn next_message(&mut self) -> io::Result<Option<BytesMut>> {
        loop {
            if let Some(message) = split_message(&mut self.buffer, self.max_bytes)? {
                return Ok(Some(message));
            }
            let Some(piece) = self.stream.data().await else { break };
            let piece = piece.map_err(io::Error::other)?;
            self.buffer.extend_from_slice(&piece);
            self.stream.flow_control().release_capacity(piece.len()).map_err(io::Error::other)?;
        }
        if self.buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Returns the stream, to receive its other bytes.
    ///
    /// # Errors
    /// [`io::Error`] if some of them arrived with the last message.
    pub(crate) fn into_stream(self) -> io::Result<RecvStream> {
        if self.buffer.is_empty() { Ok(self.stream) } else { Err(violation("bytes before they were expected")) }
    }
}

/// Splits a message off once it is complete.
pub(crate) fn split_message(buffer: &mut BytesMut, max_bytes: usize) -> io::Result<Option<BytesMut>> {
    let Some(length) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = message_length(*length, max_bytes)?;
    if buffer.len() < LENGTH_BYTES + length {
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    Ok(Some(buffer.split_to(length)))
}

fn message_length(length: [u8; LENGTH_BYTES], max_bytes: usize) -> io::Result<usize> {
    let length = u32::from_le_bytes(length) as usize;
    if length > max_bytes { Err(violation("a message that is too long")) } else { Ok(length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_however_their_bytes_are_cut() {
        let all = ["", "{}", &"x".repeat(100_000)].map(|text| encode_message(&text).unwrap());
        let bytes = all.concat();
        for cut in [1, 3, 7, 4096, bytes.len()] {
            let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
            for part in bytes.chunks(cut) {
                buffer.extend_from_slice(part);
                while let Some(message) = split_message(&mut buffer, MAX_MESSAGE_BYTES).unwrap() {
                    messages.push(message);
                }
            }
            assert_eq!(messages, all.clone().map(|message| message.slice(LENGTH_BYTES..)), "cut every {cut} bytes");
        }
        let mut rest = &bytes[..];
        assert_eq!(read_message(&mut rest, MAX_MESSAGE_BYTES).unwrap(), b"\"\"");
        assert_eq!(rest.len(), bytes.len() - LENGTH_BYTES - 2);
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_its_body() {
        let mut head = BytesMut::from(&101_u32.to_le_bytes()[..]);
        assert!(split_message(&mut head.clone(), 101).unwrap().is_none());
        assert_eq!(split_message(&mut head, 100).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_message(&[0xff; 4][..], 100).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

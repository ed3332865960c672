//! Messages and streams from containers, public for fuzz targets.

use std::io;

use bytes::BytesMut;
use h2::RecvStream;
use tokio::io::{join, sink};
use tokio::task::JoinSet;

use crate::multiplexer::{MessageReceiver, accept_streams, receive_output, split_message};

/// Longest accepted message.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Beginning of a launcher's bytes (RFC 9113, section 3.4), with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Checks that the bytes give the same messages however they are split, and that a launcher that
/// sends them as its streams is received without more than it sent.
pub fn check_frames(bytes: &[u8]) {
    let whole = decode_split(bytes, bytes.len().max(1));
    for cut in [1, 7] {
        assert_eq!(decode_split(bytes, cut), whole);
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
    assert!(runtime.block_on(receive_streams(bytes)) <= bytes.len());
}

/// Returns the messages, and whether the bytes after them are refused.
fn decode_split(bytes: &[u8], cut: usize) -> (Vec<BytesMut>, bool) {
    let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
    for part in bytes.chunks(cut) {
        buffer.extend_from_slice(part);
        loop {
            match split_message(&mut buffer, MAX_MESSAGE_BYTES) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return (messages, true),
            }
        }
    }
    (messages, false)
}

/// Returns the number of received bytes.
async fn receive_streams(bytes: &[u8]) -> usize {
    let bytes = [PREFACE, bytes].concat();
    let Ok(mut accepted) = accept_streams(join(&bytes[..], sink())).await else { return 0 };
    let mut streams = JoinSet::new();
    let mut responses = Vec::new();
    while let Some(Ok((request, respond))) = accepted.accept().await {
        responses.push(respond);
        streams.spawn(receive_stream(request.into_body()));
    }
    streams.join_all().await.into_iter().flatten().sum()
}

async fn receive_stream(stream: RecvStream) -> io::Result<usize> {
    let mut messages = MessageReceiver::new(stream, MAX_MESSAGE_BYTES);
    let mut received = messages.next_message().await?.unwrap_or_default().to_vec();
    receive_output(messages.into_stream()?, &mut received).await?;
    Ok(received.len())
}

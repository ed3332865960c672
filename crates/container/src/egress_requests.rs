//! Requests of a container to the host's egress proxy, and the answers. Each is a stream of its own:
//! one message, the answer, and the bytes of a connection.

use std::io;
use std::net::IpAddr;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream, client};
use http::{Response, StatusCode};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stockade_egress::DialError;
use stockade_model::{NetworkTarget, RawText};

use crate::multiplexer::{MessageReceiver, encode_message, finish_sending, open_stream, send_bytes, violation};

/// Path of these streams.
pub(crate) const TUNNEL_PATH: &str = "/tunnel";

/// Longest request, and longest answer, in bytes.
pub(crate) const MAX_QUESTION_BYTES: usize = 16 << 10;
/// Most addresses of a name in an answer.
const ADDRESSES_MAX: usize = 16;
/// Longest text of an answer, in characters.
const TEXT_MAX_CHARS: usize = 512;

/// Request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum TunnelRequest {
    /// A connection to this target, for a process in the container.
    Connect { target: NetworkTarget, pid: Option<u32>, program: Option<RawText> },
    /// The addresses of a name.
    LookUp { name: String },
}

/// Answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TunnelResponse {
    /// The connection is made; its bytes follow.
    Connected,
    /// A rule refuses it.
    Refused { rule: String },
    /// The network failed.
    Failed { errno: i32, why: String },
    /// The name does not exist.
    NoSuchName,
    /// The addresses of a name, or the reason for a failed lookup.
    Addresses(Result<Vec<IpAddr>, String>),
}

impl TunnelResponse {
    pub(crate) fn from_errno(errno: Errno, why: &str) -> Self {
        Self::Failed { errno: errno.raw_os_error(), why: shorten_text(why) }
    }

    pub(crate) fn from_addresses(mut all: Vec<IpAddr>) -> Self {
        all.truncate(ADDRESSES_MAX);
        Self::Addresses(Ok(all))
    }

    pub(crate) fn from_dial_error(failure: &DialError) -> Self {
        match failure {
            DialError::Refused { rule } => Self::Refused { rule: shorten_text(rule) },
            DialError::Failed { errno, why } => Self::from_errno(*errno, why),
        }
    }

    /// Returns the reason for a missing connection.
    pub(crate) fn into_failure(self) -> DialError {
        match self {
            Self::Refused { rule } => DialError::Refused { rule },
            Self::Failed { errno, why } => DialError::Failed { errno: Errno::from_raw_os_error(errno), why },
            Self::Connected | Self::NoSuchName | Self::Addresses(_) => DialError::Failed {
                errno: Errno::PROTO,
                why: "the egress proxy sent an unexpected response".to_owned(),
            },
        }
    }
}

fn shorten_text(text: &str) -> String {
    text.chars().take(TEXT_MAX_CHARS).collect()
}

/// Receives a request, which is all that may arrive before the answer.
///
/// # Errors
/// [`io::Error`] of kind `InvalidData` if the container sent something else.
pub(crate) async fn receive_request(stream: RecvStream) -> io::Result<(TunnelRequest, RecvStream)> {
    let mut messages = MessageReceiver::new(stream, MAX_QUESTION_BYTES);
    let request = messages.next_message().await?.ok_or_else(|| violation("a stream without a request"))?;
    let request = serde_json::from_slice(&request).map_err(|_| violation("a malformed request"))?;
    Ok((request, messages.into_stream()?))
}

/// Answers a request. Returns the stream for the bytes of a connection.
///
/// # Errors
/// [`io::Error`] if the container does not wait for it.
pub(crate) async fn send_answer(
    mut respond: SendResponse<Bytes>,
    answer: &TunnelResponse,
) -> io::Result<SendStream<Bytes>> {
    let is_connected = *answer == TunnelResponse::Connected;
    let mut response = Response::new(());
    *response.status_mut() = if is_connected { StatusCode::OK } else { StatusCode::BAD_GATEWAY };
    let mut stream = respond.send_response(response, false).map_err(io::Error::other)?;
    if !is_connected {
        send_bytes(&mut stream, encode_message(answer)?).await?;
        finish_sending(&mut stream)?;
    }
    Ok(stream)
}

/// Sends a request, and returns the answer with the stream for the bytes of a connection.
///
/// # Errors
/// [`io::Error`] if the host does not answer.
pub(crate) async fn send_request(
    requests: &client::SendRequest<Bytes>,
    request: &TunnelRequest,
) -> io::Result<(TunnelResponse, (SendStream<Bytes>, RecvStream))> {
    let (response, mut sender) = open_stream(requests, TUNNEL_PATH, false).await?;
    send_bytes(&mut sender, encode_message(request)?).await?;
    let (head, receiver) = response.await.map_err(io::Error::other)?.into_parts();
    if head.status == StatusCode::OK {
        return Ok((TunnelResponse::Connected, (sender, receiver)));
    }
    let mut messages = MessageReceiver::new(receiver, MAX_QUESTION_BYTES);
    let answer = messages.next_message().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((serde_json::from_slice(&answer)?, (sender, messages.into_stream()?)))
}

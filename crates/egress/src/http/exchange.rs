//! Forwards one request and returns its answer, on any transport.
//!
//! This module must not decide whether the request is permitted.

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stockade_model::Grant;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::head::{BodyFraming, MAX_HEAD_BYTES, RequestHead, ResponseHead, field_values};
use super::stream::{HttpReader, MessageError};
use crate::limits::TrafficDirection;
use crate::relay::{RelayContext, RelayError};

/// Time-out for an answer after the client closed its side, or the server stopped reading.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out for an answer otherwise; a long poll is shorter.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3600);

/// Next step after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeOutcome {
    /// The next request may follow.
    Next,
    /// The connection ends.
    Close,
    /// Both sides switched to another protocol.
    Tunnel,
}

/// Both directions of one side.
#[derive(Debug)]
pub(crate) struct HttpPeer<R, W> {
    pub(crate) reader: HttpReader<R>,
    pub(crate) writer: W,
}

/// Answer of the egress proxy itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRefusal {
    pub(crate) status: u16,
    /// Explanation for the person who reads it.
    pub(crate) text: String,
}

impl HttpRefusal {
    pub(crate) fn new(status: u16, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// Creates a 403 answer, with the grant that would permit the request, if any.
    pub(crate) fn for_missing_grant(text: &str, grant: Option<&Grant>) -> Self {
        let hint = grant.map(|grant| format!("\nhint: it needs the grant `{grant}`")).unwrap_or_default();
        Self::new(403, format!("{text}{hint}"))
    }

    /// Returns a complete answer, after which the connection ends.
    pub(crate) fn encode_response(&self) -> Vec<u8> {
        let reason = match self.status {
            400 => "Bad Request",
            403 => "Forbidden",
            408 => "Request Timeout",
            429 => "Too Many Requests",
            431 => "Request Header Fields Too Large",
            502 => "Bad Gateway",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            _ => "Refused",
        };
        let body = format!("stockade: {}\n", self.text);
        let head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            body.len()
        );
        [head.into_bytes(), body.into_bytes()].concat()
    }

    /// Sends the answer. Gives up after ten seconds.
    pub(crate) async fn send_response<W: AsyncWrite + Unpin>(&self, to: &mut W) {
        let write = async {
            to.write_all(&self.encode_response()).await?;
            to.shutdown().await
        };
        let _ = timeout(Duration::from_secs(10), write).await;
    }
}

/// Forwards a request and returns its answer.
pub(crate) async fn forward_exchange(
    client: &mut HttpPeer<impl AsyncRead + Unpin, impl AsyncWrite + Unpin>,
    server: &mut HttpPeer<impl AsyncRead + Unpin, impl AsyncWrite + Unpin>,
    request: &RequestHead,
    context: &RelayContext<'_>,
) -> Result<ExchangeOutcome, MessageError> {
    let head = request.encode_head();
    context.count_bytes(TrafficDirection::Up, head.len()).await?;
    server.writer.write_all(&head).await?;
    server.writer.flush().await?;
    let is_sent = AtomicBool::new(request.framing == BodyFraming::None);
    let answered = {
        let upload = upload_body(&mut client.reader, &mut server.writer, request.framing, context, &is_sent);
        let download = download_answer(&mut server.reader, &mut client.writer, request, context);
        tokio::pin!(upload, download);
        tokio::select! {
            biased;
            answered = &mut download => answered?,
            failed = &mut upload => match failed {
                // The server may have answered before it stopped reading. If all is sent, the
                // client is gone instead.
                Err(MessageError::Broken(RelayError::Reset(_))) if !is_sent.load(Ordering::Relaxed) => {
                    timeout(LAST_ANSWER_TIMEOUT, download).await.map_err(|_| MessageError::Slow)??
                }
                Err(other) => return Err(other),
                Ok(never) => match never {},
            },
        }
    };
    if answered.status == 101 {
        return Ok(ExchangeOutcome::Tunnel);
    }
    let is_reusable = is_sent.load(Ordering::Relaxed) && request.is_kept() && answered.is_kept();
    Ok(if is_reusable { ExchangeOutcome::Next } else { ExchangeOutcome::Close })
}

/// Sends the body, then watches for the client's disconnect.
async fn upload_body<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    client: &mut HttpReader<R>,
    server: &mut W,
    framing: BodyFraming,
    context: &RelayContext<'_>,
    is_sent: &AtomicBool,
) -> Result<Infallible, MessageError> {
    client.copy_body(server, framing, context, TrafficDirection::Up).await?;
    is_sent.store(true, Ordering::Relaxed);
    loop {
        if client.held.len() >= MAX_HEAD_BYTES {
            pending::<()>().await;
        }
        if client.fill_buffer().await? == 0 {
            sleep(LAST_ANSWER_TIMEOUT).await;
            return Err(MessageError::Slow);
        }
    }
}

/// Forwards the answer, and the interim answers before it (such as "100 Continue").
async fn download_answer<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    server: &mut HttpReader<R>,
    client: &mut W,
    request: &RequestHead,
    context: &RelayContext<'_>,
) -> Result<ResponseHead, MessageError> {
    loop {
        let head = server
            .read_head(ANSWER_TIMEOUT)
            .await?
            .ok_or(MessageError::Malformed("the server closed without an answer"))?;
        let answer = ResponseHead::parse_head(&head, &request.method)?;
        if answer.status == 101 && field_values(&request.fields, "upgrade").next().is_none() {
            return Err(
                RelayError::Rule("the server switched the protocol although no request asked for it".into()).into()
            );
        }
        let bytes = answer.bytes_with(|part| {
            if let Some(guard) = context.guard {
                guard.mask_bytes(part);
            }
        });
        context.count_bytes(TrafficDirection::Down, bytes.len()).await?;
        client.write_all(&bytes).await?;
        client.flush().await?;
        if answer.status >= 200 || answer.status == 101 {
            server.copy_body(client, answer.framing, context, TrafficDirection::Down).await?;
            client.flush().await?;
            return Ok(answer);
        }
    }
}

/// Relays another protocol until both sides have closed.
pub(crate) async fn relay_upgraded(
    client: &mut HttpPeer<impl AsyncRead + Unpin, impl AsyncWrite + Unpin>,
    server: &mut HttpPeer<impl AsyncRead + Unpin, impl AsyncWrite + Unpin>,
    context: &RelayContext<'_>,
) -> Result<(), RelayError> {
    let up = client.reader.copy_all(&mut server.writer, context, TrafficDirection::Up);
    let down = server.reader.copy_all(&mut client.writer, context, TrafficDirection::Down);
    tokio::try_join!(up, down).map(|_| ())
}

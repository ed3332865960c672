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

use super::head::{Framing, HEAD_MAX, Request, Response, values};
use super::stream::{Reader, Trouble};
use crate::limits::Direction;
use crate::relay::{Broken, Way};

/// Time-out for an answer after the client closed its side, or the server stopped reading.
const LAST_WAIT: Duration = Duration::from_secs(60);
/// Time-out for an answer otherwise; a long poll is shorter.
const ANSWER_TIME: Duration = Duration::from_secs(3600);

/// Next step after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The next request may follow.
    Next,
    /// The connection ends.
    Close,
    /// Both sides switched to another protocol.
    Tunnel,
}

/// Both directions of one side.
#[derive(Debug)]
pub(crate) struct Side<R, W> {
    pub(crate) reader: Reader<R>,
    pub(crate) writer: W,
}

/// Answer of the egress proxy itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    /// Explanation for the person who reads it.
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn new(status: u16, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// Creates a 403 answer, with the grant that would permit the request, if any.
    pub(crate) fn lacking(text: &str, grant: Option<&Grant>) -> Self {
        let hint = grant.map(|grant| format!("\nhint: it needs the grant `{grant}`")).unwrap_or_default();
        Self::new(403, format!("{text}{hint}"))
    }

    /// Returns a complete answer, after which the connection ends.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let reason = match self.status {
            400 => "Bad Request",
            403 => "Forbidden",
            405 => "Method Not Allowed",
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
    pub(crate) async fn send<W: AsyncWrite + Unpin>(&self, to: &mut W) {
        let write = async {
            to.write_all(&self.bytes()).await?;
            to.shutdown().await
        };
        let _ = timeout(Duration::from_secs(10), write).await;
    }
}

/// Returns the refusal for an error in the client's message; `None` if the client cannot get one.
pub(crate) fn refusal_of(trouble: &Trouble) -> Option<Refusal> {
    match trouble {
        Trouble::Malformed(why @ ("the head is too long" | "the head has too many fields")) => {
            Some(Refusal::new(431, *why))
        }
        Trouble::Malformed(why) => Some(Refusal::new(400, *why)),
        Trouble::Slow => Some(Refusal::new(408, "the request took too long")),
        Trouble::Broken(_) => None,
    }
}

/// Forwards a request and returns its answer.
pub(crate) async fn exchange<CR, CW, UR, UW>(
    client: &mut Side<CR, CW>,
    server: &mut Side<UR, UW>,
    request: &Request,
    way: &Way<'_>,
) -> Result<After, Trouble>
where
    CR: AsyncRead + Unpin,
    CW: AsyncWrite + Unpin,
    UR: AsyncRead + Unpin,
    UW: AsyncWrite + Unpin,
{
    let head = request.bytes();
    way.account(Direction::Up, head.len()).await?;
    server.writer.write_all(&head).await?;
    server.writer.flush().await?;
    let is_sent = AtomicBool::new(request.framing == Framing::None);
    let answered = {
        let upload = upload(&mut client.reader, &mut server.writer, request.framing, way, &is_sent);
        let download = download(&mut server.reader, &mut client.writer, request, way);
        tokio::pin!(upload, download);
        tokio::select! {
            biased;
            answered = &mut download => answered?,
            failed = &mut upload => match failed {
                // The server may have answered before it stopped reading. If all is sent, the
                // client is gone instead.
                Err(Trouble::Broken(Broken::Reset(_))) if !is_sent.load(Ordering::Relaxed) => {
                    timeout(LAST_WAIT, download).await.map_err(|_| Trouble::Slow)??
                }
                Err(other) => return Err(other),
                Ok(never) => match never {},
            },
        }
    };
    if answered.status == 101 {
        return Ok(After::Tunnel);
    }
    let kept = is_sent.load(Ordering::Relaxed) && request.is_kept() && answered.is_kept();
    Ok(if kept { After::Next } else { After::Close })
}

/// Sends the body, then watches for the client's disconnect.
async fn upload<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    client: &mut Reader<R>,
    server: &mut W,
    framing: Framing,
    way: &Way<'_>,
    is_sent: &AtomicBool,
) -> Result<Infallible, Trouble> {
    client.copy_body(server, framing, way, Direction::Up).await?;
    is_sent.store(true, Ordering::Relaxed);
    loop {
        if client.held.len() >= HEAD_MAX {
            pending::<()>().await;
        }
        if client.fill().await? == 0 {
            sleep(LAST_WAIT).await;
            return Err(Trouble::Slow);
        }
    }
}

/// Forwards the answer, and the interim answers before it (such as "100 Continue").
async fn download<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    server: &mut Reader<R>,
    client: &mut W,
    request: &Request,
    way: &Way<'_>,
) -> Result<Response, Trouble> {
    loop {
        let head = server.head(ANSWER_TIME).await?.ok_or(Trouble::Malformed("the server closed without an answer"))?;
        let answer = Response::parse(&head, &request.method)?;
        if answer.status == 101 && values(&request.fields, "upgrade").next().is_none() {
            return Err(Broken::Rule("the server changed the protocol although no request asked for it".into()).into());
        }
        let bytes = answer.bytes_with(|part| {
            if let Some(guard) = way.guard {
                guard.mask(part);
            }
        });
        way.account(Direction::Down, bytes.len()).await?;
        client.write_all(&bytes).await?;
        client.flush().await?;
        if answer.status >= 200 || answer.status == 101 {
            server.copy_body(client, answer.framing, way, Direction::Down).await?;
            client.flush().await?;
            return Ok(answer);
        }
    }
}

/// Relays another protocol until both sides have closed.
pub(crate) async fn tunnel<CR, CW, UR, UW>(
    client: &mut Side<CR, CW>,
    server: &mut Side<UR, UW>,
    way: &Way<'_>,
) -> Result<(), Broken>
where
    CR: AsyncRead + Unpin,
    CW: AsyncWrite + Unpin,
    UR: AsyncRead + Unpin,
    UW: AsyncWrite + Unpin,
{
    let up = client.reader.copy_all(&mut server.writer, way, Direction::Up);
    let down = server.reader.copy_all(&mut client.writer, way, Direction::Down);
    tokio::try_join!(up, down).map(|_| ())
}

//! Relays bytes from one socket to another, counted and within limits. Bytes in transit are
//! bounded: one buffer for each direction, borrowed only while it has content.
//!
//! This module must not depend on the meaning of the bytes.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{Shutdown, sockopt};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::drain_guard::DrainGuard;
use crate::events::ByteCounts;
use crate::interception::{ConnectionGuard, MaskedStream, SecretLeak, StreamKind};
use crate::limits::{EgressLimitReached, TrafficDirection, TrafficMeter};

/// Bytes of one buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes of a buffer when many are lent, so that peers that never read use little memory.
const SMALL_BUFFER_BYTES: usize = 4 << 10;
/// Most full buffers lent at once.
const FULL_BUFFERS_MAX: usize = 256;
/// Most free buffers that are kept for reuse.
const FREE_BUFFERS_MAX: usize = 64;
/// Idle time after which keep-alive probes check the other side.
const KEEPALIVE_IDLE_TIME: Duration = Duration::from_secs(60);

/// Reason why a relay ended before both sides had closed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    /// Either side reset the connection.
    #[error(transparent)]
    Reset(#[from] io::Error),
    /// A limit was reached.
    #[error(transparent)]
    Limit(#[from] EgressLimitReached),
    /// A rule of the egress proxy.
    #[error("{0}")]
    Rule(String),
    /// A secret, or its placeholder.
    #[error("{}", .0.rule)]
    Stray(SecretLeak),
}

/// Buffers for connections with data to move.
#[derive(Debug, Default)]
pub(crate) struct RelayBuffers {
    free: Mutex<Vec<Vec<u8>>>,
    borrowed_count: AtomicUsize,
}

/// Borrowed buffer; returned when dropped.
struct BorrowedBuffer<'a> {
    from: &'a RelayBuffers,
    bytes: Vec<u8>,
}

impl RelayBuffers {
    fn borrow_buffer(&self) -> BorrowedBuffer<'_> {
        let bytes = if self.borrowed_count.fetch_add(1, Ordering::Relaxed) < FULL_BUFFERS_MAX {
            let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            free.unwrap_or_else(|| vec![0; BUFFER_BYTES])
        } else {
            vec![0; SMALL_BUFFER_BYTES]
        };
        BorrowedBuffer { from: self, bytes }
    }
}

impl Drop for BorrowedBuffer<'_> {
    fn drop(&mut self) {
        self.from.borrowed_count.fetch_sub(1, Ordering::Relaxed);
        let mut free = self.from.free.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bytes.len() == BUFFER_BYTES && free.len() < FREE_BUFFERS_MAX {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// Makes the close of this socket a reset.
pub(crate) fn break_off(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Sends small writes at once, and detects a peer that is gone.
pub(crate) fn set_tcp_options(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE_TIME);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_IDLE_TIME / 4);
}

/// Writes all bytes.
pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Waits until the socket is readable. Sends bytes meanwhile that a mask may hold for a limited
/// time only.
async fn wait_masked(from: &TcpStream, to: &TcpStream, stream: &mut MaskedStream<'_>) -> io::Result<()> {
    while let Some(pause) = stream.flush_delay() {
        match timeout(pause, from.readable()).await {
            Ok(ready) => return ready,
            Err(_) => write_all(to, &stream.release_held()).await?,
        }
    }
    from.readable().await
}

/// Waits until this side resets the connection.
async fn broke_off(stream: &TcpStream) -> RelayError {
    let waited = stream.ready(Interest::ERROR).await.and_then(|_| stream.take_error());
    RelayError::Reset(match waited {
        Ok(error) => error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        Err(error) => error,
    })
}

/// Parameters of a relay besides its sockets.
#[derive(Clone, Copy)]
pub(crate) struct RelayContext<'a> {
    pub(crate) buffers: &'a RelayBuffers,
    pub(crate) meter: &'a TrafficMeter,
    pub(crate) counts: &'a ByteCounts,
    /// Present if the data can be read.
    pub(crate) guard: Option<&'a ConnectionGuard<'a>>,
}

impl RelayContext<'_> {
    /// Counts bytes and waits for the rate limit.
    pub(crate) async fn count_bytes(&self, direction: TrafficDirection, count: usize) -> Result<(), RelayError> {
        self.meter.count_bytes(direction, count).await?;
        self.counts.add_bytes(direction, count);
        Ok(())
    }

    /// Does the same for bytes from a program, which are checked.
    pub(crate) async fn check_and_count(&self, direction: TrafficDirection, bytes: &[u8]) -> Result<(), RelayError> {
        if let (TrafficDirection::Up, Some(guard)) = (direction, self.guard) {
            guard.check_outgoing(bytes).map_err(RelayError::Stray)?;
        }
        self.count_bytes(direction, bytes.len()).await
    }

    /// Moves bytes until `from` is at its end; then closes the write side of `to`.
    pub(crate) async fn copy_direction(
        &self,
        from: &TcpStream,
        to: &TcpStream,
        direction: TrafficDirection,
    ) -> Result<(), RelayError> {
        let guard = self.guard.filter(|_| direction == TrafficDirection::Down);
        let mut masked = guard.map(|guard| guard.masked_stream(StreamKind::Relay));
        loop {
            if let Some(stream) = &mut masked {
                wait_masked(from, to, stream).await?;
            } else {
                from.readable().await?;
            }
            let mut borrowed_buffer = self.buffers.borrow_buffer();
            let chunk = self.meter.chunk_bytes().min(borrowed_buffer.bytes.len());
            let buffer = &mut borrowed_buffer.bytes[..chunk];
            loop {
                match from.try_read(buffer) {
                    Ok(0) => {
                        if let Some(stream) = &mut masked {
                            write_all(to, &stream.finish()).await?;
                        }
                        // The other side may be gone already.
                        let _ = rustix::net::shutdown(to, Shutdown::Write);
                        return Ok(());
                    }
                    Ok(count) => {
                        self.check_and_count(direction, &buffer[..count]).await?;
                        match &mut masked {
                            Some(stream) => write_all(to, &stream.push(buffer[..count].to_vec())).await?,
                            None => write_all(to, &buffer[..count]).await?,
                        }
                        // A busy connection must not block the others.
                        tokio::task::consume_budget().await;
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e.into()),
                }
            }
        }
    }

    /// Sends the first bytes of the program, then relays both directions until both sides have
    /// closed or one resets. A reset is passed to the other side. `check` examines all bytes of the
    /// program so far before they are sent, as long as it asks for more. `speaking` is dropped once
    /// the program has sent everything.
    pub(crate) async fn relay_streams(
        &self,
        inside: &TcpStream,
        outside: &TcpStream,
        first: Vec<u8>,
        check: impl Fn(&[u8]) -> FirstLineDecision,
        speaking: Option<DrainGuard>,
    ) -> Result<(), RelayError> {
        let up = async {
            let _drain_guard = speaking;
            self.relay_watched(inside, outside, first, check).await?;
            self.copy_direction(inside, outside, TrafficDirection::Up).await
        };
        let down = self.copy_direction(outside, inside, TrafficDirection::Down);
        tokio::pin!(up, down);
        // A side that has sent everything may still reset, which no read would report.
        let ended = tokio::select! {
            ended = &mut up => match ended {
                Ok(()) => tokio::select! { biased; ended = &mut down => ended, reset_error = broke_off(inside) => Err(reset_error) },
                broken => broken,
            },
            ended = &mut down => match ended {
                Ok(()) => tokio::select! { biased; ended = &mut up => ended, reset_error = broke_off(outside) => Err(reset_error) },
                broken => broken,
            },
        };
        if ended.is_err() {
            break_off(inside);
            break_off(outside);
        }
        ended
    }

    async fn relay_watched(
        &self,
        inside: &TcpStream,
        outside: &TcpStream,
        mut first_bytes: Vec<u8>,
        check: impl Fn(&[u8]) -> FirstLineDecision,
    ) -> Result<(), RelayError> {
        let mut sent = 0;
        loop {
            let watch = check(&first_bytes);
            if let FirstLineDecision::Refuse(rule) = watch {
                return Err(RelayError::Rule(rule));
            }
            self.check_and_count(TrafficDirection::Up, &first_bytes[sent..]).await?;
            write_all(outside, &first_bytes[sent..]).await?;
            sent = first_bytes.len();
            if watch == FirstLineDecision::Done {
                return Ok(());
            }
            inside.readable().await?;
            let mut bytes = [0; 4096];
            match inside.try_read(&mut bytes) {
                // The pump finds the end again.
                Ok(0) => return Ok(()),
                Ok(count) => first_bytes.extend_from_slice(&bytes[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Decision about the first bytes of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FirstLineDecision {
    /// The bytes are sent, and no further check is needed.
    Done,
    /// The bytes are sent, and the next ones are checked too.
    More,
    /// The bytes are not sent.
    Refuse(String),
}

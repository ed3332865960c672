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

use crate::edge::{Guard, MaskedStream, Stray, StreamKind};
use crate::events::Counts;
use crate::limits::{Direction, Meter, Reached};
use crate::speakers::Speaking;

/// Bytes of one buffer.
const BUFFER: usize = 64 << 10;
/// Bytes of a buffer when many are lent, so that peers that never read use little memory.
const SMALL: usize = 4 << 10;
/// Most full buffers lent at once.
const LENT_MAX: usize = 256;
/// Most free buffers that are kept for reuse.
const KEPT: usize = 64;
/// Idle time after which keep-alive probes check the other side.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Reason why a relay ended before both sides had closed.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Either side reset the connection.
    Reset(io::Error),
    /// A limit was reached.
    Limit(Reached),
    /// A rule of the egress proxy.
    Rule(String),
    /// A secret, or its placeholder.
    Stray(Stray),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Reset(error)
    }
}

impl From<Reached> for Broken {
    fn from(reached: Reached) -> Self {
        Self::Limit(reached)
    }
}

/// Buffers for connections with data to move.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    lent: AtomicUsize,
}

/// Borrowed buffer; returned when dropped.
struct Lent<'a> {
    from: &'a Buffers,
    bytes: Vec<u8>,
}

impl Buffers {
    fn lend(&self) -> Lent<'_> {
        let bytes = if self.lent.fetch_add(1, Ordering::Relaxed) < LENT_MAX {
            let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            free.unwrap_or_else(|| vec![0; BUFFER])
        } else {
            vec![0; SMALL]
        };
        Lent { from: self, bytes }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.from.lent.fetch_sub(1, Ordering::Relaxed);
        let mut free = self.from.free.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bytes.len() == BUFFER && free.len() < KEPT {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// Makes the close of this socket a reset.
pub(crate) fn break_off(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Sends small writes at once, and detects a peer that is gone.
pub(crate) fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE / 4);
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
    while let Some(pause) = stream.pause() {
        match timeout(pause, from.readable()).await {
            Ok(ready) => return ready,
            Err(_) => write_all(to, &stream.release()).await?,
        }
    }
    from.readable().await
}

/// Waits until this side resets the connection.
async fn broke_off(stream: &TcpStream) -> Broken {
    let waited = stream.ready(Interest::ERROR).await.and_then(|_| stream.take_error());
    Broken::Reset(match waited {
        Ok(error) => error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        Err(error) => error,
    })
}

/// Parameters of a relay besides its sockets.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) buffers: &'a Buffers,
    pub(crate) meter: &'a Meter,
    pub(crate) counts: &'a Counts,
    /// Present if the data can be read.
    pub(crate) guard: Option<&'a Guard<'a>>,
}

impl Way<'_> {
    /// Counts bytes and waits for the rate limit.
    pub(crate) async fn account(&self, direction: Direction, count: usize) -> Result<(), Broken> {
        self.meter.bytes(direction, count).await?;
        self.counts.add(direction, count);
        Ok(())
    }

    /// Does the same for bytes from a program, which are checked.
    pub(crate) async fn pass(&self, direction: Direction, bytes: &[u8]) -> Result<(), Broken> {
        if let (Direction::Up, Some(guard)) = (direction, self.guard) {
            guard.pass(bytes).map_err(Broken::Stray)?;
        }
        self.account(direction, bytes.len()).await
    }

    /// Moves bytes until `from` is at its end; then closes the write side of `to`.
    pub(crate) async fn pump(&self, from: &TcpStream, to: &TcpStream, direction: Direction) -> Result<(), Broken> {
        let guard = self.guard.filter(|_| direction == Direction::Down);
        let mut masked = guard.map(|guard| guard.masked(StreamKind::Relay));
        loop {
            if let Some(stream) = &mut masked {
                wait_masked(from, to, stream).await?;
            } else {
                from.readable().await?;
            }
            let mut lent = self.buffers.lend();
            let chunk = self.meter.chunk().min(lent.bytes.len());
            let buffer = &mut lent.bytes[..chunk];
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
                        self.pass(direction, &buffer[..count]).await?;
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
    pub(crate) async fn relay(
        &self,
        inside: &TcpStream,
        outside: &TcpStream,
        first: Vec<u8>,
        check: impl Fn(&[u8]) -> Watch,
        speaking: Option<Speaking>,
    ) -> Result<(), Broken> {
        let up = async {
            let _until_all_is_said = speaking;
            self.watched(inside, outside, first, check).await?;
            self.pump(inside, outside, Direction::Up).await
        };
        let down = self.pump(outside, inside, Direction::Down);
        tokio::pin!(up, down);
        // A side that has sent everything may still reset, which no read would report.
        let ended = tokio::select! {
            ended = &mut up => match ended {
                Ok(()) => tokio::select! { biased; ended = &mut down => ended, gone = broke_off(inside) => Err(gone) },
                broken => broken,
            },
            ended = &mut down => match ended {
                Ok(()) => tokio::select! { biased; ended = &mut up => ended, gone = broke_off(outside) => Err(gone) },
                broken => broken,
            },
        };
        if ended.is_err() {
            break_off(inside);
            break_off(outside);
        }
        ended
    }

    async fn watched(
        &self,
        inside: &TcpStream,
        outside: &TcpStream,
        mut said: Vec<u8>,
        check: impl Fn(&[u8]) -> Watch,
    ) -> Result<(), Broken> {
        let mut sent = 0;
        loop {
            let watch = check(&said);
            if let Watch::Refuse(rule) = watch {
                return Err(Broken::Rule(rule));
            }
            self.pass(Direction::Up, &said[sent..]).await?;
            write_all(outside, &said[sent..]).await?;
            sent = said.len();
            if watch == Watch::Done {
                return Ok(());
            }
            inside.readable().await?;
            let mut bytes = [0; 4096];
            match inside.try_read(&mut bytes) {
                // The pump finds the end again.
                Ok(0) => return Ok(()),
                Ok(count) => said.extend_from_slice(&bytes[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Decision about the first bytes of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// The bytes are sent, and no further check is needed.
    Done,
    /// The bytes are sent, and the next ones are checked too.
    More,
    /// The bytes are not sent.
    Refuse(String),
}

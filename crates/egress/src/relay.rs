//! Bytes from one socket to another, counted and within limits. What is on the
//! way is bounded: one buffer a direction, borrowed only while there is something
//! in it.
//!
//! Must not know: what the bytes mean.

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
/// Bytes of a buffer when many are lent: peers that never read must not hold
/// much.
const SMALL: usize = 4 << 10;
/// Full buffers lent at once.
const LENT_MAX: usize = 256;
/// Buffers that are kept for the next who needs one.
const KEPT: usize = 64;
/// Quiet time after which the network is asked whether the other side still is.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Why a relay ended before both sides had closed.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Either side broke off.
    Reset(io::Error),
    /// A limit.
    Limit(Reached),
    /// A rule of the door.
    Rule(String),
    /// A secret, or what stands for one.
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

/// Buffers for those who have something to move.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    lent: AtomicUsize,
}

/// A buffer on loan; goes back when dropped.
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

/// Small writes go at once; a peer that is gone is noticed.
pub(crate) fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE / 4);
}

/// Writes all of it.
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

/// Waits until there is something to read. What a mask may only hold for a while is
/// sent meanwhile.
async fn wait_masked(from: &TcpStream, to: &TcpStream, stream: &mut MaskedStream<'_>) -> io::Result<()> {
    while let Some(pause) = stream.pause() {
        match timeout(pause, from.readable()).await {
            Ok(ready) => return ready,
            Err(_) => write_all(to, &stream.release()).await?,
        }
    }
    from.readable().await
}

/// Waits until this side breaks off.
async fn broke_off(stream: &TcpStream) -> Broken {
    let waited = stream.ready(Interest::ERROR).await.and_then(|_| stream.take_error());
    Broken::Reset(match waited {
        Ok(error) => error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        Err(error) => error,
    })
}

/// What a relay needs beside its sockets.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) buffers: &'a Buffers,
    pub(crate) meter: &'a Meter,
    pub(crate) counts: &'a Counts,
    /// Where what passes can be read.
    pub(crate) guard: Option<&'a Guard<'a>>,
}

impl Way<'_> {
    /// Accounts for bytes and waits for their turn.
    pub(crate) async fn account(&self, direction: Direction, count: usize) -> Result<(), Broken> {
        self.meter.bytes(direction, count).await?;
        self.counts.add(direction, count);
        Ok(())
    }

    /// The same for bytes of a program's own making, which are looked at.
    pub(crate) async fn pass(&self, direction: Direction, bytes: &[u8]) -> Result<(), Broken> {
        if let (Direction::Up, Some(guard)) = (direction, self.guard) {
            guard.pass(bytes).map_err(Broken::Stray)?;
        }
        self.account(direction, bytes.len()).await
    }

    /// Moves bytes until `from` has no more; then says so to `to`.
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
                        // One busy connection must not keep the others waiting.
                        tokio::task::consume_budget().await;
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e.into()),
                }
            }
        }
    }

    /// Sends what the program said first, then relays both ways until both sides
    /// have closed or one breaks off; a break reaches the other side as one.
    /// `check` looks at all that the program said so far before it goes on, as
    /// long as it wants to see more. `speaking` is dropped once the program has
    /// said all.
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
        // Whoever has said all may still break off, which no read would tell.
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

/// What becomes of what a program says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// It goes on, and nobody looks any more.
    Done,
    /// It goes on, and what follows is looked at too.
    More,
    /// It does not go on.
    Refuse(String),
}

//! Connections through the frames between a launcher and the host; the code is the same at both
//! ends. Bytes in transit and the number of connections are bounded, and a slow side delays no
//! other.
//!
//! This module must not depend on the targets of connections, or on permissions.

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::frames::{ChannelFrame, FrameError, MAX_DATA_BYTES};
use crate::lock_mutex;

/// Most connections of a command at once.
pub(crate) const TUNNEL_STREAMS_MAX: usize = 256;
/// Most bytes of one direction of a connection that were sent and not yet acknowledged.
pub(crate) const TUNNEL_WINDOW_BYTES: usize = 128 << 10;

/// Least cost of a piece, to bound the memory that is used besides its bytes.
const PIECE_MIN_COST_BYTES: usize = 512;

fn piece_cost(bytes: usize) -> usize {
    bytes.max(PIECE_MIN_COST_BYTES)
}

/// Sends a frame when there is room for it; returns false if the receiver is gone.
pub(crate) type TunnelFrameSender =
    Arc<dyn Fn(ChannelFrame) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// Connections of one command, at one end of the channel.
pub(crate) struct TunnelStreamTable {
    shared: Arc<TunnelShared>,
}

struct TunnelShared {
    table: Mutex<HashMap<u32, TunnelStream>>,
    frame_sender: TunnelFrameSender,
    /// Number of connections that have not sent everything yet.
    speaking: Mutex<usize>,
    quiet: Condvar,
}

/// Shared state of a connection.
struct TunnelStream {
    /// `None` after its end arrived.
    pieces: Option<UnboundedSender<Vec<u8>>>,
    /// Cost of the received bytes that are not yet written.
    pending: Arc<AtomicUsize>,
    room: Arc<TunnelWindow>,
    broken: Arc<Notify>,
}

/// Number of bytes that may still be sent.
struct TunnelWindow {
    remaining: Mutex<usize>,
    changed: Notify,
}

impl TunnelWindow {
    fn new() -> Self {
        Self { remaining: Mutex::new(TUNNEL_WINDOW_BYTES), changed: Notify::new() }
    }

    async fn wait_for_credit(&self) -> usize {
        loop {
            let remaining = *lock_mutex(&self.remaining);
            if remaining >= PIECE_MIN_COST_BYTES {
                return remaining;
            }
            self.changed.notified().await;
        }
    }

    fn consume_credit(&self, bytes: usize) {
        let mut remaining = lock_mutex(&self.remaining);
        *remaining = remaining.saturating_sub(bytes);
    }

    fn add_credit(&self, bytes: usize) {
        let mut remaining = lock_mutex(&self.remaining);
        *remaining = remaining.saturating_add(bytes).min(TUNNEL_WINDOW_BYTES);
        self.changed.notify_one();
    }
}

impl TunnelStreamTable {
    /// Creates it without connections; `frame_sender` sends their frames.
    pub(crate) fn new(frame_sender: TunnelFrameSender) -> Self {
        let shared =
            TunnelShared { table: Mutex::default(), frame_sender, speaking: Mutex::default(), quiet: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the number of connections.
    pub(crate) fn stream_count(&self) -> usize {
        lock_mutex(&self.shared.table).len()
    }

    /// Carries a connection with this number, until both directions have ended or one side resets.
    /// Sends a first frame, if there is one.
    ///
    /// # Errors
    /// [`io::Error`] if the number is in use, or the connection cannot be polled.
    pub(crate) fn start_stream(
        &self,
        id: u32,
        (stream, first): (TcpStream, Option<ChannelFrame>),
        runtime: &Handle,
    ) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let _inside = runtime.enter();
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let (pieces, queue) = unbounded_channel();
        let pieces = Some(pieces);
        let tunnel_stream = TunnelStream {
            pieces,
            pending: Arc::default(),
            room: Arc::new(TunnelWindow::new()),
            broken: Arc::default(),
        };
        let carried = TunnelForwarder {
            id,
            frame_sender: Arc::clone(&self.shared.frame_sender),
            pending: Arc::clone(&tunnel_stream.pending),
            room: Arc::clone(&tunnel_stream.room),
        };
        let broken = Arc::clone(&tunnel_stream.broken);
        let mut table = lock_mutex(&self.shared.table);
        if table.contains_key(&id) {
            return Err(FrameError::NUMBER_IN_USE.into());
        }
        table.insert(id, tunnel_stream);
        drop(table);
        let speaking = TunnelDrainGuard::start_guard(&self.shared);
        let shared = Arc::clone(&self.shared);
        runtime.spawn(async move {
            if let Some(first) = first {
                (carried.frame_sender)(first).await;
            }
            carried.forward_stream(stream, queue, &broken, speaking).await;
            lock_mutex(&shared.table).remove(&id);
        });
        Ok(())
    }

    /// Processes a frame of a connection. Data for an ended connection is dropped.
    ///
    /// # Errors
    /// [`FrameError`] if the data exceeds the window.
    pub(crate) fn handle_frame(&self, frame: ChannelFrame) -> Result<(), FrameError> {
        let mut table = lock_mutex(&self.shared.table);
        match frame {
            ChannelFrame::Piece(id, bytes) => {
                let Some(tunnel_stream) = table.get_mut(&id) else { return Ok(()) };
                let Some(pieces) = tunnel_stream.pieces.take() else { return Ok(()) };
                if bytes.is_empty() {
                    // No data follows.
                    let _ = pieces.send(bytes);
                    return Ok(());
                }
                let cost = piece_cost(bytes.len());
                if tunnel_stream.pending.fetch_add(cost, Ordering::AcqRel) + cost > TUNNEL_WINDOW_BYTES {
                    return Err(FrameError::WINDOW_EXCEEDED);
                }
                // Fails if the connection has just ended.
                let _ = pieces.send(bytes);
                tunnel_stream.pieces = Some(pieces);
            }
            ChannelFrame::PieceTaken(id, bytes) => {
                if let Some(tunnel_stream) = table.get(&id) {
                    tunnel_stream.room.add_credit(bytes as usize);
                }
            }
            ChannelFrame::Broken(id) => {
                if let Some(tunnel_stream) = table.get(&id) {
                    tunnel_stream.broken.notify_one();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits until all of them have sent everything, or the time-out has passed.
    pub(crate) fn all_quiet(&self, within: Duration) {
        let give_up = Instant::now() + within;
        let mut speaking = lock_mutex(&self.shared.speaking);
        while *speaking > 0 {
            let Some(remaining) = give_up.checked_duration_since(Instant::now()) else { return };
            let waited = self.shared.quiet.wait_timeout(speaking, remaining);
            speaking = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Resets all of them.
    pub(crate) fn break_off(&self) {
        lock_mutex(&self.shared.table).values().for_each(|tunnel_stream| tunnel_stream.broken.notify_one());
    }
}

impl Drop for TunnelStreamTable {
    fn drop(&mut self) {
        self.break_off();
    }
}

/// Marks a connection that has not sent everything yet.
struct TunnelDrainGuard(Arc<TunnelShared>);

impl TunnelDrainGuard {
    fn start_guard(shared: &Arc<TunnelShared>) -> Self {
        *lock_mutex(&shared.speaking) += 1;
        Self(Arc::clone(shared))
    }
}

impl Drop for TunnelDrainGuard {
    fn drop(&mut self) {
        *lock_mutex(&self.0.speaking) -= 1;
        self.0.quiet.notify_all();
    }
}

/// A connection that is being carried.
struct TunnelForwarder {
    id: u32,
    frame_sender: TunnelFrameSender,
    pending: Arc<AtomicUsize>,
    room: Arc<TunnelWindow>,
}

impl TunnelForwarder {
    async fn forward_stream(
        &self,
        mut stream: tokio::net::TcpStream,
        queue: UnboundedReceiver<Vec<u8>>,
        broken: &Notify,
        speaking: TunnelDrainGuard,
    ) {
        let (from, to) = stream.split();
        let up = async {
            let read_result = self.forward_reads(from).await;
            drop(speaking);
            read_result
        };
        let both = async { tokio::try_join!(up, self.forward_writes(to, queue)) };
        let ended = tokio::select! {
            ended = both => ended.is_ok(),
            () = broken.notified() => false,
        };
        if !ended {
            // A reset is passed to this side and the other.
            let _ = set_socket_linger(&stream, Some(Duration::ZERO));
            (self.frame_sender)(ChannelFrame::Broken(self.id)).await;
        }
    }

    async fn send_frame(&self, frame: ChannelFrame) -> io::Result<()> {
        if (self.frame_sender)(frame).await { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    async fn forward_reads(&self, mut from: ReadHalf<'_>) -> io::Result<()> {
        let mut buffer = vec![0; MAX_DATA_BYTES];
        loop {
            let room = self.room.wait_for_credit().await;
            let length = from.read(&mut buffer[..room.min(MAX_DATA_BYTES)]).await?;
            self.room.consume_credit(piece_cost(length));
            self.send_frame(ChannelFrame::Piece(self.id, buffer[..length].to_vec())).await?;
            if length == 0 {
                return Ok(());
            }
        }
    }

    async fn forward_writes(&self, mut to: WriteHalf<'_>, mut queue: UnboundedReceiver<Vec<u8>>) -> io::Result<()> {
        while let Some(piece) = queue.recv().await {
            if piece.is_empty() {
                // The reader may be gone already.
                let _ = to.shutdown().await;
                return Ok(());
            }
            to.write_all(&piece).await?;
            let cost = piece_cost(piece.len());
            self.pending.fetch_sub(cost, Ordering::AcqRel);
            self.send_frame(ChannelFrame::PieceTaken(self.id, cost as u32)).await?;
        }
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    use stockade_egress::connected_pair;
    use tokio::runtime::Runtime;
    use tokio::sync::mpsc::{Receiver, channel};

    struct Side {
        stream_table: Arc<TunnelStreamTable>,
        posted: Receiver<ChannelFrame>,
        runtime: Runtime,
    }

    fn side() -> Side {
        let (sender, posted) = channel(4096);
        let frame_sender: TunnelFrameSender = Arc::new(move |frame| {
            let sender = sender.clone();
            Box::pin(async move { sender.send(frame).await.is_ok() })
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Side { stream_table: Arc::new(TunnelStreamTable::new(frame_sender)), posted, runtime }
    }

    impl Side {
        fn connection(&self, id: u32) -> TcpStream {
            let (carried, other_end) = connected_pair().unwrap();
            other_end.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            self.stream_table.start_stream(id, (carried, None), self.runtime.handle()).unwrap();
            other_end
        }
    }

    /// Connects two sides, as the channel does.
    fn joined() -> (Side, Side) {
        let (mut a, mut b) = (side(), side());
        let (of_a, of_b) = (Arc::clone(&a.stream_table), Arc::clone(&b.stream_table));
        for (from, to) in [(&mut a, of_b), (&mut b, of_a)] {
            let (_, none) = channel(1);
            let mut posted = std::mem::replace(&mut from.posted, none);
            from.runtime.spawn(async move {
                while let Some(frame) = posted.recv().await {
                    to.handle_frame(frame).unwrap();
                }
            });
        }
        (a, b)
    }

    #[test]
    fn a_connection_is_carried_whole_and_each_way_ends_by_itself() {
        let (a, b) = joined();
        let (mut here, mut there) = (a.connection(7), b.connection(7));
        let sent: Vec<u8> = (0..3 << 20_u32).map(|n| (n % 251) as u8).collect();
        let text = sent.clone();
        let mut writer = here.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            writer.write_all(&text).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut received_bytes = Vec::new();
        there.read_to_end(&mut received_bytes).unwrap();
        assert!(received_bytes == sent, "{} of {} bytes", received_bytes.len(), sent.len());
        writing.join().unwrap();
        there.write_all(b"still").unwrap();
        drop(there);
        let mut rest = String::new();
        here.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "still");
        a.stream_table.all_quiet(Duration::from_secs(30));
        b.stream_table.all_quiet(Duration::from_secs(30));
    }

    #[test]
    fn a_break_is_a_break_at_the_other_side() {
        let (a, b) = joined();
        let (here, mut there) = (a.connection(1), b.connection(1));
        set_socket_linger(&here, Some(Duration::ZERO)).unwrap();
        drop(here);
        let broken = there.read(&mut [0]).unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_reader_that_is_slow_is_sent_no_more_than_its_window() {
        let mut a = side();
        let mut here = a.connection(1);
        here.set_nonblocking(true).unwrap();
        let (block, mut written) = (vec![0; 64 << 10], 0);
        // More than the window and the kernel's buffers of both ends.
        let enough = Instant::now() + Duration::from_secs(2);
        while Instant::now() < enough && written < 64 << 20 {
            match here.write(&block) {
                Ok(length) => written += length,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        let mut sent = 0;
        while let Ok(ChannelFrame::Piece(_, bytes)) = a.posted.try_recv() {
            sent += bytes.len();
        }
        assert!(sent > 0 && sent <= TUNNEL_WINDOW_BYTES, "{sent} bytes were sent");
        // Sending continues as soon as some bytes are acknowledged.
        a.stream_table.handle_frame(ChannelFrame::PieceTaken(1, u32::MAX)).unwrap();
        let next = a.runtime.block_on(a.posted.recv());
        assert!(matches!(next, Some(ChannelFrame::Piece(1, _))), "{next:?}");
    }

    #[test]
    fn a_peer_that_exceeds_its_window_is_disconnected_and_small_pieces_count() {
        for size in [1, MAX_DATA_BYTES] {
            let a = side();
            // The other end does not read; the kernel accepts a limited amount.
            let here = a.connection(1);
            let mut tries = (0..1 << 20).map(|_| a.stream_table.handle_frame(ChannelFrame::Piece(1, vec![0; size])));
            assert_eq!(tries.find(Result::is_err), Some(Err(FrameError::WINDOW_EXCEEDED)));
            drop(here);
        }
        let a = side();
        let _here = a.connection(1);
        for _ in 0..100_000 {
            a.stream_table.handle_frame(ChannelFrame::Piece(1, Vec::new())).unwrap();
        }
        // For a connection that does not exist.
        a.stream_table.handle_frame(ChannelFrame::Piece(2, vec![0; 9])).unwrap();
        a.stream_table.handle_frame(ChannelFrame::Broken(2)).unwrap();
        assert!(a.stream_table.start_stream(1, (connected_pair().unwrap().0, None), a.runtime.handle()).is_err());
    }
}

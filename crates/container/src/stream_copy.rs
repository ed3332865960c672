//! Copies the streams of a command between descriptors of this process and frames; the code is the
//! same at both ends. Each stream has a thread of its own, so that a slow side delays nothing else.
//!
//! This module must not depend on the transport of the frames.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::frames::{ChannelFrame, FrameError, MAX_DATA_BYTES, StdioStream, WINDOW_BYTES};

/// Bytes of one write: a writable pipe accepts this many without blocking (`PIPE_BUF`, pipe(7)).
const PIPE_WRITE_BYTES: usize = 4096;

/// Sends a frame. A frame that cannot be sent is lost with the channel.
pub(crate) type FrameSender = Arc<dyn Fn(ChannelFrame) + Send + Sync>;

/// Condition for the end of a stream that is read, besides its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEndCondition {
    /// As soon as the end is signalled.
    Reported,
    /// When the end is signalled and no more data is available.
    Drained,
}

/// Returns a descriptor to wait on, and one whose close signals the end.
pub(crate) fn end_signal_pipe() -> io::Result<(Arc<OwnedFd>, OwnedFd)> {
    let (waited, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Arc::new(waited), write_end))
}

/// Number of bytes of a stream that may still be sent.
#[derive(Debug)]
pub(crate) struct StreamWindow {
    credit: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Default for StreamWindow {
    fn default() -> Self {
        Self { credit: Mutex::new(Some(WINDOW_BYTES)), changed: Condvar::new() }
    }
}

impl StreamWindow {
    /// Waits until some bytes may be sent; `None` if the receiver is gone.
    fn wait_for_credit(&self) -> Option<usize> {
        let mut credit = self.credit.lock().unwrap_or_else(PoisonError::into_inner);
        while *credit == Some(0) {
            credit = self.changed.wait(credit).unwrap_or_else(PoisonError::into_inner);
        }
        *credit
    }

    fn consume_credit(&self, bytes: usize) {
        self.update_credit(|credit| credit.saturating_sub(bytes));
    }

    fn add_credit(&self, bytes: usize) {
        self.update_credit(|credit| credit.saturating_add(bytes).min(WINDOW_BYTES));
    }

    fn close_window(&self) {
        *self.credit.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.changed.notify_all();
    }

    fn update_credit(&self, by: impl FnOnce(usize) -> usize) {
        let mut credit = self.credit.lock().unwrap_or_else(PoisonError::into_inner);
        *credit = credit.map(by);
        self.changed.notify_all();
    }
}

/// Stream that arrives in frames and is written to a descriptor.
#[derive(Debug)]
struct IncomingStream {
    pieces: Sender<Vec<u8>>,
    /// Received bytes that are not written yet.
    pending: Arc<AtomicUsize>,
    /// True after the end arrived, which is one piece without bytes.
    ended: AtomicBool,
}

/// Streams of one command, at one end of the channel.
#[derive(Debug, Default)]
pub(crate) struct StdioStreamSet {
    outgoing: [Option<Arc<StreamWindow>>; 3],
    incoming: [Option<IncomingStream>; 3],
}

impl StdioStreamSet {
    /// Reads a stream from this descriptor, until its end or until the end is signalled. The
    /// returned receiver is disconnected then.
    pub(crate) fn read_from(
        &mut self,
        stream: StdioStream,
        from: OwnedFd,
        (ending, until): (Arc<OwnedFd>, StreamEndCondition),
        send: FrameSender,
    ) -> io::Result<Receiver<()>> {
        let window = Arc::<StreamWindow>::default();
        self.outgoing[stream as usize] = Some(Arc::clone(&window));
        spawn_copy_thread(move || read_stream(stream, &from, (&ending, until), &window, &*send))
    }

    /// Writes a stream to this descriptor, until its end or until the end is signalled. The
    /// returned receiver is disconnected then.
    pub(crate) fn write_to(
        &mut self,
        stream: StdioStream,
        to: OwnedFd,
        ending: Arc<OwnedFd>,
        send: FrameSender,
    ) -> io::Result<Receiver<()>> {
        let (pieces, queue) = channel();
        let pending = Arc::<AtomicUsize>::default();
        self.incoming[stream as usize] =
            Some(IncomingStream { pieces, pending: Arc::clone(&pending), ended: AtomicBool::new(false) });
        spawn_copy_thread(move || write_stream(stream, to, &ending, (&queue, &pending), &*send))
    }

    /// Processes a frame of a stream.
    ///
    /// # Errors
    /// [`FrameError`] if the stream does not exist, had ended, or exceeds its window.
    pub(crate) fn handle_frame(&self, frame: ChannelFrame) -> Result<(), FrameError> {
        match frame {
            ChannelFrame::Data(stream, bytes) => {
                let incoming = self.incoming[stream as usize].as_ref().ok_or(FrameError::UNKNOWN_STREAM)?;
                if incoming.ended.fetch_or(bytes.is_empty(), Ordering::AcqRel) {
                    return Err(FrameError::DATA_AFTER_END);
                }
                if incoming.pending.fetch_add(bytes.len(), Ordering::AcqRel) + bytes.len() > WINDOW_BYTES {
                    return Err(FrameError::WINDOW_EXCEEDED);
                }
                // The writer thread has ended, so the data is lost, as with a pipe.
                let _ = incoming.pieces.send(bytes);
            }
            ChannelFrame::Taken(stream, bytes) => self.stream_window(stream)?.add_credit(bytes as usize),
            ChannelFrame::Closed(stream) => self.stream_window(stream)?.close_window(),
            _ => {}
        }
        Ok(())
    }

    /// Closes all streams: nothing more is sent or received.
    pub(crate) fn close_all(&mut self) {
        self.outgoing.iter().flatten().for_each(|window| window.close_window());
        self.incoming = Default::default();
    }

    fn stream_window(&self, stream: StdioStream) -> Result<&StreamWindow, FrameError> {
        self.outgoing[stream as usize].as_deref().ok_or(FrameError::UNKNOWN_STREAM)
    }
}

fn spawn_copy_thread(carry: impl FnOnce() + Send + 'static) -> io::Result<Receiver<()>> {
    let (on_end, ended) = channel::<()>();
    let carry = move || {
        carry();
        drop(on_end);
    };
    thread::Builder::new().name("stockade-stream".to_owned()).spawn(carry)?;
    Ok(ended)
}

/// Waits for the descriptor or the end. Returns which of them is ready.
fn wait_for(fd: &OwnedFd, flags: PollFlags, ending: &OwnedFd) -> (bool, bool) {
    let mut both = [PollFd::new(fd, flags), PollFd::new(ending, PollFlags::IN)];
    while poll(&mut both, None) == Err(Errno::INTR) {}
    let [here, over] = both.map(|one| !one.revents().is_empty());
    (here, over)
}

fn read_stream(
    stream: StdioStream,
    from: &OwnedFd,
    (ending, until): (&OwnedFd, StreamEndCondition),
    window: &StreamWindow,
    send: &(dyn Fn(ChannelFrame) + Send + Sync),
) {
    let mut buffer = vec![0; MAX_DATA_BYTES];
    while let Some(credit) = window.wait_for_credit() {
        let (readable, over) = wait_for(from, PollFlags::IN, ending);
        if over && (!readable || until == StreamEndCondition::Reported) {
            break;
        }
        match rustix::io::read(from, &mut buffer[..credit.min(MAX_DATA_BYTES)]) {
            Ok(0) => break,
            Ok(length) => {
                window.consume_credit(length);
                send(ChannelFrame::Data(stream, buffer[..length].to_vec()));
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            // A terminal that no process has open any more, or a descriptor that cannot be read.
            Err(_) => break,
        }
    }
    send(ChannelFrame::Data(stream, Vec::new()));
}

fn write_stream(
    stream: StdioStream,
    to: OwnedFd,
    ending: &OwnedFd,
    (queue, pending): (&Receiver<Vec<u8>>, &AtomicUsize),
    send: &(dyn Fn(ChannelFrame) + Send + Sync),
) {
    while let Ok(piece) = queue.recv() {
        if piece.is_empty() {
            return;
        }
        if !write_all(&to, &piece, ending) {
            break;
        }
        pending.fetch_sub(piece.len(), Ordering::AcqRel);
        send(ChannelFrame::Taken(stream, piece.len() as u32));
    }
    drop(to);
    send(ChannelFrame::Closed(stream));
}

/// Returns false if the reader is gone.
fn write_all(to: &OwnedFd, mut rest: &[u8], ending: &OwnedFd) -> bool {
    while !rest.is_empty() {
        let (writable, over) = wait_for(to, PollFlags::OUT, ending);
        if over && !writable {
            return false;
        }
        match rustix::io::write(to, &rest[..rest.len().min(PIPE_WRITE_BYTES)]) {
            Ok(length) => rest = &rest[length..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_ends_once_and_carries_no_more_than_its_window() {
        let (waited, _over) = end_signal_pipe().unwrap();
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut streams = StdioStreamSet::default();
        streams.write_to(StdioStream::Output, to, waited, Arc::new(|_| {})).unwrap();
        let data = |bytes: &[u8]| ChannelFrame::Data(StdioStream::Output, bytes.to_vec());
        assert_eq!(streams.handle_frame(data(b"text")), Ok(()));
        assert_eq!(
            streams.handle_frame(ChannelFrame::Data(StdioStream::Errors, Vec::new())),
            Err(FrameError::UNKNOWN_STREAM)
        );
        assert_eq!(streams.handle_frame(data(b"")), Ok(()));
        for more in [&b""[..], b"more"] {
            assert_eq!(streams.handle_frame(data(more)), Err(FrameError::DATA_AFTER_END));
        }
        let mut buffer = [0; 8];
        assert_eq!(rustix::io::read(&from, &mut buffer), Ok(4));
        assert_eq!(rustix::io::read(&from, &mut buffer), Ok(0));
        let (waited, _over) = end_signal_pipe().unwrap();
        streams
            .write_to(StdioStream::Output, pipe_with(PipeFlags::CLOEXEC).unwrap().1, waited, Arc::new(|_| {}))
            .unwrap();
        assert_eq!(streams.handle_frame(data(&vec![0; WINDOW_BYTES + 1])), Err(FrameError::WINDOW_EXCEEDED));
    }
}

//! Copies the streams of a command between descriptors and pipes within this process; the code is
//! the same at both ends of the channel. Each stream has a thread of its own, because a caller's
//! descriptor need not support polling, and must not be made non-blocking for its other users.
//!
//! This module must not depend on what the pipes are connected to.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::runtime::Handle;

use crate::multiplexer::MAX_DATA_BYTES;

/// Bytes of one write: a writable pipe accepts this many without blocking (`PIPE_BUF`, pipe(7)).
const PIPE_WRITE_BYTES: usize = 4096;

/// Condition for the end of a stream that is read, besides its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEndCondition {
    /// As soon as the end is signalled.
    Reported,
    /// When the end is signalled and no more data is available.
    Drained,
}

/// The end for the channel of a stream that a thread copies, and a receiver that is disconnected when
/// everything is copied.
pub(crate) type CopiedStream = (DuplexStream, Receiver<()>);

/// Returns a descriptor to wait on, and one whose close signals the end.
pub(crate) fn end_signal_pipe() -> io::Result<(Arc<OwnedFd>, OwnedFd)> {
    let (waited, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Arc::new(waited), write_end))
}

/// Reads a stream from this descriptor, until its end or until the end is signalled.
pub(crate) fn read_from(
    from: OwnedFd,
    ending: Arc<OwnedFd>,
    until: StreamEndCondition,
    runtime: &Handle,
) -> io::Result<CopiedStream> {
    let runtime = runtime.clone();
    spawn_copy_thread(move |pipe| read_stream(&from, (&ending, until), |bytes| runtime.block_on(pipe.write_all(bytes))))
}

/// Writes a stream to this descriptor, until its end or until the end is signalled.
pub(crate) fn write_to(to: OwnedFd, ending: Arc<OwnedFd>, runtime: &Handle) -> io::Result<CopiedStream> {
    let runtime = runtime.clone();
    spawn_copy_thread(move |pipe| write_stream(&to, &ending, |buffer| runtime.block_on(pipe.read(buffer))))
}

fn spawn_copy_thread(copy: impl FnOnce(&mut DuplexStream) + Send + 'static) -> io::Result<CopiedStream> {
    let (pipe, mut own) = duplex(MAX_DATA_BYTES);
    let (on_end, ended) = channel::<()>();
    let copy = move || {
        copy(&mut own);
        drop(on_end);
    };
    thread::Builder::new().name("stockade-stream".to_owned()).spawn(copy)?;
    Ok((pipe, ended))
}

/// Waits for the descriptor or the end. Returns which of them is ready.
fn wait_for(fd: &OwnedFd, flags: PollFlags, ending: &OwnedFd) -> (bool, bool) {
    let mut both = [PollFd::new(fd, flags), PollFd::new(ending, PollFlags::IN)];
    while poll(&mut both, None) == Err(Errno::INTR) {}
    let [here, over] = both.map(|one| !one.revents().is_empty());
    (here, over)
}

fn read_stream(
    from: &OwnedFd,
    (ending, until): (&OwnedFd, StreamEndCondition),
    mut pass: impl FnMut(&[u8]) -> io::Result<()>,
) {
    let mut buffer = vec![0; MAX_DATA_BYTES];
    loop {
        let (readable, over) = wait_for(from, PollFlags::IN, ending);
        if over && (!readable || until == StreamEndCondition::Reported) {
            return;
        }
        match rustix::io::read(from, &mut buffer) {
            Ok(0) => return,
            Ok(length) if pass(&buffer[..length]).is_ok() => {}
            Err(Errno::INTR | Errno::AGAIN) => {}
            // The receiver is gone; or a terminal that no process has open any more, or a
            // descriptor that cannot be read.
            Ok(_) | Err(_) => return,
        }
    }
}

fn write_stream(to: &OwnedFd, ending: &OwnedFd, mut next: impl FnMut(&mut [u8]) -> io::Result<usize>) {
    let mut buffer = vec![0; MAX_DATA_BYTES];
    while let Ok(length @ 1..) = next(&mut buffer)
        && write_all(to, &buffer[..length], ending)
    {}
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

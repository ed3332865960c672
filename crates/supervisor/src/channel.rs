//! Connection between a supervisor and a client. It begins with one request, which is a file in
//! memory beside the descriptors that it needs. So a request of any length fits, even before the
//! other side reads. All further messages are JSON of limited length, written by several threads
//! and read by one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::SendFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stockade_backend_api::remote::{AttemptChannel, AttemptMessage, EngineMessage};
use stockade_sys::{Errno, fd_passing};

use crate::message::{Refusal, Reply, Request};

/// Version of the messages: the first byte of each connection.
const PROTOCOL_VERSION: u8 = 1;
/// Time-out for the other side to accept a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Time-out for the request of a new client.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Length of the header, which contains the length of the message.
const HEADER_BYTES: usize = 4;
/// Longest request and longest message of an attempt, in bytes: two outputs of 16 MiB with every
/// byte escaped are shorter.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// Longest request of a client, in bytes: the longest command line and environment, escaped.
const MAX_REQUEST_BYTES: usize = 32 << 20;
/// Slowest other side that is accepted for a long message.
const MIN_BYTES_PER_SECOND: u64 = 1 << 20;

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    /// Held while a message is written.
    writing: Mutex<()>,
}

impl Channel {
    /// Wraps a connection.
    ///
    /// # Errors
    /// [`io::Error`] if it is not a socket of this process any more.
    pub fn from_stream(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        // The other side may be silent for days; its end wakes the reader.
        stream.set_read_timeout(None)?;
        Ok(Self { stream, writing: Mutex::new(()) })
    }

    /// Makes both ends of a connection.
    ///
    /// # Errors
    /// [`io::Error`] if no descriptors are left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        // Above 2, so that neither can be mistaken for a standard stream.
        let end = |stream: UnixStream| Self::from_stream(fd_passing::above_stdio(stream.into())?.into());
        Ok((end(one)?, end(other)?))
    }

    /// Returns the connection, to poll it.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns the connection, to pass it to another process.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Sends the request with which a connection begins, and its descriptors.
    ///
    /// # Errors
    /// [`io::Error`] if the other side is gone, or if there are too many descriptors.
    pub fn send_request(&self, request: &impl Serialize, along: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut file = File::from(memfd_create("stockade-request", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(request)?)?;
        let all: Vec<BorrowedFd<'_>> = std::iter::once(file.as_fd()).chain(along.iter().copied()).collect();
        Ok(fd_passing::send_message(self.stream.as_fd(), &[PROTOCOL_VERSION], &all)?)
    }

    /// Receives an order of the creator of this process, with its descriptors; `None` if the creator
    /// is gone. Waits for `timeout` at most.
    ///
    /// # Errors
    /// [`io::Error`] if none arrives in time, or if it is malformed or of another version.
    pub fn receive_order<T: DeserializeOwned>(
        &self,
        timeout: Option<Duration>,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_request(timeout, MAX_MESSAGE_BYTES)
    }

    fn receive_request<T: DeserializeOwned>(
        &self,
        timeout: Option<Duration>,
        limit: usize,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.stream.set_read_timeout(timeout)?;
        let mut version = [0];
        let received = fd_passing::receive_message(self.stream.as_fd(), &mut version, true)?;
        self.stream.set_read_timeout(None)?;
        if received.length == 0 {
            return Ok(None);
        }
        let mut descriptors = received.descriptors.into_iter().flatten();
        match descriptors.next() {
            Some(file) if version == [PROTOCOL_VERSION] => {
                Ok(Some((parse_file(File::from(file), limit)?, descriptors.collect())))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the request is of another version of Stockade")),
        }
    }

    /// Receives the request of a client, and refuses one that is malformed or of another version.
    ///
    /// # Errors
    /// [`io::Error`] if none arrives in time, or if it is too long, malformed or of another version.
    pub fn accept_request(&self) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
        self.receive_request(Some(REQUEST_TIMEOUT), MAX_REQUEST_BYTES).inspect_err(|error| {
            // A client that is gone needs no reply.
            let _ = self.send(&Reply::<()>::Err(Refusal::because(error.to_string())));
        })
    }

    /// Sends one message. Closes a connection that does not accept it.
    ///
    /// # Errors
    /// [`io::Error`] if the other side is gone or does not read.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let message = serde_json::to_vec(message)?;
        let length = u32::try_from(message.len()).map_err(io::Error::other)?;
        let whole = [&length.to_le_bytes()[..], &message].concat();
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        send_all(&self.stream, &whole).inspect_err(|_| self.hang_up())
    }

    /// Waits for the next message; `None` if the other side has closed the connection.
    ///
    /// # Errors
    /// [`io::Error`] if it is longer than `limit` bytes, or malformed.
    pub fn receive<T: DeserializeOwned>(&self, limit: usize) -> io::Result<Option<T>> {
        let mut header = [0; HEADER_BYTES];
        match (&self.stream).read_exact(&mut header) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        let length = u32::from_le_bytes(header) as usize;
        if length > limit {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
        }
        let mut message = vec![0; length];
        (&self.stream).read_exact(&mut message)?;
        Ok(Some(serde_json::from_slice(&message)?))
    }

    /// Waits for the next message as [`receive`](Self::receive), for `timeout` at most.
    ///
    /// # Errors
    /// `TimedOut` if none arrives in time, or as there.
    pub fn receive_within<T: DeserializeOwned>(&self, timeout: Duration) -> io::Result<Option<T>> {
        self.stream.set_read_timeout(Some(timeout))?;
        let received = self.receive(MAX_MESSAGE_BYTES).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        });
        self.stream.set_read_timeout(None)?;
        received
    }

    /// Closes the connection, also for other threads that read or write it.
    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl AttemptChannel for Channel {
    fn send_message(&self, engine_message: &EngineMessage) -> io::Result<()> {
        self.send(engine_message)
    }

    fn receive_message(&self) -> io::Result<Option<AttemptMessage>> {
        self.receive(MAX_MESSAGE_BYTES)
    }

    fn fall_silent(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn hang_up(&self) {
        self.hang_up();
    }
}

fn parse_file<T: DeserializeOwned>(file: File, limit: usize) -> io::Result<T> {
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    if length > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut text = vec![0; length];
    file.read_exact_at(&mut text, 0)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Sends all bytes without SIGPIPE, which would kill a process whose peer has ended. A side that
/// reads too slowly is an error, because other clients wait meanwhile.
fn send_all(stream: &UnixStream, mut rest: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + SEND_TIMEOUT + Duration::from_secs(rest.len() as u64 / MIN_BYTES_PER_SECOND);
    while !rest.is_empty() {
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match rustix::net::send(stream, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_until_the_other_side_falls_silent() {
        let (one, other) = Channel::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let all: Vec<String> = std::iter::from_fn(|| other.receive(2 << 20).unwrap()).collect();
            other.send(&"heard").unwrap();
            all
        });
        let all = [String::new(), "1".repeat(1 << 20), "\0\n\u{fffd}".to_owned()];
        all.iter().for_each(|message| one.send(message).unwrap());
        one.fall_silent();
        assert_eq!(one.receive::<String>(7).unwrap().unwrap(), "heard");
        assert_eq!(reader.join().unwrap(), all);
    }

    #[test]
    fn a_request_of_a_client_is_bounded_before_it_is_read() {
        let (one, other) = Channel::pair().unwrap();
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(MAX_REQUEST_BYTES as u64 + 1).unwrap();
        fd_passing::send_message(one.stream.as_fd(), &[PROTOCOL_VERSION], &[file.as_fd()]).unwrap();
        assert_eq!(other.accept_request().unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(one.receive_within::<Reply<()>>(REQUEST_TIMEOUT).unwrap().unwrap().is_err());
    }

    #[test]
    fn what_is_too_long_or_cut_off_or_no_message_is_an_error() {
        for bytes in [&[0xff; 8][..], &[9, 0, 0, 0, 1], &[2, 0, 0, 0, b'{', b'}']] {
            let (one, other) = Channel::pair().unwrap();
            one.stream().write_all(bytes).unwrap();
            one.hang_up();
            assert!(other.receive::<String>(1 << 10).is_err(), "{bytes:?}");
        }
        let (one, other) = Channel::pair().unwrap();
        one.hang_up();
        assert_eq!(other.receive::<String>(1 << 10).unwrap(), None);
    }

    #[test]
    fn a_wait_with_a_time_out_ends_and_later_waits_have_none() {
        let (one, other) = Channel::pair().unwrap();
        let error = other.receive_within::<String>(Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(other.stream().read_timeout().unwrap(), None);
        one.send(&"late").unwrap();
        assert_eq!(other.receive_within::<String>(SEND_TIMEOUT).unwrap().unwrap(), "late");
    }

    #[test]
    fn a_request_arrives_with_its_descriptors_and_anything_else_does_not() {
        let (ours, theirs) = Channel::pair().unwrap();
        let long = "x".repeat(1 << 20);
        ours.send_request(&long, &[theirs.stream().as_fd(), theirs.stream().as_fd()]).unwrap();
        let (request, along) = theirs.receive_order::<String>(Some(SEND_TIMEOUT)).unwrap().unwrap();
        assert_eq!((request, along.len()), (long, 2));
        for bytes in [&[PROTOCOL_VERSION][..], b"x"] {
            let (ours, theirs) = Channel::pair().unwrap();
            fd_passing::send_message(ours.stream().as_fd(), bytes, &[]).unwrap();
            assert!(theirs.receive_order::<String>(None).is_err(), "{bytes:?}");
        }
        let (ours, theirs) = Channel::pair().unwrap();
        let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        for bytes in [[PROTOCOL_VERSION], [PROTOCOL_VERSION + 1]] {
            fd_passing::send_message(ours.stream().as_fd(), &bytes, &[other.as_fd()]).unwrap();
            assert!(theirs.receive_order::<String>(None).is_err(), "{bytes:?}");
        }
        drop(ours);
        assert!(theirs.receive_order::<String>(None).unwrap().is_none());
    }
}

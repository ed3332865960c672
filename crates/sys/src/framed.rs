//! Messages of bounded length over a stream socket: written by several threads, read by one.
//! Independent of the content.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::SendFlags;

use crate::Errno;

/// Time-out for the other side to accept a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Length of the header, which contains the length of the message.
const HEAD_BYTES: usize = 4;

/// An end of a connection.
#[derive(Debug)]
pub struct FramedChannel {
    reader: UnixStream,
    writer: Mutex<UnixStream>,
}

impl FramedChannel {
    /// Makes an end over this connection.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn over_stream(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        // The other side may be silent for days; its end wakes the reader.
        stream.set_read_timeout(None)?;
        Ok(Self { reader: stream.try_clone()?, writer: Mutex::new(stream) })
    }

    /// Returns the connection, for polling.
    pub fn stream(&self) -> &UnixStream {
        &self.reader
    }

    /// Sends one message. Closes a connection that does not accept it.
    ///
    /// # Errors
    /// An error if the other side is gone or does not read.
    pub fn send_message(&self, message: &[u8]) -> io::Result<()> {
        let length = u32::try_from(message.len()).map_err(io::Error::other)?;
        let whole = [&length.to_le_bytes()[..], message].concat();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        send_all(&writer, &whole).inspect_err(|_| self.hang_up())
    }

    /// Receives the next message; `None` if the other side has closed the connection.
    ///
    /// # Errors
    /// An error if the message is longer than `limit` bytes.
    pub fn receive_message(&self, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let mut head = [0; HEAD_BYTES];
        match (&self.reader).read_exact(&mut head) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        let length = u32::from_le_bytes(head) as usize;
        if length > limit {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
        }
        let mut message = vec![0; length];
        (&self.reader).read_exact(&mut message)?;
        Ok(Some(message))
    }

    /// Closes the connection for all readers and writers.
    pub fn hang_up(&self) {
        let _ = self.reader.shutdown(Shutdown::Both);
    }

    /// Closes the connection for writing; messages of the other side can still be received.
    pub fn fall_silent(&self) {
        let _ = self.reader.shutdown(Shutdown::Write);
    }
}

/// Sends all bytes without SIGPIPE, which would kill a process whose peer has ended.
fn send_all(stream: &UnixStream, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
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

    fn pair() -> (FramedChannel, FramedChannel) {
        let (one, other) = UnixStream::pair().unwrap();
        (FramedChannel::over_stream(one).unwrap(), FramedChannel::over_stream(other).unwrap())
    }

    #[test]
    fn messages_arrive_whole_until_the_other_side_falls_silent() {
        let (one, other) = pair();
        let reader = std::thread::spawn(move || {
            let all: Vec<_> = std::iter::from_fn(|| other.receive_message(1 << 20).unwrap()).collect();
            other.send_message(b"heard").unwrap();
            all
        });
        let all = [vec![], vec![1; 1 << 20], b"x".to_vec()];
        all.iter().for_each(|message| one.send_message(message).unwrap());
        one.fall_silent();
        assert_eq!(one.receive_message(5).unwrap().unwrap(), b"heard");
        assert_eq!(reader.join().unwrap(), all);
    }

    #[test]
    fn overlong_and_truncated_messages_are_errors() {
        for bytes in [&[0xff; 8][..], &[9, 0, 0, 0, 1]] {
            let (one, other) = pair();
            rustix::io::write(one.stream(), bytes).unwrap();
            one.hang_up();
            assert!(other.receive_message(1 << 10).is_err(), "{bytes:?}");
        }
    }
}

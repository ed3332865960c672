//! What an attached client and its run say to each other: messages of bounded
//! length over the run's socket. What the run prints does not go this way: it is
//! read where it is kept, so nobody who does not read can stop it.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stockade_model::{Answer, Question, RawText};

/// Bytes of input in one message at most.
pub const INPUT_BYTES: usize = 64 << 10;
/// The longest message of a client: input in which each byte is written as six.
pub const SAID_BYTES: usize = 6 * INPUT_BYTES + 1024;
/// The longest message of a run: a question with the longest command.
pub const TOLD_BYTES: usize = 64 << 20;
/// How long the other side may take to take a message.
const TAKES_WITHIN: Duration = Duration::from_secs(5);
/// Bytes before a message: its length.
const HEAD_BYTES: usize = 4;

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// For the command's standard input. Its fate is waited for before the next.
    Input(Piece),
    /// The answer to a question.
    Answer {
        /// Which question.
        number: u64,
        /// The answer.
        answer: Answer,
    },
}

/// Something for a standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Piece {
    /// These bytes.
    Bytes(RawText),
    /// No more comes from here for now: what waits for its rest has it.
    Rest,
    /// The input ends, for everybody.
    Close,
}

/// What a run tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    /// What became of the last input.
    Input(Fate),
    /// A question, to be answered here.
    Question {
        /// Unique in the run.
        number: u64,
        /// The question.
        question: Box<Question>,
        /// What the spans of its findings point into.
        text: RawText,
    },
    /// A question is answered or was taken back.
    Over(u64),
}

/// What became of input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The command has it.
    Taken,
    /// It is no whole command yet and waits for its rest.
    Waits,
    /// It was refused, and nothing of it reached the command: why, for a person.
    Refused(String),
    /// It cannot be written: why.
    Lost(String),
}

/// One end of a connection: written by several threads, read by one.
#[derive(Debug)]
pub struct Line {
    reader: UnixStream,
    writer: Mutex<UnixStream>,
}

impl Line {
    /// Over this connection.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(TAKES_WITHIN))?;
        // Whoever is attached may be silent for days; its end wakes the reader.
        stream.set_read_timeout(None)?;
        Ok(Self { reader: stream.try_clone()?, writer: Mutex::new(stream) })
    }

    /// The connection, to wait at.
    pub fn stream(&self) -> &UnixStream {
        &self.reader
    }

    /// Sends one message. A connection that does not take it is broken off.
    ///
    /// # Errors
    /// When the other side is gone or does not read.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        let whole = [&length.to_le_bytes()[..], &body].concat();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        send_all(&writer, &whole).inspect_err(|_| self.hang_up())
    }

    /// The next message; none where the other side has gone.
    ///
    /// # Errors
    /// When it is longer than `limit` bytes, or no message.
    pub fn receive<T: DeserializeOwned>(&self, limit: usize) -> io::Result<Option<T>> {
        let mut head = [0; HEAD_BYTES];
        match (&self.reader).read_exact(&mut head) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            got => got?,
        }
        let length = u32::from_le_bytes(head) as usize;
        if length > limit {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
        }
        let mut body = vec![0; length];
        (&self.reader).read_exact(&mut body)?;
        Ok(Some(serde_json::from_slice(&body)?))
    }

    /// Ends the connection, for whoever reads or writes it too.
    pub fn hang_up(&self) {
        let _ = self.reader.shutdown(Shutdown::Both);
    }
}

/// Without SIGPIPE, which would end a client whose run has ended.
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
    use std::io::Write;

    use super::*;

    fn pair() -> (Line, Line) {
        let (one, other) = UnixStream::pair().unwrap();
        (Line::over(one).unwrap(), Line::over(other).unwrap())
    }

    #[test]
    fn any_bytes_arrive_whole_and_the_longest_input_fits() {
        let (client, run) = pair();
        let reader = std::thread::spawn(move || {
            std::iter::from_fn(|| run.receive::<Said>(SAID_BYTES).unwrap()).collect::<Vec<_>>()
        });
        let all: Vec<_> = [vec![0; INPUT_BYTES], vec![0xff; INPUT_BYTES], b"\n".to_vec(), Vec::new()]
            .into_iter()
            .map(|bytes| Piece::Bytes(bytes.into()))
            .chain([Piece::Rest, Piece::Close])
            .map(Said::Input)
            .chain([Said::Answer { number: 7, answer: Answer::TimedOut }])
            .collect();
        all.iter().for_each(|said| client.send(said).unwrap());
        client.hang_up();
        assert_eq!(reader.join().unwrap(), all);
    }

    #[test]
    fn what_is_too_long_or_no_message_is_an_error() {
        for bytes in [&[0xff; 8][..], &[2, 0, 0, 0, b'{', b'}'], &[9, 0, 0, 0, 1]] {
            let (client, run) = pair();
            (&client.reader).write_all(bytes).unwrap();
            client.hang_up();
            assert!(run.receive::<Said>(SAID_BYTES).is_err(), "{bytes:?}");
        }
        let (client, run) = pair();
        client.hang_up();
        assert_eq!(run.receive::<Said>(SAID_BYTES).unwrap(), None);
    }
}

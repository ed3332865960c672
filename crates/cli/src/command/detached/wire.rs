//! Messages of bounded length between an attached client and its run, over the run's socket. Output
//! is not sent this way: clients read it from files, so a client that does not read cannot stop the
//! run.

use std::io;
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stockade_model::{Answer, Question, RawText};
use stockade_sys::framed;

/// Most bytes of input in one message.
pub const INPUT_BYTES: usize = 64 << 10;
/// Longest message of a client: input in which each byte is written as six.
pub const SAID_BYTES: usize = 6 * INPUT_BYTES + 1024;
/// Longest message of a run: a question with the longest command.
pub const TOLD_BYTES: usize = 64 << 20;

/// Message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// Input for the command. The client waits for its result before the next piece.
    Input(Piece),
    /// The answer to a question.
    Answer {
        /// Number of the question.
        number: u64,
        /// The answer.
        answer: Answer,
    },
    /// Size of the client's terminal, which becomes that of the run's.
    Size {
        /// Lines.
        rows: u16,
        /// Characters in a line.
        columns: u16,
        /// True if the command must redraw even if the size is unchanged.
        again: bool,
    },
}

/// Kind of a run's standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// No input.
    Nothing,
    /// A pipe.
    Pipe,
    /// A terminal, which is its output too.
    Terminal,
}

/// Piece of input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Piece {
    /// Bytes.
    Bytes(RawText),
    /// Keys that a user pressed, for a terminal.
    Keys(RawText),
    /// End of this client's input: held text is complete.
    Rest,
    /// End of the input for all clients.
    Close,
}

/// Message of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    /// Result of the last input.
    Input(Fate),
    /// A question for the client's user.
    Question {
        /// Unique number in the run.
        number: u64,
        /// The question.
        question: Box<Question>,
        /// Text that the spans of its findings refer to.
        text: RawText,
    },
    /// The question with this number was answered or withdrawn.
    Over(u64),
}

/// Result of a piece of input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// Passed to the command.
    Taken,
    /// An incomplete command, which waits for its rest.
    Waits,
    /// Refused completely, with the reason for the user.
    Refused(String),
    /// Not written, with the reason.
    Lost(String),
}

/// One end of a connection.
#[derive(Debug)]
pub struct Line(framed::Line);

impl Line {
    /// Wraps a connection.
    ///
    /// # Errors
    /// [`io::Error`] if no descriptors are left.
    pub fn over(stream: UnixStream) -> io::Result<Self> {
        framed::Line::over(stream).map(Self)
    }

    /// Returns the connection, to poll it.
    pub fn stream(&self) -> &UnixStream {
        self.0.stream()
    }

    /// Sends one message. A connection that does not take it is closed.
    ///
    /// # Errors
    /// [`io::Error`] if the other side is gone or does not read.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.0.send(&serde_json::to_vec(message)?)
    }

    /// Receives the next message; `None` if the other side has disconnected.
    ///
    /// # Errors
    /// [`io::Error`] if it is longer than `limit` bytes, or malformed.
    pub fn receive<T: DeserializeOwned>(&self, limit: usize) -> io::Result<Option<T>> {
        Ok(self.0.receive(limit)?.map(|message| serde_json::from_slice(&message)).transpose()?)
    }

    /// Closes the connection, also for other threads that read or write it.
    pub fn hang_up(&self) {
        self.0.hang_up();
    }
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
            .flat_map(|bytes| [Piece::Bytes(bytes.clone().into()), Piece::Keys(bytes.into())])
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
            client.stream().write_all(bytes).unwrap();
            client.hang_up();
            assert!(run.receive::<Said>(SAID_BYTES).is_err(), "{bytes:?}");
        }
        let (client, run) = pair();
        client.hang_up();
        assert_eq!(run.receive::<Said>(SAID_BYTES).unwrap(), None);
    }
}

//! What an attached client and its run say to each other: messages of bounded
//! length over the run's socket. What the run prints does not go this way: it is
//! read where it is kept, so nobody who does not read can stop it.

use std::io;
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stockade_model::{Answer, Question, RawText};
use stockade_sys::framed;

/// Bytes of input in one message at most.
pub const INPUT_BYTES: usize = 64 << 10;
/// The longest message of a client: input in which each byte is written as six.
pub const SAID_BYTES: usize = 6 * INPUT_BYTES + 1024;
/// The longest message of a run: a question with the longest command.
pub const TOLD_BYTES: usize = 64 << 20;

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
    /// The size of the client's terminal, which becomes that of the run's.
    Size {
        /// Lines.
        rows: u16,
        /// Characters in a line.
        columns: u16,
        /// Whether the command is to show all again, whatever the size was.
        again: bool,
    },
}

/// What a run's standard input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// Nothing.
    Nothing,
    /// A pipe.
    Pipe,
    /// A terminal, which is its output too.
    Terminal,
}

/// Something for a standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Piece {
    /// These bytes.
    Bytes(RawText),
    /// Keys that a person pressed, for a terminal.
    Keys(RawText),
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

/// One end of a connection.
#[derive(Debug)]
pub struct Line(framed::Line);

impl Line {
    /// Over this connection.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn over(stream: UnixStream) -> io::Result<Self> {
        framed::Line::over(stream).map(Self)
    }

    /// The connection, to wait at.
    pub fn stream(&self) -> &UnixStream {
        self.0.stream()
    }

    /// Sends one message. A connection that does not take it is broken off.
    ///
    /// # Errors
    /// When the other side is gone or does not read.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.0.send(&serde_json::to_vec(message)?)
    }

    /// The next message; none where the other side has gone.
    ///
    /// # Errors
    /// When it is longer than `limit` bytes, or no message.
    pub fn receive<T: DeserializeOwned>(&self, limit: usize) -> io::Result<Option<T>> {
        Ok(self.0.receive(limit)?.map(|message| serde_json::from_slice(&message)).transpose()?)
    }

    /// Ends the connection, for whoever reads or writes it too.
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

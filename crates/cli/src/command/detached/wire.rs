//! Messages of bounded length between an attached client and its run, over the run's socket. Output
//! is not sent this way: clients read it from files, so a client that does not read cannot stop the
//! run.

use std::io;
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stockade_model::{ApprovalAnswer, ApprovalQuestion, RawText};
use stockade_sys::framed;

/// Most bytes of input in one message.
pub const MAX_INPUT_BYTES: usize = 64 << 10;
/// Longest message of a client: input in which each byte is written as six.
pub const MAX_CLIENT_MESSAGE_BYTES: usize = 6 * MAX_INPUT_BYTES + 1024;
/// Longest message of a run: a question with the longest command.
pub const MAX_RUN_MESSAGE_BYTES: usize = 64 << 20;

/// Message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientMessage {
    /// Input for the command. The client waits for its result before the next piece.
    Input(InputPiece),
    /// The answer to a question.
    Answer {
        /// Number of the question.
        number: u64,
        /// The answer.
        answer: ApprovalAnswer,
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
pub enum InputKind {
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
pub enum InputPiece {
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
pub enum RunMessage {
    /// Result of the last input.
    Input(InputResult),
    /// A question for the client's user.
    Question {
        /// Unique number in the run.
        number: u64,
        /// The question.
        question: Box<ApprovalQuestion>,
        /// Text that the spans of its findings refer to.
        text: RawText,
    },
    /// The question with this number was answered or withdrawn.
    Over(u64),
}

/// Result of a piece of input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputResult {
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
pub struct RunChannel(framed::FramedChannel);

impl RunChannel {
    /// Wraps a connection.
    ///
    /// # Errors
    /// [`io::Error`] if no descriptors are left.
    pub fn from_stream(stream: UnixStream) -> io::Result<Self> {
        framed::FramedChannel::over_stream(stream).map(Self)
    }

    /// Returns the connection, to poll it.
    pub fn stream(&self) -> &UnixStream {
        self.0.stream()
    }

    /// Sends one message. A connection that does not take it is closed.
    ///
    /// # Errors
    /// [`io::Error`] if the other side is gone or does not read.
    pub fn send_message(&self, message: &impl Serialize) -> io::Result<()> {
        self.0.send_message(&serde_json::to_vec(message)?)
    }

    /// Receives the next message; `None` if the other side has disconnected.
    ///
    /// # Errors
    /// [`io::Error`] if it is longer than `limit` bytes, or malformed.
    pub fn receive_message<T: DeserializeOwned>(&self, limit: usize) -> io::Result<Option<T>> {
        Ok(self.0.receive_message(limit)?.map(|message| serde_json::from_slice(&message)).transpose()?)
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

    fn pair() -> (RunChannel, RunChannel) {
        let (one, other) = UnixStream::pair().unwrap();
        (RunChannel::from_stream(one).unwrap(), RunChannel::from_stream(other).unwrap())
    }

    #[test]
    fn any_bytes_arrive_whole_and_the_longest_input_fits() {
        let (client, run) = pair();
        let reader = std::thread::spawn(move || {
            std::iter::from_fn(|| run.receive_message::<ClientMessage>(MAX_CLIENT_MESSAGE_BYTES).unwrap())
                .collect::<Vec<_>>()
        });
        let all: Vec<_> = [vec![0; MAX_INPUT_BYTES], vec![0xff; MAX_INPUT_BYTES], b"\n".to_vec(), Vec::new()]
            .into_iter()
            .flat_map(|bytes| [InputPiece::Bytes(bytes.clone().into()), InputPiece::Keys(bytes.into())])
            .chain([InputPiece::Rest, InputPiece::Close])
            .map(ClientMessage::Input)
            .chain([ClientMessage::Answer { number: 7, answer: ApprovalAnswer::TimedOut }])
            .collect();
        all.iter().for_each(|sent_message| client.send_message(sent_message).unwrap());
        client.hang_up();
        assert_eq!(reader.join().unwrap(), all);
    }

    #[test]
    fn overlong_and_malformed_messages_are_errors() {
        for bytes in [&[0xff; 8][..], &[2, 0, 0, 0, b'{', b'}'], &[9, 0, 0, 0, 1]] {
            let (client, run) = pair();
            client.stream().write_all(bytes).unwrap();
            client.hang_up();
            assert!(run.receive_message::<ClientMessage>(MAX_CLIENT_MESSAGE_BYTES).is_err(), "{bytes:?}");
        }
        let (client, run) = pair();
        client.hang_up();
        assert_eq!(run.receive_message::<ClientMessage>(MAX_CLIENT_MESSAGE_BYTES).unwrap(), None);
    }
}

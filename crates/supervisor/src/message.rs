//! The messages between a supervisor and its clients. A connection begins with a [`Request`] of the
//! client and a [`Reply`] of the supervisor; only `Run` is replied to by the attempt itself. Some
//! requests continue: `Exec` and `Attach` with [`ClientMessage`] and [`RunMessage`], `Run` with the
//! messages of [`stockade_backend_api::remote`], and `Watch` with events of the sandbox.
//!
//! The output of a detached run is not sent this way: clients read it from files, so a client that
//! does not read cannot stop the run.

use serde::{Deserialize, Serialize};
use stockade_backend_api::remote::AttemptOrder;
use stockade_backend_api::{SandboxError, StartError};
use stockade_model::{ApprovalAnswer, ApprovalQuestion, RawText};

/// Most bytes of input in one message.
pub const MAX_INPUT_BYTES: usize = 64 << 10;
/// Longest message of a client: input in which each byte is written as six.
pub const MAX_CLIENT_MESSAGE_BYTES: usize = 6 * MAX_INPUT_BYTES + 1024;
/// Longest message of a run: a question with the longest command.
pub const MAX_RUN_MESSAGE_BYTES: usize = 64 << 20;

/// Request to a supervisor. Each kind of supervisor has some of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Runs a command with the client's directory and standard streams, and its terminal if it
    /// passes one.
    Exec(Box<ExecRequest>),
    /// Runs an attempt with the passed standard streams.
    Run(Box<AttemptOrder>),
    /// Attaches the client to a run. Replied to with the [`InputKind`] of the run.
    Attach {
        /// True if the client's user can answer questions.
        answers: bool,
    },
    /// Ends the supervisor and what it supervises. The command of a run gets this signal first.
    End(Option<i32>),
    /// Returns the enforcement report of the sandbox.
    Enforced,
    /// Freezes every process.
    Pause,
    /// Thaws every process.
    Resume,
    /// Returns the resource usage.
    Usage,
    /// Sends events until the client disconnects.
    Watch,
}

/// Reply to a request.
pub type Reply<T> = Result<T, Refusal>;

/// First message of a new supervisor to its creator: it serves, or its exit code.
pub type StartReport = Result<(), u8>;

/// Reason for a failed request: an error without the facts that the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// This cannot be done, with the reason.
    Unsupported(String),
    /// The sandbox is gone.
    Gone,
    /// It failed.
    Failed(StartError),
}

impl Refusal {
    /// Makes a refusal with this reason.
    pub fn because(why: impl Into<String>) -> Self {
        Self::Failed(StartError { what: why.into(), hint: None })
    }

    /// Makes the refusal of a request that this kind of supervisor does not have.
    pub fn unknown_request() -> Self {
        Self::because("its supervisor does not have this request")
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unsupported(why) => f.write_str(why),
            Self::Gone => f.write_str("it is gone"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl From<SandboxError> for Refusal {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Unsupported { why, .. } => Self::Unsupported(why),
            SandboxError::Gone(_) => Self::Gone,
            SandboxError::Failed(error) => Self::Failed(error),
        }
    }
}

/// Command of a client, for [`Request::Exec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// A script, instead of words.
    pub script: Option<RawText>,
    /// Program and arguments.
    pub words: Vec<RawText>,
    /// Grants to request, as typed.
    pub requests: Vec<RawText>,
    /// Destination of the outcome.
    pub report: OutcomeDestination,
    /// The client's variables.
    pub environment: Vec<(RawText, RawText)>,
    /// The client's file mode creation mask.
    pub umask: u32,
}

/// Destination of the outcome: `--json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutcomeDestination {
    /// None.
    Nowhere,
    /// Standard output.
    StandardOutput,
    /// A file.
    File(RawText),
}

/// Message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientMessage {
    /// This signal is for the command.
    Signal(i32),
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
    Size(TerminalSize),
}

/// Size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
    /// True if the command must redraw even if the size is unchanged.
    pub redraw: bool,
}

/// Kind of a run's standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    QuestionOver(u64),
    /// The command was stopped. The client that lent the terminal stops too, and sends a signal
    /// when it continues.
    Stopped,
    /// The command has ended, with this exit code.
    Over(u8),
}

/// Result of a piece of input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;

    #[test]
    fn any_bytes_arrive_whole_and_the_longest_input_fits() {
        let (client, run) = Channel::pair().unwrap();
        let reader = std::thread::spawn(move || {
            std::iter::from_fn(|| run.receive::<ClientMessage>(MAX_CLIENT_MESSAGE_BYTES).unwrap()).collect::<Vec<_>>()
        });
        let all: Vec<_> = [vec![0; MAX_INPUT_BYTES], vec![0xff; MAX_INPUT_BYTES], b"\n".to_vec(), Vec::new()]
            .into_iter()
            .flat_map(|bytes| [InputPiece::Bytes(bytes.clone().into()), InputPiece::Keys(bytes.into())])
            .chain([InputPiece::Rest, InputPiece::Close])
            .map(ClientMessage::Input)
            .chain([ClientMessage::Answer { number: 7, answer: ApprovalAnswer::TimedOut }])
            .collect();
        all.iter().for_each(|message| client.send(message).unwrap());
        client.hang_up();
        assert_eq!(reader.join().unwrap(), all);
    }

    #[test]
    fn a_requested_command_keeps_its_bytes() {
        let request = Request::Exec(Box::new(ExecRequest {
            script: None,
            words: vec![b"\xff\0"[..1].into(), "x\n".into()],
            requests: vec![b"write /\xff"[..].into()],
            report: OutcomeDestination::File(b"\xfe"[..].into()),
            environment: vec![("A".into(), b"\x80"[..].into())],
            umask: 0o27,
        }));
        let (client, supervisor) = Channel::pair().unwrap();
        client.send_request(&request, &[]).unwrap();
        let (received, along) = supervisor.receive_order::<Request>(None).unwrap().unwrap();
        assert_eq!((received, along.len()), (request, 0));
    }
}

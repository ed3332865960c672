//! Client of a run: it shows the output, writes the input and answers the questions. The output is
//! read from the run's files. So a slow client misses dropped output, learns how much, and does not
//! stop the run. Input is sent over the run's socket, one piece at a time, as fast as the command
//! reads it.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use stockade_backend_api::{Approver as _, HeldCalls, PendingQuestion};
use stockade_model::{ApprovalQuestion, RawText};
use stockade_store::runs::{DetachedRun, OutputReader};
use stockade_supervisor::{
    Channel, ClientMessage, InputKind, InputPiece, InputResult, MAX_INPUT_BYTES, MAX_RUN_MESSAGE_BYTES,
    REQUEST_TIMEOUT, Reply, Request, RunMessage, connect_in,
};
use stockade_sys::signals::SignalDescriptor;

use super::terminal_client::{self, TerminalClient};
use super::{OutputPrinter, RUN_POLL_INTERVAL};
use crate::approver::TerminalApprover;
use crate::command::print_remark;
use crate::detach_keys::DetachKeys;
use crate::failure::CliError;
use crate::terminal::UserTerminal;

/// Signals that detach from the run.
const DETACH_SIGNALS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Keys read at once.
const KEY_BUFFER_BYTES: usize = 4096;

/// State of the input that is read here for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputProgress {
    /// More may be read and sent.
    Open,
    /// The result of the last piece is not known yet.
    Awaiting,
    /// Like `Awaiting`, and it was the last piece.
    AwaitingLast,
    /// No more input is read.
    Ended,
}

/// Event that ended a wait.
pub enum ClientEvent {
    /// More output may be available.
    Nothing,
    /// Result of the last input.
    Fate(InputResult),
    /// The run ended, or it closed the connection to this client.
    Over,
    /// A signal: the user wants to detach.
    Left,
}

/// Readiness of the polled descriptors.
#[derive(Clone, Copy, Default)]
struct ClientReadiness {
    message: bool,
    signalled: bool,
    answered: bool,
    typed: bool,
}

/// A question on the screen.
struct ShownQuestion {
    number: u64,
    waiting: PendingQuestion,
    dialog: JoinHandle<()>,
    /// True if the user detached while it was shown.
    has_left: Arc<AtomicBool>,
}

/// A question to be shown later.
struct NextQuestion {
    number: u64,
    question: Box<ApprovalQuestion>,
    text: RawText,
}

/// An attached client.
pub struct RunClient {
    channel: Arc<Channel>,
    signals: SignalDescriptor,
    intake: InputKind,
    source: InputProgress,
    /// Message that is sent at the end of standard input.
    last: InputPiece,
    /// The user's terminal, if the run's terminal is shown on it.
    user_terminal: Option<TerminalClient>,
    /// Shows the output if there is no `user_terminal`.
    shower: OutputPrinter,
    open_question: Option<ShownQuestion>,
    next: VecDeque<NextQuestion>,
    /// Readable once a dialog has ended.
    answered: Arc<OwnedFd>,
}

impl RunClient {
    /// Attaches to this run.
    ///
    /// # Errors
    /// [`CliError`] if it has ended or cannot be reached.
    pub fn attach_to(run: &DetachedRun) -> Result<Self, CliError> {
        // Before any thread starts.
        let signal_numbers: Vec<i32> = DETACH_SIGNALS.into_iter().chain([Signal::WINCH]).map(Signal::as_raw).collect();
        let signals = SignalDescriptor::block_and_read(&signal_numbers).map_err(attach_error)?;
        let answered =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| attach_error(e.into()))?;
        let answers = UserTerminal::open().is_some();
        let attached = ask_supervisor(run, &Request::Attach { answers });
        let (channel, intake) = attached.map_err(|why| match run.is_supervised() {
            true => CliError::new(format!("cannot attach to {}: {why}", run.id())),
            false => CliError::new(format!("{} is over", run.id())).with_hint("`stockade logs` shows what it printed"),
        })?;
        // Ctrl-D is a user's decision; another end of file may have no meaning, for example
        // `/dev/null`.
        let last = if io::stdin().is_terminal() { InputPiece::Close } else { InputPiece::Rest };
        Ok(Self {
            channel: Arc::new(channel),
            signals,
            intake,
            source: if intake == InputKind::Nothing { InputProgress::Ended } else { InputProgress::Open },
            last,
            user_terminal: None,
            shower: OutputPrinter::default(),
            open_question: None,
            next: VecDeque::new(),
            answered: Arc::new(answered),
        })
    }

    /// Returns the kind of the run's input.
    pub fn input_kind(&self) -> InputKind {
        self.intake
    }

    /// Returns whether more can be written.
    pub fn is_open(&self) -> bool {
        self.source != InputProgress::Ended
    }

    /// Sets the message that is sent at the end of standard input.
    pub fn end_with(&mut self, last: InputPiece) {
        self.last = last;
    }

    /// Stops the input.
    pub fn stop_writing(&mut self) {
        self.source = InputProgress::Ended;
    }

    /// Shows the run's terminal on the user's terminal until these keys are pressed. Starts with
    /// the last part of `past`.
    ///
    /// # Errors
    /// [`CliError`] if the terminal is gone, or if the earlier output cannot be read.
    pub fn sit_down(&mut self, keys: &DetachKeys, past: &mut OutputReader) -> Result<(), CliError> {
        self.user_terminal.insert(TerminalClient::take_terminal(keys).map_err(attach_error)?).replay_output(past)?;
        self.tell_size(true);
        Ok(())
    }

    /// Shows the available output, unless a question is shown.
    ///
    /// # Errors
    /// [`CliError`] if it cannot be read or shown.
    pub fn show_output(&mut self, output: &mut OutputReader) -> Result<(), CliError> {
        match &mut self.user_terminal {
            _ if self.open_question.is_some() => Ok(()),
            Some(user_terminal) => user_terminal.show_output(output),
            None => self.shower.print_available(output),
        }
    }

    /// Prints a message to the user.
    pub fn print_message(&self, text: &str) {
        match &self.user_terminal {
            Some(_) => terminal_client::print_message(text.as_bytes()),
            None => print_remark(text),
        }
    }

    /// Sends the terminal size. A failure is ignored, because a run that has ended needs no size.
    fn tell_size(&self, again: bool) {
        if let Some(size) = terminal_client::read_terminal_size(again).filter(|_| self.user_terminal.is_some()) {
            let _ = self.channel.send(&size);
        }
    }

    /// Waits a short time for the next event.
    ///
    /// # Errors
    /// [`CliError`] if the wait fails.
    pub fn wait_for_event(&mut self, printing: Option<&OwnedFd>) -> Result<ClientEvent, CliError> {
        let ready = self.poll_readiness(printing).map_err(|e| CliError::new(format!("cannot wait: {e}")))?;
        if ready.answered && self.finish_question() {
            return Ok(ClientEvent::Left);
        }
        if ready.signalled {
            return Ok(match self.signals.next() {
                Ok(signal) if signal == Signal::WINCH.as_raw() => {
                    self.tell_size(false);
                    ClientEvent::Nothing
                }
                Ok(_) | Err(_) => ClientEvent::Left,
            });
        }
        if ready.message {
            return Ok(match self.channel.receive(MAX_RUN_MESSAGE_BYTES) {
                Ok(Some(message)) => self.handle_message(message),
                Ok(None) | Err(_) => ClientEvent::Over,
            });
        }
        if ready.typed {
            return Ok(self.pass_on());
        }
        Ok(ClientEvent::Nothing)
    }

    fn poll_readiness(&self, printing: Option<&OwnedFd>) -> io::Result<ClientReadiness> {
        let stdin = io::stdin();
        let mut waited = vec![
            PollFd::new(self.channel.stream(), PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&*self.answered, PollFlags::IN),
        ];
        // Input while a question is shown is its answer.
        let has_room = match &self.user_terminal {
            // Always, so that the user can detach from a run that reads no input.
            Some(user_terminal) => self.source != InputProgress::Ended && user_terminal.has_room(),
            None => self.source == InputProgress::Open,
        };
        let reads = has_room && self.open_question.is_none();
        if reads {
            waited.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        if let Some(printing) = printing.filter(|_| self.open_question.is_none()) {
            waited.push(PollFd::new(printing, PollFlags::IN));
        }
        let again = Timespec { tv_sec: 0, tv_nsec: RUN_POLL_INTERVAL.subsec_nanos().into() };
        match poll(&mut waited, Some(&again)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let is_ready = |at: usize| waited.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let ready = ClientReadiness {
            message: is_ready(0),
            signalled: is_ready(1),
            answered: is_ready(2),
            typed: reads && is_ready(3),
        };
        if let Some(printing) = printing {
            // The content is irrelevant; the descriptor must not stay ready.
            while rustix::io::read(printing, &mut [0; 4096]).is_ok_and(|length| length > 0) {}
        }
        Ok(ready)
    }

    /// Sends input, or the end of the input.
    fn pass_on(&mut self) -> ClientEvent {
        if self.user_terminal.is_some() {
            return self.read_keys();
        }
        let mut bytes = vec![0; MAX_INPUT_BYTES];
        let piece = match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(length @ 1..) => {
                self.source = InputProgress::Awaiting;
                InputPiece::Bytes(bytes[..length].into())
            }
            Err(Errno::INTR | Errno::AGAIN) => return ClientEvent::Nothing,
            Ok(0) | Err(_) => {
                self.source = InputProgress::AwaitingLast;
                self.last.clone()
            }
        };
        self.channel.send(&ClientMessage::Input(piece)).map_or(ClientEvent::Over, |()| ClientEvent::Nothing)
    }

    /// Reads pressed keys.
    fn read_keys(&mut self) -> ClientEvent {
        let mut bytes = [0; KEY_BUFFER_BYTES];
        let pressed = match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(length @ 1..) => &bytes[..length],
            Err(Errno::INTR | Errno::AGAIN) => return ClientEvent::Nothing,
            // The terminal is gone.
            Ok(0) | Err(_) => return ClientEvent::Left,
        };
        if self.user_terminal.as_mut().is_some_and(|user_terminal| user_terminal.handle_keys(pressed)) {
            return ClientEvent::Left;
        }
        self.send_keys()
    }

    /// Sends the next keys, if the run has taken the previous ones.
    fn send_keys(&mut self) -> ClientEvent {
        let user_terminal = self.user_terminal.as_mut().filter(|_| self.source == InputProgress::Open);
        let Some(keys) = user_terminal.and_then(TerminalClient::next_keys) else { return ClientEvent::Nothing };
        self.source = InputProgress::Awaiting;
        self.channel.send(&keys).map_or(ClientEvent::Over, |()| ClientEvent::Nothing)
    }

    fn handle_message(&mut self, message: RunMessage) -> ClientEvent {
        match message {
            RunMessage::Input(fate) => {
                self.source =
                    if self.source == InputProgress::Awaiting { InputProgress::Open } else { InputProgress::Ended };
                return match fate {
                    InputResult::Taken if self.user_terminal.is_some() => self.send_keys(),
                    fate => ClientEvent::Fate(fate),
                };
            }
            RunMessage::Question { number, question, text } => {
                self.next.push_back(NextQuestion { number, question, text });
                self.put_next();
            }
            RunMessage::QuestionOver(number) => {
                self.next.retain(|next| next.number != number);
                if let Some(open_question) =
                    self.open_question.as_ref().filter(|open_question| open_question.number == number)
                {
                    open_question.waiting.withdraw();
                }
            }
            RunMessage::Stopped | RunMessage::Over(_) => {}
        }
        ClientEvent::Nothing
    }

    /// Shows the next question, if none is shown.
    fn put_next(&mut self) {
        if self.open_question.is_some() {
            return;
        }
        let Some(NextQuestion { number, question, text }) = self.next.pop_front() else { return };
        let waiting = PendingQuestion::new(HeldCalls::default());
        let (channel, answered, until) = (Arc::clone(&self.channel), Arc::clone(&self.answered), waiting.clone());
        let has_left = Arc::new(AtomicBool::new(false));
        let leaves = Arc::clone(&has_left);
        let dialog = move || {
            let mut approver =
                TerminalApprover::new(text, crate::wants_color(), None).detach_on_interrupt(Arc::clone(&leaves));
            let answer = approver.ask_question(&question, &until);
            if !leaves.load(Ordering::Relaxed) {
                // A run that has ended needs no answer.
                let _ = channel.send(&ClientMessage::Answer { number, answer });
            }
            let _ = rustix::io::write(&*answered, &1_u64.to_ne_bytes());
        };
        match thread::Builder::new().name("stockade-ask".to_owned()).spawn(dialog) {
            Ok(dialog) => self.open_question = Some(ShownQuestion { number, waiting, dialog, has_left }),
            // No answer: the run refuses the question after its time-out.
            Err(error) => tracing::warn!(%error, "cannot start the thread that asks the approver"),
        }
    }

    /// Ends the dialog, and returns whether the user detached while it was shown.
    fn finish_question(&mut self) -> bool {
        let _ = rustix::io::read(&*self.answered, &mut [0; 8]);
        if let Some(open_question) = self.open_question.take() {
            // A thread that panicked has reported it.
            let _ = open_question.dialog.join();
            if open_question.has_left.load(Ordering::Relaxed) {
                return true;
            }
        }
        self.put_next();
        if self.open_question.is_none() {
            // The question has overwritten part of the run's screen.
            self.tell_size(true);
        }
        false
    }

    /// Restores the terminal and closes the connection.
    pub fn detach_client(&mut self) {
        self.next.clear();
        if let Some(open_question) = self.open_question.take() {
            open_question.waiting.withdraw();
            let _ = open_question.dialog.join();
        }
        self.user_terminal = None;
        self.channel.hang_up();
    }
}

/// Sends a request to the supervisor of a run. Returns its reply, and the connection.
fn ask_supervisor<T: DeserializeOwned>(run: &DetachedRun, request: &Request) -> Result<(Channel, T), String> {
    let ask = || {
        let channel = connect_in(run.path())?;
        channel.send_request(request, &[])?;
        let reply = channel.receive_within::<Reply<T>>(REQUEST_TIMEOUT)?;
        Ok((channel, reply.ok_or(io::ErrorKind::UnexpectedEof)?))
    };
    let (channel, reply) = ask().map_err(|error: io::Error| error.to_string())?;
    Ok((channel, reply.map_err(|refusal| refusal.to_string())?))
}

/// Requests the run's supervisor to end it, starting with this signal.
///
/// # Errors
/// [`CliError`] if the supervisor does not answer, or refuses.
pub fn request_run_end(run: &DetachedRun, signal: Signal) -> Result<(), CliError> {
    let ended = ask_supervisor::<()>(run, &Request::End(Some(signal.as_raw())));
    ended.map(drop).map_err(|why| CliError::new(format!("cannot end {}: {why}", run.id())))
}

fn attach_error(error: io::Error) -> CliError {
    CliError::new(format!("cannot attach: {error}"))
}

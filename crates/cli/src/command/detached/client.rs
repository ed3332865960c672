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
use stockade_engine::{Approver as _, HeldCalls, Waiting};
use stockade_model::{Question, RawText};
use stockade_store::runs::{OutputReader, Run};
use stockade_sys::signals::Signals;

use super::seat::{self, Seat};
use super::wire::{Fate, INPUT_BYTES, Intake, Line, Piece, Said, TOLD_BYTES, Told};
use super::{AGAIN, Shower, control};
use crate::approver::TerminalApprover;
use crate::command::remark;
use crate::detach_keys::DetachKeys;
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Signals that detach from the run.
const LEAVING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Keys read at once.
const KEYS_BYTES: usize = 4096;

/// State of the input that is read here for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
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
pub enum Happened {
    /// More output may be available.
    Nothing,
    /// Result of the last input.
    Fate(Fate),
    /// The run ended, or it closed the connection to this client.
    Over,
    /// A signal: the user wants to detach.
    Left,
}

/// Readiness of the polled descriptors.
#[derive(Clone, Copy, Default)]
struct Ready {
    told: bool,
    signalled: bool,
    answered: bool,
    typed: bool,
}

/// A question on the screen.
struct Asked {
    number: u64,
    waiting: Waiting,
    dialog: JoinHandle<()>,
    /// True if the user detached while it was shown.
    left: Arc<AtomicBool>,
}

/// A question to be shown later.
struct Next {
    number: u64,
    question: Box<Question>,
    text: RawText,
}

/// An attached client.
pub struct Client {
    line: Arc<Line>,
    signals: Signals,
    intake: Intake,
    source: Source,
    /// Message that is sent at the end of standard input.
    last: Piece,
    /// The user's terminal, if the run's terminal is shown on it.
    seat: Option<Seat>,
    /// Shows the output if there is no `seat`.
    shower: Shower,
    asked: Option<Asked>,
    next: VecDeque<Next>,
    /// Readable once a dialog has ended.
    answered: Arc<OwnedFd>,
}

impl Client {
    /// Attaches to this run.
    ///
    /// # Errors
    /// [`Failure`] if it has ended or cannot be reached.
    pub fn of(run: &Run) -> Result<Self, Failure> {
        // Before any thread starts.
        let taken: Vec<i32> = LEAVING.into_iter().chain([Signal::WINCH]).map(Signal::as_raw).collect();
        let signals = Signals::take(&taken).map_err(cannot)?;
        let answered = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| cannot(e.into()))?;
        let attached = control::attach(run, Terminal::open().is_some());
        let (line, intake) = attached.map_err(|failure| match run.is_watched() {
            true => failure,
            false => Failure::new(format!("{} is over", run.id())).hint("`stockade logs` shows what it printed"),
        })?;
        // Ctrl-D is a user's decision; another end of file may have no meaning, for example
        // `/dev/null`.
        let last = if io::stdin().is_terminal() { Piece::Close } else { Piece::Rest };
        Ok(Self {
            line: Arc::new(line),
            signals,
            intake,
            source: if intake == Intake::Nothing { Source::Ended } else { Source::Open },
            last,
            seat: None,
            shower: Shower::default(),
            asked: None,
            next: VecDeque::new(),
            answered: Arc::new(answered),
        })
    }

    /// Returns the kind of the run's input.
    pub fn intake(&self) -> Intake {
        self.intake
    }

    /// Returns whether more can be written.
    pub fn is_open(&self) -> bool {
        self.source != Source::Ended
    }

    /// Sets the message that is sent at the end of standard input.
    pub fn end_with(&mut self, last: Piece) {
        self.last = last;
    }

    /// Stops the input.
    pub fn stop_writing(&mut self) {
        self.source = Source::Ended;
    }

    /// Shows the run's terminal on the user's terminal until these keys are pressed. Starts with
    /// the last part of `past`.
    ///
    /// # Errors
    /// [`Failure`] if the terminal is gone, or if the earlier output cannot be read.
    pub fn sit_down(&mut self, keys: &DetachKeys, past: &mut OutputReader) -> Result<(), Failure> {
        self.seat.insert(Seat::take(keys).map_err(cannot)?).show_again(past)?;
        self.tell_size(true);
        Ok(())
    }

    /// Shows the available output, unless a question is shown.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be read or shown.
    pub fn show(&mut self, output: &mut OutputReader) -> Result<(), Failure> {
        match &mut self.seat {
            _ if self.asked.is_some() => Ok(()),
            Some(seat) => seat.show(output),
            None => self.shower.show(output),
        }
    }

    /// Prints a message to the user.
    pub fn say(&self, text: &str) {
        match &self.seat {
            Some(_) => seat::say(text.as_bytes()),
            None => remark(text),
        }
    }

    /// Sends the terminal size. A failure is ignored, because a run that has ended needs no size.
    fn tell_size(&self, again: bool) {
        if let Some(size) = seat::size(again).filter(|_| self.seat.is_some()) {
            let _ = self.line.send(&size);
        }
    }

    /// Waits a short time for the next event.
    ///
    /// # Errors
    /// [`Failure`] if the wait fails.
    pub fn wait(&mut self, printing: Option<&OwnedFd>) -> Result<Happened, Failure> {
        let ready = self.ready(printing).map_err(|e| Failure::new(format!("cannot wait: {e}")))?;
        if ready.answered && self.finish_question() {
            return Ok(Happened::Left);
        }
        if ready.signalled {
            return Ok(match self.signals.next() {
                Ok(signal) if signal == Signal::WINCH.as_raw() => {
                    self.tell_size(false);
                    Happened::Nothing
                }
                Ok(_) | Err(_) => Happened::Left,
            });
        }
        if ready.told {
            return Ok(match self.line.receive(TOLD_BYTES) {
                Ok(Some(told)) => self.hear(told),
                Ok(None) | Err(_) => Happened::Over,
            });
        }
        if ready.typed {
            return Ok(self.pass_on());
        }
        Ok(Happened::Nothing)
    }

    fn ready(&self, printing: Option<&OwnedFd>) -> io::Result<Ready> {
        let stdin = io::stdin();
        let mut waited = vec![
            PollFd::new(self.line.stream(), PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&*self.answered, PollFlags::IN),
        ];
        // Input while a question is shown is its answer.
        let has_room = match &self.seat {
            // Always, so that the user can detach from a run that reads no input.
            Some(seat) => self.source != Source::Ended && seat.has_room(),
            None => self.source == Source::Open,
        };
        let reads = has_room && self.asked.is_none();
        if reads {
            waited.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        if let Some(printing) = printing.filter(|_| self.asked.is_none()) {
            waited.push(PollFd::new(printing, PollFlags::IN));
        }
        let again = Timespec { tv_sec: 0, tv_nsec: AGAIN.subsec_nanos().into() };
        match poll(&mut waited, Some(&again)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let is_ready = |at: usize| waited.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let ready =
            Ready { told: is_ready(0), signalled: is_ready(1), answered: is_ready(2), typed: reads && is_ready(3) };
        if let Some(printing) = printing {
            // The content is irrelevant; the descriptor must not stay ready.
            while rustix::io::read(printing, &mut [0; 4096]).is_ok_and(|length| length > 0) {}
        }
        Ok(ready)
    }

    /// Sends input, or the end of the input.
    fn pass_on(&mut self) -> Happened {
        if self.seat.is_some() {
            return self.press();
        }
        let mut bytes = vec![0; INPUT_BYTES];
        let piece = match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(length @ 1..) => {
                self.source = Source::Awaiting;
                Piece::Bytes(bytes[..length].into())
            }
            Err(Errno::INTR | Errno::AGAIN) => return Happened::Nothing,
            Ok(0) | Err(_) => {
                self.source = Source::AwaitingLast;
                self.last.clone()
            }
        };
        self.line.send(&Said::Input(piece)).map_or(Happened::Over, |()| Happened::Nothing)
    }

    /// Reads pressed keys.
    fn press(&mut self) -> Happened {
        let mut bytes = [0; KEYS_BYTES];
        let pressed = match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(length @ 1..) => &bytes[..length],
            Err(Errno::INTR | Errno::AGAIN) => return Happened::Nothing,
            // The terminal is gone.
            Ok(0) | Err(_) => return Happened::Left,
        };
        if self.seat.as_mut().is_some_and(|seat| seat.pressed(pressed)) {
            return Happened::Left;
        }
        self.send_keys()
    }

    /// Sends the next keys, if the run has taken the previous ones.
    fn send_keys(&mut self) -> Happened {
        let seat = self.seat.as_mut().filter(|_| self.source == Source::Open);
        let Some(keys) = seat.and_then(Seat::next_keys) else { return Happened::Nothing };
        self.source = Source::Awaiting;
        self.line.send(&keys).map_or(Happened::Over, |()| Happened::Nothing)
    }

    fn hear(&mut self, told: Told) -> Happened {
        match told {
            Told::Input(fate) => {
                self.source = if self.source == Source::Awaiting { Source::Open } else { Source::Ended };
                return match fate {
                    Fate::Taken if self.seat.is_some() => self.send_keys(),
                    fate => Happened::Fate(fate),
                };
            }
            Told::Question { number, question, text } => {
                self.next.push_back(Next { number, question, text });
                self.put_next();
            }
            Told::Over(number) => {
                self.next.retain(|next| next.number != number);
                if let Some(asked) = self.asked.as_ref().filter(|asked| asked.number == number) {
                    asked.waiting.withdraw();
                }
            }
        }
        Happened::Nothing
    }

    /// Shows the next question, if none is shown.
    fn put_next(&mut self) {
        if self.asked.is_some() {
            return;
        }
        let Some(Next { number, question, text }) = self.next.pop_front() else { return };
        let waiting = Waiting::new(HeldCalls::default());
        let (line, answered, until) = (Arc::clone(&self.line), Arc::clone(&self.answered), waiting.clone());
        let left = Arc::new(AtomicBool::new(false));
        let leaves = Arc::clone(&left);
        let dialog = move || {
            let mut approver = TerminalApprover::new(text, crate::color_wanted(), None).leaving(Arc::clone(&leaves));
            let answer = approver.ask(&question, &until);
            if !leaves.load(Ordering::Relaxed) {
                // A run that has ended needs no answer.
                let _ = line.send(&Said::Answer { number, answer });
            }
            let _ = rustix::io::write(&*answered, &1_u64.to_ne_bytes());
        };
        match thread::Builder::new().name("stockade-ask".to_owned()).spawn(dialog) {
            Ok(dialog) => self.asked = Some(Asked { number, waiting, dialog, left }),
            // No answer: the run refuses the question after its time-out.
            Err(error) => tracing::warn!(%error, "no thread to ask on"),
        }
    }

    /// Ends the dialog, and returns whether the user detached while it was shown.
    fn finish_question(&mut self) -> bool {
        let _ = rustix::io::read(&*self.answered, &mut [0; 8]);
        if let Some(asked) = self.asked.take() {
            // A thread that panicked has reported it.
            let _ = asked.dialog.join();
            if asked.left.load(Ordering::Relaxed) {
                return true;
            }
        }
        self.put_next();
        if self.asked.is_none() {
            // The question has overwritten part of the run's screen.
            self.tell_size(true);
        }
        false
    }

    /// Restores the terminal and closes the connection.
    pub fn leave(&mut self) {
        self.next.clear();
        if let Some(asked) = self.asked.take() {
            asked.waiting.withdraw();
            let _ = asked.dialog.join();
        }
        self.seat = None;
        self.line.hang_up();
    }
}

fn cannot(error: io::Error) -> Failure {
    Failure::new(format!("cannot attach: {error}"))
}

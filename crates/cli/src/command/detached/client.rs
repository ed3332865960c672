//! A client of a run: one who reads what it prints, writes its input, and is asked
//! its questions. What the run prints is read where it is kept, so a client that does
//! not keep up misses what is not kept, is told how much, and stops nobody. Input goes
//! over the run's socket, a piece at a time, as fast as the command takes it.

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

/// Signals that leave the run.
const LEAVING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Keys taken at once.
const KEYS_BYTES: usize = 4096;

/// What may be read here for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// More may be read and sent.
    Open,
    /// The fate of what was sent is not known yet.
    Awaiting,
    /// The same, and it was the last.
    AwaitingLast,
    /// Nothing is read.
    Ended,
}

/// What ended a wait.
pub enum Happened {
    /// It is worth a look whether more was printed.
    Nothing,
    /// What became of the last input.
    Fate(Fate),
    /// The run's end, or that of its interest in this client.
    Over,
    /// A signal: the person wants to leave.
    Left,
}

/// Which of the waited for is ready.
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
    /// Whether the person left at it.
    left: Arc<AtomicBool>,
}

/// Something to be put on the screen.
struct Next {
    number: u64,
    question: Box<Question>,
    text: RawText,
}

/// One who is attached.
pub struct Client {
    line: Arc<Line>,
    signals: Signals,
    intake: Intake,
    source: Source,
    /// What is sent at the end of standard input.
    last: Piece,
    /// The person's terminal, where the run's is shown on it.
    seat: Option<Seat>,
    /// Where it is not.
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
    /// When it is over or cannot be reached.
    pub fn of(run: &Run) -> Result<Self, Failure> {
        // Before any thread.
        let taken: Vec<i32> = LEAVING.into_iter().chain([Signal::WINCH]).map(Signal::as_raw).collect();
        let signals = Signals::take(&taken).map_err(cannot)?;
        let answered = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| cannot(e.into()))?;
        let attached = control::attach(run, Terminal::open().is_some());
        let (line, intake) = attached.map_err(|failure| match run.is_watched() {
            true => failure,
            false => Failure::new(format!("{} is over", run.id())).hint("`stockade logs` shows what it printed"),
        })?;
        // Ctrl-D is a person's word; the end of a file may be that of nothing.
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

    /// What the run's input is.
    pub fn intake(&self) -> Intake {
        self.intake
    }

    /// Whether more can be written.
    pub fn is_open(&self) -> bool {
        self.source != Source::Ended
    }

    /// Says this at the end of standard input.
    pub fn end_with(&mut self, last: Piece) {
        self.last = last;
    }

    /// No more can be written.
    pub fn stop_writing(&mut self) {
        self.source = Source::Ended;
    }

    /// Shows the run's terminal on the person's from here on, until these keys are
    /// pressed; the last of `past` first.
    ///
    /// # Errors
    /// When the terminal is gone, or the past cannot be read.
    pub fn sit_down(&mut self, keys: &DetachKeys, past: &mut OutputReader) -> Result<(), Failure> {
        self.seat.insert(Seat::take(keys).map_err(cannot)?).show_again(past)?;
        self.tell_size(true);
        Ok(())
    }

    /// Shows what is there by now, unless a question stands on the screen.
    ///
    /// # Errors
    /// When it cannot be read or shown.
    pub fn show(&mut self, output: &mut OutputReader) -> Result<(), Failure> {
        match &mut self.seat {
            _ if self.asked.is_some() => Ok(()),
            Some(seat) => seat.show(output),
            None => self.shower.show(output),
        }
    }

    /// Says something to the person.
    pub fn say(&self, text: &str) {
        match &self.seat {
            Some(_) => seat::say(text.as_bytes()),
            None => remark(text),
        }
    }

    /// A run that is over has no size.
    fn tell_size(&self, again: bool) {
        if let Some(size) = seat::size(again).filter(|_| self.seat.is_some()) {
            let _ = self.line.send(&size);
        }
    }

    /// Waits for the next thing, a short time at most.
    ///
    /// # Errors
    /// When that cannot be.
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
        // What is typed while a question stands is its answer.
        let has_room = match &self.seat {
            // Always, so that one can leave what takes nothing.
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
            // Its content tells nothing; it must not stay ready.
            while rustix::io::read(printing, &mut [0; 4096]).is_ok_and(|length| length > 0) {}
        }
        Ok(ready)
    }

    /// Sends what was typed, or that no more comes.
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

    /// Takes the keys that were pressed.
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

    /// Sends the next keys, if the run has those before.
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

    /// Puts the next question on the screen, if there is none.
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
                // A run that is over needs none.
                let _ = line.send(&Said::Answer { number, answer });
            }
            let _ = rustix::io::write(&*answered, &1_u64.to_ne_bytes());
        };
        match thread::Builder::new().name("stockade-ask".to_owned()).spawn(dialog) {
            Ok(dialog) => self.asked = Some(Asked { number, waiting, dialog, left }),
            // Silence: the run refuses it in time.
            Err(error) => tracing::warn!(%error, "no thread to ask on"),
        }
    }

    /// True where the person left at it.
    fn finish_question(&mut self) -> bool {
        let _ = rustix::io::read(&*self.answered, &mut [0; 8]);
        if let Some(asked) = self.asked.take() {
            // One that panicked has said so.
            let _ = asked.dialog.join();
            if asked.left.load(Ordering::Relaxed) {
                return true;
            }
        }
        self.put_next();
        if self.asked.is_none() {
            // The question stands where something else was.
            self.tell_size(true);
        }
        false
    }

    /// Gives the terminal back and ends the connection.
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

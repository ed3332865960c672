//! `stockade attach` and `write`: the client's side. What the run prints is read
//! where it is kept, so a client that does not keep up misses what is not kept,
//! is told how much, and stops nobody. Input goes over the run's socket, a piece
//! at a time, as fast as the command takes it.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle, sleep};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use stockade_engine::{Approver as _, HeldCalls, Waiting};
use stockade_model::{Question, RawText};
use stockade_store::runs::{OutputReader, Run};
use stockade_sys::signals::Signals;

use super::wire::{Fate, INPUT_BYTES, Line, Piece, Said, TOLD_BYTES, Told};
use super::{AGAIN, control, end_of, runs, show};
use crate::approver::TerminalApprover;
use crate::args::{AttachArgs, WriteArgs};
use crate::command::Ended;
use crate::exit;
use crate::failure::Failure;
use crate::render::detached as text;
use crate::terminal::Terminal;

/// Signals that leave the run.
const LEAVING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Attaches to a run until it ends or is left: its exit code, or 0.
///
/// # Errors
/// When there is no such run, or it cannot be reached.
pub fn attach(typed: &AttachArgs) -> Ended {
    let run = runs()?.find(&typed.id)?;
    let mut output = run.output();
    if typed.new {
        skip(&mut output)?;
    }
    let mut client = Client::of(&run)?;
    if io::stderr().is_terminal() {
        say(&text::attached(run.id(), client.source.is_open()));
    }
    let printing = run.printing().ok();
    loop {
        if client.asked.is_none() {
            show(&mut output)?;
        }
        match client.wait(printing.as_ref())? {
            Happened::Nothing | Happened::Fate(Fate::Taken) => {}
            Happened::Left => {
                client.leave();
                say(&text::left(run.id()));
                return Ok(exit::SUCCESS);
            }
            Happened::Over => break,
            Happened::Fate(Fate::Waits) if io::stdin().is_terminal() => say(text::WAITS),
            Happened::Fate(Fate::Waits) => {}
            Happened::Fate(Fate::Refused(why)) => say(&why),
            Happened::Fate(Fate::Lost(why)) => {
                client.source = Source::Ended;
                say(&text::lost(&why));
            }
        }
    }
    client.leave();
    while run.is_watched() {
        show(&mut output)?;
        sleep(AGAIN);
    }
    show(&mut output)?;
    end_of(&run)
}

/// Leaves out what is there by now.
fn skip(output: &mut OutputReader) -> Result<(), Failure> {
    while output.next_piece().map_err(|e| Failure::new(format!("cannot read what the run printed: {e}")))?.is_some() {}
    Ok(())
}

/// Writes all of standard input to a run's.
///
/// # Errors
/// When there is no such run, or it takes no input.
pub fn write(typed: &WriteArgs) -> Ended {
    let run = runs()?.find(&typed.id)?;
    let mut client = Client::of(&run)?;
    if !client.source.is_open() {
        return Err(Failure::new(format!("{} has no standard input", run.id()))
            .hint("start it with `stockade run --detach --interactive`"));
    }
    client.last = if typed.close { Piece::Close } else { Piece::Rest };
    loop {
        let happened = client.wait(None)?;
        match happened {
            Happened::Fate(Fate::Refused(why)) => {
                client.leave();
                say(&why);
                return Ok(exit::REFUSED);
            }
            Happened::Fate(Fate::Lost(why)) => return Err(Failure::new(why)),
            Happened::Fate(_) if !client.source.is_open() => {
                client.leave();
                return Ok(exit::SUCCESS);
            }
            Happened::Fate(_) | Happened::Nothing => {}
            Happened::Left => {
                client.leave();
                return Err(Failure::new("interrupted: not all of it was written"));
            }
            Happened::Over => {
                client.leave();
                return Err(Failure::new(format!("{} has ended: not all of it was written", run.id())));
            }
        }
    }
}

/// To the person; nowhere else to say so if that fails.
fn say(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

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

impl Source {
    fn is_open(self) -> bool {
        self != Self::Ended
    }
}

/// What ended a wait.
enum Happened {
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
    left: bool,
    answered: bool,
    typed: bool,
}

/// A question on the screen.
struct Asked {
    number: u64,
    waiting: Waiting,
    dialog: JoinHandle<()>,
}

/// Something to be put on the screen.
struct Next {
    number: u64,
    question: Box<Question>,
    text: RawText,
}

/// One who is attached.
struct Client {
    line: Arc<Line>,
    signals: Signals,
    source: Source,
    /// What is sent at the end of standard input.
    last: Piece,
    asked: Option<Asked>,
    next: VecDeque<Next>,
    /// Readable once a dialog has ended.
    answered: Arc<OwnedFd>,
}

impl Client {
    fn of(run: &Run) -> Result<Self, Failure> {
        let cannot = |e: io::Error| Failure::new(format!("cannot attach: {e}"));
        // Before any thread.
        let signals = Signals::take(&LEAVING.map(Signal::as_raw)).map_err(cannot)?;
        let answered = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| cannot(e.into()))?;
        let attached = control::attach(run, Terminal::open().is_some());
        let (line, takes_input) = attached.map_err(|failure| match run.is_watched() {
            true => failure,
            false => Failure::new(format!("{} is over", run.id())).hint("`stockade logs` shows what it printed"),
        })?;
        // Ctrl-D is a person's word; the end of a file may be that of nothing.
        let last = if io::stdin().is_terminal() { Piece::Close } else { Piece::Rest };
        Ok(Self {
            line: Arc::new(line),
            signals,
            source: if takes_input { Source::Open } else { Source::Ended },
            last,
            asked: None,
            next: VecDeque::new(),
            answered: Arc::new(answered),
        })
    }

    /// Waits for the next thing, a short time at most.
    fn wait(&mut self, printing: Option<&OwnedFd>) -> Result<Happened, Failure> {
        let ready = self.ready(printing).map_err(|e| Failure::new(format!("cannot wait: {e}")))?;
        if ready.answered {
            self.finish_question();
        }
        if ready.left {
            return Ok(Happened::Left);
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
        let reads = self.source == Source::Open && self.asked.is_none();
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
        let ready = Ready { told: is_ready(0), left: is_ready(1), answered: is_ready(2), typed: reads && is_ready(3) };
        if let Some(printing) = printing {
            // Its content tells nothing; it must not stay ready.
            while rustix::io::read(printing, &mut [0; 4096]).is_ok_and(|length| length > 0) {}
        }
        Ok(ready)
    }

    /// Sends what was typed, or that no more comes.
    fn pass_on(&mut self) -> Happened {
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

    fn hear(&mut self, told: Told) -> Happened {
        match told {
            Told::Input(fate) => {
                self.source = if self.source == Source::Awaiting { Source::Open } else { Source::Ended };
                return Happened::Fate(fate);
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
        let dialog = move || {
            let mut approver = TerminalApprover::new(text, crate::color_wanted(), None);
            let answer = approver.ask(&question, &until);
            // A run that is over needs none.
            let _ = line.send(&Said::Answer { number, answer });
            let _ = rustix::io::write(&*answered, &1_u64.to_ne_bytes());
        };
        match thread::Builder::new().name("stockade-ask".to_owned()).spawn(dialog) {
            Ok(dialog) => self.asked = Some(Asked { number, waiting, dialog }),
            // Silence: the run refuses it in time.
            Err(error) => tracing::warn!(%error, "no thread to ask on"),
        }
    }

    fn finish_question(&mut self) {
        let _ = rustix::io::read(&*self.answered, &mut [0; 8]);
        if let Some(asked) = self.asked.take() {
            // One that panicked has said so.
            let _ = asked.dialog.join();
        }
        self.put_next();
    }

    /// Gives the terminal back and ends the connection.
    fn leave(&mut self) {
        self.next.clear();
        if let Some(asked) = self.asked.take() {
            asked.waiting.withdraw();
            let _ = asked.dialog.join();
        }
        self.line.hang_up();
    }
}

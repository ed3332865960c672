//! A terminal of the command's own, and the traffic between it and the person's:
//! two objects, so that nothing the command does to its terminal is done to the
//! person's. Keys go one way, what is shown the other, the size follows; the
//! person's terminal is raw meanwhile and stands still while a question is put. The
//! terminal of a run that lives on is its supervisor's instead.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Winsize, isatty, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr, tcsetwinsize,
};
use stockade_sys::signals::Signals;

use crate::failure::Failure;
use crate::passed::Passed;
use crate::screen::Screen;
use crate::terminal::{self, Aside, Raw};

/// Bytes taken at once, each way.
const CHUNK_BYTES: usize = 4096;
/// The size of a terminal that nobody looks at.
const USUAL: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
/// How long what was shown last may take to reach the person.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);
/// How often a process in the background looks whether it is still there.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// See [`has_typed`].
static TYPED: AtomicBool = AtomicBool::new(false);

/// What a command's terminal is.
#[derive(Debug)]
pub enum Given {
    /// One of its own in the place of every standard stream that is a terminal: it never
    /// has the person's. None where no stream is one.
    Own,
    /// One of its own in the place of all.
    Seat,
    /// This one; somebody else has its other end.
    Held(OwnedFd),
}

impl Given {
    /// A terminal of its own, in the place of all streams where that is `wanted`.
    ///
    /// # Errors
    /// Where it is wanted and there is no terminal to relay to.
    pub fn of(wanted: bool) -> Result<Self, Failure> {
        if !wanted {
            return Ok(Self::Own);
        }
        if !isatty(io::stdin()) || !isatty(io::stdout()) {
            return Err(Failure::new("--tty needs a terminal at standard input and output")
                .hint("leave --tty out, or run it from a terminal"));
        }
        if !is_at_terminal() {
            return Err(Failure::new("--tty needs to be in the foreground of its terminal"));
        }
        Ok(Self::Seat)
    }
}

/// Notes that something was written to the command of this process.
pub fn note_typed() {
    TYPED.store(true, Ordering::Relaxed);
}

/// Whether a person or a client wrote something to the command of this process.
pub fn has_typed() -> bool {
    TYPED.load(Ordering::Relaxed)
}

/// Whether a person sees what goes to standard output, and types what comes from
/// standard input.
pub fn is_at_terminal() -> bool {
    let stdin = io::stdin();
    isatty(&stdin) && isatty(io::stdout()) && terminal::is_foreground_of(&stdin)
}

fn cannot(error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("cannot make a terminal for the command: {error}"))
}

/// The command's terminal in the place of standard streams, until it is ended.
#[derive(Debug)]
pub struct Relay {
    /// What the streams are outside, where that is another thing.
    outer: [Option<OwnedFd>; 3],
    person: Option<Person>,
}

/// The person's terminal, meanwhile.
#[derive(Debug)]
struct Person {
    /// Hung up when all that was shown has been.
    over: Receiver<()>,
}

impl Relay {
    /// Makes the terminal where that is to be done, as the person's is, and begins;
    /// `of_terminal` tells what becomes of that. `None` where no stream is a terminal, and
    /// where not all are but it has to be `all` or none.
    ///
    /// # Errors
    /// Out of terminals, descriptors or threads.
    pub fn begin(given: Given, of_terminal: Signals, all: bool) -> Result<Option<Self>, Failure> {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let are = streams.map(isatty);
        let (inner, person, replaced) = match given {
            Given::Held(inner) => (inner, None, [true; 3]),
            Given::Own if !are.contains(&true) || all && are.contains(&false) => return Ok(None),
            given => {
                let copy = |at: usize| streams[at].try_clone_to_owned().map(File::from).map_err(cannot);
                // The keys come from where the command reads, if that is a terminal.
                let first = |order: [usize; 3]| order.into_iter().find(|at| are[*at]).unwrap_or_default();
                let (keyboard, screen) = (copy(first([0, 1, 2]))?, copy(first([1, 2, 0]))?);
                let (ours, inner) = pair(Some(keyboard.as_fd())).map_err(cannot)?;
                let others = !are.iter().take(2).all(|is| *is);
                let person = Person::relayed((ours, keyboard, screen), of_terminal, others)?;
                (inner, Some(person), if matches!(given, Given::Seat) { [true; 3] } else { are })
            }
        };
        let mut outer = [None, None, None];
        for (at, slot) in outer.iter_mut().enumerate().filter(|(at, _)| replaced[*at]) {
            *slot = Some(streams[at].try_clone_to_owned().map_err(cannot)?);
            replace(at, &inner).map_err(cannot)?;
        }
        Ok(Some(Self { outer, person }))
    }

    /// Gives the person's terminal back. Nothing of the command is left.
    pub fn end(self) {
        // With the last descriptor of the command's terminal the relay comes to an
        // end. These replace what is open, which takes nothing.
        for (at, stream) in self.outer.iter().enumerate() {
            let _ = stream.as_ref().map(|stream| replace(at, stream));
        }
        if let Some(person) = self.person {
            // Hung up by the thread's end; or the person's terminal stands still.
            let _ = person.over.recv_timeout(SHOWN_WITHIN);
            Aside::forget();
            terminal::give_back();
        }
    }
}

fn replace(at: usize, by: &OwnedFd) -> io::Result<()> {
    Ok(match at {
        0 => rustix::stdio::dup2_stdin(by),
        1 => rustix::stdio::dup2_stdout(by),
        _ => rustix::stdio::dup2_stderr(by),
    }?)
}

impl Person {
    /// `others` may use the terminal meanwhile.
    fn relayed(
        (ours, keyboard, screen): (OwnedFd, File, File),
        signals: Signals,
        others: bool,
    ) -> Result<Self, Failure> {
        let mut traffic = Traffic {
            ours: ours.into(),
            keyboard,
            screen,
            signals,
            aside: Aside::register().map_err(cannot)?,
            passed: Passed::default(),
            shown: Screen::default(),
            others,
            raw: None,
        };
        // Keys that are pressed from here on are the command's.
        traffic.seize();
        let (on_end, over) = channel::<()>();
        let carry = move || {
            traffic.carry();
            drop(traffic);
            drop(on_end);
        };
        thread::Builder::new().name("stockade-relay".to_owned()).spawn(carry).map_err(cannot)?;
        Ok(Self { over })
    }
}

/// Both ends of a new terminal, the first without waiting; with the modes and the
/// size of this one, where there is one, otherwise for UTF-8 and of the usual size.
///
/// # Errors
/// Out of terminals or descriptors.
pub fn pair(like: Option<BorrowedFd<'_>>) -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let inner = rustix::fs::open(ptsname(&ours, Vec::new())?, flags, Mode::empty())?;
    let (modes, size) = match like {
        Some(like) => (tcgetattr(like)?, tcgetwinsize(like)?),
        None => {
            let mut modes = tcgetattr(&inner)?;
            modes.input_modes |= InputModes::IUTF8;
            (modes, USUAL)
        }
    };
    tcsetattr(&inner, OptionalActions::Now, &modes)?;
    tcsetwinsize(&inner, size)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, inner))
}

/// What the relay's thread has.
struct Traffic {
    ours: File,
    keyboard: File,
    screen: File,
    signals: Signals,
    aside: Arc<Aside>,
    passed: Passed,
    shown: Screen,
    /// Whether others use the person's terminal meanwhile: the rest of a pipeline.
    others: bool,
    /// While this process is in the foreground there.
    raw: Option<Raw>,
}

/// Which of the waited for is ready.
struct Ready {
    shown: bool,
    room: bool,
    signal: bool,
    aside: bool,
    pressed: bool,
}

impl Traffic {
    /// Until nobody has the command's terminal any more.
    fn carry(&mut self) {
        let mut keys: Vec<u8> = Vec::new();
        loop {
            let wants_keys = self.raw.is_some() && keys.is_empty();
            let Ok(ready) = self.ready(!keys.is_empty(), wants_keys) else { return };
            if ready.aside {
                // What else is ready may not be so afterwards.
                self.stand_aside();
                continue;
            }
            if ready.signal {
                let _ = self.signals.next();
                let _ = tcgetwinsize(&self.keyboard).and_then(|size| tcsetwinsize(&self.ours, size));
                self.seize();
            }
            if self.raw.is_none() {
                self.seize();
            }
            if ready.shown && !self.show() {
                return;
            }
            if ready.room {
                match rustix::io::write(&self.ours, &keys) {
                    Ok(written) => drop(keys.drain(..written)),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(_) => keys.clear(),
                }
            }
            if ready.pressed {
                let mut chunk = [0; CHUNK_BYTES];
                match rustix::io::read(&self.keyboard, &mut chunk) {
                    Ok(length @ 1..) => {
                        note_typed();
                        keys.extend_from_slice(&chunk[..length]);
                        self.interrupt_before_the_command(&mut keys);
                    }
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    // It was hung up: the command's is as well.
                    Ok(0) | Err(_) => return,
                }
            }
        }
    }

    /// What the command has printed; false at its end.
    fn show(&mut self) -> bool {
        self.follow();
        let mut chunk = [0; CHUNK_BYTES];
        match rustix::io::read(&self.ours, &mut chunk) {
            Ok(length @ 1..) => self.put(&chunk[..length]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // EIO: nobody has it any more (pty(7)).
            Ok(0) | Err(_) => return false,
        }
        true
    }

    /// Others write lines there as well, and are interrupted by its keys.
    fn follow(&mut self) {
        if self.others
            && let (Some(raw), Ok(modes)) = (&mut self.raw, tcgetattr(&self.ours))
        {
            raw.follow(&modes);
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let bytes = self.passed.of(bytes);
        self.shown.shown(&bytes);
        // A person's terminal that is gone must not stop the command: what ends it is the
        // hang-up.
        let _ = (&self.screen).write_all(&bytes);
    }

    /// The keys are ours where this process is in the foreground of the person's terminal.
    fn seize(&mut self) {
        if !terminal::is_foreground_of(&self.keyboard) {
            // The shell has set it as it wants it.
            let _ = self.raw.take().map(Raw::forget);
            return;
        }
        match &self.raw {
            Some(raw) => drop(raw.again()),
            None => self.raw = self.keyboard.try_clone().and_then(Raw::begin).ok(),
        }
        self.follow();
    }

    /// While a question has the person's terminal, which shows nothing of the command's.
    fn stand_aside(&mut self) {
        let _ = (&self.screen).write_all(&self.shown.clearance());
        self.aside.stand_aside();
        let _ = (&self.screen).write_all(&self.shown.reinstatement());
        let is_other = self.shown.is_other();
        if let (true, Ok(size)) = (is_other, tcgetwinsize(&self.ours)) {
            // Whoever has the whole screen draws it anew for another size.
            let other = Winsize { ws_row: size.ws_row.saturating_sub(1).max(1), ..size };
            let _ = tcsetwinsize(&self.ours, other).and_then(|()| tcsetwinsize(&self.ours, size));
        }
    }

    /// Nothing of the command is there yet, or any more, to be interrupted by a key: then
    /// this process is.
    fn interrupt_before_the_command(&self, keys: &mut Vec<u8>) {
        let Ok(modes) = tcgetattr(&self.ours) else { return };
        if tcgetpgrp(&self.ours).is_ok() {
            return;
        }
        if !modes.local_modes.contains(LocalModes::ISIG) {
            return;
        }
        for (key, signal) in [(SpecialCodeIndex::VINTR, Signal::INT), (SpecialCodeIndex::VQUIT, Signal::QUIT)] {
            let code = modes.special_codes[key];
            if code != 0 && keys.contains(&code) {
                keys.clear();
                // To this process itself, which is there.
                let _ = kill_process(getpid(), signal);
            }
        }
    }

    /// Without a limit: the end of the command's terminal ends it. In the background, no
    /// longer than until it may have come to the foreground, of which nothing tells.
    fn ready(&self, has_keys: bool, wants_keys: bool) -> io::Result<Ready> {
        let of_command = if has_keys { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut waited = vec![
            PollFd::new(&self.ours, of_command),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(self.aside.descriptor(), PollFlags::IN),
        ];
        if wants_keys {
            waited.push(PollFd::new(&self.keyboard, PollFlags::IN));
        }
        match poll(&mut waited, self.raw.is_none().then_some(&LOOK_AGAIN)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let is = |at: usize, flags: PollFlags| waited.get(at).is_some_and(|fd| fd.revents().intersects(flags));
        let any = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        Ok(Ready {
            shown: is(0, any),
            room: is(0, PollFlags::OUT),
            signal: is(1, any),
            aside: is(2, any),
            pressed: is(3, any),
        })
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        // A command that was killed has left its terminal as it was then.
        let _ = (&self.screen).write_all(&self.shown.clearance());
    }
}

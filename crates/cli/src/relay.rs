//! A terminal of the command's own, and the traffic between it and the person's:
//! two objects, so that nothing the command does to its terminal is done to the
//! person's. Keys go one way, what is shown the other, the size follows; the
//! person's terminal is raw meanwhile and stands still while a question is put. The
//! terminal of a run that lives on is its supervisor's instead.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{
    InputModes, OptionalActions, Winsize, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use stockade_sys::signals::Signals;

use crate::failure::Failure;
use crate::terminal::{Aside, Raw};

/// Bytes taken at once, each way.
const CHUNK_BYTES: usize = 4096;
/// The size of a terminal that nobody looks at.
const USUAL: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
/// How long what was shown last may take to reach the person.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// Changes of the size of the person's terminal.
#[derive(Debug)]
pub struct Resizes(Signals);

impl Resizes {
    /// Takes them over. Before any thread is started.
    ///
    /// # Errors
    /// Where there is no terminal to relay to.
    pub fn take() -> Result<Self, Failure> {
        if !isatty(io::stdin()) || !isatty(io::stdout()) {
            return Err(Failure::new("--tty needs a terminal at standard input and output")
                .hint("leave --tty out, or run it from a terminal"));
        }
        if !is_at_terminal() {
            return Err(Failure::new("--tty needs to be in the foreground of its terminal"));
        }
        Signals::take(&[Signal::WINCH.as_raw()]).map(Self).map_err(cannot)
    }
}

/// Whether a person sees what goes to standard output, and types what comes from
/// standard input.
pub fn is_at_terminal() -> bool {
    let stdin = io::stdin();
    isatty(&stdin) && isatty(io::stdout()) && tcgetpgrp(&stdin).is_ok_and(|group| group == rustix::process::getpgrp())
}

fn cannot(error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("cannot make a terminal for the command: {error}"))
}

/// What a command's terminal is.
#[derive(Debug)]
pub enum Given {
    /// To be made, and relayed to the person's.
    Relayed(Resizes),
    /// This one; somebody else has its other end.
    Held(OwnedFd),
}

/// The command's terminal in the place of the standard streams, until it is ended.
#[derive(Debug)]
pub struct Relay {
    outer: [OwnedFd; 3],
    person: Option<Person>,
}

/// The person's terminal, meanwhile.
#[derive(Debug)]
struct Person {
    /// Hung up when all that was shown has been.
    over: Receiver<()>,
    _raw: Raw,
}

impl Relay {
    /// Makes the terminal where that is to be done, as the person's is, and begins.
    ///
    /// # Errors
    /// Out of terminals, descriptors or threads.
    pub fn begin(given: Given) -> Result<Self, Failure> {
        let copy = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map_err(cannot);
        let outer = [copy(&io::stdin())?, copy(&io::stdout())?, copy(&io::stderr())?];
        let (inner, person) = match given {
            Given::Held(inner) => (inner, None),
            Given::Relayed(resizes) => {
                let (ours, inner) = pair(Some(outer[0].as_fd())).map_err(cannot)?;
                (inner, Some(Person::relayed(ours, resizes, &outer)?))
            }
        };
        rustix::stdio::dup2_stdin(&inner).map_err(cannot)?;
        rustix::stdio::dup2_stdout(&inner).map_err(cannot)?;
        rustix::stdio::dup2_stderr(&inner).map_err(cannot)?;
        Ok(Self { outer, person })
    }

    /// Gives the person's terminal back. Nothing of the command is left.
    pub fn end(self) {
        let [stdin, stdout, stderr] = &self.outer;
        // With the last descriptor of the command's terminal the relay comes to an
        // end. These replace what is open, which takes nothing.
        let _ = rustix::stdio::dup2_stdin(stdin);
        let _ = rustix::stdio::dup2_stdout(stdout);
        let _ = rustix::stdio::dup2_stderr(stderr);
        if let Some(person) = self.person {
            // Hung up by the thread's end; or the person's terminal stands still.
            let _ = person.over.recv_timeout(SHOWN_WITHIN);
            Aside::forget();
        }
    }
}

impl Person {
    fn relayed(ours: OwnedFd, resizes: Resizes, [stdin, stdout, _]: &[OwnedFd; 3]) -> Result<Self, Failure> {
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(cannot);
        let traffic = Traffic {
            ours: ours.into(),
            keyboard: copy(stdin)?.into(),
            screen: copy(stdout)?.into(),
            resizes: resizes.0,
            aside: Aside::register().map_err(cannot)?,
        };
        let raw = Raw::begin(copy(stdin)?.into()).map_err(cannot)?;
        let (on_end, over) = channel::<()>();
        let carry = move || {
            traffic.carry();
            drop(on_end);
        };
        thread::Builder::new().name("stockade-relay".to_owned()).spawn(carry).map_err(cannot)?;
        Ok(Self { over, _raw: raw })
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
    resizes: Signals,
    aside: Arc<Aside>,
}

/// Which of the waited for is ready.
struct Ready {
    shown: bool,
    room: bool,
    resized: bool,
    aside: bool,
    pressed: bool,
}

impl Traffic {
    /// Until nobody has the command's terminal any more.
    fn carry(self) {
        let mut keys: Vec<u8> = Vec::new();
        let mut has_keyboard = true;
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            let Ok(ready) = self.ready(!keys.is_empty(), has_keyboard && keys.is_empty()) else { return };
            if ready.aside {
                // What else is ready may not be so afterwards.
                self.aside.stand_aside();
                continue;
            }
            if ready.resized {
                let _ = self.resizes.next();
                let _ = tcgetwinsize(&self.keyboard).and_then(|size| tcsetwinsize(&self.ours, size));
            }
            if ready.shown {
                match rustix::io::read(&self.ours, &mut chunk) {
                    // A person's terminal that is gone must not stop the command:
                    // what ends it is the hang-up.
                    Ok(length @ 1..) => drop((&self.screen).write_all(&chunk[..length])),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    // EIO: nobody has it any more (pty(7)).
                    Ok(0) | Err(_) => return,
                }
            }
            if ready.room {
                match rustix::io::write(&self.ours, &keys) {
                    Ok(written) => drop(keys.drain(..written)),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(_) => keys.clear(),
                }
            }
            if ready.pressed {
                match rustix::io::read(&self.keyboard, &mut chunk) {
                    Ok(length @ 1..) => keys.extend_from_slice(&chunk[..length]),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Ok(0) | Err(_) => has_keyboard = false,
                }
            }
        }
    }

    /// Without a limit: the end of the command's terminal ends it.
    fn ready(&self, has_keys: bool, wants_keys: bool) -> io::Result<Ready> {
        let of_command = if has_keys { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut waited = vec![
            PollFd::new(&self.ours, of_command),
            PollFd::new(&self.resizes, PollFlags::IN),
            PollFd::from_borrowed_fd(self.aside.descriptor(), PollFlags::IN),
        ];
        if wants_keys {
            waited.push(PollFd::new(&self.keyboard, PollFlags::IN));
        }
        match poll(&mut waited, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let is = |at: usize, flags: PollFlags| waited.get(at).is_some_and(|fd| fd.revents().intersects(flags));
        let any = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        Ok(Ready {
            shown: is(0, any),
            room: is(0, PollFlags::OUT),
            resized: is(1, any),
            aside: is(2, any),
            pressed: is(3, any),
        })
    }
}

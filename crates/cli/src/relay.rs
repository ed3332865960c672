//! Gives the command a terminal of its own, and relays between it and the user's terminal. They are
//! two objects, so the command's changes to its terminal do not affect the user's. Keys pass one
//! way, output the other, and the size follows. Meanwhile the user's terminal is raw, and it is
//! paused while a question is shown. The supervisor of a detached run relays its terminal instead.

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
use stockade_sys::signals::SignalDescriptor;

use crate::failure::CliError;
use crate::output_filter::OutputFilter;
use crate::screen::ScreenChanges;
use crate::terminal::{self, RawTerminal, RelayPause};

/// Bytes read at once, each way.
const CHUNK_BYTES: usize = 4096;
/// Size of a terminal without a viewer.
const DEFAULT_SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
/// Time-out for the last output to reach the user.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two checks of a background process whether it is in the foreground.
const FOREGROUND_POLL_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// See [`has_typed`].
static INPUT_WAS_TYPED: AtomicBool = AtomicBool::new(false);

/// Terminal that a command gets.
#[derive(Debug)]
pub enum CommandTerminal {
    /// A terminal of its own in place of every standard stream that is a terminal; it never has the
    /// user's. No terminal if no stream is one.
    Own,
    /// A terminal of its own in place of all streams.
    TerminalClient,
    /// This terminal; another process has its other end.
    Held(OwnedFd),
}

impl CommandTerminal {
    /// Returns a terminal of its own, in place of all streams if that is `use_tty`.
    ///
    /// # Errors
    /// [`CliError`] if it is wanted and there is no terminal to relay to.
    pub fn from_tty_option(use_tty: bool) -> Result<Self, CliError> {
        if !use_tty {
            return Ok(Self::Own);
        }
        if !isatty(io::stdin()) || !isatty(io::stdout()) {
            return Err(CliError::new("--tty needs a terminal at standard input and output")
                .with_hint("leave --tty out, or run it from a terminal"));
        }
        if !is_at_terminal() {
            return Err(CliError::new("--tty needs to be in the foreground of its terminal"));
        }
        Ok(Self::TerminalClient)
    }
}

/// Records that input was written to the command of this process.
pub fn note_typed() {
    INPUT_WAS_TYPED.store(true, Ordering::Relaxed);
}

/// Returns whether a user or a client wrote input to the command of this process.
pub fn has_typed() -> bool {
    INPUT_WAS_TYPED.load(Ordering::Relaxed)
}

/// Returns whether a user sees standard output, and types standard input.
pub fn is_at_terminal() -> bool {
    let stdin = io::stdin();
    isatty(&stdin) && isatty(io::stdout()) && terminal::is_foreground_of(&stdin)
}

fn terminal_error(error: impl std::fmt::Display) -> CliError {
    CliError::new(format!("cannot make a terminal for the command: {error}"))
}

/// The command's terminal in place of standard streams, until it ends.
#[derive(Debug)]
pub struct TerminalRelay {
    /// The original streams that were replaced.
    outer: [Option<OwnedFd>; 3],
    person: Option<RelayedTerminal>,
}

/// The user's terminal during the relay.
#[derive(Debug)]
struct RelayedTerminal {
    /// Disconnected when all output has been shown.
    over: Receiver<()>,
}

impl TerminalRelay {
    /// Creates the terminal if needed, with the modes of the user's, and starts the relay;
    /// `of_terminal` reports changes of the user's terminal. Returns `None` if no stream is a
    /// terminal, or if `all` is set and not all streams are terminals.
    ///
    /// # Errors
    /// [`CliError`] if no terminals, descriptors or threads are left.
    pub fn start_relay(
        command_terminal: CommandTerminal,
        of_terminal: SignalDescriptor,
        all: bool,
    ) -> Result<Option<Self>, CliError> {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let are = streams.map(isatty);
        let (inner, person, replaced) = match command_terminal {
            CommandTerminal::Held(inner) => (inner, None, [true; 3]),
            CommandTerminal::Own if !are.contains(&true) || all && are.contains(&false) => return Ok(None),
            command_terminal => {
                let copy = |at: usize| streams[at].try_clone_to_owned().map(File::from).map_err(terminal_error);
                // The keys come from the command's standard input, if that is a terminal.
                let first = |order: [usize; 3]| order.into_iter().find(|at| are[*at]).unwrap_or_default();
                let (keyboard, screen) = (copy(first([0, 1, 2]))?, copy(first([1, 2, 0]))?);
                let (ours, inner) = open_terminal_pair(Some(keyboard.as_fd())).map_err(terminal_error)?;
                let others = !are.iter().take(2).all(|is| *is);
                let person = RelayedTerminal::spawn_relay((ours, keyboard, screen), of_terminal, others)?;
                (
                    inner,
                    Some(person),
                    if matches!(command_terminal, CommandTerminal::TerminalClient) { [true; 3] } else { are },
                )
            }
        };
        let mut outer = [None, None, None];
        for (at, slot) in outer.iter_mut().enumerate().filter(|(at, _)| replaced[*at]) {
            *slot = Some(streams[at].try_clone_to_owned().map_err(terminal_error)?);
            replace_stream(at, &inner).map_err(terminal_error)?;
        }
        Ok(Some(Self { outer, person }))
    }

    /// Restores the user's terminal. No process of the command is left.
    pub fn finish_relay(self) {
        // The relay ends with the last descriptor of the command's terminal. Each call replaces an
        // open descriptor, so it allocates none.
        for (at, stream) in self.outer.iter().enumerate() {
            let _ = stream.as_ref().map(|stream| replace_stream(at, stream));
        }
        if let Some(person) = self.person {
            // Disconnected by the end of the thread; a time-out means that the user's terminal is
            // stopped.
            let _ = person.over.recv_timeout(LAST_OUTPUT_TIMEOUT);
            RelayPause::unregister_relay();
            terminal::give_back();
        }
    }
}

fn replace_stream(at: usize, by: &OwnedFd) -> io::Result<()> {
    Ok(match at {
        0 => rustix::stdio::dup2_stdin(by),
        1 => rustix::stdio::dup2_stdout(by),
        _ => rustix::stdio::dup2_stderr(by),
    }?)
}

impl RelayedTerminal {
    /// Starts the relay. `others` means that other processes may use the terminal meanwhile.
    fn spawn_relay(
        (ours, keyboard, screen): (OwnedFd, File, File),
        signals: SignalDescriptor,
        others: bool,
    ) -> Result<Self, CliError> {
        let mut traffic = RelayThread {
            ours: ours.into(),
            keyboard,
            screen,
            signals,
            pause: RelayPause::register_relay().map_err(terminal_error)?,
            passed: OutputFilter::default(),
            shown: ScreenChanges::default(),
            others,
            raw: None,
        };
        // Keys that are pressed from here on are for the command.
        traffic.take_keyboard();
        let (on_end, over) = channel::<()>();
        let carry = move || {
            traffic.relay_until_end();
            drop(traffic);
            drop(on_end);
        };
        thread::Builder::new().name("stockade-relay".to_owned()).spawn(carry).map_err(terminal_error)?;
        Ok(Self { over })
    }
}

/// Opens both ends of a new terminal, the first one non-blocking. Modes and size are those of
/// `like`; without it, UTF-8 and the default size.
///
/// # Errors
/// [`io::Error`] if no terminals or descriptors are left.
pub fn open_terminal_pair(like: Option<BorrowedFd<'_>>) -> io::Result<(OwnedFd, OwnedFd)> {
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
            (modes, DEFAULT_SIZE)
        }
    };
    tcsetattr(&inner, OptionalActions::Now, &modes)?;
    tcsetwinsize(&inner, size)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, inner))
}

/// State of the relay's thread.
struct RelayThread {
    ours: File,
    keyboard: File,
    screen: File,
    signals: SignalDescriptor,
    pause: Arc<RelayPause>,
    passed: OutputFilter,
    shown: ScreenChanges,
    /// True if other processes use the user's terminal meanwhile: the rest of a pipeline.
    others: bool,
    /// Set while this process is in the foreground of the terminal.
    raw: Option<RawTerminal>,
}

/// Readiness of the polled descriptors.
struct RelayReadiness {
    shown: bool,
    room: bool,
    signal: bool,
    pause: bool,
    pressed: bool,
}

impl RelayThread {
    /// Relays until the last descriptor of the command's terminal is closed.
    fn relay_until_end(&mut self) {
        let mut keys: Vec<u8> = Vec::new();
        loop {
            let wants_keys = self.raw.is_some() && keys.is_empty();
            let Ok(ready) = self.wait_until_ready(!keys.is_empty(), wants_keys) else { return };
            if ready.pause {
                // The other descriptors may not be ready any more afterwards.
                self.yield_terminal();
                continue;
            }
            if ready.signal {
                let _ = self.signals.next();
                let _ = tcgetwinsize(&self.keyboard).and_then(|size| tcsetwinsize(&self.ours, size));
                self.take_keyboard();
            }
            if self.raw.is_none() {
                self.take_keyboard();
            }
            if ready.shown && !self.show_output() {
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
                    // The terminal was hung up, so the command's terminal is hung up too.
                    Ok(0) | Err(_) => return,
                }
            }
        }
    }

    /// Shows output of the command; returns false at its end.
    fn show_output(&mut self) -> bool {
        self.follow_modes();
        let mut chunk = [0; CHUNK_BYTES];
        match rustix::io::read(&self.ours, &mut chunk) {
            Ok(length @ 1..) => self.write_to_screen(&chunk[..length]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // EIO: the last descriptor of the other end is closed (pty(7)).
            Ok(0) | Err(_) => return false,
        }
        true
    }

    /// Follows the modes of the command's terminal, because other processes write lines to the
    /// user's terminal and are interrupted by its keys.
    fn follow_modes(&mut self) {
        if self.others
            && let (Some(raw), Ok(modes)) = (&mut self.raw, tcgetattr(&self.ours))
        {
            raw.follow_modes(&modes);
        }
    }

    fn write_to_screen(&mut self, bytes: &[u8]) {
        let bytes = self.passed.filter_bytes(bytes);
        self.shown.record_output(&bytes);
        // A lost terminal must not stop the command: the hang-up ends it.
        let _ = (&self.screen).write_all(&bytes);
    }

    /// Takes the keys if this process is in the foreground of the user's terminal.
    fn take_keyboard(&mut self) {
        if !terminal::is_foreground_of(&self.keyboard) {
            // The shell has set the modes that it needs.
            let _ = self.raw.take().map(RawTerminal::leave_unchanged);
            return;
        }
        match &self.raw {
            Some(raw) => drop(raw.restore_raw_mode()),
            None => self.raw = self.keyboard.try_clone().and_then(RawTerminal::enter_raw_mode).ok(),
        }
        self.follow_modes();
    }

    /// Pauses while a question has the user's terminal, which then shows no output of the command.
    fn yield_terminal(&mut self) {
        let _ = (&self.screen).write_all(&self.shown.clear_sequence());
        self.pause.yield_terminal();
        let _ = (&self.screen).write_all(&self.shown.reinstate_sequence());
        let is_other = self.shown.is_other();
        if let (true, Ok(size)) = (is_other, tcgetwinsize(&self.ours)) {
            // A full-screen program redraws after a change of the size.
            let other = Winsize { ws_row: size.ws_row.saturating_sub(1).max(1), ..size };
            let _ = tcsetwinsize(&self.ours, other).and_then(|()| tcsetwinsize(&self.ours, size));
        }
    }

    /// Interrupts this process if the command has not started or has ended, so that no process of
    /// it can receive the key.
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
                // The signal is for this process itself.
                let _ = kill_process(getpid(), signal);
            }
        }
    }

    /// Waits without a limit, because the end of the command's terminal ends the wait. In the
    /// background it waits for a short time: no event reports a change to the foreground.
    fn wait_until_ready(&self, has_keys: bool, wants_keys: bool) -> io::Result<RelayReadiness> {
        let of_command = if has_keys { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut waited = vec![
            PollFd::new(&self.ours, of_command),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(self.pause.wake_descriptor(), PollFlags::IN),
        ];
        if wants_keys {
            waited.push(PollFd::new(&self.keyboard, PollFlags::IN));
        }
        match poll(&mut waited, self.raw.is_none().then_some(&FOREGROUND_POLL_INTERVAL)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let is = |at: usize, flags: PollFlags| waited.get(at).is_some_and(|fd| fd.revents().intersects(flags));
        let any = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        Ok(RelayReadiness {
            shown: is(0, any),
            room: is(0, PollFlags::OUT),
            signal: is(1, any),
            pause: is(2, any),
            pressed: is(3, any),
        })
    }
}

impl Drop for RelayThread {
    fn drop(&mut self) {
        // A killed command leaves its terminal in the modes of that moment.
        let _ = (&self.screen).write_all(&self.shown.clear_sequence());
    }
}

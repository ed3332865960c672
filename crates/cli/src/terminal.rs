//! The user's terminal. It is opened by its own name, never through the standard streams, which may
//! belong to the command or to the parent program. Reads keys, not lines. Knows nothing of
//! questions.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{
    Action, InputModes, LocalModes, OptionalActions, OutputModes, QueueSelector, SpecialCodeIndex, Termios, isatty,
    tcflow, tcflush, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

/// Most bytes that one key press sends; more is a paste.
const CHUNK_BYTES: usize = 256;
/// Idle time of the keyboard before a question accepts a key.
const KEYBOARD_IDLE_TIME: Duration = Duration::from_millis(120);
/// Time-out for that idle time.
const KEYBOARD_IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Query for the cursor position (DSR, ECMA-48).
const CURSOR_POSITION_QUERY: &str = "\x1b[6n";
/// Longest answer to it, in bytes.
const MAX_POSITION_BYTES: usize = 32;
/// Time-out for the answer: the round trip on a slow line.
const POSITION_TIMEOUT: Duration = Duration::from_millis(1500);
/// Bytes that arrive in shorter intervals were not pressed one by one.
const MIN_KEY_INTERVAL: Duration = Duration::from_millis(15);
/// The same within a sequence, whose parts a slow line delivers one by one.
const MIN_SEQUENCE_INTERVAL: Duration = Duration::from_millis(150);
/// Most bytes of one press that are examined.
const MAX_PRESS_BYTES: usize = 4096;
const ESCAPE: u8 = 0x1b;

/// The modes to restore if the process must exit at once, see [`give_back`].
static BORROWED_MODES: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// The modes to restore at the end of raw mode, see [`give_back`].
static RAW_MODE_BACKUP: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// The relay of the keyboard, if there is one.
static ACTIVE_RELAY: Mutex<Option<Arc<RelayPause>>> = Mutex::new(None);

/// Time-out for a relay to pause.
const RELAY_PAUSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for a stop signal to this process to take effect.
const STOP_SIGNAL_DELAY: Duration = Duration::from_millis(50);

/// Terminal of another process, whose user is asked.
static LENT_TERMINAL: OnceLock<File> = OnceLock::new();

/// Stops the job of that process, and returns when it continues.
static STOP_LENT_JOB: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Terminal of a user: the controlling terminal, or a lent one.
#[derive(Debug)]
pub struct UserTerminal {
    file: File,
}

/// Asks at this terminal from now on, which was open at its user's process. A process without
/// another terminal may read its keys, whichever process is in the foreground. `stop_job` stops the
/// job that lent the terminal, and returns when that job continues.
pub fn use_lent_terminal(terminal: OwnedFd, stop_job: impl Fn() + Send + Sync + 'static) {
    // Only the first call counts.
    let _ = LENT_TERMINAL.set(terminal.into());
    let _ = STOP_LENT_JOB.set(Box::new(stop_job));
}

impl UserTerminal {
    /// Opens `/dev/tty` if a user can be asked there: it exists, standard error is a terminal too,
    /// and this process is in its foreground.
    pub fn open() -> Option<Self> {
        if let Some(lent_terminal) = LENT_TERMINAL.get() {
            return lent_terminal.try_clone().ok().map(Self::from_file);
        }
        if !isatty(io::stderr()) {
            return None;
        }
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let terminal = Self::from_file(rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?.into());
        terminal.in_foreground().then_some(terminal)
    }

    /// Wraps an open, non-blocking terminal.
    pub fn from_file(file: File) -> Self {
        Self { file }
    }

    /// Returns whether keys pressed there reach this process.
    pub fn in_foreground(&self) -> bool {
        is_foreground_of(&self.file)
    }

    /// Returns a descriptor to lend to another process.
    ///
    /// # Errors
    /// [`io::Error`] if no descriptors are left.
    pub fn clone_for_lending(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Returns the number of columns, 0 if it is unknown.
    pub fn column_count(&self) -> u16 {
        tcgetwinsize(&self.file).map_or(0, |size| size.ws_col)
    }

    /// Reads keys one by one, without echo, until the value is dropped.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal is gone.
    pub fn open_keyboard(&self) -> io::Result<QuestionKeyboard<'_>> {
        let relaying = lock_mutex(&ACTIVE_RELAY).clone();
        let alone = relaying.map(RelayPauseGuard::pause_relay).transpose()?;
        let saved = tcgetattr(&self.file)?;
        *lock_mutex(&BORROWED_MODES) = Some((self.file.try_clone()?, saved.clone()));
        let keys = QuestionKeyboard { file: &self.file, saved, _alone: alone };
        keys.take_modes()?;
        Ok(keys)
    }
}

/// Returns whether keys pressed at a terminal reach this process. They do if it is in the
/// foreground or was lent the terminal. They also do if the terminal is not its controlling one
/// (after `su -c` or `setsid`): any process that reads gets the keys then.
pub fn is_foreground_of(file: impl AsFd) -> bool {
    LENT_TERMINAL.get().is_some()
        || match tcgetpgrp(file) {
            Ok(group) => group == rustix::process::getpgrp(),
            Err(errno) => errno == Errno::NOTTY,
        }
}

/// Returns modes in which each key is read by itself, without echo, and lines are shown as lines.
fn of_question(mut modes: Termios) -> Termios {
    // Ctrl-C is a key here, because the terminal must be restored before the process exits. Ctrl-S
    // must not hide a half-shown question.
    modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
    // No key is translated to another.
    modes.input_modes -= InputModes::IXON
        | InputModes::INLCR
        | InputModes::IGNCR
        | InputModes::ISTRIP
        | InputModes::IUCLC
        | InputModes::PARMRK;
    modes.input_modes |= InputModes::ICRNL;
    modes.output_modes -= OutputModes::OLCUC | OutputModes::OCRNL | OutputModes::ONLRET;
    modes.output_modes |= OutputModes::OPOST | OutputModes::ONLCR;
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    modes
}

/// Sets modes without waiting for pending output, because a stopped terminal never drains it; drops
/// the input queue.
fn put_back(file: &File, saved: &Termios) {
    let _ = tcsetattr(file, OptionalActions::Now, saved);
    let _ = tcflush(file, QueueSelector::IFlush);
}

/// Restores the terminal's modes, if they are borrowed: for a process that is about to exit without
/// unwinding.
pub fn give_back() {
    // In this order, because the borrowed modes may be those of a raw terminal.
    for modes in [&BORROWED_MODES, &RAW_MODE_BACKUP] {
        if let Ok(mut modes) = modes.try_lock()
            && let Some((file, saved)) = modes.take()
        {
            put_back(&file, &saved);
        }
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Terminal that passes on every key and shows every byte unchanged, until the value is dropped.
#[derive(Debug)]
pub struct RawTerminal {
    at: File,
    modes: Termios,
}

impl RawTerminal {
    /// Sets this terminal to raw mode.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal is gone.
    pub fn enter_raw_mode(file: File) -> io::Result<Self> {
        let saved = tcgetattr(&file)?;
        let mut modes = saved.clone();
        modes.make_raw();
        let at = file.try_clone()?;
        *lock_mutex(&RAW_MODE_BACKUP) = Some((file, saved));
        let raw = Self { at, modes };
        tcsetattr(&raw.at, OptionalActions::Now, &raw.modes)?;
        Ok(raw)
    }

    /// Follows `inner` in its line ends and in the keys that interrupt: for a terminal that other
    /// processes use meanwhile.
    pub fn follow_modes(&mut self, inner: &Termios) {
        let (output, local) = (OutputModes::OPOST | OutputModes::ONLCR, LocalModes::ISIG);
        let mut modes = self.modes.clone();
        modes.output_modes.set(output, inner.output_modes.contains(OutputModes::OPOST));
        modes.local_modes.set(local, inner.local_modes.contains(local));
        if (modes.output_modes, modes.local_modes) != (self.modes.output_modes, self.modes.local_modes) {
            // If the terminal is gone, the next read reports it.
            let _ = tcsetattr(&self.at, OptionalActions::Now, &modes);
            self.modes = modes;
        }
    }

    /// Sets raw mode again, because another process may have changed it meanwhile.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal is gone.
    pub fn restore_raw_mode(&self) -> io::Result<()> {
        Ok(tcsetattr(&self.at, OptionalActions::Now, &self.modes)?)
    }

    /// Leaves the terminal as it is: another process has it by now.
    pub fn leave_unchanged(self) {
        *lock_mutex(&RAW_MODE_BACKUP) = None;
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Input still in the queue was typed for the command.
        if let Some((file, saved)) = lock_mutex(&RAW_MODE_BACKUP).take() {
            put_back(&file, &saved);
        }
    }
}

/// The modes of standard input, if it is a terminal, for a process that lends it.
#[derive(Debug)]
pub struct SavedTerminalModes(Option<Termios>);

impl SavedTerminalModes {
    /// Saves the current modes.
    pub fn of_standard_input() -> Self {
        Self(tcgetattr(io::stdin()).ok())
    }

    /// Restores the saved modes.
    pub fn put_back(self) {
        if let Some(modes) = self.0 {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &modes);
        }
    }
}

/// Stops the job at the user's terminal after the command at the relay's terminal was stopped, as
/// it happens without a relay. The terminal has its former modes meanwhile. Returns when the shell
/// continues the job.
pub fn suspend_job() {
    let Some(relaying) = lock_mutex(&ACTIVE_RELAY).clone() else { return };
    let Ok(_alone) = RelayPauseGuard::pause_relay(relaying) else { return };
    if let Some((file, saved)) = lock_mutex(&RAW_MODE_BACKUP).as_ref() {
        let _ = tcsetattr(file, OptionalActions::Now, saved);
    }
    STOP_LENT_JOB.get().map_or_else(stop_job, |stop_lent_job| stop_lent_job());
}

/// Stops this process and the rest of its job; returns when the shell continues it.
pub fn stop_job() {
    let _ = kill_current_process_group(Signal::TSTP);
    // Another thread may receive the signal.
    std::thread::sleep(STOP_SIGNAL_DELAY);
}

/// Lets the relay of the keyboard pause while a question has it.
#[derive(Debug)]
pub struct RelayPause {
    state: Mutex<KeyboardOwner>,
    changed: Condvar,
    wake: OwnedFd,
}

/// The owner of the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyboardOwner {
    Relay,
    /// A question waits for the relay.
    Wanted,
    /// A question has the keyboard.
    Question,
}

impl RelayPause {
    /// Registers a relay, which questions wait for from here on.
    ///
    /// # Errors
    /// [`io::Error`] if no descriptors are left.
    pub fn register_relay() -> io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let relay_pause = Arc::new(Self { state: Mutex::new(KeyboardOwner::Relay), changed: Condvar::new(), wake });
        *lock_mutex(&ACTIVE_RELAY) = Some(Arc::clone(&relay_pause));
        Ok(relay_pause)
    }

    /// Removes the registration of the relay.
    pub fn unregister_relay() {
        *lock_mutex(&ACTIVE_RELAY) = None;
    }

    /// Becomes readable when the relay must pause.
    pub fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Pauses the relay; returns when no question has the terminal.
    pub fn yield_terminal(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut turn = lock_mutex(&self.state);
        while *turn != KeyboardOwner::Relay {
            // Another question may follow before this thread has its turn.
            if *turn == KeyboardOwner::Wanted {
                *turn = KeyboardOwner::Question;
                self.changed.notify_all();
            }
            // The end of the question wakes it.
            turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The terminal without the relay, until the value is dropped.
#[derive(Debug)]
struct RelayPauseGuard(Arc<RelayPause>);

impl RelayPauseGuard {
    fn pause_relay(relay_pause: Arc<RelayPause>) -> io::Result<Self> {
        let mut turn = lock_mutex(&relay_pause.state);
        if *turn != KeyboardOwner::Relay {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        *turn = KeyboardOwner::Wanted;
        drop(turn);
        let _ = rustix::io::write(&relay_pause.wake, &1_u64.to_ne_bytes());
        let alone = Self(relay_pause);
        let turn = lock_mutex(&alone.0.state);
        let is_wanted = |turn: &mut KeyboardOwner| *turn == KeyboardOwner::Wanted;
        let waited = alone.0.changed.wait_timeout_while(turn, RELAY_PAUSE_TIMEOUT, is_wanted);
        let (turn, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let has_it = *turn == KeyboardOwner::Question;
        drop(turn);
        if has_it { Ok(alone) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl Drop for RelayPauseGuard {
    fn drop(&mut self) {
        *lock_mutex(&self.0.state) = KeyboardOwner::Relay;
        self.0.changed.notify_all();
    }
}

/// Replaces standard input by `/dev/null` if this process is in the background. The command has no
/// job control that would stop it from reading input for another process.
///
/// # Errors
/// [`io::Error`] if `/dev/null` cannot be opened.
pub fn leave_input_to_foreground() -> io::Result<()> {
    let stdin = io::stdin();
    let in_background = tcgetpgrp(&stdin).is_ok_and(|group| group != rustix::process::getpgrp());
    if in_background {
        let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(nothing)?;
    }
    Ok(())
}

/// Result of a wait for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyWaitResult {
    /// Bytes that arrived together.
    Bytes(Vec<u8>),
    /// No key before the deadline.
    TimedOut,
    /// Another descriptor became readable.
    Woken,
    /// The terminal is gone.
    Gone,
}

/// The keyboard while a question is shown.
#[derive(Debug)]
pub struct QuestionKeyboard<'a> {
    file: &'a File,
    saved: Termios,
    // Dropped last, after `drop` has restored the modes.
    _alone: Option<RelayPauseGuard>,
}

impl QuestionKeyboard<'_> {
    /// Sets the modes of a question, whatever they are by now.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal is gone.
    pub fn take_modes(&self) -> io::Result<()> {
        tcsetattr(self.file, OptionalActions::Now, &of_question(tcgetattr(self.file)?))?;
        // Stopped output would wait for a Ctrl-Q that the user does not expect to press.
        let _ = tcflow(self.file, Action::OOn);
        Ok(())
    }

    /// Writes all of `text` before `deadline`.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal is gone or accepts no output.
    pub fn show_text(&self, text: &str, deadline: Instant) -> io::Result<()> {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match rustix::io::write(self.file, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !poll_before(&[(self.file.as_fd(), PollFlags::OUT)], deadline)?[0] {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Drops earlier input, and waits until the keyboard is idle: a key that was intended for another
    /// program must not answer a question. Ends early if the question is withdrawn.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal is gone.
    pub fn wait_until_idle(&self, deadline: Instant, is_withdrawn: &dyn Fn() -> bool) -> io::Result<()> {
        let give_up = deadline.min(Instant::now() + KEYBOARD_IDLE_TIMEOUT);
        while !is_withdrawn() {
            tcflush(self.file, QueueSelector::IFlush)?;
            let still = give_up.min(Instant::now() + KEYBOARD_IDLE_TIME);
            if !poll_before(&[(self.file.as_fd(), PollFlags::IN)], still)?[0] || Instant::now() >= give_up {
                return Ok(tcflush(self.file, QueueSelector::IFlush)?);
            }
        }
        Ok(())
    }

    /// Asks the terminal for its cursor position, and drops all input before the answer. The
    /// terminal sends its own reports about earlier output before that answer. Returns whether it
    /// answered. Each of `wakes` ends the wait.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal is gone.
    pub fn drop_earlier_input(&self, deadline: Instant, wakes: &[BorrowedFd<'_>]) -> io::Result<bool> {
        self.show_text(CURSOR_POSITION_QUERY, deadline)?;
        let deadline = deadline.min(Instant::now() + POSITION_TIMEOUT);
        let mut seen = Vec::new();
        loop {
            match self.read_before(deadline, wakes) {
                KeyWaitResult::Bytes(bytes) => seen.extend(bytes),
                KeyWaitResult::Gone => return Err(io::ErrorKind::UnexpectedEof.into()),
                KeyWaitResult::TimedOut | KeyWaitResult::Woken => return Ok(false),
            }
            if holds_position(&seen) {
                return Ok(true);
            }
            seen.drain(..seen.len().saturating_sub(MAX_POSITION_BYTES));
        }
    }

    /// Returns the next key, or the bytes that arrived together: a paste, a function key, a report.
    /// Each of `wakes` ends the wait when it becomes readable.
    pub fn next(&self, deadline: Instant, wakes: &[BorrowedFd<'_>]) -> KeyWaitResult {
        if self.take_modes().is_err() {
            return KeyWaitResult::Gone;
        }
        let mut all = match self.read_before(deadline, wakes) {
            KeyWaitResult::Bytes(bytes) => bytes,
            other => return other,
        };
        // A line may deliver one sequence in pieces. Bytes that follow at once belong to it, so
        // that no part of a sequence counts as a key.
        loop {
            let is_sequence = all.iter().any(|byte| *byte == ESCAPE || *byte >= 0x80);
            let sequence_end = Instant::now() + if is_sequence { MIN_SEQUENCE_INTERVAL } else { MIN_KEY_INTERVAL };
            match self.read_before(sequence_end, wakes) {
                KeyWaitResult::Bytes(more) if all.len() < MAX_PRESS_BYTES => all.extend(more),
                KeyWaitResult::Bytes(_) => {}
                KeyWaitResult::TimedOut => return KeyWaitResult::Bytes(all),
                other => return other,
            }
            if Instant::now() >= deadline {
                return KeyWaitResult::TimedOut;
            }
        }
    }

    fn read_before(&self, deadline: Instant, wakes: &[BorrowedFd<'_>]) -> KeyWaitResult {
        loop {
            let mut waited = vec![(self.file.as_fd(), PollFlags::IN)];
            waited.extend(wakes.iter().map(|fd| (*fd, PollFlags::IN)));
            match poll_before(&waited, deadline) {
                Ok(ready) if ready[1..].contains(&true) => return KeyWaitResult::Woken,
                Ok(ready) if ready[0] => {}
                Ok(_) => return KeyWaitResult::TimedOut,
                Err(_) => return KeyWaitResult::Gone,
            }
            let mut chunk = [0; CHUNK_BYTES];
            match rustix::io::read(self.file, &mut chunk) {
                Ok(0) => return KeyWaitResult::Gone,
                Ok(length) => return KeyWaitResult::Bytes(chunk[..length].to_vec()),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return KeyWaitResult::Gone,
            }
        }
    }
}

/// Returns whether the bytes contain a report of the cursor position: `ESC [ row ; column R`.
fn holds_position(seen: &[u8]) -> bool {
    let is_report = |text: &[u8]| {
        let text = text.strip_prefix(b"\x1b[").unwrap_or_default();
        let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b';').unwrap_or_default();
        text.get(end) == Some(&b'R') && text[..end].contains(&b';')
    };
    (0..seen.len()).any(|at| is_report(&seen[at..]))
}

impl Drop for QuestionKeyboard<'_> {
    fn drop(&mut self) {
        // Input still in the queue was typed at the question, not for the program that reads next.
        put_back(self.file, &self.saved);
        *lock_mutex(&BORROWED_MODES) = None;
    }
}

/// Returns which descriptors became ready before `deadline`. A hang-up counts as ready: the read
/// reports it.
fn poll_before(waited: &[(BorrowedFd<'_>, PollFlags)], deadline: Instant) -> io::Result<Vec<bool>> {
    let mut fds: Vec<_> = waited.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let remaining = Timespec::try_from(remaining).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut fds, Some(&remaining)) {
            Ok(_) => return Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

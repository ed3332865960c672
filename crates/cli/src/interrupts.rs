//! Passes signals of the supervisor to the engine as interrupts. The command has a session of its
//! own, so the terminal sends its signals only to this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Signal;
use stockade_engine::{InterruptReceiver, InterruptSender, interrupt_channel};
use stockade_sys::signals::{SignalDescriptor, block_signals};

use crate::failure::CliError;

/// Signals that ask the process to end.
const TERMINATION_SIGNALS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Signals that would stop this process while it restores the terminal from the background
/// (termios(3)).
const STOP_SIGNALS: [Signal; 2] = [Signal::TTOU, Signal::TTIN];

/// Signals about the terminal: a new size, and SIGCONT from the shell.
const TERMINAL_SIGNALS: [Signal; 2] = [Signal::WINCH, Signal::CONT];

/// Blocked signals, before a thread listens to them.
#[derive(Debug)]
pub struct BlockedSignals {
    asking: SignalDescriptor,
    of_terminal: SignalDescriptor,
}

/// Blocks the signals and takes them over. Must run before any thread starts, because threads
/// inherit the mask.
///
/// # Errors
/// [`CliError`] if no descriptors are left.
pub fn take_signals() -> Result<BlockedSignals, CliError> {
    let cannot = |e: std::io::Error| CliError::new(format!("cannot listen to signals: {e}"));
    block_signals(&STOP_SIGNALS.map(Signal::as_raw)).map_err(cannot)?;
    let read_signals = |signals: &[Signal]| {
        SignalDescriptor::block_and_read(&signals.iter().map(|signal| signal.as_raw()).collect::<Vec<_>>())
            .map_err(cannot)
    };
    Ok(BlockedSignals { asking: read_signals(&TERMINATION_SIGNALS)?, of_terminal: read_signals(&TERMINAL_SIGNALS)? })
}

impl AsFd for BlockedSignals {
    /// Readable when a signal has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asking.as_fd()
    }
}

/// Signals with a listening thread.
pub struct SignalListener {
    /// The engine's receiver.
    pub interrupts: InterruptReceiver,
    /// Lets other parts of the program interrupt the run.
    pub interrupter: InterruptSender,
    /// Becomes readable with each signal, for a wait at a terminal.
    pub wake: OwnedFd,
    /// Signals about the terminal.
    pub of_terminal: SignalDescriptor,
}

impl BlockedSignals {
    /// Waits for the next signal without a limit.
    ///
    /// # Errors
    /// None in practice.
    pub fn next(&self) -> std::io::Result<i32> {
        self.asking.next()
    }

    /// Returns the signals about the terminal.
    pub fn of_terminal(&self) -> &SignalDescriptor {
        &self.of_terminal
    }

    /// Listens on a thread of its own.
    ///
    /// # Errors
    /// [`CliError`] if no descriptors or threads are left.
    pub fn start_listening(self) -> Result<SignalListener, CliError> {
        let cannot = |e: std::io::Error| CliError::new(format!("cannot listen to signals: {e}"));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| cannot(e.into()))?;
        let wake_writer = Arc::new(wake.try_clone().map_err(cannot)?);
        let (interrupter, interrupts) = interrupt_channel();
        let thread_interrupter = interrupter.clone();
        let Self { asking, of_terminal } = self;
        let listen = move || pass_on(&asking, &thread_interrupter, &wake_writer);
        thread::Builder::new().name("stockade-signals".to_owned()).spawn(listen).map_err(cannot)?;
        Ok(SignalListener { interrupts, interrupter, wake, of_terminal })
    }
}

fn pass_on(asking: &SignalDescriptor, interrupter: &InterruptSender, wake_writer: &OwnedFd) {
    while let Ok(signal) = asking.next() {
        tracing::info!(signal, "received");
        let _ = rustix::io::write(wake_writer, &1_u64.to_ne_bytes());
        if !interrupter.send_interrupt(signal) {
            return;
        }
    }
}

//! Passes signals of the supervisor to the engine as interrupts. The command has a session of its
//! own, so the terminal sends its signals only to this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Signal;
use stockade_engine::{Interrupter, Interrupts, interrupts};
use stockade_sys::signals::{Signals, block};

use crate::failure::Failure;

/// Signals that ask the process to end.
const ASKING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Signals that would stop this process while it restores the terminal from the background
/// (termios(3)).
const STOPPING: [Signal; 2] = [Signal::TTOU, Signal::TTIN];

/// Signals about the terminal: a new size, and SIGCONT from the shell.
const OF_TERMINAL: [Signal; 2] = [Signal::WINCH, Signal::CONT];

/// Blocked signals, before a thread listens to them.
#[derive(Debug)]
pub struct Taken {
    asking: Signals,
    of_terminal: Signals,
}

/// Blocks the signals and takes them over. Must run before any thread starts, because threads
/// inherit the mask.
///
/// # Errors
/// [`Failure`] if no descriptors are left.
pub fn take() -> Result<Taken, Failure> {
    let cannot = |e: std::io::Error| Failure::new(format!("cannot listen to signals: {e}"));
    block(&STOPPING.map(Signal::as_raw)).map_err(cannot)?;
    let taken = |signals: &[Signal]| {
        Signals::take(&signals.iter().map(|signal| signal.as_raw()).collect::<Vec<_>>()).map_err(cannot)
    };
    Ok(Taken { asking: taken(&ASKING)?, of_terminal: taken(&OF_TERMINAL)? })
}

impl AsFd for Taken {
    /// Readable when a signal has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asking.as_fd()
    }
}

/// Signals with a listening thread.
#[derive(Debug)]
pub struct Heard {
    /// The engine's receiver.
    pub interrupts: Interrupts,
    /// Lets other parts of the program interrupt the run.
    pub interrupter: Interrupter,
    /// Becomes readable with each signal, for a wait at a terminal.
    pub wake: OwnedFd,
    /// Signals about the terminal.
    pub of_terminal: Signals,
}

impl Taken {
    /// Waits for the next signal without a limit.
    ///
    /// # Errors
    /// None in practice.
    pub fn next(&self) -> std::io::Result<i32> {
        self.asking.next()
    }

    /// Returns the signals about the terminal.
    pub fn of_terminal(&self) -> &Signals {
        &self.of_terminal
    }

    /// Listens on a thread of its own.
    ///
    /// # Errors
    /// [`Failure`] if no descriptors or threads are left.
    pub fn listen(self) -> Result<Heard, Failure> {
        let cannot = |e: std::io::Error| Failure::new(format!("cannot listen to signals: {e}"));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| cannot(e.into()))?;
        let heard = Arc::new(wake.try_clone().map_err(cannot)?);
        let (interrupter, interrupts) = interrupts();
        let told = interrupter.clone();
        let Self { asking, of_terminal } = self;
        let listen = move || pass_on(&asking, &told, &heard);
        thread::Builder::new().name("stockade-signals".to_owned()).spawn(listen).map_err(cannot)?;
        Ok(Heard { interrupts, interrupter, wake, of_terminal })
    }
}

fn pass_on(asking: &Signals, interrupter: &Interrupter, heard: &OwnedFd) {
    while let Ok(signal) = asking.next() {
        tracing::info!(signal, "received");
        let _ = rustix::io::write(heard, &1_u64.to_ne_bytes());
        if !interrupter.interrupt(signal) {
            return;
        }
    }
}

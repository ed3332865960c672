//! Signals to the front become the engine's interrupts. The command has a
//! session of its own, so what the terminal sends reaches only us.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Signal;
use stockade_engine::{Interrupter, Interrupts, interrupts};
use stockade_sys::signals::{Signals, block};

use crate::failure::Failure;

/// Signals that ask for the end.
const ASKING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Signals that would stop us while the terminal is given back from the
/// background (termios(3)).
const STOPPING: [Signal; 2] = [Signal::TTOU, Signal::TTIN];

/// Signals that tell of the terminal: its size, and that the shell has us go on.
const OF_TERMINAL: [Signal; 2] = [Signal::WINCH, Signal::CONT];

/// Signals taken, not yet listened to.
#[derive(Debug)]
pub struct Taken {
    asking: Signals,
    of_terminal: Signals,
}

/// Takes the signals over. Before any thread is started: threads inherit it.
///
/// # Errors
/// Out of descriptors.
pub fn take() -> Result<Taken, Failure> {
    let cannot = |e: std::io::Error| Failure::new(format!("cannot listen to signals: {e}"));
    block(&STOPPING.map(Signal::as_raw)).map_err(cannot)?;
    let taken = |signals: &[Signal]| {
        Signals::take(&signals.iter().map(|signal| signal.as_raw()).collect::<Vec<_>>()).map_err(cannot)
    };
    Ok(Taken { asking: taken(&ASKING)?, of_terminal: taken(&OF_TERMINAL)? })
}

impl AsFd for Taken {
    /// Readable when one arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asking.as_fd()
    }
}

/// Signals listened to.
#[derive(Debug)]
pub struct Heard {
    /// The engine's end.
    pub interrupts: Interrupts,
    /// For whoever else may interrupt the run.
    pub interrupter: Interrupter,
    /// Becomes readable with each signal, for whoever waits at a terminal.
    pub wake: OwnedFd,
    /// What becomes of the terminal.
    pub of_terminal: Signals,
}

impl Taken {
    /// The next one, waited for without a limit.
    ///
    /// # Errors
    /// Never in practice.
    pub fn next(&self) -> std::io::Result<i32> {
        self.asking.next()
    }

    /// Those that tell of the terminal.
    pub fn of_terminal(&self) -> &Signals {
        &self.of_terminal
    }

    /// Listens on a thread of its own.
    ///
    /// # Errors
    /// Out of descriptors or threads.
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

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

/// Signals taken, not yet listened to.
#[derive(Debug)]
pub struct Taken(Signals);

/// Takes the signals over. Before any thread is started: threads inherit it.
///
/// # Errors
/// Out of descriptors.
pub fn take() -> Result<Taken, Failure> {
    let cannot = |e: std::io::Error| Failure::new(format!("cannot listen to signals: {e}"));
    block(&STOPPING.map(Signal::as_raw)).map_err(cannot)?;
    Ok(Taken(Signals::take(&ASKING.map(Signal::as_raw)).map_err(cannot)?))
}

impl AsFd for Taken {
    /// Readable when one arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
}

impl Taken {
    /// The next one, waited for without a limit.
    ///
    /// # Errors
    /// Never in practice.
    pub fn next(&self) -> std::io::Result<i32> {
        self.0.next()
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
        let listen = move || self.pass_on(&told, &heard);
        thread::Builder::new().name("stockade-signals".to_owned()).spawn(listen).map_err(cannot)?;
        Ok(Heard { interrupts, interrupter, wake })
    }

    fn pass_on(&self, interrupter: &Interrupter, heard: &OwnedFd) {
        while let Ok(signal) = self.0.next() {
            tracing::info!(signal, "received");
            let _ = rustix::io::write(heard, &1_u64.to_ne_bytes());
            if !interrupter.interrupt(signal) {
                return;
            }
        }
    }
}

//! What a run hears of while it goes on: signals that arrived at its process, and that its
//! command was stopped at its terminal. Decides nothing.

use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::driver::Message;

/// Interrupts a run; from a signal handler's thread, for instance.
#[derive(Clone, Debug)]
pub struct Interrupter(Sender<Message>);

impl Interrupter {
    /// Says that this signal arrived. The first goes on to the command, the
    /// second ends it. False when the run is over.
    pub fn interrupt(&self, signal: i32) -> bool {
        self.0.send(Message::Interrupted(signal)).is_ok()
    }
}

/// Called when the command was stopped; it goes on when that returns.
pub(crate) type StandStill = Box<dyn Fn() + Send>;

/// Whether a person has typed something for the command.
pub(crate) type HasTyped = Box<dyn Fn() -> bool + Send>;

/// The receiving end of an [`Interrupter`], for one run.
pub struct Interrupts {
    pub(crate) sender: Sender<Message>,
    pub(crate) receiver: Receiver<Message>,
    pub(crate) stand_still: Option<StandStill>,
    pub(crate) has_typed: Option<HasTyped>,
}

impl Interrupts {
    /// What the run does where its command, which has a terminal, was stopped by a signal:
    /// it returns when that is to go on. Without this it stays.
    #[must_use]
    pub fn standing_still(self, stand_still: impl Fn() + Send + 'static) -> Self {
        Self { stand_still: Some(Box::new(stand_still)), ..self }
    }

    /// How the run learns whether a person typed something for its command: such a
    /// command is not run again. Without this nobody types.
    #[must_use]
    pub fn typed(self, has_typed: impl Fn() -> bool + Send + 'static) -> Self {
        Self { has_typed: Some(Box::new(has_typed)), ..self }
    }
}

impl fmt::Debug for Interrupts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupts").finish_non_exhaustive()
    }
}

/// A way to interrupt one run. Signals sent before the run begins count.
pub fn interrupts() -> (Interrupter, Interrupts) {
    let (sender, receiver) = channel();
    (Interrupter(sender.clone()), Interrupts { sender, receiver, stand_still: None, has_typed: None })
}

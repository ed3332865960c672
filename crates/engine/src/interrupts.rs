//! Events that a run receives from outside while it runs: signals to its process, and stops of its
//! command at the terminal. Decides nothing.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::core::CoreInput;
use crate::driver::DriverMessage;

/// Interrupts a run, for example from a signal handler's thread.
#[derive(Clone, Debug)]
pub struct InterruptSender(Sender<DriverMessage>);

impl InterruptSender {
    /// Reports that this signal arrived. The first signal is passed to the command; the second ends
    /// the command. Returns false if the run is over.
    pub fn send_interrupt(&self, signal: i32) -> bool {
        self.0.send(DriverMessage::Input(CoreInput::Interrupted(signal))).is_ok()
    }
}

/// Function to call when the command was stopped; the command continues when it returns.
pub(crate) type StopHandler = Box<dyn Fn() + Send>;

/// Function that returns whether the user has typed input for the command.
pub(crate) type TypedInputCheck = Box<dyn Fn() -> bool + Send>;

/// Receiving end of an [`InterruptSender`], for one run.
pub struct InterruptReceiver {
    pub(crate) sender: Sender<DriverMessage>,
    pub(crate) receiver: Receiver<DriverMessage>,
    pub(crate) stand_still: Option<StopHandler>,
    pub(crate) has_typed: Option<TypedInputCheck>,
}

impl InterruptReceiver {
    /// Sets the function to call when a signal stopped the command, which has a terminal. The
    /// command continues when the function returns. Without it the command stays stopped.
    #[must_use]
    pub fn with_stop_handler(self, stand_still: impl Fn() + Send + 'static) -> Self {
        Self { stand_still: Some(Box::new(stand_still)), ..self }
    }

    /// Sets the function that returns whether the user typed input for the command; such a command
    /// is not run again. Without it no input is assumed.
    #[must_use]
    pub fn with_input_check(self, has_typed: impl Fn() -> bool + Send + 'static) -> Self {
        Self { has_typed: Some(Box::new(has_typed)), ..self }
    }
}

/// Creates both ends for one run. Signals sent before the run begins count.
pub fn interrupt_channel() -> (InterruptSender, InterruptReceiver) {
    let (sender, receiver) = channel();
    (InterruptSender(sender.clone()), InterruptReceiver { sender, receiver, stand_still: None, has_typed: None })
}

//! Attempt with its backend in another process: the messages between the two, and both ends of the
//! channel.
//!
//! The [`AttemptChannel`] transports the messages (a socket, a stream of a container engine). This module
//! must not depend on the transport.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stockade_model::{AttemptPlan, Denial, EnforcementReport};

use crate::{Attempt, AttemptEvent, AttemptEventSender, HeldAnswer, HoldId, StartError, StdioMode};

/// Time-out for building a sandbox or releasing a command.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out for freezing all processes.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time-out for the other process to end the sandbox, and then itself.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// First message to the process of an attempt: its task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptOrder {
    /// The plan of the attempt.
    pub plan: AttemptPlan,
    /// The command's standard streams, from the view of the process that gets this message.
    pub io: StdioMode,
    /// True if calls that lack a power wait for an answer.
    pub hold: bool,
    /// The file mode creation mask of the command.
    pub umask: u32,
}

/// Message from the engine's process to the attempt's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineMessage {
    /// [`Attempt::release_command`].
    Release,
    /// [`Attempt::send_signal`].
    Signal(i32),
    /// [`Attempt::kill_processes`].
    Kill,
    /// [`Attempt::stand_still`]: the exceeded limit.
    StandStill(Denial),
    /// [`Attempt::answer_call`].
    Answer(HoldId, HeldAnswer),
}

/// Message from the attempt's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptMessage {
    /// The sandbox is built, or the reason why not.
    Prepared(Result<EnforcementReport, StartError>),
    /// The command was released, or the reason why not.
    Released(Result<(), StartError>),
    /// True if all processes are frozen.
    StandsStill(bool),
    /// An event of the attempt.
    Event(Box<AttemptEvent>),
}

/// The engine's end of the channel to an attempt's process. Several threads write, one reads.
pub trait AttemptChannel: Send + Sync {
    /// Sends a message, within a bounded time.
    ///
    /// # Errors
    /// [`io::Error`] if the other side is gone, or does not read it.
    fn send_message(&self, engine_message: &EngineMessage) -> io::Result<()>;

    /// Waits for the next message of the other side; `None` if it is gone.
    ///
    /// # Errors
    /// [`io::Error`] if the received bytes are no message.
    fn receive_message(&self) -> io::Result<Option<AttemptMessage>>;

    /// Closes the sending direction; the other side's messages are still received.
    fn fall_silent(&self);

    /// Closes the channel, also for a thread that waits for a message.
    fn hang_up(&self);
}

/// Attempt as the engine uses it.
pub struct RemoteAttempt {
    line: Arc<dyn AttemptChannel>,
    enforced: EnforcementReport,
    released: Receiver<Result<(), StartError>>,
    still: Mutex<Receiver<bool>>,
    /// Disconnected when the process and all its children are gone.
    over: Receiver<()>,
}

impl RemoteAttempt {
    /// Waits until the ordered sandbox is built.
    ///
    /// # Errors
    /// [`StartError`] with the reason if it is not built.
    pub fn await_sandbox(line: Arc<dyn AttemptChannel>, events: AttemptEventSender) -> Result<Self, StartError> {
        let (prepared, is_prepared) = channel();
        let (released, is_released) = channel();
        let (still, stands_still) = channel();
        let (on_drop, over) = channel::<()>();
        let listener_channel = Arc::clone(&line);
        let listen = move || {
            AttemptListener { prepared, released, still, events }.receive_messages(&*listener_channel);
            drop(on_drop);
        };
        let listener = thread::Builder::new().name("stockade-attempt".to_owned()).spawn(listen);
        listener.map_err(|e| StartError { what: format!("cannot start a thread: {e}"), hint: None })?;
        match in_time(&is_prepared).flatten() {
            Ok(enforced) => Ok(Self { line, enforced, released: is_released, still: Mutex::new(stands_still), over }),
            Err(error) => {
                line.hang_up();
                Err(error)
            }
        }
    }

    /// Sends a message. A failure is ignored, because the end of a process that is gone is
    /// reported.
    fn send_message(&self, engine_message: &EngineMessage) {
        let _ = self.line.send_message(engine_message);
    }
}

fn in_time<T>(word: &Receiver<T>) -> Result<T, StartError> {
    word.recv_timeout(READY_TIMEOUT).map_err(|error| {
        let why = match error {
            RecvTimeoutError::Timeout => format!("it sent no message within {} s", READY_TIMEOUT.as_secs()),
            RecvTimeoutError::Disconnected => "its supervisor was killed".to_owned(),
        };
        StartError { what: format!("the sandbox is lost: {why}"), hint: None }
    })
}

/// Receivers of the messages.
struct AttemptListener {
    prepared: Sender<Result<EnforcementReport, StartError>>,
    released: Sender<Result<(), StartError>>,
    still: Sender<bool>,
    events: AttemptEventSender,
}

impl AttemptListener {
    /// Receives messages until the process is gone. If it reported no end, the drop of `events`
    /// reports it.
    fn receive_messages(self, line: &dyn AttemptChannel) {
        while let Ok(Some(attempt_message)) = line.receive_message() {
            match attempt_message {
                AttemptMessage::Event(event) => self.events.send_event(*event),
                // The receiver is gone if these fail.
                AttemptMessage::Prepared(result) => drop(self.prepared.send(result)),
                AttemptMessage::Released(result) => drop(self.released.send(result)),
                AttemptMessage::StandsStill(does) => drop(self.still.send(does)),
            }
        }
    }
}

impl Attempt for RemoteAttempt {
    fn enforcement_report(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release_command(&mut self) -> Result<(), StartError> {
        self.send_message(&EngineMessage::Release);
        in_time(&self.released).flatten()
    }

    fn send_signal(&self, signal: i32) {
        self.send_message(&EngineMessage::Signal(signal));
    }

    fn kill_processes(&self) {
        self.send_message(&EngineMessage::Kill);
    }

    fn stand_still(&self, limit: &Denial) -> bool {
        let still = self.still.lock().unwrap_or_else(PoisonError::into_inner);
        // A late reply to an earlier message must not count as the reply to this one.
        while still.try_recv().is_ok() {}
        self.send_message(&EngineMessage::StandStill(limit.clone()));
        still.recv_timeout(FREEZE_TIMEOUT).unwrap_or(false)
    }

    fn answer_call(&self, hold: HoldId, answer: HeldAnswer) {
        self.send_message(&EngineMessage::Answer(hold, answer));
    }
}

impl Drop for RemoteAttempt {
    fn drop(&mut self) {
        // The process ends its sandbox, and then itself.
        self.line.fall_silent();
        if self.over.recv_timeout(END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            self.line.hang_up();
            // The listener may have to wait for the end of a process that does not answer.
            let _ = self.over.recv_timeout(END_TIMEOUT);
        }
    }
}

/// Runs the other end: carries out messages until the channel is closed, which ends the attempt.
///
/// # Errors
/// [`io::Error`] if the channel to the engine's process fails.
pub fn serve_attempt(
    mut attempt: Box<dyn Attempt>,
    mut hear: impl FnMut() -> io::Result<Option<EngineMessage>>,
    tell: impl Fn(&AttemptMessage) -> io::Result<()>,
) -> io::Result<()> {
    while let Some(engine_message) = hear()? {
        match engine_message {
            EngineMessage::Release => tell(&AttemptMessage::Released(attempt.release_command()))?,
            EngineMessage::Signal(signal) => attempt.send_signal(signal),
            EngineMessage::Kill => attempt.kill_processes(),
            EngineMessage::StandStill(limit) => tell(&AttemptMessage::StandsStill(attempt.stand_still(&limit)))?,
            EngineMessage::Answer(hold, answer) => attempt.answer_call(hold, answer),
        }
    }
    Ok(())
}

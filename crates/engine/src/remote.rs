//! An attempt whose backend is in another process: what the two say to each other,
//! and both ends of it.
//!
//! How the messages get there (a socket, a stream of a container engine) is the
//! [`Line`]'s; this must not know.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stockade_model::{Denial, EnforcementReport, Plan};

use crate::{Attempt, AttemptEvent, Events, HeldAnswer, HoldId, Io, StartError};

/// How long a sandbox may take to be built, or a command to be let go.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long everything may take to stand still.
const STILL_WITHIN: Duration = Duration::from_secs(5);
/// How long the other process may take to end the sandbox, and then itself.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// What the process of an attempt is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The attempt.
    pub plan: Plan,
    /// Where its streams go, as the process that is told has them.
    pub io: Io,
    /// Whether calls that lack a power wait for an answer.
    pub hold: bool,
    /// The file mode creation mask of the command.
    pub umask: u32,
}

/// From the engine's process, about the attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// [`Attempt::release`].
    Release,
    /// [`Attempt::signal`].
    Signal(i32),
    /// [`Attempt::kill`].
    Kill,
    /// [`Attempt::stand_still`]: the limit that was passed.
    StandStill(Denial),
    /// [`Attempt::answer`].
    Answer(HoldId, HeldAnswer),
}

/// From the attempt's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// The sandbox stands, or why it does not.
    Prepared(Result<EnforcementReport, StartError>),
    /// The command was let go, or why it was not.
    Released(Result<(), StartError>),
    /// Whether everything stands still.
    StandsStill(bool),
    /// Something happened.
    Event(Box<AttemptEvent>),
}

/// The engine's end of the way to an attempt's process. Written by several threads,
/// read by one.
pub trait Line: Send + Sync {
    /// Says something; not longer than a bounded time.
    ///
    /// # Errors
    /// When the other side is gone, or does not take it.
    fn say(&self, said: &Said) -> io::Result<()>;

    /// Waits for what the other side tells next; none where it has gone.
    ///
    /// # Errors
    /// When what came is no message.
    fn hear(&self) -> io::Result<Option<Told>>;

    /// Says no more; the other side is heard to its end.
    fn fall_silent(&self);

    /// Ends it, for whoever waits for a message too.
    fn hang_up(&self);
}

/// The attempt as the engine holds it.
pub struct RemoteAttempt {
    line: Arc<dyn Line>,
    enforced: EnforcementReport,
    released: Receiver<Result<(), StartError>>,
    still: Mutex<Receiver<bool>>,
    /// Hung up when the process is gone, and with it everything.
    over: Receiver<()>,
}

impl RemoteAttempt {
    /// Waits until the sandbox stands whose order was given.
    ///
    /// # Errors
    /// Why it does not stand.
    pub fn begin(line: Arc<dyn Line>, events: Events) -> Result<Self, StartError> {
        let (prepared, is_prepared) = channel();
        let (released, is_released) = channel();
        let (still, stands_still) = channel();
        let (on_drop, over) = channel::<()>();
        let heard = Arc::clone(&line);
        let listen = move || {
            Listener { prepared, released, still, events }.listen(&*heard);
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

    /// What cannot be said to a process that is gone needs not be: its end is told.
    fn say(&self, said: &Said) {
        let _ = self.line.say(said);
    }
}

fn in_time<T>(word: &Receiver<T>) -> Result<T, StartError> {
    word.recv_timeout(READY_WITHIN).map_err(|error| {
        let why = match error {
            RecvTimeoutError::Timeout => format!("nothing was heard of it within {} s", READY_WITHIN.as_secs()),
            RecvTimeoutError::Disconnected => "its front was ended by somebody".to_owned(),
        };
        StartError { what: format!("the sandbox is lost: {why}"), hint: None }
    })
}

/// Where what is told goes.
struct Listener {
    prepared: Sender<Result<EnforcementReport, StartError>>,
    released: Sender<Result<(), StartError>>,
    still: Sender<bool>,
    events: Events,
}

impl Listener {
    /// Until the process is gone. Where it told no end, the drop of `events` does.
    fn listen(self, line: &dyn Line) {
        while let Ok(Some(told)) = line.hear() {
            match told {
                Told::Event(event) => self.events.tell(*event),
                // Nobody waits any more where these fail.
                Told::Prepared(result) => drop(self.prepared.send(result)),
                Told::Released(result) => drop(self.released.send(result)),
                Told::StandsStill(does) => drop(self.still.send(does)),
            }
        }
    }
}

impl Attempt for RemoteAttempt {
    fn enforced(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release(&mut self) -> Result<(), StartError> {
        self.say(&Said::Release);
        in_time(&self.released).flatten()
    }

    fn signal(&self, signal: i32) {
        self.say(&Said::Signal(signal));
    }

    fn kill(&self) {
        self.say(&Said::Kill);
    }

    fn stand_still(&self, limit: &Denial) -> bool {
        let still = self.still.lock().unwrap_or_else(PoisonError::into_inner);
        // One that came too late is no answer to this.
        while still.try_recv().is_ok() {}
        self.say(&Said::StandStill(limit.clone()));
        still.recv_timeout(STILL_WITHIN).unwrap_or(false)
    }

    fn answer(&self, hold: HoldId, answer: HeldAnswer) {
        self.say(&Said::Answer(hold, answer));
    }
}

impl Drop for RemoteAttempt {
    fn drop(&mut self) {
        // The process ends its sandbox, and then itself.
        self.line.fall_silent();
        if self.over.recv_timeout(ENDS_WITHIN) == Err(RecvTimeoutError::Timeout) {
            self.line.hang_up();
            // What hears it may have to see to the end of what does not answer.
            let _ = self.over.recv_timeout(ENDS_WITHIN);
        }
    }
}

/// The other end: does what is said, until nothing more is. The attempt ends with it.
///
/// # Errors
/// When the engine's process cannot be heard or told.
pub fn obey(
    mut attempt: Box<dyn Attempt>,
    mut hear: impl FnMut() -> io::Result<Option<Said>>,
    tell: impl Fn(&Told) -> io::Result<()>,
) -> io::Result<()> {
    while let Some(said) = hear()? {
        match said {
            Said::Release => tell(&Told::Released(attempt.release()))?,
            Said::Signal(signal) => attempt.signal(signal),
            Said::Kill => attempt.kill(),
            Said::StandStill(limit) => tell(&Told::StandsStill(attempt.stand_still(&limit)))?,
            Said::Answer(hold, answer) => attempt.answer(hold, answer),
        }
    }
    Ok(())
}

//! An attempt that is in another process, as its engine sees it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use stockade_engine::{Attempt, Events, HeldAnswer, HoldId, StartError};
use stockade_model::{Denial, EnforcementReport};

use super::wire::{Line, Said, Told};
use crate::attempt::SANDBOX_ENDS_WITHIN;

/// How long a sandbox may take to be built, or a command to be let go.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long everything may take to stand still.
const STILL_WITHIN: Duration = Duration::from_secs(5);
/// How much longer than its sandbox a front may take to end.
const FRONT_ENDS_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct RemoteAttempt {
    line: Arc<Line>,
    enforced: EnforcementReport,
    released: Receiver<Result<(), StartError>>,
    still: Mutex<Receiver<bool>>,
    /// Hung up when the front is gone, and with it everything.
    over: Receiver<()>,
}

impl RemoteAttempt {
    /// Waits until the sandbox stands.
    pub(super) fn begin(line: Line, events: Events) -> Result<Self, StartError> {
        let line = Arc::new(line);
        let (prepared, is_prepared) = channel();
        let (released, is_released) = channel();
        let (still, stands_still) = channel();
        let (on_drop, over) = channel::<()>();
        let heard = Arc::clone(&line);
        let listen = move || {
            Listener { prepared, released, still, events }.listen(&heard);
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

    /// What cannot be said to a front that is gone needs not be: its end is told.
    fn say(&self, said: &Said) {
        let _ = self.line.send(said);
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
    /// Until the front is gone. Where it told no end, the drop of `events` does.
    fn listen(self, line: &Line) {
        while let Ok(Some(told)) = line.receive() {
            match told {
                Told::Event(event) => self.events.tell(event),
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
        // The front ends its sandbox, and then itself.
        self.line.fall_silent();
        if self.over.recv_timeout(SANDBOX_ENDS_WITHIN + FRONT_ENDS_WITHIN) == Err(RecvTimeoutError::Timeout) {
            self.line.hang_up();
        }
    }
}

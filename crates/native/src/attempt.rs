//! An attempt as the engine holds it: released, signalled, answered, ended.

use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stockade_engine::{Attempt, HeldAnswer, HoldId, StartError, WeakEvents};
use stockade_model::{Denial, EnforcementReport};
use stockade_sys::ready::readable_before;

use crate::backend::unlaunched;
use crate::broker::Answers;
use crate::launch::Launched;
use crate::limits::{Group, Watch};

/// Time-out for the end of a killed sandbox. A process that waits for a filesystem that does not
/// answer cannot be killed.
const SANDBOX_ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Time-out for the command's exec. The broker never holds that call, but a filesystem that does
/// not answer may.
const EXEC_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct NativeAttempt {
    pub(crate) enforced: EnforcementReport,
    pub(crate) launched: Arc<Mutex<Launched>>,
    pub(crate) answers: Answers,
    /// Control group of its processes, if no namespace that ends with the attempt holds them.
    pub(crate) group: Option<Arc<Group>>,
    pub(crate) watch: Arc<Mutex<Watch>>,
    pub(crate) events: WeakEvents,
    /// Disconnects when the keeper has ended and nothing of the attempt is left for it to end.
    pub(crate) keeper: Option<Receiver<()>>,
}

impl Attempt for NativeAttempt {
    fn enforced(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release(&mut self) -> Result<(), StartError> {
        lock(&self.launched).release().map_err(unlaunched)
    }

    fn await_exec(&self) -> bool {
        // Without the lock, because the keeper needs it meanwhile.
        let Ok(gate) = lock(&self.launched).duplicate_gate() else { return true };
        let _ = readable_before(&[gate.as_fd()], Instant::now() + EXEC_TIMEOUT);
        !lock(&self.launched).failed_to_execute()
    }

    fn signal(&self, signal: i32) {
        lock(&self.launched).signal(signal);
        lock(&self.watch).go_on();
    }

    fn kill(&self) {
        let launched = lock(&self.launched);
        launched.kill();
        // Processes that a command of a persistent sandbox left behind are no longer part of it.
        if !launched.has_ended() {
            self.group.iter().for_each(|group| group.kill());
        }
        drop(launched);
        lock(&self.watch).go_on();
    }

    fn stand_still(&self, limit: &Denial) -> bool {
        let asked = lock(&self.watch).stand_still(limit);
        asked.map(|asked| self.events.tell(asked)).is_some()
    }

    fn answer(&self, hold: HoldId, answer: HeldAnswer) {
        if !Watch::is_about_limit(hold) {
            return self.answers.answer(hold, answer);
        }
        let ends = lock(&self.watch).answer(hold, &answer);
        ends.into_iter().for_each(|breach| self.events.tell(breach));
    }
}

impl Drop for NativeAttempt {
    fn drop(&mut self) {
        self.kill();
        let Some(over) = self.keeper.take() else { return };
        // The sender is dropped with the keeper, or with an attempt that was never kept.
        if over.recv_timeout(SANDBOX_ENDS_WITHIN) == Err(RecvTimeoutError::Timeout) {
            lock(&self.launched).abandon();
        }
    }
}

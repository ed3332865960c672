//! An attempt as the engine holds it: released, signalled, answered, ended.

use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stockade_backend_api::{Attempt, AttemptEvent, HeldAnswer, HoldId, StartError, WeakEventSender};
use stockade_launch::LaunchedSandbox;
use stockade_limits::{ControlGroup, FIRST_LIMIT_QUESTION, LimitEvent, LimitWatch};
use stockade_model::{Denial, EnforcementReport};
use stockade_sys::ready::readable_before;

use crate::broker::AnswerSender;
use crate::errors::map_launch_error;
use crate::locks::lock_ignoring_poison;

/// Time-out for the end of a killed sandbox. A process that waits for a filesystem that does not
/// answer cannot be killed.
const SANDBOX_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Time-out for the command's exec. The broker never holds that call, but a filesystem that does
/// not answer may.
const EXEC_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the event of the attempt for an exceeded limit.
pub(crate) fn convert_limit_event(event: LimitEvent) -> AttemptEvent {
    match event {
        LimitEvent::Breached(denial) => AttemptEvent::Breached(denial),
        LimitEvent::Asked { question, denial } => AttemptEvent::Held { id: HoldId(question), denial },
    }
}

pub(crate) struct NativeAttempt {
    pub(crate) enforced: EnforcementReport,
    pub(crate) launched: Arc<Mutex<LaunchedSandbox>>,
    pub(crate) answers: AnswerSender,
    /// Control group of its processes, if no namespace that ends with the attempt holds them.
    pub(crate) group: Option<Arc<ControlGroup>>,
    pub(crate) watch: Arc<Mutex<LimitWatch>>,
    pub(crate) events: WeakEventSender,
    /// Disconnects when the monitor has ended and nothing of the attempt is left for it to end.
    pub(crate) monitor: Option<Receiver<()>>,
}

impl Attempt for NativeAttempt {
    fn enforcement_report(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release_command(&mut self) -> Result<(), StartError> {
        lock_ignoring_poison(&self.launched).release_command().map_err(map_launch_error)
    }

    fn await_exec(&self) -> bool {
        // Without the lock, because the monitor needs it meanwhile.
        let Ok(gate) = lock_ignoring_poison(&self.launched).duplicate_gate() else { return true };
        let _ = readable_before(&[gate.as_fd()], Instant::now() + EXEC_TIMEOUT);
        !lock_ignoring_poison(&self.launched).failed_to_execute()
    }

    fn send_signal(&self, signal: i32) {
        lock_ignoring_poison(&self.launched).signal_command(signal);
        lock_ignoring_poison(&self.watch).go_on();
    }

    fn kill_processes(&self) {
        let launched = lock_ignoring_poison(&self.launched);
        launched.kill_sandbox();
        // Processes that a command of a persistent sandbox left behind are no longer part of it.
        if !launched.has_ended() {
            self.group.iter().for_each(|group| group.kill_processes());
        }
        drop(launched);
        lock_ignoring_poison(&self.watch).go_on();
    }

    fn stand_still(&self, limit: &Denial) -> bool {
        let limit_event = lock_ignoring_poison(&self.watch).stand_still(limit);
        limit_event.map(|limit_event| self.events.send_event(convert_limit_event(limit_event))).is_some()
    }

    fn answer_call(&self, hold: HoldId, answer: HeldAnswer) {
        if hold.0 < FIRST_LIMIT_QUESTION {
            return self.answers.answer_held_call(hold, answer);
        }
        let granted = if let HeldAnswer::Granted(grants) = &answer { Some(&grants[..]) } else { None };
        let ends = lock_ignoring_poison(&self.watch).apply_answer(hold.0, granted);
        ends.into_iter().for_each(|breach| self.events.send_event(convert_limit_event(breach)));
    }
}

impl Drop for NativeAttempt {
    fn drop(&mut self) {
        self.kill_processes();
        let Some(over) = self.monitor.take() else { return };
        // The sender is dropped with the monitor, or with an attempt that was never kept.
        if over.recv_timeout(SANDBOX_END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            lock_ignoring_poison(&self.launched).abandon_command();
        }
    }
}

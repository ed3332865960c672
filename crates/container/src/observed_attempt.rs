//! Attempt of another backend with a report of its own, whose answers to held calls are observed.

use stockade_backend_api::{Attempt, HeldAnswer, HoldId, StartError};
use stockade_model::{Denial, EnforcementReport};

/// Called with each answer before the attempt gets it.
type AnswerObserver = Box<dyn Fn(HoldId, &HeldAnswer) + Send + Sync>;

pub(crate) struct ObservedAttempt {
    pub(crate) attempt: Box<dyn Attempt>,
    pub(crate) enforced: EnforcementReport,
    pub(crate) on_answer: AnswerObserver,
}

impl Attempt for ObservedAttempt {
    fn enforcement_report(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release_command(&mut self) -> Result<(), StartError> {
        self.attempt.release_command()
    }

    fn send_signal(&self, signal: i32) {
        self.attempt.send_signal(signal);
    }

    fn kill_processes(&self) {
        self.attempt.kill_processes();
    }

    fn stand_still(&self, limit: &Denial) -> bool {
        self.attempt.stand_still(limit)
    }

    fn answer_call(&self, hold: HoldId, answer: HeldAnswer) {
        (self.on_answer)(hold, &answer);
        self.attempt.answer_call(hold, answer);
    }
}

//! Who answers questions, seen from the engine.

use stockade_model::{Answer, Question};

/// Someone or something that answers questions.
pub trait Approver: Send {
    /// Its name, as it stands in the record: `terminal`, `static` ...
    fn name(&self) -> String;

    /// Whether it can be asked now; `false` where there is no terminal.
    fn available(&self) -> bool;

    /// Puts the question and waits for the answer, no longer than the
    /// question's time-out. Silence is [`Answer::TimedOut`].
    fn ask(&mut self, question: &Question) -> Answer;
}

/// Nobody: every question is answered with silence.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Approver for Nobody {
    fn name(&self) -> String {
        "nobody".to_owned()
    }

    fn available(&self) -> bool {
        false
    }

    fn ask(&mut self, _question: &Question) -> Answer {
        Answer::TimedOut
    }
}

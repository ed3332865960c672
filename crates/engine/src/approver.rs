//! Who answers questions, seen from the engine.

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stockade_model::{Answer, Question};

use crate::HoldId;

/// Someone or something that answers questions.
pub trait Approver: Send {
    /// Its name, as it stands in the record: `terminal`, `static` ...
    fn name(&self) -> String;

    /// Whether it can be asked now; `false` where there is no terminal.
    fn available(&self) -> bool;

    /// Whether one that is not available may be so later, while a command runs:
    /// calls that lack a power are then told, and refused at once as long as
    /// nobody is there.
    fn may_come(&self) -> bool {
        false
    }

    /// Puts the question and waits for the answer, no longer than the
    /// question's time-out. Silence is [`Answer::TimedOut`]. Where `waiting` is
    /// withdrawn it returns within a second; what it returns counts for nothing
    /// then.
    fn ask(&mut self, question: &Question, waiting: &Waiting) -> Answer;
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

    fn ask(&mut self, _question: &Question, _waiting: &Waiting) -> Answer {
        Answer::TimedOut
    }
}

/// What an approver may know of a question while it has it: whether anybody
/// still waits for the answer, and what else is held. Copies share one state.
#[derive(Clone, Debug)]
pub struct Waiting(Arc<State>);

#[derive(Debug)]
struct State {
    withdrawn: AtomicBool,
    /// Wakes who sleeps in poll(2); absent where descriptors have run out.
    wake: Option<(PipeReader, PipeWriter)>,
    held: HeldCalls,
}

impl Waiting {
    /// A question that waits, beside these held calls.
    pub fn new(held: HeldCalls) -> Self {
        Self(Arc::new(State { withdrawn: AtomicBool::new(false), wake: pipe().ok(), held }))
    }

    /// Takes the question back. Does not block.
    pub fn withdraw(&self) {
        if !self.0.withdrawn.swap(true, Ordering::AcqRel)
            && let Some((_, writer)) = &self.0.wake
        {
            let mut writer: &PipeWriter = writer;
            // One byte always has room in an empty pipe.
            let _ = writer.write(&[1]);
        }
    }

    /// Whether it was taken back: nobody waits for the answer.
    pub fn is_withdrawn(&self) -> bool {
        self.0.withdrawn.load(Ordering::Acquire)
    }

    /// Becomes readable when the question is taken back. Where there is none,
    /// [`is_withdrawn`](Self::is_withdrawn) has to be asked now and then.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.wake.as_ref().map(|(reader, _)| reader.as_fd())
    }

    /// The calls that are held now, those of this question among them.
    pub fn held(&self) -> &HeldCalls {
        &self.0.held
    }
}

/// The held calls of a request, as they come and go. Copies share one state.
#[derive(Clone, Debug, Default)]
pub struct HeldCalls(Arc<Mutex<BTreeMap<HoldId, Instant>>>);

impl HeldCalls {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// How long the oldest has been held.
    pub fn longest(&self) -> Option<Duration> {
        self.lock().values().min().map(Instant::elapsed)
    }

    pub(crate) fn add(&self, id: HoldId) {
        self.lock().insert(id, Instant::now());
    }

    pub(crate) fn remove(&self, id: HoldId) {
        self.lock().remove(&id);
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<HoldId, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_withdrawal_is_seen_and_felt() {
        let waiting = Waiting::new(HeldCalls::default());
        assert!(!waiting.is_withdrawn());
        let copy = waiting.clone();
        let sleeper = std::thread::spawn(move || {
            let mut byte = [0];
            let (reader, _) = copy.0.wake.as_ref().unwrap();
            let mut reader: &PipeReader = reader;
            reader.read_exact(&mut byte).unwrap();
            copy.is_withdrawn()
        });
        waiting.withdraw();
        waiting.withdraw();
        assert!(sleeper.join().unwrap());
    }

    #[test]
    fn held_calls_are_counted() {
        let held = HeldCalls::default();
        assert_eq!((held.count(), held.longest()), (0, None));
        held.add(HoldId(2));
        held.add(HoldId(1));
        held.remove(HoldId(2));
        assert_eq!(held.count(), 1);
        assert!(held.longest().is_some());
    }
}

//! Interface between the engine and the approver, which answers questions.

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stockade_model::{ApprovalAnswer, ApprovalQuestion};

use crate::HoldId;

/// Port for the person or program that answers questions.
pub trait Approver: Send {
    /// Returns the approver's name as the audit log records it: `terminal`, `static` ...
    fn name(&self) -> String;

    /// Returns whether the approver can be asked now; `false` if there is no terminal.
    fn is_available(&self) -> bool;

    /// Returns whether an unavailable approver may become available while a command runs. Held
    /// calls are then reported, and refused at once as long as no approver is available.
    fn may_come(&self) -> bool {
        false
    }

    /// Puts the question and waits for the answer, at most for the question's time-out. No answer
    /// in time is [`ApprovalAnswer::TimedOut`]. If `waiting` is withdrawn, this returns within a second and
    /// its result is ignored.
    fn ask_question(&mut self, question: &ApprovalQuestion, waiting: &PendingQuestion) -> ApprovalAnswer;
}

/// Approver that answers no question: each one times out.
#[derive(Clone, Copy, Debug, Default)]
pub struct AbsentApprover;

impl Approver for AbsentApprover {
    fn name(&self) -> String {
        "nobody".to_owned()
    }

    fn is_available(&self) -> bool {
        false
    }

    fn ask_question(&mut self, _question: &ApprovalQuestion, _waiting: &PendingQuestion) -> ApprovalAnswer {
        ApprovalAnswer::TimedOut
    }
}

/// State of a question that the approver has: whether the question was withdrawn, and which other
/// calls are held. Copies share one state.
#[derive(Clone, Debug)]
pub struct PendingQuestion(Arc<PendingQuestionState>);

#[derive(Debug)]
struct PendingQuestionState {
    withdrawn: AtomicBool,
    /// Wakes a thread that sleeps in poll(2). Absent if no descriptors were available.
    wake: Option<(PipeReader, PipeWriter)>,
    held: HeldCalls,
}

impl PendingQuestion {
    /// Creates the state of a pending question, with the calls held at that time.
    pub fn new(held: HeldCalls) -> Self {
        Self(Arc::new(PendingQuestionState { withdrawn: AtomicBool::new(false), wake: pipe().ok(), held }))
    }

    /// Withdraws the question. Does not block.
    pub fn withdraw(&self) {
        if !self.0.withdrawn.swap(true, Ordering::AcqRel)
            && let Some((_, writer)) = &self.0.wake
        {
            let mut writer: &PipeWriter = writer;
            // One byte always has room in an empty pipe.
            let _ = writer.write(&[1]);
        }
    }

    /// Returns whether the question was withdrawn, so that the answer is no longer needed.
    pub fn is_withdrawn(&self) -> bool {
        self.0.withdrawn.load(Ordering::Acquire)
    }

    /// Returns a descriptor that becomes readable when the question is withdrawn. If absent, poll
    /// [`is_withdrawn`](Self::is_withdrawn) instead.
    pub fn withdrawal_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.wake.as_ref().map(|(reader, _)| reader.as_fd())
    }

    /// Returns the calls held now, including the calls of this question.
    pub fn held_calls(&self) -> &HeldCalls {
        &self.0.held
    }
}

/// Calls of a request that are held now. Copies share one state.
#[derive(Clone, Debug, Default)]
pub struct HeldCalls(Arc<Mutex<BTreeMap<HoldId, Instant>>>);

impl HeldCalls {
    /// Returns the number of held calls.
    pub fn count(&self) -> usize {
        self.lock_calls().len()
    }

    /// Returns how long the oldest call has been held.
    pub fn longest_hold(&self) -> Option<Duration> {
        self.lock_calls().values().min().map(Instant::elapsed)
    }

    /// Adds a call that is held from now on.
    pub fn add_call(&self, id: HoldId) {
        self.lock_calls().insert(id, Instant::now());
    }

    /// Removes a call that is no longer held.
    pub fn remove(&self, id: HoldId) {
        self.lock_calls().remove(&id);
    }

    /// Removes all calls.
    pub fn clear(&self) {
        self.lock_calls().clear();
    }

    fn lock_calls(&self) -> MutexGuard<'_, BTreeMap<HoldId, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_withdrawal_is_seen_and_felt() {
        let waiting = PendingQuestion::new(HeldCalls::default());
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
        assert_eq!((held.count(), held.longest_hold()), (0, None));
        held.add_call(HoldId(2));
        held.add_call(HoldId(1));
        held.remove(HoldId(2));
        assert_eq!(held.count(), 1);
        assert!(held.longest_hold().is_some());
    }
}

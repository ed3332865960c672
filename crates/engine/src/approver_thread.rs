//! Thread that talks to the approver. Questions are queued for it in order. The request continues
//! meanwhile, so that a slow answer delays nothing else.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use stockade_backend_api::{Approver, HeldCalls, PendingQuestion};
use stockade_model::{ApprovalAnswer, ApprovalQuestion, Digest};
use tracing::{Span, info, info_span, warn};

use crate::core::CoreInput;

/// Time-out for an approver to leave a withdrawn question, for example to restore a terminal.
pub(crate) const WITHDRAWAL_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Sends the questions of one request to the approver.
pub(crate) struct QuestionSender {
    approver: Arc<Mutex<dyn Approver>>,
    held: HeldCalls,
    answered: Arc<dyn Fn(CoreInput) + Send + Sync>,
    /// Channel to the thread, once the thread runs.
    line: Option<Sender<(Box<ApprovalQuestion>, PendingQuestion)>>,
    /// The question that the approver has now.
    current: Option<CurrentQuestion>,
    /// Questions that wait for the approver.
    queue: VecDeque<Box<ApprovalQuestion>>,
}

struct CurrentQuestion {
    digest: Digest,
    waiting: PendingQuestion,
    withdrawn: Option<Instant>,
}

impl QuestionSender {
    /// Creates an asker. The thread calls `answered` once for every question that reached the
    /// approver.
    pub(crate) fn new(
        approver: Arc<Mutex<dyn Approver>>,
        held: HeldCalls,
        answered: impl Fn(CoreInput) + Send + Sync + 'static,
    ) -> Self {
        Self { approver, held, answered: Arc::new(answered), line: None, current: None, queue: VecDeque::new() }
    }

    /// Returns whether the approver can be asked now. An approver that handles a question of this
    /// request is available. An approver that does not leave a withdrawn question, or that another
    /// request uses, is not available.
    pub(crate) fn is_available(&self) -> bool {
        if let Some(current) = &self.current {
            return current.withdrawn.is_none_or(|since| since.elapsed() <= WITHDRAWAL_TIMEOUT);
        }
        self.is_free_and(|approver| approver.is_available())
    }

    /// Returns whether the approver may become available later; false if another request uses it.
    pub(crate) fn may_come(&self) -> bool {
        self.is_free_and(|approver| approver.may_come())
    }

    /// Returns the result of a check of the approver; false if another request uses it.
    fn is_free_and(&self, check: impl Fn(&dyn Approver) -> bool) -> bool {
        match self.approver.try_lock() {
            Ok(approver) => check(&*approver),
            Err(TryLockError::Poisoned(approver)) => check(&*approver.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Queues a question.
    pub(crate) fn queue_question(&mut self, question: Box<ApprovalQuestion>) {
        self.queue.push_back(question);
    }

    /// Gives the approver the next question if it has none. Called after all effects of the last
    /// answer are applied, so that the list of other held calls is current. If no thread can be
    /// started, no question is put, and the core's deadline refuses it.
    pub(crate) fn go_on(&mut self) {
        if self.current.is_some() || self.queue.is_empty() || !self.has_thread() {
            return;
        }
        let (Some(line), Some(question)) = (&self.line, self.queue.pop_front()) else { return };
        let waiting = PendingQuestion::new(self.held.clone());
        let current = CurrentQuestion { digest: question.digest.clone(), waiting: waiting.clone(), withdrawn: None };
        if line.send((question, waiting)).is_ok() {
            self.current = Some(current);
        }
    }

    fn has_thread(&mut self) -> bool {
        if self.line.is_none() {
            let (sender, receiver) = channel();
            let (approver, answered) = (Arc::clone(&self.approver), Arc::clone(&self.answered));
            let span = Span::current();
            let serve = move || span.in_scope(|| serve_questions(&approver, &receiver, &*answered));
            match thread::Builder::new().name("stockade-ask".to_owned()).spawn(serve) {
                Ok(_) => self.line = Some(sender),
                Err(error) => warn!(%error, "cannot start the thread that asks the approver"),
            }
        }
        self.line.is_some()
    }

    /// Withdraws a question.
    pub(crate) fn withdraw_question(&mut self, digest: &Digest) {
        self.queue.retain(|question| question.digest != *digest);
        if let Some(current) = self.current.as_mut().filter(|current| current.digest == *digest) {
            current.withdraw();
        }
    }

    /// Withdraws every question.
    pub(crate) fn withdraw_all(&mut self) {
        self.queue.clear();
        if let Some(current) = &mut self.current {
            current.withdraw();
        }
    }

    /// Records that the approver is done with a question.
    pub(crate) fn is_through_with(&mut self, digest: &Digest) {
        self.current.take_if(|current| current.digest == *digest);
    }

    /// Returns whether the approver has a question.
    pub(crate) fn is_busy(&self) -> bool {
        self.current.is_some()
    }
}

impl CurrentQuestion {
    fn withdraw(&mut self) {
        self.waiting.withdraw();
        self.withdrawn.get_or_insert_with(Instant::now);
    }
}

fn serve_questions(
    approver: &Mutex<dyn Approver>,
    line: &Receiver<(Box<ApprovalQuestion>, PendingQuestion)>,
    answered: &(dyn Fn(CoreInput) + Send + Sync),
) {
    while let Ok((question, waiting)) = line.recv() {
        let _span = info_span!("ask", digest = %question.digest).entered();
        let mut approver = approver.lock().unwrap_or_else(PoisonError::into_inner);
        let by = approver.name();
        // Another request may have used the approver until now.
        let answer =
            if waiting.is_withdrawn() { ApprovalAnswer::TimedOut } else { approver.ask_question(&question, &waiting) };
        drop(approver);
        info!(?answer, by, withdrawn = waiting.is_withdrawn(), "answered");
        answered(CoreInput::Answered { digest: question.digest, answer, by });
    }
}

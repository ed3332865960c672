//! The thread that has an approver's ear. Questions wait for it in order; the
//! request goes on meanwhile, so a person may think and nothing else waits.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use stockade_model::{Answer, Digest, Question};
use tracing::{Span, info, info_span, warn};

use crate::Approver;
use crate::approver::{HeldCalls, Waiting};

/// How long an approver may take to leave a question that was taken back, for
/// instance to give a terminal back.
pub(crate) const LEAVE: Duration = Duration::from_millis(1_500);

/// Asks on behalf of one request.
pub(crate) struct Asker {
    approver: Arc<Mutex<dyn Approver>>,
    held: HeldCalls,
    answered: Arc<dyn Fn(Given) + Send + Sync>,
    /// To the thread, once there is one.
    line: Option<Sender<(Box<Question>, Waiting)>>,
    /// The question that the approver has.
    current: Option<Current>,
    /// Those that wait for their turn.
    queue: VecDeque<Box<Question>>,
}

/// An answer, on its way back.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) digest: Digest,
    pub(crate) answer: Answer,
    pub(crate) by: String,
}

struct Current {
    digest: Digest,
    waiting: Waiting,
    withdrawn: Option<Instant>,
}

impl Asker {
    /// `answered` is called on the thread, once for every question that reached
    /// the approver.
    pub(crate) fn new(
        approver: Arc<Mutex<dyn Approver>>,
        held: HeldCalls,
        answered: impl Fn(Given) + Send + Sync + 'static,
    ) -> Self {
        Self { approver, held, answered: Arc::new(answered), line: None, current: None, queue: VecDeque::new() }
    }

    /// Whether somebody could be asked now. An approver that is busy with our
    /// own questions is there; one that does not leave a question that was taken
    /// back, or that is busy with another request's, is not.
    pub(crate) fn is_available(&self) -> bool {
        if let Some(current) = &self.current {
            return current.withdrawn.is_none_or(|since| since.elapsed() <= LEAVE);
        }
        match self.approver.try_lock() {
            Ok(approver) => approver.available(),
            Err(TryLockError::Poisoned(approver)) => approver.into_inner().available(),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Whether somebody could be asked later; not where another request has the
    /// approver.
    pub(crate) fn may_come(&self) -> bool {
        match self.approver.try_lock() {
            Ok(approver) => approver.may_come(),
            Err(TryLockError::Poisoned(approver)) => approver.into_inner().may_come(),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Lines a question up.
    pub(crate) fn ask(&mut self, question: Box<Question>) {
        self.queue.push_back(question);
    }

    /// Gives the approver the next question, if it has none. Called when all that
    /// came of the last answer is done, so that what is told of other held calls
    /// is true. Without a thread nobody is asked, and the core's deadline says no.
    pub(crate) fn go_on(&mut self) {
        if self.current.is_some() || self.queue.is_empty() || !self.has_thread() {
            return;
        }
        let (Some(line), Some(question)) = (&self.line, self.queue.pop_front()) else { return };
        let waiting = Waiting::new(self.held.clone());
        let current = Current { digest: question.digest.clone(), waiting: waiting.clone(), withdrawn: None };
        if line.send((question, waiting)).is_ok() {
            self.current = Some(current);
        }
    }

    fn has_thread(&mut self) -> bool {
        if self.line.is_none() {
            let (sender, receiver) = channel();
            let (approver, answered) = (Arc::clone(&self.approver), Arc::clone(&self.answered));
            let span = Span::current();
            let serve = move || span.in_scope(|| serve(&approver, &receiver, &*answered));
            match thread::Builder::new().name("stockade-ask".to_owned()).spawn(serve) {
                Ok(_) => self.line = Some(sender),
                Err(error) => warn!(%error, "no thread to ask on"),
            }
        }
        self.line.is_some()
    }

    /// Takes a question back.
    pub(crate) fn withdraw(&mut self, digest: &Digest) {
        self.queue.retain(|question| question.digest != *digest);
        if let Some(current) = self.current.as_mut().filter(|current| current.digest == *digest) {
            current.withdraw();
        }
    }

    /// Takes every question back.
    pub(crate) fn withdraw_all(&mut self) {
        self.queue.clear();
        if let Some(current) = &mut self.current {
            current.withdraw();
        }
    }

    /// Notes that the approver is through with a question.
    pub(crate) fn is_through_with(&mut self, digest: &Digest) {
        self.current.take_if(|current| current.digest == *digest);
    }

    /// Whether the approver has a question.
    pub(crate) fn is_busy(&self) -> bool {
        self.current.is_some()
    }
}

impl Current {
    fn withdraw(&mut self) {
        self.waiting.withdraw();
        self.withdrawn.get_or_insert_with(Instant::now);
    }
}

fn serve(
    approver: &Mutex<dyn Approver>,
    line: &Receiver<(Box<Question>, Waiting)>,
    answered: &(dyn Fn(Given) + Send + Sync),
) {
    while let Ok((question, waiting)) = line.recv() {
        let _span = info_span!("ask", digest = %question.digest).entered();
        let mut approver = approver.lock().unwrap_or_else(PoisonError::into_inner);
        let by = approver.name();
        // Another request may have had the approver until now.
        let answer = if waiting.is_withdrawn() { Answer::TimedOut } else { approver.ask(&question, &waiting) };
        drop(approver);
        info!(?answer, by, withdrawn = waiting.is_withdrawn(), "answered");
        answered(Given { digest: question.digest, answer, by });
    }
}

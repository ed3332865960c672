//! The clients attached to a run, and the approver that they form together. A question is sent to
//! each client that can answer; the first answer counts. Without such a client it is refused, as in
//! a run without a terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stockade_engine::{Approver, Waiting};
use stockade_model::{Answer, Question, RawText};

use super::wire::{Line, Told};

/// Most clients attached at the same time.
pub const CLIENTS: usize = 16;
/// Interval between two checks for a withdrawn question.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// The attached clients that can answer.
#[derive(Debug, Default)]
pub struct Clients {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Last number assigned to a client or a question.
    last: u64,
    /// Clients that can answer.
    able: BTreeMap<u64, Arc<Line>>,
    open: Option<Open>,
}

/// The open question.
#[derive(Debug)]
struct Open {
    number: u64,
    told: Told,
    answer: Option<Answer>,
    /// Clients that cannot answer this question.
    silent: BTreeSet<u64>,
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn lines(&self) -> Vec<Arc<Line>> {
        self.able.values().cloned().collect()
    }

    /// Returns the result of the question; `None` while it is open.
    fn result(&self) -> Option<Answer> {
        let open = self.open.as_ref()?;
        let nobody = self.able.keys().all(|client| open.silent.contains(client));
        open.answer.or(nobody.then_some(Answer::TimedOut))
    }
}

impl Clients {
    /// Adds a client that can answer, and sends it the open question. Returns the number to leave
    /// with.
    pub fn join(&self, line: &Arc<Line>) -> u64 {
        let mut state = self.lock();
        let client = state.next();
        state.able.insert(client, Arc::clone(line));
        let standing = state.open.as_ref().map(|open| open.told.clone());
        drop(state);
        if let Some(told) = standing {
            send(line, &told);
        }
        client
    }

    /// Removes a client, which answers no more.
    pub fn leave(&self, client: u64) {
        self.lock().able.remove(&client);
        self.changed.notify_all();
    }

    /// Handles the answer of a client. An answer to a closed question is ignored. A client without
    /// a user at its terminal leaves the question to the others.
    pub fn answer(&self, client: u64, number: u64, answer: Answer) {
        let mut state = self.lock();
        let able = state.able.contains_key(&client);
        if let Some(open) = state.open.as_mut().filter(|open| able && open.number == number) {
            match answer {
                Answer::TimedOut => drop(open.silent.insert(client)),
                answer => drop(open.answer.get_or_insert(answer)),
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    fn is_anybody(&self) -> bool {
        !self.lock().able.is_empty()
    }

    fn ask(&self, question: &Question, text: &RawText, waiting: &Waiting) -> Answer {
        let deadline = Instant::now() + Duration::from_millis(question.timeout_ms);
        let is_over = || waiting.is_withdrawn() || Instant::now() >= deadline;
        let mut state = self.lock();
        // Another question is open: that of an input line, or of the run itself.
        while state.open.is_some() {
            if is_over() {
                return Answer::TimedOut;
            }
            state = self.await_change(state);
        }
        let number = state.next();
        let told = Told::Question { number, question: Box::new(question.clone()), text: text.clone() };
        state.open = Some(Open { number, told: told.clone(), answer: None, silent: BTreeSet::new() });
        let lines = state.lines();
        drop(state);
        lines.iter().for_each(|line| send(line, &told));
        let mut state = self.lock();
        let answer = loop {
            match state.result() {
                Some(answer) => break answer,
                None if is_over() => break Answer::TimedOut,
                None => state = self.await_change(state),
            }
        };
        state.open = None;
        let lines = state.lines();
        drop(state);
        self.changed.notify_all();
        lines.iter().for_each(|line| send(line, &Told::Over(number)));
        answer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn await_change<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, LOOK_AROUND).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Sends a message. A client that does not take it is disconnected, and so leaves.
fn send(line: &Line, told: &Told) {
    if let Err(error) = line.send(told) {
        tracing::info!(%error, "a client was broken off");
    }
}

/// The attached clients, as the approver of one request.
#[derive(Debug)]
pub struct AttachedApprover {
    clients: Arc<Clients>,
    text: RawText,
}

impl AttachedApprover {
    /// Creates the approver. The spans of findings refer to `text`.
    pub fn new(clients: Arc<Clients>, text: RawText) -> Self {
        Self { clients, text }
    }
}

impl Approver for AttachedApprover {
    fn name(&self) -> String {
        "attached terminal".to_owned()
    }

    fn available(&self) -> bool {
        self.clients.is_anybody()
    }

    fn may_come(&self) -> bool {
        true
    }

    fn ask(&mut self, question: &Question, waiting: &Waiting) -> Answer {
        self.clients.ask(question, &self.text, waiting)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use stockade_engine::HeldCalls;
    use stockade_model::{QuestionKind, Scope};

    use super::super::wire::TOLD_BYTES;
    use super::*;
    use crate::render::question::tests::ask;

    const YES: Answer = Answer::Approved(Scope::Once);

    struct Meeting {
        clients: Arc<Clients>,
        waiting: Waiting,
    }

    impl Meeting {
        fn new() -> Self {
            Self { clients: Arc::default(), waiting: Waiting::new(HeldCalls::default()) }
        }

        /// Attaches a client: returns its number and its end of the connection.
        fn attach(&self) -> (u64, Line) {
            let (one, other) = UnixStream::pair().unwrap();
            let client = self.clients.join(&Arc::new(Line::over(one).unwrap()));
            (client, Line::over(other).unwrap())
        }

        fn ask(&self, timeout_ms: u64) -> thread::JoinHandle<Answer> {
            let mut approver = AttachedApprover::new(Arc::clone(&self.clients), "text".into());
            let waiting = self.waiting.clone();
            let mut question = ask(QuestionKind::Run { reasons: Vec::new() });
            question.timeout_ms = timeout_ms;
            thread::spawn(move || approver.ask(&question, &waiting))
        }
    }

    fn told(line: &Line) -> Told {
        line.receive(TOLD_BYTES).unwrap().unwrap()
    }

    #[track_caller]
    fn number(line: &Line) -> u64 {
        match told(line) {
            Told::Question { number, text, .. } if text == "text".into() => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_answer_counts_and_the_others_are_told() {
        let meeting = Meeting::new();
        let ((one, line_one), (two, line_two)) = (meeting.attach(), meeting.attach());
        let asked = meeting.ask(60_000);
        let number = number(&line_one);
        assert!(matches!(told(&line_two), Told::Question { number: same, .. } if same == number));
        // An answer to another question, or of a client that is not attached, is ignored.
        meeting.clients.answer(one, number + 1, Answer::Abort);
        meeting.clients.answer(99, number, Answer::Abort);
        meeting.clients.answer(one, number, Answer::TimedOut);
        meeting.clients.answer(two, number, YES);
        assert_eq!(asked.join().unwrap(), YES);
        assert_eq!((told(&line_one), told(&line_two)), (Told::Over(number), Told::Over(number)));
    }

    #[test]
    fn nobody_left_is_silence_at_once() {
        let meeting = Meeting::new();
        let (one, line) = meeting.attach();
        let asked = meeting.ask(600_000);
        number(&line);
        meeting.clients.leave(one);
        assert_eq!(asked.join().unwrap(), Answer::TimedOut);
        assert_eq!(meeting.ask(600_000).join().unwrap(), Answer::TimedOut);
        assert!(!AttachedApprover::new(Arc::clone(&meeting.clients), "".into()).available());
    }

    #[test]
    fn who_comes_late_answers_what_stands() {
        let meeting = Meeting::new();
        let (_, first) = meeting.attach();
        let asked = meeting.ask(60_000);
        number(&first);
        let (late, line) = meeting.attach();
        meeting.clients.answer(late, number(&line), YES);
        assert_eq!(asked.join().unwrap(), YES);
    }

    #[test]
    fn what_is_taken_back_or_waits_too_long_is_silence() {
        let meeting = Meeting::new();
        let (_, line) = meeting.attach();
        assert_eq!(meeting.ask(50).join().unwrap(), Answer::TimedOut);
        let (first, _) = (number(&line), told(&line));
        let asked = meeting.ask(600_000);
        let second = number(&line);
        assert!(second > first);
        // Another question waits for its turn meanwhile.
        let other = meeting.ask(600_000);
        meeting.waiting.withdraw();
        assert_eq!((asked.join().unwrap(), other.join().unwrap()), (Answer::TimedOut, Answer::TimedOut));
    }
}

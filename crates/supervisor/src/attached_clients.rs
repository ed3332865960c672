//! The clients attached to a run, and the approver that they form together. A question is sent to
//! each client that can answer; the first answer counts. Without such a client it is refused, as in
//! a run without a terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use stockade_backend_api::{Approver, PendingQuestion};
use stockade_model::{ApprovalAnswer, ApprovalQuestion, RawText};

use crate::channel::Channel;
use crate::message::{ClientMessage, InputPiece, InputResult, MAX_CLIENT_MESSAGE_BYTES, RunMessage, TerminalSize};

/// Most clients attached at the same time.
const MAX_CLIENTS: usize = 16;
/// Interval between two checks for a withdrawn question.
const WITHDRAWAL_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The attached clients.
#[derive(Debug, Default)]
pub struct ClientRegistry {
    state: Mutex<ClientRegistryState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ClientRegistryState {
    /// Number of all clients.
    attached: usize,
    /// Last number assigned to a client or a question.
    last: u64,
    /// Clients that can answer.
    able: BTreeMap<u64, Arc<Channel>>,
    open: Option<ClientQuestion>,
}

/// The open question.
#[derive(Debug)]
struct ClientQuestion {
    number: u64,
    next_message: RunMessage,
    answer: Option<ApprovalAnswer>,
    /// Clients that cannot answer this question.
    silent: BTreeSet<u64>,
}

impl ClientRegistryState {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn list_channels(&self) -> Vec<Arc<Channel>> {
        self.able.values().cloned().collect()
    }

    /// Returns the result of the question; `None` while it is open.
    fn resolve_question(&self) -> Option<ApprovalAnswer> {
        let open = self.open.as_ref()?;
        let nobody = self.able.keys().all(|client| open.silent.contains(client));
        open.answer.or(nobody.then_some(ApprovalAnswer::TimedOut))
    }
}

impl ClientRegistry {
    /// Returns a slot for one more client, if there is one.
    pub fn reserve_slot(self: &Arc<Self>) -> Option<ClientSlot> {
        let mut state = self.lock_state();
        if state.attached == MAX_CLIENTS {
            return None;
        }
        state.attached += 1;
        Some(ClientSlot(Arc::clone(self)))
    }

    /// Adds a client that can answer, and sends it the open question. Returns the number to leave
    /// with.
    fn add_client(&self, channel: &Arc<Channel>) -> u64 {
        let mut state = self.lock_state();
        let client = state.next();
        state.able.insert(client, Arc::clone(channel));
        let open_message = state.open.as_ref().map(|open| open.next_message.clone());
        drop(state);
        if let Some(next_message) = open_message {
            send_or_disconnect(channel, &next_message);
        }
        client
    }

    /// Removes a client, which answers no more.
    fn remove_client(&self, client: u64) {
        self.lock_state().able.remove(&client);
        self.changed.notify_all();
    }

    /// Handles the answer of a client. An answer to a closed question is ignored. A client without
    /// a user at its terminal leaves the question to the others.
    fn handle_answer(&self, client: u64, number: u64, answer: ApprovalAnswer) {
        let mut state = self.lock_state();
        let able = state.able.contains_key(&client);
        if let Some(open) = state.open.as_mut().filter(|open| able && open.number == number) {
            match answer {
                ApprovalAnswer::TimedOut => drop(open.silent.insert(client)),
                answer => drop(open.answer.get_or_insert(answer)),
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    fn is_anybody(&self) -> bool {
        !self.lock_state().able.is_empty()
    }

    fn ask_clients(&self, question: &ApprovalQuestion, text: &RawText, waiting: &PendingQuestion) -> ApprovalAnswer {
        let deadline = Instant::now() + Duration::from_millis(question.timeout_ms);
        let is_over = || waiting.is_withdrawn() || Instant::now() >= deadline;
        let mut state = self.lock_state();
        // Another question is open: that of an input line, or of the run itself.
        while state.open.is_some() {
            if is_over() {
                return ApprovalAnswer::TimedOut;
            }
            state = self.await_change(state);
        }
        let number = state.next();
        let next_message = RunMessage::Question { number, question: Box::new(question.clone()), text: text.clone() };
        state.open =
            Some(ClientQuestion { number, next_message: next_message.clone(), answer: None, silent: BTreeSet::new() });
        let lines = state.list_channels();
        drop(state);
        lines.iter().for_each(|line| send_or_disconnect(line, &next_message));
        let mut state = self.lock_state();
        let answer = loop {
            match state.resolve_question() {
                Some(answer) => break answer,
                None if is_over() => break ApprovalAnswer::TimedOut,
                None => state = self.await_change(state),
            }
        };
        state.open = None;
        let lines = state.list_channels();
        drop(state);
        self.changed.notify_all();
        lines.iter().for_each(|line| send_or_disconnect(line, &RunMessage::QuestionOver(number)));
        answer
    }

    fn lock_state(&self) -> MutexGuard<'_, ClientRegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn await_change<'a>(&self, state: MutexGuard<'a, ClientRegistryState>) -> MutexGuard<'a, ClientRegistryState> {
        self.changed.wait_timeout(state, WITHDRAWAL_POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Slot for one attached client.
#[derive(Debug)]
pub struct ClientSlot(Arc<ClientRegistry>);

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.0.lock_state().attached -= 1;
    }
}

impl ClientSlot {
    /// Serves a client until it disconnects; with `answers` it is asked questions too. Its input is
    /// written on a thread of its own, so that it can answer a question about that input.
    ///
    /// # Errors
    /// [`io::Error`] if no threads are left, or if the client sends malformed messages.
    pub fn serve_client(
        &self,
        channel: &Arc<Channel>,
        answers: bool,
        resize_terminal: impl Fn(TerminalSize),
        mut write_input: impl FnMut(InputPiece) -> InputResult + Send,
    ) -> io::Result<()> {
        let (pieces, work) = sync_channel(1);
        let write_pieces = move || {
            while let Ok(piece) = work.recv() {
                if channel.send(&RunMessage::Input(write_input(piece))).is_err() {
                    return;
                }
            }
        };
        thread::scope(|scope| {
            let writer = thread::Builder::new().name("stockade-input".to_owned()).spawn_scoped(scope, write_pieces)?;
            let client = answers.then(|| self.0.add_client(channel));
            let end = loop {
                match channel.receive(MAX_CLIENT_MESSAGE_BYTES) {
                    Ok(Some(ClientMessage::Answer { number, answer })) => {
                        client.inspect(|client| self.0.handle_answer(*client, number, answer));
                    }
                    Ok(Some(ClientMessage::Size(size))) => resize_terminal(size),
                    Ok(Some(ClientMessage::Input(piece))) => {
                        if pieces.try_send(piece).is_err() {
                            break Err(io::Error::other("it sends input faster than the run takes it"));
                        }
                    }
                    Ok(Some(ClientMessage::Signal(_))) => break Err(io::ErrorKind::InvalidData.into()),
                    Ok(None) => break Ok(()),
                    Err(e) => break Err(e),
                }
            };
            channel.hang_up();
            client.inspect(|client| self.0.remove_client(*client));
            drop(pieces);
            // The writer notices the end of the connection; one that panicked has stopped.
            let _ = writer.join();
            end
        })
    }
}

/// Sends a message. A client that does not take it is disconnected, and so leaves.
fn send_or_disconnect(channel: &Channel, next_message: &RunMessage) {
    if let Err(error) = channel.send(next_message) {
        tracing::info!(%error, "a client was disconnected");
    }
}

/// The attached clients, as the approver of one request.
#[derive(Debug)]
pub struct AttachedApprover {
    clients: Arc<ClientRegistry>,
    text: RawText,
}

impl AttachedApprover {
    /// Creates the approver. The spans of findings refer to `text`.
    pub fn new(clients: Arc<ClientRegistry>, text: RawText) -> Self {
        Self { clients, text }
    }
}

impl Approver for AttachedApprover {
    fn name(&self) -> String {
        "attached terminal".to_owned()
    }

    fn is_available(&self) -> bool {
        self.clients.is_anybody()
    }

    fn may_come(&self) -> bool {
        true
    }

    fn ask_question(&mut self, question: &ApprovalQuestion, waiting: &PendingQuestion) -> ApprovalAnswer {
        self.clients.ask_clients(question, &self.text, waiting)
    }
}

#[cfg(test)]
mod tests {
    use stockade_backend_api::HeldCalls;
    use stockade_model::{ApprovalScope, Assessment, Digest, QuestionKind, Tier};

    use super::*;
    use crate::message::MAX_RUN_MESSAGE_BYTES;

    const YES: ApprovalAnswer = ApprovalAnswer::Approved(ApprovalScope::Once);

    struct Meeting {
        clients: Arc<ClientRegistry>,
        waiting: PendingQuestion,
    }

    impl Meeting {
        fn new() -> Self {
            Self { clients: Arc::default(), waiting: PendingQuestion::new(HeldCalls::default()) }
        }

        /// Attaches a client: returns its number and its end of the connection.
        fn attach(&self) -> (u64, Channel) {
            let (one, other) = Channel::pair().unwrap();
            (self.clients.add_client(&Arc::new(one)), other)
        }

        fn ask(&self, timeout_ms: u64) -> thread::JoinHandle<ApprovalAnswer> {
            let mut approver = AttachedApprover::new(Arc::clone(&self.clients), "text".into());
            let waiting = self.waiting.clone();
            let question = ApprovalQuestion {
                kind: QuestionKind::Run { reasons: Vec::new() },
                command: "true".into(),
                cwd: "/".into(),
                assessment: Assessment::without_findings(Tier::Ask),
                scopes: vec![ApprovalScope::Once],
                digest: Digest::of_fields("test", []),
                timeout_ms,
                group: None,
                review: None,
            };
            thread::spawn(move || approver.ask_question(&question, &waiting))
        }
    }

    fn next_message(channel: &Channel) -> RunMessage {
        channel.receive(MAX_RUN_MESSAGE_BYTES).unwrap().unwrap()
    }

    #[track_caller]
    fn number(line: &Channel) -> u64 {
        match next_message(line) {
            RunMessage::Question { number, text, .. } if text == "text".into() => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_answer_counts_and_the_others_are_informed() {
        let meeting = Meeting::new();
        let ((one, line_one), (two, line_two)) = (meeting.attach(), meeting.attach());
        let question_thread = meeting.ask(60_000);
        let number = number(&line_one);
        assert!(matches!(next_message(&line_two), RunMessage::Question { number: same, .. } if same == number));
        // An answer to another question, or of a client that is not attached, is ignored.
        meeting.clients.handle_answer(one, number + 1, ApprovalAnswer::Abort);
        meeting.clients.handle_answer(99, number, ApprovalAnswer::Abort);
        meeting.clients.handle_answer(one, number, ApprovalAnswer::TimedOut);
        meeting.clients.handle_answer(two, number, YES);
        assert_eq!(question_thread.join().unwrap(), YES);
        assert_eq!(
            (next_message(&line_one), next_message(&line_two)),
            (RunMessage::QuestionOver(number), RunMessage::QuestionOver(number))
        );
    }

    #[test]
    fn no_remaining_client_is_silence_at_once() {
        let meeting = Meeting::new();
        let (one, line) = meeting.attach();
        let question_thread = meeting.ask(600_000);
        number(&line);
        meeting.clients.remove_client(one);
        assert_eq!(question_thread.join().unwrap(), ApprovalAnswer::TimedOut);
        assert_eq!(meeting.ask(600_000).join().unwrap(), ApprovalAnswer::TimedOut);
        assert!(!AttachedApprover::new(Arc::clone(&meeting.clients), "".into()).is_available());
    }

    #[test]
    fn a_late_client_answers_the_open_question() {
        let meeting = Meeting::new();
        let (_, first) = meeting.attach();
        let question_thread = meeting.ask(60_000);
        number(&first);
        let (late, line) = meeting.attach();
        meeting.clients.handle_answer(late, number(&line), YES);
        assert_eq!(question_thread.join().unwrap(), YES);
    }

    #[test]
    fn a_withdrawn_or_late_question_is_silence() {
        let meeting = Meeting::new();
        let (_, line) = meeting.attach();
        assert_eq!(meeting.ask(50).join().unwrap(), ApprovalAnswer::TimedOut);
        let (first, _) = (number(&line), next_message(&line));
        let question_thread = meeting.ask(600_000);
        let second = number(&line);
        assert!(second > first);
        // Another question waits for its turn meanwhile.
        let other = meeting.ask(600_000);
        meeting.waiting.withdraw();
        assert_eq!(
            (question_thread.join().unwrap(), other.join().unwrap()),
            (ApprovalAnswer::TimedOut, ApprovalAnswer::TimedOut)
        );
    }
}

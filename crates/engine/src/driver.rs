//! Driver that carries out the core's outputs for one request at a time. Rules, memory and backend
//! run on the caller's thread; the durable record and the approver have threads of their own. The
//! driver decides nothing.
//!
//! The backend's `prepare` and `release` are called on the thread that called [`RequestEngine::run_request`]. That
//! thread stays until the request is over, because a parent-death signal is bound to the thread
//! that forked (prctl(2), PR_SET_PDEATHSIG).

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use stockade_backend_api::{
    Approver, Attempt, AttemptEvent, AttemptEventSender, Backend, Clock, HeldCalls, HoldId, Reviewer, StdioMode,
};
use stockade_model::{
    ApprovalQuestion, Assessment, AttemptPlan, Decision, Denial, DeniedOperation, Event, EventKind, Grant, GroupOffer,
    PolicyVerdict, ReviewResult, RunOutcome, RunRequest,
};
use tracing::{debug, info, info_span, warn};

use crate::approver_thread::{QuestionSender, WITHDRAWAL_TIMEOUT};
use crate::core::{
    AnswerMemo, BoundPlan, CoreConfig, CoreInput, CoreOutput, HeldCall, PowerGuard, QuestionReview, RememberedAnswer,
    RequestCore, ReviewerSpec,
};
use crate::interrupts::{StopHandler, TypedInputCheck};
use crate::keys::MemoryKey;
use crate::offers;
use crate::ports::{AnswerMemory, EventRecorder, HeldRule, LookupScope, MemoryError, PolicyEngine, join_hint};
use crate::{InterruptReceiver, exit_code};

/// Continues a stopped process (signal(7)).
const SIGCONT: i32 = 18;

/// Components that a request needs. Requests share them; each has its own [`run_request`](Self::run_request).
#[derive(Clone)]
pub struct RequestEngine {
    /// Assesses text, applies rules, makes plans.
    pub rule_engine: Arc<dyn PolicyEngine>,
    /// Builds sandboxes.
    pub backend: Arc<dyn Backend>,
    /// Runs commands without a sandbox, if this is possible at all.
    pub host: Option<Arc<dyn Backend>>,
    /// Answers questions, one at a time.
    pub approver: Arc<Mutex<dyn Approver>>,
    /// Gives an opinion on each question before it is put, if present.
    pub reviewer: Option<Arc<dyn Reviewer>>,
    /// Stores events.
    pub recorder: Arc<dyn EventRecorder>,
    /// Remembers answers.
    pub memory: Arc<dyn AnswerMemory>,
    /// Returns the time.
    pub clock: Arc<dyn Clock>,
    /// User that runs Stockade, e.g. `uid 1000`; consent is bound to it.
    pub user: String,
    /// Time-out of a question in milliseconds; it then counts as refused.
    pub question_timeout_ms: u64,
}

/// Message to the driver from another thread.
#[derive(Debug)]
pub(crate) enum DriverMessage {
    Input(CoreInput),
    Attempt { number: u64, event: Box<AttemptEvent> },
}

impl RequestEngine {
    /// Runs one request from its text to its outcome. Blocks; returns when none of its processes is
    /// alive.
    pub fn run_request(&self, request: RunRequest, io: StdioMode, interrupts: InterruptReceiver) -> RunOutcome {
        let span = info_span!("request", id = %request.id);
        let _entered = span.enter();
        let mut config = CoreConfig::new(self.rule_engine.policy_digest(&request), self.user.clone());
        config.question_timeout_ms = self.question_timeout_ms;
        let rule_engine = Arc::clone(&self.rule_engine);
        config.guard = PowerGuard::new(move |power| rule_engine.is_guarded(power));
        config.reviewer = self
            .reviewer
            .as_ref()
            .map(|reviewer| ReviewerSpec { name: reviewer.name(), timeout_ms: reviewer.timeout_ms() });
        let (held, mailbox) = (HeldCalls::default(), interrupts.sender.clone());
        // The run may be over, so that the answer is not needed.
        let answered = move |answer| drop(mailbox.send(DriverMessage::Input(answer)));
        let asker = QuestionSender::new(Arc::clone(&self.approver), held.clone(), answered);
        config.approver_may_come = asker.may_come();
        let core = RequestCore::new(request.clone(), config);
        let driver = RequestDriver {
            engine: self,
            request,
            io,
            mailbox: interrupts.sender,
            queue: VecDeque::new(),
            attempt: None,
            attempts: 0,
            plan: None,
            refused: Vec::new(),
            asker,
            held,
            stand_still: interrupts.stand_still,
            has_typed: interrupts.has_typed,
        };
        let outcome = driver.run_to_outcome(core, &interrupts.receiver);
        info!(status = ?outcome.status, exit_code = exit_code(&outcome), "finished");
        outcome
    }
}

/// Request that is being carried out.
struct RequestDriver<'a> {
    engine: &'a RequestEngine,
    request: RunRequest,
    io: StdioMode,
    mailbox: Sender<DriverMessage>,
    /// Inputs that outputs produced immediately.
    queue: VecDeque<CoreInput>,
    attempt: Option<Box<dyn Attempt>>,
    /// Number of the attempt, so that events of a dropped attempt are ignored.
    attempts: u64,
    /// Plan of the attempt, to find the powers that can be granted.
    plan: Option<AttemptPlan>,
    /// Powers named by remembered refusals, as of the start of the request.
    refused: Vec<Grant>,
    asker: QuestionSender,
    /// Reported by the backend and not yet answered.
    held: HeldCalls,
    /// See [`InterruptReceiver::standing_still`].
    stand_still: Option<StopHandler>,
    has_typed: Option<TypedInputCheck>,
}

impl RequestDriver<'_> {
    fn run_to_outcome(mut self, mut core: RequestCore, inbox: &Receiver<DriverMessage>) -> RunOutcome {
        let mut outputs = core.start(self.now_ms());
        loop {
            if let Some(outcome) = self.carry_out(outputs) {
                self.attempt = None;
                self.let_approver_leave(inbox);
                return outcome;
            }
            let input = match self.queue.pop_front() {
                Some(input) => input,
                None => {
                    self.asker.go_on();
                    self.wait_for_input(inbox, core.tick_deadline())
                }
            };
            outputs = core.process_input(self.now_ms(), input);
        }
    }

    fn now_ms(&self) -> u64 {
        self.engine.clock.monotonic_ms()
    }

    /// Waits for the next message until the core's deadline. If the command has no time limit,
    /// waits as long as it runs.
    fn wait_for_input(&mut self, inbox: &Receiver<DriverMessage>, deadline_ms: Option<u64>) -> CoreInput {
        loop {
            let message = match deadline_ms {
                Some(at_ms) => {
                    let wait_ms = at_ms.saturating_sub(self.now_ms());
                    match inbox.recv_timeout(Duration::from_millis(wait_ms)) {
                        Ok(message) => message,
                        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return CoreInput::Tick,
                    }
                }
                None => match inbox.recv() {
                    Ok(message) => message,
                    // Impossible while `self.mailbox` exists.
                    Err(_) => return CoreInput::Tick,
                },
            };
            if let Some(input) = self.convert_message(message) {
                return input;
            }
        }
    }

    fn convert_message(&mut self, message: DriverMessage) -> Option<CoreInput> {
        Some(match message {
            DriverMessage::Input(input) => {
                if let CoreInput::Answered { digest, .. } = &input {
                    self.asker.is_through_with(digest);
                }
                input
            }
            DriverMessage::Attempt { number, .. } if number != self.attempts || self.attempt.is_none() => return None,
            DriverMessage::Attempt { event, .. } => match *event {
                AttemptEvent::Denied(denial) => {
                    let denial = self.reportable_denial(denial);
                    CoreInput::Denied { powers: self.requestable_powers(&denial), denial }
                }
                AttemptEvent::Breached(denial) => {
                    CoreInput::Breached { powers: self.requestable_powers(&denial), denial }
                }
                AttemptEvent::Connection(connection) => CoreInput::Connection(connection),
                AttemptEvent::Signed { grant, object } => CoreInput::Signed { grant, object },
                AttemptEvent::Executed { pid, program } => CoreInput::Executed { pid, program },
                AttemptEvent::Held { id, denial } => {
                    self.held.add_call(id);
                    let powers = self.requestable_powers(&denial);
                    let directory = denial.grant.as_ref().map_or_else(Vec::new, |grant| self.directory_powers(grant));
                    let refused_in = offers::is_refused_in(&self.refused, &directory);
                    let rule = self.held_rule(&denial);
                    let group = denial.grant.as_ref().and_then(|grant| self.host_group(grant));
                    CoreInput::Held(Box::new(HeldCall { id, denial, powers, directory, group, refused_in, rule }))
                }
                AttemptEvent::Withdrawn(id) => {
                    self.held.remove(id);
                    CoreInput::Withdrawn(id)
                }
                AttemptEvent::Stopped(_) => {
                    if let Some(stand_still) = &self.stand_still {
                        stand_still();
                        self.attempt.as_ref()?.send_signal(SIGCONT);
                    }
                    return None;
                }
                AttemptEvent::Ended(mut end) => {
                    end.acted |= self.has_typed.as_ref().is_some_and(|has_typed| has_typed());
                    // Reaped here, so that none of its processes is alive when the core learns of
                    // the end.
                    self.attempt = None;
                    self.held.clear();
                    CoreInput::Ended(Box::new(end))
                }
            },
        })
    }

    /// Returns the powers that may be requested after a refusal: all that are necessary if the
    /// backend can give them, otherwise none.
    fn requestable_powers(&self, denial: &Denial) -> Vec<Grant> {
        let (Some(plan), Some(grant)) = (&self.plan, &denial.grant) else { return Vec::new() };
        self.supported_powers(plan, self.engine.rule_engine.escalation_powers(&self.request, plan, grant))
    }

    /// Returns the powers that may be offered for the directory of the file of `grant`, or for the
    /// domain of its host.
    fn directory_powers(&self, grant: &Grant) -> Vec<Grant> {
        let Some(plan) = &self.plan else { return Vec::new() };
        self.supported_powers(plan, self.engine.rule_engine.directory_powers(&self.request, plan, grant))
    }

    /// Returns a refusal in the form to report. A power that cannot be approved offers no grant. A
    /// connection that a rule refuses names that rule and its reason, because the plan's lists
    /// contain the rules without their names.
    fn reportable_denial(&self, mut denial: Denial) -> Denial {
        let rule_engine = &self.engine.rule_engine;
        let decision = match (&denial.grant, denial.operation) {
            (Some(grant), _) => rule_engine.governed_refusal(&self.request, grant),
            (None, DeniedOperation::Connect) => self.refusing_rule(&denial),
            _ => None,
        };
        if let Some(decision) = decision {
            denial.rule = [vec![decision.rule], decision.reasons].concat().join(": ");
            denial.grant = None;
        }
        denial
    }

    /// Returns the rule that refuses a connection.
    fn refusing_rule(&self, denial: &Denial) -> Option<Decision> {
        let target = denial.object.to_str()?.parse().ok()?;
        let grant = Some(Grant::connect_to(&target));
        let denial = Denial { grant, ..denial.clone() };
        let rule = self.engine.rule_engine.held_rule(&self.request, self.plan.as_ref()?, &denial)?;
        (rule.decision.verdict == PolicyVerdict::Deny).then_some(rule.decision)
    }

    /// Returns the result of the rules; an `allow` of powers that cannot be given is dropped.
    fn held_rule(&self, denial: &Denial) -> Option<HeldRule> {
        let plan = self.plan.as_ref()?;
        let mut rule = self.engine.rule_engine.held_rule(&self.request, plan, denial)?;
        rule.powers = self.supported_powers(plan, rule.powers);
        (rule.decision.verdict != PolicyVerdict::Allow || !rule.powers.is_empty()).then_some(rule)
    }

    /// Returns the group of hosts that may be offered together with the host of `grant`.
    fn host_group(&self, grant: &Grant) -> Option<GroupOffer> {
        let plan = self.plan.as_ref()?;
        let offer = self.engine.rule_engine.host_group(&self.request, plan, grant)?;
        let is_honoured = !self.supported_powers(plan, offer.grants.clone()).is_empty();
        (is_honoured && offers::is_whole(&offer, &self.refused)).then_some(offer)
    }

    fn supported_powers(&self, plan: &AttemptPlan, powers: Vec<Grant>) -> Vec<Grant> {
        let check_support =
            |power: &Grant| self.backend_for_plan(plan).is_some_and(|b| b.supports_grant(power, plan.level));
        if powers.iter().all(check_support) { powers } else { Vec::new() }
    }

    /// Returns the backend for a plan; a plan without a sandbox has another backend.
    fn backend_for_plan(&self, plan: &AttemptPlan) -> Option<&dyn Backend> {
        if plan.profile.sandboxed { Some(self.engine.backend.as_ref()) } else { self.engine.host.as_deref() }
    }

    /// Carries out the outputs of one step in order. Adjacent events are written together. If the
    /// write fails, the outputs after them are dropped.
    fn carry_out(&mut self, outputs: Vec<CoreOutput>) -> Option<RunOutcome> {
        let mut events = Vec::new();
        for output in outputs {
            if let CoreOutput::Record(kind) = output {
                events.push(self.stamp_event(*kind));
                continue;
            }
            if !self.write_events(&mut events) {
                return None;
            }
            if let CoreOutput::Finish(outcome) = output {
                return Some(*outcome);
            }
            self.perform_operation(output);
        }
        self.write_events(&mut events);
        None
    }

    fn stamp_event(&self, kind: EventKind) -> Event {
        let (request, session) = (self.request.id.clone(), self.request.session.clone());
        Event { time_ms: self.engine.clock.wall_ms(), request, session, kind }
    }

    fn write_events(&mut self, events: &mut Vec<Event>) -> bool {
        if events.is_empty() {
            return true;
        }
        match self.engine.recorder.record_events(events) {
            Ok(()) => {
                events.clear();
                true
            }
            Err(error) => {
                warn!(%error, "the audit log failed");
                self.queue.push_front(CoreInput::RecordFailed(error.to_string()));
                false
            }
        }
    }

    fn perform_operation(&mut self, output: CoreOutput) {
        let input = match output {
            CoreOutput::Assess => Some(self.assess_request()),
            CoreOutput::Decide(assessment) => Some(self.apply_rules(&assessment)),
            CoreOutput::MakePlan { attempt, grants } => Some(self.make_plan(attempt, &grants)),
            CoreOutput::FindRemembered(context) => Some(self.load_remembered_answers(&context)),
            CoreOutput::LookUp(keys) => Some(self.look_up(&keys)),
            CoreOutput::Remember(memos) => self.remember_answers(&memos),
            CoreOutput::LookUpHeld { id, keys } => Some(self.look_up_held(id, &keys)),
            CoreOutput::Review(question) => self.review_question(&question),
            CoreOutput::Ask(question) => return self.asker.queue_question(question),
            CoreOutput::Withdraw(digest) => {
                debug!(%digest, "a question is withdrawn");
                return self.asker.withdraw_question(&digest);
            }
            CoreOutput::StandStill(limit) => self.stand_still(*limit),
            CoreOutput::AnswerHeld { id, answer } => {
                debug!(id = id.0, ?answer, "a held call is answered");
                self.held.remove(id);
                return self.attempt.iter().for_each(|attempt| attempt.answer_call(id, answer.clone()));
            }
            CoreOutput::Commit { number, durable: false } => Some(CoreInput::Committed(number)),
            CoreOutput::Commit { number, durable: true } => self.commit_events(number),
            CoreOutput::Prepare { planned, hold } => Some(self.prepare_attempt(&planned, hold)),
            CoreOutput::Release => self.release_command(),
            CoreOutput::Signal(signal) => {
                debug!(signal, "forwarded");
                return self.attempt.iter().for_each(|attempt| attempt.send_signal(signal));
            }
            CoreOutput::Kill => {
                info!("killing the attempt");
                return self.attempt.iter().for_each(|attempt| attempt.kill_processes());
            }
            CoreOutput::Discard => {
                self.attempt = None;
                self.held.clear();
                self.attempts += 1;
                return;
            }
            CoreOutput::Record(_) | CoreOutput::Finish(_) => return,
        };
        self.queue.extend(input);
    }

    fn stand_still(&self, limit: Denial) -> Option<CoreInput> {
        let stands = self.attempt.as_ref().is_some_and(|attempt| attempt.stand_still(&limit));
        (!stands).then(|| CoreInput::Breached { denial: limit, powers: Vec::new() })
    }

    fn assess_request(&self) -> CoreInput {
        let _span = info_span!("assess").entered();
        let assessment = self.engine.rule_engine.assess_request(&self.request);
        debug!(tier = ?assessment.tier, findings = assessment.findings.len(), "assessed");
        CoreInput::Assessed(assessment)
    }

    fn apply_rules(&mut self, assessment: &Assessment) -> CoreInput {
        let _span = info_span!("decide").entered();
        let mut ruling = self.engine.rule_engine.apply_rules(&self.request, assessment);
        if let Some(requirements) = &ruling.requirements {
            requirements.put_into(&mut self.request);
        }
        let check_support = |grant: &&Grant| !self.engine.backend.supports_grant(grant, self.request.level);
        ruling.unhonoured = self.request.grants.iter().filter(check_support).cloned().collect();
        debug!(verdict = ?ruling.decision.verdict, rule = %ruling.decision.rule, "decided");
        CoreInput::Decided(Box::new(ruling))
    }

    fn make_plan(&self, attempt: u32, grants: &[Grant]) -> CoreInput {
        let _span = info_span!("plan", attempt).entered();
        match self.engine.rule_engine.make_plan(&self.request, attempt, grants) {
            Ok(planned) => CoreInput::Planned(Box::new(planned)),
            Err(error) => CoreInput::PlanFailed(error.to_string()),
        }
    }

    fn load_remembered_answers(&mut self, context: &crate::keys::GrantContext) -> CoreInput {
        match self.engine.memory.persistent_answers(context, self.lookup_scope()) {
            Ok(mut remembered_answers) => {
                remembered_answers.grants.retain(|grant| self.engine.backend.supports_grant(grant, context.level));
                self.refused.clone_from(&remembered_answers.refused);
                CoreInput::Remembered(remembered_answers)
            }
            Err(error) => CoreInput::MemoryFailed(error.to_string()),
        }
    }

    fn look_up(&self, keys: &[MemoryKey]) -> CoreInput {
        match self.recall_answers(keys) {
            Ok(answers) => CoreInput::Recalled { answers, approver: self.asker.is_available() },
            Err(error) => CoreInput::MemoryFailed(error.to_string()),
        }
    }

    fn look_up_held(&self, id: HoldId, keys: &[MemoryKey]) -> CoreInput {
        let answers = self.recall_answers(keys).map_err(|error| error.to_string());
        CoreInput::HeldRecalled { id, answers, approver: self.asker.is_available() }
    }

    fn recall_answers(&self, keys: &[MemoryKey]) -> Result<Vec<Option<RememberedAnswer>>, MemoryError> {
        let _span = info_span!("look up", keys = keys.len()).entered();
        let scope = self.lookup_scope();
        keys.iter().map(|key| self.engine.memory.look_up_answer(key, scope)).collect()
    }

    fn lookup_scope(&self) -> LookupScope<'_> {
        LookupScope { session: self.request.session.as_ref(), now_ms: self.engine.clock.wall_ms() }
    }

    fn remember_answers(&self, memos: &[AnswerMemo]) -> Option<CoreInput> {
        let scope = self.lookup_scope();
        let failed = memos.iter().find_map(|memo| self.engine.memory.remember_answer(memo, scope).err())?;
        warn!(error = %failed, "an answer could not be stored");
        Some(CoreInput::NotRemembered(failed.to_string()))
    }

    /// Commits on a thread of its own, because the sandbox is built meanwhile.
    fn commit_events(&self, number: u64) -> Option<CoreInput> {
        let (recorder, mailbox) = (Arc::clone(&self.engine.recorder), self.mailbox.clone());
        let span = info_span!("commit", number);
        let commit = move || {
            let _entered = span.enter();
            let input = match recorder.commit_events() {
                Ok(()) => CoreInput::Committed(number),
                Err(error) => CoreInput::RecordFailed(error.to_string()),
            };
            let _ = mailbox.send(DriverMessage::Input(input));
        };
        let spawned = thread::Builder::new().name("stockade-commit".to_owned()).spawn(commit);
        spawned.err().map(|error| CoreInput::RecordFailed(format!("cannot start the thread that commits: {error}")))
    }

    /// Asks the reviewer on a thread of its own. The text to send is recorded first. If this fails,
    /// nothing is sent.
    fn review_question(&self, question: &ApprovalQuestion) -> Option<CoreInput> {
        let reviewer = Arc::clone(self.engine.reviewer.as_ref()?);
        let (by, digest) = (reviewer.name(), question.digest.clone());
        let failed = |why: String| {
            warn!(%why, "no review");
            let review = ReviewResult::from_failure(&by, why);
            CoreInput::Reviewed(Box::new(QuestionReview { digest: digest.clone(), review, response: None, took_ms: 0 }))
        };
        let request = match reviewer.prepare_request(question, self.request.session.as_ref()) {
            Ok(request) => request,
            Err(why) => return Some(failed(why)),
        };
        let (endpoint, body) = (request.endpoint.clone(), request.body.clone());
        let kind = EventKind::ReviewSent { digest: digest.clone(), by: by.clone(), endpoint, request: body };
        if let Err(error) = self.engine.recorder.record_events(&[self.stamp_event(kind)]) {
            return Some(CoreInput::RecordFailed(error.to_string()));
        }
        let mailbox = self.mailbox.clone();
        let span = info_span!("review", %digest);
        let (asked_digest, asked_name) = (digest.clone(), by.clone());
        let ask = move || {
            let _entered = span.enter();
            let start = Instant::now();
            let reply = reviewer.send_request(&request);
            let took_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            let review = match reply.opinion {
                Ok(opinion) => ReviewResult { by: asked_name, opinion: Some(opinion), failure: None },
                Err(why) => ReviewResult::from_failure(asked_name, why),
            };
            debug!(?review, took_ms, "reviewed");
            // The run may be over, so that the opinion is not needed.
            let reviewed = QuestionReview { digest: asked_digest, review, response: reply.response, took_ms };
            let _ = mailbox.send(DriverMessage::Input(CoreInput::Reviewed(Box::new(reviewed))));
        };
        let spawned = thread::Builder::new().name("stockade-review".to_owned()).spawn(ask);
        spawned.err().map(|error| failed(format!("cannot start the thread of the reviewer: {error}")))
    }

    fn prepare_attempt(&mut self, planned: &BoundPlan, hold: bool) -> CoreInput {
        let plan = &planned.plan;
        let _span = info_span!("prepare", attempt = plan.attempt, digest = %planned.digest).entered();
        self.plan = Some(plan.clone());
        self.attempts += 1;
        let (number, mailbox) = (self.attempts, self.mailbox.clone());
        // The run may be over, so that the event is not needed.
        let events = AttemptEventSender::new(move |event| {
            drop(mailbox.send(DriverMessage::Attempt { number, event: Box::new(event) }))
        });
        let Some(backend) = self.backend_for_plan(plan) else {
            return CoreInput::PrepareFailed("no backend here runs commands without a sandbox".to_owned());
        };
        if backend.name() != plan.backend {
            return CoreInput::PrepareFailed(format!("the plan is for another backend than `{}`", backend.name()));
        }
        let attempt = match backend.prepare_attempt(plan, &self.io, hold, events) {
            Ok(attempt) => attempt,
            Err(error) => return CoreInput::PrepareFailed(join_hint(error.what, error.hint)),
        };
        let enforced = attempt.enforcement_report().clone();
        debug!(level = %enforced.level, "prepared");
        self.attempt = Some(attempt);
        CoreInput::Prepared(enforced)
    }

    /// Releases the command. If its program could not be executed, nothing started; the end
    /// follows.
    fn release_command(&mut self) -> Option<CoreInput> {
        let _span = info_span!("release").entered();
        match self.attempt.as_mut().map(|attempt| attempt.release_command().map(|()| attempt.await_exec())) {
            Some(Ok(runs)) => runs.then_some(CoreInput::Released),
            Some(Err(error)) => Some(CoreInput::ReleaseFailed(join_hint(error.what, error.hint))),
            None => Some(CoreInput::ReleaseFailed("there is no sandbox to release".to_owned())),
        }
    }

    /// Gives the approver time to restore the terminal, which it may still use after an interrupt
    /// or a time-out.
    fn let_approver_leave(&mut self, inbox: &Receiver<DriverMessage>) {
        self.asker.withdraw_all();
        let until = Instant::now() + WITHDRAWAL_TIMEOUT;
        while self.asker.is_busy() {
            match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) => drop(self.convert_message(message)),
                Err(_) => return,
            }
        }
    }
}

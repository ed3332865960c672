//! Driver that carries out the core's outputs for one request at a time. Rules, memory and backend
//! run on the caller's thread; the durable record and the approver have threads of their own. The
//! driver decides nothing.
//!
//! The backend's `prepare` and `release` are called on the thread that called [`Engine::run`]. That
//! thread stays until the request is over, because a parent-death signal is bound to the thread
//! that forked (prctl(2), PR_SET_PDEATHSIG).

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use stockade_model::{
    Assessment, Decision, Denial, Event, EventKind, Grant, GroupOffer, Operation, Outcome, Plan, Question, Request,
    Review, Verdict,
};
use tracing::{debug, info, info_span, warn};

use crate::approver::HeldCalls;
use crate::asker::{Asker, Given, LEAVE};
use crate::core::{
    Core, CoreConfig, HeldCall, Input, Memo, Output, Planned, PowerGuard, Remembered, Reviewed, ReviewerTerms,
};
use crate::interrupts::{HasTyped, StandStill};
use crate::keys::Key;
use crate::offers;
use crate::seams::{Clock, HeldRule, Judge, Memory, MemoryError, Recorder};
use crate::{
    Approver, Attempt, AttemptEvent, Backend, Events, HoldId, Interrupts, Io, Reviewer, StartError, exit_code,
};

/// Continues a stopped process (signal(7)).
const SIGCONT: i32 = 18;

/// Components that a request needs. Requests share them; each has its own [`run`](Self::run).
#[derive(Clone)]
pub struct Engine {
    /// Assesses text, applies rules, makes plans.
    pub judge: Arc<dyn Judge>,
    /// Builds sandboxes.
    pub backend: Arc<dyn Backend>,
    /// Runs commands without a sandbox, if this is possible at all.
    pub host: Option<Arc<dyn Backend>>,
    /// Answers questions, one at a time.
    pub approver: Arc<Mutex<dyn Approver>>,
    /// Gives an opinion on each question before it is put, if present.
    pub reviewer: Option<Arc<dyn Reviewer>>,
    /// Stores events.
    pub recorder: Arc<dyn Recorder>,
    /// Remembers answers.
    pub memory: Arc<dyn Memory>,
    /// Returns the time.
    pub clock: Arc<dyn Clock>,
    /// User that runs Stockade, e.g. `uid 1000`; consent is bound to it.
    pub user: String,
    /// Time-out of a question in milliseconds; it then counts as refused.
    pub question_timeout_ms: u64,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("backend", &self.backend.name())
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Message to the driver from another thread.
#[derive(Debug)]
pub(crate) enum Message {
    Interrupted(i32),
    Attempt { number: u64, event: Box<AttemptEvent> },
    Answered(Given),
    Reviewed(Box<Reviewed>),
    Committed(u64),
    RecordFailed(String),
}

impl Engine {
    /// Runs one request from its text to its outcome. Blocks; returns when none of its processes is
    /// alive.
    pub fn run(&self, request: Request, io: Io, interrupts: Interrupts) -> Outcome {
        let span = info_span!("request", id = %request.id);
        let _entered = span.enter();
        let mut config = CoreConfig::new(self.judge.policy(&request), self.user.clone());
        config.question_timeout_ms = self.question_timeout_ms;
        let judge = Arc::clone(&self.judge);
        config.guard = PowerGuard::new(move |power| judge.is_guarded(power));
        config.reviewer = self
            .reviewer
            .as_ref()
            .map(|reviewer| ReviewerTerms { name: reviewer.name(), timeout_ms: reviewer.timeout_ms() });
        let (held, mailbox) = (HeldCalls::default(), interrupts.sender.clone());
        // The run may be over, so that the answer is not needed.
        let answered = move |given| drop(mailbox.send(Message::Answered(given)));
        let asker = Asker::new(Arc::clone(&self.approver), held.clone(), answered);
        config.approver_may_come = asker.may_come();
        let core = Core::new(request.clone(), config);
        let driver = Driver {
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
        let outcome = driver.drive(core, &interrupts.receiver);
        info!(status = ?outcome.status, exit_code = exit_code(&outcome), "finished");
        outcome
    }
}

/// Request that is being carried out.
struct Driver<'a> {
    engine: &'a Engine,
    request: Request,
    io: Io,
    mailbox: Sender<Message>,
    /// Inputs that outputs produced immediately.
    queue: VecDeque<Input>,
    attempt: Option<Box<dyn Attempt>>,
    /// Number of the attempt, so that events of a dropped attempt are ignored.
    attempts: u64,
    /// Plan of the attempt, to find the powers that can be granted.
    plan: Option<Plan>,
    /// Powers named by remembered refusals, as of the start of the request.
    refused: Vec<Grant>,
    asker: Asker,
    /// Reported by the backend and not yet answered.
    held: HeldCalls,
    /// See [`Interrupts::standing_still`].
    stand_still: Option<StandStill>,
    has_typed: Option<HasTyped>,
}

impl Driver<'_> {
    fn drive(mut self, mut core: Core, inbox: &Receiver<Message>) -> Outcome {
        let mut outputs = core.start(self.now());
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
                    self.wait(inbox, core.deadline())
                }
            };
            outputs = core.step(self.now(), input);
        }
    }

    fn now(&self) -> u64 {
        self.engine.clock.monotonic_ms()
    }

    /// Waits for the next message until the core's deadline. If the command has no time limit,
    /// waits as long as it runs.
    fn wait(&mut self, inbox: &Receiver<Message>, deadline_ms: Option<u64>) -> Input {
        loop {
            let message = match deadline_ms {
                Some(at_ms) => {
                    let left_ms = at_ms.saturating_sub(self.now());
                    match inbox.recv_timeout(Duration::from_millis(left_ms)) {
                        Ok(message) => message,
                        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Input::Tick,
                    }
                }
                None => match inbox.recv() {
                    Ok(message) => message,
                    // Impossible while `self.mailbox` exists.
                    Err(_) => return Input::Tick,
                },
            };
            if let Some(input) = self.input(message) {
                return input;
            }
        }
    }

    fn input(&mut self, message: Message) -> Option<Input> {
        Some(match message {
            Message::Interrupted(signal) => Input::Interrupted(signal),
            Message::Committed(number) => Input::Committed(number),
            Message::RecordFailed(why) => Input::RecordFailed(why),
            Message::Reviewed(reviewed) => Input::Reviewed(reviewed),
            Message::Answered(Given { digest, answer, by }) => {
                self.asker.is_through_with(&digest);
                Input::Answered { digest, answer, by }
            }
            Message::Attempt { number, .. } if number != self.attempts || self.attempt.is_none() => return None,
            Message::Attempt { event, .. } => match *event {
                AttemptEvent::Denied(denial) => {
                    let denial = self.told(denial);
                    Input::Denied { powers: self.powers(&denial), denial }
                }
                AttemptEvent::Breached(denial) => Input::Breached { powers: self.powers(&denial), denial },
                AttemptEvent::Connection(connection) => Input::Connection(connection),
                AttemptEvent::Signed { grant, object } => Input::Signed { grant, object },
                AttemptEvent::Executed { pid, program } => Input::Executed { pid, program },
                AttemptEvent::Held { id, denial } => {
                    self.held.add(id);
                    let powers = self.powers(&denial);
                    let directory = denial.grant.as_ref().map_or_else(Vec::new, |grant| self.directory(grant));
                    let refused_in = offers::is_refused_in(&self.refused, &directory);
                    let rule = self.held_rule(&denial);
                    let group = denial.grant.as_ref().and_then(|grant| self.group(grant));
                    Input::Held(Box::new(HeldCall { id, denial, powers, directory, group, refused_in, rule }))
                }
                AttemptEvent::Withdrawn(id) => {
                    self.held.remove(id);
                    Input::Withdrawn(id)
                }
                AttemptEvent::Stopped(_) => {
                    if let Some(stand_still) = &self.stand_still {
                        stand_still();
                        self.attempt.as_ref()?.signal(SIGCONT);
                    }
                    return None;
                }
                AttemptEvent::Ended(mut end) => {
                    end.acted |= self.has_typed.as_ref().is_some_and(|has_typed| has_typed());
                    // Reaped here, so that none of its processes is alive when the core learns of
                    // the end.
                    self.attempt = None;
                    self.held.clear();
                    Input::Ended(Box::new(end))
                }
            },
        })
    }

    /// Returns the powers that may be requested after a refusal: all that are necessary if the
    /// backend can give them, otherwise none.
    fn powers(&self, denial: &Denial) -> Vec<Grant> {
        let (Some(plan), Some(grant)) = (&self.plan, &denial.grant) else { return Vec::new() };
        self.honoured(plan, self.engine.judge.escalation(&self.request, plan, grant))
    }

    /// Returns the powers that may be offered for the directory of the file of `grant`, or for the
    /// domain of its host.
    fn directory(&self, grant: &Grant) -> Vec<Grant> {
        let Some(plan) = &self.plan else { return Vec::new() };
        self.honoured(plan, self.engine.judge.directory(&self.request, plan, grant))
    }

    /// Returns a refusal in the form to report. A power that cannot be approved offers no grant. A
    /// connection that a rule refuses names that rule and its reason, because the plan's lists
    /// contain the rules without their names.
    fn told(&self, mut denial: Denial) -> Denial {
        let judge = &self.engine.judge;
        let decision = match (&denial.grant, denial.operation) {
            (Some(grant), _) => judge.governed(&self.request, grant),
            (None, Operation::Connect) => self.refusing_rule(&denial),
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
        let grant = Some(Grant::connect(&target));
        let denial = Denial { grant, ..denial.clone() };
        let rule = self.engine.judge.held_rule(&self.request, self.plan.as_ref()?, &denial)?;
        (rule.decision.verdict == Verdict::Deny).then_some(rule.decision)
    }

    /// Returns the result of the rules; an `allow` of powers that cannot be given is dropped.
    fn held_rule(&self, denial: &Denial) -> Option<HeldRule> {
        let plan = self.plan.as_ref()?;
        let mut rule = self.engine.judge.held_rule(&self.request, plan, denial)?;
        rule.powers = self.honoured(plan, rule.powers);
        (rule.decision.verdict != Verdict::Allow || !rule.powers.is_empty()).then_some(rule)
    }

    /// Returns the group of hosts that may be offered together with the host of `grant`.
    fn group(&self, grant: &Grant) -> Option<GroupOffer> {
        let plan = self.plan.as_ref()?;
        let offer = self.engine.judge.group(&self.request, plan, grant)?;
        let is_honoured = !self.honoured(plan, offer.grants.clone()).is_empty();
        (is_honoured && offers::is_whole(&offer, &self.refused)).then_some(offer)
    }

    fn honoured(&self, plan: &Plan, powers: Vec<Grant>) -> Vec<Grant> {
        let honours = |power: &Grant| self.backend(plan).is_some_and(|b| b.honours(power, plan.level));
        if powers.iter().all(honours) { powers } else { Vec::new() }
    }

    /// Returns the backend for a plan; a plan without a sandbox has another backend.
    fn backend(&self, plan: &Plan) -> Option<&dyn Backend> {
        if plan.profile.sandboxed { Some(self.engine.backend.as_ref()) } else { self.engine.host.as_deref() }
    }

    /// Carries out the outputs of one step in order. Adjacent events are written together. If the
    /// write fails, the outputs after them are dropped.
    fn carry_out(&mut self, outputs: Vec<Output>) -> Option<Outcome> {
        let mut events = Vec::new();
        for output in outputs {
            if let Output::Record(kind) = output {
                let (request, session) = (self.request.id.clone(), self.request.session.clone());
                events.push(Event { time_ms: self.engine.clock.wall_ms(), request, session, kind: *kind });
                continue;
            }
            if !self.write(&mut events) {
                return None;
            }
            if let Output::Finish(outcome) = output {
                return Some(*outcome);
            }
            self.perform(output);
        }
        self.write(&mut events);
        None
    }

    fn write(&mut self, events: &mut Vec<Event>) -> bool {
        if events.is_empty() {
            return true;
        }
        match self.engine.recorder.record(events) {
            Ok(()) => {
                events.clear();
                true
            }
            Err(error) => {
                warn!(%error, "the record failed");
                self.queue.push_front(Input::RecordFailed(error.to_string()));
                false
            }
        }
    }

    fn perform(&mut self, output: Output) {
        let input = match output {
            Output::Assess => Some(self.assess()),
            Output::Decide(assessment) => Some(self.decide(&assessment)),
            Output::MakePlan { attempt, grants } => Some(self.plan(attempt, &grants)),
            Output::FindStanding(context) => Some(self.find_standing(&context)),
            Output::LookUp(keys) => Some(self.look_up(&keys)),
            Output::Remember(memos) => self.remember(&memos),
            Output::LookUpHeld { id, keys } => Some(self.look_up_held(id, &keys)),
            Output::Review(question) => self.review(&question),
            Output::Ask(question) => {
                self.asker.ask(question);
                None
            }
            Output::Withdraw(digest) => {
                debug!(%digest, "a question is taken back");
                self.asker.withdraw(&digest);
                None
            }
            Output::StandStill(limit) => self.stand_still(*limit),
            Output::AnswerHeld { id, answer } => {
                debug!(id = id.0, ?answer, "a held call is answered");
                self.held.remove(id);
                if let Some(attempt) = &self.attempt {
                    attempt.answer(id, answer);
                }
                None
            }
            Output::Commit { number, durable: false } => Some(Input::Committed(number)),
            Output::Commit { number, durable: true } => self.commit(number),
            Output::Prepare { planned, hold } => Some(self.prepare(&planned, hold)),
            Output::Release => self.release(),
            Output::Signal(signal) => {
                debug!(signal, "forwarded");
                if let Some(attempt) = &self.attempt {
                    attempt.signal(signal);
                }
                None
            }
            Output::Kill => {
                info!("killing the attempt");
                if let Some(attempt) = &self.attempt {
                    attempt.kill();
                }
                None
            }
            Output::Discard => {
                self.attempt = None;
                self.held.clear();
                self.attempts += 1;
                None
            }
            Output::Record(_) | Output::Finish(_) => None,
        };
        self.queue.extend(input);
    }

    fn stand_still(&self, limit: Denial) -> Option<Input> {
        let stands = self.attempt.as_ref().is_some_and(|attempt| attempt.stand_still(&limit));
        (!stands).then(|| Input::Breached { denial: limit, powers: Vec::new() })
    }

    fn assess(&self) -> Input {
        let _span = info_span!("assess").entered();
        let assessment = self.engine.judge.assess(&self.request);
        debug!(tier = ?assessment.tier, findings = assessment.findings.len(), "assessed");
        Input::Assessed(assessment)
    }

    fn decide(&mut self, assessment: &Assessment) -> Input {
        let _span = info_span!("decide").entered();
        let mut ruling = self.engine.judge.rule(&self.request, assessment);
        if let Some(wanted) = &ruling.wanted {
            wanted.put_into(&mut self.request);
        }
        let honours = |grant: &&Grant| !self.engine.backend.honours(grant, self.request.level);
        ruling.unhonoured = self.request.grants.iter().filter(honours).cloned().collect();
        debug!(verdict = ?ruling.decision.verdict, rule = %ruling.decision.rule, "decided");
        Input::Decided(Box::new(ruling))
    }

    fn plan(&self, attempt: u32, grants: &[Grant]) -> Input {
        let _span = info_span!("plan", attempt).entered();
        match self.engine.judge.plan(&self.request, attempt, grants) {
            Ok(planned) => Input::Planned(Box::new(planned)),
            Err(error) => Input::PlanFailed(with_hint(error.what, error.hint)),
        }
    }

    fn find_standing(&mut self, context: &crate::keys::GrantContext) -> Input {
        let now_ms = self.engine.clock.wall_ms();
        match self.engine.memory.standing(context, self.request.session.as_ref(), now_ms) {
            Ok(mut standing) => {
                standing.grants.retain(|grant| self.engine.backend.honours(grant, context.level));
                self.refused.clone_from(&standing.refused);
                Input::Standing(standing)
            }
            Err(error) => Input::MemoryFailed(error.to_string()),
        }
    }

    fn look_up(&self, keys: &[Key]) -> Input {
        match self.recall(keys) {
            Ok(answers) => Input::Recalled { answers, approver: self.asker.is_available() },
            Err(error) => Input::MemoryFailed(error.to_string()),
        }
    }

    fn look_up_held(&self, id: HoldId, keys: &[Key]) -> Input {
        let answers = self.recall(keys).map_err(|error| error.to_string());
        Input::HeldRecalled { id, answers, approver: self.asker.is_available() }
    }

    fn recall(&self, keys: &[Key]) -> Result<Vec<Option<Remembered>>, MemoryError> {
        let _span = info_span!("look up", keys = keys.len()).entered();
        let now_ms = self.engine.clock.wall_ms();
        let session = self.request.session.as_ref();
        keys.iter().map(|key| self.engine.memory.lookup(key, session, now_ms)).collect()
    }

    fn remember(&self, memos: &[Memo]) -> Option<Input> {
        let now_ms = self.engine.clock.wall_ms();
        let session = self.request.session.as_ref();
        let failed = memos.iter().find_map(|memo| self.engine.memory.remember(memo, session, now_ms).err())?;
        warn!(error = %failed, "an answer could not be kept");
        Some(Input::NotRemembered(failed.to_string()))
    }

    /// Commits on a thread of its own, because the sandbox is built meanwhile.
    fn commit(&self, number: u64) -> Option<Input> {
        let (recorder, mailbox) = (Arc::clone(&self.engine.recorder), self.mailbox.clone());
        let span = info_span!("commit", number);
        let commit = move || {
            let _entered = span.enter();
            let message = match recorder.commit() {
                Ok(()) => Message::Committed(number),
                Err(error) => Message::RecordFailed(error.to_string()),
            };
            let _ = mailbox.send(message);
        };
        let spawned = thread::Builder::new().name("stockade-commit".to_owned()).spawn(commit);
        spawned.err().map(|error| Input::RecordFailed(format!("no thread to commit on: {error}")))
    }

    /// Asks the reviewer on a thread of its own. The text to send is recorded first. If this fails,
    /// nothing is sent.
    fn review(&self, question: &Question) -> Option<Input> {
        let reviewer = Arc::clone(self.engine.reviewer.as_ref()?);
        let (by, digest) = (reviewer.name(), question.digest.clone());
        let failed = |why: String| {
            warn!(%why, "no review");
            let review = Review::failed(&by, why);
            Input::Reviewed(Box::new(Reviewed { digest: digest.clone(), review, response: None, took_ms: 0 }))
        };
        let request = match reviewer.prepare(question, self.request.session.as_ref()) {
            Ok(request) => request,
            Err(why) => return Some(failed(why)),
        };
        let (endpoint, body) = (request.endpoint.clone(), request.body.clone());
        let kind = EventKind::ReviewSent { digest: digest.clone(), by: by.clone(), endpoint, request: body };
        let (id, session) = (self.request.id.clone(), self.request.session.clone());
        let event = Event { time_ms: self.engine.clock.wall_ms(), request: id, session, kind };
        if let Err(error) = self.engine.recorder.record(&[event]) {
            return Some(Input::RecordFailed(error.to_string()));
        }
        let mailbox = self.mailbox.clone();
        let span = info_span!("review", %digest);
        let reviewed = Reviewed { digest: digest.clone(), review: Review::failed(&by, ""), response: None, took_ms: 0 };
        let ask = move || {
            let _entered = span.enter();
            let start = Instant::now();
            let reply = reviewer.ask(&request);
            let took_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            let by = reviewed.review.by.clone();
            let review = match reply.opinion {
                Ok(opinion) => Review { by, opinion: Some(opinion), failure: None },
                Err(why) => Review::failed(by, why),
            };
            debug!(?review, took_ms, "reviewed");
            // The run may be over, so that the opinion is not needed.
            let reviewed = Reviewed { review, response: reply.response, took_ms, ..reviewed };
            let _ = mailbox.send(Message::Reviewed(Box::new(reviewed)));
        };
        let spawned = thread::Builder::new().name("stockade-review".to_owned()).spawn(ask);
        spawned.err().map(|error| failed(format!("no thread to ask on: {error}")))
    }

    fn prepare(&mut self, planned: &Planned, hold: bool) -> Input {
        let plan = &planned.plan;
        let _span = info_span!("prepare", attempt = plan.attempt, digest = %planned.digest).entered();
        self.plan = Some(plan.clone());
        self.attempts += 1;
        let (number, mailbox) = (self.attempts, self.mailbox.clone());
        // The run may be over, so that the event is not needed.
        let events = Events::new(move |event| drop(mailbox.send(Message::Attempt { number, event: Box::new(event) })));
        let Some(backend) = self.backend(plan) else {
            return Input::PrepareFailed("nothing here runs commands without a sandbox".to_owned());
        };
        if backend.name() != plan.backend {
            return Input::PrepareFailed(format!("the plan is for another backend than `{}`", backend.name()));
        }
        let attempt = match backend.prepare(plan, &self.io, hold, events) {
            Ok(attempt) => attempt,
            Err(error) => return Input::PrepareFailed(start_failure(error)),
        };
        let enforced = attempt.enforced().clone();
        debug!(level = %enforced.level, "prepared");
        self.attempt = Some(attempt);
        Input::Prepared(enforced)
    }

    /// Releases the command. If its program could not be executed, nothing started; the end
    /// follows.
    fn release(&mut self) -> Option<Input> {
        let _span = info_span!("release").entered();
        match self.attempt.as_mut().map(|attempt| attempt.release().map(|()| attempt.await_exec())) {
            Some(Ok(runs)) => runs.then_some(Input::Released),
            Some(Err(error)) => Some(Input::ReleaseFailed(start_failure(error))),
            None => Some(Input::ReleaseFailed("there is no sandbox to release".to_owned())),
        }
    }

    /// Gives the approver time to restore the terminal, which it may still use after an interrupt
    /// or a time-out.
    fn let_approver_leave(&mut self, inbox: &Receiver<Message>) {
        self.asker.withdraw_all();
        let until = Instant::now() + LEAVE;
        while self.asker.is_busy() {
            match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) => drop(self.input(message)),
                Err(_) => return,
            }
        }
    }
}

fn start_failure(error: StartError) -> String {
    with_hint(error.what, error.hint)
}

fn with_hint(what: String, hint: Option<String>) -> String {
    match hint {
        Some(hint) => format!("{what}\nhint: {hint}"),
        None => what,
    }
}

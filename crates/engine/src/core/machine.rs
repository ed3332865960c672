//! Phases of a request and the transitions between them.

use std::collections::{BTreeSet, VecDeque};

use stockade_model::{
    Approval, Assessment, AttemptPlan, AttemptRecord, Digest, EventKind, FinalStatus, Grant, PolicyVerdict,
    QuestionKind, RunOutcome, RunRequest, SandboxPreference, Tier,
};

use super::asking::{OutstandingQuestion, PresetAnswer};
use super::ending::RequestEnd;
use super::escalating::EscalationRound;
use super::running::LiveAttempt;
use super::{BoundPlan, ConsentRuling, CoreConfig, CoreInput, CoreOutput, RememberedAnswer};
use crate::keys::{GrantContext, MemoryKey, QuestionNamespace, RunBinding, run_approval, run_refusal};
use crate::ports::PersistentAnswers;

/// State machine of one request. See the [module](super) for its guarantees.
pub struct RequestCore {
    pub(super) request: RunRequest,
    pub(super) config: CoreConfig,
    pub(super) phase: RequestPhase,
    pub(super) now_ms: u64,
    pub(super) out: Vec<CoreOutput>,
    pub(super) assessment: Assessment,
    pub(super) ruling: Option<ConsentRuling>,
    /// The plan that needs consent, or the current plan.
    pub(super) planned: Option<BoundPlan>,
    /// Powers remembered for the session, added to the first plan.
    pub(super) remembered_grants: Vec<Grant>,
    /// Questions still to be put before the next attempt.
    pub(super) pending: VecDeque<(QuestionKind, Option<PresetAnswer>)>,
    pub(super) escalation: Option<EscalationRound>,
    /// Powers that an escalation already named; no power is requested twice.
    pub(super) escalated: BTreeSet<Grant>,
    /// Powers given to the attempt while it ran, not yet in its plan.
    pub(super) in_place: Vec<Grant>,
    /// Powers refused to a held call, one list for each question; no list is requested again.
    pub(super) refused: Vec<Vec<Grant>>,
    /// Powers for directories in which a held call was refused.
    pub(super) refused_in: BTreeSet<Vec<Grant>>,
    /// Directories of files in which the approver refused a call.
    pub(super) answered_no_in: BTreeSet<Vec<Grant>>,
    /// Directories among these that were approved. Each call in them gets its own powers.
    pub(super) single_call_directories: BTreeSet<Vec<Grant>>,
    pub(super) unsandboxed_consent: bool,
    pub(super) approver: bool,
    /// True if some answers are remembered for a number of uses.
    pub(super) counted: bool,
    pub(super) attempts: Vec<AttemptRecord>,
    pub(super) approvals: Vec<Approval>,
    pub(super) questions: u32,
    pub(super) commits: u64,
    pub(super) record_failed: bool,
    /// Digests of questions sent to a reviewer that has not answered.
    pub(super) in_review: Vec<Digest>,
}

/// Phase of the request.
#[derive(Debug)]
pub(super) enum RequestPhase {
    New,
    Assessing,
    Deciding,
    Planning,
    FindingRemembered,
    Recalling(Vec<KeyPurpose>),
    Asking(OutstandingQuestion),
    Attempt(Box<LiveAttempt>),
    Closing { outcome: Box<RunOutcome>, commit: u64, deadline_ms: u64 },
    Finished,
}

/// Purpose of a looked-up key. Powers are given by their position in the requested list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPurpose {
    RunRefusal,
    RunApproval,
    AllRefused,
    Refused(usize),
    Approved(usize),
    DirectoryRefused,
}

impl RequestCore {
    /// Creates the state machine of a request that has not begun.
    pub fn new(request: RunRequest, config: CoreConfig) -> Self {
        Self {
            request,
            config,
            phase: RequestPhase::New,
            now_ms: 0,
            out: Vec::new(),
            assessment: Assessment::without_findings(Tier::Ask),
            ruling: None,
            planned: None,
            remembered_grants: Vec::new(),
            pending: VecDeque::new(),
            escalation: None,
            escalated: BTreeSet::new(),
            in_place: Vec::new(),
            refused: Vec::new(),
            refused_in: BTreeSet::new(),
            answered_no_in: BTreeSet::new(),
            single_call_directories: BTreeSet::new(),
            unsandboxed_consent: false,
            approver: false,
            counted: false,
            attempts: Vec::new(),
            approvals: Vec::new(),
            questions: 0,
            commits: 0,
            record_failed: false,
            in_review: Vec::new(),
        }
    }

    /// Begins the request. A second call does nothing.
    pub fn start(&mut self, now_ms: u64) -> Vec<CoreOutput> {
        self.now_ms = now_ms;
        if matches!(self.phase, RequestPhase::New) {
            let mut request = self.request.clone();
            let environment_names = request.environment.keys().cloned().collect();
            request.environment.clear();
            self.record_event(EventKind::Requested { request: Box::new(request), environment_names });
            self.out.push(CoreOutput::Assess);
            self.phase = RequestPhase::Assessing;
        }
        std::mem::take(&mut self.out)
    }

    /// Processes one input and returns the outputs to carry out. `now_ms` is the time in
    /// milliseconds of any clock that never goes back. Inputs that do not belong to the current
    /// phase, such as a late answer, change nothing.
    pub fn process_input(&mut self, now_ms: u64, input: CoreInput) -> Vec<CoreOutput> {
        self.now_ms = self.now_ms.max(now_ms);
        match input {
            CoreInput::RecordFailed(why) => self.on_record_failed(&why),
            CoreInput::Interrupted(signal) => self.on_interrupted(signal),
            CoreInput::Tick => self.on_tick(),
            CoreInput::NotRemembered(why) => self.on_not_remembered(why),
            CoreInput::Reviewed(reviewed) => self.on_reviewed(*reviewed),
            input => match std::mem::replace(&mut self.phase, RequestPhase::Finished) {
                RequestPhase::Attempt(live) => self.on_attempt(live, input),
                phase => self.on_input(phase, input),
            },
        }
        if let RequestPhase::Attempt(live) = &mut self.phase {
            live.update_clock(self.now_ms);
        }
        std::mem::take(&mut self.out)
    }

    /// Returns the time at which [`CoreInput::Tick`] is due, in the time of [`process_input`](Self::process_input).
    pub fn tick_deadline(&self) -> Option<u64> {
        match &self.phase {
            RequestPhase::Asking(open) => Some(open.deadline_ms),
            RequestPhase::Attempt(live) => live.deadline_ms(self.question_wait_ms()),
            RequestPhase::Closing { deadline_ms, .. } => Some(*deadline_ms),
            _ => None,
        }
    }

    /// Returns whether [`CoreOutput::Finish`] was returned.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, RequestPhase::Finished)
    }

    /// Processes an input before, between or after attempts. `self.phase` is a placeholder here: an
    /// arm sets the next phase; the last arm restores it.
    fn on_input(&mut self, phase: RequestPhase, input: CoreInput) {
        match (phase, input) {
            (RequestPhase::Assessing, CoreInput::Assessed(assessment)) => self.on_assessed(assessment),
            (RequestPhase::Deciding, CoreInput::Decided(ruling)) => self.on_decided(*ruling),
            (RequestPhase::Planning, CoreInput::Planned(planned)) => self.on_planned(*planned),
            (RequestPhase::Planning, CoreInput::PlanFailed(why)) => self.on_plan_failed(why),
            (RequestPhase::FindingRemembered, CoreInput::Remembered(PersistentAnswers { grants, counted, .. })) => {
                self.counted = counted;
                self.on_remembered_grants(&grants);
            }
            (RequestPhase::Recalling(slots), CoreInput::Recalled { answers, approver }) => {
                self.approver = approver;
                self.on_recalled(&slots, answers);
            }
            (RequestPhase::FindingRemembered | RequestPhase::Recalling(_), CoreInput::MemoryFailed(why)) => {
                self.on_memory_failed(&why)
            }
            (RequestPhase::Asking(open), CoreInput::Answered { digest, answer, by })
                if digest == open.question.digest && !open.reviewing =>
            {
                self.on_answered(open, answer, by);
            }
            (RequestPhase::Closing { outcome, commit, .. }, CoreInput::Committed(number)) if number == commit => {
                self.out.push(CoreOutput::Finish(outcome));
            }
            (phase, _) => self.phase = phase,
        }
    }

    fn on_assessed(&mut self, assessment: Assessment) {
        self.record_event(EventKind::Assessed { assessment: assessment.clone() });
        self.out.push(CoreOutput::Decide(Box::new(assessment.clone())));
        self.assessment = assessment;
        self.phase = RequestPhase::Deciding;
    }

    fn on_decided(&mut self, mut ruling: ConsentRuling) {
        self.record_event(EventKind::Decided { decision: ruling.decision.clone() });
        if ruling.decision.verdict == PolicyVerdict::Ask && ruling.questions.is_empty() {
            // An `ask` without a subject is about the run.
            ruling.questions.push(QuestionKind::Run { reasons: ruling.decision.reasons.clone() });
        }
        if let Some(requirements) = &ruling.requirements {
            requirements.put_into(&mut self.request);
        }
        let decision = ruling.decision.clone();
        let unhonoured = ruling.unhonoured.first().cloned();
        self.ruling = Some(ruling);
        if decision.verdict == PolicyVerdict::Deny {
            let why = decision.reasons.first().unwrap_or(&decision.rule);
            return self.end_request(RequestEnd::from_refusal(format!("refused by the rules: {why}")));
        }
        if let Some(grant) = unhonoured {
            return self.fail_request(format!(
                "this sandbox cannot give `{grant}`\nhint: leave the grant out; `stockade doctor` shows what can be given"
            ));
        }
        let mut grants = self.request.grants.clone();
        grants.sort();
        grants.dedup();
        self.make_plan(1, grants);
    }

    pub(super) fn make_plan(&mut self, attempt: u32, grants: Vec<Grant>) {
        self.out.push(CoreOutput::MakePlan { attempt, grants });
        self.phase = RequestPhase::Planning;
    }

    fn on_planned(&mut self, planned: BoundPlan) {
        if self.escalation.is_some() {
            return self.on_escalation_planned(planned);
        }
        if let Err(why) = check_first_plan(&planned.plan, &self.request, self.remembered_grants.as_slice()) {
            return self.fail_request(format!("the plan does not match the request: {why}"));
        }
        let sandboxed = planned.plan.profile.sandboxed;
        if !sandboxed && self.request.sandbox == SandboxPreference::Require {
            let why = "a sandbox is required and the profile has none\nhint: choose another profile";
            return self.end_request(RequestEnd::from_refusal(why));
        }
        let first = self.planned.is_none();
        let context = self.grant_context(&planned);
        self.planned = Some(planned);
        if first && sandboxed {
            self.out.push(CoreOutput::FindRemembered(Box::new(context)));
            self.phase = RequestPhase::FindingRemembered;
        } else {
            self.recall_answers();
        }
    }

    fn on_plan_failed(&mut self, why: String) {
        if self.escalation.is_some() {
            return self.on_escalation_plan_failed(why);
        }
        if self.planned.is_some() && !self.remembered_grants.is_empty() {
            // A remembered power cannot be given any more: continue without it.
            self.remembered_grants.clear();
            self.record_event(EventKind::Failed { message: format!("remembered powers are left out: {why}") });
            return self.recall_answers();
        }
        self.fail_request(why);
    }

    fn on_remembered_grants(&mut self, grants: &[Grant]) {
        let Some(planned) = &self.planned else { return self.recall_answers() };
        let mut all: BTreeSet<Grant> = planned.plan.grants.iter().cloned().collect();
        self.remembered_grants = grants.iter().filter(|&grant| all.insert(grant.clone())).cloned().collect();
        if self.remembered_grants.is_empty() {
            self.recall_answers()
        } else {
            self.make_plan(1, all.into_iter().collect())
        }
    }

    /// Looks up remembered answers: refusals always, approvals if they are needed.
    fn recall_answers(&mut self) {
        let (Some(planned), Some(ruling)) = (&self.planned, &self.ruling) else {
            return self.fail_request("no plan to recall answers for");
        };
        let mut wanted = vec![(KeyPurpose::RunRefusal, run_refusal(&self.request, &self.config.user))];
        if ruling.run_question().is_some() && planned.plan.profile.sandboxed {
            wanted.push((KeyPurpose::RunApproval, self.run_approval_key(planned)));
        }
        let context = self.grant_context(planned);
        wanted.extend(grant_keys(&context, &[QuestionNamespace::Grant], &ruling.grants_in_question()));
        self.look_up_answers(wanted);
    }

    pub(super) fn look_up_answers(&mut self, wanted: Vec<(KeyPurpose, MemoryKey)>) {
        let (slots, keys) = wanted.into_iter().unzip();
        self.out.push(CoreOutput::LookUp(keys));
        self.phase = RequestPhase::Recalling(slots);
    }

    fn on_recalled(&mut self, slots: &[KeyPurpose], answers: Vec<Option<RememberedAnswer>>) {
        if slots.len() != answers.len() {
            return self.on_memory_failed("the number of its answers is not the number of questions");
        }
        let found = RecalledAnswers::from_slots(slots, &answers);
        if self.escalation.is_some() { self.on_escalation_recalled(&found) } else { self.line_up(found) }
    }

    /// Queues the questions of the first attempt, with the remembered answers.
    fn line_up(&mut self, found: RecalledAnswers) {
        let (Some(planned), Some(ruling)) = (&self.planned, &self.ruling) else {
            return self.fail_request("no plan to ask about");
        };
        let sandboxed = planned.plan.profile.sandboxed;
        let (run, by_caller) = (ruling.run_question().cloned(), ruling.by_caller.clone());
        let in_question = ruling.grants_in_question();
        let (yes, no) = (Some(PresetAnswer::Remembered(true)), Some(PresetAnswer::Remembered(false)));
        if found.run_refused {
            let kind = run.unwrap_or(QuestionKind::Run { reasons: ruling.decision.reasons.clone() });
            self.queue_question(kind, no);
            return self.put_next();
        }
        let refused = found.refused_of(&in_question);
        if !refused.is_empty() {
            self.queue_question(QuestionKind::Grants { grants: refused }, no);
            return self.put_next();
        }
        if !self.remembered_grants.is_empty() {
            self.queue_question(QuestionKind::Grants { grants: self.remembered_grants.clone() }, yes);
        }
        match (run.filter(|_| sandboxed), by_caller) {
            (Some(kind), _) => self.queue_question(kind, yes.filter(|_| found.run_approved)),
            (None, Some(kind)) => self.queue_question(kind, Some(PresetAnswer::Caller)),
            (None, None) => {}
        }
        let (known, unknown) = found.split_approved(in_question);
        if !known.is_empty() {
            self.queue_question(QuestionKind::Grants { grants: known }, yes);
        }
        // A question shows at most this many powers.
        for grants in unknown.chunks(self.config.max_question_grants.max(1)) {
            self.queue_question(QuestionKind::Grants { grants: grants.to_vec() }, None);
        }
        if !sandboxed {
            self.queue_question(QuestionKind::Unsandboxed, None);
        }
        self.put_next();
    }

    /// Refuses the run: without the memory a remembered refusal could be missed (L6).
    fn on_memory_failed(&mut self, why: &str) {
        let why = format!("remembered answers cannot be read: {why}");
        match self.escalation.take() {
            Some(escalation) => {
                self.record_event(EventKind::Failed { message: why });
                self.end_request(escalation.ending);
            }
            None => self.fail_request(why),
        }
    }

    fn on_not_remembered(&mut self, why: String) {
        if !matches!(self.phase, RequestPhase::New | RequestPhase::Closing { .. } | RequestPhase::Finished) {
            self.record_event(EventKind::Failed {
                message: format!("the answer applies only once, because it could not be stored: {why}"),
            });
        }
    }

    fn on_record_failed(&mut self, why: &str) {
        self.record_failed = true;
        let hint = if why.contains("\nhint: ") { "" } else { "\nhint: free space for it or repair it" };
        let message = format!("the audit log could not be written: {why}{hint}");
        match std::mem::replace(&mut self.phase, RequestPhase::Finished) {
            RequestPhase::Attempt(live) => self.on_record_failed_in_attempt(live, message),
            RequestPhase::Closing { mut outcome, .. } => {
                outcome.status = FinalStatus::Error;
                outcome.exit_code = None;
                outcome.error = Some(message);
                self.out.push(CoreOutput::Finish(outcome));
            }
            RequestPhase::Finished => {}
            phase => {
                if let RequestPhase::Asking(open) = phase {
                    self.out.push(CoreOutput::Withdraw(open.question.digest));
                }
                self.fail_request(message);
            }
        }
    }

    fn on_interrupted(&mut self, signal: i32) {
        match std::mem::replace(&mut self.phase, RequestPhase::Finished) {
            RequestPhase::Attempt(live) => self.on_interrupted_in_attempt(live, signal),
            RequestPhase::Asking(open) => self.on_interrupted_while_asking(open, signal),
            phase @ (RequestPhase::Closing { .. } | RequestPhase::Finished) => self.phase = phase,
            _ => self.end_request(RequestEnd::from_signal(signal)),
        }
    }

    fn on_tick(&mut self) {
        if self.tick_deadline().is_none_or(|at| at > self.now_ms) {
            return;
        }
        match std::mem::replace(&mut self.phase, RequestPhase::Finished) {
            RequestPhase::Attempt(live) => self.on_tick_in_attempt(live),
            RequestPhase::Asking(open) if open.reviewing => self.on_review_timed_out(open),
            RequestPhase::Asking(open) => self.on_question_timed_out(open),
            phase @ RequestPhase::Closing { .. } => {
                self.phase = phase;
                self.on_record_failed("it took too long");
            }
            phase => self.phase = phase,
        }
    }

    /// Returns the key under which a yes to this run is remembered.
    pub(super) fn run_approval_key(&self, planned: &BoundPlan) -> MemoryKey {
        let binding = RunBinding {
            policy: &self.config.policy,
            user: &self.config.user,
            profile: &planned.profile,
            identity: &planned.identity,
        };
        run_approval(&self.request, &planned.plan, binding)
    }

    pub(super) fn grant_context(&self, planned: &BoundPlan) -> GrantContext {
        let plan = &planned.plan;
        GrantContext {
            directory: planned.workspace.clone(),
            workspace: plan.workspace.clone(),
            profile: plan.profile.name.clone(),
            level: plan.level,
            policy: self.config.policy.clone(),
            user: self.config.user.clone(),
        }
    }

    pub(super) fn record_event(&mut self, kind: EventKind) {
        if !self.record_failed {
            self.out.push(CoreOutput::Record(Box::new(kind)));
        }
    }

    pub(super) fn commit_events(&mut self, durable: bool) -> u64 {
        self.commits += 1;
        self.out.push(CoreOutput::Commit { number: self.commits, durable });
        self.commits
    }
}

impl ConsentRuling {
    /// Returns the question about the run, if there is one.
    fn run_question(&self) -> Option<&QuestionKind> {
        self.questions.iter().find(|kind| matches!(kind, QuestionKind::Run { .. }))
    }

    /// Returns the powers of all questions, sorted and without duplicates.
    fn grants_in_question(&self) -> Vec<Grant> {
        let grants = self.questions.iter().filter_map(|kind| match kind {
            QuestionKind::Grants { grants } => Some(grants),
            _ => None,
        });
        grants.flatten().cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Returns the keys of the remembered answers about `grants`. A refusal in any of the namespaces
/// counts; an approval counts only in the first.
pub(super) fn grant_keys(
    context: &GrantContext,
    namespaces: &[QuestionNamespace],
    grants: &[Grant],
) -> Vec<(KeyPurpose, MemoryKey)> {
    let numbered = || grants.iter().enumerate();
    let mut wanted = Vec::new();
    for &namespace in namespaces {
        if grants.len() > 1 {
            wanted.push((KeyPurpose::AllRefused, context.refusal_key(namespace, grants)));
        }
        let refusal_key = |grant| context.refusal_key(namespace, std::slice::from_ref(grant));
        wanted.extend(numbered().map(|(at, grant)| (KeyPurpose::Refused(at), refusal_key(grant))));
    }
    if let Some(&namespace) = namespaces.first() {
        let approval_key = |grant| context.approval_key(namespace, grant);
        wanted.extend(numbered().map(|(at, grant)| (KeyPurpose::Approved(at), approval_key(grant))));
    }
    wanted
}

/// Remembered answers, by their purpose.
#[derive(Debug, Default)]
pub(super) struct RecalledAnswers {
    run_refused: bool,
    run_approved: bool,
    all_refused: bool,
    pub(super) directory_refused: bool,
    refused: BTreeSet<usize>,
    approved: BTreeSet<usize>,
}

impl RecalledAnswers {
    /// Sorts the answers by their slots. A refusal counts under every key; an approval counts only
    /// under a key for approvals. Time-outs and `abort` are never remembered and count as refusals.
    pub(super) fn from_slots(slots: &[KeyPurpose], answers: &[Option<RememberedAnswer>]) -> Self {
        let mut found = Self::default();
        for (slot, remembered) in slots.iter().zip(answers) {
            let Some(remembered) = remembered else { continue };
            let yes = matches!(remembered.answer, stockade_model::ApprovalAnswer::Approved(_));
            match (*slot, yes) {
                (KeyPurpose::RunApproval, true) => found.run_approved = true,
                (KeyPurpose::Approved(at), true) => {
                    found.approved.insert(at);
                }
                (KeyPurpose::RunRefusal | KeyPurpose::RunApproval, false) => found.run_refused = true,
                (KeyPurpose::AllRefused, false) => found.all_refused = true,
                (KeyPurpose::DirectoryRefused, false) => found.directory_refused = true,
                (KeyPurpose::Refused(at) | KeyPurpose::Approved(at), false) => {
                    found.refused.insert(at);
                }
                (_, true) => {}
            }
        }
        found
    }

    /// Returns the members of `grants` that were refused.
    pub(super) fn refused_of(&self, grants: &[Grant]) -> Vec<Grant> {
        let refused = |at: &usize| self.all_refused || self.refused.contains(at);
        grants.iter().enumerate().filter(|(at, _)| refused(at)).map(|(_, grant)| grant.clone()).collect()
    }

    /// Splits `grants` into the approved ones and the others.
    pub(super) fn split_approved(&self, grants: Vec<Grant>) -> (Vec<Grant>, Vec<Grant>) {
        let (known, unknown): (Vec<_>, Vec<_>) =
            grants.into_iter().enumerate().partition(|(at, _)| self.approved.contains(at));
        let only_grants = |list: Vec<(usize, Grant)>| list.into_iter().map(|(_, grant)| grant).collect();
        (only_grants(known), only_grants(unknown))
    }
}

/// Checks that a first plan fulfils exactly the request (L3, L5).
fn check_first_plan(plan: &AttemptPlan, request: &RunRequest, remembered_grants: &[Grant]) -> Result<(), &'static str> {
    let expected: BTreeSet<&Grant> = request.grants.iter().chain(remembered_grants).collect();
    let plan_grants: BTreeSet<&Grant> = plan.grants.iter().collect();
    let same_command = match &request.command {
        stockade_model::RequestCommand::Argv(argv) => plan.argv == *argv,
        stockade_model::RequestCommand::Script(script) => plan.argv.last() == Some(script),
    };
    let checks = [
        (plan.request == request.id, "another request"),
        (plan.attempt == 1, "another attempt"),
        (same_command, "another command"),
        (plan.cwd == request.cwd, "another working directory"),
        (plan.workspace == request.workspace, "another workspace"),
        (plan.profile.name == request.profile, "another profile"),
        (!plan.profile.sandboxed || plan.level == request.level, "another level"),
        (plan_grants == expected, "other grants"),
    ];
    checks.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, why)| Err(why))
}

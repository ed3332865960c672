//! The laws, watched from outside: sees every input the world gave and every
//! output the core gave back, and knows nothing of how the core works.

use std::collections::{BTreeMap, BTreeSet};

use stockade_backend_api::{HeldAnswer, HoldId};
use stockade_engine::core::{
    AnswerMemo, BoundPlan, ConsentRuling, CoreConfig, CoreInput, CoreOutput, RememberedAnswer,
};
use stockade_engine::exit_code;
use stockade_engine::keys::{GrantContext, MemoryKey, QuestionNamespace};
use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalQuestion, ApprovalScope, AttemptPlan, Denial, Digest, EventKind, FinalStatus,
    Grant, LimitKind, PolicyVerdict, QuestionKind, RequestCommand, ReviewResult, RunOutcome, RunRequest,
};

use crate::held::Held;

pub type Law = Result<(), String>;

pub struct RunChecker {
    request: RunRequest,
    config: CoreConfig,
    log: Vec<EventKind>,
    record_failed: bool,
    commits: Vec<(u64, bool, usize)>,
    durable: usize,
    acknowledged: u64,
    ruling: Option<ConsentRuling>,
    plans: Vec<BoundPlan>,
    memory: BTreeSet<Grant>,
    keys: Vec<MemoryKey>,
    memory_yes: BTreeSet<MemoryKey>,
    memory_no: BTreeSet<MemoryKey>,
    approver: bool,
    open: Option<ApprovalQuestion>,
    /// Explicit yeses since the last release, with the number of the question.
    agreed: Vec<(usize, ApprovalQuestion)>,
    ever_agreed: Vec<ApprovalQuestion>,
    explicit_no: bool,
    last_answer: Option<(QuestionKind, ApprovalAnswer)>,
    /// Whether a reviewer had warned of the question last answered.
    last_warned: bool,
    /// Given to the reviewer, and not put yet.
    in_review: Vec<ApprovalQuestion>,
    /// What the reviewer truly said in time.
    reviews: BTreeMap<String, ReviewResult>,
    escalated: BTreeSet<Grant>,
    sandbox: Option<Sandbox>,
    released: Vec<AttemptPlan>,
    pub finished: Option<RunOutcome>,
    dead: bool,
    counted: bool,
    pub held: Held,
    pub now_ms: u64,
}

struct Sandbox {
    planned: BoundPlan,
    is_built: bool,
    released: bool,
    hold: bool,
    /// It is being ended.
    ending: bool,
    /// It went beyond a limit.
    breached: bool,
    /// How long it ran while nobody was asked about a held call.
    used_ms: Option<u64>,
    /// The limit of its plan, and what it was raised to.
    wall_ms: Option<u64>,
    /// Its time is over, and it stands still until somebody gave more or did not.
    stands: bool,
    /// Under this number that is asked.
    asks_for_time: Option<HoldId>,
}

pub fn need(holds: bool, law: &str) -> Law {
    if holds { Ok(()) } else { Err(law.to_owned()) }
}

impl RunChecker {
    pub fn new(request: RunRequest, config: CoreConfig) -> Self {
        Self {
            request,
            config,
            log: Vec::new(),
            record_failed: false,
            commits: Vec::new(),
            durable: 0,
            acknowledged: 0,
            ruling: None,
            plans: Vec::new(),
            memory: BTreeSet::new(),
            keys: Vec::new(),
            memory_yes: BTreeSet::new(),
            memory_no: BTreeSet::new(),
            approver: false,
            open: None,
            agreed: Vec::new(),
            ever_agreed: Vec::new(),
            explicit_no: false,
            last_answer: None,
            last_warned: false,
            in_review: Vec::new(),
            reviews: BTreeMap::new(),
            escalated: BTreeSet::new(),
            sandbox: None,
            released: Vec::new(),
            finished: None,
            dead: false,
            counted: false,
            held: Held::default(),
            now_ms: 0,
        }
    }

    /// Time goes on. What somebody is asked about a held call takes none of the
    /// command's.
    pub fn time(&mut self, now_ms: u64) {
        let passed_ms = now_ms - self.now_ms;
        self.now_ms = now_ms;
        if let Some(used_ms) = self.sandbox.as_mut().and_then(|sandbox| sandbox.used_ms.as_mut()) {
            *used_ms += if self.held.waits_for_an_approver() { 0 } else { passed_ms };
        }
        if let Some(sandbox) = self.sandbox.as_mut().filter(|sandbox| sandbox.stands) {
            sandbox.used_ms = sandbox.wall_ms;
        }
    }

    /// Whether the sandbox that stands has used up its time.
    fn is_time_over(&self, sandbox: &Sandbox) -> bool {
        let limits = [self.request.timeout_ms, sandbox.wall_ms];
        sandbox.used_ms.zip(limits.into_iter().flatten().min()).is_some_and(|(used_ms, limit_ms)| used_ms >= limit_ms)
    }

    /// What the world truly says to the core.
    pub fn input(&mut self, input: &CoreInput) {
        if let CoreInput::Answered { digest, .. } = input {
            self.last_warned = self.reviews.get(digest.as_str()).is_some_and(ReviewResult::raises_caution);
        }
        match input {
            CoreInput::Reviewed(reviewed)
                if self.in_review.iter().any(|review_question| review_question.digest == reviewed.digest) =>
            {
                self.reviews.entry(reviewed.digest.to_string()).or_insert_with(|| reviewed.review.clone());
            }
            CoreInput::Decided(ruling) => self.ruling = Some((**ruling).clone()),
            CoreInput::Planned(planned) => self.plans.push((**planned).clone()),
            CoreInput::Remembered(memory) => {
                self.memory.extend(memory.grants.iter().cloned());
                self.counted = memory.counted;
            }
            CoreInput::Held(call) => {
                if let Some(sandbox) = self.sandbox.as_ref().filter(|sandbox| sandbox.released) {
                    self.held.told(call, &sandbox.planned);
                }
                if let Some(sandbox) = self.sandbox.as_mut().filter(|_| call.denial.is_of_limit(LimitKind::Wall)) {
                    sandbox.asks_for_time = Some(call.id);
                }
            }
            CoreInput::HeldRecalled { id, answers, approver } => {
                self.held.recalled(*id, answers, *approver, &mut self.memory_yes);
            }
            CoreInput::Breached { .. } => {
                if let Some(sandbox) = self.sandbox.as_mut().filter(|sandbox| sandbox.released) {
                    sandbox.breached = true;
                }
            }
            CoreInput::Withdrawn(id) => self.held.withdrawn(*id),
            CoreInput::Answered { digest, answer, .. } if self.held.is_open(digest) => {
                if let Some(kind) = self.held.answered(digest, *answer, self.now_ms) {
                    self.last_answer = Some((kind, *answer));
                }
                self.sandbox_ends(*answer == ApprovalAnswer::Abort);
            }
            CoreInput::Interrupted(_) => self.sandbox_ends(true),
            CoreInput::Recalled { answers, approver } => {
                self.approver = *approver;
                for (key, answer) in std::mem::take(&mut self.keys).into_iter().zip(answers) {
                    match answer {
                        Some(RememberedAnswer { answer: ApprovalAnswer::Approved(_), .. }) if !key.refusal => {
                            self.memory_yes.insert(key);
                        }
                        Some(RememberedAnswer { answer: ApprovalAnswer::Denied(_), .. }) => {
                            self.memory_no.insert(key);
                        }
                        _ => {}
                    }
                }
            }
            CoreInput::Answered { digest, answer, .. } if self.open.as_ref().is_some_and(|q| q.digest == *digest) => {
                let Some(question) = self.open.take() else { return };
                self.last_answer = Some((question.kind.clone(), *answer));
                match answer {
                    ApprovalAnswer::Approved(_) | ApprovalAnswer::Group(_) => {
                        let number = self.log.iter().filter(|kind| matches!(kind, EventKind::Asked { .. })).count();
                        self.ever_agreed.push(question.clone());
                        self.agreed.push((number, question));
                    }
                    ApprovalAnswer::Denied(_) | ApprovalAnswer::Abort | ApprovalAnswer::TimedOut => {
                        self.explicit_no = true
                    }
                }
            }
            CoreInput::Committed(number) => {
                let through = self.commits.iter().filter(|(n, durable, _)| n == number && *durable);
                if self.commits.iter().any(|(n, ..)| n == number) {
                    self.acknowledged = self.acknowledged.max(*number);
                }
                self.durable = through.map(|(_, _, length)| *length).fold(self.durable, usize::max);
            }
            CoreInput::RecordFailed(_) => {
                self.record_failed = true;
                self.sandbox_ends(true);
            }
            CoreInput::Prepared(_) => {
                if let Some(sandbox) = &mut self.sandbox {
                    sandbox.is_built = true;
                }
            }
            CoreInput::Released => {
                if let Some(sandbox) = self.sandbox.as_mut().filter(|sandbox| sandbox.released) {
                    sandbox.used_ms.get_or_insert(0);
                }
            }
            CoreInput::PrepareFailed(_) => self.sandbox = None,
            CoreInput::Ended(_) => self.on_sandbox_end(),
            _ => {}
        }
    }

    fn sandbox_ends(&mut self, ends: bool) {
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.ending |= ends;
        }
    }

    fn on_sandbox_end(&mut self) {
        self.sandbox = None;
        self.held.on_sandbox_end();
    }

    /// After a step was carried out.
    pub fn at_rest(&self, looked_at_time: bool) -> Law {
        if self.record_failed {
            return Ok(());
        }
        if looked_at_time {
            let review_ms = self.config.reviewer.as_ref().map_or(0, |options| options.timeout_ms);
            self.held.in_time(self.now_ms, &self.in_review, review_ms)?;
            let outlives = |sandbox: &Sandbox| !sandbox.ending && !sandbox.stands && self.is_time_over(sandbox);
            need(!self.sandbox.as_ref().is_some_and(outlives), "a command outlives its time")?;
        }
        let outlives = |sandbox: &Sandbox| sandbox.breached && !sandbox.ending;
        need(!self.sandbox.as_ref().is_some_and(outlives), "a command outlives a limit")?;
        self.held.at_rest(self.config.max_questions)
    }

    /// What the core says. For `Record`, what was truly written.
    pub fn output(&mut self, output: &CoreOutput) -> Law {
        need(!self.dead, "an output after Finish")?;
        match output {
            CoreOutput::Record(kind) => self.recorded(kind),
            CoreOutput::Commit { number, durable } => {
                self.commits.push((*number, *durable, self.log.len()));
                Ok(())
            }
            CoreOutput::LookUp(keys) => {
                self.keys = keys.clone();
                Ok(())
            }
            CoreOutput::Review(question) => {
                need(self.config.reviewer.is_some(), "a review that nobody wants")?;
                self.in_review.push((**question).clone());
                self.asked(question)
            }
            CoreOutput::Ask(question) if self.config.reviewer.is_some() => self.put_reviewed(question),
            CoreOutput::Ask(question) => self.asked(question),
            CoreOutput::Remember(memos) => self.remembered(memos),
            CoreOutput::Prepare { planned, hold } => self.prepared(planned, *hold),
            CoreOutput::Release => self.release(),
            CoreOutput::Signal(_) | CoreOutput::Kill => {
                let Some(sandbox) = self.sandbox.as_ref().filter(|sandbox| sandbox.released) else {
                    return Err("a signal to nothing that runs".to_owned());
                };
                // Nobody else ends it.
                let may_end = sandbox.ending || sandbox.breached || self.is_time_over(sandbox);
                need(may_end, "ended before its time, or in a person's")?;
                self.sandbox_ends(true);
                Ok(())
            }
            CoreOutput::Discard => {
                self.on_sandbox_end();
                Ok(())
            }
            CoreOutput::LookUpHeld { id, keys } => self.held.looked_up(*id, keys),
            CoreOutput::StandStill(limit) => self.stands_still(limit),
            CoreOutput::Withdraw(digest) => self.withdrawn(digest),
            CoreOutput::AnswerHeld { id, answer } => {
                let sandbox = self.sandbox.as_ref().filter(|sandbox| sandbox.released);
                let Some(sandbox) = sandbox else { return Err("answered a call of a sandbox that is gone".to_owned()) };
                let context = self.context(&sandbox.planned.plan);
                let may_grant = !sandbox.ending && !self.record_failed && sandbox.hold;
                let remembered =
                    |grant: &Grant| self.memory_yes.contains(&context.approval_key(QuestionNamespace::Grant, grant));
                self.held.replied(*id, answer, may_grant, &self.log, remembered)?;
                self.answered_for_time(*id, answer);
                Ok(())
            }
            CoreOutput::Finish(outcome) => self.finish(outcome),
            CoreOutput::Assess
            | CoreOutput::Decide(_)
            | CoreOutput::MakePlan { .. }
            | CoreOutput::FindRemembered(_) => Ok(()),
        }
    }

    /// Only for more time than the plan has; what the caller gave is the end.
    fn stands_still(&mut self, limit: &Denial) -> Law {
        let Some(sandbox) = self.sandbox.as_ref().filter(|sandbox| sandbox.released && sandbox.hold) else {
            return Err("made to stand still where nobody may be asked".to_owned());
        };
        need(!sandbox.ending && !sandbox.stands, "made to stand still twice, or at its end")?;
        let by_caller =
            self.request.timeout_ms.zip(sandbox.wall_ms).is_some_and(|(limit, wall_limit)| wall_limit >= limit);
        need(self.is_time_over(sandbox) && !by_caller, "made to stand still before its time, or for a caller's limit")?;
        let twice = sandbox.wall_ms.map(|wall_ms| Grant::Limit(LimitKind::Wall, wall_ms * 2));
        need(limit.is_of_limit(LimitKind::Wall) && limit.grant == twice, "asks for something else than more time")?;
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.stands = true;
            sandbox.used_ms = sandbox.wall_ms;
        }
        Ok(())
    }

    fn answered_for_time(&mut self, id: HoldId, answer: &HeldAnswer) {
        let Some(sandbox) = self.sandbox.as_mut().filter(|sandbox| sandbox.asks_for_time == Some(id)) else { return };
        sandbox.stands = false;
        sandbox.asks_for_time = None;
        if let HeldAnswer::Granted(grants) = answer {
            let of_time = |grant: &Grant| if let Grant::Limit(LimitKind::Wall, ms) = grant { Some(*ms) } else { None };
            sandbox.wall_ms = grants.iter().find_map(of_time);
            self.held.seen.lengthened += 1;
        }
    }

    fn recorded(&mut self, kind: &EventKind) -> Law {
        need(!self.record_failed, "a record after one that failed")?;
        self.grammar(kind)?;
        self.log.push(kind.clone());
        if let EventKind::Answered { digest, answer: ApprovalAnswer::TimedOut, by, .. } = kind
            && by == "nobody"
        {
            self.held.timed_out(digest, self.now_ms);
        }
        Ok(())
    }

    /// Which event may follow which.
    fn grammar(&self, kind: &EventKind) -> Law {
        let mut open: Vec<&Digest> = Vec::new();
        let (mut starts, mut exits) = (0, 0);
        let (mut decided, mut finished) = (false, false);
        for kind in &self.log {
            match kind {
                EventKind::Asked { question } => open.push(&question.digest),
                EventKind::Answered { digest, .. } | EventKind::Withdrawn { digest: Some(digest), .. } => {
                    open.retain(|asked| *asked != digest);
                }
                EventKind::Starting { .. } => starts += 1,
                EventKind::Exited { .. } => exits += 1,
                EventKind::Decided { .. } => decided = true,
                EventKind::Finished { .. } => finished = true,
                _ => {}
            }
        }
        need(!finished, "an event after Finished")?;
        let fits = match kind {
            EventKind::Requested { request, .. } => self.log.is_empty() && request.environment.is_empty(),
            EventKind::Assessed { .. } => self.log.len() == 1,
            EventKind::Decided { .. } => matches!(self.log.last(), Some(EventKind::Assessed { .. })),
            EventKind::Asked { question } if matches!(question.kind, QuestionKind::Hold { .. }) => starts == exits + 1,
            EventKind::Asked { .. } => decided && open.is_empty(),
            EventKind::Answered { digest, .. } => open.contains(&digest),
            EventKind::Reviewed { digest, late: false, .. } => {
                open.contains(&digest) && self.in_review.iter().any(|review_question| review_question.digest == *digest)
            }
            EventKind::Reviewed { .. } => self.config.reviewer.is_some(),
            // The driver's.
            EventKind::ReviewSent { .. } => false,
            EventKind::Withdrawn { digest, holds, .. } => match digest {
                Some(digest) => open.contains(&digest),
                None => !holds.is_empty(),
            },
            EventKind::Held { .. } => starts == exits + 1,
            EventKind::Starting { attempt, .. } => {
                open.is_empty() && starts == exits && *attempt as usize == starts + 1
            }
            EventKind::Started { attempt, .. }
            | EventKind::Exited { attempt, .. }
            | EventKind::Connection { attempt, .. }
            | EventKind::Signed { attempt, .. } => starts == exits + 1 && *attempt as usize == starts,
            EventKind::Executed { .. } | EventKind::Denied { .. } => starts == exits + 1,
            EventKind::Traced { attempt, .. } => starts == exits && *attempt as usize == starts,
            EventKind::Granted { holds, .. } if holds.is_empty() => starts == exits && exits > 0,
            EventKind::Granted { .. } => starts == exits + 1,
            EventKind::Failed { .. } => true,
            EventKind::Finished { .. } => open.is_empty() && !self.log.is_empty(),
            EventKind::Revoked { .. }
            | EventKind::Committed { .. }
            | EventKind::Discarded { .. }
            | EventKind::Undone { .. }
            | EventKind::Forgotten => false,
            // Whoever serves a run's clients records these, not its engine.
            EventKind::Attached { .. } | EventKind::Typed { .. } | EventKind::Left { .. } => false,
        };
        if fits { Ok(()) } else { Err(format!("an event out of place: {kind:?} after {:?}", self.log.last())) }
    }

    /// A question that comes from the reviewer: as it was given to it, with what
    /// it truly said.
    fn put_reviewed(&mut self, question: &ApprovalQuestion) -> Law {
        let Some(at) = self.in_review.iter().position(|review_question| review_question.digest == question.digest)
        else {
            return Err("put without a review, or twice".to_owned());
        };
        let review_question = self.in_review.remove(at);
        self.held.put(&question.digest, self.now_ms);
        let Some(review) = question.review.clone() else { return Err("put without a review".to_owned()) };
        let noted = matches!(self.log.last(), Some(EventKind::Reviewed { digest, review: noted, late: false, .. })
            if *digest == question.digest && *noted == review);
        need(noted, "put with another review than is on record")?;
        match self.reviews.get(question.digest.as_str()) {
            Some(expected_review) => need(review == *expected_review, "another review than was given")?,
            None => need(review.opinion.is_none(), "an opinion that nobody gave")?,
        }
        need(
            ApprovalQuestion { review: None, ..question.clone() } == review_question,
            "what is put is not what was reviewed (L5)",
        )
    }

    fn asked(&mut self, question: &ApprovalQuestion) -> Law {
        if let QuestionKind::Hold { .. } = question.kind {
            return self.check_held_question(question);
        }
        need(self.open.is_none(), "two questions at once")?;
        need(self.sandbox.is_none(), "a question while a sandbox stands")?;
        need(self.approver, "a question to nobody")?;
        let last = self.log.last();
        let noted = matches!(last, Some(EventKind::Asked { question: noted }) if **noted == *question);
        need(noted, "what is asked is not what was recorded as asked (L5)")?;
        if let QuestionKind::Escalate { grants, .. } = &question.kind {
            need(grants.iter().all(|g| self.escalated.insert(g.clone())), "the same power asked for twice")?;
            let settled = grants.iter().any(|grant| self.held.is_asked_or_settled(grant));
            need(!settled, "asked for a re-run with what was settled in place")?;
        }
        self.open = Some(question.clone());
        Ok(())
    }

    fn check_held_question(&mut self, question: &ApprovalQuestion) -> Law {
        let noted = matches!(self.log.last(), Some(EventKind::Asked { question: noted }) if **noted == *question);
        need(noted, "what is asked is not what was recorded as asked (L5)")?;
        let Some(sandbox) = self.sandbox.as_ref().filter(|sandbox| sandbox.released) else {
            return Err("a held call of no sandbox".to_owned());
        };
        need(sandbox.hold, "a held call of a sandbox that holds none")?;
        need(!sandbox.ending, "asked although the end began")?;
        let number = self.log.iter().filter(|kind| matches!(kind, EventKind::Asked { .. })).count() as u32;
        let bound = (sandbox.planned.digest.as_str(), number, &question.kind, &question.group);
        let digest = Digest::of_json("stockade-question-1", &bound).ok();
        need(digest.as_ref() == Some(&question.digest), "a question that is not bound to what runs (L5)")?;
        self.held.asked(question, self.now_ms, self.request.approval_mode, self.config.max_questions, &self.log)
    }

    fn withdrawn(&mut self, digest: &Digest) -> Law {
        self.in_review.retain(|review_question| review_question.digest != *digest);
        if self.held.is_open(digest) {
            self.held.taken_back(digest);
            return Ok(());
        }
        let open_question = self.open.take_if(|open| open.digest == *digest);
        let timed_out = |kind: &EventKind| matches!(kind, EventKind::Answered { digest: noted, .. } if noted == digest);
        // A question whose record failed was never put.
        let over = open_question.is_some() || self.record_failed || self.log.iter().any(timed_out);
        need(over, "took back what was not asked")
    }

    fn remembered(&self, memos: &[AnswerMemo]) -> Law {
        let Some((kind, answer)) = &self.last_answer else { return Err("kept an answer nobody gave".to_owned()) };
        let (yes, scope) = match answer {
            ApprovalAnswer::Approved(scope) | ApprovalAnswer::Group(scope) => (true, *scope),
            ApprovalAnswer::Denied(scope) => (false, *scope),
            ApprovalAnswer::Abort | ApprovalAnswer::TimedOut => return Err("kept silence or an abort".to_owned()),
        };
        need(!matches!(scope, ApprovalScope::Once | ApprovalScope::Times(0 | 1)), "kept an answer for once")?;
        need(!yes || !self.last_warned, "kept a yes that was warned of")?;
        for memo in memos {
            need(matches!(memo.answer, ApprovalAnswer::Approved(_)) == yes, "kept another answer than was given")?;
            need(memo.key.refusal != yes, "kept an answer under a key of the other kind")?;
            let fits = match kind {
                QuestionKind::Run { .. } => memo.key.namespace == QuestionNamespace::Run,
                QuestionKind::Grants { .. } => memo.key.namespace == QuestionNamespace::Grant,
                QuestionKind::Escalate { .. } if yes => memo.key.namespace != QuestionNamespace::Run,
                QuestionKind::Escalate { .. } => memo.key.namespace == QuestionNamespace::Escalate,
                QuestionKind::Hold { .. } if yes => memo.key.namespace == QuestionNamespace::Grant,
                QuestionKind::Hold { .. } => memo.key.namespace == QuestionNamespace::Escalate,
                QuestionKind::Unsandboxed => false,
            };
            need(fits, "kept an answer in another namespace")?;
        }
        Ok(())
    }

    fn prepared(&mut self, planned: &BoundPlan, hold: bool) -> Law {
        let mode = self.request.approval_mode != ApprovalMode::Never;
        let somebody = self.approver || self.counted;
        let rules = self.ruling.as_ref().is_some_and(|ruling| ruling.gives_powers);
        let answers = rules || (mode && somebody);
        need(!hold || (answers && planned.plan.profile.sandboxed), "calls held that nobody could answer")?;
        need(self.sandbox.is_none(), "a second sandbox beside one that stands")?;
        // Equal in every part, its digests among them.
        need(self.plans.contains(planned), "a plan that nobody made (L5)")?;
        let planned = planned.clone();
        self.sandbox = Some(Sandbox {
            wall_ms: planned.plan.profile.limits.wall_ms,
            stands: false,
            asks_for_time: None,
            planned,
            is_built: false,
            released: false,
            hold,
            ending: false,
            breached: false,
            used_ms: None,
        });
        Ok(())
    }

    fn release(&mut self) -> Law {
        let Some(sandbox) = &mut self.sandbox else { return Err("released nothing".to_owned()) };
        need(sandbox.is_built, "released before the sandbox stood")?;
        need(!sandbox.released, "released twice")?;
        sandbox.released = true;
        let planned = sandbox.planned.clone();
        let plan = &planned.plan;
        need(!self.record_failed, "released without a record (L6)")?;
        let starts = |kind: &EventKind| {
            matches!(kind, EventKind::Starting { digest, attempt, argv, grants, cwd, profile, .. }
                if *digest == planned.digest && *attempt == plan.attempt && *argv == plan.argv
                    && *grants == plan.grants && *cwd == plan.cwd && *profile == plan.profile.name)
        };
        need(self.log[..self.durable].iter().any(starts), "released before its start was durable (L6)")?;
        need(!self.explicit_no, "released after a no (L9)")?;
        need(self.released.len() < self.config.max_attempts as usize, "too many attempts")?;
        self.consented(&planned)?;
        self.released.push(plan.clone());
        self.held.released();
        self.agreed.clear();
        Ok(())
    }

    fn consented(&self, planned: &BoundPlan) -> Law {
        let plan = &planned.plan;
        self.check_plan_request(plan)?;
        for (number, question) in &self.agreed {
            let bound = (planned.digest.as_str(), *number as u32, &question.kind, &question.group);
            let digest = Digest::of_json("stockade-question-1", &bound).ok();
            need(digest.as_ref() == Some(&question.digest), "what ran is not what was agreed to (L5)")?;
        }
        if !plan.profile.sandboxed {
            let agreed = self.ever_agreed.iter().any(|q| q.kind == QuestionKind::Unsandboxed);
            need(agreed, "no sandbox and nobody agreed to that (L1)")?;
        }
        match self.released.last() {
            None => self.first_consented(plan),
            Some(last) => self.next_consented(last, plan),
        }
    }

    fn check_plan_request(&self, plan: &AttemptPlan) -> Law {
        let command = match &self.request.command {
            RequestCommand::Argv(argv) => plan.argv == *argv,
            RequestCommand::Script(script) => plan.argv.last() == Some(script),
        };
        need(command && plan.cwd == self.request.cwd, "what ran is not what was asked for (L5)")?;
        need(plan.profile.name == self.request.profile, "another profile than was asked for (L1)")
    }

    fn first_consented(&self, plan: &AttemptPlan) -> Law {
        let Some(ruling) = &self.ruling else { return Err("released without a decision (L1)".to_owned()) };
        need(ruling.decision.verdict != PolicyVerdict::Deny, "released what the rules deny (L9)")?;
        need(self.memory_no.is_empty(), "released against a remembered no (L9)")?;
        let asks_run = ruling.questions.iter().any(|k| matches!(k, QuestionKind::Run { .. }))
            || (ruling.decision.verdict == PolicyVerdict::Ask && ruling.questions.is_empty());
        if asks_run && plan.profile.sandboxed {
            let agreed = self.ever_agreed.iter().any(|q| matches!(q.kind, QuestionKind::Run { .. }));
            let remembered = self.memory_yes.iter().any(|key| key.namespace == QuestionNamespace::Run);
            need(agreed || remembered, "released without the consent that the rules ask for (L1)")?;
        }
        let in_question: BTreeSet<&Grant> = ruling
            .questions
            .iter()
            .filter_map(|kind| match kind {
                QuestionKind::Grants { grants } => Some(grants),
                _ => None,
            })
            .flatten()
            .collect();
        for grant in &plan.grants {
            let by_hand = self.request.grants.contains(grant) && !in_question.contains(grant);
            let agreed = self
                .ever_agreed
                .iter()
                .any(|q| matches!(&q.kind, QuestionKind::Grants { grants } if grants.contains(grant)));
            let remembered = self.remembers(plan, QuestionNamespace::Grant, grant) || self.memory.contains(grant);
            need(by_hand || agreed || remembered, "a power nobody agreed to (L3)")?;
        }
        Ok(())
    }

    fn next_consented(&self, last: &AttemptPlan, plan: &AttemptPlan) -> Law {
        let in_place = self.held.in_place(self.released.len() - 1);
        let keeps_powers = last.grants.iter().chain(in_place.iter().copied()).all(|g| plan.grants.contains(g));
        need(keeps_powers, "a later attempt lost a power")?;
        need(
            plan.profile.sandboxed == last.profile.sandboxed
                && plan.level == last.level
                && plan.argv == last.argv
                && plan.workspace == last.workspace
                && plan.attempt == last.attempt + 1,
            "a later attempt is not the same sandbox (L3)",
        )?;
        let context = self.context(plan);
        let added = plan.grants.iter().filter(|g| !last.grants.contains(g) && !in_place.contains(g));
        let added: Vec<&Grant> = added.collect();
        need(!added.is_empty(), "run again with nothing added (L4)")?;
        for grant in added {
            let agreed = self
                .agreed
                .iter()
                .any(|(_, q)| matches!(&q.kind, QuestionKind::Escalate { grants, .. } if grants.contains(grant)));
            let remembered = self.remembers(plan, QuestionNamespace::Escalate, grant);
            need(agreed || remembered, "a power nobody agreed to (L3)")?;
            let alone = std::slice::from_ref(grant);
            let refused = [QuestionNamespace::Grant, QuestionNamespace::Escalate]
                .iter()
                .any(|&namespace| self.memory_no.contains(&context.refusal_key(namespace, alone)));
            need(!refused, "a power against a remembered no (L9)")?;
        }
        Ok(())
    }

    fn remembers(&self, plan: &AttemptPlan, namespace: QuestionNamespace, grant: &Grant) -> bool {
        self.memory_yes.contains(&self.context(plan).approval_key(namespace, grant))
    }

    fn context(&self, plan: &AttemptPlan) -> GrantContext {
        GrantContext {
            workspace: plan.workspace.clone(),
            directory: Digest::of_fields("stockade-workspace-1", []),
            profile: plan.profile.name.clone(),
            level: plan.level,
            policy: self.config.policy.clone(),
            user: self.config.user.clone(),
        }
    }

    fn finish(&mut self, outcome: &RunOutcome) -> Law {
        need(self.sandbox.is_none(), "finished while a sandbox stands (L8)")?;
        self.dead = true;
        need(outcome.id == self.request.id, "the outcome of another request")?;
        let unacknowledged = self.commits.last().is_none_or(|(number, ..)| *number > self.acknowledged);
        if self.record_failed || unacknowledged {
            need(outcome.status == FinalStatus::Error, "a record failed and the outcome hides it (L6)")?;
        } else {
            let last = self.log.last();
            let told = matches!(last, Some(EventKind::Finished { status, exit_code: code })
                if *status == outcome.status && *code == exit_code(outcome));
            need(told, "the outcome is not what was recorded")?;
            let answers = self.log.iter().filter(|k| matches!(k, EventKind::Answered { .. })).count();
            need(answers == outcome.approvals.len(), "the outcome lacks answers")?;
        }
        for (at, plan) in self.released.iter().enumerate() {
            let had: BTreeSet<&Grant> = plan.grants.iter().chain(self.held.in_place(at)).collect();
            let told: BTreeSet<&Grant> = outcome.attempts.get(at).into_iter().flat_map(|a| &a.grants).collect();
            need(had == told || self.record_failed, "the outcome tells other powers than the attempt had")?;
        }
        let ran = !self.released.is_empty();
        need(!(outcome.status == FinalStatus::Refused && ran), "refused although it ran")?;
        let by_itself = matches!(outcome.status, FinalStatus::Exited | FinalStatus::Signaled);
        need(!by_itself || ran, "ended by itself without having run")?;
        self.finished = Some(outcome.clone());
        Ok(())
    }
}

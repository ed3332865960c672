//! The world around one core: rules, planner, memory, disk, sandbox, people and
//! time, all of them random and some of them hostile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use stockade_backend_api::{AttemptEnd, CommandEnd, HeldAnswer, HoldId};
use stockade_engine::core::{
    BoundPlan, ConsentRuling, CoreConfig, CoreInput, CoreOutput, HeldCall, QuestionReview, RememberedAnswer,
    RequestCore, ReviewerSpec,
};
use stockade_engine::keys::MemoryKey;
use stockade_engine::ports::{HeldRule, PersistentAnswers};
use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalScope, Assessment, AttemptPlan, CallerApproval, Decision, Denial,
    DenialLayer, DenialResolution, DeniedOperation, Digest, EnforcementReport, EnvironmentRules, FilesystemAccess,
    Grant, GranularMode, IsolationLevel, LimitKind, Limits, NetworkAccess, PolicyVerdict, Profile, QuestionKind,
    RawText, RequestCommand, ReviewOpinion, ReviewResult, RiskLevel, RunRequest, SandboxPreference, Tier,
};

use crate::checker::RunChecker;
use crate::fault::{self, Fault};
use crate::held::Seen;
use crate::random::Random;

/// A request that takes more steps than this does not end.
const MAX_STEPS: usize = 3_000;

pub struct World {
    random: Random,
    request: RunRequest,
    core: RequestCore,
    checker: RunChecker,
    fault: Option<Fault>,
    now_ms: u64,
    /// Answers the world owes, in no order.
    owed: Vec<CoreInput>,
    /// Digests of questions that were put, for late and wrong answers.
    asked: Vec<Digest>,
    running: bool,
    killed: bool,
    /// This sandbox does not end when it is killed.
    hangs: bool,
    /// This sandbox holds calls.
    holding: bool,
    /// Calls that wait.
    waiting: Vec<HoldId>,
    /// What of them is about a limit.
    limits: BTreeMap<HoldId, Denial>,
    /// Calls that were told, over all attempts.
    pub held: usize,
    trace: bool,
    pub steps: usize,
    pub attempts: usize,
    /// Bytes that say what happened, for counting different ways.
    pub path_hash: u64,
}

/// Every power there is in this world.
static GRANTS: LazyLock<Vec<Grant>> = LazyLock::new(|| {
    ["write /srv/a", "write /srv/b", "read /home/u/.netrc", "connect pypi.org:443", "socket /run/x", "env TOKEN"]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect()
});

/// One that only an answer gives.
static EFFECT: LazyLock<Grant> = LazyLock::new(|| "effect publishes by npm".parse().unwrap());

/// Files of two directories that may be offered, for held calls.
static FILES: LazyLock<Vec<(Grant, Grant)>> = LazyLock::new(|| {
    let files = [("/d", 4), ("/e", 3)].into_iter().flat_map(|(dir, count)| (0..count).map(move |n| (dir, n)));
    files.map(|(dir, n)| (Grant::Write(format!("{dir}/{n}").into()), Grant::Write(dir.into()))).collect()
});

fn request(random: &mut Random) -> RunRequest {
    let command = if random.chance(50) {
        RequestCommand::Argv(vec!["make".into(), "all".into()])
    } else {
        RequestCommand::Script("make all || true".into())
    };
    let modes = [
        ApprovalMode::OnFailure,
        ApprovalMode::OnFailure,
        ApprovalMode::Untrusted,
        ApprovalMode::OnRequest,
        ApprovalMode::Never,
        ApprovalMode::Granular(GranularMode { run: true, filesystem: true, network: false, other: false }),
    ];
    let caller = CallerApproval { by: "agent".to_owned(), warnings: vec!["careful".to_owned()] };
    RunRequest {
        id: "req_1".parse().unwrap(),
        session: random.chance(70).then(|| "ses_1".parse().unwrap()),
        command,
        cwd: "/work".into(),
        workspace: "/work".into(),
        environment: BTreeMap::from([("A".to_owned(), "1".into()), ("TOKEN".to_owned(), "s".into())]),
        profile: if random.chance(15) { "host" } else { "workspace" }.to_owned(),
        grants: if random.chance(30) { random.subset(&GRANTS, 30) } else { Vec::new() },
        requested: Vec::new(),
        level: random.pick(&[IsolationLevel::Full, IsolationLevel::Full, IsolationLevel::Restricted]),
        approval_mode: random.pick(&modes),
        sandbox: if random.chance(5) { SandboxPreference::Require } else { SandboxPreference::Auto },
        timeout_ms: random.chance(30).then(|| random.pick(&[5_000, 90_000])),
        limits: Limits::default(),
        caller_approval: random.chance(20).then_some(caller),
    }
}

fn ruling(random: &mut Random, request: &RunRequest) -> ConsentRuling {
    let verdict = random.pick(&[
        PolicyVerdict::Allow,
        PolicyVerdict::Allow,
        PolicyVerdict::Allow,
        PolicyVerdict::Ask,
        PolicyVerdict::Ask,
        PolicyVerdict::Ask,
        PolicyVerdict::Deny,
    ]);
    let run = QuestionKind::Run { reasons: vec!["because".to_owned()] };
    let mut questions = Vec::new();
    if verdict == PolicyVerdict::Ask {
        questions.extend(random.chance(60).then(|| run.clone()));
        if !request.grants.is_empty() && random.chance(70) {
            questions.push(QuestionKind::Grants { grants: request.grants.clone() });
        }
    }
    let by_caller = (request.caller_approval.is_some() && random.chance(50)).then_some(run);
    let unhonoured = if random.chance(3) { random.subset(&request.grants, 50) } else { Vec::new() };
    let decision = Decision { verdict, rule: "rule".to_owned(), reasons: vec!["because".to_owned()] };
    let gives_powers = random.chance(15);
    ConsentRuling { decision, questions, by_caller, unhonoured, gives_powers, requirements: None }
}

thread_local! {
    /// Plans met before: digests are most of what a world costs.
    static PLANNED: RefCell<Vec<BoundPlan>> = const { RefCell::new(Vec::new()) };
}

fn planned(plan: AttemptPlan) -> BoundPlan {
    PLANNED.with_borrow_mut(|known| {
        if let Some(planned) = known.iter().find(|planned| planned.plan == plan) {
            return planned.clone();
        }
        let planned = BoundPlan::new(plan, Digest::of_fields("identity", [])).unwrap();
        if known.len() < 200 {
            known.push(planned.clone());
        }
        planned
    })
}

impl World {
    pub fn new(seed: u64, fault: Option<Fault>, trace: bool) -> Self {
        let mut random = Random::from_seed(seed);
        let request = request(&mut random);
        let policy = Digest::of_fields("policy", []);
        let mut config = CoreConfig::new(policy.clone(), "uid 1".to_owned());
        config.max_question_grants = 2;
        config.max_attempts = 4;
        config.max_attempt_events = random.pick(&[6, 60]);
        config.max_questions = 2;
        config.max_holds = random.pick(&[4, 12]);
        config.reviewer = random.chance(25).then(|| ReviewerSpec { name: "model".to_owned(), timeout_ms: 5_000 });
        let checker = RunChecker::new(request.clone(), config.clone());
        let core = RequestCore::new(request.clone(), config);
        let hangs = random.chance(4);
        Self {
            random,
            request,
            core,
            checker,
            fault,
            now_ms: 0,
            owed: Vec::new(),
            asked: Vec::new(),
            running: false,
            killed: false,
            hangs,
            holding: false,
            waiting: Vec::new(),
            limits: BTreeMap::new(),
            held: 0,
            trace,
            steps: 0,
            attempts: 0,
            path_hash: 0,
        }
    }

    /// Plays to the end. The law that was broken, if one was.
    pub fn play(&mut self) -> Result<(), String> {
        let outputs = self.core.start(0);
        self.take(None, outputs)?;
        while self.checker.finished.is_none() {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err("it does not end".to_owned());
            }
            let input = self.next_input()?;
            self.give(input)?;
        }
        for _ in 0..4 {
            let input = self.noise();
            self.give(input)?;
        }
        Ok(())
    }

    fn give(&mut self, input: CoreInput) -> Result<(), String> {
        if self.trace {
            eprintln!("[{:>7} ms] {input:?}", self.now_ms);
        }
        self.path_hash = self.path_hash.wrapping_mul(0x100_0000_01b3) ^ kind(&input);
        self.checker.time(self.now_ms);
        let looks_at_time = matches!(input, CoreInput::Tick);
        self.checker.input(&input);
        let core_input = match self.fault {
            Some(fault) => fault::input(fault, input),
            None => Some(input),
        };
        let outputs = match &core_input {
            Some(input) => self.core.process_input(self.now_ms, input.clone()),
            None => Vec::new(),
        };
        self.take(core_input.as_ref(), outputs)?;
        self.checker.at_rest(looks_at_time)
    }

    /// What came up of held calls.
    pub fn seen(&self) -> Seen {
        self.checker.held.seen
    }

    /// Carries outputs out as the driver does: in order, and nothing after a
    /// record that fails.
    fn take(&mut self, core_input: Option<&CoreInput>, outputs: Vec<CoreOutput>) -> Result<(), String> {
        let outputs = match self.fault {
            Some(fault) => fault::outputs(fault, core_input, self.checker.finished.is_some(), outputs),
            None => outputs,
        };
        for output in outputs {
            if self.trace {
                eprintln!("             -> {output:?}");
            }
            if matches!(output, CoreOutput::Record(_)) && self.random.below(400) == 0 {
                return self.give(CoreInput::RecordFailed("no space".to_owned()));
            }
            self.checker.output(&output)?;
            self.perform(output);
        }
        Ok(())
    }

    fn perform(&mut self, output: CoreOutput) {
        match output {
            CoreOutput::Assess => {
                let tier = self.random.pick(&[Tier::Allow, Tier::Ask, Tier::Ask, Tier::Deny]);
                self.owe(CoreInput::Assessed(Assessment::without_findings(tier)));
            }
            CoreOutput::Decide(_) => {
                let ruling = ruling(&mut self.random, &self.request);
                self.owe(CoreInput::Decided(Box::new(ruling)));
            }
            CoreOutput::MakePlan { attempt, grants } => {
                let input = if self.random.chance(1) {
                    CoreInput::PlanFailed("no such profile".to_owned())
                } else {
                    CoreInput::Planned(Box::new(self.plan(attempt, grants)))
                };
                self.owe(input);
            }
            CoreOutput::FindRemembered(_) => {
                let grants = if self.random.chance(20) { self.random.subset(&GRANTS, 30) } else { Vec::new() };
                let counted = self.random.chance(20);
                self.owe(CoreInput::Remembered(PersistentAnswers { grants, counted, refused: Vec::new() }));
            }
            CoreOutput::LookUp(keys) => {
                let input = if self.random.chance(1) {
                    CoreInput::MemoryFailed("locked".to_owned())
                } else {
                    let answers = keys.iter().map(|_| self.recollection()).collect();
                    CoreInput::Recalled { answers, approver: self.random.chance(85) }
                };
                self.owe(input);
            }
            CoreOutput::Remember(_) if self.random.chance(5) => self.owe(CoreInput::NotRemembered("full".to_owned())),
            CoreOutput::Review(question) => {
                if self.random.chance(85) {
                    let review = self.review();
                    let reviewed = QuestionReview { digest: question.digest, review, response: None, took_ms: 1 };
                    self.owe(CoreInput::Reviewed(Box::new(reviewed)));
                }
            }
            CoreOutput::Ask(question) => {
                self.asked.push(question.digest.clone());
                if !self.random.chance(8) {
                    let answer = self.answer();
                    self.owe(CoreInput::Answered { digest: question.digest, answer, by: "terminal".to_owned() });
                }
            }
            CoreOutput::Commit { number, .. } => match self.random.below(60) {
                0 => self.owe(CoreInput::RecordFailed("disk".to_owned())),
                1 => {}
                _ => self.owe(CoreInput::Committed(number)),
            },
            CoreOutput::Prepare { planned, hold } => {
                self.holding = hold;
                self.prepare(&planned);
            }
            CoreOutput::Release => self.release(),
            CoreOutput::Kill => self.killed = true,
            CoreOutput::LookUpHeld { id, keys } => {
                let answers = if self.random.chance(2) {
                    Err("locked".to_owned())
                } else {
                    Ok(keys.iter().map(|key| self.recollection_of(key)).collect())
                };
                let approver = self.random.chance(95);
                self.owe(CoreInput::HeldRecalled { id, answers, approver });
            }
            CoreOutput::StandStill(limit) => {
                let input = match self.random.chance(90) {
                    true => self.held_limit(*limit),
                    false => CoreInput::Breached { denial: *limit, powers: Vec::new() },
                };
                self.owe(input);
            }
            CoreOutput::AnswerHeld { id, answer } => {
                self.waiting.retain(|waiting| *waiting != id);
                let limit = self.limits.remove(&id).filter(|limit| !limit.is_of_limit(LimitKind::Wall));
                if let (Some(denial), HeldAnswer::Refused) = (limit, answer) {
                    let powers = denial.grant.iter().cloned().collect();
                    self.owe(CoreInput::Breached { denial, powers });
                }
            }
            // Its answer may be on the way all the same.
            CoreOutput::Withdraw(digest) if self.random.chance(70) => {
                self.owed.retain(|input| !matches!(input, CoreInput::Answered { digest: of, .. } if *of == digest));
            }
            CoreOutput::Discard => {
                self.running = false;
                self.killed = false;
                self.forget_attempt();
                self.owed.retain(|input| {
                    !matches!(
                        input,
                        CoreInput::Prepared(_)
                            | CoreInput::PrepareFailed(_)
                            | CoreInput::Released
                            | CoreInput::Ended(_)
                    )
                });
            }
            CoreOutput::Remember(_)
            | CoreOutput::Record(_)
            | CoreOutput::Signal(_)
            | CoreOutput::Finish(_)
            | CoreOutput::Withdraw(_) => {}
        }
    }

    /// Seldom, so that most calls come to a question.
    fn recollection_of(&mut self, key: &MemoryKey) -> Option<RememberedAnswer> {
        let answer = match (self.random.below(60), key.refusal) {
            (0, _) => ApprovalAnswer::Denied(ApprovalScope::Always),
            (1..12, false) => ApprovalAnswer::Approved(ApprovalScope::Times(1)),
            _ => return None,
        };
        Some(RememberedAnswer { answer, id: "apr_2".to_owned() })
    }

    fn owe(&mut self, input: CoreInput) {
        self.owed.push(input);
    }

    fn recollection(&mut self) -> Option<RememberedAnswer> {
        let answer = match self.random.below(120) {
            0 => ApprovalAnswer::Denied(ApprovalScope::Always),
            1..24 => ApprovalAnswer::Approved(ApprovalScope::Session),
            _ => return None,
        };
        Some(RememberedAnswer { answer, id: "apr_1".to_owned() })
    }

    fn review(&mut self) -> ReviewResult {
        let risk = self.random.pick(&[RiskLevel::Low, RiskLevel::Medium, RiskLevel::High, RiskLevel::Critical]);
        let opinion = ReviewOpinion { risk, summary: "it says".into(), categories: Vec::new() };
        match self.random.chance(80) {
            true => ReviewResult { by: "model".to_owned(), opinion: Some(opinion), failure: None },
            false => ReviewResult::from_failure("model", "no answer"),
        }
    }

    fn answer(&mut self) -> ApprovalAnswer {
        let scopes = [
            ApprovalScope::Once,
            ApprovalScope::Session,
            ApprovalScope::Times(1),
            ApprovalScope::Times(3),
            ApprovalScope::Until(9),
            ApprovalScope::Always,
        ];
        let scope = self.random.pick(&scopes);
        match self.random.below(16) {
            0 => ApprovalAnswer::Denied(scope),
            1 => ApprovalAnswer::TimedOut,
            2 if self.random.chance(50) => ApprovalAnswer::Abort,
            _ => ApprovalAnswer::Approved(scope),
        }
    }

    fn plan(&mut self, attempt: u32, grants: Vec<Grant>) -> BoundPlan {
        let sandboxed = self.request.profile != "host";
        let mut environment = BTreeMap::from([("A".to_owned(), RawText::from("1"))]);
        if grants.iter().any(|grant| matches!(grant, Grant::Env(_))) {
            environment.insert("TOKEN".to_owned(), "s".into());
        }
        let argv = match &self.request.command {
            RequestCommand::Argv(argv) => argv.clone(),
            RequestCommand::Script(script) => vec!["/bin/bash".into(), "-c".into(), script.clone()],
        };
        let mut plan = AttemptPlan {
            request: self.request.id.clone(),
            attempt,
            argv,
            environment,
            cwd: self.request.cwd.clone(),
            workspace: self.request.workspace.clone(),
            profile: Profile {
                name: self.request.profile.clone(),
                sandboxed,
                filesystem: FilesystemAccess::default(),
                exec: stockade_model::ExecRules::default(),
                network: if sandboxed { NetworkAccess::None } else { NetworkAccess::Host },
                egress: Default::default(),
                environment: EnvironmentRules::default(),
                limits: Limits { wall_ms: Some(60_000), ..Limits::default() },
            },
            grants,
            effects: Vec::new(),
            level: if sandboxed { self.request.level } else { IsolationLevel::None },
            backend: "simulated".to_owned(),
        };
        if self.random.chance(1) {
            self.spoil(&mut plan);
        }
        planned(plan)
    }

    /// A planner that gives another plan than was asked for.
    fn spoil(&mut self, plan: &mut AttemptPlan) {
        match self.random.below(6) {
            0 => plan.grants.push(Grant::Write("/".into())),
            1 => plan.argv[0] = "/tmp/evil".into(),
            2 => plan.cwd = "/".into(),
            3 => plan.profile.name = "wide".to_owned(),
            4 => plan.attempt += 1,
            _ => plan.workspace = "/".into(),
        }
    }

    fn prepare(&mut self, planned: &BoundPlan) {
        let asked = planned.plan.level;
        let level = if self.random.chance(3) { IsolationLevel::None } else { asked };
        let report = EnforcementReport { level, layers: BTreeMap::new() };
        let input = match self.random.below(40) {
            0 => CoreInput::PrepareFailed("no user namespaces".to_owned()),
            _ => CoreInput::Prepared(report),
        };
        self.owe(input);
    }

    fn release(&mut self) {
        self.attempts += 1;
        if self.random.chance(2) {
            return self.owe(CoreInput::ReleaseFailed("it died".to_owned()));
        }
        self.running = true;
        self.killed = false;
        self.owe(CoreInput::Released);
    }

    fn next_input(&mut self) -> Result<CoreInput, String> {
        if self.random.chance(5) {
            return Ok(self.noise());
        }
        let can_end = self.running && !(self.killed && self.hangs);
        let choices = self.owed.len() + if can_end { 2 } else { 0 };
        if choices == 0 {
            let Some(deadline_ms) = self.core.tick_deadline() else { return Err("it waits for nothing".to_owned()) };
            self.now_ms = self.now_ms.max(deadline_ms);
            return Ok(CoreInput::Tick);
        }
        let choice = self.random.below(choices);
        if choice < self.owed.len() {
            return Ok(self.owed.swap_remove(choice));
        }
        Ok(self.attempt_event())
    }

    fn attempt_event(&mut self) -> CoreInput {
        // Now and then from a backend that was not told to.
        let holds = (self.holding && self.random.chance(60)) || self.random.chance(1);
        if holds && let Some(input) = self.held_event() {
            return input;
        }
        match self.random.below(6) {
            0 => CoreInput::Executed { pid: 7, program: "/usr/bin/make".into() },
            1..5 if !self.killed && self.random.chance(5) => self.breach(),
            1..5 if !self.killed => self.denial(),
            _ => {
                self.running = false;
                self.killed = false;
                self.forget_attempt();
                self.owed.retain(|input| !matches!(input, CoreInput::Released));
                let end = match self.random.below(20) {
                    0 => CommandEnd::Signaled(9),
                    1 => CommandEnd::NotFound,
                    2 => CommandEnd::NotExecutable("no".to_owned()),
                    3 => CommandEnd::Lost("gone".to_owned()),
                    n => CommandEnd::Exited(i32::from(n % 2 == 0)),
                };
                CoreInput::Ended(Box::new(AttemptEnd::from_command_end(end)))
            }
        }
    }

    /// What it would have told is not told any more.
    fn forget_attempt(&mut self) {
        self.waiting.clear();
        self.limits.clear();
        self.owed.retain(|input| !matches!(input, CoreInput::Held(_) | CoreInput::Breached { .. }));
    }

    /// Everything stands still for this limit.
    fn held_limit(&mut self, denial: Denial) -> CoreInput {
        self.held += 1;
        let id = HoldId(self.held as u64);
        self.waiting.push(id);
        self.limits.insert(id, denial.clone());
        let grant = denial.grant.iter().cloned();
        let powers = if self.random.chance(90) { grant.collect() } else { Vec::new() };
        CoreInput::Held(Box::new(HeldCall {
            id,
            denial,
            powers,
            directory: Vec::new(),
            group: None,
            refused_in: false,
            rule: None,
        }))
    }

    /// A call begins to wait, or its processes are gone.
    fn held_event(&mut self) -> Option<CoreInput> {
        if !self.waiting.is_empty() && self.random.chance(25) {
            let at = self.random.below(self.waiting.len());
            return Some(CoreInput::Withdrawn(self.waiting.swap_remove(at)));
        }
        if self.killed || self.waiting.len() > 7 {
            return None;
        }
        if self.random.chance(2) {
            let limit = self.random.pick(&[LimitKind::CpuTime, LimitKind::Disk, LimitKind::Processes]);
            let limit = Denial::of_limit(limit, Some(self.random.pick(&[4_000, 8_000])), "more was used");
            return Some(self.held_limit(limit));
        }
        self.held += 1;
        let id = HoldId(self.held as u64);
        self.waiting.push(id);
        let (grant, directory) = match self.random.below(3) {
            0 if self.random.chance(20) => (EFFECT.clone(), Vec::new()),
            0 => (self.random.pick(&GRANTS), Vec::new()),
            _ => {
                let (file, directory) = self.random.pick(&FILES);
                (file, vec![directory])
            }
        };
        let mut powers = match self.random.below(12) {
            0 => Vec::new(),
            1 => vec![grant.clone(), self.random.pick(&GRANTS)],
            _ => vec![grant.clone()],
        };
        powers.dedup();
        let rule = match self.random.below(16) {
            0 => Some((PolicyVerdict::Deny, Vec::new())),
            1 => Some((PolicyVerdict::Ask, Vec::new())),
            2 => Some((PolicyVerdict::Allow, vec![grant.clone()])),
            _ => None,
        };
        let rule = rule.map(|(verdict, powers)| {
            let decision = Decision { verdict, rule: "rule `files`".to_owned(), reasons: Vec::new() };
            HeldRule { decision, powers }
        });
        let refused_in = !directory.is_empty() && self.random.chance(1);
        Some(CoreInput::Held(Box::new(HeldCall {
            id,
            denial: denial(grant),
            powers,
            directory,
            group: None,
            refused_in,
            rule,
        })))
    }

    fn denial(&mut self) -> CoreInput {
        let grant = if self.random.chance(5) { EFFECT.clone() } else { self.random.pick(&GRANTS) };
        let powers = match self.random.below(10) {
            0..2 => Vec::new(),
            2 => vec![grant.clone(), self.random.pick(&GRANTS)],
            _ => vec![grant.clone()],
        };
        CoreInput::Denied { denial: denial(grant), powers }
    }

    fn breach(&mut self) -> CoreInput {
        let grant = Grant::Limit(LimitKind::Memory, self.random.pick(&[4, 8]) << 30);
        let powers = if self.random.chance(80) { vec![grant.clone()] } else { Vec::new() };
        CoreInput::Breached { denial: Denial { operation: DeniedOperation::Limit, ..denial(grant) }, powers }
    }

    /// What may come at any time and must do no harm.
    fn noise(&mut self) -> CoreInput {
        let late = |world: &mut Self| {
            let digest =
                if world.asked.is_empty() { Digest::of_fields("x", []) } else { world.random.pick(&world.asked) };
            CoreInput::Answered {
                digest,
                answer: ApprovalAnswer::Approved(ApprovalScope::Always),
                by: "late".to_owned(),
            }
        };
        match self.random.below(16) {
            0 => CoreInput::Interrupted(self.random.pick(&[2, 15])),
            1 => {
                let open = self.owed.iter().position(|input| matches!(input, CoreInput::Answered { .. }));
                // A late answer to an older question, not a second to the open one.
                let stale = open.is_none() && self.asked.len() > 1;
                if stale { self.late_to_old() } else { CoreInput::Tick }
            }
            2 => CoreInput::Committed(self.random.next() % 3 + 1000),
            3 => CoreInput::Answered {
                digest: Digest::of_fields("forged", []),
                answer: ApprovalAnswer::Approved(ApprovalScope::Always),
                by: "forger".to_owned(),
            },
            4 if self.checker.finished.is_some() => late(self),
            _ => {
                self.now_ms += self.random.pick(&[1, 20, 20, 900, 900, 2_500, 2_500, 11_000, 400_000]);
                CoreInput::Tick
            }
        }
    }

    fn late_to_old(&mut self) -> CoreInput {
        let old = self.asked.len() - 1;
        let digest = self.asked[self.random.below(old)].clone();
        CoreInput::Answered { digest, answer: ApprovalAnswer::Approved(ApprovalScope::Always), by: "late".to_owned() }
    }
}

fn denial(grant: Grant) -> Denial {
    Denial {
        operation: DeniedOperation::Create,
        object: format!("object of {grant}").into(),
        pid: Some(7),
        program: None,
        layer: DenialLayer::Broker,
        rule: "outside every writable root".to_owned(),
        grant: Some(grant),
        resolution: DenialResolution::Recorded,
        count: 1,
    }
}

/// A number for the kind of an input.
fn kind(input: &CoreInput) -> u64 {
    match input {
        CoreInput::Assessed(_) => 1,
        CoreInput::Decided(ruling) => 2 + ruling.decision.verdict as u64,
        CoreInput::Planned(_) => 5,
        CoreInput::PlanFailed(_) => 6,
        CoreInput::Remembered(remembered_answers) => 7 + u64::from(remembered_answers.grants.is_empty()),
        CoreInput::Recalled { approver, .. } => 9 + u64::from(*approver),
        CoreInput::MemoryFailed(_) => 11,
        CoreInput::NotRemembered(_) => 12,
        CoreInput::Answered { answer: ApprovalAnswer::Approved(_), .. } => 13,
        CoreInput::Answered { answer: ApprovalAnswer::Denied(_), .. } => 14,
        CoreInput::Answered { .. } => 15,
        CoreInput::Committed(_) => 16,
        CoreInput::RecordFailed(_) => 17,
        CoreInput::Prepared(_) => 18,
        CoreInput::PrepareFailed(_) => 19,
        CoreInput::Released => 20,
        CoreInput::ReleaseFailed(_) => 21,
        CoreInput::Denied { powers, .. } => 22 + powers.len() as u64,
        CoreInput::Breached { powers, .. } => 40 + powers.len() as u64,
        CoreInput::Executed { .. } => 25,
        CoreInput::Connection(_) => 24,
        CoreInput::Signed { .. } => 43,
        CoreInput::Ended(_) => 26,
        CoreInput::Interrupted(_) => 27,
        CoreInput::Tick => 28,
        CoreInput::Held(call) => 29 + u64::from(call.directory.is_empty()),
        CoreInput::HeldRecalled { approver, .. } => 31 + u64::from(*approver),
        CoreInput::Withdrawn(_) => 33,
        CoreInput::Reviewed(reviewed) => 34 + u64::from(reviewed.review.raises_caution()),
    }
}

//! Real rules, record and store in a temporary directory; a backend and an
//! approver that do as they are told.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stockade_audit::AuditLogWriter;
use stockade_backend_api::{
    Approver, Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, Backend, CommandEnd, PendingQuestion, StartError,
    StdioMode, SystemClock,
};
use stockade_engine::adapters::{RulePolicyEngine, StoreMemory};
use stockade_engine::ports::{EventRecorder, RecordError};
use stockade_engine::{RequestEngine, interrupt_channel};
use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalQuestion, AttemptPlan, Denial, DenialLayer, DenialResolution,
    DeniedOperation, EnforcementReport, Event, Grant, IsolationLevel, QuestionKind, RawText, RequestCommand,
    RunOutcome, RunRequest, SandboxPreference,
};
use stockade_policy::load::{ConfigSources, load_settings};
use tempfile::TempDir;

/// How a fake sandbox behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// Ends at once; with 0 if it had all it needs.
    #[default]
    Ends,
    /// Runs until it gets a signal.
    Waits,
    /// Runs until it is killed.
    Stubborn,
    /// Goes beyond a limit, where it has not all it needs; ends at a signal.
    Exceeds,
    /// Cannot be built.
    Fails,
    /// Gives less than the plan asks for.
    Weak,
    /// The program is not there.
    NotFound,
}

#[derive(Default)]
pub struct Fake {
    pub needs: Vec<Grant>,
    /// A file beneath the home directory that it wants to write.
    pub home_file: Option<&'static str>,
    pub behaviour: Behaviour,
    pub alive: Arc<AtomicUsize>,
    pub released: Arc<Mutex<Vec<AttemptPlan>>>,
    /// The record, as it stood on the disk at each release.
    pub log: Option<std::path::PathBuf>,
    pub durable: Arc<Mutex<Vec<bool>>>,
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "native"
    }

    fn supports_grant(&self, grant: &Grant, _: IsolationLevel) -> bool {
        !matches!(grant, Grant::Connect(_))
    }

    fn prepare_attempt(
        &self,
        plan: &AttemptPlan,
        _: &StdioMode,
        _: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError> {
        if self.behaviour == Behaviour::Fails {
            return Err(StartError { what: "no user namespaces".to_owned(), hint: Some("see doctor".to_owned()) });
        }
        self.alive.fetch_add(1, Ordering::SeqCst);
        let level = if self.behaviour == Behaviour::Weak { IsolationLevel::Restricted } else { plan.level };
        Ok(Box::new(FakeAttempt {
            plan: plan.clone(),
            missing: self.needs.iter().filter(|need| !plan.grants.contains(need)).cloned().collect(),
            behaviour: self.behaviour,
            alive: Arc::clone(&self.alive),
            released: Arc::clone(&self.released),
            log: self.log.clone(),
            durable: Arc::clone(&self.durable),
            enforced: EnforcementReport { level, layers: BTreeMap::new() },
            events,
        }))
    }
}

struct FakeAttempt {
    plan: AttemptPlan,
    missing: Vec<Grant>,
    behaviour: Behaviour,
    alive: Arc<AtomicUsize>,
    released: Arc<Mutex<Vec<AttemptPlan>>>,
    log: Option<std::path::PathBuf>,
    durable: Arc<Mutex<Vec<bool>>>,
    enforced: EnforcementReport,
    events: AttemptEventSender,
}

impl FakeAttempt {
    fn end(&self, end: CommandEnd) {
        self.events.send_event(AttemptEvent::Ended(AttemptEnd::from_command_end(end)));
    }
}

impl Attempt for FakeAttempt {
    fn enforcement_report(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release_command(&mut self) -> Result<(), StartError> {
        self.released.lock().unwrap().push(self.plan.clone());
        if let Some(log) = &self.log {
            let text = std::fs::read_to_string(log).unwrap();
            let digest = self.plan.compute_digest().unwrap();
            let starts = text.lines().any(|line| line.contains("\"starting\"") && line.contains(digest.as_str()));
            self.durable.lock().unwrap().push(starts);
        }
        for grant in &self.missing {
            let denial = Denial {
                operation: DeniedOperation::Create,
                object: format!("for {grant}").into(),
                pid: Some(1),
                program: None,
                layer: DenialLayer::Broker,
                rule: "outside every writable root".to_owned(),
                grant: Some(grant.clone()),
                resolution: DenialResolution::Recorded,
                count: 1,
            };
            self.events.send_event(match self.behaviour {
                Behaviour::Exceeds => AttemptEvent::Breached(denial),
                _ => AttemptEvent::Denied(denial),
            });
        }
        match self.behaviour {
            Behaviour::Waits | Behaviour::Stubborn => {}
            Behaviour::Exceeds if !self.missing.is_empty() => {}
            Behaviour::NotFound => self.end(CommandEnd::NotFound),
            _ => self.end(CommandEnd::Exited(i32::from(!self.missing.is_empty()))),
        }
        Ok(())
    }

    fn send_signal(&self, signal: i32) {
        if matches!(self.behaviour, Behaviour::Waits | Behaviour::Exceeds) {
            self.end(CommandEnd::Signaled(signal));
        }
    }

    fn kill_processes(&self) {
        self.end(CommandEnd::Signaled(9));
    }
}

impl Drop for FakeAttempt {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers as told, then with silence; notes what it was asked.
#[derive(Default)]
pub struct Scripted {
    pub answers: VecDeque<ApprovalAnswer>,
    pub asked: Arc<Mutex<Vec<ApprovalQuestion>>>,
    pub absent: bool,
    /// Set when somebody who was absent is there.
    pub comes: Option<Arc<AtomicBool>>,
    /// Thinks this long, and leaves at once when the question is taken back.
    pub slow: Option<Duration>,
    /// Thinks on although the question was taken back.
    pub hangs: bool,
    pub withdrawals: Arc<AtomicUsize>,
}

impl Approver for Scripted {
    fn name(&self) -> String {
        "scripted".to_owned()
    }

    fn is_available(&self) -> bool {
        !self.absent || self.comes.as_ref().is_some_and(|comes| comes.load(Ordering::SeqCst))
    }

    fn may_come(&self) -> bool {
        self.comes.is_some()
    }

    fn ask_question(&mut self, question: &ApprovalQuestion, waiting: &PendingQuestion) -> ApprovalAnswer {
        self.asked.lock().unwrap().push(question.clone());
        let until = Instant::now() + self.slow.unwrap_or_default();
        while Instant::now() < until && (self.hangs || !waiting.is_withdrawn()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if waiting.is_withdrawn() {
            self.withdrawals.fetch_add(1, Ordering::SeqCst);
            return ApprovalAnswer::TimedOut;
        }
        self.answers.pop_front().unwrap_or(ApprovalAnswer::TimedOut)
    }
}

/// A record that fails from its n-th batch on.
pub struct Failing {
    pub inner: AuditLogWriter,
    pub batches_left: AtomicUsize,
    pub commits_fail: bool,
}

impl EventRecorder for Failing {
    fn record_events(&self, events: &[Event]) -> Result<(), RecordError> {
        let previous = self.batches_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if previous.is_err() { Err(RecordError("no space".to_owned())) } else { self.inner.record_events(events) }
    }

    fn commit_events(&self) -> Result<(), RecordError> {
        if self.commits_fail {
            Err(RecordError("the disk is gone".to_owned()))
        } else {
            EventRecorder::commit_events(&self.inner)
        }
    }
}

pub struct House {
    pub dir: TempDir,
    pub withdrawals: Arc<AtomicUsize>,
    pub released: Arc<Mutex<Vec<AttemptPlan>>>,
    pub asked: Arc<Mutex<Vec<ApprovalQuestion>>>,
    pub alive: Arc<AtomicUsize>,
    pub durable: Arc<Mutex<Vec<bool>>>,
    pub engine: RequestEngine,
}

impl House {
    pub fn new(fake: Fake, answers: &[ApprovalAnswer]) -> Self {
        Self::with_configuration(
            "",
            fake,
            Scripted { answers: answers.iter().copied().collect(), ..Scripted::default() },
        )
    }

    pub fn with_configuration(configuration: &str, fake: Fake, scripted: Scripted) -> Self {
        let dir = TempDir::new().unwrap();
        let root = dir.path();
        for name in ["home/.config/stockade", "work", "state"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("home/.config/stockade/config.toml"), configuration).unwrap();
        let sources = ConfigSources {
            home: root.join("home"),
            other_homes: Vec::new(),
            system_owner: rustix::process::geteuid().as_raw(),
            managed_file: root.join("etc/none.toml"),
            system_file: root.join("etc/none.toml"),
            user_file: root.join("home/.config/stockade/config.toml"),
            workspace: Some(root.join("work")),
            state_directory: root.join("state"),
        };
        let settings = Arc::new(load_settings(&sources).unwrap());
        let log = Arc::new(AuditLogWriter::open(&root.join("state/audit")).unwrap());
        let store = root.join("state/db/approvals.db");
        let home_file = fake.home_file.map(|name| Grant::Write(root.join("home").join(name)));
        let needs = fake.needs.iter().cloned().chain(home_file).collect();
        let fake = Fake { needs, log: Some(root.join("state/audit/audit.jsonl")), ..fake };
        let (released, alive, durable) = (fake.released.clone(), fake.alive.clone(), fake.durable.clone());
        let (asked, withdrawals) = (scripted.asked.clone(), scripted.withdrawals.clone());
        let engine = RequestEngine {
            rule_engine: Arc::new(RulePolicyEngine::new(settings, true)),
            backend: Arc::new(fake),
            host: None,
            approver: Arc::new(Mutex::new(scripted)),
            reviewer: None,
            recorder: log,
            memory: Arc::new(StoreMemory::new(store)),
            clock: Arc::new(SystemClock::default()),
            user: "uid 1".to_owned(),
            question_timeout_ms: 2_000,
        };
        Self { dir, withdrawals, released, asked, alive, durable, engine }
    }

    pub fn path(&self, name: &str) -> RawText {
        self.dir.path().join(name).into()
    }

    pub fn request(&self, script: &str, mode: ApprovalMode) -> RunRequest {
        RunRequest {
            id: "req_1".parse().unwrap(),
            session: Some("ses_1".parse().unwrap()),
            command: RequestCommand::Script(script.into()),
            cwd: self.path("work"),
            workspace: self.path("work"),
            environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".into())]),
            profile: "workspace".to_owned(),
            grants: Vec::new(),
            requested: Vec::new(),
            level: IsolationLevel::Full,
            approval_mode: mode,
            sandbox: SandboxPreference::Auto,
            timeout_ms: None,
            limits: Default::default(),
            caller_approval: None,
        }
    }

    pub fn run(&self, request: RunRequest) -> RunOutcome {
        let (_interrupter, interrupts) = interrupt_channel();
        let outcome = self.engine.run_request(request, StdioMode::Inherit, interrupts);
        assert_eq!(self.alive.load(Ordering::SeqCst), 0, "a sandbox outlived its run (L8)");
        assert!(self.durable.lock().unwrap().iter().all(|durable| *durable), "released before its record (L6)");
        outcome
    }

    /// The kinds of the questions that were really put.
    pub fn asked(&self) -> String {
        let name = |question: &ApprovalQuestion| match question.kind {
            QuestionKind::Run { .. } => "run",
            QuestionKind::Grants { .. } => "grants",
            QuestionKind::Escalate { .. } => "escalate",
            QuestionKind::Hold { .. } => "hold",
            QuestionKind::Unsandboxed => "unsandboxed",
        };
        self.asked.lock().unwrap().iter().map(name).collect::<Vec<_>>().join(" ")
    }

    /// The types of the recorded events, in order.
    pub fn events(&self) -> Vec<String> {
        let text = std::fs::read_to_string(Path::new(&self.dir.path().join("state/audit/audit.jsonl"))).unwrap();
        let kinds = text.lines().filter_map(|line| line.split_once("\"kind\":{\"type\":\"")?.1.split('"').next());
        kinds.map(str::to_owned).collect()
    }
}

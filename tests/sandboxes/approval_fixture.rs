//! The real engine with its rules, memory and record, and somebody who answers as
//! they were told beforehand.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use stockade_audit::AuditLogWriter;
use stockade_backend_api::{Approver, INSIDE_HOME, INSIDE_WORKSPACE, PendingQuestion, SystemClock};
use stockade_engine::adapters::{RulePolicyEngine, StoreMemory};
use stockade_engine::{RequestEngine, interrupt_channel};
use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalQuestion, Grant, IsolationLevel, Limits, RequestCommand, RequestId,
    RunOutcome, RunRequest, SandboxPreference,
};
use stockade_policy::load::{ConfigSources, load_settings};
use stockade_policy::resolve_profile;

use crate::bench::{Bench, CAPTURE, TestSandbox};

/// An engine whose commands run in one sandbox.
pub struct ApprovalFixture {
    engine: RequestEngine,
    question_count: Arc<Mutex<usize>>,
    log: PathBuf,
    pub test_sandbox: TestSandbox,
}

/// Answers as it was told, and with silence after that.
struct ScriptedApprover {
    answers: VecDeque<ApprovalAnswer>,
    question_count: Arc<Mutex<usize>>,
}

impl Approver for ScriptedApprover {
    fn name(&self) -> String {
        "told".to_owned()
    }

    fn is_available(&self) -> bool {
        true
    }

    fn ask_question(&mut self, _question: &ApprovalQuestion, _waiting: &PendingQuestion) -> ApprovalAnswer {
        *self.question_count.lock().unwrap() += 1;
        self.answers.pop_front().unwrap_or(ApprovalAnswer::TimedOut)
    }
}

impl ApprovalFixture {
    pub fn of(bench: &Bench, answers: &[ApprovalAnswer]) -> Self {
        Self::ruled(bench, "", answers)
    }

    /// With a configuration of the person's.
    pub fn ruled(bench: &Bench, configuration: &str, answers: &[ApprovalAnswer]) -> Self {
        let (home, state) = (bench.directory("desk/home"), bench.directory("desk/state"));
        let file = home.join("config.toml");
        fs::write(&file, configuration).unwrap();
        let none = home.join("none.toml");
        let sources = ConfigSources {
            home: INSIDE_HOME.into(),
            other_homes: Vec::new(),
            system_owner: 0,
            managed_file: none.clone(),
            system_file: none,
            user_file: file,
            workspace: None,
            state_directory: state.clone(),
        };
        let question_count = Arc::default();
        let approver = ScriptedApprover {
            answers: answers.iter().copied().collect(),
            question_count: Arc::clone(&question_count),
        };
        let settings = Arc::new(load_settings(&sources).unwrap());
        let grants = [Grant::Write(INSIDE_HOME.into())];
        let mut profile = resolve_profile(&settings, "workspace", INSIDE_WORKSPACE.as_ref(), &grants).unwrap();
        bench.bare(&mut profile);
        let test_sandbox = bench.test_sandbox_with(|plan| plan.profile = profile);
        let backend = test_sandbox.sandbox().backend();
        let rule_engine = RulePolicyEngine::new(settings, true);
        let engine = RequestEngine {
            rule_engine: Arc::new(RulePolicyEngine { sandbox_backend: backend.name(), ..rule_engine }),
            backend,
            host: None,
            approver: Arc::new(Mutex::new(approver)),
            reviewer: None,
            recorder: Arc::new(AuditLogWriter::open(&state.join("audit")).unwrap()),
            memory: Arc::new(StoreMemory::new(state.join("db/approvals.db"))),
            clock: Arc::new(SystemClock::default()),
            user: "uid 1".to_owned(),
            question_timeout_ms: 20_000,
        };
        Self { engine, question_count, log: state.join("audit/audit.jsonl"), test_sandbox }
    }

    /// Takes a script through, without a question beforehand.
    pub fn run(&self, script: &str) -> RunOutcome {
        self.request(script, |_| {})
    }

    pub fn request(&self, script: &str, change: impl FnOnce(&mut RunRequest)) -> RunOutcome {
        self.engine.run_request(self.build_request(script, change), CAPTURE, interrupt_channel().1)
    }

    /// Takes one through that is sent a signal once it is so.
    pub fn interrupted(&self, script: &str, signal: i32, once: impl FnOnce() + Send) -> RunOutcome {
        let (interrupter, interrupts) = interrupt_channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                once();
                interrupter.send_interrupt(signal)
            });
            self.engine.run_request(self.build_request(script, |_| {}), CAPTURE, interrupts)
        })
    }

    fn build_request(&self, script: &str, change: impl FnOnce(&mut RunRequest)) -> RunRequest {
        let mut request = request(script, self.test_sandbox.plan.level);
        change(&mut request);
        request
    }

    /// How many questions were put.
    pub fn question_count(&self) -> usize {
        *self.question_count.lock().unwrap()
    }

    /// The types of the recorded events, in order.
    pub fn events(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap();
        let kinds = text.lines().filter_map(|line| line.split_once("\"kind\":{\"type\":\"")?.1.split('"').next());
        kinds.map(str::to_owned).collect()
    }
}

fn request(script: &str, level: IsolationLevel) -> RunRequest {
    let variables = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", INSIDE_HOME)];
    RunRequest {
        id: RequestId::from_random([5; 16]),
        session: None,
        command: RequestCommand::Script(script.into()),
        cwd: INSIDE_WORKSPACE.into(),
        workspace: INSIDE_WORKSPACE.into(),
        environment: BTreeMap::from(variables.map(|(name, value)| (name.to_owned(), value.into()))),
        profile: "workspace".to_owned(),
        grants: Vec::new(),
        requested: Vec::new(),
        level,
        approval_mode: ApprovalMode::OnFailure,
        sandbox: SandboxPreference::Auto,
        timeout_ms: None,
        limits: Limits::default(),
        caller_approval: None,
    }
}

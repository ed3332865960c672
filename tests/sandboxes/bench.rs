//! What a case works with: sandboxes of the kind that is judged, commands in them, and
//! the host's view of both.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use stockade_backend_api::{
    Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, CommandEnd, GuestSystem, HeldAnswer, HoldId, INSIDE_HOME,
    INSIDE_WORKSPACE, ProviderCapabilities, Sandbox, SandboxError, SandboxEvent, SandboxEventSender, SandboxPlan,
    SandboxProvider, StartError, StdioMode,
};
use stockade_model::{
    AttemptPlan, BackgroundPolicy, ConnectionRecord, DEFAULT_PROTECTED_NAMES, Denial, EnforcementReport,
    EnvironmentRules, ExecRules, FilesystemAccess, Grant, IsolationLevel, LayerState, LimitKind, Limits, NetworkAccess,
    Profile, RawText, RequestId, RuntimeName, SandboxId,
};
use stockade_testkit::slowness_factor;

use crate::kinds::{Kind, Ready};
use crate::server::{Server, no_address, own_address};
use crate::sleepers;

/// Output is kept whole up to this.
pub const CAPTURE: StdioMode = StdioMode::Capture { limit_bytes: 4 << 20 };

/// What the kind says it cannot do, in the words of its refusal.
#[derive(Debug)]
pub struct Declared(pub String);

/// Long enough for a loaded machine: whoever waits that long has hung.
pub fn event_timeout() -> Duration {
    Duration::from_secs(30) * slowness_factor()
}

/// Waits until it is so.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let give_up = Instant::now() + event_timeout();
    while !is_so() {
        assert!(Instant::now() < give_up, "in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A grant as one would say it.
pub fn grant(text: &str) -> Grant {
    text.parse().unwrap()
}

/// Makes sandboxes of one kind in the directory of a case.
pub struct Bench {
    /// The kind's name in tasks.
    pub kind: &'static str,
    pub sandboxes: Arc<dyn SandboxProvider>,
    system: Option<GuestSystem>,
    runtime: Option<RuntimeName>,
    /// The level that can be had of the kind.
    pub level: IsolationLevel,
    root: Option<PathBuf>,
    /// Whether names beneath `.test` are this machine's.
    knows_names: bool,
    own_kernel: bool,
    top: PathBuf,
    made: AtomicU8,
}

impl Bench {
    pub fn new(kind: &Kind, top: &Path) -> Result<Self> {
        let top = top.canonicalize()?;
        let session = top.parent().context("a session around")?;
        let Ready { sandboxes, system, runtime, level, root, knows_names, own_kernel } = kind.ready(session, &top)?;
        let made = AtomicU8::new(0);
        Ok(Self { kind: kind.name, sandboxes, system, runtime, level, root, knows_names, own_kernel, top, made })
    }

    pub fn capabilities(&self) -> ProviderCapabilities {
        self.sandboxes.capabilities()
    }

    /// Somebody outside, and how a command names them.
    pub fn outside(&self) -> Result<(Server, String), Declared> {
        let (server, host) = if self.knows_names {
            (Server::new(), "server.test".to_owned())
        } else {
            let address = own_address().ok_or_else(no_address)?;
            (Server::at(address), address.to_string())
        };
        let target = format!("{host}:{}", server.port());
        Ok((server, target))
    }

    /// A directory of the case's own on the host.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.top.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// What a sandbox is made of; it is not made yet.
    pub fn plan(&self) -> SandboxPlan {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let mut random = [number; 16];
        let name = self.top.file_name().unwrap().as_encoded_bytes();
        random.iter_mut().zip(name.iter().rev()).for_each(|(byte, letter)| *byte ^= letter);
        random[..4].iter_mut().zip(std::process::id().to_ne_bytes()).for_each(|(byte, own)| *byte ^= own);
        self.planned(usize::from(number), SandboxId::from_random(random))
    }

    /// The plan of one that was the `number`th to be planned.
    pub fn planned(&self, number: usize, id: SandboxId) -> SandboxPlan {
        SandboxPlan {
            id,
            system: self.system.clone(),
            workspace: self.directory(&format!("work{number}")),
            home: self.directory(&format!("home{number}")),
            profile: self.profile(),
            level: self.level,
            background: if self.capabilities().keeps_background {
                BackgroundPolicy::Keep
            } else {
                BackgroundPolicy::End
            },
            runtime: self.runtime.clone(),
        }
    }

    /// The powers of a sandbox that nobody gave more.
    fn profile(&self) -> Profile {
        let mut profile = profile();
        self.bare(&mut profile);
        profile
    }

    /// Without the names that the host trusts, where nothing could keep them.
    pub fn bare(&self, profile: &mut Profile) {
        if self.level != IsolationLevel::Full {
            profile.filesystem.protect.clear();
        }
    }

    pub fn top(&self) -> &Path {
        &self.top
    }

    #[track_caller]
    pub fn test_sandbox(&self) -> TestSandbox {
        self.test_sandbox_with(|_| {})
    }

    #[track_caller]
    pub fn test_sandbox_with(&self, change: impl FnOnce(&mut SandboxPlan)) -> TestSandbox {
        self.make(change).unwrap_or_else(|error| panic!("it cannot be made: {error}"))
    }

    pub fn make(&self, change: impl FnOnce(&mut SandboxPlan)) -> Result<TestSandbox, SandboxError> {
        let mut plan = self.plan();
        change(&mut plan);
        self.make_of(plan)
    }

    pub fn make_of(&self, plan: SandboxPlan) -> Result<TestSandbox, SandboxError> {
        if let Some(root) = &self.root {
            fs::create_dir_all(root.join(plan.id.as_str())).unwrap();
        }
        let (sender, event_stream) = channel();
        let events = SandboxEventSender::new(move |event| drop(sender.send(event)));
        let sandbox = self.sandboxes.create_sandbox(&plan, events)?;
        Ok(self.test_sandbox_of(plan, sandbox, event_stream))
    }

    /// Finds one again that somebody let go of.
    pub fn adopt(&self, plan: SandboxPlan) -> Result<TestSandbox, SandboxError> {
        let (sender, event_stream) = channel();
        let events = SandboxEventSender::new(move |event| drop(sender.send(event)));
        let sandbox = self.sandboxes.adopt_sandbox(&plan, events)?;
        Ok(self.test_sandbox_of(plan, sandbox, event_stream))
    }

    fn test_sandbox_of(
        &self,
        plan: SandboxPlan,
        sandbox: Box<dyn Sandbox>,
        event_stream: Receiver<SandboxEvent>,
    ) -> TestSandbox {
        let (sandboxes, own_kernel) = (Arc::clone(&self.sandboxes), self.own_kernel);
        TestSandbox { sandboxes, plan, sandbox: Some(sandbox), event_stream, own_kernel }
    }

    /// A sandbox with this limit for all of its commands, where the kind can hold it.
    #[track_caller]
    pub fn limited(&self, limit: LimitKind, amount: u64) -> Result<TestSandbox, Declared> {
        match self.make(|plan| plan.profile.limits.set_limit(limit, amount)) {
            Ok(test_sandbox) => test_sandbox.held(limit, amount),
            Err(error) => Err(refused_limit(limit, &error.to_string())),
        }
    }

    /// That the kind can do this, or that it refuses what needs it in clear words.
    #[track_caller]
    pub fn require_held_calls<T>(
        &self,
        can: bool,
        what: &str,
        refused: impl FnOnce() -> Result<T, SandboxError>,
    ) -> Result<(), Declared> {
        if can {
            return Ok(());
        }
        match refused() {
            Err(error @ SandboxError::Unsupported { .. }) => Err(Declared(error.to_string())),
            Err(error) => panic!("{what} is declared as not to be had, and refused otherwise: {error:?}"),
            Ok(_) => panic!("{what} is declared as not to be had, and done all the same"),
        }
    }

    /// As [`require_held_calls`](Self::demand), for sandboxes whose processes can be stopped.
    #[track_caller]
    pub fn require_pauses(&self) -> Result<(), Declared> {
        self.require_held_calls(self.capabilities().pauses, "a pause", || self.test_sandbox().sandbox().pause())
    }

    /// The same for an end that takes what a command left behind.
    #[track_caller]
    pub fn require_ends_background(&self) -> Result<(), Declared> {
        let end = || self.make(|plan| plan.background = BackgroundPolicy::End);
        self.require_held_calls(self.capabilities().ends_background, "ending background processes of a command", end)
    }

    /// The same for what lives on.
    #[track_caller]
    pub fn require_keeps_background(&self) -> Result<(), Declared> {
        let keep = || self.make(|plan| plan.background = BackgroundPolicy::Keep);
        self.require_held_calls(self.capabilities().keeps_background, "keeping background processes of a command", keep)
    }
}

fn refused_limit(limit: LimitKind, read_text: &str) -> Declared {
    assert!(read_text.contains(limit.name()), "a limit of {limit} is refused without a word of it: {read_text}");
    Declared(read_text.to_owned())
}

/// A sandbox with its directories on the host, and what it tells.
pub struct TestSandbox {
    sandboxes: Arc<dyn SandboxProvider>,
    pub plan: SandboxPlan,
    sandbox: Option<Box<dyn Sandbox>>,
    pub event_stream: Receiver<SandboxEvent>,
    own_kernel: bool,
}

impl Drop for TestSandbox {
    fn drop(&mut self) {
        // What is left all the same is found by whoever plays the case.
        if let Some(sandbox) = self.sandbox.take() {
            let _ = sandbox.destroy();
            let _ = self.sandboxes.clear(&self.plan.id);
        }
    }
}

impl TestSandbox {
    pub fn sandbox(&self) -> &dyn Sandbox {
        self.sandbox.as_deref().expect("it was not let go of")
    }

    /// Lets go of it, as an engine does that ends.
    pub fn leave(mut self) -> SandboxPlan {
        drop(self.sandbox.take());
        self.plan.clone()
    }

    /// At a level beneath full a limit may stand in the report as one that is not held.
    fn held(self, limit: LimitKind, amount: u64) -> Result<Self, Declared> {
        let layer = &self.sandbox().enforcement_report().layers["limits"];
        let unheld =
            [": not held", ": asked of the engine"].map(|how| format!("{limit} {}{how}", limit.format_amount(amount)));
        if self.plan.level == IsolationLevel::Full || !unheld.iter().any(|text| layer.detail.contains(text.as_str())) {
            return Ok(self);
        }
        assert_eq!(layer.state, LayerState::Partial, "{layer:?}");
        Err(Declared(layer.detail.clone()))
    }

    /// A path of its workspace, on the host.
    pub fn work(&self, name: &str) -> PathBuf {
        self.plan.workspace.join(name)
    }

    /// What one of its files says, on the host.
    #[track_caller]
    pub fn read_text(&self, name: &str) -> String {
        fs::read_to_string(self.work(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn wait_for(&self, name: &str) {
        wait_until(name, || self.work(name).exists());
    }

    pub fn try_begin(&self, plan: &AttemptPlan, io: StdioMode, hold: bool) -> Result<RunningCommand, StartError> {
        let (sender, events) = channel();
        let event_stream = AttemptEventSender::new(move |event| drop(sender.send(event)));
        let backend = self.sandbox().backend();
        let plan = AttemptPlan { backend: backend.name().to_owned(), level: self.plan.level, ..plan.clone() };
        let mut attempt = backend.prepare_attempt(&plan, &io, hold, event_stream)?;
        attempt.release_command()?;
        Ok(RunningCommand { attempt, events, seen: Seen::default() })
    }

    #[track_caller]
    pub fn begin(&self, plan: &AttemptPlan, io: StdioMode) -> RunningCommand {
        self.try_begin(plan, io, false).unwrap_or_else(|error| panic!("it does not begin: {error}"))
    }

    /// Begins a script whose output is kept.
    #[track_caller]
    pub fn start(&self, script: &str) -> RunningCommand {
        self.begin(&inside(script), CAPTURE)
    }

    /// Begins a script whose calls wait where they lack a power.
    #[track_caller]
    pub fn start_held(&self, script: &str) -> RunningCommand {
        self.try_begin(&inside(script), CAPTURE, true).unwrap_or_else(|error| panic!("it does not begin: {error}"))
    }

    #[track_caller]
    pub fn run(&self, script: &str) -> Ran {
        self.start(script).end()
    }

    #[track_caller]
    pub fn run_plan(&self, plan: &AttemptPlan) -> Ran {
        self.begin(plan, CAPTURE).end()
    }

    #[track_caller]
    pub fn python(&self, program: &str) -> Ran {
        self.run_plan(&python(program))
    }

    /// Why a plan cannot be begun.
    #[track_caller]
    pub fn refuses(&self, plan: &AttemptPlan) -> StartError {
        match self.try_begin(plan, CAPTURE, false) {
            Ok(running) => panic!("it began, and {:?}", running.end()),
            Err(error) => error,
        }
    }

    /// What a script prints that succeeds.
    #[track_caller]
    pub fn prints(&self, script: &str) -> String {
        self.run(script).ok()
    }

    /// Runs a script with all the powers and limits that the sandbox was made with.
    #[track_caller]
    fn run_with_all(&self, script: &str) -> Ran {
        self.run_plan(&AttemptPlan { profile: self.plan.profile.clone(), ..inside(script) })
    }

    /// What such a script prints that succeeds.
    #[track_caller]
    pub fn prints_with_all(&self, script: &str) -> String {
        self.run_with_all(script).ok()
    }

    /// How many of its processes sleep as long as this. The host sees them, or, where they
    /// are of a kernel of its own, another command does; with that kernel they end.
    #[track_caller]
    pub fn sleeping(&self, mark: &str) -> usize {
        if !self.own_kernel {
            return sleepers::sleeping(mark);
        }
        match self.try_begin(&python(&sleepers::counting(mark)), CAPTURE, false) {
            Ok(running) => running.end().ok().trim().parse().unwrap(),
            Err(error) if error.what.contains("is gone") => 0,
            Err(error) => panic!("they cannot be counted: {error:?}"),
        }
    }

    /// That refusals in it are told call by call, or declared as not.
    #[track_caller]
    pub fn require_exact(&self) -> Result<(), Declared> {
        let ran = self.run_with_all("true");
        match ran.report.layers.get("broker") {
            Some(layer) if layer.state != LayerState::Absent => Ok(()),
            Some(layer) => Err(Declared(format!("refusals are not told: {}", layer.detail))),
            None => panic!("the report says nothing of a broker: {:?}", ran.report),
        }
    }

    /// That its commands can reach out through the door, or that a grant for it is
    /// declared as one that cannot be given.
    #[track_caller]
    pub fn require_proxy(&self) -> Result<(), Declared> {
        let connect_grant = grant("connect host.test:1");
        if self.sandbox().backend().supports_grant(&connect_grant, self.plan.level) {
            // Programs that know nothing of it: where only a proxy leads there, they are
            // not led.
            let ran = self.run_with_all("true");
            let layer = &ran.report.layers["network"];
            let is_whole = layer.state == LayerState::Enforced;
            return if is_whole { Ok(()) } else { Err(Declared(format!("by proxy alone: {}", layer.detail))) };
        }
        let plan = AttemptPlan { grants: vec![connect_grant], ..inside("true") };
        Err(Declared(self.refuses(&plan).what))
    }
}

/// A command on its way.
pub struct RunningCommand {
    pub attempt: Box<dyn Attempt>,
    events: Receiver<AttemptEvent>,
    seen: Seen,
}

/// What was told of a command so far.
#[derive(Debug, Default)]
struct Seen {
    denials: Vec<Denial>,
    connections: Vec<ConnectionRecord>,
    programs: Vec<RawText>,
    end: Option<AttemptEnd>,
}

/// A call that waits for its answer.
#[derive(Debug)]
pub struct Question {
    pub id: HoldId,
    pub denial: Denial,
}

/// What there is to hear of a command that goes on.
#[derive(Debug)]
pub enum AttemptReport {
    Held(Question),
    Withdrawn(HoldId),
    Ended(AttemptEnd),
}

impl RunningCommand {
    /// Waits for a question, its withdrawal, or the end.
    #[track_caller]
    pub fn wait_for_report(&mut self) -> AttemptReport {
        if let Some(end) = self.seen.end.take() {
            return AttemptReport::Ended(end);
        }
        loop {
            match self.events.recv_timeout(event_timeout()).expect("the attempt goes on") {
                AttemptEvent::Denied(denial) | AttemptEvent::Breached(denial) => self.seen.denials.push(denial),
                AttemptEvent::Connection(record) => self.seen.connections.push(*record),
                AttemptEvent::Executed { program, .. } => self.seen.programs.push(program),
                AttemptEvent::Stopped(_) | AttemptEvent::Signed { .. } => {}
                AttemptEvent::Held { id, denial } => return AttemptReport::Held(Question { id, denial }),
                AttemptEvent::Withdrawn(id) => return AttemptReport::Withdrawn(id),
                AttemptEvent::Ended(end) => return AttemptReport::Ended(end),
            }
        }
    }

    #[track_caller]
    pub fn question(&mut self) -> Question {
        match self.wait_for_report() {
            AttemptReport::Held(question) => question,
            other => panic!("no question, but {other:?}"),
        }
    }

    /// Waits until a limit is told, or for the end.
    #[track_caller]
    pub fn limit(&mut self) -> Option<Denial> {
        loop {
            match self.events.recv_timeout(event_timeout()).expect("the attempt goes on") {
                AttemptEvent::Breached(denial) => {
                    self.seen.denials.push(denial.clone());
                    return Some(denial);
                }
                AttemptEvent::Denied(denial) => self.seen.denials.push(denial),
                AttemptEvent::Ended(end) => {
                    self.seen.end = Some(end);
                    return None;
                }
                _ => {}
            }
        }
    }

    pub fn answer(&self, question: &Question, answer: HeldAnswer) {
        self.attempt.answer_call(question.id, answer);
    }

    /// Gives what the question is about.
    pub fn grant(&self, question: &Question) {
        self.answer(question, HeldAnswer::Granted(question.denial.grant.iter().cloned().collect()));
    }

    /// Lets go of it, and gives its end.
    #[track_caller]
    pub fn let_go(self) -> AttemptEnd {
        drop(self.attempt);
        let is_end = |event| if let AttemptEvent::Ended(end) = event { Some(end) } else { None };
        self.events.into_iter().find_map(is_end).expect("whoever is let go of ends")
    }

    #[track_caller]
    pub fn end(mut self) -> Ran {
        loop {
            match self.wait_for_report() {
                AttemptReport::Ended(end) => {
                    let Seen { denials, connections, programs, .. } = self.seen;
                    return Ran {
                        end,
                        denials,
                        connections,
                        programs,
                        report: self.attempt.enforcement_report().clone(),
                    };
                }
                AttemptReport::Held(question) => panic!("nobody asked it to hold {question:?}"),
                AttemptReport::Withdrawn(_) => {}
            }
        }
    }
}

/// What came of a command.
#[derive(Debug)]
pub struct Ran {
    pub end: AttemptEnd,
    pub denials: Vec<Denial>,
    pub connections: Vec<ConnectionRecord>,
    pub programs: Vec<RawText>,
    pub report: EnforcementReport,
}

impl Ran {
    /// What it printed, having succeeded.
    #[track_caller]
    pub fn ok(&self) -> String {
        self.ended(CommandEnd::Exited(0));
        self.stdout()
    }

    #[track_caller]
    pub fn ended(&self, end: CommandEnd) {
        assert_eq!(self.end.end, end, "{}{} {:#?}", self.stdout(), self.stderr(), self.denials);
    }

    /// What its report says that is less than everything, in words that hold this.
    #[track_caller]
    pub fn declares(&self, word: &str) -> Declared {
        let mut layers = self.report.layers.values();
        let found = layers.find(|layer| layer.state == LayerState::Partial && layer.detail.contains(word));
        Declared(found.unwrap_or_else(|| panic!("no word of {word}: {:?}", self.report)).detail.clone())
    }

    pub fn stdout(&self) -> String {
        text(self.end.stdout.as_ref())
    }

    pub fn stderr(&self) -> String {
        text(self.end.stderr.as_ref())
    }

    /// What was refused, each as `OPERATION OBJECT [GRANT]`.
    pub fn denied(&self) -> Vec<String> {
        let shown = |denial: &Denial| {
            let grant = denial.grant.as_ref().map_or("-".to_owned(), ToString::to_string);
            format!("{:?} {} [{grant}]", denial.operation, denial.object.to_escaped())
        };
        self.denials.iter().map(shown).collect()
    }
}

fn text(bytes: Option<&RawText>) -> String {
    bytes.map(|bytes| String::from_utf8_lossy(bytes.as_bytes()).into_owned()).unwrap_or_default()
}

/// The powers of a sandbox that nobody gave more: its workspace and its home.
pub fn profile() -> Profile {
    Profile {
        name: "workspace".to_owned(),
        sandboxed: true,
        filesystem: FilesystemAccess {
            write: vec![INSIDE_WORKSPACE.into(), INSIDE_HOME.into()],
            hide: vec!["/etc/shadow".into()],
            protect: DEFAULT_PROTECTED_NAMES.iter().map(|&name| name.to_owned()).collect(),
            ..FilesystemAccess::default()
        },
        exec: ExecRules::default(),
        network: NetworkAccess::None,
        egress: stockade_model::EgressRules {
            special: vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
            ..Default::default()
        },
        environment: EnvironmentRules::default(),
        limits: Limits { temp_bytes: Some(64 << 20), processes: Some(200), ..Limits::default() },
    }
}

/// A command in the workspace of a sandbox.
pub fn command(argv: &[&str]) -> AttemptPlan {
    // An image may have no compiled modules of Python, which that would try to write.
    let python = ("PYTHONDONTWRITEBYTECODE", "1");
    let variables = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", INSIDE_HOME), ("LC_ALL", "C"), python];
    AttemptPlan {
        request: RequestId::from_random([1; 16]),
        attempt: 1,
        argv: argv.iter().map(|&word| RawText::from(word)).collect(),
        environment: BTreeMap::from(variables.map(|(name, value)| (name.to_owned(), value.into()))),
        cwd: INSIDE_WORKSPACE.into(),
        workspace: INSIDE_WORKSPACE.into(),
        profile: profile(),
        grants: Vec::new(),
        effects: Vec::new(),
        level: IsolationLevel::Full,
        backend: "native".to_owned(),
    }
}

/// A script for bash.
pub fn inside(script: &str) -> AttemptPlan {
    command(&["bash", "-c", script])
}

/// A program in Python.
pub fn python(program: &str) -> AttemptPlan {
    command(&["python3", "-c", program])
}

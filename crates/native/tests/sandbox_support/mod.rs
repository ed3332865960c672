//! What the tests of sandboxes that last share: one with its directories, plans of
//! commands in it, and what comes of them.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use stockade_backend_api::{
    Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, CommandEnd, Sandbox, SandboxError, SandboxEvent,
    SandboxEventSender, SandboxPlan, SandboxProvider, StartError, StdioMode,
};
use stockade_model::{
    AttemptPlan, BackgroundPolicy, DEFAULT_PROTECTED_NAMES, Denial, EnforcementReport, EnvironmentRules,
    FilesystemAccess, Grant, IsolationLevel, Limits, NetworkAccess, Profile, RawText, RequestId, SandboxId,
};
use stockade_native::NativeSandboxes;
use tempfile::TempDir;

pub const CAPTURE: StdioMode = StdioMode::Capture { limit_bytes: 1 << 20 };
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A sandbox with its directories on the host, and what it tells.
pub struct TestSandbox {
    pub top: TempDir,
    pub sandbox: Box<dyn Sandbox>,
    pub event_channel: Receiver<SandboxEvent>,
}

impl TestSandbox {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut SandboxPlan)) -> Self {
        Self::make(change).unwrap()
    }

    pub fn make(change: impl FnOnce(&mut SandboxPlan)) -> Result<Self, SandboxError> {
        let top = tempfile::Builder::new().prefix("sandbox-").tempdir().unwrap();
        let mut plan = sandbox_plan(top.path());
        change(&mut plan);
        let (events, event_channel) = hearing();
        let sandbox = NativeSandboxes::default().create_sandbox(&plan, events)?;
        Ok(Self { top, sandbox, event_channel })
    }

    pub fn begin(
        &self,
        plan: &AttemptPlan,
        io: StdioMode,
        hold: bool,
    ) -> Result<(Box<dyn Attempt>, Receiver<AttemptEvent>), StartError> {
        let (sender, events) = channel();
        let events_in = AttemptEventSender::new(move |event| drop(sender.send(event)));
        Ok((self.sandbox.backend().prepare_attempt(plan, &io, hold, events_in)?, events))
    }

    #[track_caller]
    pub fn run(&self, script: &str) -> Ran {
        self.run_plan(&inside(script))
    }

    #[track_caller]
    pub fn run_plan(&self, plan: &AttemptPlan) -> Ran {
        let (mut attempt, events) = self.begin(plan, CAPTURE, false).unwrap();
        attempt.release_command().unwrap();
        let report = attempt.enforcement_report().clone();
        let (end, denials) = drain(&events);
        Ran { end, denials, report }
    }
}

/// What a sandbox is made of whose directories are beneath this one.
pub fn sandbox_plan(top: &Path) -> SandboxPlan {
    let directory = |name: &str| {
        let path = top.join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    SandboxPlan {
        id: SandboxId::from_random([3; 16]),
        system: None,
        workspace: directory("work"),
        home: directory("home"),
        profile: profile(),
        level: IsolationLevel::Full,
        background: BackgroundPolicy::Keep,
        runtime: None,
    }
}

/// Where a sandbox tells what happens, and where that is heard.
pub fn hearing() -> (SandboxEventSender, Receiver<SandboxEvent>) {
    let (sender, event_channel) = channel();
    (SandboxEventSender::new(move |event| drop(sender.send(event))), event_channel)
}

#[derive(Debug)]
pub struct Ran {
    pub end: AttemptEnd,
    pub denials: Vec<Denial>,
    pub report: EnforcementReport,
}

impl Ran {
    #[track_caller]
    pub fn ok(&self) -> String {
        assert_eq!(self.end.end, CommandEnd::Exited(0), "{self:#?}");
        String::from_utf8_lossy(self.end.stdout.as_ref().unwrap().as_bytes()).into_owned()
    }
}

#[track_caller]
pub fn drain(events: &Receiver<AttemptEvent>) -> (AttemptEnd, Vec<Denial>) {
    let mut denials = Vec::new();
    loop {
        match events.recv_timeout(TIMEOUT).expect("the attempt ends") {
            AttemptEvent::Denied(denial) | AttemptEvent::Breached(denial) => denials.push(denial),
            AttemptEvent::Executed { .. }
            | AttemptEvent::Connection(_)
            | AttemptEvent::Signed { .. }
            | AttemptEvent::Withdrawn(_)
            | AttemptEvent::Stopped(_) => {}
            AttemptEvent::Held { .. } => panic!("it was not told to hold"),
            AttemptEvent::Ended(end) => return (end, denials),
        }
    }
}

pub fn profile() -> Profile {
    Profile {
        name: "workspace".to_owned(),
        sandboxed: true,
        filesystem: FilesystemAccess {
            write: vec!["/workspace".into(), "/home/agent".into()],
            hide: vec!["/etc/shadow".into()],
            protect: DEFAULT_PROTECTED_NAMES.iter().map(|&n| n.to_owned()).collect(),
            ..FilesystemAccess::default()
        },
        exec: stockade_model::ExecRules::default(),
        network: NetworkAccess::None,
        egress: Default::default(),
        environment: EnvironmentRules::default(),
        limits: Limits { temp_bytes: Some(64 << 20), processes: Some(200), ..Limits::default() },
    }
}

/// A script in the workspace of a sandbox.
pub fn inside(script: &str) -> AttemptPlan {
    let variables = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/home/agent"), ("LC_ALL", "C")];
    AttemptPlan {
        request: RequestId::from_random([1; 16]),
        attempt: 1,
        argv: ["bash", "-c", script].map(RawText::from).to_vec(),
        environment: BTreeMap::from(variables.map(|(name, value)| (name.to_owned(), value.into()))),
        cwd: "/workspace".into(),
        workspace: "/workspace".into(),
        profile: profile(),
        grants: Vec::new(),
        effects: Vec::new(),
        level: IsolationLevel::Full,
        backend: "native".to_owned(),
    }
}

pub fn grant(text: &str) -> Grant {
    text.parse().unwrap()
}

/// Tests that this machine cannot have are said to be not run.
pub fn has_groups() -> bool {
    let has = NativeSandboxes::default().capabilities().pauses;
    if !has {
        eprintln!("not run: this user can have no control group");
    }
    has
}

/// The control groups of what a process has made.
pub fn groups_of(pid: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![Path::new("/sys/fs/cgroup").to_owned()];
    while let Some(directory) = waiting.pop() {
        for path in fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with("stockade.") && name.split('.').nth(2) == Some(&pid.to_string()) {
                found.push(path);
            } else if path.is_dir() && !path.is_symlink() {
                waiting.push(path);
            }
        }
    }
    found
}

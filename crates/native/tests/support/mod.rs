//! What the launch tests share: plans, running them with a broker that lets
//! everything continue, and repeating a test as root and as an ordinary user.
//!
//! With such a broker only the floor decides: mounts, Landlock, the filter.
#![allow(dead_code, clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use stockade_launch::{
    Blueprint, CommandStdio, ExitReport, LaunchError, LaunchOptions, LaunchedSandbox, ProcessExit, launch_sandbox,
};
use stockade_model::{
    AttemptPlan, DEFAULT_PROTECTED_NAMES, EnforcementReport, EnvironmentRules, FilesystemAccess, IsolationLevel,
    Limits, NetworkAccess, Profile, RawText, RequestId,
};
use stockade_sys::notify::{NotificationAnswer, SeccompNotifier};

#[path = "../../../stage/tests/roles/mod.rs"]
mod roles;

pub use roles::in_each_role;

/// Long enough for a loaded machine; a test that needs it has hung.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A workspace to run in. Lies under the temporary directory, which the sandbox
/// replaces by a private one.
pub fn workspace() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("launch-").tempdir().unwrap()
}

/// A plan with profile `workspace`.
pub fn plan(level: IsolationLevel, workspace: &Path, argv: &[&str]) -> AttemptPlan {
    let text = |p: &Path| RawText::from(p.canonicalize().unwrap());
    let environment = BTreeMap::from([
        ("PATH".to_owned(), RawText::from("/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")),
        ("HOME".to_owned(), RawText::from("/root")),
        ("LC_ALL".to_owned(), RawText::from("C")),
    ]);
    AttemptPlan {
        request: RequestId::from_random([7; 16]),
        attempt: 1,
        argv: argv.iter().map(|a| RawText::from(*a)).collect(),
        environment,
        cwd: text(workspace),
        workspace: text(workspace),
        profile: Profile {
            name: "workspace".to_owned(),
            sandboxed: true,
            filesystem: FilesystemAccess {
                write: vec![text(workspace)],
                protect: DEFAULT_PROTECTED_NAMES.iter().map(|n| (*n).to_owned()).collect(),
                ..FilesystemAccess::default()
            },
            exec: stockade_model::ExecRules::default(),
            network: NetworkAccess::None,
            egress: Default::default(),
            environment: EnvironmentRules::default(),
            limits: Limits::default(),
        },
        grants: Vec::new(),
        effects: Vec::new(),
        level,
        backend: "native".to_owned(),
    }
}

/// A plan that runs a shell script.
pub fn script(level: IsolationLevel, workspace: &Path, text: &str) -> AttemptPlan {
    plan(level, workspace, &["/bin/sh", "-c", text])
}

/// What came of a run.
#[derive(Debug)]
pub struct Ran {
    pub exit: ExitReport,
    pub stdout: String,
    pub stderr: String,
    pub report: EnforcementReport,
}

impl Ran {
    /// Fails unless it exited with 0, and gives its output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.exit.status, ProcessExit::Exited(0), "{self:#?}");
        assert_eq!(self.exit.exec_errno, None);
        self.stdout
    }
}

/// Runs a plan to its end, every question answered with "go on".
#[track_caller]
pub fn run(plan: &AttemptPlan) -> Ran {
    try_run(plan).unwrap()
}

/// As [`run`], for plans that may not start.
pub fn try_run(plan: &AttemptPlan) -> Result<Ran, LaunchError> {
    try_run_with(plan, &LaunchOptions::default())
}

/// The same with what the run is given besides.
pub fn try_run_with(plan: &AttemptPlan, options: &LaunchOptions) -> Result<Ran, LaunchError> {
    let (ran, answers) = complete(|stdio| launch_sandbox(Blueprint::prepare_with(plan, options)?, stdio))?;
    answers.join().unwrap();
    Ok(ran)
}

/// Runs what is launched with these streams to its end. Its calls are answered
/// until the last process with its filter is gone.
pub fn complete(
    launch: impl FnOnce(CommandStdio<'_>) -> Result<LaunchedSandbox, LaunchError>,
) -> Result<(Ran, thread::JoinHandle<()>), LaunchError> {
    let (stdout, stdout_inside) = pipe();
    let (stderr, stderr_inside) = pipe();
    let stdin = File::open("/dev/null").unwrap();
    let stdio = CommandStdio { stdin: stdin.as_fd(), stdout: stdout_inside.as_fd(), stderr: stderr_inside.as_fd() };
    let mut launched = launch(stdio)?;
    drop((stdout_inside, stderr_inside));
    let readers = [stdout, stderr].map(|mut file| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let answers = answer_all(&mut launched);
    launched.release_command()?;
    let exit = launched.wait_for_end(TIMEOUT)?.expect("it ends");
    let report = launched.report().clone();
    let [stdout, stderr] = readers.map(|r| r.join().unwrap());
    Ok((Ran { exit, stdout, stderr, report }, answers))
}

/// A broker that lets every call continue.
pub fn answer_all(launched: &mut LaunchedSandbox) -> thread::JoinHandle<()> {
    let notifier = SeccompNotifier::new(launched.take_listener().expect("a listener")).unwrap();
    thread::spawn(move || {
        let _ = notifier.wake_synchronously();
        let mut space = notifier.allocate_buffer();
        let (never, _writer) = pipe();
        loop {
            let waiting = notifier.wait_for_events(never.as_fd(), Some(TIMEOUT)).unwrap();
            if waiting.request {
                if let Ok(request) = notifier.receive_notification(&mut space) {
                    let _ = notifier.answer_call(request.id, NotificationAnswer::Continue);
                }
            } else if waiting.over {
                return;
            }
        }
    })
}

pub fn pipe() -> (File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (File::from(read), write)
}

/// Processes of this machine whose command line holds `mark`.
pub fn processes_with(mark: &str) -> Vec<PathBuf> {
    let holds =
        |p: &PathBuf| std::fs::read(p.join("cmdline")).is_ok_and(|c| String::from_utf8_lossy(&c).contains(mark));
    let entries = std::fs::read_dir("/proc").unwrap().flatten().map(|e| e.path());
    entries.filter(|p| p.file_name().unwrap().to_string_lossy().parse::<u32>().is_ok()).filter(holds).collect()
}

/// Set in the process that plays the caller which is killed: its workspace.
const VICTIM: &str = "STOCKADE_TEST_VICTIM";

/// Starts a second copy of the test as the caller, kills it with SIGKILL while
/// its command runs, and looks for what is left.
pub fn check_killed_caller(level: IsolationLevel) {
    if let Some(ws) = std::env::var_os(VICTIM) {
        let mark = std::env::var("STOCKADE_TEST_MARK").unwrap();
        let text = format!("(setsid sleep {mark} &); (setsid sh -c 'sleep {mark} & sleep {mark}' &); sleep {mark}");
        let _ = run(&script(level, Path::new(&ws), &text));
        return;
    }
    let ws = workspace();
    let mark = format!("6{:08}", std::process::id());
    let test = thread::current().name().unwrap().to_owned();
    let mut caller = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture", "--test-threads", "1"])
        .env(VICTIM, ws.path())
        .env("STOCKADE_TEST_MARK", &mark)
        .spawn()
        .unwrap();
    let sleeping = || processes_with(&format!("sleep\0{mark}")).len();
    wait_until("the command runs", || sleeping() == 4);
    caller.kill().unwrap();
    caller.wait().unwrap();
    wait_until("nothing is left", || processes_with(&mark).is_empty());
}

pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let give_up = std::time::Instant::now() + TIMEOUT;
    while !condition() {
        assert!(std::time::Instant::now() < give_up, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

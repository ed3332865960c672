//! Commands without isolation of this project. One backend is for profile `host`, which has no
//! sandbox at all; the other is for an environment that another runtime has isolated.
//!
//! This is the only code of the project that starts a program without isolation. The engine uses
//! the first backend only after the user's explicit approval of this one command (L1).

use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use stockade_backend_api::{
    Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, Backend, CommandEnd, StartError, StdioMode,
};
use stockade_files::object::unguessable_name;
use stockade_launch::build_image;
use stockade_model::{
    AttemptPlan, EnforcementReport, Grant, IsolationLevel, LayerReport, LayerState, RawText, ResourceUsage,
};
use stockade_sys::reap::{adopt_orphans, children_used, reap_any};
use stockade_sys::session::attach_terminal;

use crate::capture::StreamCapture;
use crate::errors::map_launch_error;
use crate::streams::capture_limit;

/// Time-out for the end of killed processes that a command left behind.
const LEFTOVER_END_TIMEOUT: Duration = Duration::from_secs(10);
/// Environment variable that identifies the processes of a command if no process adopts orphans.
const MARK_VARIABLE: &str = "STOCKADE_COMMAND";
/// Interval between two searches for them.
const PROCESS_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Backend that runs commands unchanged on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBackend;

impl Backend for HostBackend {
    fn name(&self) -> &'static str {
        "host"
    }

    fn supports_grant(&self, _grant: &Grant, _level: IsolationLevel) -> bool {
        false
    }

    fn prepare_attempt(
        &self,
        plan: &AttemptPlan,
        io: &StdioMode,
        _hold: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError> {
        if plan.profile.sandboxed || plan.level != IsolationLevel::None {
            return Err(StartError {
                what: format!("profile `{}` asks for a sandbox, and this backend has none", plan.profile.name),
                hint: None,
            });
        }
        let layers = BTreeMap::from_iter(crate::undoing::undo_layer(plan, None));
        let enforced = EnforcementReport { level: IsolationLevel::None, layers };
        Ok(Box::new(HostAttempt::new(plan.clone(), *io, events, (enforced, None))))
    }
}

/// Prepares a command within existing isolation whose kernel lacks the needed features: a container
/// with a runtime that is a kernel of its own. The processes that a command leaves behind are killed
/// when it ends. Therefore each process that calls this runs one command.
///
/// # Errors
/// [`StartError`] if the working directory is missing, or no random bytes are available.
pub fn prepare_enclosed_attempt(
    mut plan: AttemptPlan,
    io: StdioMode,
    events: AttemptEventSender,
) -> Result<Box<dyn Attempt>, StartError> {
    require_directory(plan.cwd.as_path())?;
    let mark = new_mark()?;
    plan.environment.insert(MARK_VARIABLE.to_owned(), mark.as_str().into());
    let enforced = enclosed_report(adopt_orphans().is_ok());
    Ok(Box::new(HostAttempt::new(plan, io, events, (enforced, Some(mark)))))
}

fn require_directory(path: &Path) -> Result<(), StartError> {
    let of = |why: String| StartError { what: format!("the working directory {}: {why}", path.display()), hint: None };
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(of("it is no directory".to_owned())),
        Err(error) => Err(of(error.to_string())),
    }
}

/// Returns a mark that only processes started with it know.
fn new_mark() -> Result<String, StartError> {
    unguessable_name().map_err(|errno| StartError { what: format!("cannot get random bytes: {errno}"), hint: None })
}

fn enclosed_report(adopts: bool) -> EnforcementReport {
    let broker_detail = "no Landlock in the kernel: only the isolation refuses calls; none is reported or held; protected \
                 names can be written";
    let (state, processes) = if adopts {
        (LayerState::Enforced, "orphans are adopted and ended")
    } else {
        let what =
            "orphans are found by their environment and ended; one that changed it keeps running in the isolation";
        (LayerState::Partial, what)
    };
    let layer = |name: &str, state, detail: &str| (name.to_owned(), LayerReport { state, detail: detail.to_owned() });
    let layers = [layer("broker", LayerState::Absent, broker_detail), layer("processes", state, processes)];
    EnforcementReport { level: IsolationLevel::None, layers: layers.into() }
}

struct HostAttempt {
    plan: AttemptPlan,
    io: StdioMode,
    events: AttemptEventSender,
    enforced: EnforcementReport,
    group: Arc<Mutex<Option<Pid>>>,
    watcher: Option<JoinHandle<()>>,
    /// Value of the environment variable of all processes that it starts, if they are killed at its
    /// end.
    mark: Option<String>,
}

impl HostAttempt {
    fn new(
        plan: AttemptPlan,
        io: StdioMode,
        events: AttemptEventSender,
        (enforced, mark): (EnforcementReport, Option<String>),
    ) -> Self {
        Self { plan, io, events, enforced, group: Arc::default(), watcher: None, mark }
    }
}

impl Attempt for HostAttempt {
    fn enforcement_report(&self) -> &EnforcementReport {
        &self.enforced
    }

    #[allow(clippy::disallowed_methods, reason = "starting a program without a sandbox is what profile host is")]
    fn release_command(&mut self) -> Result<(), StartError> {
        let image = build_image(&self.plan).map_err(map_launch_error)?;
        // The name only; it is reported if the program cannot be executed.
        let mut command = Command::new(self.plan.argv.first().map(RawText::as_os_str).unwrap_or_default());
        command.current_dir(self.plan.cwd.as_path());
        match self.io {
            // A session leader is also a process group leader.
            StdioMode::Terminal => attach_terminal(&mut command),
            StdioMode::Inherit => drop(command.process_group(0)),
            StdioMode::Capture { .. } => drop(command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped())),
        }
        image.replace_command(&mut command);
        let started = Instant::now();
        match command.spawn() {
            Ok(child) => {
                *self.group.lock().unwrap_or_else(PoisonError::into_inner) = Some(Pid::from_child(&child));
                let (events, io, group) = (self.events.clone(), self.io, Arc::clone(&self.group));
                let mark = self.mark.clone();
                self.watcher = Some(thread::spawn(move || watch_child(child, io, (started, mark), &group, &events)));
            }
            Err(error) => {
                let end = if error.kind() == std::io::ErrorKind::NotFound {
                    CommandEnd::NotFound
                } else {
                    CommandEnd::NotExecutable(error.to_string())
                };
                self.events.send_event(AttemptEvent::Ended(AttemptEnd::from_command_end(end)));
            }
        }
        Ok(())
    }

    fn send_signal(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal)
            && let Some(group) = *self.group.lock().unwrap_or_else(PoisonError::into_inner)
        {
            // The group may have ended meanwhile.
            let _ = kill_process_group(group, signal);
        }
    }

    fn kill_processes(&self) {
        self.send_signal(Signal::KILL.as_raw());
        if let Some(mark) = &self.mark {
            started_with(mark).into_iter().for_each(kill_host_process);
        }
    }
}

impl Drop for HostAttempt {
    fn drop(&mut self) {
        self.kill_processes();
        if let Some(watcher) = self.watcher.take() {
            // A watcher that panicked has no work left.
            let _ = watcher.join();
        }
    }
}

/// Collects the output, waits for the end and reports it.
fn watch_child(
    mut child: Child,
    io: StdioMode,
    (started, mark): (Instant, Option<String>),
    group: &Mutex<Option<Pid>>,
    events: &AttemptEventSender,
) {
    let limit_bytes = capture_limit(io);
    let errors = child.stderr.take().map(|pipe| thread::spawn(move || drain_pipe(&pipe, limit_bytes)));
    let output = child.stdout.take().map(|pipe| thread::spawn(move || drain_pipe(&pipe, limit_bytes)));
    let status = child.wait();
    let mut usage = ResourceUsage::default();
    if let Some(mark) = mark {
        end_all(&mark);
        // Each process that sets the mark runs one command.
        let used = children_used();
        usage = ResourceUsage { cpu_ms: used.cpu_us / 1000, memory_peak_bytes: used.memory_peak_bytes, ..usage };
    }
    let [output, errors] = [output, errors].map(|reader| reader.and_then(|reader| reader.join().ok()));
    // From here on the kernel may reuse the number for another group.
    *group.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let end = match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => CommandEnd::Exited(code),
            (None, Some(signal)) => CommandEnd::Signaled(signal),
            (None, None) => CommandEnd::Lost("the kernel reported no exit status".to_owned()),
        },
        Err(error) => CommandEnd::Lost(format!("waiting for the command failed: {error}")),
    };
    let truncated = [&output, &errors].into_iter().flatten().any(StreamCapture::is_truncated);
    let text = |capture: Option<StreamCapture>| capture.map(|c| RawText::from(c.into_bytes()));
    usage.wall_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (stdout, stderr) = (text(output), text(errors));
    events.send_event(AttemptEvent::Ended(AttemptEnd {
        usage,
        stdout,
        stderr,
        truncated,
        ..AttemptEnd::from_command_end(end)
    }));
}

fn drain_pipe(pipe: &impl std::os::fd::AsFd, limit_bytes: u64) -> StreamCapture {
    let mut capture = StreamCapture::new(limit_bytes);
    while capture.read_chunk(pipe.as_fd()) {}
    capture
}

/// Kills every process that a command started.
fn end_all(mark: &str) {
    let deadline = Instant::now() + LEFTOVER_END_TIMEOUT;
    loop {
        while let Ok(Some(_)) = reap_any() {}
        let remaining = started_with(mark);
        if remaining.is_empty() || Instant::now() > deadline {
            return;
        }
        remaining.into_iter().for_each(kill_host_process);
        thread::sleep(PROCESS_POLL_INTERVAL);
    }
}

/// Kills a process. Its number may belong to another process by now, but only within the same
/// isolation.
fn kill_host_process(process: Pid) {
    let _ = kill_process(process, Signal::KILL);
}

/// Returns the descendants of this process, and marked processes of its command that are no longer
/// descendants.
fn started_with(mark: &str) -> Vec<Pid> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: BTreeMap<i32, i32> = numbers.filter_map(|number| Some((number, parent_of(number)?))).collect();
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let descends = |number: i32| {
        let mut at = number;
        // No chain of parents is longer than the number of processes.
        (0..parents.len()).any(|_| {
            at = parents.get(&at).copied().unwrap_or_default();
            at == own
        })
    };
    let found = parents.keys().copied().filter(|number| descends(*number) || is_marked(*number, mark));
    found.filter_map(Pid::from_raw).collect()
}

fn is_marked(process: i32, mark: &str) -> bool {
    let entry = format!("{MARK_VARIABLE}={mark}");
    let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
}

fn parent_of(process: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::mpsc::channel;

    use stockade_model::{EnvironmentRules, ExecRules, FilesystemAccess, Limits, NetworkAccess, Profile, RequestId};

    fn plan(directory: &Path, program: &str) -> AttemptPlan {
        AttemptPlan {
            request: RequestId::from_random([1; 16]),
            attempt: 1,
            argv: vec![program.into(), "word".into()],
            environment: [("PATH".to_owned(), RawText::from(directory))].into(),
            cwd: directory.into(),
            workspace: directory.into(),
            profile: Profile {
                name: "host".to_owned(),
                sandboxed: false,
                filesystem: FilesystemAccess::default(),
                exec: ExecRules::default(),
                network: NetworkAccess::None,
                egress: Default::default(),
                environment: EnvironmentRules::default(),
                limits: Limits::default(),
            },
            grants: Vec::new(),
            effects: Vec::new(),
            level: IsolationLevel::None,
            backend: "host".to_owned(),
        }
    }

    fn ran(directory: &Path, program: &str) -> (CommandEnd, String) {
        let (sender, receiver) = channel();
        let events = AttemptEventSender::new(move |event| drop(sender.send(event)));
        let io = StdioMode::Capture { limit_bytes: 1000 };
        let mut attempt = HostBackend.prepare_attempt(&plan(directory, program), &io, false, events).unwrap();
        attempt.release_command().unwrap();
        let ended =
            receiver.iter().find_map(|event| if let AttemptEvent::Ended(end) = event { Some(end) } else { None });
        let end = ended.unwrap();
        let stdout_text = end.stdout.map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
        (end.end, stdout_text.unwrap_or_default())
    }

    #[test]
    fn the_named_program_is_run_and_never_a_shell_for_it() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [("script", "#!/bin/sh\necho $1\n"), ("text", "echo $1\n")] {
            std::fs::write(directory.path().join(name), text).unwrap();
            std::fs::set_permissions(directory.path().join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        for script in ["script", "./script"] {
            assert_eq!(ran(directory.path(), script), (CommandEnd::Exited(0), "word\n".to_owned()));
        }
        for text in ["text", "./text"] {
            let (end, stdout_text) = ran(directory.path(), text);
            assert!(matches!(end, CommandEnd::NotExecutable(_)) && stdout_text.is_empty(), "{end:?} {stdout_text}");
        }
        assert_eq!(ran(directory.path(), "absent").0, CommandEnd::NotFound);
    }
}

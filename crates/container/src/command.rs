//! Command in a container: an attempt whose launcher is in the container, and whose streams are
//! copied to it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};
use stockade_backend_api::remote::{AttemptOrder, RemoteAttempt};
use stockade_backend_api::{
    Attempt, AttemptEventSender, Backend, HeldAnswer, INSIDE_HOME, INSIDE_WORKSPACE, SandboxPlan, StartError, StdioMode,
};
use stockade_egress::NameResolver;
use stockade_model::{
    AttemptPlan, EgressRules, EnforcementReport, Grant, IsolationLevel, LayerReport, LayerState, Profile, RawText,
    SandboxId,
};
use stockade_native::{own_umask, served_ports};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::channel::{AttachedLauncher, LauncherChannel, StreamPipes, attach_launcher, read_launcher_output};
use crate::client::{CALL_TIMEOUT, CallError, ContainerClient};
use crate::host_egress::HostEgress;
use crate::in_container::kernel;
use crate::in_container::{
    ContainerFeatures, ERRORS_PATH, INPUT_PATH, LauncherMessage, LauncherOrder, OUTPUT_PATH, ProbeOrder,
    ReachableObject, TerminalSize, network_namespace,
};
use crate::launcher::CommandLauncher;
use crate::mount_check::ExpectedMounts;
use crate::multiplexer::{MAX_MESSAGE_BYTES, encode_message};
use crate::observed_attempt::ObservedAttempt;
use crate::stream_copy::{StreamEndCondition, end_signal_pipe, read_from, write_to};
use crate::{ContainerEngineKind, cannot, limits};

/// Longest text of one byte of output in a message.
const MAX_BYTE_TEXT_BYTES: usize = 6;
/// Interval between two checks of the caller's terminal size: a process that does not own the
/// terminal gets no signal.
const SIZE_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// What fails if a command's streams or its order cannot be passed on.
const FORWARD_STREAMS: &str = "forward the streams of the command";
/// Time for which an engine may still report a running container as paused, because it learns of
/// changes late.
const UNPAUSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the next request.
const START_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Backend that runs commands in one container.
#[derive(Clone)]
pub(crate) struct ContainerCommandBackend {
    pub(crate) kind: ContainerEngineKind,
    pub(crate) client: ContainerClient,
    pub(crate) sandbox: SandboxId,
    pub(crate) container: String,
    /// The container's start, if the engine reports it.
    pub(crate) started: Option<SystemTime>,
    pub(crate) user: String,
    pub(crate) enforced: EnforcementReport,
    /// Profile that the container was made for, with the limits of all commands together.
    pub(crate) profile: Profile,
    /// True if the native isolation works in the container.
    pub(crate) has_isolation: bool,
    /// Resolves names outside; the system's resolver if absent.
    pub(crate) resolver: Option<Arc<dyn NameResolver>>,
    /// True once its container has ended.
    pub(crate) has_ended: watch::Sender<bool>,
}

impl std::fmt::Debug for ContainerCommandBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandBackend").field("container", &self.container).finish_non_exhaustive()
    }
}

/// State of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerCondition {
    /// Ended or does not exist.
    Gone,
    /// Paused.
    Paused,
    /// Running, as far as is known.
    Goes,
}

impl ContainerCommandBackend {
    /// Returns the current state of its container.
    pub(crate) fn query_condition(&self) -> ContainerCondition {
        let state = match self.client.inspect_container(&self.container) {
            Ok(found) => found.state.unwrap_or_default(),
            Err(CallError::NotFound(_)) => return ContainerCondition::Gone,
            Err(_) => return ContainerCondition::Goes,
        };
        match (state.paused, state.running) {
            (Some(true), _) => ContainerCondition::Paused,
            (_, Some(false)) => ContainerCondition::Gone,
            _ => ContainerCondition::Goes,
        }
    }

    fn require_possible(&self, plan: &AttemptPlan) -> Result<(), StartError> {
        if let Some(grant) = plan.grants.iter().find(|grant| !self.supports_grant(grant, plan.level)) {
            return Err(StartError {
                what: format!("`{grant}` cannot be given in this sandbox, because it was created without it"),
                hint: Some("remove the grant, or create a sandbox with it".to_owned()),
            });
        }
        if plan.profile.filesystem.stage {
            let what = "a persistent sandbox does not support stages, because it has its own workspace".to_owned();
            return Err(StartError { what, hint: Some("run without --stage".to_owned()) });
        }
        if self.has_isolation { Ok(()) } else { self.require_no_less(plan) }
    }

    /// Checks that the command's limits and hidden paths are not stricter than the container's.
    /// Without isolation of its own, the command cannot have stricter ones.
    fn require_no_less(&self, plan: &AttemptPlan) -> Result<(), StartError> {
        limits::require_no_lower(&self.profile.limits, &plan.profile.limits)?;
        let hidden = &self.profile.filesystem.hide;
        match plan.profile.filesystem.hide.iter().find(|path| !hidden.contains(path)) {
            Some(path) => Err(StartError {
                what: format!("{} cannot be hidden from one command of this sandbox", path.to_escaped()),
                hint: Some("use a container runtime whose kernel has Landlock".to_owned()),
            }),
            None => Ok(()),
        }
    }

    /// Returns the plan for the launcher, within the isolation of the container.
    fn plan_inside(&self, plan: &AttemptPlan) -> AttemptPlan {
        let mut inside = plan.clone();
        inside.level = IsolationLevel::Restricted;
        inside.backend = "native".to_owned();
        // Only the reachable targets; the host applies the rest.
        let EgressRules { allow, ask, deny, .. } = inside.profile.egress;
        inside.profile.egress = EgressRules { allow, ask, deny, ..EgressRules::default() };
        inside.profile.limits = limits::command_limits(&self.profile.limits, &plan.profile.limits);
        // A hidden path of the host has another path in the container if it is in the workspace.
        let (own, of_sandbox) = (&mut inside.profile.filesystem.hide, &self.profile.filesystem.hide);
        own.extend(of_sandbox.iter().filter(|path| !plan.profile.filesystem.hide.contains(path)).cloned());
        inside
    }

    /// Examines the container, and reports which limits are enforced by which part. Returns the
    /// paths to hide that a command can reach, if nothing in the container could hide them.
    ///
    /// # Errors
    /// [`StartError`] if the level needs kernel features for isolation that the runtime's kernel
    /// lacks, or a limit that nothing else could enforce.
    pub(crate) fn look_inside(
        &mut self,
        plan: &SandboxPlan,
        expected: &ExpectedMounts,
    ) -> Result<Vec<ReachableObject>, StartError> {
        let found = self.probe_container(&plan.profile.filesystem.hide, expected)?;
        require_no_network(&found)?;
        let is_host_kernel = found.boot.is_some() && found.boot == kernel::boot_id();
        expected.require_match(&found.mounts, is_host_kernel)?;
        require_level(plan, &found)?;
        self.report_limits(plan, found.native_isolation);
        if found.native_isolation {
            return Ok(Vec::new());
        }
        limits::require_limits_without_isolation(&plan.profile.limits)?;
        Ok(found.reached)
    }

    /// Does the same for a container that was made before. While it is paused, no process in it
    /// could examine it, or do anything else.
    ///
    /// # Errors
    /// As for [`look_inside`](Self::look_inside).
    pub(crate) fn recheck_container(
        &mut self,
        plan: &SandboxPlan,
        expected: &ExpectedMounts,
        is_paused: bool,
    ) -> Result<(), StartError> {
        if is_paused && plan.level == IsolationLevel::Full {
            self.report_limits(plan, true);
            return Ok(());
        }
        // The paths that existed at first were covered; later ones belong to its commands.
        self.look_inside(plan, expected).map(drop)
    }

    fn report_limits(&mut self, plan: &SandboxPlan, has_isolation: bool) {
        self.has_isolation = has_isolation;
        self.enforced.layers.insert("limits".to_owned(), limits::layer_report(&plan.profile.limits, has_isolation));
    }

    fn probe_container(&self, hidden: &[RawText], expected: &ExpectedMounts) -> Result<ContainerFeatures, StartError> {
        let order = ProbeOrder { hidden: hidden.to_vec(), paths: expected.paths_to_examine() };
        let order = encode_message(&order).map_err(cannot(FORWARD_STREAMS))?;
        let probe_output = read_launcher_output(&self.client, self.launcher_owner(), ("probe", order));
        let (output, complaint) = probe_output.map_err(|error| self.failed_start_error(&error))?;
        let decoded = serde_json::from_slice(&output);
        let decoded = decoded.map_err(cannot("decode the message of the launcher in the container"));
        decoded.map_err(|error| with_complaint(error, &complaint))
    }

    /// Returns the container, and the user of its commands.
    fn launcher_owner(&self) -> (String, String) {
        (self.container.clone(), self.user.clone())
    }

    fn start_launcher(&self, order: &Bytes) -> Result<AttachedLauncher, StartError> {
        let give_up = Instant::now() + UNPAUSE_TIMEOUT;
        loop {
            let (owner, start) = (self.launcher_owner(), ("serve", order.clone()));
            let error = match self.client.call(CALL_TIMEOUT, |docker| attach_launcher(docker, owner, start)) {
                Ok(attached) => return Ok(attached),
                Err(error) => error,
            };
            let still_paused = matches!(&error, CallError::Refused(why) if why.contains("is paused"));
            if !still_paused || self.query_condition() != ContainerCondition::Goes || Instant::now() > give_up {
                return Err(self.failed_start_error(&error));
            }
            thread::sleep(START_RETRY_DELAY);
        }
    }

    /// Returns the reason for a failed start: each engine words it differently.
    fn failed_start_error(&self, error: &CallError) -> StartError {
        match self.query_condition() {
            ContainerCondition::Gone => self.ended_error(),
            ContainerCondition::Paused => StartError {
                what: format!("the sandbox {} is paused: no command can run in it", self.sandbox),
                hint: Some("resume the sandbox first".to_owned()),
            },
            ContainerCondition::Goes => error.to_start_error("start a command in the container"),
        }
    }

    /// Returns the reason for missing isolation. An engine may start a launcher after its container
    /// has ended, and report that error instead.
    fn missing_isolation_error(&self, error: StartError, complaint: &str) -> StartError {
        match self.query_condition() {
            ContainerCondition::Gone => self.ended_error(),
            ContainerCondition::Paused | ContainerCondition::Goes => with_complaint(error, complaint),
        }
    }

    fn ended_error(&self) -> StartError {
        StartError { what: format!("the sandbox {} is gone", self.sandbox), hint: None }
    }
}

/// Checks that the egress proxy is the only network access. Servers on the host's loopback and its
/// abstract sockets need no route, so the namespace is checked too.
fn require_no_network(found: &ContainerFeatures) -> Result<(), StartError> {
    let is_hosts = found.namespace.is_some() && found.namespace == network_namespace().ok();
    let has = match &found.network {
        _ if is_hosts => "the network of the host".to_owned(),
        Some(device) => format!("a network, `{}`", device.escape_default()),
        None => return Ok(()),
    };
    Err(StartError {
        what: format!("the container has {has}, although none was requested"),
        hint: Some("check the container with `inspect` of the container engine; no command was started".to_owned()),
    })
}

fn require_level(plan: &SandboxPlan, found: &ContainerFeatures) -> Result<(), StartError> {
    if found.native_isolation {
        let what = "the container runtime did not load its seccomp filter".to_owned();
        return if found.filtered { Ok(()) } else { Err(StartError { what, hint: None }) };
    }
    if plan.level == IsolationLevel::Restricted {
        return require_unprotected(plan);
    }
    Err(StartError {
        what: "the kernel of this container runtime has no Landlock: refused calls could be \
               neither reported nor held, and commands could write protected names"
            .to_owned(),
        hint: Some("use another container runtime, or the lower level: --level restricted".to_owned()),
    })
}

/// Refuses protected names if nothing can keep commands from writing them, because the host trusts
/// such files (L7).
fn require_unprotected(plan: &SandboxPlan) -> Result<(), StartError> {
    let Some(name) = plan.profile.filesystem.protect.first() else { return Ok(()) };
    Err(StartError {
        what: format!(
            "the kernel of this container runtime has no Landlock, so that `{name}` of a workspace that the \
             host uses could be written"
        ),
        hint: Some("use a copy of the directory, or another container runtime".to_owned()),
    })
}

/// Reports the network layer: the egress proxy on the host is the only network access, and decides.
fn network_layer(inside: IsolationLevel) -> LayerReport {
    let (state, detail) = match inside {
        IsolationLevel::None => (
            LayerState::Partial,
            "only the container's loopback; granted hosts are reachable over the egress proxy's HTTP proxy only: \
             other connections and DNS queries fail, and are not reported",
        ),
        IsolationLevel::Full | IsolationLevel::Restricted => (
            LayerState::Enforced,
            "only the container's loopback; granted hosts are reachable through the egress proxy over TCP; no UDP; \
             DNS only over TCP; connections end with the command that the launcher started",
        ),
    };
    LayerReport { state, detail: detail.to_owned() }
}

/// The layers that differ with a runtime that has its own kernel. It counts resources itself, may
/// ignore the control groups of the host, answers system calls itself, and need not apply a filter
/// of them.
const OWN_KERNEL_LAYERS: [(&str, LayerState, &str); 4] = [
    (
        "container-limits",
        LayerState::Partial,
        "requested from the engine; Stockade cannot check whether its runtime enforces them",
    ),
    ("container-filter", LayerState::Absent, "passed to the container runtime, but its kernel does not apply it"),
    (
        "container-files",
        LayerState::Partial,
        "read-only root filesystem; workspace, home and private temp are writable; hidden paths are covered as they \
         were at creation; pipes, sockets and /dev/fuse are the runtime's own, and invisible outside",
    ),
    (
        "launchers",
        LayerState::Partial,
        "not protected from the commands of the sandbox: effects on a launcher stay inside the container",
    ),
];

/// A message may contain both outputs.
fn message_bytes(io: StdioMode) -> usize {
    let limit_bytes = match io {
        StdioMode::Capture { limit_bytes } => usize::try_from(limit_bytes).unwrap_or(usize::MAX),
        StdioMode::Inherit | StdioMode::Terminal => 0,
    };
    limit_bytes.saturating_mul(2 * MAX_BYTE_TEXT_BYTES).saturating_add(MAX_MESSAGE_BYTES)
}

impl Backend for ContainerCommandBackend {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn supports_grant(&self, grant: &Grant, _level: IsolationLevel) -> bool {
        let is_inside = |path: &Path| path.starts_with(INSIDE_WORKSPACE) || path.starts_with(INSIDE_HOME);
        match grant {
            Grant::Write(path) | Grant::Socket(path) => is_inside(path.as_path()),
            Grant::Exec(_) | Grant::Env(_) | Grant::Connect(_) | Grant::Effect(_) => true,
            // The isolation and limits of a container are fixed when it is made; there is no ssh
            // agent in it.
            Grant::Read(_) | Grant::Secret(_) | Grant::Sign(_) | Grant::Limit(..) | Grant::Listen(_) => false,
        }
    }

    fn mixes_streams(&self) -> bool {
        // An engine has one stream for a terminal.
        false
    }

    fn prepare_attempt(
        &self,
        plan: &AttemptPlan,
        io: &StdioMode,
        hold: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError> {
        self.require_possible(plan)?;
        let umask = own_umask().map_err(cannot(FORWARD_STREAMS))?;
        let outside = Arc::new(HostEgress::for_plan(plan, self.resolver.clone(), &events)?);
        let size = if *io == StdioMode::Terminal { size_of(rustix::stdio::stdin()) } else { None };
        let order = AttemptOrder { plan: self.plan_inside(plan), io: *io, hold, umask };
        let (around, served) = (self.profile.limits.clone(), served_ports());
        let order = LauncherOrder { order, size, around, served };
        let order = encode_message(&order).map_err(cannot(FORWARD_STREAMS))?;
        let attached = self.start_launcher(&order)?;
        let streams = CallerStreams::start_copying(*io, &self.client.runtime_handle());
        let CallerStreams { over, pipes, outputs } = streams.map_err(cannot(FORWARD_STREAMS))?;
        let launcher = CommandLauncher {
            client: self.client.clone(),
            container: self.container.clone(),
            exec: attached.id.clone(),
            has_isolation: self.has_isolation,
        };
        let (attached, streams) = ((launcher, attached), (pipes, Arc::clone(&outside)));
        let line = LauncherChannel::serve_launcher(attached, self.has_ended.subscribe(), message_bytes(*io), streams);
        let sizes = (*io == StdioMode::Terminal).then(|| watch_size(size, &line)).transpose();
        let sizes = sizes.map_err(cannot(FORWARD_STREAMS))?;
        line.keep_alive((over, sizes), outputs);
        let remote = RemoteAttempt::await_sandbox(Arc::<LauncherChannel>::clone(&line), events)
            .map_err(|error| self.missing_isolation_error(error, &line.launcher_stderr()))?;
        let mut enforced = self.enforced.clone();
        enforced.level = plan.level;
        enforced.layers.extend(remote.enforcement_report().layers.clone());
        enforced.layers.insert("network".to_owned(), network_layer(remote.enforcement_report().level));
        if remote.enforcement_report().level == IsolationLevel::None {
            let layer = |(name, state, detail): (&str, LayerState, &str)| {
                (name.to_owned(), LayerReport { state, detail: detail.to_owned() })
            };
            enforced.layers.extend(OWN_KERNEL_LAYERS.map(layer));
        }
        // Before the container learns of a grant and uses it.
        let on_answer = Box::new(move |_, answer: &HeldAnswer| outside.apply_answer(answer));
        Ok(Box::new(ObservedAttempt { attempt: Box::new(remote), enforced, on_answer }))
    }
}

/// Adds the launcher's own message, which is more specific than its disappearance.
fn with_complaint(error: StartError, complaint: &str) -> StartError {
    if complaint.is_empty() {
        return error;
    }
    let complaint: String = complaint.chars().filter(|c| !c.is_control()).collect();
    StartError { what: format!("{}; its launcher reported: {complaint}", error.what), ..error }
}

/// The caller's streams, which are being copied.
struct CallerStreams {
    /// Its close ends the copying.
    over: OwnedFd,
    pipes: StreamPipes,
    /// Disconnected when an output is copied.
    outputs: Vec<Receiver<()>>,
}

impl CallerStreams {
    fn start_copying(io: StdioMode, runtime: &Handle) -> io::Result<Self> {
        let (waited, over) = end_signal_pipe()?;
        let (stdin, stdout, stderr) = (rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr());
        let outputs = match io {
            StdioMode::Capture { .. } => vec![],
            StdioMode::Inherit => vec![(OUTPUT_PATH, stdout), (ERRORS_PATH, stderr)],
            StdioMode::Terminal => vec![(OUTPUT_PATH, stdout)],
        };
        if io == StdioMode::Terminal {
            make_raw(stdin)?;
        }
        // The end of the input is ignored: only the command's end counts.
        let (input, _) =
            read_from(stdin.try_clone_to_owned()?, Arc::clone(&waited), StreamEndCondition::Reported, runtime)?;
        let mut streams = Self { over, pipes: [(INPUT_PATH, input)].into(), outputs: Vec::new() };
        for (path, fd) in outputs {
            let (pipe, ended) = write_to(fd.try_clone_to_owned()?, Arc::clone(&waited), runtime)?;
            streams.pipes.insert(path, pipe);
            streams.outputs.push(ended);
        }
        Ok(streams)
    }
}

/// Sets the terminal that the caller made for the command to raw mode, because the command's own
/// terminal in the container does the line editing.
fn make_raw(terminal: BorrowedFd<'_>) -> io::Result<()> {
    let mut modes = tcgetattr(terminal)?;
    modes.make_raw();
    Ok(tcsetattr(terminal, OptionalActions::Now, &modes)?)
}

fn size_of(terminal: impl AsFd) -> Option<TerminalSize> {
    let size = tcgetwinsize(terminal).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(TerminalSize { rows: size.ws_row, columns: size.ws_col })
}

/// Reports each change of the terminal's size, until the returned sender is dropped.
fn watch_size(first: Option<TerminalSize>, line: &Arc<LauncherChannel>) -> io::Result<Sender<()>> {
    let (terminal, line) = (rustix::stdio::stdin().try_clone_to_owned()?, Arc::downgrade(line));
    let (on_drop, dropped) = channel::<()>();
    let watch = move || {
        let mut last = first;
        while dropped.recv_timeout(SIZE_POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let Some(size) = size_of(&terminal).filter(|size| Some(*size) != last) else { continue };
            let Some(line) = line.upgrade() else { return };
            // The channel is closed if this fails.
            let _ = line.send_message(&LauncherMessage::Resized(size));
            last = Some(size);
        }
    };
    thread::Builder::new().name("stockade-size".to_owned()).spawn(watch)?;
    Ok(on_drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_is_the_hosts_or_leads_anywhere_is_refused() {
        let demand = |namespace, network: Option<&str>| {
            let network = network.map(str::to_owned);
            let (mounts, reached) = (Default::default(), Vec::new());
            let (native_isolation, filtered, boot) = (true, true, None);
            require_no_network(&ContainerFeatures {
                native_isolation,
                boot,
                filtered,
                namespace,
                network,
                mounts,
                reached,
            })
        };
        let own = network_namespace().unwrap();
        demand(Some(own + 1), None).unwrap();
        demand(None, None).unwrap();
        assert!(demand(Some(own), None).unwrap_err().what.contains("the network of the host"));
        assert!(demand(Some(own + 1), Some("eth0")).unwrap_err().what.contains("`eth0`"));
    }
}

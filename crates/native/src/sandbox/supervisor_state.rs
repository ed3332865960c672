//! State of a sandbox in the process that keeps it, and its monitor thread. The thread watches for
//! the sandbox's end and enforces the limits of all commands together.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use stockade_backend_api::{
    GuestSystem, SandboxError, SandboxEvent, SandboxEventSender, SandboxPlan, SandboxTree, StartError,
};
use stockade_egress::NameResolver;
use stockade_launch::{CommandStdio, LaunchError, LaunchOptions, LaunchingSandbox, PersistentNamespaces, RootSpec};
use stockade_limits::{ControlGroup, LimitEvent, LimitGuard, LimitWatch, ParentLister, ProcessIdentity};
use stockade_model::SandboxUsage;
use stockade_model::{
    AttemptPlan, BackgroundPolicy, Denial, EnforcementReport, LayerReport, LayerState, RawText, SandboxId,
};
use stockade_sys::descriptor_limit;

use super::{failed_error, tree_path_inside, unsupported_error};
use crate::broker::BoundSockets;
use crate::egress::{CommonNetwork, resolver_settings};
use crate::errors::{map_launch_error, map_limit_error, no_descriptor};
use crate::locks::lock_ignoring_poison;
use crate::run_monitor::BreachCallback;
use stockade_sys::ready::readable_before;

/// Time-out for the end of a sandbox.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest interval between two checks of a sandbox without a command, because the start of a
/// command does not wake the monitor.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Commands that are notified of a breach as long as they live, each with its parent process.
type BreachListeners = Vec<(Weak<dyn Fn(&Denial) + Send + Sync>, Option<ProcessIdentity>)>;

/// A sandbox that is kept by this process.
pub(super) struct HostedSandbox {
    id: SandboxId,
    workspace: PathBuf,
    home: PathBuf,
    /// Hidden paths, as they are named inside.
    pub(super) hidden: Vec<RawText>,
    pub(super) background: BackgroundPolicy,
    made: Instant,
    pub(super) enforced: EnforcementReport,
    pub(super) network: CommonNetwork,
    pub(super) bound: BoundSockets,
    pub(super) events: SandboxEventSender,
    pub(super) resolver: Option<Arc<dyn NameResolver>>,
    /// Present as long as the sandbox exists.
    isolation: Arc<Mutex<Option<SandboxIsolation>>>,
    /// True while all commands are frozen. Locked for reading while a command starts.
    paused: RwLock<bool>,
    commands: Arc<Mutex<BreachListeners>>,
    /// Disconnected when the monitor has ended.
    watched: Mutex<Receiver<()>>,
}

/// The isolation of the sandbox, and the control group of all its processes.
struct SandboxIsolation {
    namespaces: PersistentNamespaces,
    group: Option<Arc<ControlGroup>>,
}

impl std::fmt::Debug for HostedSandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("id", &self.id).finish_non_exhaustive()
    }
}

impl HostedSandbox {
    /// Builds the sandbox and starts its monitor.
    pub(super) fn build_and_monitor(
        plan: &SandboxPlan,
        events: SandboxEventSender,
        resolver: Option<Arc<dyn NameResolver>>,
    ) -> Result<Self, StartError> {
        // Each sandbox has more than a dozen descriptors, and there may be a thousand sandboxes.
        descriptor_limit::raise_limit();
        let system = match &plan.system {
            Some(GuestSystem::Tree(tree)) => Some(tree.as_path()),
            _ => None,
        };
        let trees = [(SandboxTree::Workspace, &plan.workspace), (SandboxTree::Home, &plan.home)];
        let files = if system.is_none() { own_files() } else { Vec::new() };
        let mut namespaces = PersistentNamespaces::build(&RootSpec {
            system,
            trees: trees.map(|(which, from)| (Path::new(tree_path_inside(which)), from.as_path())).into(),
            profile: &plan.profile,
            files,
        })
        .map_err(map_launch_error)?;
        let guard = LimitGuard::of_sandbox(&plan.profile.limits, &plan.workspace).map_err(map_limit_error)?;
        let network = namespaces
            .take_network()
            .map(CommonNetwork::from_ends)
            .ok_or_else(|| map_launch_error(LaunchError::Lost))?;
        let mut enforced = namespaces.enforcement_report().clone();
        enforced.layers.insert("limits".to_owned(), guard.report_limits(false));
        let group = guard.group();
        enforced.layers.insert("processes".to_owned(), processes_layer(group.is_some()));
        let end = rustix::io::fcntl_dupfd_cloexec(namespaces.end_fd(), 3).map_err(no_descriptor)?;
        let commands: Arc<Mutex<BreachListeners>> = Arc::default();
        let watch = guard.watch_all(namespaces.init_pid(), parents_of(&commands));
        let isolation = Arc::new(Mutex::new(Some(SandboxIsolation { namespaces, group })));
        let monitor = SandboxMonitor {
            end,
            watch,
            events: events.clone(),
            isolation: Arc::clone(&isolation),
            commands: Arc::clone(&commands),
        };
        Ok(Self {
            id: plan.id.clone(),
            workspace: plan.workspace.clone(),
            home: plan.home.clone(),
            hidden: plan.profile.filesystem.hide.clone(),
            background: plan.background,
            made: Instant::now(),
            enforced,
            network,
            bound: BoundSockets::default(),
            events,
            resolver,
            isolation,
            paused: RwLock::new(false),
            commands,
            watched: Mutex::new(monitor.spawn_thread()?),
        })
    }

    /// Returns a tree's path inside and its path on the host.
    pub(super) fn tree_paths(&self, which: SandboxTree) -> (&'static str, &Path) {
        let path = match which {
            SandboxTree::Workspace => &self.workspace,
            SandboxTree::Home => &self.home,
        };
        (tree_path_inside(which), path)
    }

    /// Returns the control group of all commands, if there is one.
    pub(super) fn group(&self) -> Option<Arc<ControlGroup>> {
        lock_ignoring_poison(&self.isolation).as_ref().and_then(|stands| stands.group.clone())
    }

    /// Prevents a pause as long as the returned guard is held. Fails if the sandbox is paused.
    pub(super) fn prevent_pause(&self) -> Result<RwLockReadGuard<'_, bool>, StartError> {
        let paused = self.paused.read().unwrap_or_else(PoisonError::into_inner);
        if *paused {
            let what = format!("the sandbox {} is paused: no command can run in it", self.id);
            return Err(StartError { what, hint: Some("resume the sandbox first".to_owned()) });
        }
        Ok(paused)
    }

    /// Starts the launch of a command in the sandbox.
    pub(super) fn begin_command(
        &self,
        plan: &AttemptPlan,
        options: &LaunchOptions,
        stdio: CommandStdio<'_>,
    ) -> Result<LaunchingSandbox, StartError> {
        let isolation = lock_ignoring_poison(&self.isolation);
        let stands = isolation.as_ref().ok_or_else(|| self.gone_error())?;
        stands.namespaces.begin_command(plan, options, stdio).map_err(map_launch_error)
    }

    /// Notifies `on_breach` of limits that all commands together exceed, as long as `on_breach` lives, and
    /// counts the children of `parent` among them.
    pub(super) fn register_command(&self, on_breach: &BreachCallback, parent: u32) {
        let mut commands = lock_ignoring_poison(&self.commands);
        commands.retain(|(command, _)| command.strong_count() > 0);
        commands.push((Arc::downgrade(on_breach), ProcessIdentity::from_pid(parent)));
    }

    pub(super) fn pause(&self) -> Result<(), SandboxError> {
        let mut paused = self.paused.write().unwrap_or_else(PoisonError::into_inner);
        let group = self.find_group()?;
        let group = group.ok_or_else(|| unsupported_error("a pause", "no control group is available here"))?;
        group.freeze_and_wait().map_err(|why| failed_error(format!("cannot pause the sandbox {}: {why}", self.id)))?;
        *paused = true;
        Ok(())
    }

    pub(super) fn resume(&self) -> Result<(), SandboxError> {
        let mut paused = self.paused.write().unwrap_or_else(PoisonError::into_inner);
        self.find_group()?.iter().for_each(|group| group.thaw_processes());
        *paused = false;
        Ok(())
    }

    pub(super) fn read_usage(&self) -> Result<SandboxUsage, SandboxError> {
        let mut usage = self.find_group()?.map(|group| group.read_usage()).unwrap_or_default();
        usage.total.wall_ms = self.made.elapsed().as_millis() as u64;
        Ok(usage)
    }

    /// Ends the sandbox and waits for that.
    pub(super) fn end_sandbox(&self) -> Result<(), SandboxError> {
        // All processes end with the isolation. The group is removed when its last watcher is dropped.
        let stands = lock_ignoring_poison(&self.isolation).take();
        let is_paused = *self.paused.read().unwrap_or_else(PoisonError::into_inner);
        // A frozen process ends only once it is thawed, and it must not run any further then.
        if let Some(group) = stands.as_ref().and_then(|stands| stands.group.as_ref()).filter(|_| is_paused) {
            group.kill_within();
        }
        drop(stands);
        match lock_ignoring_poison(&self.watched).recv_timeout(END_TIMEOUT) {
            Err(RecvTimeoutError::Timeout) => {
                Err(failed_error(format!("the monitor of the sandbox {} does not end", self.id)))
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    fn find_group(&self) -> Result<Option<Arc<ControlGroup>>, SandboxError> {
        match &*lock_ignoring_poison(&self.isolation) {
            Some(stands) => Ok(stands.group.clone()),
            None => Err(SandboxError::Gone(self.id.clone())),
        }
    }

    fn gone_error(&self) -> StartError {
        StartError { what: format!("the sandbox {} is gone", self.id), hint: None }
    }
}

/// Returns a function that lists the parent processes of the commands.
fn parents_of(commands: &Arc<Mutex<BreachListeners>>) -> ParentLister {
    let commands = Arc::clone(commands);
    Box::new(move || lock_ignoring_poison(&commands).iter().filter_map(|(_, parent)| *parent).collect())
}

fn processes_layer(group: bool) -> LayerReport {
    let (state, detail) = match group {
        true => (LayerState::Enforced, "a control group of its own, and one in it for each command"),
        false => (LayerState::Partial, "no control group: background processes of a command end only with the sandbox"),
    };
    LayerReport { state, detail: detail.to_owned() }
}

/// Returns files that replace the host's and name its users: inside there is one user.
fn own_files() -> Vec<(PathBuf, Vec<u8>)> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let home = tree_path_inside(SandboxTree::Home);
    let users = match user {
        0 => format!("root:x:0:{group}:agent:{home}:/bin/bash\n"),
        user => format!("agent:x:{user}:{group}:agent:{home}:/bin/bash\nroot:x:0:0:root:/:/bin/sh\n"),
    };
    let nobody = "nobody:x:65534:65534:nobody:/:/bin/false\n";
    let groups = format!("agent:x:{group}:\nnogroup:x:65534:\n");
    let all = [("/etc/passwd", users + nobody), ("/etc/group", groups)];
    let there = all.into_iter().filter(|(path, _)| Path::new(path).is_file());
    there.map(|(path, text)| (PathBuf::from(path), text.into_bytes())).chain(resolver_settings()).collect()
}

/// Monitor of a sandbox, on a thread of its own.
struct SandboxMonitor {
    end: OwnedFd,
    watch: LimitWatch,
    events: SandboxEventSender,
    isolation: Arc<Mutex<Option<SandboxIsolation>>>,
    commands: Arc<Mutex<BreachListeners>>,
}

impl SandboxMonitor {
    fn spawn_thread(self) -> Result<Receiver<()>, StartError> {
        let (on_drop, watched) = channel();
        thread::Builder::new()
            .name("sandbox".to_owned())
            .spawn(move || self.watch_sandbox(on_drop))
            .map_err(|error| StartError { what: format!("cannot start a thread: {error}"), hint: None })?;
        Ok(watched)
    }

    fn watch_sandbox(mut self, _on_drop: Sender<()>) {
        while !self.has_ended() {
            if let Some(LimitEvent::Breached(breach)) = self.watch.check_limits() {
                self.end_commands(breach);
                self.watch.resume_checks();
            }
        }
        // The requested end of a sandbox has taken the value out before.
        if lock_ignoring_poison(&self.isolation).take().is_some() {
            self.events.send_event(SandboxEvent::Lost("its init was killed from outside".to_owned()));
        }
    }

    /// Waits until a check is due. Returns true if the init has exited: it sends nothing, so its
    /// descriptor is readable only then.
    fn has_ended(&self) -> bool {
        let is_idle = lock_ignoring_poison(&self.commands).iter().all(|(command, _)| command.strong_count() == 0);
        let next = if is_idle { IDLE_POLL_INTERVAL } else { self.watch.next_look().unwrap_or(IDLE_POLL_INTERVAL) };
        // An error only makes the next check come sooner.
        matches!(readable_before(&[self.end.as_fd()], Instant::now() + next.min(IDLE_POLL_INTERVAL)), Ok(true))
    }

    /// Ends every command, because the command that exceeded the limit is unknown.
    fn end_commands(&self, breach: Denial) {
        let commands: Vec<BreachCallback> =
            lock_ignoring_poison(&self.commands).iter().filter_map(|(command, _)| command.upgrade()).collect();
        commands.iter().for_each(|command| command(&breach));
        if let Some(group) = lock_ignoring_poison(&self.isolation).as_ref().and_then(|stands| stands.group.as_ref()) {
            group.kill_within();
        }
        self.events.send_event(SandboxEvent::Breached(breach));
    }
}

//! A command in an existing sandbox: an attempt like any other. The command has a seccomp filter
//! and listener, a broker, an egress proxy and powers of its own.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use stockade_backend_api::{Attempt, AttemptEvent, AttemptEventSender, Backend, SandboxTree, StartError, StdioMode};
use stockade_egress::PreparedInterception;
use stockade_model::{AttemptPlan, Denial, EnforcementReport, Grant, IsolationLevel, RawText};

use super::supervisor_state::HostedSandbox;
use super::{BACKEND_NAME, tree_path_inside};
use crate::assembly::LaunchingAttempt;
use crate::backend::{broker_event_sink, build_proxy_options, launched_powers, prepare_interception};
use crate::broker::Broker;
use crate::egress::{self, PublishedPorts};
use crate::errors::{map_launch_error, map_limit_error, map_plain_error};
use crate::run_monitor::{BreachCallback, LeftoverHandling, MonitoredExtras, RunEventSink, StartingMonitor};
use crate::streams::OutputPipes;
use crate::undoing;
use stockade_launch::{LaunchOptions, LaunchedSandbox, LaunchingSandbox};
use stockade_limits::{LimitGuard, small_disk};
use stockade_permissions::powers::{AttemptPermissions, normalize_path};

/// Backend for commands in one sandbox.
pub(super) struct SandboxCommandBackend {
    sandbox: Arc<HostedSandbox>,
}

impl SandboxCommandBackend {
    pub(super) fn new(sandbox: Arc<HostedSandbox>) -> Self {
        Self { sandbox }
    }

    fn require_supported(plan: &AttemptPlan) -> Result<(), StartError> {
        match plan.grants.iter().find(|grant| !supports_grant(grant, plan.level)) {
            Some(grant) => Err(StartError {
                what: format!("`{grant}` cannot be given in this sandbox, because it was created without it"),
                hint: Some("remove the grant, or create a sandbox with it".to_owned()),
            }),
            None => Ok(()),
        }
    }

    /// Returns the launch options besides the plan.
    fn launch_options(
        plan: &AttemptPlan,
        interception: &PreparedInterception,
        io: StdioMode,
        umask: Option<u32>,
    ) -> Result<LaunchOptions, StartError> {
        if interception.bundle_pem().is_some() || interception.secret_placeholders().next().is_some() {
            let what = "a persistent sandbox does not support request inspection or secrets".to_owned();
            return Err(StartError { what, hint: Some("use `stockade run`, or a profile without secrets".to_owned()) });
        }
        let environment = egress::launch_options(plan, interception).environment;
        Ok(LaunchOptions { environment, terminal: io == StdioMode::Terminal, umask, ..LaunchOptions::default() })
    }

    fn command_permissions(&self, plan: &AttemptPlan, launching: &LaunchingSandbox) -> AttemptPermissions {
        let mut powers = launched_powers(plan, launching);
        powers.inside = true;
        powers.hidden.extend(self.sandbox.hidden.iter().map(RawText::as_path));
        powers.host_workspace = Some(normalize_path(self.sandbox.tree_paths(SandboxTree::Workspace).1));
        powers
    }
}

impl Backend for SandboxCommandBackend {
    fn name(&self) -> &'static str {
        BACKEND_NAME
    }

    fn supports_grant(&self, grant: &Grant, level: IsolationLevel) -> bool {
        supports_grant(grant, level)
    }

    fn prepare_attempt(
        &self,
        plan: &AttemptPlan,
        io: &StdioMode,
        hold: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError> {
        self.begin_command(plan, *io, hold, events, CallerAttributes::default())
    }
}

/// Returns whether a command of a native sandbox can get a power that the sandbox was not made with.
pub(super) fn supports_grant(grant: &Grant, level: IsolationLevel) -> bool {
    let holds = |path: &Path| {
        [SandboxTree::Workspace, SandboxTree::Home].iter().any(|tree| path.starts_with(tree_path_inside(*tree)))
    };
    match grant {
        Grant::Write(path) | Grant::Socket(path) => level == IsolationLevel::Full && holds(path.as_path()),
        Grant::Effect(_) => true,
        Grant::Connect(_) | Grant::Exec(_) | Grant::Env(_) | Grant::Listen(_) => level == IsolationLevel::Full,
        // Isolation and limits are fixed when the sandbox is made, and it has no ssh agent.
        Grant::Read(_) | Grant::Secret(_) | Grant::Sign(_) | Grant::Limit(..) => false,
    }
}

/// Attributes that a command inherits from its caller; the default is those of this process.
#[derive(Default)]
pub(super) struct CallerAttributes {
    /// Standard input, output and error.
    pub(super) streams: Option<[OwnedFd; 3]>,
    /// The file mode creation mask.
    pub(super) umask: Option<u32>,
}

impl SandboxCommandBackend {
    /// As [`Backend::prepare_attempt`]. The command's limits are those of the sandbox, so no question
    /// raises them.
    pub(super) fn begin_command(
        &self,
        plan: &AttemptPlan,
        io: StdioMode,
        hold: bool,
        events: AttemptEventSender,
        caller: CallerAttributes,
    ) -> Result<Box<dyn Attempt>, StartError> {
        Self::require_supported(plan)?;
        let _going = self.sandbox.prevent_pause()?;
        let streams = OutputPipes::with_caller_streams(io, caller.streams)?;
        let interception = prepare_interception(plan)?;
        let published = PublishedPorts::from_plan(plan)?;
        let options = Self::launch_options(plan, &interception, io, caller.umask)?;
        let mut launching = self.sandbox.begin_command(plan, &options, streams.command_stdio())?;
        let (_, workspace) = self.sandbox.tree_paths(SandboxTree::Workspace);
        let guard =
            LimitGuard::prepare_in_sandbox(plan, workspace, self.sandbox.group().as_ref()).map_err(map_limit_error)?;
        launching.enter_groups(&guard.open_join_files().map_err(map_limit_error)?).map_err(map_launch_error)?;
        let event_sink = RunEventSink::in_sandbox(events, self.sandbox.events.clone(), plan.request.clone());
        let powers = self.command_permissions(plan, &launching);
        let mut broker =
            Broker::begin(powers, plan.level, (None, None), broker_event_sink(&event_sink)).map_err(map_plain_error)?;
        broker.bound = self.sandbox.bound.clone();
        broker.small_disk = small_disk(&plan.profile.limits);
        let egress_options =
            build_proxy_options(plan, (interception, published, self.sandbox.resolver.clone()), &broker, &event_sink);
        let on_breach = on_breach(&event_sink);
        self.sandbox.register_command(&on_breach, launching.init_pid());
        let group = guard.group();
        let leaves = Some(LeftoverHandling::new(self.sandbox.background, group.clone(), on_breach));
        let attempt = LaunchingAttempt {
            plan,
            launching,
            broker,
            guard,
            group,
            monitor: StartingMonitor::start_thread()?,
            outside: streams.into_outputs(io),
            event_sink,
            hold,
            raises_limits: false,
            asks_reads: plan.profile.filesystem.trace,
        };
        let network = &self.sandbox.network;
        let egress = |_: &mut LaunchedSandbox| network.open_egress(egress_options);
        let add_to_report = |enforced: &mut EnforcementReport, _: &_, _: &_| {
            for (name, layer) in &self.sandbox.enforced.layers {
                enforced.layers.entry(name.clone()).or_insert_with(|| layer.clone());
            }
            enforced.layers.extend(undoing::undo_layer(plan, None));
        };
        attempt.finish(egress, add_to_report, MonitoredExtras { leaves, ..MonitoredExtras::default() })
    }
}

fn on_breach(event_sink: &RunEventSink) -> BreachCallback {
    let event_sink = event_sink.clone();
    Arc::new(move |breach: &Denial| event_sink.report_event(AttemptEvent::Breached(breach.clone())))
}

//! The native backend: connects launch, broker and captured output to the engine.
//!
//! Two threads serve an attempt: the broker, and the monitor of the run. Neither of them waits for
//! the user. This module must not know rules, requests for approval or the audit log.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_backend_api::{Attempt, AttemptEvent, AttemptEventSender, Backend, StartError, StdioMode};
use stockade_egress::{EgressEvent, NameResolver, PreparedInterception, SystemResolver, TrustRoots, TunnelConnector};
use stockade_model::{AttemptPlan, EnforcementReport, Grant, IsolationLevel, LayerReport, LayerState};
use tracing::debug_span;

use crate::assembly::LaunchingAttempt;
use crate::broker::{Broker, PreparedBroker};
use crate::caches::{CacheLease, LayerServerProgram, NameRotation};
use crate::egress::{self, CommonNetwork, PublishedPorts, RunEgress, RunEgressOptions};
use crate::errors::{map_launch_error, map_limit_error, map_plain_error};
use crate::run_monitor::{MonitoredExtras, RunEventSink, StartingMonitor};
use crate::signing::{self, RunSigningAgent, SigningUser};
use crate::staging::AttemptStage;
use crate::streams::OutputPipes;
use crate::undoing;
use stockade_launch::{
    Blueprint, CommandStdio, LaunchError, LaunchOptions, LaunchedSandbox, LaunchingSandbox, PrewarmedInit,
    begin_launch, hidden_there, is_staged, late_roots,
};
use stockade_limits::{LimitGuard, small_disk};
use stockade_permissions::powers::AttemptPermissions;

/// Options of a [`NativeBackend`]. Each default is to do without.
#[derive(Clone, Default)]
pub struct NativeOptions {
    /// Directory of stages, which is made with the first stage. Without it, nothing can be staged.
    pub stages: Option<PathBuf>,
    /// Directory that keeps the runs' writes in tool caches. It is made with the first of them.
    /// Without it, tools have no caches of their own.
    pub caches: Option<PathBuf>,
    /// Shares cache layers between the runs of a workspace; a process of this program holds them.
    /// Without it, each run mounts its own.
    pub layer_server: Option<LayerServerProgram>,
    /// Directory that keeps the runs' changes in their workspaces. It is made with the first of
    /// them. Without it, no run can be undone.
    pub undo: Option<PathBuf>,
    /// Resolver for host names, in place of the host's own.
    pub resolver: Option<Arc<dyn NameResolver>>,
    /// Lets runs use keys of this user's ssh agent. Without it, no key signs.
    pub signing: Option<SigningUser>,
    /// Runs within existing isolation. These directories belong to it and are used as private
    /// directories, so that none is made for a run. At level restricted only.
    pub within: Vec<PathBuf>,
    /// Runs in a network that has only a loopback interface and belongs to the sandbox, as in a
    /// container. Servers in that network are not restricted, and the outside is reached only
    /// through this tunnel.
    pub connector: Option<Arc<dyn TunnelConnector>>,
    /// Ports of the host's loopback on which servers listen, with a tunnel: a connection to such a
    /// port without a server inside is intended for them.
    pub served: BTreeSet<u16>,
}

/// Backend for sandboxes that the kernel of this machine enforces.
#[derive(Default)]
pub struct NativeBackend {
    prewarmed_init: Mutex<Option<PrewarmedInit>>,
    options: NativeOptions,
}

impl std::fmt::Debug for NativeBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeBackend").field("stages", &self.options.stages).finish_non_exhaustive()
    }
}

impl NativeBackend {
    /// Makes a backend, if possible with a first sandbox that is already being built.
    pub fn with_options(prewarmed_init: Option<PrewarmedInit>, options: NativeOptions) -> Self {
        Self { prewarmed_init: Mutex::new(prewarmed_init), options }
    }

    /// Starts building the sandbox, with the one that is already started if it fits.
    fn begin_launch(
        &self,
        plan: &AttemptPlan,
        options: &LaunchOptions,
        stdio: CommandStdio<'_>,
    ) -> Result<LaunchingSandbox, LaunchError> {
        let _span = debug_span!("begin").entered();
        let prewarmed_init = self.prewarmed_init.lock().unwrap_or_else(PoisonError::into_inner).take();
        match prewarmed_init.filter(|prewarmed_init| prewarmed_init.can_serve(plan.level)) {
            Some(prewarmed_init) => prewarmed_init.begin_launch(plan, options, stdio),
            None => begin_launch(Blueprint::prepare_with(plan, options)?, stdio),
        }
    }
}

impl NativeBackend {
    /// Returns the launch options of a run.
    fn build_launch_options(
        &self,
        plan: &AttemptPlan,
        (io, asks): (StdioMode, bool),
        interception: &PreparedInterception,
        (staging, signing): (Option<&AttemptStage>, &RunSigningAgent),
    ) -> LaunchOptions {
        let mut options = LaunchOptions {
            overlay: staging.and_then(|staging| staging.overlay().cloned()),
            terminal: io == StdioMode::Terminal,
            asks,
            private: self.options.within.clone(),
            own_network: self.options.connector.is_some(),
            late: if plan.level == IsolationLevel::Full { Vec::new() } else { late_roots(plan) },
            ..egress::launch_options(plan, interception)
        };
        signing.add_variables(plan, &mut options);
        options
    }

    /// Begins a sandbox with its tool caches. If the requested layers do not arrive, it begins
    /// again with layers of its own.
    fn begin_with_layers(
        &self,
        plan: &AttemptPlan,
        options: impl Fn() -> LaunchOptions,
        streams: &OutputPipes,
    ) -> Result<(Option<CacheLease>, LaunchOptions, LaunchingSandbox), StartError> {
        let hidden = hidden_there(plan);
        let mut layer_server_program = self.options.layer_server.as_ref();
        loop {
            let mut lease =
                CacheLease::prepare_layers(plan, &hidden, self.options.caches.as_deref(), layer_server_program);
            let mut options = LaunchOptions { hidden: Some(hidden.clone()), ..options() };
            if let Some(lease) = &lease {
                options.kept.clone_from(&lease.private);
                options.merged.clone_from(&lease.merged);
                options.environment.extend(lease.environment.clone());
            }
            let begin = || self.begin_launch(plan, &options, streams.command_stdio()).map_err(map_launch_error);
            // The layers arrive while the init begins. A stage, however, can be mounted only once.
            let early = if options.overlay.is_none() { Some(begin()?) } else { None };
            let Ok(layers) = lease.as_mut().map(CacheLease::receive_layers).transpose() else {
                layer_server_program = None;
                continue;
            };
            let launching = early.map_or_else(begin, Ok)?;
            layers
                .flatten()
                .map_or(Ok(()), |layers| launching.lend_layers(&layers, &options.merged))
                .map_err(map_launch_error)?;
            return Ok((lease, options, launching));
        }
    }

    /// Returns the powers of the broker for a sandbox of this backend.
    fn build_permissions(
        &self,
        plan: &AttemptPlan,
        launching: &LaunchingSandbox,
        (options, lease): (&LaunchOptions, Option<&CacheLease>),
    ) -> AttemptPermissions {
        let mut powers = derive_permissions(plan, launching);
        powers.late.extend(&options.late);
        if let Some(lease) = lease {
            powers.read_only.extend(&lease.read_only);
            powers.layers.extend(lease.layer_paths());
            powers.merged.extend(lease.merged.iter().filter(|merged| !merged.is_whole()).map(|m| &m.directory));
        }
        if self.options.connector.is_some() {
            powers.own_network = Some(self.options.served.clone());
        }
        powers
    }
}

impl Backend for NativeBackend {
    fn name(&self) -> &'static str {
        "native"
    }

    fn supports_grant(&self, grant: &Grant, level: IsolationLevel) -> bool {
        match grant {
            Grant::Write(_) | Grant::Read(_) | Grant::Socket(_) | Grant::Exec(_) | Grant::Env(_) => true,
            Grant::Connect(_) | Grant::Secret(_) | Grant::Limit(..) | Grant::Effect(_) => true,
            Grant::Sign(_) => self.options.signing.is_some(),
            Grant::Listen(_) => level == IsolationLevel::Full,
        }
    }

    fn prepare_attempt(
        &self,
        plan: &AttemptPlan,
        io: &StdioMode,
        hold: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError> {
        let streams = OutputPipes::new(*io)?;
        let interception = prepare_interception(plan)?;
        let published = PublishedPorts::from_plan(plan)?;
        let staging = AttemptStage::from_plan(plan, self.options.stages.as_deref())?;
        let renewal = NameRotation::for_plan(plan, self.options.caches.as_deref());
        let (undoing, recorder) = undoing::begin_undo_record(plan, self.options.undo.as_deref())?.unzip();
        let signing = RunSigningAgent::from_plan(plan, self.options.signing.as_ref())?;
        let options = || self.build_launch_options(plan, (*io, hold), &interception, (staging.as_ref(), &signing));
        let (lease, options, mut launching) = self.begin_with_layers(plan, options, &streams)?;
        // The limits and the two threads are prepared while the init builds.
        let guard = join_limits(plan, &mut launching)?;
        let event_sink = RunEventSink::to_attempt(events);
        let write_hook = staging.as_ref().map(AttemptStage::pre_write_hook).transpose()?.flatten();
        let mut powers = self.build_permissions(plan, &launching, (&options, lease.as_ref()));
        powers.agents = signing.agent_sockets();
        let mut broker = Broker::begin(powers, plan.level, (write_hook, recorder), broker_event_sink(&event_sink))
            .map_err(map_plain_error)?;
        broker.small_disk = small_disk(&plan.profile.limits);
        let served = (interception, published, self.options.resolver.clone());
        let egress_options = RunEgressOptions {
            connector: self.options.connector.clone(),
            ..build_proxy_options(plan, served, &broker, &event_sink)
        };
        let agent = signing.start_serving(&event_sink)?;

        let attempt = LaunchingAttempt {
            plan,
            launching,
            broker,
            // Without a namespace the init has to find the processes one by one.
            group: guard.group().filter(|_| plan.level != IsolationLevel::Full),
            guard,
            monitor: StartingMonitor::start_thread()?,
            outside: streams.into_outputs(*io),
            event_sink,
            hold,
            raises_limits: hold,
            asks_reads: options.asks_reads(plan),
        };
        let extras = MonitoredExtras { staging, lease, agent, undoing, renewal, leaves: None };
        let egress = |launched: &mut LaunchedSandbox| match launched.take_network() {
            Some(ends) => CommonNetwork::from_ends(ends).open_egress(egress_options),
            None => Ok((Arc::new(RunEgress::of_host(egress_options)), None)),
        };
        attempt.finish(egress, |enforced, launched, extras| add_extra_layers(enforced, plan, extras, launched), extras)
    }
}

/// Prepares the interception of a plan's TLS connections.
pub(crate) fn prepare_interception(plan: &AttemptPlan) -> Result<PreparedInterception, StartError> {
    PreparedInterception::prepare_rules(&plan.profile.egress, &TrustRoots::System).map_err(map_plain_error)
}

/// Prepares the limits of a run, and puts its processes under them.
fn join_limits(plan: &AttemptPlan, launching: &mut LaunchingSandbox) -> Result<LimitGuard, StartError> {
    let guard = LimitGuard::prepare_for_run(plan, launching.init_pid()).map_err(map_limit_error)?;
    launching.enter_groups(&guard.open_join_files().map_err(map_limit_error)?).map_err(map_launch_error)?;
    Ok(guard)
}

/// Returns the options of a run's egress proxy.
pub(crate) fn build_proxy_options(
    plan: &AttemptPlan,
    (interception, published, resolver): (PreparedInterception, PublishedPorts, Option<Arc<dyn NameResolver>>),
    broker: &PreparedBroker,
    event_sink: &RunEventSink,
) -> RunEgressOptions {
    let event_sink = event_sink.clone();
    RunEgressOptions {
        rules: plan.profile.egress.clone(),
        interception: Arc::new(interception),
        policy: Arc::new(broker.egress_policy()),
        sink: Arc::new(move |event| event_sink.report_event(translate_proxy_event(event))),
        published,
        resolver: resolver.unwrap_or_else(|| Arc::<SystemResolver>::default()),
        connector: None,
    }
}

/// Returns the broker's powers from the plan and the private trees of the launch. Every sandbox
/// starts with them.
pub(crate) fn launched_powers(plan: &AttemptPlan, launching: &LaunchingSandbox) -> AttemptPermissions {
    let private = launching.private_trees().iter().map(|tree| &tree.path);
    let mut powers = AttemptPermissions::new(plan, private);
    powers.kernel_allowed.extend(launching.kernel_enforced_trees());
    powers
}

/// Returns the powers of the broker for this sandbox.
fn derive_permissions(plan: &AttemptPlan, launching: &LaunchingSandbox) -> AttemptPermissions {
    let mut powers = launched_powers(plan, launching);
    powers.staged = is_staged(plan);
    if plan.level == IsolationLevel::Full {
        // A path that an approval of the command covers has no mount of its own either.
        let agreed = plan.effects.iter().filter(|grant| matches!(grant, Grant::Write(_))).filter_map(Grant::path);
        powers.unattached.extend(launching.missing_paths());
        powers.unattached.extend(agreed);
    }
    powers
}

/// Returns the sink for the events of a broker.
pub(crate) fn broker_event_sink(event_sink: &RunEventSink) -> impl Fn(AttemptEvent) + Send + use<> {
    let event_sink = event_sink.clone();
    move |event| event_sink.report_event(event)
}

fn translate_proxy_event(event: EgressEvent) -> AttemptEvent {
    match event {
        EgressEvent::Connection(record) => AttemptEvent::Connection(record),
        EgressEvent::Denied(denial) => AttemptEvent::Denied(*denial),
    }
}

/// Adds the layers of the stage, the caches, undo and the signing agent of a run to a report.
fn add_extra_layers(
    enforced: &mut EnforcementReport,
    plan: &AttemptPlan,
    MonitoredExtras { staging, lease, undoing, .. }: &MonitoredExtras,
    launched: &LaunchedSandbox,
) {
    let staged =
        staging.as_ref().filter(|staging| staging.overlay().is_none()).map(|_| ("stage".to_owned(), stage_layer()));
    let caches =
        lease.as_ref().map(|lease| ("caches".to_owned(), lease.build_report(|index| launched.is_unmerged(index))));
    let kept = [staged, caches, undoing::undo_layer(plan, undoing.as_ref())];
    enforced.layers.extend(kept.into_iter().flatten().chain(signing::signing_layer(plan)));
}

fn stage_layer() -> LayerReport {
    let detail = "without an overlay: writes are in the workspace until the run ends, and are then taken out of it";
    LayerReport { state: LayerState::Enforced, detail: detail.to_owned() }
}

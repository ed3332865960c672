//! The native backend: connects launch, broker and captured output to the engine.
//!
//! Two threads serve an attempt: the broker, and the keeper, which monitors the run. Neither of
//! them waits for the user. This module must not know rules, requests for approval or the audit
//! log.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use stockade_egress::{DoorEvent, Edge, EdgeError, Lead, Resolve, SystemResolver, Trust};
use stockade_engine::{Attempt, AttemptEvent, Backend, Events, Io, StartError};
use stockade_model::{Grant, LayerReport, LayerState, Level, Plan};
use stockade_sys::Errno;
use tracing::debug_span;

use crate::attempt::NativeAttempt;
use crate::broker::{Broker, BrokerBegun, BrokerError, BrokerEvent, BrokerTraits};
use crate::caches::{CacheLease, LayerServerProgram, NameRotation};
use crate::evidence::{HiddenWatch, TempWatch};
use crate::keeper::{Keeper, Kept, Told};
use crate::launch::{
    Blueprint, LaunchError, Launched, Launching, NetworkEnds, Nursery, Outfit, Stdio, begin, hidden_there, is_staged,
    late_roots,
};
use crate::limits::{Guard, LimitError, small_disk};
use crate::powers::Powers;
use crate::signing::{self, Signing, SigningPerson};
use crate::staging::Staging;
use crate::streams::Streams;
use crate::undoing::{self, Undoing};
use crate::way_out::{self, LostDatagrams, Published, Terms, WayOut};

/// Backend for sandboxes that the kernel of this machine enforces.
#[derive(Default)]
pub struct NativeBackend {
    nursery: Mutex<Option<Nursery>>,
    stages: Option<PathBuf>,
    caches: Option<PathBuf>,
    holder: Option<LayerServerProgram>,
    undo: Option<PathBuf>,
    resolver: Option<Arc<dyn Resolve>>,
    within: Vec<PathBuf>,
    signing: Option<SigningPerson>,
    lead: Option<Arc<dyn Lead>>,
    /// Ports of the host, see [`led_by`](Self::led_by).
    served: BTreeSet<u16>,
}

impl std::fmt::Debug for NativeBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeBackend").field("stages", &self.stages).finish_non_exhaustive()
    }
}

impl NativeBackend {
    /// Makes a backend with a first sandbox that is already being built.
    pub fn with(nursery: Option<Nursery>) -> Self {
        Self { nursery: Mutex::new(nursery), ..Self::default() }
    }

    /// Sets the directory of stages, which is made with the first stage. Without it, nothing can be
    /// staged.
    #[must_use]
    pub fn staging(self, stages: PathBuf) -> Self {
        Self { stages: Some(stages), ..self }
    }

    /// Sets the directory that keeps the runs' writes in tool caches. It is made with the first of
    /// them. Without it, tools have no caches of their own.
    #[must_use]
    pub fn caching(self, caches: PathBuf) -> Self {
        Self { caches: Some(caches), ..self }
    }

    /// Shares cache layers between the runs of a workspace; a process of this program holds them.
    /// Without it, each run mounts its own.
    #[must_use]
    pub fn holding(self, holder: LayerServerProgram) -> Self {
        Self { holder: Some(holder), ..self }
    }

    /// Sets the directory that keeps the runs' changes in their workspaces. It is made with the
    /// first of them. Without it, no run can be undone.
    #[must_use]
    pub fn undoing(self, undo: PathBuf) -> Self {
        Self { undo: Some(undo), ..self }
    }

    /// Sets the resolver for host names, in place of the host's own.
    #[must_use]
    pub fn resolving(self, resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver: Some(resolver), ..self }
    }

    /// Lets runs use keys of this user's ssh agent. Without it, no key signs.
    #[must_use]
    pub fn signing(self, person: SigningPerson) -> Self {
        Self { signing: Some(person), ..self }
    }

    /// Runs within existing isolation. These directories belong to it and are used as private
    /// directories, so that none is made for a run. At level restricted only.
    #[must_use]
    pub fn within(self, private: Vec<PathBuf>) -> Self {
        Self { within: private, ..self }
    }

    /// Runs in a network that has only a loopback interface and belongs to the sandbox, as in a
    /// container. Servers in that network are not restricted, and the outside is reached only
    /// through this tunnel. Servers listen on the ports `served` of the host's loopback: a
    /// connection to such a port without a server inside is meant for them.
    #[must_use]
    pub fn led_by(self, lead: Arc<dyn Lead>, served: BTreeSet<u16>) -> Self {
        Self { lead: Some(lead), served, ..self }
    }

    /// Starts building the sandbox, with the one that is already started if it fits.
    fn begin(&self, plan: &Plan, outfit: &Outfit, stdio: Stdio<'_>) -> Result<Launching, LaunchError> {
        let _span = debug_span!("begin").entered();
        let nursery = self.nursery.lock().unwrap_or_else(PoisonError::into_inner).take();
        match nursery.filter(|nursery| nursery.serves(plan.level)) {
            Some(nursery) => nursery.begin(plan, outfit, stdio),
            None => begin(Blueprint::prepare_with(plan, outfit)?, stdio),
        }
    }
}

impl NativeBackend {
    /// Returns the launch options of a run.
    fn outfit(
        &self,
        plan: &Plan,
        (io, asks): (Io, bool),
        edge: &Edge,
        (staging, signing): (Option<&Staging>, &Signing),
    ) -> Outfit {
        let mut outfit = Outfit {
            overlay: staging.and_then(|staging| staging.overlay().cloned()),
            terminal: io == Io::Terminal,
            asks,
            private: self.within.clone(),
            own_network: self.lead.is_some(),
            late: if plan.level == Level::Full { Vec::new() } else { late_roots(plan) },
            ..way_out::outfit(plan, edge)
        };
        signing.equip(plan, &mut outfit);
        outfit
    }

    /// Begins a sandbox with its tool caches. If the requested layers do not arrive, it begins
    /// again with layers of its own.
    fn begin_with_layers(
        &self,
        plan: &Plan,
        outfit: impl Fn() -> Outfit,
        streams: &Streams,
    ) -> Result<(Option<CacheLease>, Outfit, Launching), StartError> {
        let hidden = hidden_there(plan);
        let mut holder = self.holder.as_ref();
        loop {
            let mut lease = CacheLease::of(plan, &hidden, self.caches.as_deref(), holder);
            let mut outfit = Outfit { hidden: Some(hidden.clone()), ..outfit() };
            if let Some(lease) = &lease {
                outfit.kept.clone_from(&lease.private);
                outfit.merged.clone_from(&lease.merged);
                outfit.environment.extend(lease.environment.clone());
            }
            let begin = || self.begin(plan, &outfit, streams.inside()).map_err(unlaunched);
            // The layers arrive while the init begins. A stage, however, can be mounted only once.
            let early = if outfit.overlay.is_none() { Some(begin()?) } else { None };
            let Ok(layers) = lease.as_mut().map(CacheLease::receive).transpose() else {
                holder = None;
                continue;
            };
            let launching = early.map_or_else(begin, Ok)?;
            layers.flatten().map_or(Ok(()), |layers| launching.lend(&layers, &outfit.merged)).map_err(unlaunched)?;
            return Ok((lease, outfit, launching));
        }
    }

    /// Returns the powers of the broker for a sandbox of this backend.
    fn powers(&self, plan: &Plan, launching: &Launching, (outfit, lease): (&Outfit, Option<&CacheLease>)) -> Powers {
        let mut powers = powers(plan, launching);
        powers.read_late(&outfit.late);
        if let Some(lease) = lease {
            powers.keep_read_only(&lease.read_only);
            powers.layered_at(lease.layers());
            powers.merged_at(lease.merged.iter().filter(|merged| !merged.is_whole()).map(|m| m.directory.clone()));
        }
        if self.lead.is_some() {
            powers.in_own_network(self.served.clone());
        }
        powers
    }

    fn led(&self, terms: Terms) -> Terms {
        match &self.lead {
            Some(lead) => terms.led_by(Arc::clone(lead)),
            None => terms,
        }
    }
}

/// Returns the egress proxy for the run's own network, if it has one, and the monitor of lost
/// datagrams in it. Otherwise returns the egress proxy of the host.
fn way_of(network: Option<NetworkEnds>, terms: Terms) -> (WayOut, Option<LostDatagrams>) {
    match network {
        Some(ends) => {
            let (way, lost) = WayOut::of_namespace(ends, terms);
            (way, Some(lost))
        }
        None => (WayOut::of_host(terms), None),
    }
}

impl Backend for NativeBackend {
    fn name(&self) -> &'static str {
        "native"
    }

    fn honours(&self, grant: &Grant, level: Level) -> bool {
        match grant {
            Grant::Write(_) | Grant::Read(_) | Grant::Socket(_) | Grant::Exec(_) | Grant::Env(_) => true,
            Grant::Connect(_) | Grant::Secret(_) | Grant::Limit(..) | Grant::Effect(_) => true,
            Grant::Sign(_) => self.signing.is_some(),
            Grant::Listen(_) => level == Level::Full,
        }
    }

    fn prepare(&self, plan: &Plan, io: &Io, hold: bool, events: Events) -> Result<Box<dyn Attempt>, StartError> {
        let streams = Streams::new(*io)?;
        let edge = Edge::prepare(&plan.profile.egress, &Trust::System).map_err(unready)?;
        let published = Published::of(plan)?;
        let publishes = !published.is_empty();
        let staging = Staging::of(plan, self.stages.as_deref())?;
        let renewal = NameRotation::of(plan, self.caches.as_deref());
        let (undoing, recorder) = Undoing::of(plan, self.undo.as_deref())?.unzip();
        let signing = Signing::of(plan, self.signing.as_ref())?;
        let outfit = || self.outfit(plan, (*io, hold), &edge, (staging.as_ref(), &signing));
        let (lease, outfit, mut launching) = self.begin_with_layers(plan, outfit, &streams)?;
        // The limits and the two threads are prepared while the init builds.
        let guard = Guard::prepare(plan, launching.init_pid()).map_err(unlimited)?;
        launching.enter(&guard.entrances().map_err(unlimited)?).map_err(unlaunched)?;
        let outside = streams.outside(*io);
        let weak = events.downgrade();
        let told = Told::to_attempt(events);
        let sink = sink(&told);
        let precaution = staging.as_ref().map(Staging::precaution).transpose()?.flatten();
        let mut powers = self.powers(plan, &launching, (&outfit, lease.as_ref()));
        powers.agents = signing.sockets();
        let broker = Broker::begin_with(powers, plan.level, (precaution, recorder), sink).map_err(unbrokered)?;
        let terms = self.led(terms(plan, (edge, published, self.resolver.clone()), &broker, &told));
        let broker = broker.making_room(small_disk(&plan.profile.limits));
        let agent = signing.serve(&told)?;
        let keeper = Keeper::begin(outside, told)?;

        let mut launched = debug_span!("finish").in_scope(|| launching.finish()).map_err(unlaunched)?;
        let listener = launched.take_listener().ok_or_else(|| unlaunched(LaunchError::Lost))?;
        let can_hold = launched.wait_killable();
        let (way, lost) = way_of(launched.take_network(), terms);
        let way = Arc::new(way);
        let broker = broker.serve_with(listener, hold && can_hold, Some(Arc::clone(&way))).map_err(unbrokered)?;
        let mut enforced = launched.report().clone();
        enforced.layers.insert("limits".to_owned(), guard.report(hold));
        // Without a namespace the init has to find the processes one by one.
        let group = guard.group().filter(|_| plan.level != Level::Full);
        let watch = Arc::new(Mutex::new(guard.watch(launched.init_pid(), hold)));
        let layer = broker_layer(broker.traits(), (hold, can_hold), outfit.asks_reads(plan));
        enforced.layers.insert("broker".to_owned(), layer);
        enforced.layers.insert("network".to_owned(), way_out::layer(plan));
        enforced.layers.extend(layers_of_kept((staging.as_ref(), lease.as_ref()), &launched));
        enforced.layers.extend(undoing::layer(plan, undoing.as_ref()).into_iter().chain(signing::layer(plan)));
        let answers = broker.answers();
        if publishes {
            answers.open_way();
        }
        let kept = Kept {
            end: rustix::io::fcntl_dupfd_cloexec(launched.end_fd(), 3).map_err(no_descriptor)?,
            hidden: launched.take_hidden_reads().map(|reads| HiddenWatch::new(reads, plan)),
            temp: launched.take_temp().map(|temp| TempWatch::new(temp, plan)),
            launched: Arc::new(Mutex::new(launched)),
            names: Some(Arc::clone(&way)),
            way,
            lost,
            broker,
            staging,
            lease,
            agent,
            undoing,
            renewal,
            watch: Arc::clone(&watch),
            leaves: None,
        };
        let launched = Arc::clone(&kept.launched);
        let keeper = Some(keeper.keep(kept)?);
        Ok(Box::new(NativeAttempt { enforced, launched, answers, group, watch, events: weak, keeper }))
    }
}

/// Returns the options of a run's egress proxy.
pub(crate) fn terms(
    plan: &Plan,
    (edge, published, resolver): (Edge, Published, Option<Arc<dyn Resolve>>),
    broker: &BrokerBegun,
    told: &Told,
) -> Terms {
    let told = told.clone();
    Terms {
        rules: plan.profile.egress.clone(),
        edge: Arc::new(edge),
        judge: Arc::new(broker.referee()),
        sink: Arc::new(move |event| told.tell(met(event))),
        published,
        resolver: resolver.unwrap_or_else(|| Arc::<SystemResolver>::default()),
        lead: None,
    }
}

/// Returns the broker's powers from the plan and the private trees of the launch. Every sandbox
/// starts with them.
pub(crate) fn launched_powers(plan: &Plan, launching: &Launching) -> Powers {
    let private = launching.private_trees().iter().map(|tree| &tree.path);
    let mut powers = Powers::new(plan, private);
    powers.allowed_by_floor(launching.floors());
    powers
}

/// Returns the powers of the broker for this sandbox.
fn powers(plan: &Plan, launching: &Launching) -> Powers {
    let mut powers = launched_powers(plan, launching);
    if is_staged(plan) {
        powers.stage();
    }
    if plan.level == Level::Full {
        // A path that an approval of the command covers has no mount of its own either.
        let agreed = plan.effects.iter().filter(|grant| matches!(grant, Grant::Write(_))).filter_map(Grant::path);
        powers.not_attached(launching.missing().iter().cloned().chain(agreed.map(Path::to_owned)));
    }
    powers
}

/// Returns the sink for the events of a broker.
pub(crate) fn sink(told: &Told) -> impl Fn(BrokerEvent) + Send + use<> {
    let told = told.clone();
    move |event| told.tell(seen(event))
}

fn seen(event: BrokerEvent) -> AttemptEvent {
    match event {
        BrokerEvent::Denied(denial) => AttemptEvent::Denied(denial),
        BrokerEvent::Executed { pid, program } => AttemptEvent::Executed { pid, program },
        BrokerEvent::Held { id, denial } => AttemptEvent::Held { id, denial },
        BrokerEvent::Withdrawn(id) => AttemptEvent::Withdrawn(id),
    }
}

fn met(event: DoorEvent) -> AttemptEvent {
    match event {
        DoorEvent::Connection(record) => AttemptEvent::Connection(record),
        DoorEvent::Denied(denial) => AttemptEvent::Denied(*denial),
    }
}

pub(crate) fn broker_layer(traits: BrokerTraits, holds: (bool, bool), traced: bool) -> LayerReport {
    let speed = if traits.synchronous {
        "acts on behalf; hands the processor over (synchronous wake-up)"
    } else {
        "acts on behalf; the kernel has no synchronous wake-up (6.6), each trapped call costs more"
    };
    let holding = match holds {
        (true, true) => "; holds calls that lack a power",
        (true, false) => "; holds nothing: on this kernel (before 5.19) signals would break off every held call",
        (false, _) => "",
    };
    let tracing = if traced { "; is told of every open for reading, which costs time" } else { "" };
    LayerReport { state: LayerState::Enforced, detail: format!("{speed}{holding}{tracing}") }
}

/// Returns the reports on the stage and the caches of a run.
fn layers_of_kept(
    (staging, lease): (Option<&Staging>, Option<&CacheLease>),
    launched: &Launched,
) -> impl Iterator<Item = (String, LayerReport)> {
    let staged = staging.filter(|staging| staging.overlay().is_none()).map(|_| ("stage".to_owned(), stage_layer()));
    let caches = lease.map(|lease| ("caches".to_owned(), lease.report(|index| launched.is_unmerged(index))));
    staged.into_iter().chain(caches)
}

fn stage_layer() -> LayerReport {
    let detail = "without an overlay: writes are in the workspace until the run ends, and are then taken out of it";
    LayerReport { state: LayerState::Enforced, detail: detail.to_owned() }
}

pub(crate) fn unlaunched(error: LaunchError) -> StartError {
    StartError { what: error.to_string(), hint: error.hint() }
}

pub(crate) fn unlimited(error: LimitError) -> StartError {
    StartError { what: error.to_string(), hint: error.hint() }
}

pub(crate) fn unbrokered(error: BrokerError) -> StartError {
    StartError { what: error.to_string(), hint: None }
}

pub(crate) fn unready(error: EdgeError) -> StartError {
    StartError { what: error.to_string(), hint: None }
}

pub(crate) fn no_descriptor(errno: Errno) -> StartError {
    StartError {
        what: format!("cannot make a descriptor: {errno}"),
        hint: Some("raise the limit of open files (ulimit -n)".to_owned()),
    }
}

//! A command in an existing sandbox: an attempt like any other. The command has a seccomp filter
//! and listener, a broker, an egress proxy and powers of its own.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use stockade_egress::{Edge, Trust};
use stockade_engine::{Attempt, AttemptEvent, Backend, Events, Io, StartError, Tree};
use stockade_model::{Denial, Grant, Level, Plan};

use super::keep::Kept;
use super::{NATIVE, inside};
use crate::attempt::NativeAttempt;
use crate::backend::{
    broker_layer, launched_powers, no_descriptor, sink, terms, unbrokered, unlaunched, unlimited, unready,
};
use crate::broker::Broker;
use crate::keeper::{self, Keeper, Leaves, OnBreach, Told};
use crate::launch::{LaunchError, Launching, Outfit};
use crate::limits::{Guard, small_disk};
use crate::powers::Powers;
use crate::streams::Streams;
use crate::undoing;
use crate::way_out::{self, Published};

/// Backend for commands in one sandbox.
pub(super) struct CommandBackend {
    sandbox: Arc<Kept>,
}

impl CommandBackend {
    pub(super) fn new(sandbox: Arc<Kept>) -> Self {
        Self { sandbox }
    }

    fn demand_honoured(plan: &Plan) -> Result<(), StartError> {
        match plan.grants.iter().find(|grant| !honours(grant, plan.level)) {
            Some(grant) => Err(StartError {
                what: format!("`{grant}` cannot be given in this sandbox, which was made without it"),
                hint: Some("leave it out, or make a sandbox with it".to_owned()),
            }),
            None => Ok(()),
        }
    }

    /// Returns the launch options besides the plan.
    fn outfit(plan: &Plan, edge: &Edge, io: Io, umask: Option<u32>) -> Result<Outfit, StartError> {
        if edge.bundle_pem().is_some() || edge.placeholders().next().is_some() {
            let what = "in a sandbox that lasts no request is read and no secret put in".to_owned();
            return Err(StartError { what, hint: Some("use `stockade run`, or a profile without secrets".to_owned()) });
        }
        let environment = way_out::outfit(plan, edge).environment;
        Ok(Outfit { environment, terminal: io == Io::Terminal, umask, ..Outfit::default() })
    }

    fn powers(&self, plan: &Plan, launching: &Launching) -> Powers {
        let mut powers = launched_powers(plan, launching);
        powers.stay_inside();
        powers.hide_too(self.sandbox.hidden());
        powers.workspace_lies_at(self.sandbox.tree(Tree::Workspace).1);
        powers
    }
}

impl Backend for CommandBackend {
    fn name(&self) -> &'static str {
        NATIVE
    }

    fn honours(&self, grant: &Grant, level: Level) -> bool {
        honours(grant, level)
    }

    fn prepare(&self, plan: &Plan, io: &Io, hold: bool, events: Events) -> Result<Box<dyn Attempt>, StartError> {
        self.begin(plan, *io, hold, events, Caller::default())
    }
}

/// Returns whether a command of a native sandbox can get a power that the sandbox was not made with.
pub(super) fn honours(grant: &Grant, level: Level) -> bool {
    let holds = |path: &Path| [Tree::Workspace, Tree::Home].iter().any(|tree| path.starts_with(inside(*tree)));
    match grant {
        Grant::Write(path) | Grant::Socket(path) => level == Level::Full && holds(path.as_path()),
        Grant::Effect(_) => true,
        Grant::Connect(_) | Grant::Exec(_) | Grant::Env(_) | Grant::Listen(_) => level == Level::Full,
        // Isolation and limits are fixed when the sandbox is made, and it has no ssh agent.
        Grant::Read(_) | Grant::Secret(_) | Grant::Sign(_) | Grant::Limit(..) => false,
    }
}

/// Attributes that a command inherits from its caller; the default is those of this process.
#[derive(Default)]
pub(super) struct Caller {
    /// Standard input, output and error.
    pub(super) streams: Option<[OwnedFd; 3]>,
    /// The file mode creation mask.
    pub(super) umask: Option<u32>,
}

impl CommandBackend {
    /// As [`Backend::prepare`]. The command's limits are those of the sandbox, so no question
    /// raises them.
    pub(super) fn begin(
        &self,
        plan: &Plan,
        io: Io,
        hold: bool,
        events: Events,
        caller: Caller,
    ) -> Result<Box<dyn Attempt>, StartError> {
        Self::demand_honoured(plan)?;
        let _going = self.sandbox.going()?;
        let streams = Streams::of(io, caller.streams)?;
        let edge = Edge::prepare(&plan.profile.egress, &Trust::System).map_err(unready)?;
        let published = Published::of(plan)?;
        let publishes = !published.is_empty();
        let outfit = Self::outfit(plan, &edge, io, caller.umask)?;
        let mut launching = self.sandbox.enter(plan, &outfit, streams.inside())?;
        let (_, workspace) = self.sandbox.tree(Tree::Workspace);
        let guard = Guard::within(plan, workspace, self.sandbox.group().as_ref()).map_err(unlimited)?;
        launching.enter(&guard.entrances().map_err(unlimited)?).map_err(unlaunched)?;
        let weak = events.downgrade();
        let told = Told::in_sandbox(events, self.sandbox.events(), plan.request.clone());
        let broker = Broker::begin(self.powers(plan, &launching), plan.level, sink(&told)).map_err(unbrokered)?;
        let broker = broker.sharing(self.sandbox.bound()).making_room(small_disk(&plan.profile.limits));
        let terms = terms(plan, (edge, published, self.sandbox.resolver()), &broker, &told);
        let on_breach = on_breach(&told);
        self.sandbox.register(&on_breach, launching.init_pid());
        let keeper = Keeper::begin(streams.outside(io), told)?;

        let mut launched = launching.finish().map_err(unlaunched)?;
        let listener = launched.take_listener().ok_or_else(|| unlaunched(LaunchError::Lost))?;
        let can_hold = launched.wait_killable();
        let network = self.sandbox.network();
        let way = Arc::new(network.way(terms).map_err(no_socket)?);
        let broker = broker.serve_with(listener, hold && can_hold, Some(Arc::clone(&way))).map_err(unbrokered)?;
        let mut enforced = self.sandbox.enforced().clone();
        enforced.layers.extend(launched.report().layers.clone());
        let layers = [
            ("limits", guard.report(false)),
            ("broker", broker_layer(broker.traits(), (hold, can_hold), plan.profile.filesystem.trace)),
            ("network", way_out::layer(plan)),
        ];
        enforced.layers.extend(layers.map(|(name, layer)| (name.to_owned(), layer)));
        enforced.layers.extend(undoing::layer(plan, None));
        let answers = broker.answers();
        if publishes {
            answers.open_way();
        }
        let group = guard.group();
        let watch = Arc::new(Mutex::new(guard.watch(launched.init_pid(), false)));
        let kept = keeper::Kept {
            end: rustix::io::fcntl_dupfd_cloexec(launched.end_fd(), 3).map_err(no_descriptor)?,
            hidden: None,
            temp: None,
            launched: Arc::new(Mutex::new(launched)),
            names: Some(Arc::clone(&way)),
            way,
            lost: Some(network.lost().map_err(no_socket)?),
            broker,
            staging: None,
            lease: None,
            agent: None,
            undoing: None,
            renewal: None,
            watch: Arc::clone(&watch),
            leaves: Some(Leaves::new(self.sandbox.background(), group.clone(), on_breach)),
        };
        let launched = Arc::clone(&kept.launched);
        let keeper = Some(keeper.keep(kept)?);
        Ok(Box::new(NativeAttempt { enforced, launched, answers, group, watch, events: weak, keeper }))
    }
}

fn no_socket(error: std::io::Error) -> StartError {
    StartError { what: format!("cannot make a descriptor: {error}"), hint: None }
}

fn on_breach(told: &Told) -> OnBreach {
    let told = told.clone();
    Arc::new(move |breach: &Denial| told.tell(AttemptEvent::Breached(breach.clone())))
}

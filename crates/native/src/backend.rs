//! The native backend: joins launch, broker and captured output to the engine.
//!
//! Two threads serve an attempt: the broker, and the keeper, which watches for
//! the end, for opened hidden paths and for output. Neither ever waits for a
//! person. It must not know rules, questions or the log.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use stockade_egress::{DoorEvent, Edge, EdgeError, Resolve, SystemResolver, Trust};
use stockade_engine::{
    Attempt, AttemptEnd, AttemptEvent, Backend, CommandEnd, Events, HeldAnswer, HoldId, Io, StartError, WeakEvents,
};
use stockade_model::{Denial, EnforcementReport, Grant, LayerReport, LayerState, Level, Plan, RawText, Usage};
use stockade_sys::Errno;
use stockade_sys::reap::Ended;
use tracing::debug_span;

use crate::broker::{Answers, Broker, BrokerBegun, BrokerError, BrokerEvent, BrokerHandle, BrokerTraits, linked_units};
use crate::capture::{Capture, Drained};
use crate::evidence::{HiddenWatch, TempWatch};
use crate::launch::{
    Blueprint, ExitReport, LaunchError, Launched, Launching, Nursery, Outfit, Stdio, begin, is_staged,
};
use crate::limits::{Group, Guard, LimitError, Spent, Watch};
use crate::powers::Powers;
use crate::staging::Staging;
use crate::way_out::{self, LostDatagrams, Published, Terms, WayOut};

/// How long the broker may take to end once its callers are gone.
const BROKER_ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How long a sandbox that was killed is waited for. A process that waits for a
/// filesystem that does not answer cannot be ended by anybody.
const SANDBOX_ENDS_WITHIN: Duration = Duration::from_secs(10);
/// How often the keeper looks around though nothing woke it.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How many chunks of output are taken after the end: all that a pipe holds.
const LAST_CHUNKS_MAX: usize = 64;

/// Sandboxes made by this machine's own kernel.
#[derive(Default)]
pub struct NativeBackend {
    nursery: Mutex<Option<Nursery>>,
    stages: Option<PathBuf>,
    resolver: Option<Arc<dyn Resolve>>,
}

impl std::fmt::Debug for NativeBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeBackend").field("stages", &self.stages).finish_non_exhaustive()
    }
}

impl NativeBackend {
    /// One whose first sandbox is begun already.
    pub fn with(nursery: Option<Nursery>) -> Self {
        Self { nursery: Mutex::new(nursery), ..Self::default() }
    }

    /// One that keeps stages in this directory, which is made with the first of
    /// them. Without, nothing can be staged.
    #[must_use]
    pub fn staging(self, stages: PathBuf) -> Self {
        Self { stages: Some(stages), ..self }
    }

    /// One that looks the names of hosts up with this, in place of the host's own
    /// resolver.
    #[must_use]
    pub fn resolving(self, resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver: Some(resolver), ..self }
    }

    /// What the door of a run is to know.
    fn terms(&self, plan: &Plan, (edge, published): (Edge, Published), broker: &BrokerBegun, events: &Events) -> Terms {
        let events = events.clone();
        Terms {
            rules: plan.profile.egress.clone(),
            edge: Arc::new(edge),
            judge: Arc::new(broker.referee()),
            sink: Arc::new(move |event| events.tell(told(event))),
            published,
            resolver: self.resolver.clone().unwrap_or_else(|| Arc::<SystemResolver>::default()),
        }
    }

    /// Starts building the sandbox, with what is begun already where it fits.
    fn begin(&self, plan: &Plan, outfit: &Outfit, stdio: Stdio<'_>) -> Result<Launching, LaunchError> {
        let _span = debug_span!("begin").entered();
        let nursery = self.nursery.lock().unwrap_or_else(PoisonError::into_inner).take();
        match nursery.filter(|nursery| nursery.serves(plan.level)) {
            Some(nursery) => nursery.begin(plan, outfit, stdio),
            None => begin(Blueprint::prepare_with(plan, outfit)?, stdio),
        }
    }
}

impl Backend for NativeBackend {
    fn name(&self) -> &'static str {
        "native"
    }

    fn honours(&self, grant: &Grant, level: Level) -> bool {
        match grant {
            Grant::Write(_) | Grant::Read(_) | Grant::Socket(_) | Grant::Exec(_) | Grant::Env(_) => true,
            Grant::Connect(_) | Grant::Secret(_) | Grant::Limit(..) => true,
            Grant::Listen(_) => level == Level::Full,
        }
    }

    fn prepare(&self, plan: &Plan, io: &Io, hold: bool, events: Events) -> Result<Box<dyn Attempt>, StartError> {
        let streams = Streams::new(*io)?;
        let edge = Edge::prepare(&plan.profile.egress, &Trust::System).map_err(unready)?;
        let published = Published::of(plan)?;
        let publishes = !published.is_empty();
        let staging = Staging::of(plan, self.stages.as_deref())?;
        let overlay = staging.as_ref().and_then(|staging| staging.overlay().cloned());
        let outfit = Outfit { overlay, terminal: *io == Io::Terminal, ..way_out::outfit(plan, &edge) };
        let mut launching = self.begin(plan, &outfit, streams.inside()).map_err(unlaunched)?;
        // The init builds; the limits and the two threads get ready meanwhile.
        let guard = Guard::prepare(plan, launching.init_pid()).map_err(unlimited)?;
        launching.enter(&guard.entrances().map_err(unlimited)?).map_err(unlaunched)?;
        let outside = streams.outside(*io);
        let (sender, told) = (events.clone(), events.downgrade());
        let sink = move |event| sender.tell(seen(event));
        let precaution = staging.as_ref().map(Staging::precaution).transpose()?.flatten();
        let broker = Broker::begin_with(powers(plan, &launching), plan.level, precaution, sink).map_err(unbrokered)?;
        let terms = self.terms(plan, (edge, published), &broker, &events);
        let keeper = Keeper::begin(outside, events)?;

        let mut launched = debug_span!("finish").in_scope(|| launching.finish()).map_err(unlaunched)?;
        let listener = launched.take_listener().ok_or_else(|| unlaunched(LaunchError::Lost))?;
        let can_hold = launched.wait_killable();
        let (way, lost) = match launched.take_network() {
            Some(ends) => {
                let (way, lost) = WayOut::of_namespace(ends, terms);
                (way, Some(lost))
            }
            None => (WayOut::of_host(terms), None),
        };
        let way = Arc::new(way);
        let way_out = Some(Arc::clone(&way));
        let broker = broker.serve_with(listener, hold && can_hold, way_out).map_err(unbrokered)?;
        let mut enforced = launched.report().clone();
        enforced.layers.insert("limits".to_owned(), guard.report(hold));
        let group = guard.group();
        let watch = Arc::new(Mutex::new(guard.watch(launched.init_pid(), hold)));
        enforced.layers.insert(
            "broker".to_owned(),
            broker_layer(broker.traits(), (hold, can_hold), plan.profile.filesystem.trace),
        );
        enforced.layers.insert("network".to_owned(), way_out::layer(plan));
        if staging.as_ref().is_some_and(|staging| staging.overlay().is_none()) {
            enforced.layers.insert("stage".to_owned(), stage_layer());
        }
        let answers = broker.answers();
        if publishes {
            answers.open_way();
        }
        let kept = Kept {
            end: rustix::io::fcntl_dupfd_cloexec(launched.end_fd(), 3).map_err(no_descriptor)?,
            hidden: launched.take_hidden_reads().map(|reads| HiddenWatch::new(reads, plan)),
            temp: launched.take_temp().map(TempWatch::new),
            launched: Arc::new(Mutex::new(launched)),
            names: Some(Arc::clone(&way)),
            way,
            lost,
            broker,
            staging,
            watch: Arc::clone(&watch),
        };
        let launched = Arc::clone(&kept.launched);
        let keeper = Some(keeper.keep(kept)?);
        Ok(Box::new(NativeAttempt { enforced, launched, answers, group, watch, events: told, keeper }))
    }
}

/// The powers of the broker for this sandbox.
fn powers(plan: &Plan, launching: &Launching) -> Powers {
    let private = launching.private_trees().iter().map(|tree| &tree.path);
    let mut powers = Powers::new(plan, private);
    let linked = linked_units(plan);
    powers.protect(linked);
    if is_staged(plan) {
        powers.stage();
    }
    if plan.level == Level::Full {
        powers.not_attached(launching.missing().iter().cloned());
    }
    powers
}

fn seen(event: BrokerEvent) -> AttemptEvent {
    match event {
        BrokerEvent::Denied(denial) => AttemptEvent::Denied(denial),
        BrokerEvent::Executed { pid, program } => AttemptEvent::Executed { pid, program },
        BrokerEvent::Held { id, denial } => AttemptEvent::Held { id, denial },
        BrokerEvent::Withdrawn(id) => AttemptEvent::Withdrawn(id),
    }
}

fn told(event: DoorEvent) -> AttemptEvent {
    match event {
        DoorEvent::Connection(record) => AttemptEvent::Connection(record),
        DoorEvent::Denied(denial) => AttemptEvent::Denied(*denial),
    }
}

fn broker_layer(traits: BrokerTraits, holds: (bool, bool), traced: bool) -> LayerReport {
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

fn stage_layer() -> LayerReport {
    let detail = "without an overlay: writes are in the workspace until the run ends, and are then taken out of it";
    LayerReport { state: LayerState::Enforced, detail: detail.to_owned() }
}

pub(crate) fn unlaunched(error: LaunchError) -> StartError {
    StartError { what: error.to_string(), hint: error.hint() }
}

fn unlimited(error: LimitError) -> StartError {
    StartError { what: error.to_string(), hint: error.hint() }
}

fn unbrokered(error: BrokerError) -> StartError {
    StartError { what: error.to_string(), hint: None }
}

fn unready(error: EdgeError) -> StartError {
    StartError { what: error.to_string(), hint: None }
}

fn no_descriptor(errno: Errno) -> StartError {
    StartError {
        what: format!("cannot make a descriptor: {errno}"),
        hint: Some("raise the limit of open files (ulimit -n)".to_owned()),
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The command's output pipes: both ends, until the sandbox has its own.
struct Streams {
    pipes: Option<[(OwnedFd, OwnedFd); 2]>,
}

impl Streams {
    fn new(io: Io) -> Result<Self, StartError> {
        let pipe = || {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&read, true)?;
            Ok((read, write))
        };
        let pipes = match io {
            Io::Inherit | Io::Terminal => None,
            Io::Capture { .. } => Some([pipe().map_err(no_descriptor)?, pipe().map_err(no_descriptor)?]),
        };
        Ok(Self { pipes })
    }

    fn inside(&self) -> Stdio<'_> {
        let (stdout, stderr) = match &self.pipes {
            Some([out, err]) => (out.1.as_fd(), err.1.as_fd()),
            None => (rustix::stdio::stdout(), rustix::stdio::stderr()),
        };
        Stdio { stdin: rustix::stdio::stdin(), stdout, stderr }
    }

    /// Drops the command's ends and begins to capture at ours.
    fn outside(self, io: Io) -> Option<[Output; 2]> {
        let limit_bytes = match io {
            Io::Capture { limit_bytes } => limit_bytes,
            Io::Inherit | Io::Terminal => 0,
        };
        let output = |pipe: OwnedFd| Output { pipe, capture: Capture::new(limit_bytes), open: true };
        self.pipes.map(|[(out, _), (err, _)]| [output(out), output(err)])
    }
}

/// One captured stream and our end of its pipe.
struct Output {
    pipe: OwnedFd,
    capture: Capture,
    open: bool,
}

impl Output {
    fn take(&mut self) -> bool {
        self.open = self.open && self.capture.take(self.pipe.as_fd()) == Drained::Open;
        self.open
    }
}

struct NativeAttempt {
    enforced: EnforcementReport,
    launched: Arc<Mutex<Launched>>,
    answers: Answers,
    group: Option<Arc<Group>>,
    watch: Arc<Mutex<Watch>>,
    events: WeakEvents,
    keeper: Option<Receiver<()>>,
}

impl Attempt for NativeAttempt {
    fn enforced(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release(&mut self) -> Result<(), StartError> {
        lock(&self.launched).release().map_err(unlaunched)
    }

    fn signal(&self, signal: i32) {
        lock(&self.launched).signal(signal);
        lock(&self.watch).go_on();
    }

    fn kill(&self) {
        lock(&self.launched).kill();
        // Where there is no namespace the init has to find them one by one.
        if self.enforced.level != Level::Full {
            self.group.iter().for_each(|group| group.kill());
        }
        lock(&self.watch).go_on();
    }

    fn stand_still(&self, limit: &Denial) -> bool {
        let asked = lock(&self.watch).stand_still(limit);
        asked.map(|asked| self.events.tell(asked)).is_some()
    }

    fn answer(&self, hold: HoldId, answer: HeldAnswer) {
        if !Watch::is_about_limit(hold) {
            return self.answers.answer(hold, answer);
        }
        let ends = lock(&self.watch).answer(hold, &answer);
        ends.into_iter().for_each(|breach| self.events.tell(breach));
    }
}

impl Drop for NativeAttempt {
    fn drop(&mut self) {
        self.kill();
        let Some(over) = self.keeper.take() else { return };
        // Its sender goes with the keeper, or with what was never kept.
        if over.recv_timeout(SANDBOX_ENDS_WITHIN) == Err(RecvTimeoutError::Timeout) {
            lock(&self.launched).abandon();
        }
    }
}

/// Watches over a sandbox on a thread of its own.
struct Keeper {
    kept: Kept,
    outside: Option<[Output; 2]>,
    events: Events,
}

/// What there is to keep once the sandbox stands.
struct Kept {
    end: OwnedFd,
    launched: Arc<Mutex<Launched>>,
    broker: BrokerHandle,
    way: Arc<WayOut>,
    /// The same until the first name is asked for.
    names: Option<Arc<WayOut>>,
    lost: Option<LostDatagrams>,
    hidden: Option<HiddenWatch>,
    temp: Option<TempWatch>,
    staging: Option<Staging>,
    watch: Arc<Mutex<Watch>>,
}

/// A keeper that waits for its sandbox. Dropping it ends it.
struct KeeperBegun {
    kept: Sender<Kept>,
    over: Receiver<()>,
}

impl KeeperBegun {
    /// Lets it watch. What it returns is hung up when the sandbox is gone.
    fn keep(self, kept: Kept) -> Result<Receiver<()>, StartError> {
        let gone = || StartError { what: "the thread that watches the sandbox ended".to_owned(), hint: None };
        self.kept.send(kept).map_err(|_| gone())?;
        Ok(self.over)
    }
}

impl Keeper {
    fn begin(outside: Option<[Output; 2]>, events: Events) -> Result<KeeperBegun, StartError> {
        let (kept, sandbox) = channel();
        let (on_drop, over) = channel::<()>();
        let body = move || {
            if let Ok(kept) = sandbox.recv() {
                Self { kept, outside, events }.keep(on_drop);
            }
        };
        thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(body)
            .map_err(|error| StartError { what: format!("cannot start a thread: {error}"), hint: None })?;
        Ok(KeeperBegun { kept, over })
    }

    /// Watches until the end, then reports it.
    fn keep(mut self, on_drop: Sender<()>) {
        let ended = loop {
            self.wait();
            self.look();
            match lock(&self.kept.launched).try_wait() {
                Ok(None) => {}
                other => break other,
            }
        };
        // Nothing of the run is left: what the pipes hold is all there will be.
        for _ in 0..LAST_CHUNKS_MAX {
            // Both are read each time, whichever of them is still open.
            let open = self.outside.iter_mut().flatten().map(Output::take).filter(|open| *open).count();
            if open == 0 {
                break;
            }
        }
        self.look();
        let Self {
            kept: Kept { end, launched, broker, way, names: _, lost: _, hidden, temp, staging, watch },
            outside,
            events,
        } = self;
        if let Some(full) = temp.and_then(TempWatch::end) {
            events.tell(AttemptEvent::Denied(full));
        }
        let report = broker.stop(BROKER_ENDS_WITHIN);
        let report = report.unwrap_or_default();
        // After the last connect, before the end: its records belong to the run.
        way.close();
        for denial in report.denials.into_iter().filter(|d| d.count > 1) {
            events.tell(AttemptEvent::Denied(denial));
        }
        let [stdout, stderr] = match outside {
            Some([out, err]) => [Some(out.capture), Some(err.capture)],
            None => [None, None],
        };
        let truncated = [&stdout, &stderr].into_iter().flatten().any(Capture::truncated);
        let text = |capture: Option<Capture>| capture.map(|c| RawText::from(c.into_bytes()));
        // What is shared with the init goes before the init, which closes it
        // last and so waits for the kernel instead of us.
        drop((hidden, end));
        let (end, mut usage) = command_end(ended);
        let Spent { denials, breach } = lock(&watch).end(&mut usage);
        denials.into_iter().for_each(|denial| events.tell(AttemptEvent::Denied(denial)));
        breach.into_iter().for_each(|breach| events.tell(AttemptEvent::Breached(breach)));
        let staged = staging.and_then(|staging| staging.end(&end));
        drop((launched, on_drop));
        events.tell(AttemptEvent::Ended(AttemptEnd {
            end,
            usage,
            stdout: text(stdout),
            stderr: text(stderr),
            truncated,
            staged,
            reads: report.reads,
        }));
    }

    fn tell(&self, event: AttemptEvent) {
        self.events.tell(event);
    }

    /// Sleeps until something happens.
    fn wait(&self) {
        let hidden = self.kept.hidden.as_ref().map(HiddenWatch::fd);
        let names = self.kept.names.as_ref().and_then(|way| way.asked());
        let outputs = self.outside.iter().flatten().filter(|o| o.open).map(|o| o.pipe.as_fd());
        let lost = self.kept.lost.iter().flat_map(LostDatagrams::fds);
        let all: Vec<BorrowedFd<'_>> =
            [Some(self.kept.end.as_fd()), hidden, names].into_iter().flatten().chain(lost).chain(outputs).collect();
        let mut waited: Vec<PollFd<'_>> = all.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let at_most = lock(&self.kept.watch).next_look().map_or(LOOK_AROUND, |next| next.min(LOOK_AROUND));
        let at_most = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        // A signal or a failure only makes the next look come sooner.
        let _ = poll(&mut waited, Some(&at_most));
    }

    /// Takes what is there.
    fn look(&mut self) {
        for output in self.outside.iter_mut().flatten() {
            output.take();
        }
        if self.kept.names.take_if(|way| way.is_asked()).is_some() {
            self.kept.broker.answers().open_way();
        }
        let mut seen: Vec<Denial> = self.kept.hidden.as_mut().map(HiddenWatch::take).unwrap_or_default();
        seen.extend(self.kept.lost.iter_mut().flat_map(LostDatagrams::take));
        for denial in seen {
            self.tell(AttemptEvent::Denied(denial));
        }
        let passed = lock(&self.kept.watch).look();
        passed.into_iter().for_each(|passed| self.tell(passed));
    }
}

fn command_end(ended: Result<Option<ExitReport>, LaunchError>) -> (CommandEnd, Usage) {
    match ended {
        Ok(Some(ExitReport { exec_errno: Some(Errno::NOENT | Errno::NOTDIR), usage, .. })) => {
            (CommandEnd::NotFound, usage)
        }
        Ok(Some(ExitReport { exec_errno: Some(errno), usage, .. })) => {
            (CommandEnd::NotExecutable(errno.to_string()), usage)
        }
        Ok(Some(ExitReport { status: Ended::Exited(code), usage, .. })) => (CommandEnd::Exited(code), usage),
        Ok(Some(ExitReport { status: Ended::Signaled(signal), usage, .. })) => (CommandEnd::Signaled(signal), usage),
        Ok(None) => (CommandEnd::Lost("it ended without a word".to_owned()), Usage::default()),
        Err(error) => (CommandEnd::Lost(error.to_string()), Usage::default()),
    }
}

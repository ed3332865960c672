//! The broker: answers the system calls that the filter traps, by doing on
//! behalf of the caller what its powers allow, on an object it holds open.
//!
//! It must not know how the sandbox was built: it is given the listener, the
//! powers and the level, and hands back events.
//!
//! | File | For |
//! |---|---|
//! | `table` | which calls are trapped |
//! | `caller` | the process that called: memory, descriptors, umask |
//! | `walk` | from its path to a held object |
//! | `service` | the loop and the decision |
//! | `before_change` | what is kept before a call changes the workspace |
//! | `deed` | a call once it is read: it can be carried out now or later |
//! | `opens`, `names`, `metadata`, `sockets` | reading the calls and carrying them out |
//! | `straight` | the short way of plain opens |
//! | `bound`, `servers` | sockets that the run has made: with a path, and servers on the host's loopback |
//! | `kept_ports` | addresses of those servers, kept from everybody else |
//! | `view` | through which view an object is changed; is it still the one shown? |
//! | `holds`, `holding` | calls that wait for an answer |
//! | `pool` | what may block |
//! | `ledger` | what was refused |
//! | `programs` | what is about to run |
//! | `ways` | links by which git would be led elsewhere |
//! | `project_files` | files of the project that run code later |
//! | `reads` | what a traced run reads |
//! | `connects`, `requests` | what leads outside: connects, and what the door is asked for |
//! | `confirm` | a second look at names that were made |
//! | `file_room` | files that are larger than a small limit of the disk already |
//! | `install` | what takes a guarded place |
//! | `in_place` | files of git that are written in their place, and judged once they are |
//! | `left_out` | what is refused to git, which goes on without |
//! | `judged` | what takes a place that is guarded by what it says |
//!
//! Why acting on behalf is safe: names of the trees that the sandbox may write
//! change only through the one thread that decides, because the floor refuses
//! the calls to everybody else; the last component is never followed by the
//! kernel; and what is put in the caller's hands is the object decided on.
//!
//! Known limit: a process that forks while it serves another run (two launches
//! at once in one process) lends the new child copies of what the broker holds
//! open, until that child closes them. A program that the other run has just
//! written may be "busy" for that moment.

mod before_change;
mod bound;
mod caller;
mod confirm;
mod connects;
mod deed;
mod file_room;
mod holding;
mod holds;
mod in_place;
mod install;
mod judged;
mod kept_ports;
mod ledger;
mod left_out;
mod metadata;
mod names;
mod opens;
mod pool;
mod programs;
mod project_files;
mod reads;
mod requests;
mod servers;
mod service;
mod sockets;
mod straight;
mod table;
mod terminals;
mod view;
mod walk;
mod ways;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use stockade_engine::{HeldAnswer, HoldId};
use stockade_model::{Denial, Level, RawText, ReadAccess};
use stockade_sys::Errno;
use stockade_sys::notify::Notifier;

use crate::powers::Powers;
use crate::reach::Reach;
use crate::stage::Precaution;
use crate::undo::Recorder;
use crate::way_out::WayOut;
use requests::{Referee, Request};
use service::Service;

pub(crate) use bound::Bound;
pub use servers::served_ports;
pub use table::{ArgTest, Test, Trap, notify_table};

/// The broker's thread must come up within this.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Something that the broker saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerEvent {
    /// Something was refused, for the first time.
    Denied(Denial),
    /// A program is about to be executed.
    Executed {
        /// Process id as the host sees it.
        pid: u32,
        /// The resolved program.
        program: RawText,
    },
    /// A call lacks a power and waits for [`Answers::answer`].
    Held {
        /// Which one, unique in this broker.
        id: HoldId,
        /// As a refusal would say it; it has a grant.
        denial: Denial,
    },
    /// Nobody waits behind this call any more.
    Withdrawn(HoldId),
}

/// Why a broker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// A thread or descriptor could not be made.
    #[error("cannot start the thread that answers trapped system calls: {0}")]
    Thread(std::io::Error),
    /// The kernel refused a step.
    #[error("cannot {step}: {errno}")]
    Step {
        /// What was to be done.
        step: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The thread said nothing in time.
    #[error("the thread that answers trapped system calls did not come up within {} s", START_TIMEOUT.as_secs())]
    Silent,
}

/// What a broker did, told at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerReport {
    /// Every refusal with its count.
    pub denials: Vec<Denial>,
    /// Refusals past the bound, not kept apart.
    pub more_denials: u64,
    /// Trapped calls answered.
    pub calls: u64,
    /// What a traced run read, by path.
    pub reads: Vec<ReadAccess>,
    /// Files of the project that run code later and were written.
    pub project_files: Vec<RawText>,
    /// Whether something was let change what lasts: a file of a writable directory.
    pub changed: bool,
}

/// What is enforced for the broker itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerTraits {
    /// The kernel hands the processor over at each question (6.6).
    pub synchronous: bool,
}

/// A running broker. Dropping it ends it without waiting.
#[derive(Debug)]
pub struct BrokerHandle {
    answers: Answers,
    report: Receiver<BrokerReport>,
    traits: BrokerTraits,
}

/// Where the answers to held calls go. Copies lead to the same broker; after
/// its end they lead nowhere.
#[derive(Clone, Debug)]
pub struct Answers {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
}

/// What a broker is told while it serves.
#[derive(Debug)]
enum Order {
    Answer(HoldId, HeldAnswer),
    /// The door was asked for something that is not agreed to.
    Judge(Request),
    /// The door is needed.
    Open,
    /// Nobody answers any more.
    HoldNothing,
    Stop,
}

impl Answers {
    /// Answers a held call. Never blocks. Powers that are granted hold also
    /// where nobody waits for them any more.
    pub fn answer(&self, id: HoldId, answer: HeldAnswer) {
        self.order(Order::Answer(id, answer));
    }

    /// Lets the way out be opened. Never blocks.
    pub(crate) fn open_way(&self) {
        self.order(Order::Open);
    }

    /// What is held is refused, and so is what would be. Never blocks.
    pub(crate) fn hold_nothing(&self) {
        self.order(Order::HoldNothing);
    }

    fn order(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            // It fails only where the counter is full: then it is readable.
            let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        }
    }
}

/// Answers trapped calls on a thread of its own.
pub struct Broker;

impl Broker {
    /// Starts answering what arrives at `listener`. `sink` is called on the
    /// broker's threads and must not block: a caller waits meanwhile. With
    /// `hold`, a call that lacks a power waits for an answer; only for a filter
    /// whose questions no signal disturbs
    /// ([`Launched::wait_killable`](crate::launch::Launched::wait_killable)).
    ///
    /// # Errors
    /// See [`BrokerError`]; nothing is answered then, and trapped calls end
    /// with ENOSYS.
    pub fn start(
        listener: OwnedFd,
        powers: Powers,
        level: Level,
        hold: bool,
        sink: impl Fn(BrokerEvent) + Send + 'static,
    ) -> Result<BrokerHandle, BrokerError> {
        Self::begin(powers, level, sink)?.serve(listener, hold)
    }

    /// Starts the thread before there is a listener: it gets ready while the
    /// sandbox is built.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub fn begin(
        powers: Powers,
        level: Level,
        sink: impl Fn(BrokerEvent) + Send + 'static,
    ) -> Result<BrokerBegun, BrokerError> {
        Self::begin_with(powers, level, (None, None), sink)
    }

    /// As [`begin`](Self::begin), for a sandbox whose workspace is staged:
    /// `precaution` is taken before anything in it is changed. With `undo`, what was in the
    /// workspace is kept first.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub fn begin_with(
        powers: Powers,
        level: Level,
        before: (Option<Precaution>, Option<Recorder>),
        sink: impl Fn(BrokerEvent) + Send + 'static,
    ) -> Result<BrokerBegun, BrokerError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(step("make an eventfd"))?;
        let wake = Arc::new(wake);
        let woken = wake.clone();
        let (orders, ordered) = channel();
        let (up, ready) = channel();
        let (notifier, notifiers) = channel::<Serving>();
        let reach = powers.reach.clone();
        let (sender, report) = channel();
        let body = move || {
            let confined = Service::confine(level);
            let failed = confined.is_err();
            let _ = up.send(confined);
            // No notifier comes where the sandbox could not be built.
            let (Ok(Serving { notifier, hold, way, bound, small_disk }), false) = (notifiers.recv(), failed) else {
                return;
            };
            let end =
                match Service::new(notifier, powers, level, hold, before, (way, bound, small_disk), Box::new(sink)) {
                    Ok(mut service) => {
                        service.serve(woken.as_fd(), &ordered);
                        service.end()
                    }
                    // The listener is closed: every trapped call ends with ENOSYS.
                    Err(_) => BrokerReport::default(),
                };
            // After all that it held of the sandbox was let go.
            let _ = sender.send(end);
        };
        std::thread::Builder::new().name("broker".to_owned()).spawn(body).map_err(BrokerError::Thread)?;
        let bound = Bound::default();
        let answers = Answers { orders, wake };
        Ok(BrokerBegun { answers, reach, ready, notifier, report, bound, small_disk: None })
    }
}

/// A broker without a listener. Dropping it ends it.
#[derive(Debug)]
pub struct BrokerBegun {
    answers: Answers,
    reach: Reach,
    ready: Receiver<Result<(), BrokerError>>,
    notifier: Sender<Serving>,
    report: Receiver<BrokerReport>,
    bound: Bound,
    small_disk: Option<u64>,
}

/// What a broker that has begun needs to serve.
struct Serving {
    notifier: Notifier,
    hold: bool,
    way: Option<Arc<WayOut>>,
    bound: Bound,
    small_disk: Option<u64>,
}

impl BrokerBegun {
    /// It remembers sockets together with others.
    pub(crate) fn sharing(self, bound: Bound) -> Self {
        Self { bound, ..self }
    }

    /// The run has this small limit of the disk, by which the kernel holds the size of each
    /// file: the broker makes room for those that are larger already.
    pub(crate) fn making_room(self, small_disk: Option<u64>) -> Self {
        Self { small_disk, ..self }
    }

    /// Decides for the door.
    pub(crate) fn referee(&self) -> Referee {
        Referee::new(self.answers.clone(), self.reach.clone())
    }

    /// Lets it answer what arrives at `listener`; `hold` as in
    /// [`Broker::start`]. There is no way out.
    ///
    /// # Errors
    /// See [`BrokerError`]; nothing is answered then, and trapped calls end
    /// with ENOSYS.
    pub fn serve(self, listener: OwnedFd, hold: bool) -> Result<BrokerHandle, BrokerError> {
        self.serve_with(listener, hold, None)
    }

    /// As [`serve`](Self::serve), with a way out.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub(crate) fn serve_with(
        self,
        listener: OwnedFd,
        hold: bool,
        way: Option<Arc<WayOut>>,
    ) -> Result<BrokerHandle, BrokerError> {
        let notifier = Notifier::new(listener).map_err(step("learn the size of notifications"))?;
        let traits = BrokerTraits { synchronous: notifier.wake_synchronously().is_ok() };
        self.ready.recv_timeout(START_TIMEOUT).unwrap_or(Err(BrokerError::Silent))?;
        let serving = Serving { notifier, hold, way, bound: self.bound, small_disk: self.small_disk };
        self.notifier.send(serving).map_err(|_| BrokerError::Silent)?;
        Ok(BrokerHandle { answers: self.answers, report: self.report, traits })
    }
}

impl BrokerHandle {
    /// What holds for it.
    pub fn traits(&self) -> BrokerTraits {
        self.traits
    }

    /// Where answers go.
    pub fn answers(&self) -> Answers {
        self.answers.clone()
    }

    /// Ends it and waits for that, at most `timeout`. What is still trapped
    /// ends with ENOSYS. `None` where it did not end in time.
    pub fn stop(self, timeout: Duration) -> Option<BrokerReport> {
        self.ask_to_stop();
        self.report.recv_timeout(timeout).ok()
    }

    /// Waits until it has ended by itself because no process is left, at most so
    /// long.
    ///
    /// # Errors
    /// Gives it back where some are left.
    pub(crate) fn end_within(self, at_most: Duration) -> Result<BrokerReport, Self> {
        match self.report.recv_timeout(at_most) {
            Ok(report) => Ok(report),
            Err(RecvTimeoutError::Timeout) => Err(self),
            Err(RecvTimeoutError::Disconnected) => Ok(BrokerReport::default()),
        }
    }

    fn ask_to_stop(&self) {
        self.answers.order(Order::Stop);
    }
}

impl Drop for BrokerHandle {
    fn drop(&mut self) {
        self.ask_to_stop();
    }
}

/// An error of a step that can be named.
fn step(step: &'static str) -> impl Fn(Errno) -> BrokerError {
    move |errno| BrokerError::Step { step, errno }
}

//! The broker: answers the system calls that the seccomp filter traps. A permitted call is carried
//! out for the caller, on an object that the broker holds open.
//!
//! The broker must not know how the sandbox was built. Its inputs are the listener, the powers and
//! the level; its output is events.
//!
//! | File | Purpose |
//! |---|---|
//! | `caller` | the calling process: memory, descriptors, umask |
//! | `walk` | resolves the caller's path to a held object |
//! | `service` | the loop and the decision |
//! | `before_change` | keeps the old content before a call changes the workspace |
//! | `brokered_call` | a call that was read: it can be carried out now or later |
//! | `call_result` | answers, errors and refusals of calls |
//! | `opens`, `names`, `metadata`, `sockets` | read the calls and carry them out |
//! | `fast_path` | the fast path of plain opens |
//! | `bound_sockets`, `servers` | sockets of the run: with a path, and servers on the host's loopback |
//! | `reserved_ports` | reserves the addresses of those servers |
//! | `view` | the mount namespace through which an object is changed; detects changed objects |
//! | `holds`, `holding` | calls that wait for an answer |
//! | `pool` | threads for work that may block |
//! | `denials` | refusals |
//! | `programs` | programs that are about to run |
//! | `git_links` | symbolic links that would lead git elsewhere |
//! | `project_files` | project files that run code later |
//! | `reads` | reads of a traced run |
//! | `connects`, `requests` | outgoing connections, and requests to the egress proxy |
//! | `confirm` | checks a name again after it was made |
//! | `file_size_limit` | file size limits for files that were large before the run |
//! | `install` | puts files in guarded paths |
//! | `in_place` | git files that are written in place, and checked once written |
//! | `harmless_denials` | refused calls after which git can go on |
//! | `guarded_content` | files that are guarded by their content |
//!
//! Acting for the caller is safe for three reasons. Names in writable trees change only through the
//! one deciding thread, because the kernel-enforced layer refuses these calls to every other
//! thread. The kernel never follows the last component. The caller receives the very object that
//! was decided on.
//!
//! Known limit: if one process launches two runs at once, a fork for the second copies the
//! descriptors that the first run's broker holds. The copies last until the child closes them.
//! Meanwhile a program that the first run has just written may be "busy" (ETXTBSY).

mod before_change;
mod bound_sockets;
mod brokered_call;
mod call_result;
mod caller;
mod confirm;
mod connects;
mod denials;
mod fast_path;
mod file_size_limit;
mod git_links;
mod guarded_content;
mod harmless_denials;
mod holding;
mod holds;
mod in_place;
mod install;
mod metadata;
mod names;
mod opens;
mod pool;
mod programs;
mod project_files;
mod reads;
mod requests;
mod reserved_ports;
mod servers;
mod service;
mod sockets;
mod terminals;
mod view;
mod walk;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use stockade_backend_api::{AttemptEvent, HeldAnswer, HoldId};
use stockade_model::{Denial, IsolationLevel, RawText, ReadAccess};
use stockade_permissions::powers::AttemptPermissions;
use stockade_permissions::reachable_targets::EgressReach;
use stockade_stage::PreWriteHook;
use stockade_stage::undo::UndoRecorder;
use stockade_sys::Errno;
use stockade_sys::notify::SeccompNotifier;

use crate::egress::RunEgress;
use requests::{BrokerEgressPolicy, BrokeredRequest};
use service::BrokerService;

pub(crate) use bound_sockets::BoundSockets;
pub use servers::served_ports;

/// Time-out for the start of the broker's thread.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The broker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// A thread or descriptor could not be created.
    #[error("cannot start the thread that answers trapped system calls: {0}")]
    Thread(std::io::Error),
    /// The kernel refused a step.
    #[error("cannot {step}: {errno}")]
    Step {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// The thread did not start in time.
    #[error("the thread that answers trapped system calls did not start within {} s", START_TIMEOUT.as_secs())]
    Silent,
}

/// Summary of a broker's work, available at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerReport {
    /// Refusals with their counts.
    pub denials: Vec<Denial>,
    /// Number of refusals past the limit, which are not listed.
    pub more_denials: u64,
    /// Number of trapped calls that were answered.
    pub calls: u64,
    /// Reads of a traced run, by path.
    pub reads: Vec<ReadAccess>,
    /// Project files that run code later and were written.
    pub project_files: Vec<RawText>,
    /// True if a permitted call could change persistent data: a file of a writable directory
    /// outside of the stage.
    pub changed: bool,
}

/// A running broker. Dropping it stops the broker without waiting.
#[derive(Debug)]
pub struct BrokerHandle {
    answers: AnswerSender,
    report: Receiver<BrokerReport>,
    /// The kernel gives the processor to the broker at each notification (since Linux 6.6).
    pub(crate) is_synchronous: bool,
}

/// Sender of answers to held calls. Clones send to the same broker; after its end the answers are
/// ignored.
#[derive(Clone, Debug)]
pub struct AnswerSender {
    orders: Sender<BrokerOrder>,
    wake: Arc<OwnedFd>,
}

/// Message to a running broker.
enum BrokerOrder {
    Answer(HoldId, HeldAnswer),
    /// The egress proxy received a request that no rule permits yet.
    Check(BrokeredRequest),
    /// The egress proxy is needed.
    Open,
    /// No approver answers any more.
    HoldNothing,
    Stop,
}

impl AnswerSender {
    /// Answers a held call. Never blocks. Granted powers also apply if the call no longer waits.
    pub fn answer_held_call(&self, id: HoldId, answer: HeldAnswer) {
        self.send_order(BrokerOrder::Answer(id, answer));
    }

    /// Starts the egress proxy. Never blocks.
    pub(crate) fn start_egress(&self) {
        self.send_order(BrokerOrder::Open);
    }

    /// Refuses all held calls, and all calls that would be held from now on. Never blocks.
    pub(crate) fn hold_nothing(&self) {
        self.send_order(BrokerOrder::HoldNothing);
    }

    fn send_order(&self, order: BrokerOrder) {
        if self.orders.send(order).is_ok() {
            // Fails only if the counter is full; the eventfd is readable then.
            let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        }
    }
}

/// Answers trapped calls on a thread of its own.
pub struct Broker;

/// Hooks that run before the workspace is changed: the precaution of a stage, and a recorder that
/// keeps the old content so that the run can be undone.
pub(crate) type ChangeHooks = (Option<PreWriteHook>, Option<UndoRecorder>);

impl Broker {
    /// Starts answering the notifications of `listener`. `sink` runs on the broker's thread and
    /// must not block, because a caller waits meanwhile. With `hold`, a call that lacks a power
    /// waits for an answer. Use `hold` only with a filter whose notifications no signal interrupts
    /// ([`LaunchedSandbox::wait_killable`](stockade_launch::LaunchedSandbox::wait_killable)).
    ///
    /// # Errors
    /// [`BrokerError`] if the broker cannot start. Trapped calls then fail with ENOSYS.
    pub fn start(
        listener: OwnedFd,
        powers: AttemptPermissions,
        level: IsolationLevel,
        hold: bool,
        sink: impl Fn(AttemptEvent) + Send + 'static,
    ) -> Result<BrokerHandle, BrokerError> {
        Self::begin(powers, level, (None, None), sink)?.serve_listener(listener, hold, None)
    }

    /// Starts the thread before a listener exists, so that it prepares while the sandbox is built.
    ///
    /// # Errors
    /// [`BrokerError`] if the broker cannot start.
    pub(crate) fn begin(
        powers: AttemptPermissions,
        level: IsolationLevel,
        before: ChangeHooks,
        sink: impl Fn(AttemptEvent) + Send + 'static,
    ) -> Result<PreparedBroker, BrokerError> {
        let wake =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(map_step_error("make an eventfd"))?;
        let wake = Arc::new(wake);
        let woken = wake.clone();
        let (orders, ordered) = channel();
        let (up, ready) = channel();
        let (inputs, all_inputs) = channel::<ServiceInputs>();
        let reach = powers.reach.clone();
        let (sender, report) = channel();
        let body = move || {
            let confined = BrokerService::confine_to_level(level);
            let failed = confined.is_err();
            let _ = up.send(confined);
            // No notifier arrives if the sandbox could not be built.
            let (Ok(inputs), false) = (all_inputs.recv(), failed) else { return };
            let end = match BrokerService::new(inputs, powers, level, before, Box::new(sink)) {
                Ok(mut service) => {
                    service.serve_calls(woken.as_fd(), &ordered);
                    service.end_service()
                }
                // The listener is closed: every trapped call fails with ENOSYS.
                Err(_) => BrokerReport::default(),
            };
            // Sent after every descriptor of the sandbox is closed.
            let _ = sender.send(end);
        };
        std::thread::Builder::new().name("broker".to_owned()).spawn(body).map_err(BrokerError::Thread)?;
        let bound = BoundSockets::default();
        let answers = AnswerSender { orders, wake };
        Ok(PreparedBroker { answers, reach, ready, inputs, report, bound, small_disk: None })
    }
}

/// A broker without a listener. Dropping it stops the broker.
#[derive(Debug)]
pub struct PreparedBroker {
    answers: AnswerSender,
    reach: EgressReach,
    ready: Receiver<Result<(), BrokerError>>,
    inputs: Sender<ServiceInputs>,
    report: Receiver<BrokerReport>,
    /// The table of bound sockets, which the broker may share with other brokers.
    pub(crate) bound: BoundSockets,
    /// The small disk limit of the run, which the kernel enforces per file. The broker raises the
    /// limit for files that were larger before.
    pub(crate) small_disk: Option<u64>,
}

/// Inputs that a started broker needs to serve.
struct ServiceInputs {
    notifier: SeccompNotifier,
    hold: bool,
    run_egress: Option<Arc<RunEgress>>,
    bound: BoundSockets,
    small_disk: Option<u64>,
}

impl PreparedBroker {
    /// Returns the policy check for requests to the egress proxy.
    pub(crate) fn egress_policy(&self) -> BrokerEgressPolicy {
        BrokerEgressPolicy::new(self.answers.clone(), self.reach.clone())
    }

    /// Starts answering the notifications of `listener`; `hold` as in [`Broker::start`].
    ///
    /// # Errors
    /// [`BrokerError`] if the broker cannot start. Trapped calls then fail with ENOSYS.
    pub(crate) fn serve_listener(
        self,
        listener: OwnedFd,
        hold: bool,
        run_egress: Option<Arc<RunEgress>>,
    ) -> Result<BrokerHandle, BrokerError> {
        let notifier = SeccompNotifier::new(listener).map_err(map_step_error("learn the size of notifications"))?;
        let is_synchronous = notifier.wake_synchronously().is_ok();
        self.ready.recv_timeout(START_TIMEOUT).unwrap_or(Err(BrokerError::Silent))?;
        let Self { bound, small_disk, .. } = self;
        let inputs = ServiceInputs { notifier, hold, run_egress, bound, small_disk };
        self.inputs.send(inputs).map_err(|_| BrokerError::Silent)?;
        Ok(BrokerHandle { answers: self.answers, report: self.report, is_synchronous })
    }
}

impl BrokerHandle {
    /// Returns the sender of answers.
    pub fn answer_sender(&self) -> AnswerSender {
        self.answers.clone()
    }

    /// Stops the broker and waits for its end, at most `timeout`. Calls that are still trapped fail
    /// with ENOSYS. Returns `None` if the broker did not end in time.
    pub fn stop(self, timeout: Duration) -> Option<BrokerReport> {
        self.ask_to_stop();
        self.report.recv_timeout(timeout).ok()
    }

    /// Waits, at most `at_most`, until the broker ends by itself because no process is left.
    ///
    /// # Errors
    /// Returns the handle if processes are left.
    pub(crate) fn end_within(self, at_most: Duration) -> Result<BrokerReport, Self> {
        match self.report.recv_timeout(at_most) {
            Ok(report) => Ok(report),
            Err(RecvTimeoutError::Timeout) => Err(self),
            Err(RecvTimeoutError::Disconnected) => Ok(BrokerReport::default()),
        }
    }

    fn ask_to_stop(&self) {
        self.answers.send_order(BrokerOrder::Stop);
    }
}

impl Drop for BrokerHandle {
    fn drop(&mut self) {
        self.ask_to_stop();
    }
}

/// Returns a function that adds the failed step to an error.
fn map_step_error(step: &'static str) -> impl Fn(Errno) -> BrokerError {
    move |errno| BrokerError::Step { step, errno }
}

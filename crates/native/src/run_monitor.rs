//! Monitors one command and its sandbox on a thread of its own: the end, opened hidden paths,
//! output and limits. It never waits for the user.
//!
//! A command of a persistent sandbox may leave processes behind. Its end is reported all the same,
//! and the thread then serves these processes until the last one exits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use stockade_backend_api::{
    AttemptEnd, AttemptEvent, AttemptEventSender, CommandEnd, SandboxEvent, SandboxEventSender, StartError,
    WeakEventSender,
};
use stockade_launch::{ExitReport, LaunchError, LaunchedSandbox};
use stockade_limits::{ControlGroup, LimitOutcome, LimitWatch};
use stockade_model::{BackgroundPolicy, Denial, RawText, ReadAccess, RequestId, ResourceUsage};
use stockade_signing::AgentHandle;
use stockade_stage::undo::UndoRun;
use stockade_sys::Errno;
use stockade_sys::reap::ProcessExit;

use crate::attempt::convert_limit_event;
use crate::broker::{BrokerHandle, BrokerReport};
use crate::caches::{CacheLease, NameRotation};
use crate::capture::StreamCapture;
use crate::egress::{LostDatagrams, RunEgress};
use crate::evidence::{HiddenWatch, TempWatch};
use crate::locks::lock_ignoring_poison;
use crate::staging::AttemptStage;
use crate::streams::CapturedOutput;
use stockade_sys::ready::readable_before;

/// Time-out for the broker's end once its callers are gone.
const BROKER_END_TIMEOUT: Duration = Duration::from_secs(5);
/// Time-out for the end of the last processes of a command in a persistent sandbox. After it, they
/// count as left behind.
const LAST_PROCESS_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest interval between two checks of the monitor if no event wakes it.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Most chunks of output that are read after the end: the whole content of a pipe.
const MAX_LAST_CHUNKS: usize = 64;

/// Receiver of the events of a monitor, a broker and an egress proxy: the attempt, and after its end
/// the sandbox.
#[derive(Clone)]
pub(crate) struct RunEventSink {
    attempt: AttemptEventSender,
    after: Option<SandboxEventSink>,
}

#[derive(Clone)]
struct SandboxEventSink {
    sandbox: SandboxEventSender,
    request: RequestId,
    ended: Arc<AtomicBool>,
}

impl RunEventSink {
    /// Makes a receiver that reports to the attempt alone.
    pub(crate) fn to_attempt(attempt: AttemptEventSender) -> Self {
        Self { attempt, after: None }
    }

    /// Makes a receiver that reports to the attempt of this request, then to its sandbox.
    pub(crate) fn in_sandbox(attempt: AttemptEventSender, sandbox: SandboxEventSender, request: RequestId) -> Self {
        Self { attempt, after: Some(SandboxEventSink { sandbox, request, ended: Arc::default() }) }
    }

    /// Returns a sender to the attempt that does not keep the attempt's channel open.
    pub(crate) fn downgrade(&self) -> WeakEventSender {
        self.attempt.downgrade()
    }

    /// Reports one event.
    pub(crate) fn report_event(&self, event: AttemptEvent) {
        let after = self.after.as_ref();
        let Some(SandboxEventSink { sandbox, request, .. }) = after.filter(|after| after.ended.load(Ordering::Acquire))
        else {
            if let (AttemptEvent::Ended(_), Some(after)) = (&event, after) {
                after.ended.store(true, Ordering::Release);
            }
            return self.attempt.send_event(event);
        };
        let request = request.clone();
        match event {
            AttemptEvent::Denied(denial) => sandbox.send_event(SandboxEvent::Denied { request, denial }),
            AttemptEvent::Connection(record) => sandbox.send_event(SandboxEvent::Connection { request, record }),
            // The sandbox reports it once, for all commands.
            AttemptEvent::Breached(_) => {}
            // No approver could answer.
            AttemptEvent::Held { .. } | AttemptEvent::Withdrawn(_) => {}
            AttemptEvent::Signed { .. } | AttemptEvent::Executed { .. } => {}
            AttemptEvent::Stopped(_) | AttemptEvent::Ended(_) => {}
        }
    }
}

/// Handling of the processes that a command leaves in a persistent sandbox.
pub(crate) struct LeftoverHandling {
    /// Decides whether these processes keep running.
    background: BackgroundPolicy,
    group: Option<Arc<ControlGroup>>,
    _on_breach: BreachCallback,
}

/// Callback for a limit that all commands of a sandbox together have exceeded.
pub(crate) type BreachCallback = Arc<dyn Fn(&Denial) + Send + Sync>;

impl LeftoverHandling {
    /// `group` is the command's own control group, if it has one. `on_breach` receives the
    /// sandbox's exceeded limits as long as a process of the command exists.
    pub(crate) fn new(
        background: BackgroundPolicy,
        group: Option<Arc<ControlGroup>>,
        on_breach: BreachCallback,
    ) -> Self {
        Self { background, group, _on_breach: on_breach }
    }

    /// Settles the end of the command. Returns the broker's report, and the broker if it must serve
    /// processes that keep running.
    fn settle_end(&self, broker: BrokerHandle, end: &CommandEnd) -> (BrokerReport, Option<BrokerHandle>) {
        let keeps = self.background == BackgroundPolicy::Keep && !matches!(end, CommandEnd::Lost(_));
        if keeps {
            return match broker.end_within(LAST_PROCESS_TIMEOUT) {
                Ok(report) => (report, None),
                Err(broker) => (BrokerReport::default(), Some(broker)),
            };
        }
        self.group.iter().for_each(|group| group.kill_processes());
        (broker.stop(BROKER_END_TIMEOUT).unwrap_or_default(), None)
    }
}

/// The parts of a running sandbox that its monitor serves.
pub(crate) struct RunMonitor {
    pub(crate) outside: Option<[CapturedOutput; 2]>,
    pub(crate) event_sink: RunEventSink,
    pub(crate) end: OwnedFd,
    pub(crate) launched: Arc<Mutex<LaunchedSandbox>>,
    pub(crate) broker: BrokerHandle,
    pub(crate) run_egress: Arc<RunEgress>,
    /// The egress proxy, until the first name is queried.
    pub(crate) names: Option<Arc<RunEgress>>,
    pub(crate) lost: Option<LostDatagrams>,
    pub(crate) hidden: Option<HiddenWatch>,
    pub(crate) temp: Option<TempWatch>,
    pub(crate) watch: Arc<Mutex<LimitWatch>>,
    pub(crate) extras: MonitoredExtras,
}

/// The parts that only some sandboxes have.
#[derive(Default)]
pub(crate) struct MonitoredExtras {
    pub(crate) staging: Option<AttemptStage>,
    /// The run's share of the workspace's caches.
    pub(crate) lease: Option<CacheLease>,
    /// The ssh agent of the run, which ends with this.
    pub(crate) agent: Option<AgentHandle>,
    /// Record of the run's changes in its workspace, if it is kept.
    pub(crate) undoing: Option<UndoRun>,
    /// Renews the names of other workspaces' layers at its end.
    pub(crate) renewal: Option<NameRotation>,
    /// Present in a persistent sandbox only.
    pub(crate) leaves: Option<LeftoverHandling>,
}

/// A monitor that waits for its sandbox. Dropping it ends it.
pub(crate) struct StartingMonitor {
    monitor: Sender<RunMonitor>,
    over: Receiver<()>,
}

impl StartingMonitor {
    /// Starts the thread, which waits for the sandbox.
    pub(crate) fn start_thread() -> Result<Self, StartError> {
        let (monitor, sandbox) = channel::<RunMonitor>();
        let (on_drop, over) = channel::<()>();
        let body = move || {
            if let Ok(monitor) = sandbox.recv() {
                monitor.monitor_run(on_drop);
            }
        };
        thread::Builder::new()
            .name("monitor".to_owned())
            .spawn(body)
            .map_err(|error| StartError { what: format!("cannot start a thread: {error}"), hint: None })?;
        Ok(Self { monitor, over })
    }

    /// Starts the monitoring. The returned channel disconnects when the sandbox is gone.
    pub(crate) fn start_monitoring(self, monitor: RunMonitor) -> Result<Receiver<()>, StartError> {
        let thread_error = || StartError { what: "the thread that watches the sandbox ended".to_owned(), hint: None };
        self.monitor.send(monitor).map_err(|_| thread_error())?;
        Ok(self.over)
    }
}

impl RunMonitor {
    /// Monitors until the end, reports it, and then serves the remaining processes.
    fn monitor_run(mut self, on_drop: Sender<()>) {
        let (end, usage) = command_end(self.watch_until_end());
        let Self {
            outside,
            event_sink,
            end: end_fd,
            launched,
            broker,
            run_egress,
            names,
            hidden,
            temp,
            watch,
            extras,
            ..
        } = self;
        let MonitoredExtras { staging, mut lease, agent, undoing, renewal, leaves } = extras;
        for denial in temp.map(TempWatch::into_denials).unwrap_or_default() {
            event_sink.report_event(AttemptEvent::Denied(denial));
        }
        let mut is_over = !matches!(end, CommandEnd::Lost(_));
        let (report, leftover_broker) = match &leaves {
            None => {
                let report = broker.stop(BROKER_END_TIMEOUT);
                is_over &= report.is_some();
                (report.unwrap_or_default(), None)
            }
            Some(leaves) => leaves.settle_end(broker, &end),
        };
        // After the last connect and before the end, because the connection records belong to the
        // run.
        if leftover_broker.is_none() {
            run_egress.close_connections();
        }
        drop(agent);
        for denial in report.denials.into_iter().filter(|denial| denial.count > 1) {
            event_sink.report_event(AttemptEvent::Denied(denial));
        }
        // Objects that are shared with the init are closed before the init exits. The init then
        // closes them last, and waits for the kernel instead of this process.
        drop((hidden, end_fd));
        let mut end = attempt_end((end, usage), (outside, report.reads), (watch, staging), report.changed, &event_sink);
        end.project_files = report.project_files;
        // Before any other process can change a file after the run.
        if let Some(undoing) = undoing {
            // If this fails, the next command that reads the record does it.
            end.kept_for_undo = undoing.record_final_state().unwrap_or_default();
        }
        // A receiver of the end event may follow the links that the run left.
        let held = lock_ignoring_poison(&launched);
        lease.iter_mut().for_each(|lease| lease.release_layers(held.init_pidfd().filter(|_| is_over)));
        drop(held);
        drop((renewal, launched, on_drop));
        event_sink.report_event(AttemptEvent::Ended(end));
        // No process waits for the clean-up of the lease.
        drop(lease);
        if let Some(broker) = leftover_broker {
            LeftoverProcesses { broker, run_egress, names, _leaves: leaves }.serve_until_gone();
        }
    }

    fn watch_until_end(&mut self) -> Result<Option<ExitReport>, LaunchError> {
        let ended = loop {
            self.wait_for_event();
            self.handle_events();
            let mut launched = lock_ignoring_poison(&self.launched);
            let ended = launched.try_wait();
            let was_stopped = launched.was_stopped();
            let written = launched.written_by_ended();
            drop(launched);
            written.into_iter().for_each(|bytes| lock_ignoring_poison(&self.watch).init_counted(bytes));
            if let Some(signal) = was_stopped
                && !lock_ignoring_poison(&self.watch).has_stopped(signal)
            {
                self.report_event(AttemptEvent::Stopped(signal));
            }
            match ended {
                Ok(None) => {}
                other => break other,
            }
        };
        // The command's whole output is in the pipes by now.
        for _ in 0..MAX_LAST_CHUNKS {
            // Both are read each time, even if one of them is closed.
            let open =
                self.outside.iter_mut().flatten().map(CapturedOutput::read_available).filter(|open| *open).count();
            if open == 0 {
                break;
            }
        }
        self.handle_events();
        ended
    }

    fn report_event(&self, event: AttemptEvent) {
        self.event_sink.report_event(event);
    }

    /// Sleeps until an event occurs.
    fn wait_for_event(&self) {
        let goes_on = lock_ignoring_poison(&self.watch).goes_on();
        let hidden = self.hidden.as_ref().map(HiddenWatch::fd);
        let names = self.names.as_ref().and_then(|run_egress| run_egress.dns_socket());
        let outputs = self.outside.iter().flatten().filter_map(CapturedOutput::wait_fd);
        let lost = self.lost.iter().flat_map(LostDatagrams::fds);
        let answered = goes_on.as_deref().map(AsFd::as_fd);
        let single = [Some(self.end.as_fd()), hidden, names, answered];
        let all: Vec<BorrowedFd<'_>> = single.into_iter().flatten().chain(lost).chain(outputs).collect();
        let next = lock_ignoring_poison(&self.watch).next_look();
        let at_most = next.map_or(MAX_POLL_INTERVAL, |next| next.min(MAX_POLL_INTERVAL));
        // A failure only makes the next check earlier.
        let _ = readable_before(&all, Instant::now() + at_most);
        if let Some(answered) = answered {
            // The descriptor is non-blocking, and its counter value does not matter.
            let _ = rustix::io::read(answered, &mut [0; 8]);
        }
    }

    /// Handles all pending events.
    fn handle_events(&mut self) {
        for output in self.outside.iter_mut().flatten() {
            output.read_available();
        }
        if self.names.take_if(|run_egress| run_egress.has_dns_request()).is_some() {
            self.broker.answer_sender().start_egress();
        }
        let mut seen: Vec<Denial> = self.hidden.as_mut().map(HiddenWatch::take_denials).unwrap_or_default();
        seen.extend(self.lost.iter_mut().flat_map(LostDatagrams::take_denials));
        for denial in seen {
            self.report_event(AttemptEvent::Denied(denial));
        }
        let passed = lock_ignoring_poison(&self.watch).check_limits();
        passed.into_iter().for_each(|passed| self.report_event(convert_limit_event(passed)));
    }
}

/// Returns the report of the end. First reports denials that the kernel did not signal.
fn attempt_end(
    (end, mut usage): (CommandEnd, ResourceUsage),
    (outside, reads): (Option<[CapturedOutput; 2]>, Vec<ReadAccess>),
    (watch, staging): (Arc<Mutex<LimitWatch>>, Option<AttemptStage>),
    changed: bool,
    event_sink: &RunEventSink,
) -> AttemptEnd {
    let [stdout, stderr] = outside.map_or([None, None], |ends| ends.map(|end| Some(end.capture)));
    let truncated = [&stdout, &stderr].into_iter().flatten().any(StreamCapture::is_truncated);
    let text = |capture: Option<StreamCapture>| capture.map(|c| RawText::from(c.into_bytes()));
    let by = if let CommandEnd::Signaled(signal) = end { Some(signal) } else { None };
    let LimitOutcome { denials, breach } = lock_ignoring_poison(&watch).finish_watch(&mut usage, by);
    denials.into_iter().for_each(|denial| event_sink.report_event(AttemptEvent::Denied(denial)));
    breach.into_iter().for_each(|breach| event_sink.report_event(AttemptEvent::Breached(breach)));
    let staged = staging.and_then(|staging| staging.finish_stage(&end));
    // Staged writes are discarded before another attempt.
    let acted = changed && staged.is_none();
    AttemptEnd {
        end,
        usage,
        stdout: text(stdout),
        stderr: text(stderr),
        truncated,
        staged,
        kept_for_undo: 0,
        project_files: Vec::new(),
        reads,
        acted,
    }
}

/// Processes that a command left behind, with the broker and proxy that serve them.
struct LeftoverProcesses {
    broker: BrokerHandle,
    run_egress: Arc<RunEgress>,
    names: Option<Arc<RunEgress>>,
    /// Dropped last, so that the control group outlives the broker.
    _leaves: Option<LeftoverHandling>,
}

impl LeftoverProcesses {
    /// Serves them until the last process is gone. Calls are no longer held, because no approver
    /// could answer.
    fn serve_until_gone(mut self) {
        self.broker.answer_sender().hold_nothing();
        loop {
            match self.broker.end_within(MAX_POLL_INTERVAL) {
                Ok(_) => break,
                Err(broker) => self.broker = broker,
            }
            if self.names.take_if(|run_egress| run_egress.has_dns_request()).is_some() {
                self.broker.answer_sender().start_egress();
            }
        }
        self.run_egress.close_connections();
    }
}

fn command_end(ended: Result<Option<ExitReport>, LaunchError>) -> (CommandEnd, ResourceUsage) {
    let lost = |why: String| (CommandEnd::Lost(why), ResourceUsage::default());
    let ExitReport { exec_errno, status, usage, .. } = match ended {
        Ok(Some(report)) => report,
        Ok(None) => return lost("it ended without a report".to_owned()),
        Err(error) => return lost(error.to_string()),
    };
    let end = match (exec_errno, status) {
        (Some(Errno::NOENT | Errno::NOTDIR), _) => CommandEnd::NotFound,
        (Some(errno), _) => CommandEnd::NotExecutable(errno.to_string()),
        (None, ProcessExit::Exited(code)) => CommandEnd::Exited(code),
        (None, ProcessExit::Signaled(signal)) => CommandEnd::Signaled(signal),
    };
    (end, usage)
}

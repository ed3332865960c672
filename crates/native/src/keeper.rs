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
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stockade_engine::{AttemptEnd, AttemptEvent, CommandEnd, Events, SandboxEvent, SandboxEvents, StartError};
use stockade_model::{Background, Denial, RawText, ReadAccess, RequestId, Usage};
use stockade_signing::AgentHandle;
use stockade_sys::Errno;
use stockade_sys::reap::Ended;

use crate::attempt::lock;
use crate::broker::{BrokerHandle, BrokerReport};
use crate::caches::{CacheLease, NameRotation};
use crate::capture::Capture;
use crate::evidence::{HiddenWatch, TempWatch};
use crate::launch::{ExitReport, LaunchError, Launched};
use crate::limits::{Group, Spent, Watch};
use crate::staging::Staging;
use crate::streams::Output;
use crate::undoing::Undoing;
use crate::way_out::{LostDatagrams, WayOut};

/// Time-out for the broker's end once its callers are gone.
const BROKER_ENDS_WITHIN: Duration = Duration::from_secs(5);
/// Time-out for the end of the last processes of a command in a persistent sandbox. After it, they
/// count as left behind.
const LEFT_AFTER: Duration = Duration::from_millis(100);
/// Longest interval between two checks of the keeper if no event wakes it.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// Most chunks of output that are read after the end: the whole content of a pipe.
const LAST_CHUNKS_MAX: usize = 64;

/// Receiver of the events of a keeper, a broker and an egress proxy: the attempt, and after its end
/// the sandbox.
#[derive(Clone)]
pub(crate) struct Told {
    attempt: Events,
    after: Option<After>,
}

#[derive(Clone)]
struct After {
    sandbox: SandboxEvents,
    request: RequestId,
    ended: Arc<AtomicBool>,
}

impl Told {
    /// Makes a receiver that reports to the attempt alone.
    pub(crate) fn to_attempt(attempt: Events) -> Self {
        Self { attempt, after: None }
    }

    /// Makes a receiver that reports to the attempt of this request, then to its sandbox.
    pub(crate) fn in_sandbox(attempt: Events, sandbox: SandboxEvents, request: RequestId) -> Self {
        Self { attempt, after: Some(After { sandbox, request, ended: Arc::default() }) }
    }

    /// Reports one event.
    pub(crate) fn tell(&self, event: AttemptEvent) {
        let Some(After { sandbox, request, ended }) = &self.after else { return self.attempt.tell(event) };
        let is_last = matches!(event, AttemptEvent::Ended(_));
        if !ended.load(Ordering::Acquire) {
            if is_last {
                ended.store(true, Ordering::Release);
            }
            return self.attempt.tell(event);
        }
        let request = request.clone();
        match event {
            AttemptEvent::Denied(denial) => sandbox.tell(SandboxEvent::Denied { request, denial }),
            AttemptEvent::Connection(record) => sandbox.tell(SandboxEvent::Connection { request, record }),
            // The sandbox reports it once, for all commands.
            AttemptEvent::Breached(_) => {}
            // No approver could answer.
            AttemptEvent::Held { .. } | AttemptEvent::Withdrawn(_) => {}
            AttemptEvent::Signed { .. } => {}
            AttemptEvent::Executed { .. } | AttemptEvent::Stopped(_) | AttemptEvent::Ended(_) => {}
        }
    }
}

/// Handling of the processes that a command leaves in a persistent sandbox.
pub(crate) struct Leaves {
    /// Decides whether these processes keep running.
    background: Background,
    group: Option<Arc<Group>>,
    _on_breach: OnBreach,
}

/// Callback for a limit that all commands of a sandbox together have exceeded.
pub(crate) type OnBreach = Arc<dyn Fn(&Denial) + Send + Sync>;

impl Leaves {
    /// `group` is the command's own control group, if it has one. `on_breach` receives the
    /// sandbox's exceeded limits as long as a process of the command exists.
    pub(crate) fn new(background: Background, group: Option<Arc<Group>>, on_breach: OnBreach) -> Self {
        Self { background, group, _on_breach: on_breach }
    }

    /// Settles the end of the command. Returns the broker's report, and the broker if it must serve
    /// processes that keep running.
    fn settle(&self, broker: BrokerHandle, end: &CommandEnd) -> (BrokerReport, Option<BrokerHandle>) {
        let keeps = self.background == Background::Keep && !matches!(end, CommandEnd::Lost(_));
        if keeps {
            return match broker.end_within(LEFT_AFTER) {
                Ok(report) => (report, None),
                Err(broker) => (BrokerReport::default(), Some(broker)),
            };
        }
        self.group.iter().for_each(|group| group.kill());
        (broker.stop(BROKER_ENDS_WITHIN).unwrap_or_default(), None)
    }
}

/// State of the thread.
pub(crate) struct Keeper {
    kept: Kept,
    outside: Option<[Output; 2]>,
    told: Told,
}

/// The parts of a running sandbox that the keeper serves.
pub(crate) struct Kept {
    pub(crate) end: OwnedFd,
    pub(crate) launched: Arc<Mutex<Launched>>,
    pub(crate) broker: BrokerHandle,
    pub(crate) way: Arc<WayOut>,
    /// The egress proxy, until the first name is queried.
    pub(crate) names: Option<Arc<WayOut>>,
    pub(crate) lost: Option<LostDatagrams>,
    pub(crate) hidden: Option<HiddenWatch>,
    pub(crate) temp: Option<TempWatch>,
    pub(crate) staging: Option<Staging>,
    /// The run's share of the workspace's caches.
    pub(crate) lease: Option<CacheLease>,
    /// The ssh agent of the run, which ends with this.
    pub(crate) agent: Option<AgentHandle>,
    /// Record of the run's changes in its workspace, if it is kept.
    pub(crate) undoing: Option<Undoing>,
    /// Renews the names of other workspaces' layers at its end.
    pub(crate) renewal: Option<NameRotation>,
    pub(crate) watch: Arc<Mutex<Watch>>,
    /// Present in a persistent sandbox only.
    pub(crate) leaves: Option<Leaves>,
}

/// A keeper that waits for its sandbox. Dropping it ends it.
pub(crate) struct KeeperBegun {
    kept: Sender<Kept>,
    over: Receiver<()>,
}

impl KeeperBegun {
    /// Starts the monitoring. The returned channel disconnects when the sandbox is gone.
    pub(crate) fn keep(self, kept: Kept) -> Result<Receiver<()>, StartError> {
        let gone = || StartError { what: "the thread that watches the sandbox ended".to_owned(), hint: None };
        self.kept.send(kept).map_err(|_| gone())?;
        Ok(self.over)
    }
}

impl Keeper {
    pub(crate) fn begin(outside: Option<[Output; 2]>, told: Told) -> Result<KeeperBegun, StartError> {
        let (kept, sandbox) = channel();
        let (on_drop, over) = channel::<()>();
        let body = move || {
            if let Ok(kept) = sandbox.recv() {
                Self { kept, outside, told }.keep(on_drop);
            }
        };
        thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(body)
            .map_err(|error| StartError { what: format!("cannot start a thread: {error}"), hint: None })?;
        Ok(KeeperBegun { kept, over })
    }

    /// Monitors until the end, reports it, and then serves the remaining processes.
    fn keep(mut self, on_drop: Sender<()>) {
        let (end, usage) = command_end(self.watch_until_end());
        let Self { kept, outside, told } = self;
        let Kept { end: end_fd, launched, broker, way, names, hidden, temp, staging, watch, leaves, .. } = kept;
        let (mut lease, renewal, undoing) = (kept.lease, kept.renewal, kept.undoing);
        for denial in temp.map(TempWatch::end).unwrap_or_default() {
            told.tell(AttemptEvent::Denied(denial));
        }
        let mut is_over = !matches!(end, CommandEnd::Lost(_));
        let (report, left) = match &leaves {
            None => {
                let report = broker.stop(BROKER_ENDS_WITHIN);
                is_over &= report.is_some();
                (report.unwrap_or_default(), None)
            }
            Some(leaves) => leaves.settle(broker, &end),
        };
        // After the last connect and before the end, because the connection records belong to the
        // run.
        if left.is_none() {
            way.close();
        }
        drop(kept.agent);
        report.denials.into_iter().filter(|d| d.count > 1).for_each(|denial| told.tell(AttemptEvent::Denied(denial)));
        // Objects that are shared with the init are closed before the init exits. The init then
        // closes them last, and waits for the kernel instead of this process.
        drop((hidden, end_fd));
        let mut end = attempt_end((end, usage), (outside, report.reads), (watch, staging), report.changed, &told);
        end.project_files = report.project_files;
        // Before any other process can change a file after the run.
        if let Some(undoing) = undoing {
            end.kept_for_undo = undoing.end();
        }
        // A receiver of the end event may follow the links that the run left.
        let held = lock(&launched);
        lease.iter_mut().for_each(|lease| lease.end(held.init().filter(|_| is_over)));
        drop(held);
        drop((renewal, launched, on_drop));
        told.tell(AttemptEvent::Ended(end));
        // No process waits for the clean-up of the lease.
        drop(lease);
        if let Some(broker) = left {
            Left { broker, way, names, _leaves: leaves }.keep();
        }
    }

    fn watch_until_end(&mut self) -> Result<Option<ExitReport>, LaunchError> {
        let ended = loop {
            self.wait();
            self.look();
            let mut launched = lock(&self.kept.launched);
            let ended = launched.try_wait();
            let was_stopped = launched.was_stopped();
            let written = launched.written_by_ended();
            drop(launched);
            written.into_iter().for_each(|bytes| lock(&self.kept.watch).init_counted(bytes));
            if let Some(signal) = was_stopped
                && !lock(&self.kept.watch).has_stopped(signal)
            {
                self.tell(AttemptEvent::Stopped(signal));
            }
            match ended {
                Ok(None) => {}
                other => break other,
            }
        };
        // The command's whole output is in the pipes by now.
        for _ in 0..LAST_CHUNKS_MAX {
            // Both are read each time, even if one of them is closed.
            let open = self.outside.iter_mut().flatten().map(Output::take).filter(|open| *open).count();
            if open == 0 {
                break;
            }
        }
        self.look();
        ended
    }

    fn tell(&self, event: AttemptEvent) {
        self.told.tell(event);
    }

    /// Sleeps until an event occurs.
    fn wait(&self) {
        let hidden = self.kept.hidden.as_ref().map(HiddenWatch::fd);
        let names = self.kept.names.as_ref().and_then(|way| way.asked());
        let outputs = self.outside.iter().flatten().filter_map(Output::waited);
        let lost = self.kept.lost.iter().flat_map(LostDatagrams::fds);
        let goes_on = lock(&self.kept.watch).goes_on();
        let answered = goes_on.as_deref().map(AsFd::as_fd);
        let mut all: Vec<BorrowedFd<'_>> =
            [Some(self.kept.end.as_fd()), hidden, names].into_iter().flatten().chain(lost).chain(outputs).collect();
        all.extend(answered);
        let mut waited: Vec<PollFd<'_>> = all.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let at_most = lock(&self.kept.watch).next_look().map_or(LOOK_AROUND, |next| next.min(LOOK_AROUND));
        let at_most = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        // A signal or a failure only makes the next check earlier.
        let _ = poll(&mut waited, Some(&at_most));
        if let Some(answered) = answered {
            // The descriptor is non-blocking, and its counter value does not matter.
            let _ = rustix::io::read(answered, &mut [0; 8]);
        }
    }

    /// Handles all pending events.
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

/// Returns the report of the end. First reports denials that the kernel did not signal.
fn attempt_end(
    (end, mut usage): (CommandEnd, Usage),
    (outside, reads): (Option<[Output; 2]>, Vec<ReadAccess>),
    (watch, staging): (Arc<Mutex<Watch>>, Option<Staging>),
    changed: bool,
    told: &Told,
) -> AttemptEnd {
    let [stdout, stderr] = match outside {
        Some([out, err]) => [Some(out.capture), Some(err.capture)],
        None => [None, None],
    };
    let truncated = [&stdout, &stderr].into_iter().flatten().any(Capture::truncated);
    let text = |capture: Option<Capture>| capture.map(|c| RawText::from(c.into_bytes()));
    let by = if let CommandEnd::Signaled(signal) = end { Some(signal) } else { None };
    let Spent { denials, breach } = lock(&watch).end(&mut usage, by);
    denials.into_iter().for_each(|denial| told.tell(AttemptEvent::Denied(denial)));
    breach.into_iter().for_each(|breach| told.tell(AttemptEvent::Breached(breach)));
    let staged = staging.and_then(|staging| staging.end(&end));
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
struct Left {
    broker: BrokerHandle,
    way: Arc<WayOut>,
    names: Option<Arc<WayOut>>,
    /// Dropped last, so that the control group outlives the broker.
    _leaves: Option<Leaves>,
}

impl Left {
    /// Serves them until the last process is gone. Calls are no longer held, because no approver
    /// could answer.
    fn keep(mut self) {
        self.broker.answers().hold_nothing();
        loop {
            match self.broker.end_within(LOOK_AROUND) {
                Ok(_) => break,
                Err(broker) => self.broker = broker,
            }
            if self.names.take_if(|way| way.is_asked()).is_some() {
                self.broker.answers().open_way();
            }
        }
        self.way.close();
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

//! Execution of one attempt: the audit log and the sandbox are prepared in parallel; the command is
//! released after both. The module then follows the attempt until all its processes are gone.

use stockade_backend_api::AttemptEnd;
use stockade_model::{
    AttemptRecord, ConnectionRecord, Denial, DenialResolution, EnforcementReport, EventKind, FinalStatus, Grant,
    HostUse, IsolationLevel, LimitKind, RawText, ReadAccess,
};
use stockade_policy::missed_variables;

use super::clock::AttemptClock;
use super::ending::RequestEnd;
use super::holding::TrackedCalls;
use super::machine::{RequestCore, RequestPhase};
use super::{BoundPlan, CoreInput, CoreOutput};

/// Asks a process to end (signal(7), all Linux architectures).
const SIGTERM: i32 = 15;
/// Most hosts and ports of an attempt that the outcome lists individually.
const MAX_HOSTS_USED: usize = 1_000;
/// Reads in one event. Two paths of the greatest length each, escaped, stay below the limit of a
/// line.
const MAX_READS_PER_EVENT: usize = 50;
/// Reason of the end of a request, for the outcome.
pub(super) const ENDED_BY_PERSON: &str = "ended by the approver";

/// An attempt, from its record to its end.
#[derive(Debug, Default)]
pub(super) struct LiveAttempt {
    /// The commit that makes its start durable.
    commit: u64,
    committed: bool,
    start_deadline_ms: u64,
    enforced: Option<EnforcementReport>,
    /// True after the release was ordered; the command may be running.
    released: bool,
    /// Absent if there is no limit, before the command runs, and while a question about more time
    /// is open.
    clock: Option<AttemptClock>,
    /// Time limit of its plan, which a grant may raise.
    wall_ms: Option<u64>,
    denials: Vec<Denial>,
    /// Powers that may be requested, for each denial.
    powers: Vec<Vec<Grant>>,
    /// Reached hosts and ports.
    uses: Vec<HostUse>,
    omitted_uses: u64,
    events: u32,
    stop: Option<AttemptStop>,
    /// True if the backend holds calls.
    pub(super) holding: bool,
    pub(super) holds: TrackedCalls,
}

/// Reason and progress of the end of the attempt.
#[derive(Debug)]
struct AttemptStop {
    reason: StopReason,
    killed: bool,
    deadline_ms: u64,
}

#[derive(Debug)]
enum StopReason {
    TimedOut,
    /// Another limit, with the amount.
    Limit(String),
    Interrupted(i32),
    /// A person aborted the request when asked about a held call.
    Aborted,
    RecordFailed(String),
}

impl LiveAttempt {
    /// Returns the same refusal, if it was seen before.
    fn known_denial(&mut self, denial: &Denial) -> Option<&mut Denial> {
        let same = |known: &&mut Denial| {
            (known.operation, &known.object, known.layer, &known.rule)
                == (denial.operation, &denial.object, denial.layer, &denial.rule)
        };
        self.denials.iter_mut().find(same)
    }

    /// Returns the next deadline; a question waits for `wait_ms`.
    pub(super) fn deadline_ms(&self, wait_ms: u64) -> Option<u64> {
        [self.end_ms(), self.holds.deadline_ms(wait_ms)].into_iter().flatten().min()
    }

    /// Stops the clock while an answer is pending. Called after each input.
    pub(super) fn update_clock(&mut self, now_ms: u64) {
        let stand = self.holds.wait_for_somebody();
        if let Some(clock) = &mut self.clock {
            clock.set_paused(now_ms, stand);
        }
    }

    /// Returns whether the command runs and is not being ended.
    pub(super) fn is_running(&self) -> bool {
        self.released && self.stop.is_none()
    }

    /// Returns whether its time is over and a question about more time is open.
    fn asks_for_time(&self) -> bool {
        self.clock.is_none() && self.wall_ms.is_some()
    }

    /// Returns the deadline of the start, the command, its grace period or its kill.
    fn end_ms(&self) -> Option<u64> {
        match &self.stop {
            _ if !self.released => Some(self.start_deadline_ms),
            Some(stop) => Some(stop.deadline_ms),
            None => self.clock.and_then(AttemptClock::deadline_ms),
        }
    }
}

impl RequestCore {
    /// Records the start and builds the sandbox, because all consent is given.
    pub(super) fn start_attempt(&mut self) {
        if let Some(escalation) = self.escalation.take() {
            let ending = escalation.ending.clone();
            if let Err(why) = self.take_up_next_plan(escalation) {
                self.record_event(EventKind::Failed { message: why.to_owned() });
                return self.end_request(ending);
            }
        }
        let Some(planned) = self.planned.clone() else {
            return self.fail_request("no plan to start");
        };
        if !planned.plan.profile.sandboxed && !self.unsandboxed_consent {
            return self.end_request(RequestEnd::from_refusal("no approver agreed to run without a sandbox"));
        }
        let plan = &planned.plan;
        self.record_event(EventKind::Starting {
            attempt: plan.attempt,
            digest: planned.digest.clone(),
            argv: plan.argv.clone(),
            cwd: plan.cwd.clone(),
            profile: plan.profile.name.clone(),
            grants: plan.grants.clone(),
            level: plan.level,
            backend: plan.backend.clone(),
        });
        let commit = self.commit_events(true);
        let hold = self.may_hold();
        self.out.push(CoreOutput::Prepare { planned: Box::new(planned), hold });
        self.phase = RequestPhase::Attempt(Box::new(LiveAttempt {
            commit,
            start_deadline_ms: self.now_ms.saturating_add(self.config.commit_timeout_ms),
            holding: hold,
            ..LiveAttempt::default()
        }));
    }

    /// `self.phase` is a placeholder here; every arm sets it.
    pub(super) fn on_attempt(&mut self, mut live: Box<LiveAttempt>, input: CoreInput) {
        match input {
            CoreInput::Committed(number) if number == live.commit => {
                live.committed = true;
                return self.release_when_ready(live);
            }
            CoreInput::Prepared(report) => return self.on_prepared(live, report),
            CoreInput::PrepareFailed(why) if !live.released => {
                self.note_attempt(&mut live, None);
                return self.fail_request(why);
            }
            CoreInput::Released => return self.on_released(live),
            CoreInput::ReleaseFailed(why) => {
                self.out.push(CoreOutput::Discard);
                self.forget_all_held(&mut live);
                self.note_attempt(&mut live, None);
                return self.fail_request(why);
            }
            CoreInput::Ended(end) => return self.on_ended(live, *end),
            CoreInput::Denied { denial, powers } => self.on_denied(&mut live, denial, powers),
            CoreInput::Breached { denial, powers } => self.on_breached(&mut live, denial, powers),
            CoreInput::Held(call) => self.on_held(&mut live, *call),
            CoreInput::HeldRecalled { id, answers, approver } => {
                self.on_held_recalled(&mut live, id, answers, approver)
            }
            CoreInput::Withdrawn(id) => self.on_withdrawn(&mut live, id),
            CoreInput::Answered { digest, answer, by } => {
                let ends = self.on_held_answered(&mut live, &digest, answer, by);
                if ends {
                    self.ask_to_end(&mut live, SIGTERM, StopReason::Aborted);
                }
            }
            CoreInput::Connection(connection) => self.on_connection(&mut live, connection),
            CoreInput::Signed { grant, object } => {
                // A process in a container could report a signature that no grant permits.
                if let Some(planned) = self.planned.as_ref().filter(|planned| planned.plan.grants.contains(&grant)) {
                    // The backend bounds these events. A flood of other events must not keep one
                    // outside the audit log.
                    let attempt = planned.plan.attempt;
                    self.record_event(EventKind::Signed { attempt, grant, object });
                }
            }
            CoreInput::Executed { pid, program } => {
                self.record_bounded(&mut live, EventKind::Executed { pid, program });
            }
            _ => {}
        }
        self.phase = RequestPhase::Attempt(live);
    }

    fn on_prepared(&mut self, mut live: Box<LiveAttempt>, report: EnforcementReport) {
        let requested_level = self.planned.as_ref().map_or(IsolationLevel::Full, |planned| planned.plan.level);
        if level_rank(report.level) < level_rank(requested_level) {
            self.out.push(CoreOutput::Discard);
            let why = format!(
                "level {requested_level} was requested, but only {} is available\nhint: `stockade doctor` shows what is missing",
                report.level
            );
            live.enforced = Some(report);
            self.note_attempt(&mut live, None);
            return self.fail_request(why);
        }
        live.enforced = Some(report);
        self.release_when_ready(live);
    }

    /// Releases the command once both the audit log is durable and the sandbox is ready, in either
    /// order.
    fn release_when_ready(&mut self, mut live: Box<LiveAttempt>) {
        if live.committed && live.enforced.is_some() && !live.released {
            live.released = true;
            self.out.push(CoreOutput::Release);
        }
        self.phase = RequestPhase::Attempt(live);
    }

    fn on_released(&mut self, mut live: Box<LiveAttempt>) {
        if let (Some(planned), Some(enforced), true) = (&self.planned, &live.enforced, live.released) {
            live.wall_ms = planned.plan.profile.limits.wall_ms;
            let limit_ms = [self.request.timeout_ms, live.wall_ms].into_iter().flatten().min();
            live.clock = limit_ms.map(|limit_ms| AttemptClock::start(self.now_ms, limit_ms));
            let (attempt, enforced) = (planned.plan.attempt, enforced.clone());
            self.record_event(EventKind::Started { attempt, enforced });
        }
        self.phase = RequestPhase::Attempt(live);
    }

    /// Records an event caused by the command, up to a limit. Then records once that there are more
    /// events, so that a command cannot fill the audit log.
    pub(super) fn record_bounded(&mut self, live: &mut LiveAttempt, kind: EventKind) {
        let limit = self.config.max_attempt_events;
        live.events = live.events.saturating_add(1);
        if live.events <= limit {
            self.record_event(kind);
        } else if live.events == limit.saturating_add(1) {
            let message = format!("this attempt has more than {limit} events; the others are not recorded");
            self.record_event(EventKind::Failed { message });
        }
    }

    /// Returns whether an event caused by the command would still be recorded.
    pub(super) fn may_record_more(&self, live: &LiveAttempt) -> bool {
        live.events < self.config.max_attempt_events
    }

    fn on_denied(&mut self, live: &mut LiveAttempt, denial: Denial, powers: Vec<Grant>) {
        if live.denials.len() >= self.config.max_attempt_events as usize {
            return;
        }
        self.record_bounded(live, EventKind::Denied { denial: denial.clone() });
        // A backend counts equal refusals itself and may report the higher count once more. This is
        // the same refusal.
        if let Some(known) = live.known_denial(&denial) {
            known.count = known.count.max(denial.count);
            if known.resolution == DenialResolution::Granted {
                known.resolution = denial.resolution;
            }
            return;
        }
        live.denials.push(denial);
        live.powers.push(powers);
    }

    /// Ends the attempt, unless it is already being ended.
    fn on_breached(&mut self, live: &mut LiveAttempt, denial: Denial, powers: Vec<Grant>) {
        let reason = if denial.is_of_limit(LimitKind::Wall) {
            StopReason::TimedOut
        } else {
            StopReason::Limit(format!("limit {}: {}", denial.object.to_escaped(), denial.rule))
        };
        // A limit that a question was refused for is already known.
        if live.known_denial(&denial).is_none() {
            self.on_denied(live, denial, powers);
        }
        if live.is_running() {
            self.ask_to_end(live, SIGTERM, reason);
        }
    }

    /// Handles the end of the attempt's time. The limit of the plan may be raised while everything
    /// is frozen; the caller's limit for this request may not.
    fn on_time_over(&mut self, live: &mut LiveAttempt) {
        let raisable = live.wall_ms.filter(|wall_ms| self.request.timeout_ms.is_none_or(|ms| ms > *wall_ms));
        match raisable {
            Some(_) if live.holding => {
                live.clock = None;
                let limit = Denial::of_limit(LimitKind::Wall, raisable, "its time ran out");
                self.out.push(CoreOutput::StandStill(Box::new(limit)));
            }
            _ => self.ask_to_end(live, SIGTERM, StopReason::TimedOut),
        }
    }

    /// Restarts the clock with the time that these grants add to the used time.
    pub(super) fn extend_clock(&self, live: &mut LiveAttempt, grants: &[Grant]) {
        if !live.asks_for_time() {
            return;
        }
        let granted = |grant: &Grant| match grant {
            Grant::Limit(LimitKind::Wall, wall_ms) => Some(*wall_ms),
            _ => None,
        };
        let Some(before_ms) = live.wall_ms else { return };
        live.wall_ms = grants.iter().filter_map(granted).max();
        let limit_ms = [self.request.timeout_ms, live.wall_ms].into_iter().flatten().min().unwrap_or(before_ms);
        live.clock = Some(AttemptClock::start(self.now_ms, limit_ms.saturating_sub(before_ms)));
    }

    /// Ends the attempt because no more time was granted.
    pub(super) fn end_for_time(&mut self, live: &mut LiveAttempt) {
        if live.is_running() && live.asks_for_time() {
            self.ask_to_end(live, SIGTERM, StopReason::TimedOut);
        }
    }

    fn on_connection(&mut self, live: &mut LiveAttempt, connection: Box<ConnectionRecord>) {
        let Some(planned) = &self.planned else { return };
        HostUse::count_connection(&mut live.uses, &mut live.omitted_uses, MAX_HOSTS_USED, &connection);
        let attempt = planned.plan.attempt;
        self.record_bounded(live, EventKind::Connection { attempt, connection });
    }

    /// Stores the result of a held call, which leads to no further attempt.
    pub(super) fn note_denial(&self, live: &mut LiveAttempt, denial: &Denial, resolution: DenialResolution) {
        if let Some(known) = live.known_denial(denial) {
            known.count = known.count.max(denial.count);
            known.resolution = resolution;
        } else if live.denials.len() < self.config.max_attempt_events as usize {
            live.denials.push(Denial { resolution, ..denial.clone() });
            live.powers.push(Vec::new());
        }
    }

    fn on_ended(&mut self, mut live: Box<LiveAttempt>, end: AttemptEnd) {
        let program = self.planned.as_ref().and_then(|planned| planned.plan.argv.first());
        let mut ending = RequestEnd::from_attempt_end(&end, &program.map(RawText::to_escaped).unwrap_or_default());
        if !live.released && matches!(ending.status, FinalStatus::Exited | FinalStatus::Signaled) {
            ending = RequestEnd::from_failure("the sandbox ended before the command was released");
        }
        let stopped = live.stop.take();
        let over =
            matches!(&stopped, Some(stop) if matches!(stop.reason, StopReason::Interrupted(_) | StopReason::Aborted));
        match stopped {
            Some(AttemptStop { reason: StopReason::TimedOut, .. }) => {
                ending.status = FinalStatus::TimedOut;
                ending.error = Some("its time ran out".to_owned());
            }
            Some(AttemptStop { reason: StopReason::Limit(why), .. }) => {
                ending.status = FinalStatus::Limit;
                ending.error = Some(why);
            }
            Some(AttemptStop { reason: StopReason::Interrupted(signal), killed: true, .. }) => {
                ending = RequestEnd { signal: Some(signal), ..RequestEnd::from_abort("interrupted") };
            }
            Some(AttemptStop { reason: StopReason::Aborted, .. }) => ending = RequestEnd::from_abort(ENDED_BY_PERSON),
            Some(AttemptStop { reason: StopReason::RecordFailed(why), .. }) => ending = RequestEnd::from_failure(why),
            _ => {}
        }
        self.forget_all_held(&mut live);
        if let Some(planned) = &self.planned {
            self.record_event(EventKind::Exited {
                attempt: planned.plan.attempt,
                status: ending.status,
                exit_code: ending.exit_code,
                signal: ending.signal,
                usage: end.usage,
                staged: end.staged.clone(),
                kept_for_undo: end.kept_for_undo,
                project_files: end.project_files.len() as u64,
            });
        }
        self.record_reads(&end.reads);
        let powers = std::mem::take(&mut live.powers);
        let acted = end.acted || !live.uses.is_empty();
        self.note_attempt(&mut live, Some(end));
        if over || acted || self.record_failed {
            return self.end_request(ending);
        }
        self.after_attempt(ending, powers);
    }

    /// Records the reads in pieces, each well below the size limit of a line of the audit log.
    fn record_reads(&mut self, reads: &[ReadAccess]) {
        let attempt = self.planned.as_ref().map_or(0, |planned| planned.plan.attempt);
        for piece in reads.chunks(MAX_READS_PER_EVENT) {
            self.record_event(EventKind::Traced { attempt, reads: piece.to_vec() });
        }
    }

    fn note_attempt(&mut self, live: &mut LiveAttempt, end: Option<AttemptEnd>) {
        let Some(BoundPlan { plan, .. }) = &self.planned else { return };
        // An attempt that was discarded has no end: it used nothing and left nothing.
        let end = end.unwrap_or_default();
        self.attempts.push(AttemptRecord {
            profile: plan.profile.name.clone(),
            grants: plan.grants.iter().chain(&self.in_place).cloned().collect(),
            backend: plan.backend.clone(),
            enforced: live.enforced.take(),
            denials: std::mem::take(&mut live.denials),
            connections: std::mem::take(&mut live.uses),
            connections_left_out: live.omitted_uses,
            usage: end.usage,
            stdout: end.stdout,
            stderr: end.stderr,
            truncated: end.truncated,
            staged: end.staged,
            kept_for_undo: end.kept_for_undo,
            project_files: end.project_files,
            not_passed: missed_variables(&self.request.environment, &plan.environment, &plan.argv),
            reads: end.reads,
        });
    }

    pub(super) fn on_record_failed_in_attempt(&mut self, mut live: Box<LiveAttempt>, message: String) {
        if !live.released {
            self.out.push(CoreOutput::Discard);
            return self.fail_request(message);
        }
        self.refuse_all_held(&mut live, "the audit log failed");
        self.kill_attempt(&mut live, StopReason::RecordFailed(message));
        self.phase = RequestPhase::Attempt(live);
    }

    pub(super) fn on_interrupted_in_attempt(&mut self, mut live: Box<LiveAttempt>, signal: i32) {
        if !live.released {
            self.out.push(CoreOutput::Discard);
            return self.end_request(RequestEnd::from_signal(signal));
        }
        match live.stop.take() {
            None => self.ask_to_end(&mut live, signal, StopReason::Interrupted(signal)),
            Some(stop) if !stop.killed => self.kill_attempt(&mut live, stop.reason),
            Some(stop) => live.stop = Some(stop),
        }
        self.phase = RequestPhase::Attempt(live);
    }

    /// Handles a passed deadline: of the audit log, the command, its grace period or its kill.
    pub(super) fn on_tick_in_attempt(&mut self, mut live: Box<LiveAttempt>) {
        if !live.released {
            self.out.push(CoreOutput::Discard);
            let why = "the start could not be written to the disk in time\nhint: check the disk of the audit log";
            return self.fail_request(why);
        }
        let wait_ms = self.question_wait_ms();
        self.time_out_held_questions(&mut live, wait_ms);
        if live.end_ms().is_none_or(|at| at > self.now_ms) {
            self.phase = RequestPhase::Attempt(live);
            return;
        }
        match live.stop.take() {
            None => self.on_time_over(&mut live),
            Some(stop) if !stop.killed => self.kill_attempt(&mut live, stop.reason),
            Some(_) => {
                self.out.push(CoreOutput::Discard);
                self.note_attempt(&mut live, None);
                let why = "the command could not be killed\nhint: the kernel cannot kill a process that waits \
                           for a filesystem or a device that does not answer; it ends when that answers";
                return self.fail_request(why);
            }
        }
        self.phase = RequestPhase::Attempt(live);
    }

    /// Sends `signal`; processes that outlive the grace period are killed. Held calls fail now, so
    /// that a signal handler can run.
    fn ask_to_end(&mut self, live: &mut LiveAttempt, signal: i32, reason: StopReason) {
        let deadline_ms = self.now_ms.saturating_add(self.config.grace_ms);
        live.stop = Some(AttemptStop { reason, killed: false, deadline_ms });
        self.refuse_all_held(live, "the attempt is being ended");
        self.out.push(CoreOutput::Signal(signal));
    }

    fn kill_attempt(&mut self, live: &mut LiveAttempt, reason: StopReason) {
        self.out.push(CoreOutput::Kill);
        let deadline_ms = self.now_ms.saturating_add(self.config.kill_timeout_ms);
        live.stop = Some(AttemptStop { reason, killed: true, deadline_ms });
    }
}

/// Returns the rank of a level, to compare the requested level with the enforced one.
fn level_rank(level: IsolationLevel) -> u8 {
    match level {
        IsolationLevel::None => 0,
        IsolationLevel::Restricted => 1,
        IsolationLevel::Full => 2,
    }
}

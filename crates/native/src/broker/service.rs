//! The loop: reads one trapped call after the other, decides on it, and carries it out, holds it or
//! refuses it. One thread does this for all calls that change a name, so that nothing changes
//! between a decision and its act. This thread never waits.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, openat2};
use stockade_egress::PendingDial;
use stockade_launch::may_map_for_others;
use stockade_launch::{ArgumentLayout, notify_table};
use stockade_model::{DeniedOperation, IsolationLevel};
use stockade_permissions::guards::RunSurveys;
use stockade_permissions::powers::{AttemptPermissions, PermissionVerdict};
use stockade_stage::PreWriteHook;
use stockade_sys::notify::{NotificationAnswer, SeccompNotification, SeccompNotifier};
use stockade_sys::{Errno, actor, resolve};

use super::before_change::WorkspaceRecorder;
use super::bound_sockets::BoundSockets;
use super::brokered_call::BrokeredCall;
use super::call_result::{CallFailure, CallProgress, CallResult, refuse_operation};
use super::caller::{CallerCache, CallingThread};
use super::denials::{CallerProcess, DenialLedger, RefusedOperation};
use super::fast_path::WritableRoots;
use super::file_size_limit::FileAllocations;
use super::guarded_content::InitialSettings;
use super::harmless_denials::ReportedRemovals;
use super::holding::{self, Waiter};
use super::holds::QuestionTable;
use super::in_place::InPlaceWrites;
use super::pool::WorkerPool;
use super::project_files::WrittenProjectFiles;
use super::reads::ReadLog;
use super::servers::ListenerTable;
use super::sockets::no_internet;
use super::terminals::RunTerminals;
use super::walk::{self, PathResolver, ProcfsScope, ResolvedName, ResolvedObject};
use super::{BrokerError, BrokerOrder, BrokerReport, ChangeHooks, ServiceInputs, map_step_error};
use crate::egress::RunEgress;
use stockade_backend_api::AttemptEvent;
use stockade_permissions::guards::RootView;

/// Interval between two checks that the callers of parked calls still wait.
const PARKED_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while an approver is asked: a question is withdrawn soon after its caller is gone.
const HELD_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Facts of the run, taken from its first call. The command itself has not run by then.
pub(super) struct RunFacts {
    /// Root directory, the same for every process because no process may change it.
    pub root: OwnedFd,
    /// Standard streams that are open for writing, by device and inode.
    pub streams: Vec<(u64, u64)>,
    /// Parent of the first process.
    pub parent_pid: u32,
    /// Number of the first process in its own PID namespace.
    pub process: u32,
    /// Roots for the fast path of opens.
    pub roots: WritableRoots,
}

/// A call that another thread answers.
enum ParkedCall {
    /// The work ends by itself.
    Work,
    /// The open waits for the other end of this pipe.
    Pipe(OwnedFd),
    /// The egress proxy dials; dropping the value cancels that.
    Dialling { _until: PendingDial },
}

/// State of a broker.
pub(super) struct BrokerService {
    pub notifier: Arc<SeccompNotifier>,
    pub powers: AttemptPermissions,
    pub level: IsolationLevel,
    pub threads: CallerCache,
    pub first: Option<RunFacts>,
    /// True once the command itself has started.
    pub has_started: bool,
    pub ledger: Arc<Mutex<DenialLedger>>,
    pub pool: WorkerPool,
    /// The egress proxy, if the run has one.
    pub run_egress: Option<Arc<RunEgress>>,
    /// True once a change of persistent data was permitted.
    pub changed: Cell<bool>,
    /// Reads of a traced run.
    pub reads: Option<RefCell<ReadLog>>,
    /// Surveys of the writable trees: paths that lead to guarded names.
    pub surveys: RefCell<RunSurveys>,
    /// Settings as they were when the run first changed them.
    pub first_settings: InitialSettings,
    /// True if a look-up since the start of the last decision failed, so that existence is unknown.
    pub looked_in_vain: Cell<bool>,
    /// Git files that are still being written in place.
    pub in_place: InPlaceWrites,
    /// Names that git believes removed, although the removal was refused.
    pub reported_removals: ReportedRemovals,
    /// Project files that run code later.
    pub project_files: WrittenProjectFiles,
    /// Sockets that the run has bound to paths.
    pub bound: BoundSockets,
    /// Listeners of the run on the host's loopback.
    pub servers: ListenerTable,
    /// Terminals that the run has created.
    pub terminals: RunTerminals,
    /// Calls that other threads answer, by notification id.
    parked: HashMap<u64, ParkedCall>,
    /// Held calls.
    pub holds: QuestionTable<Waiter>,
    /// True if calls are held.
    pub holds_calls: bool,
    /// Hook that runs before a change in a stage.
    write_hook: Option<RefCell<PreWriteHook>>,
    /// Hook that runs before a change in the workspace, if the run can be undone.
    pub undo: Option<WorkspaceRecorder>,
    /// Present with a small disk limit.
    pub file_room: Option<FileAllocations>,
    /// Time of the next check that callers still wait.
    look_at: Option<Instant>,
    shapes: HashMap<i32, ArgumentLayout>,
    pub own_user: u32,
    own_group: u32,
    calls: u64,
}

impl BrokerService {
    /// Confines this thread: from here on it has no more permissions on files than the command's
    /// user.
    pub fn confine_to_level(level: IsolationLevel) -> Result<(), BrokerError> {
        // Root's sandbox has no supplementary groups. An ordinary user's sandbox keeps them,
        // because such a user cannot drop them.
        let without_groups = level == IsolationLevel::Full && may_map_for_others();
        actor::confine_thread(without_groups).map_err(map_step_error("confine the broker's thread"))
    }

    /// Creates the service, on a thread that was [confined](Self::confine_to_level).
    pub fn new(
        inputs: ServiceInputs,
        powers: AttemptPermissions,
        level: IsolationLevel,
        (write_hook, undo): ChangeHooks,
        sink: Box<dyn Fn(AttemptEvent) + Send>,
    ) -> Result<Self, BrokerError> {
        let ServiceInputs { notifier, hold, run_egress, bound, small_disk } = inputs;
        let own_user = rustix::process::geteuid().as_raw();
        let table = notify_table(level, powers.asks_reads(), small_disk.is_some());
        let shapes = table.iter().map(|t| (t.call as i32, t.shape)).collect();
        let reads = powers.traced.then(RefCell::default);
        Ok(Self {
            notifier: Arc::new(notifier),
            powers,
            level,
            threads: CallerCache::new().map_err(map_step_error("open /proc"))?,
            first: None,
            has_started: false,
            ledger: Arc::new(Mutex::new(DenialLedger::new(sink))),
            pool: WorkerPool::default(),
            run_egress,
            changed: Cell::new(false),
            reads,
            surveys: RefCell::default(),
            first_settings: InitialSettings::default(),
            looked_in_vain: Cell::new(false),
            in_place: InPlaceWrites::default(),
            reported_removals: ReportedRemovals::default(),
            project_files: WrittenProjectFiles::default(),
            bound,
            servers: ListenerTable::default(),
            terminals: RunTerminals::default(),
            parked: HashMap::new(),
            holds: holding::new_question_table(),
            holds_calls: hold,
            write_hook: write_hook.map(RefCell::new),
            undo: undo.map(WorkspaceRecorder::new),
            file_room: small_disk.map(FileAllocations::new),
            look_at: None,
            shapes,
            own_user,
            own_group: rustix::process::getegid().as_raw(),
            calls: 0,
        })
    }

    /// Serves until a stop order arrives or no process is left. `wake` becomes readable when there
    /// is an order.
    pub fn serve_calls(&mut self, wake: BorrowedFd<'_>, orders: &Receiver<BrokerOrder>) {
        let mut space = self.notifier.allocate_buffer();
        loop {
            let timeout = self.look_at.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout =
                [timeout, self.in_place.look_within(), self.servers.look_within()].into_iter().flatten().min();
            let Ok(waiting) = self.notifier.wait_for_events(wake, timeout) else { return };
            if waiting.other && !self.take_orders(wake, orders) {
                return;
            }
            if waiting.request {
                match self.notifier.receive_notification(&mut space) {
                    Ok(request) => self.answer_request(request),
                    Err(Errno::NOENT | Errno::INTR) => {}
                    Err(_) => return,
                }
            } else if waiting.over {
                return;
            } else {
                self.settle_in_place();
            }
            self.servers.check_closed_listeners();
            self.look_after_waiting();
            self.lock_ledger().tell_rest();
        }
    }

    /// Handles the pending orders. Returns false if the broker must stop.
    fn take_orders(&mut self, wake: BorrowedFd<'_>, orders: &Receiver<BrokerOrder>) -> bool {
        // The descriptor is non-blocking; the counter's value does not matter.
        let _ = rustix::io::read(wake, &mut [0; 8]);
        loop {
            match orders.try_recv() {
                Ok(BrokerOrder::Answer(id, answer)) => self.handle_answer(id, answer),
                Ok(BrokerOrder::Check(request)) => self.decide_or_hold(request),
                Ok(BrokerOrder::Open) => self.start_egress(),
                Ok(BrokerOrder::HoldNothing) => self.hold_nothing(),
                Ok(BrokerOrder::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Ends the service: no call is answered after this.
    pub fn end_service(&mut self) -> BrokerReport {
        self.pool.close();
        self.settle_rest();
        self.withdraw_all();
        for (_, parked) in self.parked.drain() {
            release_pipe_opener(&parked);
        }
        let (denials, more_denials) = self.lock_ledger().take_denials();
        let reads = self.reads.as_ref().map_or_else(Vec::new, |reads| reads.borrow_mut().take_reads());
        let project_files = self.project_files_written();
        BrokerReport { denials, more_denials, calls: self.calls, reads, project_files, changed: self.changed.get() }
    }

    /// Starts the egress proxy, for example because a name is to be resolved.
    fn start_egress(&self) {
        if let Some(run_egress) = &self.run_egress {
            // If the proxy cannot start, names are not resolved.
            let _ = run_egress.start_proxy();
        }
    }

    fn answer_request(&mut self, request: SeccompNotification) {
        self.calls += 1;
        self.settle_in_place();
        let caller = self.threads.look_up_caller(request);
        let mut resolved = None;
        match self.handle_call(&caller, &mut resolved) {
            Ok(step) => {
                self.file_room.iter().for_each(|room| room.raise_size_limit(request.pid, &step));
                self.finish_call(request.id, step);
            }
            Err(CallFailure::Native(errno)) => self.fail_call(request.id, errno),
            Err(CallFailure::Refused(denied)) => self.hold_or_refuse(&caller, resolved, denied),
        }
    }

    /// Answers a call that was carried out as far as this thread can.
    pub fn finish_call(&mut self, id: u64, step: CallProgress) {
        // Fails only if the caller is gone, so the error has no receiver.
        let _ = match step {
            CallProgress::Done(reply) => self.send_reply(id, reply),
            CallProgress::Work(work) => match self.pool.run_job(work.job) {
                Ok(()) => {
                    self.parked.insert(id, work.pipe.map_or(ParkedCall::Work, ParkedCall::Pipe));
                    Ok(())
                }
                Err(errno) => self.notifier.answer_call(id, NotificationAnswer::Error(errno)),
            },
            CallProgress::Dialling(dialling) => {
                self.parked.insert(id, ParkedCall::Dialling { _until: dialling });
                Ok(())
            }
            // The code that resolves the path follows links before it comes here.
            CallProgress::Link(_) => self.notifier.answer_call(id, NotificationAnswer::Error(Errno::LOOP)),
        };
    }

    pub fn lock_ledger(&self) -> MutexGuard<'_, DenialLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn record_denial(&self, caller: &CallingThread, denied: RefusedOperation) {
        self.lock_ledger().record_denial(denied, || self.identify_caller(caller));
    }

    /// Returns the caller of a call, as the host numbers it.
    pub fn identify_caller(&self, caller: &CallingThread) -> CallerProcess {
        CallerProcess { pid: Some(self.process_of(caller)), program: caller.program_path() }
    }

    /// Reads a call, decides on it and carries it out. Stores the resolved call in `resolved`.
    fn handle_call(&mut self, caller: &CallingThread, resolved: &mut Option<BrokeredCall>) -> CallResult {
        if self.first.is_none() {
            self.learn_run_facts(caller)?;
        }
        let Some(shape) = self.shapes.get(&caller.request.call).copied() else {
            return Err(Errno::NOSYS.into());
        };
        let broker_call = match shape {
            ArgumentLayout::Open { .. } | ArgumentLayout::Creat => {
                return self.resolve_open(caller, shape, resolved);
            }
            ArgumentLayout::Connect => self.read_connect(caller)?,
            ArgumentLayout::Bind => match self.read_bind(caller)? {
                ControlFlow::Continue(broker_call) => broker_call,
                ControlFlow::Break(step) => return Ok(step),
            },
            ArgumentLayout::Exec { at } => match self.read_exec(caller, at)? {
                Some(broker_call) => broker_call,
                None => return Ok(CallProgress::CONTINUE),
            },
            ArgumentLayout::TruncateDescriptor => return Ok(self.lengthen_file(caller)),
            ArgumentLayout::Umask => {
                self.threads.mask_changes();
                return Ok(CallProgress::CONTINUE);
            }
            ArgumentLayout::Listen => return self.listen_for_caller(caller),
            ArgumentLayout::OfProcess { index } => return self.of_process(caller, index),
            ArgumentLayout::InternetSocket => return Err(CallFailure::Refused(no_internet(caller))),
            ArgumentLayout::NotImplemented => return Err(Errno::NOSYS.into()),
            other => match self.read_name(caller, other)? {
                Some(broker_call) => broker_call,
                None => self.read_change(caller, other)?,
            },
        };
        let broker_call = resolved.insert(broker_call);
        let step = self.perform_call(caller.request.id, broker_call)?;
        if let BrokeredCall::Run(start) = broker_call {
            self.report_execution(Some(self.process_of(caller)), &start.object);
        }
        Ok(step)
    }

    /// Runs the pre-write hook for a change in a stage. If it fails, nothing is changed.
    pub fn prepare_stage(&self, call: &BrokeredCall) -> CallResult<()> {
        if self.write_hook.is_none() || matches!(call, BrokeredCall::Run(_) | BrokeredCall::Connect(_)) {
            return Ok(());
        }
        let rewrites = call.may_change_objects();
        let names = call.resolved_names().filter(|resolved| !resolved.special).map(|resolved| &resolved.path);
        let object = call.changed_object().filter(|object| !object.is_placeless()).map(|object| &object.path);
        names.chain(object).try_for_each(|path| self.prepare_stage_at(path, rewrites))
    }

    /// As [`prepare_stage`](Self::prepare_stage), for one path. Skips a path that the powers do not
    /// permit, because the call is refused later.
    pub fn prepare_stage_at(&self, path: &[u8], rewrites: bool) -> CallResult<()> {
        let Some(write_hook) = &self.write_hook else { return Ok(()) };
        if self.refuses(DeniedOperation::Write, path) {
            return Ok(());
        }
        let hook_result = write_hook.borrow_mut().before_change(Path::new(OsStr::from_bytes(path)), rewrites);
        hook_result.map_err(|error| CallFailure::Native(if error.is_full { Errno::NOSPC } else { Errno::IO }))
    }

    /// Replaces a held object by its staged copy. In a stage without an overlay, the object may be
    /// an original that was put aside.
    pub fn as_staged(&self, object: ResolvedObject) -> Result<ResolvedObject, Errno> {
        match self.copy_of(&object) {
            Some(copy) => ResolvedObject::from_fd(copy),
            None => Ok(object),
        }
    }

    /// Returns the copy that replaces an original.
    pub fn copy_of(&self, object: &ResolvedObject) -> Option<OwnedFd> {
        let write_hook = self.write_hook.as_ref()?.borrow();
        let seen = Path::new(OsStr::from_bytes(&object.path));
        let path = write_hook.copy_of(seen, object.stat.st_dev, object.stat.st_ino)?;
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(CWD, &path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), how).ok()
    }

    /// Returns whether a path names a directory that a stage without an overlay cannot move.
    pub fn is_fixed(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        self.write_hook.as_ref().is_some_and(|write_hook| write_hook.borrow().is_original_directory(path))
    }

    /// Takes the facts of the run from its first caller.
    fn learn_run_facts(&mut self, caller: &CallingThread) -> Result<(), Errno> {
        let root = caller.open_root()?;
        let identity = caller.read_status()?;
        let streams = (0..3)
            .filter(|number| caller.is_writable(*number).unwrap_or(false))
            .filter_map(|number| rustix::fs::fstat(caller.open_object(number).ok()?).ok())
            .map(|stat| (stat.st_dev, stat.st_ino))
            .collect();
        self.must_still_wait(caller)?;
        self.threads.first_mask(identity.umask);
        let roots = WritableRoots::new(&self.powers);
        self.first =
            Some(RunFacts { root, streams, parent_pid: identity.parent, process: identity.own_process, roots });
        self.follow_rules();
        Ok(())
    }

    /// Starts the resolution of one call's paths. Fails if the caller no longer waits, because the
    /// data read of it may then be of another process.
    pub fn start_resolution<'a>(&'a self, caller: &'a CallingThread) -> Result<PathResolver<'a>, Errno> {
        self.must_still_wait(caller)?;
        let first = self.first.as_ref().ok_or(Errno::ACCESS)?;
        let procfs_scope = match self.level {
            IsolationLevel::Full if self.powers.inside => ProcfsScope::Of(first.process),
            IsolationLevel::Full => ProcfsScope::All,
            IsolationLevel::Restricted | IsolationLevel::None => ProcfsScope::Below(first.parent_pid),
        };
        Ok(PathResolver::new(caller, first.root.as_fd(), procfs_scope))
    }

    /// As [`PathResolver::resolve_name`], in a [new](Self::start_resolution) resolution.
    pub fn resolve_name(&self, caller: &CallingThread, start: i32, path: &CStr) -> Result<ResolvedName, Errno> {
        self.start_resolution(caller)?.resolve_name(start, path)
    }

    /// Returns the view of the run's root, from the first call on.
    pub fn root_view(&self) -> Option<RootView<'_>> {
        self.first.as_ref().map(|first| RootView::new(first.root.as_fd()))
    }

    /// Permits a call on a process or thread if that belongs to the run.
    fn of_process(&self, caller: &CallingThread, index: usize) -> CallResult {
        let first = self.first.as_ref().ok_or(Errno::ACCESS)?;
        if walk::is_descendant(caller.unsigned_argument(index), first.parent_pid, &walk::status_on_host) {
            return Ok(CallProgress::CONTINUE);
        }
        Err(Errno::PERM.into())
    }

    pub fn must_still_wait(&self, caller: &CallingThread) -> Result<(), Errno> {
        if self.notifier.is_valid(caller.request.id) { Ok(()) } else { Err(Errno::SRCH) }
    }

    /// Decides on an operation on the object at `path`.
    pub fn decide_operation(&self, operation: DeniedOperation, path: &[u8]) -> PermissionVerdict {
        self.looked_in_vain.set(false);
        match self.powers.decide_operation(operation, Path::new(OsStr::from_bytes(path)), &|p| self.exists_in_view(p)) {
            PermissionVerdict::Allow => {
                let refusal = self.refusal_of_name(operation, path);
                let refusal = refusal.or_else(|| self.refusal_in_the_dark(operation, path));
                let refusal = refusal.or_else(|| self.refusal_in_bare(operation, path));
                let lasts = refusal.is_none() && !self.powers.is_staged(path);
                self.changed.set(self.changed.get() || lasts);
                refusal.map_or(PermissionVerdict::Allow, PermissionVerdict::Refuse)
            }
            other => other,
        }
    }

    /// As [`decide_operation`](Self::decide_operation); a refusal is ready to be recorded.
    pub fn permit_operation(&self, operation: DeniedOperation, path: &[u8]) -> CallResult<PermissionVerdict> {
        match self.decide_operation(operation, path) {
            PermissionVerdict::Refuse(refusal) => Err(refuse_operation(operation, path, refusal)),
            verdict => Ok(verdict),
        }
    }

    /// As [`permit_operation`](Self::permit_operation). The error of `native` comes before a
    /// refusal: a call that would fail without a sandbox fails with the same error.
    pub fn permit_or_fail(
        &self,
        operation: DeniedOperation,
        path: &[u8],
        native: impl FnOnce() -> Result<(), Errno>,
    ) -> CallResult<PermissionVerdict> {
        let permitted = self.permit_operation(operation, path);
        if permitted.is_err() {
            native()?;
        }
        permitted
    }

    /// Returns whether the current powers do not permit an operation.
    pub fn refuses(&self, operation: DeniedOperation, path: &[u8]) -> bool {
        matches!(self.decide_operation(operation, path), PermissionVerdict::Refuse(_))
    }

    /// Returns whether an object has this path in the run's view. If that is unknown, because the
    /// path is too long or a directory may not be searched, the answer is yes: a yes only ever
    /// refuses more.
    pub fn exists_in_view(&self, path: &Path) -> bool {
        let Some(first) = &self.first else { return false };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let found = openat2(&first.root, path, flags, Mode::empty(), how);
        let is_known = matches!(found, Ok(_) | Err(Errno::NOENT | Errno::NOTDIR));
        self.looked_in_vain.set(self.looked_in_vain.get() || !is_known);
        found.is_ok() || !is_known
    }

    /// Returns whether the object with this status is one of the run's own standard streams, open for
    /// writing.
    pub fn is_stream(&self, stat: &Stat) -> bool {
        let key = (stat.st_dev, stat.st_ino);
        self.first.as_ref().is_some_and(|first| first.streams.contains(&key))
    }

    /// Returns whether a user and a group exist in the caller's user namespace.
    pub fn is_mapped(&self, user: Option<Uid>, group: Option<Gid>) -> bool {
        self.level != IsolationLevel::Full
            || (user.is_none_or(|u| u.as_raw() == self.own_user) && group.is_none_or(|g| g.as_raw() == self.own_group))
    }

    /// Returns the mode of a new object, masked by the caller's umask.
    pub fn mask_mode(&self, caller: &CallingThread, mode: u32) -> Result<Mode, Errno> {
        Ok(Mode::from_bits_retain(mode & 0o7777 & !self.threads.read_umask(caller)?))
    }

    /// Drops calls whose callers are gone, at intervals.
    fn look_after_waiting(&mut self) {
        let often = match (self.holds.is_empty(), self.parked.is_empty()) {
            (true, true) => return self.look_at = None,
            (true, false) => PARKED_CHECK_INTERVAL,
            (false, _) => HELD_CHECK_INTERVAL,
        };
        let now = Instant::now();
        // A new question is checked sooner than a pipe.
        let due = self.look_at.is_some_and(|at| at <= now);
        if due {
            self.look_after_holds();
            let notifier = &self.notifier;
            self.parked.retain(|id, parked| {
                let waits = notifier.is_valid(*id);
                if !waits {
                    release_pipe_opener(parked);
                }
                waits
            });
        }
        let next = now + often;
        self.look_at = Some(self.look_at.filter(|at| !due && *at < next).unwrap_or(next));
    }
}

/// Ends the wait of a thread that opens one end of a pipe, by opening both ends for a moment.
fn release_pipe_opener(parked: &ParkedCall) {
    if let ParkedCall::Pipe(pipe) = parked {
        drop(resolve::reopen(pipe.as_fd(), OFlags::RDWR | OFlags::NONBLOCK));
    }
}

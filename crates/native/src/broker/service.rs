//! The loop: reads one trapped call after the other, decides on it, and carries it out, holds it or
//! refuses it. One thread does this for all calls that change a name, so that nothing changes
//! between a decision and its act. This thread never waits.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, accessat, openat2};
use stockade_egress::Dialling;
use stockade_model::{Layer, Level, Operation};
use stockade_sys::notify::{Answer, Notifier, Request};
use stockade_sys::{Errno, actor, resolve};

use super::before_change::KeptForUndo;
use super::bound::Bound;
use super::caller::{Caller, Threads};
use super::deed::{Deed, Step};
use super::file_room::FileRoom;
use super::holding::{self, Waiter};
use super::holds::Holds;
use super::in_place::WrittenInPlace;
use super::judged::FirstSettings;
use super::ledger::{Actor, Denied, Ledger};
use super::left_out::SaidGone;
use super::pool::Pool;
use super::project_files::ProjectFiles;
use super::reads::Reads;
use super::servers::Servers;
use super::sockets::no_internet;
use super::straight::Roots;
use super::table::{Shape, notify_table};
use super::terminals::Terminals;
use super::walk::{self, Kin, Object, Place, Walk};
use super::{BrokerError, BrokerEvent, BrokerReport, Order, step};
use crate::guards::Surveys;
use crate::launch::may_map_for_others;
use crate::powers::{Powers, Refusal, Verdict};
use crate::stage::Precaution;
use crate::undo::Recorder;
use crate::way_out::WayOut;

/// Interval between two checks that the callers of parked calls still wait.
const PARKED_CHECK: Duration = Duration::from_secs(1);
/// The same while an approver is asked: a question is withdrawn soon after its caller is gone.
const HELD_CHECK: Duration = Duration::from_millis(200);

/// End of a trapped call that does not fail.
#[derive(Debug)]
pub(super) enum Reply {
    /// The call returns this value.
    Value(i64),
    /// The kernel carries the call out, and the kernel-enforced layer decides.
    Continue,
    /// The call returns this descriptor.
    Descriptor { fd: OwnedFd, close_on_exec: bool },
}

/// Failure of a trapped call.
#[derive(Debug)]
pub(super) enum Failure {
    /// The error that the call has without a sandbox.
    Native(Errno),
    /// The powers do not permit the call.
    Refused(Denied),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Native(errno)
    }
}

/// Facts of the run, taken from its first call. The command itself has not run by then.
pub(super) struct First {
    /// Root directory, the same for every process because no process may change it.
    pub root: OwnedFd,
    /// Standard streams that are open for writing, by device and inode.
    pub streams: Vec<(u64, u64)>,
    /// Parent of the first process.
    pub keeper: u32,
    /// Number of the first process in its own PID namespace.
    pub process: u32,
    /// Roots for the fast path of opens.
    pub roots: Roots,
}

/// A call that another thread answers.
enum Parked {
    /// The work ends by itself.
    Work,
    /// The open waits for the other end of this pipe.
    Pipe(OwnedFd),
    /// The egress proxy dials; dropping the value cancels that.
    Dialling { _until: Dialling },
}

/// State of a broker.
pub(super) struct Service {
    pub notifier: Arc<Notifier>,
    pub powers: Powers,
    pub level: Level,
    pub threads: Threads,
    pub first: Option<First>,
    /// True once the command itself has started.
    pub has_started: bool,
    pub ledger: Arc<Mutex<Ledger>>,
    pub pool: Pool,
    /// The egress proxy, if the run has one.
    pub way: Option<Arc<WayOut>>,
    /// True once a change of persistent data was permitted.
    pub changed: Cell<bool>,
    /// Reads of a traced run.
    pub reads: Option<RefCell<Reads>>,
    /// Surveys of the writable trees: paths that lead to guarded names.
    pub surveys: RefCell<Surveys>,
    /// Settings as they were when the run first changed them.
    pub first_settings: FirstSettings,
    /// True if a look-up since the start of the last decision failed, so that existence is unknown.
    pub looked_in_vain: Cell<bool>,
    /// Git files that are still being written in place.
    pub in_place: WrittenInPlace,
    /// Names that git believes removed, although the removal was refused.
    pub said_gone: SaidGone,
    /// Project files that run code later.
    pub project_files: ProjectFiles,
    /// Sockets that the run has bound to paths.
    pub bound: Bound,
    /// Listeners of the run on the host's loopback.
    pub servers: Servers,
    /// Terminals that the run has created.
    pub terminals: Terminals,
    /// Calls that other threads answer, by notification id.
    parked: HashMap<u64, Parked>,
    /// Held calls.
    pub holds: Holds<Waiter>,
    /// True if calls are held.
    pub holds_calls: bool,
    /// Hook that runs before a change in a stage.
    precaution: Option<RefCell<Precaution>>,
    /// Hook that runs before a change in the workspace, if the run can be undone.
    pub undo: Option<KeptForUndo>,
    /// Present with a small disk limit.
    pub file_room: Option<FileRoom>,
    /// Time of the next check that callers still wait.
    look_at: Option<Instant>,
    shapes: HashMap<i32, Shape>,
    own_user: u32,
    own_group: u32,
    calls: u64,
}

impl Service {
    /// Confines this thread: from here on it has no more permissions on files than the command's
    /// user.
    pub fn confine(level: Level) -> Result<(), BrokerError> {
        // Root's sandbox has no supplementary groups. An ordinary user's sandbox keeps them,
        // because such a user cannot drop them.
        let without_groups = level == Level::Full && may_map_for_others();
        actor::confine_thread(without_groups).map_err(step("confine the broker's thread"))
    }

    /// Creates the service, on a thread that was [confined](Self::confine).
    pub fn new(
        notifier: Notifier,
        powers: Powers,
        level: Level,
        holds_calls: bool,
        (precaution, undo): (Option<Precaution>, Option<Recorder>),
        (way, bound, small_disk): (Option<Arc<WayOut>>, Bound, Option<u64>),
        sink: Box<dyn Fn(BrokerEvent) + Send>,
    ) -> Result<Self, BrokerError> {
        let own_user = rustix::process::geteuid().as_raw();
        let table = notify_table(level, powers.asks_reads(), small_disk.is_some());
        let shapes = table.iter().map(|t| (t.call as i32, t.shape)).collect();
        let reads = powers.traced.then(RefCell::default);
        Ok(Self {
            notifier: Arc::new(notifier),
            powers,
            level,
            threads: Threads::new().map_err(step("open /proc"))?,
            first: None,
            has_started: false,
            ledger: Arc::new(Mutex::new(Ledger::new(sink))),
            pool: Pool::default(),
            way,
            changed: Cell::new(false),
            reads,
            surveys: RefCell::default(),
            first_settings: FirstSettings::default(),
            looked_in_vain: Cell::new(false),
            in_place: WrittenInPlace::default(),
            said_gone: SaidGone::default(),
            project_files: ProjectFiles::default(),
            bound,
            servers: Servers::default(),
            terminals: Terminals::default(),
            parked: HashMap::new(),
            holds: holding::table(),
            holds_calls,
            precaution: precaution.map(RefCell::new),
            undo: undo.map(KeptForUndo::new),
            file_room: small_disk.map(FileRoom::new),
            look_at: None,
            shapes,
            own_user,
            own_group: rustix::process::getegid().as_raw(),
            calls: 0,
        })
    }

    /// Serves until a stop order arrives or no process is left. `wake` becomes readable when there
    /// is an order.
    pub fn serve(&mut self, wake: BorrowedFd<'_>, orders: &Receiver<Order>) {
        let mut space = self.notifier.space();
        loop {
            let timeout = self.look_at.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout =
                [timeout, self.in_place.look_within(), self.servers.look_within()].into_iter().flatten().min();
            let Ok(waiting) = self.notifier.wait(wake, timeout) else { return };
            if waiting.other && !self.take_orders(wake, orders) {
                return;
            }
            if waiting.request {
                match self.notifier.receive(&mut space) {
                    Ok(request) => self.answer(request),
                    Err(Errno::NOENT | Errno::INTR) => {}
                    Err(_) => return,
                }
            } else if waiting.over {
                return;
            } else {
                self.settle_in_place();
            }
            self.servers.look();
            self.look_after_waiting();
            self.ledger().tell_rest();
        }
    }

    /// Handles the pending orders. Returns false if the broker must stop.
    fn take_orders(&mut self, wake: BorrowedFd<'_>, orders: &Receiver<Order>) -> bool {
        // The descriptor is non-blocking; the counter's value does not matter.
        let _ = rustix::io::read(wake, &mut [0; 8]);
        loop {
            match orders.try_recv() {
                Ok(Order::Answer(id, answer)) => self.answered(id, answer),
                Ok(Order::Judge(request)) => self.judge(request),
                Ok(Order::Open) => self.open_way(),
                Ok(Order::HoldNothing) => self.hold_nothing(),
                Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Ends the service: no call is answered after this.
    pub fn end(&mut self) -> BrokerReport {
        self.pool.close();
        self.settle_rest();
        self.withdraw_all();
        for (_, parked) in self.parked.drain() {
            release(&parked);
        }
        let (denials, more_denials) = self.ledger().take();
        let reads = self.reads.as_ref().map_or_else(Vec::new, |reads| reads.borrow_mut().take());
        let project_files = self.project_files_written();
        BrokerReport { denials, more_denials, calls: self.calls, reads, project_files, changed: self.changed.get() }
    }

    /// Starts the egress proxy, for example because a name is to be resolved.
    fn open_way(&self) {
        if let Some(way) = &self.way {
            // If the proxy cannot start, names are not resolved.
            let _ = way.open();
        }
    }

    fn answer(&mut self, request: Request) {
        self.calls += 1;
        self.settle_in_place();
        let caller = self.threads.caller(request);
        let mut asked = None;
        match self.handle(&caller, &mut asked) {
            Ok(step) => {
                self.file_room.iter().for_each(|room| room.make(request.pid, &step));
                self.finish(request.id, step);
            }
            Err(Failure::Native(errno)) => self.fail(request.id, errno),
            Err(Failure::Refused(denied)) => self.refuse(&caller, asked, denied),
        }
    }

    /// Answers a call that was carried out as far as this thread can.
    pub fn finish(&mut self, id: u64, step: Step) {
        // Fails only if the caller is gone, so the error has no receiver.
        let _ = match step {
            Step::Done(reply) => self.reply(id, reply),
            Step::Work(work) => match self.pool.run(work.job) {
                Ok(()) => {
                    self.parked.insert(id, work.pipe.map_or(Parked::Work, Parked::Pipe));
                    Ok(())
                }
                Err(errno) => self.notifier.answer(id, Answer::Error(errno)),
            },
            Step::Dialling(dialling) => {
                self.parked.insert(id, Parked::Dialling { _until: dialling });
                Ok(())
            }
            // The code that resolves the path follows links before it comes here.
            Step::Link(_) => self.notifier.answer(id, Answer::Error(Errno::LOOP)),
        };
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn record(&self, caller: &Caller, denied: Denied) {
        self.ledger().record(denied, || self.actor(caller));
    }

    /// Returns the caller of a call, as the host numbers it.
    pub fn actor(&self, caller: &Caller) -> Actor {
        Actor { pid: Some(self.process_of(caller)), program: caller.program() }
    }

    /// Reads a call, decides on it and carries it out. Stores the resolved call in `asked`.
    fn handle(&mut self, caller: &Caller, asked: &mut Option<Deed>) -> Result<Step, Failure> {
        if self.first.is_none() {
            self.meet(caller)?;
        }
        let Some(shape) = self.shapes.get(&caller.request.call).copied() else {
            return Err(Errno::NOSYS.into());
        };
        let deed = match shape {
            Shape::Open { .. } | Shape::Creat => return self.open(caller, shape, asked),
            Shape::Mkdir { .. }
            | Shape::Mknod { .. }
            | Shape::Remove { .. }
            | Shape::RemoveAt
            | Shape::Rename { .. }
            | Shape::Link { .. }
            | Shape::Symlink { .. } => self.read_name(caller, shape)?,
            Shape::Truncate
            | Shape::Chmod { .. }
            | Shape::ChmodDescriptor
            | Shape::Chown { .. }
            | Shape::ChownDescriptor
            | Shape::ChownAt
            | Shape::TimesSeconds
            | Shape::TimesMicroseconds { .. }
            | Shape::TimesNanoseconds
            | Shape::SetAttribute { .. }
            | Shape::SetAttributeDescriptor
            | Shape::RemoveAttribute { .. }
            | Shape::RemoveAttributeDescriptor => self.read_change(caller, shape)?,
            Shape::Connect => self.read_connect(caller)?,
            Shape::Bind => match self.read_bind(caller)? {
                ControlFlow::Continue(deed) => deed,
                ControlFlow::Break(step) => return Ok(step),
            },
            Shape::Exec { at } => match self.read_exec(caller, at)? {
                Some(deed) => deed,
                None => return Ok(Step::Done(Reply::Continue)),
            },
            Shape::TruncateDescriptor => return Ok(self.lengthen(caller)),
            Shape::Umask => {
                self.threads.mask_changes();
                return Ok(Step::Done(Reply::Continue));
            }
            Shape::Listen => return self.listen(caller),
            Shape::OfProcess { index } => return self.of_process(caller, index),
            Shape::InternetSocket => return Err(Failure::Refused(no_internet(caller))),
            Shape::NotImplemented => return Err(Errno::NOSYS.into()),
        };
        let deed = asked.insert(deed);
        let step = self.perform(caller.request.id, deed)?;
        if let Deed::Run(start) = deed {
            self.executed(Some(self.process_of(caller)), &start.object);
        }
        Ok(step)
    }

    /// Runs the precaution for a change in a stage. If it fails, nothing is changed.
    pub fn prepare_stage(&self, deed: &Deed) -> Result<(), Failure> {
        if self.precaution.is_none() || matches!(deed, Deed::Run(_) | Deed::Connect(_)) {
            return Ok(());
        }
        let rewrites = deed.rewrites();
        let names = deed.places().filter(|place| !place.special).map(Place::path);
        let object = deed.changed_object().filter(|object| !object.is_placeless()).map(|object| object.path.clone());
        names.chain(object).try_for_each(|path| self.prepare_stage_at(&path, rewrites))
    }

    /// As [`prepare_stage`](Self::prepare_stage), for one path. Skips a path that the powers do not
    /// permit, because the call is refused later.
    pub fn prepare_stage_at(&self, path: &[u8], rewrites: bool) -> Result<(), Failure> {
        let Some(precaution) = &self.precaution else { return Ok(()) };
        if matches!(self.decide(Operation::Write, path), Verdict::Refuse(_)) {
            return Ok(());
        }
        let taken = precaution.borrow_mut().before_change(Path::new(OsStr::from_bytes(path)), rewrites);
        taken.map_err(|error| Failure::Native(if error.is_full { Errno::NOSPC } else { Errno::IO }))
    }

    /// Replaces a held object by its staged copy. In a stage without an overlay, the object may be
    /// an original that was put aside.
    pub fn as_staged(&self, object: Object) -> Result<Object, Errno> {
        match self.copy_of(&object) {
            Some(copy) => Object::of(copy),
            None => Ok(object),
        }
    }

    /// Returns the copy that replaces an original.
    pub fn copy_of(&self, object: &Object) -> Option<OwnedFd> {
        let precaution = self.precaution.as_ref()?.borrow();
        let seen = Path::new(OsStr::from_bytes(&object.path));
        let path = precaution.copy_of(seen, object.stat.st_dev, object.stat.st_ino)?;
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(CWD, &path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), how).ok()
    }

    /// Returns whether a path names a directory that a stage without an overlay cannot move.
    pub fn is_fixed(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        self.precaution.as_ref().is_some_and(|precaution| precaution.borrow().is_original_directory(path))
    }

    /// Takes the facts of the run from its first caller.
    fn meet(&mut self, caller: &Caller) -> Result<(), Errno> {
        let root = caller.root()?;
        let identity = caller.identity()?;
        let streams = (0..3)
            .filter(|number| caller.is_writable(*number).unwrap_or(false))
            .filter_map(|number| rustix::fs::fstat(caller.object(number).ok()?).ok())
            .map(|stat| (stat.st_dev, stat.st_ino))
            .collect();
        self.must_still_wait(caller)?;
        self.threads.first_mask(identity.umask);
        let roots = Roots::new(&self.powers);
        self.first = Some(First { root, streams, keeper: identity.parent, process: identity.own_process, roots });
        self.follow_rules();
        Ok(())
    }

    /// Starts the resolution of one call's paths. Fails if the caller no longer waits, because the
    /// data read of it may then be of another process.
    pub fn walk<'a>(&'a self, caller: &'a Caller) -> Result<Walk<'a>, Errno> {
        self.must_still_wait(caller)?;
        let first = self.first.as_ref().ok_or(Errno::ACCESS)?;
        let kin = match self.level {
            Level::Full if self.powers.is_inside() => Kin::Of(first.process),
            Level::Full => Kin::All,
            Level::Restricted | Level::None => Kin::Below(first.keeper),
        };
        Ok(Walk::new(caller, first.root.as_fd(), kin))
    }

    /// Permits a call on a process or thread if that belongs to the run.
    fn of_process(&self, caller: &Caller, index: usize) -> Result<Step, Failure> {
        let first = self.first.as_ref().ok_or(Errno::ACCESS)?;
        if walk::descends(caller.unsigned(index), first.keeper, &walk::status_on_host) {
            return Ok(Step::Done(Reply::Continue));
        }
        Err(Errno::PERM.into())
    }

    pub fn must_still_wait(&self, caller: &Caller) -> Result<(), Errno> {
        if self.notifier.is_valid(caller.request.id) { Ok(()) } else { Err(Errno::SRCH) }
    }

    /// Decides on an operation on the object at `path`.
    pub fn decide(&self, operation: Operation, path: &[u8]) -> Verdict {
        self.looked_in_vain.set(false);
        match self.powers.decide(operation, Path::new(OsStr::from_bytes(path)), &|p| self.exists(p)) {
            Verdict::Allow => {
                let refusal = self.refusal_of_place(operation, path);
                let refusal = refusal.or_else(|| self.refusal_in_the_dark(operation, path));
                let refusal = refusal.or_else(|| self.refusal_in_bare(operation, path));
                let lasts = refusal.is_none() && !self.powers.is_staged(path);
                self.changed.set(self.changed.get() || lasts);
                refusal.map_or(Verdict::Allow, Verdict::Refuse)
            }
            other => other,
        }
    }

    /// As [`decide`](Self::decide); a refusal is ready to be recorded.
    pub fn permit(&self, operation: Operation, path: &[u8]) -> Result<Verdict, Failure> {
        match self.decide(operation, path) {
            Verdict::Refuse(refusal) => Err(refused(operation, path, refusal)),
            verdict => Ok(verdict),
        }
    }

    /// Returns whether an object has this path in the run's view. If that is unknown, because the
    /// path is too long or a directory may not be searched, the answer is yes: a yes only ever
    /// refuses more.
    pub fn exists(&self, path: &Path) -> bool {
        let Some(first) = &self.first else { return false };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let found = openat2(&first.root, path, flags, Mode::empty(), how);
        let is_told = matches!(found, Ok(_) | Err(Errno::NOENT | Errno::NOTDIR));
        self.looked_in_vain.set(self.looked_in_vain.get() || !is_told);
        found.is_ok() || !is_told
    }

    /// Returns whether an object is one of the run's own standard streams, open for writing.
    pub fn is_own_stream(&self, object: &Object) -> bool {
        self.is_stream(&object.stat)
    }

    /// The same for a file's status.
    pub fn is_stream(&self, stat: &Stat) -> bool {
        let key = (stat.st_dev, stat.st_ino);
        self.first.as_ref().is_some_and(|first| first.streams.contains(&key))
    }

    /// Returns whether a user and a group exist in the caller's user namespace.
    pub fn is_mapped(&self, user: Option<Uid>, group: Option<Gid>) -> bool {
        self.level != Level::Full
            || (user.is_none_or(|u| u.as_raw() == self.own_user) && group.is_none_or(|g| g.as_raw() == self.own_group))
    }

    pub fn own_user(&self) -> u32 {
        self.own_user
    }

    /// Returns the mode of a new object, masked by the caller's umask.
    pub fn masked(&self, caller: &Caller, mode: u32) -> Result<Mode, Errno> {
        Ok(Mode::from_bits_retain(mode & 0o7777 & !self.threads.umask(caller)?))
    }

    /// Drops calls whose callers are gone, at intervals.
    fn look_after_waiting(&mut self) {
        let often = match (self.holds.is_empty(), self.parked.is_empty()) {
            (true, true) => return self.look_at = None,
            (true, false) => PARKED_CHECK,
            (false, _) => HELD_CHECK,
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
                    release(parked);
                }
                waits
            });
        }
        let next = now + often;
        self.look_at = Some(self.look_at.filter(|at| !due && *at < next).unwrap_or(next));
    }
}

/// Ends the wait of a thread that opens one end of a pipe, by opening both ends for a moment.
fn release(parked: &Parked) {
    if let Parked::Pipe(pipe) = parked {
        let path = resolve::DescriptorPath::new(pipe.as_fd());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        drop(rustix::fs::openat(CWD, path.as_c_str(), flags, Mode::empty()));
    }
}

pub(super) fn refused(operation: Operation, path: &[u8], refusal: Refusal) -> Failure {
    Failure::Refused(Denied { operation, object: path.to_vec(), layer: Layer::Broker, refusal })
}

/// Returns the kernel's own answer to `access` on a held object, by owner and mode. A read-only
/// mount is ignored, because the sandbox made it so.
pub(super) fn native_access(fd: &OwnedFd, access: Access) -> Result<(), Errno> {
    let path = resolve::DescriptorPath::new(fd.as_fd());
    match accessat(CWD, path.as_c_str(), access, AtFlags::EACCESS) {
        Err(Errno::ROFS) | Ok(()) => Ok(()),
        Err(errno) => Err(errno),
    }
}

//! The loop: one trapped call after the other is read, decided, carried out,
//! held or refused. One thread does this for everything that changes a name, so
//! that nothing changes between a decision and its act; and nothing in it waits.

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

/// How often it is looked whether the callers of parked calls still wait.
const PARKED_CHECK: Duration = Duration::from_secs(1);
/// The same while a person is asked, who should not answer for nobody.
const HELD_CHECK: Duration = Duration::from_millis(200);

/// How a trapped call ends.
#[derive(Debug)]
pub(super) enum Reply {
    /// It returns this.
    Value(i64),
    /// The kernel goes on with it, and the floor decides.
    Continue,
    /// It returns this descriptor.
    Descriptor { fd: OwnedFd, close_on_exec: bool },
}

/// Why a trapped call fails.
#[derive(Debug)]
pub(super) enum Failure {
    /// As it would without a sandbox.
    Native(Errno),
    /// Because it is not among the powers.
    Refused(Denied),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Native(errno)
    }
}

/// Facts of the run, taken from its first call: nothing of the command itself
/// has run by then.
pub(super) struct First {
    /// Its root, the same for every process: none may change it.
    pub root: OwnedFd,
    /// Standard streams that are open for writing, by device and inode.
    pub streams: Vec<(u64, u64)>,
    /// Parent of the first process.
    pub keeper: u32,
    /// The first process, as it numbers itself.
    pub process: u32,
    /// Where the short way of an open starts.
    pub roots: Roots,
}

/// A call that another thread will answer.
enum Parked {
    /// It does something that ends by itself.
    Work,
    /// It waits for the other end of this pipe.
    Pipe(OwnedFd),
    /// The door dials; given up where this is dropped.
    Dialling { _until: Dialling },
}

/// The state of a broker.
pub(super) struct Service {
    pub notifier: Arc<Notifier>,
    pub powers: Powers,
    pub level: Level,
    pub threads: Threads,
    pub first: Option<First>,
    /// Whether the command itself runs already.
    pub has_started: bool,
    pub ledger: Arc<Mutex<Ledger>>,
    pub pool: Pool,
    /// The way out, where there is one.
    pub way: Option<Arc<WayOut>>,
    /// Whether a change of what lasts was allowed.
    pub changed: Cell<bool>,
    /// What a traced run reads.
    pub reads: Option<RefCell<Reads>>,
    /// What leads to guarded names in the writable trees.
    pub surveys: RefCell<Surveys>,
    /// What settings said when they were first changed.
    pub first_settings: FirstSettings,
    /// Whether it could not be told whether something is there, since the last decision began.
    pub looked_in_vain: Cell<bool>,
    /// Files that lead to repositories, which are still written.
    pub in_place: WrittenInPlace,
    /// What git was told to have removed, although it was refused.
    pub said_gone: SaidGone,
    /// Files of the project that run code later.
    pub project_files: ProjectFiles,
    /// The sockets that the run has bound to paths.
    pub bound: Bound,
    /// Those that it has made on the loopback of the host.
    pub servers: Servers,
    /// Terminals that the run has made.
    pub terminals: Terminals,
    /// Calls that other threads answer, by notification.
    parked: HashMap<u64, Parked>,
    /// Calls that wait for an answer.
    pub holds: Holds<Waiter>,
    /// Whether calls are held at all.
    pub holds_calls: bool,
    /// Taken before something in a stage is changed.
    precaution: Option<RefCell<Precaution>>,
    /// Told before something in the workspace is changed, where that can be undone.
    pub undo: Option<KeptForUndo>,
    /// With a small limit of the disk.
    pub file_room: Option<FileRoom>,
    /// When to look after those who wait.
    look_at: Option<Instant>,
    shapes: HashMap<i32, Shape>,
    own_user: u32,
    own_group: u32,
    calls: u64,
}

impl Service {
    /// Confines this thread: from here on it has no more power over files than
    /// the command's user.
    pub fn confine(level: Level) -> Result<(), BrokerError> {
        // Root's sandbox has no supplementary groups; an ordinary user's keeps
        // them, because it cannot give them up.
        let without_groups = level == Level::Full && may_map_for_others();
        actor::confine_thread(without_groups).map_err(step("confine the broker's thread"))
    }

    /// Makes ready to serve, on a thread that was [confined](Self::confine).
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

    /// Serves until it is told to stop or no process is left. `wake` becomes
    /// readable when there is an order.
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

    /// Does what it is told. False at the end.
    fn take_orders(&mut self, wake: BorrowedFd<'_>, orders: &Receiver<Order>) -> bool {
        // It is not blocking: what it counts does not matter.
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

    /// The end: nothing is answered after this.
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

    /// A name was asked for.
    fn open_way(&self) {
        if let Some(way) = &self.way {
            // Where the door cannot be had names are not answered.
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

    /// Answers a call that was carried out as far as it can be here.
    pub fn finish(&mut self, id: u64, step: Step) {
        // A send fails only where the caller is gone: there is nobody to tell.
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
            // Whoever reads the path goes on behind a link.
            Step::Link(_) => self.notifier.answer(id, Answer::Error(Errno::LOOP)),
        };
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn record(&self, caller: &Caller, denied: Denied) {
        self.ledger().record(denied, || self.actor(caller));
    }

    /// Who made a call, as the host knows it.
    pub fn actor(&self, caller: &Caller) -> Actor {
        Actor { pid: Some(self.process_of(caller)), program: caller.program() }
    }

    /// Reads a call, decides on it and carries it out. What it came to stands in
    /// `asked`.
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

    /// Takes the precaution for what a deed would change in a stage. Where that
    /// fails nothing is changed.
    pub fn prepare_stage(&self, deed: &Deed) -> Result<(), Failure> {
        if self.precaution.is_none() || matches!(deed, Deed::Run(_) | Deed::Connect(_)) {
            return Ok(());
        }
        let rewrites = deed.rewrites();
        let names = deed.places().filter(|place| !place.special).map(Place::path);
        let object = deed.changed_object().filter(|object| !object.is_placeless()).map(|object| object.path.clone());
        names.chain(object).try_for_each(|path| self.prepare_stage_at(&path, rewrites))
    }

    /// As [`prepare_stage`](Self::prepare_stage), for one path that the powers
    /// reach; what they do not is refused.
    pub fn prepare_stage_at(&self, path: &[u8], rewrites: bool) -> Result<(), Failure> {
        let Some(precaution) = &self.precaution else { return Ok(()) };
        if matches!(self.decide(Operation::Write, path), Verdict::Refuse(_)) {
            return Ok(());
        }
        let taken = precaution.borrow_mut().before_change(Path::new(OsStr::from_bytes(path)), rewrites);
        taken.map_err(|error| Failure::Native(if error.is_full { Errno::NOSPC } else { Errno::IO }))
    }

    /// What a held object is to be taken for: in a stage without an overlay, the
    /// copy of an original that was put aside.
    pub fn as_staged(&self, object: Object) -> Result<Object, Errno> {
        match self.copy_of(&object) {
            Some(copy) => Object::of(copy),
            None => Ok(object),
        }
    }

    /// The copy that stands in the place of an original.
    pub fn copy_of(&self, object: &Object) -> Option<OwnedFd> {
        let precaution = self.precaution.as_ref()?.borrow();
        let seen = Path::new(OsStr::from_bytes(&object.path));
        let path = precaution.copy_of(seen, object.stat.st_dev, object.stat.st_ino)?;
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(CWD, &path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), how).ok()
    }

    /// Whether a name is that of a directory which a stage without an overlay
    /// cannot move.
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

    /// Starts the resolution of one call's paths. What was read of the caller
    /// so far is thrown away where it is no longer waiting.
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

    /// Lets a call go on that does something to a process or thread of the run's own.
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

    /// The decision on the object at `path`.
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

    /// As [`decide`](Self::decide), a refusal made ready to be recorded.
    pub fn permit(&self, operation: Operation, path: &[u8]) -> Result<Verdict, Failure> {
        match self.decide(operation, path) {
            Verdict::Refuse(refusal) => Err(refused(operation, path, refusal)),
            verdict => Ok(verdict),
        }
    }

    /// Whether something has this path in the run's view. Where that cannot be told, as of
    /// a path that is too long or a directory that may not be searched, it is taken to exist:
    /// a yes to this question only ever refuses more.
    pub fn exists(&self, path: &Path) -> bool {
        let Some(first) = &self.first else { return false };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let found = openat2(&first.root, path, flags, Mode::empty(), how);
        let is_told = matches!(found, Ok(_) | Err(Errno::NOENT | Errno::NOTDIR));
        self.looked_in_vain.set(self.looked_in_vain.get() || !is_told);
        found.is_ok() || !is_told
    }

    /// Whether an object that was reached by a descriptor is one of the run's
    /// own standard streams, open for writing.
    pub fn is_own_stream(&self, object: &Object) -> bool {
        self.is_stream(&object.stat)
    }

    /// The same, of a file.
    pub fn is_stream(&self, stat: &Stat) -> bool {
        let key = (stat.st_dev, stat.st_ino);
        self.first.as_ref().is_some_and(|first| first.streams.contains(&key))
    }

    /// A user or group that exists where the caller is.
    pub fn is_mapped(&self, user: Option<Uid>, group: Option<Gid>) -> bool {
        self.level != Level::Full
            || (user.is_none_or(|u| u.as_raw() == self.own_user) && group.is_none_or(|g| g.as_raw() == self.own_group))
    }

    pub fn own_user(&self) -> u32 {
        self.own_user
    }

    /// The mode of something new.
    pub fn masked(&self, caller: &Caller, mode: u32) -> Result<Mode, Errno> {
        Ok(Mode::from_bits_retain(mode & 0o7777 & !self.threads.umask(caller)?))
    }

    /// Lets go of calls whose caller is gone, now and then.
    fn look_after_waiting(&mut self) {
        let often = match (self.holds.is_empty(), self.parked.is_empty()) {
            (true, true) => return self.look_at = None,
            (true, false) => PARKED_CHECK,
            (false, _) => HELD_CHECK,
        };
        let now = Instant::now();
        // A question that was just raised is looked after sooner than a pipe.
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

/// Ends the wait of a thread that opens one end of a pipe: for a moment both
/// ends are open.
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

/// What the kernel itself would say to `access` of a held object, by owner and
/// mode. That the mount is read-only is the sandbox's doing and not counted.
pub(super) fn native_access(fd: &OwnedFd, access: Access) -> Result<(), Errno> {
    let path = resolve::DescriptorPath::new(fd.as_fd());
    match accessat(CWD, path.as_c_str(), access, AtFlags::EACCESS) {
        Err(Errno::ROFS) | Ok(()) => Ok(()),
        Err(errno) => Err(errno),
    }
}

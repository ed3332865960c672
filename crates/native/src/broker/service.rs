//! The loop: one trapped call after the other is read, decided, carried out or
//! refused. One thread does this for everything that changes a name, so that
//! nothing changes between a decision and its act.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags, accessat, openat2};
use stockade_model::{Layer, Level, Operation};
use stockade_sys::notify::{Answer, Notifier, Request};
use stockade_sys::{Errno, actor, resolve};

use super::caller::{Caller, Threads};
use super::ledger::{Actor, Denied, Ledger};
use super::pool::Pool;
use super::table::{Shape, notify_table};
use super::walk::{Object, Walk};
use super::{BrokerError, BrokerEvent, BrokerReport, step};
use crate::powers::{Powers, Refusal, Verdict};

/// How often parked calls are looked after.
const PARKED_CHECK: Duration = Duration::from_secs(1);
/// Sockets of the run that are remembered; past that, a connect to the oldest
/// kind of socket is refused, which is the safe side.
pub(super) const MAX_BOUND: usize = 10_000;

/// How a trapped call ends.
#[derive(Debug)]
pub(super) enum Reply {
    /// It returns this.
    Value(i64),
    /// The kernel goes on with it, and the floor decides.
    Continue,
    /// It returns this descriptor.
    Descriptor { fd: OwnedFd, close_on_exec: bool },
    /// It is parked: another thread answers it later.
    Parked,
}

/// Why a trapped call fails.
#[derive(Debug)]
pub(super) enum Failure {
    /// As it would without a sandbox.
    Native(Errno),
    /// Because it is not among the powers.
    Refused(Denied),
}

pub(super) type Handled = Result<Reply, Failure>;

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
    pub keeper: Option<u32>,
}

/// A call that another thread will answer.
pub(super) struct Parked {
    /// A pipe whose opening waits for the other end.
    pub pipe: Option<OwnedFd>,
}

/// The state of a broker.
pub(super) struct Service {
    pub notifier: Arc<Notifier>,
    pub powers: Powers,
    pub level: Level,
    pub threads: Threads,
    pub first: Option<First>,
    pub ledger: Arc<Mutex<Ledger>>,
    pub pool: Pool,
    /// Names under which the run has bound sockets, by their directory.
    pub bound: HashSet<(u64, u64, CString)>,
    /// By notification. A question put to a person will wait here too.
    pub parked: HashMap<u64, Parked>,
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
        let without_groups = rustix::process::geteuid().is_root() && level == Level::Full;
        actor::confine_thread(without_groups).map_err(step("confine the broker's thread"))
    }

    /// Makes ready to serve, on a thread that was [confined](Self::confine).
    pub fn new(
        notifier: Notifier,
        powers: Powers,
        level: Level,
        sink: Box<dyn Fn(BrokerEvent) + Send>,
    ) -> Result<Self, BrokerError> {
        let own_user = rustix::process::geteuid().as_raw();
        Ok(Self {
            notifier: Arc::new(notifier),
            powers,
            level,
            threads: Threads::new().map_err(step("open /proc"))?,
            first: None,
            ledger: Arc::new(Mutex::new(Ledger::new(sink))),
            pool: Pool::default(),
            bound: HashSet::new(),
            parked: HashMap::new(),
            shapes: notify_table(level).iter().map(|t| (t.call as i32, t.shape)).collect(),
            own_user,
            own_group: rustix::process::getegid().as_raw(),
            calls: 0,
        })
    }

    /// Serves until `stop` is readable or no process is left.
    pub fn serve(&mut self, stop: BorrowedFd<'_>) {
        let mut space = self.notifier.space();
        loop {
            let timeout = (!self.parked.is_empty()).then_some(PARKED_CHECK);
            let Ok(waiting) = self.notifier.wait(stop, timeout) else { return };
            if waiting.other {
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
            }
            if !self.parked.is_empty() {
                self.look_after_parked();
            }
        }
    }

    /// The end: nothing is answered after this.
    pub fn end(&mut self) -> BrokerReport {
        self.pool.close();
        for (_, parked) in self.parked.drain() {
            release(&parked);
        }
        let (denials, more_denials) = self.ledger.lock().unwrap_or_else(PoisonError::into_inner).take();
        BrokerReport { denials, more_denials, calls: self.calls }
    }

    fn answer(&mut self, request: Request) {
        self.calls += 1;
        let caller = self.threads.caller(request);
        let id = request.id;
        // A send fails only where the caller is gone: there is nobody to tell.
        let _ = match self.handle(&caller) {
            Ok(Reply::Value(value)) => self.notifier.answer(id, Answer::Value(value)),
            Ok(Reply::Continue) => self.notifier.answer(id, Answer::Continue),
            Ok(Reply::Parked) => Ok(()),
            Ok(Reply::Descriptor { fd, close_on_exec }) => {
                match self.notifier.answer_with_descriptor(id, fd.as_fd(), close_on_exec) {
                    Err(errno) if errno != Errno::NOENT => self.notifier.answer(id, Answer::Error(errno)),
                    other => other,
                }
            }
            Err(Failure::Native(errno)) => self.notifier.answer(id, Answer::Error(errno)),
            Err(Failure::Refused(denied)) => {
                self.record(&caller, denied);
                self.notifier.answer(id, Answer::Error(Errno::ACCESS))
            }
        };
    }

    pub fn record(&self, caller: &Caller, denied: Denied) {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).record(denied, || self.actor(caller));
    }

    /// Who made a call, as the host knows it.
    pub fn actor(&self, caller: &Caller) -> Actor {
        Actor { pid: Some(caller.identity().map_or(caller.request.pid, |who| who.process)), program: caller.program() }
    }

    fn handle(&mut self, caller: &Caller) -> Handled {
        if self.first.is_none() {
            self.meet(caller)?;
        }
        let Some(shape) = self.shapes.get(&caller.request.call).copied() else {
            return Err(Errno::NOSYS.into());
        };
        match shape {
            Shape::Open { .. } | Shape::Creat => self.open(caller, shape),
            Shape::Mkdir { .. }
            | Shape::Mknod { .. }
            | Shape::Remove { .. }
            | Shape::RemoveAt
            | Shape::Rename { .. }
            | Shape::Link { .. }
            | Shape::Symlink { .. } => self.name(caller, shape),
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
            | Shape::RemoveAttributeDescriptor => self.metadata(caller, shape),
            Shape::Connect => self.connect(caller),
            Shape::Bind => self.bind(caller),
            Shape::Exec { at } => self.exec(caller, at),
            Shape::Umask => {
                self.threads.mask_changes();
                Ok(Reply::Continue)
            }
            Shape::InternetSocket => Err(Failure::Refused(Denied {
                operation: Operation::Socket,
                object: if caller.int(0) == libc::AF_INET { b"AF_INET".to_vec() } else { b"AF_INET6".to_vec() },
                layer: Layer::Broker,
                refusal: Refusal { rule: "no network at level restricted".to_owned(), grant: None },
            })),
            Shape::NotImplemented => Err(Errno::NOSYS.into()),
        }
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
        self.first = Some(First { root, streams, keeper: Some(identity.parent) });
        Ok(())
    }

    /// Starts the resolution of one call's paths. What was read of the caller
    /// so far is thrown away where it is no longer waiting.
    pub fn walk<'a>(&'a self, caller: &'a Caller) -> Result<Walk<'a>, Errno> {
        self.must_still_wait(caller)?;
        let first = self.first.as_ref().ok_or(Errno::ACCESS)?;
        Ok(Walk::new(caller, first.root.as_fd(), self.level, first.keeper, self.powers.unattached()))
    }

    pub fn must_still_wait(&self, caller: &Caller) -> Result<(), Errno> {
        if self.notifier.is_valid(caller.request.id) { Ok(()) } else { Err(Errno::SRCH) }
    }

    /// The decision on the object at `path`.
    pub fn decide(&self, operation: Operation, path: &[u8]) -> Verdict {
        self.powers.decide(operation, Path::new(OsStr::from_bytes(path)), &|p| self.exists(p))
    }

    /// As [`decide`](Self::decide), a refusal made ready to be recorded.
    pub fn permit(&self, operation: Operation, path: &[u8]) -> Result<Verdict, Failure> {
        match self.decide(operation, path) {
            Verdict::Refuse(refusal) => Err(refused(operation, path, refusal)),
            verdict => Ok(verdict),
        }
    }

    /// Whether something of the run's own has this path.
    fn exists(&self, path: &Path) -> bool {
        let Some(first) = &self.first else { return false };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        openat2(&first.root, path, flags, Mode::empty(), how).is_ok()
    }

    /// Whether an object that was reached by a descriptor is one of the run's
    /// own standard streams, open for writing.
    pub fn is_own_stream(&self, object: &Object) -> bool {
        let key = (object.stat.st_dev, object.stat.st_ino);
        self.first.as_ref().is_some_and(|first| first.streams.contains(&key))
    }

    /// A user or group that exists where the caller is.
    pub fn is_mapped(&self, user: Option<u32>, group: Option<u32>) -> bool {
        self.level != Level::Full
            || (user.is_none_or(|u| u == self.own_user) && group.is_none_or(|g| g == self.own_group))
    }

    pub fn own_user(&self) -> u32 {
        self.own_user
    }

    /// The mode of something new.
    pub fn masked(&self, caller: &Caller, mode: u32) -> Result<Mode, Errno> {
        Ok(Mode::from_bits_retain(mode & 0o7777 & !self.threads.umask(caller)?))
    }

    fn exec(&mut self, caller: &Caller, at: bool) -> Handled {
        if let Ok(program) = self.program_to_run(caller, at) {
            let pid = caller.identity().map_or(caller.request.pid, |who| who.process);
            self.ledger.lock().unwrap_or_else(PoisonError::into_inner).executed(pid, program);
        }
        Ok(Reply::Continue)
    }

    /// What an exec would run, where it exists and may be run.
    fn program_to_run(&self, caller: &Caller, at: bool) -> Result<Vec<u8>, Errno> {
        let (start, index) = if at { (caller.int(0), 1) } else { (libc::AT_FDCWD, 0) };
        let path = caller.path(index)?;
        let object = if at && path.is_empty() {
            Object::of(caller.object(start)?)?
        } else {
            self.walk(caller)?.find(start, &path, true)?
        };
        native_access(&object.fd, Access::EXEC_OK)?;
        Ok(object.path)
    }

    /// Lets go of calls whose caller is gone.
    fn look_after_parked(&mut self) {
        let notifier = &self.notifier;
        self.parked.retain(|id, parked| {
            let waits = notifier.is_valid(*id);
            if !waits {
                release(parked);
            }
            waits
        });
    }
}

/// Ends the wait of a thread that opens one end of a pipe: for a moment both
/// ends are open.
fn release(parked: &Parked) {
    if let Some(pipe) = &parked.pipe {
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

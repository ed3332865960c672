//! Client of a keeper: a sandbox in another process. Starts, finds and ends keepers.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::stdio::{stderr, stdin, stdout};
use serde::de::DeserializeOwned;
use stockade_engine::remote::{Line as _, Order, RemoteAttempt};
use stockade_engine::{
    Attempt, Backend, Events, Io, Sandbox, SandboxError, SandboxEvent, SandboxEvents, SandboxPlan, SandboxUsage,
    StartError, Tree,
};
use stockade_model::{EnforcementReport, Grant, Level, Plan, SandboxId};
use stockade_sys::ready::readable_before;
use stockade_sys::socket::{Address, demand_own};

use super::super::command::honours;
use super::super::{NATIVE, failed, inside, open_tree, unsupported};
use super::wire::{Asked, Refusal, SOCKET, say};
use crate::guards::settings_variables;
use crate::remote::{Line, own_umask};

/// Time-out for the creation of a sandbox, by this process or another.
const MADE_WITHIN: Duration = Duration::from_secs(60);
/// Time-out for an answer of a keeper.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Time-out for the end of a sandbox and its keeper, before the keeper is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(25);
/// Time-out for the exit of a killed process.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Lock file that serialises the start of a keeper.
const STARTING: &str = "keeper.lock";
/// Interval between two attempts to take that lock.
const AGAIN: Duration = Duration::from_millis(5);
/// Name of a keeper in lists of processes, because its program may be `/proc/self/exe`.
const NAME: &str = "stockade";

/// Program of the keepers, and the directory in which they are found.
#[derive(Clone, Debug)]
pub(in super::super) struct Apart {
    pub(in super::super) program: PathBuf,
    pub(in super::super) arguments: Vec<OsString>,
    /// The directory with one directory per sandbox, named by its id.
    pub(in super::super) root: PathBuf,
}

impl Apart {
    /// Creates a sandbox, unless another process has just created it.
    pub(in super::super) fn create(
        &self,
        plan: &SandboxPlan,
        events: SandboxEvents,
    ) -> Result<Apartment, SandboxError> {
        let directory = self.directory(&plan.id);
        let cannot = |error: io::Error| failed(format!("cannot start a keeper of the sandbox {}: {error}", plan.id));
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(cannot(e)),
            _ => {}
        }
        let _alone = alone(&directory.join(STARTING)).map_err(cannot)?;
        match self.find(plan, events.clone()) {
            Err(SandboxError::Gone(_)) => {}
            found => return found,
        }
        let keeper = self.start(plan, &directory)?;
        // This process is the parent, so it must reap the keeper.
        let reap = move || drop({ keeper }.wait());
        let reaper = thread::Builder::new().name("keeper-end".to_owned()).spawn(reap);
        drop(reaper.map_err(cannot)?);
        self.find(plan, events)
    }

    /// Connects to a sandbox that is kept.
    pub(in super::super) fn find(&self, plan: &SandboxPlan, events: SandboxEvents) -> Result<Apartment, SandboxError> {
        let door = Door { id: plan.id.clone(), directory: self.directory(&plan.id) };
        let enforced = door.ask(&Asked::Enforced, "its report")?;
        let destroyed = Arc::new(AtomicBool::new(false));
        let watch = Arc::new(door.say(&Asked::Watch, &[])?);
        let (heard, ended) = (Arc::clone(&watch), Arc::clone(&destroyed));
        let listen = move || listen(&heard, &events, &ended);
        let thread = thread::Builder::new().name("sandbox-events".to_owned()).spawn(listen);
        drop(thread.map_err(|error| failed(format!("cannot start a thread: {error}")))?);
        let trees = [plan.workspace.clone(), plan.home.clone()];
        Ok(Apartment { door, enforced, trees, watch, destroyed })
    }

    /// Ends a remaining keeper and its sandbox.
    pub(in super::super) fn clear(&self, id: &SandboxId) -> Result<(), SandboxError> {
        Door { id: id.clone(), directory: self.directory(id) }.end()?;
        // If the keeper was killed, its processes have ended, but its control group remains.
        crate::limits::remove_orphans();
        Ok(())
    }

    fn directory(&self, id: &SandboxId) -> PathBuf {
        self.root.join(id.as_str())
    }

    #[allow(clippy::disallowed_methods, reason = "a program of this project's own, and nothing of a run")]
    fn start(&self, plan: &SandboxPlan, directory: &Path) -> Result<Child, SandboxError> {
        let cannot = |error: io::Error| failed(format!("cannot start a keeper of the sandbox {}: {error}", plan.id));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::open(directory, flags, Mode::empty()).map_err(|e| cannot(e.into()))?;
        let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
        ours.set_write_timeout(Some(ANSWERS_WITHIN)).map_err(cannot)?;
        let mut keeper = Command::new(&self.program)
            .arg0(NAME)
            .args(&self.arguments)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(cannot)?;
        let told = say(ours, &(plan, settings_variables()), &[place.as_fd()]).and_then(|line| {
            line.stream().set_read_timeout(Some(MADE_WITHIN))?;
            line.receive::<Result<(), StartError>>()
        });
        match told {
            Ok(Some(Ok(()))) => Ok(keeper),
            other => {
                // The keeper has exited by itself, or must not continue.
                let _ = keeper.kill();
                let _ = keeper.wait();
                Err(match other {
                    Ok(Some(Err(error))) => SandboxError::Failed(error),
                    Ok(_) => failed(format!("the keeper of the sandbox {} ended before it was made", plan.id)),
                    Err(error) => cannot(error),
                })
            }
        }
    }
}

/// Takes the exclusive lock of a file.
fn alone(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let give_up = Instant::now() + MADE_WITHIN;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < give_up => thread::sleep(AGAIN),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Forwards the events of the keeper, and reports its end if that was not requested.
fn listen(line: &Line, events: &SandboxEvents, destroyed: &AtomicBool) {
    let mut is_lost = false;
    while let Ok(Some(event)) = line.receive::<SandboxEvent>() {
        is_lost |= matches!(event, SandboxEvent::Lost(_));
        events.tell(event);
    }
    if !is_lost && !destroyed.load(Ordering::Acquire) {
        events.tell(SandboxEvent::Lost("its keeper has ended".to_owned()));
    }
}

/// Address of a keeper.
#[derive(Clone, Debug)]
struct Door {
    id: SandboxId,
    directory: PathBuf,
}

impl Door {
    fn connect(&self) -> Result<UnixStream, SandboxError> {
        let connect = || {
            let stream = UnixStream::connect(Address::of(&self.directory, SOCKET)?.path())?;
            demand_own(&stream)?;
            Ok(stream)
        };
        connect().map_err(|error: io::Error| match error.kind() {
            // No directory, no socket, or no listener.
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => SandboxError::Gone(self.id.clone()),
            _ => self.unheard(&error),
        })
    }

    fn unheard(&self, why: &dyn std::fmt::Display) -> SandboxError {
        failed(format!("the keeper of the sandbox {} cannot be reached: {why}", self.id))
    }

    fn say(&self, asked: &Asked, along: &[BorrowedFd<'_>]) -> Result<Line, SandboxError> {
        say(self.connect()?, asked, along).map_err(|error| self.broken(&error))
    }

    /// Returns the error for a broken connection: the keeper is gone, or soon will be.
    fn broken(&self, error: &io::Error) -> SandboxError {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
                SandboxError::Gone(self.id.clone())
            }
            io::ErrorKind::WouldBlock => self.unheard(&"it does not answer"),
            _ => self.unheard(error),
        }
    }

    /// Sends a request and receives the response. `what` names the operation in errors.
    fn ask<T: DeserializeOwned>(&self, asked: &Asked, what: &'static str) -> Result<T, SandboxError> {
        let line = self.say(asked, &[])?;
        self.answer(&line, ANSWERS_WITHIN, what)
    }

    fn answer<T: DeserializeOwned>(
        &self,
        line: &Line,
        within: Duration,
        what: &'static str,
    ) -> Result<T, SandboxError> {
        let heard = line.stream().set_read_timeout(Some(within)).and_then(|()| line.receive::<Result<T, Refusal>>());
        match heard {
            Ok(Some(answer)) => answer.map_err(|refusal| refusal.of(what, &self.id)),
            Ok(None) => Err(SandboxError::Gone(self.id.clone())),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Ends the keeper, and with it the sandbox. Does nothing if there is no keeper.
    fn end(&self) -> Result<(), SandboxError> {
        let stream = match self.connect() {
            Err(SandboxError::Gone(_)) => return Ok(()),
            other => other?,
        };
        let keeper = process_of(&stream);
        let asked = say(stream, &Asked::End, &[]).map_err(|error| self.broken(&error));
        let done = asked.and_then(|line| self.answer::<()>(&line, ENDS_WITHIN, "its end"));
        match (done, keeper) {
            // The keeper exits after this answer.
            (Ok(()) | Err(SandboxError::Gone(_)), Some(keeper)) if has_ended(&keeper) => Ok(()),
            (Ok(()) | Err(SandboxError::Gone(_)), None) => Ok(()),
            (_, Some(keeper)) => {
                // The init exits with the keeper.
                let _ = pidfd_send_signal(&keeper, Signal::KILL);
                if has_ended(&keeper) { Ok(()) } else { Err(self.unheard(&"it cannot be ended")) }
            }
            (Err(error), None) => Err(error),
        }
    }
}

/// Returns the process at the other end. The process lives at least as long as the connection, so
/// its number is not reused while the connection is open.
fn process_of(stream: &UnixStream) -> Option<OwnedFd> {
    let keeper = pidfd_open(socket_peercred(stream).ok()?.pid, PidfdFlags::empty()).ok()?;
    let hung_up = readable_before(&[stream.as_fd()], Instant::now());
    matches!(hung_up, Ok(false)).then_some(keeper)
}

fn has_ended(process: &OwnedFd) -> bool {
    matches!(readable_before(&[process.as_fd()], Instant::now() + GONE_WITHIN), Ok(true))
}

/// A sandbox that another process keeps. Dropping this value does not end the sandbox.
#[derive(Debug)]
pub(in super::super) struct Apartment {
    door: Door,
    enforced: EnforcementReport,
    /// Workspace and home, as paths on the host.
    trees: [PathBuf; 2],
    watch: Arc<Line>,
    destroyed: Arc<AtomicBool>,
}

impl Sandbox for Apartment {
    fn id(&self) -> &SandboxId {
        &self.door.id
    }

    fn enforced(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(Elsewhere(self.door.clone()))
    }

    fn pause(&self) -> Result<(), SandboxError> {
        self.door.ask(&Asked::Pause, "a pause")
    }

    fn resume(&self) -> Result<(), SandboxError> {
        self.door.ask(&Asked::Resume, "going on")
    }

    fn snapshot(&self, _to: &Path) -> Result<(), SandboxError> {
        Err(unsupported("a snapshot", "its directories are the host's own: copy them while it is paused"))
    }

    fn usage(&self) -> Result<SandboxUsage, SandboxError> {
        self.door.ask(&Asked::Usage, "its usage")
    }

    fn tree(&self, which: Tree) -> Result<OwnedFd, SandboxError> {
        let [workspace, home] = &self.trees;
        open_tree(inside(which), if which == Tree::Workspace { workspace } else { home })
    }

    fn destroy(&self) -> Result<(), SandboxError> {
        self.destroyed.store(true, Ordering::Release);
        self.door.end()
    }
}

impl Drop for Apartment {
    fn drop(&mut self) {
        // The end of the connection must not be reported as a loss.
        self.destroyed.store(true, Ordering::Release);
        self.watch.hang_up();
    }
}

/// Backend for commands in a sandbox that another process keeps.
struct Elsewhere(Door);

impl Backend for Elsewhere {
    fn name(&self) -> &'static str {
        NATIVE
    }

    fn honours(&self, grant: &Grant, level: Level) -> bool {
        honours(grant, level)
    }

    fn prepare(&self, plan: &Plan, io: &Io, hold: bool, events: Events) -> Result<Box<dyn Attempt>, StartError> {
        let cannot = |what: &dyn std::fmt::Display| StartError { what: what.to_string(), hint: None };
        let umask = own_umask().map_err(|e| cannot(&e))?;
        let order = Order { plan: plan.clone(), io: *io, hold, umask };
        let line = self.0.say(&Asked::Run(Box::new(order)), &[stdin(), stdout(), stderr()]).map_err(|e| cannot(&e))?;
        Ok(Box::new(RemoteAttempt::begin(Arc::new(line), events)?))
    }
}

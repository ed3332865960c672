//! The supervisor process of a sandbox (the "keeper"), from its start to its exit.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use stockade_engine::{SandboxError, SandboxEvent, SandboxEvents, SandboxPlan, StartError};
use stockade_model::SandboxId;
use stockade_sys::descriptors::close_all_but;
use stockade_sys::passing::above_stdio;
use stockade_sys::socket::{Address, demand_own};

use super::super::command::{Caller, CommandBackend};
use super::super::keep::Kept;
use super::watchers::Watchers;
use super::wire::{Asked, Refusal, SOCKET, hear};
use crate::guards::{SettingsVariables, use_settings_variables};
use crate::remote::{self, Line};

/// Most connections at the same time. Each has a thread, and a command keeps one as long as it runs.
const CONNECTIONS_MAX: usize = 512;
/// Time-out for the request of a new connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait between two checks of the loop.
const LOOK_AROUND: Duration = Duration::from_secs(10);
/// Longest interval between two calls of [`Keep::wanted`].
const WANTED_FOR: Duration = Duration::from_secs(60);
/// Time-out for the clients of commands to learn of the end.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// Callbacks of the keeper's program.
pub struct Keep {
    /// Receiver of the events, besides the clients of the sandbox.
    pub events: SandboxEvents,
    /// Returns the time until the next call, or `None` if the sandbox must end: it has expired, or
    /// is no longer registered.
    pub wanted: Box<dyn FnMut() -> Option<Duration>>,
}

impl std::fmt::Debug for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keep").finish_non_exhaustive()
    }
}

/// Runs a keeper, from its start to its exit. The program that
/// [`NativeSandboxes`](crate::NativeSandboxes) starts for its sandboxes must call this first. Reads
/// the plan from standard input, builds the isolation, keeps it, and returns when the sandbox has
/// ended. `begin` receives the sandbox's id and its directory.
///
/// # Errors
/// [`io::Error`] if standard input is no connection with a plan. Other errors are sent over it.
pub fn keep_sandbox(begin: impl FnOnce(&SandboxId, &Path) -> Result<Keep, StartError>) -> io::Result<()> {
    let ((plan, variables), along, maker) = hear::<(SandboxPlan, SettingsVariables)>(leave_maker()?)?;
    use_settings_variables(variables);
    let [Some(directory), ..] = along else { return Err(io::ErrorKind::InvalidData.into()) };
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).read_link()?;
    let made = begin(&plan.id, &path).and_then(|keep| Keeper::make(&plan, &path, keep));
    match made {
        Ok(keeper) => {
            // A creator that is gone can find the sandbox by its name.
            let _ = maker.send(&Ok::<(), StartError>(()));
            drop(maker);
            keeper.keep();
            Ok(())
        }
        Err(error) => maker.send(&Err::<(), StartError>(error)),
    }
}

/// Detaches from the creator: its terminal, its streams, its descriptors.
fn leave_maker() -> io::Result<UnixStream> {
    // `setsid(2)` fails for a process group leader, which a new child is not.
    rustix::process::setsid()?;
    let maker = above_stdio(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?)?;
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    drop(nothing);
    close_all_but(&[0, 1, 2, maker.as_raw_fd()])?;
    let maker = UnixStream::from(maker);
    maker.set_read_timeout(Some(PATIENCE))?;
    Ok(maker)
}

/// Reason for the end of a sandbox.
enum Ending {
    /// A client requested it; the client receives the result.
    Asked(Line),
    /// The sandbox's processes are gone.
    Lost,
}

struct Keeper {
    desk: Arc<Desk>,
    listener: UnixListener,
    socket: Bound,
    ending: Receiver<Ending>,
    wake: Arc<OwnedFd>,
    wanted: Box<dyn FnMut() -> Option<Duration>>,
    /// Held by every thread that serves a client.
    busy: (Arc<()>, Sender<()>),
    idle: Receiver<()>,
}

/// A listening socket's name, which is removed with this value.
struct Bound {
    address: Address,
    inode: u64,
}

impl Bound {
    /// Listens in this directory, replacing the socket of a keeper that is gone.
    fn listen(directory: &Path) -> io::Result<(UnixListener, Self)> {
        let address = Address::of(directory, SOCKET)?;
        match fs::remove_file(address.path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(address.path())?;
        listener.set_nonblocking(true)?;
        let inode = fs::symlink_metadata(address.path())?.ino();
        Ok((listener, Self { address, inode }))
    }

    /// Returns whether the socket still has its name.
    fn is_there(&self) -> bool {
        fs::symlink_metadata(self.address.path()).is_ok_and(|found| found.ino() == self.inode)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.is_there() {
            // Another process may be removing the whole directory.
            let _ = fs::remove_file(self.address.path());
        }
    }
}

impl Keeper {
    fn make(plan: &SandboxPlan, directory: &Path, keep: Keep) -> Result<Self, StartError> {
        let cannot = |error: io::Error| StartError { what: format!("cannot keep the sandbox: {error}"), hint: None };
        let (end, ending) = channel();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| cannot(e.into()))?;
        let wake = Arc::new(wake);
        let watchers = Arc::new(Watchers::default());
        let events = fan_out(keep.events, Arc::clone(&watchers), end.clone(), Arc::clone(&wake));
        let kept = Arc::new(Kept::make(plan, events, None)?);
        // Clients can find the sandbox from here on.
        let (listener, socket) = Bound::listen(directory).map_err(cannot)?;
        let desk = Arc::new(Desk { kept, watchers, end: Mutex::new(end), wake: Arc::clone(&wake) });
        let (busy, idle) = channel();
        Ok(Self { desk, listener, socket, ending, wake, wanted: keep.wanted, busy: (Arc::new(()), busy), idle })
    }

    /// Serves until the sandbox must end, or has ended.
    fn keep(mut self) {
        let mut ask_at = Instant::now();
        let ending = loop {
            self.wait(ask_at);
            if let Ok(ending) = self.ending.try_recv() {
                break Some(ending);
            }
            if !self.socket.is_there() {
                break None;
            }
            if Instant::now() >= ask_at {
                let Some(wanted_for) = (self.wanted)() else { break None };
                ask_at = Instant::now() + wanted_for.min(WANTED_FOR);
            }
            while let Ok((stream, _)) = self.listener.accept() {
                self.take_in(stream);
            }
        };
        self.end(ending);
    }

    fn wait(&self, ask_at: Instant) {
        let at_most = ask_at.saturating_duration_since(Instant::now()).min(LOOK_AROUND);
        let at_most = Timespec { tv_sec: at_most.as_secs().cast_signed(), tv_nsec: at_most.subsec_nanos().into() };
        let mut waited =
            [PollFd::new(&self.listener, PollFlags::IN), PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        // An error only makes the next check come sooner.
        let _ = poll(&mut waited, Some(&at_most));
    }

    /// Serves a connection on its own thread. Closes it if there are too many, which the client sees.
    fn take_in(&self, stream: UnixStream) {
        let (count, busy) = self.busy.clone();
        if Arc::strong_count(&self.busy.0) > CONNECTIONS_MAX {
            return;
        }
        let desk = Arc::clone(&self.desk);
        let serve = move || {
            // A malformed request or a closed connection concerns only that client.
            if let Err(error) = desk.serve(stream) {
                tracing::debug!(%error, "somebody was not answered");
            }
            drop((count, busy));
        };
        if let Err(error) = thread::Builder::new().name("desk".to_owned()).spawn(serve) {
            tracing::warn!(%error, "nobody is served");
        }
    }

    fn end(self, ending: Option<Ending>) {
        let Self { desk, listener, socket, busy, idle, .. } = self;
        drop((listener, socket));
        let done = desk.kept.end();
        desk.watchers.close();
        drop(busy);
        // The clients of commands learn of their ends first.
        if idle.recv_timeout(HEARD_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("somebody does not hear that the sandbox has ended");
        }
        if let Some(Ending::Asked(line)) = ending {
            let _ = line.send(&done.map_err(Refusal::from));
        }
    }
}

/// Returns events that are sent to the keeper's program and to all watching clients. If the sandbox
/// is lost, the keeper ends too.
fn fan_out(own: SandboxEvents, watchers: Arc<Watchers>, end: Sender<Ending>, wake: Arc<OwnedFd>) -> SandboxEvents {
    let end = Mutex::new(end);
    SandboxEvents::new(move |event| {
        watchers.tell(&event);
        let is_lost = matches!(event, SandboxEvent::Lost(_));
        own.tell(event);
        if is_lost {
            let _ = end.lock().unwrap_or_else(PoisonError::into_inner).send(Ending::Lost);
            rouse(&wake);
        }
    })
}

fn rouse(wake: &OwnedFd) {
    // A full counter is readable, which suffices.
    let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
}

/// Connection handler of the keeper.
struct Desk {
    kept: Arc<Kept>,
    watchers: Arc<Watchers>,
    end: Mutex<Sender<Ending>>,
    wake: Arc<OwnedFd>,
}

impl Desk {
    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        demand_own(&stream)?;
        // An accepted connection may block, unlike the listener.
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (asked, streams, line) = hear(stream)?;
        let refused = |done: Result<(), SandboxError>| done.map_err(Refusal::from);
        match asked {
            Asked::Enforced => line.send(&Ok::<_, Refusal>(self.kept.enforced())),
            Asked::Pause => line.send(&refused(self.kept.pause())),
            Asked::Resume => line.send(&refused(self.kept.resume())),
            Asked::Usage => line.send(&self.kept.usage().map_err(Refusal::from)),
            Asked::Watch => {
                self.watchers.serve(&line);
                Ok(())
            }
            Asked::Run(order) => {
                let [Some(stdin), Some(stdout), Some(stderr)] = streams else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                let caller = Caller { streams: Some([stdin, stdout, stderr]), umask: Some(order.umask) };
                let backend = CommandBackend::new(Arc::clone(&self.kept));
                remote::serve(line, |events| backend.begin(&order.plan, order.io, order.hold, events, caller))
            }
            Asked::End => {
                let _ = self.end.lock().unwrap_or_else(PoisonError::into_inner).send(Ending::Asked(line));
                rouse(&self.wake);
                Ok(())
            }
        }
    }
}

//! A backend whose sandboxes are begun ahead: a session in which a program runs
//! many commands, each with a view of processes and a private place of its own.
//!
//! Three kinds of processes: the program; its **helper**, forked while the program
//! has one thread, which runs nothing but keeps one front ahead; the **fronts**, each
//! of which begins one sandbox, waits for one plan, and ends with it. So nothing of a
//! command is there for the next: there is nothing that would have to be reset. The
//! helper ends with the program, a front with the helper, a sandbox with its front,
//! however they end.
//!
//! Rules, questions and the record stay in the program: to its engine the session is
//! a backend like any other, whose attempts are elsewhere ([`crate::remote`]).

mod front;
mod helper;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::stdio::{stderr, stdin, stdout};
use stockade_engine::remote::{Order, RemoteAttempt};
use stockade_engine::{Attempt, Backend, Events, Io, StartError};
use stockade_model::{Grant, Level, Plan};
use stockade_sys::clone::exit_now;
use stockade_sys::passing;
use stockade_sys::ready::readable_before;
use stockade_sys::reap::wait_pidfd;
use stockade_sys::session::{Side, fork_into_session};

use crate::backend::NativeBackend;
use crate::remote::{Line, ORDER, own_umask, to_file};

/// How long a start waits for a front: one more is begun at once, unless too many run.
const FRONT_WITHIN: Duration = Duration::from_secs(30);
/// Fronts that may be gone when they are asked, one after the other.
const LOST_MAX: usize = 4;
/// How long the helper may take to end with the session.
const HELPER_ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Many sandboxes, one after the other or side by side, each begun before it is asked
/// for. It is a [`Backend`]: give it to an [`Engine`](stockade_engine::Engine) in the
/// place of a [`NativeBackend`], whose powers and reports it has.
///
/// Start it first thing in `main`: the process must have one thread then, as the
/// copies that run the sandboxes could wait forever for a lock that another thread
/// held. They are copies of the program as it is at that moment, so the earlier, the
/// smaller; they run no code of the program's. The environment in which secrets of the
/// door are looked up is that of this moment as well.
///
/// For sandboxes that are not only begun but nearly built ahead, the program names
/// [`Allocator`](crate::Allocator) as its global allocator; without, a start builds
/// the sandbox from a process that is small and waits.
///
/// Dropping it ends whatever still runs in it. So does the end of the program, by
/// whatever means.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use stockade_engine::Backend;
/// use stockade_native::Session;
///
/// #[global_allocator]
/// static ALLOCATOR: stockade_native::Allocator = stockade_native::Allocator;
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let session: Arc<dyn Backend> = Arc::new(Session::start()?);
///     // From here on threads may be started, and `Engine { backend: session, .. }`
///     // runs requests, as many as one likes.
///     assert_eq!(session.name(), "native");
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Session {
    /// Where fronts come from; nothing once it is over.
    control: Mutex<Option<OwnedFd>>,
    helper: OwnedFd,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The program cannot be copied, most likely because it has other threads.
    #[error("cannot begin a session: {0}\nhint: begin it first thing in main, before any thread or runtime")]
    Fork(io::Error),
    /// Out of descriptors.
    #[error("cannot begin a session: {0}")]
    System(#[from] io::Error),
}

impl Session {
    /// Begins a session that stages nothing.
    ///
    /// # Errors
    /// Where the process has other threads, or is at a limit.
    pub fn start() -> Result<Self, SessionError> {
        Self::start_with(None)
    }

    /// Begins a session that keeps stages in this directory, see
    /// [`NativeBackend::staging`].
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_staging(stages: PathBuf) -> Result<Self, SessionError> {
        Self::start_with(Some(stages))
    }

    fn start_with(stages: Option<PathBuf>) -> Result<Self, SessionError> {
        let (control, inside) = passing::pair().map_err(io::Error::from)?;
        match fork_into_session().map_err(SessionError::Fork)? {
            // Nothing of the program's may run or be dropped here.
            Side::Child => exit_now(helper::serve(&inside, stages)),
            Side::Parent(helper) => {
                let helper = pidfd_open(helper, PidfdFlags::empty()).map_err(io::Error::from)?;
                Ok(Self { control: Mutex::new(Some(control)), helper })
            }
        }
    }

    /// The next front: where it is to be told what to do.
    fn front(&self) -> Result<OwnedFd, StartError> {
        // One at a time: each takes one and asks for another.
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let control = control.as_ref().ok_or_else(|| unready(&"it is over"))?;
        let deadline = Instant::now() + FRONT_WITHIN;
        if !readable_before(&[control.as_fd()], deadline).map_err(|e| unready(&e))? {
            return Err(unready(&"too many of its commands run"));
        }
        let received = passing::receive(control.as_fd(), &mut [0; 1], false).map_err(|e| unready(&e))?;
        let [Some(front), ..] = received.descriptors else { return Err(unready(&"its helper has ended")) };
        // A helper that is gone is noticed by the next.
        let _ = passing::send(control.as_fd(), &[helper::TAKEN], &[]);
        Ok(front)
    }

    /// Tells a front what to do: the line to it.
    fn place(&self, order: &Order) -> Result<Line, StartError> {
        let order = to_file(order).map_err(|e| unready(&e))?;
        for _ in 0..LOST_MAX {
            let front = self.front()?;
            let (ours, theirs) = UnixStream::pair().map_err(|e| unready(&e))?;
            let along = [order.as_fd(), stdin(), stdout(), stderr(), theirs.as_fd()];
            if passing::send(front.as_fd(), &[ORDER], &along).is_ok() {
                return Line::over(ours).map_err(|e| unready(&e));
            }
        }
        Err(unready(&"its processes are ended by somebody"))
    }
}

fn unready(why: &dyn std::fmt::Display) -> StartError {
    StartError { what: format!("the session has no sandbox to give: {why}"), hint: None }
}

impl Backend for Session {
    fn name(&self) -> &'static str {
        NativeBackend::default().name()
    }

    fn honours(&self, grant: &Grant, level: Level) -> bool {
        NativeBackend::default().honours(grant, level)
    }

    fn prepare(&self, plan: &Plan, io: &Io, hold: bool, events: Events) -> Result<Box<dyn Attempt>, StartError> {
        let umask = own_umask().map_err(|e| unready(&e))?;
        let line = self.place(&Order { plan: plan.clone(), io: *io, hold, umask })?;
        Ok(Box::new(RemoteAttempt::begin(Arc::new(line), events)?))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // With it goes the way to the front that waits, which so ends by itself.
        drop(self.control.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        if !matches!(readable_before(&[self.helper.as_fd()], Instant::now() + HELPER_ENDS_WITHIN), Ok(true)) {
            let _ = pidfd_send_signal(&self.helper, Signal::KILL);
        }
        // Somebody else may have reaped it.
        let _ = wait_pidfd(self.helper.as_fd());
    }
}

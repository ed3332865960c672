//! A backend that prepares sandboxes in advance: a session in which a program runs many commands,
//! each with a PID namespace and private directories of its own.
//!
//! There are three kinds of processes. The first is the program. The second is its **helper**,
//! forked while the program has one thread, which runs no command and keeps a pool of workers
//! ([`stockade_supervisor::WorkerPool`]). The third are the **workers**: each starts one sandbox,
//! waits for one order, and exits with it. So no state of a command remains for the next, and
//! nothing must be reset. The helper exits with the program, a worker with the helper, and a sandbox
//! with its worker, for any reason of their end.
//!
//! The program sends orders over one connection, of which each worker has the other end. The worker
//! that waits receives the next order.
//!
//! Rules, questions and the audit log stay in the program. For its engine the session is a backend
//! like any other, with its attempts in other processes ([`stockade_backend_api::remote`]).

mod helper;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::stdio::{stderr, stdin, stdout};
use stockade_backend_api::remote::{AttemptOrder, RemoteAttempt};
use stockade_backend_api::{Attempt, AttemptEventSender, Backend, StartError, StdioMode};
use stockade_model::{AttemptPlan, Grant, IsolationLevel};
use stockade_supervisor::{Channel, fork_supervisor, own_umask};
use stockade_sys::ready::readable_before;
use stockade_sys::reap::wait_pidfd;

use crate::backend::NativeBackend;

/// Time-out for the helper's exit at the end of the session.
const HELPER_EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Many sandboxes, in sequence or at the same time, each prepared before it is requested. A session
/// is a [`Backend`]: give it to a `stockade_backend_api::RequestEngine` in place of a
/// [`NativeBackend`]. The session has the same powers and reports.
///
/// Start it first in `main`. The process must have one thread then, because the copies that run the
/// sandboxes could wait forever for a lock of another thread. The copies have the program's memory
/// of that moment, so an early start makes them small. They run no code of the program's. Secrets
/// of the egress proxy are also looked up in the environment of that moment.
///
/// To have sandboxes nearly built in advance, and not only started, set
/// [`ArenaAllocator`](crate::ArenaAllocator) as the global allocator of the program. Without it, a start
/// builds the sandbox from a small process that waits.
///
/// Dropping the session ends all commands in it. So does the end of the program, for any reason.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use stockade_backend_api::Backend;
/// use stockade_native::NativeSession;
///
/// #[global_allocator]
/// static ALLOCATOR: stockade_native::ArenaAllocator = stockade_native::ArenaAllocator;
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let session: Arc<dyn Backend> = Arc::new(NativeSession::start()?);
///     // From here on threads may be started, and `RequestEngine { backend: session, .. }`
///     // runs requests, as many as one likes.
///     assert_eq!(session.name(), "native");
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct NativeSession {
    /// Connection for orders; `None` once the session is over.
    orders: Option<Channel>,
    helper: OwnedFd,
}

/// The session cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The program cannot be copied, most likely because it has other threads.
    #[error("cannot start a session: {0}\nhint: start it at the beginning of main, before any thread or runtime")]
    Fork(io::Error),
    /// No descriptors are left.
    #[error("cannot start a session: {0}")]
    System(#[from] io::Error),
}

impl NativeSession {
    /// Starts a session that stages nothing.
    ///
    /// # Errors
    /// [`SessionError`] if the process has other threads, or is at a limit.
    pub fn start() -> Result<Self, SessionError> {
        Self::start_with(None)
    }

    /// Starts a session that keeps stages in this directory, see [`NativeOptions::stages`](crate::NativeOptions::stages).
    ///
    /// # Errors
    /// [`SessionError`] as for [`start`](Self::start).
    pub fn start_staging(stages: PathBuf) -> Result<Self, SessionError> {
        Self::start_with(Some(stages))
    }

    fn start_with(stages: Option<PathBuf>) -> Result<Self, SessionError> {
        let (helper, orders) =
            fork_supervisor(|orders| helper::run_helper(orders, stages)).map_err(SessionError::Fork)?;
        let helper = pidfd_open(helper, PidfdFlags::empty()).map_err(io::Error::from)?;
        Ok(Self { orders: Some(orders), helper })
    }

    /// Sends an order to the next worker. Returns the connection to it.
    fn send_order(&self, order: &AttemptOrder) -> Result<Channel, StartError> {
        let is_running = |helper: &OwnedFd| readable_before(&[helper.as_fd()], Instant::now()) == Ok(false);
        let orders = self.orders.as_ref().filter(|_| is_running(&self.helper));
        let orders = orders.ok_or_else(|| unready_error(&"its helper has ended"))?;
        let (ours, theirs) = Channel::pair().map_err(|e| unready_error(&e))?;
        let along = [stdin(), stdout(), stderr(), theirs.stream().as_fd()];
        orders.send_request(order, &along).map_err(|e| unready_error(&e))?;
        Ok(ours)
    }
}

fn unready_error(why: &dyn std::fmt::Display) -> StartError {
    StartError { what: format!("the session cannot provide a sandbox: {why}"), hint: None }
}

impl Backend for NativeSession {
    fn name(&self) -> &'static str {
        NativeBackend::default().name()
    }

    fn supports_grant(&self, grant: &Grant, level: IsolationLevel) -> bool {
        NativeBackend::default().supports_grant(grant, level)
    }

    fn prepare_attempt(
        &self,
        plan: &AttemptPlan,
        io: &StdioMode,
        hold: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError> {
        let umask = own_umask().map_err(|e| unready_error(&e))?;
        let channel = self.send_order(&AttemptOrder { plan: plan.clone(), io: *io, hold, umask })?;
        Ok(Box::new(RemoteAttempt::await_sandbox(Arc::new(channel), events)?))
    }
}

impl Drop for NativeSession {
    fn drop(&mut self) {
        // The end of this connection is the end of the helper.
        drop(self.orders.take());
        if !matches!(readable_before(&[self.helper.as_fd()], Instant::now() + HELPER_EXIT_TIMEOUT), Ok(true)) {
            let _ = pidfd_send_signal(&self.helper, Signal::KILL);
        }
        // Another part of the program may have reaped it.
        let _ = wait_pidfd(self.helper.as_fd());
    }
}

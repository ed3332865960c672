//! The supervisor of a session. It runs no command itself: its pool keeps one worker ahead that waits
//! with a prepared sandbox.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use stockade_store::sessions::{SessionDescription, SessionStore};
use stockade_supervisor::{Channel, Listener, PoolEvent, PoolLimits, StartReport, WorkerPool, release_streams};
use stockade_sys::clone::exit_now;

use super::worker::{self, WorkerParameters};
use crate::args::RunOptions;
use crate::command::CommandResult;
use crate::command::approvals::end_session;
use crate::failure::CliError;
use crate::{exit, interrupts};

/// Most commands that run at the same time; further clients wait.
const MAX_RUNNING_COMMANDS: usize = 64;
/// Delay between the start of a command and the fork of the next worker.
const WORKER_FORK_DELAY: Duration = Duration::from_millis(50);
/// Time-out for commands to end with the session, before they are killed.
const COMMAND_END_TIMEOUT: Duration = Duration::from_secs(30);

/// Parameters of a new session.
pub struct SessionParameters {
    /// Registry of the sessions.
    pub sessions: SessionStore,
    /// Description of the session.
    pub about: SessionDescription,
    /// Options of its commands.
    pub options: RunOptions,
    /// Time-out without a command.
    pub idle: Duration,
    /// Connection to the launcher, which waits for the [`StartReport`].
    pub launcher: Channel,
}

/// Supervises a session until its end. Only the launcher sees the exit code. Errors can only occur
/// while the launcher still waits.
///
/// # Errors
/// [`CliError`] if the session cannot be started.
pub fn supervise_session(start: SessionParameters) -> CommandResult {
    let cannot = |error: io::Error| CliError::new(format!("cannot start a session: {error}"));
    let signals = interrupts::take_signals()?;
    let about = SessionDescription { supervisor: std::process::id(), ..start.about };
    let watched = start.sessions.begin_session(&about)?;
    // An earlier session of the same name may have been killed before it could do this.
    if let Err(failure) = end_session(&about.id) {
        watched.close()?;
        return Err(failure);
    }
    let listening = Listener::listen_in(watched.session().path()).and_then(|listener| {
        release_streams()?;
        Ok(listener)
    });
    let parameters = match listening {
        Ok(listener) => WorkerParameters { listener, session: about.id, options: start.options },
        Err(error) => {
            watched.close()?;
            return Err(cannot(error));
        }
    };
    let mut pool = WorkerPool::new(PoolLimits {
        max_busy: MAX_RUNNING_COMMANDS,
        fork_delay: WORKER_FORK_DELAY,
        max_idle: Some(start.idle),
    });
    let mut launcher = Some(start.launcher);
    loop {
        match pool.next_event(&PollFd::new(&signals, PollFlags::IN)) {
            PoolEvent::Forked(notes) => {
                watched.stop_supervising();
                drop((signals, launcher));
                exit_now(worker::run_worker(parameters, notes).into());
            }
            PoolEvent::Ready => {
                // A launcher that has exited does not need it.
                launcher.take().into_iter().for_each(|launcher| drop(launcher.send(&StartReport::Ok(()))));
            }
            PoolEvent::Over => break,
        }
    }
    pool.end(COMMAND_END_TIMEOUT);
    // If that fails, the next session of this name does it, or does not start.
    let _ = end_session(&parameters.session);
    Ok(watched.close().map_or(exit::STOCKADE_FAILURE, |()| exit::SUCCESS))
}

//! The supervisor of a session. It has one thread and runs no command itself. It keeps one worker
//! ahead that waits with a prepared sandbox.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use stockade_store::sessions::{SessionDescription, SessionStore, SupervisedSession};
use stockade_sys::Errno;
use stockade_sys::reap::wait_pidfd;
use stockade_sys::session::{ForkResult, fork_process};

use super::wire::SessionListener;
use super::worker::{self, WorkerParameters, note};
use crate::args::RunOptions;
use crate::command::approvals::end_session;
use crate::exit;
use crate::failure::CliError;
use crate::interrupts::{self, BlockedSignals};

/// Most commands that run at the same time; further clients wait.
const MAX_RUNNING_COMMANDS: usize = 64;
/// Delay between the start of a command and the fork of the next worker, if the command still runs.
/// Preparing the next sandbox must not slow down that start.
const WORKER_FORK_DELAY: Duration = Duration::from_millis(50);
/// The delay after a worker that exited before it got a command.
const WORKER_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Most workers in a row that exit before they are ready; then the session is given up.
const MAX_WORKER_LOSSES: u32 = 20;
/// Time-out for commands to end with the session, before they are killed.
const COMMAND_END_TIMEOUT: Duration = Duration::from_secs(30);

/// More messages than a worker sends.
const NOTES_MAX: usize = 4;

/// Message to the launcher: the session can be used.
pub const STARTED_MESSAGE: u8 = b's';

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
    /// Pipe on which the launcher waits for a message.
    pub launcher: OwnedFd,
}

/// Supervises a session until its end. Only the launcher sees the exit code. Errors can only occur
/// while the launcher still waits.
///
/// # Errors
/// [`CliError`] if the session cannot be started.
pub fn supervise_session(start: SessionParameters) -> Result<u8, CliError> {
    let cannot = |error: io::Error| CliError::new(format!("cannot start a session: {error}"));
    let signals = interrupts::take_signals()?;
    let about = SessionDescription { supervisor: std::process::id(), ..start.about };
    let watched = start.sessions.begin_session(&about)?;
    // An earlier session of the same name may have been killed before it could do this.
    if let Err(failure) = end_session(&about.id) {
        watched.close()?;
        return Err(failure);
    }
    let listener = SessionListener::bind_in(watched.session().path()).and_then(|listener| {
        let_streams_go()?;
        Ok(listener)
    });
    let parameters = match listener {
        Ok(listener) => WorkerParameters { listener, session: about.id, options: start.options },
        Err(error) => {
            watched.close()?;
            return Err(cannot(error));
        }
    };
    let supervisor = SessionSupervisor {
        parameters,
        watched,
        signals,
        workers: Vec::new(),
        launcher: Some(start.launcher.into()),
        idle: start.idle,
        idle_since: Instant::now(),
        next_at: Instant::now(),
        losses: 0,
    };
    Ok(supervisor.supervise_workers())
}

struct SessionSupervisor {
    parameters: WorkerParameters,
    watched: SupervisedSession,
    signals: BlockedSignals,
    workers: Vec<SessionWorker>,
    launcher: Option<File>,
    idle: Duration,
    idle_since: Instant,
    /// Earliest time for the fork of the next worker.
    next_at: Instant,
    losses: u32,
}

/// A forked worker.
struct SessionWorker {
    pidfd: OwnedFd,
    note_reader: File,
    is_busy: bool,
}

/// Action after the workers were checked.
#[derive(PartialEq, Eq)]
enum SupervisorAction {
    GoOn,
    End,
}

impl SessionSupervisor {
    fn supervise_workers(mut self) -> u8 {
        loop {
            if self.needs_worker() {
                match self.fork_worker() {
                    Ok(None) => {}
                    // The child closes all descriptors of the supervisor.
                    Ok(Some((supervisor, tell))) => return self.become_worker(supervisor, tell),
                    Err(error) => {
                        tracing::warn!(%error, "cannot fork a supervisor of a command");
                        self.note_loss();
                    }
                }
            }
            self.wait_for_event();
            if self.check_workers() == SupervisorAction::End || self.is_over() {
                return self.end_session_and_commands();
            }
        }
    }

    fn needs_worker(&self) -> bool {
        let waits = self.workers.iter().any(|session_worker| !session_worker.is_busy);
        !waits && self.workers.len() < MAX_RUNNING_COMMANDS && Instant::now() >= self.next_at
    }

    /// Forks a worker. In the child it returns the parent's process id and the pipe for messages to
    /// it.
    fn fork_worker(&mut self) -> io::Result<Option<(Pid, OwnedFd)>> {
        let (note_reader, tell) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&note_reader, true)?;
        let supervisor = getpid();
        let ForkResult::Parent(pid) = fork_process()? else { return Ok(Some((supervisor, tell))) };
        // Only this process reaps the child, so the number is still the child's.
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        self.workers.push(SessionWorker { pidfd, note_reader: note_reader.into(), is_busy: false });
        Ok(None)
    }

    fn become_worker(self, supervisor: Pid, tell: OwnedFd) -> u8 {
        let Self { parameters, watched, signals, workers, launcher, .. } = self;
        watched.stop_supervising();
        drop((signals, workers, launcher));
        worker::run_worker(parameters, supervisor, tell)
    }

    /// Waits for an event or until the next deadline.
    fn wait_for_event(&self) {
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.signals.as_fd()];
        for session_worker in &self.workers {
            fds.extend([session_worker.note_reader.as_fd(), session_worker.pidfd.as_fd()]);
        }
        let mut waited: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let now = Instant::now();
        let idle_ends = self.idle_since + self.idle;
        let due = if self.workers.iter().any(|session_worker| !session_worker.is_busy) {
            idle_ends
        } else {
            idle_ends.min(self.next_at)
        };
        let wait_time = due.saturating_duration_since(now).max(Duration::from_millis(1));
        let wait_time =
            Timespec { tv_sec: wait_time.as_secs().cast_signed(), tv_nsec: wait_time.subsec_nanos().into() };
        // A failure only makes the next check come sooner.
        let _ = poll(&mut waited, Some(&wait_time));
    }

    /// Reads the messages of the workers, and removes those that have exited.
    fn check_workers(&mut self) -> SupervisorAction {
        let mut next = if is_readable(self.signals.as_fd()) { SupervisorAction::End } else { SupervisorAction::GoOn };
        let (mut ended, mut lost) = (false, false);
        let mut running = Vec::with_capacity(self.workers.len());
        for mut session_worker in std::mem::take(&mut self.workers) {
            let (alive, notes) = look_then_read(
                || matches!(wait_pidfd(session_worker.pidfd.as_fd()), Ok(None)),
                &mut session_worker.note_reader,
            );
            for note in &notes {
                match *note {
                    note::READY => {
                        self.losses = 0;
                        if let Some(mut launcher) = self.launcher.take() {
                            let _ = launcher.write_all(&[STARTED_MESSAGE]);
                        }
                    }
                    note::TAKEN => {
                        session_worker.is_busy = true;
                        self.next_at = Instant::now() + WORKER_FORK_DELAY;
                    }
                    note::END => next = SupervisorAction::End,
                    _ => {}
                }
            }
            if alive {
                running.push(session_worker);
            } else {
                ended = true;
                lost |= !session_worker.is_busy;
            }
        }
        self.workers = running;
        if ended && !lost {
            self.next_at = self.next_at.min(Instant::now());
        }
        if ended || self.workers.iter().any(|session_worker| session_worker.is_busy) {
            self.idle_since = Instant::now();
        }
        if lost {
            self.note_loss();
        }
        next
    }

    fn note_loss(&mut self) {
        self.losses += 1;
        self.next_at = Instant::now() + WORKER_RETRY_DELAY;
    }

    /// Returns true if no command ran for too long, or if none can run.
    fn is_over(&self) -> bool {
        self.losses >= MAX_WORKER_LOSSES || self.idle_since.elapsed() >= self.idle
    }

    /// Ends the running commands, and then the session.
    fn end_session_and_commands(mut self) -> u8 {
        let give_up = Instant::now() + COMMAND_END_TIMEOUT;
        for session_worker in &self.workers {
            let _ = pidfd_send_signal(
                &session_worker.pidfd,
                if session_worker.is_busy { Signal::TERM } else { Signal::KILL },
            );
        }
        while !self.workers.is_empty() {
            if Instant::now() >= give_up {
                for session_worker in &self.workers {
                    let _ = pidfd_send_signal(&session_worker.pidfd, Signal::KILL);
                }
            }
            let at_most = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let mut waited: Vec<PollFd<'_>> =
                self.workers.iter().map(|session_worker| PollFd::new(&session_worker.pidfd, PollFlags::IN)).collect();
            let _ = poll(&mut waited, Some(&at_most));
            self.workers.retain(|session_worker| matches!(wait_pidfd(session_worker.pidfd.as_fd()), Ok(None)));
        }
        let Self { watched, parameters, .. } = self;
        // If that fails, the next session of this name does it, or does not start.
        let _ = end_session(&parameters.session);
        match watched.close() {
            Ok(()) => exit::SUCCESS,
            Err(_) => exit::STOCKADE_FAILURE,
        }
    }
}

/// Returns whether a worker still runs, and its unread messages. In this order, because a worker may
/// send its last message and exit between the two steps.
fn look_then_read(is_alive: impl FnOnce() -> bool, note_reader: &mut impl Read) -> (bool, Vec<u8>) {
    let alive = is_alive();
    let mut notes = [0; NOTES_MAX];
    let length = note_reader.read(&mut notes).unwrap_or(0);
    (alive, notes[..length].to_vec())
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)), Ok(1) | Err(Errno::INTR))
}

/// Replaces the standard streams by `/dev/null`, so that the launcher's are not kept open.
fn let_streams_go() -> io::Result<()> {
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    Ok(rustix::stdio::dup2_stderr(&nothing)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_of_a_worker_that_exits_meanwhile_is_read() {
        let (note_reader, tell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let (mut note_reader, mut tell) = (File::from(note_reader), Some(File::from(tell)));
        let mut exits = || {
            let mut tell = tell.take().unwrap();
            tell.write_all(&[note::READY, note::END]).unwrap();
            false
        };
        assert_eq!(look_then_read(&mut exits, &mut note_reader), (false, vec![note::READY, note::END]));
        assert_eq!(look_then_read(|| true, &mut note_reader), (true, Vec::new()));
    }
}

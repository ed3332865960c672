//! Workers that are forked ahead, so that no start has to wait for a fork and its preparation. The
//! pool keeps one worker that waits for a request. A worker handles one request and exits, so
//! nothing must be reset. The supervisor of a pool has one thread and handles no request itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};
use stockade_sys::clone::exit_now;
use stockade_sys::reap::wait_pidfd;
use stockade_sys::session::{ForkResult, fork_process};

/// Delay after a worker that exited before it got a request, and after a failed fork.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Most workers in a row that exit before they are ready; then the pool is given up.
const MAX_LOSSES: u32 = 20;
/// Interval between two checks of workers that are being ended.
const END_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// More messages than a worker sends.
const MAX_NOTES: usize = 4;

/// Message of a worker to its supervisor, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WorkerNote {
    /// It is prepared, and waits for a request.
    Ready = b'r',
    /// It handles a request.
    Taken = b't',
    /// A client has requested the end of the supervisor.
    End = b'e',
}

/// A worker's connection to its supervisor.
#[derive(Debug)]
pub struct WorkerNotes(File);

impl WorkerNotes {
    /// Sends a message.
    ///
    /// # Errors
    /// [`io::Error`] if the supervisor is gone.
    pub fn send(&mut self, note: WorkerNote) -> io::Result<()> {
        self.0.write_all(&[note as u8])
    }
}

/// Limits of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Most requests that are handled at the same time; further ones wait.
    pub max_busy: usize,
    /// Delay between the start of a request and the fork of the next worker, if the request is not
    /// over by then. The preparation of the next worker must not slow down that start.
    pub fork_delay: Duration,
    /// Time without a request after which the pool ends.
    pub max_idle: Option<Duration>,
}

/// Event of a pool.
#[derive(Debug)]
pub enum PoolEvent {
    /// This process is a new worker. The kernel kills it when its supervisor ends.
    Forked(WorkerNotes),
    /// A worker is ready.
    Ready,
    /// The supervisor must end.
    Over,
}

/// The workers of a supervisor.
#[derive(Debug)]
pub struct WorkerPool {
    limits: PoolLimits,
    workers: Vec<Worker>,
    idle_since: Instant,
    /// Earliest time for the next fork.
    fork_at: Instant,
    losses: u32,
}

#[derive(Debug)]
struct Worker {
    pidfd: OwnedFd,
    notes: File,
    is_busy: bool,
}

impl Worker {
    fn kill(&self, signal: Signal) {
        // A worker that is gone needs no signal.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

impl WorkerPool {
    /// Creates a pool without workers.
    pub fn new(limits: PoolLimits) -> Self {
        let now = Instant::now();
        Self { limits, workers: Vec::new(), idle_since: now, fork_at: now, losses: 0 }
    }

    /// Keeps one worker ahead until the next event. The supervisor must end if `ending` has one of
    /// its events, too.
    pub fn next_event(&mut self, ending: &PollFd<'_>) -> PoolEvent {
        loop {
            if self.needs_worker() && Instant::now() >= self.fork_at {
                match self.fork_worker() {
                    Ok(None) => {}
                    Ok(Some(notes)) => return PoolEvent::Forked(notes),
                    Err(error) => {
                        tracing::warn!(%error, "cannot fork a worker");
                        self.fork_at = Instant::now() + RETRY_DELAY;
                    }
                }
            }
            let mut is_over = self.wait_for_event(ending);
            let notes = self.check_workers();
            is_over |= notes.contains(&(WorkerNote::End as u8)) || self.losses >= MAX_LOSSES;
            is_over |= self.limits.max_idle.is_some_and(|idle| self.idle_since.elapsed() >= idle);
            if is_over {
                return PoolEvent::Over;
            }
            if notes.contains(&(WorkerNote::Ready as u8)) {
                return PoolEvent::Ready;
            }
        }
    }

    /// Ends all workers. Requests that are handled have `grace` to end.
    pub fn end(mut self, grace: Duration) {
        let kill_at = Instant::now() + grace;
        self.workers.iter().for_each(|worker| worker.kill(if worker.is_busy { Signal::TERM } else { Signal::KILL }));
        while !self.workers.is_empty() {
            if Instant::now() >= kill_at {
                self.workers.iter().for_each(|worker| worker.kill(Signal::KILL));
            }
            let mut waited: Vec<_> =
                self.workers.iter().map(|worker| PollFd::new(&worker.pidfd, PollFlags::IN)).collect();
            poll_for(&mut waited, END_POLL_INTERVAL);
            self.workers.retain(|worker| is_alive(&worker.pidfd));
        }
    }

    fn needs_worker(&self) -> bool {
        self.workers.iter().all(|worker| worker.is_busy) && self.workers.len() < self.limits.max_busy
    }

    /// Forks a worker. Returns its connection to its supervisor in the worker, and `None` in the
    /// supervisor.
    fn fork_worker(&mut self) -> io::Result<Option<WorkerNotes>> {
        let (notes, tell) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&notes, true)?;
        let supervisor = getpid();
        let ForkResult::Parent(pid) = fork_process()? else {
            // The supervisor may have ended before the kernel knew that this process ends with it.
            if set_parent_process_death_signal(Some(Signal::KILL)).is_err() || getppid() != Some(supervisor) {
                exit_now(1);
            }
            self.workers.clear();
            return Ok(Some(WorkerNotes(tell.into())));
        };
        // Only this process reaps the child, so the number is still the child's.
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        self.workers.push(Worker { pidfd, notes: notes.into(), is_busy: false });
        Ok(None)
    }

    /// Waits for an event, or until something is due. Returns whether `ending` has an event.
    fn wait_for_event(&self, ending: &PollFd<'_>) -> bool {
        let mut waited = vec![ending.clone()];
        for worker in &self.workers {
            waited.extend([PollFd::new(&worker.notes, PollFlags::IN), PollFd::new(&worker.pidfd, PollFlags::IN)]);
        }
        let idle_end = self.limits.max_idle.and_then(|idle| self.idle_since.checked_add(idle));
        let due = idle_end.into_iter().chain(self.needs_worker().then_some(self.fork_at)).min();
        let wait = due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
        poll_for(&mut waited, wait.max(Duration::from_millis(1)));
        !waited[0].revents().is_empty()
    }

    /// Reads the messages of the workers, and removes those that have exited. Returns the messages.
    fn check_workers(&mut self) -> Vec<u8> {
        let (mut all_notes, mut ended, mut lost) = (Vec::new(), false, false);
        self.workers.retain_mut(|worker| {
            let (alive, notes) = check_then_read(|| is_alive(&worker.pidfd), &mut worker.notes);
            if notes.contains(&(WorkerNote::Taken as u8)) {
                worker.is_busy = true;
                self.fork_at = Instant::now() + self.limits.fork_delay;
            }
            if notes.contains(&(WorkerNote::Ready as u8)) {
                self.losses = 0;
            }
            all_notes.extend(notes);
            ended |= !alive;
            lost |= !alive && !worker.is_busy;
            alive
        });
        if ended || self.workers.iter().any(|worker| worker.is_busy) {
            self.idle_since = Instant::now();
        }
        if lost {
            self.losses += 1;
            self.fork_at = Instant::now() + RETRY_DELAY;
        } else if ended {
            self.fork_at = self.fork_at.min(Instant::now());
        }
        all_notes
    }
}

/// Returns whether a child still runs; reaps it if not.
fn is_alive(child: &OwnedFd) -> bool {
    matches!(wait_pidfd(child.as_fd()), Ok(None))
}

/// Returns whether a worker still runs, and its unread messages. In this order, because a worker
/// may send its last message and exit between the two steps.
fn check_then_read(is_alive: impl FnOnce() -> bool, notes: &mut impl Read) -> (bool, Vec<u8>) {
    let alive = is_alive();
    let mut unread = [0; MAX_NOTES];
    let length = notes.read(&mut unread).unwrap_or(0);
    (alive, unread[..length].to_vec())
}

/// Waits for an event of one of these, for `timeout` at most.
fn poll_for(fds: &mut [PollFd<'_>], timeout: Duration) {
    // An error only makes the next check come sooner.
    let _ = poll(fds, Timespec::try_from(timeout).ok().as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_of_a_worker_that_exits_meanwhile_is_read() {
        let (notes, tell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let (mut notes, mut tell) = (File::from(notes), Some(WorkerNotes(tell.into())));
        let mut exits = || {
            let mut tell = tell.take().unwrap();
            tell.send(WorkerNote::Ready).unwrap();
            tell.send(WorkerNote::End).unwrap();
            false
        };
        assert_eq!(check_then_read(&mut exits, &mut notes), (false, vec![b'r', b'e']));
        assert_eq!(check_then_read(|| true, &mut notes), (true, Vec::new()));
    }
}

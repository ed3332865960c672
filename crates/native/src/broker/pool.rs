//! Threads for work that may block, so that no call waits behind another's open of a pipe without a reader.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::locks::lock_ignoring_poison;
use stockade_sys::Errno;

/// Most calls that may block at the same time; one more fails with EAGAIN.
const MAX_WORKERS: usize = 128;
/// A worker without work exits after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Stack size; workers make system calls and little else.
const STACK_BYTES: usize = 128 * 1024;

/// Work that may block.
pub(super) type BlockingJob = Box<dyn FnOnce() + Send>;

/// Pool of threads, which inherit the confinement of the thread that starts them.
#[derive(Clone, Default)]
pub(super) struct WorkerPool {
    shared: Arc<PoolShared>,
}

#[derive(Default)]
struct PoolShared {
    state: Mutex<PoolState>,
    work: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<BlockingJob>,
    workers: usize,
    idle: usize,
    over: bool,
}

impl WorkerPool {
    /// Runs `job` on another thread.
    ///
    /// # Errors
    /// EAGAIN if too many threads are busy.
    pub fn run_job(&self, job: BlockingJob) -> Result<(), Errno> {
        let mut state = lock_ignoring_poison(&self.shared.state);
        if state.idle > state.jobs.len() {
            state.jobs.push_back(job);
            self.shared.work.notify_one();
            return Ok(());
        }
        if state.workers >= MAX_WORKERS {
            return Err(Errno::AGAIN);
        }
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name("broker-worker".to_owned()).stack_size(STACK_BYTES);
        builder.spawn(move || shared.serve_jobs()).map_err(|_| Errno::AGAIN)?;
        state.workers += 1;
        state.jobs.push_back(job);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Lets the threads exit as soon as they are idle. Does not wait: a thread may be in a call
    /// that ends only with the sandbox.
    pub fn close(&self) {
        lock_ignoring_poison(&self.shared.state).over = true;
        self.shared.work.notify_all();
    }
}

impl PoolShared {
    fn serve_jobs(&self) {
        let mut state = lock_ignoring_poison(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = lock_ignoring_poison(&self.state);
                continue;
            }
            if state.over {
                break;
            }
            state.idle += 1;
            let (next, waited) = self.work.wait_timeout(state, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.workers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_blocked_job_delays_no_other_and_the_number_is_bounded() {
        let pool = WorkerPool::default();
        let (release, blocked) = channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        for _ in 0..MAX_WORKERS - 1 {
            let blocked = blocked.clone();
            pool.run_job(Box::new(move || drop(blocked.lock().map(|b| b.recv())))).unwrap();
        }
        let (sender, receiver) = channel();
        pool.run_job(Box::new(move || sender.send(7).unwrap())).unwrap();
        assert_eq!(receiver.recv_timeout(Duration::from_secs(5)), Ok(7));
        drop(release);
        pool.close();
    }
}

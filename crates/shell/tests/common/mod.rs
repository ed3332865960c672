//! How long an answer takes, and how long it may take.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Longest answer, in processor time: a busy machine is no fault of the judge.
/// Code that is not optimised is some twenty times slower.
pub const TIME_BOUND: Duration = Duration::from_millis(if cfg!(debug_assertions) { 600 } else { 50 });

/// What `work` answers, and the processor time it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let cpu_time = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
    };
    let start = cpu_time();
    let answer = work();
    (answer, cpu_time() - start)
}

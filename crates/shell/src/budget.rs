//! How much work one assessment may be. Counted in processor time of the thread,
//! not by the clock on the wall: a busy machine must not change an answer.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point in the thread's processor time after which work stops.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    end: Duration,
}

impl Budget {
    /// A budget from now on.
    pub(crate) fn of(amount: Duration) -> Self {
        Self { end: spent() + amount }
    }

    /// True if nothing is left.
    pub(crate) fn is_spent(self) -> bool {
        spent() > self.end
    }
}

/// Processor time of this thread (clock_gettime(2), CLOCK_THREAD_CPUTIME_ID).
fn spent() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

//! Port for the time. Tests replace the clock of the machine.

/// Port that returns the time.
pub trait Clock: Send + Sync {
    /// Returns milliseconds since the epoch (CLOCK_REALTIME), for events and expiry.
    fn wall_ms(&self) -> u64;

    /// Returns milliseconds of a clock that never goes back, for deadlines.
    fn monotonic_ms(&self) -> u64;
}

/// Clock of the machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: std::time::Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { origin: std::time::Instant::now() }
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

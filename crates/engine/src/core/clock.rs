//! Clock of an attempt's time limit. It stops while a question about a held call is open, because
//! the person's time must not count against the command.
//!
//! The clock does not know the questions; its owner stops and starts it. A question that timed out
//! does not stop it again (see [`TrackedCalls`](super::holding)). Otherwise a command could gain time with
//! questions that stay unanswered.

/// Remaining time, or the deadline while the clock runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptClock {
    /// Runs until this time.
    Running { until_ms: u64 },
    /// Stopped with this much time left.
    Frozen { remaining_ms: u64 },
}

impl AttemptClock {
    /// Returns a clock that runs from now on.
    pub fn start(now_ms: u64, limit_ms: u64) -> Self {
        Self::Running { until_ms: now_ms.saturating_add(limit_ms) }
    }

    /// Returns the deadline while the clock runs.
    pub fn deadline_ms(self) -> Option<u64> {
        match self {
            Self::Running { until_ms } => Some(until_ms),
            Self::Frozen { .. } => None,
        }
    }

    /// Stops or starts the clock. An expired clock stays expired.
    pub fn set_paused(&mut self, now_ms: u64, stand: bool) {
        match *self {
            Self::Running { until_ms } if stand && until_ms > now_ms => {
                *self = Self::Frozen { remaining_ms: until_ms - now_ms };
            }
            Self::Frozen { remaining_ms } if !stand => *self = Self::start(now_ms, remaining_ms),
            Self::Running { .. } | Self::Frozen { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_time_is_not_counted() {
        let mut clock = AttemptClock::start(1_000, 500);
        assert_eq!(clock.deadline_ms(), Some(1_500));
        clock.set_paused(1_200, true);
        assert_eq!(clock.deadline_ms(), None);
        clock.set_paused(1_300, true);
        clock.set_paused(90_000, false);
        assert_eq!(clock.deadline_ms(), Some(90_300));
        clock.set_paused(90_100, false);
        assert_eq!(clock.deadline_ms(), Some(90_300));
    }

    #[test]
    fn an_ended_attempt_stays_ended() {
        let mut clock = AttemptClock::start(1_000, 500);
        clock.set_paused(1_500, true);
        assert_eq!(clock.deadline_ms(), Some(1_500));
    }
}

//! The clock of an attempt's time limit: it stands still while somebody is asked
//! about a held call, because that is a person's time and not the command's.
//!
//! It must not know what is asked: it is told when to stand still. A question
//! that ended in silence stops it no more (see [`Holds`](super::holding)), so
//! that a command cannot buy time by asking what nobody answers.

/// Time that is left, and when it is over if it is not stopped before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// Over at this time.
    Running { until_ms: u64 },
    /// So much was left when it was stopped.
    Standing { left_ms: u64 },
}

impl Clock {
    /// One that runs from now on.
    pub fn start(now_ms: u64, limit_ms: u64) -> Self {
        Self::Running { until_ms: now_ms.saturating_add(limit_ms) }
    }

    /// When it is over, while it runs.
    pub fn deadline_ms(self) -> Option<u64> {
        match self {
            Self::Running { until_ms } => Some(until_ms),
            Self::Standing { .. } => None,
        }
    }

    /// Lets it stand or run from now on. Time that is over stays over.
    pub fn stand(&mut self, now_ms: u64, stand: bool) {
        match *self {
            Self::Running { until_ms } if stand && until_ms > now_ms => {
                *self = Self::Standing { left_ms: until_ms - now_ms };
            }
            Self::Standing { left_ms } if !stand => *self = Self::start(now_ms, left_ms),
            Self::Running { .. } | Self::Standing { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standing_costs_no_time() {
        let mut clock = Clock::start(1_000, 500);
        assert_eq!(clock.deadline_ms(), Some(1_500));
        clock.stand(1_200, true);
        assert_eq!(clock.deadline_ms(), None);
        clock.stand(1_300, true);
        clock.stand(90_000, false);
        assert_eq!(clock.deadline_ms(), Some(90_300));
        clock.stand(90_100, false);
        assert_eq!(clock.deadline_ms(), Some(90_300));
    }

    #[test]
    fn what_is_over_stays_over() {
        let mut clock = Clock::start(1_000, 500);
        clock.stand(1_500, true);
        assert_eq!(clock.deadline_ms(), Some(1_500));
    }
}

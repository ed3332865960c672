//! How much work one assessment may be, in units that are counted: neither a slow
//! machine nor a busy one changes an answer. What a unit takes was measured, see
//! `examples/measure.rs`; the bounds keep the promised time with a wide margin.

use std::cell::Cell;

/// Units of work that are left. One is of the order of a tenth of a microsecond.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    left: Cell<u64>,
}

impl Budget {
    /// So much work, and no more.
    pub(crate) const fn of(units: u64) -> Self {
        Self { left: Cell::new(units) }
    }

    /// Takes units out; false if there were fewer, and then nothing is left.
    pub(crate) fn spend(&self, units: u64) -> bool {
        let rest = self.left.get().checked_sub(units);
        self.left.set(rest.unwrap_or(0));
        rest.is_some()
    }

    /// True if nothing is left.
    pub(crate) fn is_spent(&self) -> bool {
        self.left.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_stays_spent() {
        let budget = Budget::of(5);
        assert!(budget.spend(5) && budget.is_spent() && !budget.spend(1));
        let budget = Budget::of(5);
        assert!(!budget.spend(6) && budget.is_spent());
    }
}

//! Limit for the work of one assessment, in counted units, so that neither a slow machine nor a
//! busy one changes an answer. The cost of a unit was measured, see `examples/measure.rs`. The
//! limits keep the promised time with a wide margin.

use std::cell::Cell;

/// Remaining units of work. One takes about a tenth of a microsecond.
#[derive(Clone, Debug)]
pub(crate) struct WorkBudget {
    remaining: Cell<u64>,
}

impl WorkBudget {
    /// Creates a budget of this many units.
    pub(crate) const fn from_units(units: u64) -> Self {
        Self { remaining: Cell::new(units) }
    }

    /// Takes units. Returns false if there were fewer; then none are left.
    pub(crate) fn spend_units(&self, units: u64) -> bool {
        let rest = self.remaining.get().checked_sub(units);
        self.remaining.set(rest.unwrap_or(0));
        rest.is_some()
    }

    /// Returns whether no units are left.
    pub(crate) fn is_spent(&self) -> bool {
        self.remaining.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spent_budgets_stay_spent() {
        let budget = WorkBudget::from_units(5);
        assert!(budget.spend_units(5) && budget.is_spent() && !budget.spend_units(1));
        let budget = WorkBudget::from_units(5);
        assert!(!budget.spend_units(6) && budget.is_spent());
    }
}

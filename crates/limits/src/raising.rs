//! Questions about limits of a run, and the effect of an answer: the mechanism raises its limit,
//! and the frozen run continues.
//!
//! Must not depend on the approver.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Signal;
use stockade_model::{Denial, Grant, LimitKind};

use super::freeze::RunFreezer;
use super::group::ControlGroup;
use super::resources;
use super::watch::{LimitEffect, LimitWatch};

/// First number of questions about limits; questions about calls are numbered from 1.
pub const FIRST_LIMIT_QUESTION: u64 = 1 << 32;

/// Result of a check that found an exceeded limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitEvent {
    /// The run must be ended.
    Breached(Denial),
    /// The run is frozen, and waits for [`LimitWatch::apply_answer`].
    Asked {
        /// Number of the question, at least [`FIRST_LIMIT_QUESTION`].
        question: u64,
        /// The exceeded limit.
        denial: Denial,
    },
}

/// The open questions of one run, and its freezer.
#[derive(Debug)]
pub(super) struct LimitRaiser {
    halt: RunFreezer,
    open: Vec<(u64, LimitQuestion)>,
    last_question: u64,
    /// Limits that stay unchanged: a refusal applies to the whole run.
    settled: Vec<LimitKind>,
    /// Becomes readable when the run continues, to wake the thread that waits for it.
    wake: Option<Arc<OwnedFd>>,
}

#[derive(Debug)]
struct LimitQuestion {
    limit: LimitKind,
    then: LimitEffect,
    denial: Denial,
}

impl LimitRaiser {
    pub(super) fn new(init: u32, group: Option<Arc<ControlGroup>>) -> Self {
        // Without the descriptor, the run is checked at the next other event.
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Arc::new);
        Self { halt: RunFreezer::new(init, group), open: Vec::new(), last_question: 0, settled: Vec::new(), wake }
    }

    /// Returns whether the run is frozen for an answer.
    pub(super) fn is_frozen(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns whether no question about this limit is asked any more.
    pub(super) fn is_settled(&self, limit: LimitKind) -> bool {
        self.settled.contains(&limit)
    }

    fn go_on(&mut self) {
        if self.open.is_empty() {
            self.halt.go_on();
            if let Some(wake) = &self.wake {
                // The write fails only if the counter is full, so the descriptor is readable.
                let _ = rustix::io::write(&**wake, &1_u64.to_ne_bytes());
            }
        }
    }
}

impl LimitWatch {
    /// Returns the event for an exceeded limit: a question, for which the run is frozen from now
    /// on, or the end of the run. `None` if the run continues without a question.
    pub(super) fn ask_for_raise(&mut self, limit: LimitKind, then: LimitEffect, denial: Denial) -> Option<LimitEvent> {
        let can_be_higher = self.limits.get(limit).is_some_and(|amount| self.cap_to_machine(limit, u64::MAX) > amount);
        let breached = |denial| (then != LimitEffect::GoesOn).then_some(LimitEvent::Breached(denial));
        let Some(raising) = self.raising.as_mut().filter(|_| then != LimitEffect::Ends && can_be_higher) else {
            return breached(denial);
        };
        if raising.is_settled(limit) || !raising.halt.freeze_processes() {
            raising.settled.push(limit);
            return breached(denial);
        }
        raising.last_question += 1;
        let question = FIRST_LIMIT_QUESTION + raising.last_question;
        raising.open.push((question, LimitQuestion { limit, then, denial: denial.clone() }));
        Some(LimitEvent::Asked { question, denial })
    }

    /// Freezes the run for a limit that only the engine checks.
    pub fn stand_still(&mut self, denial: &Denial) -> Option<LimitEvent> {
        let limit = LimitKind::ALL.into_iter().find(|limit| denial.is_of_limit(*limit))?;
        let last_question = self.ask_for_raise(limit, LimitEffect::EndsUnlessRaised, denial.clone())?;
        matches!(last_question, LimitEvent::Asked { .. }).then_some(last_question)
    }

    /// Returns whether this signal stopped the command because of a question about a limit.
    pub fn has_stopped(&mut self, signal: i32) -> bool {
        signal == Signal::STOP.as_raw() && self.raising.as_mut().is_some_and(|raising| raising.halt.take_untold())
    }

    /// Returns the descriptor that becomes readable when the run continues after a question.
    pub fn goes_on(&self) -> Option<Arc<OwnedFd>> {
        self.raising.as_ref()?.wake.clone()
    }

    /// Applies an answer: the granted powers, or `None` for a refusal. Returns an event if the run
    /// must end; the run stays frozen until the signal for that is sent.
    pub fn apply_answer(&mut self, question: u64, granted: Option<&[Grant]>) -> Option<LimitEvent> {
        let raising = self.raising.as_mut()?;
        let at = raising.open.iter().position(|(last_question, _)| *last_question == question)?;
        let (_, LimitQuestion { limit, then, denial }) = raising.open.remove(at);
        let refused = match granted {
            Some(grants) => {
                grants.iter().filter_map(amount_of).filter_map(|(limit, amount)| self.raise_limit(limit, amount)).next()
            }
            None => Some(String::new()),
        };
        let raising = self.raising.as_mut()?;
        match refused {
            None => {
                raising.go_on();
                None
            }
            Some(why) => {
                raising.settled.push(limit);
                if then == LimitEffect::GoesOn {
                    raising.go_on();
                    return None;
                }
                self.breach_event = true;
                self.stop_writing(limit);
                let rule = if why.is_empty() {
                    denial.rule
                } else {
                    format!("{}; it could not be raised: {why}", denial.rule)
                };
                Some(LimitEvent::Breached(Denial { rule, ..denial }))
            }
        }
    }

    /// Thaws the run after a signal that may end it, so that it can handle the signal.
    pub fn go_on(&mut self) {
        if let Some(raising) = &mut self.raising {
            raising.open.clear();
            raising.halt.go_on();
        }
    }

    /// Raises a limit. Returns the reason on failure.
    fn raise_limit(&mut self, limit: LimitKind, amount: u64) -> Option<String> {
        let amount = self.cap_to_machine(limit, amount);
        let failed = self.group.as_ref().and_then(|group| group.raise_limit(limit, amount).err());
        if failed.is_none() {
            self.limits.raise_limit(limit, amount);
            if limit == LimitKind::Disk {
                self.raise_files();
            }
            self.forks_refused = self.read_counters().forks_refused;
        }
        failed
    }

    /// Returns the amount, reduced to the capacity of the machine.
    fn cap_to_machine(&self, limit: LimitKind, amount: u64) -> u64 {
        let mut limits = self.limits.clone();
        limits.set_limit(limit, amount);
        resources::within_machine(&mut limits);
        limits.get(limit).unwrap_or(amount)
    }
}

fn amount_of(grant: &Grant) -> Option<(LimitKind, u64)> {
    if let Grant::Limit(limit, amount) = grant { Some((*limit, *amount)) } else { None }
}

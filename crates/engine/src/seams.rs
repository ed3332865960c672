//! What the driver needs of the world beside `Backend` and `Approver`: a judge,
//! a record, a memory, a clock. Small, so that tests stand in for each; the
//! real ones are in [`real`](crate::real).

use stockade_model::{Assessment, Decision, Denial, Digest, Event, Grant, GroupOffer, Plan, Request, SessionId};

use crate::core::{Memo, Planned, Remembered, Ruling};
use crate::keys::{GrantContext, Key};

/// Reads requests and applies the rules.
pub trait Judge: Send + Sync {
    /// What the text of a request shows.
    fn assess(&self, request: &Request) -> Assessment;

    /// What the rules say, and what of the request needs consent.
    /// [`Ruling::unhonoured`] is the driver's to fill.
    fn rule(&self, request: &Request, assessment: &Assessment) -> Ruling;

    /// The plan of an attempt with exactly these grants.
    ///
    /// # Errors
    /// When the profile, the program or a grant cannot be had.
    fn plan(&self, request: &Request, attempt: u32, grants: &[Grant]) -> Result<Planned, PlanError>;

    /// The powers that a person may be asked for after `grant` was refused under
    /// `plan`: it and what it needs; empty where the refusal is final.
    fn escalation(&self, request: &Request, plan: &Plan, grant: &Grant) -> Vec<Grant>;

    /// What the rules say of a held call, whatever the mode; nothing where they
    /// do not speak of it.
    fn held_rule(&self, request: &Request, plan: &Plan, denial: &Denial) -> Option<HeldRule>;

    /// Why nobody can agree to this power; nothing where somebody can.
    fn governed(&self, request: &Request, grant: &Grant) -> Option<Decision>;

    /// Whether a power is over credentials or a part of the system: an answer about it
    /// reaches this time only.
    fn is_guarded(&self, grant: &Grant) -> bool;

    /// The powers around `grant` that may be offered in place of many like it.
    /// For a file its directory: with it the file would be writable, and it
    /// reaches nothing protected, hidden or of Stockade's own, nor the workspace
    /// or the home directory as a whole. For a host those beneath the same
    /// domain, where somebody owns it. Empty otherwise.
    fn directory(&self, request: &Request, plan: &Plan, grant: &Grant) -> Vec<Grant>;

    /// The shipped group of hosts that may be offered beside the host of `grant`: one
    /// that lists it, and of which all may be given.
    fn group(&self, _request: &Request, _plan: &Plan, _grant: &Grant) -> Option<GroupOffer> {
        None
    }

    /// Version of the policy for this request: consent is bound to it.
    fn policy(&self, request: &Request) -> Digest;
}

/// What the rules say of a held call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRule {
    /// The verdict and the rule.
    pub decision: Decision,
    /// The powers that an `allow` gives.
    pub powers: Vec<Grant>,
}

/// Why there is no plan. Shown to a person: what, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PlanError {
    /// What could not be done, and why.
    pub what: String,
    /// The one thing to do about it.
    pub hint: Option<String>,
}

/// Keeps the events (L10).
pub trait Recorder: Send + Sync {
    /// Writes events in order, all or none.
    ///
    /// # Errors
    /// When any of them could not be written.
    fn record(&self, events: &[Event]) -> Result<(), RecordError>;

    /// Makes everything recorded so far durable. May block for a disk, and runs
    /// beside [`record`](Self::record) on another thread.
    ///
    /// # Errors
    /// When it is not certain to last.
    fn commit(&self) -> Result<(), RecordError>;
}

/// Why an event was not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(pub String);

/// What is remembered that reaches beyond the request that asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Powers that hold from the start.
    pub grants: Vec<Grant>,
    /// Whether there are powers remembered for a number of times, each of which
    /// is used up when it is asked for.
    pub counted: bool,
    /// Powers that remembered refusals name: none is given as a part of another.
    pub refused: Vec<Grant>,
}

/// Remembers answers.
pub trait Memory: Send + Sync {
    /// The answer under a key that holds now and in this session. Uses one up
    /// where the answer is for a number of times.
    ///
    /// # Errors
    /// When the memory cannot be read: an answer may be missed then.
    fn lookup(&self, key: &Key, session: Option<&SessionId>, now_ms: u64) -> Result<Option<Remembered>, MemoryError>;

    /// Keeps an answer, in place of an older one under the same key.
    ///
    /// # Errors
    /// When it could not be kept.
    fn remember(&self, memo: &Memo, session: Option<&SessionId>, now_ms: u64) -> Result<(), MemoryError>;

    /// The powers remembered in namespace `grant` for this context that hold
    /// now and in this session: those for the session, until a time or always.
    /// Without those that a remembered refusal names.
    ///
    /// # Errors
    /// When the memory cannot be read.
    fn standing(
        &self,
        context: &GrantContext,
        session: Option<&SessionId>,
        now_ms: u64,
    ) -> Result<Standing, MemoryError>;
}

/// Why the memory did not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MemoryError(pub String);

/// Remembers nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn lookup(&self, _: &Key, _: Option<&SessionId>, _: u64) -> Result<Option<Remembered>, MemoryError> {
        Ok(None)
    }
    fn remember(&self, _: &Memo, _: Option<&SessionId>, _: u64) -> Result<(), MemoryError> {
        Ok(())
    }
    fn standing(&self, _: &GrantContext, _: Option<&SessionId>, _: u64) -> Result<Standing, MemoryError> {
        Ok(Standing::default())
    }
}

/// The time.
pub trait Clock: Send + Sync {
    /// Milliseconds since the epoch (CLOCK_REALTIME): for events and expiry.
    fn wall_ms(&self) -> u64;

    /// Milliseconds of a clock that never goes back: for deadlines.
    fn monotonic_ms(&self) -> u64;
}

/// The machine's clocks.
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

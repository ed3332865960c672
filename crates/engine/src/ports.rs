//! Ports of the driver besides `Backend` and `Approver`: policy, audit log, memory. They are
//! small, so that tests can replace each. The real implementations are in [`adapters`](crate::adapters).

use stockade_model::{
    Assessment, AttemptPlan, Decision, Denial, Digest, Event, Grant, GroupOffer, RunRequest, SessionId,
};

use crate::core::{AnswerMemo, BoundPlan, ConsentRuling, RememberedAnswer};
use crate::keys::{GrantContext, MemoryKey};

/// Port that assesses requests, applies the rules and makes plans.
pub trait PolicyEngine: Send + Sync {
    /// Returns the assessment of a request's text.
    fn assess_request(&self, request: &RunRequest) -> Assessment;

    /// Returns the result of the rules, and the parts of the request that need consent. The driver
    /// fills [`ConsentRuling::unhonoured`].
    fn apply_rules(&self, request: &RunRequest, assessment: &Assessment) -> ConsentRuling;

    /// Makes the plan of an attempt with exactly these grants.
    ///
    /// # Errors
    /// [`PlanError`] if the profile, the program or a grant is unavailable.
    fn make_plan(&self, request: &RunRequest, attempt: u32, grants: &[Grant]) -> Result<BoundPlan, PlanError>;

    /// Returns the powers to request from a person after `grant` was refused under `plan`: the
    /// grant and its requirements. Empty if the refusal is final.
    fn escalation_powers(&self, request: &RunRequest, plan: &AttemptPlan, grant: &Grant) -> Vec<Grant>;

    /// Returns the result of the rules for a held call, whatever the mode; `None` if no rule
    /// applies.
    fn held_rule(&self, request: &RunRequest, plan: &AttemptPlan, denial: &Denial) -> Option<HeldRule>;

    /// Returns the reason if this power cannot be approved at all, otherwise `None`.
    fn governed_refusal(&self, request: &RunRequest, grant: &Grant) -> Option<Decision>;

    /// Returns whether a power is over credentials or a part of the system, so that an answer has
    /// the scope `once` only.
    fn is_guarded(&self, grant: &Grant) -> bool;

    /// Returns the powers around `grant` that may be offered instead of many similar ones.
    ///
    /// For a file, this is its directory, if the file would be writable with it. The directory
    /// contains nothing protected, hidden or of Stockade's own, and is not the whole workspace or
    /// home directory. For a host, these are the hosts beneath the same domain, if the domain has
    /// one owner. Empty otherwise.
    fn directory_powers(&self, request: &RunRequest, plan: &AttemptPlan, grant: &Grant) -> Vec<Grant>;

    /// Returns the shipped group of hosts to offer together with the host of `grant`. The group
    /// lists that host, and all its members may be given.
    fn host_group(&self, _request: &RunRequest, _plan: &AttemptPlan, _grant: &Grant) -> Option<GroupOffer> {
        None
    }

    /// Returns the version of the policy for this request; consent is bound to it.
    fn policy_digest(&self, request: &RunRequest) -> Digest;
}

/// Result of the rules for a held call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRule {
    /// The verdict and the rule.
    pub decision: Decision,
    /// The powers that an `allow` gives.
    pub powers: Vec<Grant>,
}

/// Error if there is no plan: the failed operation with the reason, and the remedy after `hint:`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(String);

impl PlanError {
    /// Creates the error with this text.
    pub fn new(text: impl ToString) -> Self {
        Self(text.to_string())
    }
}

/// Port that stores the events (L10).
pub trait EventRecorder: Send + Sync {
    /// Writes events in order, all or none.
    ///
    /// # Errors
    /// [`RecordError`] if any of them could not be written.
    fn record_events(&self, events: &[Event]) -> Result<(), RecordError>;

    /// Makes everything recorded so far durable. May block for a disk, and runs on another thread
    /// in parallel to [`record_events`](Self::record_events).
    ///
    /// # Errors
    /// [`RecordError`] if durability is not certain.
    fn commit_events(&self) -> Result<(), RecordError>;
}

/// Error if an event was not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(pub String);

/// Remembered answers with a scope beyond the request that asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PersistentAnswers {
    /// Powers that apply from the start.
    pub grants: Vec<Grant>,
    /// True if powers are remembered for a number of uses; each request for one takes a use.
    pub counted: bool,
    /// Powers named by remembered refusals; none is given as a part of another power.
    pub refused: Vec<Grant>,
}

/// Session and time of a look-up, in which an answer must be valid.
#[derive(Clone, Copy, Debug)]
pub struct LookupScope<'a> {
    /// The session of the request.
    pub session: Option<&'a SessionId>,
    /// The time, in milliseconds since the epoch.
    pub now_ms: u64,
}

/// Port that remembers answers.
pub trait AnswerMemory: Send + Sync {
    /// Returns the answer under a key that is valid now and in this session. Takes one use of an
    /// answer that is remembered for a number of uses.
    ///
    /// # Errors
    /// [`MemoryError`] if the memory cannot be read, so that an answer may be missed.
    fn look_up_answer(&self, key: &MemoryKey, scope: LookupScope<'_>) -> Result<Option<RememberedAnswer>, MemoryError>;

    /// Stores an answer; replaces an older one under the same key.
    ///
    /// # Errors
    /// [`MemoryError`] if it could not be stored.
    fn remember_answer(&self, memo: &AnswerMemo, scope: LookupScope<'_>) -> Result<(), MemoryError>;

    /// Returns the powers remembered in namespace `grant` for this context that are valid now and
    /// in this session. Their scopes are the session, until a time, and always. Powers that a
    /// remembered refusal names are excluded.
    ///
    /// # Errors
    /// [`MemoryError`] if the memory cannot be read.
    fn persistent_answers(
        &self,
        context: &GrantContext,
        scope: LookupScope<'_>,
    ) -> Result<PersistentAnswers, MemoryError>;
}

/// Error of the memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MemoryError(pub String);

/// Returns the text of a failure with its remedy.
pub(crate) fn join_hint(what: String, hint: Option<String>) -> String {
    match hint {
        Some(hint) => format!("{what}\nhint: {hint}"),
        None => what,
    }
}

//! State machine of a request, without I/O, clock or randomness.
//!
//! [`RequestCore::process_input`] takes one [`CoreInput`] and the time, and returns the [`CoreOutput`]s to carry out, in
//! order. The core must not depend on files, processes, terminals or the real rules. The driver
//! carries out the outputs and reports their results.
//!
//! The core guarantees the following for every order of the inputs (the simulation tests them).
//! Nothing is released before its record is durable (L6). Nothing is released that was not allowed
//! or approved, byte for byte (L1, L5). A later attempt has the same powers plus the approved ones
//! (L3). A held call is answered once, and gets a power only after the approval of exactly that
//! power is on record. A refusal overrides everything (L9). The request finishes exactly once, with
//! no process left alive (L8).

mod asking;
mod clock;
mod ending;
mod escalating;
mod holding;
mod machine;
mod reviewing;
mod running;

use std::sync::Arc;

use stockade_backend_api::{AttemptEnd, HeldAnswer, HoldId};
use stockade_model::{
    ApprovalAnswer, ApprovalQuestion, Assessment, AttemptPlan, ConnectionRecord, Decision, Denial, Digest,
    EnforcementReport, EventKind, Grant, QuestionKind, RawText, RequestId, ReviewResult, RunOutcome, RunRequest,
};

use crate::keys::{GrantContext, MemoryKey};
use crate::ports::PersistentAnswers;

pub use asking::shown_command;
pub use holding::HeldCall;
pub use machine::RequestCore;

/// Numbers and names that the core uses.
#[derive(Clone)]
pub struct CoreConfig {
    /// Version of the policy; consent is bound to it.
    pub policy: Digest,
    /// User that runs Stockade, e.g. `uid 1000`; consent is bound to it.
    pub user: String,
    /// Time-out of a question in milliseconds; it then counts as refused.
    pub question_timeout_ms: u64,
    /// Time-out in milliseconds for making a record durable.
    pub commit_timeout_ms: u64,
    /// Milliseconds between the request to end and the kill of a command.
    pub grace_ms: u64,
    /// Time-out in milliseconds for a killed process tree to be gone.
    pub kill_timeout_ms: u64,
    /// Most executions of one request.
    pub max_attempts: u32,
    /// Most powers in one question.
    pub max_question_grants: usize,
    /// Most programs and denials of one attempt that are recorded individually.
    pub max_attempt_events: u32,
    /// Most open questions about held calls.
    pub max_questions: usize,
    /// Most held calls of one attempt that need a question; further calls are refused.
    pub max_holds: usize,
    /// Number of files of a directory from which on the directory is offered.
    pub directory_from: usize,
    /// True if an approver may become available while the command runs.
    pub approver_may_come: bool,
    /// Reviewer that gives an opinion before a question is put.
    pub reviewer: Option<ReviewerSpec>,
    /// Selects the powers for which no answer is remembered.
    pub guard: PowerGuard,
}

/// Check whether a power is over credentials or a part of the system. The core does not interpret
/// paths, so it calls this function.
#[derive(Clone)]
pub struct PowerGuard(Arc<dyn Fn(&Grant) -> bool + Send + Sync>);

impl PowerGuard {
    /// Creates a check. It must always return the same result for the same power.
    pub fn new(is_guarded: impl Fn(&Grant) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_guarded))
    }

    fn is_guarded(&self, power: &Grant) -> bool {
        (self.0)(power)
    }
}

/// Name and time-out of the reviewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewerSpec {
    /// The reviewer's name.
    pub name: String,
    /// Time-out in milliseconds, after which the question is put without an opinion.
    pub timeout_ms: u64,
}

impl CoreConfig {
    /// Returns the default numbers.
    pub fn new(policy: Digest, user: String) -> Self {
        Self {
            policy,
            user,
            question_timeout_ms: 300_000,
            commit_timeout_ms: 30_000,
            grace_ms: 2_000,
            kill_timeout_ms: 10_000,
            max_attempts: 8,
            max_question_grants: 12,
            max_attempt_events: 10_000,
            max_questions: 16,
            max_holds: 1_000,
            directory_from: 3,
            approver_may_come: false,
            reviewer: None,
            guard: PowerGuard::new(|_| false),
        }
    }
}

/// Result of the rules for a request, with the parts that need consent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsentRuling {
    /// The verdict and its reasons.
    pub decision: Decision,
    /// Questions that must all be approved: about the run, and about powers in the request. The
    /// question about a missing sandbox is put even if it is not in this list.
    pub questions: Vec<QuestionKind>,
    /// The question about the run that the caller's own approval answers. That approval replaces
    /// this question only.
    pub by_caller: Option<QuestionKind>,
    /// Requested powers that the backend cannot give.
    pub unhonoured: Vec<Grant>,
    /// True if rules may give powers to held calls, even if no question can be put.
    pub gives_powers: bool,
    /// Changes that the rules make to the requested run, if any.
    pub requirements: Option<RunRequirements>,
}

/// Profile, powers and limit with which the rules let a request run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRequirements {
    /// The profile.
    pub profile: String,
    /// The requested powers and those that the rules add.
    pub grants: Vec<Grant>,
    /// The wall-clock limit, in milliseconds.
    pub timeout_ms: Option<u64>,
}

impl RunRequirements {
    /// Writes the changes into the request, which from then on is the original request.
    pub fn put_into(&self, request: &mut RunRequest) {
        request.profile.clone_from(&self.profile);
        request.grants.clone_from(&self.grants);
        request.timeout_ms = self.timeout_ms;
    }
}

/// A plan with the digests that bind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPlan {
    /// The plan.
    pub plan: AttemptPlan,
    /// Digest of the plan.
    pub digest: Digest,
    /// Digest of its whole profile.
    pub profile: Digest,
    /// Identity of the program and of a script in its arguments; see
    /// [`RunBinding`](crate::keys::RunBinding).
    pub identity: Digest,
    /// True if the identity covers everything that would run. Only then may an approval be
    /// remembered.
    pub is_identified: bool,
    /// Identity of the workspace directory; see [`GrantContext`](crate::keys::GrantContext).
    pub workspace: Digest,
}

impl BoundPlan {
    /// Creates a plan with its digests, for a known program and an unknown workspace.
    ///
    /// # Errors
    /// Never in practice: every map of a plan has string keys.
    pub fn new(plan: AttemptPlan, identity: Digest) -> Result<Self, DigestError> {
        let digest = plan.compute_digest()?;
        let profile = Digest::of_json("stockade-profile-1", &plan.profile)?;
        let workspace = Digest::of_fields("stockade-workspace-1", []);
        Ok(Self { plan, digest, profile, identity, is_identified: true, workspace })
    }
}

/// Error if the digest of a plan cannot be computed.
#[derive(Debug, thiserror::Error)]
#[error("the plan cannot be serialized: {0}")]
pub struct DigestError(#[from] serde_json::Error);

/// Remembered answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedAnswer {
    /// The answer.
    pub answer: ApprovalAnswer,
    /// Identifier of the answer, as `approvals show` prints it.
    pub id: String,
}

/// Answer to remember.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerMemo {
    /// Key that the answer is bound to.
    pub key: MemoryKey,
    /// The answer with its scope; for `Times`, with the remaining uses.
    pub answer: ApprovalAnswer,
    /// Subject of the answer: the command, or the power in its text form.
    pub subject: String,
    /// Powers of the answer.
    pub grants: Vec<Grant>,
    /// The request that caused the question.
    pub request: RequestId,
    /// Approver that answered.
    pub by: String,
}

/// A reviewer's reply to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuestionReview {
    /// Digest of the question.
    pub digest: Digest,
    /// The opinion, or the reason for its absence.
    pub review: ReviewResult,
    /// The received response.
    pub response: Option<RawText>,
    /// Duration in milliseconds.
    pub took_ms: u64,
}

/// Event that the driver reports to the core.
#[derive(Clone, Debug)]
pub enum CoreInput {
    /// The request's text was assessed.
    Assessed(Assessment),
    /// The rules were applied.
    Decided(Box<ConsentRuling>),
    /// The requested plan was made.
    Planned(Box<BoundPlan>),
    /// The plan cannot be made. The text gives the failure and its reason, for a person.
    PlanFailed(String),
    /// Powers remembered for the session, workspace and profile.
    Remembered(PersistentAnswers),
    /// Remembered answers for each key, in order, and whether an approver is available now.
    Recalled {
        /// Answer for each key.
        answers: Vec<Option<RememberedAnswer>>,
        /// True if an approver is available.
        approver: bool,
    },
    /// The memory could not be read.
    MemoryFailed(String),
    /// An answer could not be stored; it applies to this request only.
    NotRemembered(String),
    /// An approver answered.
    Answered {
        /// Digest of the question that the approver saw. Other digests are ignored.
        digest: Digest,
        /// The answer.
        answer: ApprovalAnswer,
        /// Name of the approver.
        by: String,
    },
    /// A reviewer replied to a question. Ignored for other questions, and the second time.
    Reviewed(Box<QuestionReview>),
    /// Everything recorded before this [`CoreOutput::Commit`] is durable.
    Committed(u64),
    /// An event could not be written or made durable.
    RecordFailed(String),
    /// The sandbox is built, and the command is held.
    Prepared(EnforcementReport),
    /// The sandbox could not be built. The text gives the failure and the remedy.
    PrepareFailed(String),
    /// The command was released.
    Released,
    /// The release failed because the sandbox died while the command was held.
    ReleaseFailed(String),
    /// An operation in the sandbox was refused.
    Denied {
        /// The refusal.
        denial: Denial,
        /// The powers that would have permitted the operation, if they may be requested: the
        /// backend can give them, and the rules permit a question. Usually the denial's grant, or
        /// nothing.
        powers: Vec<Grant>,
    },
    /// A limit was exceeded; the attempt must be ended.
    Breached {
        /// The limit, in the form of a refusal.
        denial: Denial,
        /// The powers that would raise it, if they may be requested.
        powers: Vec<Grant>,
    },
    /// A call lacks a power and waits.
    Held(Box<HeldCall>),
    /// Remembered answers for a held call.
    HeldRecalled {
        /// Identifier of the call.
        id: HoldId,
        /// Answer for each key, or the reason for a failed read.
        answers: Result<Vec<Option<RememberedAnswer>>, String>,
        /// True if an approver is available.
        approver: bool,
    },
    /// No process waits for this held call any more.
    Withdrawn(HoldId),
    /// A connection through the egress proxy was closed.
    Connection(Box<ConnectionRecord>),
    /// A key of the user's ssh agent signed.
    Signed {
        /// The grant that permitted the signature.
        grant: Grant,
        /// The signed object.
        object: RawText,
    },
    /// A program was executed in the sandbox.
    Executed {
        /// Process id as the host sees it.
        pid: u32,
        /// Resolved program.
        program: RawText,
    },
    /// The attempt is over and none of its processes is alive.
    Ended(Box<AttemptEnd>),
    /// The user interrupted: Stockade received this signal.
    Interrupted(i32),
    /// Time passed. Send this when [`RequestCore::tick_deadline`] is reached.
    Tick,
}

/// Operation for the driver, which carries the operations out in order. If a
/// [`Record`](Self::Record) fails, the rest of the same step is dropped and the failure is the next
/// input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreOutput {
    /// Assess the text; answer with [`CoreInput::Assessed`].
    Assess,
    /// Apply the rules; answer with [`CoreInput::Decided`].
    Decide(Box<Assessment>),
    /// Make a plan; answer with [`CoreInput::Planned`] or [`CoreInput::PlanFailed`].
    MakePlan {
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Exactly the grants of the plan.
        grants: Vec<Grant>,
    },
    /// Find the remembered powers; answer with [`CoreInput::Standing`] or [`CoreInput::MemoryFailed`].
    FindRemembered(Box<GrantContext>),
    /// Look up these keys; answer with [`CoreInput::Recalled`] or [`CoreInput::MemoryFailed`].
    LookUp(Vec<MemoryKey>),
    /// Remember these answers.
    Remember(Vec<AnswerMemo>),
    /// Look up keys for a held call; answer with [`CoreInput::HeldRecalled`].
    LookUpHeld {
        /// Identifier of the call.
        id: HoldId,
        /// Keys to look up.
        keys: Vec<MemoryKey>,
    },
    /// Send this question to the reviewer; answer with [`CoreInput::Reviewed`]. An [`Ask`](Self::Ask)
    /// follows in any case.
    Review(Box<ApprovalQuestion>),
    /// Put this question; answer with [`CoreInput::Answered`]. While an attempt runs, several questions
    /// may be open.
    Ask(Box<ApprovalQuestion>),
    /// Withdraw the question with this digest; a later answer is ignored.
    Withdraw(Digest),
    /// Write an event to the audit log.
    Record(Box<EventKind>),
    /// Acknowledge with [`CoreInput::Committed`] once everything recorded so far is written, or
    /// durable.
    Commit {
        /// Number to acknowledge.
        number: u64,
        /// True if it must survive a power loss.
        durable: bool,
    },
    /// Build the sandbox and hold the command; answer with [`CoreInput::Prepared`] or
    /// [`CoreInput::PrepareFailed`].
    Prepare {
        /// The plan.
        planned: Box<BoundPlan>,
        /// True to hold calls that lack a power.
        hold: bool,
    },
    /// Release the command; answer with [`CoreInput::Released`] or [`CoreInput::ReleaseFailed`].
    Release,
    /// Freeze all processes of the attempt because of this limit. A [`CoreInput::Held`] about it
    /// follows, or [`CoreInput::Breached`] if the backend cannot freeze them.
    StandStill(Box<Denial>),
    /// Answer a held call.
    AnswerHeld {
        /// Identifier of the call.
        id: HoldId,
        /// The answer.
        answer: HeldAnswer,
    },
    /// Send a signal to the command.
    Signal(i32),
    /// Kill the whole process tree; [`CoreInput::Ended`] follows.
    Kill,
    /// Drop the sandbox, if there is one. It ends, and its events are ignored.
    Discard,
    /// Finish the request. The last output.
    Finish(Box<RunOutcome>),
}

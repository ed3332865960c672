//! A request's way as a state machine without I/O, clock or randomness.
//!
//! [`Core::step`] takes one [`Input`] and the time and gives the [`Output`]s to
//! carry out, in order. It must not know files, processes, terminals or the
//! real rules; the driver does what it says and tells it what came of it.
//!
//! What it promises, whatever the order of the inputs (the simulation plays
//! them): nothing is released before its record is durable (L6); nothing is
//! released that was not allowed or consented to, byte for byte (L1, L5); a
//! later attempt has the same powers plus what was agreed to (L3); a held call
//! is answered once, and gets a power only after the consent to exactly that is
//! on record; a refusal beats everything (L9); it finishes exactly once, with nothing left alive
//! (L8).

mod asking;
mod clock;
mod ending;
mod escalating;
mod holding;
mod machine;
mod reviewing;
mod running;

use std::sync::Arc;

use stockade_model::{
    Answer, Assessment, ConnectionRecord, Decision, Denial, Digest, EnforcementReport, EventKind, Grant, Outcome, Plan,
    Question, QuestionKind, RawText, Request, RequestId, Review,
};

use crate::keys::{GrantContext, Key};
use crate::seams::Standing;
use crate::{AttemptEnd, HeldAnswer, HoldId};

pub use asking::shown_command;
pub use holding::HeldCall;
pub use machine::Core;

/// Numbers and names the core works with.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Version of the policy; consent is bound to it.
    pub policy: Digest,
    /// Who runs Stockade, e.g. `uid 1000`; consent is bound to it.
    pub user: String,
    /// Silence of an approver means no after this many milliseconds.
    pub question_timeout_ms: u64,
    /// A record that is not durable after this many milliseconds has failed.
    pub commit_timeout_ms: u64,
    /// Milliseconds between asking a command to end and killing it.
    pub grace_ms: u64,
    /// Milliseconds that a killed tree may take to be gone.
    pub kill_timeout_ms: u64,
    /// Executions of one request at most.
    pub max_attempts: u32,
    /// Powers in one question at most.
    pub max_grants_asked: usize,
    /// Programs and denials of one attempt that are recorded one by one.
    pub max_attempt_events: u32,
    /// Questions about held calls that stand open at the same time.
    pub max_questions: usize,
    /// Held calls of one attempt that somebody is asked about; the others are
    /// refused.
    pub max_holds: usize,
    /// From the how-many-th file of a directory on the directory is offered.
    pub directory_from: usize,
    /// Whether somebody to ask may come while the command runs.
    pub approver_may_come: bool,
    /// Who is asked for an opinion before a question is put.
    pub reviewer: Option<ReviewerTerms>,
    /// Which powers no answer is remembered for.
    pub guard: PowerGuard,
}

/// Says whether a power is over credentials or a part of the system. The core knows no
/// paths, so it asks.
#[derive(Clone)]
pub struct PowerGuard(Arc<dyn Fn(&Grant) -> bool + Send + Sync>);

impl PowerGuard {
    /// The same answer for the same power, always.
    pub fn new(is_guarded: impl Fn(&Grant) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_guarded))
    }

    fn guards(&self, power: &Grant) -> bool {
        (self.0)(power)
    }
}

impl std::fmt::Debug for PowerGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PowerGuard")
    }
}

/// Who gives opinions, and how long they are waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewerTerms {
    /// Its name.
    pub name: String,
    /// The question is put without an opinion after this many milliseconds.
    pub timeout_ms: u64,
}

impl CoreConfig {
    /// The shipped numbers.
    pub fn new(policy: Digest, user: String) -> Self {
        Self {
            policy,
            user,
            question_timeout_ms: 300_000,
            commit_timeout_ms: 30_000,
            grace_ms: 2_000,
            kill_timeout_ms: 10_000,
            max_attempts: 8,
            max_grants_asked: 12,
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

/// What the rules say of a request, and what of it somebody must agree to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// The verdict and why.
    pub decision: Decision,
    /// What must be asked, all of which need a yes: about the run, about powers
    /// asked for with it. The question about a missing sandbox is put whether or
    /// not it stands here.
    pub questions: Vec<QuestionKind>,
    /// The question about the run that the caller's own approval answers, which
    /// spares the question and nothing else.
    pub by_caller: Option<QuestionKind>,
    /// Powers asked for that the backend cannot give.
    pub unhonoured: Vec<Grant>,
    /// Whether rules may give powers to held calls, where nobody is asked too.
    pub gives_powers: bool,
    /// What the rules want of the run, where it is another than was asked for.
    pub wanted: Option<Wanted>,
}

/// With what the rules let a request run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The profile.
    pub profile: String,
    /// The powers asked for and those that the rules add.
    pub grants: Vec<Grant>,
    /// The wall-clock limit, in milliseconds.
    pub timeout_ms: Option<u64>,
}

impl Wanted {
    /// Puts it into the request; from then on it is what was asked for.
    pub fn put_into(&self, request: &mut Request) {
        request.profile.clone_from(&self.profile);
        request.grants.clone_from(&self.grants);
        request.timeout_ms = self.timeout_ms;
    }
}

/// A plan and the digests that bind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Its digest.
    pub digest: Digest,
    /// Digest of its whole profile.
    pub profile: Digest,
    /// Identity of the program and of a script named to it; see
    /// [`RunBinding`](crate::keys::RunBinding).
    pub identity: Digest,
    /// Whether that is all that would run: only then an approval may be remembered.
    pub is_identified: bool,
    /// Which directory the workspace is; see [`GrantContext`](crate::keys::GrantContext).
    pub workspace: Digest,
}

impl Planned {
    /// A plan with its digests, of a program that is known and a workspace that is not.
    ///
    /// # Errors
    /// Never in practice: every map of a plan has string keys.
    pub fn new(plan: Plan, identity: Digest) -> Result<Self, DigestError> {
        let digest = plan.digest().map_err(|error| DigestError(error.to_string()))?;
        let profile =
            Digest::of_json("stockade-profile-1", &plan.profile).map_err(|error| DigestError(error.to_string()))?;
        let workspace = Digest::of_fields("stockade-workspace-1", []);
        Ok(Self { plan, digest, profile, identity, is_identified: true, workspace })
    }
}

/// Why a plan has no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan cannot be written down: {0}")]
pub struct DigestError(String);

/// An answer found in the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The answer.
    pub answer: Answer,
    /// Which one, as `approvals show` names it.
    pub id: String,
}

/// An answer to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memo {
    /// What it is bound to.
    pub key: Key,
    /// The answer with its scope; of `Times`, the uses that are left.
    pub answer: Answer,
    /// What it was about: the command, or the power in its text form.
    pub subject: String,
    /// The powers it was about.
    pub grants: Vec<Grant>,
    /// The request that raised the question.
    pub request: RequestId,
    /// Who answered.
    pub by: String,
}

/// What a reviewer said of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reviewed {
    /// Digest of the question.
    pub digest: Digest,
    /// The opinion, or why there is none.
    pub review: Review,
    /// What was received.
    pub response: Option<RawText>,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// The request's text was read.
    Assessed(Assessment),
    /// The rules spoke.
    Decided(Box<Ruling>),
    /// The plan that was asked for.
    Planned(Box<Planned>),
    /// It cannot be made; what and why, for a person.
    PlanFailed(String),
    /// Powers remembered for the session, workspace and profile.
    Standing(Standing),
    /// What the memory holds under each key, in order, and whether somebody
    /// could be asked now.
    Recalled {
        /// One for each key.
        answers: Vec<Option<Remembered>>,
        /// Whether an approver is there.
        approver: bool,
    },
    /// The memory could not be read.
    MemoryFailed(String),
    /// An answer could not be kept; it holds for this request only.
    NotRemembered(String),
    /// An approver answered.
    Answered {
        /// Digest of the question it saw. Others are ignored.
        digest: Digest,
        /// The answer.
        answer: Answer,
        /// Who.
        by: String,
    },
    /// A reviewer was heard on a question. Of others, and the second time, it
    /// is ignored.
    Reviewed(Box<Reviewed>),
    /// Everything recorded before this [`Output::Commit`] is durable.
    Committed(u64),
    /// An event could not be written or made durable.
    RecordFailed(String),
    /// The sandbox stands, with the command held.
    Prepared(EnforcementReport),
    /// It could not be built; what and the remedy.
    PrepareFailed(String),
    /// The command was let go.
    Released,
    /// It could not be: the sandbox died while it was held.
    ReleaseFailed(String),
    /// Something was refused inside.
    Denied {
        /// The refusal.
        denial: Denial,
        /// The powers that would have let it pass, where they may be asked
        /// about: the backend could really give them, and the rules let a person
        /// be asked. Usually the denial's grant, or nothing.
        powers: Vec<Grant>,
    },
    /// A limit was passed; the attempt is to be ended.
    Breached {
        /// The limit, as a refusal would say it.
        denial: Denial,
        /// What would raise it, where that may be asked about.
        powers: Vec<Grant>,
    },
    /// A call lacks a power and waits.
    Held(Box<HeldCall>),
    /// What the memory holds for a held call.
    HeldRecalled {
        /// Which one.
        id: HoldId,
        /// One for each key, or why it could not be read.
        answers: Result<Vec<Option<Remembered>>, String>,
        /// Whether an approver is there.
        approver: bool,
    },
    /// Nobody waits behind this held call any more.
    Withdrawn(HoldId),
    /// A connection through the door is over.
    Connection(Box<ConnectionRecord>),
    /// A key of the person's ssh agent signed.
    Signed {
        /// The grant that let it pass.
        grant: Grant,
        /// What was signed.
        object: RawText,
    },
    /// A program was executed inside.
    Executed {
        /// Process id as the host sees it.
        pid: u32,
        /// Resolved program.
        program: RawText,
    },
    /// The attempt is over and nothing of it is alive.
    Ended(Box<AttemptEnd>),
    /// The person interrupted: this signal arrived at Stockade.
    Interrupted(i32),
    /// Time passed; send it when [`Core::deadline`] is reached.
    Tick,
}

/// Something to do. Carried out in order; when a [`Record`](Self::Record)
/// fails, the rest of the same step is dropped and the failure is the next
/// input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Read the text; answer with [`Input::Assessed`].
    Assess,
    /// Apply the rules; answer with [`Input::Decided`].
    Decide(Box<Assessment>),
    /// Make a plan; answer with [`Input::Planned`] or [`Input::PlanFailed`].
    MakePlan {
        /// Counts from 1.
        attempt: u32,
        /// The grants of the plan: exactly these.
        grants: Vec<Grant>,
    },
    /// Find the powers that stand; answer with [`Input::Standing`] or
    /// [`Input::MemoryFailed`].
    FindStanding(Box<GrantContext>),
    /// Look these up; answer with [`Input::Recalled`] or
    /// [`Input::MemoryFailed`].
    LookUp(Vec<Key>),
    /// Keep these.
    Remember(Vec<Memo>),
    /// Look these up for a held call; answer with [`Input::HeldRecalled`].
    LookUpHeld {
        /// Which one.
        id: HoldId,
        /// What to look up.
        keys: Vec<Key>,
    },
    /// Ask the reviewer about this question; answer with [`Input::Reviewed`].
    /// An [`Ask`](Self::Ask) follows, whatever comes of it.
    Review(Box<Question>),
    /// Put this question; answer with [`Input::Answered`]. While an attempt
    /// runs several may be open.
    Ask(Box<Question>),
    /// Take back the question of this digest: an answer counts for nothing now.
    Withdraw(Digest),
    /// Write an event to the record.
    Record(Box<EventKind>),
    /// Acknowledge with [`Input::Committed`] once everything recorded so far
    /// is written, or durable.
    Commit {
        /// Number to acknowledge.
        number: u64,
        /// Whether it must survive a power loss.
        durable: bool,
    },
    /// Build the sandbox and hold the command; answer with [`Input::Prepared`]
    /// or [`Input::PrepareFailed`].
    Prepare {
        /// The plan.
        planned: Box<Planned>,
        /// Whether calls that lack a power are to be held.
        hold: bool,
    },
    /// Let it go; answer with [`Input::Released`] or [`Input::ReleaseFailed`].
    Release,
    /// Let everything of the attempt stand still for this limit; a
    /// [`Input::Held`] about it follows, or [`Input::Breached`] where nothing can be
    /// made to.
    StandStill(Box<Denial>),
    /// Answer a held call.
    AnswerHeld {
        /// Which one.
        id: HoldId,
        /// With what.
        answer: HeldAnswer,
    },
    /// Send a signal to the command.
    Signal(i32),
    /// End the whole tree; [`Input::Ended`] follows.
    Kill,
    /// Drop the sandbox, if there is one: it ends and no event of it counts.
    Discard,
    /// The request is over. The last output.
    Finish(Box<Outcome>),
}

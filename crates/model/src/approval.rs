//! Questions to an approver, answers, and the scope of an answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Assessment, Denial, Digest, Grant, RawText, ReviewResult};

/// When to ask for approval. The names follow common usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalMode {
    /// Ask before every run, unless the run is known to be safe or changes files of the workspace only.
    Untrusted,
    /// Run in the sandbox; ask when an operation was refused.
    #[default]
    OnFailure,
    /// Ask when the request itself asks for more powers than its profile gives.
    OnRequest,
    /// Never ask: an operation that is not allowed is refused.
    Never,
    /// Ask per class of power, see [`GranularMode`].
    Granular(GranularMode),
}

/// For each class of power, whether an approver may be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct GranularMode {
    /// Ask about the run itself, when the classifier or a rule returns `ask`.
    pub run: bool,
    /// Ask about added filesystem powers.
    pub filesystem: bool,
    /// Ask about added network powers.
    pub network: bool,
    /// Ask about other added powers (sockets, programs, limits).
    pub other: bool,
}

/// Subject of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum QuestionKind {
    /// May this command run, in its sandbox?
    Run {
        /// Reasons for the question.
        reasons: Vec<String>,
    },
    /// May the run have these powers from the start?
    Grants {
        /// The powers that the request asks for.
        grants: Vec<Grant>,
    },
    /// The run was refused an operation. May it have the power and run again from the start?
    Escalate {
        /// The refused operations.
        denials: Vec<Denial>,
        /// The powers that would have allowed the operations.
        grants: Vec<Grant>,
        /// Effects of the first attempt that a second attempt would meet again.
        repeats: Vec<String>,
    },
    /// A held call lacks a power. May the attempt have it now? The call then continues; no command runs
    /// twice.
    Hold {
        /// The held call, in the form of a denial.
        denial: Denial,
        /// The powers that a yes adds, for the rest of the request at least.
        grants: Vec<Grant>,
        /// True if `grants` reach beyond this call: many calls concern files of one directory or hosts of
        /// one domain, and `grants` cover the directory or domain. A no applies to every call in it that
        /// has no yes.
        directory: bool,
        /// How long the call had waited when the question was made, in milliseconds.
        held_ms: u64,
    },
    /// May the command run without a sandbox? Consent is separate and for one command (L1).
    Unsandboxed,
}

/// A group of related hosts, as one more answer to a question about one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupOffer {
    /// Name of the group, without `@`.
    pub name: String,
    /// The powers of the group: a yes gives exactly these.
    pub grants: Vec<Grant>,
}

/// A question to an approver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalQuestion {
    /// Subject of the question.
    pub kind: QuestionKind,
    /// The whole command that would run.
    pub command: RawText,
    /// Working directory of the command.
    pub cwd: RawText,
    /// Assessment of the command text.
    pub assessment: Assessment,
    /// The scopes that may be offered; the shortest first.
    pub scopes: Vec<ApprovalScope>,
    /// A group of hosts that may be chosen instead of the host in question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupOffer>,
    /// Binds the answer to the displayed question (L5).
    pub digest: Digest,
    /// Milliseconds until a missing answer counts as no.
    pub timeout_ms: u64,
    /// Review by a model, if one is configured and answered in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<ReviewResult>,
}

impl ApprovalQuestion {
    /// Returns the scopes that a yes may have: those offered, but only this time if a review warns. A no
    /// may always have every offered scope.
    pub fn scopes_of_yes(&self) -> &[ApprovalScope] {
        if self.is_warned_of() { &[ApprovalScope::Once] } else { &self.scopes }
    }

    /// Returns the group that may be chosen; none if a review warns.
    pub fn group_offered(&self) -> Option<&GroupOffer> {
        self.group.as_ref().filter(|_| !self.is_warned_of())
    }

    fn is_warned_of(&self) -> bool {
        self.review.as_ref().is_some_and(ReviewResult::raises_caution)
    }
}

/// Scope of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ApprovalScope {
    /// This time only.
    Once,
    /// Until the session ends.
    Session,
    /// This number of times, including the current one.
    Times(u32),
    /// Until this time, in milliseconds since the epoch.
    Until(u64),
    /// From now on; a refusal is permanent.
    Always,
}

/// An approver's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ApprovalAnswer {
    /// Yes, with this scope.
    Approved(ApprovalScope),
    /// Yes to the group that the question offers, with this scope.
    Group(ApprovalScope),
    /// No, with this scope.
    Denied(ApprovalScope),
    /// No, and end the request now.
    Abort,
    /// No approver answered in time, or none could be asked: a refusal.
    TimedOut,
}

/// A question and its answer, as the outcome shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The question, in one line.
    pub question: String,
    /// `approved`, `denied`, `abort` or `timed-out`.
    pub answer: String,
    /// Scope of the answer.
    pub scope: Option<ApprovalScope>,
    /// Source of the answer: `terminal`, `cache`, `caller: NAME`, `mode never` ...
    pub by: String,
    /// How long the request waited for the answer, in milliseconds.
    pub waited_ms: u64,
    /// The powers that the question was about.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// Review by a model before the answer, if one was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<ReviewResult>,
}

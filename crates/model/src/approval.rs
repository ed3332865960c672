//! Questions, answers, and how far an answer reaches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Assessment, Denial, Digest, Grant, RawText, Review};

/// When to ask. The names are the field's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalMode {
    /// Ask before every run that is not known to be safe, or to change files of the
    /// workspace only.
    Untrusted,
    /// Run in the sandbox; ask when something was refused.
    #[default]
    OnFailure,
    /// Ask when the request itself asks for more than its profile gives.
    OnRequest,
    /// Never ask: what is not allowed is refused.
    Never,
    /// Per class of power, see [`GranularMode`].
    Granular(GranularMode),
}

/// For each class of power, whether a person may be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct GranularMode {
    /// May the run itself be asked about, when the judge or a rule says `ask`?
    pub run: bool,
    /// May added filesystem powers be asked about?
    pub filesystem: bool,
    /// May added network powers be asked about?
    pub network: bool,
    /// May other added powers be asked about (sockets, programs, limits)?
    pub other: bool,
}

/// What the question is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum QuestionKind {
    /// May this command run, in its sandbox?
    Run {
        /// Why it is asked.
        reasons: Vec<String>,
    },
    /// May it have these powers from the start?
    Grants {
        /// The powers asked for with the request.
        grants: Vec<Grant>,
    },
    /// It was refused something: may it have that, and run again from the start?
    Escalate {
        /// What was refused.
        denials: Vec<Denial>,
        /// The powers that would have let it pass.
        grants: Vec<Grant>,
        /// What the first attempt already changed and would now meet again.
        repeats: Vec<String>,
    },
    /// A call waits for a power: may the attempt have it now? The call then
    /// goes on where it stands; nothing runs twice.
    Hold {
        /// The call, as a refusal would say it.
        denial: Denial,
        /// The powers a yes adds, for the rest of the request at least.
        grants: Vec<Grant>,
        /// True where `grants` reach beyond this call: many are about files of
        /// one directory or hosts of one domain, and that is offered in their
        /// place. A no is for everything in it that has no yes.
        directory: bool,
        /// How long it had waited when the question was made, in milliseconds.
        held_ms: u64,
    },
    /// May it run without a sandbox? A separate act, for one command (L1).
    Unsandboxed,
}

/// Hosts that belong together, as one more answer to a question about one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupOffer {
    /// Its name, without `@`.
    pub name: String,
    /// The powers that it stands for: exactly these are given.
    pub grants: Vec<Grant>,
}

/// A question to an approver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// What is asked.
    pub kind: QuestionKind,
    /// The command that would run, whole.
    pub command: RawText,
    /// Where it would run.
    pub cwd: RawText,
    /// What its text shows.
    pub assessment: Assessment,
    /// The scopes that may be offered; the shortest first.
    pub scopes: Vec<Scope>,
    /// A group of hosts that may be chosen in the place of the one that is asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupOffer>,
    /// Binds the answer to what was shown (L5).
    pub digest: Digest,
    /// Milliseconds until silence means no.
    pub timeout_ms: u64,
    /// What a model said of it, where one is asked and was heard in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<Review>,
}

impl Question {
    /// How far a yes may reach: as offered, but this time only where a review
    /// warns. A no may always reach as far as offered.
    pub fn scopes_of_yes(&self) -> &[Scope] {
        if self.is_warned_of() { &[Scope::Once] } else { &self.scopes }
    }

    /// The group that may be chosen: none where a review warns.
    pub fn group_offered(&self) -> Option<&GroupOffer> {
        self.group.as_ref().filter(|_| !self.is_warned_of())
    }

    fn is_warned_of(&self) -> bool {
        self.review.as_ref().is_some_and(Review::warns)
    }
}

/// How far an answer reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Scope {
    /// This time.
    Once,
    /// Until the session ends.
    Session,
    /// This many times, the current one included.
    Times(u32),
    /// Until this time, in milliseconds since the epoch.
    Until(u64),
    /// From now on; for a refusal: never.
    Always,
}

/// An approver's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// Yes, this far.
    Approved(Scope),
    /// Yes to the group that the question offers, this far.
    Group(Scope),
    /// No, this far.
    Denied(Scope),
    /// No, and end the request now.
    Abort,
    /// Nobody answered in time, or nobody could be asked: a refusal.
    TimedOut,
}

/// A question and its answer, as the outcome shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// What was asked, in one line.
    pub question: String,
    /// `approved`, `denied`, `abort` or `timed-out`.
    pub answer: String,
    /// How far it reaches.
    pub scope: Option<Scope>,
    /// Who answered: `terminal`, `cache`, `caller: NAME`, `mode never` ...
    pub by: String,
    /// How long the request waited for it, in milliseconds.
    pub waited_ms: u64,
    /// The powers it was about.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// What a model said of it beforehand, where one was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<Review>,
}

//! Remembered answer, and the part of an answer that is remembered.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stockade_model::{Answer, ApprovalId, Digest, Grant, RawText, RequestId, Scope, SessionId};

/// Kind of question. An answer in one namespace does not count in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Namespace {
    /// May it run in its sandbox?
    Run,
    /// May it have these powers from the start?
    Grant,
    /// May it have a power that it was refused?
    Escalate,
    /// May it run without a sandbox?
    Unsandboxed,
}

impl Namespace {
    /// Returns the text form, as stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Grant => "grant",
            Self::Escalate => "escalate",
            Self::Unsandboxed => "unsandboxed",
        }
    }
}

impl FromStr for Namespace {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Run, Self::Grant, Self::Escalate, Self::Unsandboxed]
            .into_iter()
            .find(|namespace| namespace.as_str() == text)
            .ok_or(())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consent {
    /// Yes.
    Approved,
    /// No.
    Denied,
}

/// Remembered answer with its conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// Identifier for `show` and `revoke`.
    pub id: ApprovalId,
    /// Kind of question that it answers.
    pub namespace: Namespace,
    /// Digest of everything that consent is bound to (L5).
    pub digest: Digest,
    /// The question, as it was shown.
    pub question: RawText,
    /// The requested powers.
    pub grants: Vec<Grant>,
    /// The answer.
    pub consent: Consent,
    /// Scope of the answer. [`Scope::Times`] contains the remaining uses.
    pub scope: Scope,
    /// Session of the answer; the only one that [`Scope::Session`] applies to.
    pub session: Option<SessionId>,
    /// Name of the approver.
    pub by: String,
    /// Time of the answer, in milliseconds since the epoch.
    pub created_ms: u64,
    /// The request that caused the question.
    pub request: RequestId,
    /// Time of its revocation, in milliseconds since the epoch.
    pub revoked_ms: Option<u64>,
    /// Time at which its session ended, in milliseconds since the epoch.
    pub ended_ms: Option<u64>,
}

impl Remembered {
    /// Returns whether it can still answer a question at `now_ms`.
    pub fn in_force(&self, now_ms: u64) -> bool {
        self.revoked_ms.is_none()
            && self.ended_ms.is_none()
            && match self.scope {
                Scope::Once => false,
                Scope::Times(left) => left > 0,
                Scope::Until(until_ms) => now_ms < until_ms,
                Scope::Session | Scope::Always => true,
            }
    }
}

/// Returns the part of an answer that applies to later questions, after the original question:
/// nothing of `once`, one use less of `times`.
pub fn lasting(answer: Answer) -> Option<(Consent, Scope)> {
    let (consent, scope) = match answer {
        Answer::Approved(scope) | Answer::Group(scope) => (Consent::Approved, scope),
        Answer::Denied(scope) => (Consent::Denied, scope),
        Answer::Abort | Answer::TimedOut => return None,
    };
    match scope {
        Scope::Once | Scope::Times(0 | 1) => None,
        Scope::Times(uses) => Some((consent, Scope::Times(uses - 1))),
        Scope::Session | Scope::Until(_) | Scope::Always => Some((consent, scope)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts() {
        let check = |answer, expected| assert_eq!(lasting(answer), expected, "{answer:?}");
        check(Answer::Abort, None);
        check(Answer::TimedOut, None);
        check(Answer::Approved(Scope::Once), None);
        check(Answer::Denied(Scope::Once), None);
        check(Answer::Approved(Scope::Times(0)), None);
        check(Answer::Approved(Scope::Times(1)), None);
        check(Answer::Approved(Scope::Times(3)), Some((Consent::Approved, Scope::Times(2))));
        check(Answer::Denied(Scope::Always), Some((Consent::Denied, Scope::Always)));
        check(Answer::Approved(Scope::Until(7)), Some((Consent::Approved, Scope::Until(7))));
    }
}

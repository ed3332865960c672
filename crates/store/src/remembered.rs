//! Remembered answer, and the part of an answer that is remembered.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stockade_model::{ApprovalAnswer, ApprovalId, ApprovalScope, Digest, Grant, RawText, RequestId, SessionId};

/// Kind of question. An answer in one namespace does not count in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalNamespace {
    /// May it run in its sandbox?
    Run,
    /// May it have these powers from the start?
    Grant,
    /// May it have a power that it was refused?
    Escalate,
    /// May it run without a sandbox?
    Unsandboxed,
}

impl ApprovalNamespace {
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

impl FromStr for ApprovalNamespace {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Run, Self::Grant, Self::Escalate, Self::Unsandboxed]
            .into_iter()
            .find(|namespace| namespace.as_str() == text)
            .ok_or(())
    }
}

impl fmt::Display for ApprovalNamespace {
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
pub struct ApprovalRecord {
    /// Identifier for `show` and `revoke`.
    pub id: ApprovalId,
    /// Kind of question that it answers.
    pub namespace: ApprovalNamespace,
    /// Digest of everything that consent is bound to (L5).
    pub digest: Digest,
    /// The question, as it was shown.
    pub question: RawText,
    /// The requested powers.
    pub grants: Vec<Grant>,
    /// The answer.
    pub consent: Consent,
    /// Scope of the answer. [`ApprovalScope::Times`] contains the remaining uses.
    pub scope: ApprovalScope,
    /// Session of the answer; the only one that [`ApprovalScope::Session`] applies to.
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

impl ApprovalRecord {
    /// Returns whether it can still answer a question at `now_ms`.
    pub fn in_force(&self, now_ms: u64) -> bool {
        self.revoked_ms.is_none()
            && self.ended_ms.is_none()
            && match self.scope {
                ApprovalScope::Once => false,
                ApprovalScope::Times(remaining) => remaining > 0,
                ApprovalScope::Until(until_ms) => now_ms < until_ms,
                ApprovalScope::Session | ApprovalScope::Always => true,
            }
    }
}

/// Returns the part of an answer that applies to later questions, after the original question:
/// nothing of `once`, one use less of `times`.
pub fn persistent_part(answer: ApprovalAnswer) -> Option<(Consent, ApprovalScope)> {
    let (consent, scope) = match answer {
        ApprovalAnswer::Approved(scope) | ApprovalAnswer::Group(scope) => (Consent::Approved, scope),
        ApprovalAnswer::Denied(scope) => (Consent::Denied, scope),
        ApprovalAnswer::Abort | ApprovalAnswer::TimedOut => return None,
    };
    match scope {
        ApprovalScope::Once | ApprovalScope::Times(0 | 1) => None,
        ApprovalScope::Times(uses) => Some((consent, ApprovalScope::Times(uses - 1))),
        ApprovalScope::Session | ApprovalScope::Until(_) | ApprovalScope::Always => Some((consent, scope)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persistent_state() {
        let check = |answer, expected| assert_eq!(persistent_part(answer), expected, "{answer:?}");
        check(ApprovalAnswer::Abort, None);
        check(ApprovalAnswer::TimedOut, None);
        check(ApprovalAnswer::Approved(ApprovalScope::Once), None);
        check(ApprovalAnswer::Denied(ApprovalScope::Once), None);
        check(ApprovalAnswer::Approved(ApprovalScope::Times(0)), None);
        check(ApprovalAnswer::Approved(ApprovalScope::Times(1)), None);
        check(ApprovalAnswer::Approved(ApprovalScope::Times(3)), Some((Consent::Approved, ApprovalScope::Times(2))));
        check(ApprovalAnswer::Denied(ApprovalScope::Always), Some((Consent::Denied, ApprovalScope::Always)));
        check(ApprovalAnswer::Approved(ApprovalScope::Until(7)), Some((Consent::Approved, ApprovalScope::Until(7))));
    }
}

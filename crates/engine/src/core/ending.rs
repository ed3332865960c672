//! End of a request: the outcome and the last events.

use stockade_backend_api::{AttemptEnd, CommandEnd};
use stockade_model::{Approval, Decision, EventKind, FinalStatus, Grant, PolicyVerdict, RequestedGrant, RunOutcome};

use super::CoreOutput;
use super::machine::{RequestCore, RequestPhase};
use crate::exit::{NOT_FOUND, REFUSED, exit_code};

/// Result of the request before it becomes an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestEnd {
    pub(super) status: FinalStatus,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) error: Option<String>,
}

impl RequestEnd {
    fn new(status: FinalStatus, error: Option<String>) -> Self {
        Self { status, exit_code: None, signal: None, error }
    }

    pub(super) fn from_refusal(why: impl Into<String>) -> Self {
        Self::new(FinalStatus::Refused, Some(why.into()))
    }

    pub(super) fn from_failure(why: impl Into<String>) -> Self {
        Self::new(FinalStatus::Error, Some(why.into()))
    }

    pub(super) fn from_abort(why: &str) -> Self {
        Self::new(FinalStatus::Aborted, Some(why.to_owned()))
    }

    pub(super) fn from_signal(signal: i32) -> Self {
        Self { signal: Some(signal), ..Self::from_abort("interrupted") }
    }

    /// Creates the result from the end of the command; `program` is its first word.
    pub(super) fn from_attempt_end(end: &AttemptEnd, program: &str) -> Self {
        match &end.end {
            CommandEnd::Exited(code) => Self { exit_code: Some(*code), ..Self::new(FinalStatus::Exited, None) },
            CommandEnd::Signaled(signal) => Self { signal: Some(*signal), ..Self::new(FinalStatus::Signaled, None) },
            CommandEnd::NotFound => {
                let which = if program.contains('/') {
                    "was not found, or the interpreter that it names was not"
                } else {
                    "was not found in the directories of PATH"
                };
                let why = format!("the program `{program}` {which}");
                Self { exit_code: Some(NOT_FOUND), ..Self::from_failure(why) }
            }
            CommandEnd::NotExecutable(why) => {
                let why = format!("the program `{program}` cannot be executed: {why}");
                Self { exit_code: Some(REFUSED), ..Self::from_failure(why) }
            }
            CommandEnd::Lost(why) => {
                Self::from_failure(format!("the sandbox was lost and all its processes ended: {why}"))
            }
        }
    }
}

impl RequestCore {
    /// Ends the request because Stockade failed.
    pub(super) fn fail_request(&mut self, why: impl Into<String>) {
        self.end_request(RequestEnd::from_failure(why));
    }

    /// Ends the request. No attempt may be alive when this is called.
    pub(super) fn end_request(&mut self, ending: RequestEnd) {
        self.pending.clear();
        if ending.status == FinalStatus::Error {
            self.record_event(EventKind::Failed { message: ending.error.clone().unwrap_or_default() });
        }
        let outcome = Box::new(self.build_outcome(ending));
        if self.record_failed {
            self.out.push(CoreOutput::Finish(outcome));
            self.phase = RequestPhase::Finished;
            return;
        }
        self.record_event(EventKind::Finished { status: outcome.status, exit_code: exit_code(&outcome) });
        // Written is enough. A power failure can lose only an ending, and the durable start before
        // it shows that.
        let commit = self.commit_events(false);
        let deadline_ms = self.now_ms.saturating_add(self.config.commit_timeout_ms);
        self.phase = RequestPhase::Closing { outcome, commit, deadline_ms };
    }

    fn build_outcome(&self, ending: RequestEnd) -> RunOutcome {
        let decision = self.ruling.as_ref().map_or_else(
            || Decision {
                verdict: PolicyVerdict::Ask,
                rule: "none: it ended before a decision".to_owned(),
                reasons: vec![],
            },
            |ruling| ruling.decision.clone(),
        );
        RunOutcome {
            id: self.request.id.clone(),
            session: self.request.session.clone(),
            digest: self.planned.as_ref().map(|planned| planned.digest.clone()),
            status: ending.status,
            exit_code: ending.exit_code,
            signal: ending.signal,
            error: ending.error,
            assessment: self.assessment.clone(),
            decision,
            attempts: self.attempts.clone(),
            approvals: self.approvals.clone(),
            requested: self.request.requested.iter().map(|grant| self.requested_grant(grant)).collect(),
        }
    }

    /// Returns the result of a power that the request asked for.
    fn requested_grant(&self, grant: &Grant) -> RequestedGrant {
        let given = self.attempts.iter().any(|attempt| attempt.grants.contains(grant));
        let yes = |approval: &&Approval| approval.answer == "approved" && approval.grants.contains(grant);
        let by = || self.approvals.iter().rev().find(yes).map_or("rules", |approval| approval.by.as_str()).to_owned();
        RequestedGrant { grant: grant.clone(), given, agreed_by: given.then(by) }
    }
}

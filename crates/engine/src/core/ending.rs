//! End of a request: the outcome and the last events.

use stockade_model::{Approval, Decision, EventKind, Grant, Outcome, RequestedGrant, Status, Verdict};

use super::Output;
use super::machine::{Core, Phase};
use crate::exit::{NOT_FOUND, REFUSED, exit_code};
use crate::{AttemptEnd, CommandEnd};

/// Result of the request before it becomes an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) status: Status,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) error: Option<String>,
}

impl Ending {
    pub(super) fn refused(why: String) -> Self {
        Self { status: Status::Refused, exit_code: None, signal: None, error: Some(why) }
    }

    pub(super) fn failed(why: String) -> Self {
        Self { status: Status::Error, exit_code: None, signal: None, error: Some(why) }
    }

    pub(super) fn aborted(why: &str) -> Self {
        Self { status: Status::Aborted, exit_code: None, signal: None, error: Some(why.to_owned()) }
    }

    pub(super) fn interrupted(signal: i32) -> Self {
        Self { signal: Some(signal), ..Self::aborted("interrupted") }
    }

    /// Creates the result from the end of the command; `program` is its first word.
    pub(super) fn of(end: &AttemptEnd, program: &str) -> Self {
        match &end.end {
            CommandEnd::Exited(code) => {
                Self { status: Status::Exited, exit_code: Some(*code), signal: None, error: None }
            }
            CommandEnd::Signaled(signal) => {
                Self { status: Status::Signaled, exit_code: None, signal: Some(*signal), error: None }
            }
            CommandEnd::NotFound => {
                let which = if program.contains('/') {
                    "was not found, or the interpreter that it names was not"
                } else {
                    "was not found in the directories of PATH"
                };
                let why = format!("the program `{program}` {which}");
                Self { exit_code: Some(NOT_FOUND), ..Self::failed(why) }
            }
            CommandEnd::NotExecutable(why) => {
                let why = format!("the program `{program}` cannot be executed: {why}");
                Self { exit_code: Some(REFUSED), ..Self::failed(why) }
            }
            CommandEnd::Lost(why) => Self::failed(format!("the sandbox was lost and everything in it ended: {why}")),
        }
    }
}

impl Core {
    /// Ends the request. No attempt may be alive when this is called.
    pub(super) fn close(&mut self, ending: Ending) {
        self.pending.clear();
        if ending.status == Status::Error {
            self.record(EventKind::Failed { message: ending.error.clone().unwrap_or_default() });
        }
        let outcome = Box::new(self.outcome(ending));
        if self.record_failed {
            self.out.push(Output::Finish(outcome));
            self.phase = Phase::Finished;
            return;
        }
        self.record(EventKind::Finished { status: outcome.status, exit_code: exit_code(&outcome) });
        // Written is enough. A power failure can lose only an ending, and the durable start before
        // it shows that.
        let commit = self.commit(false);
        let deadline_ms = self.now_ms.saturating_add(self.config.commit_timeout_ms);
        self.phase = Phase::Closing { outcome, commit, deadline_ms };
    }

    fn outcome(&self, ending: Ending) -> Outcome {
        let decision = self.ruling.as_ref().map_or_else(
            || Decision { verdict: Verdict::Ask, rule: "none: it ended before a decision".to_owned(), reasons: vec![] },
            |ruling| ruling.decision.clone(),
        );
        Outcome {
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

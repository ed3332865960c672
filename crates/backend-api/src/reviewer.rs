//! Interface between the engine and the reviewer, which gives an opinion on questions.
//!
//! An opinion is shown beside the question and can only raise caution. This module must not depend
//! on how the opinion is made.

use stockade_model::{ApprovalQuestion, RawText, ReviewOpinion, SessionId};

/// Model that reviews questions before a person sees them. Off unless the user's own configuration
/// names one.
pub trait Reviewer: Send + Sync {
    /// Returns its name as the audit log and the question show it.
    fn name(&self) -> String;

    /// Returns the time-out in milliseconds. After it the question is put without an opinion.
    fn timeout_ms(&self) -> u64;

    /// Returns the whole text that would be sent about a question, with secrets removed. Sends
    /// nothing. Counts against the session's budget.
    ///
    /// # Errors
    /// The reason for sending nothing, for a person: the budget is used up, there is no key ...
    fn prepare_request(
        &self,
        question: &ApprovalQuestion,
        session: Option<&SessionId>,
    ) -> Result<ReviewRequest, String>;

    /// Sends the request and waits for the answer, at most for the time-out. Called on a thread of
    /// its own; several calls may run at the same time.
    fn send_request(&self, request: &ReviewRequest) -> ReviewReply;
}

/// Data that leaves the machine; recorded before it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewRequest {
    /// Address of the endpoint.
    pub endpoint: String,
    /// The body, without the key.
    pub body: RawText,
    /// The session whose budget it counts against.
    pub session: Option<SessionId>,
}

/// Result of a review request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewReply {
    /// The opinion, or Stockade's own text for the reason of its absence.
    pub opinion: Result<ReviewOpinion, String>,
    /// The received response, for the audit log: without secrets, and bounded.
    pub response: Option<RawText>,
}

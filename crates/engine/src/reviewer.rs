//! Who gives an opinion on questions, seen from the engine.
//!
//! An opinion is shown beside the question and can only raise caution. Must not
//! know how it is come by.

use stockade_model::{Opinion, Question, RawText, SessionId};

/// A model that is asked about questions before a person is. Off unless the
/// person's own configuration names one.
pub trait Reviewer: Send + Sync {
    /// Its name, as it stands in the record and beside the question.
    fn name(&self) -> String;

    /// The person waits this long for it at most, in milliseconds. The question
    /// is put without an opinion then.
    fn timeout_ms(&self) -> u64;

    /// What would be sent about a question, whole, with secrets left out. Sends
    /// nothing. Counts against the session's budget.
    ///
    /// # Errors
    /// Why nothing is to be sent, for a person: the budget is used up, there is
    /// no key ...
    fn prepare(&self, question: &Question, session: Option<&SessionId>) -> Result<ReviewRequest, String>;

    /// Sends it and waits for the answer, no longer than its time-out. Called on
    /// a thread of its own; several may be under way.
    fn ask(&self, request: &ReviewRequest) -> ReviewReply;
}

/// What leaves the machine; recorded before it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewRequest {
    /// Where it is sent.
    pub endpoint: String,
    /// The body. The key is no part of it.
    pub body: RawText,
    /// The session whose budget it counts against.
    pub session: Option<SessionId>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewReply {
    /// The opinion, or in our own words why there is none.
    pub opinion: Result<Opinion, String>,
    /// What was received, for the record: without secrets, and bounded.
    pub response: Option<RawText>,
}

//! Passes a reviewer's opinion to its question. The question waits for the opinion a few seconds at
//! most. A later opinion is recorded and changes nothing.
//!
//! This module must not interpret an opinion, except for whether it warns.

use stockade_model::{ApprovalQuestion, Digest, EventKind, ReviewResult};

use super::asking::OutstandingQuestion;
use super::machine::{RequestCore, RequestPhase};
use super::running::LiveAttempt;
use super::{CoreOutput, QuestionReview};

impl RequestCore {
    /// Puts a question, through the reviewer if there is one. Returns true in that case; the
    /// approver does not have the question yet.
    pub(super) fn put_question(&mut self, question: &ApprovalQuestion) -> bool {
        let question = Box::new(question.clone());
        let reviewing = self.config.reviewer.is_some();
        if reviewing {
            self.in_review.push(question.digest.clone());
            self.out.push(CoreOutput::Review(question));
        } else {
            self.out.push(CoreOutput::Ask(question));
        }
        reviewing
    }

    /// Returns the time-out for the reviewer or the approver.
    pub(super) fn wait_ms(&self, reviewing: bool) -> u64 {
        match &self.config.reviewer {
            Some(reviewer) if reviewing => reviewer.timeout_ms,
            _ => self.question_wait_ms(),
        }
    }

    pub(super) fn on_reviewed(&mut self, reviewed: QuestionReview) {
        let Some(at) = self.in_review.iter().position(|digest| *digest == reviewed.digest) else { return };
        self.in_review.remove(at);
        match std::mem::replace(&mut self.phase, RequestPhase::Finished) {
            RequestPhase::Asking(open) if open.reviewing && open.question.digest == reviewed.digest => {
                self.note_review(&reviewed, false);
                self.ask_reviewed(open, reviewed.review);
            }
            RequestPhase::Attempt(mut live) => {
                let waits = live.holds.in_review(&reviewed.digest).is_some();
                self.note_review(&reviewed, !waits);
                self.ask_held_reviewed(&mut live, reviewed);
                self.phase = RequestPhase::Attempt(live);
            }
            // Nothing is recorded after the end.
            phase @ (RequestPhase::Closing { .. } | RequestPhase::Finished) => self.phase = phase,
            phase => {
                self.note_review(&reviewed, true);
                self.phase = phase;
            }
        }
    }

    pub(super) fn on_review_timed_out(&mut self, open: OutstandingQuestion) {
        let reviewed = self.timed_out_review(open.question.digest.clone());
        self.note_review(&reviewed, false);
        self.ask_reviewed(open, reviewed.review);
    }

    /// Puts the question about a held call without an opinion.
    pub(super) fn go_on_unreviewed(&mut self, live: &mut LiveAttempt, digest: Digest) {
        let reviewed = self.timed_out_review(digest);
        self.note_review(&reviewed, false);
        self.ask_held_reviewed(live, reviewed);
    }

    fn ask_reviewed(&mut self, mut open: OutstandingQuestion, review: ReviewResult) {
        open.question.review = Some(review);
        self.out.push(CoreOutput::Ask(open.question.clone()));
        open.deadline_ms = self.now_ms.saturating_add(self.wait_ms(false));
        open.reviewing = false;
        self.phase = RequestPhase::Asking(open);
    }

    fn ask_held_reviewed(&mut self, live: &mut LiveAttempt, reviewed: QuestionReview) {
        if let Some(held_question) = live.holds.in_review(&reviewed.digest) {
            let question = held_question.apply_review(reviewed.review, self.now_ms);
            self.out.push(CoreOutput::Ask(question));
        }
    }

    /// Returns the review of a reviewer that did not answer in time. A later answer is still
    /// recorded.
    fn timed_out_review(&self, digest: Digest) -> QuestionReview {
        let (by, took_ms) = self
            .config
            .reviewer
            .as_ref()
            .map_or_else(Default::default, |options| (options.name.clone(), options.timeout_ms));
        QuestionReview {
            digest,
            review: ReviewResult::from_failure(by, "it did not answer in time"),
            response: None,
            took_ms,
        }
    }

    fn note_review(&mut self, reviewed: &QuestionReview, late: bool) {
        let QuestionReview { digest, review, response, took_ms } = reviewed.clone();
        self.record_event(EventKind::Reviewed { digest, review, response, took_ms, late });
    }
}

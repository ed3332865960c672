//! Offers of a directory in which a call was refused. A refusal by the memory or by a rule forbids
//! the offer. After a no of the approver a directory of files is still offered, so that a no to it
//! ends the questions. A yes to it then gives each call its own powers, never those of the
//! directory, so that the refused calls stay refused (L9).

use stockade_model::{ApprovalQuestion, EventKind, Grant, QuestionKind};

use super::{TrackedCall, TrackedCallPhase, TrackedCalls};
use crate::core::machine::RequestCore;
use crate::core::running::LiveAttempt;

impl RequestCore {
    /// Forbids the offer of a directory. Returns true if it was permitted before.
    pub(super) fn forbid_offer(&mut self, directory: &[Grant]) -> bool {
        !directory.is_empty() && self.refused_in.insert(directory.to_vec())
    }

    /// Notes a no to a call in this directory.
    pub(super) fn note_no_in(&mut self, directory: &[Grant]) {
        if are_of_files(directory) {
            self.answered_no_in.insert(directory.to_vec());
        } else {
            self.forbid_offer(directory);
        }
    }

    /// Returns whether this directory may be offered.
    pub(super) fn may_offer(&self, directory: &[Grant]) -> bool {
        !directory.is_empty()
            && !self.refused_in.contains(directory)
            && !self.single_call_directories.contains(directory)
    }

    /// Limits the offer of a directory in which a call was refused to this run. A remembered yes
    /// would include the refused call.
    pub(super) fn limit_offer(&self, question: &mut ApprovalQuestion) {
        if let QuestionKind::Hold { grants, directory: true, .. } = &question.kind
            && self.answered_no_in.contains(grants)
        {
            question.scopes.truncate(1);
        }
    }

    /// Returns whether a yes to its directory gives this call its own powers.
    pub(super) fn is_singly_allowed(&self, hold: &TrackedCall) -> bool {
        self.single_call_directories.contains(&hold.directory)
            && !self.refused_in.contains(&hold.directory)
            && are_of_files(&hold.powers)
    }

    /// Gives every held call of this directory its own powers, now and later.
    pub(super) fn give_singly(&mut self, live: &mut LiveAttempt, directory: Vec<Grant>) {
        self.single_call_directories.insert(directory);
        // A call whose key is being looked up may have a remembered refusal.
        let gets_own_powers =
            |hold: &TrackedCall| !matches!(hold.stage, TrackedCallPhase::Recalling(_)) && self.is_singly_allowed(hold);
        for hold in live.holds.take_where(gets_own_powers) {
            self.give_own_powers(live, hold);
        }
        // Calls that also lack other powers wait for questions of their own.
        let TrackedCalls { open, questions, .. } = &mut live.holds;
        for hold in open {
            if let TrackedCallPhase::Asked(digest) = &hold.stage
                && !questions.iter().any(|held_question| held_question.question.digest == *digest)
            {
                hold.stage = TrackedCallPhase::Wishing { directory: false };
            }
        }
        self.withdraw_idle_questions(live, "another answer covers it");
    }

    pub(super) fn give_own_powers(&mut self, live: &mut LiveAttempt, hold: TrackedCall) {
        let grants = hold.powers.clone();
        // Recorded before the backend gets the power.
        self.record_event(EventKind::Granted { grants: grants.clone(), holds: vec![hold.id.0] });
        self.note_in_place(&grants);
        self.let_go(live, hold, grants);
    }

    /// Withdraws the offers of directories in which a call was refused. The calls wait for questions
    /// of their own, or for an offer that is limited to this run.
    pub(super) fn ask_one_by_one(&mut self, live: &mut LiveAttempt) {
        let TrackedCalls { open, questions, .. } = &mut live.holds;
        for hold in open {
            let (is_offered, is_limited) = match &hold.stage {
                TrackedCallPhase::Wishing { directory } => (*directory, true),
                TrackedCallPhase::Asked(digest) => {
                    let offer = questions
                        .iter()
                        .find(|held_question| held_question.offer().1 && held_question.question.digest == *digest);
                    (offer.is_some(), offer.is_some_and(|held_question| held_question.question.scopes.len() == 1))
                }
                TrackedCallPhase::Recalling(_) => (false, true),
            };
            if is_offered && self.refused_in.contains(&hold.directory) {
                hold.stage = TrackedCallPhase::Wishing { directory: false };
            } else if is_offered && !is_limited && self.answered_no_in.contains(&hold.directory) {
                hold.stage = TrackedCallPhase::Wishing { directory: true };
            }
        }
        self.withdraw_idle_questions(live, "something in this directory was refused");
    }
}

/// Returns whether all of these are powers to write files.
fn are_of_files(grants: &[Grant]) -> bool {
    !grants.is_empty() && grants.iter().all(|grant| matches!(grant, Grant::Write(_)))
}

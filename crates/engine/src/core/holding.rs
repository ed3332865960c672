//! Calls that wait for a power while the attempt runs. Remembered answers and rules decide at once;
//! otherwise a question is put, and its answer reaches the waiting call. Several questions may be
//! open while the attempt continues.
//!
//! This module does not interpret paths. The call carries the directory that may be offered for a
//! file, and the further powers that a power needs.

use std::collections::{BTreeMap, BTreeSet};

use stockade_backend_api::{HeldAnswer, HoldId};
use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalQuestion, Denial, DenialResolution, Digest, EventKind, Grant, GroupOffer,
    LimitKind, PolicyVerdict, QuestionKind, ReviewResult,
};

use super::CoreOutput;
use super::asking::{SourcedAnswer, answer_for_once, may_ask};
use super::machine::{KeyPurpose, RecalledAnswers, RequestCore, grant_keys};
use super::running::LiveAttempt;
use crate::core::RememberedAnswer;
use crate::keys::QuestionNamespace;
use crate::offers::{are_covered, is_subset, is_whole, unrefused_powers};
use crate::ports::HeldRule;

mod directories;

/// Held calls of one attempt, and the questions about them.
#[derive(Debug, Default)]
pub(super) struct TrackedCalls {
    /// In the order of their arrival.
    open: Vec<TrackedCall>,
    /// In the order in which they were put.
    questions: Vec<HeldQuestion>,
    /// Powers approved in this attempt, one list for each question.
    consents: Vec<Vec<Grant>>,
    /// The different powers that calls lacked, by the directory that holds them.
    met: BTreeMap<Vec<Grant>, BTreeSet<Vec<Grant>>>,
    /// Number of calls that needed a question.
    asking_calls: usize,
    /// Time of the last answer. An approver that answers is present, so the time-out of every open
    /// question restarts then.
    last_answer_ms: u64,
    /// True if the last question timed out, so that the approver seems absent.
    silent: bool,
}

/// Held call of an attempt.
#[derive(Debug)]
struct TrackedCall {
    id: HoldId,
    denial: Denial,
    powers: Vec<Grant>,
    /// Powers for the directory or domain around it, if they may be offered.
    directory: Vec<Grant>,
    /// Group of hosts that may be offered together with its host.
    group: Option<GroupOffer>,
    /// Result of the rules: the verdict and the rule.
    rule: Option<(PolicyVerdict, String)>,
    since_ms: u64,
    stage: TrackedCallPhase,
}

#[derive(Debug)]
enum TrackedCallPhase {
    /// The key is being looked up.
    Recalling(Vec<KeyPurpose>),
    /// Needs a question, about its directory or about itself.
    Wishing { directory: bool },
    /// The question with this digest is about it.
    Asked(Digest),
}

/// A question that an approver or a reviewer has now.
#[derive(Debug)]
pub(super) struct HeldQuestion {
    question: Box<ApprovalQuestion>,
    since_ms: u64,
    /// Deadline of the reviewer that has the question; the approver does not have it yet.
    reviewed_by_ms: Option<u64>,
}

impl HeldQuestion {
    /// Returns the question as answered. If the group was chosen, its hosts are the approved
    /// powers, except hosts that are refused by now (L9).
    fn answered_by(mut self, answer: ApprovalAnswer, refused: &[Vec<Grant>]) -> Self {
        if let (ApprovalAnswer::Group(_), Some(group), QuestionKind::Hold { grants, .. }) =
            (answer, &self.question.group, &mut self.question.kind)
        {
            *grants = unrefused_powers(group, refused.iter().flatten());
        }
        self
    }

    /// Returns the powers in question, and whether they are those of a directory.
    fn offer(&self) -> (&[Grant], bool) {
        match &self.question.kind {
            QuestionKind::Hold { grants, directory, .. } => (grants, *directory),
            _ => (&[], false),
        }
    }

    /// Returns the question to put now, because the reviewer answered or its time-out passed.
    pub(super) fn apply_review(&mut self, review: ReviewResult, now_ms: u64) -> Box<ApprovalQuestion> {
        self.reviewed_by_ms = None;
        self.since_ms = now_ms;
        self.question.review = Some(review);
        self.question.clone()
    }
}

/// A call as the backend reported it, with the powers that may be requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCall {
    /// Identifier of the call.
    pub id: HoldId,
    /// Subject of the call.
    pub denial: Denial,
    /// Powers that may be requested: the denial's grant and its requirements. Empty if the refusal
    /// is final.
    pub powers: Vec<Grant>,
    /// Powers for the directory of its file or the domain of its host, to offer once several such
    /// calls are held. Empty if they may not be offered.
    pub directory: Vec<Grant>,
    /// Group of hosts that may be offered together with its host.
    pub group: Option<GroupOffer>,
    /// True if a remembered refusal names something in that directory, which is then not offered.
    pub refused_in: bool,
    /// Result of the rules.
    pub rule: Option<HeldRule>,
}

impl TrackedCall {
    /// Returns the powers to request, and whether they are those of the directory.
    fn requested_powers(&self) -> Option<(&[Grant], bool)> {
        match self.stage {
            TrackedCallPhase::Wishing { directory: true } => Some((&self.directory, true)),
            TrackedCallPhase::Wishing { directory: false } => Some((&self.powers, false)),
            TrackedCallPhase::Recalling(_) | TrackedCallPhase::Asked(_) => None,
        }
    }

    fn is_about(&self, digest: &Digest) -> bool {
        matches!(&self.stage, TrackedCallPhase::Asked(about) if about == digest)
    }

    /// Returns whether these powers permit the call, as far as the engine can decide.
    fn is_covered_by(&self, grants: &[Grant]) -> bool {
        are_covered(&self.powers, grants) || (!self.directory.is_empty() && is_subset(&self.directory, grants))
    }

    /// Returns whether a refusal of these powers refuses this call.
    fn is_refused_by(&self, refused: &[Grant]) -> bool {
        is_subset(refused, &self.powers) || is_subset(refused, &self.directory)
    }
}

impl TrackedCalls {
    /// Returns the deadline of the next question, in the time of the core.
    pub(super) fn deadline_ms(&self, wait_ms: u64) -> Option<u64> {
        let due_ms = |entry: &HeldQuestion| {
            entry.reviewed_by_ms.unwrap_or_else(|| entry.since_ms.max(self.last_answer_ms).saturating_add(wait_ms))
        };
        self.questions.iter().map(due_ms).min()
    }

    /// Returns whether an approver that answers has a question now.
    pub(super) fn wait_for_somebody(&self) -> bool {
        !self.questions.is_empty() && !self.silent
    }

    /// Returns the question with this digest if a reviewer has it.
    pub(super) fn in_review(&mut self, digest: &Digest) -> Option<&mut HeldQuestion> {
        self.questions.iter_mut().find(|entry| entry.reviewed_by_ms.is_some() && entry.question.digest == *digest)
    }

    /// Returns the questions whose reviewer missed its deadline.
    pub(super) fn review_is_overdue(&self, now_ms: u64) -> Vec<Digest> {
        let overdue = |entry: &&HeldQuestion| entry.reviewed_by_ms.is_some_and(|by_ms| by_ms <= now_ms);
        self.questions.iter().filter(overdue).map(|entry| entry.question.digest.clone()).collect()
    }

    fn take_call(&mut self, id: HoldId) -> Option<TrackedCall> {
        let at = self.open.iter().position(|hold| hold.id == id)?;
        Some(self.open.remove(at))
    }

    fn take_where(&mut self, is_match: impl Fn(&TrackedCall) -> bool) -> Vec<TrackedCall> {
        self.open.extract_if(.., |hold| is_match(hold)).collect()
    }

    /// Removes and returns the questions that no held call needs any more.
    fn take_idle_questions(&mut self) -> Vec<HeldQuestion> {
        let is_needed = |entry: &HeldQuestion| self.open.iter().any(|hold| hold.is_about(&entry.question.digest));
        self.questions.extract_if(.., |entry| !is_needed(entry)).collect()
    }
}

impl RequestCore {
    pub(super) fn on_held(&mut self, live: &mut LiveAttempt, call: HeldCall) {
        if live.holds.open.iter().any(|hold| hold.id == call.id) {
            return;
        }
        let id = call.id;
        let denied = call.rule.as_ref().is_some_and(|rule| rule.decision.verdict == PolicyVerdict::Deny);
        if (call.refused_in || denied) && self.forbid_offer(&call.directory) {
            self.ask_one_by_one(live);
            self.put_held_questions(live);
        }
        let hold = self.track_call(call);
        let is_late = !live.holding || !live.is_running() || self.record_failed || !self.may_record_more(live);
        if is_late || hold.powers.is_empty() || self.is_no_question_of_the_mode(&hold) {
            return self.refuse_call(live, hold, DenialResolution::Recorded);
        }
        if let Some((PolicyVerdict::Deny, rule)) = hold.rule.clone() {
            return self.answer_unasked(live, hold, false, &rule);
        }
        if self.is_refused(&hold) {
            return self.refuse_call(live, hold, DenialResolution::Refused);
        }
        self.record_bounded(live, EventKind::Held { hold: id.0, denial: hold.denial.clone() });
        if let Some(consent) = live.holds.consents.iter().find(|consent| hold.is_covered_by(consent)).cloned() {
            // Recorded before the backend gets the power.
            self.record_event(EventKind::Granted { grants: consent.clone(), holds: vec![id.0] });
            return self.let_go(live, hold, consent);
        }
        let Some(planned) = &self.planned else { return self.refuse_call(live, hold, DenialResolution::Recorded) };
        let context = self.grant_context(planned);
        let namespaces = [QuestionNamespace::Grant, QuestionNamespace::Escalate];
        let mut wanted = grant_keys(&context, &namespaces, &hold.powers);
        // A remembered refusal of a directory refuses every file in it.
        for namespace in namespaces.into_iter().filter(|_| !hold.directory.is_empty()) {
            wanted.push((KeyPurpose::DirectoryRefused, context.refusal_key(namespace, &hold.directory)));
        }
        let (slots, keys) = wanted.into_iter().unzip();
        self.out.push(CoreOutput::LookUpHeld { id, keys });
        live.holds.open.push(TrackedCall { stage: TrackedCallPhase::Recalling(slots), ..hold });
    }

    /// Returns whether the approval mode excludes a question. Mode `on-request` asks only about
    /// effects while a command runs, unless rules give powers; every other call is refused as if
    /// nothing were held.
    fn is_no_question_of_the_mode(&self, hold: &TrackedCall) -> bool {
        let rules_give = self.ruling.as_ref().is_some_and(|ruling| ruling.gives_powers);
        self.request.approval_mode == ApprovalMode::OnRequest
            && !rules_give
            && !hold.powers.iter().all(Grant::is_answer_only)
    }

    /// Creates a hold for a call, with the powers that it really lacks.
    fn track_call(&self, call: HeldCall) -> TrackedCall {
        let HeldCall { id, denial, mut powers, mut directory, group, rule, .. } = call;
        let verdict = rule.as_ref().map(|rule| rule.decision.verdict);
        match (verdict, &rule, &denial.grant) {
            (Some(PolicyVerdict::Allow), Some(rule), _) => powers.clone_from(&rule.powers),
            // A denied power is named, whatever questions the mode permits.
            (Some(PolicyVerdict::Deny), _, Some(grant)) => powers = vec![grant.clone()],
            _ => {}
        }
        // A power that is in the plan and was not sufficient is not requested.
        if let Some(planned) = &self.planned {
            powers.retain(|power| !planned.plan.grants.contains(power));
            if is_subset(&directory, &planned.plan.grants) {
                directory.clear();
            }
        }
        let rule = rule.map(|rule| (rule.decision.verdict, rule.decision.rule));
        let stage = TrackedCallPhase::Wishing { directory: false };
        TrackedCall { id, denial, powers, directory, group, rule, since_ms: self.now_ms, stage }
    }

    pub(super) fn on_held_recalled(
        &mut self,
        live: &mut LiveAttempt,
        id: HoldId,
        answers: Result<Vec<Option<RememberedAnswer>>, String>,
        approver: bool,
    ) {
        // An answer to another question may have settled this call meanwhile.
        let is_awaited = |hold: &TrackedCall| hold.id == id && matches!(hold.stage, TrackedCallPhase::Recalling(_));
        let Some(at) = live.holds.open.iter().position(is_awaited) else { return };
        let hold = live.holds.open.remove(at);
        let TrackedCallPhase::Recalling(slots) = &hold.stage else { return };
        self.approver = approver;
        let found = match answers {
            Ok(answers) if answers.len() == slots.len() => RecalledAnswers::from_slots(slots, &answers),
            Ok(_) => {
                return self.on_held_not_recalled(live, hold, "the number of answers is not the number of questions");
            }
            Err(why) => return self.on_held_not_recalled(live, hold, &why),
        };
        if found.directory_refused || !found.refused_of(&hold.powers).is_empty() {
            return self.answer_unasked(live, hold, false, "cache");
        }
        if let Some((PolicyVerdict::Allow, rule)) = hold.rule.clone() {
            return self.answer_unasked(live, hold, true, &rule);
        }
        if found.split_approved(hold.powers.clone()).1.is_empty() {
            return self.answer_unasked(live, hold, true, "cache");
        }
        self.request_powers(live, hold);
    }

    /// Refuses the call: without the memory a remembered refusal could be missed (L6).
    fn on_held_not_recalled(&mut self, live: &mut LiveAttempt, hold: TrackedCall, why: &str) {
        let message = format!("a held call is refused, remembered answers cannot be read: {why}");
        self.record_bounded(live, EventKind::Failed { message });
        self.refuse_call(live, hold, DenialResolution::Recorded);
    }

    /// Answers by the memory or by a rule. The answer is recorded all the same.
    fn answer_unasked(&mut self, live: &mut LiveAttempt, hold: TrackedCall, yes: bool, by: &str) {
        let kind = self.hold_kind(&hold, false);
        let noted = self.note_without_asking(kind, answer_for_once(yes), by);
        if yes && noted {
            let grants = hold.powers.clone();
            live.holds.open.push(hold);
            self.grant_in_place(live, grants);
        } else {
            self.escalated.extend(hold.powers.iter().cloned());
            self.forbid_offer(&hold.directory);
            self.refuse_call(live, hold, DenialResolution::Refused);
            self.ask_one_by_one(live);
        }
        self.put_held_questions(live);
    }

    /// Queues a call for a question, if one may be put.
    fn request_powers(&mut self, live: &mut LiveAttempt, mut hold: TrackedCall) {
        if self.is_singly_allowed(&hold) {
            return self.give_own_powers(live, hold);
        }
        let kind = self.hold_kind(&hold, false);
        if !self.approver || !may_ask(self.request.approval_mode, &kind) {
            return self.refuse_call(live, hold, DenialResolution::Recorded);
        }
        live.holds.asking_calls += 1;
        let limit = self.config.max_holds;
        if live.holds.asking_calls > limit {
            if live.holds.asking_calls == limit + 1 {
                let message = format!("this attempt held more than {limit} calls; the others are refused");
                self.record_event(EventKind::Failed { message });
            }
            return self.refuse_call(live, hold, DenialResolution::Recorded);
        }
        let mut directory = false;
        if self.may_offer(&hold.directory) {
            let met = live.holds.met.entry(hold.directory.clone()).or_default();
            met.insert(hold.powers.clone());
            directory = met.len() >= self.config.directory_from;
        }
        hold.stage = TrackedCallPhase::Wishing { directory };
        live.holds.open.push(hold);
        self.put_held_questions(live);
    }

    /// Puts as many questions as may be open, oldest call first. A call joins an existing question
    /// about the same powers.
    fn put_held_questions(&mut self, live: &mut LiveAttempt) {
        let mut at = 0;
        while let Some(hold) = live.holds.open.get(at) {
            let Some((lacked_powers, directory)) = hold.requested_powers() else {
                at += 1;
                continue;
            };
            let same = live.holds.questions.iter().find(|entry| entry.offer().0 == lacked_powers);
            let digest = match same.map(|entry| entry.question.digest.clone()) {
                Some(digest) => Some(digest),
                None if live.holds.questions.len() >= self.config.max_questions => None,
                None => {
                    let kind = self.hold_kind(hold, directory);
                    let group =
                        hold.group.clone().filter(|group| !directory && is_whole(group, self.refused.iter().flatten()));
                    let Ok(mut question) = self.question_beside(kind, group) else {
                        let hold = live.holds.open.remove(at);
                        self.refuse_call(live, hold, DenialResolution::Recorded);
                        continue;
                    };
                    self.limit_offer(&mut question);
                    let (question, digest) = (Box::new(question.clone()), question.digest);
                    self.record_event(EventKind::Asked { question: question.clone() });
                    let reviewing = self.put_question(&question);
                    let since_ms = self.now_ms;
                    let reviewed_by_ms = reviewing.then(|| since_ms.saturating_add(self.wait_ms(true)));
                    live.holds.questions.push(HeldQuestion { question, since_ms, reviewed_by_ms });
                    Some(digest)
                }
            };
            if let (Some(digest), Some(hold)) = (digest, live.holds.open.get_mut(at)) {
                hold.stage = TrackedCallPhase::Asked(digest);
            }
            at += 1;
        }
    }

    fn hold_kind(&self, hold: &TrackedCall, directory: bool) -> QuestionKind {
        let grants = if directory { &hold.directory } else { &hold.powers };
        QuestionKind::Hold {
            denial: hold.denial.clone(),
            grants: grants.clone(),
            directory,
            held_ms: self.now_ms.saturating_sub(hold.since_ms),
        }
    }

    /// Processes the answer to an open question. Returns true if the person wants the whole request
    /// to end.
    pub(super) fn on_held_answered(
        &mut self,
        live: &mut LiveAttempt,
        digest: &Digest,
        answer: ApprovalAnswer,
        by: String,
    ) -> bool {
        let is_answered = |entry: &HeldQuestion| entry.question.digest == *digest && entry.reviewed_by_ms.is_none();
        let Some(at) = live.holds.questions.iter().position(is_answered) else { return false };
        let entry = live.holds.questions.remove(at);
        live.holds.silent = answer == ApprovalAnswer::TimedOut;
        live.holds.last_answer_ms = if live.holds.silent { live.holds.last_answer_ms } else { self.now_ms };
        let sourced_answer =
            SourcedAnswer::from_approver(answer, by, self.now_ms.saturating_sub(entry.since_ms), &entry.question);
        let entry = entry.answered_by(sourced_answer.answer, &self.refused);
        self.note_answer(&entry.question, &sourced_answer);
        match sourced_answer.answer {
            ApprovalAnswer::Approved(_) | ApprovalAnswer::Group(_) => {
                self.remember_answer(&entry.question, &sourced_answer);
                let (grants, directory) = entry.offer();
                if directory && self.answered_no_in.contains(grants) {
                    self.give_singly(live, grants.to_vec());
                } else {
                    self.grant_in_place(live, grants.to_vec());
                }
            }
            ApprovalAnswer::Denied(_) => {
                self.remember_answer(&entry.question, &sourced_answer);
                self.refuse_in_place(live, &entry);
            }
            ApprovalAnswer::TimedOut => self.refuse_in_place(live, &entry),
            ApprovalAnswer::Abort => {
                self.refuse_in_place(live, &entry);
                return true;
            }
        }
        self.put_held_questions(live);
        false
    }

    /// Times out the questions whose deadline has passed.
    pub(super) fn time_out_held_questions(&mut self, live: &mut LiveAttempt, wait_ms: u64) {
        for digest in live.holds.review_is_overdue(self.now_ms) {
            self.go_on_unreviewed(live, digest);
        }
        let over = |entry: &&HeldQuestion| {
            let due_ms = entry.since_ms.max(live.holds.last_answer_ms).saturating_add(wait_ms);
            entry.reviewed_by_ms.is_none() && due_ms <= self.now_ms
        };
        let over: Vec<Digest> =
            live.holds.questions.iter().filter(over).map(|entry| entry.question.digest.clone()).collect();
        for digest in over {
            // A refusal of a directory may have withdrawn this question.
            if live.holds.questions.iter().any(|entry| entry.question.digest == digest) {
                self.out.push(CoreOutput::Withdraw(digest.clone()));
                self.on_held_answered(live, &digest, ApprovalAnswer::TimedOut, "nobody".to_owned());
            }
        }
    }

    /// Adds the powers to the attempt, for every held call that they cover.
    fn grant_in_place(&mut self, live: &mut LiveAttempt, grants: Vec<Grant>) {
        let covered = live.holds.take_where(|hold| hold.is_covered_by(&grants));
        let holds = covered.iter().map(|hold| hold.id.0).collect();
        self.record_event(EventKind::Granted { grants: grants.clone(), holds });
        self.note_in_place(&grants);
        for hold in covered {
            self.let_go(live, hold, grants.clone());
        }
        live.holds.consents.push(grants);
        self.withdraw_idle_questions(live, "another answer covers it");
    }

    fn note_in_place(&mut self, grants: &[Grant]) {
        self.escalated.extend(grants.iter().cloned());
        for grant in grants {
            if !self.in_place.contains(grant) {
                self.in_place.push(grant.clone());
            }
        }
    }

    fn refuse_in_place(&mut self, live: &mut LiveAttempt, entry: &HeldQuestion) {
        let (grants, directory) = entry.offer();
        self.escalated.extend(grants.iter().cloned());
        self.refused.push(grants.to_vec());
        if directory {
            self.forbid_offer(grants);
        }
        for hold in live.holds.take_where(|hold| hold.is_refused_by(grants)) {
            self.refuse_call(live, hold, DenialResolution::Refused);
        }
        self.ask_one_by_one(live);
        self.withdraw_idle_questions(live, "another answer covers it");
    }

    pub(super) fn on_withdrawn(&mut self, live: &mut LiveAttempt, id: HoldId) {
        let Some(hold) = live.holds.take_call(id) else { return };
        self.note_denial(live, &hold.denial, DenialResolution::Recorded);
        // At most one question, which was about this call alone.
        let idle = live.holds.take_idle_questions().pop();
        let digest = idle.map(|entry| entry.question.digest);
        let why = "the processes that waited have ended".to_owned();
        let event = EventKind::Withdrawn { holds: vec![id.0], digest: digest.clone(), why };
        match digest {
            Some(digest) => {
                self.record_event(event);
                self.out.push(CoreOutput::Withdraw(digest));
            }
            None => self.record_bounded(live, event),
        }
        self.put_held_questions(live);
    }

    fn withdraw_idle_questions(&mut self, live: &mut LiveAttempt, why: &str) {
        let idle = live.holds.take_idle_questions();
        self.withdraw_questions(idle, why);
    }

    fn withdraw_questions(&mut self, questions: Vec<HeldQuestion>, why: &str) {
        for entry in questions {
            let digest = entry.question.digest;
            self.out.push(CoreOutput::Withdraw(digest.clone()));
            self.record_event(EventKind::Withdrawn { holds: Vec::new(), digest: Some(digest), why: why.to_owned() });
        }
    }

    /// Refuses all held calls because the attempt is being ended. Nothing is granted from now on,
    /// and waiting processes may clean up.
    pub(super) fn refuse_all_held(&mut self, live: &mut LiveAttempt, why: &str) {
        let questions = std::mem::take(&mut live.holds.questions);
        self.withdraw_questions(questions, why);
        for hold in std::mem::take(&mut live.holds.open) {
            self.refuse_call(live, hold, DenialResolution::Recorded);
        }
    }

    /// Drops all held calls, because the attempt and its processes are gone.
    pub(super) fn forget_all_held(&mut self, live: &mut LiveAttempt) {
        let why = "the attempt is over";
        let questions = std::mem::take(&mut live.holds.questions);
        self.withdraw_questions(questions, why);
        let open = std::mem::take(&mut live.holds.open);
        if !open.is_empty() {
            let holds = open.iter().map(|hold| hold.id.0).collect();
            self.record_event(EventKind::Withdrawn { holds, digest: None, why: why.to_owned() });
        }
        for hold in open {
            self.note_denial(live, &hold.denial, DenialResolution::Recorded);
        }
    }

    /// Returns whether this call, or the directory around it, was refused before.
    fn is_refused(&self, hold: &TrackedCall) -> bool {
        self.refused.iter().any(|refused| hold.is_refused_by(refused))
    }

    /// Makes the call fail like any refused call.
    fn refuse_call(&mut self, live: &mut LiveAttempt, hold: TrackedCall, resolution: DenialResolution) {
        if resolution == DenialResolution::Refused {
            self.note_no_in(&hold.directory);
        }
        let denial = Denial { resolution, ..hold.denial };
        self.record_bounded(live, EventKind::Denied { denial: denial.clone() });
        self.note_denial(live, &denial, resolution);
        self.out.push(CoreOutput::AnswerHeld { id: hold.id, answer: HeldAnswer::Refused });
        if denial.is_of_limit(LimitKind::Wall) {
            self.end_for_time(live);
        }
    }

    /// Lets the call continue with approved powers, which are on record.
    fn let_go(&mut self, live: &mut LiveAttempt, hold: TrackedCall, grants: Vec<Grant>) {
        self.note_denial(live, &hold.denial, DenialResolution::Granted);
        if hold.denial.is_of_limit(LimitKind::Wall) {
            self.extend_clock(live, &grants);
        }
        self.out.push(CoreOutput::AnswerHeld { id: hold.id, answer: HeldAnswer::Granted(grants) });
    }
}

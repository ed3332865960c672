//! The laws of held calls: each is answered once, or withdrawn, or goes with
//! its sandbox; nothing is granted in place without a recorded consent to
//! exactly that; a refusal beats; nothing is asked twice.

use std::collections::{BTreeMap, BTreeSet};

use stockade_backend_api::{HeldAnswer, HoldId};
use stockade_engine::core::{BoundPlan, HeldCall, RememberedAnswer};
use stockade_engine::keys::MemoryKey;
use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalQuestion, ApprovalScope, Digest, EventKind, Grant, PolicyVerdict,
    QuestionKind,
};

use crate::checker::{Law, need};

/// What is known of the held calls of one request.
#[derive(Default)]
pub struct Held {
    /// Of the sandbox that stands.
    calls: BTreeMap<HoldId, Call>,
    open: Vec<ApprovalQuestion>,
    /// When each was put, and when somebody last answered.
    question_ms: BTreeMap<String, u64>,
    last_answer_ms: u64,
    /// The last question met with silence.
    silent: bool,
    /// True yeses, as they were asked.
    consents: Vec<Vec<Grant>>,
    /// True noes and silences, as they were asked.
    refused: Vec<Vec<Grant>>,
    refused_in: BTreeSet<Vec<Grant>>,
    /// Directories of files in which a call had a no.
    answered_no_in: BTreeSet<Vec<Grant>>,
    /// Those of them that had a yes: each call gets its own powers.
    single_call_directories: BTreeSet<Vec<Grant>>,
    settled: BTreeSet<Vec<Grant>>,
    /// What rules allowed.
    allowed: BTreeSet<Vec<Grant>>,
    /// Given in place.
    approved_grants: BTreeSet<Vec<Grant>>,
    /// Different files met of a directory.
    met: BTreeMap<Vec<Grant>, BTreeSet<Vec<Grant>>>,
    /// By attempt, from 0.
    in_place: Vec<BTreeSet<Grant>>,
    pub seen: Seen,
}

/// How often what the laws are about came up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub granted: usize,
    pub refused: usize,
    pub silences: usize,
    pub taken_back: usize,
    pub side_by_side: usize,
    pub directories: usize,
    /// Calls that a yes to their directory let go.
    pub by_directory: usize,
    /// Calls that were let go by themselves, for a directory in which another had a no.
    pub singly: usize,
    /// Commands that were given more time.
    pub lengthened: usize,
}

impl Seen {
    pub fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.refused += other.refused;
        self.silences += other.silences;
        self.taken_back += other.taken_back;
        self.side_by_side += other.side_by_side;
        self.directories += other.directories;
        self.by_directory += other.by_directory;
        self.singly += other.singly;
        self.lengthened += other.lengthened;
    }

    pub fn least(&self) -> usize {
        let all = [self.granted, self.refused, self.silences, self.taken_back, self.side_by_side];
        all.into_iter().chain([self.directories, self.by_directory]).min().unwrap_or(0)
    }
}

struct Call {
    call: HeldCall,
    keys: Option<Vec<MemoryKey>>,
    /// Only a refusal is right from here on.
    refused: bool,
    /// Whether somebody could be asked when it was looked up.
    approver: bool,
}

impl Call {
    fn is_covered_by(&self, grants: &[Grant]) -> bool {
        is_subset(&self.call.powers, grants) || is_subset(&self.call.directory, grants)
    }
}

fn is_subset(some: &[Grant], all: &[Grant]) -> bool {
    !some.is_empty() && some.iter().all(|grant| all.contains(grant))
}

impl Held {
    pub fn released(&mut self) {
        self.in_place.push(BTreeSet::new());
        self.silent = false;
    }

    pub fn in_place(&self, attempt: usize) -> Vec<&Grant> {
        self.in_place.get(attempt).into_iter().flatten().collect()
    }

    pub fn is_asked_or_settled(&self, grant: &Grant) -> bool {
        self.settled.iter().flatten().any(|known| known == grant)
    }

    /// A call that the world told; `plan` says what it has already.
    pub fn told(&mut self, call: &HeldCall, plan: &BoundPlan) {
        let mut call = call.clone();
        if call.refused_in {
            self.refused_in.insert(call.directory.clone());
        }
        let verdict = call.rule.as_ref().map(|rule| rule.decision.verdict);
        if let (Some(PolicyVerdict::Allow), Some(rule)) = (verdict, &call.rule) {
            call.powers.clone_from(&rule.powers);
            self.allowed.insert(rule.powers.clone());
        }
        let refused = verdict == Some(PolicyVerdict::Deny);
        if refused && !call.directory.is_empty() {
            self.refused_in.insert(call.directory.clone());
        }
        call.powers.retain(|power| !plan.plan.grants.contains(power));
        if is_subset(&call.directory, &plan.plan.grants) {
            call.directory.clear();
        }
        self.calls.insert(call.id, Call { call, keys: None, refused, approver: false });
    }

    pub fn withdrawn(&mut self, id: HoldId) {
        self.calls.remove(&id);
    }

    pub fn on_sandbox_end(&mut self) {
        self.calls.clear();
    }

    pub fn looked_up(&mut self, id: HoldId, keys: &[MemoryKey]) -> Law {
        let call = self.calls.get_mut(&id).ok_or("looked up for a call that is not held")?;
        need(call.keys.is_none(), "looked up twice")?;
        call.keys = Some(keys.to_vec());
        Ok(())
    }

    /// What the memory truly said; yeses go into `remembered`.
    pub fn recalled(
        &mut self,
        id: HoldId,
        answers: &Result<Vec<Option<RememberedAnswer>>, String>,
        approver: bool,
        remembered: &mut BTreeSet<MemoryKey>,
    ) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Some(keys) = call.keys.take() else { return };
        call.approver = approver;
        let Ok(answers) = answers else {
            call.refused = true;
            return;
        };
        for (key, found) in keys.into_iter().zip(answers) {
            match found {
                Some(RememberedAnswer { answer: ApprovalAnswer::Approved(_), .. }) if !key.refusal => {
                    let _ = remembered.insert(key);
                }
                Some(RememberedAnswer { answer: ApprovalAnswer::Denied(_), .. }) => call.refused = true,
                _ => {}
            }
        }
        if call.refused && !call.call.directory.is_empty() {
            self.refused_in.insert(call.call.directory.clone());
        }
        if !call.refused && !call.call.directory.is_empty() {
            self.met.entry(call.call.directory.clone()).or_default().insert(call.call.powers.clone());
        }
    }

    /// A true answer. False where it is to none of the open questions.
    pub fn answered(&mut self, digest: &Digest, answer: ApprovalAnswer, now_ms: u64) -> Option<QuestionKind> {
        let at = self.open.iter().position(|question| question.digest == *digest)?;
        let question = self.open.remove(at);
        let grants = grants_of(&question).to_vec();
        self.settled.insert(grants.clone());
        self.silent = answer == ApprovalAnswer::TimedOut;
        if !self.silent {
            self.last_answer_ms = now_ms;
        }
        self.seen.silences += usize::from(answer == ApprovalAnswer::TimedOut);
        let is_directory = matches!(question.kind, QuestionKind::Hold { directory: true, .. });
        match answer {
            ApprovalAnswer::Approved(_) if is_directory && self.answered_no_in.contains(&grants) => {
                self.single_call_directories.insert(grants);
            }
            ApprovalAnswer::Approved(_) | ApprovalAnswer::Group(_) => self.consents.push(grants),
            ApprovalAnswer::Denied(_) | ApprovalAnswer::TimedOut | ApprovalAnswer::Abort => {
                self.record_refusal(grants, &question)
            }
        }
        Some(question.kind)
    }

    fn record_refusal(&mut self, grants: Vec<Grant>, question: &ApprovalQuestion) {
        if matches!(question.kind, QuestionKind::Hold { directory: true, .. }) {
            self.refused_in.insert(grants.clone());
        }
        for call in self.calls.values_mut() {
            if is_subset(&grants, &call.call.powers) || is_subset(&grants, &call.call.directory) {
                call.refused = true;
                let are_files = call.call.directory.iter().all(|grant| matches!(grant, Grant::Write(_)));
                let noted = if are_files { &mut self.answered_no_in } else { &mut self.refused_in };
                noted.insert(call.call.directory.clone());
            }
        }
        self.answered_no_in.remove(&Vec::new());
        self.refused.push(grants);
    }

    /// Recorded as answered with silence by nobody: time ran out for it.
    pub fn timed_out(&mut self, digest: &Digest, now_ms: u64) {
        // It may have been taken back already.
        self.silent = true;
        self.answered(digest, ApprovalAnswer::TimedOut, now_ms);
    }

    pub fn is_open(&self, digest: &Digest) -> bool {
        self.open.iter().any(|question| question.digest == *digest)
    }

    /// Whether a question is open, and not before somebody who lets them pass.
    pub fn waits_for_an_approver(&self) -> bool {
        !self.open.is_empty() && !self.silent
    }

    pub fn taken_back(&mut self, digest: &Digest) {
        self.open.retain(|question| question.digest != *digest);
        self.seen.taken_back += 1;
    }

    pub fn asked(
        &mut self,
        question: &ApprovalQuestion,
        now_ms: u64,
        mode: ApprovalMode,
        max_questions: usize,
        log: &[EventKind],
    ) -> Law {
        let QuestionKind::Hold { denial, grants, directory, .. } = &question.kind else {
            return Err("not about a held call".to_owned());
        };
        let class = |grant: &Grant| match (mode, grant) {
            (ApprovalMode::Never, _) => false,
            (ApprovalMode::OnRequest, grant) => grant.is_answer_only(),
            (ApprovalMode::Granular(classes), Grant::Effect(_)) => classes.run,
            (ApprovalMode::Granular(classes), Grant::Write(_) | Grant::Read(_)) => classes.filesystem,
            (
                ApprovalMode::Granular(classes),
                Grant::Connect(_) | Grant::Secret(_) | Grant::Sign(_) | Grant::Listen(_),
            ) => classes.network,
            (ApprovalMode::Granular(classes), _) => classes.other,
            (ApprovalMode::Untrusted | ApprovalMode::OnFailure, _) => true,
        };
        need(grants.iter().all(class), "a held call asked about in a mode that does not ask")?;
        need(self.open.len() < max_questions, "too many questions at once")?;
        need(!self.open.iter().any(|open| grants_of(open) == grants), "the same asked twice at once")?;
        need(!self.settled.contains(grants), "the same object asked about twice")?;
        need(!self.refused.iter().any(|no| is_subset(no, grants)), "asked again after a no (L9)")?;
        need(!self.refused_in.contains(grants), "a directory offered in which something was refused (L9)")?;
        let is_match = |call: &&Call| if *directory { &call.call.directory } else { &call.call.powers } == grants;
        let fits = |call: &&Call| call.call.denial == *denial && !call.refused && call.approver;
        let Some(about) = self.calls.values().filter(is_match).find(fits) else {
            return Err("a question about no held call, or to nobody".to_owned());
        };
        let told = log.iter().any(|kind| matches!(kind, EventKind::Held { hold, denial: noted } if *hold == about.call.id.0 && noted == denial));
        need(told, "asked about a call that is not on record (L10)")?;
        if *directory {
            let files = self.met.get(grants).map_or(0, BTreeSet::len);
            need(files >= 3, "a directory offered before its third file")?;
            let is_limited = question.scopes == [ApprovalScope::Once] || !self.answered_no_in.contains(grants);
            need(is_limited, "a directory in which something was refused offered for longer than once (L9)")?;
            self.seen.directories += 1;
        }
        self.seen.side_by_side += usize::from(!self.open.is_empty());
        self.open.push(question.clone());
        self.question_ms.insert(question.digest.to_string(), now_ms);
        Ok(())
    }

    /// `may_grant`: the command runs, nobody is ending it, the record holds.
    pub fn replied(
        &mut self,
        id: HoldId,
        answer: &HeldAnswer,
        may_grant: bool,
        log: &[EventKind],
        remembered: impl Fn(&Grant) -> bool,
    ) -> Law {
        let Some(call) = self.calls.remove(&id) else {
            return Err("answered a call that is not held, or twice".to_owned());
        };
        let HeldAnswer::Granted(grants) = answer else {
            self.seen.refused += 1;
            return Ok(());
        };
        need(may_grant, "granted in place after the end began (L6)")?;
        need(!call.refused, "granted in place against a no (L9)")?;
        need(call.is_covered_by(grants), "granted to a call that it is not for")?;
        need(!self.refused.iter().any(|no| is_subset(no, grants)), "granted what has a no (L9)")?;
        // What was given before the no is not taken back.
        let approved_grants = self.approved_grants.contains(grants);
        let refused_in = self.refused_in.contains(grants) || self.answered_no_in.contains(grants);
        need(approved_grants || !refused_in, "granted a directory in which something was refused (L9)")?;
        self.approved_grants.insert(grants.clone());
        let directory = &call.call.directory;
        let is_approved = self.single_call_directories.contains(directory) || self.consents.contains(directory);
        let is_single = *grants == call.call.powers && is_approved && !self.refused_in.contains(directory);
        let agreed = self.consents.contains(grants) || is_single;
        let known = grants.iter().all(remembered) || self.allowed.contains(grants);
        need(agreed || known, "a power in place nobody agreed to (L3)")?;
        let asked = if is_single && !self.consents.contains(grants) { directory } else { grants };
        self.on_record(id, grants, asked, log)?;
        self.seen.granted += 1;
        self.seen.singly += usize::from(is_single);
        self.seen.by_directory += usize::from(call.call.directory == *grants);
        if let Some(in_place) = self.in_place.last_mut() {
            in_place.extend(grants.iter().cloned());
        }
        Ok(())
    }

    /// The question, its yes and the grant are written before the call goes on.
    fn on_record(&self, id: HoldId, grants: &[Grant], asked: &[Grant], log: &[EventKind]) -> Law {
        let asked: Vec<&Digest> = log
            .iter()
            .filter_map(|kind| match kind {
                EventKind::Asked { question } if grants_of(question) == asked => Some(&question.digest),
                _ => None,
            })
            .collect();
        let yes = |kind: &EventKind| matches!(kind, EventKind::Answered { digest, answer: ApprovalAnswer::Approved(_), .. } if asked.contains(&digest));
        need(log.iter().any(yes), "granted in place without a recorded consent (L6)")?;
        let noted = |kind: &EventKind| matches!(kind, EventKind::Granted { grants: noted, holds } if noted == grants && holds.contains(&id.0));
        need(log.iter().any(noted), "granted in place and not recorded (L6)")
    }

    /// The reviewer is through with it: the time of the question begins.
    pub fn put(&mut self, digest: &Digest, now_ms: u64) {
        self.question_ms.insert(digest.to_string(), now_ms);
    }

    /// After time was looked at: nobody is waited for longer than was said, with
    /// a little beyond it; a reviewer not even that.
    pub fn in_time(&self, now_ms: u64, in_review: &[ApprovalQuestion], review_ms: u64) -> Law {
        let since = |open: &ApprovalQuestion| {
            self.question_ms.get(open.digest.as_str()).copied().unwrap_or(0).max(self.last_answer_ms)
        };
        let late = |open: &ApprovalQuestion| since(open) + open.timeout_ms + 2_000 <= now_ms;
        let asked = |open: &ApprovalQuestion| self.question_ms.get(open.digest.as_str()).copied();
        let overdue =
            |open: &ApprovalQuestion| asked(open).is_some_and(|question_ms| question_ms + review_ms <= now_ms);
        need(!in_review.iter().any(overdue), "a question about a held call waits too long for a reviewer")?;
        need(!self.open.iter().any(late), "a question about a held call outlives its time")
    }

    /// After each step: nothing is forgotten, and nobody is asked for nothing.
    pub fn at_rest(&self, max_questions: usize) -> Law {
        for call in self.calls.values() {
            let wished = |open: &ApprovalQuestion| {
                let grants = grants_of(open);
                call.call.powers == grants || call.call.directory == grants
            };
            let is_looked_after =
                call.keys.is_some() || self.open.iter().any(wished) || self.open.len() >= max_questions;
            need(is_looked_after && !call.refused, "a held call is forgotten")?;
        }
        for open in &self.open {
            let grants = grants_of(open);
            let is_needed = self.calls.values().any(|call| call.call.powers == grants || call.call.directory == grants);
            need(is_needed, "a question stays open that nobody waits for")?;
        }
        Ok(())
    }
}

fn grants_of(question: &ApprovalQuestion) -> &[Grant] {
    match &question.kind {
        QuestionKind::Hold { grants, .. } => grants,
        _ => &[],
    }
}

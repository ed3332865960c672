//! Escalation after an attempt: decides whether its denials lead to a question. An approval leads
//! to one more attempt with exactly those powers added (L3).

use std::collections::BTreeSet;

use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalScope, AttemptPlan, Denial, DenialResolution, EventKind, FinalStatus, Grant,
    QuestionKind,
};

use super::BoundPlan;
use super::asking::PresetAnswer;
use super::ending::RequestEnd;
use super::machine::{RecalledAnswers, RequestCore, grant_keys};
use crate::keys::QuestionNamespace;

/// Round of questions about the denials of an attempt.
#[derive(Clone, Debug)]
pub(super) struct EscalationRound {
    /// End of the attempt: the result if no approval follows.
    pub(super) ending: RequestEnd,
    /// Powers of this round.
    candidates: Vec<Grant>,
    /// Number of further powers that one question cannot hold.
    omitted_count: usize,
    /// Candidates with a remembered approval.
    known: Vec<Grant>,
    /// Candidates that need a question.
    unknown: Vec<Grant>,
    /// The plan that would run.
    pub(super) next: Option<BoundPlan>,
    /// Powers approved so far.
    agreed: Vec<Grant>,
}

impl RequestCore {
    /// Continues after an attempt that ended without lasting effects: escalates if it failed, or
    /// ends the request. A command that succeeded did not need the refused powers. `powers` lists
    /// for each denial the powers that may be requested.
    pub(super) fn after_attempt(&mut self, ending: RequestEnd, powers: Vec<Vec<Grant>>) {
        let failed = match ending.status {
            FinalStatus::Exited => ending.exit_code != Some(0),
            status => matches!(status, FinalStatus::Signaled | FinalStatus::Limit),
        };
        let attempts_left = (self.attempts.len() as u64) < u64::from(self.config.max_attempts);
        let sandboxed = self.planned.as_ref().is_some_and(|planned| planned.plan.profile.sandboxed);
        if !(failed && attempts_left && sandboxed) {
            return self.end_request(ending);
        }
        let mut candidates = self.candidate_grants(powers);
        if candidates.is_empty() {
            return self.end_request(ending);
        }
        let omitted_count = candidates.len().saturating_sub(self.config.max_question_grants);
        candidates.truncate(self.config.max_question_grants);
        self.escalated.extend(candidates.iter().cloned());
        let namespaces = [QuestionNamespace::Escalate, QuestionNamespace::Grant];
        let wanted = self
            .planned
            .as_ref()
            .map_or_else(Vec::new, |planned| grant_keys(&self.grant_context(planned), &namespaces, &candidates));
        self.escalation = Some(EscalationRound {
            ending,
            candidates,
            omitted_count,
            known: Vec::new(),
            unknown: Vec::new(),
            next: None,
            agreed: Vec::new(),
        });
        self.look_up_answers(wanted);
    }

    /// Returns the powers that would have permitted the denied calls, each once. Excludes powers
    /// that the plan has and powers already named.
    fn candidate_grants(&self, powers: Vec<Vec<Grant>>) -> Vec<Grant> {
        if self.request.approval_mode == ApprovalMode::Never {
            return Vec::new();
        }
        let mut seen = self.escalated.clone();
        if let Some(planned) = &self.planned {
            seen.extend(planned.plan.grants.iter().chain(&self.in_place).cloned());
        }
        // A command is not run again for a refused effect.
        let mut is_candidate = |grant: &Grant| !grant.is_answer_only() && seen.insert(grant.clone());
        powers.into_iter().flatten().filter(|grant| is_candidate(grant)).collect()
    }

    pub(super) fn on_escalation_recalled(&mut self, found: &RecalledAnswers) {
        let Some(mut escalation) = self.escalation.take() else { return };
        let refused = found.refused_of(&escalation.candidates);
        let (known, unknown) = found.split_approved(std::mem::take(&mut escalation.candidates));
        let without_refused =
            |grants: Vec<Grant>| grants.into_iter().filter(|grant| !refused.contains(grant)).collect();
        escalation.known = without_refused(known);
        escalation.unknown = without_refused(unknown);
        if !refused.is_empty() {
            self.note_remembered_refusal(refused);
        }
        let nothing_left = escalation.known.is_empty() && escalation.unknown.is_empty();
        let nobody_to_ask = !escalation.unknown.is_empty() && !self.approver;
        let Some(planned) = &self.planned else { return self.end_request(escalation.ending) };
        if nothing_left || nobody_to_ask {
            return self.end_request(escalation.ending);
        }
        let mut grants = planned.plan.grants.clone();
        grants.extend(escalation.known.iter().chain(&escalation.unknown).chain(&self.in_place).cloned());
        grants.sort();
        grants.dedup();
        let attempt = planned.plan.attempt.saturating_add(1);
        self.escalation = Some(escalation);
        self.make_plan(attempt, grants);
    }

    fn note_remembered_refusal(&mut self, refused: Vec<Grant>) {
        self.resolve_grants(&refused, DenialResolution::Refused);
        let kind = self.escalate_kind(refused, 0);
        self.note_without_asking(kind, ApprovalAnswer::Denied(ApprovalScope::Once), "cache");
    }

    pub(super) fn on_escalation_planned(&mut self, next: BoundPlan) {
        let (Some(escalation), Some(planned)) = (&mut self.escalation, &self.planned) else { return };
        let added = escalation.known.iter().chain(&escalation.unknown).chain(&self.in_place);
        let added: Vec<Grant> = added.cloned().collect();
        if let Err(why) = check_added_grants(&planned.plan, &next.plan, &added) {
            let message = format!("the next plan is not the last plan with the grants added: {why}");
            return self.on_escalation_plan_failed(message);
        }
        escalation.next = Some(next);
        let (known, unknown, omitted_count) =
            (escalation.known.clone(), escalation.unknown.clone(), escalation.omitted_count);
        if !known.is_empty() {
            let kind = self.escalate_kind(known, 0);
            self.queue_question(kind, Some(PresetAnswer::Remembered(true)));
        }
        if !unknown.is_empty() {
            let kind = self.escalate_kind(unknown, omitted_count);
            self.queue_question(kind, None);
        }
        self.put_next();
    }

    /// The rules or the planner do not give that power, so the attempt's result is final.
    pub(super) fn on_escalation_plan_failed(&mut self, why: String) {
        if let Some(escalation) = self.escalation.take() {
            let grants: Vec<Grant> = escalation.known.into_iter().chain(escalation.unknown).collect();
            self.resolve_grants(&grants, DenialResolution::Refused);
            self.record_event(EventKind::Failed { message: why });
            self.end_request(escalation.ending);
        }
    }

    fn escalate_kind(&self, grants: Vec<Grant>, omitted_count: usize) -> QuestionKind {
        let denials = self.attempts.last().map_or(&[][..], |attempt| attempt.denials.as_slice());
        let named = |denial: &&Denial| denial.grant.as_ref().is_some_and(|grant| grants.contains(grant));
        let denials = denials.iter().filter(named).cloned().collect();
        let mut repeats = vec![
            format!("the command runs again from its start; this will be attempt {}", self.attempts.len() + 1),
            "what it already did stays: files it wrote keep their new content".to_owned(),
        ];
        if omitted_count > 0 {
            repeats.push(format!("{omitted_count} more refused powers are not in this question"));
        }
        QuestionKind::Escalate { denials, grants, repeats }
    }

    pub(super) fn note_escalation(&mut self, grants: &[Grant]) {
        if let Some(escalation) = &mut self.escalation {
            escalation.agreed.extend_from_slice(grants);
        }
    }

    pub(super) fn on_escalation_refused(&mut self, grants: &[Grant]) {
        self.resolve_grants(grants, DenialResolution::Refused);
        match self.escalation.take() {
            Some(escalation) => self.end_request(escalation.ending),
            None => self.fail_request("a refusal without a question"),
        }
    }

    /// Makes the next plan the current one: every power of it was approved.
    pub(super) fn take_up_next_plan(&mut self, escalation: EscalationRound) -> Result<(), &'static str> {
        let (Some(next), Some(planned)) = (escalation.next, &self.planned) else {
            return Err("there is no next plan");
        };
        let added: Vec<Grant> = escalation.agreed.iter().chain(&self.in_place).cloned().collect();
        check_added_grants(&planned.plan, &next.plan, &added)?;
        self.resolve_grants(&escalation.agreed, DenialResolution::Granted);
        self.record_event(EventKind::Granted { grants: escalation.agreed, holds: Vec::new() });
        self.planned = Some(next);
        // The plan contains them now.
        self.in_place.clear();
        Ok(())
    }

    pub(super) fn resolve_grants(&mut self, grants: &[Grant], resolution: DenialResolution) {
        let denials = self.attempts.last_mut().map_or(&mut [][..], |attempt| attempt.denials.as_mut_slice());
        for denial in denials {
            if denial.grant.as_ref().is_some_and(|grant| grants.contains(grant)) {
                denial.resolution = resolution;
            }
        }
    }
}

/// Checks that `next` is `last` plus exactly `added` (L3). The merged grants change the profile, so
/// only its name, its network and whether it has a sandbox are compared. The environment may differ
/// only in granted variables.
fn check_added_grants(last: &AttemptPlan, next: &AttemptPlan, added: &[Grant]) -> Result<(), &'static str> {
    let expected: BTreeSet<&Grant> = last.grants.iter().chain(added).collect();
    let plan_grants: BTreeSet<&Grant> = next.grants.iter().collect();
    let granted_name =
        |name: &String| added.iter().any(|grant| matches!(grant, Grant::Env(granted) if granted == name));
    let same_environment =
        next.environment.iter().all(|(name, value)| last.environment.get(name) == Some(value) || granted_name(name))
            && last.environment.keys().all(|name| next.environment.contains_key(name));
    let checks = [
        (next.request == last.request, "another request"),
        (next.attempt == last.attempt.saturating_add(1), "another attempt"),
        (next.argv == last.argv, "another command"),
        (next.cwd == last.cwd, "another working directory"),
        (next.workspace == last.workspace, "another workspace"),
        (next.profile.name == last.profile.name, "another profile"),
        (next.profile.sandboxed == last.profile.sandboxed, "another isolation"),
        (next.profile.network == last.profile.network, "another network"),
        (next.level == last.level, "another level"),
        (next.backend == last.backend, "another backend"),
        (same_environment, "another environment"),
        (plan_grants == expected, "other grants"),
    ];
    checks.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, why)| Err(why))
}

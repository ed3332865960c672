//! Questions: their order, the source of their answers, and the scope of an answer.

use stockade_model::{
    Approval, ApprovalAnswer, ApprovalMode, ApprovalQuestion, ApprovalScope, Digest, EventKind, Grant, GranularMode,
    GroupOffer, QuestionKind, RawText, RequestCommand, Tier, shell_quoted,
};
use stockade_policy::grants_for_refused;

use super::ending::RequestEnd;
use super::machine::{RequestCore, RequestPhase};
use super::running::ENDED_BY_PERSON;
use super::{AnswerMemo, BoundPlan, CoreOutput};
use crate::keys::{QuestionNamespace, run_refusal};

/// Time beyond the question's time-out for an approver that keeps its own time. The approver's
/// answer then arrives first, and the approver can clear its screen.
const LEEWAY_MS: u64 = 1_500;
/// Length of the longest power that an approver shows whole. An answer about a longer power has the
/// scope `once` only.
const MAX_SHOWN_GRANT_CHARS: usize = 400;

/// Answer that exists before the question is put.
#[derive(Clone, Copy, Debug)]
pub(super) enum PresetAnswer {
    Remembered(bool),
    Caller,
}

/// Question that an approver has now.
#[derive(Clone, Debug)]
pub(super) struct OutstandingQuestion {
    pub(super) question: Box<ApprovalQuestion>,
    pub(super) since_ms: u64,
    pub(super) deadline_ms: u64,
    /// True if a reviewer has the question and the approver does not have it yet.
    pub(super) reviewing: bool,
}

/// Answer with its source.
pub(super) struct SourcedAnswer {
    pub(super) answer: ApprovalAnswer,
    by: String,
    warnings: Vec<String>,
    waited_ms: u64,
    /// True if a person gave the answer to this very question, so that it may be remembered.
    fresh: bool,
}

impl SourcedAnswer {
    fn at_once(answer: ApprovalAnswer, by: impl Into<String>) -> Self {
        Self { answer, by: by.into(), warnings: Vec::new(), waited_ms: 0, fresh: false }
    }

    /// Creates an answer of an approver, limited to the offered scopes.
    pub(super) fn from_approver(
        answer: ApprovalAnswer,
        by: String,
        waited_ms: u64,
        question: &ApprovalQuestion,
    ) -> Self {
        Self { answer: limit_scope(answer, question), by, warnings: Vec::new(), waited_ms, fresh: true }
    }
}

impl RequestCore {
    /// Queues a question before the next attempt, with its answer if that exists already.
    pub(super) fn queue_question(&mut self, kind: QuestionKind, preset: Option<PresetAnswer>) {
        self.pending.push_back((kind, preset));
    }

    /// Puts the next question, or starts the attempt if none is left.
    pub(super) fn put_next(&mut self) {
        while let Some((kind, preset)) = self.pending.pop_front() {
            let question = match self.build_question(kind) {
                Ok(question) => Box::new(question),
                Err(why) => return self.fail_request(why),
            };
            self.record_event(EventKind::Asked { question: question.clone() });
            match self.answer_without_asking(&question.kind, preset) {
                Some(sourced_answer) => {
                    if !self.process_answer(&question, sourced_answer) {
                        return;
                    }
                }
                None => {
                    let reviewing = self.put_question(&question);
                    let deadline_ms = self.now_ms.saturating_add(self.wait_ms(reviewing));
                    self.phase = RequestPhase::Asking(OutstandingQuestion {
                        question,
                        since_ms: self.now_ms,
                        deadline_ms,
                        reviewing,
                    });
                    return;
                }
            }
        }
        self.start_attempt();
    }

    /// Returns the time-out for an answer.
    pub(super) fn question_wait_ms(&self) -> u64 {
        self.config.question_timeout_ms.saturating_add(LEEWAY_MS)
    }

    pub(super) fn build_question(&mut self, kind: QuestionKind) -> Result<ApprovalQuestion, String> {
        self.question_beside(kind, None)
    }

    /// Creates a question that also offers a group.
    pub(super) fn question_beside(
        &mut self,
        kind: QuestionKind,
        group: Option<GroupOffer>,
    ) -> Result<ApprovalQuestion, String> {
        let planned = self.plan_in_question().ok_or("no plan to ask about")?;
        self.questions += 1;
        let bound = (planned.digest.as_str(), self.questions, &kind, &group);
        let digest = Digest::of_json("stockade-question-1", &bound).map_err(|error| error.to_string())?;
        Ok(ApprovalQuestion {
            command: shown_command(&self.request.command),
            cwd: self.request.cwd.clone(),
            assessment: self.assessment.clone(),
            scopes: self.offered_scopes(&kind),
            group,
            digest,
            timeout_ms: self.config.question_timeout_ms,
            review: None,
            kind,
        })
    }

    /// Records an answer that needed no question, outside the queue. Returns false if that failed.
    pub(super) fn note_without_asking(&mut self, kind: QuestionKind, answer: ApprovalAnswer, by: &str) -> bool {
        let Ok(question) = self.build_question(kind) else { return false };
        let question = Box::new(question);
        self.record_event(EventKind::Asked { question: question.clone() });
        self.note_answer(&question, &SourcedAnswer::at_once(answer, by));
        true
    }

    /// Returns whether an attempt may hold calls. That needs a rule that may give powers, or a mode
    /// that permits questions. With such a mode there must be an approver, or an answer remembered
    /// for a number of uses. Answers with a longer scope are already in the plan.
    pub(super) fn may_hold(&self) -> bool {
        let mode_asks = match self.request.approval_mode {
            ApprovalMode::Never => false,
            ApprovalMode::Granular(classes) => classes.run || classes.filesystem || classes.network || classes.other,
            // `on-request` asks only about effects while a command runs.
            ApprovalMode::Untrusted | ApprovalMode::OnFailure | ApprovalMode::OnRequest => true,
        };
        let sandboxed = self.planned.as_ref().is_some_and(|planned| planned.plan.profile.sandboxed);
        let somebody = self.approver || self.config.approver_may_come;
        let rules_give = self.ruling.as_ref().is_some_and(|ruling| ruling.gives_powers);
        sandboxed && (rules_give || (mode_asks && (somebody || self.counted)))
    }

    fn plan_in_question(&self) -> Option<BoundPlan> {
        let next = self.escalation.as_ref().and_then(|escalation| escalation.next.clone());
        next.or_else(|| self.planned.clone())
    }

    /// Returns the scopes to offer. Longer scopes are not offered if the remembered text would be
    /// dangerous or unreadable, nor for powers over credentials or system parts.
    fn offered_scopes(&self, kind: &QuestionKind) -> Vec<ApprovalScope> {
        let grants = match kind {
            QuestionKind::Unsandboxed => return vec![ApprovalScope::Once],
            kind => grants_of(kind),
        };
        let is_whole = |grant: &Grant| grant.to_string().chars().count() <= MAX_SHOWN_GRANT_CHARS;
        let deceptive = !grants.iter().all(is_whole)
            || grants.iter().any(|grant| grant.path().is_some_and(|path| !is_plain(&RawText::from(path))))
            || match &self.request.command {
                RequestCommand::Argv(argv) => argv.iter().any(|arg| !is_plain(arg)),
                RequestCommand::Script(script) => !is_plain(script),
            };
        // An approval of the run would be bound to an unknown program; an approval of a power is
        // bound to the power.
        let unbound = matches!(kind, QuestionKind::Run { .. })
            && self.plan_in_question().is_some_and(|planned| !planned.is_identified);
        let mut scopes = vec![ApprovalScope::Once];
        // Approval of one effect does not apply to the next run.
        if grants.iter().any(Grant::is_answer_only) {
            return scopes;
        }
        let guarded = grants.iter().any(|grant| self.config.guard.is_guarded(grant));
        if !deceptive && !unbound && !guarded && self.assessment.tier != Tier::Deny {
            scopes.extend(self.request.session.is_some().then_some(ApprovalScope::Session));
            scopes.push(ApprovalScope::Always);
        }
        scopes
    }

    /// Returns the answer if no question is needed or none can be put.
    fn answer_without_asking(&self, kind: &QuestionKind, preset: Option<PresetAnswer>) -> Option<SourcedAnswer> {
        match (preset, &self.request.caller_approval) {
            (Some(PresetAnswer::Remembered(yes)), _) => {
                return Some(SourcedAnswer::at_once(answer_for_once(yes), "cache"));
            }
            (Some(PresetAnswer::Caller), Some(caller)) if matches!(kind, QuestionKind::Run { .. }) => {
                let by = format!("caller: {}", RawText::from(caller.by.as_str()).to_escaped());
                let warnings = caller.warnings.clone();
                return Some(SourcedAnswer {
                    warnings,
                    ..SourcedAnswer::at_once(ApprovalAnswer::Approved(ApprovalScope::Once), by)
                });
            }
            (Some(PresetAnswer::Caller) | None, _) => {}
        }
        if !may_ask(self.request.approval_mode, kind) {
            let mode = match self.request.approval_mode {
                ApprovalMode::Granular(_) => "mode granular",
                _ => "mode never",
            };
            return Some(SourcedAnswer::at_once(ApprovalAnswer::Denied(ApprovalScope::Once), mode));
        }
        (!self.approver).then(|| SourcedAnswer::at_once(ApprovalAnswer::TimedOut, "nobody"))
    }

    pub(super) fn on_answered(&mut self, open: OutstandingQuestion, answer: ApprovalAnswer, by: String) {
        let waited_ms = self.now_ms.saturating_sub(open.since_ms);
        let sourced_answer = SourcedAnswer::from_approver(answer, by, waited_ms, &open.question);
        if self.process_answer(&open.question, sourced_answer) {
            self.put_next();
        }
    }

    pub(super) fn on_question_timed_out(&mut self, open: OutstandingQuestion) {
        self.out.push(CoreOutput::Withdraw(open.question.digest.clone()));
        self.on_answered(open, ApprovalAnswer::TimedOut, "nobody".to_owned());
    }

    pub(super) fn on_interrupted_while_asking(&mut self, open: OutstandingQuestion, signal: i32) {
        self.out.push(CoreOutput::Withdraw(open.question.digest.clone()));
        let waited_ms = self.now_ms.saturating_sub(open.since_ms);
        let sourced_answer =
            SourcedAnswer { waited_ms, ..SourcedAnswer::at_once(ApprovalAnswer::Abort, format!("signal {signal}")) };
        self.note_answer(&open.question, &sourced_answer);
        self.end_unless_escalating(&open.question.kind, RequestEnd::from_signal(signal));
    }

    /// Processes an answer. Returns true if the request continues with the next question.
    fn process_answer(&mut self, question: &ApprovalQuestion, sourced_answer: SourcedAnswer) -> bool {
        self.note_answer(question, &sourced_answer);
        match sourced_answer.answer {
            // Only a held call offers a group.
            ApprovalAnswer::Approved(_) | ApprovalAnswer::Group(_) => {
                if sourced_answer.fresh {
                    self.remember_answer(question, &sourced_answer);
                }
                self.unsandboxed_consent |= question.kind == QuestionKind::Unsandboxed;
                if let QuestionKind::Escalate { grants, .. } = &question.kind {
                    self.note_escalation(grants);
                }
                return true;
            }
            ApprovalAnswer::Denied(_) if sourced_answer.fresh => self.remember_answer(question, &sourced_answer),
            ApprovalAnswer::Denied(_) | ApprovalAnswer::TimedOut => {}
            ApprovalAnswer::Abort => {
                self.end_unless_escalating(&question.kind, RequestEnd::from_abort(ENDED_BY_PERSON));
                return false;
            }
        }
        let why = refusal_text(&question.kind, &sourced_answer, &self.describe_consent());
        self.end_unless_escalating(&question.kind, RequestEnd::from_refusal(why));
        false
    }

    /// Ends the request, because a question has no yes. After an attempt its own result stays: a
    /// command that has ended cannot be aborted.
    fn end_unless_escalating(&mut self, kind: &QuestionKind, ending: RequestEnd) {
        match kind {
            QuestionKind::Escalate { grants, .. } => self.on_escalation_refused(grants),
            _ => self.end_request(ending),
        }
    }

    /// Returns the end of a hint for a refused run: how it can be approved without a question.
    fn describe_consent(&self) -> String {
        if !self.assessment.impact.needs_consent() {
            return ", or allow it with a rule".to_owned();
        }
        match grants_for_refused(&self.assessment, &self.request) {
            Some(grants) => format!(", or approve it yourself with {}", grant_options(&grants)),
            None => "; no rule and no grant approves it".to_owned(),
        }
    }

    pub(super) fn note_answer(&mut self, question: &ApprovalQuestion, sourced_answer: &SourcedAnswer) {
        self.record_event(EventKind::Answered {
            answer: sourced_answer.answer,
            by: sourced_answer.by.clone(),
            digest: question.digest.clone(),
            waited_ms: sourced_answer.waited_ms,
            warnings: sourced_answer.warnings.clone(),
        });
        let (answer, scope) = match sourced_answer.answer {
            ApprovalAnswer::Approved(scope) | ApprovalAnswer::Group(scope) => ("approved", Some(scope)),
            ApprovalAnswer::Denied(scope) => ("denied", Some(scope)),
            ApprovalAnswer::Abort => ("abort", None),
            ApprovalAnswer::TimedOut => ("timed-out", None),
        };
        self.approvals.push(Approval {
            question: format!("may it {}?", describe_subject(&question.kind)),
            answer: answer.to_owned(),
            scope,
            by: sourced_answer.by.clone(),
            waited_ms: sourced_answer.waited_ms,
            grants: grants_of(&question.kind).to_vec(),
            review: question.review.clone(),
        });
    }

    /// Remembers an answer with a scope beyond `once`. An approval of several powers is stored for
    /// each power. A refusal of several is stored for exactly this set, because it does not name
    /// the power at fault.
    pub(super) fn remember_answer(&mut self, question: &ApprovalQuestion, sourced_answer: &SourcedAnswer) {
        let Some(answer) = reduce_answer(sourced_answer.answer) else { return };
        let Some(planned) = self.plan_in_question() else { return };
        let yes = matches!(answer, ApprovalAnswer::Approved(_));
        let context = self.grant_context(&planned);
        let memo = |key, subject, grants: &[Grant]| AnswerMemo {
            key,
            answer,
            subject,
            grants: grants.to_vec(),
            request: self.request.id.clone(),
            by: sourced_answer.by.clone(),
        };
        let (namespace, grants) = match &question.kind {
            QuestionKind::Unsandboxed => return,
            QuestionKind::Run { .. } => {
                let key =
                    if yes { self.run_approval_key(&planned) } else { run_refusal(&self.request, &self.config.user) };
                let memo = memo(key, question.command.to_escaped(), &[]);
                return self.out.push(CoreOutput::Remember(vec![memo]));
            }
            QuestionKind::Grants { grants } => (QuestionNamespace::Grant, grants),
            QuestionKind::Escalate { grants, .. } => (QuestionNamespace::Escalate, grants),
            // A power given in place does not approve running anything again; a refusal of it does
            // apply.
            QuestionKind::Hold { grants, .. } if yes => (QuestionNamespace::Grant, grants),
            QuestionKind::Hold { grants, .. } => (QuestionNamespace::Escalate, grants),
        };
        let mut memos = Vec::new();
        if !yes {
            memos.push(memo(context.refusal_key(namespace, grants), list_grants(grants), grants));
        }
        for grant in grants.iter().filter(|_| yes) {
            let alone = std::slice::from_ref(grant);
            memos.push(memo(context.approval_key(namespace, grant), grant.to_string(), alone));
            // An approval to run again with a power includes the power. The reverse does not hold,
            // so only this direction is stored.
            if namespace == QuestionNamespace::Escalate {
                memos.push(memo(context.approval_key(QuestionNamespace::Grant, grant), grant.to_string(), alone));
            }
        }
        self.out.push(CoreOutput::Remember(memos));
    }
}

/// Returns a yes or a no for this time.
pub(super) fn answer_for_once(yes: bool) -> ApprovalAnswer {
    let scope = ApprovalScope::Once;
    if yes { ApprovalAnswer::Approved(scope) } else { ApprovalAnswer::Denied(scope) }
}

/// Returns the part of an answer that remains for later requests.
fn reduce_answer(answer: ApprovalAnswer) -> Option<ApprovalAnswer> {
    let remaining = |scope| match scope {
        ApprovalScope::Once => None,
        ApprovalScope::Times(n) => n.checked_sub(1).filter(|&remaining| remaining > 0).map(ApprovalScope::Times),
        ApprovalScope::Session | ApprovalScope::Until(_) | ApprovalScope::Always => Some(scope),
    };
    match answer {
        // The question already contains the choice.
        ApprovalAnswer::Approved(scope) | ApprovalAnswer::Group(scope) => {
            remaining(scope).map(ApprovalAnswer::Approved)
        }
        ApprovalAnswer::Denied(scope) => remaining(scope).map(ApprovalAnswer::Denied),
        ApprovalAnswer::Abort | ApprovalAnswer::TimedOut => None,
    }
}

/// Returns the answer with its scope, if that was offered or is narrower than an offered one;
/// otherwise with the scope `once`.
fn limit_scope(answer: ApprovalAnswer, question: &ApprovalQuestion) -> ApprovalAnswer {
    let limit = |scope, offered: &[ApprovalScope]| match scope {
        ApprovalScope::Times(_) | ApprovalScope::Until(_) if offered.contains(&ApprovalScope::Always) => scope,
        scope if offered.contains(&scope) => scope,
        _ => ApprovalScope::Once,
    };
    match answer {
        ApprovalAnswer::Approved(scope) => ApprovalAnswer::Approved(limit(scope, question.scopes_of_yes())),
        ApprovalAnswer::Group(scope) if question.group_offered().is_some() => {
            ApprovalAnswer::Group(limit(scope, question.scopes_of_yes()))
        }
        // An approval of a group that was not offered is a refusal.
        ApprovalAnswer::Group(_) => ApprovalAnswer::Denied(ApprovalScope::Once),
        ApprovalAnswer::Denied(scope) => ApprovalAnswer::Denied(limit(scope, &question.scopes)),
        answer => answer,
    }
}

/// Returns whether this mode permits this question at all. The rules have checked this already;
/// this check enforces it.
pub(super) fn may_ask(mode: ApprovalMode, kind: &QuestionKind) -> bool {
    match (mode, kind) {
        (ApprovalMode::Never, _) => false,
        (ApprovalMode::OnRequest, QuestionKind::Hold { grants, .. }) => grants.iter().all(Grant::is_answer_only),
        (ApprovalMode::Granular(classes), QuestionKind::Run { .. } | QuestionKind::Unsandboxed) => classes.run,
        (ApprovalMode::Granular(classes), kind) => {
            grants_of(kind).iter().all(|grant| class_may_be_asked(classes, grant))
        }
        (ApprovalMode::Untrusted | ApprovalMode::OnFailure | ApprovalMode::OnRequest, _) => true,
    }
}

fn class_may_be_asked(classes: GranularMode, grant: &Grant) -> bool {
    match grant {
        Grant::Write(_) | Grant::Read(_) => classes.filesystem,
        Grant::Connect(_) | Grant::Secret(_) | Grant::Sign(_) | Grant::Listen(_) => classes.network,
        Grant::Socket(_) | Grant::Exec(_) | Grant::Env(_) | Grant::Limit(..) => classes.other,
        // As an effect shown by the command's text.
        Grant::Effect(_) => classes.run,
    }
}

/// Returns the powers of a question.
fn grants_of(kind: &QuestionKind) -> &[Grant] {
    match kind {
        QuestionKind::Run { .. } | QuestionKind::Unsandboxed => &[],
        QuestionKind::Grants { grants } | QuestionKind::Escalate { grants, .. } | QuestionKind::Hold { grants, .. } => {
            grants
        }
    }
}

/// Returns the subject of a question, to follow "it may" or "it may not".
fn describe_subject(kind: &QuestionKind) -> String {
    match kind {
        QuestionKind::Run { .. } => "run".to_owned(),
        QuestionKind::Grants { grants } => format!("have {}", list_grants(grants)),
        QuestionKind::Escalate { grants, .. } => format!("have {} and run again", list_grants(grants)),
        QuestionKind::Hold { grants, .. } => format!("have {} now", list_grants(grants)),
        QuestionKind::Unsandboxed => "run without a sandbox".to_owned(),
    }
}

/// Returns the message of a refusal. `consent_hint` continues its hint: another way to the consent.
fn refusal_text(kind: &QuestionKind, sourced_answer: &SourcedAnswer, consent_hint: &str) -> String {
    let what = describe_subject(kind);
    match (sourced_answer.answer, sourced_answer.by.as_str()) {
        (ApprovalAnswer::TimedOut, "nobody") => {
            let by_hand = match kind {
                QuestionKind::Grants { .. } => "run it at a terminal, or use `stockade run` with `--grant`",
                _ => "run it at a terminal",
            };
            format!("no approver answered whether it may {what}\nhint: {by_hand}{consent_hint}")
        }
        (ApprovalAnswer::TimedOut, by) => format!("no answer in time from {by} whether it may {what}"),
        (_, by @ ("mode never" | "mode granular")) => {
            format!("{by} asks no approver whether it may {what}\nhint: choose another approval mode{consent_hint}")
        }
        (_, "cache") => format!(
            "a remembered answer says that it may not {what}\n\
             hint: `stockade approvals list` shows it, `approvals revoke` takes it back"
        ),
        (_, by) => format!("{by} refused: it may not {what}"),
    }
}

/// Returns grants as options of the command line.
fn grant_options(grants: &[Grant]) -> String {
    grants.iter().map(|grant| format!("--grant {}", shell_quoted(&grant.to_string()))).collect::<Vec<_>>().join(" ")
}

fn list_grants(grants: &[Grant]) -> String {
    grants.iter().map(Grant::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns whether a person sees this text as it is: no control, reordering or invisible characters
/// except line ends and tabs.
fn is_plain(text: &RawText) -> bool {
    let visible: Vec<u8> = text.as_bytes().iter().copied().filter(|b| !matches!(b, b'\n' | b'\t')).collect();
    let visible = RawText::from(visible);
    visible.to_str().is_some_and(|text| text == visible.to_escaped())
}

/// Returns the whole command as one text. A script is unchanged. Arguments are joined by spaces,
/// and quoted for a shell if their boundaries would not show.
pub fn shown_command(command: &RequestCommand) -> RawText {
    match command {
        RequestCommand::Script(script) => script.clone(),
        RequestCommand::Argv(argv) => {
            let quoted: Vec<Vec<u8>> = argv.iter().map(|arg| quote_argument(arg.as_bytes())).collect();
            RawText::from(quoted.join(&b' '))
        }
    }
}

fn quote_argument(arg: &[u8]) -> Vec<u8> {
    let is_bare = |b: &u8| b.is_ascii_alphanumeric() || b"_-./=:,+@%^".contains(b) || *b >= 0x80;
    if !arg.is_empty() && arg.iter().all(is_bare) {
        return arg.to_vec();
    }
    let mut out = vec![b'\''];
    for &byte in arg {
        if byte == b'\'' { out.extend_from_slice(b"'\\''") } else { out.push(byte) }
    }
    out.push(b'\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of a file is the command's choice, and the hint is there to be copied.
    #[test]
    fn no_hint_ends_its_own_quotes() {
        let hook = |name: &str| Grant::Write(format!("/w/.git/hooks/{name}").into());
        let found = grant_options(&[hook("a b"), hook("c")]);
        assert_eq!(found, "--grant 'write /w/.git/hooks/a b' --grant 'write /w/.git/hooks/c'");
        assert_eq!(
            grant_options(&[hook("x'; touch ran; '\n")]),
            r"--grant 'write /w/.git/hooks/x'\''; touch ran; '\''\n'"
        );
    }
}

//! Decides whether a request may run. Pure and total: the same settings, request and assessment give the
//! same decision, and every input has one.
//!
//! The combining algorithm is *deny-overrides*: every source makes a statement, and the strictest one is
//! the decision, whatever the order (L9). Must not know caches or approvers: an `ask` comes with the
//! questions, not with answers.

use std::collections::BTreeSet;

use stockade_model::{
    Assessment, Decision, Finding, Grant, Impact, IsolationLevel, PolicyVerdict, Profile, QuestionKind, RawText,
    RunRequest, SandboxPreference, Tier,
};

use crate::act::ActContext;
use crate::file::ApproverName;
use crate::granted_writes::without_granted;
use crate::known_changes::only_changes_workspace;
use crate::mode::{GrantClass, ModeAnswers, mode_name};
use crate::obligations::Obligations;
use crate::resolve::{has_power, resolve_profile};
use crate::rules::{MatchedRules, PolicyRule, RequestContext, RuleExplanation, RuleInput, RuleMatch, RuleSubject};
use crate::settings::PolicySettings;
use crate::words::{self, CommandWords};

/// Most findings that are listed as reasons; the assessment contains all of them.
const MAX_LISTED_FINDINGS: usize = 10;

/// Source of the refusal if there is no profile to run with.
pub(crate) const NO_PROFILE_SOURCE: &str = "profile: it cannot be made";

/// A decision and the questions that it requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRuling {
    /// The verdict and its reasons.
    pub decision: Decision,
    /// If the verdict is `ask`: every question, all of which need a yes. Otherwise empty.
    pub questions: Vec<QuestionKind>,
    /// True if the command would run without a sandbox. An answer for a sandboxed run must not be used for
    /// it.
    pub unsandboxed: bool,
    /// Requirements of the applicable rules for the run, if it runs.
    pub obligations: Obligations,
    /// All statements, in order; those that decided are marked.
    pub voices: Vec<PolicyStatement>,
}

/// Statement of one source about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStatement {
    /// The verdict of the source.
    pub verdict: PolicyVerdict,
    /// The rule, mode or setting.
    pub source: String,
    /// The reasons, one line each.
    pub reasons: Vec<String>,
    /// True if the verdict of this source is the decision.
    pub decides: bool,
}

/// Decides whether a request may run. See [`rule_on`], which also returns the questions.
pub fn decide_request(
    settings: &PolicySettings,
    request: &RunRequest,
    assessment: &Assessment,
    grants_by_person: bool,
) -> Decision {
    rule_on(settings, request, assessment, grants_by_person).decision
}

/// Decides whether a request may run and which questions come first, if its circumstances are unknown; see
/// [`rule_in`].
pub fn rule_on(
    settings: &PolicySettings,
    request: &RunRequest,
    assessment: &Assessment,
    grants_by_person: bool,
) -> PolicyRuling {
    rule_in(settings, request, assessment, grants_by_person, &RequestContext::default())
}

/// Decides whether a request may run and which questions come first.
///
/// `grants_by_person` is true if the request is the user's own command line: then the user decided on its
/// grants, profile, level and mode. Otherwise they may only tighten the configuration: the stricter of both
/// modes applies, added powers need consent, a weaker level is refused. Powers that `RunRequest::requested`
/// lists need consent in both cases.
pub fn rule_in(
    settings: &PolicySettings,
    request: &RunRequest,
    assessment: &Assessment,
    grants_by_person: bool,
    around: &RequestContext,
) -> PolicyRuling {
    let words = words_of(settings, request);
    let found = settings.rules.match_rules(&build_request_input(settings, request, assessment, &words, around));
    let obligations = Obligations::from_rules(settings, request, &found);
    let effective_request = obligations.apply_to_request(request);
    let workspace = request.workspace.as_path();
    let resolved = resolve_profile(settings, &effective_request.profile, workspace, &effective_request.grants);
    let is_sandboxed = resolved.as_ref().is_ok_and(|profile| profile.sandboxed);
    let reduced_assessment = if grants_by_person && is_sandboxed { without_granted(assessment, request) } else { None };
    let assessment = reduced_assessment.as_ref().unwrap_or(assessment);
    let case = DecisionContext::new(settings, request, assessment, grants_by_person);
    let mut voices = Vec::new();
    let mut grant_statements = Vec::new();
    let mut known_changes = false;
    let unsandboxed = match resolved {
        Err(error) => {
            let why = error.to_string().replace('\n', "; ");
            voices.push(StatementDraft::new(PolicyVerdict::Deny, NO_PROFILE_SOURCE, why));
            false
        }
        Ok(profile) => {
            case.check_sandbox(&profile, &mut voices);
            if profile.sandboxed {
                case.check_level(&mut voices);
                if obligations.profile.is_none() {
                    case.check_profile(&mut voices);
                }
                grant_statements = case.requested_powers(&found, around, &mut voices);
                let is_kept = |from_request| from_request || profile.filesystem.undo_bytes.is_some();
                let is_kept = around.keeps_changes.is_some_and(is_kept);
                known_changes = only_changes_workspace(assessment, &profile, workspace, is_kept);
            }
            !profile.sandboxed
        }
    };
    case.rules_and_tier(&found, unsandboxed, known_changes, &mut voices);
    voices.append(&mut grant_statements);
    case.combine_statements(voices, unsandboxed, obligations)
}

/// Returns every rule and whether it is about a request, for an explanation.
pub fn consider_request<'a>(
    settings: &'a PolicySettings,
    request: &RunRequest,
    assessment: &Assessment,
    around: &RequestContext,
) -> Vec<RuleExplanation<'a>> {
    let words = words_of(settings, request);
    settings.rules.explain_rules(&build_request_input(settings, request, assessment, &words, around))
}

fn words_of(settings: &PolicySettings, request: &RunRequest) -> CommandWords {
    match &request.command {
        // Most configurations have no rules, and the parsing takes time.
        _ if settings.rules.is_empty() => CommandWords::default(),
        command => words::of_command(command),
    }
}

fn build_request_input<'a>(
    settings: &'a PolicySettings,
    request: &'a RunRequest,
    assessment: &'a Assessment,
    words: &'a CommandWords,
    around: &'a RequestContext,
) -> RuleInput<'a> {
    RuleInput {
        subject: RuleSubject::Command { words, assessment },
        cwd: request.cwd.as_path(),
        workspace: request.workspace.as_path(),
        home: &settings.home,
        session: request.session.as_ref(),
        around,
        example: false,
    }
}

/// Statement of one source, with the question it asks.
struct StatementDraft {
    verdict: PolicyVerdict,
    rule: String,
    reasons: Vec<String>,
    asks: StatementQuestion,
}

/// Question of a statement whose verdict is `ask`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StatementQuestion {
    /// May the command run? A caller's own approval answers this.
    Run,
    /// May the command run? Only a user answers this.
    RunByPerson,
    Grants(Vec<Grant>),
    Unsandboxed,
}

impl StatementDraft {
    fn new(verdict: PolicyVerdict, rule: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { verdict, rule: rule.into(), reasons: vec![reason.into()], asks: StatementQuestion::RunByPerson }
    }

    fn with_question(mut self, asks: StatementQuestion) -> Self {
        self.asks = asks;
        self
    }

    fn into_statement(self, decision: PolicyVerdict) -> PolicyStatement {
        let decides = self.verdict == decision;
        PolicyStatement { verdict: self.verdict, source: self.rule, reasons: self.reasons, decides }
    }
}

struct DecisionContext<'a> {
    settings: &'a PolicySettings,
    request: &'a RunRequest,
    assessment: &'a Assessment,
    by_person: bool,
    answers: ModeAnswers,
    mode: String,
}

impl<'a> DecisionContext<'a> {
    fn new(settings: &'a PolicySettings, request: &'a RunRequest, assessment: &'a Assessment, by_person: bool) -> Self {
        let answers = mode_answers(settings, request, by_person);
        let (from_request, configured) = (request.approval_mode, settings.approval_mode.value);
        // Name the mode whose answers apply.
        let mode = if answers == ModeAnswers::from_mode(from_request) {
            mode_name(from_request).to_owned()
        } else if answers == ModeAnswers::from_mode(configured) {
            mode_name(configured).to_owned()
        } else {
            format!("{} with {}", mode_name(from_request), mode_name(configured))
        };
        Self { settings, request, assessment, by_person, answers, mode }
    }

    /// Checks a run without a sandbox: it needs separate consent, never a field alone (L1).
    fn check_sandbox(&self, profile: &Profile, voices: &mut Vec<StatementDraft>) {
        let required = SandboxPreference::Require;
        let insists = self.request.sandbox == required || self.settings.sandbox.value == required;
        let (rule, why) = if profile.sandboxed && self.request.sandbox == SandboxPreference::Forbid {
            let why = "a run without a sandbox needs the profile `host` by name";
            ("sandbox forbid: only with profile host", why)
        } else if profile.sandboxed && self.request.level == IsolationLevel::None {
            ("level none: only with profile host", "a sandboxed profile has a level")
        } else if profile.sandboxed {
            return;
        } else if insists {
            ("sandbox require: profile host has none", "the request or the configuration requires a sandbox")
        } else if !self.settings.allow_host.value {
            let why = "runs without a sandbox are not permitted; `allow_host = true` in your own configuration permits asking";
            ("allow_host: not permitted", why)
        } else {
            let rule = self.mode_rule(self.answers.unsandboxed, "a run without a sandbox");
            let why = "it would run without a sandbox, with everything the person may do";
            let statement = StatementDraft::new(self.answers.unsandboxed, rule, why);
            return voices.push(statement.with_question(StatementQuestion::Unsandboxed));
        };
        voices.push(StatementDraft::new(PolicyVerdict::Deny, rule, why));
    }

    fn mode_rule(&self, verdict: PolicyVerdict, object: &str) -> String {
        let verb = match verdict {
            PolicyVerdict::Allow => "allows",
            PolicyVerdict::Ask => "asks about",
            PolicyVerdict::Deny => "refuses",
        };
        format!("mode {}: {verb} {object}", self.mode)
    }

    /// Returns the strictest answer of the mode about requested powers.
    fn answer_grants(&self, grants: &[Grant]) -> Option<PolicyVerdict> {
        grants.iter().map(|grant| self.answers.answer_requested(GrantClass::from_grant(grant))).max()
    }

    /// Checks the level: only the user may choose a weaker level than configured (L6).
    fn check_level(&self, voices: &mut Vec<StatementDraft>) {
        let weaker =
            self.request.level == IsolationLevel::Restricted && self.settings.level.value == IsolationLevel::Full;
        if weaker && !self.by_person {
            let why = "the request asks for a weaker sandbox than is configured";
            voices.push(StatementDraft::new(PolicyVerdict::Deny, "level: weaker than configured", why));
        }
    }

    /// Checks the profile: a profile that gives more than the configured one is an added power.
    fn check_profile(&self, voices: &mut Vec<StatementDraft>) {
        if self.by_person || self.request.profile == self.settings.profile.value {
            return;
        }
        let profiles = &self.settings.profiles;
        let (Some(chosen), Some(base)) =
            (profiles.get(&self.request.profile), profiles.get(&self.settings.profile.value))
        else {
            return;
        };
        if let Some(key) = chosen.wider_than(base) {
            // A wider profile may add powers of every class at once, so the check is as strict as without a
            // sandbox.
            let verdict = self.answers.unsandboxed;
            let (chosen, base) = (&self.request.profile, &self.settings.profile.value);
            let why = format!("profile `{chosen}` gives more than `{base}` ({key})");
            voices.push(StatementDraft::new(verdict, self.mode_rule(verdict, "a wider profile"), why));
        }
    }

    /// Checks powers that come with the request: they need consent (L1) by a rule or by the mode. Returns
    /// the statements of the rules that allow some of them; these statements decide nothing else.
    fn requested_powers(
        &self,
        found: &MatchedRules<'_>,
        around: &RequestContext,
        voices: &mut Vec<StatementDraft>,
    ) -> Vec<StatementDraft> {
        // Powers that the user gave need no other consent.
        let from_request = if self.by_person { &self.request.requested } else { &self.request.grants };
        let mut allowed = Vec::new();
        if from_request.is_empty() {
            return allowed;
        }
        let (request, workspace) = (self.request, self.request.workspace.as_path());
        let bare = resolve_profile(self.settings, &request.profile, workspace, &[]);
        let of_rules = |grant: &Grant| {
            let mut grants = found.allowed.iter().flat_map(|rule| &rule.grants);
            grants.any(|own| own.resolve_grant(&self.settings.home, workspace).as_ref() == Some(grant))
        };
        let has = |grant: &Grant| bare.as_ref().is_ok_and(|profile| has_power(profile, grant)) || of_rules(grant);
        let stage = ActContext {
            cwd: request.cwd.as_path(),
            workspace,
            session: request.session.as_ref(),
            profile: &request.profile,
            approval_mode: request.approval_mode,
        };
        let mut open = Vec::new();
        for grant in from_request.iter().filter(|grant| !has(grant)) {
            let Some(rule_decision) = self.settings.decide_power_by_rule(grant, &stage, around) else {
                open.push(grant.clone());
                continue;
            };
            let mut voice =
                StatementDraft::new(rule_decision.verdict, rule_decision.rule, format!("it asks for `{grant}`"));
            voice.reasons.extend(rule_decision.reasons);
            let list = if rule_decision.verdict == PolicyVerdict::Allow { &mut allowed } else { &mut *voices };
            list.push(voice.with_question(StatementQuestion::Grants(vec![grant.clone()])));
        }
        if let Some(verdict) = self.answer_grants(&open) {
            let reasons = open.iter().map(|grant| format!("it asks for `{grant}`")).collect();
            let rule = self.mode_rule(verdict, "requested powers");
            voices.push(StatementDraft { verdict, rule, reasons, asks: StatementQuestion::Grants(open) });
        }
        allowed
    }

    fn rules_and_tier(
        &self,
        found: &MatchedRules<'_>,
        unsandboxed: bool,
        known_changes: bool,
        voices: &mut Vec<StatementDraft>,
    ) {
        for (rule, sure) in &found.raised {
            voices.push(self.draft_rule_statement(rule, *sure));
            voices.extend(self.raised_grants(rule));
        }
        voices.extend(self.check_impact());
        let tier = self.assessment.tier;
        if tier == Tier::Ask
            && let Some(rule) = found.allowed.first()
        {
            voices.push(StatementDraft::new(PolicyVerdict::Allow, rule_name(rule), rule.justification.clone()));
            return;
        }
        let (verdict, what) = match tier {
            Tier::Allow => (PolicyVerdict::Allow, "runs".to_owned()),
            Tier::Ask if self.answers.tier_ask == PolicyVerdict::Allow && !unsandboxed => {
                (PolicyVerdict::Allow, "runs sandboxed".to_owned())
            }
            Tier::Ask if known_changes && self.answers.known_changes == PolicyVerdict::Allow => {
                (PolicyVerdict::Allow, "changes the workspace only".to_owned())
            }
            Tier::Ask => (self.answers.tier_ask, format!("is {}", verdict_participle(self.answers.tier_ask))),
            Tier::Deny => (self.answers.tier_deny, format!("is {}", verdict_participle(self.answers.tier_deny))),
        };
        let rule = format!("mode {}: tier {tier} {what}", self.mode);
        let telling = self.assessment.findings.iter().filter(|finding| finding.tier == tier && tier != Tier::Allow);
        voices.push(StatementDraft { verdict, rule, reasons: list_findings(telling), asks: StatementQuestion::Run });
    }

    /// Returns the statement for an effect that the sandbox can neither contain nor undo. Such an effect
    /// needs consent, whatever rules and grants allow. If the text shows harm, the tier decides instead.
    fn check_impact(&self) -> Option<StatementDraft> {
        let impact = self.assessment.impact;
        if !impact.needs_consent() || self.assessment.tier == Tier::Deny {
            return None;
        }
        let verdict = self.answers.impact;
        let what = if impact == Impact::Outward { "an effect outside the sandbox" } else { "what cannot be undone" };
        let telling = self.assessment.findings.iter().filter(|finding| finding.impact.needs_consent());
        let (rule, reasons) = (self.mode_rule(verdict, what), list_findings(telling));
        Some(StatementDraft { verdict, rule, reasons, asks: StatementQuestion::Run })
    }

    fn draft_rule_statement(&self, rule: &PolicyRule, sure: RuleMatch) -> StatementDraft {
        let voice = |verdict, reason| StatementDraft::new(verdict, rule_name(rule), reason);
        let justification = rule.justification.clone();
        match (rule.effect, sure) {
            (PolicyVerdict::Deny, RuleMatch::Certain) => voice(PolicyVerdict::Deny, justification),
            // The words exist, but it is uncertain whether they are executed: only a user may answer.
            (PolicyVerdict::Deny, _) => {
                voice(self.answers.rule_ask, format!("it may contain a denied command: {justification}"))
            }
            _ if rule.approver == ApproverName::Person => voice(self.answers.rule_ask, justification),
            _ => voice(self.answers.rule_ask, justification).with_question(StatementQuestion::Run),
        }
    }

    /// Returns the statement about the powers of a rule that asks. The powers are part of the consent.
    fn raised_grants(&self, rule: &PolicyRule) -> Option<StatementDraft> {
        let workspace = self.request.workspace.as_path();
        let grants: Vec<Grant> =
            rule.grants.iter().filter_map(|grant| grant.resolve_grant(&self.settings.home, workspace)).collect();
        if rule.effect != PolicyVerdict::Ask || grants.is_empty() {
            return None;
        }
        let verdict = self.answer_grants(&grants)?;
        let reasons = grants.iter().map(|grant| format!("it would be given `{grant}`")).collect();
        Some(StatementDraft { verdict, rule: rule_name(rule), reasons, asks: StatementQuestion::Grants(grants) })
    }

    /// Combines the statements by deny-overrides. Before that, the caller's own approval answers the
    /// question about the run and no other.
    fn combine_statements(
        &self,
        mut voices: Vec<StatementDraft>,
        unsandboxed: bool,
        obligations: Obligations,
    ) -> PolicyRuling {
        let mut agreed = Vec::new();
        if let Some(approval) = &self.request.caller_approval {
            let by = RawText::from(approval.by.as_str()).to_escaped();
            for voice in &mut voices {
                if voice.verdict == PolicyVerdict::Ask && voice.asks == StatementQuestion::Run {
                    voice.verdict = PolicyVerdict::Allow;
                    voice.rule = format!("caller {by} agreed; otherwise {}", voice.rule);
                }
            }
            agreed.push(format!("{by} agreed already"));
            let warnings = approval.warnings.iter().map(|warning| RawText::from(warning.as_str()).to_escaped());
            agreed.extend(warnings.map(|warning| format!("{by} was warned: {warning}")));
        }
        let verdict = voices.iter().map(|voice| voice.verdict).max().unwrap_or(PolicyVerdict::Deny);
        let deciding: Vec<&StatementDraft> = voices.iter().filter(|voice| voice.verdict == verdict).collect();
        let rule = deciding.first().map_or_else(|| "nothing allows it".to_owned(), |voice| voice.rule.clone());
        let mut reasons = each_once(deciding.iter().flat_map(|voice| &voice.reasons));
        reasons.extend(agreed);
        let questions = if verdict == PolicyVerdict::Ask { collect_questions(&deciding) } else { Vec::new() };
        let voices = voices.into_iter().map(|voice| voice.into_statement(verdict)).collect();
        PolicyRuling { decision: Decision { verdict, rule, reasons }, questions, unsandboxed, obligations, voices }
    }
}

/// Returns findings as reasons.
fn list_findings<'f>(findings: impl Iterator<Item = &'f Finding>) -> Vec<String> {
    let all: Vec<String> = findings.map(|finding| format!("{}: {}", finding.code, finding.message)).collect();
    let mut reasons = each_once(&all);
    reasons.truncate(MAX_LISTED_FINDINGS);
    reasons
}

/// Returns the reasons in order, without duplicates: several sources or ranges may have the same reason.
fn each_once<'r>(reasons: impl IntoIterator<Item = &'r String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    reasons.into_iter().filter(|reason| seen.insert(*reason)).cloned().collect()
}

/// Returns one question about the run and one about the powers. The question about the sandbox replaces
/// both: without a sandbox there is nothing to add powers to.
fn collect_questions(deciding: &[&StatementDraft]) -> Vec<QuestionKind> {
    if deciding.iter().any(|voice| voice.asks == StatementQuestion::Unsandboxed) {
        return vec![QuestionKind::Unsandboxed];
    }
    let mut questions = Vec::new();
    let about_run: Vec<&&StatementDraft> = deciding
        .iter()
        .filter(|voice| matches!(voice.asks, StatementQuestion::Run | StatementQuestion::RunByPerson))
        .collect();
    if !about_run.is_empty() {
        let reasons = each_once(about_run.iter().flat_map(|voice| &voice.reasons));
        questions.push(QuestionKind::Run { reasons });
    }
    for voice in deciding {
        if let StatementQuestion::Grants(grants) = &voice.asks {
            questions.push(QuestionKind::Grants { grants: grants.clone() });
        }
    }
    questions
}

/// Returns the answers that apply to a request: those of the user's own mode, or the stricter ones of the
/// configured and the requested mode.
pub fn mode_answers(settings: &PolicySettings, request: &RunRequest, by_person: bool) -> ModeAnswers {
    let from_request = ModeAnswers::from_mode(request.approval_mode);
    if by_person {
        from_request
    } else {
        from_request.combine_strictest(&ModeAnswers::from_mode(settings.approval_mode.value))
    }
}

/// Returns whether a user may be asked for this power after it was refused during the run; false if the
/// refusal is final.
pub fn may_escalate(settings: &PolicySettings, request: &RunRequest, grant: &Grant, by_person: bool) -> bool {
    mode_answers(settings, request, by_person).answer_denied(GrantClass::from_grant(grant)) == PolicyVerdict::Ask
}

pub(crate) fn rule_name(rule: &PolicyRule) -> String {
    format!("rule {} `{}`, {}", rule.effect, RawText::from(rule.label().as_str()).to_escaped(), rule.origin)
}

fn verdict_participle(verdict: PolicyVerdict) -> &'static str {
    match verdict {
        PolicyVerdict::Allow => "allowed",
        PolicyVerdict::Ask => "asked about",
        PolicyVerdict::Deny => "refused",
    }
}

//! Rules about acts other than commands: tool calls, file changes, connections.
//!
//! Pure and total like `decide`. If no rule is about an act, the profile's powers decide, and after them
//! the mode. Must not know how an act is carried out.

use std::path::Path;

use stockade_model::{
    ApprovalMode, Decision, FilesystemAccess, Grant, Host, HostPattern, NetworkAccess, NetworkTarget, PolicyVerdict,
    Profile, RawText, SessionId, TargetPattern,
};

use crate::decide::{NO_PROFILE_SOURCE, PolicyStatement, rule_name};
use crate::file::FileOperation;
use crate::mode::{GrantClass, ModeAnswers, mode_name};
use crate::resolve::{has_power, hidden_by, is_protected, own_reached, resolve_profile};
use crate::rules::{
    Act, MatchedRules, PolicyRule, RequestContext, RuleExplanation, RuleInput, RuleKind, RuleMatch, RuleSubject,
};
use crate::settings::PolicySettings;

/// Source of the refusal of a power over Stockade's own files.
const GOVERNED_FILES_SOURCE: &str = "files: what governs is out of reach";

/// Context of an act: its location and the powers in force.
#[derive(Clone, Copy, Debug)]
pub struct ActContext<'a> {
    /// The working directory: absolute, canonical.
    pub cwd: &'a Path,
    /// The workspace: absolute, canonical.
    pub workspace: &'a Path,
    /// The session of the act.
    pub session: Option<&'a SessionId>,
    /// The profile in force.
    pub profile: &'a str,
    /// When to ask for approval.
    pub approval_mode: ApprovalMode,
}

impl ActContext<'_> {
    /// Returns the stricter answers of the modes of the act and of the configuration.
    pub(crate) fn mode_answers(&self, settings: &PolicySettings) -> ModeAnswers {
        let configured = ModeAnswers::from_mode(settings.approval_mode.value);
        ModeAnswers::from_mode(self.approval_mode).combine_strictest(&configured)
    }
}

/// A decision about an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActRuling {
    /// The verdict and its reasons.
    pub decision: Decision,
    /// The power that a yes would give, if the profile lacks it.
    pub grant: Option<Grant>,
    /// The statements of all sources; those that decided are marked.
    pub voices: Vec<PolicyStatement>,
}

/// Decides whether an act may happen. Deny-overrides, as for commands (L9).
pub fn decide_act(
    settings: &PolicySettings,
    act: Act<'_>,
    stage: &ActContext<'_>,
    around: &RequestContext,
) -> ActRuling {
    let found = settings.rules.match_rules(&build_act_input(settings, act, stage, around));
    let answers = stage.mode_answers(settings);
    let mut voices = collect_rule_statements(&found, &answers);
    let power = PermissionCheck::check_act(settings, act, stage);
    let allow_rule = found.allowed.first().filter(|_| power.may_be_allowed());
    let (verdict, source, reason) = match (&power, allow_rule) {
        (PermissionCheck::Refused { rule, why }, _) => (PolicyVerdict::Deny, rule.clone(), why.clone()),
        (_, Some(rule)) => (PolicyVerdict::Allow, rule_name(rule), rule.justification.clone()),
        (PermissionCheck::There(rule), None) => (PolicyVerdict::Allow, rule.clone(), String::new()),
        (PermissionCheck::Missing { class, why, .. }, None) => {
            let verdict = answers.answer_requested(*class);
            let does = if verdict == PolicyVerdict::Ask { "asks about" } else { "refuses" };
            let rule = format!("mode {}: {does} powers the profile lacks", mode_name(stage.approval_mode));
            (verdict, rule, why.clone())
        }
    };
    voices.push(new_statement(verdict, source, reason));
    let grant = match power {
        PermissionCheck::Missing { grant, .. } => grant,
        _ => None,
    };
    conclude_act(voices, grant)
}

fn describe_own_path(settings: &PolicySettings, own: &Path) -> String {
    let shown = |path: &Path| RawText::from(path).to_escaped();
    match settings.own.find_original_path(own) {
        Some(original) => {
            format!("`{}` is `{}` by another mount, and Stockade's own", shown(own), shown(original))
        }
        None => format!("`{}` is Stockade's own", shown(own)),
    }
}

impl PolicySettings {
    /// Refuses a power over files that govern the run. No approver can give such a power (L7).
    pub fn decide_governed(&self, workspace: &Path, power: &Grant) -> Option<Decision> {
        let own = own_reached(self, workspace, power)?;
        let source = GOVERNED_FILES_SOURCE.to_owned();
        let statement = new_statement(PolicyVerdict::Deny, source, describe_own_path(self, &own));
        Some(conclude_act(vec![statement], None).decision)
    }

    /// Returns the decision of the rules alone for an act that the profile has no power for; `None` if no
    /// rule is about it. A rule gives no power over protected or hidden files. A rule gives no power that
    /// the profile already has but another layer refused.
    pub fn decide_by_rule(&self, act: Act<'_>, stage: &ActContext<'_>, around: &RequestContext) -> Option<Decision> {
        let found = self.rules.match_rules(&build_act_input(self, act, stage, around));
        let answers = stage.mode_answers(self);
        let mut voices = collect_rule_statements(&found, &answers);
        if let Some(rule) = found.allowed.first() {
            match PermissionCheck::check_act(self, act, stage) {
                PermissionCheck::Missing { guarded: false, .. } => {
                    voices.push(new_statement(PolicyVerdict::Allow, rule_name(rule), rule.justification.clone()));
                }
                PermissionCheck::Missing { .. } | PermissionCheck::There(_) => {}
                PermissionCheck::Refused { rule, why } => voices.push(new_statement(PolicyVerdict::Deny, rule, why)),
            }
        }
        (!voices.is_empty()).then(|| conclude_act(voices, None).decision)
    }
}

impl PolicyRule {
    /// Returns whether the rule may refuse or ask about files, so that a directory may contain files of the
    /// rule.
    pub fn guards_files(&self) -> bool {
        self.raises_caution() && matches!(self.kind, RuleKind::File | RuleKind::Anything)
    }

    /// Returns whether the rule may give powers over files or hosts.
    pub fn gives_powers(&self) -> bool {
        !self.raises_caution() && matches!(self.kind, RuleKind::File | RuleKind::Host | RuleKind::Anything)
    }
}

/// Returns the statements of the rules that refuse or ask.
pub(crate) fn collect_rule_statements(found: &MatchedRules<'_>, answers: &ModeAnswers) -> Vec<PolicyStatement> {
    let voice = |(rule, sure): &(&PolicyRule, RuleMatch)| {
        let (verdict, reason) = match (rule.effect, sure) {
            (PolicyVerdict::Deny, RuleMatch::Certain) => (PolicyVerdict::Deny, rule.justification.clone()),
            (PolicyVerdict::Deny, _) => (answers.rule_ask, format!("it may be denied: {}", rule.justification)),
            _ => (answers.rule_ask, rule.justification.clone()),
        };
        new_statement(verdict, rule_name(rule), reason)
    };
    found.raised.iter().map(voice).collect()
}

/// Returns every rule and whether it is about an act, for an explanation.
pub fn consider_act<'a>(
    settings: &'a PolicySettings,
    act: Act<'_>,
    stage: &ActContext<'_>,
    around: &RequestContext,
) -> Vec<RuleExplanation<'a>> {
    settings.rules.explain_rules(&build_act_input(settings, act, stage, around))
}

pub(crate) fn build_act_input<'a>(
    settings: &'a PolicySettings,
    act: Act<'a>,
    stage: &ActContext<'a>,
    around: &'a RequestContext,
) -> RuleInput<'a> {
    RuleInput {
        subject: RuleSubject::Act(act),
        cwd: stage.cwd,
        workspace: stage.workspace,
        home: &settings.home,
        session: stage.session,
        around,
        example: false,
    }
}

pub(crate) fn new_statement(verdict: PolicyVerdict, source: String, reason: String) -> PolicyStatement {
    let reasons = if reason.is_empty() { Vec::new() } else { vec![reason] };
    PolicyStatement { verdict, source, reasons, decides: false }
}

pub(crate) fn conclude_act(mut voices: Vec<PolicyStatement>, grant: Option<Grant>) -> ActRuling {
    let verdict = voices.iter().map(|voice| voice.verdict).max().unwrap_or(PolicyVerdict::Deny);
    for voice in &mut voices {
        voice.decides = voice.verdict == verdict;
    }
    let deciding = || voices.iter().filter(|voice| voice.decides);
    let rule = deciding().next().map_or_else(|| "nothing allows it".to_owned(), |voice| voice.source.clone());
    let reasons = deciding().flat_map(|voice| voice.reasons.clone()).collect();
    let grant = grant.filter(|_| verdict == PolicyVerdict::Ask);
    ActRuling { decision: Decision { verdict, rule, reasons }, grant, voices }
}

/// Whether the profile gives the power for an act.
enum PermissionCheck {
    /// The profile gives the power, for this reason.
    There(String),
    /// The profile does not give the power.
    Missing { class: GrantClass, grant: Option<Grant>, why: String, guarded: bool },
    /// No run may have the power.
    Refused { rule: String, why: String },
}

impl PermissionCheck {
    fn check_act(settings: &PolicySettings, act: Act<'_>, stage: &ActContext<'_>) -> Self {
        let profile = match resolve_profile(settings, stage.profile, stage.workspace, &[]) {
            Ok(profile) => profile,
            Err(error) => {
                let why = error.to_string().replace('\n', "; ");
                return Self::Refused { rule: NO_PROFILE_SOURCE.to_owned(), why };
            }
        };
        match act {
            Act::Tool { name, .. } => {
                // A tool acts outside the sandbox, so no profile contains the power.
                let why = format!("no rule is about the tool `{}`", RawText::from(name).to_escaped());
                Self::Missing { class: GrantClass::Other, grant: None, why, guarded: false }
            }
            Act::File { path, operation } => Self::of_file(settings, &profile, path, operation, stage),
            Act::Network { host, port } => Self::of_network(&profile, host, port),
        }
    }

    fn of_file(
        settings: &PolicySettings,
        profile: &Profile,
        path: &Path,
        operation: FileOperation,
        stage: &ActContext<'_>,
    ) -> Self {
        let shown = RawText::from(path).to_escaped();
        let reads = operation == FileOperation::Read;
        if !path.is_absolute() || path.components().any(|c| c == std::path::Component::ParentDir) {
            let why = format!("`{shown}` is not an absolute path without `..`");
            return Self::Refused { rule: "files: not a plain path".to_owned(), why };
        }
        let grant = if reads { Grant::Read(path.to_owned()) } else { Grant::Write(path.to_owned()) };
        if let Some(own) = own_reached(settings, stage.workspace, &grant) {
            return Self::Refused { rule: GOVERNED_FILES_SOURCE.to_owned(), why: describe_own_path(settings, &own) };
        }
        if has_power(profile, &grant) {
            let verb = if reads { "reads" } else { "writes" };
            return Self::There(format!("profile {}: {verb} it", profile.name));
        }
        let guarded = is_guarded(&profile.filesystem, path);
        let why = match (reads, guarded) {
            (true, _) => format!("`{shown}` is hidden"),
            (false, true) => format!("`{shown}` is protected"),
            (false, false) => format!("`{shown}` lies outside every writable root"),
        };
        Self::Missing { class: GrantClass::Filesystem, grant: Some(grant), why, guarded }
    }

    fn of_network(profile: &Profile, host: &Host, port: Option<u16>) -> Self {
        if profile.network == NetworkAccess::Host {
            return Self::There(format!("profile {}: has the network", profile.name));
        }
        let targets = TargetPattern::new(HostPattern::Exactly(host.clone()), port);
        if let Some(entry) = profile.egress.deny.iter().find(|entry| entry.overlaps(&targets)) {
            let why = format!("profile {} denies `{entry}`", profile.name);
            return Self::Refused { rule: format!("egress.deny {entry}"), why };
        }
        let must_ask = profile.egress.ask.iter().any(|entry| entry.overlaps(&targets));
        let allows = |entry: &&TargetPattern| !must_ask && allows_connection(entry, host, port);
        if let Some(entry) = profile.egress.allow.iter().find(allows) {
            return Self::There(format!("profile {}: allows {entry}", profile.name));
        }
        let why = format!("profile {} does not allow `{targets}`", profile.name);
        Self::Missing { class: GrantClass::Network, grant: Some(Grant::Connect(targets)), why, guarded: false }
    }

    /// Returns whether an allow rule may give the power. A rule cannot give a power over protected or
    /// hidden files: this needs a grant that names the file.
    fn may_be_allowed(&self) -> bool {
        match self {
            Self::There(_) => true,
            Self::Missing { guarded, .. } => !guarded,
            Self::Refused { .. } => false,
        }
    }
}

/// Returns whether an entry of the profile allows these connections. If the port is unknown, the entry must
/// allow every port.
fn allows_connection(entry: &TargetPattern, host: &Host, port: Option<u16>) -> bool {
    match port {
        Some(port) => entry.can_allow(&NetworkTarget { host: host.clone(), port }),
        None => entry.ports().next().is_none() && entry.can_allow(&NetworkTarget { host: host.clone(), port: 1 }),
    }
}

fn is_guarded(filesystem: &FilesystemAccess, path: &Path) -> bool {
    hidden_by(filesystem, path).is_some() || is_protected(filesystem, path)
}

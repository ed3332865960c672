//! Rules about acts other than commands: tool calls, file changes, connections.
//!
//! Pure and total like `decide`. If no rule is about an act, the profile's powers decide, and after them
//! the mode. Must not know how an act is carried out.

use std::path::Path;

use stockade_model::{
    ApprovalMode, Decision, Filesystem, Grant, Host, HostPattern, Network, Profile, RawText, SessionId, Target,
    TargetPattern, Verdict,
};

use crate::decide::{Said, rule_name};
use crate::file::FileOperation;
use crate::mode::{GrantClass, ModeAnswers, mode_name};
use crate::resolve::{has_power, hidden_by, is_protected, own_reached, resolve_profile};
use crate::rules::{Act, Circumstances, Considered, Findings, Match, Matcher, Rule, Scene, Subject};
use crate::settings::Settings;

/// Source of the refusal of a power over Stockade's own files.
const GOVERNS: &str = "files: what governs is out of reach";

/// Context of an act: its location and the powers in force.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
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

/// A decision about an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActRuling {
    /// The verdict and its reasons.
    pub decision: Decision,
    /// The power that a yes would give, if the profile lacks it.
    pub grant: Option<Grant>,
    /// The statements of all sources; those that decided are marked.
    pub voices: Vec<Said>,
}

/// Decides whether an act may happen. Deny-overrides, as for commands (L9).
pub fn decide_act(settings: &Settings, act: Act<'_>, stage: &Stage<'_>, around: &Circumstances) -> ActRuling {
    let found = settings.rules.find(&scene(settings, act, stage, around));
    let answers = ModeAnswers::of(stage.approval_mode).strictest(&ModeAnswers::of(settings.approval_mode.value));
    let mut voices = raised(&found, &answers);
    let power = Power::of(settings, act, stage);
    let given = found.allowed.first().filter(|_| power.may_be_allowed());
    match (&power, given) {
        (Power::Refused { rule, why }, _) => voices.push(said(Verdict::Deny, rule.clone(), why.clone())),
        (_, Some(rule)) => voices.push(said(Verdict::Allow, rule_name(rule), rule.justification.clone())),
        (Power::There(rule), None) => voices.push(said(Verdict::Allow, rule.clone(), String::new())),
        (Power::Missing { class, why, .. }, None) => {
            let verdict = answers.requested(*class);
            let does = if verdict == Verdict::Ask { "asks about" } else { "refuses" };
            let rule = format!("mode {}: {does} powers the profile lacks", mode_name(stage.approval_mode));
            voices.push(said(verdict, rule, why.clone()));
        }
    }
    let grant = match power {
        Power::Missing { grant, .. } => grant,
        _ => None,
    };
    conclude(voices, grant)
}

fn owned(settings: &Settings, own: &Path) -> String {
    let shown = |path: &Path| RawText::from(path).escaped();
    match settings.own.original(own) {
        Some(original) => {
            format!("`{}` is `{}` by another mount, and Stockade's own", shown(own), shown(original))
        }
        None => format!("`{}` is Stockade's own", shown(own)),
    }
}

impl Settings {
    /// Refuses a power over files that govern the run. No approver can give such a power (L7).
    pub fn decide_governed(&self, workspace: &Path, power: &Grant) -> Option<Decision> {
        let own = own_reached(self, workspace, power)?;
        Some(conclude(vec![said(Verdict::Deny, GOVERNS.to_owned(), owned(self, &own))], None).decision)
    }

    /// Returns the decision of the rules alone for an act that the profile has no power for; `None` if no
    /// rule is about it. A rule gives no power over protected or hidden files. A rule gives no power that
    /// the profile already has but another layer refused.
    pub fn decide_by_rule(&self, act: Act<'_>, stage: &Stage<'_>, around: &Circumstances) -> Option<Decision> {
        let found = self.rules.find(&scene(self, act, stage, around));
        let answers = ModeAnswers::of(stage.approval_mode).strictest(&ModeAnswers::of(self.approval_mode.value));
        let mut voices = raised(&found, &answers);
        if let Some(rule) = found.allowed.first() {
            match Power::of(self, act, stage) {
                Power::Missing { guarded: false, .. } => {
                    voices.push(said(Verdict::Allow, rule_name(rule), rule.justification.clone()));
                }
                Power::Missing { .. } | Power::There(_) => {}
                Power::Refused { rule, why } => voices.push(said(Verdict::Deny, rule, why)),
            }
        }
        (!voices.is_empty()).then(|| conclude(voices, None).decision)
    }
}

impl Rule {
    /// Returns whether the rule may refuse or ask about files, so that a directory may contain files of the
    /// rule.
    pub fn guards_files(&self) -> bool {
        self.raises() && matches!(self.matcher, Matcher::Files { .. } | Matcher::Anything)
    }

    /// Returns whether the rule may give powers over files or hosts.
    pub fn gives_powers(&self) -> bool {
        !self.raises() && matches!(self.matcher, Matcher::Files { .. } | Matcher::Hosts { .. } | Matcher::Anything)
    }
}

/// Returns the statements of the rules that refuse or ask.
pub(crate) fn raised(found: &Findings<'_>, answers: &ModeAnswers) -> Vec<Said> {
    let voice = |(rule, sure): &(&Rule, Match)| {
        let (verdict, reason) = match (rule.effect, sure) {
            (Verdict::Deny, Match::Certain) => (Verdict::Deny, rule.justification.clone()),
            (Verdict::Deny, _) => (answers.rule_ask, format!("it may be what is denied: {}", rule.justification)),
            _ => (answers.rule_ask, rule.justification.clone()),
        };
        said(verdict, rule_name(rule), reason)
    };
    found.raised.iter().map(voice).collect()
}

/// Returns every rule and whether it is about an act, for an explanation.
pub fn consider_act<'a>(
    settings: &'a Settings,
    act: Act<'_>,
    stage: &Stage<'_>,
    around: &Circumstances,
) -> Vec<Considered<'a>> {
    settings.rules.consider(&scene(settings, act, stage, around))
}

pub(crate) fn scene<'a>(
    settings: &'a Settings,
    act: Act<'a>,
    stage: &Stage<'a>,
    around: &'a Circumstances,
) -> Scene<'a> {
    Scene {
        subject: Subject::Act(act),
        cwd: stage.cwd,
        workspace: stage.workspace,
        home: &settings.home,
        session: stage.session,
        around,
        example: false,
    }
}

pub(crate) fn said(verdict: Verdict, source: String, reason: String) -> Said {
    let reasons = if reason.is_empty() { Vec::new() } else { vec![reason] };
    Said { verdict, source, reasons, decides: false }
}

pub(crate) fn conclude(mut voices: Vec<Said>, grant: Option<Grant>) -> ActRuling {
    let verdict = voices.iter().map(|voice| voice.verdict).max().unwrap_or(Verdict::Deny);
    for voice in &mut voices {
        voice.decides = voice.verdict == verdict;
    }
    let deciding = || voices.iter().filter(|voice| voice.decides);
    let rule = deciding().next().map_or_else(|| "nothing allows it".to_owned(), |voice| voice.source.clone());
    let reasons = deciding().flat_map(|voice| voice.reasons.clone()).collect();
    let grant = grant.filter(|_| verdict == Verdict::Ask);
    ActRuling { decision: Decision { verdict, rule, reasons }, grant, voices }
}

/// Whether the profile gives the power for an act.
enum Power {
    /// The profile gives the power, for this reason.
    There(String),
    /// The profile does not give the power.
    Missing { class: GrantClass, grant: Option<Grant>, why: String, guarded: bool },
    /// No run may have the power.
    Refused { rule: String, why: String },
}

impl Power {
    fn of(settings: &Settings, act: Act<'_>, stage: &Stage<'_>) -> Self {
        let profile = match resolve_profile(settings, stage.profile, stage.workspace, &[]) {
            Ok(profile) => profile,
            Err(error) => {
                let why = error.to_string().replace('\n', "; ");
                return Self::Refused { rule: "profile: it cannot be made".to_owned(), why };
            }
        };
        match act {
            Act::Tool { name, .. } => {
                // A tool acts outside the sandbox, so no profile contains the power.
                let why = format!("no rule speaks of the tool `{}`", RawText::from(name).escaped());
                Self::Missing { class: GrantClass::Other, grant: None, why, guarded: false }
            }
            Act::File { path, operation } => Self::of_file(settings, &profile, path, operation, stage),
            Act::Network { host, port } => Self::of_network(&profile, host, port),
        }
    }

    fn of_file(
        settings: &Settings,
        profile: &Profile,
        path: &Path,
        operation: FileOperation,
        stage: &Stage<'_>,
    ) -> Self {
        let shown = RawText::from(path).escaped();
        let reads = operation == FileOperation::Read;
        if !path.is_absolute() || path.components().any(|c| c == std::path::Component::ParentDir) {
            let why = format!("`{shown}` is not an absolute path without `..`");
            return Self::Refused { rule: "files: not a plain path".to_owned(), why };
        }
        let grant = if reads { Grant::Read(path.to_owned()) } else { Grant::Write(path.to_owned()) };
        if let Some(own) = own_reached(settings, stage.workspace, &grant) {
            return Self::Refused { rule: GOVERNS.to_owned(), why: owned(settings, &own) };
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
        if profile.network == Network::Host {
            return Self::There(format!("profile {}: has the network", profile.name));
        }
        let targets = TargetPattern::new(HostPattern::Exactly(host.clone()), port);
        if let Some(entry) = profile.egress.deny.iter().find(|entry| entry.overlaps(&targets)) {
            let why = format!("profile {} denies `{entry}`", profile.name);
            return Self::Refused { rule: format!("egress.deny {entry}"), why };
        }
        let asked = profile.egress.ask.iter().any(|entry| entry.overlaps(&targets));
        if let Some(entry) = profile.egress.allow.iter().find(|entry| !asked && allows(entry, host, port)) {
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
fn allows(entry: &TargetPattern, host: &Host, port: Option<u16>) -> bool {
    match port {
        Some(port) => entry.admits(&Target { host: host.clone(), port }),
        None => entry.ports().next().is_none() && entry.admits(&Target { host: host.clone(), port: 1 }),
    }
}

fn is_guarded(filesystem: &Filesystem, path: &Path) -> bool {
    hidden_by(filesystem, path).is_some() || is_protected(filesystem, path)
}

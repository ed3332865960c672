//! `stockade policy explain`: the decision, the rule that made it, and the result of every other
//! rule.

use std::path::{Path, PathBuf};

use serde_json::json;
use stockade_engine::real::RuleJudge;
use stockade_model::{Decision, Verdict};
use stockade_policy::{
    Act, Circumstances, Considered, Match, Obligations, Said, Settings, Stage, changes_of_patch, consider,
    consider_act, decide_act, parse_file_change, parse_target, parse_tool_call, rule_in,
};

use super::around;
use crate::args::CheckArgs;
use crate::command::{Ended, print, setting, variable};
use crate::exit;
use crate::failure::Failure;
use crate::meaning::{self, Meant};
use crate::policy_args::PolicyExplainArgs;
use crate::render::{self, policy as text};

/// Explains one decision, or every setting.
///
/// # Errors
/// [`Failure`] if the configuration cannot be used, or if the arguments are not a subject.
pub fn explain(typed: PolicyExplainArgs) -> Ended {
    let has_command = typed.subject.script.is_some() || !typed.subject.words.is_empty();
    if has_command {
        return command(typed);
    }
    let workspace = super::workspace(typed.workspace.as_deref())?;
    let settings = super::settings(&workspace, None)?;
    if typed.call.is_some() || typed.file.is_some() || typed.host.is_some() || typed.patch.is_some() {
        return acts(&typed, &settings, &workspace);
    }
    let profile = typed.profile.unwrap_or_else(|| settings.profile.value.clone());
    let lines = settings.explain(&profile);
    print(&if typed.json {
        let lines: Vec<_> = lines
            .iter()
            .map(|line| json!({ "key": line.key, "value": line.value, "origin": line.origin.to_string() }))
            .collect();
        render::json::line(&lines)?
    } else {
        text::settings(&lines)
    })?;
    Ok(exit::SUCCESS)
}

fn command(typed: PolicyExplainArgs) -> Ended {
    let (json, tool, session) = (typed.json, typed.tool, typed.session);
    let check = CheckArgs {
        json: false,
        jsonl: false,
        profile: typed.profile,
        workspace: typed.workspace,
        mode: typed.mode,
        requests: Vec::new(),
        subject: typed.subject,
    };
    let mut meant = Meant::check(check, &variable)?;
    if let Some(session) = session {
        meant.session = Some(meaning::session(&session)?);
    }
    let setting = setting::load(&meant.workspace)?;
    let request = setting.request(&meant, meaning::request_id()?);
    let judge: RuleJudge = setting.judge();
    let assessment = judge.assess(&request);
    let around = around(tool.as_deref());
    let ruling = rule_in(&setting.settings, &request, &assessment, true, &around);
    let considered = consider(&setting.settings, &request, &assessment, &around);
    let shown = Explained {
        subject: meaning::text_of(&request.command).escaped(),
        decision: &ruling.decision,
        voices: &ruling.voices,
        considered: &considered,
        obligations: Some(&ruling.obligations),
        grant: None,
    };
    print(&shown.text(json)?)?;
    Ok(exit::SUCCESS)
}

/// Explanation of one decision.
pub struct Explained<'a> {
    /// Subject of the request, escaped.
    pub subject: String,
    /// The decision.
    pub decision: &'a Decision,
    /// Result of every source of the decision.
    pub voices: &'a [Said],
    /// Result of every rule.
    pub considered: &'a [Considered<'a>],
    /// Requirements of the rules for the run.
    pub obligations: Option<&'a Obligations>,
    /// Grant that a yes would give.
    pub grant: Option<String>,
}

impl Explained<'_> {
    fn text(&self, json: bool) -> Result<String, Failure> {
        if !json {
            return Ok(text::explanation(self, crate::stdout_style()));
        }
        let name = |verdict| render::check::verdict(verdict);
        let voices: Vec<_> = self
            .voices
            .iter()
            .map(|said| {
                json!({ "verdict": name(said.verdict), "source": said.source, "reasons": said.reasons, "decides": said.decides })
            })
            .collect();
        let rules: Vec<_> = self
            .considered
            .iter()
            .map(|one| {
                json!({
                    "rule": one.rule.label(), "effect": name(one.rule.effect), "origin": one.rule.origin.to_string(),
                    "match": match_name(one.found), "failing": one.failing,
                })
            })
            .collect();
        let wants = self
            .obligations
            .map(|wants| json!({ "profile": wants.profile, "grants": wants.grants, "wall_ms": wants.limits.wall_ms }));
        let value = json!({
            "subject": self.subject, "decision": name(self.decision.verdict), "rule": self.decision.rule,
            "reasons": self.decision.reasons, "voices": voices, "rules": rules, "wants": wants, "grant": self.grant,
        });
        Ok(render::json::line(&value)?)
    }
}

/// Returns the name of a match.
pub fn match_name(found: Match) -> &'static str {
    match found {
        Match::No => "no",
        Match::Possible => "perhaps",
        Match::Certain => "yes",
    }
}

struct Asked<'a> {
    typed: &'a PolicyExplainArgs,
    settings: &'a Settings,
    stage: Stage<'a>,
    around: Circumstances,
}

fn acts(typed: &PolicyExplainArgs, settings: &Settings, workspace: &Path) -> Ended {
    let cwd = crate::places::current_directory()?;
    let profile = typed.profile.clone().unwrap_or_else(|| settings.profile.value.clone());
    let session = typed.session.as_deref().map(meaning::session).transpose()?;
    let stage = Stage {
        cwd: &cwd,
        workspace,
        session: session.as_ref(),
        profile: &profile,
        approval_mode: typed.mode.unwrap_or(settings.approval_mode.value),
    };
    let asked = Asked { typed, settings, stage, around: around(typed.tool.as_deref()) };
    let mut shown = String::new();
    if let Some(call) = &typed.call {
        let (name, arguments) = parse_tool_call(call).map_err(Failure::new)?;
        shown += &asked.one(call, Act::Tool { name, arguments: &arguments })?;
    } else if let Some(change) = &typed.file {
        let (operation, path) = parse_file_change(change, settings.home(), workspace).map_err(Failure::new)?;
        shown += &asked.one(change, Act::File { path: &real(&path), operation })?;
    } else if let Some(host) = &typed.host {
        let (host_name, port) = parse_target(host).map_err(Failure::new)?;
        shown += &asked.one(host, Act::Network { host: &host_name, port })?;
    } else if let Some(patch) = &typed.patch {
        let text = super::read(patch)?;
        let changes =
            changes_of_patch(&text).map_err(|e| Failure::new(format!("{}: {e}", crate::failure::quoted(patch))))?;
        let mut worst = Verdict::Allow;
        for change in changes {
            let path = real(&cwd.join(&change.path));
            let subject = format!("{} {}", format!("{:?}", change.operation).to_lowercase(), change.path);
            let act = Act::File { path: &path, operation: change.operation };
            worst = worst.max(decide_act(settings, act, &asked.stage, &asked.around).decision.verdict);
            shown += &asked.one(&subject, act)?;
        }
        if !typed.json {
            shown += &format!("patch     {}\n", render::check::verdict(worst));
        }
    }
    print(&shown)?;
    Ok(exit::SUCCESS)
}

/// Resolves links as far as the path exists, because rules name objects (L5).
fn real(path: &Path) -> PathBuf {
    crate::places::canonical_prefix(path)
}

impl Asked<'_> {
    fn one(&self, subject: &str, act: Act<'_>) -> Result<String, Failure> {
        let ruling = decide_act(self.settings, act, &self.stage, &self.around);
        let considered = consider_act(self.settings, act, &self.stage, &self.around);
        let shown = Explained {
            subject: stockade_model::RawText::from(subject).escaped(),
            decision: &ruling.decision,
            voices: &ruling.voices,
            considered: &considered,
            obligations: None,
            grant: ruling.grant.as_ref().map(ToString::to_string),
        };
        shown.text(self.typed.json)
    }
}

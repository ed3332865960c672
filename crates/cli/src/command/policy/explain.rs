//! `stockade policy explain`: the decision, the rule that made it, and the result of every other
//! rule.

use std::path::Path;

use serde_json::json;
use stockade_engine::adapters::RulePolicyEngine;
use stockade_model::{Decision, PolicyVerdict};
use stockade_policy::{
    Act, ActContext, Obligations, PolicySettings, PolicyStatement, RequestContext, RuleExplanation, RuleMatch,
    changes_of_patch, consider_act, consider_request, decide_act, parse_file_change, parse_target, parse_tool_call,
    rule_in,
};

use super::build_circumstances;
use crate::args::CheckArgs;
use crate::command::{CommandResult, configuration, print_output, print_result, read_variable};
use crate::failure::CliError;
use crate::locations::canonical_prefix;
use crate::policy_args::PolicyExplainArgs;
use crate::render::{self, policy as text};
use crate::resolved_args::{self, ResolvedArgs};

/// Explains one decision, or every setting.
///
/// # Errors
/// [`CliError`] if the configuration cannot be used, or if the arguments are not a subject.
pub fn explain_policy(typed: PolicyExplainArgs) -> CommandResult {
    let has_command = typed.subject.script.is_some() || !typed.subject.words.is_empty();
    if has_command {
        return explain_command(typed);
    }
    let workspace = super::resolve_workspace(typed.workspace.as_deref())?;
    let settings = super::load_settings(&workspace, None)?;
    if typed.call.is_some() || typed.file.is_some() || typed.host.is_some() || typed.patch.is_some() {
        return explain_acts(&typed, &settings, &workspace);
    }
    let profile = typed.profile.unwrap_or_else(|| settings.profile.value.clone());
    let lines = settings.explain_profile(&profile);
    let value: Vec<_> = lines
        .iter()
        .map(|line| json!({ "key": line.key, "value": line.value, "origin": line.origin.to_string() }))
        .collect();
    print_result(typed.json, &value, || text::format_settings(&lines))
}

fn explain_command(typed: PolicyExplainArgs) -> CommandResult {
    let (json, tool, session) = (typed.json, typed.tool, typed.session);
    let check = CheckArgs {
        profile: typed.profile,
        workspace: typed.workspace,
        mode: typed.mode,
        subject: typed.subject,
        ..CheckArgs::default()
    };
    let mut request_args = ResolvedArgs::from_check_args(check, &read_variable)?;
    if let Some(session) = session {
        request_args.session = Some(resolved_args::parse_session_id(&session)?);
    }
    let setting = configuration::load_config(&request_args.workspace)?;
    let request = setting.build_request(&request_args, resolved_args::request_id()?);
    let engine: RulePolicyEngine = setting.policy_engine();
    let assessment = engine.assess_request(&request);
    let around = build_circumstances(tool.as_deref());
    let ruling = rule_in(&setting.settings, &request, &assessment, true, &around);
    let considered = consider_request(&setting.settings, &request, &assessment, &around);
    let shown = DecisionExplanation {
        subject: resolved_args::text_of(&request.command).to_escaped(),
        decision: &ruling.decision,
        voices: &ruling.voices,
        considered: &considered,
        obligations: Some(&ruling.obligations),
        grant: None,
    };
    print_output(&shown.to_text(json)?)
}

/// Explanation of one decision.
pub struct DecisionExplanation<'a> {
    /// Subject of the request, escaped.
    pub subject: String,
    /// The decision.
    pub decision: &'a Decision,
    /// Result of every source of the decision.
    pub voices: &'a [PolicyStatement],
    /// Result of every rule.
    pub considered: &'a [RuleExplanation<'a>],
    /// Requirements of the rules for the run.
    pub obligations: Option<&'a Obligations>,
    /// Grant that a yes would give.
    pub grant: Option<String>,
}

impl DecisionExplanation<'_> {
    fn to_text(&self, json: bool) -> Result<String, CliError> {
        if !json {
            return Ok(text::format_explanation(self, crate::stdout_style()));
        }
        let voices: Vec<_> = self
            .voices
            .iter()
            .map(|statement| {
                json!({ "verdict": statement.verdict, "source": statement.source, "reasons": statement.reasons, "decides": statement.decides })
            })
            .collect();
        let rules: Vec<_> = self
            .considered
            .iter()
            .map(|one| {
                json!({
                    "rule": one.rule.label(), "effect": one.rule.effect, "origin": one.rule.origin.to_string(),
                    "match": match_name(one.found), "failing": one.failing,
                })
            })
            .collect();
        let wants = self
            .obligations
            .map(|wants| json!({ "profile": wants.profile, "grants": wants.grants, "wall_ms": wants.limits.wall_ms }));
        let value = json!({
            "subject": self.subject, "decision": self.decision.verdict, "rule": self.decision.rule,
            "reasons": self.decision.reasons, "voices": voices, "rules": rules, "wants": wants, "grant": self.grant,
        });
        Ok(render::json::to_json_line(&value)?)
    }
}

/// Returns the name of a match.
pub fn match_name(found: RuleMatch) -> &'static str {
    match found {
        RuleMatch::No => "no",
        RuleMatch::Possible => "perhaps",
        RuleMatch::Certain => "yes",
    }
}

struct ExplainQuery<'a> {
    typed: &'a PolicyExplainArgs,
    settings: &'a PolicySettings,
    stage: ActContext<'a>,
    around: RequestContext,
}

fn explain_acts(typed: &PolicyExplainArgs, settings: &PolicySettings, workspace: &Path) -> CommandResult {
    let cwd = crate::locations::current_directory()?;
    let profile = typed.profile.clone().unwrap_or_else(|| settings.profile.value.clone());
    let session = typed.session.as_deref().map(resolved_args::parse_session_id).transpose()?;
    let stage = ActContext {
        cwd: &cwd,
        workspace,
        session: session.as_ref(),
        profile: &profile,
        approval_mode: typed.mode.unwrap_or(settings.approval_mode.value),
    };
    let query = ExplainQuery { typed, settings, stage, around: build_circumstances(typed.tool.as_deref()) };
    let mut shown = String::new();
    if let Some(call) = &typed.call {
        let (name, arguments) = parse_tool_call(call).map_err(CliError::new)?;
        shown += &query.explain_act(call, Act::Tool { name, arguments: &arguments })?;
    } else if let Some(change) = &typed.file {
        let (operation, path) = parse_file_change(change, settings.home(), workspace).map_err(CliError::new)?;
        shown += &query.explain_act(change, Act::File { path: &canonical_prefix(&path), operation })?;
    } else if let Some(host) = &typed.host {
        let (host_name, port) = parse_target(host).map_err(CliError::new)?;
        shown += &query.explain_act(host, Act::Network { host: &host_name, port })?;
    } else if let Some(patch) = &typed.patch {
        let text = super::read_text_file(patch)?;
        let changes = changes_of_patch(&text)
            .map_err(|e| CliError::new(format!("{}: {e}", crate::failure::quote_path(patch))))?;
        let mut worst = PolicyVerdict::Allow;
        for change in changes {
            let path = canonical_prefix(&cwd.join(&change.path));
            let subject = format!("{} {}", format!("{:?}", change.operation).to_lowercase(), change.path);
            let act = Act::File { path: &path, operation: change.operation };
            worst = worst.max(decide_act(settings, act, &query.stage, &query.around).decision.verdict);
            shown += &query.explain_act(&subject, act)?;
        }
        if !typed.json {
            shown += &format!("patch     {worst}\n");
        }
    }
    print_output(&shown)
}

impl ExplainQuery<'_> {
    fn explain_act(&self, subject: &str, act: Act<'_>) -> Result<String, CliError> {
        let ruling = decide_act(self.settings, act, &self.stage, &self.around);
        let considered = consider_act(self.settings, act, &self.stage, &self.around);
        let shown = DecisionExplanation {
            subject: stockade_model::RawText::from(subject).to_escaped(),
            decision: &ruling.decision,
            voices: &ruling.voices,
            considered: &considered,
            obligations: None,
            grant: ruling.grant.as_ref().map(ToString::to_string),
        };
        shown.to_text(self.typed.json)
    }
}

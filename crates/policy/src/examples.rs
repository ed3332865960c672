//! `policy test`: checks a policy against files of examples, and counts the rules that the examples reach.
//!
//! Pure: the caller assesses the text of a command, because this crate does not parse shell scripts.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_model::{
    Assessment, Decision, IsolationLevel, PolicyVerdict, RawText, RequestCommand, RunRequest, SessionId,
};

use crate::act::{ActContext, consider_act, decide_act};
use crate::decide::{consider_request, rule_in};
use crate::error::{ConfigError, TextPosition};
use crate::parse::{KeyPositions, parse_file};
use crate::pattern::PathPattern;
use crate::rules::{Act, RequestContext, RuleExplanation, RuleMatch, file_change, parse_target, tool_call};
use crate::settings::PolicySettings;
use crate::table::plain_request;

/// Most examples of one file.
const MAX_EXAMPLES: usize = 10_000;

/// A file of examples.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExampleFile {
    /// The examples.
    pub case: Vec<PolicyExample>,
}

/// One example: exactly one of `run`, `argv`, `call`, `file` and `host`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyExample {
    /// A script, as a user would type it.
    pub run: Option<String>,
    /// A program and its arguments.
    pub argv: Option<Vec<String>>,
    /// A tool call: `NAME`, or `NAME {"argument": "..."}`.
    pub call: Option<String>,
    /// A file change: `write ./path`, `create`, `delete` or `read`.
    pub file: Option<String>,
    /// A connection: `host` or `host:port`.
    pub host: Option<String>,
    /// The expected decision.
    pub expect: PolicyVerdict,
    /// The rule that must decide, by its name, or a part of its label.
    pub rule: Option<String>,
    /// Working directory, relative to the workspace. Default: the workspace.
    pub cwd: Option<PathPattern>,
    /// The requested profile.
    pub profile: Option<String>,
    /// The session.
    pub session: Option<String>,
    /// The user.
    pub user: Option<String>,
    /// The tool that the request comes through.
    pub tool: Option<String>,
    /// Time of the request, in milliseconds since the epoch.
    pub time_ms: Option<u64>,
    /// Purpose of the example.
    pub why: Option<String>,
}

/// Result of one example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleResult {
    /// Position of the example in its file.
    pub position: Option<TextPosition>,
    /// The command or act of the example.
    pub subject: String,
    /// The expected verdict.
    pub expected: PolicyVerdict,
    /// The actual decision.
    pub decision: Decision,
    /// Reason for a failure.
    pub fault: Option<String>,
}

/// Result of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExampleReport {
    /// Result of each example.
    pub results: Vec<ExampleResult>,
    /// For each rule of the policy, in order, the number of examples that it was about.
    pub spoken: Vec<u64>,
}

impl ExampleReport {
    /// Returns the examples that failed.
    pub fn failed_results(&self) -> impl Iterator<Item = &ExampleResult> {
        self.results.iter().filter(|result| result.fault.is_some())
    }

    /// Adds the results of another file.
    pub fn merge_results(&mut self, other: Self) {
        self.results.extend(other.results);
        self.spoken.resize(self.spoken.len().max(other.spoken.len()), 0);
        self.spoken.iter_mut().zip(other.spoken).for_each(|(own, other)| *own += other);
    }
}

/// Function that assesses the text of a request.
pub type RequestAssessor<'a> = &'a dyn Fn(&RunRequest) -> Assessment;

/// Runs a file of examples against a policy. `workspace` is absolute.
///
/// # Errors
/// An error if the file is not a file of examples.
pub fn run_examples(
    settings: &PolicySettings,
    file: &Path,
    source: &str,
    workspace: &Path,
    assess: RequestAssessor<'_>,
) -> Result<ExampleReport, ConfigError> {
    let (content, positions) = parse_file::<ExampleFile>(file, source)?;
    if content.case.len() > MAX_EXAMPLES {
        return Err(ConfigError::new(file, None, format!("at most {MAX_EXAMPLES} examples in one file")));
    }
    let mut report = ExampleReport { results: Vec::new(), spoken: vec![0; settings.rules().count()] };
    for (i, example) in content.case.iter().enumerate() {
        let key = format!("case[{i}]");
        let runner = ExampleRunner { settings, file, positions: &positions, key, workspace, assess, example };
        report.results.push(runner.run_example(&mut report.spoken)?);
    }
    Ok(report)
}

struct ExampleRunner<'a> {
    settings: &'a PolicySettings,
    file: &'a Path,
    positions: &'a KeyPositions,
    key: String,
    workspace: &'a Path,
    assess: RequestAssessor<'a>,
    example: &'a PolicyExample,
}

impl ExampleRunner<'_> {
    fn find_position(&self, key: &str) -> Option<TextPosition> {
        self.positions.get(&format!("{}.{key}", self.key)).or_else(|| self.positions.get(&self.key))
    }

    fn error_at(&self, key: &str, why: impl Into<String>) -> ConfigError {
        ConfigError::new(self.file, self.find_position(key), why)
    }

    fn run_example(&self, spoken: &mut [u64]) -> Result<ExampleResult, ConfigError> {
        let PolicyExample { run, argv, call, file, host, .. } = self.example;
        let given = [run.is_some(), argv.is_some(), call.is_some(), file.is_some(), host.is_some()];
        if given.iter().filter(|is_given| **is_given).count() != 1 {
            return Err(self.error_at("", "an example has exactly one of `run`, `argv`, `call`, `file` and `host`"));
        }
        let session = self.example.session.as_deref().map(|name| self.parse_session(name)).transpose()?;
        let mut decide = |act| self.decide_act(act, session.as_ref(), spoken);
        let (subject, decision) = if let Some(text) = call {
            let (name, arguments) = tool_call(text).map_err(|why| self.error_at("call", why))?;
            (text.clone(), decide(Act::Tool { name, arguments: &arguments }))
        } else if let Some(text) = file {
            let change = file_change(text, self.settings.home(), self.workspace);
            let (operation, path) = change.map_err(|why| self.error_at("file", why))?;
            (text.clone(), decide(Act::File { path: &path, operation }))
        } else if let Some(text) = host {
            let (host, port) = parse_target(text).map_err(|why| self.error_at("host", why))?;
            (text.clone(), decide(Act::Network { host: &host, port }))
        } else if let Some(script) = run {
            let script = RawText::from(script.as_str());
            (script.to_escaped(), self.decide_command(RequestCommand::Script(script), session, spoken))
        } else {
            let argv: Vec<RawText> = argv.iter().flatten().map(|word| RawText::from(word.as_str())).collect();
            let subject = argv.iter().map(RawText::to_escaped).collect::<Vec<_>>().join(" ");
            (subject, self.decide_command(RequestCommand::Argv(argv), session, spoken))
        };
        let fault = fault_of(self.example, &decision);
        Ok(ExampleResult { position: self.find_position(""), subject, expected: self.example.expect, decision, fault })
    }

    fn parse_session(&self, name: &str) -> Result<SessionId, ConfigError> {
        let parsed = name.parse().or_else(|_| format!("ses_{name}").parse());
        parsed.map_err(|_| self.error_at("session", format!("`{name}` is not a session")))
    }

    /// Returns the working directory; a pattern or an invalid path means the workspace.
    fn resolve_cwd(&self) -> PathBuf {
        match self.example.cwd.as_ref().map(|cwd| cwd.to_string().parse::<crate::text::ConfigPath>()) {
            Some(Ok(path)) => path.resolve_path(self.settings.home(), self.workspace),
            _ => self.workspace.to_owned(),
        }
    }

    fn profile(&self) -> &str {
        self.example.profile.as_ref().unwrap_or(&self.settings.profile.value)
    }

    fn build_context(&self) -> RequestContext {
        let PolicyExample { user, tool, time_ms, .. } = self.example;
        RequestContext { user: user.clone(), tool: tool.clone(), time_ms: *time_ms, keeps_changes: None }
    }

    fn decide_command(&self, command: RequestCommand, session: Option<SessionId>, spoken: &mut [u64]) -> Decision {
        let level = self.settings.level.value;
        let request = RunRequest {
            session,
            cwd: self.resolve_cwd().as_path().into(),
            level: if level == IsolationLevel::None { IsolationLevel::Full } else { level },
            approval_mode: self.settings.approval_mode.value,
            ..plain_request(command, self.profile(), self.workspace)
        };
        let (assessment, around) = ((self.assess)(&request), self.build_context());
        count_matches(spoken, &consider_request(self.settings, &request, &assessment, &around));
        rule_in(self.settings, &request, &assessment, true, &around).decision
    }

    fn decide_act(&self, act: Act<'_>, session: Option<&SessionId>, spoken: &mut [u64]) -> Decision {
        let (cwd, around) = (self.resolve_cwd(), self.build_context());
        let (workspace, profile) = (self.workspace, self.profile());
        let approval_mode = self.settings.approval_mode.value;
        let stage = ActContext { cwd: &cwd, workspace, session, profile, approval_mode };
        count_matches(spoken, &consider_act(self.settings, act, &stage, &around));
        decide_act(self.settings, act, &stage, &around).decision
    }
}

fn count_matches(spoken: &mut [u64], considered: &[RuleExplanation<'_>]) {
    spoken.iter_mut().zip(considered).for_each(|(count, one)| *count += u64::from(one.found != RuleMatch::No));
}

fn fault_of(example: &PolicyExample, decision: &Decision) -> Option<String> {
    if decision.verdict != example.expect {
        return Some("the decision does not match".to_owned());
    }
    match &example.rule {
        Some(rule) if !decision.rule.contains(rule.as_str()) => Some(format!("the deciding rule is not `{rule}`")),
        _ => None,
    }
}

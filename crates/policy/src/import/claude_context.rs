//! Settings of Claude Code that apply across files: a key of one file changes the meaning of rules in
//! another. They are read before any rule is imported.
//!
//! In Claude Code, precedence decides between files that disagree. Here the stricter file applies, so that
//! the order of the files does not matter.

use stockade_model::PolicyVerdict;

use super::claude::split_rule;
use super::claude_sandbox;
use super::value::SpannedValue;
use crate::glob::text_matches;
use crate::text::ConfigPath;

/// Settings that apply to all files.
#[derive(Debug, Default)]
pub(super) struct ClaudeContext {
    /// The sandbox is on in every file that sets it, and in one at least.
    pub sandboxed: bool,
    /// In Claude Code, commands in the sandbox run without a question.
    pub auto_allows: bool,
    /// `bypassPermissions` is disabled.
    pub no_bypass: bool,
    /// Only files with this key may allow: `allowManagedPermissionRulesOnly`.
    pub managed_rules_only: bool,
    /// Only files with this key may allow hosts: `allowManagedDomainsOnly`.
    pub managed_hosts_only: bool,
    /// Only files with this key may reveal paths: `allowManagedReadPathsOnly`.
    pub managed_reads_only: bool,
    /// No command runs, because `Bash` is refused as a whole.
    pub no_commands: bool,
    /// Every command is asked about, or none runs.
    pub asks_commands: bool,
    /// Paths that commands may write besides the workspace.
    pub writes: Vec<ConfigPath>,
    /// The sandbox lets commands read the workspace, even if a hidden directory contains it.
    pub reveals_workspace: bool,
    /// The matchers of hooks that may refuse a call before it is allowed.
    pub hooks: Vec<String>,
}

impl ClaudeContext {
    pub(super) fn from_settings(all: &[&SpannedValue]) -> Self {
        let every = |path: &[&str]| {
            let found: Vec<bool> = all.iter().filter_map(|settings| value_at(settings, path)?.as_bool()).collect();
            !found.is_empty() && found.iter().all(|value| *value)
        };
        let any = |path: &[&str]| all.iter().any(|settings| is_true_at(settings, path));
        let sandboxed = every(&["sandbox", "enabled"]);
        let text = |path: &[&str], expected: &str| {
            all.iter().any(|settings| value_at(settings, path).and_then(SpannedValue::as_text) == Some(expected))
        };
        let no_commands = all.iter().any(|settings| names_every_command(settings, "deny"));
        Self {
            sandboxed,
            auto_allows: sandboxed && every(&["sandbox", "autoAllowBashIfSandboxed"]),
            no_bypass: any(&["permissions", "disableBypassPermissionsMode"])
                || text(&["permissions", "disableBypassPermissionsMode"], "disable"),
            managed_rules_only: any(MANAGED_RULES_KEY),
            managed_hosts_only: any(MANAGED_HOSTS_KEY),
            managed_reads_only: any(MANAGED_READS_KEY),
            no_commands,
            asks_commands: no_commands || all.iter().any(|settings| names_every_command(settings, "ask")),
            writes: if sandboxed {
                all.iter().flat_map(|settings| list_writable_directories(settings)).collect()
            } else {
                Vec::new()
            },
            reveals_workspace: sandboxed && all.iter().any(|settings| reveals_workspace(settings)),
            hooks: all.iter().flat_map(|settings| list_hook_matchers(settings)).collect(),
        }
    }

    /// Returns whether a command may do an operation that a rule about files refuses or asks about, without
    /// a decision of another rule.
    pub(super) fn leaves_commands(&self, effect: PolicyVerdict) -> bool {
        if effect == PolicyVerdict::Ask { !self.asks_commands } else { !self.no_commands }
    }

    /// Returns whether a hook may refuse a call of this tool. A matcher is a name, several names joined by
    /// `|`, or an expression; an expression is assumed to match.
    pub(super) fn may_refuse(&self, tool: &str) -> bool {
        let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        self.hooks.iter().any(|matcher| matcher.split('|').any(|one| !is_name(one) || one == tool))
    }
}

/// Keys that only managed settings may contain.
pub(super) const MANAGED_RULES_KEY: &[&str] = &["allowManagedPermissionRulesOnly"];
pub(super) const MANAGED_HOSTS_KEY: &[&str] = &["sandbox", "network", "allowManagedDomainsOnly"];
pub(super) const MANAGED_READS_KEY: &[&str] = &["sandbox", "filesystem", "allowManagedReadPathsOnly"];

fn value_at<'a>(settings: &'a SpannedValue, path: &[&str]) -> Option<&'a SpannedValue> {
    path.iter().try_fold(settings, |value, key| value.get(key))
}

/// Returns whether the value at this path is `true`.
pub(super) fn is_true_at(settings: &SpannedValue, path: &[&str]) -> bool {
    value_at(settings, path).and_then(SpannedValue::as_bool) == Some(true)
}

fn list_hook_matchers(settings: &SpannedValue) -> Vec<String> {
    let entries = value_at(settings, &["hooks", "PreToolUse"]).and_then(SpannedValue::as_list).unwrap_or_default();
    let matcher =
        |entry: &SpannedValue| entry.get("matcher").and_then(SpannedValue::as_text).unwrap_or_default().to_owned();
    entries.iter().map(matcher).collect()
}

/// Returns whether a list of rules names `Bash` as a whole.
fn names_every_command(settings: &SpannedValue, list: &str) -> bool {
    let whole = |text: &str| {
        let Ok((tool, specifier)) = split_rule(text) else { return false };
        specifier.is_none_or(|specifier| matches!(specifier, "*" | "")) && text_matches(tool, "Bash")
    };
    texts_at(settings, &["permissions", list]).any(whole)
}

fn reveals_workspace(settings: &SpannedValue) -> bool {
    let revealed = texts_at(settings, &["sandbox", "filesystem", "allowRead"]).filter_map(claude_sandbox::parse_path);
    revealed.into_iter().any(|path| claude_sandbox::is_workspace(&path))
}

/// Returns the directories that the sandbox lets commands write.
fn list_writable_directories(settings: &SpannedValue) -> Vec<ConfigPath> {
    let allowed = texts_at(settings, &["sandbox", "filesystem", "allowWrite"]).filter_map(claude_sandbox::parse_path);
    let added = texts_at(settings, &["permissions", "additionalDirectories"]).filter_map(|text| text.parse().ok());
    allowed.chain(added).collect()
}

fn texts_at<'a>(settings: &'a SpannedValue, path: &[&str]) -> impl Iterator<Item = &'a str> {
    value_at(settings, path)
        .and_then(SpannedValue::as_list)
        .unwrap_or_default()
        .iter()
        .filter_map(SpannedValue::as_text)
}

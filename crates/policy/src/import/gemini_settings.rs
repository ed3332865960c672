//! Importer for Gemini CLI's `settings.json`: lists of tools and servers, which become rules of fixed
//! priorities (packages/core/src/policy/config.ts, 2026).
//!
//! Must not know policy files; `gemini` puts both in order.

use stockade_model::PolicyVerdict;

use super::ImportDeviation::{Left, Needless, Stricter, Weaker};
use super::gemini::{GeminiContext, RankedRule, SHELL_TOOLS, tier_offset};
use super::gemini_rules::{GeminiConditions, GeminiRuleDraft};
use super::mistakes::ImportMistakes;
use super::value::{self, PositionedError, SpannedValue};
use super::{ImportDeviation, ImportEntry, ImportSource, ImportTool, ImportedPolicy, SourceScope, tool_detection};
use crate::draft::quote_toml;

/// Priorities within the user's tier, in thousandths.
const EXCLUDED_SERVERS_PRIORITY: i64 = 900;
const EXCLUDED_TOOLS_PRIORITY: i64 = 400;
const CONFIRMED_TOOLS_PRIORITY: i64 = 350;
const ALLOWED_TOOLS_PRIORITY: i64 = 300;
const CORE_TOOLS_PRIORITY: i64 = 250;
const TRUSTED_SERVERS_PRIORITY: i64 = 200;
const ALLOWED_SERVERS_PRIORITY: i64 = 100;
/// Distance between a list and the rule below it that refuses all other tools.
const FALLBACK_DISTANCE: i64 = 10;

pub(super) fn convert_rules(
    source: &ImportSource,
    settings: &SpannedValue,
    context: &GeminiContext,
    imported: &mut ImportedPolicy,
    mistakes: &mut ImportMistakes,
) -> Vec<RankedRule> {
    let mut reader = GeminiSettingsReader { source, context, ranked: Vec::new(), faults: Vec::new(), imported };
    reader.convert_settings(settings);
    mistakes.add_errors(source, reader.faults);
    reader.ranked
}

struct GeminiSettingsReader<'a> {
    source: &'a ImportSource,
    context: &'a GeminiContext,
    ranked: Vec<RankedRule>,
    faults: Vec<PositionedError>,
    imported: &'a mut ImportedPolicy,
}

impl<'a> GeminiSettingsReader<'a> {
    fn entry_at(&self, at: &SpannedValue, shown: &str) -> ImportEntry<'a> {
        ImportEntry::new(&self.source.name, at.at, shown)
    }

    fn convert_settings(&mut self, settings: &SpannedValue) {
        let tools = settings.get("tools");
        let within = |key: &str| tools.and_then(|tools| tools.get(key));
        // The names from before the settings were grouped have lower precedence.
        let old = |key: &str| settings.get(key);
        let servers = |key: &str| settings.get("mcp").and_then(|mcp| mcp.get(key));
        use PolicyVerdict::{Allow, Ask, Deny};
        self.convert_servers(servers("excluded").or(old("excludeMCPServers")), Deny, EXCLUDED_SERVERS_PRIORITY);
        self.convert_tools(within("exclude").or(old("excludeTools")), Deny, EXCLUDED_TOOLS_PRIORITY);
        self.convert_tools(within("confirmationRequired"), Ask, CONFIRMED_TOOLS_PRIORITY);
        let allowed = within("allowed").or(old("allowedTools"));
        self.convert_tools(allowed, Allow, ALLOWED_TOOLS_PRIORITY);
        self.rest_of_shell(allowed);
        let core = within("core").or(old("coreTools"));
        self.convert_tools(core, Allow, CORE_TOOLS_PRIORITY);
        if let Some(core) = core {
            let why = "only the tools of `tools.core` are there";
            self.push("*", None, core, Deny, why, CORE_TOOLS_PRIORITY - FALLBACK_DISTANCE);
        }
        self.convert_trusted_servers(settings.get("mcpServers"));
        self.convert_servers(servers("allowed").or(old("allowMCPServers")), Allow, ALLOWED_SERVERS_PRIORITY);
        self.convert_sandbox(tools);
        self.report_other_settings(settings);
        self.report_rule_keys(settings);
    }

    /// Reports keys that name more rules, and unknown keys.
    fn report_rule_keys(&mut self, settings: &SpannedValue) {
        for (key, value) in settings.as_object().unwrap_or_default() {
            let is_path = matches!(key.name.as_str(), "policyPaths" | "adminPolicyPaths");
            let why = match tool_detection::why_unknown(ImportTool::Gemini, key) {
                None if is_path && value.as_list() != Some(&[]) => {
                    "it names more files of rules: import them too".to_owned()
                }
                None => continue,
                Some(why) => why,
            };
            self.note(value, &key.name, Weaker, &why);
        }
    }

    /// Returns the names of a list; any other entry is a mistake.
    fn read_names<'s>(&mut self, list: Option<&'s SpannedValue>) -> Vec<(&'s SpannedValue, &'s str)> {
        let Some(list) = list else { return Vec::new() };
        let texts = value::read_texts(list, "a name", &mut self.faults);
        let (names, others): (Vec<_>, Vec<_>) = texts.into_iter().partition(|(_, text)| !text.is_empty());
        self.faults.extend(others.into_iter().map(|(item, _)| PositionedError::unexpected("a name", item)));
        names
    }

    fn push(
        &mut self,
        tool: &str,
        server: Option<&str>,
        at: &SpannedValue,
        effect: PolicyVerdict,
        why: &str,
        priority: i64,
    ) {
        let entry = self.entry_at(at, tool);
        if self.context.plans && effect == PolicyVerdict::Allow && priority <= CORE_TOOLS_PRIORITY {
            self.imported.note(&entry, Left, "it is not allowed in the mode `plan`");
            return;
        }
        let mut made = GeminiRuleDraft::new(entry, effect, why.to_owned(), self.imported);
        made.add_tool_rule(tool, server, &GeminiConditions::None);
        self.ranked.push(rank_rule(priority, made));
    }

    fn describe_origin(&self, at: &SpannedValue) -> String {
        self.entry_at(at, "").describe_origin()
    }

    fn note(&mut self, at: &SpannedValue, shown: &str, carried: ImportDeviation, why: &str) {
        self.imported.note(&self.entry_at(at, shown), carried, why);
    }

    /// Converts `TOOL`, or `TOOL(prefix)` if the tool runs commands.
    fn convert_tools(&mut self, list: Option<&SpannedValue>, effect: PolicyVerdict, priority: i64) {
        for (at, text) in self.read_names(list) {
            let why = self.describe_origin(at);
            let (name, prefix) = split_arguments(text);
            let Some(prefix) = prefix.filter(|_| effect == PolicyVerdict::Allow) else {
                // Only allow lists support the form with a prefix. In other lists the whole text is a name,
                // which no tool has.
                if prefix.is_some() {
                    let note =
                        self.entry_at(at, text).dropped_note(effect, "a prefix has no effect in this list there");
                    self.imported.notes.push(note);
                } else {
                    self.push(name, None, at, effect, &why, priority);
                }
                continue;
            };
            if !SHELL_TOOLS.contains(&name) || (self.context.plans && priority <= CORE_TOOLS_PRIORITY) {
                // Gemini CLI ignores the arguments, so that the entry allows the tool.
                self.push(name, None, at, effect, &why, priority);
                continue;
            }
            let mut made = GeminiRuleDraft::new(self.entry_at(at, text), effect, why, self.imported);
            let conditions = if prefix.is_empty() {
                GeminiConditions::None
            } else {
                GeminiConditions::Prefixes(vec![prefix.to_owned()])
            };
            made.add_tool_rule(name, None, &conditions);
            self.ranked.push(rank_rule(priority, made));
        }
    }

    /// Refuses all other commands if commands are allowed by prefix.
    fn rest_of_shell(&mut self, list: Option<&SpannedValue>) {
        let Some(list) = list else { return };
        let narrows = |text: &str| matches!(split_arguments(text), (name, Some(_)) if SHELL_TOOLS.contains(&name));
        if list.as_list().unwrap_or_default().iter().filter_map(SpannedValue::as_text).any(narrows) {
            let why = "only the commands of `tools.allowed` are there";
            self.push(SHELL_TOOLS[0], None, list, PolicyVerdict::Deny, why, ALLOWED_TOOLS_PRIORITY - FALLBACK_DISTANCE);
        }
    }

    fn convert_servers(&mut self, list: Option<&SpannedValue>, effect: PolicyVerdict, priority: i64) {
        for (at, name) in self.read_names(list) {
            let why = self.describe_origin(at);
            self.push("*", Some(name), at, effect, &why, priority);
        }
    }

    fn convert_trusted_servers(&mut self, servers: Option<&SpannedValue>) {
        let Some(servers) = servers else { return };
        let Some(entries) = servers.as_object() else {
            return self.faults.push(PositionedError::unexpected("an object", servers));
        };
        for (name, server) in entries {
            if server.get("trust").and_then(SpannedValue::as_bool) == Some(true) {
                let why = self.describe_origin(server);
                self.push("*", Some(&name.name), server, PolicyVerdict::Allow, &why, TRUSTED_SERVERS_PRIORITY);
            }
            for key in ["includeTools", "excludeTools"] {
                for (at, tool) in self.read_names(server.get(key)) {
                    if key == "excludeTools" {
                        let why = self.describe_origin(at);
                        self.push(tool, Some(&name.name), at, PolicyVerdict::Deny, &why, EXCLUDED_SERVERS_PRIORITY);
                    } else {
                        let why = "the agent decides which tools a server offers";
                        self.note(at, &format!("{key}: {tool}"), Weaker, why);
                    }
                }
            }
        }
    }

    fn convert_sandbox(&mut self, tools: Option<&SpannedValue>) {
        let Some(tools) = tools else { return };
        if let Some(sandbox) = tools.get("sandbox") {
            if sandbox.as_bool() == Some(false) {
                self.note(sandbox, "tools.sandbox: false", Stricter, "commands always run in a sandbox here");
            } else {
                self.imported.settings.insert("sandbox".to_owned(), quote_toml("require"));
            }
        }
        if let Some(paths) = tools.get("sandboxAllowedPaths") {
            for at in paths.as_list().unwrap_or_default() {
                let path = at.as_text().unwrap_or_default();
                let plain = path.parse::<crate::text::ConfigPath>().is_ok();
                if plain && path.starts_with('/') {
                    self.imported.add_to_profile("write", path.to_owned());
                } else {
                    self.note(at, path, Left, "only an absolute path can be expressed here");
                }
            }
        }
        if let Some(network) = tools.get("sandboxNetworkAccess").filter(|value| value.as_bool() == Some(true)) {
            let why = "the whole network is never granted: allow `hosts` one by one";
            self.note(network, "tools.sandboxNetworkAccess: true", Left, why);
        }
    }

    /// Reports other settings about permissions; the remaining settings are ignored.
    fn report_other_settings(&mut self, settings: &SpannedValue) {
        let security = settings.get("security").and_then(SpannedValue::as_object).unwrap_or_default();
        for (key, value) in security {
            let shown = format!("security.{}", key.name);
            let (carried, why) = match (key.name.as_str(), value.as_bool()) {
                ("disableYoloMode" | "disableAlwaysAllow" | "toolSandboxing", Some(true)) => {
                    (Needless, "questions and the sandbox cannot be turned off here")
                }
                ("environmentVariableRedaction", _) => (Needless, "variables that look like secrets never pass here"),
                ("folderTrust" | "auth" | "enablePermanentToolApproval" | "autoAddToPolicyByDefault", _) => {
                    (Needless, "it is about the agent itself")
                }
                (_, Some(false)) => continue,
                _ => (Weaker, "it cannot be expressed here"),
            };
            self.note(value, &shown, carried, why);
        }
    }
}

/// Settings have the user's tier, whatever file they are in.
fn rank_rule(priority: i64, made: GeminiRuleDraft<'_, '_>) -> RankedRule {
    made.into_ranked(tier_offset(SourceScope::User) + priority)
}

/// Splits `name(arguments)`; a name contains letters, digits, `_` and `-`.
fn split_arguments(text: &str) -> (&str, Option<&str>) {
    let parts = text.strip_suffix(')').and_then(|text| text.split_once('('));
    match parts {
        Some((name, arguments))
            if !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') =>
        {
            (name, Some(arguments))
        }
        _ => (text, None),
    }
}

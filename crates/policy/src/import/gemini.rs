//! Importer for Gemini CLI's policies: `policies/*.toml` as docs/reference/policy-engine.md (2026)
//! documents them, together with `settings.json`.
//!
//! In Gemini CLI, the matching rule of the highest priority decides; a shell command is split and the
//! strictest of its parts counts. This is `first-applicable` here, with rules in order of priority.

use std::cmp::Reverse;
use std::path::Path;

use stockade_model::{NameList, PolicyVerdict};

use super::ImportDeviation::{Left, Needless, Stricter, Weaker};
use super::gemini_rules::{GeminiConditions, GeminiRuleDraft};
use super::mistakes::ImportMistakes;
use super::tool_detection::read_settings;
use super::value::{PositionedError, SpannedValue};
use super::{ImportEntry, ImportNote, ImportSource, ImportTool, ImportedPolicy, SourceScope, gemini_settings};
use crate::draft::DraftRule;
use crate::error::{ConfigError, TextPosition};
use crate::parse::{KeyPositions, parse_file};

/// Priority of rules that the user made with "always allow".
const ALWAYS_ALLOW_PRIORITY: i64 = 950;

/// Names of the one tool that runs commands.
pub(super) const SHELL_TOOLS: [&str; 2] = ["run_shell_command", "ShellTool"];

/// A rule with its priority in Gemini CLI across all tiers, in thousandths.
pub(super) struct RankedRule {
    pub priority: i64,
    pub effect: PolicyVerdict,
    pub drafts: Vec<DraftRule>,
}

pub(super) fn import_gemini(sources: &[ImportSource]) -> Result<ImportedPolicy, ConfigError> {
    let mut mistakes = ImportMistakes::new(ImportTool::Gemini);
    check_tiers(sources, &mut mistakes);
    let mut files = Vec::new();
    for source in sources {
        match is_json(&source.text).then(|| read_settings(ImportTool::Gemini, &source.text, true)).transpose() {
            Ok(settings) => files.push((source, settings)),
            Err(wrong) => mistakes.add_errors(source, vec![wrong]),
        }
    }
    let context = GeminiContext::from_files(&files);
    let mut imported = ImportedPolicy::default();
    let mut ranked: Vec<RankedRule> = Vec::new();
    for (source, settings) in &files {
        ranked.extend(match settings {
            Some(settings) => gemini_settings::convert_rules(source, settings, &context, &mut imported, &mut mistakes),
            None => convert_policies(source, &context, &mut imported, &mut mistakes),
        });
    }
    mistakes.into_result(sources)?;
    // In Gemini CLI, the order of files decides among equal priorities, and no file contains that order.
    // Therefore the strictest comes first.
    ranked.sort_by_key(|rule| (Reverse(rule.priority), Reverse(rule.effect)));
    if sources.iter().any(|source| is_json(&source.text)) {
        // In every mode of the settings, Gemini CLI asks about acts that no rule matches.
        imported.settings.insert("approval_mode".to_owned(), crate::draft::quote_toml("untrusted"));
    }
    if context.plans {
        imported.settings.insert("profile".to_owned(), crate::draft::quote_toml("read-only"));
    }
    for draft in ranked.into_iter().flat_map(|rule| rule.drafts) {
        if draft.effect != PolicyVerdict::Allow || context.hook.is_none() {
            imported.push(draft);
        }
    }
    imported.notes.extend(context.hook);
    if !imported.rules.is_empty() {
        imported.combine_by_order();
    }
    Ok(imported)
}

/// Settings that change the meaning of all rules.
#[derive(Debug, Default)]
pub(super) struct GeminiContext {
    /// Sessions start in the mode `plan`.
    pub plans: bool,
    /// Rules that the user made with "always allow" do not count.
    pub no_always_allow: bool,
    /// The hook that may refuse a call before it is allowed.
    hook: Option<ImportNote>,
}

impl GeminiContext {
    fn from_files(files: &[(&ImportSource, Option<SpannedValue>)]) -> Self {
        let mut context = Self::default();
        for (source, settings) in files.iter().filter_map(|(source, settings)| Some((source, settings.as_ref()?))) {
            let at = |group: &str, key: &str| settings.get(group).and_then(|group| group.get(key)).cloned();
            context.plans |= at("general", "defaultApprovalMode").is_some_and(|mode| mode.as_text() == Some("plan"));
            context.no_always_allow |=
                at("security", "disableAlwaysAllow").is_some_and(|value| value.as_bool() == Some(true));
            if let Some(hooks) = at("hooks", "BeforeTool").filter(|hooks| hooks.as_list() != Some(&[])) {
                let why = "a hook may refuse any call there, and hooks cannot be expressed here: nothing is allowed";
                let entry = ImportEntry::new(&source.name, hooks.at, "hooks.BeforeTool");
                context.hook = Some(entry.to_note(Weaker, why));
            }
        }
        context
    }

    /// Returns the mode that sessions start in.
    fn session_mode(&self) -> &'static str {
        if self.plans { "plan" } else { "default" }
    }
}

/// Distance between two tiers, in thousandths.
const TIER_DISTANCE: i64 = 1000;

/// Returns the priority offset of a tier. The user's tier also serves for an unknown scope, because such
/// files are only compared with each other.
pub(super) fn tier_offset(scope: SourceScope) -> i64 {
    match scope {
        SourceScope::Extension => 2 * TIER_DISTANCE,
        SourceScope::Project => 3 * TIER_DISTANCE,
        SourceScope::User | SourceScope::Unknown => 4 * TIER_DISTANCE,
        SourceScope::Admin => 5 * TIER_DISTANCE,
    }
}

/// Checks that the tier of each file is known, if there may be several. A rule of a higher tier outweighs
/// one of a lower tier, whatever their priorities.
fn check_tiers(sources: &[ImportSource], mistakes: &mut ImportMistakes) {
    let directory = |source: &ImportSource| Path::new(&source.name).parent().map(Path::to_owned);
    let unknown: Vec<&ImportSource> =
        sources.iter().filter(|source| source.scope == SourceScope::Unknown && !is_json(&source.text)).collect();
    let Some(first) = unknown.first() else { return };
    let alone = sources.len() == unknown.len() && unknown.iter().all(|source| directory(source) == directory(first));
    if alone {
        return;
    }
    let names: Vec<&str> = SourceScope::NAMED_SCOPES.iter().map(|(name, _)| *name).collect();
    let why = "the tier of this file is not known, and it decides which of the rules counts".to_owned();
    let hint = format!("write it as `TIER={}`, where TIER is {}", first.name, names.join(", "));
    mistakes.add_file_error(first, ConfigError::new(Path::new(&first.name), None, why).with_hint(hint));
}

/// Returns whether a text is a settings file: it starts with a brace or a comment of JSON.
fn is_json(text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    text.starts_with('{') || text.starts_with("//") || text.starts_with("/*")
}

fn convert_policies(
    source: &ImportSource,
    context: &GeminiContext,
    imported: &mut ImportedPolicy,
    mistakes: &mut ImportMistakes,
) -> Vec<RankedRule> {
    let (table, positions) = match parse_file::<toml::Table>(Path::new(&source.name), &source.text) {
        Ok(read) => read,
        Err(error) => {
            mistakes.add_file_error(source, error);
            return Vec::new();
        }
    };
    let (mut ranked, mut faults) = (Vec::new(), Vec::new());
    if !table.contains_key("rule") && !table.contains_key("safety_checker") {
        let why = "it contains no `[[rule]]` and no `[[safety_checker]]` of Gemini CLI's".to_owned();
        faults.push(PositionedError { at: TextPosition::START, why });
    }
    for (key, value) in &table {
        let at = positions.get(key).unwrap_or(TextPosition::START);
        let items = match (key.as_str(), value) {
            ("rule" | "safety_checker", toml::Value::Array(items)) => items,
            ("rule" | "safety_checker", _) => {
                faults.push(PositionedError { at, why: format!("`{key}` is a list of tables") });
                continue;
            }
            (other, _) => {
                let entry = ImportEntry::new(&source.name, at, other);
                imported.note(&entry, Needless, "the key is not known there either");
                continue;
            }
        };
        // Gemini CLI ignores a whole file if its schema refuses one rule.
        let is_read = key != "rule" || items.iter().all(|rule| rule.get("toolName").is_some());
        for (i, value) in items.iter().enumerate() {
            let reader =
                GeminiRuleReader { source, context, is_read, positions: &positions, key: format!("{key}[{i}]"), value };
            match if key == "rule" { reader.convert_rule(imported) } else { reader.convert_checker(imported).map(Some) }
            {
                Ok(one) => ranked.extend(one),
                Err(wrong) => faults.push(wrong),
            }
        }
    }
    mistakes.add_errors(source, faults);
    ranked
}

const RULE_KEYS: NameList = NameList::new(include_str!("../../knowledge/gemini_rule_keys.txt"));

struct GeminiRuleReader<'a> {
    source: &'a ImportSource,
    context: &'a GeminiContext,
    /// True if Gemini CLI reads the file.
    is_read: bool,
    positions: &'a KeyPositions,
    key: String,
    value: &'a toml::Value,
}

impl GeminiRuleReader<'_> {
    fn position_of(&self, key: &str) -> TextPosition {
        let nested = self.positions.get(&format!("{}.{key}", self.key));
        nested.or_else(|| self.positions.get(&self.key)).unwrap_or(TextPosition::START)
    }

    fn fail_at<T>(&self, key: &str, why: impl Into<String>) -> Result<T, PositionedError> {
        Err(PositionedError { at: self.position_of(key), why: why.into() })
    }

    fn read_text(&self, key: &str) -> Result<Option<&str>, PositionedError> {
        match self.value.get(key) {
            None => Ok(None),
            Some(toml::Value::String(text)) => Ok(Some(text)),
            Some(_) => self.fail_at(key, format!("`{key}` is a string")),
        }
    }

    fn read_texts(&self, key: &str) -> Result<Vec<&str>, PositionedError> {
        match self.value.get(key) {
            None => Ok(Vec::new()),
            Some(toml::Value::String(text)) => Ok(vec![text]),
            Some(toml::Value::Array(items)) => {
                let texts: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
                texts.map_or_else(|| self.fail_at(key, format!("`{key}` is a list of strings")), Ok)
            }
            Some(_) => self.fail_at(key, format!("`{key}` is a string or a list of strings")),
        }
    }

    fn convert_rule(&self, imported: &mut ImportedPolicy) -> Result<Option<RankedRule>, PositionedError> {
        let Some(table) = self.value.as_table() else { return self.fail_at("", "a rule is a table") };
        let effect = match self.read_text("decision")? {
            Some("allow") => PolicyVerdict::Allow,
            Some("deny") => PolicyVerdict::Deny,
            Some("ask_user") => PolicyVerdict::Ask,
            Some(other) => {
                return self.fail_at("decision", format!("`{other}`: a decision is `allow`, `deny` or `ask_user`"));
            }
            None => return self.fail_at("", "a rule needs a `decision`"),
        };
        let priority = match self.value.get("priority") {
            Some(toml::Value::Integer(number @ 0..=999)) => *number,
            Some(_) => return self.fail_at("priority", "a priority is a whole number from 0 to 999"),
            None => return self.fail_at("", "a rule needs a `priority`"),
        };
        let mut tools = self.read_texts("toolName")?;
        let server = self.read_text("mcpName")?;
        if tools.is_empty() && server.is_some() {
            tools.push("*");
        }
        if tools.is_empty() || tools.contains(&"") {
            return self.fail_at("toolName", "a rule needs a `toolName`; `*` means every tool");
        }
        let entry = ImportEntry::new(&self.source.name, self.position_of(""), &self.describe_rule(&tools, effect));
        for key in table.keys().filter(|key| !RULE_KEYS.contains(key)) {
            let at = ImportEntry::new(&self.source.name, self.position_of(key), key);
            imported.note(&at, Needless, "the key is not known there either");
        }
        self.check_schema()?;
        if !self.is_active(effect, &entry, imported)? {
            return Ok(None);
        }
        if effect == PolicyVerdict::Allow && !self.is_allow_effective(priority, &entry, imported) {
            return Ok(None);
        }
        let message = self.read_text("denyMessage")?.or(self.read_text("deny_message")?).map(str::trim);
        let message = message.filter(|message| !message.is_empty()).map(str::to_owned);
        let justification = message.unwrap_or_else(|| entry.describe_origin());
        let mut rule = GeminiRuleDraft::new(entry, effect, justification, imported);
        let conditions = self.read_conditions(&tools, &mut rule)?;
        for tool in &tools {
            if effect == PolicyVerdict::Allow && *tool == SHELL_TOOLS[1] && server.is_none() {
                // Settings accept the old name, policies do not.
                rule.note(Left, "no tool has this name there");
                continue;
            }
            rule.add_tool_rule(tool, server, &conditions);
        }
        let redirects = self.value.get("allowRedirection").or(self.value.get("allow_redirection"));
        if redirects.and_then(toml::Value::as_bool) == Some(true) {
            rule.note(Stricter, "a command that redirects is asked about here, whatever a rule allows");
        }
        Ok(Some(rule.into_ranked(tier_offset(self.source.scope) + priority)))
    }

    /// Returns whether an `allow` counts in this file and at this priority.
    fn is_allow_effective(&self, priority: i64, entry: &ImportEntry<'_>, imported: &mut ImportedPolicy) -> bool {
        let why = match self.source.scope {
            SourceScope::Extension => "an extension allows nothing there",
            SourceScope::Project => "policies of a project are not read there",
            _ if !self.is_read => {
                "a rule of this file has no `toolName`, and then the file is not read there: write `\"*\"`"
            }
            _ if self.context.no_always_allow && priority == ALWAYS_ALLOW_PRIORITY => {
                "rules of \"always allow\" are switched off there (`security.disableAlwaysAllow`)"
            }
            _ => return true,
        };
        imported.note(entry, Left, why);
        false
    }

    /// Converts a safety checker to a question about its calls. The checker is a program that may refuse
    /// calls that a rule allows, so the question comes before all priorities.
    fn convert_checker(&self, imported: &mut ImportedPolicy) -> Result<RankedRule, PositionedError> {
        let mut tools = self.read_texts("toolName")?;
        let server = self.read_text("mcpName")?;
        if tools.is_empty() {
            tools.push("*");
        }
        let entry = ImportEntry::new(&self.source.name, self.position_of(""), "[[safety_checker]]");
        let why = "checks that run programs cannot be expressed here: the calls that they check are asked about";
        imported.note(&entry, Stricter, why);
        let justification = entry.describe_origin();
        let mut rule = GeminiRuleDraft::new(entry, PolicyVerdict::Ask, justification, imported);
        for tool in &tools {
            rule.add_tool_rule(tool, server, &GeminiConditions::None);
        }
        Ok(rule.into_ranked(i64::MAX))
    }

    /// Checks for errors that make Gemini CLI ignore the whole file.
    fn check_schema(&self) -> Result<(), PositionedError> {
        let modes = ["default", "autoEdit", "plan", "yolo"];
        if let Some(other) = self.read_texts("modes")?.iter().find(|mode| !modes.contains(mode)) {
            return self.fail_at("modes", format!("`{other}`: the modes are {}", modes.join(", ")));
        }
        for key in ["interactive", "allowRedirection", "allow_redirection"] {
            if self.value.get(key).is_some_and(|value| value.as_bool().is_none()) {
                return self.fail_at(key, format!("`{key}` is `true` or `false`"));
            }
        }
        for key in ["subagent", "denyMessage", "deny_message", "mcpName"] {
            self.read_text(key)?;
        }
        if self.value.get("toolAnnotations").is_some_and(|value| !value.is_table()) {
            return self.fail_at("toolAnnotations", "`toolAnnotations` is a table");
        }
        Ok(())
    }

    fn describe_rule(&self, tools: &[&str], effect: PolicyVerdict) -> String {
        let of = |key: &str| self.read_texts(key).unwrap_or_default().join(", ");
        let parts = [tools.join(", "), of("commandPrefix"), of("commandRegex"), of("argsPattern")];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{effect:?} {}", parts.join(" ")).to_lowercase()
    }

    /// Returns whether the rule applies in the mode that sessions start in, in interactive use.
    fn is_active(
        &self,
        effect: PolicyVerdict,
        entry: &ImportEntry<'_>,
        imported: &mut ImportedPolicy,
    ) -> Result<bool, PositionedError> {
        let modes = self.read_texts("modes")?;
        if !modes.is_empty() && !modes.contains(&self.context.session_mode()) {
            let why = format!("it applies in modes other than `{}` only", self.context.session_mode());
            imported.notes.push(entry.dropped_note(effect, why));
            return Ok(false);
        }
        if self.value.get("interactive").and_then(toml::Value::as_bool) == Some(false) {
            imported.notes.push(entry.dropped_note(effect, "it applies only where no user can be asked"));
            return Ok(false);
        }
        Ok(true)
    }

    /// Returns the conditions of the rule. If one cannot be expressed, an `allow` is dropped and other
    /// rules become broader.
    fn read_conditions(
        &self,
        tools: &[&str],
        rule: &mut GeminiRuleDraft<'_, '_>,
    ) -> Result<GeminiConditions, PositionedError> {
        let prefixes = self.read_texts("commandPrefix")?;
        let (regex, arguments) = (self.read_text("commandRegex")?, self.read_text("argsPattern")?);
        let is_of_words = !prefixes.is_empty() || regex.is_some();
        if is_of_words && tools != [SHELL_TOOLS[0]] {
            let key = if regex.is_some() { "commandRegex" } else { "commandPrefix" };
            return self.fail_at(key, format!("`{key}` needs `toolName = \"run_shell_command\"`"));
        }
        if is_of_words && arguments.is_some() {
            return self.fail_at("argsPattern", "`argsPattern` does not go with `commandPrefix` or `commandRegex`");
        }
        if !prefixes.is_empty() && regex.is_some() {
            return self.fail_at("commandRegex", "`commandRegex` does not go with `commandPrefix`");
        }
        for key in ["subagent", "toolAnnotations"] {
            if self.value.get(key).is_some() {
                rule.cannot_say(&format!("`{key}` cannot be expressed here"));
            }
        }
        // An empty text is not a condition in Gemini CLI.
        let prefixes: Vec<String> =
            prefixes.into_iter().filter(|prefix| !prefix.is_empty()).map(str::to_owned).collect();
        Ok(if !prefixes.is_empty() {
            GeminiConditions::Prefixes(prefixes)
        } else if let Some(regex) = regex.filter(|regex| !regex.is_empty()) {
            GeminiConditions::Regex(regex.to_owned())
        } else if let Some(arguments) = arguments.filter(|pattern| !pattern.is_empty()) {
            GeminiConditions::Arguments(arguments.to_owned())
        } else {
            GeminiConditions::None
        })
    }
}

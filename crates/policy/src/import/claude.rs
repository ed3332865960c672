//! Importer for Claude Code's `settings.json`: `permissions` and `sandbox`, as its pages on permissions,
//! settings and sandboxing (2026) document them.
//!
//! Both tools have the same precedence: deny outweighs ask and ask outweighs allow, across all files. A
//! rule must match each command of a compound one to allow it, and any command to refuse it.

use stockade_model::{NameList, PolicyVerdict};

use super::ImportDeviation::{Left, Needless, Stricter, Weaker};
use super::claude_context::{self, ClaudeContext};
use super::mistakes::ImportMistakes;
use super::scope::SourceScope;
use super::value::{self, PositionedError, SpannedKey, SpannedValue};
use super::{ImportDeviation, ImportEntry, ImportSource, ImportTool, ImportedPolicy, claude_sandbox, tool_detection};
use crate::draft::{DraftRule, quote_toml};
use crate::error::{ConfigError, TextPosition};
use crate::text::ConfigPath;

pub(super) fn import_claude(sources: &[ImportSource]) -> Result<ImportedPolicy, ConfigError> {
    let mut mistakes = ImportMistakes::new(ImportTool::Claude);
    let mut files = Vec::new();
    for source in sources {
        match tool_detection::read_settings(ImportTool::Claude, &source.text, false) {
            Ok(settings) => files.push((source, settings)),
            Err(wrong) => mistakes.add_errors(source, vec![wrong]),
        }
    }
    let context = ClaudeContext::from_settings(&files.iter().map(|(_, settings)| settings).collect::<Vec<_>>());
    let mut imported = ImportedPolicy::default();
    let mut modes = Vec::new();
    for (source, settings) in &files {
        let counts = |managed_only: bool, key: &[&str]| !managed_only || claude_context::is_true_at(settings, key);
        let mut reader = ClaudeReader {
            source: &source.name,
            scope: source.scope,
            context: &context,
            may_allow: counts(context.managed_rules_only, claude_context::MANAGED_RULES_KEY),
            may_allow_hosts: counts(context.managed_hosts_only, claude_context::MANAGED_HOSTS_KEY),
            may_reveal: counts(context.managed_reads_only, claude_context::MANAGED_READS_KEY),
            modes: Vec::new(),
            faults: Vec::new(),
            imported: &mut imported,
        };
        reader.convert_settings(settings);
        modes.append(&mut reader.modes);
        mistakes.add_errors(source, reader.faults);
    }
    mistakes.into_result(sources)?;
    set_mode(&modes, &context, &mut imported);
    Ok(imported)
}

/// Sets the strictest of the modes that the files name.
fn set_mode(modes: &[&'static str], context: &ClaudeContext, imported: &mut ImportedPolicy) {
    let has = |mode: &str| modes.contains(&mode);
    let mut set = |key: &str, value: &str| imported.settings.insert(key.to_owned(), quote_toml(value));
    if has("plan") {
        set("profile", "read-only");
    }
    if has("dontAsk") {
        set("approval_mode", "never");
        refuse_the_rest(imported);
    } else if !modes.is_empty() && modes.iter().all(|mode| *mode == "bypassPermissions") {
        // If `bypassPermissions` is disabled, sessions start in `default`.
        let asks = context.no_bypass || context.may_refuse("Bash");
        set("approval_mode", if asks { "untrusted" } else { "on-failure" });
    } else if modes.is_empty() && context.auto_allows && !context.may_refuse("Bash") {
        set("approval_mode", "on-failure");
    } else {
        // Sessions start in `default` in Claude Code: a command that no rule allows is asked about.
        set("approval_mode", "untrusted");
    }
}

/// Converts mode `dontAsk`, in which an act that no rule allows is refused. The rules are ordered deny,
/// ask, allow; the first match decides, and a general refusal comes last.
fn refuse_the_rest(imported: &mut ImportedPolicy) {
    imported.rules.sort_by_key(|rule| std::cmp::Reverse(rule.effect));
    let refuse = || DraftRule::new(PolicyVerdict::Deny, "what no rule allows is refused (dontAsk)");
    let every = || vec!["*".to_owned()];
    imported.rules.push(DraftRule { glob: every(), ..refuse() });
    imported.rules.push(DraftRule { tool: every(), ..refuse() });
    imported.rules.push(DraftRule { files: vec!["/".to_owned()], ..refuse() });
    imported.combine_by_order();
}

/// One rule of a list: its position, its text, and the effect of the list.
#[derive(Clone, Copy)]
pub(super) struct ClaudeRule<'s> {
    pub at: &'s SpannedValue,
    pub text: &'s str,
    pub effect: PolicyVerdict,
}

impl ClaudeRule<'_> {
    pub(super) fn is_allow(self) -> bool {
        self.effect == PolicyVerdict::Allow
    }
}

pub(super) struct ClaudeReader<'a> {
    pub source: &'a str,
    pub scope: SourceScope,
    pub context: &'a ClaudeContext,
    /// True if `allow` rules of this file count.
    may_allow: bool,
    /// True if hosts that this file allows count.
    pub may_allow_hosts: bool,
    /// True if paths that this file reveals count.
    pub may_reveal: bool,
    modes: Vec<&'static str>,
    faults: Vec<PositionedError>,
    pub imported: &'a mut ImportedPolicy,
}

/// Keys that name programs of the agent itself.
const PROGRAM_KEYS: NameList = NameList::new(include_str!("../../knowledge/claude_program_keys.txt"));

/// The modes that a session may start in.
const SESSION_MODES: &[&str] = &["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"];

impl<'a> ClaudeReader<'a> {
    pub(super) fn entry_at(&self, at: &SpannedValue, shown: &str) -> ImportEntry<'a> {
        ImportEntry::new(self.source, at.at, shown)
    }

    pub(super) fn add_note(&mut self, at: &SpannedValue, shown: &str, carried: ImportDeviation, why: &str) {
        let note = self.entry_at(at, shown).to_note(carried, why);
        self.imported.notes.push(note);
    }

    pub(super) fn note(&mut self, rule: ClaudeRule<'_>, carried: ImportDeviation, why: &str) {
        self.add_note(rule.at, rule.text, carried, why);
    }

    /// Returns the strings of a list; any other entry is a mistake.
    pub(super) fn read_texts<'s>(&mut self, list: &'s SpannedValue, what: &str) -> Vec<(&'s SpannedValue, &'s str)> {
        value::read_texts(list, what, &mut self.faults)
    }

    /// Records a mistake. The other entries are still read, so that all mistakes are reported together.
    pub(super) fn add_mistake(&mut self, at: TextPosition, why: String) {
        self.faults.push(PositionedError { at, why });
    }

    pub(super) fn report_unexpected(&mut self, what: &str, found: &SpannedValue) {
        self.faults.push(PositionedError::unexpected(what, found));
    }

    fn convert_settings(&mut self, settings: &SpannedValue) {
        for (key, value) in settings.as_object().unwrap_or_default() {
            match key.name.as_str() {
                "sandbox" => claude_sandbox::convert_sandbox(self, value),
                "permissions" => self.convert_permissions(value),
                _ => self.report_other_key(key, value),
            }
        }
    }

    /// Reports a key other than the rules, if it affects the permissions of commands.
    fn report_other_key(&mut self, key: &SpannedKey, value: &SpannedValue) {
        let name = key.name.as_str();
        let is_empty = value.as_object() == Some(&[]) || value.as_list() == Some(&[]);
        let (carried, why) = match name {
            "env" | "hooks" | "autoMode" if is_empty => return,
            "env" => return self.report_variables(value),
            "hooks" => (Weaker, "hooks run programs that may refuse: this cannot be expressed here".to_owned()),
            "autoMode" => (Weaker, "refusals in prose cannot be expressed here".to_owned()),
            "policyHelper" => {
                (Weaker, "the program makes settings when the agent starts: import what it prints".to_owned())
            }
            _ if PROGRAM_KEYS.contains(name) => (Needless, "it names a program of the agent's own".to_owned()),
            "allowManagedPermissionRulesOnly" => {
                (Needless, "put the rules into `/etc/stockade/managed.toml`".to_owned())
            }
            "enabledMcpjsonServers"
            | "disabledMcpjsonServers"
            | "enableAllProjectMcpServers"
            | "allowedMcpServers"
            | "deniedMcpServers"
            | "allowManagedMcpServersOnly" => (Needless, "the agent decides which servers exist".to_owned()),
            _ => match tool_detection::why_unknown(ImportTool::Claude, key) {
                Some(why) => (Weaker, why),
                None => return,
            },
        };
        self.add_note(value, name, carried, &why);
    }

    /// Reports variables for commands, by name only: a value may be a secret.
    fn report_variables(&mut self, value: &SpannedValue) {
        let Some(entries) = value.as_object() else { return self.report_unexpected("an object", value) };
        for (key, value) in entries {
            let why = "commands do not get this variable: put it into `env.set` of a profile";
            self.add_note(value, &format!("env.{}", key.name), Left, why);
        }
    }

    fn convert_permissions(&mut self, permissions: &SpannedValue) {
        let Some(entries) = permissions.as_object() else { return self.report_unexpected("an object", permissions) };
        for (key, value) in entries {
            match key.name.as_str() {
                "deny" => self.convert_rules(value, PolicyVerdict::Deny),
                "ask" => self.convert_rules(value, PolicyVerdict::Ask),
                "allow" => self.convert_rules(value, PolicyVerdict::Allow),
                "defaultMode" => self.record_mode(value),
                "additionalDirectories" => self.convert_directories(value),
                "disableBypassPermissionsMode" | "disableAutoMode" => {
                    self.add_note(value, &key.name, Needless, "there is no such mode here");
                }
                other => self.add_mistake(key.at, format!("`permissions` has no `{other}`")),
            }
        }
    }

    /// Records a mode; all files together decide.
    fn record_mode(&mut self, value: &SpannedValue) {
        let Some(mode) = value.as_text() else { return self.report_unexpected("a string", value) };
        let Some(known) = SESSION_MODES.iter().find(|known| **known == mode) else {
            return self.add_mistake(value.at, format!("`{mode}`: the modes are {}", SESSION_MODES.join(", ")));
        };
        self.modes.push(known);
        match mode {
            "auto" => self.add_note(value, mode, Stricter, "only a person can approve here"),
            "bypassPermissions" => {
                let why = match self.context.no_bypass {
                    true => "the mode is switched off: commands are asked about",
                    false => "runs without a question, but in the sandbox",
                };
                self.add_note(value, mode, Stricter, why);
            }
            _ => {}
        }
    }

    fn convert_directories(&mut self, value: &SpannedValue) {
        for (item, text) in self.read_texts(value, "a string") {
            if !self.context.sandboxed {
                // In Claude Code, only reading is free in this directory. Here a profile would let commands
                // write it.
                self.add_note(item, text, Left, "changes in it are asked about there, and so they are here");
                continue;
            }
            match text.parse::<ConfigPath>() {
                Ok(path @ (ConfigPath::Absolute(_) | ConfigPath::Home(_))) => {
                    self.imported.add_to_profile("write", path.to_string());
                }
                _ => self.add_note(item, text, Left, "only an absolute path or one in `~/` can be expressed here"),
            }
        }
    }

    /// Returns whether an `allow` of this tool counts; notes the reason if it does not.
    fn is_allow_effective(&mut self, rule: ClaudeRule<'_>, tool: &str) -> bool {
        let why = if !self.may_allow {
            "another file allows only what it allows itself (`allowManagedPermissionRulesOnly`)"
        } else if self.context.may_refuse(tool) {
            "a `PreToolUse` hook may refuse it there, and hooks cannot be expressed here"
        } else {
            return true;
        };
        self.note(rule, Left, why);
        false
    }

    fn convert_rules(&mut self, list: &SpannedValue, effect: PolicyVerdict) {
        for (at, text) in self.read_texts(list, "a rule") {
            let rule = ClaudeRule { at, text, effect };
            match split_rule(text) {
                Err(why) => self.add_mistake(at.at, format!("`{text}`: {why}")),
                Ok((tool, specifier)) => {
                    if !rule.is_allow() || self.is_allow_effective(rule, tool) {
                        self.convert_rule(rule, tool, specifier);
                    }
                }
            }
        }
    }
}

/// Splits `ImportTool`, or `Tool(specifier)`.
pub(super) fn split_rule(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    let (tool, specifier) = match text.split_once('(') {
        Some((tool, rest)) => (tool, Some(rest.strip_suffix(')').ok_or("the parenthesis is not closed")?)),
        None => (text, None),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-*.".contains(c);
    if tool.is_empty() || !tool.chars().all(fits) {
        return Err("a rule is `Tool` or `Tool(specifier)`");
    }
    Ok((tool, specifier))
}

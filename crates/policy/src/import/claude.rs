//! Importer for Claude Code's `settings.json`: `permissions` and `sandbox`, as its pages on permissions,
//! settings and sandboxing (2026) document them.
//!
//! Both tools have the same precedence: deny outweighs ask and ask outweighs allow, across all files. A
//! rule must match each command of a compound one to allow it, and any command to refuse it.

use stockade_model::Verdict;

use super::claude_context::{self, Context};
use super::json::{self, Fault, Key, Spanned};
use super::mistakes::Mistakes;
use super::scope::Scope;
use super::{Carried, Entry, Imported, Source, Tool, claude_sandbox, whose};
use crate::draft::{DraftRule, quoted};
use crate::error::{ConfigError, Place};
use crate::file::Combining;
use crate::text::ConfigPath;

pub(super) fn import(sources: &[Source]) -> Result<Imported, ConfigError> {
    let mut mistakes = Mistakes::new(Tool::Claude);
    let mut files = Vec::new();
    for source in sources {
        match read(source) {
            Ok(settings) => files.push((source, settings)),
            Err(wrong) => mistakes.add(source, vec![wrong]),
        }
    }
    let context = Context::of(&files.iter().map(|(_, settings)| settings).collect::<Vec<_>>());
    let mut imported = Imported::default();
    let mut modes = Vec::new();
    for (source, settings) in &files {
        let mut reader = Reader {
            source: &source.name,
            scope: source.scope,
            context: &context,
            may_allow: !context.managed_rules_only || claude_context::says(settings, claude_context::MANAGED_RULES),
            may_allow_hosts: !context.managed_hosts_only
                || claude_context::says(settings, claude_context::MANAGED_HOSTS),
            may_reveal: !context.managed_reads_only || claude_context::says(settings, claude_context::MANAGED_READS),
            modes: Vec::new(),
            faults: Vec::new(),
            imported: &mut imported,
        };
        reader.settings(settings);
        modes.append(&mut reader.modes);
        mistakes.add(source, reader.faults);
    }
    mistakes.finish(sources)?;
    set_mode(&modes, &context, &mut imported);
    Ok(imported)
}

fn read(source: &Source) -> Result<Spanned, Fault> {
    let settings = json::read(&source.text, false)?;
    if settings.object().is_none() {
        let why = format!("settings are an object, not {}", settings.kind());
        return Err(Fault { at: settings.at, why });
    }
    whose::check(Tool::Claude, &settings)?;
    Ok(settings)
}

/// Sets the strictest of the modes that the files name.
fn set_mode(modes: &[&'static str], context: &Context, imported: &mut Imported) {
    let has = |mode: &str| modes.contains(&mode);
    let mut set = |key: &str, value: &str| imported.settings.insert(key.to_owned(), quoted(value));
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
fn refuse_the_rest(imported: &mut Imported) {
    imported.rules.sort_by_key(|rule| std::cmp::Reverse(rule.effect));
    let refuse = || DraftRule::new(Verdict::Deny, "what no rule allows is refused (dontAsk)");
    let every = || vec!["*".to_owned()];
    imported.rules.push(DraftRule { glob: every(), ..refuse() });
    imported.rules.push(DraftRule { tool: every(), ..refuse() });
    imported.rules.push(DraftRule { files: vec!["/".to_owned()], ..refuse() });
    imported.combine_by(Combining::FirstApplicable);
}

pub(super) struct Reader<'a> {
    pub source: &'a str,
    pub scope: Scope,
    pub context: &'a Context,
    /// True if `allow` rules of this file count.
    may_allow: bool,
    /// True if hosts that this file allows count.
    pub may_allow_hosts: bool,
    /// True if paths that this file reveals count.
    pub may_reveal: bool,
    modes: Vec<&'static str>,
    faults: Vec<Fault>,
    pub imported: &'a mut Imported,
}

/// Keys that name programs of the agent itself.
const PROGRAMS: &[&str] = &[
    "apiKeyHelper",
    "awsAuthRefresh",
    "awsCredentialExport",
    "fileSuggestion",
    "gcpAuthRefresh",
    "otelHeadersHelper",
    "processWrapper",
    "statusLine",
    "subagentStatusLine",
];

/// The modes that a session may start in.
const MODES: &[&str] = &["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"];

impl<'a> Reader<'a> {
    pub(super) fn entry(&self, at: &Spanned, shown: &str) -> Entry<'a> {
        Entry::new(self.source, at.at, shown)
    }

    pub(super) fn note(&mut self, at: &Spanned, shown: &str, carried: Carried, why: &str) {
        let note = self.entry(at, shown).note(carried, why);
        self.imported.notes.push(note);
    }

    /// Records a mistake. The other entries are still read, so that all mistakes are reported together.
    pub(super) fn wrong(&mut self, at: Place, why: String) {
        self.faults.push(Fault { at, why });
    }

    pub(super) fn expected(&mut self, what: &str, found: &Spanned) {
        self.wrong(found.at, format!("expected {what}, found {}", found.kind()));
    }

    fn settings(&mut self, settings: &Spanned) {
        for (key, value) in settings.object().unwrap_or_default() {
            match key.name.as_str() {
                "sandbox" => claude_sandbox::carry(self, value),
                "permissions" => self.permissions(value),
                _ => self.other(key, value),
            }
        }
    }

    /// Reports a key other than the rules, if it affects the permissions of commands.
    fn other(&mut self, key: &Key, value: &Spanned) {
        let name = key.name.as_str();
        let is_empty = value.object() == Some(&[]) || value.list() == Some(&[]);
        match name {
            "env" | "hooks" | "autoMode" if is_empty => {}
            "env" => self.variables(value),
            "hooks" => self.note(value, name, Carried::Weaker, "hooks run programs that may refuse: no form here"),
            "autoMode" => self.note(value, name, Carried::Weaker, "what it refuses in words has no form here"),
            "policyHelper" => {
                let why = "the program makes settings when the agent starts: import what it prints";
                self.note(value, name, Carried::Weaker, why);
            }
            _ if PROGRAMS.contains(&name) => {
                self.note(value, name, Carried::Needless, "it names a program of the agent's own");
            }
            "allowManagedPermissionRulesOnly" => {
                self.note(value, name, Carried::Needless, "put the rules into `/etc/stockade/managed.toml`");
            }
            "enabledMcpjsonServers"
            | "disabledMcpjsonServers"
            | "enableAllProjectMcpServers"
            | "allowedMcpServers"
            | "deniedMcpServers"
            | "allowManagedMcpServersOnly" => {
                self.note(value, name, Carried::Needless, "which servers there are is the agent's to say");
            }
            _ => {
                if let Some(why) = whose::why_unknown(Tool::Claude, key) {
                    self.note(value, name, Carried::Weaker, &why);
                }
            }
        }
    }

    /// Reports variables for commands, by name only: a value may be a secret.
    fn variables(&mut self, value: &Spanned) {
        let Some(entries) = value.object() else { return self.expected("an object", value) };
        for (key, value) in entries {
            let why = "commands do not get this variable: put it into `env.set` of a profile";
            self.note(value, &format!("env.{}", key.name), Carried::Left, why);
        }
    }

    fn permissions(&mut self, permissions: &Spanned) {
        let Some(entries) = permissions.object() else { return self.expected("an object", permissions) };
        for (key, value) in entries {
            match key.name.as_str() {
                "deny" => self.rules(value, Verdict::Deny),
                "ask" => self.rules(value, Verdict::Ask),
                "allow" => self.rules(value, Verdict::Allow),
                "defaultMode" => self.mode(value),
                "additionalDirectories" => self.directories(value),
                "disableBypassPermissionsMode" | "disableAutoMode" => {
                    self.note(value, &key.name, Carried::Needless, "there is no such mode here");
                }
                other => self.wrong(key.at, format!("`permissions` has no `{other}`")),
            }
        }
    }

    /// Records a mode; all files together decide.
    fn mode(&mut self, value: &Spanned) {
        let Some(mode) = value.text() else { return self.expected("a string", value) };
        let Some(known) = MODES.iter().find(|known| **known == mode) else {
            return self.wrong(value.at, format!("`{mode}`: the modes are {}", MODES.join(", ")));
        };
        self.modes.push(known);
        match mode {
            "auto" => self.note(value, mode, Carried::Stricter, "nothing agrees in a person's place here"),
            "bypassPermissions" => {
                let why = match self.context.no_bypass {
                    true => "the mode is switched off: commands are asked about",
                    false => "runs without a question, but in the sandbox",
                };
                self.note(value, mode, Carried::Stricter, why);
            }
            _ => {}
        }
    }

    fn directories(&mut self, value: &Spanned) {
        let Some(items) = value.list() else { return self.expected("a list", value) };
        for item in items {
            let Some(text) = item.text() else {
                self.expected("a string", item);
                continue;
            };
            if !self.context.sandboxed {
                // In Claude Code, only reading is free in this directory. Here a profile would let commands
                // write it.
                self.note(item, text, Carried::Left, "changes in it are asked about there, and so they are here");
                continue;
            }
            match text.parse::<ConfigPath>() {
                Ok(path @ (ConfigPath::Absolute(_) | ConfigPath::Home(_))) => {
                    self.imported.add_to_profile("write", path.to_string());
                }
                _ => self.note(item, text, Carried::Left, "only an absolute path or one in `~/` has a form here"),
            }
        }
    }

    /// Returns whether an `allow` of this tool counts; notes the reason if it does not.
    fn counts(&mut self, at: &Spanned, text: &str, tool: &str) -> bool {
        if !self.may_allow {
            let why = "another file allows only what it allows itself (`allowManagedPermissionRulesOnly`)";
            self.note(at, text, Carried::Left, why);
        } else if self.context.may_refuse(tool) {
            self.note(at, text, Carried::Left, "a `PreToolUse` hook may refuse it there, and hooks have no form here");
        } else {
            return true;
        }
        false
    }

    fn rules(&mut self, list: &Spanned, effect: Verdict) {
        let Some(items) = list.list() else { return self.expected("a list", list) };
        for item in items {
            let Some(text) = item.text() else {
                self.expected("a rule", item);
                continue;
            };
            match parts(text) {
                Err(why) => self.wrong(item.at, format!("`{text}`: {why}")),
                Ok((tool, specifier)) => {
                    if effect != Verdict::Allow || self.counts(item, text, tool) {
                        self.rule(item, text, tool, specifier, effect);
                    }
                }
            }
        }
    }
}

/// Splits `Tool`, or `Tool(specifier)`.
pub(super) fn parts(text: &str) -> Result<(&str, Option<&str>), &'static str> {
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

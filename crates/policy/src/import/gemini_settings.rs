//! Importer for Gemini CLI's `settings.json`: lists of tools and servers, which become rules of fixed
//! priorities (packages/core/src/policy/config.ts, 2026).
//!
//! Must not know policy files; `gemini` puts both in order.

use stockade_model::Verdict;

use super::gemini::{Context, Ranked, SHELL_TOOLS, tier};
use super::gemini_rules::{Conditions, Made};
use super::json::{self, Fault, Spanned};
use super::mistakes::Mistakes;
use super::{Carried, Entry, Imported, Scope, Source, Tool, whose};
use crate::draft::quoted;

/// Priorities within the user's tier, in thousandths.
const EXCLUDED_SERVERS: i64 = 900;
const EXCLUDED_TOOLS: i64 = 400;
const CONFIRMED_TOOLS: i64 = 350;
const ALLOWED_TOOLS: i64 = 300;
const CORE_TOOLS: i64 = 250;
const TRUSTED_SERVERS: i64 = 200;
const ALLOWED_SERVERS: i64 = 100;
/// Distance between a list and the rule below it that refuses all other tools.
const REST: i64 = 10;

pub(super) fn read(source: &Source) -> Result<Spanned, Fault> {
    let settings = json::read(&source.text, true)?;
    if settings.object().is_none() {
        let why = format!("settings are an object, not {}", settings.kind());
        return Err(Fault { at: settings.at, why });
    }
    whose::check(Tool::Gemini, &settings)?;
    Ok(settings)
}

pub(super) fn rules(
    source: &Source,
    settings: &Spanned,
    context: &Context,
    imported: &mut Imported,
    mistakes: &mut Mistakes,
) -> Vec<Ranked> {
    let mut reader = Reader { source, context, ranked: Vec::new(), faults: Vec::new(), imported };
    reader.settings(settings);
    mistakes.add(source, reader.faults);
    reader.ranked
}

struct Reader<'a> {
    source: &'a Source,
    context: &'a Context,
    ranked: Vec<Ranked>,
    faults: Vec<Fault>,
    imported: &'a mut Imported,
}

impl<'a> Reader<'a> {
    fn entry(&self, at: &Spanned, shown: &str) -> Entry<'a> {
        Entry::new(&self.source.name, at.at, shown)
    }

    fn settings(&mut self, settings: &Spanned) {
        let tools = settings.get("tools");
        let within = |key: &str| tools.and_then(|tools| tools.get(key));
        // The names from before the settings were grouped have lower precedence.
        let old = |key: &str| settings.get(key);
        let servers = |key: &str| settings.get("mcp").and_then(|mcp| mcp.get(key));
        self.servers(servers("excluded").or(old("excludeMCPServers")), Verdict::Deny, EXCLUDED_SERVERS);
        self.tools(within("exclude").or(old("excludeTools")), Verdict::Deny, EXCLUDED_TOOLS);
        self.tools(within("confirmationRequired"), Verdict::Ask, CONFIRMED_TOOLS);
        let allowed = within("allowed").or(old("allowedTools"));
        self.tools(allowed, Verdict::Allow, ALLOWED_TOOLS);
        self.rest_of_shell(allowed);
        let core = within("core").or(old("coreTools"));
        self.tools(core, Verdict::Allow, CORE_TOOLS);
        if let Some(core) = core {
            self.push("*", None, core, Verdict::Deny, "only the tools of `tools.core` are there", CORE_TOOLS - REST);
        }
        self.trusted(settings.get("mcpServers"));
        self.servers(servers("allowed").or(old("allowMCPServers")), Verdict::Allow, ALLOWED_SERVERS);
        self.sandbox(tools);
        self.others(settings);
        self.keys(settings);
    }

    /// Reports keys that name more rules, and unknown keys.
    fn keys(&mut self, settings: &Spanned) {
        for (key, value) in settings.object().unwrap_or_default() {
            let is_path = matches!(key.name.as_str(), "policyPaths" | "adminPolicyPaths");
            let why = match whose::why_unknown(Tool::Gemini, key) {
                None if is_path && value.list() != Some(&[]) => {
                    "it names more files of rules: import them too".to_owned()
                }
                None => continue,
                Some(why) => why,
            };
            let note = self.entry(value, &key.name).note(Carried::Weaker, why);
            self.imported.notes.push(note);
        }
    }

    /// Returns the names of a list; any other entry is a mistake.
    fn texts<'s>(&mut self, list: Option<&'s Spanned>) -> Vec<(&'s Spanned, &'s str)> {
        let Some(list) = list else { return Vec::new() };
        let Some(items) = list.list() else {
            self.expected("a list", list);
            return Vec::new();
        };
        let mut texts = Vec::new();
        for item in items {
            match item.text() {
                Some(text) if !text.is_empty() => texts.push((item, text)),
                _ => self.expected("a name", item),
            }
        }
        texts
    }

    fn expected(&mut self, what: &str, found: &Spanned) {
        self.faults.push(Fault { at: found.at, why: format!("expected {what}, found {}", found.kind()) });
    }

    fn push(&mut self, tool: &str, server: Option<&str>, at: &Spanned, effect: Verdict, why: &str, priority: i64) {
        let entry = self.entry(at, tool);
        if self.context.plans && effect == Verdict::Allow && priority <= CORE_TOOLS {
            self.imported.notes.push(entry.note(Carried::Left, "it is not allowed in the mode `plan`"));
            return;
        }
        let mut made = Made { entry, effect, justification: why.to_owned(), drafts: Vec::new(), lost: false };
        made.add(tool, server, &Conditions::None, self.imported);
        self.ranked.push(ranked(priority, made));
    }

    fn why(&self, at: &Spanned) -> String {
        format!("imported from {}:{}", self.source.name, at.at.line)
    }

    /// Converts `TOOL`, or `TOOL(prefix)` if the tool runs commands.
    fn tools(&mut self, list: Option<&Spanned>, effect: Verdict, priority: i64) {
        for (at, text) in self.texts(list) {
            let why = self.why(at);
            let (name, prefix) = split(text);
            let Some(prefix) = prefix.filter(|_| effect == Verdict::Allow) else {
                // Only allow lists support the form with a prefix. In other lists the whole text is a name,
                // which no tool has.
                if prefix.is_some() {
                    let note = self.entry(at, text).dropped(effect, "there, a prefix means nothing in this list");
                    self.imported.notes.push(note);
                } else {
                    self.push(name, None, at, effect, &why, priority);
                }
                continue;
            };
            if !SHELL_TOOLS.contains(&name) || (self.context.plans && priority <= CORE_TOOLS) {
                // Gemini CLI ignores the arguments, so that the entry allows the tool.
                self.push(name, None, at, effect, &why, priority);
                continue;
            }
            let mut made =
                Made { entry: self.entry(at, text), effect, justification: why, drafts: Vec::new(), lost: false };
            let conditions =
                if prefix.is_empty() { Conditions::None } else { Conditions::Prefixes(vec![prefix.to_owned()]) };
            made.add(name, None, &conditions, self.imported);
            self.ranked.push(ranked(priority, made));
        }
    }

    /// Refuses all other commands if commands are allowed by prefix.
    fn rest_of_shell(&mut self, list: Option<&Spanned>) {
        let Some(list) = list else { return };
        let narrows = |text: &str| matches!(split(text), (name, Some(_)) if SHELL_TOOLS.contains(&name));
        if list.list().unwrap_or_default().iter().filter_map(Spanned::text).any(narrows) {
            let why = "only the commands of `tools.allowed` are there";
            self.push(SHELL_TOOLS[0], None, list, Verdict::Deny, why, ALLOWED_TOOLS - REST);
        }
    }

    fn servers(&mut self, list: Option<&Spanned>, effect: Verdict, priority: i64) {
        for (at, name) in self.texts(list) {
            let why = self.why(at);
            self.push("*", Some(name), at, effect, &why, priority);
        }
    }

    fn trusted(&mut self, servers: Option<&Spanned>) {
        let Some(servers) = servers else { return };
        let Some(entries) = servers.object() else { return self.expected("an object", servers) };
        for (name, server) in entries {
            if server.get("trust").and_then(Spanned::bool) == Some(true) {
                let why = self.why(server);
                self.push("*", Some(&name.name), server, Verdict::Allow, &why, TRUSTED_SERVERS);
            }
            for key in ["includeTools", "excludeTools"] {
                for (at, tool) in self.texts(server.get(key)) {
                    if key == "excludeTools" {
                        let why = self.why(at);
                        self.push(tool, Some(&name.name), at, Verdict::Deny, &why, EXCLUDED_SERVERS);
                    } else {
                        let why = "which tools a server offers is the agent's to say";
                        let note = self.entry(at, &format!("{key}: {tool}")).note(Carried::Weaker, why);
                        self.imported.notes.push(note);
                    }
                }
            }
        }
    }

    fn sandbox(&mut self, tools: Option<&Spanned>) {
        let Some(tools) = tools else { return };
        if let Some(sandbox) = tools.get("sandbox") {
            if sandbox.bool() == Some(false) {
                let note = self.entry(sandbox, "tools.sandbox: false");
                self.imported.notes.push(note.note(Carried::Stricter, "commands always run in a sandbox here"));
            } else {
                self.imported.settings.insert("sandbox".to_owned(), quoted("require"));
            }
        }
        if let Some(paths) = tools.get("sandboxAllowedPaths") {
            for at in paths.list().unwrap_or_default() {
                let path = at.text().unwrap_or_default();
                let plain = path.parse::<crate::text::ConfigPath>().is_ok();
                if plain && path.starts_with('/') {
                    self.imported.add_to_profile("write", path.to_owned());
                } else {
                    let note = self.entry(at, path).note(Carried::Left, "only an absolute path has a form here");
                    self.imported.notes.push(note);
                }
            }
        }
        if let Some(network) = tools.get("sandboxNetworkAccess").filter(|value| value.bool() == Some(true)) {
            let why = "the whole network is never given: allow `hosts` one by one";
            let note = self.entry(network, "tools.sandboxNetworkAccess: true").note(Carried::Left, why);
            self.imported.notes.push(note);
        }
    }

    /// Reports other settings about permissions; the remaining settings are ignored.
    fn others(&mut self, settings: &Spanned) {
        let security = settings.get("security").and_then(Spanned::object).unwrap_or_default();
        for (key, value) in security {
            let shown = format!("security.{}", key.name);
            let (carried, why) = match (key.name.as_str(), value.bool()) {
                ("disableYoloMode" | "disableAlwaysAllow" | "toolSandboxing", Some(true)) => {
                    (Carried::Needless, "nothing here does without questions or a sandbox")
                }
                ("environmentVariableRedaction", _) => {
                    (Carried::Needless, "variables that look like secrets never pass here")
                }
                ("folderTrust" | "auth" | "enablePermanentToolApproval" | "autoAddToPolicyByDefault", _) => {
                    (Carried::Needless, "it is about the agent itself")
                }
                (_, Some(false)) => continue,
                _ => (Carried::Weaker, "it has no form here"),
            };
            let note = self.entry(value, &shown).note(carried, why);
            self.imported.notes.push(note);
        }
    }
}

/// Settings have the user's tier, whatever file they are in.
fn ranked(priority: i64, made: Made<'_>) -> Ranked {
    Ranked { priority: tier(Scope::User) + priority, effect: made.effect, drafts: made.drafts }
}

/// Splits `name(arguments)`; a name contains letters, digits, `_` and `-`.
fn split(text: &str) -> (&str, Option<&str>) {
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

//! Gemini CLI's policies: `policies/*.toml` as docs/reference/policy-engine.md
//! (2026) documents them, together with `settings.json`.
//!
//! There the rule of the highest priority that matches decides; a shell command
//! is taken apart and the strictest of its parts counts. That is our
//! `first-applicable` over rules in order of priority.

use std::path::Path;

use stockade_model::Verdict;

use super::json::Fault;
use super::regex::globs_of;
use super::{Carried, Entry, Imported, Source, fault, gemini_settings, plain_words};
use crate::draft::DraftRule;
use crate::error::{ConfigError, Place};
use crate::file::{Combining, ProvenanceSection};
use crate::parse::{Places, parse};
use crate::pattern::Word;

/// The one tool that runs commands.
pub(super) const SHELL_TOOLS: [&str; 2] = ["run_shell_command", "ShellTool"];

/// A rule with the priority it has there, in thousandths within the tier.
pub(super) struct Ranked {
    pub priority: i64,
    pub drafts: Vec<DraftRule>,
}

pub(super) fn import(sources: &[Source]) -> Result<Imported, ConfigError> {
    let mut imported = Imported::default();
    let mut ranked: Vec<Ranked> = Vec::new();
    for source in sources {
        if is_json(&source.text) {
            ranked.extend(gemini_settings::rules(source, &mut imported)?);
        } else {
            ranked.extend(policies(source, &mut imported)?);
        }
    }
    // Equal priorities stay in the order they were read.
    ranked.sort_by_key(|rule| std::cmp::Reverse(rule.priority));
    for draft in ranked.into_iter().flat_map(|rule| rule.drafts) {
        imported.push(draft);
    }
    if !imported.rules.is_empty() {
        imported.combine_by(Combining::FirstApplicable);
    }
    Ok(imported)
}

/// Settings start with a brace or a comment of JSON.
fn is_json(text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    text.starts_with('{') || text.starts_with("//") || text.starts_with("/*")
}

fn policies(source: &Source, imported: &mut Imported) -> Result<Vec<Ranked>, ConfigError> {
    let (table, places) = parse::<toml::Table>(Path::new(&source.name), &source.text)?;
    let mut ranked = Vec::new();
    for (key, value) in &table {
        let at = places.get(key).unwrap_or(Place { line: 1, column: 1 });
        match (key.as_str(), value) {
            ("rule", toml::Value::Array(rules)) => {
                for (i, rule) in rules.iter().enumerate() {
                    let reader = Reader { source, places: &places, key: format!("rule[{i}]"), value: rule };
                    ranked.extend(reader.rule(imported).map_err(|wrong| fault(source, wrong))?);
                }
            }
            ("rule", _) => return Err(fault(source, Fault { at, why: "`rule` is a list of tables".to_owned() })),
            ("safety_checker", _) => {
                let entry = Entry::new(&source.name, at, "[[safety_checker]]");
                imported.notes.push(entry.note(Carried::Weaker, "checks that run programs have no form here"));
            }
            (other, _) => {
                let entry = Entry::new(&source.name, at, other);
                imported.notes.push(entry.note(Carried::Left, "the key is not known there either"));
            }
        }
    }
    Ok(ranked)
}

const KEYS: &[&str] = &[
    "toolName",
    "subagent",
    "mcpName",
    "argsPattern",
    "commandPrefix",
    "commandRegex",
    "decision",
    "priority",
    "modes",
    "interactive",
    "toolAnnotations",
    "allowRedirection",
    "allow_redirection",
    "denyMessage",
    "deny_message",
];

struct Reader<'a> {
    source: &'a Source,
    places: &'a Places,
    key: String,
    value: &'a toml::Value,
}

impl Reader<'_> {
    fn place(&self, key: &str) -> Place {
        let nested = self.places.get(&format!("{}.{key}", self.key));
        nested.or_else(|| self.places.get(&self.key)).unwrap_or(Place { line: 1, column: 1 })
    }

    fn fail<T>(&self, key: &str, why: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { at: self.place(key), why: why.into() })
    }

    fn text(&self, key: &str) -> Result<Option<&str>, Fault> {
        match self.value.get(key) {
            None => Ok(None),
            Some(toml::Value::String(text)) => Ok(Some(text)),
            Some(_) => self.fail(key, format!("`{key}` is a string")),
        }
    }

    fn texts(&self, key: &str) -> Result<Vec<&str>, Fault> {
        match self.value.get(key) {
            None => Ok(Vec::new()),
            Some(toml::Value::String(text)) => Ok(vec![text]),
            Some(toml::Value::Array(items)) => items
                .iter()
                .map(|item| item.as_str().map_or_else(|| self.fail(key, format!("`{key}` is a list of strings")), Ok))
                .collect(),
            Some(_) => self.fail(key, format!("`{key}` is a string or a list of strings")),
        }
    }

    fn rule(&self, imported: &mut Imported) -> Result<Option<Ranked>, Fault> {
        let Some(table) = self.value.as_table() else { return self.fail("", "a rule is a table") };
        let effect = match self.text("decision")? {
            Some("allow") => Verdict::Allow,
            Some("deny") => Verdict::Deny,
            Some("ask_user") => Verdict::Ask,
            Some(other) => {
                return self.fail("decision", format!("`{other}`: a decision is `allow`, `deny` or `ask_user`"));
            }
            None => return self.fail("", "a rule needs a `decision`"),
        };
        let priority = match self.value.get("priority") {
            Some(toml::Value::Integer(number @ 0..=999)) => *number,
            Some(_) => return self.fail("priority", "a priority is a whole number from 0 to 999"),
            None => return self.fail("", "a rule needs a `priority`"),
        };
        let tools = self.texts("toolName")?;
        let server = self.text("mcpName")?;
        let mut tools: Vec<String> = tools.into_iter().map(str::to_owned).collect();
        if tools.is_empty() && server.is_some() {
            tools.push("*".to_owned());
        }
        if tools.is_empty() || tools.iter().any(String::is_empty) {
            return self.fail("toolName", "a rule needs a `toolName`; `*` means every tool");
        }
        let entry = Entry::new(&self.source.name, self.place(""), &self.shown(&tools, effect));
        for key in table.keys().filter(|key| !KEYS.contains(&key.as_str())) {
            let at = Entry::new(&self.source.name, self.place(key), key);
            imported.notes.push(at.note(Carried::Left, "the key is not known there either"));
        }
        if !self.is_active(&entry, imported)? {
            return Ok(None);
        }
        let mut rule = Made { entry, effect, justification: self.justification()?, drafts: Vec::new(), lost: false };
        let conditions = self.conditions(&tools, &mut rule, imported)?;
        for tool in &tools {
            rule.add(tool, server, &conditions, imported);
        }
        if self.value.get("allowRedirection").or(self.value.get("allow_redirection")).and_then(toml::Value::as_bool)
            == Some(true)
        {
            let why = "a command that redirects is asked about here, whatever a rule allows";
            imported.notes.push(rule.entry.note(Carried::Stricter, why));
        }
        Ok(Some(Ranked { priority, drafts: rule.drafts }))
    }

    fn shown(&self, tools: &[String], effect: Verdict) -> String {
        let of = |key: &str| self.texts(key).unwrap_or_default().join(", ");
        let parts = [tools.join(", "), of("commandPrefix"), of("commandRegex"), of("argsPattern")];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{effect:?} {}", parts.join(" ")).to_lowercase()
    }

    fn justification(&self) -> Result<String, Fault> {
        let message = self.text("denyMessage")?.or(self.text("deny_message")?).map(str::trim);
        let origin = || format!("imported from {}:{}", self.source.name, self.place("").line);
        Ok(message.filter(|message| !message.is_empty()).map_or_else(origin, str::to_owned))
    }

    /// Whether the rule speaks in the mode `default` with somebody there.
    fn is_active(&self, entry: &Entry<'_>, imported: &mut Imported) -> Result<bool, Fault> {
        let modes = self.texts("modes")?;
        if !modes.is_empty() && !modes.contains(&"default") {
            let why = "it speaks in other modes than `default` only";
            imported.notes.push(entry.note(Carried::Left, why));
            return Ok(false);
        }
        if self.value.get("interactive").and_then(toml::Value::as_bool) == Some(false) {
            imported.notes.push(entry.note(Carried::Left, "it speaks only where nobody can be asked"));
            return Ok(false);
        }
        Ok(true)
    }

    /// What narrows the rule. What has no form here makes an `allow` vanish and
    /// the others broader.
    fn conditions(&self, tools: &[String], rule: &mut Made<'_>, imported: &mut Imported) -> Result<Conditions, Fault> {
        let prefixes: Vec<String> = self.texts("commandPrefix")?.into_iter().map(str::to_owned).collect();
        let (regex, arguments) = (self.text("commandRegex")?, self.text("argsPattern")?);
        let is_shell = tools.len() == 1 && tools[0] == SHELL_TOOLS[0];
        if (!prefixes.is_empty() || regex.is_some()) && !is_shell {
            let key = if regex.is_some() { "commandRegex" } else { "commandPrefix" };
            return self.fail(key, format!("`{key}` needs `toolName = \"run_shell_command\"`"));
        }
        if (!prefixes.is_empty() || regex.is_some()) && arguments.is_some() {
            return self.fail("argsPattern", "`argsPattern` does not go with `commandPrefix` or `commandRegex`");
        }
        if !prefixes.is_empty() && regex.is_some() {
            return self.fail("commandRegex", "`commandRegex` does not go with `commandPrefix`");
        }
        for key in ["subagent", "toolAnnotations"] {
            if self.value.get(key).is_some() {
                rule.cannot_say(&format!("`{key}` has no form here"), imported);
            }
        }
        // An empty text is no condition there.
        let prefixes: Vec<String> = prefixes.into_iter().filter(|prefix| !prefix.is_empty()).collect();
        Ok(if !prefixes.is_empty() {
            Conditions::Prefixes(prefixes)
        } else if let Some(regex) = regex.filter(|regex| !regex.is_empty()) {
            Conditions::Regex(regex.to_owned())
        } else if let Some(arguments) = arguments.filter(|pattern| !pattern.is_empty()) {
            Conditions::Arguments(arguments.to_owned())
        } else {
            Conditions::None
        })
    }
}

#[derive(Clone, Debug)]
pub(super) enum Conditions {
    None,
    Prefixes(Vec<String>),
    Regex(String),
    Arguments(String),
}

/// A rule that is being carried.
pub(super) struct Made<'a> {
    pub entry: Entry<'a>,
    pub effect: Verdict,
    pub justification: String,
    pub drafts: Vec<DraftRule>,
    /// True where a condition was lost that an `allow` cannot do without.
    pub lost: bool,
}

impl Made<'_> {
    /// A condition that has no form here.
    fn cannot_say(&mut self, why: &str, imported: &mut Imported) {
        if self.effect == Verdict::Allow {
            // Never carried: nothing is allowed that was not.
            imported.notes.push(self.entry.note(Carried::Left, why));
            self.lost = true;
        } else {
            let why = format!("{why}; it asks without it");
            imported.notes.push(self.entry.note(Carried::Stricter, why));
            self.effect = Verdict::Ask;
        }
    }

    fn draft(&self) -> DraftRule {
        let mut draft = DraftRule::new(self.effect, self.justification.clone());
        let by = format!("imported from gemini, {}", self.entry.origin());
        draft.provenance = Some(ProvenanceSection { by, at: None, request: None });
        draft
    }

    pub(super) fn add(&mut self, tool: &str, server: Option<&str>, conditions: &Conditions, imported: &mut Imported) {
        if self.lost {
            return;
        }
        let is_shell = server.is_none() && SHELL_TOOLS.contains(&tool);
        let name = match server {
            None => tool.to_owned(),
            Some("*") if tool == "*" => "mcp_*".to_owned(),
            Some(server) => format!("mcp_{server}_{tool}"),
        };
        if is_shell {
            return self.add_command(conditions, imported);
        }
        let mut draft = self.draft();
        draft.tool = vec![name.clone()];
        if let Conditions::Arguments(pattern) = conditions {
            match argument_of(pattern) {
                Ok((key, globs)) if self.effect != Verdict::Allow || !globs.broader => {
                    if globs.broader {
                        imported
                            .notes
                            .push(self.entry.note(Carried::Stricter, "the expression is carried more broadly"));
                    }
                    draft.arguments = vec![(key, globs.globs)];
                }
                Ok(_) => return self.cannot_say("the expression says more than a pattern with `*` can", imported),
                Err(why) => {
                    self.cannot_say(&format!("the expression over the arguments: {why}"), imported);
                    if self.lost {
                        return;
                    }
                    draft.effect = self.effect;
                }
            }
        }
        self.drafts.push(draft);
        // Every tool is also the one that runs commands.
        if name == "*" {
            let arguments = matches!(conditions, Conditions::Arguments(_));
            if !(arguments && self.effect == Verdict::Allow) {
                let mut every = self.draft();
                every.glob = vec!["*".to_owned()];
                self.drafts.push(every);
            }
        }
    }

    fn add_command(&mut self, conditions: &Conditions, imported: &mut Imported) {
        let mut draft = self.draft();
        match conditions {
            Conditions::None => draft.glob = vec!["*".to_owned()],
            Conditions::Prefixes(prefixes) => {
                for prefix in prefixes {
                    self.add_prefix(prefix, imported);
                }
                return;
            }
            Conditions::Regex(regex) => return self.add_regex(regex, imported),
            Conditions::Arguments(pattern) => match pattern.strip_prefix("\"command\":\"") {
                Some(regex) => return self.add_regex(regex, imported),
                None => {
                    self.cannot_say("the expression does not start at the command", imported);
                    if self.lost {
                        return;
                    }
                    draft.effect = self.effect;
                    draft.glob = vec!["*".to_owned()];
                }
            },
        }
        self.drafts.push(draft);
    }

    fn add_prefix(&mut self, prefix: &str, imported: &mut Imported) {
        let mut draft = self.draft();
        match plain_words(prefix) {
            Some(words) if self.effect != Verdict::Allow || words.join(" ") == prefix => {
                draft.prefix = words.into_iter().map(Word::one).collect();
                self.drafts.push(draft);
            }
            _ => {
                let why = format!("`{prefix}` is not a list of plain words");
                imported.notes.push(self.entry.dropped(self.effect, why));
            }
        }
    }

    fn add_regex(&mut self, regex: &str, imported: &mut Imported) {
        match globs_of(regex) {
            Ok(globs) if self.effect == Verdict::Allow && globs.broader => {
                let why = "the expression says more than a pattern with `*` can";
                imported.notes.push(self.entry.note(Carried::Left, why));
            }
            Ok(globs) => {
                if globs.broader {
                    imported.notes.push(self.entry.note(Carried::Stricter, "the expression is carried more broadly"));
                }
                let mut draft = self.draft();
                draft.glob = globs.globs;
                self.drafts.push(draft);
            }
            Err(why) => {
                let never = why.contains("never matches");
                let carried = if self.effect == Verdict::Allow || never { Carried::Left } else { Carried::Weaker };
                imported.notes.push(self.entry.note(carried, format!("the expression: {why}")));
            }
        }
    }
}

/// `"key":"expression` over the arguments, as a key and globs.
fn argument_of(pattern: &str) -> Result<(String, super::regex::Globs), &'static str> {
    const FORM: &str = "only `\"NAME\":\"...` has a form here";
    let rest = pattern.strip_prefix('"').ok_or(FORM)?;
    let (key, rest) = rest.split_once("\":\"").ok_or(FORM)?;
    if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(FORM);
    }
    Ok((key.to_owned(), globs_of(rest)?))
}

//! Imports rules of other tools. Each importer reads a documented format and converts the entries that mean
//! the same here. The result lists, line by line, the entries that were dropped or made stricter. A text
//! that cannot be parsed is an error with the positions of all mistakes; then nothing is imported.
//!
//! Must not run any program, and must not read or write files. An uncertain entry becomes stricter: an
//! `allow` that cannot be converted exactly is left out, an `ask` or `deny` becomes broader.

mod claude;
mod claude_context;
mod claude_files;
mod claude_rules;
mod claude_sandbox;
mod codex;
mod gemini;
mod gemini_rules;
mod gemini_settings;
mod json;
mod mistakes;
mod regex;
mod scope;
mod starlark;
mod tool_detection;
mod value;

pub use scope::SourceScope;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use stockade_model::{PolicyVerdict, RawText, TargetPattern};

use crate::draft::{DraftRule, format_comment, quote_toml};
use crate::error::{ConfigError, TextPosition};
use crate::file::{ConfigFile, ProvenanceSection};
use crate::hosts::check_breadth;
use crate::merge::LayerText;
use crate::parse::parse_content;
use crate::settings::{OwnDirectories, PolicySettings};
use crate::spec::ConfigLayer;

/// The tool that the rules are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportTool {
    /// Codex: `.rules` files (Starlark).
    Codex,
    /// Claude Code: `settings.json`.
    Claude,
    /// Gemini CLI: `policies/*.toml` and `settings.json`.
    Gemini,
}

/// One file to import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportSource {
    /// Name of the file, for messages.
    pub name: String,
    /// Text of the file.
    pub text: String,
    /// Scope in which the tool reads the file.
    pub scope: SourceScope,
}

/// Result for one entry that is not imported exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportDeviation {
    /// Dropped without loss: the entry is about a feature that does not exist here, or that always applies
    /// here.
    Needless,
    /// Dropped: the entry allowed an act, which is now asked about, or set a value, which is not set here.
    Left,
    /// Imported more strictly than in the source.
    Stricter,
    /// Dropped or weakened, although the entry refused or asked: check it by hand.
    Weaker,
}

/// A note about one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportNote {
    /// The file.
    pub source: String,
    /// Position in the file.
    pub position: TextPosition,
    /// The entry, unchanged but shortened.
    pub entry: String,
    /// Result for the entry.
    pub carried: ImportDeviation,
    /// The reason.
    pub why: String,
}

/// Result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedPolicy {
    /// Top-level keys, as `key` and TOML value.
    pub settings: BTreeMap<String, String>,
    /// Additions to profile `workspace`, and to `read-only` if they refuse: lists by key.
    pub profile: BTreeMap<String, Vec<String>>,
    /// Rules, in order.
    pub rules: Vec<DraftRule>,
    /// Notes about entries that were not imported exactly, in order.
    pub notes: Vec<ImportNote>,
}

/// Keys of a profile that take powers from a command.
const REFUSING_KEYS: &[&str] = &["egress.deny", "env.drop", "hide", "protect"];

impl ImportedPolicy {
    /// Returns the number of dropped entries that allowed or set something.
    pub fn count_dropped(&self) -> usize {
        self.count_notes(ImportDeviation::Left)
    }

    /// Returns the number of entries that refused or asked and were lost, in whole or in part.
    pub fn count_lost(&self) -> usize {
        self.count_notes(ImportDeviation::Weaker)
    }

    fn count_notes(&self, carried: ImportDeviation) -> usize {
        self.notes.iter().filter(|note| note.carried == carried).count()
    }

    /// Returns a configuration file with the imported entries and, as comments, the notes about the others.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for note in &self.notes {
            text.push_str(&format_comment(&note.to_string()));
        }
        let has_keys = !self.settings.is_empty() || !self.profile.is_empty();
        if has_keys && !self.notes.is_empty() {
            text.push('\n');
        }
        for (key, value) in &self.settings {
            let _ = writeln!(text, "{key} = {value}");
        }
        self.write_profile(&mut text, "workspace", |_| true);
        // Another profile may be chosen: its commands must be refused the same paths, hosts and variables.
        self.write_profile(&mut text, "read-only", |key| REFUSING_KEYS.contains(&key));
        for rule in &self.rules {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&rule.to_toml());
        }
        text
    }

    /// Writes the section of a profile with the additions of these keys, if there are any.
    fn write_profile(&self, text: &mut String, name: &str, has: impl Fn(&str) -> bool) {
        let mut additions = self.profile.iter().filter(|(key, _)| has(key)).peekable();
        if additions.peek().is_none() {
            return;
        }
        if !text.is_empty() && !text.ends_with("\n\n") {
            text.push('\n');
        }
        let _ = writeln!(text, "[profiles.{name}]");
        for (key, values) in additions {
            let values: Vec<String> = values.iter().map(|value| quote_toml(value)).collect();
            let _ = writeln!(text, "{key} = [{}]", values.join(", "));
        }
    }

    fn note(&mut self, entry: &ImportEntry<'_>, carried: ImportDeviation, why: impl Into<String>) {
        self.notes.push(entry.to_note(carried, why));
    }

    fn add_to_profile(&mut self, key: &str, value: String) {
        let list = self.profile.entry(key.to_owned()).or_default();
        if !list.contains(&value) {
            list.push(value);
        }
    }

    fn push(&mut self, rule: DraftRule) {
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }

    /// Lets the first rule that applies decide.
    fn combine_by_order(&mut self) {
        self.settings.insert("combining".to_owned(), quote_toml("first-applicable"));
    }
}

impl std::fmt::Display for ImportNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let escaped = |text: &str| RawText::from(text).to_escaped();
        let became = match self.carried {
            ImportDeviation::Needless => "not needed here",
            ImportDeviation::Left => "left out",
            ImportDeviation::Stricter => "carried more strictly",
            ImportDeviation::Weaker => "NOT CARRIED, look at it",
        };
        let (source, entry) = (escaped(&self.source), escaped(&self.entry));
        write!(f, "{source}:{}: `{entry}`: {became}: {}", self.position, escaped(&self.why))
    }
}

/// Imports one or more files of a tool, as the tool itself would merge them.
///
/// # Errors
/// An error if a file is not of its format, or not of this tool; the error has file, line and column of
/// every mistake.
pub fn import_policy(tool: ImportTool, sources: &[ImportSource]) -> Result<ImportedPolicy, ConfigError> {
    let mut imported = match tool {
        ImportTool::Codex => codex::import_codex(sources)?,
        ImportTool::Claude => claude::import_claude(sources)?,
        ImportTool::Gemini => gemini::import_gemini(sources)?,
    };
    for draft in std::mem::take(&mut imported.rules) {
        let (rule, note) = check_draft(without_broken_examples(draft));
        imported.rules.extend(rule);
        imported.notes.extend(note);
    }
    // The output must be readable, whatever the input was.
    let source = imported.to_toml();
    let layer = LayerText { layer: ConfigLayer::User, path: IMPORT_SOURCE_NAME.into(), source };
    PolicySettings::from_layers(Path::new("/"), OwnDirectories::default(), &[layer])?;
    Ok(imported)
}

/// Name of the source in errors about the output of the import.
const IMPORT_SOURCE_NAME: &str = "what was imported";

/// Returns a rule that can be read, or its replacement with a note. Names of other tools may contain text
/// that is not valid in a pattern here. A rule that refused or asked is replaced by a question about all of
/// its kind, because an `allow` beside it counts.
fn check_draft(draft: DraftRule) -> (Option<DraftRule>, Option<ImportNote>) {
    let Err(why) = validate_draft(&draft) else { return (Some(draft), None) };
    let by = draft.provenance.as_ref().map_or("", |provenance| provenance.by.as_str());
    let (source, line) = by.rsplit_once(", ").and_then(|(_, at)| at.rsplit_once(':')).unwrap_or((by, ""));
    let entry =
        ImportEntry::new(source, TextPosition { line: line.parse().unwrap_or(1), column: 1 }, &draft.justification);
    if draft.effect == PolicyVerdict::Allow {
        return (None, Some(entry.to_note(ImportDeviation::Left, why)));
    }
    let every = |applies: bool, all: &str| if applies { vec![all.to_owned()] } else { Vec::new() };
    let commands = !draft.prefix.is_empty() || !draft.glob.is_empty();
    let asks = DraftRule {
        glob: every(commands, "*"),
        tool: every(!draft.tool.is_empty(), "*"),
        files: every(!draft.files.is_empty(), "/"),
        ..DraftRule::new(PolicyVerdict::Ask, "imported: a rule that cannot be expressed here")
    };
    let broader = (draft.hosts.is_empty() && validate_draft(&asks).is_ok()).then_some(asks);
    let carried = if broader.is_some() { ImportDeviation::Stricter } else { ImportDeviation::Weaker };
    (broader, Some(entry.to_note(carried, why)))
}

/// Checks that a rule can be read, and returns the reason if it cannot.
fn validate_draft(draft: &DraftRule) -> Result<(), String> {
    let file: ConfigFile =
        parse_content(Path::new(IMPORT_SOURCE_NAME), &draft.to_toml()).map_err(|error| error.to_string())?;
    let rule = |section| crate::rules::PolicyRule::new(section, crate::spec::ValueOrigin::Default);
    file.rules.iter().try_for_each(|section| rule(section).map(|_| ()).map_err(|(_, why)| why))
}

/// Removes examples that do not hold here and keeps the rule. Examples of other tools may depend on their
/// way of parsing text.
fn without_broken_examples(draft: DraftRule) -> DraftRule {
    if draft.matches.is_empty() && draft.not_match.is_empty() {
        return draft;
    }
    let bare = DraftRule { matches: Vec::new(), not_match: Vec::new(), ..draft.clone() };
    let holds = |matches: &[String], not_match: &[String]| {
        let (matches, not_match) = (matches.to_vec(), not_match.to_vec());
        validate_draft(&DraftRule { matches, not_match, ..bare.clone() }).is_ok()
    };
    let (mut matches, mut not_match) = (draft.matches, draft.not_match);
    matches.retain(|example| holds(std::slice::from_ref(example), &[]));
    not_match.retain(|example| holds(&[], std::slice::from_ref(example)));
    DraftRule { matches, not_match, ..bare }
}

/// An entry that is being imported: its position and its text in a note.
#[derive(Clone, Debug)]
struct ImportEntry<'a> {
    source: &'a str,
    position: TextPosition,
    shown: String,
}

/// Longest entry shown in a note, in characters.
const MAX_ENTRY_CHARACTERS: usize = 120;

impl<'a> ImportEntry<'a> {
    fn new(source: &'a str, position: TextPosition, shown: &str) -> Self {
        let mut short: String = shown.chars().take(MAX_ENTRY_CHARACTERS).collect();
        if short.len() < shown.len() {
            short.push('…');
        }
        Self { source, position, shown: short }
    }

    fn to_note(&self, carried: ImportDeviation, why: impl Into<String>) -> ImportNote {
        ImportNote {
            source: self.source.to_owned(),
            position: self.position,
            entry: self.shown.clone(),
            carried,
            why: why.into(),
        }
    }

    /// Returns the note for a dropped entry: harmless for an `allow`, not for the others.
    fn dropped_note(&self, effect: PolicyVerdict, why: impl Into<String>) -> ImportNote {
        self.to_note(if effect == PolicyVerdict::Allow { ImportDeviation::Left } else { ImportDeviation::Weaker }, why)
    }

    /// Returns a rule without conditions, with the entry as its source.
    fn draft_rule(&self, tool: ImportTool, effect: PolicyVerdict, justification: String) -> DraftRule {
        let by = format!("imported from {}, {}", tool.name(), self.format_origin());
        let provenance = Some(ProvenanceSection { by, at: None, request: None });
        DraftRule { provenance, ..DraftRule::new(effect, justification) }
    }

    fn format_origin(&self) -> String {
        format!("{}:{}", self.source, self.position.line)
    }

    fn describe_origin(&self) -> String {
        format!("imported from {}", self.format_origin())
    }
}

/// Parses a host of a tool whose `*.` stands for any number of labels. The result is an error if the text
/// is not a host, or is too wide for its effect.
fn host_of_any_depth(text: &str, effect: PolicyVerdict) -> Result<TargetPattern, String> {
    let deep = text.strip_prefix("*.").map(|rest| format!("**.{rest}"));
    let pattern =
        deep.as_deref().unwrap_or(text).parse::<TargetPattern>().map_err(|error| error.reason().to_owned())?;
    match effect {
        PolicyVerdict::Allow => check_breadth(&pattern).map(|()| pattern).map_err(|why| why.to_string()),
        PolicyVerdict::Ask | PolicyVerdict::Deny => Ok(pattern),
    }
}

/// Returns a command prefix as words; `None` if a shell would parse it otherwise.
fn plain_words(text: &str) -> Option<Vec<String>> {
    let words = crate::words::of_script(text.as_bytes());
    match (words.plain, words.commands.as_slice()) {
        (true, [one]) => Some(one.clone()),
        _ => None,
    }
}

/// Returns a command pattern with `*` in the glob form used here, if each word is plain.
fn plain_glob(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split(' ').collect();
    let plain =
        |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:=,+@%*".contains(c));
    parts.iter().all(plain).then(|| parts.join(" "))
}

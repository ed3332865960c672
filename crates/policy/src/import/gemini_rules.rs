//! Converts one rule of Gemini CLI to Stockade rules.
//!
//! Both tools try rules in order of priority, so a rule that refuses or asks is never left out: an `allow`
//! of a lower priority may follow it. If a condition cannot be expressed here, an `allow` is dropped and
//! other rules become broader.

use stockade_model::{NameList, PolicyVerdict};

use super::ImportDeviation::{Left, Needless, Stricter};
use super::gemini::{RankedRule, SHELL_TOOLS};
use super::regex::{self, globs_of};
use super::{ImportDeviation, ImportEntry, ImportTool, ImportedPolicy, plain_words};
use crate::draft::DraftRule;
use crate::pattern::WordPattern;

/// Programs that Gemini CLI asks about in part, even if all commands are allowed.
const PARTLY_ASKED_PROGRAMS: &[&str] = &["base64", "find", "git", "ln", "rg", "ripgrep", "rm", "sudo"];

/// Words of a tool's name which indicate that the tool changes files.
const EDIT_WORDS: &[&str] = &["append", "create", "edit", "patch", "replace", "save", "update", "write"];

/// Arguments that name the file which a tool changes.
const PATH_ARGUMENTS: &[&str] = &["file", "filePath", "file_path", "path"];

/// Files that Gemini CLI asks about, even if the tool is allowed.
const BUILD_FILES: NameList = NameList::new(include_str!("../../knowledge/gemini_build_files.txt"));

/// Names of one tool over time.
const TOOL_ALIASES: &[[&str; 2]] = &[["grep_search", "search_file_content"]];

/// Conditions of a rule besides its tool.
#[derive(Clone, Debug)]
pub(super) enum GeminiConditions {
    None,
    Prefixes(Vec<String>),
    Regex(String),
    Arguments(String),
}

/// A rule that is being converted.
pub(super) struct GeminiRuleDraft<'a, 'i> {
    pub entry: ImportEntry<'a>,
    pub effect: PolicyVerdict,
    pub justification: String,
    pub drafts: Vec<DraftRule>,
    /// True if a condition that an `allow` needs was lost.
    pub lost: bool,
    imported: &'i mut ImportedPolicy,
}

impl<'a, 'i> GeminiRuleDraft<'a, 'i> {
    pub(super) fn new(
        entry: ImportEntry<'a>,
        effect: PolicyVerdict,
        justification: String,
        imported: &'i mut ImportedPolicy,
    ) -> Self {
        Self { entry, effect, justification, drafts: Vec::new(), lost: false, imported }
    }

    /// Returns the made rules with their priority across all tiers.
    pub(super) fn into_ranked(self, priority: i64) -> RankedRule {
        RankedRule { priority, effect: self.effect, drafts: self.drafts }
    }

    fn is_allow(&self) -> bool {
        self.effect == PolicyVerdict::Allow
    }

    pub(super) fn note(&mut self, carried: ImportDeviation, why: &str) {
        self.imported.note(&self.entry, carried, why);
    }

    /// Handles a condition that cannot be expressed here.
    pub(super) fn cannot_say(&mut self, why: &str) {
        if self.is_allow() {
            self.note(Left, why);
            self.lost = true;
        } else {
            self.note(Stricter, &format!("{why}; the rule asks without this condition"));
            self.effect = PolicyVerdict::Ask;
        }
    }

    fn draft_rule(&self) -> DraftRule {
        self.entry.draft_rule(ImportTool::Gemini, self.effect, self.justification.clone())
    }

    fn draft_question(&self) -> DraftRule {
        DraftRule { effect: PolicyVerdict::Ask, ..self.draft_rule() }
    }

    pub(super) fn add_tool_rule(&mut self, tool: &str, server: Option<&str>, conditions: &GeminiConditions) {
        if self.lost {
            return;
        }
        if server.is_none() && SHELL_TOOLS.contains(&tool) {
            return self.add_command(conditions);
        }
        let name = match server {
            None => tool.to_owned(),
            Some("*") if tool == "*" => "mcp_*".to_owned(),
            Some(server) => format!("mcp_{server}_{tool}"),
        };
        if self.is_allow()
            && let Err(why) = check_allowed_name(&name, server)
        {
            return self.note(Left, why);
        }
        let mut draft = self.draft_rule();
        draft.tool = names_of(&name, self.is_allow());
        if let GeminiConditions::Arguments(pattern) = conditions {
            match self.convert_arguments(pattern) {
                Some(arguments) => draft.arguments = vec![arguments],
                None if self.lost => return,
                None => draft.effect = self.effect,
            }
        }
        if self.is_allow() {
            self.ask_about_build_files(&draft.tool);
        }
        let also = self.as_agent(&draft);
        self.drafts.push(draft);
        self.drafts.extend(also);
        // A rule for every tool also applies to the tool that runs commands.
        if name == "*" && !(matches!(conditions, GeminiConditions::Arguments(_)) && self.is_allow()) {
            self.add_command(&GeminiConditions::None);
        }
    }

    /// Returns the rule for a subagent, which is called through one tool that names it.
    fn as_agent(&self, draft: &DraftRule) -> Option<DraftRule> {
        let [name] = draft.tool.as_slice() else { return None };
        let is_agent =
            !self.is_allow() && draft.arguments.is_empty() && !name.contains('*') && !name.starts_with("mcp_");
        is_agent.then(|| DraftRule {
            tool: vec!["invoke_agent".to_owned()],
            arguments: vec![("agent_name".to_owned(), vec![name.clone()])],
            ..draft.clone()
        })
    }

    fn ask_about_build_files(&mut self, tools: &[String]) {
        let edits = |name: &String| {
            let lower = name.to_ascii_lowercase();
            name.contains('*') || lower.split(|c: char| !c.is_ascii_alphanumeric()).any(|w| EDIT_WORDS.contains(&w))
        };
        if !tools.iter().any(edits) {
            return;
        }
        self.note(Stricter, "files that build the project are asked about, as they are there");
        for argument in PATH_ARGUMENTS {
            let mut ask = self.draft_question();
            ask.tool = tools.to_vec();
            let globs = BUILD_FILES.names().map(str::to_owned).collect();
            ask.arguments = vec![((*argument).to_owned(), globs)];
            self.drafts.push(ask);
        }
    }

    /// Converts `"key":"expression` over the arguments to a key and globs.
    fn convert_arguments(&mut self, pattern: &str) -> Option<(String, Vec<String>)> {
        if self.is_allow() && regex::is_refused(pattern) {
            self.cannot_say("the expression is refused there as too costly");
            return None;
        }
        match argument_of(pattern) {
            Ok((_, globs)) if self.is_allow() && globs.broader => {
                self.cannot_say("a pattern with `*` cannot express the expression");
                None
            }
            Ok((_, globs)) if !self.is_allow() && !globs.anywhere.is_empty() => {
                self.cannot_say("a part of the expression matches any argument");
                None
            }
            Ok((key, globs)) => {
                if globs.broader {
                    self.note(Stricter, "the imported pattern matches more than the expression");
                }
                Some((key, globs.globs))
            }
            Err(why) => {
                self.cannot_say(&format!("the expression over the arguments: {why}"));
                None
            }
        }
    }

    fn add_command(&mut self, conditions: &GeminiConditions) {
        match conditions {
            GeminiConditions::None => {
                if self.is_allow() {
                    let why = "programs that are asked about there in some cases are always asked about here: ";
                    self.note(Stricter, &format!("{why}{}", PARTLY_ASKED_PROGRAMS.join(", ")));
                    let mut ask = self.draft_question();
                    ask.prefix = WordPattern::from_alternatives(
                        PARTLY_ASKED_PROGRAMS.iter().map(|name| (*name).to_owned()).collect(),
                    )
                    .into_iter()
                    .collect();
                    self.drafts.push(ask);
                }
                self.every_command(self.effect);
            }
            GeminiConditions::Prefixes(prefixes) => {
                for prefix in prefixes {
                    self.add_prefix(prefix);
                }
            }
            GeminiConditions::Regex(regex) => self.add_regex(regex),
            GeminiConditions::Arguments(pattern) => match pattern.strip_prefix("\"command\":\"") {
                Some(regex) => self.add_regex(regex),
                None => {
                    self.cannot_say("the expression does not start at the command");
                    if !self.lost {
                        self.every_command(self.effect);
                    }
                }
            },
        }
    }

    fn every_command(&mut self, effect: PolicyVerdict) {
        self.drafts.push(DraftRule { effect, glob: vec!["*".to_owned()], ..self.draft_rule() });
    }

    fn add_prefix(&mut self, prefix: &str) {
        let mut draft = self.draft_rule();
        match plain_words(prefix) {
            Some(words)
                if !self.is_allow()
                    || (words.join(" ") == prefix && prefix.len() <= regex::MAX_EXPRESSION_BYTES / 2) =>
            {
                draft.prefix = words.into_iter().map(WordPattern::from_word).collect();
                self.drafts.push(draft);
            }
            _ if self.is_allow() => {
                self.note(Left, &format!("`{prefix}` is not a list of plain words"));
            }
            _ => self.ask_about_text(&format!("{prefix}*")),
        }
    }

    fn add_regex(&mut self, regex: &str) {
        if self.is_allow() {
            return self.allow_regex(regex);
        }
        let globs = match globs_of(regex) {
            Ok(globs) => globs,
            Err(_) if regex.starts_with('^') && !regex.contains('|') => {
                return self.note(Needless, "`^` means the JSON there, so that it never matches");
            }
            Err(why) => {
                self.note(Stricter, &format!("the expression: {why}; every command is asked about"));
                return self.every_command(PolicyVerdict::Ask);
            }
        };
        if globs.broader {
            self.note(Stricter, "the imported pattern matches more than the expression");
        }
        // Gemini CLI applies the expression to the whole line, Stockade to each command of it.
        let (whole, parts): (Vec<String>, Vec<String>) =
            globs.globs.iter().chain(&globs.anywhere).map(|glob| loosen_glob(glob)).partition(|glob| is_of_one(glob));
        let across: Vec<String> = whole.iter().filter_map(|glob| last_literal(glob)).collect();
        if !whole.is_empty() {
            self.drafts.push(DraftRule { glob: whole, ..self.draft_rule() });
        }
        if !across.is_empty() {
            self.note(Stricter, "commands that contain its last words are asked about separately");
            self.drafts.push(DraftRule { glob: across, ..self.draft_question() });
        }
        for glob in parts {
            self.ask_about_text(&glob);
        }
    }

    fn allow_regex(&mut self, regex: &str) {
        match globs_of(regex) {
            _ if regex::is_refused(regex) => {
                self.note(Left, "the expression is refused there as too costly");
            }
            Ok(globs) if globs.broader => {
                self.note(Left, "a pattern with `*` cannot express the expression");
            }
            Ok(globs) => {
                self.drafts.push(DraftRule { glob: globs.globs, ..self.draft_rule() });
            }
            Err(why) => self.note(Left, &format!("the expression: {why}")),
        }
    }

    /// Asks about commands that start like the text, up to the end of the first command or of the plain
    /// words.
    fn ask_about_text(&mut self, glob: &str) {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%* ".contains(c);
        let end = glob.find(|c: char| !plain(c)).unwrap_or(glob.len());
        let start = glob[..end].trim();
        self.note(Stricter, "it is not a list of plain words: what starts like it is asked about");
        if start.is_empty() || start == "*" {
            return self.every_command(PolicyVerdict::Ask);
        }
        self.drafts
            .push(DraftRule { glob: vec![format!("{}*", start.trim_end_matches('*'))], ..self.draft_question() });
    }
}

/// Returns every name of the tool; for an `allow`, only the given name.
fn names_of(name: &str, allows: bool) -> Vec<String> {
    let aliases = TOOL_ALIASES.iter().find(|aliases| aliases.contains(&name) && !allows);
    aliases.map_or_else(
        || vec![if allows && name == "mcp_*" { "mcp_*_*".to_owned() } else { name.to_owned() }],
        |all| all.iter().map(|one| (*one).to_owned()).collect(),
    )
}

/// Checks that a name may allow. In Gemini CLI a `*` is special only alone, as `mcp_*`, or after a server,
/// whose name ends at its first `_`.
fn check_allowed_name(name: &str, server: Option<&str>) -> Result<(), &'static str> {
    const UNDERSCORE_REASON: &str = "a server name with `_` may match another server";
    if server.is_some_and(|server| server.contains('_')) {
        return Err(UNDERSCORE_REASON);
    }
    if !name.contains('*') || matches!(name, "*" | "mcp_*") {
        return Ok(());
    }
    match name.strip_prefix("mcp_").and_then(|rest| rest.strip_suffix("_*")) {
        Some(server) if server.contains('*') => Err("this pattern matches no tool there"),
        Some(server) if server.contains('_') => Err(UNDERSCORE_REASON),
        Some(_) => Ok(()),
        None => Err("this pattern matches no tool there"),
    }
}

/// Parses `"key":"expression` over the arguments as a key and globs.
fn argument_of(pattern: &str) -> Result<(String, regex::RegexGlobs), &'static str> {
    const ARGUMENT_FORM_REASON: &str = "only `\"NAME\":\"...` can be expressed here";
    let rest = pattern.strip_prefix('"').ok_or(ARGUMENT_FORM_REASON)?;
    let (key, rest) = rest.split_once("\":\"").ok_or(ARGUMENT_FORM_REASON)?;
    if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(ARGUMENT_FORM_REASON);
    }
    Ok((key.to_owned(), globs_of(rest)?))
}

/// Adapts a glob to the way commands are joined here: one blank between words, any quotes.
fn loosen_glob(glob: &str) -> String {
    let words: Vec<&str> = glob.split(' ').filter(|word| !word.is_empty()).collect();
    let mut text = words.join(" ").replace('\'', "*").replace(" *", "*");
    while text.contains("**") {
        text = text.replace("**", "*");
    }
    text
}

/// Returns whether the glob can match one command: it contains no text that ends a command.
fn is_of_one(glob: &str) -> bool {
    !glob.contains([';', '&', '|', '<', '>', '\n', '$', '`', '(', ')'])
}

/// Returns the text after the last inner `*`, as a glob for any position in a command. The glob reaches
/// this text across the end of a command.
fn last_literal(glob: &str) -> Option<String> {
    let (front, last) = glob.trim_end_matches('*').rsplit_once('*')?;
    (!front.trim_matches('*').is_empty() && !last.trim().is_empty()).then(|| format!("*{}*", last.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_may_allow() {
        for (name, server, expected) in [
            ("read_file", None, true),
            ("*", None, true),
            ("mcp_*", Some("*"), true),
            ("mcp_jira_*", Some("jira"), true),
            ("mcp_jira_search", Some("jira"), true),
            ("mcp_my_jira_*", Some("my_jira"), false),
            ("mcp_my_jira_x", Some("my_jira"), false),
            ("mcp_*_search", Some("*"), false),
            ("mcp_jira_get_*", Some("jira"), false),
            ("read_*", None, false),
            ("mcp_a*_*", None, false),
        ] {
            assert_eq!(check_allowed_name(name, server).is_ok(), expected, "{name}");
        }
    }

    #[test]
    fn texts_that_reach_across_commands() {
        for (glob, expected) in
            [("git push*", None), ("*--force*", None), ("git push*--force*", Some("*--force*")), ("a*b*c", Some("*c*"))]
        {
            assert_eq!(last_literal(glob).as_deref(), expected, "{glob}");
        }
        assert_eq!(loosen_glob("git  commit 'a *"), "git commit*a*");
    }
}

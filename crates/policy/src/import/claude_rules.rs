//! Converts one rule of Claude Code's `permissions` to Stockade rules.
//!
//! An `allow` that would allow more here is left out: for a program whose arguments only Claude Code
//! checks, for a pattern that names no program, for a pattern over tools that names no server. A `deny` or
//! `ask` that cannot be expressed becomes broader and is never dropped, because an `allow` beside it counts.

use stockade_model::{NameList, PolicyVerdict};

use super::ImportDeviation::{Left, Stricter};
use super::claude::{ClaudeReader, ClaudeRule};
use super::claude_files::{READ_TOOLS, WRITE_TOOLS};
use super::{ImportTool, host_of_any_depth, plain_glob, plain_words};
use crate::draft::DraftRule;
use crate::glob::text_matches;
use crate::hosts::check_breadth;
use crate::pattern::WordPattern;
use crate::words::base_name;

/// Programs whose operands must be in the working directories. Claude Code checks this itself; here the
/// facts of the classifier do.
const PATH_CHECKED_PROGRAMS: NameList = NameList::new(include_str!("../../knowledge/claude_path_checked_programs.txt"));

/// Programs that Claude Code checks in a way that no rule here can express.
const OTHERWISE_CHECKED_PROGRAMS: &[&str] = &["awk", "cd", "cp", "find", "jq", "ls", "mv", "sed", "stat", "tr"];

/// All names of one tool over time.
const TOOL_NAMES: &[&[&str]] = &[
    &["Agent", "Task"],
    &["TaskOutput", "BashOutput", "BashOutputTool", "AgentOutput", "AgentOutputTool"],
    &["TaskStop", "KillShell", "KillBash"],
];

/// Returns every name of the tool.
fn names_of(tool: &str) -> Vec<String> {
    let known = TOOL_NAMES.iter().find(|names| names.contains(&tool));
    known.map_or_else(|| vec![tool.to_owned()], |names| names.iter().map(|name| (*name).to_owned()).collect())
}

impl ClaudeReader<'_> {
    pub(super) fn draft_rule(&self, rule: ClaudeRule<'_>) -> DraftRule {
        let justification = format!("imported: {}", rule.text);
        self.entry_at(rule.at, rule.text).draft_rule(ImportTool::Claude, rule.effect, justification)
    }

    fn draft_question(&self, rule: ClaudeRule<'_>) -> DraftRule {
        self.draft_rule(ClaudeRule { effect: PolicyVerdict::Ask, ..rule })
    }

    pub(super) fn convert_rule(&mut self, rule: ClaudeRule<'_>, tool: &str, specifier: Option<&str>) {
        // For a file tool, `**` is a pattern, and means the project only.
        let specifier = specifier.filter(|specifier| !matches!(*specifier, "*" | ""));
        match (tool, specifier) {
            (name, None) if name.contains('*') => self.tools_by_pattern(rule, name),
            ("Bash", None) => {
                self.imported.push(DraftRule { glob: vec!["*".to_owned()], ..self.draft_rule(rule) });
            }
            ("Bash", Some(pattern)) => self.convert_command(rule, pattern),
            (reader, pattern) if READ_TOOLS.contains(&reader) => self.convert_read_rule(rule, reader, pattern),
            (writer, pattern) if WRITE_TOOLS.contains(&writer) => self.convert_write_rule(rule, writer, pattern),
            ("WebFetch", Some(specifier)) => self.convert_domain(rule, specifier),
            ("Agent" | "Task", Some(name)) => {
                self.imported.push(DraftRule {
                    tool: names_of(tool),
                    arguments: vec![("subagent_type".to_owned(), vec![name.to_owned()])],
                    ..self.draft_rule(rule)
                });
            }
            (name, None) => {
                let mut draft = self.draft_rule(rule);
                draft.tool = match name.strip_prefix("mcp__") {
                    // A server without a tool means all of its tools.
                    Some(rest) if !rest.contains("__") => vec![name.to_owned(), format!("{name}__*")],
                    _ => names_of(name),
                };
                self.imported.push(draft);
            }
            (_, Some(_)) => {
                let why = "the text in the parentheses cannot be expressed here";
                if self.skip_allow_rule(rule, why) {
                    self.imported.push(DraftRule { tool: names_of(tool), ..self.draft_question(rule) });
                }
            }
        }
    }

    /// Leaves out an `allow` that cannot be expressed. The caller converts any other rule more broadly, as
    /// a question. Returns whether the caller has to.
    fn skip_allow_rule(&mut self, rule: ClaudeRule<'_>, why: &str) -> bool {
        if rule.is_allow() {
            self.note(rule, Left, why);
            return false;
        }
        self.note(rule, Stricter, &format!("{why}: all of its kind is asked about"));
        true
    }

    /// Converts a pattern over tool names. An `allow` must name a server before the pattern.
    fn tools_by_pattern(&mut self, rule: ClaudeRule<'_>, pattern: &str) {
        let server = pattern.strip_prefix("mcp__").and_then(|rest| rest.split_once("__"));
        if rule.is_allow() && !server.is_some_and(|(server, _)| !server.is_empty() && !server.contains('*')) {
            return self.note(rule, Left, "an `allow` names its tool, or a server and then a pattern");
        }
        self.imported.push(DraftRule { tool: vec![pattern.to_owned()], ..self.draft_rule(rule) });
        if text_matches(pattern, "Bash") {
            self.convert_rule(rule, "Bash", None);
        }
        for tool in READ_TOOLS.iter().chain(WRITE_TOOLS).filter(|tool| text_matches(pattern, tool)) {
            self.convert_rule(rule, tool, None);
        }
    }

    /// Converts a command pattern with `*`. At the end, after a blank, `*` also matches no arguments; `:*`
    /// at the end is the same.
    fn convert_command(&mut self, rule: ClaudeRule<'_>, pattern: &str) {
        let mut draft = self.draft_rule(rule);
        let (front, any_arguments) = match pattern.strip_suffix(":*").or(pattern.strip_suffix(" *")) {
            Some(front) => (front, true),
            None => (pattern, false),
        };
        let program;
        if !front.contains('*') {
            let Some(words) = plain_words(front) else { return self.raw_command(rule, pattern) };
            program = words[0].clone();
            if any_arguments {
                draft.prefix = words.into_iter().map(WordPattern::from_word).collect();
            } else {
                draft.glob = vec![crate::rules::join_words(&words)];
            }
        } else {
            let Some(glob) = plain_glob(front) else { return self.raw_command(rule, pattern) };
            program = glob.split(' ').next().unwrap_or_default().to_owned();
            draft.glob = vec![glob.clone()];
            if any_arguments && rule.is_allow() {
                // If it is not the only `*`, the last one requires a word in Claude Code.
                draft.glob = vec![format!("{glob} *")];
            } else if any_arguments {
                draft.glob.push(format!("{glob} *"));
            }
        }
        if rule.is_allow() {
            return self.allow_command(rule, &program, draft);
        }
        self.imported.push(draft);
    }

    /// Adds an `allow` rule that includes no path which Claude Code refuses to the program.
    fn allow_command(&mut self, rule: ClaudeRule<'_>, program: &str, mut draft: DraftRule) {
        let may_be = |known: &&&str| text_matches(program, known) || text_matches(base_name(program), known);
        let checked = OTHERWISE_CHECKED_PROGRAMS.iter().find(may_be);
        let named_paths = PATH_CHECKED_PROGRAMS.names().any(|known| may_be(&&known));
        if program.contains('*') && (program.contains('/') || checked.is_some() || named_paths) {
            return self.note(rule, Left, "the pattern names no program");
        }
        if let Some(known) = checked {
            let why = format!("arguments of `{known}` are checked there in a way that no rule here can express");
            return self.note(rule, Left, &why);
        }
        if named_paths {
            draft.paths_within = vec!["./".to_owned()];
            self.note(rule, Stricter, "it is allowed for paths in the workspace, and asked about elsewhere");
        }
        self.imported.push(draft);
        if text_matches(program, "git") || base_name(program) == "git" {
            let mut ask = self.draft_question(rule);
            ask.prefix = vec![WordPattern::from_word("git")];
            ask.present = vec![WordPattern::from_word("--no-index")];
            self.imported.push(ask);
        }
    }

    /// Converts a pattern that a shell would not parse as plain words: operators, quotes, expansions.
    fn raw_command(&mut self, rule: ClaudeRule<'_>, pattern: &str) {
        if rule.is_allow() {
            let why = "it is not a list of plain words: its meaning to a shell is not certain";
            return self.note(rule, Left, why);
        }
        // Asks about every command of the named programs. If one program cannot be named, asks about every
        // command.
        let words = pattern.split(['|', ';', '&', '\n']).map(|part| part.split_whitespace().next().unwrap_or_default());
        let plain =
            |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./+".contains(c));
        let programs: Vec<&str> = words.collect();
        if !programs.iter().all(|program| plain(program)) {
            self.imported.push(DraftRule { glob: vec!["*".to_owned()], ..self.draft_question(rule) });
            return self.note(rule, Stricter, "it does not name a plain program: every command is asked about");
        }
        for program in programs {
            self.imported
                .push(DraftRule { prefix: vec![WordPattern::from_word(program)], ..self.draft_question(rule) });
        }
        self.note(rule, Stricter, "it is not a list of plain words: its programs are asked about");
    }

    fn convert_domain(&mut self, rule: ClaudeRule<'_>, specifier: &str) {
        let host = specifier.strip_prefix("domain:").map(str::trim);
        // A rule that asks or refuses may be as wide as necessary.
        let pattern = host.map(|host| host_of_any_depth(host, PolicyVerdict::Deny));
        let Some((host, Ok(pattern))) = host.zip(pattern).filter(|(host, _)| !host.contains(':')) else {
            if self.skip_allow_rule(rule, "only `domain:HOST` can be expressed here") {
                self.imported.push(DraftRule { tool: vec!["WebFetch".to_owned()], ..self.draft_question(rule) });
            }
            return;
        };
        let host = host.to_ascii_lowercase();
        if host.contains('*') && rule.is_allow() {
            // A `*` in a URL could match across its slashes.
            self.note(rule, Stricter, "hosts with `*` are allowed to commands in the sandbox only");
        } else {
            self.imported.push(DraftRule {
                tool: vec!["WebFetch".to_owned()],
                arguments: vec![("url".to_owned(), list_host_urls(&host, rule.effect))],
                ..self.draft_rule(rule)
            });
        }
        if !self.context.sandboxed {
            return;
        }
        if rule.is_allow() && !self.may_allow_hosts {
            return self.note(rule, Left, "another file allows only hosts that it allows itself");
        }
        if rule.is_allow()
            && let Err(why) = check_breadth(&pattern)
        {
            return self.note(rule, Left, &why.to_string());
        }
        self.imported.push(DraftRule { hosts: vec![pattern.to_string()], ..self.draft_rule(rule) });
    }
}

/// Returns the URLs of a host. For a refusal, they include forms with a user and a port.
fn list_host_urls(host: &str, effect: PolicyVerdict) -> Vec<String> {
    let mut all = Vec::new();
    for scheme in ["https", "http"] {
        all.push(format!("{scheme}://{host}"));
        all.push(format!("{scheme}://{host}/*"));
        if effect != PolicyVerdict::Allow {
            all.push(format!("{scheme}://{host}:*"));
            all.push(format!("{scheme}://*@{host}*"));
            all.push(format!("{scheme}://{host}?*"));
            all.push(format!("{scheme}://{host}#*"));
        }
    }
    all
}

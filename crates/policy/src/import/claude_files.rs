//! Converts rules of Claude Code about files to Stockade rules and to powers of profile `workspace`.
//!
//! A Stockade rule decides on acts of tools and the text of a command line. The profile controls the files of a
//! running command: `hide` and `protect` apply there, and take no patterns. A part that neither can express
//! is noted as lost.

use std::path::Path;

use stockade_model::{NameList, PolicyVerdict};

use super::ImportDeviation::{Left, Needless, Stricter, Weaker};
use super::claude::{ClaudeReader, ClaudeRule};
use super::claude_sandbox::{directory_of, is_workspace};
use super::scope::SourceScope;
use crate::draft::DraftRule;
use crate::file::FileOperation;
use crate::pattern::PathPattern;
use crate::resolve::holds_name;
use crate::shipped;
use crate::text::{ConfigPath, ProtectedName};

/// Tools that read files or list them.
pub(super) const READ_TOOLS: &[&str] = &["Read", "Grep", "Glob", "LS", "NotebookRead"];
/// Tools that change files.
pub(super) const WRITE_TOOLS: &[&str] = &["Edit", "Write", "MultiEdit", "NotebookEdit"];

const READS_ALL: &str = "it applies to tools only: commands can still read files";
const WRITES_ALL: &str = "it applies to tools only: commands can still write; use profile `read-only` against that";
const NO_FORM: &str = "the path cannot be expressed here: tools are asked about every file";
const NOT_HIDDEN_REASON: &str =
    "commands can still read it: `hide` takes no pattern and no whole workspace, home or root";
const HIDDEN_AT_THE_TOP: &str = "in directories below, commands can still read it: hide each by its path";
const HIDDEN_AROUND: &str = "it is hidden, but commands can still read a workspace that lies in it";
const HIDDEN_TO_ASK: &str = "it is hidden from commands, without a question";
const NOT_PROTECTED_REASON: &str = "commands can still write it: `protect` takes no pattern";
const WHOLE_WORKSPACE: &str = "use profile `read-only` for a workspace that is not written";
const WRITTEN_AROUND: &str =
    "commands can still write a workspace that is it, holds it or lies in it: use profile `read-only` there";
const GIVEN_TO_WRITE: &str = "commands can still reach it: another key of these settings gives it to them to write";
const ALREADY_PROTECTED_REASON: &str = "the name is protected in every writable directory";
const NOT_WRITTEN: &str = "commands write nothing there, unless the workspace lies in it";

/// Directories of the system, which do not contain workspaces.
const SYSTEM_DIRECTORIES: NameList = NameList::new(include_str!("../../knowledge/system_directories.txt"));

impl ClaudeReader<'_> {
    /// Converts a rule about reading. `Read` applies to every tool that reads; rules for the other tools
    /// allow only that tool.
    pub(super) fn convert_read_rule(&mut self, rule: ClaudeRule<'_>, tool: &str, pattern: Option<&str>) {
        if !rule.is_allow() || tool == "Read" {
            return self.convert_file_rule(rule, pattern, &[FileOperation::Read]);
        }
        if pattern.is_some() {
            return self.note(rule, Left, "paths are allowed by `Read` alone there");
        }
        self.imported.push(DraftRule { tool: vec![tool.to_owned()], ..self.draft_rule(rule) });
    }

    /// Converts a rule about writing. `Edit` with a path applies to every tool that changes files; a bare
    /// tool name allows only that tool.
    pub(super) fn convert_write_rule(&mut self, rule: ClaudeRule<'_>, tool: &str, pattern: Option<&str>) {
        use FileOperation::{Create, Delete, Write};
        if !rule.is_allow() {
            return self.convert_file_rule(rule, pattern, &[Write, Create, Delete]);
        }
        let why = match pattern {
            None => "it also changes files that are asked about there; in the workspace no rule is needed for it",
            Some(_) if tool != "Edit" => "paths are allowed by `Edit` alone there",
            Some(pattern) => {
                let own = self.path_patterns(pattern, rule.effect);
                if own.is_some_and(|own| own.patterns.iter().all(|pattern| pattern.starts_with("./"))) {
                    let why =
                        "the profile allows it; names that are protected are asked about, and deletion is not included";
                    return self.note(rule, Stricter, why);
                }
                "beyond the workspace it also reaches files that are asked about there"
            }
        };
        self.note(rule, Left, why);
    }

    fn convert_file_rule(&mut self, rule: ClaudeRule<'_>, pattern: Option<&str>, operations: &[FileOperation]) {
        let reads = matches!(operations, [FileOperation::Read]);
        let mut draft =
            DraftRule { operations: operations.to_vec(), files: vec!["/".to_owned()], ..self.draft_rule(rule) };
        let Some(pattern) = pattern else {
            if !rule.is_allow() {
                self.lost_to_commands(rule, if reads { READS_ALL } else { WRITES_ALL });
            }
            return self.imported.push(draft);
        };
        let Some(own) = self.path_patterns(pattern, rule.effect) else {
            if rule.is_allow() {
                return self.note(rule, Left, "the path pattern cannot be expressed here");
            }
            let why = format!("{NO_FORM}, and commands can still {} it", if reads { "read" } else { "write" });
            self.lost_to_commands(rule, &why);
            draft.effect = PolicyVerdict::Ask;
            return self.imported.push(draft);
        };
        if own.broader {
            self.note(rule, Stricter, "it applies in any directory");
        }
        for pattern in own.patterns.iter().filter(|_| !rule.is_allow()) {
            if reads {
                self.hide_from_commands(rule, pattern, own.is_file);
            } else {
                self.protect_from_commands(rule, pattern, own.is_file);
            }
        }
        draft.files = own.patterns;
        self.imported.push(draft);
    }

    /// Notes that a rule does not apply to commands, if any command runs.
    fn lost_to_commands(&mut self, rule: ClaudeRule<'_>, why: &str) {
        if self.context.leaves_commands(rule.effect) {
            self.note(rule, Weaker, why);
        }
    }

    fn hide_from_commands(&mut self, rule: ClaudeRule<'_>, pattern: &str, is_file: bool) {
        let directory = directory_of(pattern).parse::<ConfigPath>().ok();
        let top = pattern.strip_prefix("./**/").and_then(|rest| format!("./{}", directory_of(rest)).parse().ok());
        let is_whole = |path: &ConfigPath| ["/", "~", "~/", "./"].contains(&path.to_string().as_str());
        let Some(path) = directory.as_ref().or(top.as_ref()).filter(|path| !is_whole(path)) else {
            return self.lost_to_commands(rule, NOT_HIDDEN_REASON);
        };
        self.imported.add_to_profile("hide", path.to_string());
        if top.is_some() {
            self.lost_to_commands(rule, HIDDEN_AT_THE_TOP);
        } else {
            self.note_what_stays_readable(rule, path, is_file);
        }
    }

    /// Notes the parts of a hidden path that commands can still read.
    pub(super) fn note_what_stays_readable(&mut self, rule: ClaudeRule<'_>, path: &ConfigPath, is_file: bool) {
        let is_around = is_workspace(path) || (!is_file && may_hold_a_workspace(path));
        if self.context.writes.iter().any(|written| written.is_beneath(path)) {
            self.lost_to_commands(rule, GIVEN_TO_WRITE);
        } else if is_around && !self.context.reveals_workspace {
            self.lost_to_commands(rule, HIDDEN_AROUND);
        } else if rule.effect == PolicyVerdict::Ask {
            self.note(rule, Stricter, HIDDEN_TO_ASK);
        }
    }

    fn protect_from_commands(&mut self, rule: ClaudeRule<'_>, pattern: &str, is_file: bool) {
        // A protected name applies at every depth, as such a pattern does.
        let below = ["./**/", "~/**/", "/**/"].iter().find_map(|start| Some((*start, pattern.strip_prefix(start)?)));
        let (start, path) = below.map_or_else(
            || ("", directory_of(pattern).parse()),
            |(start, rest)| (start, format!("./{}", directory_of(rest)).parse()),
        );
        match path {
            // Beneath the home or the root, the matched directory may contain the workspace.
            Ok(path) if !is_file && matches!(start, "~/**/" | "/**/") => {
                self.add_protected(&path);
                self.lost_to_commands(rule, WRITTEN_AROUND);
            }
            Ok(path) => self.protect_path(rule, &path, is_file),
            Err(_) => self.lost_to_commands(rule, NOT_PROTECTED_REASON),
        }
    }

    /// Prevents commands from writing a path, or notes that they still can.
    pub(super) fn protect_path(&mut self, rule: ClaudeRule<'_>, path: &ConfigPath, is_file: bool) {
        let is_outside = !path.is_in_workspace();
        let depth = path.path_bytes().split(|byte| *byte == b'/').filter(|part| !part.is_empty()).count();
        let allows_write =
            |written: &ConfigPath| name_of(path).is_some_and(|name| holds_name(Path::new(&written.to_string()), &name));
        if depth == 0 {
            self.lost_to_commands(rule, WHOLE_WORKSPACE);
        } else if self.context.writes.iter().any(allows_write) {
            self.lost_to_commands(rule, GIVEN_TO_WRITE);
        } else if is_outside
            && is_no_workspace(path)
            && !self.context.writes.iter().any(|written| can_reach_path(written, path))
        {
            self.note(rule, Needless, NOT_WRITTEN);
        } else if is_outside && !is_file {
            // The last name alone, without its parent directories, would protect too much.
            if depth > 1 {
                self.add_protected(path);
            }
            self.lost_to_commands(rule, WRITTEN_AROUND);
        } else if self.add_protected(path) {
            self.note(rule, Stricter, ALREADY_PROTECTED_REASON);
        } else {
            self.lost_to_commands(rule, NOT_PROTECTED_REASON);
        }
    }

    /// Protects the last name of a path, at every location. Returns whether a protected name can express it.
    fn add_protected(&mut self, path: &ConfigPath) -> bool {
        let name = name_of(path);
        if let Some(name) = &name {
            self.imported.add_to_profile("protect", name.clone());
        }
        name.is_some()
    }

    /// Converts a pattern with gitignore's anchors: `//` is the root, `~/` home, `/` the directory of the
    /// settings. Any other pattern is relative to the session's directory.
    fn path_patterns(&self, text: &str, effect: PolicyVerdict) -> Option<OwnPatterns> {
        if text.starts_with('!') || text.starts_with("../") || text.trim_matches('/').is_empty() {
            return None;
        }
        let raises = effect != PolicyVerdict::Allow;
        let mut broader = false;
        let patterns = if let Some(rest) = text.strip_prefix("//") {
            vec![format!("/{rest}")]
        } else if text.starts_with("~/") || text == "~" {
            vec![text.to_owned()]
        } else if let Some(rest) = text.strip_prefix('/') {
            match self.scope {
                SourceScope::User => vec![format!("~/.claude/{rest}")],
                SourceScope::Project | SourceScope::Admin => vec![format!("./{rest}")],
                _ if raises => {
                    broader = true;
                    vec![format!("./{rest}"), format!("~/.claude/{rest}")]
                }
                _ => return None,
            }
        } else if let Some(rest) = text.strip_prefix("./") {
            vec![format!("./{rest}")]
        } else if !text.trim_end_matches('/').contains('/') && raises {
            // gitignore(5): a pattern without a slash matches at every depth.
            broader = true;
            vec![format!("./**/{text}")]
        } else {
            vec![format!("./{text}")]
        };
        let patterns: Option<Vec<String>> =
            patterns.iter().map(|text| text.parse::<PathPattern>().ok().map(|own| own.to_string())).collect();
        patterns.map(|patterns| OwnPatterns { patterns, broader, is_file: names_a_file(text) })
    }
}

struct OwnPatterns {
    patterns: Vec<String>,
    broader: bool,
    /// The pattern names one file, which cannot contain other files.
    is_file: bool,
}

/// Returns whether a path ends in a name with an extension. A directory without a final slash may have such
/// a name, but a workspace is assumed not to.
pub(super) fn names_a_file(text: &str) -> bool {
    let name = text.rsplit('/').next().unwrap_or_default();
    name.trim_start_matches('.').contains('.')
}

/// Returns a path as a protected name, without its anchor.
fn name_of(path: &ConfigPath) -> Option<String> {
    let text = std::str::from_utf8(path.path_bytes()).ok()?;
    text.trim_start_matches('/').parse::<ProtectedName>().ok().map(|name| name.0)
}

fn may_hold_a_workspace(path: &ConfigPath) -> bool {
    !path.is_in_workspace() && !is_no_workspace(path)
}

/// Returns whether a path is a part of the system, or credentials that every profile hides.
fn is_no_workspace(path: &ConfigPath) -> bool {
    let is_beneath = |known: &str| known.parse().is_ok_and(|known| path.is_beneath(&known));
    let mut credentials = shipped::credential_groups().iter().flat_map(|(paths, _)| paths);
    SYSTEM_DIRECTORIES.names().any(is_beneath) || credentials.any(|known| is_beneath(known))
}

/// Returns whether a writable path can reach a path outside the workspace. An absolute path may be in the
/// home directory, and vice versa.
fn can_reach_path(written: &ConfigPath, path: &ConfigPath) -> bool {
    match (written, path) {
        (ConfigPath::Workspace(_), _) | (ConfigPath::Home(_), ConfigPath::Absolute(_)) => false,
        (ConfigPath::Absolute(_), ConfigPath::Home(_)) => true,
        _ => written.is_beneath(path) || path.is_beneath(written),
    }
}

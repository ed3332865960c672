//! The location from which a tool reads a file of rules. The location decides the precedence of the file in
//! the tool, and the base of its relative paths.
//!
//! Must not read files: only names are compared.

use std::path::Path;

use super::ImportTool;

/// Scope of a file in its tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceScope {
    /// Unknown. Entries that depend on the scope become stricter.
    #[default]
    Unknown,
    /// Installed by an extension of the tool.
    Extension,
    /// In the project: committed, or local to one copy of it.
    Project,
    /// The user's own.
    User,
    /// Set by an administrator, with precedence over all others.
    Admin,
}

impl SourceScope {
    /// Every scope that a user may name, with its name.
    pub const NAMED_SCOPES: [(&'static str, Self); 4] =
        [("extension", Self::Extension), ("project", Self::Project), ("user", Self::User), ("admin", Self::Admin)];

    /// Returns the scope of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMED_SCOPES.iter().find(|(known, _)| *known == name).map(|(_, scope)| *scope)
    }

    /// Returns the scope that a tool gives a file by its location; `path` is absolute and without symbolic
    /// links.
    pub fn of_path(tool: ImportTool, path: &Path, home: &Path) -> Self {
        let parent = |depth: usize| path.ancestors().nth(depth).unwrap_or(Path::new("/"));
        let named = |depth: usize, name: &str| parent(depth).file_name().is_some_and(|own| own == name);
        match tool {
            ImportTool::Claude if path.starts_with("/etc/claude-code") => Self::Admin,
            ImportTool::Claude if !named(1, ".claude") => Self::Unknown,
            ImportTool::Claude if parent(2) == home => Self::User,
            ImportTool::Claude => Self::Project,
            ImportTool::Gemini if path.starts_with("/etc/gemini-cli") => Self::Admin,
            ImportTool::Gemini if path.starts_with(home.join(".gemini/extensions")) => Self::Extension,
            ImportTool::Gemini if path.starts_with(home.join(".gemini")) => Self::User,
            ImportTool::Gemini if named(1, ".gemini") || (named(1, "policies") && named(2, ".gemini")) => Self::Project,
            // Codex merges its files to one, and the strictest decision applies.
            ImportTool::Gemini | ImportTool::Codex => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_have_scopes() {
        for (tool, path, expected) in [
            (ImportTool::Claude, "/etc/claude-code/managed-settings.json", SourceScope::Admin),
            (ImportTool::Claude, "/home/u/.claude/settings.json", SourceScope::User),
            (ImportTool::Claude, "/home/u/work/.claude/settings.json", SourceScope::Project),
            (ImportTool::Claude, "/home/u/work/.claude/settings.local.json", SourceScope::Project),
            (ImportTool::Claude, "/home/u/settings.json", SourceScope::Unknown),
            (ImportTool::Gemini, "/etc/gemini-cli/policies/a.toml", SourceScope::Admin),
            (ImportTool::Gemini, "/home/u/.gemini/policies/a.toml", SourceScope::User),
            (ImportTool::Gemini, "/home/u/.gemini/settings.json", SourceScope::User),
            (ImportTool::Gemini, "/home/u/.gemini/extensions/x/policies/a.toml", SourceScope::Extension),
            (ImportTool::Gemini, "/home/u/work/.gemini/policies/a.toml", SourceScope::Project),
            (ImportTool::Gemini, "/home/u/work/.gemini/settings.json", SourceScope::Project),
            (ImportTool::Gemini, "/tmp/a.toml", SourceScope::Unknown),
            (ImportTool::Codex, "/home/u/.codex/rules/a.rules", SourceScope::Unknown),
        ] {
            assert_eq!(SourceScope::of_path(tool, Path::new(path), Path::new("/home/u")), expected, "{path}");
        }
        assert_eq!(SourceScope::from_name("admin"), Some(SourceScope::Admin));
        assert_eq!(SourceScope::from_name("managed"), None);
    }
}

//! The location from which a tool reads a file of rules. The location decides the precedence of the file in
//! the tool, and the base of its relative paths.
//!
//! Must not read files: only names are compared.

use std::path::Path;

use super::Tool;

/// Scope of a file in its tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
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

impl Scope {
    /// Every scope that a user may name, with its name.
    pub const NAMED: [(&'static str, Self); 4] =
        [("extension", Self::Extension), ("project", Self::Project), ("user", Self::User), ("admin", Self::Admin)];

    /// Returns the scope of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, scope)| *scope)
    }

    /// Returns the scope that a tool gives a file by its location; `path` is absolute and without symbolic
    /// links.
    pub fn of_path(tool: Tool, path: &Path, home: &Path) -> Self {
        let parent = |depth: usize| path.ancestors().nth(depth).unwrap_or(Path::new("/"));
        let named = |depth: usize, name: &str| parent(depth).file_name().is_some_and(|own| own == name);
        match tool {
            Tool::Claude if path.starts_with("/etc/claude-code") => Self::Admin,
            Tool::Claude if !named(1, ".claude") => Self::Unknown,
            Tool::Claude if parent(2) == home => Self::User,
            Tool::Claude => Self::Project,
            Tool::Gemini if path.starts_with("/etc/gemini-cli") => Self::Admin,
            Tool::Gemini if path.starts_with(home.join(".gemini/extensions")) => Self::Extension,
            Tool::Gemini if path.starts_with(home.join(".gemini")) => Self::User,
            Tool::Gemini if named(1, ".gemini") || (named(1, "policies") && named(2, ".gemini")) => Self::Project,
            // Codex merges its files to one, and the strictest decision applies.
            Tool::Gemini | Tool::Codex => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_scopes() {
        for (tool, path, expected) in [
            (Tool::Claude, "/etc/claude-code/managed-settings.json", Scope::Admin),
            (Tool::Claude, "/home/u/.claude/settings.json", Scope::User),
            (Tool::Claude, "/home/u/work/.claude/settings.json", Scope::Project),
            (Tool::Claude, "/home/u/work/.claude/settings.local.json", Scope::Project),
            (Tool::Claude, "/home/u/settings.json", Scope::Unknown),
            (Tool::Gemini, "/etc/gemini-cli/policies/a.toml", Scope::Admin),
            (Tool::Gemini, "/home/u/.gemini/policies/a.toml", Scope::User),
            (Tool::Gemini, "/home/u/.gemini/settings.json", Scope::User),
            (Tool::Gemini, "/home/u/.gemini/extensions/x/policies/a.toml", Scope::Extension),
            (Tool::Gemini, "/home/u/work/.gemini/policies/a.toml", Scope::Project),
            (Tool::Gemini, "/home/u/work/.gemini/settings.json", Scope::Project),
            (Tool::Gemini, "/tmp/a.toml", Scope::Unknown),
            (Tool::Codex, "/home/u/.codex/rules/a.rules", Scope::Unknown),
        ] {
            assert_eq!(Scope::of_path(tool, Path::new(path), Path::new("/home/u")), expected, "{path}");
        }
        assert_eq!(Scope::named("admin"), Some(Scope::Admin));
        assert_eq!(Scope::named("managed"), None);
    }
}

//! Settings of a run so that a command classified as `allow` runs nothing that the repository
//! configures. They are variables to set and to remove, and repositories that must configure no
//! driver. The sets are data in `knowledge/neutralise.toml`. This module checks a repository by the
//! bytes of its files; the caller reads them.

use std::collections::{BTreeMap, BTreeSet};

use stockade_model::RawText;

use crate::knowledge::{self, lists};

/// Settings that the run of a command must carry for its `allow` to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SanitizeSettings {
    /// Prefixes of variable names that must not reach the command, except those in `environment`.
    pub remove: Vec<String>,
    /// Variables to set, whatever the caller passed.
    pub environment: BTreeMap<String, String>,
    /// Directories in which git looks for a repository that must be plain: see
    /// [`is_plain_configuration`], [`has_no_submodules`].
    pub plain_repositories: Vec<RawText>,
    /// Directories in which git looks for a repository that must be quiet: see
    /// [`is_quiet_configuration`](crate::is_quiet_configuration), [`is_quiet_hook`](crate::is_quiet_hook),
    /// [`has_no_submodules`].
    pub quiet_repositories: Vec<RawText>,
    /// True if a repository in an unknown directory must be plain or quiet, which cannot be
    /// checked.
    pub unknown_repository: bool,
    /// Paths at which no file may exist. Then git's argument is a branch, and not a file whose
    /// changes would be lost.
    pub absent: Vec<RawText>,
    /// True if `RUSTUP_TOOLCHAIN` must name the user's own toolchain.
    pub rustup: bool,
}

impl SanitizeSettings {
    /// Returns whether nothing is required.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the conditions to check if no settings can be applied, because the command is not
    /// known to read only. `None` if checks are not sufficient.
    pub(crate) fn looked_at(needed: &BTreeSet<(&'static str, Option<Vec<u8>>)>) -> Option<Self> {
        let is_enough = |set: &str| knowledge::find_sanitize_set(set).is_some_and(|set| set.quiet);
        if needed.is_empty() || !needed.iter().all(|(set, _)| is_enough(set)) {
            return None;
        }
        let directories: BTreeSet<_> = needed.iter().map(|(_, directory)| directory.as_deref()).collect();
        Some(Self {
            unknown_repository: directories.contains(&None),
            quiet_repositories: directories.into_iter().flatten().map(RawText::from).collect(),
            ..Self::default()
        })
    }

    /// Returns the settings for the sets that a walk found, with their directories.
    pub(crate) fn from_sets(needed: &BTreeSet<(&'static str, Option<Vec<u8>>)>) -> Self {
        let mut out = Self::default();
        let mut config = Vec::new();
        let names: BTreeSet<&str> = needed.iter().map(|(set, _)| *set).collect();
        for set in names.iter().filter_map(|name| knowledge::find_sanitize_set(name)) {
            out.remove.extend(set.remove.iter().map(|text| (*text).to_owned()));
            let pairs = set.environment.iter().filter_map(|pair| pair.split_once('='));
            out.environment.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
            config.extend(set.config.iter().filter_map(|pair| pair.split_once('=')));
            out.rustup |= set.rustup;
        }
        if !config.is_empty() {
            out.environment.insert("GIT_CONFIG_COUNT".to_owned(), config.len().to_string());
        }
        for (index, (key, value)) in config.into_iter().enumerate() {
            out.environment.insert(format!("GIT_CONFIG_KEY_{index}"), key.to_owned());
            out.environment.insert(format!("GIT_CONFIG_VALUE_{index}"), value.to_owned());
        }
        for (set, directory) in needed {
            match directory {
                _ if !knowledge::find_sanitize_set(set).is_some_and(|set| set.repository) => {}
                Some(directory) => out.plain_repositories.push(RawText::from(directory.as_slice())),
                None => out.unknown_repository = true,
            }
        }
        out
    }
}

/// Returns whether a repository's configuration (the bytes of `.git/config`) names no driver,
/// includes no other file and moves nothing. The configuration must have only known sections and
/// keys. Parsed by lines, because git ends a key at the line's end. A continued value is treated as
/// a key and refused.
pub fn is_plain_configuration(config: &[u8]) -> bool {
    has_only(config, lists::PLAIN_SECTIONS, &["diff", "merge", "core"])
}

/// Returns whether a configuration contains only these sections and keys. A key may be listed with
/// its only permitted value: `key=value`. `whole` sections have no subsections.
pub(crate) fn has_only(config: &[u8], sections: &[(&str, &[&str])], whole: &[&str]) -> bool {
    let Ok(text) = std::str::from_utf8(config) else { return false };
    let mut keys: Option<&[&str]> = None;
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let Some((header, rest)) = header.split_once(']') else { return false };
            let name: String = header.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            let name = name.to_ascii_lowercase();
            let after = header[name.len()..].trim_start();
            let named =
                header.len() == name.len() || (after.starts_with('"') && after.ends_with('"') && !after.contains('\\'));
            let Some((_, allowed)) = sections.iter().find(|(n, _)| *n == name) else { return false };
            // `diff "x"` is a driver; `[section] key` on one line is not parsed.
            let driver = !after.is_empty() && whole.contains(&name.as_str());
            if !named || driver || !rest.trim().is_empty() {
                return false;
            }
            keys = Some(*allowed);
            continue;
        }
        let key: String = line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        let (key, value) = (key.to_ascii_lowercase(), line[key.len()..].trim_start().strip_prefix('='));
        let is_listed = |listed: &&str| match listed.split_once('=') {
            Some((name, only)) => name == key && value.map(str::trim) == Some(only),
            None => *listed == key,
        };
        let plain = match keys {
            None => false,
            Some([]) => !key.is_empty(),
            Some(allowed) => allowed.iter().any(is_listed),
        };
        if !plain || line.ends_with('\\') {
            return false;
        }
    }
    true
}

/// Returns whether an index (the bytes of `.git/index`) contains no submodule. Git starts itself in
/// each submodule, with a configuration that was not checked. Every version of the format stores a
/// submodule's mode as the bytes `00 00 e0 00` (gitformat-index(5)). The same bytes elsewhere also
/// count, which only causes needless questions.
pub fn has_no_submodules(index: &[u8]) -> bool {
    !index.windows(4).any(|bytes| bytes == [0, 0, 0xe0, 0])
}

/// Returns the default toolchain of the user's rustup (from the bytes of
/// `~/.rustup/settings.toml`). Source: rustup's settings.rs.
pub fn default_toolchain(settings: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(settings).ok()?;
    let top = text.lines().take_while(|line| !line.trim_start().starts_with('['));
    let value = top.filter_map(|line| line.split_once('=')).find(|(key, _)| key.trim() == "default_toolchain")?.1;
    let name = value.trim().strip_prefix('"')?.strip_suffix('"')?;
    // A path could be a toolchain that another user made.
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    plain.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(config: &str, plain: bool) {
        assert_eq!(is_plain_configuration(config.as_bytes()), plain, "{config}");
    }

    #[test]
    fn configurations_without_drivers_are_plain() {
        check("", true);
        check("[core]\n\trepositoryformatversion = 0\n\tbare = false\n[remote \"origin\"]\n\turl = https://x\n", true);
        check("[branch \"main\"]\n\tremote = origin # a comment\n; another\n", true);
        check("[user]\n\tname = A \"B\" C\n", true);
        for driver in [
            "[filter \"x\"]\n\tclean = ./x\n",
            "[filter.x]\n\tclean = ./x\n",
            "[FILTER \"x\"]\n\tclean = ./x\n",
            "[diff \"x\"]\n\ttextconv = ./x\n",
            "[diff]\n\texternal = ./x\n",
            "[merge \"x\"]\n\tdriver = ./x\n",
            "[include]\n\tpath = ../evil\n",
            "[includeIf \"gitdir:/\"]\n\tpath = ../evil\n",
            "[core]\n\tworktree = /\n",
            "[core]\n\tattributesFile = x\n",
            "[extensions]\n\tworktreeConfig = true\n",
            "[submodule \"x\"]\n\tignore = none\n",
            "[core] bare = false\n",
            "[user]\n\tname = a\\\n[filter \"x\"]\n\tclean = ./x\n",
            "[user]\n\tname = a\\\n",
            "clean = x\n",
            "[user \"a\\\"]\n",
            "[core",
            "[diff \"x\"]",
        ] {
            check(driver, false);
        }
        assert!(!is_plain_configuration(b"[user]\n\tname = \xff\n"));
    }

    #[test]
    fn the_default_toolchain_is_read() {
        let read = |text: &str| default_toolchain(text.as_bytes());
        let settings = "version = \"12\"\ndefault_toolchain = \"stable-x\"\n[overrides]\n";
        assert_eq!(read(settings).as_deref(), Some("stable-x"));
        assert_eq!(read("[overrides]\ndefault_toolchain = \"x\"\n"), None);
        assert_eq!(read("default_toolchain = \"/tmp/x\"\n"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn submodules_are_seen_in_an_index() {
        assert!(has_no_submodules(b"DIRC\0\0\0\x02\0\0\0\x01\0\0\x81\xa4"));
        assert!(!has_no_submodules(b"DIRC\0\0\0\x02\0\0\0\x01xx\0\0\xe0\0"));
    }
}

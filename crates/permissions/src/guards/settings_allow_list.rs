//! Allow-list of the names and values of repository settings that are harmless. Every other setting
//! may make git run a program or obey another file, now or in a later version, and counts as code.
//! Pure.

use super::destinations::{
    SettingsVersions, find_moved_destination, goes_well, is_address_key, list_stale_settings, loses_address,
    remote_addresses,
};
use super::settings_reader::{GitSetting, parse_settings};
use super::settings_words::{
    GUARDING, is_branch, is_harmless_alone, is_harmless_named, is_nick, is_relative_path, shorten_text,
};
use super::view::{join_name, last_component, parent_path};

/// The kind of settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsFileKind {
    /// Settings of a repository or of one of its work trees.
    Repository,
    /// `.gitmodules`.
    Modules,
}

/// Result of judging a text of settings against the earlier ones.
#[derive(Debug, PartialEq, Eq)]
pub enum ContentVerdict {
    /// The text carries no new code.
    Harmless,
    /// The text is harmless with this addition: branches follow a remote that gets another name.
    HarmlessWith(Vec<u8>),
    /// The text carries new code.
    Carries {
        /// Description of the code, for display.
        what: String,
        /// The same text without the code, if that is possible.
        without: Option<Vec<u8>>,
    },
}

/// Most settings that are shown.
const MAX_SHOWN_SETTINGS: usize = 5;

/// The facts by which settings are checked.
#[derive(Clone, Copy)]
pub struct SettingsContext<'t> {
    /// The settings when the run first changed them. They decide with which hosts the user
    /// communicates.
    pub first: &'t [u8],
    /// The current settings.
    pub now: &'t [u8],
    /// Returns whether the run may read everything that git would fetch from an absolute path, now
    /// and later.
    pub may_fetch: &'t dyn Fn(&[u8]) -> bool,
    /// True if the run has made the repository itself. No settings of the user can be lost there.
    pub is_own: bool,
    /// True if these settings also apply to other work trees, in which a relative address means
    /// another path.
    pub has_work_trees: bool,
}

/// The same facts, with the settings parsed.
struct ParsedSettings<'t> {
    first: Vec<GitSetting>,
    now: Vec<GitSetting>,
    before: SettingsContext<'t>,
}

impl<'t> ParsedSettings<'t> {
    fn parse_context(before: SettingsContext<'t>) -> Option<Self> {
        Some(Self { first: parse_settings(before.first)?, now: parse_settings(before.now)?, before })
    }

    /// Returns the texts that decide on the destinations of branches, with `found` as the new one.
    fn settings_versions<'s>(&'s self, found: &'s [GitSetting]) -> SettingsVersions<'s> {
        SettingsVersions { first: &self.first, now: &self.now, new: found }
    }
}

/// Reason why a text does not pass.
enum SettingsFault<'s> {
    /// These settings are not allowed.
    Settings(Vec<&'s GitSetting>),
    /// The text as a whole is not allowed. The current text stays, because parts of the change mean
    /// nothing alone.
    Whole(String),
}

/// Checks the text `new`, which is to replace the settings at `path`.
pub fn check_settings(file: SettingsFileKind, path: &[u8], before: SettingsContext<'_>, new: &[u8]) -> ContentVerdict {
    let unreadable = |what: &str| ContentVerdict::Carries { what: what.to_owned(), without: None };
    let Some(known) = ParsedSettings::parse_context(before) else {
        return unreadable("a change of settings that cannot be parsed reliably");
    };
    let Some(found) = parse_settings(new) else { return unreadable("settings that cannot be parsed reliably") };
    let stale_settings = list_stale_settings(&known.now, &found);
    if !stale_settings.is_empty() {
        let mut whole = new.to_vec();
        for (setting, name) in stale_settings.iter().rev().filter(|(_, name)| is_nick(name)) {
            whole.splice(setting.span.clone(), [setting.key.as_bytes(), b" = ", name].concat());
        }
        if parse_settings(&whole).is_some_and(|whole| find_fault(file, path, &known, &whole).is_none()) {
            return ContentVerdict::HarmlessWith(whole);
        }
    }
    let bad = match find_fault(file, path, &known, &found) {
        None => return ContentVerdict::Harmless,
        Some(SettingsFault::Whole(what)) => {
            return ContentVerdict::Carries { what, without: Some(before.now.to_vec()) };
        }
        Some(SettingsFault::Settings(bad)) => bad,
    };
    let mut without = new.to_vec();
    for setting in bad.iter().rev() {
        without.drain(setting.span.clone());
    }
    // The rest is another text, which may lose settings or change destinations where the whole text
    // did not.
    let passes = parse_settings(&without).is_some_and(|rest| find_fault(file, path, &known, &rest).is_none());
    ContentVerdict::Carries { what: format_settings(&bad), without: passes.then_some(without) }
}

/// Returns the reason why these settings do not pass, if there is one.
fn find_fault<'s>(
    file: SettingsFileKind,
    path: &[u8],
    known: &ParsedSettings<'_>,
    found: &'s [GitSetting],
) -> Option<SettingsFault<'s>> {
    if let Some(lost) = find_lost_setting(file, path, known, found) {
        let is_changed = found.iter().any(|new| new.is_named_as(lost));
        let how = if is_changed {
            "changed, although it belongs to the user"
        } else {
            "removed, although it belongs to the user"
        };
        return Some(SettingsFault::Whole(format!("{} {how}", lost.full_name())));
    }
    let bad = find_code_settings(file, path, known, found);
    if !bad.is_empty() {
        return Some(SettingsFault::Settings(bad));
    }
    if file == SettingsFileKind::Modules {
        return None;
    }
    find_moved_destination(known.settings_versions(found)).map(SettingsFault::Whole)
}

/// Returns the user's setting that would be lost with the whole settings file of the repository at
/// `path`: one that controls how git runs programs. The address of a remote may be lost with the
/// file.
pub fn lost_with(path: &[u8], before: SettingsContext<'_>) -> Option<String> {
    let Some(known) = ParsedSettings::parse_context(before) else {
        return Some("settings that cannot be parsed reliably".to_owned());
    };
    // `extensions` may be lost as well, and so may settings that protect little.
    let is_weak = |setting: &GitSetting| {
        is_protection(setting)
            && !is_strict(setting)
            && is_harmless_alone(&setting.section, &setting.key, setting.value.as_deref().unwrap_or(b"true"))
    };
    let goes_along =
        |setting: &&GitSetting| is_remote_address(setting) || setting.section == "extensions" || is_weak(setting);
    let remaining_settings: Vec<GitSetting> = known.now.iter().filter(goes_along).cloned().collect();
    find_lost_setting(SettingsFileKind::Repository, path, &known, &remaining_settings).map(GitSetting::full_name)
}

fn is_remote_address(setting: &GitSetting) -> bool {
    setting.section == "remote" && setting.key == "url"
}

/// Returns a setting of the user that exists now and would be lost. It is the address of a remote,
/// because another remote could then take its name, or it controls how git runs programs. The
/// settings of a branch or a module may be removed with it.
fn find_lost_setting<'k>(
    file: SettingsFileKind,
    path: &[u8],
    known: &'k ParsedSettings<'_>,
    found: &[GitSetting],
) -> Option<&'k GitSetting> {
    let is_persons = |setting: &&GitSetting| known.first.iter().any(|first| first.says_same(setting));
    // All values of the user for a key, in their order, because the last one counts.
    let are_all_there = |setting: &GitSetting| {
        let mut new = found.iter().filter(|new| new.is_named_as(setting));
        let mut old = known.now.iter().filter(|old| old.is_named_as(setting)).filter(is_persons);
        old.all(|old| new.any(|new| new.says_same(old)))
    };
    let is_lost = |setting: &&GitSetting| match is_remote_address(setting) {
        true => !found.iter().any(|new| is_remote_address(new) && new.value == setting.value),
        false => {
            let goes_along = setting.subsection.is_some() && matches!(setting.section.as_str(), "branch" | "submodule");
            !goes_along
                && !are_all_there(setting)
                && (is_protection(setting) || !is_harmless(setting, path, known, found))
        }
    };
    let of_person = known.first.iter().filter(|_| file == SettingsFileKind::Repository);
    of_person.filter(|setting| known.now.iter().any(|now| now.says_same(setting))).find(is_lost)
}

fn format_settings(bad: &[&GitSetting]) -> String {
    let one = |setting: &&GitSetting| {
        let value = String::from_utf8_lossy(setting.value.as_deref().unwrap_or(b"true")).into_owned();
        format!("{} = {}", setting.full_name(), shorten_text(&value))
    };
    let mut lines: Vec<String> = bad.iter().take(MAX_SHOWN_SETTINGS).map(one).collect();
    if bad.len() > MAX_SHOWN_SETTINGS {
        lines.push(format!("{} more", bad.len() - MAX_SHOWN_SETTINGS));
    }
    lines.join(", ")
}

/// Returns the new settings that carry code.
fn find_code_settings<'s>(
    file: SettingsFileKind,
    path: &[u8],
    known: &ParsedSettings<'_>,
    found: &'s [GitSetting],
) -> Vec<&'s GitSetting> {
    let mut bad: Vec<&GitSetting> = Vec::new();
    for (at, setting) in found.iter().enumerate() {
        let is_kept = || {
            // In their old order, because the last one counts.
            let mut old = known.now.iter().filter(|old| old.is_named_as(setting));
            let mut new = found[..=at].iter().filter(|new| new.is_named_as(setting) && !bad.contains(new));
            new.all(|new| old.any(|old| old.says_same(new)))
        };
        let is_harmless = match file {
            SettingsFileKind::Repository => is_harmless(setting, path, known, found),
            SettingsFileKind::Modules => is_harmless_module(setting, path, known),
        };
        let is_bare = || {
            let remote = setting.subsection.as_deref().filter(|_| setting.section == "remote");
            remote.is_some_and(|remote| loses_address(known.settings_versions(found), remote))
        };
        if !is_harmless && !is_kept() || is_bare() {
            bad.push(setting);
        }
    }
    bad
}

/// Returns whether a setting of a repository carries no code. `path` is the path of its file.
fn is_harmless(setting: &GitSetting, path: &[u8], known: &ParsedSettings<'_>, found: &[GitSetting]) -> bool {
    let value = setting.value.as_deref().unwrap_or(b"true");
    // No characters that a terminal or a line-based file interprets.
    if value.iter().any(u8::is_ascii_control) {
        return false;
    }
    // These are checked by the user's earlier settings, which are in `config`.
    let is_beside = last_component(path) == b"config.worktree";
    match (setting.section.as_str(), setting.subsection.as_deref()) {
        ("branch" | "remote" | "submodule", _) if is_beside => false,
        // Their destinations are checked together. A new one could override the user's settings for
        // all repositories.
        ("remote", None) if setting.key == "pushdefault" => is_nick(value) && is_there(setting, known),
        ("branch", Some(_)) if setting.key == "pushremote" => is_nick(value) && is_there(setting, known),
        (section, None) => {
            let is_plain = known.before.is_own || !is_guarding(setting) || is_strict(setting) || was_so(setting, known);
            let is_own = (section, setting.key.as_str()) == ("core", "worktree") && leads_to_own_work_tree(path, value);
            is_plain && (is_own || is_harmless_alone(section, &setting.key, value))
        }
        ("branch", Some(branch)) => {
            is_branch(branch)
                && is_harmless_named("branch", branch, &setting.key, value)
                && (setting.key != "remote" || goes_well(known.settings_versions(found), branch))
        }
        ("remote", Some(remote)) => {
            is_nick(remote) && is_harmless_remote(remote, setting, known, found) && leads_on(setting, path, known)
        }
        ("submodule", Some(_)) => {
            is_harmless_module(setting, path, known) && (setting.key != "url" || !is_changed(setting, known))
        }
        (section, Some(subsection)) => is_harmless_named(section, subsection, &setting.key, value),
    }
}

/// Returns whether a setting may protect the user, who may have set it in any file. Git prefers the
/// repository's setting to those of all other files.
fn is_guarding(setting: &GitSetting) -> bool {
    GUARDING.forms_of(&setting.section, &setting.key).next().is_some()
}

/// Returns whether the setting has its most protective value. Then no protection is lost, whatever
/// other files contain.
fn is_strict(setting: &GitSetting) -> bool {
    GUARDING.allows_value(&setting.section, &setting.key, setting.value.as_deref().unwrap_or(b"true"))
}

/// Returns whether the setting must stay if the user has set it here. The setting for logs is
/// excluded, because every repository has it.
fn is_protection(setting: &GitSetting) -> bool {
    setting.subsection.is_none() && is_guarding(setting) && setting.key != "logallrefupdates"
}

/// Returns whether the setting exists now.
fn is_there(setting: &GitSetting, known: &ParsedSettings<'_>) -> bool {
    known.now.iter().any(|old| old.is_named_as(setting))
}

/// Returns whether the user had set this value.
fn was_so(setting: &GitSetting, known: &ParsedSettings<'_>) -> bool {
    known.first.iter().rev().find(|old| old.is_named_as(setting)).is_some_and(|old| old.says_same(setting))
}

/// Returns whether the address in a setting, if it is one, leads to a path that the run may read.
fn leads_on(setting: &GitSetting, path: &[u8], known: &ParsedSettings<'_>) -> bool {
    if !matches!(setting.key.as_str(), "url" | "pushurl") {
        return true;
    }
    let Some(value) = setting.value.as_deref() else { return false };
    let is_relative = |value: &[u8]| !value.starts_with(b"/") && !value.starts_with(b"file:");
    match local_path(path, value) {
        Some(_) if is_relative(value) && !has_one_top(path, known) => false,
        Some(local) => (known.before.may_fetch)(&local),
        // The helper at the other end takes such a path for a home directory.
        None => !value.starts_with(b"file:") && !value.starts_with(b"~"),
    }
}

/// Returns whether git resolves relative addresses from one directory only. A module has its work
/// tree elsewhere, and so do other work trees of a repository.
fn has_one_top(path: &[u8], known: &ParsedSettings<'_>) -> bool {
    let names_top = |setting: &GitSetting| (setting.section.as_str(), setting.key.as_str()) == ("core", "worktree");
    let git = path.windows(6).position(|part| part == b"/.git/");
    let is_deeper = git.is_some_and(|git| path[git + 6..].contains(&b'/'));
    !is_deeper && !known.before.has_work_trees && !known.now.iter().any(names_top)
}

/// Returns the local paths of the remotes in the settings `text` at `path`. They have the forms in
/// which git looks for a repository (`enter_repo` in path.c).
pub fn local_addresses(path: &[u8], text: &[u8]) -> Vec<Vec<u8>> {
    let found = parse_settings(text).unwrap_or_default();
    let of_remotes = found.iter().filter(|setting| setting.section == "remote" && is_address_key(&setting.key));
    let referenced_paths = of_remotes.filter_map(|setting| local_path(path, setting.value.as_deref()?));
    referenced_paths
        .flat_map(|referenced_path| [b"" as &[u8], b".git", b"/.git"].map(|end| [&referenced_path[..], end].concat()))
        .collect()
}

/// Returns whether a remote or a module in the settings `text` has an address that means another
/// path in each work tree.
pub fn has_relative_address(path: &[u8], text: &[u8]) -> bool {
    let Some(found) = parse_settings(text) else { return true };
    found.iter().filter(|setting| matches!(setting.section.as_str(), "remote" | "submodule")).any(|setting| {
        let value = setting.value.as_deref().unwrap_or_default();
        is_address_key(&setting.key)
            && !value.starts_with(b"/")
            && local_path(path, value).is_some()
            && !value.starts_with(b"file:")
    })
}

/// Returns the local path of an address in the settings at `path`, from its text alone.
fn local_path(path: &[u8], address: &[u8]) -> Option<Vec<u8>> {
    let referenced_path = match address.strip_prefix(b"file://") {
        // Git decodes escapes in such a path.
        Some(referenced_path) => Some(referenced_path)
            .filter(|referenced_path| referenced_path.starts_with(b"/") && !referenced_path.contains(&b'%'))?,
        None => Some(address).filter(|address| !address.starts_with(b"~"))?,
    };
    let colon = referenced_path.iter().position(|b| *b == b':').unwrap_or(usize::MAX);
    let slash = referenced_path.iter().position(|b| *b == b'/').unwrap_or(referenced_path.len());
    if colon < slash {
        return None;
    }
    // Relative to the top of the work tree that contains the repository.
    let holder = parent_path(path);
    let top = if last_component(holder) == b".git" { parent_path(holder) } else { holder };
    let start = if referenced_path.starts_with(b"/") { &b""[..] } else { top };
    let mut parts: Vec<&[u8]> = start.split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
    for part in referenced_path.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")) {
        if part == b".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    Some(parts.iter().flat_map(|part| [b"/", *part]).flatten().copied().collect())
}

fn is_harmless_remote(remote: &[u8], setting: &GitSetting, known: &ParsedSettings<'_>, found: &[GitSetting]) -> bool {
    let value = setting.value.as_deref().unwrap_or(b"true");
    match setting.key.as_str() {
        "url" | "pushurl" => is_address(value) && is_new_remote(remote, known),
        "fetch" => is_refspec(remote, value) || is_renamed(remote, setting, known, found),
        // The repository to which a tool proposes changes. It must not be one with which the user
        // has not communicated.
        "gh-resolved" => value == b"base" && (known.before.is_own || !is_new_remote(remote, known)),
        key => is_harmless_named("remote", remote, key, value),
    }
}

/// Returns whether the setting existed under another name of the same remote, which has just lost
/// that name.
fn is_renamed(remote: &[u8], setting: &GitSetting, known: &ParsedSettings<'_>, found: &[GitSetting]) -> bool {
    let referenced_path = remote_addresses(found, remote);
    known.now.iter().filter(|old| old.key == setting.key && old.value == setting.value).any(|old| {
        let name = old.subsection.as_deref().unwrap_or_default();
        old.section == "remote"
            && !referenced_path.is_empty()
            && remote_addresses(&known.now, name) == referenced_path
            && remote_addresses(found, name).is_empty()
    })
}

/// Returns whether the user had no remote of this name, and no branch that uses one.
fn is_new_remote(remote: &[u8], known: &ParsedSettings<'_>) -> bool {
    let goes_there = |setting: &GitSetting| {
        matches!(setting.section.as_str(), "branch" | "remote")
            && matches!(setting.key.as_str(), "remote" | "pushremote" | "pushdefault")
            && setting.value.as_deref() == Some(remote)
    };
    remote_addresses(&known.first, remote).is_empty() && !known.first.iter().any(goes_there)
}

fn is_harmless_module(setting: &GitSetting, path: &[u8], known: &ParsedSettings<'_>) -> bool {
    let value = setting.value.as_deref().unwrap_or(b"true");
    let name = setting.subsection.as_deref().filter(|name| setting.section == "submodule" && is_relative_path(name));
    name.is_some_and(|name| match setting.key.as_str() {
        _ if value.iter().any(u8::is_ascii_control) => false,
        "url" => is_address(value) && leads_on(setting, path, known),
        key => is_harmless_named("submodule", name, key, value),
    })
}

/// Returns whether the user had this setting, now with another value.
fn is_changed(setting: &GitSetting, known: &ParsedSettings<'_>) -> bool {
    known.first.iter().any(|old| old.is_named_as(setting))
}

/// Returns whether the text is an address of a repository that only git's own transports use.
fn is_address(address: &[u8]) -> bool {
    let holds = |text: &[u8]| address.windows(text.len()).any(|part| part == text);
    if address.is_empty() || address.starts_with(b"-") || holds(b"::") || address.iter().any(u8::is_ascii_control) {
        return false;
    }
    let scheme = address.windows(3).position(|part| part == b"://");
    let (referenced_path, is_known) = match scheme {
        Some(end) => (
            &address[end + 3..],
            matches!(&address[..end], b"https" | b"http" | b"ssh" | b"git" | b"file" | b"git+ssh" | b"ssh+git"),
        ),
        None => (address, true),
    };
    let authority = referenced_path.split(|b| *b == b'/').next().unwrap_or(referenced_path);
    let host = authority.rsplit(|b| *b == b'@').next().unwrap_or(authority);
    is_known && !referenced_path.starts_with(b"-") && !host.starts_with(b"-")
}

/// Returns whether a refspec writes only to the remote's own names, and to no branch of the user.
fn is_refspec(remote: &[u8], refspec: &[u8]) -> bool {
    let refspec = refspec.strip_prefix(b"+").unwrap_or(refspec);
    let Some(colon) = refspec.iter().position(|b| *b == b':') else { return false };
    let (from, to) = (&refspec[..colon], &refspec[colon + 1..]);
    let own = [b"refs/remotes/", remote, b"/"].concat();
    // The text that replaces a star is not part of a name.
    let is_pattern = |name: &[u8]| {
        let stars = name.iter().filter(|b| **b == b'*').count();
        stars <= 1 && is_branch(&name.iter().map(|b| if *b == b'*' { b'x' } else { *b }).collect::<Vec<_>>())
    };
    from.starts_with(b"refs/")
        && (to.starts_with(&own) || to == from && to.starts_with(b"refs/tags/"))
        && is_pattern(from)
        && is_pattern(to)
}

/// Returns whether `value`, in the settings of a module, names a directory in the work tree of the
/// repository around it, as `git submodule` writes it.
fn leads_to_own_work_tree(path: &[u8], value: &[u8]) -> bool {
    own_work_tree(path, value).is_some()
}

/// Returns that directory.
fn own_work_tree(path: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let repository = parent_path(path);
    let parts: Vec<&[u8]> = repository.split(|b| *b == b'/').collect();
    let git = parts.iter().position(|part| *part == b".git")?;
    let is_module =
        last_component(path) == b"config" && parts.get(git + 1) == Some(&&b"modules"[..]) && parts.len() > git + 2;
    // Up from the module to the parent of `.git`, and down again.
    let up = parts.len() - git;
    let mut rest = value.split(|b| *b == b'/');
    let is_up = rest.by_ref().take(up).filter(|part| *part == b"..").count() == up;
    let beneath = rest.collect::<Vec<_>>().join(&b'/');
    (is_module && is_up && is_relative_path(&beneath)).then(|| join_name(&parts[..git].join(&b'/'), &beneath))
}

/// Returns the work tree that the settings `text` of a module, at `path`, name. It must be a
/// directory in the work tree of the repository.
pub fn work_tree_of_module(path: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let all = parse_settings(text)?;
    let named = all.iter().rev().find(|setting| {
        (setting.section.as_str(), setting.subsection.as_deref(), setting.key.as_str()) == ("core", None, "worktree")
    })?;
    own_work_tree(path, named.value.as_deref()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERSONS: &str = "[core]\n\tsshCommand = mine\n\tsshCommand = other\n[remote \"origin\"]\n\turl = https://a/b\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n[branch \"odd\"]\n\tremote = gone\n";

    fn check_change(path: &str, old: &str, new: &str) -> ContentVerdict {
        let before = SettingsContext {
            first: old.as_bytes(),
            now: old.as_bytes(),
            may_fetch: &|path| !path.starts_with(b"/hidden"),
            is_own: false,
            has_work_trees: false,
        };
        let file = if path.ends_with("modules") { SettingsFileKind::Modules } else { SettingsFileKind::Repository };
        check_settings(file, path.as_bytes(), before, new.as_bytes())
    }

    /// Checks the judgement on text that is added to the user's settings. If the text carries code,
    /// the rest without it must be harmless.
    #[track_caller]
    fn check(added: &str, is_harmless: bool) {
        let new = format!("{PERSONS}{added}");
        match check_change("/w/.git/config", PERSONS, &new) {
            ContentVerdict::Harmless | ContentVerdict::HarmlessWith(_) => assert!(is_harmless, "passes: {added}"),
            ContentVerdict::Carries { without, what } => {
                assert!(!is_harmless, "carries {what}: {added}");
                if let Some(without) = without {
                    let without = String::from_utf8(without).unwrap();
                    assert_eq!(check_change("/w/.git/config", PERSONS, &without), ContentVerdict::Harmless, "{added}");
                }
            }
        }
    }

    #[test]
    fn everyday_writes_of_git_pass() {
        for added in [
            "",
            "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n",
            "[user]\n\tname = A B\n\temail = a@b\n",
            "[alias]\n\tst = status -sb\n\tlg = log --graph --oneline\n[tag]\nsort = -version:refname\n",
            "[core]\ncommentChar = \";\"\n[format]\npretty = oneline\n[submodule]\nactive = .\n",
            "[remote \"up\"]\n\turl = https://h/x.git\n\tfetch = +refs/heads/*:refs/remotes/up/*\n",
            "[remote \"up\"]\n\turl = git@h:x/y.git\n[remote \"b\"]\n\turl = ../x\n[remote \"c\"]\nurl=file:///x\n",
            "[core]\n\tfsmonitor = false\n\tpager = cat\n[pager]\n\tlog = false\n\tdiff = true\n",
            "[branch \"topic/a\"]\n\tremote = origin\n\tmerge = refs/heads/topic/a\n\trebase = true\n",
            "[submodule \"lib/x\"]\n\turl = ./x\n\tactive = true\n",
            "[extensions]\n\tworktreeConfig = true\n[pull]\nrebase=merges\n[advice]\ndetachedHead=no\n[color \"diff\"]\nmeta=blue bold\n",
        ] {
            check(added, true);
        }
    }

    #[test]
    fn no_code_in_files_that_could_carry_it() {
        for added in [
            "[core]\nhooksPath=x",
            "[CORE]\nHOOKSPATH=x",
            "[gitflow \"path\"]\nhooks=x",
            "[alias]\nst=!status",
            "[alias]\nlg=merge",
            "[alias]\nst=checkout",
            "[diff]\nsubmodule=diff",
            "[status]\nsubmoduleSummary=true",
            "[gitflow \"branch\"]\ndevelop=-xsub/evil",
            "[alias]\nst=status --x",
            "[alias]\nst=-c x=y status",
            "[alias]\nst=checkout .",
            "[alias]\nlg=log -Ox",
            "[index]\nversion=4",
            "[diff]\ntool=x",
            "[index]\nthreads=true",
            "[blame]\nignoreRevsFile=../x",
            "[remote \"origin\"]\npromisor=true",
            "[remote \"new\"]\nurl=https://x/y\ngh-resolved=base",
            "[remote \"up\"]\nurl=https://h/x\nfetch=+refs/*/*:refs/remotes/up/*",
            "[remote \"up\"]\nurl=https://h/x\nfetch=+refs/pull/*/head:refs/heads/*",
            "[core] fsmonitor = x",
            "[core]\nfsmonitor = true",
            "[core]\nfsmonitor",
            "[pager]\nlog = x",
            "[core]\npager = less -x",
            "[core]\nsshCommand = mine",
            "[core]\npager=x",
            "[core]\neditor=x",
            "[core]\nattributesFile=x",
            "[core]\ngitProxy=x",
            "[core]\nworktree=/x",
            "[core]\naskPass=x",
            "[core]\nexcludesFile=x",
            "[core]\nsharedRepository=0666",
            "[include]\npath=x",
            "[includeIf \"gitdir:/\"]\npath=x",
            "[alias]\nst=!x",
            "[alias \"st\"]\ncommand=!x",
            "[filter \"x\"]\nclean=x",
            "[diff \"x\"]\ntextconv=x",
            "[diff \"x\"]\ncommand=x",
            "[diff]\nexternal=x",
            "[merge \"x\"]\ndriver=x",
            "[credential]\nhelper=x",
            "[gpg]\nprogram=x",
            "[url \"x\"]\ninsteadOf=y",
            "[http]\nproxy=x",
            "[protocol]\nallow=always",
            "[remote \"x\"]\nurl=ext::sh",
            "[remote \"x\"]\nurl=-x",
            "[remote \"x\"]\nurl=ssh://-x/y",
            "[remote \"x\"]\nurl=ssh://u@-x/y",
            "[remote \"x\"]\nurl=foo://x",
            "[remote \"x\"]\nuploadpack=x",
            "[remote \"x\"]\nvcs=x",
            "[remote \"x/y\"]\nurl=z",
            "[remote \"x\"]\nurl=\"a\\nb\"",
            "[remote \"x\"]\nfetch=refs/heads/*:refs/heads/*",
            "[remote \"x\"]\nfetch=refs/heads/*:refs/remotes/y/*",
            "[remote \"origin\"]\nurl=https://b",
            "[remote \"origin\"]\npushurl=https://b",
            "[remote \"gone\"]\nurl=https://b",
            "[remote]\npushDefault=x",
            "[branch \"main\"]\nremote=up",
            "[branch \"main\"]\npushRemote=up",
            "[branch \"x\"]\nmergeOptions=--strategy=x",
            "[branch \"x\"]\nremote=../x",
            "[submodule \"x\"]\nupdate=!x",
            "[submodule \"../x\"]\nurl=y",
            "[extensions]\nobjectFormat=sha256",
            // Reading existing objects then fetches missing ones.
            "[extensions]\npartialClone=x",
            "[remote \"x\"]\nurl=https://b\npromisor=true",
            "[remote \"x\"]\nurl=https://b\npartialclonefilter=blob:none",
            "[extensions]\nrefStorage=reftable",
            "[user]\nname=\"a\\nb\"",
            "[commit]\ngpgSign=true",
            "[sequence]\neditor=x",
            "[init]\ntemplateDir=x",
            "[uploadpack]\npackObjectsHook=x",
            "[core]\n\tbare = f\\\nalse x",
            "[x]\ny=z",
            "[core]\rx=y",
            "[trailer \"x\"]\ncmd=y",
            "[pull]\ntwohead=x",
            "[interactive]\ndiffFilter=x",
            "[pager]\nlog=x",
            "[browser \"x\"]\ncmd=y",
            "[safe]\ndirectory=*",
            "[push]\ndefault=upstream",
            "[push]\ndefault=matching",
        ] {
            check(added, false);
        }
    }

    const SCRATCH: SettingsContext<'_> =
        SettingsContext { first: b"", now: b"", may_fetch: &|_| true, is_own: false, has_work_trees: false };

    fn passes(first: &str, now: &str, new: &str) -> bool {
        let before = SettingsContext { first: first.as_bytes(), now: now.as_bytes(), ..SCRATCH };
        !matches!(
            check_settings(SettingsFileKind::Repository, b"/w/.git/config", before, new.as_bytes()),
            ContentVerdict::Carries { .. }
        )
    }

    #[test]
    fn a_push_and_a_signature_keep_the_users_settings() {
        let first = "[push]\n\tdefault = upstream\n[commit]\n\tgpgsign = true\n[branch \"m\"]\n\tremote = o\n\tmerge = refs/heads/m\n";
        let is_harmless = |new: &str| passes(first, first, new);
        assert!(is_harmless(first) && is_harmless(&format!("{first}[branch \"n\"]\nmerge = refs/heads/n\n")));
        assert!(!is_harmless(&first.replace("refs/heads/m", "refs/heads/production")));
        assert!(is_harmless(&first.replace("\tmerge = refs/heads/m\n", "")));
        assert!(!is_harmless(&first.replace("gpgsign = true", "gpgsign = false")));
    }

    #[test]
    fn rules_that_may_protect_the_user_are_kept() {
        for (weak, strict) in [
            ("[commit]\ngpgSign = false\n", ""),
            ("[Tag]\nGPGSIGN = no\n", ""),
            ("[push]\ndefault = simple\n", "[push]\ndefault = nothing\n"),
            ("[push]\ndefault = current\n", "[push]\ndefault = nothing\n"),
            ("[push]\nfollowTags = true\n", "[push]\nfollowTags = false\n"),
            ("[push]\nautoSetupRemote\n", "[push]\nautoSetupRemote = 0\n"),
            ("[submodule]\nrecurse = true\n", "[submodule]\nrecurse = false\n"),
            ("[user]\nuseConfigOnly = false\n", "[user]\nuseConfigOnly = true\n"),
            ("[core]\nsafecrlf = warn\n", "[core]\nsafecrlf = true\n"),
            ("[core]\nlogAllRefUpdates = false\n", "[core]\nlogAllRefUpdates = true\n"),
            ("[branch]\nautoSetupMerge = inherit\n", "[branch]\nautoSetupMerge = false\n"),
            ("[extensions]\nworktreeConfig = false\n", "[extensions]\nworktreeConfig = true\n"),
        ] {
            assert!(!passes("", "", weak), "{weak}");
            assert!(passes(weak, weak, weak) && passes("", "", strict), "{strict}");
            assert!(passes(weak, "", weak), "as it was: {weak}");
            let own = SettingsContext { is_own: true, ..SCRATCH };
            assert_eq!(
                check_settings(SettingsFileKind::Repository, b"/w/.git/config", own, weak.as_bytes()),
                ContentVerdict::Harmless
            );
            if !strict.contains("logAll") {
                assert!(!passes(weak, weak, ""), "taken away: {weak}");
                assert!(strict.is_empty() || !passes(strict, strict, ""), "taken away: {strict}");
            }
            let beside =
                check_settings(SettingsFileKind::Repository, b"/w/.git/config.worktree", SCRATCH, weak.as_bytes());
            assert_ne!(beside, ContentVerdict::Harmless, "{weak}");
        }
    }

    #[test]
    fn omitted_text_is_assessed_as_a_whole() {
        let first = "[push]\n\tdefault = upstream\n";
        let values =
            |text: &[u8]| parse_settings(text).unwrap().into_iter().map(|setting| setting.value).collect::<Vec<_>>();
        let order = "[push]\n\tdefault = current\n\tdefault = upstream\n";
        let urls = |a: &str, b: &str| format!("[remote \"o\"]\n\turl = {a}\n\turl = {b}\n");
        let swapped = check_change("/w/.git/config", &urls("https://a", "https://b"), &urls("https://b", "https://a"));
        for found in [check_change("/w/.git/config", first, order), swapped] {
            let ContentVerdict::Carries { without, .. } = found else { panic!("{found:?}") };
            assert!(without.is_none_or(|without| values(&without) == values(first.as_bytes())));
        }
    }

    #[test]
    fn remotes_of_the_person_stay_where_they_are() {
        let first = "[remote \"o\"]\n\turl = https://a\n\tfetch = +refs/heads/*:refs/remotes/o/*\n[branch \"m\"]\n\tremote = o\n";
        let check_change = |now: &str, new: &str| passes(first, now, new);
        let renamed = "[remote \"n\"]\n\turl = https://a\n\tfetch = +refs/heads/*:refs/remotes/o/*\n[branch \"m\"]\n\tremote = o\n";
        let followed = "[remote \"n\"]\n\turl = https://a\n[branch \"m\"]\n\tremote = n\n";
        assert!(check_change(first, renamed) && check_change(renamed, followed));
        assert!(
            !check_change(renamed, &format!("{renamed}[remote \"o\"]\nurl=https://b\n")),
            "the old name is another's"
        );
        assert!(!check_change(first, "[branch \"m\"]\n\tremote = o\n"), "taken away");
        assert!(!check_change(
            first,
            &format!("{first}[remote \"x\"]\nurl=https://b\nfetch = +refs/heads/*:refs/remotes/o/*\n")
        ));
        let other = format!("{first}[remote \"x\"]\nurl=https://b\n");
        assert!(check_change(first, &other) && check_change(&other, first), "the run's own comes and goes");
        assert!(!check_change(&other, &other.replace("remote = o", "remote = x")));
    }

    #[test]
    fn branches_follow_a_remote_that_gets_another_name() {
        let first = "[remote]\n\tpushDefault = o\n[remote \"o\"]\n\turl = https://a\n[branch \"m\"]\n\tpushRemote = o\n\tremote = o\n";
        let renamed = first.replace("[remote \"o\"]", "[remote \"n\"]");
        let ContentVerdict::HarmlessWith(text) = check_change("/w/.git/config", first, &renamed) else {
            panic!("it does not pass")
        };
        let text = String::from_utf8(text).unwrap().to_lowercase();
        assert_eq!(text, renamed.replace("= o", "= n").to_lowercase());
    }

    #[test]
    fn settings_of_the_user_are_kept() {
        let first = "[core]\n\thooksPath = /safe\n\tautocrlf = input\n[branch \"x\"]\n\tother = y\n";
        for (removed_text, is_harmless) in
            [("\thooksPath = /safe\n", false), ("\tautocrlf = input\n", true), ("\tother = y\n", true)]
        {
            let found = check_change("/w/.git/config", first, &first.replace(removed_text, ""));
            assert_eq!(found == ContentVerdict::Harmless, is_harmless, "{removed_text}");
        }
    }

    #[test]
    fn a_module_has_its_work_tree_in_the_one_that_holds_it() {
        let check = |path: &str, value: &str, expected: bool| {
            let is_harmless =
                check_change(path, "", &format!("[core]\nworktree={value}\n")) == ContentVerdict::Harmless;
            assert_eq!(is_harmless, expected, "{path} {value}");
        };
        check("/w/.git/modules/lib/config", "../../../lib", true);
        check("/w/.git/modules/a/b/config", "../../../../a/b", true);
        check("/w/.git/modules/a/modules/b/config", "../../../../../a/b", true);
        for value in [
            "../../lib",
            "../../../../lib",
            "../../../",
            "../../..",
            "/w/lib",
            "../../../.git/x",
            "../../../a/../b",
            "lib",
        ] {
            check("/w/.git/modules/lib/config", value, false);
        }
        check("/w/.git/config", "../lib", false);
        check("/w/.git/modules/config", "../../lib", false);
    }

    #[test]
    fn no_address_reaches_unreadable_files() {
        let with = |url: &str| format!("[remote \"x\"]\n\turl = {url}\n");
        for (url, expected) in [
            ("/srv/x.git", true),
            ("file:///srv/x.git", true),
            ("../x", true),
            ("host:x", true),
            ("/hidden", false),
            ("/hidden/x", false),
            ("/srv/../hidden", false),
            ("../hidden", false),
            ("./../hidden/x", false),
            ("file:///hidden", false),
            ("file:///hidde%6e", false),
            ("file://host/hidden", false),
        ] {
            let found = check_change("/w/.git/config", "", &with(url)) == ContentVerdict::Harmless;
            assert_eq!(found, expected, "{url}");
        }
        assert_ne!(check_change("/w/.git/modules/a/config", "", &with("../hidden")), ContentVerdict::Harmless);
        assert_ne!(check_change("/w/.gitmodules", "", "[submodule \"a\"]\nurl = /hidden\n"), ContentVerdict::Harmless);
    }

    #[test]
    fn a_branch_goes_where_it_went() {
        let persons = "[remote \"origin\"]\n\turl = https://a/b\n[remote \"fork\"]\n\turl = https://a/c\n";
        let is_harmless = |old: &str, added: &str| {
            check_change("/w/.git/config", old, &format!("{old}{added}")) == ContentVerdict::Harmless
        };
        let up = "[remote \"up\"]\n\turl = https://evil/b\n[branch \"main\"]\n\tremote = up\n";
        assert!(!is_harmless(persons, up), "the person's push went to origin");
        assert!(is_harmless("", up), "it went nowhere");
        for remote in ["origin", "."] {
            assert!(is_harmless(persons, &format!("[branch \"main\"]\n\tremote = {remote}\n")), "{remote}");
        }
        let fork = "[branch \"main\"]\n\tremote = fork\n";
        assert!(!is_harmless(persons, fork), "no branch of the person's goes there");
        assert!(is_harmless(&format!("{persons}[branch \"topic\"]\n\tremote = fork\n"), fork));
        let only = "[remote \"mine\"]\n\turl = https://a/b\n";
        assert!(!is_harmless(only, up));
    }

    #[test]
    fn all_answers_for_a_key_stay_in_order() {
        let a = "[core]\n\thooksPath = a\n";
        let b = "[core]\n\thooksPath = b\n";
        let old = [a, b, a].concat();
        assert_eq!(check_change("/w/.git/config", &old, &old), ContentVerdict::Harmless);
        for new in [[a, b].concat(), [b, a].concat(), [a, a].concat(), a.to_owned(), [a, a, b].concat()] {
            assert_ne!(check_change("/w/.git/config", &old, &new), ContentVerdict::Harmless, "{new}");
        }
    }

    #[test]
    fn modules_name_paths_in_the_work_tree() {
        let check = |text: &str, expected: bool| {
            assert_eq!(check_change("/w/.gitmodules", "", text) == ContentVerdict::Harmless, expected, "{text}");
        };
        check("[submodule \"a/b\"]\n\tpath = a/b\n\turl = ../x.git\n\tbranch = main\n", true);
        for bad in ["update=!x", "path=../x", "path=-x", "path=.git/x", "url=-x", "url=ext::x", "other=1"] {
            check(&format!("[submodule \"a\"]\n\t{bad}\n"), false);
        }
        check("[core]\nbare=false\n", false);
        check("[submodule \"a/../../b\"]\npath=x\n", false);
    }
}

//! Destinations of the user's branches, from all settings of a repository together. `git fetch` and
//! `git push` use them if the command line names none (remote.c of git 2.47). Each setting may be
//! harmless by itself, and together they may redirect a branch. Pure.

use std::collections::BTreeSet;

use super::settings_reader::GitSetting;

/// The destination that git derives from the name of a remote.
#[derive(Debug, PartialEq, Eq)]
enum RemoteDestination<'s> {
    /// None: git reports an error and stops.
    Nowhere,
    /// This repository itself.
    Here,
    /// A name without an address, which git takes for an address.
    Name(&'s [u8]),
    /// These addresses: `url`, `pushurl` and `vcs` in the order of the text.
    At(Vec<RemoteAddress<'s>>),
}

/// A key and its value.
type RemoteAddress<'s> = (&'s str, Option<&'s [u8]>);

/// The source of a fetch and the target of a push.
type BranchDestinations<'s> = [RemoteDestination<'s>; 2];

/// The user's settings, the current ones, and the new ones.
#[derive(Clone, Copy)]
pub(super) struct SettingsVersions<'s> {
    /// The settings when the run first changed them.
    pub first: &'s [GitSetting],
    /// The current settings. The user may have changed them meanwhile; a run has made only
    /// permitted changes.
    pub now: &'s [GitSetting],
    /// The settings after the change.
    pub new: &'s [GitSetting],
}

impl<'s> SettingsVersions<'s> {
    fn old_settings(self) -> [&'s [GitSetting]; 2] {
        [self.first, self.now]
    }
}

/// Returns a description of a destination of the user's that would change.
pub(super) fn find_moved_destination(texts: SettingsVersions<'_>) -> Option<String> {
    let shown = |name: &[u8]| String::from_utf8_lossy(name).escape_debug().to_string();
    if has_remotes(texts.first) && !keeps_destinations(texts, |text| branch_destinations(text, None)) {
        return Some("another remote for branches without settings".to_owned());
    }
    let is_changed = |branch: &&[u8]| !is_same_branch(texts, branch) || !goes_well(texts, branch);
    let branches = subsection_names(texts.first, "branch").into_iter().chain(subsection_names(texts.new, "branch"));
    if let Some(branch) = branches.into_iter().find(is_changed) {
        return Some(format!("another remote or branch for branch {}", shown(branch)));
    }
    let moved = |remote: &&[u8]| {
        let first = remote_addresses(texts.first, remote);
        let new = remote_addresses(texts.new, remote);
        !first.is_empty() && !new.is_empty() && new != first && new != remote_addresses(texts.now, remote)
    };
    let moved = subsection_names(texts.first, "remote").into_iter().find(moved)?;
    Some(format!("another address of remote {}", shown(moved)))
}

/// Returns whether a remote newly has settings but no address. Git then takes its name for a path,
/// and the object there may change.
pub(super) fn loses_address(texts: SettingsVersions<'_>, remote: &[u8]) -> bool {
    let is_bare = |text: &[GitSetting]| {
        subsection_names(text, "remote").contains(remote)
            && remote_addresses(text, remote).iter().all(|(key, _)| *key == "pushurl")
    };
    is_bare(texts.new) && !texts.old_settings().into_iter().any(is_bare)
}

/// Returns whether a branch keeps its destination or has none. A branch without settings of the
/// user may use the destinations of the user's other branches.
pub(super) fn goes_well(texts: SettingsVersions<'_>, branch: &[u8]) -> bool {
    match subsection_names(texts.first, "branch").contains(branch) {
        true => keeps_destinations(texts, |text| branch_destinations(text, Some(branch))),
        false => is_begun_well(texts, branch),
    }
}

/// Returns whether pulling merges the same branches as before, or none, if the user has set any.
/// The user can configure for all repositories that a push uses the branch set for pulling.
fn is_same_branch(texts: SettingsVersions<'_>, branch: &[u8]) -> bool {
    let merges = |text: &'_ [GitSetting]| -> Vec<Option<Vec<u8>>> {
        let of_branch = text.iter().filter(|setting| is_of(setting, "branch", branch) && setting.key == "merge");
        of_branch.map(|setting| setting.value.clone()).collect()
    };
    let (first, new) = (merges(texts.first), merges(texts.new));
    first.is_empty() || new.is_empty() || new == first || new == merges(texts.now)
}

/// Returns whether both destinations equal one of the old ones, or are none.
fn keeps_destinations<'s>(
    texts: SettingsVersions<'s>,
    destinations_of: impl Fn(&'s [GitSetting]) -> BranchDestinations<'s>,
) -> bool {
    let old = texts.old_settings().map(&destinations_of);
    let goes = |number: usize, new: &RemoteDestination<'_>| old.iter().any(|old| &old[number] == new);
    destinations_of(texts.new)
        .iter()
        .enumerate()
        .all(|(number, new)| *new == RemoteDestination::Nowhere || goes(number, new))
}

/// Returns the settings that still contain the old name of a renamed remote, with its new name. Git
/// changes these one by one afterwards; until then it would take the old name for a path.
pub(super) fn list_stale_settings<'s>(now: &'s [GitSetting], new: &'s [GitSetting]) -> Vec<(&'s GitSetting, &'s [u8])> {
    let renamed = |setting: &'s GitSetting| {
        let old = setting.value.as_deref()?;
        let was = remote_addresses(now, old);
        let is_gone = !was.is_empty() && remote_addresses(new, old).is_empty();
        let is_it = |name: &&[u8]| remote_addresses(now, name).is_empty() && remote_addresses(new, name) == was;
        Some((setting, subsection_names(new, "remote").into_iter().filter(|_| is_gone).find(is_it)?))
    };
    new.iter().filter(|setting| is_choice(setting)).filter_map(renamed).collect()
}

/// Returns whether a branch without settings of the user uses the destinations of the user's other
/// branches. It is not enough that the remote exists, because an earlier run may have made it.
fn is_begun_well(texts: SettingsVersions<'_>, branch: &[u8]) -> bool {
    let new = branch_destinations(texts.new, Some(branch));
    if new == branch_destinations(texts.new, None) || new == branch_destinations(texts.now, Some(branch)) {
        return true;
    }
    let is_name = |destination: &RemoteDestination<'_>| matches!(destination, RemoteDestination::Name(_));
    if !has_remotes(texts.first) {
        return !new.iter().any(is_name);
    }
    let branches = subsection_names(texts.first, "branch");
    let known: Vec<_> = branches
        .into_iter()
        .map(Some)
        .chain([None])
        .flat_map(|branch| branch_destinations(texts.first, branch))
        .collect();
    new.iter().all(|new| *new == RemoteDestination::Here || !is_name(new) && known.contains(new))
}

/// Returns whether the user has a remote here, or a setting with the name of one.
fn has_remotes(text: &[GitSetting]) -> bool {
    text.iter()
        .any(|setting| setting.section == "remote" || is_choice(setting) && setting.value.as_deref() != Some(b"."))
}

fn is_choice(setting: &GitSetting) -> bool {
    match (setting.section.as_str(), setting.subsection.is_some()) {
        ("branch", true) => matches!(setting.key.as_str(), "remote" | "pushremote"),
        ("remote", false) => setting.key == "pushdefault",
        _ => false,
    }
}

/// Returns the destinations of this branch, or of a branch without settings.
fn branch_destinations<'s>(text: &'s [GitSetting], branch: Option<&[u8]>) -> BranchDestinations<'s> {
    let setting_value = |key: &str| {
        let branch = branch?;
        let last = text.iter().rev().find(|setting| is_of(setting, "branch", branch) && setting.key == key)?;
        Some(last.value.as_deref().unwrap_or_default())
    };
    let all = || {
        let is_all = |setting: &&GitSetting| is_choice(setting) && setting.section == "remote";
        Some(text.iter().rev().find(is_all)?.value.as_deref().unwrap_or_default())
    };
    let (fetch, push) = (setting_value("remote"), setting_value("pushremote").or_else(all));
    [resolve_destination(text, fetch), resolve_destination(text, push.or(fetch))]
}

fn resolve_destination<'s>(text: &'s [GitSetting], setting_value: Option<&'s [u8]>) -> RemoteDestination<'s> {
    let Some(name) = setting_value else {
        // `origin`, or the only remote, if it has settings.
        let known = subsection_names(text, "remote");
        let only = known.first().copied().filter(|_| known.len() == 1);
        let found = remote_addresses(text, only.unwrap_or(b"origin"));
        return if found.is_empty() { RemoteDestination::Nowhere } else { RemoteDestination::At(found) };
    };
    let found = remote_addresses(text, name);
    match found.is_empty() {
        _ if name == b"." => RemoteDestination::Here,
        true => RemoteDestination::Name(name),
        false => RemoteDestination::At(found),
    }
}

/// Returns the addresses of a remote in these settings.
pub(super) fn remote_addresses<'s>(text: &'s [GitSetting], remote: &[u8]) -> Vec<RemoteAddress<'s>> {
    let of_remote = text.iter().filter(|setting| is_of(setting, "remote", remote));
    let referenced_paths = of_remote.filter(|setting| is_address_key(&setting.key));
    referenced_paths.map(|setting| (setting.key.as_str(), setting.value.as_deref())).collect()
}

pub(super) fn is_address_key(key: &str) -> bool {
    matches!(key, "url" | "pushurl" | "vcs")
}

fn is_of(setting: &GitSetting, section: &str, name: &[u8]) -> bool {
    setting.section == section && setting.subsection.as_deref() == Some(name)
}

/// Returns the subsections of a section.
fn subsection_names<'s>(text: &'s [GitSetting], section: &str) -> BTreeSet<&'s [u8]> {
    text.iter()
        .filter(|setting| setting.section == section)
        .filter_map(|setting| setting.subsection.as_deref())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::settings_reader::parse_settings;
    use super::*;

    const GOOD: &str = "[remote \"origin\"]\nurl = good\n[branch \"main\"]\nremote = origin\nmerge = refs/heads/main\n";
    const UP: &str = "[remote \"up\"]\nurl = good\n";
    const EVIL: &str = "[remote \"y\"]\nurl = evil\n";

    fn stays_from(first: &str, now: &str, new: &str) -> bool {
        let read = |text: &str| parse_settings(text.as_bytes()).unwrap();
        find_moved_destination(SettingsVersions { first: &read(first), now: &read(now), new: &read(new) }).is_none()
    }

    #[track_caller]
    fn check(first: &str, added: &str, expected: bool) {
        assert_eq!(stays_from(first, first, &format!("{first}{added}")), expected, "{first}{added}");
    }

    #[test]
    fn branches_of_the_person_go_where_they_went() {
        check(GOOD, EVIL, true);
        check(GOOD, "[remote \"y\"]\nurl = good\n[branch \"main\"]\nremote = y\n", true);
        check(GOOD, &format!("{EVIL}[branch \"main\"]\nremote = y\n"), false);
        check(GOOD, &format!("{EVIL}[branch.MAIN]\nremote = y\n"), false);
        check(GOOD, &format!("{EVIL}[branch \"main\"]\npushRemote = y\n"), false);
        check(GOOD, &format!("{EVIL}[remote]\npushDefault = y\n"), false);
        check(GOOD, "[branch \"main\"]\nremote = evil\n", false);
        check(GOOD, "[branch \"main\"]\nremote = .\n", false);
        check(GOOD, "[branch \"main\"]\nmerge = refs/heads/prod\n", false);
        check(GOOD, "[remote \"origin\"]\nurl = more\n", false);
        check(GOOD, "[remote \"origin\"]\npushurl = more\n", false);
        let other_name = GOOD.replace("= origin", "= y").replace("\"origin\"", "\"y\"");
        assert!(stays_from(GOOD, GOOD, &other_name), "the same place by another name");
        assert!(!stays_from(GOOD, &other_name, &other_name.replace("good", "evil")));
        assert!(!stays_from(GOOD, &other_name, &format!("{other_name}[remote \"y\"]\npushurl = evil\n")));
    }

    #[test]
    fn unmentioned_requests_are_forwarded_as_before() {
        check("", "[remote \"origin\"]\nurl = x\n", true);
        check(UP, "[remote \"fork\"]\nurl = x\n", true);
        check(UP, "[remote \"origin\"]\nurl = x\n", false);
        check(UP, "[remote \"origin\"]\nurl = good\n", true);
        check(&format!("{UP}{EVIL}"), "[remote \"origin\"]\nurl = x\n", false);
        assert!(stays_from(UP, UP, &UP.replace("up", "upstream")));
        assert!(stays_from(UP, &format!("{UP}{GOOD}"), &format!("{UP}{GOOD}")), "the person's doing meanwhile");
    }

    #[test]
    fn a_branch_begins_where_others_go() {
        check(GOOD, "[branch \"n\"]\nremote = origin\nmerge = refs/heads/n\n", true);
        check(GOOD, "[branch \"n\"]\nremote = .\nmerge = refs/heads/main\n", true);
        check(&format!("{GOOD}{EVIL}"), "[branch \"n\"]\nremote = y\n", false);
        check(&format!("{GOOD}{EVIL}[branch \"m\"]\nremote = y\n"), "[branch \"n\"]\nremote = y\n", true);
        check(GOOD, "[branch \"n\"]\nremote = path\n", false);
        check("", "[branch \"n\"]\nremote = path\n", false);
        check("", &format!("{EVIL}[branch \"n\"]\nremote = y\n"), true);
    }

    #[test]
    fn no_name_becomes_an_address() {
        let loses = |old: &str, new: &str| {
            let (old, new) = (parse_settings(old.as_bytes()).unwrap(), parse_settings(new.as_bytes()).unwrap());
            loses_address(SettingsVersions { first: &[], now: &old, new: &new }, b"y")
        };
        let bare = "[remote \"y\"]\nprune = true\n";
        assert!(loses("", bare) && loses(EVIL, bare) && loses("", "[remote \"y\"]\npushurl = a\n"));
        assert!(!loses("", &format!("{EVIL}{bare}")) && !loses(bare, bare) && !loses(EVIL, ""));
    }
}

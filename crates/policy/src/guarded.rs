//! Guarded paths, which no hint, suggestion or rule of an answer names: credentials and parts of the
//! system. A user may still give a power over them, by name.
//!
//! The data is `policies/guarded.toml` and `policies/credentials.toml`. Only names are compared, not files.
//! Symbolic links on the way are resolved if mounts may give other names.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;
use stockade_model::{Grant, HostPattern, PRIVATE_TREES, RawText, TargetPattern};

use crate::glob::name_matches;
use crate::settings::PolicySettings;
use crate::shipped::credential_groups;

const GUARDED_TEXT: &str = include_str!("../../../policies/guarded.toml");

/// The data, read once; `None` if it cannot be read, and then every path counts as guarded. Tests check
/// that it can be read.
static GUARDED_ENTRIES: LazyLock<Option<Vec<GuardedEntry>>> =
    LazyLock::new(|| toml::from_str::<GuardedFile>(GUARDED_TEXT).ok().map(|file| file.guarded));

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuardedFile {
    guarded: Vec<GuardedEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuardedEntry {
    #[serde(default)]
    paths: Vec<String>,
    /// Exceptions beneath `paths`.
    #[serde(default)]
    except: Vec<String>,
    #[serde(default)]
    sockets: Vec<String>,
    /// The last part of a socket's path.
    #[serde(default)]
    socket_names: Vec<String>,
    #[serde(default)]
    hosts: Vec<String>,
    /// True if an entry of the list of credentials is more specific.
    #[serde(default)]
    general: bool,
    what: String,
    instead: String,
}

/// Reason why a power is never suggested, and an alternative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedName {
    /// Object of the power, e.g. `the accounts of this system`.
    pub what: String,
    /// Advice for an alternative.
    pub instead: String,
}

impl std::fmt::Display for GuardedName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "this concerns {}; {}", self.what, self.instead)
    }
}

/// Returns the path if a power is over credentials or over a part of the system. Then no hint suggests the
/// power, and an answer about it applies this time only.
pub fn find_guarded_name(power: &Grant, home: &Path) -> Option<GuardedName> {
    let Some(entries) = GUARDED_ENTRIES.as_ref() else {
        let (what, instead) = ("a path that could not be checked".to_owned(), "name the power yourself".to_owned());
        return Some(GuardedName { what, instead });
    };
    if let Some(found) = find_credentials(power, home, |entry| entry.starts_with('~')) {
        return Some(found);
    }
    let entry = entries.iter().find(|entry| entry.covers(power))?;
    if entry.general
        && let Some(found) = find_credentials(power, home, |entry| entry.starts_with('/'))
    {
        return Some(found);
    }
    Some(GuardedName { what: entry.what.clone(), instead: entry.instead.clone() })
}

impl PolicySettings {
    /// Like [`find_guarded_name`], for every path that the mounts of the host give.
    pub fn find_guarded_name(&self, power: &Grant) -> Option<GuardedName> {
        find_guarded_name(power, self.home()).or_else(|| {
            let (Grant::Read(path) | Grant::Write(path) | Grant::Socket(path)) = power else { return None };
            // Without the mount table no command runs.
            let others = self.mounts.as_ref().ok()?.other_paths([path.as_path()]).ok()?;
            others.into_iter().find_map(|other| find_guarded_name(&with_path(power, other.path), self.home()))
        })
    }
}

fn with_path(power: &Grant, path: PathBuf) -> Grant {
    match power {
        Grant::Read(_) => Grant::Read(path),
        Grant::Socket(_) => Grant::Socket(path),
        _ => Grant::Write(path),
    }
}

/// Reason of the entry for histories in the shipped list.
const HISTORIES_REASON: &str = "histories hold secrets that were typed";
/// Start of the reason for settings of package registries in the shipped list.
const REGISTRIES_REASON: &str = "tokens of package registries";
/// Temporary files beside the history, through which `less` and `vim` rewrite theirs.
const HISTORY_TEMPORARY_FILES: &[&str] = &[".lesshsQ", ".lesshsT", ".viminf?.tmp"];

/// Returns whether a path is a history of user input, or the file with which a program replaces it. No
/// program needs it for its work, so the user is not asked about it.
pub fn is_history(path: &Path, home: &Path) -> bool {
    let Ok(name) = path.strip_prefix(home) else { return false };
    let is_in_writing = |pattern: &&str| name.to_str().is_some_and(|name| name_matches(pattern, name));
    let is_beside = |entry: &str| {
        let rest = name.to_str().and_then(|name| name.strip_prefix(entry));
        rest.is_some_and(|rest| rest.starts_with(['-', '.', '~']) && !rest.contains('/'))
    };
    let listed =
        credential_groups().iter().filter(|(_, reason)| *reason == HISTORIES_REASON).flat_map(|(values, _)| values);
    let mut listed = listed.filter_map(|entry| entry.strip_prefix("~/"));
    HISTORY_TEMPORARY_FILES.iter().any(is_in_writing) || listed.any(|entry| name.starts_with(entry) || is_beside(entry))
}

/// Returns whether a path is a settings file of a package registry. Tools read these at each start and work
/// without them, so they are seldom the cause of a failed command.
pub fn is_registry_settings(path: &Path, home: &Path) -> bool {
    let Ok(name) = path.strip_prefix(home) else { return false };
    let listed = credential_groups().iter().filter(|(_, reason)| reason.starts_with(REGISTRIES_REASON));
    listed
        .flat_map(|(values, _)| values)
        .any(|entry| entry.strip_prefix("~/").is_some_and(|entry| name == Path::new(entry)))
}

/// Returns the advice for a refused power if no grant may be suggested: the power is over a guarded path,
/// reveals a hidden path, or sends a secret to another host.
pub fn advice_instead_of_grant(power: &Grant, home: &Path) -> Option<String> {
    if let Some(guarded_name) = find_guarded_name(power, home) {
        return Some(guarded_name.to_string());
    }
    match power {
        // A path in a private tree of the run is invisible, but need not be hidden by the configuration.
        // For a hidden path there, no advice is given either.
        Grant::Read(path) if PRIVATE_TREES.iter().any(|tree| path.starts_with(tree)) => None,
        Grant::Read(path) => Some(format!(
            "`{}` is hidden from runs by the configuration; do what needs it yourself, outside, or take it out of \
             what is hidden",
            RawText::from(path.as_path()).to_escaped()
        )),
        Grant::Secret(subject) => Some(format!(
            "the secret `{}` is not for this host; if it is meant to be, add the host to the secret in your \
             configuration",
            RawText::from(subject.name()).to_escaped()
        )),
        Grant::Effect(subject) => Some(format!(
            "no rule approves `{subject}` in advance; run it at a terminal and answer there, or do this step \
             yourself, outside"
        )),
        _ => None,
    }
}

/// Finds credentials of the shipped list, or the whole home directory, which contains them.
fn find_credentials(power: &Grant, home: &Path, listed: impl Fn(&str) -> bool) -> Option<GuardedName> {
    let (Grant::Read(path) | Grant::Write(path) | Grant::Socket(path)) = power else { return None };
    if home.starts_with(path) {
        let what = "your whole home directory, with every credential in it".to_owned();
        return Some(GuardedName { what, instead: "name the one directory that the command needs".to_owned() });
    }
    let holds = |entry: &str| match entry.strip_prefix("~/") {
        Some(rest) => path.starts_with(home.join(rest)),
        None => path.starts_with(entry),
    };
    let is_in = |values: &[&str]| values.iter().any(|entry| listed(entry) && holds(entry));
    let found = credential_groups().iter().find(|(values, _)| is_in(values));
    found.map(|(_, reason)| GuardedName {
        what: format!("data that stays hidden from runs ({reason})"),
        instead: "do what needs it yourself, outside".to_owned(),
    })
}

impl GuardedEntry {
    fn covers(&self, power: &Grant) -> bool {
        match power {
            Grant::Read(path) | Grant::Write(path) => {
                let is_in = |list: &[String]| list.iter().any(|pattern| is_beneath(pattern, path));
                // A directory that contains a part of the system counts like the part.
                let is_around = |pattern: &String| !pattern.contains('*') && Path::new(pattern).starts_with(path);
                (is_in(&self.paths) && !is_in(&self.except))
                    || (self.general && matches!(power, Grant::Write(_)) && self.paths.iter().any(is_around))
            }
            Grant::Socket(path) => {
                let name = path.file_name().unwrap_or_default();
                self.sockets.iter().any(|pattern| is_beneath(pattern, path))
                    || self.socket_names.iter().any(|pattern| part_matches(pattern, name))
            }
            Grant::Connect(targets) => self.hosts.iter().any(|host| names_host(targets, host)),
            Grant::Secret(subject) => self.hosts.iter().any(|host| names_host(subject.targets(), host)),
            Grant::Sign(subject) => subject.target().is_some_and(|target| {
                let target = TargetPattern::for_target(target);
                self.hosts.iter().any(|host| names_host(&target, host))
            }),
            Grant::Listen(_) | Grant::Exec(_) | Grant::Env(_) | Grant::Limit(..) | Grant::Effect(_) => false,
        }
    }
}

/// Returns whether the pattern names the path or a parent directory.
fn is_beneath(pattern: &str, path: &Path) -> bool {
    let mut parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
    pattern
        .split('/')
        .filter(|part| !part.is_empty())
        .all(|subject| parts.next().is_some_and(|part| part_matches(subject, part.as_os_str())))
}

fn part_matches(pattern: &str, part: &OsStr) -> bool {
    name_matches(pattern, &part.to_string_lossy())
}

/// Returns whether these targets include the host on some port. A pattern for every host is refused
/// elsewhere; advice about one path would not fit.
fn names_host(targets: &TargetPattern, host: &str) -> bool {
    let is_any = matches!(targets.host(), HostPattern::Any);
    !is_any && host.parse::<TargetPattern>().is_ok_and(|host| targets.overlaps(&host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_is_readable_and_every_entry_can_match() {
        let entries = GUARDED_ENTRIES.as_ref().expect("policies/guarded.toml is readable");
        for entry in entries {
            assert!(!entry.what.is_empty() && entry.instead.len() > 10, "{entry:?}");
            for path in entry.paths.iter().chain(&entry.except).chain(&entry.sockets) {
                assert!(path.starts_with('/') && !path.ends_with('/'), "{path}");
                assert!(is_beneath(path, Path::new(&path.replace('*', "x"))), "{path}");
            }
            for host in &entry.hosts {
                assert!(names_host(&host.parse().unwrap(), host), "{host}");
            }
        }
    }

    #[test]
    fn histories_are_known_by_their_names() {
        let is_known = |name: &str| is_history(&Path::new("/home/u").join(name), Path::new("/home/u"));
        for name in [".bash_history", ".bash_history-00123.tmp", ".lesshst", ".lesshsQ", ".viminfo", ".viminfz.tmp"] {
            assert!(is_known(name), "{name}");
        }
        for name in [".bash_historyx", ".bash_history.d/x", ".ssh/id", ".vimrc", "src/.viminfo", ""] {
            assert!(!is_known(name), "{name}");
        }
    }

    /// The list of credentials also names places of the system that are hidden from root's runs.
    #[test]
    fn credentials_of_the_system_are_guarded_too() {
        for (values, _) in credential_groups() {
            for value in values {
                let path = value.replace('~', "/home/u");
                let power = Grant::Read(path.into());
                assert!(find_guarded_name(&power, Path::new("/home/u")).is_some(), "{value}");
            }
        }
    }
}

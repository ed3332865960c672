//! Reads the files of `policies/`, which are compiled in. Every start does this, so the reader borrows its
//! strings and builds no tree. The files are in the simplest form of TOML, one statement per line, strings
//! without escapes. A test checks that a complete TOML parser finds the same content.
//!
//! Must not know the parts of a profile, nor configuration files of users.

use stockade_model::{CacheSharing, Network};

use crate::file::LimitsSection;

/// One file of `policies/`: a profile, or a list that profiles use.
#[derive(Debug, Default)]
pub(crate) struct ShippedFile {
    pub summary: &'static str,
    pub sandboxed: bool,
    pub network: Network,
    pub uses: Vec<ListName>,
    pub write: Vec<Group>,
    pub hide: Vec<Group>,
    pub pass: Vec<Group>,
    pub drop: Vec<Group>,
    pub set: Vec<SetEntry>,
    pub cache: Vec<CacheEntry>,
    pub limits: LimitsSection,
}

/// A list that profiles use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListName {
    Caches,
    Credentials,
    Environment,
    ProjectFiles,
}

/// Paths, names or patterns with a common reason.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub values: Vec<&'static str>,
    pub reason: &'static str,
}

/// One variable that is set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SetEntry {
    pub name: &'static str,
    pub value: &'static str,
    pub reason: &'static str,
}

/// A cache or package store of a tool.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheEntry {
    pub tool: &'static str,
    pub directory: &'static str,
    pub data: Vec<&'static str>,
    pub sharing: Option<CacheSharing>,
    pub moved_by: Vec<&'static str>,
    /// `NAME=value`.
    pub set: Vec<&'static str>,
    pub reason: &'static str,
}

/// Section that a statement belongs to.
#[derive(Clone, Copy)]
enum Section {
    Top,
    Write,
    Hide,
    Pass,
    Drop,
    Set,
    Cache,
    Limits,
}

/// Reads one file.
///
/// # Errors
/// The line that is not in one of the simple forms, or an unknown key.
pub(crate) fn read(source: &'static str) -> Result<ShippedFile, String> {
    let mut file = ShippedFile::default();
    let mut section = Section::Top;
    for (number, line) in source.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let done = match line.split_once('=') {
            Some((key, value)) => statement(&mut file, section, key.trim(), value.trim()),
            None => begin(&mut file, line).map(|begun| section = begun),
        };
        done.ok_or_else(|| format!("line {}: not a plain statement with a known key", number + 1))?;
    }
    Ok(file)
}

fn begin(file: &mut ShippedFile, line: &str) -> Option<Section> {
    let (list, section) = match line {
        "[[write]]" => (&mut file.write, Section::Write),
        "[[hide]]" => (&mut file.hide, Section::Hide),
        "[[pass]]" => (&mut file.pass, Section::Pass),
        "[[drop]]" => (&mut file.drop, Section::Drop),
        "[[set]]" => {
            file.set.push(SetEntry::default());
            return Some(Section::Set);
        }
        "[[cache]]" => {
            file.cache.push(CacheEntry::default());
            return Some(Section::Cache);
        }
        "[limits]" => return Some(Section::Limits),
        _ => return None,
    };
    list.push(Group::default());
    Some(section)
}

fn statement(file: &mut ShippedFile, section: Section, key: &str, value: &'static str) -> Option<()> {
    match section {
        Section::Top => top(file, key, value),
        Section::Write => group(&mut file.write, "paths", key, value),
        Section::Hide => group(&mut file.hide, "paths", key, value),
        Section::Pass => group(&mut file.pass, "names", key, value),
        Section::Drop => group(&mut file.drop, "names", key, value),
        Section::Set => {
            let entry = file.set.last_mut()?;
            let slot = match key {
                "name" => &mut entry.name,
                "value" => &mut entry.value,
                "reason" => &mut entry.reason,
                _ => return None,
            };
            *slot = string(value)?;
            Some(())
        }
        Section::Cache => cache(file.cache.last_mut()?, key, value),
        Section::Limits => {
            let limits = &mut file.limits;
            match key {
                "wall" => limits.wall = Some(string(value)?.parse().ok()?),
                "cpu_time" => limits.cpu_time = Some(string(value)?.parse().ok()?),
                "cpus" => limits.cpus = Some(string(value)?.parse().ok()?),
                "memory" => limits.memory = Some(string(value)?.parse().ok()?),
                "disk" => limits.disk = Some(string(value)?.parse().ok()?),
                "inodes" => limits.inodes = Some(value.parse().ok()?),
                "io" => limits.io = Some(string(value)?.parse().ok()?),
                "file_size" => limits.file_size = Some(string(value)?.parse().ok()?),
                "open_files" => limits.open_files = Some(value.parse().ok()?),
                "processes" => limits.processes = Some(value.parse().ok()?),
                "temp" => limits.temp = Some(string(value)?.parse().ok()?),
                "output" => limits.output = Some(string(value)?.parse().ok()?),
                _ => return None,
            }
            Some(())
        }
    }
}

fn top(file: &mut ShippedFile, key: &str, value: &'static str) -> Option<()> {
    match key {
        "summary" => file.summary = string(value)?,
        "sandboxed" => file.sandboxed = value.parse().ok()?,
        "network" => {
            file.network = match string(value)? {
                "none" => Network::None,
                "host" => Network::Host,
                _ => return None,
            };
        }
        "uses" => {
            for name in strings(value)? {
                file.uses.push(match name {
                    "caches" => ListName::Caches,
                    "credentials" => ListName::Credentials,
                    "environment" => ListName::Environment,
                    "project-files" => ListName::ProjectFiles,
                    _ => return None,
                });
            }
        }
        _ => return None,
    }
    Some(())
}

fn cache(entry: &mut CacheEntry, key: &str, value: &'static str) -> Option<()> {
    match key {
        "tool" => entry.tool = string(value)?,
        "directory" => entry.directory = string(value)?,
        "data" => entry.data = strings(value)?,
        "sharing" => {
            entry.sharing = Some(match string(value)? {
                "merged" => CacheSharing::Merged,
                "private" => CacheSharing::Private,
                _ => return None,
            });
        }
        "moved_by" => entry.moved_by = strings(value)?,
        "set" => entry.set = strings(value)?,
        "reason" => entry.reason = string(value)?,
        _ => return None,
    }
    Some(())
}

fn group(groups: &mut [Group], list: &str, key: &str, value: &'static str) -> Option<()> {
    let group = groups.last_mut()?;
    if key == list {
        group.values = strings(value)?;
    } else if key == "reason" {
        group.reason = string(value)?;
    } else {
        return None;
    }
    Some(())
}

/// Parses a string without escapes.
fn string(text: &'static str) -> Option<&'static str> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    (!inner.contains(['"', '\\'])).then_some(inner)
}

/// Parses a list of such strings.
fn strings(text: &'static str) -> Option<Vec<&'static str>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    if inner.contains('\\') {
        return None;
    }
    let mut found = Vec::new();
    // Text outside and inside of quotes alternates.
    for (turn, piece) in inner.split('"').enumerate() {
        if turn % 2 == 1 {
            found.push(piece);
        } else if !matches!(piece.trim(), "" | ",") {
            return None;
        }
    }
    (inner.matches('"').count() % 2 == 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_plain_is_refused() {
        for source in [
            "summary = 'x'",
            "summary = \"a\\n\"",
            "colour = \"x\"",
            "[[other]]",
            "[[hide]]\nnames = [\"x\"]",
            "[[hide]]\npaths = [\"x\", y]",
            "[[hide]]\npaths = [\"x]",
            "[[hide]]\npaths = [",
            "[limits]\ntemp = \"much\"",
            "sandboxed = yes",
        ] {
            assert!(read(source).is_err(), "{source}");
        }
        assert_eq!(read("[[hide]]\npaths = [\"a, b\", \"c\",]").unwrap().hide[0].values, ["a, b", "c"]);
    }
}

//! Reads the files of `policies/`, which are compiled in. Every start does this, so the reader borrows its
//! strings and builds no tree. The files are in the simplest form of TOML, one statement per line, strings
//! without escapes. A test checks that a complete TOML parser finds the same content.
//!
//! Must not know the parts of a profile, nor configuration files of users.

use stockade_model::{CacheSharing, LimitKind, Limits, NetworkAccess};

/// One file of `policies/`: a profile, or a list that profiles use.
#[derive(Debug, Default)]
pub(crate) struct ShippedFile {
    pub summary: &'static str,
    pub sandboxed: bool,
    pub network: NetworkAccess,
    pub uses: Vec<ListName>,
    pub write: Vec<ShippedGroup>,
    pub hide: Vec<ShippedGroup>,
    pub pass: Vec<ShippedGroup>,
    pub drop: Vec<ShippedGroup>,
    pub set: Vec<SetEntry>,
    pub cache: Vec<CacheEntry>,
    pub limits: Limits,
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
pub(crate) struct ShippedGroup {
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
enum ShippedSection {
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
pub(crate) fn parse_shipped_file(source: &'static str) -> Result<ShippedFile, String> {
    let mut file = ShippedFile::default();
    let mut section = ShippedSection::Top;
    for (number, line) in source.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let done = match line.split_once('=') {
            Some((key, value)) => parse_statement(&mut file, section, key.trim(), value.trim()),
            None => begin_section(&mut file, line).map(|begun| section = begun),
        };
        done.ok_or_else(|| format!("line {}: not a plain statement with a known key", number + 1))?;
    }
    Ok(file)
}

fn begin_section(file: &mut ShippedFile, line: &str) -> Option<ShippedSection> {
    let (list, section) = match line {
        "[[write]]" => (&mut file.write, ShippedSection::Write),
        "[[hide]]" => (&mut file.hide, ShippedSection::Hide),
        "[[pass]]" => (&mut file.pass, ShippedSection::Pass),
        "[[drop]]" => (&mut file.drop, ShippedSection::Drop),
        "[[set]]" => {
            file.set.push(SetEntry::default());
            return Some(ShippedSection::Set);
        }
        "[[cache]]" => {
            file.cache.push(CacheEntry::default());
            return Some(ShippedSection::Cache);
        }
        "[limits]" => return Some(ShippedSection::Limits),
        _ => return None,
    };
    list.push(ShippedGroup::default());
    Some(section)
}

fn parse_statement(file: &mut ShippedFile, section: ShippedSection, key: &str, value: &'static str) -> Option<()> {
    match section {
        ShippedSection::Top => parse_top_level(file, key, value),
        ShippedSection::Write => parse_group_key(&mut file.write, "paths", key, value),
        ShippedSection::Hide => parse_group_key(&mut file.hide, "paths", key, value),
        ShippedSection::Pass => parse_group_key(&mut file.pass, "names", key, value),
        ShippedSection::Drop => parse_group_key(&mut file.drop, "names", key, value),
        ShippedSection::Set => {
            let entry = file.set.last_mut()?;
            let slot = match key {
                "name" => &mut entry.name,
                "value" => &mut entry.value,
                "reason" => &mut entry.reason,
                _ => return None,
            };
            *slot = parse_string(value)?;
            Some(())
        }
        ShippedSection::Cache => parse_cache_key(file.cache.last_mut()?, key, value),
        ShippedSection::Limits => {
            let limit = LimitKind::from_name(key)?;
            // A count stands without quotes.
            let amount = parse_string(value).unwrap_or(value);
            file.limits.set_limit(limit, limit.parse_amount(amount).ok()?);
            Some(())
        }
    }
}

fn parse_top_level(file: &mut ShippedFile, key: &str, value: &'static str) -> Option<()> {
    match key {
        "summary" => file.summary = parse_string(value)?,
        "sandboxed" => file.sandboxed = value.parse().ok()?,
        "network" => {
            file.network = match parse_string(value)? {
                "none" => NetworkAccess::None,
                "host" => NetworkAccess::Host,
                _ => return None,
            };
        }
        "uses" => {
            for name in parse_strings(value)? {
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

fn parse_cache_key(entry: &mut CacheEntry, key: &str, value: &'static str) -> Option<()> {
    match key {
        "tool" => entry.tool = parse_string(value)?,
        "directory" => entry.directory = parse_string(value)?,
        "data" => entry.data = parse_strings(value)?,
        "sharing" => {
            entry.sharing = Some(match parse_string(value)? {
                "merged" => CacheSharing::Merged,
                "private" => CacheSharing::Private,
                _ => return None,
            });
        }
        "moved_by" => entry.moved_by = parse_strings(value)?,
        "set" => entry.set = parse_strings(value)?,
        "reason" => entry.reason = parse_string(value)?,
        _ => return None,
    }
    Some(())
}

fn parse_group_key(groups: &mut [ShippedGroup], list: &str, key: &str, value: &'static str) -> Option<()> {
    let group = groups.last_mut()?;
    if key == list {
        group.values = parse_strings(value)?;
    } else if key == "reason" {
        group.reason = parse_string(value)?;
    } else {
        return None;
    }
    Some(())
}

/// Parses a string without escapes.
fn parse_string(text: &'static str) -> Option<&'static str> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    (!inner.contains(['"', '\\'])).then_some(inner)
}

/// Parses a list of such strings.
fn parse_strings(text: &'static str) -> Option<Vec<&'static str>> {
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
            assert!(parse_shipped_file(source).is_err(), "{source}");
        }
        assert_eq!(parse_shipped_file("[[hide]]\npaths = [\"a, b\", \"c\",]").unwrap().hide[0].values, ["a, b", "c"]);
    }
}

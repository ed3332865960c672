//! Reads the files of `policies/`, which are compiled in. Every start does this, so the reader borrows its
//! strings and builds no tree. The files are in the simplest form of TOML, one statement per line, strings
//! without escapes. A test checks that a complete TOML parser finds the same content.
//!
//! Must not know the parts of a profile, nor configuration files of users.

use serde::Deserialize;
use stockade_model::{CacheSharing, LimitKind, Limits, NetworkAccess};

use crate::text::parse_variant;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// The statements of one section, with the values in their written form.
struct ShippedTable {
    /// Header of the section; empty at the top of the file.
    header: &'static str,
    values: Vec<(&'static str, &'static str)>,
}

impl ShippedTable {
    /// Takes the value of a key, or the default if the key is absent. `None` if the value is not in its form.
    fn take<T: Default>(&mut self, key: &str, parse: impl FnOnce(&'static str) -> Option<T>) -> Option<T> {
        match self.values.iter().position(|(own, _)| *own == key) {
            Some(at) => parse(self.values.remove(at).1),
            None => Some(T::default()),
        }
    }

    fn take_group(&mut self, list: &str) -> Option<ShippedGroup> {
        Some(ShippedGroup { values: self.take(list, parse_strings)?, reason: self.take("reason", parse_string)? })
    }
}

/// Reads one file.
///
/// # Errors
/// The section that is not in the simple form, or has an unknown key.
pub(crate) fn parse_shipped_file(source: &'static str) -> Result<ShippedFile, String> {
    let mut tables = vec![ShippedTable { header: "", values: Vec::new() }];
    for line in source.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.split_once('='), tables.last_mut()) {
            (Some((key, value)), Some(table)) => table.values.push((key.trim(), value.trim())),
            _ => tables.push(ShippedTable { header: line, values: Vec::new() }),
        }
    }
    let mut file = ShippedFile::default();
    for mut table in tables {
        let is_plain = add_table(&mut file, &mut table).is_some() && table.values.is_empty();
        if !is_plain {
            return Err(format!("section `{}`: not plain statements with known keys", table.header));
        }
    }
    Ok(file)
}

/// Adds the content of one section, and takes its known keys. `None` if a value is not in its form.
fn add_table(file: &mut ShippedFile, table: &mut ShippedTable) -> Option<()> {
    match table.header {
        "" => {
            file.summary = table.take("summary", parse_string)?;
            file.sandboxed = table.take("sandboxed", |text| text.parse().ok())?;
            file.network = table.take("network", |text| parse_variant(parse_string(text)?))?;
            file.uses = table.take("uses", |text| parse_strings(text)?.into_iter().map(parse_variant).collect())?;
        }
        "[[write]]" => file.write.push(table.take_group("paths")?),
        "[[hide]]" => file.hide.push(table.take_group("paths")?),
        "[[pass]]" => file.pass.push(table.take_group("names")?),
        "[[drop]]" => file.drop.push(table.take_group("names")?),
        "[[set]]" => file.set.push(SetEntry {
            name: table.take("name", parse_string)?,
            value: table.take("value", parse_string)?,
            reason: table.take("reason", parse_string)?,
        }),
        "[[cache]]" => file.cache.push(CacheEntry {
            tool: table.take("tool", parse_string)?,
            directory: table.take("directory", parse_string)?,
            data: table.take("data", parse_strings)?,
            sharing: table.take("sharing", |text| parse_variant(parse_string(text)?).map(Some))?,
            moved_by: table.take("moved_by", parse_strings)?,
            set: table.take("set", parse_strings)?,
            reason: table.take("reason", parse_string)?,
        }),
        "[limits]" => {
            for (key, value) in std::mem::take(&mut table.values) {
                let limit = LimitKind::from_name(key)?;
                // A count stands without quotes.
                let amount = parse_string(value).unwrap_or(value);
                file.limits.set_limit(limit, limit.parse_amount(amount).ok()?);
            }
        }
        _ => return None,
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
    fn unclear_paths_are_refused() {
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

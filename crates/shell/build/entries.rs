//! Reads the tables of programs: what a key means, and the code that stands for a table. The crate
//! compiles this file for its tests only.

use std::fmt;

use serde::de::value::Error;
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

use super::kinds::{OperandSpec, OptionArity, OptionEffect, OptionSpec, ValueKind};

/// Options, by their keys. A key with an effect wins over the ones without.
const OPTION_KEYS: [(&str, OptionEffect); 12] = [
    ("flags", OptionEffect::Inert),
    ("valued", OptionEffect::Inert),
    ("optional", OptionEffect::Inert),
    ("pairs", OptionEffect::Inert),
    ("tells", OptionEffect::Inert),
    ("reads", OptionEffect::Reads),
    ("writes", OptionEffect::Writes),
    ("changes", OptionEffect::Repository),
    ("deletes", OptionEffect::Deletes),
    ("connects", OptionEffect::Connects),
    ("executes", OptionEffect::Executes),
    ("elevates", OptionEffect::Privilege),
];
/// Keys that are not read here.
const OTHER_KEYS: [&str; 6] = ["source", "same", "like", "allow", "ask", "deny"];

/// A list whose debug form is code: a reference to an array. It is read from an array, or from the
/// words of a text.
pub(crate) struct CodeList<T>(pub Vec<T>);

impl<T> Default for CodeList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: fmt::Debug> fmt::Debug for CodeList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "&{:?}", self.0)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for CodeList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Items {
            Text(String),
            List(Vec<String>),
        }
        let items = match Items::deserialize(deserializer)? {
            Items::Text(text) => text.split_ascii_whitespace().map(str::to_owned).collect(),
            Items::List(items) => items,
        };
        let items = items.into_iter().map(|item| T::deserialize(item.into_deserializer()));
        Ok(Self(items.collect::<Result<_, D::Error>>()?))
    }
}

/// The fields of the crate's type of this name, in a form that prints as its code.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CommandSpec {
    #[serde(skip)]
    pub options: CodeList<(String, OptionSpec)>,
    #[serde(skip)]
    operands: CodeList<OperandSpec>,
    does: CodeList<OptionEffect>,
    tells: CodeList<String>,
    pub reader_with: CodeList<String>,
    code: CodeList<String>,
    #[serde(rename = "given_by")]
    pub operand_options: CodeList<String>,
    pub requires: CodeList<String>,
    or_absent: bool,
    from_path: bool,
    requires_too: CodeList<String>,
    #[serde(rename = "neutralise")]
    sanitize_sets: CodeList<String>,
    #[serde(rename = "neutralise_with")]
    sanitize_options: CodeList<String>,
    pub operands_with: CodeList<String>,
    #[serde(skip)]
    operands_then: CodeList<OperandSpec>,
    numeric: bool,
    globs: bool,
    any: bool,
    stops: bool,
    bundled: bool,
    subcommands: bool,
    assignments: bool,
    at_files: bool,
    special: bool,
}

/// Parses a table; `group_of` returns a table that is named by `like`.
///
/// # Errors
/// What has no meaning.
pub(crate) fn parse_entry<'t>(
    table: &'t Table,
    group_of: &dyn Fn(&str) -> Option<&'t Table>,
) -> Result<CommandSpec, String> {
    let mut merged = Table::new();
    merge_table(&mut merged, table, group_of, 0)?;
    let mut options = Vec::new();
    for (key, effect) in OPTION_KEYS {
        let text = merged.get(key).map_or(Some(""), Value::as_str).ok_or(key)?;
        for word in text.split_ascii_whitespace() {
            options.push(parse_option(word, effect, key).ok_or(word)?);
        }
        if key != "tells" {
            merged.remove(key);
        }
    }
    options.sort_by_key(|(name, spec)| (name.clone(), harm_rank(spec.effect)));
    options.dedup_by_key(|(name, _)| name.clone());
    let operands = parse_operands(merged.remove("operands"))?;
    let operands_then = parse_operands(merged.remove("operands_then"))?;
    let spec: CommandSpec = merged.try_into().map_err(|fault: toml::de::Error| fault.to_string())?;
    let stops = spec.stops || spec.subcommands;
    Ok(CommandSpec { options: CodeList(options), operands, operands_then, stops, ..spec })
}

/// Adds the keys of a table to those of the groups that it is like. Its options are added, its
/// other keys replace.
fn merge_table<'t>(
    merged: &mut Table,
    table: &'t Table,
    group_of: &dyn Fn(&str) -> Option<&'t Table>,
    depth: usize,
) -> Result<(), String> {
    for group in table.get("like").and_then(Value::as_str).unwrap_or_default().split_ascii_whitespace() {
        let group = group_of(group).filter(|_| depth < 3).ok_or(group)?;
        merge_table(merged, group, group_of, depth + 1)?;
    }
    for (key, value) in table.iter().filter(|(key, _)| !OTHER_KEYS.contains(&key.as_str())) {
        let is_option = OPTION_KEYS.iter().any(|(option, _)| option == key);
        let value = match (merged.get(key), value) {
            (Some(Value::String(old)), Value::String(new)) if is_option => Value::String(format!("{old} {new}")),
            _ => value.clone(),
        };
        merged.insert(key.clone(), value);
    }
    Ok(())
}

fn parse_option(word: &str, effect: OptionEffect, key: &str) -> Option<(String, OptionSpec)> {
    let (name, arity) = match word.split_once(':') {
        None if key == "optional" => return None,
        None => (word, OptionArity::Flag),
        Some((name, kind)) => {
            let kind = if kind.is_empty() { usual_kind(effect) } else { parse_name(kind)? };
            match (name.strip_suffix('?'), key) {
                (Some(name), _) => (name, OptionArity::Optional(kind)),
                (None, "optional") => (name, OptionArity::Optional(kind)),
                (None, "pairs") => (name, OptionArity::Pair(kind)),
                (None, _) => (name, OptionArity::Value(kind)),
            }
        }
    };
    Some((name.to_owned(), OptionSpec { effect, arity }))
}

/// Returns the rank of an effect. An option in two lists has the most harmful effect: the lowest
/// rank.
fn harm_rank(effect: OptionEffect) -> u8 {
    match effect {
        OptionEffect::Executes => 0,
        OptionEffect::Privilege | OptionEffect::Persists | OptionEffect::System => 1,
        OptionEffect::Deletes | OptionEffect::Writes | OptionEffect::Repository => 2,
        OptionEffect::Connects => 3,
        OptionEffect::Reads => 4,
        OptionEffect::Inert => 5,
    }
}

/// Returns the kind of a value whose kind is not given.
fn usual_kind(effect: OptionEffect) -> ValueKind {
    match effect {
        OptionEffect::Writes => ValueKind::Write,
        OptionEffect::Deletes => ValueKind::Delete,
        OptionEffect::Executes => ValueKind::Code,
        OptionEffect::Connects => ValueKind::Host,
        OptionEffect::Reads => ValueKind::Read,
        _ => ValueKind::Text,
    }
}

/// Returns the effect or the kind of this name.
fn parse_name<T: DeserializeOwned>(name: &str) -> Option<T> {
    T::deserialize(IntoDeserializer::<Error>::into_deserializer(name.to_owned())).ok()
}

fn parse_operands(value: Option<Value>) -> Result<CodeList<OperandSpec>, String> {
    let parse = |word: &str| {
        let many = word.ends_with('*');
        let kind = parse_name(word.trim_end_matches(['*', '?'])).ok_or(word)?;
        Ok(OperandSpec { kind, optional: many || word.ends_with('?'), many })
    };
    let text = value.as_ref().map_or(Some(""), Value::as_str).ok_or("operands are not a text")?;
    Ok(CodeList(text.split_ascii_whitespace().map(parse).collect::<Result<_, String>>()?))
}

/// Returns the other programs with this entry.
pub(crate) fn same_names<'t>(name: &str, table: &'t Table) -> impl Iterator<Item = &'t str> {
    let separator = if name.contains(' ') { ',' } else { ' ' };
    let same = table.get("same").and_then(Value::as_str).unwrap_or_default();
    same.split(separator).map(str::trim).filter(|other| !other.is_empty())
}

//! Parses the text of one file to its typed content, with the position of every key and value. Unknown keys
//! are refused with a suggestion.
//!
//! Must not know layers or merging.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, Lines, Place, suggestion};

/// Position of each key of a file, by its path: `profiles.ci.write[0]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    by_path: BTreeMap<String, Place>,
}

impl Places {
    /// Returns the position of a key, or of an item of a list.
    pub(crate) fn get(&self, path: &str) -> Option<Place> {
        self.by_path.get(path).copied()
    }
}

/// Parses one file whose positions are not needed.
pub(crate) fn parse_content<T: DeserializeOwned>(file: &Path, source: &str) -> Result<T, ConfigError> {
    toml::from_str(source).map_err(|error| explain(file, source, &error))
}

/// Parses one file.
pub(crate) fn parse<T: DeserializeOwned>(file: &Path, source: &str) -> Result<(T, Places), ConfigError> {
    let table = DeTable::parse(source).map_err(|error| explain(file, source, &error))?;
    let mut index = Index { lines: Lines::of(source), places: Places::default() };
    index.table(table.get_ref(), "");
    Ok((parse_content(file, source)?, index.places))
}

/// Collects positions on a walk through a file.
struct Index<'a> {
    lines: Lines<'a>,
    places: Places,
}

impl Index<'_> {
    fn table(&mut self, table: &DeTable<'_>, prefix: &str) {
        for (key, value) in table {
            let path =
                if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
            self.places.by_path.insert(path.clone(), self.lines.place(key.span().start));
            self.value(value, &path);
        }
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, path: &str) {
        match value.get_ref() {
            DeValue::Table(table) => self.table(table, path),
            DeValue::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    self.places.by_path.insert(path.clone(), self.lines.place(item.span().start));
                    self.value(item, &path);
                }
            }
            _ => {}
        }
    }
}

/// Rephrases a parser's error. The parser's message for an unknown name is
/// `unknown field|variant NAME, expected ...`, with names in backquotes.
fn explain(file: &Path, source: &str, error: &toml::de::Error) -> ConfigError {
    let place = error.span().map(|span| Lines::of(source).place(span.start));
    let message = error.message();
    let what = if message.starts_with("unknown field `") {
        "key"
    } else if message.starts_with("unknown variant `") {
        "value"
    } else {
        return ConfigError::new(file, place, message.replace('\n', "; ").replace("missing field", "missing key"));
    };
    let mut quoted = message.split('`').skip(1).step_by(2);
    let name = quoted.next().unwrap_or_default();
    let known: Vec<&str> = quoted.collect();
    let said = ConfigError::new(file, place, format!("unknown {what} `{name}`"));
    match suggestion(name, known.iter().copied()) {
        Some(meant) => said.hint(format!("did you mean `{meant}`?")),
        None if known.is_empty() => said,
        None => said.hint(format!("known here: `{}`", known.join("`, `"))),
    }
}

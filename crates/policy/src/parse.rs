//! Parses the text of one file to its typed content, with the position of every key and value. Unknown keys
//! are refused with a suggestion.
//!
//! Must not know layers or merging.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, LineIndex, TextPosition, advise_name};

/// Position of each key of a file, by its path: `profiles.ci.write[0]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyPositions {
    by_path: BTreeMap<String, TextPosition>,
}

impl KeyPositions {
    /// Returns the position of a key, or of an item of a list.
    pub(crate) fn get(&self, path: &str) -> Option<TextPosition> {
        self.by_path.get(path).copied()
    }
}

/// Parses one file whose positions are not needed.
pub(crate) fn parse_content<T: DeserializeOwned>(file: &Path, source: &str) -> Result<T, ConfigError> {
    toml::from_str(source).map_err(|error| explain_error(file, source, &error))
}

/// Parses one file.
pub(crate) fn parse_file<T: DeserializeOwned>(file: &Path, source: &str) -> Result<(T, KeyPositions), ConfigError> {
    let table = DeTable::parse(source).map_err(|error| explain_error(file, source, &error))?;
    let mut index = PositionCollector { lines: LineIndex::from_source(source), positions: KeyPositions::default() };
    index.index_table(table.get_ref(), "");
    Ok((parse_content(file, source)?, index.positions))
}

/// Collects positions on a walk through a file.
struct PositionCollector<'a> {
    lines: LineIndex<'a>,
    positions: KeyPositions,
}

impl PositionCollector<'_> {
    fn index_table(&mut self, table: &DeTable<'_>, prefix: &str) {
        for (key, value) in table {
            let path =
                if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
            self.positions.by_path.insert(path.clone(), self.lines.position_at(key.span().start));
            self.index_value(value, &path);
        }
    }

    fn index_value(&mut self, value: &Spanned<DeValue<'_>>, path: &str) {
        match value.get_ref() {
            DeValue::Table(table) => self.index_table(table, path),
            DeValue::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    self.positions.by_path.insert(path.clone(), self.lines.position_at(item.span().start));
                    self.index_value(item, &path);
                }
            }
            _ => {}
        }
    }
}

/// Rephrases a parser's error. The parser's message for an unknown name is
/// `unknown field|variant NAME, expected ...`, with names in backquotes.
fn explain_error(file: &Path, source: &str, error: &toml::de::Error) -> ConfigError {
    let position = error.span().map(|span| LineIndex::from_source(source).position_at(span.start));
    let message = error.message();
    let what = if message.starts_with("unknown field `") {
        "key"
    } else if message.starts_with("unknown variant `") {
        "value"
    } else {
        return ConfigError::new(file, position, message.replace('\n', "; ").replace("missing field", "missing key"));
    };
    let mut quoted = message.split('`').skip(1).step_by(2);
    let name = quoted.next().unwrap_or_default();
    let known: Vec<&str> = quoted.collect();
    let config_error = ConfigError::new(file, position, format!("unknown {what} `{name}`"));
    if known.is_empty() {
        config_error
    } else {
        config_error.with_hint(advise_name(name, known.iter().copied(), "", "known here:"))
    }
}

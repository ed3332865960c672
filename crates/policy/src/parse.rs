//! From the text of one file to its typed content, with the place of every key
//! and value. Unknown keys are refused with a suggestion.
//!
//! Must not know layers or merging.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, Place, suggestion};

/// Where each key of a file stands, by its path: `profiles.ci.write[0]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    by_path: BTreeMap<String, Place>,
}

impl Places {
    /// The place of a key, or of an item of a list.
    pub(crate) fn get(&self, path: &str) -> Option<Place> {
        self.by_path.get(path).copied()
    }
}

/// Reads one file.
pub(crate) fn parse<T: DeserializeOwned>(file: &Path, source: &str) -> Result<(T, Places), ConfigError> {
    let table = DeTable::parse(source).map_err(|error| explain(file, source, &error))?;
    let mut places = Places::default();
    index_table(source, table.get_ref(), "", &mut places);
    let content = toml::from_str(source).map_err(|error| explain(file, source, &error))?;
    Ok((content, places))
}

fn index_table(source: &str, table: &DeTable<'_>, prefix: &str, places: &mut Places) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        places.by_path.insert(path.clone(), Place::of(source, key.span().start));
        index_value(source, value, &path, places);
    }
}

fn index_value(source: &str, value: &Spanned<DeValue<'_>>, path: &str, places: &mut Places) {
    match value.get_ref() {
        DeValue::Table(table) => index_table(source, table, path, places),
        DeValue::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                let path = format!("{path}[{i}]");
                places.by_path.insert(path.clone(), Place::of(source, item.span().start));
                index_value(source, item, &path, places);
            }
        }
        _ => {}
    }
}

/// Says a parser's error in our words. The parser's own words for an unknown
/// name are `unknown field|variant NAME, expected ...`, names in backquotes.
fn explain(file: &Path, source: &str, error: &toml::de::Error) -> ConfigError {
    let place = error.span().map(|span| Place::of(source, span.start));
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

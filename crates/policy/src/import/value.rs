//! Values of imported files with the position of each, so that a note can refer to an entry that cannot be
//! imported.
//!
//! Must not know formats.

use crate::error::TextPosition;

/// A value and its start position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpannedValue {
    pub at: TextPosition,
    pub value: ImportValue,
}

/// A value, without the value of a number, which no caller needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ImportValue {
    Null,
    Bool(bool),
    Number,
    /// Another value that no caller needs, by its kind.
    Other(&'static str),
    Text(String),
    List(Vec<SpannedValue>),
    Object(Vec<(SpannedKey, SpannedValue)>),
}

/// A name in an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpannedKey {
    pub at: TextPosition,
    pub name: String,
}

/// An error in a text, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PositionedError {
    pub at: TextPosition,
    pub why: String,
}

impl SpannedValue {
    pub(crate) fn as_text(&self) -> Option<&str> {
        if let ImportValue::Text(text) = &self.value { Some(text) } else { None }
    }

    pub(crate) fn as_bool(&self) -> Option<bool> {
        if let ImportValue::Bool(value) = self.value { Some(value) } else { None }
    }

    pub(crate) fn as_list(&self) -> Option<&[SpannedValue]> {
        if let ImportValue::List(items) = &self.value { Some(items) } else { None }
    }

    pub(crate) fn as_object(&self) -> Option<&[(SpannedKey, SpannedValue)]> {
        if let ImportValue::Object(entries) = &self.value { Some(entries) } else { None }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&SpannedValue> {
        self.as_object()?.iter().find(|(key, _)| key.name == name).map(|(_, value)| value)
    }

    /// Fails at the value.
    pub(crate) fn fail<T>(&self, why: impl Into<String>) -> Result<T, PositionedError> {
        Err(PositionedError::new(self.at, why))
    }

    pub(crate) fn expect_text(&self) -> Result<&str, PositionedError> {
        self.as_text().ok_or_else(|| PositionedError::unexpected("a string", self))
    }

    pub(crate) fn expect_list(&self) -> Result<&[SpannedValue], PositionedError> {
        self.as_list().ok_or_else(|| PositionedError::unexpected("a list", self))
    }

    /// Returns the kind of the value: `a string`, `a list` ...
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.value {
            ImportValue::Null => "null",
            ImportValue::Bool(_) => "true or false",
            ImportValue::Number => "a number",
            ImportValue::Other(kind) => kind,
            ImportValue::Text(_) => "a string",
            ImportValue::List(_) => "a list",
            ImportValue::Object(_) => "an object",
        }
    }
}

impl PositionedError {
    pub(crate) fn new(at: TextPosition, why: impl Into<String>) -> Self {
        Self { at, why: why.into() }
    }

    pub(crate) fn unexpected(what: &str, found: &SpannedValue) -> Self {
        Self::new(found.at, format!("expected {what}, found {}", found.kind_name()))
    }
}

/// Returns the strings of a list; any other entry is a mistake.
pub(crate) fn read_texts<'s>(
    list: &'s SpannedValue,
    what: &str,
    faults: &mut Vec<PositionedError>,
) -> Vec<(&'s SpannedValue, &'s str)> {
    let Some(items) = list.as_list() else {
        faults.push(PositionedError::unexpected("a list", list));
        return Vec::new();
    };
    let (texts, others): (Vec<_>, Vec<_>) = items.iter().partition(|item| item.as_text().is_some());
    faults.extend(others.into_iter().map(|item| PositionedError::unexpected(what, item)));
    texts.into_iter().filter_map(|item| Some((item, item.as_text()?))).collect()
}

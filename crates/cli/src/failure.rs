//! Errors as a person meets them: what happened and why, then the one thing to
//! do about it. A refused command is no failure but a result.

use std::fmt;

use stockade_model::RawText;

/// Why Stockade could not do its part. Its exit code is always 125.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What happened, and why; one or more lines.
    pub what: String,
    /// The one thing to do.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without advice.
    pub fn new(what: impl fmt::Display) -> Self {
        Self { what: what.to_string(), hint: None }
    }

    /// The same failure with advice.
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// A path for a message: escaped, in backquotes.
pub fn quoted(path: &std::path::Path) -> String {
    format!("`{}`", RawText::from(path).escaped())
}

/// A library's error: its text, with what follows `hint:` as the advice.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::from_text(&error.to_string())
    }
}

impl Failure {
    /// The same failure, with this advice where it has none.
    pub fn or_hint(mut self, hint: Option<String>) -> Self {
        self.hint = self.hint.or(hint);
        self
    }

    /// A message of which the lines from `hint:` on are the advice.
    pub fn from_text(text: &str) -> Self {
        match text.split_once("\nhint: ") {
            Some((what, hint)) => Self::new(what).hint(hint),
            None => Self::new(text),
        }
    }
}

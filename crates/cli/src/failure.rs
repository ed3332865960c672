//! Errors as the user sees them: the failure and its cause, then one hint. A refused command is not
//! a failure but a result.

use std::fmt;

use stockade_model::RawText;

/// Failure of Stockade itself. Its exit code is always 125.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    /// The failure and its cause; one or more lines.
    pub what: String,
    /// The one hint for the user.
    pub hint: Option<String>,
}

impl CliError {
    /// Creates a failure without a hint.
    pub fn new(what: impl fmt::Display) -> Self {
        Self { what: what.to_string(), hint: None }
    }

    /// Sets the hint.
    pub fn with_hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Sets the hint if there is none yet.
    pub fn or_hint(mut self, hint: Option<String>) -> Self {
        self.hint = self.hint.or(hint);
        self
    }

    /// Creates a failure from a message; the lines from `hint:` on are the hint.
    pub fn from_text(text: &str) -> Self {
        match text.split_once("\nhint: ") {
            Some((what, hint)) => Self::new(what).with_hint(hint),
            None => Self::new(text),
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Formats a path for a message: escaped, in backquotes.
pub fn quote_path(path: &std::path::Path) -> String {
    format!("`{}`", RawText::from(path).to_escaped())
}

/// Converts a library's error: its text, with the part after `hint:` as the hint.
impl<E: std::error::Error> From<E> for CliError {
    fn from(error: E) -> Self {
        Self::from_text(&error.to_string())
    }
}

//! Mistakes of files, collected so that all of them are reported together.

use std::path::Path;

use super::value::PositionedError;
use super::{ImportSource, ImportTool, tool_detection};
use crate::error::ConfigError;

/// Mistakes in the files of one import.
pub(super) struct ImportMistakes {
    tool: ImportTool,
    all: Vec<ConfigError>,
}

impl ImportMistakes {
    pub(super) fn new(tool: ImportTool) -> Self {
        Self { tool, all: Vec::new() }
    }

    /// Adds the mistakes of one file.
    pub(super) fn add_errors(&mut self, source: &ImportSource, mut faults: Vec<PositionedError>) {
        faults.sort_by_key(|fault| fault.at);
        let error = |fault: PositionedError| ConfigError::new(Path::new(&source.name), Some(fault.at), fault.why);
        let mut errors = faults.into_iter().map(error);
        let first = errors.next().map(|error| self.add_advice(source, error));
        self.all.extend(first.into_iter().chain(errors));
    }

    /// Adds one mistake that makes a whole file unreadable.
    pub(super) fn add_file_error(&mut self, source: &ImportSource, error: ConfigError) {
        self.all.push(self.add_advice(source, error));
    }

    /// Adds advice to an error. A file of another tool, or of an unknown one, needs other advice.
    fn add_advice(&self, source: &ImportSource, error: ConfigError) -> ConfigError {
        match tool_detection::guess_tool(&source.text) {
            Some(tool) if tool == self.tool => error,
            Some(other) => {
                let (title, name) = (other.title(), other.name());
                error.with_hint(format!("nothing was imported; the file seems to be {title}'s: --from {name}"))
            }
            None => {
                let title = self.tool.title();
                error.or_hint(format!("nothing was imported; correct it, or name the file that holds {title}'s rules"))
            }
        }
    }

    /// Reports the mistakes as one error, in the order of the files.
    ///
    /// # Errors
    /// The mistakes, if there are any.
    pub(super) fn into_result(mut self, sources: &[ImportSource]) -> Result<(), ConfigError> {
        let position = |error: &ConfigError| sources.iter().position(|source| Path::new(&source.name) == error.file());
        self.all.sort_by_cached_key(position);
        let what = if self.all.len() == 1 { "correct it, or take it out" } else { "correct them, or take them out" };
        match ConfigError::join_errors(self.all) {
            Some(error) => Err(error.or_hint(format!("nothing was imported; {what}"))),
            None => Ok(()),
        }
    }
}

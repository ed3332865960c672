//! Mistakes of files, collected so that all of them are reported together.

use std::path::Path;

use super::json::Fault;
use super::{Source, Tool, whose};
use crate::error::ConfigError;

/// Mistakes in the files of one import.
pub(super) struct Mistakes {
    tool: Tool,
    all: Vec<ConfigError>,
}

impl Mistakes {
    pub(super) fn new(tool: Tool) -> Self {
        Self { tool, all: Vec::new() }
    }

    /// Adds the mistakes of one file.
    pub(super) fn add(&mut self, source: &Source, mut faults: Vec<Fault>) {
        faults.sort_by_key(|fault| fault.at);
        let error = |fault: Fault| ConfigError::new(Path::new(&source.name), Some(fault.at), fault.why);
        let mut errors = faults.into_iter().map(error);
        let first = errors.next().map(|error| self.advised(source, error));
        self.all.extend(first.into_iter().chain(errors));
    }

    /// Adds one mistake that makes a whole file unreadable.
    pub(super) fn refuse(&mut self, source: &Source, error: ConfigError) {
        self.all.push(self.advised(source, error));
    }

    /// Adds advice to an error. A file of another tool, or of an unknown one, needs other advice.
    fn advised(&self, source: &Source, error: ConfigError) -> ConfigError {
        match whose::guess(&source.text) {
            Some(tool) if tool == self.tool => error,
            Some(other) => {
                let (title, name) = (other.title(), other.name());
                error.hint(format!("nothing was imported; the file seems to be {title}'s: --from {name}"))
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
    pub(super) fn finish(mut self, sources: &[Source]) -> Result<(), ConfigError> {
        let position = |error: &ConfigError| sources.iter().position(|source| Path::new(&source.name) == error.file());
        self.all.sort_by_cached_key(position);
        let what = if self.all.len() == 1 { "correct it, or take it out" } else { "correct them, or take them out" };
        match ConfigError::joined(self.all) {
            Some(error) => Err(error.or_hint(format!("nothing was imported; {what}"))),
            None => Ok(()),
        }
    }
}

//! Mistakes of files, collected so that a person is told all of them at once.

use std::path::Path;

use super::Source;
use super::json::Fault;
use crate::error::ConfigError;

/// What is wrong with the files of one import.
pub(super) struct Mistakes {
    all: Vec<ConfigError>,
}

impl Mistakes {
    pub(super) fn new() -> Self {
        Self { all: Vec::new() }
    }

    /// Adds what is wrong with one file.
    pub(super) fn add(&mut self, source: &Source, mut faults: Vec<Fault>) {
        faults.sort_by_key(|fault| fault.at);
        let error = |fault: Fault| ConfigError::new(Path::new(&source.name), Some(fault.at), fault.why);
        self.all.extend(faults.into_iter().map(error));
    }

    /// Adds one mistake that makes a whole file unreadable.
    pub(super) fn refuse(&mut self, error: ConfigError) {
        self.all.push(error);
    }

    /// The mistakes as one error, where there are any, in the order of the files.
    ///
    /// # Errors
    /// When there is one.
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

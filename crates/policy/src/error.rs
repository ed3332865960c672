//! Errors of a configuration, for the user: location, reason, and one piece of advice. With every such
//! error, no command runs (L6).

use std::fmt;
use std::path::{Path, PathBuf};

use stockade_model::RawText;

/// A position in a file; both numbers start at 1, columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextPosition {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl TextPosition {
    /// The start of a file.
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// Start offsets of the lines of a text, to convert offsets to positions.
pub(crate) struct LineIndex<'a> {
    source: &'a str,
    starts: Vec<usize>,
}

impl<'a> LineIndex<'a> {
    pub(crate) fn from_source(source: &'a str) -> Self {
        let starts = std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { source, starts }
    }

    /// Returns the position of a byte offset.
    pub(crate) fn position_at(&self, offset: usize) -> TextPosition {
        let mut offset = offset.min(self.source.len());
        while !self.source.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.starts.partition_point(|start| *start <= offset);
        let column = self.source[self.starts[line - 1]..offset].chars().count() + 1;
        TextPosition { line, column }
    }
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A configuration file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: PathBuf,
    position: Option<TextPosition>,
    message: String,
    hint: Option<String>,
    /// Further errors, in order.
    more: Vec<ConfigError>,
}

/// Error in a section: the key, the reason, advice.
pub(crate) type SectionError = (String, String, &'static str);

/// Most mistakes that are shown at one time.
const MAX_SHOWN_MISTAKES: usize = 20;

impl ConfigError {
    pub(crate) fn new(file: &Path, position: Option<TextPosition>, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), position, message: message.into(), hint: None, more: Vec::new() }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the same error, with this advice if it has none.
    pub(crate) fn or_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// Joins several errors to one, with the first advice of any of them.
    pub(crate) fn join_errors(errors: Vec<Self>) -> Option<Self> {
        let hint = errors.iter().find_map(|error| error.hint.clone());
        let mut errors = errors.into_iter();
        let first = errors.next()?;
        Some(Self { hint, more: errors.collect(), ..first })
    }

    /// Writes `FILE:LINE:COLUMN: MESSAGE`, escaped, because the text may come from an untrusted author.
    fn write_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", RawText::from(self.file.as_path()).to_escaped())?;
        if let Some(position) = self.position {
            write!(f, "{position}:")?;
        }
        write!(f, " {}", RawText::from(self.message.as_str()).to_escaped())
    }

    /// Returns the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the position in the file.
    pub fn position(&self) -> Option<TextPosition> {
        self.position
    }
}

impl std::error::Error for ConfigError {}

/// Writes a line for each mistake, up to a limit, and a separate line `hint: ...`.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_line(f)?;
        for error in self.more.iter().take(MAX_SHOWN_MISTAKES - 1) {
            writeln!(f)?;
            error.write_line(f)?;
        }
        match (self.more.len() + 1).saturating_sub(MAX_SHOWN_MISTAKES) {
            0 => {}
            1 => write!(f, "\nand 1 more mistake")?,
            more => write!(f, "\nand {more} more mistakes")?,
        }
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {}", RawText::from(hint.as_str()).to_escaped()),
            None => Ok(()),
        }
    }
}

/// Returns the entry of `known` that is closest to `name`, if it is close enough to be a plausible
/// misspelling.
pub(crate) fn find_closest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Keys are short; a longer text is not a misspelled key.
    if name.len() > 64 {
        return None;
    }
    let limit = (name.chars().count() / 3).max(1);
    let distances = known.into_iter().map(|candidate| (strsim::levenshtein(name, candidate), candidate));
    distances.filter(|(distance, _)| *distance <= limit).min().map(|(_, candidate)| candidate)
}

/// Returns advice about an unknown name: the closest known one, or all of them after `list`. `mark` comes
/// before each name.
pub(crate) fn advise_name<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
    mark: &str,
    list: &str,
) -> String {
    match find_closest_name(name, known.clone()) {
        Some(suggestion) => format!("did you mean `{mark}{suggestion}`?"),
        None => format!("{list} `{mark}{}`", known.collect::<Vec<_>>().join(&format!("`, `{mark}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen_are_recognised() {
        let known = ["profile", "profiles", "sandbox", "level"];
        assert_eq!(find_closest_name("profil", known), Some("profile"));
        assert_eq!(find_closest_name("sandbx", known), Some("sandbox"));
        assert_eq!(find_closest_name("sanbdox", known), Some("sandbox"));
        assert_eq!(find_closest_name("wibble", known), None);
    }

    #[test]
    fn positions_count_characters() {
        let position = |source: &str, offset| LineIndex::from_source(source).position_at(offset);
        assert_eq!(position("é = 1\nab", 0), TextPosition { line: 1, column: 1 });
        assert_eq!(position("é = 1\nab", 3), TextPosition { line: 1, column: 3 });
        assert_eq!(position("é = 1\nab", 8), TextPosition { line: 2, column: 2 });
        assert_eq!(position("ab", 99), TextPosition { line: 1, column: 3 });
    }
}

//! Data files that are compiled in: one entry a line; a line that starts with `#` is a comment.

use std::sync::OnceLock;

/// Returns the entries of a data file, without comments and empty lines.
pub fn table_rows(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// A list of names in the text of a data file. It is searched line by line and never built, so that a list
/// that no request needs takes no time.
#[derive(Clone, Copy, Debug)]
pub struct NameList(&'static str);

impl NameList {
    /// Makes the list of the text of a data file.
    pub const fn new(text: &'static str) -> Self {
        Self(text)
    }

    /// Returns the names, in the order of the file.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        table_rows(self.0)
    }

    /// Returns whether the list has this name.
    pub fn contains(self, name: impl AsRef<[u8]>) -> bool {
        self.names().any(|listed| listed.as_bytes() == name.as_ref())
    }
}

/// Ranges of characters in the text of a data file: `FIRST LAST` on each line, in hexadecimal.
#[derive(Debug)]
pub struct CharacterRanges {
    text: &'static str,
    ranges: OnceLock<Vec<(u32, u32)>>,
}

impl CharacterRanges {
    /// Makes the ranges of the text of a data file, which is parsed at the first look-up.
    pub const fn new(text: &'static str) -> Self {
        Self { text, ranges: OnceLock::new() }
    }

    /// Returns whether a range has this character.
    pub fn contains(&self, character: char) -> bool {
        self.parsed().iter().any(|(first, last)| (*first..=*last).contains(&u32::from(character)))
    }

    /// Returns the number of ranges.
    pub fn count(&self) -> usize {
        self.parsed().len()
    }

    fn parsed(&self) -> &[(u32, u32)] {
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let range = |row: &str| row.split_once(' ').and_then(|(first, last)| Some((number(first)?, number(last)?)));
        self.ranges.get_or_init(|| table_rows(self.text).filter_map(range).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_lines() {
        let list = NameList::new("# comment\na b\nc\n");
        assert_eq!(list.names().collect::<Vec<_>>(), ["a b", "c"]);
        assert!(list.contains("c") && !list.contains("a") && !list.contains("# comment") && !list.contains(""));
        let list = NameList::new("HEAD\ngc.log\n");
        assert!(list.contains("HEAD") && list.contains(b"gc.log"));
        for other in ["", "HEA", "log", "HEAD\ngc.log", "head"] {
            assert!(!list.contains(other), "{other}");
        }
    }
}

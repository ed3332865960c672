//! Difference between two versions of a file, as hunks of lines. Independent of terminals: lines
//! have the bytes of the files.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use similar::{ChangeTag, TextDiff};
use stockade_sys::Errno;

use super::change::Change;
use super::error::{At, PathError, StageError};
use super::place::{Stage, UPPER};
use stockade_files::object::{Kind, Object};

/// Size limit for the comparison line by line.
const LIMIT_BYTES: u64 = 1 << 20;
/// Length of the prefix in which a NUL marks a file as binary.
const SNIFFED_BYTES: usize = 8000;
/// Time limit for the best difference; after it, a good one is used.
const PATIENCE: Duration = Duration::from_millis(500);
/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;

/// Difference of two versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Lines differ.
    Text(Vec<Hunk>),
    /// Target of a symbolic link differs; either side may be absent.
    Link {
        /// Old target.
        before: Option<Vec<u8>>,
        /// New target.
        after: Option<Vec<u8>>,
    },
    /// Bytes differ, and they are not text.
    Binary,
    /// A version is too large for a comparison line by line, or cannot be read.
    Large,
    /// No difference.
    Nothing,
}

/// Changed lines, with some lines around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// First line, counted from 1, and number of lines in the old version.
    pub before: (usize, usize),
    /// The same for the new version.
    pub after: (usize, usize),
    /// Lines without their line feeds.
    pub lines: Vec<Line>,
}

/// A line of a hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Effect of the change on the line.
    pub fate: Fate,
    /// Text of the line.
    pub text: String,
    /// False for a last line without a line feed.
    pub ends: bool,
}

/// Effect of the change on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The line stays.
    Kept,
    /// The line is removed.
    Removed,
    /// The line is new.
    Added,
}

/// Returns the difference that `change` makes to the content of its path.
///
/// # Errors
/// [`StageError`] if the stage or workspace cannot be read.
pub fn difference(stage: &Stage, change: &Change) -> Result<Difference, StageError> {
    let side = |facts: &Option<super::Facts>, tree: rustix::fd::OwnedFd| match facts {
        Some(_) => Object::beneath(tree.as_fd(), &change.path).at(&change.path),
        None => Ok(None),
    };
    let before = side(&change.present, stage.open_workspace()?)?;
    let after = side(&change.staged, stage.part(UPPER)?)?;
    Ok(between(before.as_ref(), after.as_ref(), &change.path)?)
}

/// Compares two objects, either of which may be absent; `path` is for errors.
///
/// # Errors
/// [`PathError`] if an object cannot be read.
pub fn between(before: Option<&Object>, after: Option<&Object>, path: &Path) -> Result<Difference, PathError> {
    let of_kind = |object: Option<&Object>, kind| object.is_some_and(|object| object.kind() == kind);
    if of_kind(before, Kind::Link) || of_kind(after, Kind::Link) {
        let text = |object: Option<&Object>| {
            let link = object.filter(|object| object.kind() == Kind::Link);
            link.map(|link| link.link_text().at(path)).transpose()
        };
        return Ok(Difference::Link { before: text(before)?, after: text(after)? });
    }
    let file = |object: Option<&Object>| -> Result<Option<Vec<u8>>, PathError> {
        let Some(object) = object.filter(|object| object.kind() == Kind::File) else { return Ok(Some(Vec::new())) };
        let mut bytes = Vec::new();
        let opened = match object.open() {
            Err(Errno::ACCESS) => return Ok(None),
            other => other.at(path)?,
        };
        opened.take(LIMIT_BYTES + 1).read_to_end(&mut bytes).at(path)?;
        Ok((bytes.len() as u64 <= LIMIT_BYTES).then_some(bytes))
    };
    let (Some(before), Some(after)) = (file(before)?, file(after)?) else { return Ok(Difference::Large) };
    if before == after {
        return Ok(Difference::Nothing);
    }
    match (text(&before), text(&after)) {
        (Some(before), Some(after)) => Ok(Difference::Text(hunks(before, after))),
        _ => Ok(Difference::Binary),
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    let sniffed = &bytes[..bytes.len().min(SNIFFED_BYTES)];
    if sniffed.contains(&0) { None } else { std::str::from_utf8(bytes).ok() }
}

fn hunks(before: &str, after: &str) -> Vec<Hunk> {
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(before, after);
    let groups = diff.grouped_ops(CONTEXT_LINES);
    let span = |range: std::ops::Range<usize>| (range.start + usize::from(!range.is_empty()), range.len());
    groups
        .iter()
        .filter_map(|group| {
            let (first, last) = (group.first()?, group.last()?);
            let lines = group.iter().flat_map(|op| diff.iter_changes(op)).map(|change| Line {
                fate: match change.tag() {
                    ChangeTag::Equal => Fate::Kept,
                    ChangeTag::Delete => Fate::Removed,
                    ChangeTag::Insert => Fate::Added,
                },
                text: change.value().strip_suffix('\n').unwrap_or(change.value()).to_owned(),
                ends: change.value().ends_with('\n'),
            });
            Some(Hunk {
                before: span(first.old_range().start..last.old_range().end),
                after: span(first.new_range().start..last.new_range().end),
                lines: lines.collect(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_count_lines_as_patch_does() {
        let found = hunks("a\nb\nc\n", "a\nB\nc\nd");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].before, found[0].after), ((1, 3), (1, 4)));
        let shown: Vec<String> = found[0].lines.iter().map(|line| format!("{:?} {}", line.fate, line.text)).collect();
        assert_eq!(shown, ["Kept a", "Removed b", "Added B", "Kept c", "Added d"]);
        assert!(!found[0].lines[4].ends);
        let new = hunks("", "x\n");
        assert_eq!((new[0].before, new[0].after), ((0, 0), (1, 1)));
        assert!(hunks("same\n", "same\n").is_empty());
    }

    #[test]
    fn bytes_are_not_shown_as_text() {
        assert_eq!(text(b"plain \xc3\xbc"), Some("plain ü"));
        assert_eq!(text(b"a\0b"), None);
        assert_eq!(text(b"\xff"), None);
    }
}

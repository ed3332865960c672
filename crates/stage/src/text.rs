//! Difference between two versions of a file, as hunks of lines. Independent of terminals: lines
//! have the bytes of the files.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use similar::{ChangeTag, TextDiff};
use stockade_files::object::{ObjectKind, TreeObject};
use stockade_sys::Errno;

use super::change::StageChange;
use super::error::{PathContext, PathError, StageError};
use super::stage_directory::{OpenStage, UPPER_DIRECTORY};

/// Size limit for the comparison line by line.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Length of the prefix in which a NUL marks a file as binary.
const MAX_SNIFFED_BYTES: usize = 8000;
/// Time limit for the best difference; after it, a good one is used.
const DIFF_TIMEOUT: Duration = Duration::from_millis(500);
/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;

/// Difference of two versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentDiff {
    /// Lines differ.
    Text(Vec<DiffHunk>),
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
pub struct DiffHunk {
    /// First line, counted from 1, and number of lines in the old version.
    pub before: (usize, usize),
    /// The same for the new version.
    pub after: (usize, usize),
    /// Lines without their line feeds.
    pub lines: Vec<DiffLine>,
}

/// A line of a hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffLine {
    /// Effect of the change on the line.
    pub fate: DiffLineKind,
    /// Text of the line.
    pub text: String,
    /// False for a last line without a line feed.
    pub ends: bool,
}

/// Effect of the change on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffLineKind {
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
pub fn diff_change(stage: &OpenStage, change: &StageChange) -> Result<ContentDiff, StageError> {
    let side = |facts: &Option<super::ObjectFacts>, tree: rustix::fd::OwnedFd| match facts {
        Some(_) => TreeObject::open_beneath(tree.as_fd(), &change.path).at_path(&change.path),
        None => Ok(None),
    };
    let before = side(&change.present, stage.open_workspace()?)?;
    let after = side(&change.staged, stage.open_part(UPPER_DIRECTORY)?)?;
    Ok(diff_objects(before.as_ref(), after.as_ref(), &change.path)?)
}

/// Compares two objects, either of which may be absent; `path` is for errors.
///
/// # Errors
/// [`PathError`] if an object cannot be read.
pub fn diff_objects(
    before: Option<&TreeObject>,
    after: Option<&TreeObject>,
    path: &Path,
) -> Result<ContentDiff, PathError> {
    let of_kind = |object: Option<&TreeObject>, kind| object.is_some_and(|object| object.kind() == kind);
    if of_kind(before, ObjectKind::Link) || of_kind(after, ObjectKind::Link) {
        let text = |object: Option<&TreeObject>| {
            let link = object.filter(|object| object.kind() == ObjectKind::Link);
            link.map(|link| link.link_text().at_path(path)).transpose()
        };
        return Ok(ContentDiff::Link { before: text(before)?, after: text(after)? });
    }
    let file = |object: Option<&TreeObject>| -> Result<Option<Vec<u8>>, PathError> {
        let Some(object) = object.filter(|object| object.kind() == ObjectKind::File) else {
            return Ok(Some(Vec::new()));
        };
        let mut bytes = Vec::new();
        let opened = match object.open_file() {
            Err(Errno::ACCESS) => return Ok(None),
            other => other.at_path(path)?,
        };
        opened.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).at_path(path)?;
        Ok((bytes.len() as u64 <= MAX_TEXT_BYTES).then_some(bytes))
    };
    let (Some(before), Some(after)) = (file(before)?, file(after)?) else { return Ok(ContentDiff::Large) };
    if before == after {
        return Ok(ContentDiff::Nothing);
    }
    match (as_text(&before), as_text(&after)) {
        (Some(before), Some(after)) => Ok(ContentDiff::Text(diff_hunks(before, after))),
        _ => Ok(ContentDiff::Binary),
    }
}

fn as_text(bytes: &[u8]) -> Option<&str> {
    let sniffed = &bytes[..bytes.len().min(MAX_SNIFFED_BYTES)];
    if sniffed.contains(&0) { None } else { std::str::from_utf8(bytes).ok() }
}

fn diff_hunks(before: &str, after: &str) -> Vec<DiffHunk> {
    let diff = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(before, after);
    let groups = diff.grouped_ops(CONTEXT_LINES);
    let span = |range: std::ops::Range<usize>| (range.start + usize::from(!range.is_empty()), range.len());
    groups
        .iter()
        .filter_map(|group| {
            let (first, last) = (group.first()?, group.last()?);
            let lines = group.iter().flat_map(|op| diff.iter_changes(op)).map(|change| DiffLine {
                fate: match change.tag() {
                    ChangeTag::Equal => DiffLineKind::Kept,
                    ChangeTag::Delete => DiffLineKind::Removed,
                    ChangeTag::Insert => DiffLineKind::Added,
                },
                text: change.value().strip_suffix('\n').unwrap_or(change.value()).to_owned(),
                ends: change.value().ends_with('\n'),
            });
            Some(DiffHunk {
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
        let found = diff_hunks("a\nb\nc\n", "a\nB\nc\nd");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].before, found[0].after), ((1, 3), (1, 4)));
        let shown: Vec<String> = found[0].lines.iter().map(|line| format!("{:?} {}", line.fate, line.text)).collect();
        assert_eq!(shown, ["Kept a", "Removed b", "Added B", "Kept c", "Added d"]);
        assert!(!found[0].lines[4].ends);
        let new = diff_hunks("", "x\n");
        assert_eq!((new[0].before, new[0].after), ((0, 0), (1, 1)));
        assert!(diff_hunks("same\n", "same\n").is_empty());
    }

    #[test]
    fn bytes_are_not_shown_as_text() {
        assert_eq!(as_text(b"plain \xc3\xbc"), Some("plain ü"));
        assert_eq!(as_text(b"a\0b"), None);
        assert_eq!(as_text(b"\xff"), None);
    }
}

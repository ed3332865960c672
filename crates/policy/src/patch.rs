//! Lists the files that a patch changes, so that each can be checked separately. Parses the headers of the
//! `*** Begin Patch` form and of unified diffs (diff(1), git).
//!
//! Must not decide on a change, and applies nothing. A patch whose headers are not understood is an error,
//! because its files cannot be checked separately.

use crate::file::FileOperation;

/// Most files of one patch.
const MAX_PATCH_FILES: usize = 10_000;

/// One file of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// Path in the patch: relative to the directory where the patch is applied, or absolute.
    pub path: String,
    /// Operation on the file.
    pub operation: FileOperation,
}

/// Reason why a patch cannot be checked file by file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct PatchError {
    /// Line number, from 1.
    pub line: usize,
    /// The reason.
    pub why: &'static str,
}

/// Returns the files of a patch in their order; a rename is a removal and a creation.
///
/// # Errors
/// An error if the text is not a patch of a known form.
pub fn changes_of_patch(text: &str) -> Result<Vec<FileChange>, PatchError> {
    let begins = text.lines().find(|line| !line.trim().is_empty());
    let changes =
        if begins.is_some_and(|line| line.trim() == "*** Begin Patch") { of_envelope(text) } else { of_diff(text) }?;
    let wrong = |why| Err(PatchError { line: 1, why });
    match changes.len() {
        0 => wrong("it names no file: neither `*** Update File:` nor `+++`"),
        1..=MAX_PATCH_FILES => Ok(changes),
        _ => wrong("it names more than 10000 files"),
    }
}

/// Header that moves the file of the header above it.
const MOVE_HEADER: &str = "Move to:";
const FILE_HEADERS: [(&str, FileOperation); 4] = [
    ("Add File:", FileOperation::Create),
    ("Update File:", FileOperation::Write),
    ("Delete File:", FileOperation::Delete),
    (MOVE_HEADER, FileOperation::Create),
];

fn of_envelope(text: &str) -> Result<Vec<FileChange>, PatchError> {
    let mut changes: Vec<FileChange> = Vec::new();
    let mut ended = false;
    for (i, line) in text.lines().enumerate() {
        let wrong = |why| Err(PatchError { line: i + 1, why });
        let Some(header) = line.strip_prefix("*** ") else { continue };
        if ended {
            return wrong("there is text after `*** End Patch`");
        }
        let named = |(start, operation): &(&'static str, FileOperation)| {
            Some((*start, header.strip_prefix(start)?, *operation))
        };
        if let Some((start, path, operation)) = FILE_HEADERS.iter().find_map(named) {
            if start == MOVE_HEADER {
                match changes.last_mut() {
                    Some(last) if last.operation == FileOperation::Write => last.operation = FileOperation::Delete,
                    _ => return wrong("`*** Move to:` follows no `*** Update File:`"),
                }
            }
            changes.push(FileChange { path: path.trim().to_owned(), operation });
        } else if header.trim_end() == "End Patch" {
            ended = true;
        } else if !matches!(header.trim_end(), "Begin Patch" | "End of File") {
            return wrong("the header is not known");
        }
        if changes.last().is_some_and(|change| change.path.is_empty()) {
            return wrong("the header names no file");
        }
    }
    if ended { Ok(changes) } else { Err(PatchError { line: text.lines().count(), why: "there is no `*** End Patch`" }) }
}

fn of_diff(text: &str) -> Result<Vec<FileChange>, PatchError> {
    let mut changes: Vec<FileChange> = Vec::new();
    let mut old: Option<String> = None;
    // Remaining lines of the hunk, of the old and the new file: they are not headers.
    let mut remaining = (0usize, 0usize);
    for (i, line) in text.lines().enumerate() {
        let wrong = |why| Err(PatchError { line: i + 1, why });
        if remaining != (0, 0) {
            match line.bytes().next() {
                Some(b'+') => remaining.1 = remaining.1.saturating_sub(1),
                Some(b'-') => remaining.0 = remaining.0.saturating_sub(1),
                Some(b'\\') => {}
                _ => remaining = (remaining.0.saturating_sub(1), remaining.1.saturating_sub(1)),
            }
        } else if let Some(hunk) = line.strip_prefix("@@ -") {
            let Some(lines) = hunk_lines(hunk) else { return wrong("the line numbers of the hunk are not valid") };
            remaining = lines;
        } else if let Some(name) = line.strip_prefix("--- ") {
            let Some(name) = diff_name(name, "a/") else { return wrong(QUOTED_NAME_REASON) };
            old = Some(name);
        } else if let Some(name) = line.strip_prefix("+++ ") {
            let Some(new) = diff_name(name, "b/") else { return wrong(QUOTED_NAME_REASON) };
            let Some(old) = old.take() else { return wrong("`+++` follows no `---`") };
            changes.extend(derive_changes(&old, &new));
        } else if let Some(name) = line.strip_prefix("rename from ").or(line.strip_prefix("deleted binary ")) {
            changes.push(FileChange { path: name.to_owned(), operation: FileOperation::Delete });
        } else if let Some(name) = line.strip_prefix("rename to ").or(line.strip_prefix("copy to ")) {
            changes.push(FileChange { path: name.to_owned(), operation: FileOperation::Create });
        } else if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
            return wrong("a binary patch cannot be checked file by file");
        }
    }
    if remaining != (0, 0) {
        return Err(PatchError { line: text.lines().count(), why: "the last hunk is incomplete" });
    }
    changes.dedup();
    Ok(changes)
}

const QUOTED_NAME_REASON: &str = "a quoted file name cannot be checked file by file";

fn derive_changes(old: &str, new: &str) -> Vec<FileChange> {
    let change = |path: &str, operation| FileChange { path: path.to_owned(), operation };
    match (old, new) {
        ("/dev/null", new) => vec![change(new, FileOperation::Create)],
        (old, "/dev/null") => vec![change(old, FileOperation::Delete)],
        (old, new) if old == new => vec![change(new, FileOperation::Write)],
        (old, new) => vec![change(old, FileOperation::Delete), change(new, FileOperation::Create)],
    }
}

/// Returns the name up to a tab, after which diff(1) writes a time.
fn diff_name(name: &str, prefix: &str) -> Option<String> {
    let name = name.split('\t').next().unwrap_or(name).trim_end();
    let plain = !name.starts_with('"') && !name.is_empty();
    plain.then(|| name.strip_prefix(prefix).unwrap_or(name).to_owned())
}

/// Parses `12,3 +12,4 @@`: a missing count is one.
fn hunk_lines(text: &str) -> Option<(usize, usize)> {
    let (old, rest) = text.split_once(" +")?;
    let (new, _) = rest.split_once(" @@")?;
    let count = |range: &str| match range.split_once(',') {
        Some((_, count)) => count.parse().ok(),
        None => range.parse::<usize>().ok().map(|_| 1),
    };
    Some((count(old)?, count(new)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, FileOperation)]) {
        let found = changes_of_patch(text).unwrap();
        let found: Vec<(&str, FileOperation)> = found.iter().map(|c| (c.path.as_str(), c.operation)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn both_forms() {
        use FileOperation::{Create, Delete, Write};
        check(
            "*** Begin Patch\n*** Add File: a.txt\n+x\n*** Update File: b\n*** Move to: c\n@@\n-x\n+y\n\
             *** Delete File: d/e\n*** Update File: f\n@@ x\n*** End of File\n*** End Patch\n",
            &[("a.txt", Create), ("b", Delete), ("c", Create), ("d/e", Delete), ("f", Write)],
        );
        check("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n--- b\n+++ c\n", &[("x", Write)]);
        check("diff --git a/x b/x\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n", &[("x", Create)]);
        check("--- a/x\t2024-01-01\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", &[("x", Delete)]);
        check("rename from a b\nrename to c\n", &[("a b", Delete), ("c", Create)]);
    }

    #[test]
    fn unreadable_input_is_an_error() {
        for text in [
            "",
            "hello",
            "*** Begin Patch\n*** Add File: a\n+x\n",
            "*** Begin Patch\n*** Make File: a\n*** End Patch",
            "*** Begin Patch\n*** Add File:\n*** End Patch",
            "*** Begin Patch\n*** Move to: a\n*** End Patch",
            "*** Begin Patch\n*** End Patch\n*** Add File: x",
            "+++ b/x\n",
            "--- \"a/\\303\"\n+++ b/x\n",
            "--- a/x\n+++ b/x\n@@ -x +1 @@\n",
            "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n",
            "diff --git a/x b/x\nGIT binary patch\n",
        ] {
            assert!(changes_of_patch(text).is_err(), "{text}");
        }
    }
}

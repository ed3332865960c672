//! The identity of a workspace, and the files that the words of a command name. The engine binds
//! approvals to both, and a backend binds caches to both.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_model::{Digest, RawText};

use crate::ServedMounts;

/// Most words of a command that are checked for files.
pub const MAX_WORDS: usize = 2_000;
/// Bytes that a shell or an interpreter does not read as part of a name.
const NAME_DELIMITERS: &[u8] = b" \t\r\n'\"`;&|()<>{}[]=,";

/// Returns the digest of the directory that answers about a workspace are bound to. Another
/// directory that is later at the same path is another workspace.
pub fn workspace_identity(workspace: &Path) -> Digest {
    let text = fs::metadata(workspace).map_or_else(
        |_| String::new(),
        |found| {
            // An inode number can be reused after it was freed; the birth time differs.
            let born = found.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
            format!("{}:{}:{:?}", found.dev(), found.ino(), born)
        },
    );
    Digest::of_fields("stockade-workspace-1", [text.as_bytes()])
}

/// Returns the pieces of a word that may name files.
pub fn pieces_of(word: &[u8]) -> impl Iterator<Item = &[u8]> {
    word.split(|byte| NAME_DELIMITERS.contains(byte)).filter(|piece| !piece.is_empty())
}

/// Returns the files that a piece of a word may name. These are the piece itself, the part
/// after an option (`-fFILE`), and the part after a mark (`+!FILE`, `@FILE`).
pub fn paths_in(piece: &[u8], cwd: &Path) -> BTreeSet<PathBuf> {
    let attached = piece.strip_prefix(b"-").and_then(|option| option.get(1..)).unwrap_or_default();
    let marks = piece.iter().take_while(|byte| b"+!@".contains(byte)).count();
    [piece, attached, &piece[marks..]]
        .into_iter()
        .filter(|name| !name.is_empty())
        .map(|name| cwd.join(RawText::from(name).as_path()))
        .collect()
}

/// Returns the canonical paths of the files that the words of a command name: all files that an approval
/// may be bound to, and those in lists with colons. Paths that `served` holds are not looked at.
pub fn files_named<'w>(words: impl Iterator<Item = &'w [u8]>, cwd: &Path, served: &ServedMounts) -> BTreeSet<PathBuf> {
    let listed = |piece: &'w [u8]| {
        let parts = piece.split(|byte| *byte == b':').filter(move |part| !part.is_empty() && part.len() < piece.len());
        std::iter::once(piece).chain(parts)
    };
    let pieces = words.flat_map(pieces_of).flat_map(listed);
    let paths = pieces.take(MAX_WORDS).flat_map(|piece| paths_in(piece, cwd));
    let is_file = |path: &PathBuf| !served.covers_path(path) && fs::metadata(path).is_ok_and(|found| found.is_file());
    paths.filter(is_file).filter_map(|path| path.canonicalize().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_directory_at_the_same_path_is_another_workspace() {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        let tested_path = directory.path().join("w");
        assert!(fs::create_dir(&tested_path).is_ok());
        let first = workspace_identity(&tested_path);
        assert_eq!(workspace_identity(&tested_path), first);
        assert!(fs::remove_dir(&tested_path).and_then(|()| fs::create_dir(&tested_path)).is_ok());
        assert_ne!(workspace_identity(&tested_path), first);
    }
}

//! Fast check which of many names exist, without a system call for each. Plans name a hundred paths
//! that hold secrets on some machines, and most of them do not exist on this one.
//!
//! The result is only a hint. A path that is reported may be gone or have another spelling, so it
//! is checked again where it is used.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Most names that are read of one directory. In a larger one each name is looked up.
const MAX_NAMES: usize = 4096;

/// A directory is read after this many lookups in it.
const LOOKUPS_BEFORE_READ: usize = 4;

/// The directories that were looked up, with their known names.
#[derive(Debug, Default)]
pub(super) struct ExistenceCache {
    directories: HashMap<PathBuf, DirectoryNames>,
}

#[derive(Debug)]
enum DirectoryNames {
    /// The directory does not exist.
    Absent,
    /// Number of lookups so far.
    Asked(usize),
    /// All names, in lower case, because some directories ignore case.
    All(HashSet<OsString>),
    /// The directory has too many names or cannot be read.
    Unknown,
}

impl ExistenceCache {
    /// Returns whether an object has this absolute path. A link counts, whatever its target.
    pub(super) fn has_path(&mut self, path: &Path) -> bool {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return true };
        match self.names_in(parent) {
            DirectoryNames::Absent => false,
            DirectoryNames::All(names) => names.contains(&name.to_ascii_lowercase()),
            DirectoryNames::Asked(_) | DirectoryNames::Unknown => path.symlink_metadata().is_ok(),
        }
    }

    fn names_in(&mut self, directory: &Path) -> &DirectoryNames {
        if !self.directories.contains_key(directory) {
            // One absent directory answers for every path beneath it.
            let there = self.has_path(directory) && directory.is_dir();
            let names = if there { DirectoryNames::Asked(0) } else { DirectoryNames::Absent };
            self.directories.insert(directory.to_owned(), names);
        }
        let known = self.directories.entry(directory.to_owned()).or_insert(DirectoryNames::Unknown);
        if let DirectoryNames::Asked(times) = known {
            *times += 1;
            if *times >= LOOKUPS_BEFORE_READ {
                *known = read_names(directory);
            }
        }
        known
    }
}

fn read_names(directory: &Path) -> DirectoryNames {
    let Ok(entries) = directory.read_dir() else { return DirectoryNames::Unknown };
    let mut names = HashSet::new();
    for entry in entries {
        match entry {
            Ok(entry) if names.len() < MAX_NAMES => names.insert(entry.file_name().to_ascii_lowercase()),
            _ => return DirectoryNames::Unknown,
        };
    }
    DirectoryNames::All(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn it_says_what_asking_for_each_would_say() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("a/dangling")).unwrap();
        std::os::unix::fs::symlink("a", root.join("alias")).unwrap();
        let mut presence = ExistenceCache::default();
        for _ in 0..2 * LOOKUPS_BEFORE_READ {
            for name in ["", "a", "a/b", "a/file", "a/dangling", "a/no", "a/file/x", "no/x/y", "alias/b", "alias/no"] {
                let path = root.join(name);
                assert_eq!(presence.has_path(&path), path.symlink_metadata().is_ok(), "{name}");
            }
        }
        assert!(presence.has_path(Path::new("/")));
    }
}

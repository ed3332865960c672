//! Which of many names exist, without asking for each: plans name a hundred
//! places that hold secrets on some machine and are mostly absent on this one.
//!
//! A hint only: what is said to be there may be gone or have been another
//! spelling, and is looked at again where it is used.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names of one directory that are read; in a larger one each is asked for.
const MAX_NAMES: usize = 4096;

/// A directory's names are read when this many of them are asked for.
const WORTH_READING: usize = 4;

/// What is known of the directories asked about.
#[derive(Debug, Default)]
pub(super) struct Presence {
    directories: HashMap<PathBuf, Names>,
}

#[derive(Debug)]
enum Names {
    /// There is no such directory.
    Absent,
    /// It was asked about so often.
    Asked(usize),
    /// All of them, in lower case: some directories know no other.
    All(HashSet<OsString>),
    /// Too many, or not to be read.
    Unknown,
}

impl Presence {
    /// Whether something has this absolute path; a link counts, whatever it
    /// leads to.
    pub(super) fn has(&mut self, path: &Path) -> bool {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return true };
        match self.names(parent) {
            Names::Absent => false,
            Names::All(names) => names.contains(&name.to_ascii_lowercase()),
            Names::Asked(_) | Names::Unknown => path.symlink_metadata().is_ok(),
        }
    }

    fn names(&mut self, directory: &Path) -> &Names {
        if !self.directories.contains_key(directory) {
            // One absent directory answers for all that would lie beneath it.
            let there = self.has(directory) && directory.is_dir();
            let names = if there { Names::Asked(0) } else { Names::Absent };
            self.directories.insert(directory.to_owned(), names);
        }
        let known = self.directories.entry(directory.to_owned()).or_insert(Names::Unknown);
        if let Names::Asked(times) = known {
            *times += 1;
            if *times >= WORTH_READING {
                *known = read(directory);
            }
        }
        known
    }
}

fn read(directory: &Path) -> Names {
    let Ok(entries) = directory.read_dir() else { return Names::Unknown };
    let mut names = HashSet::new();
    for entry in entries {
        match entry {
            Ok(entry) if names.len() < MAX_NAMES => names.insert(entry.file_name().to_ascii_lowercase()),
            _ => return Names::Unknown,
        };
    }
    Names::All(names)
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
        let mut presence = Presence::default();
        for _ in 0..2 * WORTH_READING {
            for name in ["", "a", "a/b", "a/file", "a/dangling", "a/no", "a/file/x", "no/x/y", "alias/b", "alias/no"] {
                let path = root.join(name);
                assert_eq!(presence.has(&path), path.symlink_metadata().is_ok(), "{name}");
            }
        }
        assert!(presence.has(Path::new("/")));
    }
}

//! Targets of symbolic links whose names are hidden paths: the target must be hidden as well. Only names
//! are resolved; must not know which paths are hidden, or why.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Canonical directories by path; `None` for a missing directory. Most names of secrets exist on no
/// machine, and a missing directory answers for all of its content.
#[derive(Debug, Default)]
pub(crate) struct LinkTargets {
    directories: HashMap<PathBuf, Option<PathBuf>>,
}

impl LinkTargets {
    /// Returns the target of a path, if it has another name. `None` if it does not exist, as for a dangling
    /// link.
    pub(crate) fn find_target(&mut self, path: &Path) -> Option<PathBuf> {
        self.resolve_path(path).filter(|real| real != path)
    }

    fn resolve_path(&mut self, path: &Path) -> Option<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Some(path.to_owned()) };
        let beneath = self.real_directory(parent)?.join(name);
        match beneath.symlink_metadata() {
            Ok(found) if found.is_symlink() => beneath.canonicalize().ok(),
            Ok(_) => Some(beneath),
            Err(_) => None,
        }
    }

    fn real_directory(&mut self, directory: &Path) -> Option<PathBuf> {
        if let Some(known) = self.directories.get(directory) {
            return known.clone();
        }
        let real = self.resolve_path(directory);
        self.directories.insert(directory.to_owned(), real.clone());
        real
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn each_link_on_the_way_and_at_the_end_is_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/file"), "").unwrap();
        for (text, name) in [("a", "directory"), ("b/file", "a/link"), ("nowhere", "dangling"), ("loop", "loop")] {
            symlink(text, top.join(name)).unwrap();
        }
        for (path, expected) in [
            ("a/b/file", None),
            ("a/link", Some("a/b/file")),
            ("directory/link", Some("a/b/file")),
            ("directory/b", Some("a/b")),
            ("directory/absent", None),
            ("absent/file", None),
            ("a/b/file/x", None),
            ("dangling", None),
            ("loop", None),
        ] {
            let path = top.join(path);
            assert_eq!(
                LinkTargets::default().find_target(&path),
                expected.map(|name| top.join(name)),
                "{}",
                path.display()
            );
        }
    }
}

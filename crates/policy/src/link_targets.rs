//! Where links lead that have the name of something hidden: what is there is hidden as well. Looks
//! at names alone; must not know what is hidden, or why.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Directories as they are without links; absent where there is none. Most names of secrets are
/// on no machine, and an absent directory answers for all in it.
#[derive(Debug, Default)]
struct Directories(HashMap<PathBuf, Option<PathBuf>>);

impl Directories {
    fn real(&mut self, directory: &Path) -> Option<PathBuf> {
        if let Some(known) = self.0.get(directory) {
            return known.clone();
        }
        let real = real(self, directory);
        self.0.insert(directory.to_owned(), real.clone());
        real
    }
}

/// A path without links; absent where nothing is there, as at the end of a link that leads
/// nowhere.
fn real(directories: &mut Directories, path: &Path) -> Option<PathBuf> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Some(path.to_owned()) };
    let beneath = directories.real(parent)?.join(name);
    match beneath.symlink_metadata() {
        Ok(found) if found.is_symlink() => beneath.canonicalize().ok(),
        Ok(_) => Some(beneath),
        Err(_) => None,
    }
}

/// The places of these paths that have another name than the path has.
pub(crate) fn led_to<'p>(paths: impl Iterator<Item = &'p Path>) -> Vec<PathBuf> {
    let mut directories = Directories::default();
    paths.filter_map(|path| real(&mut directories, path).filter(|real| real != path)).collect()
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
            let expected: Vec<PathBuf> = expected.into_iter().map(|name| top.join(name)).collect();
            assert_eq!(led_to(std::iter::once(path.as_path())), expected, "{}", path.display());
        }
    }
}

//! Sets of paths in normal form: without `.`, doubled slashes and a slash at the end.

use std::path::Path;

use super::{is_at_or_beneath, normalize_path};

/// A set of paths, in the order of their addition.
#[derive(Clone, Debug, Default)]
pub struct PathSet(Vec<Vec<u8>>);

impl PathSet {
    /// Adds a path.
    pub fn add(&mut self, path: &Path) {
        let path = normalize_path(path);
        if !self.0.contains(&path) {
            self.0.push(path);
        }
    }

    /// Returns whether the set has this very path.
    pub fn has(&self, path: &[u8]) -> bool {
        self.0.iter().any(|own| own == path)
    }

    /// Returns whether `path` is in the set or beneath one of its paths.
    pub fn covers(&self, path: &[u8]) -> bool {
        self.0.iter().any(|own| is_at_or_beneath(own, path))
    }

    /// Returns whether one of the paths is beneath `path`.
    pub fn reaches_beneath(&self, path: &[u8]) -> bool {
        self.0.iter().any(|own| own != path && is_at_or_beneath(path, own))
    }

    /// Returns the longest of the paths that `path` is, or is beneath.
    pub fn deepest(&self, path: &[u8]) -> Option<&[u8]> {
        self.0.iter().filter(|own| is_at_or_beneath(own, path)).max_by_key(|own| own.len()).map(Vec::as_slice)
    }

    /// Returns the paths.
    pub fn paths(&self) -> &[Vec<u8>] {
        &self.0
    }
}

impl<P: AsRef<Path>> Extend<P> for PathSet {
    fn extend<I: IntoIterator<Item = P>>(&mut self, paths: I) {
        paths.into_iter().for_each(|path| self.add(path.as_ref()));
    }
}

impl<P: AsRef<Path>> FromIterator<P> for PathSet {
    fn from_iter<I: IntoIterator<Item = P>>(paths: I) -> Self {
        let mut set = Self::default();
        set.extend(paths);
        set
    }
}

//! Paths beneath a tree, checked once.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use stockade_model::RawText;

/// Longest path, in bytes (`PATH_MAX` with its end).
pub const PATH_MAX: usize = 4_095;
/// Longest component, in bytes (`NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// Most components.
pub const DEPTH_MAX: usize = 128;

/// A path beneath a tree: components without `.`, `..`, `/` and NUL. An empty path is the tree's
/// root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath(PathBuf);

/// Reason why a text is not a path beneath a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreePathError {
    /// The path begins with `/`.
    #[error("a path beneath the tree does not begin with `/`")]
    Absolute,
    /// The path contains `..`.
    #[error("a path beneath the tree holds no `..`")]
    Climbs,
    /// The path contains a NUL.
    #[error("a path holds no NUL byte")]
    Nul,
    /// The path is too long or too deep.
    #[error("a path has at most {PATH_MAX} bytes and {DEPTH_MAX} components of {NAME_MAX} bytes")]
    Long,
}

impl TreePath {
    /// Returns the root.
    pub fn root() -> Self {
        Self::default()
    }

    /// Parses a path. Skips `.` and empty components.
    ///
    /// # Errors
    /// [`TreePathError`] if the path is absolute, contains `..` or a NUL, or is too long.
    pub fn new(bytes: &[u8]) -> Result<Self, TreePathError> {
        if bytes.starts_with(b"/") {
            return Err(TreePathError::Absolute);
        }
        if bytes.contains(&0) {
            return Err(TreePathError::Nul);
        }
        let mut path = PathBuf::new();
        let mut depth = 0;
        for part in bytes.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")) {
            depth += 1;
            if part == b".." {
                return Err(TreePathError::Climbs);
            }
            if part.len() > NAME_MAX || depth > DEPTH_MAX {
                return Err(TreePathError::Long);
            }
            path.push(OsStr::from_bytes(part));
        }
        if path.as_os_str().len() > PATH_MAX { Err(TreePathError::Long) } else { Ok(Self(path)) }
    }

    /// Returns the path as the type of the standard library.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Returns whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.as_os_str().is_empty()
    }

    /// Returns the parent path and the last component; `None` for the root.
    pub fn split_name(&self) -> Option<(Self, &OsStr)> {
        let name = self.0.file_name()?;
        Some((Self(self.0.parent().map(Path::to_owned).unwrap_or_default()), name))
    }

    /// Returns the path of `name` (one component) in this directory.
    pub fn join(&self, name: &OsStr) -> Self {
        Self(self.0.join(name))
    }

    /// Returns the path of `inner` beneath this path. May exceed the kernel's limit; the kernel
    /// then returns an error.
    pub fn join_path(&self, inner: &Self) -> Self {
        if inner.is_root() { self.clone() } else { Self(self.0.join(&inner.0)) }
    }

    /// Returns the rest of this path beneath `above`; `None` if it is elsewhere.
    pub fn relative_to(&self, above: &Self) -> Option<Self> {
        Some(Self(self.0.strip_prefix(&above.0).ok()?.to_owned()))
    }

    /// Returns the number of components.
    pub fn depth(&self) -> usize {
        self.0.components().count()
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() { f.write_str(".") } else { f.write_str(&RawText::from(self.as_path()).to_escaped()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_stay_beneath_are_paths() {
        for (text, shown, depth) in
            [("", ".", 0), (".", ".", 0), ("a//./b/", "a/b", 2), ("...", "...", 1), ("\x1b", "\\u{1b}", 1)]
        {
            let path = TreePath::new(text.as_bytes()).unwrap();
            assert_eq!((path.to_string().as_str(), path.depth()), (shown, depth), "{text:?}");
        }
        let (long, deep) = ("n".repeat(NAME_MAX + 1), "d/".repeat(DEPTH_MAX + 1));
        for (bad, why) in [
            ("/", TreePathError::Absolute),
            ("/etc", TreePathError::Absolute),
            ("..", TreePathError::Climbs),
            ("a/../b", TreePathError::Climbs),
            ("a/..", TreePathError::Climbs),
            ("a\0b", TreePathError::Nul),
            (&long, TreePathError::Long),
            (&deep, TreePathError::Long),
        ] {
            assert_eq!(TreePath::new(bad.as_bytes()), Err(why), "{bad:?}");
        }
        assert!(TreePath::new("x".repeat(200).as_bytes()).unwrap().split_name().unwrap().0.is_root());
    }
}

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

/// A path beneath a tree: components without `.`, `..`, `/` and NUL. Empty, it is
/// the tree's root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath(PathBuf);

/// Why a text is no path beneath a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreePathError {
    /// It begins with `/`.
    #[error("a path beneath the tree does not begin with `/`")]
    Absolute,
    /// It holds `..`.
    #[error("a path beneath the tree holds no `..`")]
    Climbs,
    /// It holds a NUL.
    #[error("a path holds no byte 0")]
    Nul,
    /// It is too long or too deep.
    #[error("a path has at most {PATH_MAX} bytes and {DEPTH_MAX} components of {NAME_MAX} bytes")]
    Long,
}

impl TreePath {
    /// The root.
    pub fn root() -> Self {
        Self::default()
    }

    /// Reads a path. `.` and empty components mean nothing and are left out.
    ///
    /// # Errors
    /// When it is absolute, climbs, or does not fit.
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

    /// As the standard library has it.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.0.as_os_str().is_empty()
    }

    /// Its parent and its last component; none of the root.
    pub fn split(&self) -> Option<(Self, &OsStr)> {
        let name = self.0.file_name()?;
        Some((Self(self.0.parent().map(Path::to_owned).unwrap_or_default()), name))
    }

    /// The path of `name` in it, which is one component.
    pub fn join(&self, name: &OsStr) -> Self {
        Self(self.0.join(name))
    }

    /// The path of something in it. May be longer than what the kernel takes, which
    /// says so then.
    pub fn beneath(&self, inner: &Self) -> Self {
        if inner.is_root() { self.clone() } else { Self(self.0.join(&inner.0)) }
    }

    /// The rest of this path beneath `above`; nothing where it lies elsewhere.
    pub fn within(&self, above: &Self) -> Option<Self> {
        Some(Self(self.0.strip_prefix(&above.0).ok()?.to_owned()))
    }

    /// How many components it has.
    pub fn depth(&self) -> usize {
        self.0.components().count()
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() { f.write_str(".") } else { f.write_str(&RawText::from(self.as_path()).escaped()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_beneath_is_a_path() {
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
        assert!(TreePath::new("x".repeat(200).as_bytes()).unwrap().split().unwrap().0.is_root());
    }
}

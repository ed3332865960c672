//! Errors of operations on a tree.

use std::path::{Path, PathBuf};

use stockade_model::RawText;
use stockade_sys::Errno;

use crate::TreePath;
use crate::object::ObjectKind;

/// An operation failed at one path of a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}`: {why}", RawText::from(path.as_path()).to_escaped())]
pub struct PathError {
    /// Path relative to the tree, or absolute if it is outside.
    pub path: PathBuf,
    /// Message of the kernel or of a check.
    pub why: String,
    /// True if the disk was full.
    pub is_full: bool,
}

impl PathError {
    /// Makes the error of a failed system call.
    pub fn new(path: &Path, errno: Errno) -> Self {
        let is_full = matches!(errno, Errno::NOSPC | Errno::DQUOT);
        Self { path: path.to_owned(), why: errno.to_string(), is_full }
    }

    /// Makes the error of a failed check.
    pub fn from_reason(path: &Path, why: &str) -> Self {
        Self { path: path.to_owned(), why: why.to_owned(), is_full: false }
    }
}

/// Adds a path to the error of a call.
pub trait PathContext<T> {
    /// Returns the same result, with the path in its error.
    fn at_path(self, path: &Path) -> Result<T, PathError>;
}

impl<T> PathContext<T> for Result<T, Errno> {
    fn at_path(self, path: &Path) -> Result<T, PathError> {
        self.map_err(|errno| PathError::new(path, errno))
    }
}

impl<T> PathContext<T> for std::io::Result<T> {
    fn at_path(self, path: &Path) -> Result<T, PathError> {
        self.map_err(|error| match Errno::from_io_error(&error) {
            Some(errno) => PathError::new(path, errno),
            None => PathError::from_reason(path, &error.to_string()),
        })
    }
}

/// Error of an operation on a file. The tree is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesError {
    /// No object exists at the path.
    #[error("there is no `{0}`")]
    NotFound(TreePath),
    /// An object exists at the path.
    #[error("`{0}` already exists\nhint: remove it first; a directory is never replaced")]
    Exists(TreePath),
    /// The object is of another kind.
    #[error("`{path}` is {}, not {}", found.with_article(), expected.with_article())]
    Kind {
        /// Path of the object.
        path: TreePath,
        /// Present kind.
        found: ObjectKind,
        /// Required kind.
        expected: ObjectKind,
    },
    /// The path leads over a symbolic link or a mount.
    #[error("the path `{0}` passes through a link or leaves the tree: neither is followed\nhint: name the file itself")]
    ByLink(TreePath),
    /// The directory is not empty.
    #[error("the directory `{0}` is not empty\nhint: remove it recursively")]
    NotEmpty(TreePath),
    /// The file governs the sandbox and cannot be changed this way.
    #[error("`{path}` is not changed: {why}")]
    Guarded {
        /// Path of the file.
        path: TreePath,
        /// Reason.
        why: String,
    },
    /// A rule excludes the file from copies.
    #[error("`{path}` is not copied: {why}")]
    Withheld {
        /// Path of the file.
        path: TreePath,
        /// Reason.
        why: String,
    },
    /// A limit would be exceeded.
    #[error("it is more than the {limit} {unit} that are allowed")]
    TooMuch {
        /// The limit.
        limit: u64,
        /// Unit of the limit.
        unit: &'static str,
    },
    /// The file changed during the read.
    #[error("`{0}` changed while it was read\nhint: try again when no process writes to it")]
    Changed(TreePath),
    /// The archive is damaged or contains an unsupported member.
    #[error("the archive is not accepted: {why}{}", member.as_ref().map(|m| format!(" (`{}`)", m.to_escaped())).unwrap_or_default())]
    Archive {
        /// Member of the archive.
        member: Option<RawText>,
        /// Reason.
        why: String,
    },
    /// The other end of a stream failed.
    #[error("the {what} failed: {why}")]
    Stream {
        /// Name of the end: `input` or `output`.
        what: &'static str,
        /// Reason.
        why: String,
    },
    /// A system call failed.
    #[error("cannot {what} {path}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Path and error.
        path: PathError,
    },
}

/// Converts the errno of a call on `path` to a [`FilesError`].
pub(crate) fn errno_error(what: &'static str, path: &TreePath) -> impl FnOnce(Errno) -> FilesError {
    let path = path.clone();
    move |errno| match errno {
        Errno::NOENT => FilesError::NotFound(path),
        Errno::EXIST => FilesError::Exists(path),
        Errno::LOOP | Errno::XDEV => FilesError::ByLink(path),
        Errno::NOTEMPTY => FilesError::NotEmpty(path),
        errno => FilesError::System { what, path: PathError::new(path.as_path(), errno) },
    }
}

/// Does the same for an error of the standard library.
pub(crate) fn failed_io(what: &'static str, path: &TreePath) -> impl FnOnce(std::io::Error) -> FilesError {
    let path = path.clone();
    move |error| errno_error(what, &path)(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

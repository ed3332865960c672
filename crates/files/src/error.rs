//! What can go wrong with a path of a tree.

use std::path::{Path, PathBuf};

use stockade_model::RawText;
use stockade_sys::Errno;

use crate::TreePath;
use crate::object::Kind;

/// Something could not be done at one path of a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}`: {why}", RawText::from(path.as_path()).escaped())]
pub struct PathError {
    /// Relative to the tree, or absolute where it lies outside.
    pub path: PathBuf,
    /// What the kernel or the check said.
    pub why: String,
    /// True where the disk was full.
    pub is_full: bool,
}

impl PathError {
    /// For what a system call said.
    pub fn new(path: &Path, errno: Errno) -> Self {
        let is_full = matches!(errno, Errno::NOSPC | Errno::DQUOT);
        Self { path: path.to_owned(), why: errno.to_string(), is_full }
    }

    /// For what was found.
    pub fn because(path: &Path, why: &str) -> Self {
        Self { path: path.to_owned(), why: why.to_owned(), is_full: false }
    }
}

/// Gives the errno of a call its path.
pub trait At<T> {
    /// The same result, with the path in its error.
    fn at(self, path: &Path) -> Result<T, PathError>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, path: &Path) -> Result<T, PathError> {
        self.map_err(|errno| PathError::new(path, errno))
    }
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, path: &Path) -> Result<T, PathError> {
        self.map_err(|error| match Errno::from_io_error(&error) {
            Some(errno) => PathError::new(path, errno),
            None => PathError::because(path, &error.to_string()),
        })
    }
}

/// Why something could not be done with a file. The tree is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesError {
    /// Nothing is there.
    #[error("there is no `{0}`")]
    NotFound(TreePath),
    /// Something is there.
    #[error("there is a `{0}`\nhint: remove it first; a directory is never replaced")]
    Exists(TreePath),
    /// It is something else.
    #[error("`{path}` is {}, not {}", found.with_article(), wanted.with_article())]
    Kind {
        /// Which.
        path: TreePath,
        /// What it is.
        found: Kind,
        /// What it would have to be.
        wanted: Kind,
    },
    /// A link or a mount is on the way there.
    #[error("the way to `{0}` leads over a link or out of the tree: neither is followed\nhint: name the file itself")]
    Led(TreePath),
    /// The directory still holds something.
    #[error("the directory `{0}` is not empty\nhint: ask for it to be removed with all that is in it")]
    NotEmpty(TreePath),
    /// What governs the sandbox is not changed this way.
    #[error("`{path}` is not changed: {why}")]
    Guarded {
        /// Which.
        path: TreePath,
        /// Why.
        why: String,
    },
    /// A rule leaves it out of copies.
    #[error("`{path}` is not copied: {why}")]
    Withheld {
        /// Which.
        path: TreePath,
        /// Why.
        why: String,
    },
    /// It would be more than may be.
    #[error("it is more than the {limit} {unit} that there may be")]
    TooMuch {
        /// How much may be.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// It was changed while it was read.
    #[error("`{0}` was changed while it was read\nhint: try again when nobody writes to it")]
    Changed(TreePath),
    /// The archive is damaged or holds what is not taken.
    #[error("the archive cannot be taken: {why}{}", member.as_ref().map(|m| format!(" (`{}`)", m.escaped())).unwrap_or_default())]
    Archive {
        /// At which member.
        member: Option<RawText>,
        /// Why.
        why: String,
    },
    /// The other end of a stream failed.
    #[error("the {what} failed: {why}")]
    Stream {
        /// Which end: `input` or `output`.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// The system said no.
    #[error("cannot {what} {path}")]
    System {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathError,
    },
}

/// Makes a [`FilesError`] of what a call said of `path`.
pub(crate) fn failed(what: &'static str, path: &TreePath) -> impl FnOnce(Errno) -> FilesError {
    let path = path.clone();
    move |errno| match errno {
        Errno::NOENT => FilesError::NotFound(path),
        Errno::EXIST => FilesError::Exists(path),
        Errno::LOOP | Errno::XDEV => FilesError::Led(path),
        Errno::NOTEMPTY => FilesError::NotEmpty(path),
        errno => FilesError::System { what, path: PathError::new(path.as_path(), errno) },
    }
}

/// The same of what the standard library says.
pub(crate) fn failed_io(what: &'static str, path: &TreePath) -> impl FnOnce(std::io::Error) -> FilesError {
    let path = path.clone();
    move |error| failed(what, &path)(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

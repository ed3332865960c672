//! Files and directories that only the caller may access (L7).

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};
use stockade_model::{RawText, shell_quoted};

/// Error if a private directory or file is unsuitable.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// A system call failed.
    #[error("cannot {what} `{}`: {source}", display_path(path))]
    System {
        /// The attempted operation.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The path is a symbolic link, or neither a file nor a directory.
    #[error(
        "`{}` is not a real {expected}: links are not followed here\nhint: remove it, or name another {noun}",
        display_path(path)
    )]
    Kind {
        /// The expected type.
        expected: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Noun for what the user names.
        noun: &'static str,
    },
    /// The file belongs to another user.
    #[error("`{}` belongs to user {owner}, not to the caller\nhint: name a {noun} of your own", display_path(path))]
    Owner {
        /// Path of the file.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// Noun for what the user names.
        noun: &'static str,
    },
    /// Other users may read or write the file.
    #[error("other users can access `{}` (mode {mode:04o})\nhint: chmod go= {}", display_path(path), shell_quoted(&display_path(path)))]
    Mode {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// Other processes kept the file locked.
    #[error("{holders} kept `{}` locked for {duration}\nhint: {remedy}", display_path(path))]
    Busy {
        /// Path of the file.
        path: PathBuf,
        /// Subject and auxiliary verb of the message.
        holders: &'static str,
        /// Duration, with its unit.
        duration: String,
        /// The remedy.
        remedy: &'static str,
    },
}

fn display_path(path: &Path) -> String {
    RawText::from(path).to_escaped()
}

/// Converts an error to [`PrivateFileError::System`].
pub fn system_error<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> PrivateFileError {
    let path = path.to_owned();
    move |source| PrivateFileError::System { what, path, source: source.into() }
}

/// Requires that the object is of this type, and that only the caller can access it. `noun` is the
/// noun for what the user names.
///
/// # Errors
/// [`PrivateFileError`] with the reason.
pub fn require_private(stat: &Stat, kind: FileType, path: &Path, noun: &'static str) -> Result<(), PrivateFileError> {
    let (path, mode) = (path.to_owned(), stat.st_mode & 0o7777);
    let is_file = kind == FileType::RegularFile;
    let expected = if is_file { "file" } else { "directory" };
    if FileType::from_raw_mode(stat.st_mode) != kind {
        Err(PrivateFileError::Kind { expected, path, noun })
    } else if stat.st_uid != rustix::process::geteuid().as_raw() {
        Err(PrivateFileError::Owner { path, owner: stat.st_uid, noun })
    } else if mode & 0o077 != 0 {
        Err(PrivateFileError::Mode { path, mode })
    } else if is_file && stat.st_nlink != 1 {
        Err(PrivateFileError::Kind { expected, path, noun })
    } else {
        Ok(())
    }
}

/// Makes a directory with mode 0700, and the directories above it, if they are missing. An object
/// of another kind at the path is no error.
///
/// # Errors
/// [`PrivateFileError`] if it cannot be made.
pub fn create_private_directory(path: &Path) -> Result<(), PrivateFileError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    // The caller reports a symbolic link or a file at this path, by its name.
    made.or_else(
        |error| if path.symlink_metadata().is_ok() { Ok(()) } else { Err(system_error("create", path)(error)) },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hint_ends_its_own_quotes() {
        let error = PrivateFileError::Mode { path: "/a/it's".into(), mode: 0o644 }.to_string();
        assert!(error.ends_with(r"hint: chmod go= '/a/it'\''s'"), "{error}");
    }
}

//! Covers for hidden paths if nothing in the container could hide them: an empty file or directory
//! without permissions is mounted there.
//!
//! Paths that exist when a sandbox is made are covered; paths that its commands make later belong
//! to them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use stockade_backend_api::StartError;

use crate::accounts::BindMountPair;
use crate::cannot;
use crate::in_container::ReachableObject;
use crate::spec::text_of;

/// Names of the covers.
const FILE_COVER_NAME: &str = "covered-file";
const DIRECTORY_COVER_NAME: &str = "covered-directory";
const VOLUME_COVER_NAME: &str = "covered-volume";
/// Mode of the directory that replaces a volume.
const VOLUME_COVER_MODE: u32 = 0o555;
/// Mode of a cover: without capabilities no process can read it, whichever user owns it.
const COVER_MODE: u32 = 0;

/// Makes covers for these paths in this existing directory.
///
/// # Errors
/// [`StartError`] if they cannot be made, or a path cannot be passed to a container engine.
pub(crate) fn cover_paths(directory: &Path, reached: &[ReachableObject]) -> Result<Vec<BindMountPair>, StartError> {
    let made = create_covers(directory)
        .map_err(cannot(format!("create the covers for hidden paths in {}", directory.display())))?;
    let cover = |one: &ReachableObject| {
        let with = if one.is_directory { &made.1 } else { &made.0 };
        Ok((text_of(one.path.as_path())?.to_owned(), with.clone()))
    };
    reached.iter().map(cover).collect()
}

/// Makes an empty, readable directory to replace each volume. Otherwise a volume would be writable
/// if nothing in the container prevents it, and would outlive the sandbox.
///
/// # Errors
/// [`StartError`] if it cannot be made.
pub(crate) fn over_volumes(directory: &Path, volumes: &BTreeSet<String>) -> Result<Vec<BindMountPair>, StartError> {
    let empty = directory.join(VOLUME_COVER_NAME);
    is_there(fs::DirBuilder::new().mode(VOLUME_COVER_MODE).create(&empty))
        .map_err(cannot(format!("make {}", empty.display())))?;
    Ok(volumes.iter().map(|volume| (volume.clone(), empty.clone())).collect())
}

/// Returns whether `path` is one of the covers in this directory.
pub(crate) fn is_cover(directory: &Path, path: &Path) -> bool {
    [FILE_COVER_NAME, DIRECTORY_COVER_NAME].iter().any(|name| directory.join(name) == path)
}

/// Makes the file and the directory.
fn create_covers(directory: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let (file, empty) = (directory.join(FILE_COVER_NAME), directory.join(DIRECTORY_COVER_NAME));
    if !file.exists() {
        is_there(fs::OpenOptions::new().write(true).create_new(true).mode(COVER_MODE).open(&file).map(drop))?;
    }
    is_there(fs::DirBuilder::new().mode(COVER_MODE).create(&empty))?;
    Ok((file, empty))
}

/// Accepts an existing file, because another sandbox may be made at the same time.
fn is_there(made: io::Result<()>) -> io::Result<()> {
    made.or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_path_that_is_no_text_is_taken_for_no_other() {
        use std::os::unix::ffi::OsStrExt as _;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/w\xff"));
        assert!(text_of(path).unwrap_err().what.contains("/w\\xff"));
        let directory = tempfile::tempdir().unwrap();
        let reached = ReachableObject { path: path.into(), is_directory: false };
        assert!(cover_paths(directory.path(), &[reached]).is_err());
    }

    #[test]
    fn files_and_directories_are_covered_by_their_like_as_often_as_it_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let of = |path: &str, is_directory| ReachableObject { path: path.into(), is_directory };
        for _ in 0..2 {
            let covers =
                cover_paths(directory.path(), &[of("/etc/shadow", false), of("/etc/ssl/private", true)]).unwrap();
            let found: Vec<_> =
                covers.iter().map(|(inside, from)| (inside.as_str(), fs::metadata(from).unwrap())).collect();
            assert_eq!(
                found.iter().map(|(inside, _)| *inside).collect::<Vec<_>>(),
                ["/etc/shadow", "/etc/ssl/private"]
            );
            assert_eq!(found.iter().map(|(_, found)| found.is_dir()).collect::<Vec<_>>(), [false, true]);
            assert!(found.iter().all(|(_, found)| found.permissions().mode() & 0o777 == COVER_MODE));
        }
    }
}

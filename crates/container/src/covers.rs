//! What stands in the place of a path that is hidden, where nothing inside could hide it:
//! a file or a directory that is empty and that nobody may look into, mounted there.
//!
//! What is there when a sandbox is made is covered; what its commands make at such a path
//! later is theirs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use stockade_engine::StartError;

use crate::accounts::Placed;
use crate::inside::Reached;
use crate::spec::text_of;

/// Names of the covers.
const FILE: &str = "covered-file";
const DIRECTORY: &str = "covered-directory";
const VOLUME: &str = "covered-volume";
/// The mode of what stands in the place of a volume.
const READABLE: u32 = 0o555;
/// Its mode: who is without capabilities cannot look into it, whoever owns it.
const CLOSED: u32 = 0;

/// Has covers for these in this directory, which is there.
///
/// # Errors
/// Where they cannot be made, or a path cannot be said to a container engine.
pub(crate) fn over(directory: &Path, reached: &[Reached]) -> Result<Vec<Placed>, StartError> {
    let made = make(directory).map_err(|why| StartError {
        what: format!("cannot make what hidden paths are covered with in {}: {why}", directory.display()),
        hint: None,
    })?;
    let cover = |one: &Reached| {
        let with = if one.is_directory { &made.1 } else { &made.0 };
        Ok((text_of(one.path.as_path())?.to_owned(), with.clone()))
    };
    reached.iter().map(cover).collect()
}

/// Has an empty directory that can be read in the place of each volume. A volume would be
/// writable where nothing inside keeps commands from it, and outlive what is reported of it.
///
/// # Errors
/// Where it cannot be made.
pub(crate) fn over_volumes(directory: &Path, volumes: &BTreeSet<String>) -> Result<Vec<Placed>, StartError> {
    let empty = directory.join(VOLUME);
    is_there(fs::DirBuilder::new().mode(READABLE).create(&empty))
        .map_err(|why| StartError { what: format!("cannot make {}: {why}", empty.display()), hint: None })?;
    Ok(volumes.iter().map(|volume| (volume.clone(), empty.clone())).collect())
}

/// Whether `path` is one of the covers in this directory.
pub(crate) fn is_cover(directory: &Path, path: &Path) -> bool {
    [FILE, DIRECTORY].iter().any(|name| directory.join(name) == path)
}

/// The file and the directory.
fn make(directory: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let (file, empty) = (directory.join(FILE), directory.join(DIRECTORY));
    if !file.exists() {
        is_there(fs::OpenOptions::new().write(true).create_new(true).mode(CLOSED).open(&file).map(drop))?;
    }
    is_there(fs::DirBuilder::new().mode(CLOSED).create(&empty))?;
    Ok((file, empty))
}

/// Another sandbox may be made beside.
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
        let reached = Reached { path: path.into(), is_directory: false };
        assert!(over(directory.path(), &[reached]).is_err());
    }

    #[test]
    fn files_and_directories_are_covered_by_their_like_as_often_as_it_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let of = |path: &str, is_directory| Reached { path: path.into(), is_directory };
        for _ in 0..2 {
            let covers = over(directory.path(), &[of("/etc/shadow", false), of("/etc/ssl/private", true)]).unwrap();
            let found: Vec<_> =
                covers.iter().map(|(inside, from)| (inside.as_str(), fs::metadata(from).unwrap())).collect();
            assert_eq!(
                found.iter().map(|(inside, _)| *inside).collect::<Vec<_>>(),
                ["/etc/shadow", "/etc/ssl/private"]
            );
            assert_eq!(found.iter().map(|(_, found)| found.is_dir()).collect::<Vec<_>>(), [false, true]);
            assert!(found.iter().all(|(_, found)| found.permissions().mode() & 0o777 == CLOSED));
        }
    }
}

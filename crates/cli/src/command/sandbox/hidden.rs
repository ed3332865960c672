//! Where in a workspace hidden files of the host are found: by their own paths, and
//! through mounts that give them another.

use std::path::{Path, PathBuf};

use stockade_engine::mountinfo::{self, Mount};

use crate::failure::{Failure, quoted};

/// The hidden paths in `workspace`, which is absolute and without links, relative to it.
///
/// # Errors
/// Where all of it is hidden under another path, or the mounts cannot be read.
pub fn beneath<'a>(workspace: &Path, hide: impl Iterator<Item = &'a Path>) -> Result<Vec<PathBuf>, Failure> {
    let text = mountinfo::read().map_err(|why| Failure::new(format!("cannot read /proc/self/mountinfo: {why}")))?;
    let mounts: Vec<Mount<'_>> = mountinfo::entries(&text).collect();
    let mut found = Vec::new();
    for hidden in hide {
        let real = hidden.canonicalize().unwrap_or_else(|_| hidden.to_owned());
        let places = [hidden.to_owned(), real.clone()].into_iter().chain(other_paths(&mounts, &real));
        for place in places {
            if workspace.starts_with(&place) {
                let what =
                    format!("the workspace {} is {}, which is hidden from runs", quoted(workspace), quoted(hidden));
                return Err(Failure::new(what).hint("name the directory of a project"));
            }
            found.extend(place.strip_prefix(workspace).ok().map(Path::to_owned));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// The paths that other mounts give to what is at `path`, which is without links: those of
/// the same directory, and the mounts of a directory within it.
fn other_paths(mounts: &[Mount<'_>], path: &Path) -> Vec<PathBuf> {
    // A later mount at the same point hides an earlier one.
    let at = mounts.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|m| m.point.components().count());
    let Some((at, rest)) = at.and_then(|at| Some((at, path.strip_prefix(&at.point).ok()?))) else { return Vec::new() };
    let inner = at.root.join(rest);
    let alias = |mount: &Mount<'_>| match (inner.strip_prefix(&mount.root), mount.root.starts_with(&inner)) {
        _ if mount.device != at.device || mount.point == at.point => None,
        (Ok(rest), _) => Some(mount.point.join(rest)),
        (_, true) => Some(mount.point.clone()),
        _ => None,
    };
    mounts.iter().filter_map(alias).map(|place| place.components().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"1 0 8:1 / / rw - ext4 /dev/a rw\n\
        2 1 8:2 / /home rw - ext4 /dev/b rw\n\
        3 1 8:2 /u /home/u/project/all rw - ext4 /dev/b rw\n\
        4 1 8:2 /u/.ssh/keys /home/u/project/keys rw - ext4 /dev/b rw\n\
        5 1 8:2 /other /home/u/project/other rw - ext4 /dev/b rw\n\
        6 1 0:9 /u /home/u/project/temporary rw - tmpfs none rw\n";

    #[test]
    fn a_mount_gives_a_hidden_directory_another_path() {
        let mounts: Vec<Mount<'_>> = mountinfo::entries(MOUNTS).collect();
        let other = other_paths(&mounts, Path::new("/home/u/.ssh"));
        assert_eq!(other, [PathBuf::from("/home/u/project/all/.ssh"), "/home/u/project/keys".into()]);
        assert!(other_paths(&mounts, Path::new("/etc/shadow")).is_empty());
    }

    #[test]
    fn hidden_paths_are_relative_to_the_workspace_and_never_all_of_it() {
        let hide = ["/w/project/secret", "/w/elsewhere", "/w/project/a/b"].map(Path::new);
        let found = beneath(Path::new("/w/project"), hide.into_iter()).unwrap();
        assert_eq!(found, [PathBuf::from("a/b"), "secret".into()]);
        assert!(beneath(Path::new("/w/elsewhere/project"), hide.into_iter()).is_err());
    }
}

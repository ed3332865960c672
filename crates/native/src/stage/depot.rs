//! The commit area (depot): a directory for the objects that a commit exchanges, made before the
//! commit and removed after it. The commit area is on the filesystem of the workspace: in the stage
//! if the stage is on that filesystem, too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx, unlinkat};
use stockade_sys::Errno;

use super::commit::unreadable;
use super::error::{At, PathError};
use super::journal::DepotPlace;
use super::place::{Stage, make_private};
use stockade_files::object::{Object, directory_beneath, os};
use stockade_files::removal::{remove_tree, sweep};

pub(super) const DEPOT: &str = "depot";
/// Directory of the commit area in the workspace; this name is protected everywhere.
const SHELTER: &str = ".stockade";
/// Marker file, written before the directory [`SHELTER`] is made, so that a new one is removed
/// again.
const BORROWED: &str = "borrowed";

/// An open commit area.
pub(super) struct Depot {
    pub place: DepotPlace,
    pub directory: OwnedFd,
    /// True if staged objects can get a second name (hard link) in it.
    pub links: bool,
}

impl Depot {
    /// Makes an empty commit area.
    pub fn make(stage: &Stage, workspace: BorrowedFd<'_>) -> Result<Self, PathError> {
        clear_depots(stage)?;
        let path = Path::new(DEPOT);
        if mount_of(workspace).at(stage.workspace())? == mount_of(stage.directory.as_fd()).at(path)? {
            let directory = make_private(stage.directory.as_fd(), DEPOT).at(path)?;
            return Ok(Self { place: DepotPlace::Stage, directory, links: true });
        }
        let root = Object::of(rustix::io::fcntl_dupfd_cloexec(workspace, 3).at(path)?).at(path)?;
        let is_new = Object::find(workspace, os(SHELTER.as_bytes())).at(path)?.is_none();
        stage.write_whole(BORROWED, |out| serde_json::to_writer(out, &is_new).map_err(Into::into))?;
        let shelter = make_shelter(workspace, is_new).at(&stage.workspace().join(SHELTER))?;
        let made = make_private(shelter.as_fd(), &sheltered(stage));
        root.set_modified(root.modified()).at(stage.workspace())?;
        Ok(Self { place: DepotPlace::Workspace, directory: made.at(&stage.workspace().join(SHELTER))?, links: false })
    }

    /// Opens the commit area of an interrupted commit.
    pub fn open(stage: &Stage, workspace: BorrowedFd<'_>, place: DepotPlace) -> Result<Self, PathError> {
        let opened = match place {
            DepotPlace::Stage => directory_beneath(stage.directory.as_fd(), Path::new(DEPOT)),
            DepotPlace::Workspace => directory_beneath(workspace, &Path::new(SHELTER).join(sheltered(stage))),
        };
        Ok(Self { place, directory: opened.at(Path::new(DEPOT))?, links: false })
    }
}

fn make_shelter(workspace: BorrowedFd<'_>, is_new: bool) -> Result<OwnedFd, Errno> {
    if is_new {
        return make_private(workspace, SHELTER);
    }
    openat(workspace, SHELTER, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn sheltered(stage: &Stage) -> String {
    format!("commit-{}", stage.id())
}

/// Returns device and mount of a directory. Renames and hard links work only within one mount.
pub(super) fn mount_of(directory: BorrowedFd<'_>) -> Result<(u32, u32, u64), Errno> {
    let found = statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_mnt_id))
}

/// Removes the commit area. Returns whether there was one.
pub(super) fn clear_depots(stage: &Stage) -> Result<bool, PathError> {
    let mut cleared = false;
    if Object::find(stage.directory.as_fd(), os(DEPOT.as_bytes())).at(Path::new(DEPOT))?.is_some() {
        remove_tree(stage.directory.as_fd(), DEPOT.as_bytes())?;
        cleared = true;
    }
    let Some(borrowed) = stage.read_whole(BORROWED)? else { return Ok(cleared) };
    let is_ours = borrowed == b"true";
    let workspace = stage.open_workspace().map_err(unreadable)?;
    let root = Object::of(workspace).at(stage.workspace())?;
    let path = stage.workspace().join(SHELTER);
    if let Some(shelter) = Object::find(root.fd.as_fd(), os(SHELTER.as_bytes())).at(&path)?.filter(Object::is_directory)
    {
        remove_tree(shelter.fd.as_fd(), sheltered(stage).as_bytes())?;
        sweep(shelter.fd.as_fd())?;
        if is_ours {
            match unlinkat(&root.fd, SHELTER, AtFlags::REMOVEDIR) {
                // Another program uses the directory now.
                Ok(()) | Err(Errno::NOTEMPTY | Errno::NOENT) => {}
                Err(errno) => return Err(PathError::new(&path, errno)),
            }
            root.set_modified(root.modified()).at(stage.workspace())?;
        } else {
            shelter.set_modified(shelter.modified()).at(&path)?;
        }
    }
    stage.remove_file(BORROWED)?;
    Ok(true)
}

/// Returns whether a commit left a commit area.
pub(super) fn is_there(directory: BorrowedFd<'_>) -> bool {
    [DEPOT, BORROWED].iter().any(|name| matches!(Object::find(directory, os(name.as_bytes())), Ok(Some(_))))
}

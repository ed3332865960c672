//! The commit area: a directory for the objects that a commit exchanges, made before the
//! commit and removed after it. The commit area is on the filesystem of the workspace: in the stage
//! if the stage is on that filesystem, too.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, statx, unlinkat};
use stockade_files::object::{TreeObject, directory_beneath};
use stockade_files::removal::{remove_tree, sweep_removals};
use stockade_sys::Errno;

use super::commit::stage_path_error;
use super::error::{PathContext, PathError};
use super::journal::CommitAreaLocation;
use super::stage_directory::{OpenStage, make_private};
use super::state_files::{has_any, open_directory};

pub(super) const COMMIT_AREA: &str = "depot";
/// Directory of the commit area in the workspace; this name is protected everywhere.
const WORKSPACE_AREA: &str = ".stockade";
/// Marker file, written before the directory [`WORKSPACE_AREA`] is made, so that a new one is removed
/// again.
const BORROWED_MARKER: &str = "borrowed";

/// An open commit area.
pub(super) struct CommitArea {
    pub area_directory: CommitAreaLocation,
    pub directory: OwnedFd,
    /// True if staged objects can get a second name (hard link) in it.
    pub links: bool,
}

impl CommitArea {
    /// Makes an empty commit area.
    pub fn create_empty(stage: &OpenStage, workspace: BorrowedFd<'_>) -> Result<Self, PathError> {
        clear_commit_areas(stage)?;
        let path = Path::new(COMMIT_AREA);
        if mount_of(workspace).at_path(stage.workspace())? == mount_of(stage.directory.as_fd()).at_path(path)? {
            let directory = make_private(stage.directory.as_fd(), COMMIT_AREA).at_path(path)?;
            return Ok(Self { area_directory: CommitAreaLocation::Stage, directory, links: true });
        }
        let root = TreeObject::duplicate(workspace).at_path(path)?;
        let is_new = TreeObject::open_entry(workspace, OsStr::new(WORKSPACE_AREA)).at_path(path)?.is_none();
        stage.write_whole(BORROWED_MARKER, &is_new)?;
        let shelter = make_shelter(workspace, is_new).at_path(&stage.workspace().join(WORKSPACE_AREA))?;
        let made = make_private(shelter.as_fd(), &workspace_area_name(stage));
        root.set_modified(root.modified_time()).at_path(stage.workspace())?;
        Ok(Self {
            area_directory: CommitAreaLocation::Workspace,
            directory: made.at_path(&stage.workspace().join(WORKSPACE_AREA))?,
            links: false,
        })
    }

    /// Opens the commit area of an interrupted commit.
    pub fn open_interrupted(
        stage: &OpenStage,
        workspace: BorrowedFd<'_>,
        area_directory: CommitAreaLocation,
    ) -> Result<Self, PathError> {
        let opened = match area_directory {
            CommitAreaLocation::Stage => directory_beneath(stage.directory.as_fd(), Path::new(COMMIT_AREA)),
            CommitAreaLocation::Workspace => {
                directory_beneath(workspace, &Path::new(WORKSPACE_AREA).join(workspace_area_name(stage)))
            }
        };
        Ok(Self { area_directory, directory: opened.at_path(Path::new(COMMIT_AREA))?, links: false })
    }
}

fn make_shelter(workspace: BorrowedFd<'_>, is_new: bool) -> Result<OwnedFd, Errno> {
    if is_new {
        return make_private(workspace, WORKSPACE_AREA);
    }
    open_directory(workspace, WORKSPACE_AREA)
}

fn workspace_area_name(stage: &OpenStage) -> String {
    format!("commit-{}", stage.id())
}

/// Returns device and mount of a directory. Renames and hard links work only within one mount.
pub(super) fn mount_of(directory: BorrowedFd<'_>) -> Result<(u32, u32, u64), Errno> {
    let found = statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_mnt_id))
}

/// Removes the commit area. Returns whether there was one.
pub(super) fn clear_commit_areas(stage: &OpenStage) -> Result<bool, PathError> {
    let area = TreeObject::open_entry(stage.directory.as_fd(), OsStr::new(COMMIT_AREA));
    let has_area = area.at_path(Path::new(COMMIT_AREA))?.is_some();
    remove_tree(stage.directory.as_fd(), COMMIT_AREA.as_bytes())?;
    let Some(is_ours) = stage.read_whole::<bool>(BORROWED_MARKER)? else { return Ok(has_area) };
    let workspace = stage.open_workspace().map_err(stage_path_error)?;
    let root = TreeObject::from_fd(workspace).at_path(stage.workspace())?;
    let path = stage.workspace().join(WORKSPACE_AREA);
    let shelter = TreeObject::open_entry(root.fd.as_fd(), OsStr::new(WORKSPACE_AREA)).at_path(&path)?;
    if let Some(shelter) = shelter.filter(TreeObject::is_directory) {
        remove_tree(shelter.fd.as_fd(), workspace_area_name(stage).as_bytes())?;
        sweep_removals(shelter.fd.as_fd())?;
        if is_ours {
            match unlinkat(&root.fd, WORKSPACE_AREA, AtFlags::REMOVEDIR) {
                // Another program uses the directory now.
                Ok(()) | Err(Errno::NOTEMPTY | Errno::NOENT) => {}
                Err(errno) => return Err(PathError::new(&path, errno)),
            }
            root.set_modified(root.modified_time()).at_path(stage.workspace())?;
        } else {
            shelter.set_modified(shelter.modified_time()).at_path(&path)?;
        }
    }
    stage.remove_file(BORROWED_MARKER)?;
    Ok(true)
}

/// Returns whether a commit left a commit area.
pub(super) fn is_there(directory: BorrowedFd<'_>) -> bool {
    has_any(directory, &[COMMIT_AREA, BORROWED_MARKER])
}

//! The directories of a sandbox: a workspace and a home beneath its own directory. A workspace that
//! is a directory of the host is never created, filled or removed.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use stockade_files::object::list_entry_names;
use stockade_files::removal::{remove_tree, sweep_removals};
use stockade_files::{ContentLimits, FileTree, OmittedObject, PathContext, PathError};
use stockade_model::{HostDirectory, Limits, SandboxId, WorkspaceSource};

use crate::{HiddenFiles, LifecycleError};

const WORKSPACE_NAME: &str = "workspace";
const HOME_NAME: &str = "home";

/// Most files of a copied workspace, if no limit is set.
const MAX_COPIED_ENTRIES: u64 = 2_000_000;

/// Paths of a sandbox's directories.
#[derive(Debug)]
pub(crate) struct SandboxDirectories {
    pub workspace: PathBuf,
    pub home: PathBuf,
}

impl SandboxDirectories {
    /// Returns the paths of a sandbox with this directory.
    pub fn from_source(directory: &Path, source: &WorkspaceSource) -> Self {
        let workspace = match source {
            WorkspaceSource::Bind { directory } => directory.as_raw().as_path().to_owned(),
            _ => directory.join(WORKSPACE_NAME),
        };
        Self { workspace, home: directory.join(HOME_NAME) }
    }

    /// Returns the paths of a sandbox that is about to be used. Checks a directory of the host,
    /// because a link may have replaced it since the sandbox was created.
    pub fn open_checked(directory: &Path, source: &WorkspaceSource) -> Result<Self, LifecycleError> {
        if let WorkspaceSource::Bind { directory } = source {
            host_directory(directory)?;
        }
        Ok(Self::from_source(directory, source))
    }

    /// Creates the directories, and copies the initial content from the host into the workspace.
    /// Returns the files that were left out.
    pub fn create_directories(
        directory: &Path,
        id: &SandboxId,
        (source, hidden): (&WorkspaceSource, HiddenFiles),
        limits: &Limits,
    ) -> Result<(Self, Vec<OmittedObject>), LifecycleError> {
        let failed = |source| LifecycleError::DirectoryFailed { id: id.clone(), what: "made", source };
        let own = open_directory(directory, ResolveFlags::empty()).at_path(directory).map_err(failed)?;
        let make = |name: &str| mkdirat(&own, name, Mode::RWXU).at_path(name.as_ref()).map_err(failed);
        make(HOME_NAME)?;
        let mut left_out = Vec::new();
        match source {
            WorkspaceSource::Bind { directory } => host_directory(directory).map(drop)?,
            WorkspaceSource::Copy { directory: from } => {
                let path = from.as_raw().as_path().to_owned();
                let from = FileTree::from_fd(host_directory(from)?).with_withhold_rule(hidden.withhold_from(path));
                make(WORKSPACE_NAME)?;
                let to = hold_plain(&directory.join(WORKSPACE_NAME));
                let to = to.at_path(WORKSPACE_NAME.as_ref()).map_err(failed)?;
                let bounds = ContentLimits {
                    bytes: limits.disk_bytes.unwrap_or(u64::MAX),
                    entries: limits.inodes.unwrap_or(MAX_COPIED_ENTRIES),
                };
                left_out = FileTree::from_fd(to).copy_from(&from, bounds)?.left_out;
            }
            WorkspaceSource::Empty | WorkspaceSource::Clone { .. } => make(WORKSPACE_NAME)?,
        }
        Ok((Self::from_source(directory, source), left_out))
    }
}

/// Removes the files of a sandbox except its lock. Changes permissions of its commands' files if
/// they prevent the removal.
pub(crate) fn remove(directory: &Path, id: &SandboxId) -> Result<(), LifecycleError> {
    let failed = |source: PathError| LifecycleError::DirectoryFailed { id: id.clone(), what: "removed", source };
    let own = match open_directory(directory, ResolveFlags::empty()) {
        Ok(own) => own,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed(PathError::new(directory, errno))),
    };
    sweep_removals(own.as_fd()).map_err(failed)?;
    for name in list_entry_names(own.as_fd()).at_path(directory).map_err(failed)? {
        if name != b"lock" {
            remove_tree(own.as_fd(), &name).map_err(failed)?;
        }
    }
    Ok(())
}

/// Opens a directory of the host that may be a workspace. Its path must not contain links, so that
/// it is the intended one.
fn host_directory(directory: &HostDirectory) -> Result<OwnedFd, LifecycleError> {
    let raw = directory.as_raw();
    let refused = |why: &str| LifecycleError::Directory { directory: raw.clone(), why: why.to_owned() };
    let held = hold_plain(raw.as_path()).map_err(|errno| match errno {
        Errno::LOOP => refused("a symbolic link leads there"),
        errno => refused(&errno.to_string()),
    })?;
    // A directory without read permission is not usable as a workspace.
    openat(&held, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| refused(&errno.to_string()))?;
    Ok(held)
}

/// Opens a directory whose path contains no link.
pub(crate) fn hold_plain(path: &Path) -> Result<OwnedFd, Errno> {
    open_directory(path, ResolveFlags::NO_SYMLINKS)
}

fn open_directory(path: &Path, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), resolve | ResolveFlags::NO_MAGICLINKS)
}

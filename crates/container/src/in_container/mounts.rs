//! Mounts and devices of a container, examined from within. An engine, its configuration or a hook
//! of its runtime can add some that the engine does not report.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use stockade_model::RawText;
use stockade_model::mountinfo;

/// Longest text of mounts that is sent, in bytes. A container has about fifty mounts.
const MAX_TEXT_BYTES: usize = 128 << 10;
/// Most device nodes that are listed.
const DEVICES_MAX: usize = 100;
/// Depth of the search for devices beneath `/dev`.
const DEVICES_DEPTH: usize = 4;

/// File that a path in the container leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountedObject {
    /// The path.
    pub(crate) path: RawText,
    /// The number of its filesystem's device.
    pub(crate) device: u64,
    /// Inode number of the file.
    pub(crate) inode: u64,
}

/// Mounts of a container.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ContainerMounts {
    /// The text of its `mountinfo` (proc_pid_mountinfo(5)).
    pub(crate) text: RawText,
    /// The files at the requested paths.
    pub(crate) objects: Vec<MountedObject>,
    /// The device nodes beneath `/dev`.
    pub(crate) devices: Vec<RawText>,
}

/// Reads the mounts, the devices, and the files at these paths.
///
/// # Errors
/// [`io::Error`] if they cannot be read, or there are more than a container has.
pub(super) fn read_mounts(paths: &[RawText]) -> io::Result<ContainerMounts> {
    let text = File::open(mountinfo::OWN_MOUNTINFO).and_then(mountinfo::read_mountinfo)?;
    if text.len() > MAX_TEXT_BYTES {
        return Err(io::Error::other("there are too many mounts"));
    }
    let object = |path: &RawText| {
        let found = fs::symlink_metadata(path.as_path())?;
        Ok(MountedObject { path: path.clone(), device: found.dev(), inode: found.ino() })
    };
    let objects = paths.iter().map(object).collect::<io::Result<_>>()?;
    let mut devices = Vec::new();
    find_devices(Path::new("/dev"), DEVICES_DEPTH, &mut devices)?;
    Ok(ContainerMounts { text: text.into(), objects, devices })
}

fn find_devices(directory: &Path, depth: usize, found: &mut Vec<RawText>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        // Each terminal of a command is a device.
        if kind.is_dir() && depth > 0 && entry.path() != Path::new("/dev/pts") {
            find_devices(&entry.path(), depth - 1, found)?;
        } else if (kind.is_char_device() || kind.is_block_device()) && found.len() < DEVICES_MAX {
            found.push(entry.path().into());
        }
    }
    Ok(())
}

//! The caches and package stores of tools, as layers of a workspace. A run reads the host's content
//! there. Its writes go to a directory of Stockade's state that only runs of the same workspace
//! see. So no write of a run reaches a tool of the host.
//!
//! Each workspace has a directory here:
//!
//! ```text
//! KEY/lock           shared lock of its runs; exclusive while it is cleared
//! KEY/workspace      the path of the workspace
//! KEY/plain/TOOL     a private directory, shared by all runs of the workspace
//! KEY/merged/N/      a set of layers, mounted once at a time: `lock`, `boot`, and
//! KEY/merged/N/TOOL  `upper` and `work` of one overlay
//! KEY/holder-VERSION the socket of the layer server, if one runs
//! ```
//!
//! While no run uses them, `plain` and `merged` have a random suffix, `plain.RANDOM`. A run knows
//! the paths of its layers. A link that it left in its workspace must not lead a tool of the host
//! to its writes there. Tools record paths, so the names are the same in every run. The exception
//! is a `merged` that the layer server mounts, because no run sees its name. No run learns the
//! random suffix: see `seal`.
//!
//! The result of two mounts of one upper directory is undefined. So the layer server, a process per
//! workspace, mounts a set once and gives each run copies of the mounts. Concurrent runs share
//! their writes, and a start needs no mount. Without a server a run mounts a set of its own, the
//! lowest that is free.
//!
//! Stockade reads only names and sizes in these directories. This module must not know the tools:
//! these are data of the plan.

mod choice;
mod client;
mod lease;
mod seal;
mod server;
mod set;
mod store;

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fchmod, fstat, openat};
use stockade_sys::Errno;

pub use client::LayerServerProgram;
pub(crate) use lease::CacheLease;
pub(crate) use seal::NameRotation;
pub use server::{LayerServerError, serve_layers};
pub use store::{CacheStore, CacheStoreError, ClearResult, WorkspaceCaches};

/// Name of the lock of a workspace's directory, and of a set of layers.
const LOCK_NAME: &str = "lock";
/// Name of the file with the path of the workspace.
const WORKSPACE_FILE_NAME: &str = "workspace";
/// Name of the directory of private directories.
const PLAIN_DIR_NAME: &str = "plain";
/// Name of the directory of sets of layers.
const MERGED_DIR_NAME: &str = "merged";

fn open_directory<P: rustix::path::Arg>(parent: BorrowedFd<'_>, path: P) -> Result<OwnedFd, Errno> {
    openat(parent, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the lock file in `directory`, created if missing, without locking it.
fn open_lock(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    open_file(directory, LOCK_NAME)
}

/// Opens a file in `directory`, created if missing.
fn open_file(directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = Mode::RUSR | Mode::WUSR;
    let file = openat(directory, name, flags, own)?;
    // Independent of the umask at its creation.
    if !Mode::from_raw_mode(fstat(&file)?.st_mode).contains(own) {
        fchmod(&file, own)?;
    }
    Ok(file)
}

fn is_key(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

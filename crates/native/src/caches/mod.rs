//! The caches and package stores of tools, as layers of a workspace: what the host has
//! there is read, what a run writes stays in a directory of the state that only runs of
//! the same workspace see. So nothing that a run writes reaches a tool of the host.
//!
//! Each workspace has a directory here:
//!
//! ```text
//! KEY/lock           shared by its runs, alone for whoever clears it
//! KEY/workspace      the path of the workspace
//! KEY/plain/TOOL     a private directory, shared by all runs of the workspace
//! KEY/merged/N/      a set of layers, mounted once at a time: `lock`, `boot`, and
//! KEY/merged/N/TOOL  `upper` and `work` of one overlay
//! KEY/holder-VERSION the socket of the layer server, if one runs
//! ```
//!
//! While no run uses them `plain` and `merged` have a random end, `plain.RANDOM`: a run knows
//! where its layers lie, and a link that it left in its workspace must not lead a tool of the
//! host to what it wrote there. Tools note paths, so they have the same name in every run, but
//! for a `merged` that the layer server mounts: no run sees that by its name. No run is told the
//! random end: see `seal`.
//!
//! Two mounts of one upper directory are undefined. So the layer server, a process per
//! workspace, mounts a set once and gives each run copies of the mounts: concurrent runs share
//! what they write, and a start does not mount. Without a server a run mounts a set of its own,
//! the lowest that is free.
//!
//! The host reads nothing in these directories but names and sizes. Must not know
//! which tools there are: that is data of the plan.

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
const LOCK: &str = "lock";
/// Name of the file that tells which workspace it is.
const WORKSPACE: &str = "workspace";
/// Name of the directory of private directories.
const PLAIN: &str = "plain";
/// Name of the directory of sets of layers.
const MERGED: &str = "merged";

fn open_directory<P: rustix::path::Arg>(parent: BorrowedFd<'_>, path: P) -> Result<OwnedFd, Errno> {
    openat(parent, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// The lock in `directory`, made where it is missing, not yet held.
fn open_lock(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    open_file(directory, LOCK)
}

/// A file of our own in `directory`, made where it is missing.
fn open_file(directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = Mode::RUSR | Mode::WUSR;
    let file = openat(directory, name, flags, own)?;
    // Whatever the mask said when it was made.
    if !Mode::from_raw_mode(fstat(&file)?.st_mode).contains(own) {
        fchmod(&file, own)?;
    }
    Ok(file)
}

fn is_key(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

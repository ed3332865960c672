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
//! KEY/merged/N/      a set of layers, used by one run at a time: `lock`, `boot`, and
//! KEY/merged/N/TOOL  `upper` and `work` of one overlay
//! ```
//!
//! While no run uses them `plain` and `merged` have a random end, `plain.RANDOM`: a run knows
//! where its layers lie, and a link that it left in its workspace must not lead a tool of the
//! host to what it wrote there. Tools note paths, so they have the same name in every run.
//!
//! An overlay is mounted for one run and is never shared: two mounts of one upper
//! directory are undefined. Runs at the same time have sets of their own, and each takes
//! the lowest that is free.
//!
//! The host reads nothing in these directories but names and sizes. Must not know
//! which tools there are: that is data of the plan.

mod choice;
mod lease;
mod store;

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, RenameFlags, openat, renameat_with};
use stockade_files::object::{names, unguessable_name};
use stockade_sys::Errno;

pub(crate) use lease::Lease;
pub use store::{CacheStore, CacheStoreError, Cleared, WorkspaceCaches};

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
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, LOCK, flags, Mode::RUSR | Mode::WUSR)
}

/// What `name` is called just now, where it is among `found`.
fn name_now<'f>(found: &'f [Vec<u8>], name: &str) -> Option<&'f [u8]> {
    let is_it = |found: &&[u8]| found.strip_prefix(name.as_bytes()).is_some_and(|end| matches!(end, [] | [b'.', ..]));
    // A run that was killed may have left the name that runs know, beside nothing else.
    found.iter().map(Vec::as_slice).filter(is_it).min()
}

/// Gives what runs write to an end that no run knows, where it has none.
fn seal(home: BorrowedFd<'_>) -> Result<(), Errno> {
    [PLAIN, MERGED].into_iter().try_for_each(|name| {
        let sealed = format!("{name}.{}", unguessable_name()?);
        match renameat_with(home, name, home, sealed.as_str(), RenameFlags::NOREPLACE) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    })
}

/// Gives what runs write to the name that runs know.
fn unseal(home: BorrowedFd<'_>) -> Result<(), Errno> {
    let found = names(home)?;
    [PLAIN, MERGED].into_iter().try_for_each(|name| match name_now(&found, name) {
        Some(now) if now != name.as_bytes() => match renameat_with(home, now, home, name, RenameFlags::NOREPLACE) {
            // Another run has done it.
            Err(Errno::NOENT | Errno::EXIST) => Ok(()),
            other => other,
        },
        _ => Ok(()),
    })
}

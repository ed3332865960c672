//! Names of the directories that runs wrote to, in a workspace's directory. While a run lasts they
//! have fixed names, which runs know. Afterwards they have random names.
//!
//! At level restricted a run sees Stockade's state by its paths on the host. So a workspace's
//! directory must not be listable. It has no read permission, the broker changes no mode in the
//! state, and a run has no capabilities, not even as root. But a run may have opened a directory
//! there during another run of that workspace, and such a descriptor reveals the current name. So
//! at its end a run of that level renames all directories that were sealed meanwhile. Every holder
//! of the exclusive lock leaves the directory sealed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, openat, renameat_with, statat,
};
use stockade_files::object::{list_entry_names, make_where_missing, unguessable_name};
use stockade_model::{AttemptPlan, IsolationLevel};
use stockade_sys::{Errno, actor};

use super::{MERGED_DIR_NAME, PLAIN_DIR_NAME, is_key, open_directory, open_lock};

/// Mode of a workspace's directory: search and write, but no listing.
const HOME_MODE: u32 = 0o300;
/// Most attempts to list a directory. Another process may remove the permission in between.
const MAX_LISTING_RETRIES: usize = 10_000;
/// Coarsest clock of a filesystem, in seconds.
const CLOCK_SLACK_SECONDS: u64 = 2;

/// Holds the directory of a workspace.
pub(super) fn open_home_path<P: rustix::path::Arg>(store_directory: BorrowedFd<'_>, key: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(store_directory, key, flags, Mode::empty())
}

/// The same, created if missing, with the mode that prevents listing.
pub(super) fn create_home(store_directory: BorrowedFd<'_>, key: &str) -> Result<OwnedFd, Errno> {
    let home = match open_home_path(store_directory, key) {
        Err(Errno::NOENT) => {
            make_where_missing(store_directory, key, Mode::from_raw_mode(HOME_MODE))?;
            open_home_path(store_directory, key)?
        }
        other => other?,
    };
    // An earlier version used another mode, and the umask may remove too much.
    if fstat(&home)?.st_mode & 0o777 != HOME_MODE {
        actor::change_mode(home.as_fd(), HOME_MODE)?;
    }
    Ok(home)
}

/// Lists the directory of a workspace, which is listable for that moment. A name that is sealed
/// then is renamed afterwards, or unsealed.
pub(super) fn list_names(home: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut found = Err(Errno::ACCESS);
    for _ in 0..MAX_LISTING_RETRIES {
        actor::change_mode(home, 0o700)?;
        found = list_entry_names(home);
        if !matches!(found, Err(Errno::ACCESS)) {
            break;
        }
    }
    actor::change_mode(home, HOME_MODE)?;
    found
}

/// Returns the current name of `name`, if it is among `found`.
pub(super) fn current_name<'f>(found: &'f [Vec<u8>], name: &str) -> Option<&'f [u8]> {
    // A run that was killed may have left the fixed name, but never both.
    found.iter().map(Vec::as_slice).filter(|found| has_stem(found, name)).min()
}

fn has_stem(found: &[u8], name: &str) -> bool {
    found.strip_prefix(name.as_bytes()).is_some_and(|end| matches!(end, [] | [b'.', ..]))
}

/// Renames the directories to random names, if they have their fixed names.
pub(super) fn seal_directories(home: BorrowedFd<'_>) -> Result<(), Errno> {
    // Each is sealed even if the other fails.
    let [plain, merged] = [PLAIN_DIR_NAME, MERGED_DIR_NAME].map(|name| rename_to_random(home, name.as_bytes(), name));
    plain.and(merged)
}

/// Renames the directories to new random names. The caller must hold the exclusive lock.
pub(super) fn reseal_directories(home: BorrowedFd<'_>) -> Result<(), Errno> {
    let found = list_names(home)?;
    let all = |name: &'static str| found.iter().filter(move |found| has_stem(found, name)).map(move |n| (n, name));
    let renamed: Vec<_> =
        all(PLAIN_DIR_NAME).chain(all(MERGED_DIR_NAME)).map(|(now, name)| rename_to_random(home, now, name)).collect();
    renamed.into_iter().collect()
}

fn rename_to_random(home: BorrowedFd<'_>, now: &[u8], name: &str) -> Result<(), Errno> {
    let sealed = format!("{name}.{}", unguessable_name()?);
    match renameat_with(home, now, home, sealed.as_str(), RenameFlags::NOREPLACE) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Gives a directory its fixed name: `PLAIN_DIR_NAME` or `MERGED_DIR_NAME`.
pub(super) fn unseal_directory(home: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    match current_name(&list_names(home)?, name) {
        Some(now) if now != name.as_bytes() => match renameat_with(home, now, home, name, RenameFlags::NOREPLACE) {
            // Another run has done it.
            Err(Errno::NOENT | Errno::EXIST) => Ok(()),
            other => other,
        },
        _ => Ok(()),
    }
}

/// Renames, at the end of a run at level restricted, all directories whose names the run can have learnt.
#[derive(Debug)]
pub(crate) struct NameRotation {
    store_directory: PathBuf,
    /// Start of the run, in seconds since 1970.
    since: u64,
}

impl NameRotation {
    /// Creates the rotation for a run of `plan`; `None` at a level where runs do not see the state.
    pub(crate) fn for_plan(plan: &AttemptPlan, store_directory: Option<&Path>) -> Option<Self> {
        let store_directory = store_directory.filter(|_| plan.level == IsolationLevel::Restricted)?.to_owned();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Some(Self { store_directory, since: now.saturating_sub(CLOCK_SLACK_SECONDS) })
    }

    /// Returns whether the run can have learnt the name: sealing and listing change the ctime.
    fn is_known(&self, store_directory: BorrowedFd<'_>, key: &str) -> bool {
        statat(store_directory, key, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| {
            found.st_mode & 0o777 != HOME_MODE || u64::try_from(found.st_ctime).unwrap_or(0) >= self.since
        })
    }
}

impl Drop for NameRotation {
    fn drop(&mut self) {
        let Ok(store_directory) = open_directory(CWD, &self.store_directory) else { return };
        let found = list_entry_names(store_directory.as_fd()).unwrap_or_default();
        let keys = found.into_iter().filter_map(|name| String::from_utf8(name).ok());
        for key in keys.filter(|key| is_key(key) && self.is_known(store_directory.as_fd(), key)) {
            let Ok(home) = open_home_path(store_directory.as_fd(), &key) else { continue };
            // If the lock is held, the run that holds it seals the directory with another name.
            if let Ok(lock) = open_lock(home.as_fd())
                && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
            {
                let _ = reseal_directories(home.as_fd());
            }
        }
    }
}

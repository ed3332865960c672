//! A set of overlays: their writable directories, used by one layer server or one run at a time.
//! Reads nothing of the host.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, fstatfs, openat, renameat, statat, unlinkat,
};
use stockade_files::object::make_where_missing;
use stockade_files::removal::{REMOVAL_PREFIX, remove_tree};
use stockade_sys::{Errno, actor};

use super::seal::{current_name, list_names};
use super::{LOCK_NAME, MERGED_DIR_NAME, open_directory, open_file, open_lock};

/// Most sets of one workspace that are used at the same time.
const MAX_SETS: u32 = 64;

/// Most attempts to open the directory of the sets.
const MAX_RENAME_RETRIES: usize = 1_000;

/// Filesystems that may hold an upper directory (statfs(2)): overlays were tested on these.
const UPPER_FILESYSTEMS: [i64; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994];

/// A set with one user, as long as this value or a copy of its lock is open.
#[derive(Debug)]
pub(super) struct OverlaySet {
    pub(super) number: u32,
    pub(super) lock: OwnedFd,
    home: OwnedFd,
    directory: OwnedFd,
    /// Directories of the overlays, by tool.
    tools: BTreeMap<String, OwnedFd>,
    /// True if the workspace's directory contains entries that wait to be removed.
    has_leaving: bool,
}

/// The directories of one overlay.
#[derive(Debug)]
pub(super) struct OverlayDirectories {
    pub(super) upper: OwnedFd,
    pub(super) work: OwnedFd,
}

impl Drop for OverlaySet {
    /// Does the work that may wait for the disk. The next start does the part that fails here.
    fn drop(&mut self) {
        for tool in self.tools.values() {
            let _ = prepare_work_directory(tool.as_fd());
        }
        if self.has_leaving {
            let leaving = list_names(self.home.as_fd()).unwrap_or_default().into_iter();
            for name in leaving.filter(|name| name.starts_with(REMOVAL_PREFIX.as_bytes())) {
                let _ = remove_tree(self.home.as_fd(), &name);
            }
        }
    }
}

impl OverlaySet {
    /// Takes the lowest unused set of the workspace's directory `home`, if overlays work there.
    /// Empties the set if the machine was restarted since: the overlays are volatile (not flushed),
    /// so their content may be damaged then.
    pub(super) fn take_unused(home: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        let sets = open_sets(home)?;
        if !UPPER_FILESYSTEMS.contains(&fstatfs(&sets)?.f_type) {
            return Ok(None);
        }
        let home = rustix::io::fcntl_dupfd_cloexec(home, 3)?;
        for number in 0..MAX_SETS {
            let directory = ensure_directory(sets.as_fd(), &number.to_string(), 0o700)?;
            let lock = open_lock(directory.as_fd())?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => continue,
                Err(errno) => return Err(errno),
            }
            let has_leaving = empty_after_restart(directory.as_fd(), home.as_fd())?;
            return Ok(Some(Self { number, lock, home, directory, tools: BTreeMap::new(), has_leaving }));
        }
        Ok(None)
    }

    /// Prepares the directories of a tool's overlay: the upper directory with `mode`, and the
    /// writable directories in it.
    pub(super) fn prepare_tool(
        &mut self,
        tool: &str,
        mode: u32,
        directories: &[String],
    ) -> Result<OverlayDirectories, Errno> {
        let own = ensure_directory(self.directory.as_fd(), tool, 0o700)?;
        let upper = ensure_directory(own.as_fd(), "upper", mode)?;
        for name in directories {
            ensure_directory(upper.as_fd(), name, 0o755)?;
        }
        let work = prepare_work_directory(own.as_fd())?;
        self.tools.insert(tool.to_owned(), own);
        Ok(OverlayDirectories { upper, work })
    }
}

/// Opens the directory of the sets by its current name; another process may be renaming it.
fn open_sets(home: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    for _ in 0..MAX_RENAME_RETRIES {
        let found = list_names(home)?;
        let Some(now) = current_name(&found, MERGED_DIR_NAME) else {
            return ensure_directory(home, MERGED_DIR_NAME, 0o700);
        };
        match open_directory(home, now) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
    }
    Err(Errno::BUSY)
}

/// Repairs the writable directories of a mounted layer, through the mount: a directory beneath a
/// mount must not be changed.
pub(super) fn repair_directories(layer: BorrowedFd<'_>, directories: &[String]) -> Result<(), Errno> {
    let mode = fstat(layer)?.st_mode & 0o7777;
    if mode & 0o700 != 0o700 {
        actor::change_mode(layer, mode | 0o700)?;
    }
    directories.iter().filter(|name| !is_ready(layer, name.as_str())).try_for_each(|name| {
        // An entry that is no directory is removed, and the directory made again.
        ensure_directory(layer, name, 0o755).map(drop)
    })
}

/// Returns whether a directory (no link) exists and its owner has all permissions.
pub(super) fn is_ready<P: rustix::path::Arg>(parent: BorrowedFd<'_>, path: P) -> bool {
    statat(parent, path, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir() && found.st_mode & 0o700 == 0o700)
}

/// Opens a directory, created if missing, with all permissions for its owner. A run may have
/// replaced it by another file, which is removed, or removed its permissions.
pub(super) fn ensure_directory(parent: BorrowedFd<'_>, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
    match open_directory(parent, name) {
        Ok(found) => {
            let now = fstat(&found)?.st_mode & 0o7777;
            if now & 0o700 != 0o700 {
                fchmod(&found, Mode::from_raw_mode(now | 0o700))?;
            }
            return Ok(found);
        }
        Err(Errno::NOENT) => {}
        Err(Errno::ACCESS) => {
            make_accessible(parent, name)?;
            return open_directory(parent, name);
        }
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => unlinkat(parent, name, AtFlags::empty())?,
        Err(errno) => return Err(errno),
    }
    make_where_missing(parent, name, Mode::RWXU)?;
    let made = open_directory(parent, name)?;
    // Independent of the umask.
    fchmod(&made, Mode::from_raw_mode(mode))?;
    Ok(made)
}

/// Gives the owner all permissions on a directory. Follows no link, because a run may put one there.
fn make_accessible(parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(parent, name, flags, Mode::empty())?;
    actor::change_mode(directory.as_fd(), 0o700)
}

/// Moves the content of a set away if it was written before the last restart of the machine.
/// Returns whether there was any content.
fn empty_after_restart(set: BorrowedFd<'_>, home: BorrowedFd<'_>) -> Result<bool, Errno> {
    const BOOT_ID_FILE: &str = "boot";
    let now = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let file = open_file(set, BOOT_ID_FILE)?;
    let mut then = [0; 64];
    let length = rustix::io::read(&file, &mut then)?;
    if then.get(..length) == Some(now.as_slice()) {
        return Ok(false);
    }
    let mut has_leaving = false;
    for name in stockade_files::object::list_entry_names(set)? {
        if name != LOCK_NAME.as_bytes() && name != BOOT_ID_FILE.as_bytes() {
            has_leaving = true;
            let removal_name = [REMOVAL_PREFIX.as_bytes(), &name, &now].concat();
            let removal_name: Vec<u8> = removal_name.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
            renameat(set, name.as_slice(), home, removal_name.as_slice())?;
        }
    }
    rustix::fs::ftruncate(&file, 0)?;
    rustix::io::pwrite(&file, &now, 0)?;
    Ok(has_leaving)
}

/// Opens the work directory of an overlay, without the mark of an earlier volatile mount. The
/// kernel refuses a work directory with that mark.
fn prepare_work_directory(tool: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let work = ensure_directory(tool, "work", 0o700)?;
    if matches!(statat(&work, "work/incompat", AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
        return Ok(work);
    }
    // An earlier removal may have been interrupted after any step.
    let remove = |name: &str, flags| match unlinkat(&work, name, flags) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    };
    let cleared = match make_accessible(work.as_fd(), "work") {
        Err(Errno::NOENT) => return Ok(work),
        Err(errno) => Err(errno),
        Ok(()) => remove("work/incompat/volatile/dirty", AtFlags::empty())
            .and_then(|()| remove("work/incompat/volatile", AtFlags::REMOVEDIR))
            .and_then(|()| remove("work/incompat", AtFlags::REMOVEDIR)),
    };
    match cleared {
        Ok(()) => Ok(work),
        Err(_) => {
            remove_tree(tool, b"work").map_err(|_| Errno::BUSY)?;
            ensure_directory(tool, "work", 0o700)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use rustix::fs::CWD;

    /// A process may be killed while its last thread cleans up: any part of the mark may be left.
    #[test]
    fn no_part_of_an_earlier_mark_is_left() {
        for part in ["", "incompat", "incompat/volatile", "incompat/volatile/dirty", "incompat/more/dirty"] {
            let tool = tempfile::tempdir().unwrap();
            let work = tool.path().join("work/work");
            fs::create_dir_all(&work).unwrap();
            match part.strip_suffix("/dirty") {
                Some(directory) => {
                    fs::create_dir_all(work.join(directory)).unwrap();
                    fs::write(work.join(part), "").unwrap();
                }
                None => fs::create_dir_all(work.join(part)).unwrap(),
            }
            let directory = open_directory(CWD, tool.path()).unwrap();
            prepare_work_directory(directory.as_fd()).unwrap();
            assert!(!work.join("incompat").exists(), "{part}");
            assert!(tool.path().join("work").is_dir(), "{part}");
        }
    }
}

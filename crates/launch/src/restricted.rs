//! Level restricted: without a mount namespace of its own. The run therefore has a private
//! directory on the host, and reads by allow-list if the plan hides paths.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::{DirEntry, File, Metadata};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};
use stockade_files::object::unguessable_name;
use stockade_files::removal::empty_tree;
use stockade_model::AttemptPlan;
use stockade_model::mountinfo;
use stockade_sys::Errno;
use stockade_sys::landlock::{Ruleset, access};

use super::blueprint::allow_path;
use super::error::LaunchError;

/// Devices of the host's `/dev` that a run may use, as at level full. The broker opens terminals,
/// because it can identify those of the run.
pub(super) const ALLOWED_DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Directories in `/dev` that hold files and no devices. They are readable as `/tmp` is.
pub(super) const OPEN_DEVICE_DIRECTORIES: &[&str] = &["/dev/shm", "/dev/mqueue"];

/// Returns the mount points of devices outside `/dev`, for example in another root directory.
/// Returns none without mountinfo.
pub(super) fn other_devices() -> Vec<PathBuf> {
    let text = File::open(mountinfo::OWN_MOUNTINFO).and_then(mountinfo::read_mountinfo).unwrap_or_default();
    let is_other =
        |(point, kind): &(PathBuf, &[u8])| matches!(*kind, b"devpts" | b"devtmpfs") && !point.starts_with("/dev");
    mountinfo::parse_mount_points(&text).filter(is_other).map(|(point, _)| point).collect()
}

/// Returns the writable roots of a plan that no Landlock rule lets its run read. They are made
/// later in a directory around a hidden path, as a directory or in place of a file. Such an object
/// has no rule (see [`ReadAllowList`]), so the broker opens the files there.
pub fn late_roots(plan: &AttemptPlan) -> Vec<PathBuf> {
    let files = &plan.profile.filesystem;
    let is_around_hidden =
        |directory: &Path| files.hide.iter().any(|path| is_strictly_within(path.as_path(), directory));
    let is_late =
        |root: &&Path| !root.is_dir() && root.ancestors().skip(1).find(|d| d.is_dir()).is_some_and(is_around_hidden);
    files.write.iter().map(|path| path.as_path()).filter(is_late).map(Path::to_owned).collect()
}

/// Most entries visited while the readable rest is listed.
const MAX_ENTRIES: usize = 100_000;

/// Prefix of the names of directories that could not be removed, and the most names searched for
/// it.
const LEFTOVER_PREFIX: &str = "stockade-left-";
const MAX_SWEPT_ENTRIES: usize = 4096;

/// A directory of the run's own. The init makes and removes it, so that nothing stays behind if the
/// caller is killed. It is removed on drop if the init could not remove it.
#[derive(Debug)]
pub(super) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Chooses an unguessable name in the directory for temporary files.
    pub(super) fn choose_name() -> Result<Self, LaunchError> {
        let parent = std::env::temp_dir();
        let parent = parent.canonicalize().map_err(|e| LaunchError::Path { path: parent, why: e.to_string() })?;
        remove_leftovers(&parent);
        let name = unguessable_name().map_err(LaunchError::call_error("get random bytes"))?;
        Ok(Self { path: parent.join(format!("stockade-{name}")) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // The directory is usually gone by now.
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else { return };
        let Ok(parent) = open_directory(CWD, parent.as_os_str()) else { return };
        if let Err(Errno::NOENT) | Ok(()) = remove_whole(parent.as_fd(), name) {
            return;
        }
        // A symbolic link that the run left must not lead to the rest. A later run removes it.
        if let Ok(end) = unguessable_name() {
            let _ = renameat(&parent, name, &parent, format!("{LEFTOVER_PREFIX}{end}"));
        }
    }
}

fn open_directory(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Removes a directory, even if the run removed permissions in it. Works by descriptor and follows
/// no link.
fn remove_whole(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let directory = open_directory(parent, name)?;
    let _ = empty_tree(directory.as_fd());
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Removes directories that earlier runs of this user could not remove.
fn remove_leftovers(parent: &Path) {
    let Ok(held) = open_directory(CWD, parent.as_os_str()) else { return };
    let own = rustix::process::geteuid().as_raw();
    let is_leftover = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(LEFTOVER_PREFIX.as_bytes());
    for entry in parent.read_dir().into_iter().flatten().take(MAX_SWEPT_ENTRIES).flatten().filter(is_leftover) {
        if entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own) {
            let _ = remove_whole(held.as_fd(), &entry.file_name());
        }
    }
}

/// Reading by allow-list. Landlock has no exceptions, so each entry of a directory with hidden
/// paths is allowed by itself. An entry that is made later directly in such a directory stays
/// unreadable.
pub(super) struct ReadAllowList<'a> {
    /// Trees that must not be read.
    hidden: &'a [PathBuf],
    /// Trees that may be read, inside hidden trees or not. The deepest path decides; for equal
    /// paths this one does.
    shown: &'a [PathBuf],
    /// The directories around hidden paths, by device and inode.
    around: HashSet<(u64, u64)>,
}

fn device_and_inode(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

impl<'a> ReadAllowList<'a> {
    /// Looks up the directories around `hidden`.
    pub(super) fn new(hidden: &'a [PathBuf], shown: &'a [PathBuf]) -> Self {
        let directories: BTreeSet<&Path> = hidden.iter().flat_map(|path| path.ancestors().skip(1)).collect();
        let found = directories.into_iter().filter_map(|directory| directory.symlink_metadata().ok());
        Self { hidden, shown, around: found.map(|found| device_and_inode(&found)).collect() }
    }
}

impl ReadAllowList<'_> {
    /// Allows reading the rest.
    pub(super) fn allow_reads(&self, ruleset: &Ruleset) -> Result<(), LaunchError> {
        self.allow_beneath(ruleset, Path::new("/"), &mut { MAX_ENTRIES })
    }

    fn allow_beneath(&self, ruleset: &Ruleset, path: &Path, budget: &mut usize) -> Result<(), LaunchError> {
        *budget = budget.checked_sub(1).ok_or_else(|| LaunchError::Path {
            path: path.to_owned(),
            why: format!("more than {MAX_ENTRIES} entries are beside hidden paths"),
        })?;
        match (self.is_shown(path), self.is_whole(path)) {
            (true, true) if !self.is_around_hidden(path) => allow_one(ruleset, path),
            (false, true) => Ok(()),
            (true, _) => {
                // A directory that cannot be listed stays unreadable, except for the paths to the
                // named trees.
                let Ok(entries) = path.read_dir() else {
                    return self
                        .list_named_entries(path)
                        .iter()
                        .try_for_each(|named_entry| self.allow_beneath(ruleset, named_entry, budget));
                };
                let is_link = |entry: &DirEntry| entry.file_type().map_or(true, |t| t.is_symlink());
                entries
                    .flatten()
                    .filter(|entry| !is_link(entry))
                    .try_for_each(|entry| self.allow_beneath(ruleset, &entry.path(), budget))
            }
            (false, false) => self
                .shown
                .iter()
                .filter(|shown| is_strictly_within(shown, path))
                .try_for_each(|shown| self.allow_beneath(ruleset, shown, budget)),
        }
    }

    /// Returns the entries of a directory that lead to a named tree.
    fn list_named_entries(&self, path: &Path) -> BTreeSet<PathBuf> {
        let below = |tree: &PathBuf| Some(path.join(tree.strip_prefix(path).ok()?.components().next()?));
        self.hidden.iter().chain(self.shown).filter_map(below).collect()
    }

    /// Returns whether this is, by another mount, a directory around a hidden path. A rule on it
    /// would apply to the hidden path too, because Landlock rules apply to objects.
    fn is_around_hidden(&self, path: &Path) -> bool {
        !self.around.is_empty()
            && path.symlink_metadata().is_ok_and(|found| self.around.contains(&device_and_inode(&found)))
    }

    /// Returns whether the state of `path` applies to everything beneath it.
    fn is_whole(&self, path: &Path) -> bool {
        let is_shown = self.is_shown(path);
        let others = if is_shown { self.hidden } else { self.shown };
        !others.iter().any(|other| is_strictly_within(other, path) && self.is_shown(other) != is_shown)
    }

    fn is_shown(&self, path: &Path) -> bool {
        let depth = |trees: &[PathBuf]| {
            trees.iter().filter(|tree| path.starts_with(tree)).map(|tree| tree.components().count()).max()
        };
        depth(self.shown) >= depth(self.hidden)
    }
}

fn is_strictly_within(path: &Path, outer: &Path) -> bool {
    path != outer && path.starts_with(outer)
}

/// Allows reading `path`. An object that has vanished since the listing, or that cannot have a
/// rule, needs none.
fn allow_one(ruleset: &Ruleset, path: &Path) -> Result<(), LaunchError> {
    match allow_path(ruleset, path, access::READ_FILE) {
        Err(LaunchError::Path { .. }) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &[&str]) -> Vec<PathBuf> {
        text.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn the_deepest_path_decides_and_a_directory_is_split_only_where_it_must() {
        let hidden = paths(&["/dev", "/h/.ssh", "/h/.ssh/open/closed", "/h/agreed"]);
        let shown = paths(&["/dev/null", "/h/.ssh/open", "/h/agreed", "/h/work", "/h/work/.git"]);
        let reads = ReadAllowList::new(&hidden, &shown);
        for (path, is_shown, is_whole) in [
            ("/", true, false),
            ("/etc", true, true),
            ("/dev", false, false),
            ("/dev/null", true, true),
            ("/dev/sda", false, true),
            ("/h", true, false),
            ("/h/.ssh", false, false),
            ("/h/.ssh/key", false, true),
            ("/h/.ssh/open", true, false),
            ("/h/.ssh/open/closed", false, true),
            ("/h/.ssh/open/known", true, true),
            ("/h/agreed", true, true),
            // Directories made in it later are readable, although one within it is named as well.
            ("/h/work", true, true),
        ] {
            let path = Path::new(path);
            assert_eq!((reads.is_shown(path), reads.is_whole(path)), (is_shown, is_whole), "{}", path.display());
        }
    }
}

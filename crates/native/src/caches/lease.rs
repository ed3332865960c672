//! The layers of one run: made ready before it starts, its own until it has ended.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, fchmod, flock, fstat, fstatfs, openat,
    renameat, statat, unlinkat, utimensat,
};
use stockade_engine::workspace_identity;
use stockade_files::object::make_where_missing;
use stockade_files::removal::{LEAVING, remove_tree};
use stockade_model::{Digest, LayerReport, LayerState, Level, Plan, RawText, ToolCache};
use stockade_sys::{Errno, actor};
use tracing::debug_span;

use super::choice::{MergedPlace, Way, choose};
use super::seal::{make_home, names_in, seal, unseal};
use super::{LOCK, MERGED, PLAIN, WORKSPACE, open_directory, open_lock};
use crate::launch::{MAX_MERGED, MergedDirectory, Overlay};

/// Runs of one workspace at the same time that have overlays. Further ones have private
/// directories.
const MAX_SETS: u32 = 64;

/// How long a start waits for whoever has a workspace's directory alone, and between two
/// looks. Names are changed in that time, nothing more: a loaded machine, or a disk that
/// stands still for seconds, makes it long. Without, tools could write to no cache.
const ALONE_WAIT: Duration = Duration::from_secs(15);
const ALONE_LOOK_EVERY: Duration = Duration::from_millis(2);

/// Filesystems that an overlay may write to (statfs(2)): those on which it was seen to
/// work.
const UPPER_FILESYSTEMS: [i64; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994];

/// The layers of one run.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    pub merged: Vec<MergedDirectory>,
    /// Where all private directories of the workspace are.
    pub private: Option<PathBuf>,
    /// Files of the host's that cannot be written, without a question.
    pub read_only: Vec<PathBuf>,
    pub environment: BTreeMap<String, RawText>,
    tools: Tools,
    /// The directory of the workspace, and its lock. Absent where nothing of it is used.
    home: Option<(OwnedFd, OwnedFd)>,
    /// Of the set of overlays, held as long as they are used.
    set: Option<OwnedFd>,
    /// The directories of the overlays.
    layers_held: Vec<OwnedFd>,
    /// Whether something in it waits to be removed.
    has_leaving: bool,
    is_sealed: bool,
}

/// Names of tools, for the report.
#[derive(Debug, Default)]
struct Tools {
    merged: Vec<String>,
    private: Vec<String>,
    read_only: Vec<String>,
    failed: Option<String>,
}

impl Drop for Lease {
    /// What may wait for the disk. What cannot be done is done by the next start.
    fn drop(&mut self) {
        self.seal();
        for tool in &self.layers_held {
            let _ = ready_work(tool.as_fd());
        }
        let Some((home, _)) = &self.home else { return };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = utimensat(home, WORKSPACE, &times, AtFlags::SYMLINK_NOFOLLOW);
        if self.has_leaving {
            let leaving = names_in(home.as_fd()).unwrap_or_default().into_iter();
            for name in leaving.filter(|name| name.starts_with(LEAVING.as_bytes())) {
                let _ = remove_tree(home.as_fd(), &name);
            }
        }
    }
}

impl Lease {
    /// Makes the layers of `plan` ready, in `place`. Where they cannot be had the run
    /// goes without: a tool then asks for what it writes.
    pub fn of(plan: &Plan, place: Option<&Path>) -> Option<Self> {
        let place = place.filter(|_| plan.level != Level::None && !plan.profile.filesystem.caches.is_empty())?;
        let mut lease = Self::default();
        if let Err(errno) = lease.fill(plan, place) {
            let failed = Some(format!("the directory of the workspace's caches: {errno}"));
            let mut none = Self::default();
            none.tools.failed = failed;
            return Some(none);
        }
        lease.environment.retain(|name, _| !plan.environment.contains_key(name));
        Some(lease)
    }

    /// Lets go of the names that the run knows: once its processes have ended, and before
    /// anybody is told that it has, who would look where it left links. The last run of the
    /// workspace seals. Names are changed, nothing waits for the disk.
    pub fn seal(&mut self) {
        if let Some((home, lock)) = &self.home
            && !std::mem::replace(&mut self.is_sealed, true)
            && flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = seal(home.as_fd());
            // The next run waits for it.
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }

    fn fill(&mut self, plan: &Plan, place: &Path) -> Result<(), Errno> {
        let mut ways = debug_span!("look at caches").in_scope(|| choose(plan, true));
        if ways.iter().all(|(_, way)| matches!(way, Way::ReadOnly(_))) {
            ways.into_iter().for_each(|(cache, way)| self.keep_read_only(cache, way));
            return Ok(());
        }
        let key = key(plan.workspace.as_path());
        let path = place.join(&key);
        // Held before anything is made in it: whatever fails, it is sealed.
        let (home, _) = self.home.insert(open_home(place, &key)?);
        let home = rustix::io::fcntl_dupfd_cloexec(home, 3)?;
        unseal(home.as_fd())?;
        note_workspace(home.as_fd(), plan.workspace.as_bytes())?;
        let merges = ways.iter().any(|(_, way)| matches!(way, Way::Merged(_)));
        let set = if merges { self.take_set(home.as_fd())? } else { None };
        if merges && set.is_none() {
            ways = choose(plan, false);
        }
        for (cache, way) in ways {
            match (way, &set) {
                (Way::Merged(found), Some((number, directory))) => {
                    let at = path.join(MERGED).join(number.to_string()).join(&cache.tool);
                    self.merge(cache, found, (directory.as_fd(), &at))?;
                }
                (Way::Merged(_), None) => {}
                (Way::Private, _) => self.lead_to_private(cache, home.as_fd(), &path)?,
                (way @ Way::ReadOnly(_), _) => self.keep_read_only(cache, way),
            }
        }
        Ok(())
    }

    fn keep_read_only(&mut self, cache: &ToolCache, way: Way) {
        let Way::ReadOnly(files) = way else { return };
        self.tools.read_only.push(cache.tool.clone());
        self.read_only.extend(files);
    }

    /// The lowest set that nobody uses, where an overlay can be there, emptied if the
    /// machine was started anew since: an overlay is not flushed, so what it holds may be
    /// torn then.
    fn take_set(&mut self, home: BorrowedFd<'_>) -> Result<Option<(u32, OwnedFd)>, Errno> {
        let sets = own_directory(home, MERGED, 0o700)?;
        if !UPPER_FILESYSTEMS.contains(&fstatfs(&sets)?.f_type) {
            return Ok(None);
        }
        for number in 0..MAX_SETS {
            let set = own_directory(sets.as_fd(), &number.to_string(), 0o700)?;
            let lock = open_lock(set.as_fd())?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => continue,
                Err(errno) => return Err(errno),
            }
            self.set = Some(lock);
            self.has_leaving |= empty_after_restart(set.as_fd(), home)?;
            return Ok(Some((number, set)));
        }
        Ok(None)
    }

    fn merge(
        &mut self,
        cache: &ToolCache,
        found: MergedPlace,
        (set, at): (BorrowedFd<'_>, &Path),
    ) -> Result<(), Errno> {
        if self.merged.len() >= MAX_MERGED {
            return Ok(());
        }
        let tool = own_directory(set, &cache.tool, 0o700)?;
        let upper = own_directory(tool.as_fd(), "upper", found.mode)?;
        let (directories, files): (Vec<&String>, Vec<&String>) = cache.data.iter().partition(|n| n.ends_with('/'));
        let directories: Vec<String> = directories.iter().map(|name| name.trim_end_matches('/').to_owned()).collect();
        for name in &directories {
            own_directory(upper.as_fd(), name, 0o755)?;
        }
        ready_work(tool.as_fd())?;
        self.layers_held.push(tool);
        let overlay = Overlay::new(&at.join("upper"), &at.join("work")).map_err(|_| Errno::STALE)?;
        self.tools.merged.push(cache.tool.clone());
        self.merged.push(MergedDirectory {
            directory: found.directory,
            overlay,
            directories,
            files: files.into_iter().cloned().collect(),
            shown: found.shown,
        });
        Ok(())
    }

    fn lead_to_private(&mut self, cache: &ToolCache, home: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
        let plain = own_directory(home, PLAIN, 0o700)?;
        own_directory(plain.as_fd(), &cache.tool, 0o700)?;
        let plain = path.join(PLAIN);
        let directory = plain.join(&cache.tool);
        for (name, value) in &cache.set {
            let text = value.split("{}").map(str::as_bytes).collect::<Vec<_>>().join(directory.as_os_str().as_bytes());
            self.environment.insert(name.clone(), RawText::from(text));
        }
        self.tools.private.push(cache.tool.clone());
        self.private = Some(plain);
        Ok(())
    }

    /// The trees in which earlier runs may have written.
    pub fn layers(&self) -> impl Iterator<Item = PathBuf> {
        let of = |merged: &MergedDirectory| match merged.is_whole() {
            true => vec![merged.directory.clone()],
            false => merged.directories.iter().map(|name| merged.directory.join(name)).collect(),
        };
        self.merged.iter().flat_map(of).chain(self.private.clone())
    }

    /// What the report says of it. `is_unmerged` tells of each merged directory whether the
    /// kernel refused it.
    pub fn report(&self, is_unmerged: impl Fn(usize) -> bool) -> LayerReport {
        let Tools { merged, private, read_only, failed } = &self.tools;
        if let Some(why) = failed {
            return LayerReport { state: LayerState::Absent, detail: format!("none, {why}") };
        }
        let numbered = || merged.iter().enumerate();
        let of =
            |refused: bool| numbered().filter(|(i, _)| is_unmerged(*i) == refused).map(|(_, t)| t.as_str()).collect();
        let [over, refused]: [Vec<&str>; 2] = [of(false), of(true)];
        let state = if refused.is_empty() { LayerState::Enforced } else { LayerState::Partial };
        let texts = |tools: &[String]| tools.join(", ");
        let said = [
            ("over the host's content", over.join(", ")),
            ("in private directories", texts(private)),
            ("with locks that cannot be written", texts(read_only)),
            ("read-only, because the kernel refuses an overlay there", refused.join(", ")),
        ];
        let said: Vec<String> = said
            .into_iter()
            .filter(|(_, tools)| !tools.is_empty())
            .map(|(how, tools)| format!("{how}: {tools}"))
            .collect();
        let detail = if said.is_empty() { "none".to_owned() } else { said.join("; ") };
        LayerReport { state, detail }
    }
}

/// The name of a workspace's directory. Another directory that is later at the same path
/// is another workspace, as it is for approvals.
fn key(workspace: &Path) -> String {
    let identity = workspace_identity(workspace);
    let fields = [workspace.as_os_str().as_bytes(), identity.as_str().as_bytes()];
    let digest = Digest::of_fields("stockade-caches-1", fields);
    digest.as_str().chars().filter(char::is_ascii_hexdigit).take(32).collect()
}

/// The directory of a workspace, with its lock held as runs hold it.
fn open_home(place: &Path, key: &str) -> Result<(OwnedFd, OwnedFd), Errno> {
    let place = match open_directory(CWD, place) {
        Err(Errno::NOENT) => {
            make_where_missing(CWD, place, Mode::RWXU)?;
            open_directory(CWD, place)?
        }
        other => other?,
    };
    let until = Instant::now() + ALONE_WAIT;
    loop {
        let home = make_home(place.as_fd(), key)?;
        let lock = match open_lock(home.as_fd()) {
            // It is just being cleared.
            Err(Errno::NOENT) => None,
            other => Some(other?),
        };
        let held = lock.as_ref().map(|lock| flock(lock, FlockOperation::NonBlockingLockShared));
        match (lock, held) {
            (Some(lock), Some(Ok(()))) if fstat(&lock)?.st_nlink > 0 => {
                return Ok((home, lock));
            }
            (_, Some(Err(errno))) if errno != Errno::WOULDBLOCK => return Err(errno),
            _ if Instant::now() >= until => return Err(Errno::BUSY),
            _ => std::thread::sleep(ALONE_LOOK_EVERY),
        }
    }
}

/// A directory of our own, open to us, made where it is missing. A run may have put something
/// else there, which is removed, or have closed it.
fn own_directory(parent: BorrowedFd<'_>, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
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
            open_up(parent, name)?;
            return open_directory(parent, name);
        }
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => unlinkat(parent, name, AtFlags::empty())?,
        Err(errno) => return Err(errno),
    }
    make_where_missing(parent, name, Mode::RWXU)?;
    let made = open_directory(parent, name)?;
    // Whatever the mask says.
    fchmod(&made, Mode::from_raw_mode(mode))?;
    Ok(made)
}

/// Lets its owner into a directory. No link is followed: a run may put one there.
fn open_up(parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(parent, name, flags, Mode::empty())?;
    actor::chmod(directory.as_fd(), 0o700)
}

/// Notes which workspace it is, once.
fn note_workspace(home: BorrowedFd<'_>, workspace: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(home, WORKSPACE, flags, Mode::RUSR | Mode::WUSR)?;
    if usize::try_from(fstat(&file)?.st_size) == Ok(workspace.len()) {
        return Ok(());
    }
    rustix::io::write(&file, workspace).map(drop)
}

/// Moves what is in a set out of it where another start of the machine wrote it. Tells
/// whether there was anything.
fn empty_after_restart(set: BorrowedFd<'_>, home: BorrowedFd<'_>) -> Result<bool, Errno> {
    const BOOT: &str = "boot";
    let now = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(set, BOOT, flags, Mode::RUSR | Mode::WUSR)?;
    let mut then = [0; 64];
    let length = rustix::io::read(&file, &mut then)?;
    if then.get(..length) == Some(now.as_slice()) {
        return Ok(false);
    }
    let mut has_leaving = false;
    for name in stockade_files::object::names(set)? {
        if name != LOCK.as_bytes() && name != BOOT.as_bytes() {
            has_leaving = true;
            let aside = [LEAVING.as_bytes(), &name, &now].concat();
            let aside: Vec<u8> = aside.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
            renameat(set, name.as_slice(), home, aside.as_slice())?;
        }
    }
    rustix::fs::ftruncate(&file, 0)?;
    rustix::io::pwrite(&file, &now, 0)?;
    Ok(has_leaving)
}

/// The work directory of an overlay without the mark of an earlier volatile mount, which
/// no later one accepts.
fn ready_work(tool: BorrowedFd<'_>) -> Result<(), Errno> {
    let work = own_directory(tool, "work", 0o700)?;
    if matches!(statat(&work, "work/incompat", AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
        return Ok(());
    }
    // Whoever removed it before may have been killed after each step.
    let remove = |name: &str, flags| match unlinkat(&work, name, flags) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    };
    let cleared = match open_up(work.as_fd(), "work") {
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => Err(errno),
        Ok(()) => remove("work/incompat/volatile/dirty", AtFlags::empty())
            .and_then(|()| remove("work/incompat/volatile", AtFlags::REMOVEDIR))
            .and_then(|()| remove("work/incompat", AtFlags::REMOVEDIR)),
    };
    cleared.or_else(|_| {
        remove_tree(tool, b"work").map_err(|_| Errno::BUSY)?;
        own_directory(tool, "work", 0o700).map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A process ends while its last thread puts in order: any part of the mark may be left.
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
            ready_work(directory.as_fd()).unwrap();
            assert!(!work.join("incompat").exists(), "{part}");
            assert!(tool.path().join("work").is_dir(), "{part}");
        }
    }
}

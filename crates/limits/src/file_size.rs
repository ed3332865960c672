//! Size limit of a run's files (RLIMIT_FSIZE, getrlimit(2)): the part of the `disk` limit that the
//! kernel enforces for each file. The limit can change while the run is active.
//!
//! Must not depend on the watch, or on the effect of a breach.

use std::collections::HashSet;

use rustix::param::page_size;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use stockade_model::Limits;
use stockade_sys::limits::file_size_limit;

use super::processes::{RunProcess, is_same};

/// A `disk` limit below this size is small: one program can write as much in a moment. A larger
/// limit does not change the results of calls.
pub const SMALL_DISK_BYTES: u64 = 1 << 30;
/// If an approver can raise the limit, a file may exceed it by this size. So the watch freezes the
/// run before the kernel refuses a write that cannot be repeated.
const QUESTION_MARGIN_BYTES: u64 = 64 << 20;
/// Most rounds of searching for processes that were forked meanwhile.
const MAX_SEARCH_ROUNDS: usize = 8;

/// Returns the `disk` limit of a run if it is small.
pub fn small_disk(limits: &Limits) -> Option<u64> {
    limits.disk_bytes.filter(|bytes| *bytes < SMALL_DISK_BYTES)
}

/// Returns the soft and the hard file size limit for `limits`. `None` if neither files nor the disk
/// are limited.
pub fn file_size(limits: &Limits, asks: bool) -> Option<Rlimit> {
    let of_disk = limits.disk_bytes.map(|disk| {
        // A page above the limit, because a file of that size shows the watch a breach.
        let room = if asks { disk.max(QUESTION_MARGIN_BYTES) } else { page_size() as u64 };
        (disk.saturating_add(room), disk.saturating_add(disk.max(SMALL_DISK_BYTES)))
    });
    let (current, maximum) = match (of_disk, limits.file_size_bytes) {
        (None, None) => return None,
        (None, Some(file)) => (file, file),
        (Some((current, maximum)), file) => {
            let file = file.unwrap_or(u64::MAX);
            (current.min(file), maximum.min(file))
        }
    };
    let own = getrlimit(Resource::Fsize);
    let lower = |own: Option<u64>, new_limit: u64| Some(own.map_or(new_limit, |own| own.min(new_limit)));
    let maximum = lower(own.maximum, maximum);
    Some(Rlimit { current: lower(maximum, lower(own.current, current).unwrap_or(current)), maximum })
}

/// Raises the file size limit to `new_limit` for every process that `find` returns, and for processes
/// forked meanwhile. Only root can raise the hard limit; otherwise it stays unchanged.
pub(super) fn raise_file_size(find: impl Fn() -> Vec<RunProcess>, new_limit: &Rlimit) {
    let higher = |one: Option<u64>, other: Option<u64>| Some(one?.max(other?));
    for_each_process(find, |pid| {
        let Ok(own) = file_size_limit(pid) else { return };
        let maximum = higher(own.maximum, new_limit.maximum);
        let current = higher(own.current, new_limit.current);
        if prlimit(Some(pid), Resource::Fsize, Rlimit { current, maximum }).is_err() {
            let current = current.zip(own.maximum).map(|(current, most)| current.min(most)).or(current);
            // The process may have ended, so there is no limit to raise.
            let _ = prlimit(Some(pid), Resource::Fsize, Rlimit { current, maximum: own.maximum });
        }
    });
}

/// Prevents all further writes to files by the processes that `find` returns: each write fails
/// (EFBIG) or ends the process (SIGXFSZ).
pub(super) fn refuse_writes(find: impl Fn() -> Vec<RunProcess>) {
    for_each_process(find, |pid| {
        // The process may have ended.
        let _ = prlimit(Some(pid), Resource::Fsize, Rlimit { current: Some(0), maximum: Some(0) });
    });
}

fn for_each_process(find: impl Fn() -> Vec<RunProcess>, change: impl Fn(Pid)) {
    let mut known: HashSet<(u32, u64)> = HashSet::new();
    for _ in 0..MAX_SEARCH_ROUNDS {
        let new: Vec<RunProcess> = find().into_iter().filter(|found| known.insert((found.pid, found.start))).collect();
        if new.is_empty() {
            return;
        }
        let is_there = |process: &&RunProcess| is_same(process);
        let pids = new.iter().filter(is_there).filter_map(|process| i32::try_from(process.pid).ok());
        pids.filter_map(Pid::from_raw).for_each(&change);
    }
}

/// Raises the limit of process `pid` for a file with `allocated` bytes. The file can then grow as
/// much as a new file of a run with this `disk` limit.
pub fn make_room(pid: Pid, allocated: u64, disk: u64) {
    let Ok(own) = file_size_limit(pid) else { return };
    let new_limit = allocated.saturating_add(disk).saturating_add(page_size() as u64);
    let new_limit = own.maximum.map_or(new_limit, |most| most.min(new_limit));
    if own.current.is_some_and(|now| now < new_limit) {
        // After a failure the kernel refuses the write: the run has less, not more.
        let _ = prlimit(Some(pid), Resource::Fsize, Rlimit { current: Some(new_limit), ..own });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_not_larger_than_the_disk_limit_by_more_than_a_page() {
        let limits = |disk| Limits { disk_bytes: Some(disk), ..Limits::default() };
        let size = |limits: &Limits, asks| file_size(limits, asks).map(|size| (size.current, size.maximum));
        let page = page_size() as u64;
        assert_eq!(size(&limits(10 << 20), false), Some((Some((10 << 20) + page), Some((1 << 30) + (10 << 20)))));
        assert_eq!(size(&limits(10 << 20), true), Some((Some(74 << 20), Some((1 << 30) + (10 << 20)))));
        assert_eq!(size(&limits(8 << 30), false), Some((Some((8 << 30) + page), Some(16 << 30))));
        assert_eq!(size(&Limits::default(), false), None);
        let file = Limits { file_size_bytes: Some(5), ..limits(10 << 20) };
        assert_eq!(size(&file, false), Some((Some(5), Some(5))));
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a process to limit, without a sandbox")]
    fn files_of_others_are_limited_and_make_room() {
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let found = || {
            super::super::processes::list_descendants(std::process::id()).into_iter().filter(|f| f.pid == child.id())
        };
        let find = || found().collect::<Vec<_>>();
        let low = Rlimit { current: Some(4096), maximum: Some(1 << 40) };
        prlimit(Some(pid), Resource::Fsize, low).unwrap();
        make_room(pid, 1 << 20, 8192);
        assert_eq!(file_size_limit(pid).unwrap().current, Some((1 << 20) + 8192 + page_size() as u64));
        make_room(pid, 0, 8192);
        assert!(file_size_limit(pid).unwrap().current > Some(1 << 20), "it never goes down");
        raise_file_size(find, &Rlimit { current: Some(1 << 30), maximum: Some(1 << 40) });
        assert_eq!(file_size_limit(pid).unwrap().current, Some(1 << 30));
        refuse_writes(find);
        assert_eq!(file_size_limit(pid), Ok(Rlimit { current: Some(0), maximum: Some(0) }));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

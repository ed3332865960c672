//! Resource limits of each process (getrlimit(2)), and limits set by the machine itself.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, Rlimit, geteuid, getrlimit};
use rustix::system::sysinfo;
use stockade_model::{IsolationLevel, Limits};
use stockade_sys::descriptor_limit;

use super::file_size::file_size;
use super::numbers::find_number;

/// Bytes of the private temporary filesystem for each file in it.
const TEMP_BYTES_PER_FILE: u64 = 4096;
/// Fewest files of a private temporary filesystem: the files of the sandbox itself, and some more.
const MIN_TEMP_FILES: u64 = 1024;

/// `f_type` of filesystems in memory (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Reduces the memory limit to seven eighths of the machine's memory. A larger limit would have no
/// effect; the rest is left to other programs.
pub(super) fn within_machine(limits: &mut Limits) {
    let machine = sysinfo();
    let total = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit).max(1));
    if let Some(bytes) = &mut limits.memory_bytes {
        *bytes = (*bytes).min(total - total / 8);
    }
}

/// Returns the resource limits for `limits`, which never exceed those of this process. Disables
/// core dumps, because the host's handler would process them. `asks`: an approver may raise limits.
pub fn resource_limits(limits: &Limits, level: IsolationLevel, asks: bool) -> Vec<(Resource, Rlimit)> {
    let mut all = vec![lower_rlimit(Resource::Core, 0)];
    all.extend(descriptor_limit::original_limit().map(|limit| (Resource::Nofile, limit)));
    all.extend(limits.open_files.map(|n| lower_rlimit(Resource::Nofile, n)));
    all.extend(file_size(limits, asks).map(|size| (Resource::Fsize, size)));
    if let (Some(n), true) = (limits.processes, holds_processes()) {
        all.push(lower_rlimit(Resource::Nproc, n.saturating_add(counted_already(level))));
    }
    all
}

/// Returns the limit of open descriptors for each process, if there is one.
pub(super) fn open_files(limits: &Limits) -> Option<u64> {
    let new_limit = limits.open_files?;
    Some(lower_rlimit(Resource::Nofile, new_limit).1.current.unwrap_or(new_limit))
}

fn lower_rlimit(resource: Resource, new_limit: u64) -> (Resource, Rlimit) {
    let own = getrlimit(resource);
    let lower = |own: Option<u64>| Some(own.map_or(new_limit, |own| own.min(new_limit)));
    (resource, Rlimit { current: lower(own.current), maximum: lower(own.maximum) })
}

/// Returns whether RLIMIT_NPROC applies to this user. The kernel never applies it to root
/// (fork(2)).
pub(super) fn holds_processes() -> bool {
    !geteuid().is_root()
}

/// Returns the number of processes that RLIMIT_NPROC counts besides the run. From kernel 5.14 on a
/// user namespace has its own count, which contains the init. Otherwise the kernel counts all
/// processes of the user, for which the number of all processes of the machine is an upper bound.
fn counted_already(level: IsolationLevel) -> u64 {
    if level == IsolationLevel::Full && kernel_is_at_least(5, 14) {
        return 1;
    }
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let total = text.split(' ').nth(3).and_then(|running| running.split_once('/')?.1.parse().ok());
    total.unwrap_or(4096)
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let own = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    own >= (major, minor)
}

/// Returns the most files of a private temporary filesystem of `bytes`.
pub fn temp_inodes(bytes: u64) -> u64 {
    (bytes / TEMP_BYTES_PER_FILE).max(MIN_TEMP_FILES)
}

/// Free space of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilesystemSpace {
    pub(super) total_bytes: u64,
    pub(super) free_bytes: u64,
    /// True for a filesystem in memory: its writes never reach a disk.
    pub(super) in_memory: bool,
    /// `None` if the filesystem makes inodes on demand.
    pub(super) files: Option<FileCounts>,
}

/// Number of files of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileCounts {
    pub(super) total: u64,
    pub(super) free: u64,
}

impl FilesystemSpace {
    /// Returns the free space of the filesystem that contains `path`.
    pub(super) fn at_path(path: &Path) -> Option<Self> {
        let stat = rustix::fs::statvfs(path).ok()?;
        let kind = rustix::fs::statfs(path).ok()?.f_type;
        let files = (stat.f_files > 0).then_some(FileCounts { total: stat.f_files, free: stat.f_favail });
        Some(Self {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            in_memory: [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(kind as u64)),
            files,
        })
    }
}

/// Memory of the machine, in bytes (proc_meminfo(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MachineMemory {
    /// Memory available to programs.
    pub(super) available_bytes: u64,
    /// Shared memory, and files in memory.
    pub(super) shared_bytes: u64,
}

impl MachineMemory {
    /// Reads the present values.
    pub(super) fn read_now() -> Option<Self> {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        let bytes = |name: &str| Some(find_number(&text, name)?.saturating_mul(1024));
        Some(Self { available_bytes: bytes("MemAvailable")?, shared_bytes: bytes("Shmem")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_never_exceeds_the_machine() {
        let mut limits = Limits { memory_bytes: Some(u64::MAX), ..Limits::default() };
        within_machine(&mut limits);
        assert!(limits.memory_bytes.unwrap() < 1 << 50);
        limits.memory_bytes = Some(4096);
        within_machine(&mut limits);
        assert_eq!(limits.memory_bytes, Some(4096));
    }

    #[test]
    fn resource_limits_only_go_down() {
        let limits = Limits { open_files: Some(u64::MAX), disk_bytes: Some(10), ..Limits::default() };
        let all = resource_limits(&limits, IsolationLevel::Full, false);
        let own = getrlimit(Resource::Nofile);
        let find = |resource| all.iter().find(|(r, _)| *r == resource).unwrap().1;
        assert_eq!(find(Resource::Core).maximum, Some(0));
        assert_eq!(find(Resource::Nofile).current, own.current.or(Some(u64::MAX)));
        assert_eq!(Some(find(Resource::Fsize)), file_size(&limits, false));
        assert!(!all.iter().any(|(resource, _)| *resource == Resource::Nproc));
    }
}

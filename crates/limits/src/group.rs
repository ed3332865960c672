//! The control group of one run: made, configured, entered, read, and removed.
//!
//! Must not depend on the location of groups, or on the effect of a breach.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stockade_model::{IsolationLevel, LimitKind, Limits};

use super::hierarchy::{CgroupVersion, Controller, GroupBase, find_bases};
use super::numbers::{find_number, read_number};
use super::processes;

/// Prefix of every group's name.
const GROUP_PREFIX: &str = "stockade.";
/// The period of processor quotas, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// Time-out for the last processes of a group.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Most groups of ended runs that are examined for one start.
const MAX_LEFTOVERS: usize = 64;

/// Age up to which a group may be empty because it is new.
const MAX_NEW_GROUP_AGE: Duration = Duration::from_secs(60);

static NEXT_GROUP_NUMBER: AtomicU32 = AtomicU32::new(0);

/// Control group of a run. Kills its processes and removes the group on drop.
#[derive(Debug)]
pub struct ControlGroup {
    pub(super) parts: Vec<GroupDirectory>,
    held: Vec<LimitKind>,
    /// Limits that the kernel refused, with the reasons.
    refused: Vec<(LimitKind, String)>,
    /// The parent group, which is removed after this one.
    pub(super) around: Option<Arc<ControlGroup>>,
}

/// Directory of a group in one hierarchy.
#[derive(Debug)]
pub(super) struct GroupDirectory {
    pub(super) version: CgroupVersion,
    pub(super) path: PathBuf,
    pub(super) controllers: Vec<Controller>,
}

/// Counters of the kernel for a group. Absent values are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupCounters {
    pub(super) cpu_us: Option<u64>,
    pub(super) throttled_us: Option<u64>,
    pub(super) memory_peak_bytes: Option<u64>,
    pub(super) memory_pressure_us: Option<u64>,
    pub(super) out_of_memory_kills: u64,
    pub(super) processes_peak: Option<u64>,
    /// Forks that failed because of the limit.
    pub(super) forks_refused: u64,
}

impl ControlGroup {
    /// Makes a group for those of `limits` that a group can enforce; `None` if there is no such
    /// limit.
    ///
    /// # Errors
    /// The reason why there can be no group, for display.
    pub(super) fn create_for_limits(
        limits: &Limits,
        level: IsolationLevel,
        workspace: &Path,
    ) -> Result<Option<Self>, String> {
        let kinds = needed_controllers(limits, level);
        if kinds.is_empty() {
            return Ok(None);
        }
        let bases = find_bases(&kinds)?;
        bases.iter().for_each(|base| remove_leftovers(&base.path));
        let mut group = Self::create_in_bases(bases)?;
        group.set_limits(limits, workspace);
        Ok(Some(group))
    }

    /// Makes a new group in each of `bases`.
    pub(super) fn create_in_bases(bases: Vec<GroupBase>) -> Result<Self, String> {
        let name = format!("{}{}", own_mark(), NEXT_GROUP_NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut group = Self { parts: Vec::new(), held: Vec::new(), refused: Vec::new(), around: None };
        for GroupBase { version, path, controllers } in bases {
            let path = path.join(&name);
            fs::create_dir(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
            group.parts.push(GroupDirectory { version, path, controllers });
        }
        Ok(group)
    }

    pub(super) fn set_limits(&mut self, limits: &Limits, workspace: &Path) {
        for (limit, amount) in limits.iter_limits() {
            let set = match limit {
                LimitKind::Processes => {
                    self.find_directory(Controller::Pids).map(|part| part.write_number("pids.max", amount))
                }
                LimitKind::Memory => self.find_directory(Controller::Memory).map(|part| part.set_memory(amount)),
                LimitKind::Cpus => self.find_directory(Controller::Cpu).map(|part| part.set_cpus(amount)),
                LimitKind::Io => self.find_directory(Controller::Io).map(|part| part.set_io(amount, workspace)),
                _ => None,
            };
            match set {
                Some(Ok(())) => self.held.push(limit),
                Some(Err(why)) => self.refused.push((limit, why)),
                None => {}
            }
        }
    }

    pub(super) fn find_directory(&self, controller: Controller) -> Option<&GroupDirectory> {
        self.parts.iter().find(|part| part.controllers.contains(&controller))
    }

    /// Returns whether the kernel enforces this limit for the group.
    pub(super) fn enforces_limit(&self, limit: LimitKind) -> bool {
        self.held.contains(&limit)
    }

    /// Returns the reason why the kernel refused a limit.
    pub(super) fn refusal_reason(&self, limit: LimitKind) -> Option<&str> {
        self.refused.iter().find(|(refused, _)| *refused == limit).map(|(_, why)| why.as_str())
    }

    /// Returns whether the hierarchy of a limit is version 1.
    pub(super) fn is_v1(&self, limit: LimitKind) -> bool {
        let controller = match limit {
            LimitKind::Processes => Controller::Pids,
            LimitKind::Memory => Controller::Memory,
            LimitKind::Io => Controller::Io,
            LimitKind::CpuTime => Controller::CpuTime,
            _ => Controller::Cpu,
        };
        self.find_directory(controller).is_some_and(|part| part.version == CgroupVersion::One)
    }

    /// Opens, in every hierarchy, the file through which a process moves itself into the group by
    /// writing `0`.
    pub(super) fn open_join_files(&self) -> Result<Vec<OwnedFd>, String> {
        self.parts.iter().map(GroupDirectory::open_join_file).collect()
    }

    /// Kills every process in the group. Freezes the group first, because processes may fork
    /// meanwhile.
    pub fn kill_processes(&self) {
        let Some(part) = self.parts.first() else { return };
        if part.version == CgroupVersion::Two && part.write_number("cgroup.kill", 1).is_ok() {
            return;
        }
        // Best effort: a process that was not frozen is killed in the next round.
        self.set_frozen(true);
        part.kill_listed();
        // A frozen process ends only after it is thawed.
        self.set_frozen(false);
    }

    /// Returns whether the group can be frozen and its processes still be killed.
    pub(super) fn can_freeze(&self) -> bool {
        self.find_v2_freezer().is_some()
    }

    /// Returns the version 2 part with a freezer (every such group from kernel 5.2 on).
    fn find_v2_freezer(&self) -> Option<&GroupDirectory> {
        self.parts.iter().find(|part| part.version == CgroupVersion::Two && part.path.join("cgroup.freeze").exists())
    }

    /// Freezes or thaws the group. Returns false if it has no freezer.
    pub(super) fn set_frozen(&self, frozen: bool) -> bool {
        let Some(part) = self.find_v2_freezer().or_else(|| self.find_directory(Controller::Freezer)) else {
            return false;
        };
        let written = match (part.version, frozen) {
            (CgroupVersion::One, true) => part.write_text("freezer.state", "FROZEN"),
            (CgroupVersion::One, false) => part.write_text("freezer.state", "THAWED"),
            (CgroupVersion::Two, frozen) => part.write_number("cgroup.freeze", u64::from(frozen)),
        };
        written.is_ok()
    }

    /// Returns whether the whole group is frozen.
    pub(super) fn is_frozen(&self) -> bool {
        self.find_v2_freezer().and_then(|part| part.read_keyed_number("cgroup.events", "frozen")) == Some(1)
    }

    /// Raises a limit that the kernel enforces for the group.
    pub(super) fn raise_limit(&self, limit: LimitKind, amount: u64) -> Result<(), String> {
        let part = |controller| self.find_directory(controller).filter(|_| self.enforces_limit(limit));
        match limit {
            LimitKind::Processes => part(Controller::Pids).map(|part| part.write_number("pids.max", amount)),
            LimitKind::Memory => part(Controller::Memory).map(|part| part.raise_memory(amount)),
            _ => None,
        }
        .unwrap_or(Ok(()))
    }

    /// Returns the memory in use without the reclaimable page cache.
    pub(super) fn memory_in_use(&self) -> Option<u64> {
        let part = self.find_directory(Controller::Memory)?;
        let names = match part.version {
            CgroupVersion::One => ["memory.usage_in_bytes", "total_cache", "total_shmem"],
            CgroupVersion::Two => ["memory.current", "file", "shmem"],
        };
        let stat = |key| part.read_keyed_number("memory.stat", key);
        let (files, shared) = (stat(names[1])?, stat(names[2])?);
        Some(part.read_number(names[0])?.saturating_sub(files.saturating_sub(shared)))
    }

    /// Returns the present counters.
    pub(super) fn read_counters(&self) -> GroupCounters {
        let mut counted = GroupCounters::default();
        for part in &self.parts {
            part.add_counters(&mut counted);
        }
        counted
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let give_up = Instant::now() + REMOVAL_TIMEOUT;
        loop {
            self.parts.retain(|part| fs::remove_dir(&part.path).is_err() && part.path.exists());
            if self.parts.is_empty() || Instant::now() > give_up {
                return;
            }
            self.kill_processes();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl GroupDirectory {
    /// Opens the file through which a process enters the group. In version 1 this is the file for
    /// threads: a process with one thread is moved without waiting for all others. Version 2 has no
    /// such file here.
    fn open_join_file(&self) -> Result<OwnedFd, String> {
        let path = self.path.join(if self.version == CgroupVersion::One { "tasks" } else { "cgroup.procs" });
        let file = fs::OpenOptions::new().write(true).open(&path);
        file.map(OwnedFd::from).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn write_number(&self, file: &str, value: u64) -> Result<(), String> {
        self.write_text(file, &value.to_string())
    }

    pub(super) fn write_text(&self, file: &str, value: &str) -> Result<(), String> {
        fs::write(self.path.join(file), value).map_err(|error| format!("{file}: {error}"))
    }

    fn set_memory(&self, bytes: u64) -> Result<(), String> {
        match self.version {
            CgroupVersion::One => {
                self.write_number("memory.limit_in_bytes", bytes)?;
                // Missing if swap is not accounted for: then swap is avoided.
                self.write_number("memory.memsw.limit_in_bytes", bytes)
                    .or_else(|_| self.write_number("memory.swappiness", 0))
            }
            CgroupVersion::Two => {
                self.write_number("memory.max", bytes)?;
                // Missing on a kernel without swap.
                let _ = self.write_number("memory.swap.max", 0);
                self.write_number("memory.oom.group", 1)
            }
        }
    }

    /// Raises the memory limit. In version 1 the limit with swap is never below the one without.
    fn raise_memory(&self, bytes: u64) -> Result<(), String> {
        if self.version == CgroupVersion::One {
            let _ = self.write_number("memory.memsw.limit_in_bytes", bytes);
            return self.write_number("memory.limit_in_bytes", bytes);
        }
        self.write_number("memory.max", bytes)
    }

    fn set_cpus(&self, thousandths: u64) -> Result<(), String> {
        let quota_us = (thousandths.saturating_mul(CPU_PERIOD_US) / 1000).max(1000);
        match self.version {
            CgroupVersion::One => {
                self.write_number("cpu.cfs_period_us", CPU_PERIOD_US)?;
                self.write_number("cpu.cfs_quota_us", quota_us)
            }
            CgroupVersion::Two => self.write_text("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}")),
        }
    }

    fn set_io(&self, bytes_per_s: u64, workspace: &Path) -> Result<(), String> {
        let (major, minor) = disk_of(workspace)?;
        match self.version {
            CgroupVersion::One => ["read", "write"].iter().try_for_each(|direction| {
                self.write_text(
                    &format!("blkio.throttle.{direction}_bps_device"),
                    &format!("{major}:{minor} {bytes_per_s}"),
                )
            }),
            CgroupVersion::Two => {
                self.write_text("io.max", &format!("{major}:{minor} rbps={bytes_per_s} wbps={bytes_per_s}"))
            }
        }
    }

    /// Kills the processes that the group lists now.
    pub(super) fn kill_listed(&self) {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in text.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    pub(super) fn read_number(&self, file: &str) -> Option<u64> {
        read_number(self.path.join(file))
    }

    /// Returns the number after `key` in a file of `key number` lines.
    pub(super) fn read_keyed_number(&self, file: &str, key: &str) -> Option<u64> {
        find_number(&fs::read_to_string(self.path.join(file)).ok()?, key)
    }

    fn add_counters(&self, counted: &mut GroupCounters) {
        let one = self.version == CgroupVersion::One;
        for controller in &self.controllers {
            match controller {
                Controller::Pids => {
                    // From kernel 6.1 on.
                    counted.processes_peak = self.read_number("pids.peak");
                    counted.forks_refused = self.read_keyed_number("pids.events", "max").unwrap_or(0);
                }
                Controller::Memory if one => {
                    counted.memory_peak_bytes = self.read_number("memory.max_usage_in_bytes");
                    counted.out_of_memory_kills = self.read_keyed_number("memory.oom_control", "oom_kill").unwrap_or(0);
                }
                Controller::Memory => {
                    // From kernel 5.19 on.
                    counted.memory_peak_bytes = self.read_number("memory.peak");
                    counted.out_of_memory_kills = self.read_keyed_number("memory.events", "oom_kill").unwrap_or(0);
                    counted.memory_pressure_us = self.read_pressure_us("memory.pressure");
                }
                Controller::Cpu if one => {
                    counted.throttled_us = self.read_keyed_number("cpu.stat", "throttled_time").map(|ns| ns / 1000);
                }
                Controller::Cpu => counted.throttled_us = self.read_keyed_number("cpu.stat", "throttled_usec"),
                Controller::CpuTime if one => counted.cpu_us = self.read_number("cpuacct.usage").map(|ns| ns / 1000),
                Controller::CpuTime => counted.cpu_us = self.read_keyed_number("cpu.stat", "usage_usec"),
                Controller::Io | Controller::Freezer => {}
            }
        }
    }

    /// Returns the time in which some of the processes waited, in microseconds: `some ... total=N`.
    fn read_pressure_us(&self, file: &str) -> Option<u64> {
        let text = fs::read_to_string(self.path.join(file)).ok()?;
        text.lines().find(|line| line.starts_with("some "))?.rsplit_once("total=")?.1.trim().parse().ok()
    }
}

/// Returns the controllers for `limits`; empty if no group is needed. Avoids further controllers:
/// each one slows every start. In version 1, entering the processor controller makes the run share
/// the processors like one single process.
pub(super) fn needed_controllers(limits: &Limits, level: IsolationLevel) -> Vec<Controller> {
    let needs = |controller: &Controller| match controller {
        Controller::Pids => limits.processes.is_some(),
        Controller::Memory => limits.memory_bytes.is_some(),
        Controller::Cpu => limits.cpus_milli.is_some(),
        Controller::CpuTime => limits.cpu_time_ms.is_some(),
        Controller::Io => limits.io_bytes_per_s.is_some(),
        Controller::Freezer => false,
    };
    if !Controller::ALL.iter().any(needs) {
        return Vec::new();
    }
    // Without a PID namespace, the last processes are searched for, and must be frozen meanwhile.
    let hunts = |c: &Controller| *c == Controller::Freezer && level != IsolationLevel::Full;
    Controller::ALL.into_iter().filter(|c| needs(c) || hunts(c)).collect()
}

/// Returns the whole disk beneath `path`: bandwidth is limited by disk, not by partition.
fn disk_of(path: &Path) -> Result<(u32, u32), String> {
    let device = path.metadata().map_err(|error| format!("{}: {error}", path.display()))?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let entry = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !entry.exists() {
        return Err("the workspace is not on a disk of this machine".to_owned());
    }
    if !entry.join("partition").exists() {
        return Ok((major, minor));
    }
    let text = entry.canonicalize().ok().and_then(|real| fs::read_to_string(real.parent()?.join("dev")).ok());
    let numbers = text.as_deref().and_then(|text| text.trim().split_once(':'));
    let numbers = numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.ok_or_else(|| "cannot find the disk of the workspace's partition".to_owned())
}

/// Returns the prefix of this process's group names. Process ids repeat, at once in different
/// namespaces and later in the same namespace.
fn own_mark() -> String {
    let pid = std::process::id();
    group_name_prefix(pid).unwrap_or_else(|| format!("{GROUP_PREFIX}0.{pid}.0."))
}

/// Returns the prefix for a process; `None` if there is no such process.
fn group_name_prefix(pid: u32) -> Option<String> {
    let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(format!("{GROUP_PREFIX}{namespace}.{pid}.{}.", processes::start_of(pid)?))
}

/// Removes groups in `base` whose runs have lost their supervisor, and kills the processes in them.
/// For groups of another PID namespace only emptiness is known; a new group is empty for a moment,
/// too.
pub(super) fn remove_leftovers(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let Some(own) = group_name_prefix(std::process::id()) else { return };
    let namespace = own.splitn(3, '.').take(2).collect::<Vec<_>>().join(".") + ".";
    let groups = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for name in groups.filter(|name| name.starts_with(GROUP_PREFIX) && !name.starts_with(&own)).take(MAX_LEFTOVERS) {
        let path = base.join(&name);
        match name.strip_prefix(&namespace) {
            Some(rest) if is_orphan(&name, rest) => {
                // The groups of a sandbox's commands are nested in its own group.
                list_nested(&path).chain([path.clone()]).for_each(end_leftover);
            }
            None if is_old(&path) => {
                // The kernel refuses this if the group has processes.
                let _ = fs::remove_dir(&path);
            }
            _ => {}
        }
    }
}

/// Lists the groups directly in a group.
pub(super) fn list_nested(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

fn end_leftover(path: PathBuf) {
    let part = GroupDirectory { version: CgroupVersion::One, path, controllers: Vec::new() };
    part.kill_listed();
    // In version 1, killed processes of a paused sandbox end only after they are thawed.
    let _ = part.write_text("freezer.state", "THAWED");
    // A later start removes a group whose processes are still ending.
    let _ = fs::remove_dir(&part.path);
}

/// Returns whether the process that made the group `name` is gone; `rest` begins with its process
/// id.
fn is_orphan(name: &str, rest: &str) -> bool {
    let pid = rest.split('.').next().and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid| group_name_prefix(pid).is_none_or(|mark| !name.starts_with(&mark)))
}

fn is_old(path: &Path) -> bool {
    let made = fs::metadata(path).and_then(|metadata| metadata.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > MAX_NEW_GROUP_AGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_required_only_for_limits_that_it_alone_enforces() {
        let limits = |limit| {
            let mut limits = Limits::default();
            limits.set_limit(limit, 1000);
            limits
        };
        assert_eq!(needed_controllers(&limits(LimitKind::Disk), IsolationLevel::Restricted), []);
        assert_eq!(needed_controllers(&limits(LimitKind::Memory), IsolationLevel::Full), [Controller::Memory]);
        assert_eq!(
            needed_controllers(&limits(LimitKind::Cpus), IsolationLevel::Restricted),
            [Controller::Cpu, Controller::Freezer]
        );
    }

    #[test]
    fn a_group_is_known_by_its_maker() {
        let own = own_mark();
        let rest = own.splitn(3, '.').nth(2).unwrap();
        assert!(!is_orphan(&format!("{own}0"), &format!("{rest}0")));
        let (pid, _) = rest.split_once('.').unwrap();
        let reused = own.replace(rest, &format!("{pid}.1."));
        assert!(is_orphan(&format!("{reused}0"), &format!("{pid}.1.0")));
        assert!(!is_orphan("stockade.x", "x"));
    }
}

//! The control group of one run: made, set, entered, read, and taken away.
//!
//! It must not know where groups may be made, nor what becomes of a breach.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stockade_model::{Level, Limit, Limits};

use super::hierarchy::{Base, Controller, Version, bases};
use super::processes;

/// How every group's name begins.
const PREFIX: &str = "stockade.";
/// The period over which processors are shared out, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// How long a group's last processes are waited for.
const GOES_WITHIN: Duration = Duration::from_secs(2);
/// Groups of ended runs that are looked at for one start.
const LEFTOVERS_MAX: usize = 64;

/// How long a group may be empty because it is new.
const NEW_FOR: Duration = Duration::from_secs(60);

static MADE: AtomicU32 = AtomicU32::new(0);

/// One run's group. Dropping it ends what is in it and takes it away.
#[derive(Debug)]
pub(crate) struct Group {
    pub(super) parts: Vec<Part>,
    held: Vec<Limit>,
    /// What the kernel would not hold, and why.
    refused: Vec<(Limit, String)>,
    /// The one that it lies in, which goes after it.
    pub(super) around: Option<Arc<Group>>,
}

/// Its directory in one hierarchy.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) version: Version,
    pub(super) path: PathBuf,
    pub(super) controllers: Vec<Controller>,
}

/// What the kernel counted of a group. Absent where it does not count that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) cpu_us: Option<u64>,
    pub(super) throttled_us: Option<u64>,
    pub(super) memory_peak_bytes: Option<u64>,
    pub(super) memory_pressure_us: Option<u64>,
    pub(super) out_of_memory_kills: u64,
    pub(super) processes_peak: Option<u64>,
    /// Forks that failed for the limit.
    pub(super) forks_refused: u64,
}

impl Group {
    /// Makes a group for what of `limits` one can hold; none where there is
    /// nothing of that kind.
    ///
    /// # Errors
    /// Why there can be none, for a person.
    pub(super) fn make(limits: &Limits, level: Level, workspace: &Path) -> Result<Option<Self>, String> {
        let wanted = wanted(limits, level);
        if wanted.is_empty() {
            return Ok(None);
        }
        let bases = bases(&wanted)?;
        bases.iter().for_each(|base| remove_leftovers(&base.path));
        let mut group = Self::within(bases)?;
        group.set(limits, workspace);
        Ok(Some(group))
    }

    /// A new group in each of `bases`.
    pub(super) fn within(bases: Vec<Base>) -> Result<Self, String> {
        let name = format!("{}{}", own_mark(), MADE.fetch_add(1, Ordering::Relaxed));
        let mut group = Self { parts: Vec::new(), held: Vec::new(), refused: Vec::new(), around: None };
        for Base { version, path, controllers } in bases {
            let path = path.join(&name);
            fs::create_dir(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
            group.parts.push(Part { version, path, controllers });
        }
        Ok(group)
    }

    pub(super) fn set(&mut self, limits: &Limits, workspace: &Path) {
        for (limit, amount) in limits.each() {
            let set = match limit {
                Limit::Processes => self.part(Controller::Pids).map(|part| part.write("pids.max", amount)),
                Limit::Memory => self.part(Controller::Memory).map(|part| part.set_memory(amount)),
                Limit::Cpus => self.part(Controller::Cpu).map(|part| part.set_cpus(amount)),
                Limit::Io => self.part(Controller::Io).map(|part| part.set_io(amount, workspace)),
                _ => None,
            };
            match set {
                Some(Ok(())) => self.held.push(limit),
                Some(Err(why)) => self.refused.push((limit, why)),
                None => {}
            }
        }
    }

    pub(super) fn part(&self, controller: Controller) -> Option<&Part> {
        self.parts.iter().find(|part| part.controllers.contains(&controller))
    }

    /// Whether the kernel holds this limit for the group.
    pub(super) fn holds(&self, limit: Limit) -> bool {
        self.held.contains(&limit)
    }

    /// Why it does not, where it was asked to.
    pub(super) fn refused(&self, limit: Limit) -> Option<&str> {
        self.refused.iter().find(|(refused, _)| *refused == limit).map(|(_, why)| why.as_str())
    }

    /// Whether a limit's hierarchy is of version 1.
    pub(super) fn is_v1(&self, limit: Limit) -> bool {
        let controller = match limit {
            Limit::Processes => Controller::Pids,
            Limit::Memory => Controller::Memory,
            Limit::Io => Controller::Io,
            Limit::CpuTime => Controller::CpuTime,
            _ => Controller::Cpu,
        };
        self.part(controller).is_some_and(|part| part.version == Version::One)
    }

    /// Where a process moves itself there by writing `0`, in every hierarchy.
    pub(super) fn entrances(&self) -> Result<Vec<OwnedFd>, String> {
        self.parts.iter().map(Part::entrance).collect()
    }

    /// Ends every process in it. More may be forked meanwhile, hence the stop first.
    pub(crate) fn kill(&self) {
        let Some(part) = self.parts.first() else { return };
        if part.version == Version::Two && part.write("cgroup.kill", 1).is_ok() {
            return;
        }
        // Best effort: what was not stopped is killed in the next round.
        self.freeze(true);
        for pid in part.members() {
            let _ = kill_process(pid, Signal::KILL);
        }
        // A process that stands still ends only when it goes on.
        self.freeze(false);
    }

    /// Whether it can stand still and be killed all the same.
    pub(super) fn can_freeze(&self) -> bool {
        self.two().is_some()
    }

    /// Every group of version 2 has a freezer (kernel 5.2).
    fn two(&self) -> Option<&Part> {
        self.parts.iter().find(|part| part.version == Version::Two && part.path.join("cgroup.freeze").exists())
    }

    /// Lets it stand still, or go on. False where it has no freezer.
    pub(super) fn freeze(&self, frozen: bool) -> bool {
        let Some(part) = self.two().or_else(|| self.part(Controller::Freezer)) else { return false };
        let written = match (part.version, frozen) {
            (Version::One, true) => part.write_text("freezer.state", "FROZEN"),
            (Version::One, false) => part.write_text("freezer.state", "THAWED"),
            (Version::Two, frozen) => part.write("cgroup.freeze", u64::from(frozen)),
        };
        written.is_ok()
    }

    /// Whether all of it stands.
    pub(super) fn is_frozen(&self) -> bool {
        self.two().and_then(|part| part.keyed("cgroup.events", "frozen")) == Some(1)
    }

    /// Raises what the kernel holds for the group.
    pub(super) fn raise(&self, limit: Limit, amount: u64) -> Result<(), String> {
        let part = |controller| self.part(controller).filter(|_| self.holds(limit));
        match limit {
            Limit::Processes => part(Controller::Pids).map(|part| part.write("pids.max", amount)),
            Limit::Memory => part(Controller::Memory).map(|part| part.raise_memory(amount)),
            _ => None,
        }
        .unwrap_or(Ok(()))
    }

    /// Memory that the kernel cannot take back by forgetting what it read of files.
    pub(super) fn memory_in_use(&self) -> Option<u64> {
        let part = self.part(Controller::Memory)?;
        let names = match part.version {
            Version::One => ["memory.usage_in_bytes", "total_cache", "total_shmem"],
            Version::Two => ["memory.current", "file", "shmem"],
        };
        let stat = |key| part.keyed("memory.stat", key);
        let (files, shared) = (stat(names[1])?, stat(names[2])?);
        Some(part.number(names[0])?.saturating_sub(files.saturating_sub(shared)))
    }

    /// What the kernel counted so far.
    pub(super) fn counted(&self) -> Counted {
        let mut counted = Counted::default();
        for part in &self.parts {
            part.count(&mut counted);
        }
        counted
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let give_up = Instant::now() + GOES_WITHIN;
        loop {
            self.parts.retain(|part| fs::remove_dir(&part.path).is_err() && part.path.exists());
            if self.parts.is_empty() || Instant::now() > give_up {
                return;
            }
            self.kill();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Part {
    /// In version 1 the file for threads: a process that has but one is moved
    /// without waiting for all others. Version 2 has none for such a group.
    fn entrance(&self) -> Result<OwnedFd, String> {
        let path = self.path.join(if self.version == Version::One { "tasks" } else { "cgroup.procs" });
        let file = fs::OpenOptions::new().write(true).open(&path);
        file.map(OwnedFd::from).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn write(&self, file: &str, value: u64) -> Result<(), String> {
        self.write_text(file, &value.to_string())
    }

    pub(super) fn write_text(&self, file: &str, value: &str) -> Result<(), String> {
        fs::write(self.path.join(file), value).map_err(|error| format!("{file}: {error}"))
    }

    fn set_memory(&self, bytes: u64) -> Result<(), String> {
        match self.version {
            Version::One => {
                self.write("memory.limit_in_bytes", bytes)?;
                // Not there where swap is not accounted for: then it is avoided.
                self.write("memory.memsw.limit_in_bytes", bytes).or_else(|_| self.write("memory.swappiness", 0))
            }
            Version::Two => {
                self.write("memory.max", bytes)?;
                // Not there on a kernel without swap.
                let _ = self.write("memory.swap.max", 0);
                self.write("memory.oom.group", 1)
            }
        }
    }

    /// In version 1 the limit with swap is never below that without.
    fn raise_memory(&self, bytes: u64) -> Result<(), String> {
        if self.version == Version::One {
            let _ = self.write("memory.memsw.limit_in_bytes", bytes);
            return self.write("memory.limit_in_bytes", bytes);
        }
        self.write("memory.max", bytes)
    }

    fn set_cpus(&self, thousandths: u64) -> Result<(), String> {
        let quota_us = (thousandths.saturating_mul(CPU_PERIOD_US) / 1000).max(1000);
        match self.version {
            Version::One => {
                self.write("cpu.cfs_period_us", CPU_PERIOD_US)?;
                self.write("cpu.cfs_quota_us", quota_us)
            }
            Version::Two => self.write_text("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}")),
        }
    }

    fn set_io(&self, bytes_per_s: u64, workspace: &Path) -> Result<(), String> {
        let (major, minor) = disk_of(workspace)?;
        match self.version {
            Version::One => ["read", "write"].iter().try_for_each(|way| {
                self.write_text(&format!("blkio.throttle.{way}_bps_device"), &format!("{major}:{minor} {bytes_per_s}"))
            }),
            Version::Two => {
                self.write_text("io.max", &format!("{major}:{minor} rbps={bytes_per_s} wbps={bytes_per_s}"))
            }
        }
    }

    pub(super) fn members(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)).collect()
    }

    pub(super) fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.path.join(file)).ok()?.trim().parse().ok()
    }

    /// The number behind `key` in a file of `key number` lines.
    pub(super) fn keyed(&self, file: &str, key: &str) -> Option<u64> {
        let text = fs::read_to_string(self.path.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
    }

    fn count(&self, counted: &mut Counted) {
        let one = self.version == Version::One;
        for controller in &self.controllers {
            match controller {
                Controller::Pids => {
                    // From kernel 6.1 on.
                    counted.processes_peak = self.number("pids.peak");
                    counted.forks_refused = self.keyed("pids.events", "max").unwrap_or(0);
                }
                Controller::Memory if one => {
                    counted.memory_peak_bytes = self.number("memory.max_usage_in_bytes");
                    counted.out_of_memory_kills = self.keyed("memory.oom_control", "oom_kill").unwrap_or(0);
                }
                Controller::Memory => {
                    // From kernel 5.19 on.
                    counted.memory_peak_bytes = self.number("memory.peak");
                    counted.out_of_memory_kills = self.keyed("memory.events", "oom_kill").unwrap_or(0);
                    counted.memory_pressure_us = self.pressure("memory.pressure");
                }
                Controller::Cpu if one => {
                    counted.throttled_us = self.keyed("cpu.stat", "throttled_time").map(|ns| ns / 1000);
                }
                Controller::Cpu => counted.throttled_us = self.keyed("cpu.stat", "throttled_usec"),
                Controller::CpuTime if one => counted.cpu_us = self.number("cpuacct.usage").map(|ns| ns / 1000),
                Controller::CpuTime => counted.cpu_us = self.keyed("cpu.stat", "usage_usec"),
                Controller::Io | Controller::Freezer => {}
            }
        }
    }

    /// How long some of it waited, in microseconds: `some ... total=N`.
    fn pressure(&self, file: &str) -> Option<u64> {
        let text = fs::read_to_string(self.path.join(file)).ok()?;
        text.lines().find(|line| line.starts_with("some "))?.rsplit_once("total=")?.1.trim().parse().ok()
    }
}

/// The controllers for what `limits` hold; none where no group is needed. No
/// more than these: each costs every start, and in version 1 whoever joins that
/// of the processors shares them with all others as if it were one process.
pub(super) fn wanted(limits: &Limits, level: Level) -> Vec<Controller> {
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
    // Without a namespace the last processes are hunted, and must stand still for it.
    let hunts = |c: &Controller| *c == Controller::Freezer && level != Level::Full;
    Controller::ALL.into_iter().filter(|c| needs(c) || hunts(c)).collect()
}

/// The whole disk beneath `path`: bandwidth is limited by disk, not by partition.
fn disk_of(path: &Path) -> Result<(u32, u32), String> {
    let device = path.metadata().map_err(|error| format!("{}: {error}", path.display()))?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let entry = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !entry.exists() {
        return Err("the workspace lies on no disk of this machine".to_owned());
    }
    if !entry.join("partition").exists() {
        return Ok((major, minor));
    }
    let text = entry.canonicalize().ok().and_then(|real| fs::read_to_string(real.parent()?.join("dev")).ok());
    let numbers = text.as_deref().and_then(|text| text.trim().split_once(':'));
    let numbers = numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.ok_or_else(|| "the disk of the workspace's partition is not to be found".to_owned())
}

/// How the names of this process's groups begin: process ids repeat, between
/// namespaces at once and in one of them later.
fn own_mark() -> String {
    let pid = std::process::id();
    mark(pid).unwrap_or_else(|| format!("{PREFIX}0.{pid}.0."))
}

/// None where there is no such process.
fn mark(pid: u32) -> Option<String> {
    let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(format!("{PREFIX}{namespace}.{pid}.{}.", processes::start_of(pid)?))
}

/// Takes away groups in `base` whose runs have lost their supervisor, with what
/// is still in them. Of another PID namespace nothing is known but whether they
/// are empty, which they are for a moment when they are new.
pub(super) fn remove_leftovers(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let Some(own) = mark(std::process::id()) else { return };
    let namespace = own.splitn(3, '.').take(2).collect::<Vec<_>>().join(".") + ".";
    let groups = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for name in groups.filter(|name| name.starts_with(PREFIX) && !name.starts_with(&own)).take(LEFTOVERS_MAX) {
        let path = base.join(&name);
        match name.strip_prefix(&namespace) {
            Some(rest) if is_orphan(&name, rest) => {
                // Those of a sandbox's commands lie in its own.
                let nested = fs::read_dir(&path).into_iter().flatten().flatten();
                let nested = nested.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
                nested.map(|entry| entry.path()).chain([path.clone()]).for_each(end_leftover);
            }
            None if is_old(&path) => {
                // Refused where somebody is in it.
                let _ = fs::remove_dir(&path);
            }
            _ => {}
        }
    }
}

fn end_leftover(path: PathBuf) {
    let part = Part { version: Version::One, path, controllers: Vec::new() };
    for pid in part.members() {
        let _ = kill_process(pid, Signal::KILL);
    }
    // In version 1 those of a sandbox that was paused end when they go on.
    let _ = part.write_text("freezer.state", "THAWED");
    // What is still ending is taken away by a later start.
    let _ = fs::remove_dir(&part.path);
}

/// Whether the process that made the group `name` is gone; `rest` begins with
/// its number.
fn is_orphan(name: &str, rest: &str) -> bool {
    let pid = rest.split('.').next().and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid| mark(pid).is_none_or(|mark| !name.starts_with(&mark)))
}

fn is_old(path: &Path) -> bool {
    let made = fs::metadata(path).and_then(|metadata| metadata.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > NEW_FOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_wanted_for_what_it_holds_alone() {
        let limits = |limit| {
            let mut limits = Limits::default();
            limits.set(limit, 1000);
            limits
        };
        assert_eq!(wanted(&limits(Limit::Disk), Level::Restricted), []);
        assert_eq!(wanted(&limits(Limit::Memory), Level::Full), [Controller::Memory]);
        assert_eq!(wanted(&limits(Limit::Cpus), Level::Restricted), [Controller::Cpu, Controller::Freezer]);
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

//! Looks at what a run uses, again and again, and tells when it is too much.
//! How often depends on what a look costs. It ends nothing itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_model::{Denial, Grant, Layer, Limit, Limits, Operation, RawText, Resolution, Usage};

use super::Guard;
use super::group::{Counted, Group};
use super::processes::{Census, Look, Tally, program_of};
use super::report::Holder;
use super::resources::{Files, MachineMemory, Room};

/// How long between two looks at least.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A look may take this part of the time between two.
const LOOK_SHARE: u32 = 50;
/// How long between two looks at most: what is not held meanwhile is named as watched.
const LOOK_EVERY_MOST: Duration = Duration::from_secs(5);
/// Part of a disk, and of its files, that a run leaves to the host.
const RESERVE_PART: u64 = 20;
/// No more than this of it. Of memory as much, where no group holds it.
const RESERVE_BYTES_MAX: u64 = 1 << 30;
const RESERVE_FILES_MAX: u64 = 50_000;
/// Part of its memory that may be taken as shared before that is looked for.
const SHARED_PART: u64 = 4;

/// The watch over one run. Dropping it takes away the run's group.
#[derive(Debug)]
pub(crate) struct Watch {
    limits: Limits,
    group: Option<Arc<Group>>,
    watched: Vec<Limit>,
    census: Census,
    workspace: PathBuf,
    room: Option<Room>,
    /// The machine's memory at the start, where the watch alone holds the limit.
    memory: Option<MachineMemory>,
    next: Instant,
    told: bool,
    peak: Peak,
}

#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    processes: u64,
    memory_bytes: u64,
    written_bytes: u64,
}

/// What a run used, beyond what its init knows, and what was refused quietly.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    pub(crate) denials: Vec<Denial>,
    /// The limit that ended it, where the kernel had done so.
    pub(crate) breach: Option<Denial>,
}

/// A limit that was passed.
struct Passed {
    limit: Limit,
    value: String,
    pid: Option<u32>,
}

impl Watch {
    pub(super) fn new(guard: Guard, init: u32) -> Self {
        let is_watched = |holder: &Holder| matches!(holder, Holder::Watch | Holder::WatchedFilesystem);
        let watched: Vec<Limit> =
            guard.holders.iter().filter(|(.., holder)| is_watched(holder)).map(|(limit, ..)| *limit).collect();
        let room = [Limit::Disk, Limit::Inodes].iter().any(|limit| watched.contains(limit));
        Self {
            room: room.then(|| Room::at(&guard.workspace)).flatten(),
            memory: watched.contains(&Limit::Memory).then(MachineMemory::now).flatten(),
            limits: guard.limits,
            group: guard.group,
            watched,
            census: Census::new(init),
            workspace: guard.workspace,
            next: Instant::now() + LOOK_EVERY,
            told: false,
            peak: Peak::default(),
        }
    }

    /// How long until there is something to look at; none where there never is.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        let looks = !self.told && (self.group.is_some() || !self.watched.is_empty());
        looks.then(|| self.next.saturating_duration_since(Instant::now()))
    }

    /// Looks, if it is time; a limit that was passed is told once.
    pub(crate) fn look(&mut self) -> Option<Denial> {
        if self.next_look()? > Duration::ZERO {
            return None;
        }
        let begun = Instant::now();
        let passed = self.passed();
        let took = begun.elapsed();
        self.next = begun + (took * LOOK_SHARE).clamp(LOOK_EVERY, LOOK_EVERY_MOST);
        self.told = passed.is_some();
        passed.map(|passed| self.denial(passed))
    }

    fn passed(&mut self) -> Option<Passed> {
        let counted = self.counted();
        if let Some(passed) = self.killed(&counted) {
            return Some(passed);
        }
        let machine = self.memory.and_then(|_| MachineMemory::now());
        if let Some(passed) = self.room_passed().or_else(|| self.memory_short(machine?)) {
            return Some(passed);
        }
        let cpu_ms = counted.cpu_us.map(|us| us / 1000);
        if let Some(passed) = cpu_ms.and_then(|ms| self.over(Limit::CpuTime, ms, None)) {
            return Some(passed);
        }
        let watches = |limit| self.watched.contains(&limit);
        let (memory, written) = (watches(Limit::Memory), watches(Limit::Disk));
        if !(memory || written || watches(Limit::Processes) || watches(Limit::CpuTime) && cpu_ms.is_none()) {
            return None;
        }
        let shared = machine.is_some_and(|now| self.may_share_much(now));
        let tally = self.census.take(Look { memory, shared, written });
        self.remember(&tally);
        let pid_of = |most: Option<(u32, u64)>| most.map(|(pid, _)| pid);
        self.over(Limit::Memory, tally.memory_bytes, pid_of(tally.largest))
            .or_else(|| self.over(Limit::Disk, self.peak.written_bytes, pid_of(tally.busiest_writer)))
            .or_else(|| self.over(Limit::Processes, tally.processes, None))
            .or_else(|| self.over(Limit::CpuTime, tally.cpu_ms, None))
    }

    fn remember(&mut self, tally: &Tally) {
        self.peak.processes = self.peak.processes.max(tally.processes);
        self.peak.memory_bytes = self.peak.memory_bytes.max(tally.memory_bytes);
        self.peak.written_bytes = self.peak.written_bytes.max(tally.written_bytes);
    }

    fn counted(&self) -> Counted {
        self.group.as_ref().map(|group| group.counted()).unwrap_or_default()
    }

    /// A watched limit that `value` is beyond.
    fn over(&self, limit: Limit, value: u64, pid: Option<u32>) -> Option<Passed> {
        let amount = self.limits.get(limit).filter(|_| self.watched.contains(&limit))?;
        (value > amount).then(|| Passed { limit, value: format!("{} were used", limit.text(value)), pid })
    }

    /// The kernel ended a process for want of memory.
    fn killed(&self, counted: &Counted) -> Option<Passed> {
        let kills = counted.out_of_memory_kills;
        let value = format!("out of memory: the kernel ended {kills} of its processes");
        (kills > 0).then_some(Passed { limit: Limit::Memory, value, pid: None })
    }

    /// The filesystem of the workspace has less left than is the host's, or what
    /// was put on it is too much.
    fn room_passed(&self) -> Option<Passed> {
        let before = self.room?;
        let now = Room::at(&self.workspace)?;
        let files = || before.files.zip(now.files).and_then(|(before, now)| self.files_passed(before, now));
        self.bytes_passed(before, now).or_else(files)
    }

    fn bytes_passed(&self, before: Room, now: Room) -> Option<Passed> {
        let reserve = (before.total_bytes / RESERVE_PART).min(RESERVE_BYTES_MAX);
        // Where there was less before, the run would be to blame for nothing.
        if self.watched.contains(&Limit::Disk) && before.free_bytes >= reserve && now.free_bytes < reserve {
            let left = Limit::Disk.text(now.free_bytes >> 20 << 20);
            let value = format!("the disk is nearly full: {left} are left of {}", Limit::Disk.text(before.total_bytes));
            return Some(Passed { limit: Limit::Disk, value, pid: None });
        }
        let taken = before.free_bytes.saturating_sub(now.free_bytes);
        if before.in_memory { self.over(Limit::Disk, taken, None) } else { None }
    }

    fn files_passed(&self, before: Files, now: Files) -> Option<Passed> {
        let reserve = (before.total / RESERVE_PART).min(RESERVE_FILES_MAX);
        if before.free >= reserve && now.free < reserve {
            let value = format!("the filesystem is nearly full: {} files are left of {}", now.free, before.total);
            return Some(Passed { limit: Limit::Inodes, value, pid: None });
        }
        self.over(Limit::Inodes, before.free.saturating_sub(now.free), None)
    }

    /// The machine has less memory left than is the host's. Not all that a run
    /// takes shows in its processes.
    fn memory_short(&self, now: MachineMemory) -> Option<Passed> {
        let (before, now) = (self.memory?.available_bytes, now.available_bytes);
        let value = format!("the machine is nearly out of memory: {} are left", Limit::Memory.text(now >> 20 << 20));
        let short = before >= RESERVE_BYTES_MAX && now < RESERVE_BYTES_MAX / 2;
        short.then_some(Passed { limit: Limit::Memory, value, pid: None })
    }

    /// Somebody on the machine took so much memory that can be shared that it is
    /// worth looking for it.
    fn may_share_much(&self, now: MachineMemory) -> bool {
        let before = self.memory.map_or(0, |before| before.shared_bytes);
        let worth = self.limits.memory_bytes.map_or(u64::MAX, |bytes| bytes / SHARED_PART);
        now.shared_bytes.saturating_sub(before) > worth
    }

    fn denial(&self, passed: Passed) -> Denial {
        let Passed { limit, value, pid } = passed;
        let program = pid.and_then(program_of).map(|path| RawText::from(path.as_path()));
        self.limit_denial(limit, &value, (pid, program))
    }

    /// The kernel does not tell that it refused a fork for its count.
    fn was_full_of_processes(&self) -> bool {
        self.limits.processes.is_some_and(|amount| self.peak.processes >= amount)
    }

    fn limit_denial(&self, limit: Limit, value: &str, (pid, program): (Option<u32>, Option<RawText>)) -> Denial {
        let amount = self.limits.get(limit);
        let at_most = amount.map(|amount| format!("at most {}; ", limit.text(amount))).unwrap_or_default();
        Denial {
            operation: Operation::Limit,
            object: RawText::from(limit.name()),
            pid,
            program,
            layer: Layer::Limits,
            rule: format!("{at_most}{value}"),
            // Twice as much is what one would try next.
            grant: amount.map(|amount| Grant::Limit(limit, amount.saturating_mul(2))),
            resolution: Resolution::Recorded,
            count: 1,
        }
    }

    /// The end: adds to `usage` what was counted, and tells what the kernel
    /// refused.
    pub(crate) fn end(mut self, usage: &mut Usage) -> Spent {
        let counted = self.counted();
        let group = self.group.is_some();
        let some = |value: u64| (value > 0).then_some(value);
        if let Some(us) = counted.cpu_us {
            usage.cpu_ms = usage.cpu_ms.max(us / 1000);
        }
        usage.tree_memory_peak_bytes = counted.memory_peak_bytes.or_else(|| some(self.peak.memory_bytes));
        usage.processes_peak = counted.processes_peak.or_else(|| some(self.peak.processes));
        usage.written_bytes = some(self.peak.written_bytes);
        usage.throttled_ms = counted.throttled_us.and_then(|us| some(us / 1000));
        usage.memory_pressure_ms = counted.memory_pressure_us.and_then(|us| some(us / 1000));
        let mut spent = Spent::default();
        let refused = if group { counted.forks_refused } else { u64::from(self.was_full_of_processes()) };
        if refused > 0 {
            let denial = self.limit_denial(Limit::Processes, "no more could be made", (None, None));
            spent.denials.push(Denial { count: refused, ..denial });
        }
        if !self.told {
            self.told = true;
            spent.breach = self.killed(&counted).map(|passed| self.denial(passed));
        }
        spent
    }
}

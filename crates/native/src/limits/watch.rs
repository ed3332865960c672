//! Polls the usage of a run, and reports when a limit is exceeded. The interval depends on the cost
//! of a check, and for writes on the remaining limit (`disk`). The watch ends no process itself. If
//! an approver can raise the limit, the run is frozen until the answer (`raising`). A run that must
//! end cannot write any more.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use stockade_engine::AttemptEvent;
use stockade_model::{Denial, Limit, Limits, RawText, Usage};

use super::Guard;
use super::disk::DiskPace;
use super::file_size::{file_size, raise_file_size, refuse_writes};
use super::group::{Counted, Group};
use super::processes::{Beside, Census, Look, Tally, program_of};
use super::raising::Raising;
use super::report::Holder;
use super::resources::{self, Files, MachineMemory, Room};

/// Shortest interval between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A check may take at most one part in this number of the interval.
const LOOK_SHARE: u32 = 50;
/// Longest interval between two checks; limits that may be exceeded meanwhile are reported as
/// watched.
const LOOK_EVERY_MOST: Duration = Duration::from_secs(5);
/// Divisor for the part of a disk, and of its files, that a run leaves to the host.
const RESERVE_PART: u64 = 20;
/// Upper bound of that part. Without a group, the watch leaves half as much memory to the host.
const RESERVE_BYTES_MAX: u64 = 1 << 30;
const RESERVE_FILES_MAX: u64 = 50_000;
/// Divisor for the part of its memory that may be shared before shared memory is counted.
const SHARED_PART: u64 = 4;
/// Divisor for the memory that is left when an approver is asked for more. At the limit itself, the
/// kernel kills a process without asking.
const MEMORY_LEFT_PART: u64 = 8;

/// The watch over one run. Removes the run's group on drop.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(super) limits: Limits,
    pub(super) group: Option<Arc<Group>>,
    watched: Vec<Limit>,
    /// Limit of open descriptors, which the kernel enforces for each process without a report.
    open_files: Option<u64>,
    census: Census,
    workspace: PathBuf,
    room: Option<Room>,
    /// The machine's memory at the start, if only the watch enforces the limit.
    memory: Option<MachineMemory>,
    next: Instant,
    /// Schedule for counting writes between the checks of all limits.
    disk: Option<DiskPace>,
    pub(super) told: bool,
    /// Processes that were killed for lack of memory and have been reported.
    kills_before: u64,
    peak: Peak,
    /// Failed forks when an approver was last asked for more.
    pub(super) forks_refused: u64,
    /// `None` if no approver can be asked.
    pub(super) raising: Option<Raising>,
}

#[derive(Clone, Debug, Default)]
struct Peak {
    processes: u64,
    memory_bytes: u64,
    written_bytes: u64,
    /// The first process that had as many descriptors as it may have.
    full_of_descriptors: Option<(u32, Option<RawText>)>,
}

/// Usage of a run beyond the init's own report, and refusals that the kernel does not report.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    pub(crate) denials: Vec<Denial>,
    /// The limit that ended the run, if the kernel enforced it.
    pub(crate) breach: Option<Denial>,
}

/// A limit that was exceeded, or nearly so.
pub(super) struct Passed {
    pub(super) limit: Limit,
    value: String,
    pid: Option<u32>,
    pub(super) then: Then,
}

/// Effect if a limit is not raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The run ends, and a higher limit would not help now.
    Ends,
    /// The run ends, unless the limit is raised.
    EndsUnlessRaised,
    /// The run continues: the kernel enforces the limit.
    GoesOn,
}

impl Watch {
    pub(super) fn new(guard: Guard, (init, beside): (u32, Beside), asks: bool) -> Self {
        let is_watched = |holder: &Holder| matches!(holder, Holder::Watch | Holder::WatchedFilesystem);
        let watched: Vec<Limit> =
            guard.holders.iter().filter(|(.., holder)| is_watched(holder)).map(|(limit, ..)| *limit).collect();
        let room = [Limit::Disk, Limit::Inodes].iter().any(|limit| watched.contains(limit));
        let disk = guard.limits.disk_bytes.filter(|_| watched.contains(&Limit::Disk)).map(DiskPace::new);
        Self {
            disk,
            room: room.then(|| Room::at(&guard.workspace)).flatten(),
            memory: watched.contains(&Limit::Memory).then(MachineMemory::now).flatten(),
            raising: asks.then(|| Raising::new(init, guard.group.clone())),
            open_files: resources::open_files(&guard.limits),
            limits: guard.limits,
            group: guard.group,
            watched,
            census: Census::new(init, beside),
            workspace: guard.workspace,
            next: Instant::now() + LOOK_EVERY,
            told: false,
            kills_before: 0,
            peak: Peak::default(),
            forks_refused: 0,
        }
    }

    /// Returns the time until the next check; `None` if no check is needed.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        let stands = self.raising.as_ref().is_some_and(Raising::stands);
        let looks =
            !self.told && !stands && (self.group.is_some() || !self.watched.is_empty() || self.open_files.is_some());
        let next = self.next.saturating_duration_since(Instant::now());
        looks.then(|| self.disk.as_ref().map_or(next, |disk| next.min(disk.until_next())))
    }

    /// Checks the limits, if it is time. Reports an exceeded limit once, or again after each raise.
    pub(crate) fn look(&mut self) -> Option<AttemptEvent> {
        if self.next_look()? > Duration::ZERO {
            return None;
        }
        let (begun, busy) = (Instant::now(), processor_time());
        let is_whole = begun >= self.next;
        let passed = if is_whole { self.passed() } else { self.disk_passed() };
        let took = processor_time().saturating_sub(busy);
        match &mut self.disk {
            Some(disk) if !is_whole => disk.took(took, LOOK_SHARE),
            _ => self.next = begun + (took * LOOK_SHARE).clamp(LOOK_EVERY, LOOK_EVERY_MOST),
        }
        let passed = passed?;
        let (limit, then) = (passed.limit, passed.then);
        let denial = self.denial(passed);
        let told = self.ask(limit, then, denial);
        self.told = matches!(told, Some(AttemptEvent::Breached(_)));
        if self.told {
            self.stop_writing(limit);
        }
        told
    }

    /// Prevents further writes of a run that exceeded its disk limit. The run is first asked to
    /// end, and might ignore that.
    pub(super) fn stop_writing(&self, limit: Limit) {
        if limit == Limit::Disk && self.disk.is_some() {
            refuse_writes(|| self.census.processes());
        }
    }

    /// Raises the file size limits to the present limits.
    pub(super) fn raise_files(&self) {
        let size = file_size(&self.limits, true);
        size.iter().for_each(|size| raise_file_size(|| self.census.processes(), size));
    }

    /// Records the writes of all processes that the init has reaped.
    pub(crate) fn init_counted(&mut self, bytes: u64) {
        self.census.init_counted(bytes);
    }

    /// Resumes checking after an exceeded limit. Earlier kills are not reported again.
    pub(crate) fn rearm(&mut self) {
        self.kills_before = self.counted().out_of_memory_kills;
        self.told = false;
        // The written size stays; processes that must end because of it get time to do so.
        self.disk.iter_mut().for_each(|disk| disk.pause(LOOK_EVERY));
    }

    fn passed(&mut self) -> Option<Passed> {
        let counted = self.counted();
        if let Some(passed) = self.killed(&counted).or_else(|| self.held_by_kernel(&counted)) {
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
        let open = self.open_files.is_some();
        if !(memory || written || open || watches(Limit::Processes) || watches(Limit::CpuTime) && cpu_ms.is_none()) {
            return None;
        }
        let shared = machine.is_some_and(|now| self.may_share_much(now));
        let tally = self.count(Look { memory, shared, written, open });
        let pid_of = |most: Option<(u32, u64)>| most.map(|(pid, _)| pid);
        self.over(Limit::Memory, tally.memory_bytes, pid_of(tally.largest))
            .or_else(|| self.over(Limit::Disk, self.peak.written_bytes, pid_of(tally.busiest_writer)))
            .or_else(|| self.over(Limit::Processes, tally.processes, None))
            .or_else(|| self.over(Limit::CpuTime, tally.cpu_ms, None))
    }

    /// Checks whether more was written than allowed. Counts the writes of the processes if they can
    /// be that much, or the usage of a filesystem in memory.
    fn disk_passed(&mut self) -> Option<Passed> {
        let limit = self.limits.disk_bytes?;
        let may_have_passed = self.disk.as_mut()?.may_have_passed(limit);
        if self.room.is_some_and(|room| room.in_memory)
            && let Some(passed) = self.room_passed()
        {
            return Some(passed);
        }
        if !may_have_passed {
            return None;
        }
        let tally = self.count(Look { written: true, ..Look::default() });
        self.over(Limit::Disk, self.peak.written_bytes, tally.busiest_writer.map(|(pid, _)| pid))
    }

    /// Counts the usage of every process, and keeps the maximum.
    fn count(&mut self, look: Look) -> Tally {
        let tally = self.census.take(look);
        self.remember(&tally);
        let written = self.peak.written_bytes;
        self.disk.iter_mut().filter(|_| look.written).for_each(|disk| disk.counted(written));
        tally
    }

    fn remember(&mut self, tally: &Tally) {
        self.peak.processes = self.peak.processes.max(tally.processes);
        self.peak.memory_bytes = self.peak.memory_bytes.max(tally.memory_bytes);
        self.peak.written_bytes = self.peak.written_bytes.max(tally.written_bytes);
        let was_full = self.peak.full_of_descriptors.is_some();
        let amount = self.open_files.unwrap_or(u64::MAX);
        if let (false, Some((pid, _))) = (was_full, tally.most_open.filter(|(_, open)| *open >= amount)) {
            self.peak.full_of_descriptors = Some((pid, program_of(pid).map(|path| RawText::from(path.as_path()))));
        }
    }

    pub(super) fn counted(&self) -> Counted {
        self.group.as_ref().map(|group| group.counted()).unwrap_or_default()
    }

    /// Returns a watched limit that `value` exceeds.
    fn over(&self, limit: Limit, value: u64, pid: Option<u32>) -> Option<Passed> {
        let amount = self.limits.get(limit).filter(|_| self.watched.contains(&limit))?;
        let then = Then::EndsUnlessRaised;
        (value > amount).then(|| Passed { limit, value: format!("{} were used", limit.text(value)), pid, then })
    }

    /// Checks limits that the kernel enforces: failed forks, or memory nearly used up. Used only if
    /// an approver may raise them.
    fn held_by_kernel(&mut self, counted: &Counted) -> Option<Passed> {
        let asks = |limit| self.raising.as_ref().is_some_and(|raising| !raising.is_settled(limit));
        let then = Then::GoesOn;
        if asks(Limit::Processes) && counted.forks_refused > self.forks_refused {
            self.forks_refused = counted.forks_refused;
            let value = "no more could be made".to_owned();
            return Some(Passed { limit: Limit::Processes, value, pid: None, then });
        }
        let group = self.group.as_ref().filter(|group| asks(Limit::Memory) && group.holds(Limit::Memory))?;
        let (amount, used) = (self.limits.memory_bytes?, group.memory_in_use()?);
        let value = format!("{} are used, and at the limit the kernel ends what asks for more", text_of(used));
        (used > amount - amount / MEMORY_LEFT_PART).then_some(Passed { limit: Limit::Memory, value, pid: None, then })
    }

    /// Checks whether the kernel killed a process for lack of memory.
    fn killed(&self, counted: &Counted) -> Option<Passed> {
        let kills = counted.out_of_memory_kills.saturating_sub(self.kills_before);
        let value = format!("out of memory: the kernel ended {kills} of its processes");
        (kills > 0).then_some(Passed { limit: Limit::Memory, value, pid: None, then: Then::Ends })
    }

    /// Checks whether the filesystem of the workspace has less space left than the host's reserve,
    /// or whether too much was written to it.
    fn room_passed(&self) -> Option<Passed> {
        let before = self.room?;
        let now = Room::at(&self.workspace)?;
        let files = || before.files.zip(now.files).and_then(|(before, now)| self.files_passed(before, now));
        self.bytes_passed(before, now).or_else(files)
    }

    fn bytes_passed(&self, before: Room, now: Room) -> Option<Passed> {
        let reserve = (before.total_bytes / RESERVE_PART).min(RESERVE_BYTES_MAX);
        // If less was free before the run, the run is not the cause.
        if self.watched.contains(&Limit::Disk) && before.free_bytes >= reserve && now.free_bytes < reserve {
            let left = Limit::Disk.text(now.free_bytes >> 20 << 20);
            let value = format!("the disk is nearly full: {left} are left of {}", Limit::Disk.text(before.total_bytes));
            return Some(Passed { limit: Limit::Disk, value, pid: None, then: Then::Ends });
        }
        let taken = before.free_bytes.saturating_sub(now.free_bytes);
        if before.in_memory { self.over(Limit::Disk, taken, None) } else { None }
    }

    fn files_passed(&self, before: Files, now: Files) -> Option<Passed> {
        let reserve = (before.total / RESERVE_PART).min(RESERVE_FILES_MAX);
        if before.free >= reserve && now.free < reserve {
            let value = format!("the filesystem is nearly full: {} files are left of {}", now.free, before.total);
            return Some(Passed { limit: Limit::Inodes, value, pid: None, then: Then::Ends });
        }
        self.over(Limit::Inodes, before.free.saturating_sub(now.free), None)
    }

    /// Checks whether the machine has less memory left than half of [`RESERVE_BYTES_MAX`]. Some
    /// memory of a run is not visible in its processes.
    fn memory_short(&self, now: MachineMemory) -> Option<Passed> {
        let (before, now) = (self.memory?.available_bytes, now.available_bytes);
        let value = format!("the machine is nearly out of memory: {} are left", text_of(now));
        let short = before >= RESERVE_BYTES_MAX && now < RESERVE_BYTES_MAX / 2;
        short.then_some(Passed { limit: Limit::Memory, value, pid: None, then: Then::Ends })
    }

    /// Returns whether shared memory of the machine has grown so much that the run's part must be
    /// counted.
    fn may_share_much(&self, now: MachineMemory) -> bool {
        let before = self.memory.map_or(0, |before| before.shared_bytes);
        let worth = self.limits.memory_bytes.map_or(u64::MAX, |bytes| bytes / SHARED_PART);
        now.shared_bytes.saturating_sub(before) > worth
    }

    fn denial(&self, passed: Passed) -> Denial {
        let Passed { limit, value, pid, .. } = passed;
        let program = pid.and_then(program_of).map(|path| RawText::from(path.as_path()));
        self.limit_denial(limit, &value, (pid, program))
    }

    /// Returns whether the run used all its processes. The kernel does not report a fork refused
    /// for its count.
    fn was_full_of_processes(&self) -> bool {
        self.limits.processes.is_some_and(|amount| self.peak.processes >= amount)
    }

    fn limit_denial(&self, limit: Limit, value: &str, (pid, program): (Option<u32>, Option<RawText>)) -> Denial {
        Denial { pid, program, ..Denial::of_limit(limit, self.limits.get(limit), value) }
    }

    /// Ends the watch: adds the counters to `usage`, and returns the refusals of the kernel; `by`
    /// is the signal that ended the command.
    pub(crate) fn end(&mut self, usage: &mut Usage, by: Option<i32>) -> Spent {
        let counted = self.counted();
        let group = self.group.is_some();
        let some = |value: u64| (value > 0).then_some(value);
        if let Some(us) = counted.cpu_us {
            usage.cpu_ms = usage.cpu_ms.max(us / 1000);
        }
        usage.tree_memory_peak_bytes = counted.memory_peak_bytes.or_else(|| some(self.peak.memory_bytes));
        usage.processes_peak = counted.processes_peak.or_else(|| some(self.peak.processes));
        self.peak.written_bytes = self.peak.written_bytes.max(self.census.counted_by_init().unwrap_or_default());
        usage.written_bytes = some(self.peak.written_bytes);
        usage.throttled_ms = counted.throttled_us.and_then(|us| some(us / 1000));
        usage.memory_pressure_ms = counted.memory_pressure_us.and_then(|us| some(us / 1000));
        let mut spent = Spent::default();
        let refused = if group {
            counted.forks_refused.saturating_sub(self.forks_refused)
        } else {
            u64::from(self.was_full_of_processes())
        };
        if refused > 0 {
            let denial = self.limit_denial(Limit::Processes, "no more could be made", (None, None));
            spent.denials.push(Denial { count: refused, ..denial });
        }
        // The kernel reports this only to the process.
        if let Some((pid, program)) = self.peak.full_of_descriptors.take() {
            spent.denials.push(self.limit_denial(Limit::OpenFiles, "no more could be opened", (Some(pid), program)));
        }
        if !self.told {
            self.told = true;
            // The size limit of a file ends its writer before a check sees the file. If an approver
            // can be asked about it, the question came while the run was active.
            let written = self.disk.as_ref().filter(|_| self.raising.is_none()).map(|_| self.peak.written_bytes);
            let over = || self.over(Limit::Disk, written?, None);
            spent.breach = self.killed(&counted).or_else(over).map(|passed| self.denial(passed));
            let is_of_file = spent.breach.is_none() && by == Some(Signal::XFSZ.as_raw());
            let limits = [Limit::FileSize, Limit::Disk].into_iter().filter(|_| is_of_file);
            if let Some(limit) = limits.into_iter().find(|limit| self.limits.get(*limit).is_some()) {
                spent.denials.push(self.limit_denial(limit, "a file was to become larger", (None, None)));
            }
        }
        spent
    }
}

/// Returns the processor time of this thread, because on a busy machine the elapsed time of a check
/// exceeds its cost.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Formats memory, rounded down to a whole mebibyte.
fn text_of(bytes: u64) -> String {
    Limit::Memory.text(bytes >> 20 << 20)
}

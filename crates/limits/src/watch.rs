//! Polls the usage of a run, and reports when a limit is exceeded. The interval depends on the cost
//! of a check, and for writes on the remaining limit (`disk`). The watch ends no process itself. If
//! an approver can raise the limit, the run is frozen until the answer (`raising`). A run that must
//! end cannot write any more.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use stockade_model::{Denial, LimitKind, Limits, RawText, ResourceUsage};

use super::LimitGuard;
use super::disk::DiskCheckSchedule;
use super::file_size::{file_size, raise_file_size, refuse_writes};
use super::group::{ControlGroup, GroupCounters};
use super::processes::{ParentLister, ProcessCensus, UsageFields, UsageTotals, program_of};
use super::raising::{LimitEvent, LimitRaiser};
use super::report::LimitMechanism;
use super::resources::{self, FileCounts, FilesystemSpace, MachineMemory};

/// Shortest interval between two checks.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// A check may take at most one part in this number of the interval.
const CHECK_TIME_DIVISOR: u32 = 50;
/// Longest interval between two checks; limits that may be exceeded meanwhile are reported as
/// watched.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Divisor for the part of a disk, and of its files, that a run leaves to the host.
const RESERVE_DIVISOR: u64 = 20;
/// Upper bound of that part. Without a group, the watch leaves half as much memory to the host.
const MAX_RESERVE_BYTES: u64 = 1 << 30;
const MAX_RESERVE_FILES: u64 = 50_000;
/// Divisor for the part of its memory that may be shared before shared memory is counted.
const SHARED_MEMORY_DIVISOR: u64 = 4;
/// Divisor for the memory that is left when an approver is asked for more. At the limit itself, the
/// kernel kills a process without asking.
const MEMORY_LEFT_DIVISOR: u64 = 8;

/// The watch over one run. Removes the run's group on drop.
#[derive(Debug)]
pub struct LimitWatch {
    pub(super) limits: Limits,
    pub(super) group: Option<Arc<ControlGroup>>,
    watched: Vec<LimitKind>,
    /// Limit of open descriptors, which the kernel enforces for each process without a report.
    open_files: Option<u64>,
    census: ProcessCensus,
    workspace: PathBuf,
    room: Option<FilesystemSpace>,
    /// The machine's memory at the start, if only the watch enforces the limit.
    memory: Option<MachineMemory>,
    next: Instant,
    /// Schedule for counting writes between the checks of all limits.
    disk: Option<DiskCheckSchedule>,
    pub(super) breach_event: bool,
    /// Processes that were killed for lack of memory and have been reported.
    kills_before: u64,
    peak: PeakUsage,
    /// Failed forks when an approver was last asked for more.
    pub(super) forks_refused: u64,
    /// `None` if no approver can be asked.
    pub(super) raising: Option<LimitRaiser>,
}

#[derive(Clone, Debug, Default)]
struct PeakUsage {
    processes: u64,
    memory_bytes: u64,
    written_bytes: u64,
    /// The first process that had as many descriptors as it may have.
    full_of_descriptors: Option<(u32, Option<RawText>)>,
}

/// Usage of a run beyond the init's own report, and refusals that the kernel does not report.
#[derive(Debug, Default)]
pub struct LimitOutcome {
    /// Refusals by the kernel, which reports them only to the process.
    pub denials: Vec<Denial>,
    /// The limit that ended the run, if the kernel enforced it.
    pub breach: Option<Denial>,
}

/// A limit that was exceeded, or nearly so.
pub(super) struct ExceededLimit {
    pub(super) limit: LimitKind,
    value: String,
    pid: Option<u32>,
    pub(super) then: LimitEffect,
}

/// Effect if a limit is not raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitEffect {
    /// The run ends, and a higher limit would not help now.
    Ends,
    /// The run ends, unless the limit is raised.
    EndsUnlessRaised,
    /// The run continues: the kernel enforces the limit.
    GoesOn,
}

impl LimitWatch {
    pub(super) fn new(guard: LimitGuard, (init, beside): (u32, ParentLister), asks: bool) -> Self {
        let is_watched =
            |holder: &LimitMechanism| matches!(holder, LimitMechanism::Watch | LimitMechanism::WatchedFilesystem);
        let watched: Vec<LimitKind> =
            guard.holders.iter().filter(|(.., holder)| is_watched(holder)).map(|(limit, ..)| *limit).collect();
        let room = [LimitKind::Disk, LimitKind::Inodes].iter().any(|limit| watched.contains(limit));
        let disk = guard.limits.disk_bytes.filter(|_| watched.contains(&LimitKind::Disk)).map(DiskCheckSchedule::new);
        Self {
            disk,
            room: room.then(|| FilesystemSpace::at_path(&guard.workspace)).flatten(),
            memory: watched.contains(&LimitKind::Memory).then(MachineMemory::read_now).flatten(),
            raising: asks.then(|| LimitRaiser::new(init, guard.group.clone())),
            open_files: resources::open_files(&guard.limits),
            limits: guard.limits,
            group: guard.group,
            watched,
            census: ProcessCensus::new(init, beside),
            workspace: guard.workspace,
            next: Instant::now() + MIN_CHECK_INTERVAL,
            breach_event: false,
            kills_before: 0,
            peak: PeakUsage::default(),
            forks_refused: 0,
        }
    }

    /// Returns the time until the next check; `None` if no check is needed.
    pub fn next_look(&self) -> Option<Duration> {
        let stands = self.raising.as_ref().is_some_and(LimitRaiser::is_frozen);
        let looks = !self.breach_event
            && !stands
            && (self.group.is_some() || !self.watched.is_empty() || self.open_files.is_some());
        let next = self.next.saturating_duration_since(Instant::now());
        looks.then(|| self.disk.as_ref().map_or(next, |disk| next.min(disk.until_next())))
    }

    /// Checks the limits, if it is time. Reports an exceeded limit once, or again after each raise.
    pub fn check_limits(&mut self) -> Option<LimitEvent> {
        if self.next_look()? > Duration::ZERO {
            return None;
        }
        let (begun, busy) = (Instant::now(), processor_time());
        let is_whole = begun >= self.next;
        let passed = if is_whole { self.find_exceeded() } else { self.disk_passed() };
        let took = processor_time().saturating_sub(busy);
        match &mut self.disk {
            Some(disk) if !is_whole => disk.record_check_time(took, CHECK_TIME_DIVISOR),
            _ => self.next = begun + (took * CHECK_TIME_DIVISOR).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL),
        }
        let passed = passed?;
        let (limit, then) = (passed.limit, passed.then);
        let denial = self.make_denial(passed);
        let breach_event = self.ask_for_raise(limit, then, denial);
        self.breach_event = matches!(breach_event, Some(LimitEvent::Breached(_)));
        if self.breach_event {
            self.stop_writing(limit);
        }
        breach_event
    }

    /// Prevents further writes of a run that exceeded its disk limit. The run is first asked to
    /// end, and might ignore that.
    pub(super) fn stop_writing(&self, limit: LimitKind) {
        if limit == LimitKind::Disk && self.disk.is_some() {
            refuse_writes(|| self.census.list_processes());
        }
    }

    /// Raises the file size limits to the present limits.
    pub(super) fn raise_files(&self) {
        let size = file_size(&self.limits, true);
        size.iter().for_each(|size| raise_file_size(|| self.census.list_processes(), size));
    }

    /// Records the writes of all processes that the init has reaped.
    pub fn init_counted(&mut self, bytes: u64) {
        self.census.init_counted(bytes);
    }

    /// Resumes checking after an exceeded limit. Earlier kills are not reported again.
    pub fn resume_checks(&mut self) {
        self.kills_before = self.read_counters().out_of_memory_kills;
        self.breach_event = false;
        // The written size stays; processes that must end because of it get time to do so.
        self.disk.iter_mut().for_each(|disk| disk.delay_check(MIN_CHECK_INTERVAL));
    }

    fn find_exceeded(&mut self) -> Option<ExceededLimit> {
        let counted = self.read_counters();
        if let Some(passed) = self.check_memory_kills(&counted).or_else(|| self.held_by_kernel(&counted)) {
            return Some(passed);
        }
        let machine = self.memory.and_then(|_| MachineMemory::read_now());
        if let Some(passed) = self.room_passed().or_else(|| self.memory_short(machine?)) {
            return Some(passed);
        }
        let cpu_ms = counted.cpu_us.map(|us| us / 1000);
        if let Some(passed) = cpu_ms.and_then(|ms| self.check_amount(LimitKind::CpuTime, ms, None)) {
            return Some(passed);
        }
        let watches = |limit| self.watched.contains(&limit);
        let (memory, written) = (watches(LimitKind::Memory), watches(LimitKind::Disk));
        let open = self.open_files.is_some();
        if !(memory
            || written
            || open
            || watches(LimitKind::Processes)
            || watches(LimitKind::CpuTime) && cpu_ms.is_none())
        {
            return None;
        }
        let shared = machine.is_some_and(|now| self.may_share_much(now));
        let tally = self.count_usage(UsageFields { memory, shared, written, open });
        let pid_of = |most: Option<(u32, u64)>| most.map(|(pid, _)| pid);
        self.check_amount(LimitKind::Memory, tally.memory_bytes, pid_of(tally.largest))
            .or_else(|| self.check_amount(LimitKind::Disk, self.peak.written_bytes, pid_of(tally.busiest_writer)))
            .or_else(|| self.check_amount(LimitKind::Processes, tally.processes, None))
            .or_else(|| self.check_amount(LimitKind::CpuTime, tally.cpu_ms, None))
    }

    /// Checks whether more was written than allowed. Counts the writes of the processes if they can
    /// be that much, or the usage of a filesystem in memory.
    fn disk_passed(&mut self) -> Option<ExceededLimit> {
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
        let tally = self.count_usage(UsageFields { written: true, ..UsageFields::default() });
        self.check_amount(LimitKind::Disk, self.peak.written_bytes, tally.busiest_writer.map(|(pid, _)| pid))
    }

    /// Counts the usage of every process, and keeps the maximum.
    fn count_usage(&mut self, look: UsageFields) -> UsageTotals {
        let tally = self.census.count_usage(look);
        self.update_peak(&tally);
        let written = self.peak.written_bytes;
        self.disk.iter_mut().filter(|_| look.written).for_each(|disk| disk.record_count(written));
        tally
    }

    fn update_peak(&mut self, tally: &UsageTotals) {
        self.peak.processes = self.peak.processes.max(tally.processes);
        self.peak.memory_bytes = self.peak.memory_bytes.max(tally.memory_bytes);
        self.peak.written_bytes = self.peak.written_bytes.max(tally.written_bytes);
        let was_full = self.peak.full_of_descriptors.is_some();
        let amount = self.open_files.unwrap_or(u64::MAX);
        if let (false, Some((pid, _))) = (was_full, tally.most_open.filter(|(_, open)| *open >= amount)) {
            self.peak.full_of_descriptors = Some((pid, program_of(pid).map(|path| RawText::from(path.as_path()))));
        }
    }

    pub(super) fn read_counters(&self) -> GroupCounters {
        self.group.as_ref().map(|group| group.read_counters()).unwrap_or_default()
    }

    /// Returns a watched limit that `value` exceeds.
    fn check_amount(&self, limit: LimitKind, value: u64, pid: Option<u32>) -> Option<ExceededLimit> {
        let amount = self.limits.get(limit).filter(|_| self.watched.contains(&limit))?;
        let then = LimitEffect::EndsUnlessRaised;
        (value > amount).then(|| ExceededLimit {
            limit,
            value: format!("{} were used", limit.format_amount(value)),
            pid,
            then,
        })
    }

    /// Checks limits that the kernel enforces: failed forks, or memory nearly used up. Used only if
    /// an approver may raise them.
    fn held_by_kernel(&mut self, counted: &GroupCounters) -> Option<ExceededLimit> {
        let asks = |limit| self.raising.as_ref().is_some_and(|raising| !raising.is_settled(limit));
        let then = LimitEffect::GoesOn;
        if asks(LimitKind::Processes) && counted.forks_refused > self.forks_refused {
            self.forks_refused = counted.forks_refused;
            let value = "no more could be made".to_owned();
            return Some(ExceededLimit { limit: LimitKind::Processes, value, pid: None, then });
        }
        let group =
            self.group.as_ref().filter(|group| asks(LimitKind::Memory) && group.enforces_limit(LimitKind::Memory))?;
        let (amount, used) = (self.limits.memory_bytes?, group.memory_in_use()?);
        let value =
            format!("{} are used, and at the limit the kernel kills a process that requests more", text_of(used));
        (used > amount - amount / MEMORY_LEFT_DIVISOR).then_some(ExceededLimit {
            limit: LimitKind::Memory,
            value,
            pid: None,
            then,
        })
    }

    /// Checks whether the kernel killed a process for lack of memory.
    fn check_memory_kills(&self, counted: &GroupCounters) -> Option<ExceededLimit> {
        let kills = counted.out_of_memory_kills.saturating_sub(self.kills_before);
        let value = format!("out of memory: the kernel ended {kills} of its processes");
        (kills > 0).then_some(ExceededLimit { limit: LimitKind::Memory, value, pid: None, then: LimitEffect::Ends })
    }

    /// Checks whether the filesystem of the workspace has less space left than the host's reserve,
    /// or whether too much was written to it.
    fn room_passed(&self) -> Option<ExceededLimit> {
        let before = self.room?;
        let now = FilesystemSpace::at_path(&self.workspace)?;
        let files = || before.files.zip(now.files).and_then(|(before, now)| self.files_passed(before, now));
        self.bytes_passed(before, now).or_else(files)
    }

    fn bytes_passed(&self, before: FilesystemSpace, now: FilesystemSpace) -> Option<ExceededLimit> {
        let reserve = (before.total_bytes / RESERVE_DIVISOR).min(MAX_RESERVE_BYTES);
        // If less was free before the run, the run is not the cause.
        if self.watched.contains(&LimitKind::Disk) && before.free_bytes >= reserve && now.free_bytes < reserve {
            let free_space = LimitKind::Disk.format_amount(now.free_bytes >> 20 << 20);
            let value = format!(
                "the disk is nearly full: {free_space} are left of {}",
                LimitKind::Disk.format_amount(before.total_bytes)
            );
            return Some(ExceededLimit { limit: LimitKind::Disk, value, pid: None, then: LimitEffect::Ends });
        }
        let used_bytes = before.free_bytes.saturating_sub(now.free_bytes);
        if before.in_memory { self.check_amount(LimitKind::Disk, used_bytes, None) } else { None }
    }

    fn files_passed(&self, before: FileCounts, now: FileCounts) -> Option<ExceededLimit> {
        let reserve = (before.total / RESERVE_DIVISOR).min(MAX_RESERVE_FILES);
        if before.free >= reserve && now.free < reserve {
            let value = format!("the filesystem is nearly full: {} files are left of {}", now.free, before.total);
            return Some(ExceededLimit { limit: LimitKind::Inodes, value, pid: None, then: LimitEffect::Ends });
        }
        self.check_amount(LimitKind::Inodes, before.free.saturating_sub(now.free), None)
    }

    /// Checks whether the machine has less memory left than half of [`MAX_RESERVE_BYTES`]. Some
    /// memory of a run is not visible in its processes.
    fn memory_short(&self, now: MachineMemory) -> Option<ExceededLimit> {
        let (before, now) = (self.memory?.available_bytes, now.available_bytes);
        let value = format!("the machine is nearly out of memory: {} are left", text_of(now));
        let short = before >= MAX_RESERVE_BYTES && now < MAX_RESERVE_BYTES / 2;
        short.then_some(ExceededLimit { limit: LimitKind::Memory, value, pid: None, then: LimitEffect::Ends })
    }

    /// Returns whether shared memory of the machine has grown so much that the run's part must be
    /// counted.
    fn may_share_much(&self, now: MachineMemory) -> bool {
        let before = self.memory.map_or(0, |before| before.shared_bytes);
        let worth = self.limits.memory_bytes.map_or(u64::MAX, |bytes| bytes / SHARED_MEMORY_DIVISOR);
        now.shared_bytes.saturating_sub(before) > worth
    }

    fn make_denial(&self, passed: ExceededLimit) -> Denial {
        let ExceededLimit { limit, value, pid, .. } = passed;
        let program = pid.and_then(program_of).map(|path| RawText::from(path.as_path()));
        self.limit_denial(limit, &value, (pid, program))
    }

    /// Returns whether the run used all its processes. The kernel does not report a fork refused
    /// for its count.
    fn was_full_of_processes(&self) -> bool {
        self.limits.processes.is_some_and(|amount| self.peak.processes >= amount)
    }

    fn limit_denial(&self, limit: LimitKind, value: &str, (pid, program): (Option<u32>, Option<RawText>)) -> Denial {
        Denial { pid, program, ..Denial::of_limit(limit, self.limits.get(limit), value) }
    }

    /// Ends the watch: adds the counters to `usage`, and returns the refusals of the kernel; `by`
    /// is the signal that ended the command.
    pub fn finish_watch(&mut self, usage: &mut ResourceUsage, by: Option<i32>) -> LimitOutcome {
        let counted = self.read_counters();
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
        let mut outcome = LimitOutcome::default();
        let refused = if group {
            counted.forks_refused.saturating_sub(self.forks_refused)
        } else {
            u64::from(self.was_full_of_processes())
        };
        if refused > 0 {
            let denial = self.limit_denial(LimitKind::Processes, "no more could be made", (None, None));
            outcome.denials.push(Denial { count: refused, ..denial });
        }
        // The kernel reports this only to the process.
        if let Some((pid, program)) = self.peak.full_of_descriptors.take() {
            outcome.denials.push(self.limit_denial(
                LimitKind::OpenFiles,
                "no more could be opened",
                (Some(pid), program),
            ));
        }
        if !self.breach_event {
            self.breach_event = true;
            // The size limit of a file ends its writer before a check sees the file. If an approver
            // can be asked about it, the question came while the run was active.
            let written = self.disk.as_ref().filter(|_| self.raising.is_none()).map(|_| self.peak.written_bytes);
            let over = || self.check_amount(LimitKind::Disk, written?, None);
            outcome.breach = self.check_memory_kills(&counted).or_else(over).map(|passed| self.make_denial(passed));
            let is_of_file = outcome.breach.is_none() && by == Some(Signal::XFSZ.as_raw());
            let limits = [LimitKind::FileSize, LimitKind::Disk].into_iter().filter(|_| is_of_file);
            if let Some(limit) = limits.into_iter().find(|limit| self.limits.get(*limit).is_some()) {
                outcome.denials.push(self.limit_denial(limit, "a file would have become larger", (None, None)));
            }
        }
        outcome
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
    LimitKind::Memory.format_amount(bytes >> 20 << 20)
}

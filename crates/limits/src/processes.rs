//! The processes of a run, found from its init downwards, and their usage, for runs without a group
//! that counts it. Must not depend on limits.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use rustix::param::{clock_ticks_per_second, page_size};

use super::numbers::{find_number, parse_written_bytes};

/// Most processes that are examined in one pass; beyond it, only number and processor time are
/// counted.
const MAX_PROCESSES: usize = 20_000;

/// Prefix of the kernel's names for memory files without a name.
const MEMFD_PREFIX: &[u8] = b"/memfd:";

/// Total usage of a run's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageTotals {
    /// Processes and threads, without the init.
    pub(super) processes: u64,
    pub(super) cpu_ms: u64,
    /// Memory that is not shared, and on request shared memory.
    pub(super) memory_bytes: u64,
    /// Bytes that will be written to a disk.
    pub(super) written_bytes: u64,
    /// The process with the most memory.
    pub(super) largest: Option<(u32, u64)>,
    /// The process that wrote the most.
    pub(super) busiest_writer: Option<(u32, u64)>,
    /// The process with the most open descriptors.
    pub(super) most_open: Option<(u32, u64)>,
}

/// Values to read besides number and time. Each value costs one file for each process; shared
/// memory costs one file for each descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageFields {
    pub(super) memory: bool,
    pub(super) shared: bool,
    pub(super) written: bool,
    pub(super) open: bool,
}

/// Memory behind files without a name (memfd_create(2)), and the largest shared mapping of one
/// process. Both may be the same memory.
#[derive(Debug, Default)]
struct SharedMemory {
    files: HashMap<(u64, u64), u64>,
    mapped_most: u64,
}

impl SharedMemory {
    fn add_process(&mut self, pid: u32) {
        self.mapped_most = self.mapped_most.max(shared_mapped(pid));
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return };
        for path in descriptors.flatten().map(|descriptor| descriptor.path()) {
            let is_memory =
                fs::read_link(&path).is_ok_and(|target| target.as_os_str().as_bytes().starts_with(MEMFD_PREFIX));
            if let (true, Ok(file)) = (is_memory, fs::metadata(&path)) {
                self.files.insert((file.dev(), file.ino()), file.blocks().saturating_mul(512));
            }
        }
    }

    fn total_bytes(&self) -> u64 {
        self.files.values().sum::<u64>().max(self.mapped_most)
    }
}

/// A process, identified by number and start time, so that a reused number is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    pid: u32,
    start: u64,
}

impl ProcessIdentity {
    /// Returns the process that has this number now.
    pub fn from_pid(pid: u32) -> Option<Self> {
        Some(Self { pid, start: ProcessStat::from_pid(pid)?.start })
    }

    fn is_there(self) -> bool {
        Self::from_pid(self.pid) == Some(self)
    }
}

/// Callback that lists processes outside the init's children whose children belong to the run.
pub type ParentLister = Box<dyn Fn() -> Vec<ProcessIdentity> + Send>;

/// Repeated count, which remembers the usage of processes that have ended.
pub(super) struct ProcessCensus {
    init: u32,
    beside: ParentLister,
    /// Writes of the processes that the init has reaped, as the init reports them.
    init_bytes: Option<u64>,
    /// Writes of orphans that have ended; the writes of other processes are added to their parents.
    written_before: u64,
    orphans: HashMap<u32, u64>,
    /// The same for processes whose parents are beside the init.
    written_beside: u64,
    beside_bytes: HashMap<u32, u64>,
    /// Cancelled writes at the last count: data removed before it reached a disk.
    cancelled: u64,
    written: MonotonicCount,
    cpu: MonotonicCount,
}

/// A count that only grows. If the parent of a process ignores SIGCHLD, the kernel adds the
/// process's usage to no other process at its end. Then the sum over the remaining processes falls.
#[derive(Debug, Default)]
struct MonotonicCount {
    last: u64,
    lost: u64,
}

impl MonotonicCount {
    fn has_fallen(&self, sum: u64, explained: u64) -> bool {
        sum + self.lost + explained < self.last
    }

    /// Returns the count for this sum. `explained` is the part of a fall that has a known reason.
    fn record_sum(&mut self, sum: u64, explained: u64) -> u64 {
        if self.has_fallen(sum, explained) {
            self.lost = self.last - sum - explained;
        }
        self.last = sum + self.lost;
        self.last
    }
}

/// The parent of a process, to which the kernel adds its writes when it has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParentKind {
    /// The init, whose own count only root may read.
    Init,
    /// A process beside the init, whose count is not used.
    Beside,
    /// Another process of the run.
    Other,
}

impl fmt::Debug for ProcessCensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Census").field("init", &self.init).finish_non_exhaustive()
    }
}

impl ProcessCensus {
    pub(super) fn new(init: u32, beside: ParentLister) -> Self {
        Self {
            init,
            beside,
            init_bytes: None,
            written_before: 0,
            orphans: HashMap::new(),
            written_beside: 0,
            beside_bytes: HashMap::new(),
            cancelled: 0,
            written: MonotonicCount::default(),
            cpu: MonotonicCount::default(),
        }
    }

    /// Records the writes of all processes that the init has reaped.
    pub(super) fn init_counted(&mut self, bytes: u64) {
        self.init_bytes = Some(bytes);
    }

    /// Returns the last report of the init: all writes of the run, after its last process has
    /// ended.
    pub(super) fn counted_by_init(&self) -> Option<u64> {
        self.init_bytes
    }

    /// Lists the children of the init, and of the processes beside it.
    fn list_top_processes(&self) -> Vec<(u32, ParentKind)> {
        let beside = (self.beside)().into_iter().filter(|known| known.is_there());
        let beside_bytes = beside.flat_map(|known| read_children(known.pid)).map(|pid| (pid, ParentKind::Beside));
        read_children(self.init).into_iter().map(|pid| (pid, ParentKind::Init)).chain(beside_bytes).collect()
    }

    /// Lists every process of the run.
    pub(super) fn list_processes(&self) -> Vec<RunProcess> {
        list_with_descendants(self.list_top_processes().into_iter().map(|(pid, _)| pid).collect())
    }

    /// Counts the usage of every process.
    pub(super) fn count_usage(&mut self, what: UsageFields) -> UsageTotals {
        let (mut tally, mut cancelled) = self.count_once(what);
        let explained = |census: &Self, cancelled: u64| cancelled.saturating_sub(census.cancelled);
        let has_fallen = self.cpu.has_fallen(tally.cpu_ms, 0)
            || what.written && self.written.has_fallen(tally.written_bytes, explained(self, cancelled));
        // A process that is reaped during a count is in neither sum.
        if has_fallen {
            (tally, cancelled) = self.count_once(what);
        }
        tally.cpu_ms = self.cpu.record_sum(tally.cpu_ms, 0);
        if what.written {
            tally.written_bytes = self.written.record_sum(tally.written_bytes, explained(self, cancelled));
            self.cancelled = cancelled;
        }
        tally
    }

    /// Counts once. Returns also the bytes that were removed before they reached a disk.
    fn count_once(&mut self, what: UsageFields) -> (UsageTotals, u64) {
        let UsageFields { memory, shared, written, open } = what;
        let mut tally = UsageTotals::default();
        let mut objects = SharedMemory::default();
        let (mut orphans, mut beside_bytes) = (HashMap::new(), HashMap::new());
        let init_written = if written { written_by(self.init) } else { None };
        if let Some(stat) = ProcessStat::from_pid(self.init) {
            tally.cpu_ms += stat.cpu_ms;
        }
        let mut waiting = self.list_top_processes();
        let (mut seen, mut all_cancelled) = (0, 0);
        while let Some((pid, parent)) = waiting.pop() {
            let Some(stat) = ProcessStat::from_pid(pid) else { continue };
            seen += 1;
            tally.processes += stat.threads;
            tally.cpu_ms += stat.cpu_ms;
            if seen > MAX_PROCESSES {
                continue;
            }
            waiting.extend(read_children(pid).into_iter().map(|child| (child, ParentKind::Other)));
            if memory {
                let bytes = memory_of(pid);
                tally.memory_bytes += bytes;
                tally.largest = tally.largest.max_by(pid, bytes);
            }
            if shared {
                objects.add_process(pid);
            }
            if open {
                tally.most_open = tally.most_open.max_by(pid, open_descriptors(pid));
            }
            if written && let Some((gross, cancelled)) = written_and_cancelled(pid) {
                let bytes = gross.saturating_sub(cancelled);
                all_cancelled += cancelled;
                tally.written_bytes += bytes;
                tally.busiest_writer = tally.busiest_writer.max_by(pid, bytes);
                match parent {
                    ParentKind::Init => drop(orphans.insert(pid, bytes)),
                    ParentKind::Beside => drop(beside_bytes.insert(pid, bytes)),
                    ParentKind::Other => {}
                }
            }
        }
        tally.memory_bytes += objects.total_bytes();
        tally.written_bytes += self.ended_beside(beside_bytes, &orphans);
        tally.written_bytes += self.ended_before(init_written, orphans);
        (tally, all_cancelled)
    }

    /// Returns the writes of ended children of processes beside the init.
    fn ended_beside(&mut self, beside_bytes: HashMap<u32, u64>, orphans: &HashMap<u32, u64>) -> u64 {
        let before = std::mem::replace(&mut self.beside_bytes, beside_bytes);
        let is_gone = |pid: &u32| !self.beside_bytes.contains_key(pid) && !orphans.contains_key(pid);
        self.written_beside += before.iter().filter(|(pid, _)| is_gone(pid)).map(|(_, bytes)| bytes).sum::<u64>();
        self.written_beside
    }

    /// Returns the writes of ended children of the init. The init's own count contains them, but
    /// only root may read it.
    fn ended_before(&mut self, init_written: Option<u64>, orphans: HashMap<u32, u64>) -> u64 {
        let before = std::mem::replace(&mut self.orphans, orphans);
        let ended_bytes =
            before.iter().filter(|(pid, _)| !self.orphans.contains_key(pid)).map(|(_, bytes)| bytes).sum::<u64>();
        self.written_before += ended_bytes;
        // Each value is a lower bound, so the largest is the best.
        init_written.max(self.init_bytes).unwrap_or_default().max(self.written_before)
    }
}

trait KeepMax {
    fn max_by(self, pid: u32, bytes: u64) -> Self;
}

impl KeepMax for Option<(u32, u64)> {
    fn max_by(self, pid: u32, bytes: u64) -> Self {
        if self.is_none_or(|(_, most)| bytes > most) { Some((pid, bytes)) } else { self }
    }
}

/// A process of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunProcess {
    pub(super) pid: u32,
    pub(super) start: u64,
    /// True if it executes no instruction, because it was stopped or has ended.
    pub(super) stands: bool,
}

/// Lists every process beneath `init`, without the init.
pub(super) fn list_descendants(init: u32) -> Vec<RunProcess> {
    list_with_descendants(read_children(init))
}

/// Lists these processes, and every process beneath them.
fn list_with_descendants(mut waiting: Vec<u32>) -> Vec<RunProcess> {
    let mut found = Vec::new();
    while let Some(pid) = waiting.pop() {
        let Some(stat) = ProcessStat::from_pid(pid) else { continue };
        found.push(RunProcess { pid, start: stat.start, stands: b"TtZXx".contains(&stat.state) });
        if found.len() < MAX_PROCESSES {
            waiting.extend(read_children(pid));
        }
    }
    found
}

/// Returns whether the number still belongs to that process.
pub(super) fn is_same(process: &RunProcess) -> bool {
    start_of(process.pid) == Some(process.start)
}

/// Returns the start time of a process, in clock ticks since the boot.
pub(super) fn start_of(pid: u32) -> Option<u64> {
    ProcessStat::from_pid(pid).map(|stat| stat.start)
}

/// Lists the children of all threads of a process (proc_tid_children(5)).
fn read_children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let texts = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    texts.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The fields of proc_pid_stat(5) in use.
struct ProcessStat {
    state: u8,
    /// Time of the process and of the children that it waited for.
    cpu_ms: u64,
    threads: u64,
    start: u64,
}

impl ProcessStat {
    fn from_pid(pid: u32) -> Option<Self> {
        Self::parse_text(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the text. The name is in parentheses and may contain any byte, so the fields are
    /// after the last parenthesis.
    fn parse_text(text: &[u8]) -> Option<Self> {
        let close = text.iter().rposition(|b| *b == b')')?;
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        // The first field here is the third of the file.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = field(14)? + field(15)? + field(16)? + field(17)?;
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            cpu_ms: ticks.saturating_mul(1000) / clock_ticks_per_second().max(1),
            threads: field(20)?,
            start: field(22)?,
        })
    }
}

/// Returns the shared memory that a process has mapped and touched (proc_pid_status(5)).
fn shared_mapped(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    find_number(&text, "RssShmem").unwrap_or(0).saturating_mul(1024)
}

fn memory_of(pid: u32) -> u64 {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/statm")) else { return 0 };
    let mut pages = text.split(' ').skip(1).map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared).saturating_mul(page_size() as u64)
}

/// Returns the number of open descriptors of a process: the size of their directory from kernel 6.2
/// on, else the number of its names.
fn open_descriptors(pid: u32) -> u64 {
    let directory = format!("/proc/{pid}/fd");
    match fs::metadata(&directory).map_or(0, |found| found.len()) {
        0 => fs::read_dir(&directory).map_or(0, |names| names.count() as u64),
        open => open,
    }
}

/// Returns the writes of a process and the children that it waited for, without data removed before
/// it reached a disk (proc_pid_io(5)).
fn written_by(pid: u32) -> Option<u64> {
    written_and_cancelled(pid).map(|(written, cancelled)| written.saturating_sub(cancelled))
}

fn written_and_cancelled(pid: u32) -> Option<(u64, u64)> {
    parse_written_bytes(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?)
}

/// Returns the program of a process, if it can be read.
pub(super) fn program_of(pid: u32) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_of_ended_processes_are_still_counted() {
        let mut steady = MonotonicCount::default();
        let counts =
            [(10, 0), (30, 0), (12, 0), (20, 0), (5, 4), (25, 0)].map(|(sum, known)| steady.record_sum(sum, known));
        assert_eq!(counts, [10, 30, 30, 38, 34, 54]);
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let text = b"7 (a) 1 2) S 1 7 7 0 -1 4194560 9 9 0 0 100 50 25 25 20 0 3 0 4242 0 0";
        let stat = ProcessStat::parse_text(text).unwrap();
        let ticks = clock_ticks_per_second();
        assert_eq!((stat.state, stat.cpu_ms, stat.threads), (b'S', 200 * 1000 / ticks, 3));
        assert_eq!(stat.start, 4242);
        assert!(ProcessStat::parse_text(b"7 (a").is_none());
        assert!(ProcessStat::parse_text(b"7 (a) S 1").is_none());
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a process to look at, without a sandbox")]
    fn the_processes_beneath_one_are_found() {
        let mut shell = std::process::Command::new("/bin/sh")
            .args(["-c", "sleep 60 & echo started; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        let [sleeper] = *read_children(shell.id()) else { panic!("not one child") };
        assert_eq!(ProcessCensus::new(shell.id(), Box::new(Vec::new)).count_usage(UsageFields::default()).processes, 1);
        kill(sleeper);
        shell.wait().unwrap();
        assert!(read_children(shell.id()).is_empty());
        assert!(start_of(std::process::id()).is_some());
    }

    #[test]
    fn open_descriptors_are_counted() {
        let before = open_descriptors(std::process::id());
        let files: Vec<_> = (0..100).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open and close some, too.
        assert!(open_descriptors(std::process::id()) >= before.max(1) + 50, "{before} before, {}", files.len());
    }

    #[test]
    fn memory_behind_a_file_without_a_name_is_counted_once() {
        let file = rustix::fs::memfd_create("held", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let twin = rustix::io::dup(&file).unwrap();
        rustix::io::write(&file, &[1; 1 << 20]).unwrap();
        let mut shared = SharedMemory::default();
        shared.add_process(std::process::id());
        let held = fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&twin))).unwrap();
        assert_eq!(shared.files.get(&(held.dev(), held.ino())), Some(&(1 << 20)));
    }

    fn kill(pid: u32) {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

//! Schedule for counting a run's writes. A run must not write much beyond its limit between two
//! counts, and counting must cost almost nothing while the run writes little.
//!
//! A count reads files of every process. Before a count, one file (`/proc/vmstat`) shows the writes
//! of the whole machine. If they are smaller than the remaining limit, the run is within its limit
//! and is not counted.
//!
//! Must not depend on processes, or on the effect of a breach.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::param::page_size;

use super::numbers::find_number;

/// Upper bound of the bytes that one processor copies into the page cache in a millisecond
/// (measured: 1 to 3 MiB).
const BYTES_PER_MS: u64 = 4 << 20;
/// Shortest interval between two counts.
const MIN_COUNT_INTERVAL: Duration = Duration::from_millis(2);
/// The same while no process on the machine writes.
const MIN_IDLE_COUNT_INTERVAL: Duration = Duration::from_millis(10);
/// Longest interval between two counts; the other limits are checked more often.
const MAX_COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Writes below this size in one interval are ignored: a log, a journal.
const MAX_IDLE_BYTES: u64 = 256 << 10;
/// Largest number of pages that one processor has not yet added to the machine's count (the largest
/// `stat_threshold`, mm/vmstat.c).
const MAX_UNCOUNTED_PAGES: u64 = 125;
/// Number of processors assumed until the first check.
const ASSUMED_PROCESSORS: u64 = 16;
/// Buffer size for `/proc/vmstat`.
const VMSTAT_BYTES: usize = 16 << 10;

/// Bytes that one writer may write between two counts, for the enforcement report.
pub(super) const MAX_OVERSHOOT_BYTES: u64 = 20 << 20;

/// State of the schedule for one run.
#[derive(Debug)]
pub(super) struct DiskCheckSchedule {
    machine: Option<MachineWrites>,
    /// True until the first check.
    is_first: bool,
    processors: u64,
    /// Writes of the machine at the last count of the run, if they were read before it, and at the
    /// last check.
    machine_at_count: Option<u64>,
    machine_at_look: u64,
    /// Writes of the run at the last count.
    used: u64,
    next: Instant,
}

impl DiskCheckSchedule {
    /// Makes the schedule of a run with `limit` bytes that begins now. Reads nothing yet, because
    /// most runs end before their first check.
    pub(super) fn new(limit: u64) -> Self {
        let mut pace = Self {
            machine: None,
            is_first: true,
            processors: ASSUMED_PROCESSORS,
            machine_at_count: None,
            machine_at_look: 0,
            used: 0,
            next: Instant::now(),
        };
        pace.next += pace.compute_interval(limit, 0, false);
        pace
    }

    /// Returns the time until the next check.
    pub(super) fn until_next(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Reads the writes of the machine. Returns true if the run may have exceeded `limit` since its
    /// last count and so must be counted.
    pub(super) fn may_have_passed(&mut self, limit: u64) -> bool {
        let is_first = std::mem::take(&mut self.is_first);
        if is_first {
            self.machine = MachineWrites::open();
            self.processors = count_processors();
        }
        let Some(now) = self.machine.as_mut().and_then(MachineWrites::read_bytes) else {
            self.next = Instant::now() + self.compute_interval(limit, 0, false);
            return true;
        };
        if is_first {
            self.machine_at_count = None;
        }
        let is_idle = now.saturating_sub(self.machine_at_look) < MAX_IDLE_BYTES;
        self.machine_at_look = now;
        // The writes before the first check are unknown.
        let since = self.machine_at_count.map(|before| now.saturating_sub(before));
        self.next = Instant::now() + self.compute_interval(limit, since.unwrap_or_default(), is_idle);
        let used = |since: u64| self.used.saturating_add(since).saturating_add(self.uncounted_bytes());
        since.is_none_or(|since| used(since) > limit)
    }

    /// Records a count: the run had written `used` bytes. If the machine reports fewer writes than
    /// the run, its file is wrong (a container runtime may emulate it) and is not used again.
    pub(super) fn record_count(&mut self, used: u64) {
        let before = self.machine_at_count.replace(self.machine_at_look);
        let grown = used.saturating_sub(std::mem::replace(&mut self.used, used));
        let uncounted = self.uncounted_bytes();
        let is_more = |before: u64, now: u64| grown > now.saturating_sub(before).saturating_add(uncounted);
        if let Some(before) = before
            && is_more(before, self.machine_at_look)
            && let Some(now) = self.machine.as_mut().and_then(MachineWrites::read_bytes)
            && is_more(before, now)
        {
            self.machine = None;
        }
    }

    /// Returns the bytes that may be missing in the machine's count.
    fn uncounted_bytes(&self) -> u64 {
        self.processors.saturating_mul(MAX_UNCOUNTED_PAGES * page_size() as u64)
    }

    /// Delays the next check by at least this time.
    pub(super) fn delay_check(&mut self, time: Duration) {
        self.next = self.next.max(Instant::now() + time);
    }

    /// Records that a check took `time` of a processor. Delays the next check by at least `share`
    /// times as long.
    pub(super) fn record_check_time(&mut self, time: Duration, share: u32) {
        self.delay_check((time * share).min(MAX_COUNT_INTERVAL));
    }

    /// Returns an interval, within bounds, in which the run cannot exceed `limit`. `since` is the
    /// size of the writes since the last count.
    fn compute_interval(&self, limit: u64, since: u64, is_idle: bool) -> Duration {
        let remaining_bytes = limit.saturating_sub(self.used.saturating_add(since));
        let safe = Duration::from_millis(remaining_bytes / (BYTES_PER_MS * self.processors));
        safe.clamp(if is_idle { MIN_IDLE_COUNT_INTERVAL } else { MIN_COUNT_INTERVAL }, MAX_COUNT_INTERVAL)
    }
}

/// All writes of the machine since its start (`/proc/vmstat`): pages that became dirty, and direct
/// writes to the disks (O_DIRECT). Some writes count twice.
#[derive(Debug)]
struct MachineWrites {
    file: File,
    text: Vec<u8>,
}

impl MachineWrites {
    fn open() -> Option<Self> {
        let file = File::open("/proc/vmstat").ok()?;
        Some(Self { file, text: vec![0; VMSTAT_BYTES] })
    }

    fn read_bytes(&mut self) -> Option<u64> {
        let length = self.file.read_at(&mut self.text, 0).ok()?;
        bytes_of(self.text.get(..length)?)
    }
}

fn bytes_of(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let dirtied = find_number(text, "nr_dirtied")?.saturating_mul(page_size() as u64);
    Some(dirtied.saturating_add(find_number(text, "pgpgout")?.saturating_mul(1024)))
}

/// Returns the number of possible processors, because all of them can write.
fn count_processors() -> u64 {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|number| number.parse::<u64>().ok());
    last.map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u64), |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(processors: u64, used: u64) -> DiskCheckSchedule {
        let next = Instant::now();
        DiskCheckSchedule {
            machine: None,
            is_first: false,
            processors,
            machine_at_count: None,
            machine_at_look: 0,
            used,
            next,
        }
    }

    #[test]
    fn a_run_far_from_its_limit_is_counted_seldom() {
        let interval = |limit, used, is_idle| pace(2, used).compute_interval(limit, 0, is_idle);
        assert_eq!(interval(50 << 30, 0, false), MAX_COUNT_INTERVAL);
        assert_eq!(interval(800 << 20, 0, false), Duration::from_millis(100));
        assert_eq!(interval(800 << 20, 780 << 20, false), MIN_COUNT_INTERVAL);
        assert_eq!(interval(800 << 20, 780 << 20, true), MIN_IDLE_COUNT_INTERVAL);
        assert_eq!(interval(10, 20, false), MIN_COUNT_INTERVAL);
    }

    #[test]
    fn usage_without_writes_is_no_write_of_a_run() {
        let text = b"nr_free_pages 7\nnr_dirtied 10\nnr_dirtied_more 5\npgpgout 3\n";
        assert_eq!(bytes_of(text), Some(10 * page_size() as u64 + 3072));
        assert_eq!(bytes_of(b"pgpgout 3\n"), None);
        // Without that file, the run is always counted.
        assert!(pace(1, 0).may_have_passed(1 << 40));
        let mut real = DiskCheckSchedule::new(1 << 50);
        assert!(real.may_have_passed(1 << 50), "nothing is known at first");
        real.record_count(1 << 40);
        if real.machine.is_some() {
            assert!(!real.may_have_passed(1 << 50));
            assert!(real.may_have_passed(0));
        }
    }

    #[test]
    fn a_machine_that_wrote_less_than_the_run_is_not_believed() {
        let mut pace = DiskCheckSchedule::new(1 << 40);
        pace.may_have_passed(1 << 40);
        pace.record_count(0);
        if pace.machine.is_some() {
            pace.record_count(1 << 16);
            assert!(pace.machine.is_some(), "less than the processors keep to themselves");
            pace.record_count(1 << 50);
            assert!(pace.machine.is_none() && pace.may_have_passed(1 << 60));
        }
    }

    #[test]
    fn a_dear_look_is_followed_by_a_long_pause() {
        let mut pace = pace(1, 0);
        pace.record_check_time(Duration::from_millis(4), 50);
        assert!(pace.until_next() > Duration::from_millis(150));
    }
}

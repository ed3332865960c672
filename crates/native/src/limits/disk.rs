//! How often a run's writes are counted, so that it cannot write much beyond its limit
//! between two counts, and costs next to nothing while it writes little.
//!
//! Counting reads files of every process. Before that the machine as a whole is asked
//! (`/proc/vmstat`, one file): as long as all of it wrote less than the run may still
//! write, the run did so too, and is not counted.
//!
//! It must not know processes, nor what becomes of a breach.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::param::page_size;

/// What one processor copies into the page cache in a millisecond: more than any does
/// (measured: 1 to 3 MiB).
const BYTES_PER_MS: u64 = 4 << 20;
/// How long between two counts at least.
const COUNT_EVERY: Duration = Duration::from_millis(2);
/// The same while nothing on the machine writes.
const COUNT_EVERY_IDLE: Duration = Duration::from_millis(10);
/// How long between two counts at most; the other limits are looked at more often.
const COUNT_EVERY_MOST: Duration = Duration::from_secs(5);
/// Less than this written in one interval counts as nothing: a log, a journal.
const IDLE_BYTES: u64 = 256 << 10;
/// Each processor keeps so many pages to itself before the machine's count has them
/// (the largest `stat_threshold`, mm/vmstat.c).
const UNCOUNTED_PAGES: u64 = 125;
/// Processors that the machine is taken to have until the first look.
const PROCESSORS_ASSUMED: u64 = 16;
/// Room for `/proc/vmstat`.
const VMSTAT_BYTES: usize = 16 << 10;

/// What one writer may write between two counts, for the enforcement report.
pub(super) const OVERSHOOT_BYTES: u64 = 20 << 20;

/// When a run's writes are to be counted.
#[derive(Debug)]
pub(super) struct DiskPace {
    machine: Option<MachineWrites>,
    /// Whether nobody has looked yet.
    is_first: bool,
    processors: u64,
    /// What the machine had written when the run was counted last, where it was read before,
    /// and at the last look.
    machine_at_count: Option<u64>,
    machine_at_look: u64,
    /// What the run had written then.
    used: u64,
    next: Instant,
}

impl DiskPace {
    /// One for a run of `limit` bytes that begins now. Nothing is read yet: most runs end
    /// before their first look.
    pub(super) fn new(limit: u64) -> Self {
        let mut pace = Self {
            machine: None,
            is_first: true,
            processors: PROCESSORS_ASSUMED,
            machine_at_count: None,
            machine_at_look: 0,
            used: 0,
            next: Instant::now(),
        };
        pace.next += pace.interval(limit, 0, false);
        pace
    }

    /// How long until the next look.
    pub(super) fn until_next(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Reads what the machine wrote. True where the run may have passed `limit` since it
    /// was counted last: then it is to be counted.
    pub(super) fn may_have_passed(&mut self, limit: u64) -> bool {
        let is_first = std::mem::take(&mut self.is_first);
        if is_first {
            self.machine = MachineWrites::open();
            self.processors = processors();
        }
        let Some(now) = self.machine.as_mut().and_then(MachineWrites::bytes) else {
            self.next = Instant::now() + self.interval(limit, 0, false);
            return true;
        };
        if is_first {
            self.machine_at_count = None;
        }
        let is_idle = now.saturating_sub(self.machine_at_look) < IDLE_BYTES;
        self.machine_at_look = now;
        // What was written before the first look is not known.
        let since = self.machine_at_count.map(|before| now.saturating_sub(before));
        self.next = Instant::now() + self.interval(limit, since.unwrap_or_default(), is_idle);
        let used = |since: u64| self.used.saturating_add(since).saturating_add(self.uncounted());
        since.is_none_or(|since| used(since) > limit)
    }

    /// The run had written `used` bytes; the machine was read before that. One that says it
    /// wrote less than the run (a file that a container runtime made up) is not asked again.
    pub(super) fn counted(&mut self, used: u64) {
        let before = self.machine_at_count.replace(self.machine_at_look);
        let grown = used.saturating_sub(std::mem::replace(&mut self.used, used));
        let uncounted = self.uncounted();
        let is_more = |before: u64, now: u64| grown > now.saturating_sub(before).saturating_add(uncounted);
        if let Some(before) = before
            && is_more(before, self.machine_at_look)
            && let Some(now) = self.machine.as_mut().and_then(MachineWrites::bytes)
            && is_more(before, now)
        {
            self.machine = None;
        }
    }

    /// What the machine's count may lack.
    fn uncounted(&self) -> u64 {
        self.processors.saturating_mul(UNCOUNTED_PAGES * page_size() as u64)
    }

    /// The next look comes no sooner than after this.
    pub(super) fn pause(&mut self, time: Duration) {
        self.next = self.next.max(Instant::now() + time);
    }

    /// A look took so much of a processor: the next one comes no sooner than `share`
    /// times as late.
    pub(super) fn took(&mut self, time: Duration, share: u32) {
        self.pause((time * share).min(COUNT_EVERY_MOST));
    }

    /// So long that nothing can pass `limit` meanwhile, within bounds. `since`: what was
    /// written since the last count.
    fn interval(&self, limit: u64, since: u64, is_idle: bool) -> Duration {
        let left = limit.saturating_sub(self.used.saturating_add(since));
        let safe = Duration::from_millis(left / (BYTES_PER_MS * self.processors));
        safe.clamp(if is_idle { COUNT_EVERY_IDLE } else { COUNT_EVERY }, COUNT_EVERY_MOST)
    }
}

/// What all of the machine wrote since its start (`/proc/vmstat`): pages that became
/// dirty, and what went to the disks without that (O_DIRECT). Some counts twice.
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

    fn bytes(&mut self) -> Option<u64> {
        let length = self.file.read_at(&mut self.text, 0).ok()?;
        bytes_of(self.text.get(..length)?)
    }
}

fn bytes_of(text: &[u8]) -> Option<u64> {
    let value = |key: &[u8]| {
        let mut lines = text.split(|byte| *byte == b'\n');
        let rest = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(b" "))?;
        std::str::from_utf8(rest).ok()?.trim().parse::<u64>().ok()
    };
    let dirtied = value(b"nr_dirtied")?.saturating_mul(page_size() as u64);
    Some(dirtied.saturating_add(value(b"pgpgout")?.saturating_mul(1024)))
}

/// Processors that the machine may have: all of them can write.
fn processors() -> u64 {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|number| number.parse::<u64>().ok());
    last.map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u64), |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(processors: u64, used: u64) -> DiskPace {
        let next = Instant::now();
        DiskPace { machine: None, is_first: false, processors, machine_at_count: None, machine_at_look: 0, used, next }
    }

    #[test]
    fn a_run_far_from_its_limit_is_counted_seldom() {
        let interval = |limit, used, is_idle| pace(2, used).interval(limit, 0, is_idle);
        assert_eq!(interval(50 << 30, 0, false), COUNT_EVERY_MOST);
        assert_eq!(interval(800 << 20, 0, false), Duration::from_millis(100));
        assert_eq!(interval(800 << 20, 780 << 20, false), COUNT_EVERY);
        assert_eq!(interval(800 << 20, 780 << 20, true), COUNT_EVERY_IDLE);
        assert_eq!(interval(10, 20, false), COUNT_EVERY);
    }

    #[test]
    fn what_the_machine_did_not_write_no_run_did() {
        let text = b"nr_free_pages 7\nnr_dirtied 10\nnr_dirtied_more 5\npgpgout 3\n";
        assert_eq!(bytes_of(text), Some(10 * page_size() as u64 + 3072));
        assert_eq!(bytes_of(b"pgpgout 3\n"), None);
        // Without that file it is always counted.
        assert!(pace(1, 0).may_have_passed(1 << 40));
        let mut real = DiskPace::new(1 << 50);
        assert!(real.may_have_passed(1 << 50), "nothing is known at first");
        real.counted(1 << 40);
        if real.machine.is_some() {
            assert!(!real.may_have_passed(1 << 50));
            assert!(real.may_have_passed(0));
        }
    }

    #[test]
    fn a_machine_that_wrote_less_than_the_run_is_not_believed() {
        let mut pace = DiskPace::new(1 << 40);
        pace.may_have_passed(1 << 40);
        pace.counted(0);
        if pace.machine.is_some() {
            pace.counted(1 << 16);
            assert!(pace.machine.is_some(), "less than the processors keep to themselves");
            pace.counted(1 << 50);
            assert!(pace.machine.is_none() && pace.may_have_passed(1 << 60));
        }
    }

    #[test]
    fn a_dear_look_is_followed_by_a_long_pause() {
        let mut pace = pace(1, 0);
        pace.took(Duration::from_millis(4), 50);
        assert!(pace.until_next() > Duration::from_millis(150));
    }
}

//! Counters of a container's control groups for all its commands together: processes that the
//! kernel killed for lack of memory, and refused forks. A runtime with its own kernel shows no
//! groups, so that nothing is known.

use std::fs;

use stockade_backend_api::{AttemptEnd, AttemptEvent, CommandEnd};
use stockade_model::{Denial, LimitKind, Limits};

/// Counter of processes killed for lack of memory, in both versions (memory.txt, cgroup-v2.rst),
/// and its key.
const OOM_KILL_COUNTER: ([&str; 2], &str) =
    (["/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"], "oom_kill");
/// Counter of refused forks.
const FAILED_FORK_COUNTER: ([&str; 2], &str) =
    (["/sys/fs/cgroup/pids/pids.events", "/sys/fs/cgroup/pids.events"], "max");

/// Counters at the start of a command.
pub(super) struct LimitCounters {
    limits: Limits,
    ended: u64,
    forks: u64,
}

impl LimitCounters {
    /// Returns the current counters; the limits are those of the container.
    pub(super) fn read_counters(limits: Limits) -> Self {
        Self { limits, ended: read_counter(OOM_KILL_COUNTER), forks: read_counter(FAILED_FORK_COUNTER) }
    }

    /// Returns the events since then, to report with the end of a command. Other commands may run
    /// at the same time. A command that succeeded was not stopped by its limit.
    pub(super) fn events_since(&self, end: &AttemptEnd) -> Vec<AttemptEvent> {
        self.events_between(&Self::read_counters(Limits::default()), end)
    }

    fn events_between(&self, now: &Self, end: &AttemptEnd) -> Vec<AttemptEvent> {
        let mut reports = Vec::new();
        let forks = now.forks.saturating_sub(self.forks);
        if forks > 0 {
            let denial = self.limit_denial(LimitKind::Processes, "no more could be made");
            reports.push(AttemptEvent::Denied(Denial { count: forks, ..denial }));
        }
        let ended = now.ended.saturating_sub(self.ended);
        if ended > 0 {
            let value = format!("out of memory: the kernel ended {ended} of the sandbox's processes");
            let denial = self.limit_denial(LimitKind::Memory, &value);
            let ended_well = end.end == CommandEnd::Exited(0);
            reports.push(if ended_well { AttemptEvent::Denied(denial) } else { AttemptEvent::Breached(denial) });
        }
        reports
    }

    /// A grant for one command cannot change a limit of the whole sandbox.
    fn limit_denial(&self, limit: LimitKind, value: &str) -> Denial {
        Denial { grant: None, ..Denial::of_limit(limit, self.limits.get(limit), value) }
    }
}

/// Returns the number after the key; 0 if there is no such file.
fn read_counter((files, key): ([&str; 2], &str)) -> u64 {
    let number = |text: String| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok());
    files.iter().find_map(|file| fs::read_to_string(file).ok()).and_then(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_reported_with_their_limit() {
        let limits = Limits { memory_bytes: Some(64 << 20), processes: Some(20), ..Limits::default() };
        let before = LimitCounters { limits, ended: 2, forks: 5 };
        let now = |ended, forks| LimitCounters { limits: Limits::default(), ended, forks };
        let (well, killed) = (
            AttemptEnd::from_command_end(CommandEnd::Exited(0)),
            AttemptEnd::from_command_end(CommandEnd::Signaled(9)),
        );
        assert_eq!(before.events_between(&now(2, 5), &killed), []);
        let reports = |now: &LimitCounters, end| match before.events_between(now, end).as_slice() {
            [AttemptEvent::Denied(one)] => {
                format!("refused: {} {} {:?} {}", one.object, one.rule, one.grant, one.count)
            }
            [AttemptEvent::Breached(one)] => {
                format!("ended: {} {} {:?} {}", one.object, one.rule, one.grant, one.count)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(reports(&now(2, 9), &killed), "refused: processes at most 20; no more could be made None 4");
        let value = "at most 64MiB; out of memory: the kernel ended 1 of the sandbox's processes None 1";
        assert_eq!(reports(&now(3, 5), &killed), format!("ended: memory {value}"));
        assert_eq!(reports(&now(3, 5), &well), format!("refused: memory {value}"));
    }
}

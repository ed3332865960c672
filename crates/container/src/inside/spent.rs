//! What the control groups of a container count for all its commands together: that the
//! kernel ended something for want of memory, or made no more processes. A runtime with
//! a kernel of its own shows no groups, and then nothing is known.

use std::fs;

use stockade_engine::{AttemptEnd, AttemptEvent, CommandEnd};
use stockade_model::{Denial, Limit, Limits};

/// Where the kernel counts what it ended for want of memory, in both versions
/// (memory.txt, cgroup-v2.rst), and the key.
const MEMORY: ([&str; 2], &str) =
    (["/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"], "oom_kill");
/// The same of forks that it refused.
const PROCESSES: ([&str; 2], &str) = (["/sys/fs/cgroup/pids/pids.events", "/sys/fs/cgroup/pids.events"], "max");

/// What was counted when a command began.
pub(super) struct Counted {
    limits: Limits,
    ended: u64,
    forks: u64,
}

impl Counted {
    /// As it is now; the limits are those of the container.
    pub(super) fn now(limits: Limits) -> Self {
        Self { limits, ended: count(MEMORY), forks: count(PROCESSES) }
    }

    /// What happened since, told with the end of a command. Others may run beside it: it
    /// was not stopped by its limit where it ended well.
    pub(super) fn told(&self, end: &AttemptEnd) -> Vec<AttemptEvent> {
        self.compared(&Self::now(Limits::default()), end)
    }

    fn compared(&self, now: &Self, end: &AttemptEnd) -> Vec<AttemptEvent> {
        let mut told = Vec::new();
        let forks = now.forks.saturating_sub(self.forks);
        if forks > 0 {
            let denial = self.denial(Limit::Processes, "no more could be made");
            told.push(AttemptEvent::Denied(Denial { count: forks, ..denial }));
        }
        let ended = now.ended.saturating_sub(self.ended);
        if ended > 0 {
            let value = format!("out of memory: the kernel ended {ended} of the sandbox's processes");
            let denial = self.denial(Limit::Memory, &value);
            let ended_well = end.end == CommandEnd::Exited(0);
            told.push(if ended_well { AttemptEvent::Denied(denial) } else { AttemptEvent::Breached(denial) });
        }
        told
    }

    /// No grant for a command moves what holds for the whole sandbox.
    fn denial(&self, limit: Limit, value: &str) -> Denial {
        Denial { grant: None, ..Denial::of_limit(limit, self.limits.get(limit), value) }
    }
}

/// The number behind the key; none where there is no such file.
fn count((files, key): ([&str; 2], &str)) -> u64 {
    let number = |text: String| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok());
    files.iter().find_map(|file| fs::read_to_string(file).ok()).and_then(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_meanwhile_is_told_and_by_which_limit() {
        let limits = Limits { memory_bytes: Some(64 << 20), processes: Some(20), ..Limits::default() };
        let before = Counted { limits, ended: 2, forks: 5 };
        let now = |ended, forks| Counted { limits: Limits::default(), ended, forks };
        let (well, killed) = (AttemptEnd::bare(CommandEnd::Exited(0)), AttemptEnd::bare(CommandEnd::Signaled(9)));
        assert_eq!(before.compared(&now(2, 5), &killed), []);
        let told = |now: &Counted, end| match before.compared(now, end).as_slice() {
            [AttemptEvent::Denied(one)] => {
                format!("refused: {} {} {:?} {}", one.object, one.rule, one.grant, one.count)
            }
            [AttemptEvent::Breached(one)] => {
                format!("ended: {} {} {:?} {}", one.object, one.rule, one.grant, one.count)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(told(&now(2, 9), &killed), "refused: processes at most 20; no more could be made None 4");
        let value = "at most 64MiB; out of memory: the kernel ended 1 of the sandbox's processes None 1";
        assert_eq!(told(&now(3, 5), &killed), format!("ended: memory {value}"));
        assert_eq!(told(&now(3, 5), &well), format!("refused: memory {value}"));
    }
}

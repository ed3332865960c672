//! Freezes a run while an approver is asked whether a limit may be raised, and thaws it afterwards.
//!
//! The freezer of its group stops all processes at once, invisibly for them. The freezer is used
//! only in version 2, where a frozen process can still be killed. In version 1 it could not: if the
//! supervisor were killed meanwhile, the processes would stay frozen for ever. Without a freezer
//! each process is stopped by a signal (SIGSTOP, signal(7)), which its parent can see. Must not
//! depend on limits.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::group::ControlGroup;
use super::processes::{RunProcess, is_same, list_descendants};

/// Time-out until all processes are stopped. A process that takes longer waits in the kernel, or
/// for the answer to a call, and stops as soon as that wait ends.
const FREEZE_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval between two checks of the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Freezes and thaws one run. Thaws the run on drop.
#[derive(Debug)]
pub(super) struct RunFreezer {
    init: u32,
    group: Option<Arc<ControlGroup>>,
    /// Processes that were stopped by signal and must be continued.
    stopped: Vec<OwnedFd>,
    frozen: bool,
    /// Number of stops by signal that the parent of the processes has not reported yet.
    untold: u32,
}

impl RunFreezer {
    pub(super) fn new(init: u32, group: Option<Arc<ControlGroup>>) -> Self {
        Self { init, group: group.filter(|group| group.can_freeze()), stopped: Vec::new(), frozen: false, untold: 0 }
    }

    /// Freezes all processes. Returns false on failure; the run then continues.
    pub(super) fn freeze_processes(&mut self) -> bool {
        match &self.group {
            Some(group) => {
                self.frozen = group.set_frozen(true);
                let give_up = Instant::now() + FREEZE_TIMEOUT;
                while self.frozen && !group.is_frozen() && Instant::now() < give_up {
                    thread::sleep(POLL_INTERVAL);
                }
                self.frozen
            }
            None => {
                let stands = self.stop_all();
                self.untold += u32::from(!self.stopped.is_empty());
                if !stands {
                    self.go_on();
                }
                stands
            }
        }
    }

    /// Thaws the processes that [`freeze_processes`](Self::freeze_processes) froze. Does nothing otherwise.
    pub(super) fn go_on(&mut self) {
        if let (Some(group), true) = (&self.group, std::mem::take(&mut self.frozen)) {
            group.set_frozen(false);
        }
        for process in self.stopped.drain(..) {
            // The process may have been killed.
            let _ = pidfd_send_signal(&process, Signal::CONT);
        }
    }

    /// Returns whether a stop that the init reports was made here; each stop counts once.
    pub(super) fn take_untold(&mut self) -> bool {
        let is_own = self.untold > 0;
        self.untold = self.untold.saturating_sub(1);
        is_own
    }

    /// Stops all processes beneath the init, and processes forked meanwhile. Processes that were
    /// already stopped are left alone. Returns false if some could not be stopped.
    fn stop_all(&mut self) -> bool {
        let mut known: HashSet<(u32, u64)> = HashSet::new();
        let give_up = Instant::now() + FREEZE_TIMEOUT;
        loop {
            let found = list_descendants(self.init);
            let mut new = 0;
            for process in &found {
                if !process.stands && known.insert((process.pid, process.start)) {
                    new += 1;
                    if !self.stop_process(process) {
                        return false;
                    }
                }
            }
            let all_stand = found.iter().all(|process| process.stands);
            if new == 0 && (all_stand || Instant::now() > give_up) {
                return true;
            }
            if Instant::now() > give_up + FREEZE_TIMEOUT {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Stops a process through a descriptor, and checks its identity, because the number may belong
    /// to another process by now. A process that has ended needs no stop.
    fn stop_process(&mut self, process: &RunProcess) -> bool {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let Some(Ok(held)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return !is_same(process) };
        if !is_same(process) {
            return true;
        }
        let stopped = pidfd_send_signal(&held, Signal::STOP).is_ok();
        self.stopped.push(held);
        stopped || !is_same(process)
    }
}

impl Drop for RunFreezer {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// Returns the method of freezing this run, for the enforcement report.
pub(super) fn freeze_method(group: Option<&ControlGroup>) -> &'static str {
    match group {
        Some(group) if group.can_freeze() => "frozen in its control group",
        _ => "its processes stopped by signal, which they can see",
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a process with two running children, and one that was stopped before.
    #[allow(clippy::disallowed_methods, reason = "processes to stop, without a sandbox")]
    fn family() -> Child {
        let script = "(while :; do :; done) & (while :; do :; done) & sleep 60 & kill -STOP $!; echo made; wait";
        let mut shell = Command::new("/bin/sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "made\n");
        shell
    }

    fn count_stopped(init: u32) -> usize {
        list_descendants(init).iter().filter(|process| process.stands).count()
    }

    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let give_up = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < give_up, "{what}");
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn all_processes_are_frozen_and_stopped_ones_stay_stopped() {
        let mut shell = family();
        let init = shell.id();
        eventually("it is not stopped", || count_stopped(init) == 1);
        let mut halt = RunFreezer::new(init, None);
        for _ in 0..3 {
            assert!(halt.freeze_processes());
            assert_eq!((count_stopped(init), list_descendants(init).len()), (3, 3));
            halt.go_on();
            eventually("they do not go on", || count_stopped(init) == 1);
        }
        assert!(halt.freeze_processes());
        drop(halt);
        eventually("they do not go on without it", || count_stopped(init) == 1);
        for process in list_descendants(init) {
            rustix::process::kill_process(Pid::from_raw(process.pid as i32).unwrap(), Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
    }
}

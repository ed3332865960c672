//! A run stands still while somebody is asked whether a limit may be raised, and
//! goes on where it stood.
//!
//! The freezer of its group holds all at once and no process sees it; it is used in
//! version 2 alone, where a frozen process can still be killed. In version 1 it
//! could not: whoever ends the supervisor meanwhile would leave them for ever.
//! Otherwise each process is stopped by signal (SIGSTOP, signal(7)), which its
//! parent can see. It must not know limits.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::group::Group;
use super::processes::{Found, is_same, tree};

/// How long it may take until all stand. What does not by then waits for the
/// kernel, or for an answer to a call, and stands as soon as it has that.
const STANDS_WITHIN: Duration = Duration::from_millis(500);
/// Between two looks whether they stand.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// One run's way to stand still. Dropping it lets the run go on.
#[derive(Debug)]
pub(super) struct Halt {
    init: u32,
    group: Option<Arc<Group>>,
    /// Those that were stopped by signal, to be told to go on.
    stopped: Vec<OwnedFd>,
    frozen: bool,
    /// How often processes were stopped by signal and their parent has not told of it yet.
    untold: u32,
}

impl Halt {
    pub(super) fn new(init: u32, group: Option<Arc<Group>>) -> Self {
        Self { init, group: group.filter(|group| group.can_freeze()), stopped: Vec::new(), frozen: false, untold: 0 }
    }

    /// Lets everything stand still. False where that could not be had: it goes on.
    pub(super) fn stand(&mut self) -> bool {
        match &self.group {
            Some(group) => {
                self.frozen = group.freeze(true);
                let give_up = Instant::now() + STANDS_WITHIN;
                while self.frozen && !group.is_frozen() && Instant::now() < give_up {
                    thread::sleep(LOOK_EVERY);
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

    /// Lets what it made stand go on. Nothing where it stands not.
    pub(super) fn go_on(&mut self) {
        if let (Some(group), true) = (&self.group, std::mem::take(&mut self.frozen)) {
            group.freeze(false);
        }
        for process in self.stopped.drain(..) {
            // It may have been killed.
            let _ = pidfd_send_signal(&process, Signal::CONT);
        }
    }

    /// Whether a stop that the init tells of is one of those made here; each counts once.
    pub(super) fn take_untold(&mut self) -> bool {
        let is_own = self.untold > 0;
        self.untold = self.untold.saturating_sub(1);
        is_own
    }

    /// Stops all processes beneath the init, and what they forked meanwhile. What
    /// stood before is left to whoever stopped it. False where some could not be.
    fn stop_all(&mut self) -> bool {
        let mut known: HashSet<(u32, u64)> = HashSet::new();
        let give_up = Instant::now() + STANDS_WITHIN;
        loop {
            let found = tree(self.init);
            let mut new = 0;
            for process in &found {
                if !process.stands && known.insert((process.pid, process.start)) {
                    new += 1;
                    if !self.stop(process) {
                        return false;
                    }
                }
            }
            let all_stand = found.iter().all(|process| process.stands);
            if new == 0 && (all_stand || Instant::now() > give_up) {
                return true;
            }
            if Instant::now() > give_up + STANDS_WITHIN {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// By a descriptor that is compared with what was found: its number may be
    /// another process's by now. One that is gone needs no stop.
    fn stop(&mut self, process: &Found) -> bool {
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

impl Drop for Halt {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// How this run would be made to stand, for the enforcement report.
pub(super) fn way(group: Option<&Group>) -> &'static str {
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

    /// A process with two beneath it that run, and one that was stopped before.
    #[allow(clippy::disallowed_methods, reason = "processes to stop, without a sandbox")]
    fn family() -> Child {
        let script = "(while :; do :; done) & (while :; do :; done) & sleep 60 & kill -STOP $!; echo made; wait";
        let mut shell = Command::new("/bin/sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "made\n");
        shell
    }

    fn standing(init: u32) -> usize {
        tree(init).iter().filter(|process| process.stands).count()
    }

    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let give_up = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < give_up, "{what}");
            thread::sleep(LOOK_EVERY);
        }
    }

    #[test]
    fn all_stand_still_and_what_stood_before_is_left_so() {
        let mut shell = family();
        let init = shell.id();
        eventually("it is not stopped", || standing(init) == 1);
        let mut halt = Halt::new(init, None);
        for _ in 0..3 {
            assert!(halt.stand());
            assert_eq!((standing(init), tree(init).len()), (3, 3));
            halt.go_on();
            eventually("they do not go on", || standing(init) == 1);
        }
        assert!(halt.stand());
        drop(halt);
        eventually("they do not go on without it", || standing(init) == 1);
        for process in tree(init) {
            rustix::process::kill_process(Pid::from_raw(process.pid as i32).unwrap(), Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
    }
}

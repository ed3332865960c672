//! The helper of a session: a process with one thread that runs no command itself. The helper forks
//! fronts, so that the program need not fork at a start, and exits with the program.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use stockade_sys::Errno;
use stockade_sys::clone::exit_now;
use stockade_sys::descriptors::{close_all_but, place_stdio};
use stockade_sys::fd_passing;
use stockade_sys::reap::wait_pidfd;
use stockade_sys::session::{ForkResult, fork_process};
use stockade_sys::signals::block_signals;

use super::worker;
use stockade_sys::ready::readable_before;

/// Message to the helper: the front was taken.
pub(super) const MESSAGE_TAKEN: u8 = b't';
/// Message from the helper, with a front.
const MESSAGE_SUPERVISOR: u8 = b'f';
/// Most commands that run at the same time; a further start waits.
const MAX_RUNNING: usize = 256;
/// Delay between taking a front and the next fork, unless the command ends earlier. So the
/// preparation of a sandbox does not take processor time from the start of another.
const DELAY_AFTER_START: Duration = Duration::from_millis(20);
/// The same after a failed fork.
const DELAY_AFTER_FAILED_FORK: Duration = Duration::from_millis(100);
/// Longest wait of the loop.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Time-out for the exit of killed fronts.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Signals for the program, which its copies block.
const BLOCKED_SIGNALS: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Runs the helper until its exit. Returns its exit code.
pub(super) fn run_helper(control: &OwnedFd, stages: Option<PathBuf>) -> i32 {
    let begun = leave_program(control).map(|()| SessionHelper {
        control,
        stages,
        running: Vec::new(),
        waiting: None,
        is_offered: false,
        next_at: Instant::now(),
    });
    match begun {
        Ok(mut helper) => {
            helper.serve_program();
            helper.kill_supervisors();
            0
        }
        // The program sees the exit.
        Err(_) => 1,
    }
}

/// Detaches from the program: its streams, its descriptors, its signals.
fn leave_program(control: &OwnedFd) -> io::Result<()> {
    block_signals(&BLOCKED_SIGNALS.map(Signal::as_raw))?;
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    place_stdio([nothing.as_fd(); 3])?;
    drop(nothing);
    Ok(close_all_but(&[0, 1, 2, control.as_raw_fd()])?)
}

struct SessionHelper<'a> {
    control: &'a OwnedFd,
    stages: Option<PathBuf>,
    /// Fronts that were taken.
    running: Vec<OwnedFd>,
    /// The front that waits for an order.
    waiting: Option<OwnedFd>,
    /// True if a front was sent to the program and not taken yet, alive or not.
    is_offered: bool,
    next_at: Instant,
}

impl SessionHelper<'_> {
    /// Serves until the program is gone.
    fn serve_program(&mut self) {
        loop {
            if self.wants_supervisor() && Instant::now() >= self.next_at {
                match self.fork_supervisor() {
                    Ok(()) => self.is_offered = true,
                    Err(_) => self.next_at = Instant::now() + DELAY_AFTER_FAILED_FORK,
                }
            }
            self.wait_for_event();
            match fd_passing::receive_message(self.control.as_fd(), &mut [0; 1], false) {
                Ok(received) if received.length == 0 => return,
                Ok(_) => {
                    self.running.extend(self.waiting.take());
                    (self.is_offered, self.next_at) = (false, Instant::now() + DELAY_AFTER_START);
                }
                Err(Errno::AGAIN) => {}
                Err(_) => return,
            }
            let before = self.running.len();
            self.reap_supervisors();
            if self.running.len() < before {
                self.next_at = self.next_at.min(Instant::now());
            }
        }
    }

    fn wants_supervisor(&self) -> bool {
        !self.is_offered && self.running.len() < MAX_RUNNING
    }

    fn fork_supervisor(&mut self) -> io::Result<()> {
        let (orders, ours) = fd_passing::socket_pair()?;
        let helper = getpid();
        let ForkResult::Parent(pid) = fork_process()? else { exit_now(self.become_supervisor(&orders, ours, helper)) };
        // No other code reaps it, so the number is not reused.
        self.waiting = Some(pidfd_open(pid, PidfdFlags::empty())?);
        Ok(fd_passing::send_message(self.control.as_fd(), &[MESSAGE_SUPERVISOR], &[ours.as_fd()])?)
    }

    /// Runs in the child: closes all of the helper's descriptors.
    fn become_supervisor(&mut self, orders: &OwnedFd, ours: OwnedFd, helper: Pid) -> i32 {
        drop(ours);
        (self.running, self.waiting) = (Vec::new(), None);
        match close_all_but(&[0, 1, 2, orders.as_raw_fd()]) {
            Ok(()) => worker::run_supervisor(orders, helper, self.stages.take()),
            Err(_) => 1,
        }
    }

    fn wait_for_event(&self) {
        let due = match self.wants_supervisor() {
            true => self.next_at.saturating_duration_since(Instant::now()),
            false => MAX_POLL_INTERVAL,
        };
        wait_for(
            self.supervisor_fds().chain([self.control.as_fd()]),
            due.max(Duration::from_millis(1)).min(MAX_POLL_INTERVAL),
        );
    }

    fn supervisor_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.running.iter().chain(&self.waiting).map(AsFd::as_fd)
    }

    fn reap_supervisors(&mut self) {
        let is_alive = |supervisor: &OwnedFd| matches!(wait_pidfd(supervisor.as_fd()), Ok(None));
        self.running.retain(is_alive);
        self.waiting.take_if(|supervisor| !is_alive(supervisor));
    }

    /// Kills the remaining fronts, and so their sandboxes. The waiting front exits by itself.
    fn kill_supervisors(&mut self) {
        for supervisor in &self.running {
            let _ = pidfd_send_signal(supervisor, Signal::KILL);
        }
        let give_up = Instant::now() + EXIT_TIMEOUT;
        while self.supervisor_fds().next().is_some() && Instant::now() < give_up {
            wait_for(self.supervisor_fds(), Duration::from_millis(100));
            self.reap_supervisors();
        }
    }
}

/// Waits until a descriptor is readable, at most `at_most`.
fn wait_for<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, at_most: Duration) {
    // An error only makes the next check come sooner.
    let _ = readable_before(&fds.collect::<Vec<_>>(), Instant::now() + at_most);
}

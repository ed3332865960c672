//! Ends a sandbox, or signals its command.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::process::{Signal, pidfd_send_signal};
use stockade_model::IsolationLevel;
use stockade_sys::ready::readable_before;

use super::LaunchedSandbox;
use crate::exiting_inits::{self, INIT_EXIT_TIMEOUT};
use crate::message::LaunchMessage;

impl LaunchedSandbox {
    /// Sends a signal to the command's process group; best effort.
    pub fn signal_command(&self, signal: i32) {
        let _ = LaunchMessage::Signal(signal).send(self.control.as_fd(), &[]);
    }

    /// Kills the command now, and with it every process in the sandbox. The end is still reported.
    pub fn kill_sandbox(&self) {
        self.signal_command(Signal::KILL.as_raw());
    }

    /// Leaves an unkillable command to the kernel and kills all other processes. Otherwise an init
    /// that waits for such a command would let its other processes live. Without a PID namespace
    /// only the init can do that, and it goes on trying.
    pub fn abandon_command(&self) {
        if let (Some(init), IsolationLevel::Full) = (&self.init, self.report.level) {
            let _ = pidfd_send_signal(init, Signal::KILL);
        }
    }

    /// Ends the init and every process of the run. An init that has reported the end only has to
    /// exit, and exits when its caller hangs up. With a PID namespace the kernel kills the other
    /// processes. Without one the init kills them, also when its caller hangs up, and gets time for
    /// it.
    pub(super) fn end_now(&mut self) {
        let Some(init) = self.init.take() else { return };
        if self.ended.is_some() || self.report.level != IsolationLevel::Full {
            let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        }
        if self.ended.is_some() {
            return exiting_inits::let_go(init);
        }
        if self.report.level != IsolationLevel::Full {
            let _ = readable_before(&[init.as_fd()], Instant::now() + INIT_EXIT_TIMEOUT);
        }
        let _ = pidfd_send_signal(&init, Signal::KILL);
        exiting_inits::wait_for_init(&init);
    }
}

impl Drop for LaunchedSandbox {
    fn drop(&mut self) {
        self.end_now();
    }
}

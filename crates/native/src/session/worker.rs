//! The process of one command of a session (the "front"): it starts a sandbox, waits for an order,
//! carries it out as the native backend, and exits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::fs::Mode;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, umask};
use stockade_backend_api::Backend;
use stockade_backend_api::remote::AttemptOrder;
use stockade_sys::descriptors::place_stdio;

use crate::backend::{NativeBackend, NativeOptions};
use crate::remote::{self, SocketChannel, receive_order};
use stockade_launch::PrewarmedInit;

/// Runs a front, a child of `helper`, until its exit. Returns its exit code.
pub(super) fn run_supervisor(orders: &OwnedFd, helper: Pid, stages: Option<PathBuf>) -> i32 {
    // The other end of the connection sees the exit, so the error needs no report.
    i32::from(wait_and_run(orders, helper, stages).is_err())
}

fn wait_and_run(orders: &OwnedFd, helper: Pid, stages: Option<PathBuf>) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(helper) {
        return Ok(());
    }
    // Without a prewarmed init the normal start reports the error.
    let prewarmed_init = PrewarmedInit::start().ok();
    // No time-out: this process is killed when the helper exits.
    let Some((order, descriptors)) = receive_order::<AttemptOrder>(orders.as_fd())? else { return Ok(()) };
    // The command's streams become standard streams. The connection is for its events.
    let [Some(stdin), Some(stdout), Some(stderr), Some(stream)] = descriptors else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    place_stdio([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
    drop((stdin, stdout, stderr));
    let line = SocketChannel::from_stream(UnixStream::from(stream))?;
    umask(Mode::from_raw_mode(order.umask));
    let prewarmed_init = prewarmed_init.map(|prewarmed_init| prewarmed_init.with_umask(order.umask));
    let backend = NativeBackend::with_options(prewarmed_init, NativeOptions { stages, ..NativeOptions::default() });
    remote::serve_remote_attempt(line, |events| backend.prepare_attempt(&order.plan, &order.io, order.hold, events))
}

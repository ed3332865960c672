//! The helper of a session and its workers: processes with one thread, forked before the program has
//! more.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;
use stockade_backend_api::Backend;
use stockade_backend_api::remote::AttemptOrder;
use stockade_launch::PrewarmedInit;
use stockade_supervisor::{
    Channel, PoolEvent, PoolLimits, WorkerNote, WorkerNotes, WorkerPool, release_streams, serve_remote_attempt,
    take_over_streams,
};
use stockade_sys::clone::exit_now;
use stockade_sys::descriptors::close_all_but;
use stockade_sys::signals::block_signals;

use crate::backend::{NativeBackend, NativeOptions};

/// Limits of the pool. No session ends because it is idle.
const LIMITS: PoolLimits = PoolLimits { max_busy: 256, fork_delay: Duration::from_millis(20), max_idle: None };
/// Signals for the program, which its copies block.
const BLOCKED_SIGNALS: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Runs the helper until the program is gone, and each worker until its command has ended. Returns
/// the exit code.
pub(super) fn run_helper(orders: Channel, stages: Option<PathBuf>) -> u8 {
    if leave_program(&orders).is_err() {
        // The program sees the exit.
        return 1;
    }
    let mut pool = WorkerPool::new(LIMITS);
    loop {
        // The orders are for the workers. Here only the end of the connection counts.
        match pool.next_event(&PollFd::new(orders.stream(), PollFlags::empty())) {
            PoolEvent::Ready => {}
            PoolEvent::Forked(notes) => {
                // The other end of the connection sees the exit, so the error needs no report.
                let result = wait_and_run(orders, notes, stages);
                exit_now(i32::from(result.is_err()));
            }
            PoolEvent::Over => {
                pool.end(Duration::ZERO);
                return 0;
            }
        }
    }
}

/// Detaches from the program: its streams, its descriptors, its signals.
fn leave_program(orders: &Channel) -> io::Result<()> {
    block_signals(&BLOCKED_SIGNALS.map(Signal::as_raw))?;
    release_streams()?;
    Ok(close_all_but(&[0, 1, 2, orders.stream().as_raw_fd()])?)
}

/// Runs a worker: starts a sandbox, waits for an order, and carries it out as the native backend.
fn wait_and_run(orders: Channel, mut notes: WorkerNotes, stages: Option<PathBuf>) -> io::Result<()> {
    // Without a prewarmed init the normal start reports the error.
    let prewarmed_init = PrewarmedInit::start().ok();
    notes.send(WorkerNote::Ready)?;
    // No time-out: this process is killed when the helper exits.
    let Some((order, along)) = orders.receive_order::<AttemptOrder>(None)? else { return Ok(()) };
    notes.send(WorkerNote::Taken)?;
    drop(orders);
    // The command's streams become standard streams. The connection is for its events.
    let malformed = |_| io::Error::from(io::ErrorKind::InvalidData);
    let [stdin, stdout, stderr, stream] = <[OwnedFd; 4]>::try_from(along).map_err(malformed)?;
    take_over_streams([stdin, stdout, stderr], order.umask)?;
    let channel = Channel::from_stream(UnixStream::from(stream))?;
    let prewarmed_init = prewarmed_init.map(|prewarmed_init| prewarmed_init.with_umask(order.umask));
    let backend = NativeBackend::with_options(prewarmed_init, NativeOptions { stages, ..NativeOptions::default() });
    serve_remote_attempt(channel, |events| backend.prepare_attempt(&order.plan, &order.io, order.hold, events))
}

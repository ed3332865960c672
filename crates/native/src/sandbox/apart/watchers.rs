//! Clients that receive the events of a sandbox, also when no attempt runs.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stockade_engine::SandboxEvent;

use crate::remote::Line;

/// Most events that are queued for a slow client; further events are dropped.
const WAITING_MAX: usize = 1024;
/// Interval between two checks that the client is still connected.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// The queues of all clients.
#[derive(Default)]
pub(super) struct Watchers(Mutex<Vec<SyncSender<SandboxEvent>>>);

impl Watchers {
    /// Sends an event to every client without blocking.
    pub(super) fn tell(&self, event: &SandboxEvent) {
        self.all().retain(|watcher| !matches!(watcher.try_send(event.clone()), Err(TrySendError::Disconnected(_))));
    }

    /// Sends events to the client of this connection, until the client or the sandbox is gone.
    pub(super) fn serve(&self, line: &Line) {
        let events = self.enter();
        loop {
            match events.recv_timeout(LOOK_AROUND) {
                Ok(event) => {
                    if line.send(&event).is_err() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) if has_gone(line) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Closes the queues; events in them are still sent.
    pub(super) fn close(&self) {
        self.all().clear();
    }

    fn enter(&self) -> Receiver<SandboxEvent> {
        let (watcher, events) = sync_channel(WAITING_MAX);
        self.all().push(watcher);
        events
    }

    fn all(&self) -> MutexGuard<'_, Vec<SyncSender<SandboxEvent>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the client is gone: it sends nothing, so a readable connection has ended.
fn has_gone(line: &Line) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(line.stream(), PollFlags::IN)], Some(&now)), Ok(1))
}

//! Those who are told what happens in a sandbox while no attempt is there to tell it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stockade_engine::SandboxEvent;

use crate::remote::Line;

/// Events that wait for one who is slow; more are not told to it.
const WAITING_MAX: usize = 1024;
/// How soon it is noticed that one has gone.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// All of them.
#[derive(Default)]
pub(super) struct Watchers(Mutex<Vec<SyncSender<SandboxEvent>>>);

impl Watchers {
    /// Tells everybody; waits for nobody.
    pub(super) fn tell(&self, event: &SandboxEvent) {
        self.all().retain(|watcher| !matches!(watcher.try_send(event.clone()), Err(TrySendError::Disconnected(_))));
    }

    /// Tells whoever is at this line, until it has gone or all is over.
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

    /// Tells nobody any more, once what was told has arrived.
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

/// Whoever watches says nothing: what comes from there is its end.
fn has_gone(line: &Line) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(line.stream(), PollFlags::IN)], Some(&now)), Ok(1))
}

//! Clients that receive the events of a sandbox, also when no attempt runs.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use stockade_backend_api::SandboxEvent;
use stockade_supervisor::Channel;
use stockade_sys::ready::readable_before;

use crate::locks::lock_ignoring_poison;

/// Most events that are queued for a slow client; further events are dropped.
const MAX_QUEUED_EVENTS: usize = 1024;
/// Interval between two checks that the client is still connected.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The queues of all clients.
#[derive(Default)]
pub(super) struct EventClients(Mutex<Vec<SyncSender<SandboxEvent>>>);

impl EventClients {
    /// Sends an event to every client without blocking.
    pub(super) fn send_event(&self, event: &SandboxEvent) {
        lock_ignoring_poison(&self.0)
            .retain(|watcher| !matches!(watcher.try_send(event.clone()), Err(TrySendError::Disconnected(_))));
    }

    /// Sends events to the client of this connection, until the client or the sandbox is gone.
    pub(super) fn serve_client(&self, channel: &Channel) {
        let events = self.add_client();
        loop {
            match events.recv_timeout(POLL_INTERVAL) {
                Ok(event) => {
                    if channel.send(&event).is_err() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) if has_gone(channel) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Closes the queues; events in them are still sent.
    pub(super) fn close(&self) {
        lock_ignoring_poison(&self.0).clear();
    }

    fn add_client(&self) -> Receiver<SandboxEvent> {
        let (watcher, events) = sync_channel(MAX_QUEUED_EVENTS);
        lock_ignoring_poison(&self.0).push(watcher);
        events
    }
}

/// Returns whether the client is gone: it sends nothing, so a readable connection has ended.
fn has_gone(channel: &Channel) -> bool {
    matches!(readable_before(&[channel.stream().as_fd()], Instant::now()), Ok(true))
}

//! Notifier: sends notifications of events in a sandbox to the configured receivers. Events do not
//! wait: each notification has a thread of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use stockade_backend_api::SandboxEvent;
use stockade_model::SandboxId;
use stockade_policy::NotifyOn;
use stockade_store::sandboxes::SandboxStore;

use crate::failure::CliError;
use crate::locations::StateDirectory;
use crate::notify::{self, SandboxNotification};

/// Most concurrent notifications; further ones are dropped, with a warning in the log.
const MAX_NOTIFY_THREADS: usize = 16;

/// Notifier of one sandbox.
pub struct SandboxNotifier {
    source: Arc<(StateDirectory, SandboxId)>,
    telling: Mutex<Vec<JoinHandle<()>>>,
}

impl SandboxNotifier {
    /// Creates the notifier of this sandbox, in this state directory.
    pub fn new(state: StateDirectory, id: SandboxId) -> Self {
        Self { source: Arc::new((state, id)), telling: Mutex::default() }
    }

    /// Sends a notification of an event, if one is configured.
    pub fn notify_event(&self, event: &SandboxEvent) {
        let (what, why) = match event {
            SandboxEvent::Breached(denial) => (NotifyOn::Limit, notify::describe_breach(denial)),
            SandboxEvent::Lost(why) => (NotifyOn::Lost, why.clone()),
            SandboxEvent::Denied { .. } | SandboxEvent::Connection { .. } => return,
        };
        let mut telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        telling.retain(|thread| !thread.is_finished());
        let source = Arc::clone(&self.source);
        let begun = (telling.len() < MAX_NOTIFY_THREADS).then(|| {
            thread::Builder::new().name("notifier".to_owned()).spawn(move || {
                if let Err(error) = deliver_notification(&source.0, &source.1, what, why) {
                    tracing::warn!(%error, "a notification about the sandbox was not sent");
                }
            })
        });
        match begun {
            Some(Ok(thread)) => telling.push(thread),
            Some(Err(error)) => tracing::warn!(%error, "a notification about the sandbox was not sent"),
            None => tracing::warn!("a notification is dropped: {MAX_NOTIFY_THREADS} others are in progress"),
        }
    }

    /// Waits until all notifications are delivered or timed out.
    pub fn wait_for_deliveries(&self) {
        let telling = std::mem::take(&mut *self.telling.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in telling {
            let _ = thread.join();
        }
    }
}

fn deliver_notification(state: &StateDirectory, id: &SandboxId, what: NotifyOn, why: String) -> Result<(), CliError> {
    let store = SandboxStore::open(&state.sandboxes_directory())?;
    let settings = notify::load_stored_settings(&store.sandbox_directory(id));
    if let (Some(settings), Some(record)) = (settings, store.find_sandbox(id)?) {
        notify::deliver_notification(Some(&settings), &SandboxNotification::new(what, &record, why));
    }
    Ok(())
}

//! Notifier: sends notifications of events in a sandbox to the configured receivers. Events do not
//! wait: each notification has a thread of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use stockade_engine::SandboxEvent;
use stockade_model::SandboxId;
use stockade_policy::NotifyOn;
use stockade_store::sandboxes::Sandboxes;

use crate::failure::Failure;
use crate::notify::{self, Notice};
use crate::places::State;

/// Most concurrent notifications; further ones are dropped, with a warning in the log.
const AT_ONCE_MAX: usize = 16;

/// Notifier of one sandbox.
pub struct Herald {
    told: Arc<(State, SandboxId)>,
    telling: Mutex<Vec<JoinHandle<()>>>,
}

impl Herald {
    /// Creates the notifier of this sandbox, in this state directory.
    pub fn new(state: State, id: SandboxId) -> Self {
        Self { told: Arc::new((state, id)), telling: Mutex::default() }
    }

    /// Sends a notification of an event, if one is configured.
    pub fn tell(&self, event: &SandboxEvent) {
        let (what, why) = match event {
            SandboxEvent::Breached(denial) => (NotifyOn::Limit, notify::breach(denial)),
            SandboxEvent::Lost(why) => (NotifyOn::Lost, why.clone()),
            SandboxEvent::Denied { .. } | SandboxEvent::Connection { .. } => return,
        };
        let mut telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        telling.retain(|thread| !thread.is_finished());
        let told = Arc::clone(&self.told);
        let begun = (telling.len() < AT_ONCE_MAX).then(|| {
            thread::Builder::new().name("herald".to_owned()).spawn(move || {
                if let Err(error) = say(&told.0, &told.1, what, why) {
                    tracing::warn!(%error, "nobody was told what happened in the sandbox");
                }
            })
        });
        match begun {
            Some(Ok(thread)) => telling.push(thread),
            Some(Err(error)) => tracing::warn!(%error, "nobody was told what happened in the sandbox"),
            None => tracing::warn!("{AT_ONCE_MAX} are being told at once, and more are not"),
        }
    }

    /// Waits until all notifications are delivered or timed out.
    pub fn finish(&self) {
        let telling = std::mem::take(&mut *self.telling.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in telling {
            let _ = thread.join();
        }
    }
}

fn say(state: &State, id: &SandboxId, what: NotifyOn, why: String) -> Result<(), Failure> {
    let store = Sandboxes::open(&state.sandboxes())?;
    let settings = notify::kept(&store.directory(id));
    if let (Some(settings), Some(record)) = (settings, store.find(id)?) {
        notify::tell(Some(&settings), &Notice::new(what, &record, why));
    }
    Ok(())
}

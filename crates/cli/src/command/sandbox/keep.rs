//! The supervisor process of a sandbox. It holds the namespaces, runs commands in it for clients,
//! records events between commands in the audit log, and exits at the end of the sandbox's
//! lifetime.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stockade_engine::seams::Recorder;
use stockade_engine::{SandboxEvent, SandboxEvents, StartError};
use stockade_model::{Event, EventKind, SandboxId};
use stockade_native::{Keep, keep_sandbox};
use stockade_policy::NotifySettings;
use stockade_store::sandboxes::{SandboxError, Sandboxes};

use super::super::{Ended, now_ms};
use super::herald::Herald;
use super::{lifecycle_of, sweep, told};
use crate::audit_log::AuditLog;
use crate::exit;
use crate::failure::Failure;
use crate::notify;
use crate::places::State;

/// Retry delay if the store cannot be read.
const AGAIN: Duration = Duration::from_secs(10);
/// Interval between two checks of a sandbox that is used after its lifetime.
const WHILE_USED: Duration = Duration::from_secs(5);

/// Replaces the number of an attempt: all attempts had ended.
const AFTER_ITS_END: u32 = 0;

/// Returns the arguments of the supervisor process. Commands inside can see them.
pub fn arguments() -> Vec<OsString> {
    ["sandbox", "keep"].map(Into::into).into()
}

/// Runs the supervisor of a sandbox. The parent process sends the description of the sandbox on its
/// standard input.
///
/// # Errors
/// [`Failure`] if the parent process is gone.
pub fn keep() -> Ended {
    let over: Rc<OnceCell<(State, Option<NotifySettings>)>> = Rc::default();
    let noted = Rc::clone(&over);
    let herald: OnceCell<Arc<Herald>> = OnceCell::new();
    let begin = |id: &SandboxId, directory: &Path| {
        let state = state_of(directory).map_err(|failure| StartError { what: failure.what, hint: failure.hint })?;
        let told = Arc::clone(herald.get_or_init(|| Arc::new(Herald::new(state.clone(), id.clone()))));
        let (record, id) = (on_record(state.clone()), id.clone());
        let events = SandboxEvents::new(move |event| {
            told.tell(&event);
            record.tell(event);
        });
        let wanted = move || match left(&state.sandboxes(), &id) {
            Ok(Left::Time(time)) => Some(time),
            Ok(Left::Over) => {
                let _ = noted.set((state.clone(), notify::kept(&state.sandboxes().join(id.as_str()))));
                None
            }
            Ok(Left::Unknown) => None,
            // A busy store does not mean the end of the sandbox.
            Err(_) => Some(AGAIN),
        };
        Ok(Keep { events, wanted: Box::new(wanted) })
    };
    let kept = keep_sandbox(begin);
    herald.get().into_iter().for_each(|herald| herald.finish());
    kept.map_err(|e| {
        Failure::new(format!("cannot keep a sandbox: {e}")).hint("`stockade sandbox create` starts what keeps it")
    })?;
    // No process of it runs any more, so its files are removed now.
    over.get().map_or(Ok(()), |(state, notify)| {
        let notify = notify.clone();
        sweep(&told(lifecycle_of(state)?, move || notify.clone()))
    })?;
    Ok(exit::SUCCESS)
}

/// Opens the state that contains this directory of a sandbox.
fn state_of(directory: &Path) -> Result<State, Failure> {
    let state = directory.parent().and_then(Path::parent);
    State::open(state.ok_or_else(|| Failure::new("the sandbox is in no state directory"))?)
}

/// Remaining lifetime of a sandbox.
enum Left {
    Time(Duration),
    /// The lifetime has ended, or the sandbox was idle for the agreed time.
    Over,
    /// The sandbox is not known any more, or another process is destroying it.
    Unknown,
}

fn left(root: &Path, id: &SandboxId) -> Result<Left, SandboxError> {
    if !root.exists() {
        return Ok(Left::Unknown);
    }
    let Ok(store) = Sandboxes::open(root) else { return Ok(Left::Time(AGAIN)) };
    let Some(record) = store.find(id)?.filter(|record| !record.state.is_ending()) else { return Ok(Left::Unknown) };
    let now_ms = now_ms();
    if store.due(now_ms)?.iter().any(|(due, _)| due.id == *id) {
        return Ok(Left::Over);
    }
    let ends_in = record.ends_ms().map(|ends| Duration::from_millis(ends.saturating_sub(now_ms)));
    Ok(Left::Time(match ends_in {
        Some(Duration::ZERO) => WHILE_USED,
        Some(time) => time,
        None => Duration::MAX,
    }))
}

/// Records events between commands in the audit log, as events of the request whose command left
/// the process behind. The first event opens the audit log, because most sandboxes never have one.
fn on_record(state: State) -> SandboxEvents {
    let opened: Mutex<Option<AuditLog>> = Mutex::default();
    SandboxEvents::new(move |event| {
        let Some(event) = recorded(event) else { return };
        let mut log = opened.lock().unwrap_or_else(PoisonError::into_inner);
        if log.is_none() {
            *log = AuditLog::open(&state).inspect_err(|error| tracing::error!(%error, "there is no record")).ok();
        }
        let noted = log.as_ref().map(|log| log.record(&[event]));
        if let Some(Err(error)) = noted {
            tracing::error!(%error, "what happened in a sandbox is not on record");
        }
    })
}

fn recorded(event: SandboxEvent) -> Option<Event> {
    let (request, kind) = match event {
        SandboxEvent::Denied { request, denial } => (request, EventKind::Denied { denial }),
        SandboxEvent::Connection { request, record } => {
            (request, EventKind::Connection { attempt: AFTER_ITS_END, connection: record })
        }
        // Every running command gets these, and records them itself.
        SandboxEvent::Breached(_) | SandboxEvent::Lost(_) => return None,
    };
    Some(Event { time_ms: now_ms(), request, session: None, kind })
}

//! The supervisor process of a sandbox. It holds the namespaces, runs commands in it for clients,
//! records events between commands in the audit log, and exits at the end of the sandbox's
//! lifetime.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stockade_backend_api::{SandboxEvent, SandboxEventSender, StartError};
use stockade_engine::ports::EventRecorder;
use stockade_model::{Event, EventKind, SandboxId};
use stockade_native::{SupervisorHooks, run_sandbox_supervisor};
use stockade_policy::NotifySettings;
use stockade_store::sandboxes::{SandboxStore, SandboxStoreError};

use super::super::{CommandResult, now_ms};
use super::notifier::SandboxNotifier;
use super::{add_end_notifications, destroy_expired, lifecycle_of};
use crate::audit_log::AuditLog;
use crate::exit;
use crate::failure::CliError;
use crate::locations::StateDirectory;
use crate::notify;

/// Retry delay if the store cannot be read.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Interval between two checks of a sandbox that is used after its lifetime.
const IN_USE_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Replaces the number of an attempt: all attempts had ended.
const NO_ATTEMPT: u32 = 0;

/// Returns the arguments of the supervisor process. Commands inside can see them.
pub fn build_supervisor_args() -> Vec<OsString> {
    ["sandbox", "keep"].map(Into::into).into()
}

/// Runs the supervisor of a sandbox. The parent process sends the description of the sandbox on its
/// standard input.
///
/// # Errors
/// [`CliError`] if the parent process is gone.
pub fn supervise_sandbox() -> CommandResult {
    let over: Rc<OnceCell<(StateDirectory, Option<NotifySettings>)>> = Rc::default();
    let noted = Rc::clone(&over);
    let notifier_cell: OnceCell<Arc<SandboxNotifier>> = OnceCell::new();
    let begin = |id: &SandboxId, directory: &Path| {
        let state = state_of(directory).map_err(|failure| StartError { what: failure.what, hint: failure.hint })?;
        let sandbox_notifier =
            Arc::clone(notifier_cell.get_or_init(|| Arc::new(SandboxNotifier::new(state.clone(), id.clone()))));
        let (record, id) = (on_record(state.clone()), id.clone());
        let events = SandboxEventSender::new(move |event| {
            sandbox_notifier.notify_event(&event);
            record.send_event(event);
        });
        let next_check_delay = move || match compute_remaining(&state.sandboxes_directory(), &id) {
            Ok(RemainingLifetime::Time(time)) => Some(time),
            Ok(RemainingLifetime::Over) => {
                let _ = noted
                    .set((state.clone(), notify::load_stored_settings(&state.sandboxes_directory().join(id.as_str()))));
                None
            }
            Ok(RemainingLifetime::Unknown) => None,
            // A busy store does not mean the end of the sandbox.
            Err(_) => Some(STORE_RETRY_DELAY),
        };
        Ok(SupervisorHooks { events, next_check_delay: Box::new(next_check_delay) })
    };
    let result = run_sandbox_supervisor(begin);
    notifier_cell.get().into_iter().for_each(|notifier_cell| notifier_cell.wait_for_deliveries());
    result.map_err(|e| {
        CliError::new(format!("cannot supervise a sandbox: {e}"))
            .with_hint("`stockade sandbox create` starts the supervisor of a sandbox")
    })?;
    // No process of it runs any more, so its files are removed now.
    over.get().map_or(Ok(()), |(state, notify)| {
        let notify = notify.clone();
        destroy_expired(&add_end_notifications(lifecycle_of(state)?, move || notify.clone()))
    })?;
    Ok(exit::SUCCESS)
}

/// Opens the state that contains this directory of a sandbox.
fn state_of(directory: &Path) -> Result<StateDirectory, CliError> {
    let state = directory.parent().and_then(Path::parent);
    StateDirectory::open(state.ok_or_else(|| CliError::new("the sandbox is not in a state directory"))?)
}

/// Remaining lifetime of a sandbox.
enum RemainingLifetime {
    Time(Duration),
    /// The lifetime has ended, or the sandbox was idle for the agreed time.
    Over,
    /// The sandbox is not known any more, or another process is destroying it.
    Unknown,
}

fn compute_remaining(root: &Path, id: &SandboxId) -> Result<RemainingLifetime, SandboxStoreError> {
    if !root.exists() {
        return Ok(RemainingLifetime::Unknown);
    }
    let Ok(store) = SandboxStore::open(root) else { return Ok(RemainingLifetime::Time(STORE_RETRY_DELAY)) };
    let Some(record) = store.find_sandbox(id)?.filter(|record| !record.state.is_ending()) else {
        return Ok(RemainingLifetime::Unknown);
    };
    let now_ms = now_ms();
    if store.due_sandboxes(now_ms)?.iter().any(|(due, _)| due.id == *id) {
        return Ok(RemainingLifetime::Over);
    }
    let ends_in = record.ends_ms().map(|ends| Duration::from_millis(ends.saturating_sub(now_ms)));
    Ok(RemainingLifetime::Time(match ends_in {
        Some(Duration::ZERO) => IN_USE_POLL_INTERVAL,
        Some(time) => time,
        None => Duration::MAX,
    }))
}

/// Records events between commands in the audit log, as events of the request whose command left
/// the process behind. The first event opens the audit log, because most sandboxes never have one.
fn on_record(state: StateDirectory) -> SandboxEventSender {
    let opened: Mutex<Option<AuditLog>> = Mutex::default();
    SandboxEventSender::new(move |event| {
        let Some(event) = select_event_to_record(event) else { return };
        let mut log = opened.lock().unwrap_or_else(PoisonError::into_inner);
        if log.is_none() {
            *log =
                AuditLog::open(&state).inspect_err(|error| tracing::error!(%error, "cannot open the audit log")).ok();
        }
        let noted = log.as_ref().map(|log| log.record_events(&[event]));
        if let Some(Err(error)) = noted {
            tracing::error!(%error, "cannot record an event of a sandbox");
        }
    })
}

fn select_event_to_record(event: SandboxEvent) -> Option<Event> {
    let (request, kind) = match event {
        SandboxEvent::Denied { request, denial } => (request, EventKind::Denied { denial }),
        SandboxEvent::Connection { request, record } => {
            (request, EventKind::Connection { attempt: NO_ATTEMPT, connection: record })
        }
        // Every running command gets these, and records them itself.
        SandboxEvent::Breached(_) | SandboxEvent::Lost(_) => return None,
    };
    Some(Event { time_ms: now_ms(), request, session: None, kind })
}

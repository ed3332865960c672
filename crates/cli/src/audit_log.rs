//! The audit log of this user, and its anchor in the store. Each program that appended to the log
//! records there, at its end, how far the log reached. So a log is detected that was restored to an
//! earlier state together with its signed head.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use stockade_audit::{AnchorState, AuditLogWriter, BootId, LineHash, LogAnchor, LogOpenError};
use stockade_engine::ports::{EventRecorder, RecordError};
use stockade_model::{Event, EventKind, RequestId, SessionId};
use stockade_store::anchors::{AnchorRecord, AnchorStore};

use crate::command::now_ms;
use crate::failure::{CliError, quote_path};
use crate::locations::StateDirectory;

/// Open audit log. Its anchor moves when it is dropped, at the latest.
#[derive(Debug)]
pub struct AuditLog {
    log: AuditLogWriter,
    directory: PathBuf,
    anchors: PathBuf,
    /// Number of the last line that needs no further anchor.
    noted: Mutex<u64>,
}

impl AuditLog {
    /// Opens the log of a state directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// The errors of [`AuditLogWriter::open`].
    pub fn open(state: &StateDirectory) -> Result<Self, LogOpenError> {
        let log = AuditLogWriter::open(&state.audit_directory())?;
        let noted = Mutex::new(log.last_line().0.0);
        Ok(Self { log, directory: state.audit_directory(), anchors: state.anchors_file(), noted })
    }

    /// Records in the store how far the log reaches. If the log does not contain the recorded line
    /// any more, that is reported, and the anchor stays as evidence.
    pub fn move_anchor(&self) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = self.log.last_line().0.0;
        if reached == *noted {
            return;
        }
        // Once only: the next program records an anchor that cannot be recorded now.
        *noted = reached;
        if let Err(failure) = self.try_move_anchor() {
            let what = format!("cannot store the anchor of the audit log: {failure}");
            crate::print_error(&CliError::new(what).or_hint(failure.hint));
        }
    }

    /// Records an event that belongs to a request, durably.
    pub fn record_now(&self, request: RequestId, session: Option<SessionId>, kind: EventKind) -> Result<(), CliError> {
        self.log.append_event(&Event { time_ms: now_ms(), request, session, kind })?;
        Ok(self.log.commit_lines()?)
    }

    fn try_move_anchor(&self) -> Result<(), CliError> {
        let Some(anchor) = self.log.current_anchor()? else { return Ok(()) };
        let store = AnchorStore::open(&self.anchors)?;
        let known = store.find_anchor(&anchor.log.to_string())?;
        let state =
            known.as_ref().map(anchor_of).transpose()?.map(|known| self.log.check_anchor(&known)).transpose()?;
        let replaced = match state {
            None | Some(AnchorState::Holds) => None,
            Some(AnchorState::MayBeLost) => known.as_ref(),
            Some(AnchorState::Missing | AnchorState::OtherLog) => {
                let line = known.map_or(0, |known| known.seq);
                let why = format!("the log in {} has lost its line {line}", quote_path(&self.directory));
                return Err(CliError::new(why).with_hint(
                    "`stockade audit verify` shows what is missing; keep the log as evidence: move the directory away",
                ));
            }
        };
        store.advance_anchor(&record_of(&anchor), replaced)?;
        Ok(self.log.note_anchored()?)
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.move_anchor();
    }
}

impl EventRecorder for AuditLog {
    fn record_events(&self, events: &[Event]) -> Result<(), RecordError> {
        self.log.record_events(events)
    }

    fn commit_events(&self) -> Result<(), RecordError> {
        EventRecorder::commit_events(&self.log)
    }
}

/// Returns the anchors in the store; none if the store has no file for them.
///
/// # Errors
/// [`CliError`] if the store cannot be read.
pub fn list_stored_anchors(file: &Path) -> Result<Vec<LogAnchor>, CliError> {
    if file.try_exists().is_ok_and(|exists| !exists) {
        return Ok(Vec::new());
    }
    AnchorStore::open(file)?.list_anchors()?.iter().map(anchor_of).collect()
}

fn record_of(anchor: &LogAnchor) -> AnchorRecord {
    AnchorRecord {
        log: anchor.log.to_string(),
        seq: anchor.seq,
        hash: anchor.hash.to_string(),
        end: anchor.end,
        durable: anchor.durable,
        boot: anchor.boot.to_text(),
        noted_ms: now_ms(),
    }
}

fn anchor_of(record: &AnchorRecord) -> Result<LogAnchor, CliError> {
    let unreadable = || {
        CliError::new(format!("the store's anchor of line {} of the audit log cannot be read", record.seq)).with_hint(
            "restore `anchors.db` in the state directory from a backup, or keep it as evidence and move it away",
        )
    };
    let hash = |text: &str| text.parse::<LineHash>().map_err(|_| unreadable());
    Ok(LogAnchor {
        log: hash(&record.log)?,
        seq: record.seq,
        hash: hash(&record.hash)?,
        end: record.end,
        durable: record.durable,
        boot: BootId::parse_text(&record.boot).ok_or_else(unreadable)?,
    })
}

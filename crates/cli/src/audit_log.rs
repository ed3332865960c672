//! The audit log of this user, and its anchor in the store. Each program that appended to the log
//! records there, at its end, how far the log reached. So a log is detected that was restored to an
//! earlier state together with its signed head.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use stockade_audit::{Anchor, AnchorState, Boot, Hash, Log, OpenError};
use stockade_engine::seams::{RecordError, Recorder};
use stockade_model::Event;
use stockade_store::anchors::{AnchorRecord, Anchors};

use crate::command::now_ms;
use crate::failure::{Failure, quoted};
use crate::places::State;

/// Open audit log. Its anchor moves when it is dropped, at the latest.
#[derive(Debug)]
pub struct AuditLog {
    log: Log,
    directory: PathBuf,
    anchors: PathBuf,
    /// Number of the last line that needs no further anchor.
    noted: Mutex<u64>,
}

impl AuditLog {
    /// Opens the log of a state directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// The errors of [`Log::open`].
    pub fn open(state: &State) -> Result<Self, OpenError> {
        let log = Log::open(&state.audit())?;
        let noted = Mutex::new(log.head().0.0);
        Ok(Self { log, directory: state.audit(), anchors: state.anchors(), noted })
    }

    /// Records in the store how far the log reaches. If the log does not contain the recorded line
    /// any more, that is reported, and the anchor stays as evidence.
    pub fn move_anchor(&self) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = self.log.head().0.0;
        if reached == *noted {
            return;
        }
        // Once only: the next program records an anchor that cannot be recorded now.
        *noted = reached;
        if let Err(failure) = self.try_move_anchor() {
            let what = format!("the end of the audit log is not noted in the store: {failure}");
            crate::complain(&Failure::new(what).or_hint(failure.hint));
        }
    }

    fn try_move_anchor(&self) -> Result<(), Failure> {
        let Some(anchor) = self.log.anchor()? else { return Ok(()) };
        let store = Anchors::open(&self.anchors)?;
        let known = store.find(&anchor.log.to_string())?;
        let state =
            known.as_ref().map(anchor_of).transpose()?.map(|known| self.log.check_anchor(&known)).transpose()?;
        let replaced = match state {
            None | Some(AnchorState::Holds) => None,
            Some(AnchorState::MayBeLost) => known.as_ref(),
            Some(AnchorState::Missing | AnchorState::OtherLog) => {
                let line = known.map_or(0, |known| known.seq);
                let why = format!("the log in {} does not hold its line {line} any more", quoted(&self.directory));
                return Err(Failure::new(why).hint(
                    "`stockade audit verify` tells what is missing; keep the log as evidence: move the directory away",
                ));
            }
        };
        store.advance(&record_of(&anchor), replaced)?;
        Ok(self.log.note_anchored()?)
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.move_anchor();
    }
}

impl Deref for AuditLog {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.log
    }
}

impl Recorder for AuditLog {
    fn record(&self, events: &[Event]) -> Result<(), RecordError> {
        self.log.record(events)
    }

    fn commit(&self) -> Result<(), RecordError> {
        Recorder::commit(&self.log)
    }
}

/// Returns the anchors in the store; none if the store has no file for them.
///
/// # Errors
/// [`Failure`] if the store cannot be read.
pub fn kept_anchors(file: &Path) -> Result<Vec<Anchor>, Failure> {
    if file.try_exists().is_ok_and(|exists| !exists) {
        return Ok(Vec::new());
    }
    Anchors::open(file)?.list()?.iter().map(anchor_of).collect()
}

fn record_of(anchor: &Anchor) -> AnchorRecord {
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

fn anchor_of(record: &AnchorRecord) -> Result<Anchor, Failure> {
    let unreadable = || {
        Failure::new(format!("the store's anchor of line {} of the audit log cannot be read", record.seq))
            .hint("restore `anchors.db` in the state directory from a backup, or keep it as evidence and move it away")
    };
    let hash = |text: &str| text.parse::<Hash>().map_err(|_| unreadable());
    Ok(Anchor {
        log: hash(&record.log)?,
        seq: record.seq,
        hash: hash(&record.hash)?,
        end: record.end,
        durable: record.durable,
        boot: Boot::parse(&record.boot).ok_or_else(unreadable)?,
    })
}

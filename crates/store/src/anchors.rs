//! Anchors of audit logs: of each log the last line that was noted here, so that a log
//! which was cut or put back together with its own notes is found.
//!
//! The file is apart from the remembered answers, so that it can be written at the end of
//! every run without a wait for the disk: an anchor needs to last no longer than the lines
//! that it names, and those are not synced at the end of a run either.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::database::{self, OpenError, StoreError};
use crate::sql::anchor::{Database, SCHEMA};

/// The most logs of which an anchor is kept; those noted longest ago are forgotten.
pub const MAX_ANCHORED_LOGS: usize = 1_000;

/// The last line of a log that was noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorRecord {
    /// Which log: the hash of its first line.
    pub log: String,
    /// Number of the line.
    pub seq: u64,
    /// Hash of the line.
    pub hash: String,
    /// Where the line ends, in bytes from the start of the log.
    pub end: u64,
    /// The last line that was durable then.
    pub durable: u64,
    /// The boot of the machine in which it was noted.
    pub boot: String,
    /// When it was noted, in milliseconds since the epoch.
    pub noted_ms: u64,
}

/// The open file of anchors. Share it between threads by reference.
#[derive(Debug)]
pub struct Anchors {
    database: Mutex<Database>,
}

impl Anchors {
    /// Opens the file at `path`, and makes one where there is none.
    ///
    /// # Errors
    /// A place that is not the caller's alone; a file that is damaged, of another program
    /// or of a newer version.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let connection = database::open(path, &SCHEMA)?;
        let database = Database::on(connection).map_err(StoreError::from);
        let database = database.map_err(|source| OpenError::Database { path: path.to_owned(), source })?;
        Ok(Self { database: Mutex::new(database) })
    }

    /// Moves the anchor of a log forward, or begins one. `replaced` is the anchor that the
    /// caller compared the log with; a later one, of another process, stays.
    ///
    /// # Errors
    /// When the store failed.
    pub fn advance(&self, anchor: &AnchorRecord, replaced: Option<&AnchorRecord>) -> Result<(), StoreError> {
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(database.advance(anchor, replaced)?)
    }

    /// The anchor of each log, the one noted last first; at most [`MAX_ANCHORED_LOGS`].
    ///
    /// # Errors
    /// When the store failed.
    pub fn list(&self) -> Result<Vec<AnchorRecord>, StoreError> {
        Ok(self.database.lock().unwrap_or_else(PoisonError::into_inner).list()?)
    }

    /// The anchor of one log.
    ///
    /// # Errors
    /// When the store failed.
    pub fn find(&self, log: &str) -> Result<Option<AnchorRecord>, StoreError> {
        Ok(self.database.lock().unwrap_or_else(PoisonError::into_inner).find(log)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(log: &str, seq: u64) -> AnchorRecord {
        let boot = "00000000000000aa".to_owned();
        AnchorRecord { log: log.into(), seq, hash: format!("{seq}"), end: seq * 100, durable: 1, boot, noted_ms: seq }
    }

    #[test]
    fn an_anchor_moves_forward_only() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("state/anchors.db");
        let anchors = Anchors::open(&path).unwrap();
        assert_eq!(anchors.list().unwrap(), []);
        anchors.advance(&anchor("a", 5), None).unwrap();
        anchors.advance(&anchor("a", 3), None).unwrap();
        anchors.advance(&anchor("b", 9), None).unwrap();
        assert_eq!(Anchors::open(&path).unwrap().find("a").unwrap(), Some(anchor("a", 5)));
        anchors.advance(&anchor("a", 6), Some(&anchor("a", 5))).unwrap();
        assert_eq!(anchors.list().unwrap(), [anchor("b", 9), anchor("a", 6)]);
        // Lines that a stop of the machine took: the caller knows, and says which anchor.
        anchors.advance(&anchor("a", 4), Some(&anchor("a", 5))).unwrap();
        assert_eq!(anchors.find("a").unwrap(), Some(anchor("a", 6)));
        anchors.advance(&anchor("a", 4), Some(&anchor("a", 6))).unwrap();
        assert_eq!(anchors.find("a").unwrap(), Some(anchor("a", 4)));
    }

    #[test]
    fn logs_beyond_the_bound_are_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let anchors = Anchors::open(&root.path().join("state/anchors.db")).unwrap();
        let count = MAX_ANCHORED_LOGS as u64 + 3;
        for seq in 1..=count {
            anchors.advance(&anchor(&format!("log {seq}"), seq), None).unwrap();
        }
        let listed = anchors.list().unwrap();
        assert_eq!((listed.len(), listed[0].seq), (MAX_ANCHORED_LOGS, count));
        assert_eq!(anchors.find("log 3").unwrap(), None);
    }
}

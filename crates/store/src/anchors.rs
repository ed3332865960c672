//! Anchors of audit logs: for each log, the last line that was recorded here. They reveal a log
//! that was truncated, or restored to an earlier state together with its own head.
//!
//! The file is separate from the remembered answers, so that it can be written at the end of every
//! run without waiting for the disk. An anchor need not be more durable than its line, and lines
//! are not synced at the end of a run either.

use std::path::Path;

use crate::database::{self, StoreOpenError};
use crate::sql::Database;
use crate::sql::anchor::{SCHEMA, prepare_connection};

/// Most logs with an anchor; the anchors that were recorded longest ago are dropped.
pub const MAX_ANCHORED_LOGS: usize = 1_000;

/// Last recorded line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorRecord {
    /// Identifier of the log: the hash of its first line.
    pub log: String,
    /// Number of the line.
    pub seq: u64,
    /// Hash of the line.
    pub hash: String,
    /// End of the line, in bytes from the start of the log.
    pub end: u64,
    /// Number of the last line that was durable then.
    pub durable: u64,
    /// Boot of the machine in which the anchor was recorded.
    pub boot: String,
    /// Time of the record, in milliseconds since the epoch.
    pub noted_ms: u64,
}

/// Open file of anchors. Threads share it by reference.
#[derive(Debug)]
pub struct AnchorStore {
    pub(crate) database: Database,
}

impl AnchorStore {
    /// Opens the file at `path`, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`StoreOpenError`] if others than the caller can access the path, or if the file is damaged, of
    /// another program or of a newer version.
    pub fn open(path: &Path) -> Result<Self, StoreOpenError> {
        let database = database::open_database(path, &SCHEMA)?;
        let failed = |source| StoreOpenError::Database { path: path.to_owned(), source };
        prepare_connection(&database.lock()).map_err(failed)?;
        Ok(Self { database })
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
        let anchors = AnchorStore::open(&path).unwrap();
        assert_eq!(anchors.list_anchors().unwrap(), []);
        anchors.advance_anchor(&anchor("a", 5), None).unwrap();
        anchors.advance_anchor(&anchor("a", 3), None).unwrap();
        anchors.advance_anchor(&anchor("b", 9), None).unwrap();
        assert_eq!(AnchorStore::open(&path).unwrap().find_anchor("a").unwrap(), Some(anchor("a", 5)));
        anchors.advance_anchor(&anchor("a", 6), Some(&anchor("a", 5))).unwrap();
        assert_eq!(anchors.list_anchors().unwrap(), [anchor("b", 9), anchor("a", 6)]);
        // Lines that were lost when the machine stopped: the caller knows this, and names the
        // anchor.
        anchors.advance_anchor(&anchor("a", 4), Some(&anchor("a", 5))).unwrap();
        assert_eq!(anchors.find_anchor("a").unwrap(), Some(anchor("a", 6)));
        anchors.advance_anchor(&anchor("a", 4), Some(&anchor("a", 6))).unwrap();
        assert_eq!(anchors.find_anchor("a").unwrap(), Some(anchor("a", 4)));
    }

    #[test]
    fn logs_beyond_the_bound_are_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let anchors = AnchorStore::open(&root.path().join("state/anchors.db")).unwrap();
        let count = MAX_ANCHORED_LOGS as u64 + 3;
        for seq in 1..=count {
            anchors.advance_anchor(&anchor(&format!("log {seq}"), seq), None).unwrap();
        }
        let listed = anchors.list_anchors().unwrap();
        assert_eq!((listed.len(), listed[0].seq), (MAX_ANCHORED_LOGS, count));
        assert_eq!(anchors.find_anchor("log 3").unwrap(), None);
    }
}

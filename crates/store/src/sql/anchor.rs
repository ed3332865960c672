//! Anchors of audit logs: their table and its statements.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::{DatabaseSchema, read_amount, to_sql_integer};
use crate::anchors::{AnchorRecord, AnchorStore, MAX_ANCHORED_LOGS};
use crate::database::StoreError;

/// Schema of the file of anchors.
pub(crate) const SCHEMA: DatabaseSchema = DatabaseSchema {
    application_id: 0x5354_4b41, // `STKA`
    migrations: &["
    CREATE TABLE anchor (
        log TEXT PRIMARY KEY,
        seq INTEGER NOT NULL CHECK (seq > 0),
        hash TEXT NOT NULL,
        end_bytes INTEGER NOT NULL CHECK (end_bytes > 0),
        durable INTEGER NOT NULL CHECK (durable >= 0),
        boot TEXT NOT NULL,
        noted_ms INTEGER NOT NULL CHECK (noted_ms >= 0)
    ) STRICT;
"],
};

const COLUMNS: &str = "log, seq, hash, end_bytes, durable, boot, noted_ms";

/// Prepares a connection. Its writes survive the end of the process, but not a loss of power; the
/// file stays consistent in either case.
pub(crate) fn prepare_connection(connection: &Connection) -> Result<(), StoreError> {
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // The checkpoint at the last close would wait for the disk.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(())
}

impl AnchorStore {
    /// Moves the anchor of a log forward, or creates one. `replaced` is the anchor that the caller
    /// compared the log with; a later anchor of another process stays.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn advance_anchor(&self, anchor: &AnchorRecord, replaced: Option<&AnchorRecord>) -> Result<(), StoreError> {
        let mut connection = self.database.lock();
        let transaction = Transaction::new(&mut connection, TransactionBehavior::Immediate)?;
        let sql = format!(
            "INSERT INTO anchor ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
             ON CONFLICT (log) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, \
             end_bytes = excluded.end_bytes, durable = excluded.durable, boot = excluded.boot, \
             noted_ms = excluded.noted_ms WHERE anchor.seq < excluded.seq OR anchor.hash = ?8"
        );
        let replaced = replaced.map(|replaced| replaced.hash.as_str());
        let is_new = transaction.execute(
            &sql,
            params![
                anchor.log,
                to_sql_integer(anchor.seq),
                anchor.hash,
                to_sql_integer(anchor.end),
                to_sql_integer(anchor.durable),
                anchor.boot,
                to_sql_integer(anchor.noted_ms),
                replaced
            ],
        )? > 0
            && replaced.is_none();
        if is_new {
            let sql = "DELETE FROM anchor WHERE log NOT IN \
                (SELECT log FROM anchor ORDER BY noted_ms DESC, rowid DESC LIMIT ?1)";
            transaction.execute(sql, params![to_sql_integer(MAX_ANCHORED_LOGS as u64)])?;
        }
        Ok(transaction.commit()?)
    }

    /// Returns the anchor of each log, the latest record first; at most [`MAX_ANCHORED_LOGS`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn list_anchors(&self) -> Result<Vec<AnchorRecord>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM anchor ORDER BY noted_ms DESC, rowid DESC LIMIT ?1");
        self.database.select_rows(&sql, [to_sql_integer(MAX_ANCHORED_LOGS as u64)], parse_anchor)
    }

    /// Returns the anchor of one log.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn find_anchor(&self, log: &str) -> Result<Option<AnchorRecord>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM anchor WHERE log = ?1");
        Ok(self.database.lock().prepare_cached(&sql)?.query_row([log], parse_anchor).optional()?)
    }
}

fn parse_anchor(row: &Row<'_>) -> rusqlite::Result<AnchorRecord> {
    Ok(AnchorRecord {
        log: row.get(0)?,
        seq: read_amount(row, 1)?,
        hash: row.get(2)?,
        end: read_amount(row, 3)?,
        durable: read_amount(row, 4)?,
        boot: row.get(5)?,
        noted_ms: read_amount(row, 6)?,
    })
}

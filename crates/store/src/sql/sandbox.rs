//! Sandboxes: their table and its statements.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use stockade_model::{SandboxId, SandboxRecord, SandboxSpec, SandboxState};

use super::{DatabaseSchema, history, json_text, parse_column, read_amount, read_time, to_sql_integer};
use crate::database::StoreError;
use crate::sandboxes::{MAX_ALIVE_SANDBOXES, MAX_LISTED, SandboxStore, SandboxStoreError};

/// Schema of the file of sandboxes. Searched properties have columns of their own; the rest of the
/// specification is one text, which never changes.
pub(crate) const SCHEMA: DatabaseSchema = DatabaseSchema {
    application_id: 0x5354_4b53, // `STKS`
    migrations: &[
        "
    CREATE TABLE sandbox (
        id TEXT PRIMARY KEY,
        spec TEXT NOT NULL,
        backend TEXT,
        state TEXT NOT NULL CHECK
            (state IN ('creating', 'ready', 'paused', 'failed', 'lost', 'destroying', 'destroyed')),
        why TEXT,
        created_ms INTEGER NOT NULL CHECK (created_ms >= 0),
        changed_ms INTEGER NOT NULL CHECK (changed_ms >= 0),
        used_ms INTEGER NOT NULL CHECK (used_ms >= 0),
        expires_ms INTEGER CHECK (expires_ms >= 0),
        idle_ms INTEGER CHECK (idle_ms > 0)
    ) STRICT;
    CREATE INDEX sandbox_alive ON sandbox (state) WHERE state <> 'destroyed';
",
        history::MIGRATION,
    ],
};

const COLUMNS: &str = "id, spec, backend, state, why, created_ms, changed_ms, used_ms, expires_ms";

impl SandboxStore {
    /// Inserts a record; returns false if the limit is reached.
    pub(crate) fn insert_record(&self, record: &SandboxRecord) -> Result<bool, StoreError> {
        let mut connection = self.database.lock();
        let transaction = Transaction::new(&mut connection, TransactionBehavior::Immediate)?;
        let alive: i64 =
            transaction.query_row("SELECT count(*) FROM sandbox WHERE state <> 'destroyed'", [], |row| row.get(0))?;
        if alive >= MAX_ALIVE_SANDBOXES {
            return Ok(false);
        }
        let spec = json_text(&record.spec)?;
        let sql = format!("INSERT INTO sandbox ({COLUMNS}, idle_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)");
        transaction.execute(
            &sql,
            params![
                record.id.as_str(),
                spec,
                record.backend,
                record.state.to_string(),
                record.why,
                to_sql_integer(record.created_ms),
                to_sql_integer(record.changed_ms),
                to_sql_integer(record.used_ms),
                record.expires_ms.map(to_sql_integer),
                record.spec.idle_ms.map(|idle| to_sql_integer(idle.as_millis())),
            ],
        )?;
        transaction.commit()?;
        Ok(true)
    }

    /// Returns one sandbox.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if the store failed.
    pub fn find_sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, SandboxStoreError> {
        Ok(find_record(&self.database.lock(), id)?)
    }

    /// Returns all known sandboxes, the newest first; at most [`MAX_LISTED`].
    ///
    /// # Errors
    /// [`SandboxStoreError`] if the store failed.
    pub fn list_sandboxes(&self) -> Result<Vec<SandboxRecord>, SandboxStoreError> {
        Ok(self.select_sandboxes("TRUE ORDER BY created_ms DESC, id", [])?)
    }

    /// Returns the sandboxes that are due and not yet being destroyed, the longest overdue first.
    pub(crate) fn select_due(&self, now_ms: u64) -> Result<Vec<SandboxRecord>, StoreError> {
        self.select_sandboxes(
            "state NOT IN ('destroying', 'destroyed') AND (expires_ms <= ?1 OR used_ms + idle_ms <= ?1) \
             ORDER BY min(coalesce(expires_ms, ?2), coalesce(used_ms + idle_ms, ?2)), id",
            params![to_sql_integer(now_ms), i64::MAX],
        )
    }

    /// Returns the sandboxes in a transitional state.
    pub(crate) fn select_unfinished(&self) -> Result<Vec<SandboxRecord>, StoreError> {
        self.select_sandboxes("state IN ('creating', 'failed', 'destroying') ORDER BY created_ms, id", [])
    }

    fn select_sandboxes(
        &self,
        condition: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<SandboxRecord>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM sandbox WHERE {condition} LIMIT {MAX_LISTED}");
        self.database.select_rows(&sql, values, parse_sandbox)
    }

    /// Changes the state if that is permitted. Returns the record, and whether it was changed.
    pub(crate) fn update_state(
        &self,
        id: &SandboxId,
        to: SandboxState,
        why: Option<&str>,
        now_ms: u64,
    ) -> Result<Option<(SandboxRecord, bool)>, StoreError> {
        let mut connection = self.database.lock();
        let transaction = Transaction::new(&mut connection, TransactionBehavior::Immediate)?;
        let Some(mut found) = find_record(&transaction, id)? else { return Ok(None) };
        if !found.state.may_become(to) {
            return Ok(Some((found, false)));
        }
        (found.state, found.why, found.changed_ms) = (to, why.map(str::to_owned), now_ms);
        let sql = "UPDATE sandbox SET state = ?2, why = ?3, changed_ms = ?4 WHERE id = ?1";
        transaction.execute(sql, params![id.as_str(), to.to_string(), why, to_sql_integer(now_ms)])?;
        transaction.commit()?;
        Ok(Some((found, true)))
    }

    /// Sets the backend; returns whether the sandbox was being made.
    pub(crate) fn update_backend(&self, id: &SandboxId, backend: &str) -> Result<bool, StoreError> {
        let sql = "UPDATE sandbox SET backend = ?2 WHERE id = ?1 AND state = 'creating' AND backend IS NULL";
        Ok(self.database.execute(sql, params![id.as_str(), backend])? > 0)
    }

    /// Updates the time of use, which never goes back, even if a caller is late.
    pub(crate) fn update_used_time(&self, id: &SandboxId, now_ms: u64) -> Result<(), StoreError> {
        let sql = "UPDATE sandbox SET used_ms = max(used_ms, ?2) WHERE id = ?1";
        self.database.execute(sql, params![id.as_str(), to_sql_integer(now_ms)])?;
        Ok(())
    }

    /// Sets the expiry; returns whether there was a sandbox to extend.
    pub(crate) fn update_expiry(&self, id: &SandboxId, expires_ms: u64) -> Result<bool, StoreError> {
        let sql = "UPDATE sandbox SET expires_ms = ?2 WHERE id = ?1 AND state NOT IN ('destroying', 'destroyed')";
        Ok(self.database.execute(sql, params![id.as_str(), to_sql_integer(expires_ms)])? > 0)
    }

    /// Removes the records of sandboxes destroyed before `before_ms`; returns their number.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if the store failed.
    pub fn prune_records(&self, before_ms: u64) -> Result<usize, SandboxStoreError> {
        let sql = "DELETE FROM sandbox WHERE state = 'destroyed' AND changed_ms < ?1";
        let forgotten = self.database.execute(sql, [to_sql_integer(before_ms)])?;
        self.prune_commands()?;
        Ok(forgotten)
    }

    /// Checks the whole database for damage.
    ///
    /// # Errors
    /// [`SandboxStoreError`] with the first damage.
    pub fn check_integrity(&self) -> Result<(), SandboxStoreError> {
        Ok(self.database.check_file()?)
    }
}

fn find_record(connection: &Connection, id: &SandboxId) -> Result<Option<SandboxRecord>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM sandbox WHERE id = ?1");
    Ok(connection.prepare_cached(&sql)?.query_row([id.as_str()], parse_sandbox).optional()?)
}

fn parse_sandbox(row: &Row<'_>) -> rusqlite::Result<SandboxRecord> {
    Ok(SandboxRecord {
        id: parse_column(row, 0, |text| text.parse().ok())?,
        spec: parse_column(row, 1, |text| serde_json::from_str::<SandboxSpec>(&text).ok())?,
        backend: row.get(2)?,
        state: parse_column(row, 3, |text| text.parse().ok())?,
        why: row.get(4)?,
        created_ms: read_amount(row, 5)?,
        changed_ms: read_amount(row, 6)?,
        used_ms: read_amount(row, 7)?,
        expires_ms: read_time(row, 8)?,
    })
}

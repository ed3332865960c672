//! Commands of sandboxes: the table and its statements.

use rusqlite::{Row, Transaction, TransactionBehavior, params};
use stockade_model::SandboxId;

use super::{json_text, parse_column, read_amount, read_time, to_sql_integer};
use crate::database::StoreError;
use crate::sandboxes::{CommandRecord, MAX_COMMANDS, MAX_TEXT_BYTES, SandboxStore, SandboxStoreError, truncate_text};

/// Migration of the file of sandboxes to its second version.
pub(crate) const MIGRATION: &str = "
    CREATE TABLE command (
        sandbox TEXT NOT NULL,
        request TEXT NOT NULL,
        user TEXT NOT NULL,
        text TEXT NOT NULL,
        started_ms INTEGER NOT NULL CHECK (started_ms >= 0),
        ended_ms INTEGER NOT NULL CHECK (ended_ms >= 0),
        status TEXT NOT NULL,
        exit_code INTEGER,
        memory_peak_bytes INTEGER,
        processes_peak INTEGER
    ) STRICT;
    CREATE INDEX command_of ON command (sandbox, ended_ms);
";

const COLUMNS: &str = "request, user, text, started_ms, ended_ms, status, exit_code, memory_peak_bytes, processes_peak";

impl SandboxStore {
    /// Records a command that was run in a sandbox.
    ///
    /// # Errors
    /// [`SandboxStoreError`] if the store failed.
    pub fn note_command(&self, id: &SandboxId, record: CommandRecord) -> Result<(), SandboxStoreError> {
        let status = json_text(&record.status)?;
        let text = truncate_text(&record.text, MAX_TEXT_BYTES);
        let mut connection = self.database.lock();
        let transaction = Transaction::new(&mut connection, TransactionBehavior::Immediate)?;
        let sql = format!("INSERT INTO command (sandbox, {COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)");
        transaction.execute(
            &sql,
            params![
                id.as_str(),
                record.request.as_str(),
                record.user,
                text,
                to_sql_integer(record.started_ms),
                to_sql_integer(record.ended_ms),
                status,
                record.exit_code,
                record.memory_peak_bytes.map(to_sql_integer),
                record.processes_peak.map(to_sql_integer),
            ],
        )?;
        let sql = "DELETE FROM command WHERE sandbox = ?1 AND rowid NOT IN \
            (SELECT rowid FROM command WHERE sandbox = ?1 ORDER BY ended_ms DESC, rowid DESC LIMIT ?2)";
        transaction.execute(sql, params![id.as_str(), to_sql_integer(MAX_COMMANDS as u64)])?;
        Ok(transaction.commit()?)
    }

    /// Returns the commands of a sandbox, the oldest first; at most [`MAX_COMMANDS`].
    ///
    /// # Errors
    /// [`SandboxStoreError`] if the store failed.
    pub fn list_commands(&self, id: &SandboxId) -> Result<Vec<CommandRecord>, SandboxStoreError> {
        let sql = format!("SELECT {COLUMNS} FROM command WHERE sandbox = ?1 ORDER BY ended_ms, rowid");
        Ok(self.database.select_rows(&sql, [id.as_str()], parse_command)?)
    }

    /// Removes commands of sandboxes that are no longer known.
    pub(super) fn prune_commands(&self) -> Result<(), StoreError> {
        let sql = "DELETE FROM command WHERE sandbox NOT IN (SELECT id FROM sandbox)";
        Ok(self.database.lock().execute(sql, []).map(drop)?)
    }
}

fn parse_command(row: &Row<'_>) -> rusqlite::Result<CommandRecord> {
    Ok(CommandRecord {
        request: parse_column(row, 0, |text| text.parse().ok())?,
        user: row.get(1)?,
        text: row.get(2)?,
        started_ms: read_amount(row, 3)?,
        ended_ms: read_amount(row, 4)?,
        status: parse_column(row, 5, |text| serde_json::from_str(&text).ok())?,
        exit_code: row.get(6)?,
        memory_peak_bytes: read_time(row, 7)?,
        processes_peak: read_time(row, 8)?,
    })
}

//! All SQL statements, and all code that depends on SQLite. This module has the common part of all
//! files; its submodules have the tables.
//!
//! Columns contain the text forms of the model, so that `sqlite3` shows them readably. A row that
//! cannot be parsed is an error and never a guess.

pub(crate) mod anchor;
pub(crate) mod approval;
mod history;
pub(crate) mod sandbox;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::Type;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, Transaction, TransactionBehavior};
use serde::Serialize;

use crate::database::{BUSY_TIMEOUT_MS, StoreError, StoreOpenError, open_error};

/// Schema of a database file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatabaseSchema {
    /// Identifies the program and the kind of file, in the file's header.
    pub application_id: i32,
    /// Each entry migrates the schema by one version. Released entries are never changed; new ones
    /// are added.
    pub migrations: &'static [&'static str],
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match (&error, error.sqlite_error_code()) {
            (_, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => Self::Busy,
            (_, Some(ErrorCode::DiskFull)) => Self::Full,
            (_, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
            | (
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::IntegralValueOutOfRange(..),
                None,
            ) => Self::Corrupt(error.to_string()),
            _ if is_duplicate(&error) => Self::Other("the id is taken".into()),
            _ => Self::Other(Box::new(error)),
        }
    }
}

/// Returns whether a row with this id exists.
pub(crate) fn is_duplicate(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    code == Some(rusqlite::ffi::SQLITE_CONSTRAINT_PRIMARYKEY)
}

/// An open database, which threads share by reference.
#[derive(Debug)]
pub(crate) struct Database(Mutex<Connection>);

impl Database {
    pub fn new(connection: Connection) -> Self {
        Self(Mutex::new(connection))
    }

    pub fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic elsewhere rolled its transaction back.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rows of a query.
    pub fn select_rows<T>(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        parse: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(sql)?;
        let rows = statement.query_map(values, parse)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Executes a statement; returns the number of changed rows.
    pub fn execute(&self, sql: &str, values: impl rusqlite::Params) -> Result<usize, StoreError> {
        Ok(self.lock().prepare_cached(sql)?.execute(values)?)
    }

    /// Checks the whole file for damage.
    pub fn check_file(&self) -> Result<(), StoreError> {
        let found: String = self.lock().query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if found == "ok" { Ok(()) } else { Err(StoreError::Corrupt(found)) }
    }
}

/// Returns the JSON text of a column.
pub(crate) fn json_text(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|e| StoreError::Other(Box::new(e)))
}

/// Initialises the empty file at `path`, which no other process knows yet.
pub(crate) fn initialise_database(path: &Path, schema: &DatabaseSchema) -> Result<(), StoreError> {
    let mut connection = connect_file(path)?;
    connection.pragma_update(None, "application_id", schema.application_id)?;
    migrate_schema(&mut connection, schema)?;
    write_ahead(&connection)?;
    connection.close().map_err(|(_, error)| error.into())
}

/// Opens an existing database.
pub(crate) fn open_connection(path: &Path, schema: &DatabaseSchema) -> Result<Connection, StoreOpenError> {
    let failed = |error| open_error(path, error);
    let mut connection = connect_file(path).map_err(failed)?;
    let application: rusqlite::Result<i32> = connection.pragma_query_value(None, "application_id", |row| row.get(0));
    if application.map_err(|error| open_error(path, error.into()))? != schema.application_id {
        return Err(StoreOpenError::Foreign { path: path.to_owned() });
    }
    let known = schema.migrations.len() as i64;
    match migrate_schema(&mut connection, schema).map_err(failed)? {
        found if found > known => Err(StoreOpenError::Newer { path: path.to_owned(), found, known }),
        _ => write_ahead(&connection).map_err(failed).map(|()| connection),
    }
}

fn connect_file(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    // First, because the statements below already take locks.
    connection.busy_timeout(Duration::from_millis(BUSY_TIMEOUT_MS))?;
    // The schema of a file may not call functions or change itself.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // The same query plan serves all parameters. Otherwise each bind compiles the statement again,
    // at eight times the cost of a lookup.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // A use or a revocation must not be undone by a power failure.
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// Sets write-ahead logging, so that readers do not wait for writers.
fn write_ahead(connection: &Connection) -> Result<(), StoreError> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    match mode.as_str() {
        "wal" => Ok(()),
        other => Err(StoreError::Other(format!("the journal mode is `{other}`, not `wal`").into())),
    }
}

/// Migrates a schema of an earlier version. Returns the version of the schema.
fn migrate_schema(connection: &mut Connection, schema: &DatabaseSchema) -> Result<i64, StoreError> {
    let version = |connection: &Connection| -> Result<i64, StoreError> {
        Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
    };
    let known = schema.migrations.len() as i64;
    let found = version(connection)?;
    if found >= known {
        return Ok(found);
    }
    let transaction = Transaction::new(connection, TransactionBehavior::Immediate)?;
    // Another process may have migrated it meanwhile.
    let found = version(&transaction)?;
    let from = usize::try_from(found).map_err(|_| StoreError::Corrupt(format!("schema version {found}")))?;
    for migration in schema.migrations.get(from..).unwrap_or_default() {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    transaction.commit()?;
    Ok(known)
}

/// Converts a time for SQLite; a larger value becomes the largest one.
pub(crate) fn to_sql_integer(time_ms: u64) -> i64 {
    i64::try_from(time_ms).unwrap_or(i64::MAX)
}

/// Reads a time column, or another amount, that is always set.
pub(crate) fn read_amount(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(read_time(row, column)?.unwrap_or(0))
}

/// Reads a time column, or another amount.
pub(crate) fn read_time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    let stored: Option<i64> = row.get(column)?;
    stored.map(|ms| u64::try_from(ms).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, ms))).transpose()
}

/// Parses a text column.
pub(crate) fn parse_column<T>(
    row: &Row<'_>,
    column: usize,
    parse: impl FnOnce(String) -> Option<T>,
) -> rusqlite::Result<T> {
    let unreadable = |text: &str| {
        let why = format!("`{}` is not a valid value of column {column}", text.escape_default());
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, why.into())
    };
    let text: String = row.get(column)?;
    parse(text.clone()).ok_or_else(|| unreadable(&text))
}

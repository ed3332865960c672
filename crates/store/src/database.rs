//! Opens or creates a database file at its path. A lost or damaged file is an error with a remedy,
//! and is never replaced silently.

use std::path::{Path, PathBuf};

use stockade_model::RawText;

use crate::database_path::{self, StoreFileError};
use crate::sql::{self, Database, DatabaseSchema};

/// Time-out for another process's write, in milliseconds. Fifty processes that start at the same
/// time on a busy machine finish their writes within it.
pub const BUSY_TIMEOUT_MS: u64 = 30_000;

/// Error if the store cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// The directory or the file is unsuitable.
    #[error(transparent)]
    StoreFile(#[from] StoreFileError),
    /// The file is empty or damaged.
    #[error(
        "the store `{}` is damaged: {why}\nhint: restore it from a backup, or move it away together with its `-wal` and `-shm`; what it remembers (answers, refusals, sandboxes) is then forgotten",
        display_path(path)
    )]
    Corrupt {
        /// Path of the store.
        path: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// The file belongs to another program.
    #[error("`{}` is a database of another program\nhint: name another file", display_path(path))]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file was written by a newer version.
    #[error(
        "the store `{}` has schema version {found}; this version of Stockade knows {known}\nhint: use the newer version",
        display_path(path)
    )]
    Newer {
        /// Path of the store.
        path: PathBuf,
        /// Version of the file.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// The main file of a store is missing, but other parts exist.
    #[error(
        "the store `{}` is missing, but `{}` is still there\nhint: put the store back, or move its `-wal` and `-shm` away too",
        display_path(path),
        display_path(remaining_part)
    )]
    Orphan {
        /// Path of the store.
        path: PathBuf,
        /// Path of the remaining part.
        remaining_part: PathBuf,
    },
    /// The database failed.
    #[error("cannot open the store `{}`: {source}", display_path(path))]
    Database {
        /// Path of the store.
        path: PathBuf,
        /// The error of the database.
        source: StoreError,
    },
}

/// Error if the store cannot answer. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process kept the store locked.
    #[error(
        "other processes have kept the store locked for {} s\nhint: find the process with `fuser`, and end it",
        BUSY_TIMEOUT_MS / 1000
    )]
    Busy,
    /// No space is left.
    #[error("there is no space for the store\nhint: make space on its disk, then try again")]
    Full,
    /// The store is damaged.
    #[error(
        "the store is damaged: {0}\nhint: restore it from a backup, or move it away together with its `-wal` and `-shm`; what it remembers (answers, refusals, sandboxes) is then forgotten"
    )]
    Corrupt(String),
    /// Another error of the database.
    #[error("the store failed: {0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

fn display_path(path: &Path) -> String {
    RawText::from(path).to_escaped()
}

/// Adds a path to the error of a database.
pub(crate) fn open_error(path: &Path, source: StoreError) -> StoreOpenError {
    let path = path.to_owned();
    match source {
        StoreError::Corrupt(why) => StoreOpenError::Corrupt { path, why },
        source => StoreOpenError::Database { path, source },
    }
}

/// Opens the database at `path`, and creates it if it does not exist. Its directory gets mode 0700
/// and must contain no files of other users.
pub(crate) fn open_database(path: &Path, schema: &DatabaseSchema) -> Result<Database, StoreOpenError> {
    let path = &database_path::private_directory(path)?;
    match database_path::private_file(path)? {
        Some(0) => return Err(StoreOpenError::Corrupt { path: path.clone(), why: "it is empty".into() }),
        Some(_) => {}
        None => create_database(path, schema)?,
    }
    Ok(Database::new(sql::open_connection(path, schema)?))
}

/// Creates a complete store under another name, then renames it. So a store always has its schema,
/// whatever other process dies or starts meanwhile.
fn create_database(path: &Path, schema: &DatabaseSchema) -> Result<(), StoreOpenError> {
    let _lock = database_path::lock_exclusive(&database_path::append_suffix(path, ".lock"))?;
    if database_path::private_file(path)?.is_some() {
        return Ok(());
    }
    for suffix in ["-wal", "-shm", "-journal"] {
        // SQLite would replay it into the new file.
        let remaining_part = database_path::append_suffix(path, suffix);
        if remaining_part.symlink_metadata().is_ok() {
            return Err(StoreOpenError::Orphan { path: path.to_owned(), remaining_part });
        }
    }
    let fresh = database_path::append_suffix(path, ".new");
    for suffix in ["", "-wal", "-shm", "-journal"] {
        // Left by a process that died: the lock excludes one that is still running.
        let stale = database_path::append_suffix(&fresh, suffix);
        match std::fs::remove_file(&stale) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(database_path::system_error("remove", &stale)(e).into());
            }
            _ => {}
        }
    }
    database_path::create_new(&fresh)?;
    sql::initialise_database(&fresh, schema).map_err(|e| open_error(path, e))?;
    Ok(database_path::put_in_place(&fresh, path)?)
}

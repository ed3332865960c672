//! A database file in its place: opened, or made whole. A lost or damaged one is
//! an error with a remedy and never made anew in silence.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use stockade_model::RawText;

use crate::place::{self, PlaceError};
use crate::sql::{self, Schema, SqlError};

/// How long to wait for another process's write, in milliseconds: fifty processes that
/// begin at once on a busy machine have their turns within it.
pub const BUSY_TIMEOUT_MS: u64 = 30_000;

/// Why the store cannot be opened. In each case nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or the file cannot serve.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The file is empty or damaged.
    #[error(
        "the store `{}` is damaged: {why}\nhint: restore it from a backup, or move it away together with its `-wal` and `-shm`; what it remembers (answers, refusals, sandboxes) is then forgotten",
        shown(path)
    )]
    Corrupt {
        /// Which.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// The file belongs to another program.
    #[error("`{}` is a database of another program\nhint: name another file", shown(path))]
    Foreign {
        /// Which.
        path: PathBuf,
    },
    /// The file was written by a newer version.
    #[error(
        "the store `{}` has schema version {found}; this version of Stockade knows {known}\nhint: use the newer version",
        shown(path)
    )]
    Newer {
        /// Which.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// Parts of a store are left whose main file is gone.
    #[error(
        "the store `{}` is missing, but `{}` is still there\nhint: put the store back, or move its `-wal` and `-shm` away too",
        shown(path),
        shown(left)
    )]
    Orphan {
        /// The store.
        path: PathBuf,
        /// What is left of it.
        left: PathBuf,
    },
    /// The database said no.
    #[error("cannot open the store `{}`: {source}", shown(path))]
    Database {
        /// Which.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
}

/// Why the store cannot answer. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process kept it locked.
    #[error(
        "other processes have kept the store locked for {} s\nhint: find who has it open with `fuser`, and end what hangs",
        BUSY_TIMEOUT_MS / 1000
    )]
    Busy,
    /// There is no space.
    #[error("there is no space for the store\nhint: make space on its disk, then try again")]
    Full,
    /// It is damaged.
    #[error(
        "the store is damaged: {0}\nhint: restore it from a backup, or move it away together with its `-wal` and `-shm`; what it remembers (answers, refusals, sandboxes) is then forgotten"
    )]
    Corrupt(String),
    /// Anything else the database says.
    #[error("the store failed: {0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

fn shown(path: &Path) -> String {
    RawText::from(path).escaped()
}

impl From<SqlError> for StoreError {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Busy => Self::Busy,
            SqlError::Full => Self::Full,
            SqlError::Corrupt(why) => Self::Corrupt(why),
            SqlError::Foreign => Self::Corrupt("it is a database of another program".into()),
            SqlError::Newer { found, known } => {
                Self::Corrupt(format!("schema version {found}, where {known} is known"))
            }
            SqlError::Duplicate => Self::Other("the id is taken".into()),
            SqlError::Other(source) => Self::Other(source),
        }
    }
}

fn open_error(path: &Path, error: SqlError) -> OpenError {
    let path = path.to_owned();
    match error {
        SqlError::Corrupt(why) => OpenError::Corrupt { path, why },
        SqlError::Foreign => OpenError::Foreign { path },
        SqlError::Newer { found, known } => OpenError::Newer { path, found, known },
        other => OpenError::Database { path, source: other.into() },
    }
}

/// Opens the database at `path`, and makes one where there is none. Its directory
/// becomes mode 0700 and must hold nothing of others.
pub(crate) fn open(path: &Path, schema: &Schema) -> Result<Connection, OpenError> {
    let path = &place::private_directory(path)?;
    match place::private_file(path)? {
        Some(0) => return Err(OpenError::Corrupt { path: path.clone(), why: "it is empty".into() }),
        Some(_) => {}
        None => create(path, schema)?,
    }
    sql::open(path, schema).map_err(|e| open_error(path, e))
}

/// Makes a whole store under another name, then gives it its own. So a store
/// is there with its schema or not at all, whoever dies or comes in between.
fn create(path: &Path, schema: &Schema) -> Result<(), OpenError> {
    let _lock = place::lock(&place::beside(path, ".lock"))?;
    if place::private_file(path)?.is_some() {
        return Ok(());
    }
    for suffix in ["-wal", "-shm", "-journal"] {
        // SQLite would replay it into the new file.
        let left = place::beside(path, suffix);
        if left.symlink_metadata().is_ok() {
            return Err(OpenError::Orphan { path: path.to_owned(), left });
        }
    }
    let fresh = place::beside(path, ".new");
    for suffix in ["", "-wal", "-shm", "-journal"] {
        // Of a maker that died; the lock says that it is not at work.
        let stale = place::beside(&fresh, suffix);
        match std::fs::remove_file(&stale) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(place::system("remove", &stale)(e).into()),
            _ => {}
        }
    }
    place::create_new(&fresh)?;
    sql::initialise(&fresh, schema).map_err(|e| open_error(path, e))?;
    Ok(place::put_in_place(&fresh, path)?)
}

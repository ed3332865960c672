//! Checking a whole log: every line, the chain, and that the end is there.
//!
//! Only reads. Memory is bounded by one line, whatever the log holds.

use std::path::{Path, PathBuf};

use stockade_model::RawText;

use crate::head::{self, Found, HEAD_NAME};
use crate::line::{Fault, Hash};
use crate::log::Seq;
use crate::place::{FileLock, Place, PlaceError, system};
use crate::scan::{LOG_NAME, Lines, Tip};

/// How many set-aside files are named in a report.
const MAX_SET_ASIDE: usize = 1_000;

/// A log that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Number of lines.
    pub entries: u64,
    /// The last line: its number and hash.
    pub head: (Seq, Hash),
    /// The last line that was made durable. Lines after it hold together, but
    /// that none of them was cut off is not known.
    pub durable: Seq,
    /// Length in bytes of a last line that was never wholly written, 0 if there
    /// is none. It belongs to no acknowledged event; the next append sets it aside.
    pub torn_bytes: u64,
    /// Torn pieces set aside earlier, by name.
    pub set_aside: Vec<PathBuf>,
}

/// Why a log does not hold.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It cannot be read.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// There is none.
    #[error("there is no audit log in `{}`\nhint: name the directory that holds `{LOG_NAME}`", RawText::from(dir.as_path()))]
    NoLog {
        /// Directory.
        dir: PathBuf,
    },
    /// The head is missing or unreadable, so a missing end could not be seen.
    #[error("the head of the audit log in `{}` is missing or was changed\nhint: keep the directory as evidence", RawText::from(dir.as_path()))]
    Head {
        /// Directory.
        dir: PathBuf,
    },
    /// A line is not what it was.
    #[error("line {line}: {why}\nhint: keep the directory as evidence; the lines before this one hold")]
    Broken {
        /// Which, from 1.
        line: u64,
        /// What is wrong with it.
        why: Fault,
    },
}

/// Checks the log in `dir` as it is now; what is appended meanwhile is left out.
///
/// # Errors
/// The first line that does not hold, by number.
pub fn verify(dir: &Path) -> Result<Verified, VerifyError> {
    let place = Place::open_existing(dir)?;
    let path = dir.join(LOG_NAME);
    let head_broken = || VerifyError::Head { dir: dir.to_owned() };
    let head_file = place.open_to_read(HEAD_NAME)?;
    let Some(log) = place.open_to_read(LOG_NAME)? else {
        let why = head_file.map(|file| head::read(&file)).transpose().map_err(system("read", &path))?;
        return Err(match why {
            Some(Found::Tip(head)) if head.seq > 0 => {
                VerifyError::Broken { line: 1, why: Fault::Missing { head: head.seq } }
            }
            _ => VerifyError::NoLog { dir: dir.to_owned() },
        });
    };
    let head_file = head_file.ok_or_else(head_broken)?;
    // Under the lock no append is half done, and the head fits the size.
    let lock = FileLock::shared(&log, &path)?;
    let size = log.metadata().map_err(system("examine", &path))?.len();
    let head = match head::read(&head_file).map_err(system("read", &path))? {
        Found::Tip(tip) => tip,
        Found::Empty | Found::Broken => return Err(head_broken()),
    };
    drop(lock);
    let mut tip = Tip::START;
    let mut torn_bytes = 0;
    let mut lines = Lines::new(&log, 0, size);
    while let Some(piece) = lines.next_piece().map_err(system("read", &path))? {
        let line = tip.seq + 1;
        if !piece.terminated && line > head.seq {
            torn_bytes = piece.end - piece.start;
            break;
        }
        let next = tip.follow(&piece, &lines.bytes).map_err(|why| VerifyError::Broken { line, why })?;
        if !piece.terminated {
            return Err(VerifyError::Broken { line, why: Fault::Malformed("no newline at its end") });
        }
        if next.seq == head.seq && next != head {
            return Err(VerifyError::Broken { line, why: Fault::NotHead });
        }
        tip = next;
    }
    if tip.seq < head.seq {
        return Err(VerifyError::Broken { line: tip.seq + 1, why: Fault::Missing { head: head.seq } });
    }
    let set_aside = set_aside_files(dir)?;
    let durable = Seq(head.seq);
    Ok(Verified { entries: tip.seq, head: (Seq(tip.seq), tip.hash), durable, torn_bytes, set_aside })
}

fn set_aside_files(dir: &Path) -> Result<Vec<PathBuf>, PlaceError> {
    let prefix = format!("{LOG_NAME}.torn-");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(system("list", dir))? {
        let path = entry.map_err(system("list", dir))?.path();
        let ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix));
        if ours && found.len() < MAX_SET_ASIDE {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

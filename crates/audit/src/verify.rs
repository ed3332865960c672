//! Checks a whole log: every line, the chain, and that the end exists.
//!
//! The check only reads. Memory is bounded by one line, whatever the log contains.

use std::io;
use std::path::{Path, PathBuf};

use stockade_model::RawText;

use crate::anchor::LogAnchor;
use crate::head::{self, BootId, HEAD_NAME, HeadContent, HeadNote};
use crate::key::KeyFiles;
use crate::line::{LineFault, LineHash, LogEndSource, hex_digits};
use crate::log::LineNumber;
use crate::log_directory::{FileLock, LogDirectory, LogFileError, system_error};
use crate::scan::{LOG_NAME, LineReader, LogTip};

/// Most torn files that a report lists.
const MAX_LISTED_TORN_FILES: usize = 1_000;

/// Report of a valid log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of lines.
    pub entries: u64,
    /// The last line: its number and hash.
    pub head: (LineNumber, LineHash),
    /// The first line's hash, which identifies the log; `None` for an empty log.
    pub log: Option<LineHash>,
    /// The last durable line.
    pub durable: LineNumber,
    /// The last line of the signed head: no line up to it was removed, except by a holder of the
    /// key. `None` if the head is of an earlier version and not signed.
    pub signed: Option<LineNumber>,
    /// The public key that signed the head, in hexadecimal digits.
    pub key: Option<String>,
    /// The last line of the given anchors from outside the directory.
    pub anchored: Option<LineNumber>,
    /// Number of lines that were lost when the machine stopped before they were on the disk.
    pub lost: u32,
    /// Length in bytes of an incomplete last line, 0 if there is none. It belongs to no
    /// acknowledged event; the next append moves it to a file of its own.
    pub torn_bytes: u64,
    /// Torn pieces that were moved earlier, by name.
    pub torn_files: Vec<PathBuf>,
}

/// Error if a log is not valid.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The log cannot be read.
    #[error(transparent)]
    LogFile(#[from] LogFileError),
    /// There is no log.
    #[error("there is no audit log in `{}`\nhint: name the directory that holds `{LOG_NAME}`", RawText::from(dir.as_path()))]
    NoLog {
        /// Directory.
        dir: PathBuf,
    },
    /// The head is missing, unreadable or not signed, so a missing end could not be detected.
    #[error("the head of the audit log in `{}` is missing or was changed\nhint: keep the directory as evidence", RawText::from(dir.as_path()))]
    Head {
        /// Directory.
        dir: PathBuf,
    },
    /// The key that signed the head is missing, so the head cannot be checked.
    #[error("the key `{}` that signs the audit log in `{}` is missing\nhint: put it back, and verify again", RawText::from(key.as_path()), RawText::from(dir.as_path()))]
    Key {
        /// Directory.
        dir: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The head contains that an anchor was kept, and there is none.
    #[error("the store has no anchor of the audit log in `{}`, although it had one\nhint: keep the directory as evidence; the store's file was removed or replaced", RawText::from(dir.as_path()))]
    NoAnchor {
        /// Directory.
        dir: PathBuf,
    },
    /// A line was changed.
    #[error("line {line}: {why}\nhint: keep the directory as evidence; the lines before this one are intact")]
    Broken {
        /// Number of the line, from 1.
        line: u64,
        /// The fault.
        why: LineFault,
    },
}

/// Checks the log in `dir` in its current state; later lines are omitted. Does not require an
/// anchor: see [`verify_with`].
///
/// # Errors
/// As for [`verify_with`].
pub fn verify_audit_log(dir: &Path) -> Result<VerifyReport, VerifyError> {
    verify_log(dir, None)
}

/// Checks the log in `dir`, and that it contains the lines of `anchors`. Anchors of other logs are
/// ignored.
///
/// # Errors
/// [`VerifyError`] for the first invalid line, by number; or for a missing key, head or anchor.
pub fn verify_with(dir: &Path, anchors: &[LogAnchor]) -> Result<VerifyReport, VerifyError> {
    verify_log(dir, Some(anchors))
}

/// A log, its head and its length, at one moment.
struct LogSnapshot {
    log: std::fs::File,
    size: u64,
    head: HeadNote,
    /// The public key, if the head is signed.
    key: Option<String>,
}

fn verify_log(dir: &Path, anchors: Option<&[LogAnchor]>) -> Result<VerifyReport, VerifyError> {
    let LogSnapshot { log, size, head, key } = take_snapshot(dir, anchors)?;
    let path = dir.join(LOG_NAME);
    let now = BootId::read_current();
    let mut check = ChainCheck { head, now, anchors: anchors.unwrap_or_default(), first: None };
    let mut tip = LogTip::START;
    let mut torn_bytes = 0;
    let mut lines = LineReader::new(&log, 0, size);
    while let Some(piece) = lines.next_piece().map_err(system_error("read", &path))? {
        let line = tip.seq + 1;
        if !piece.terminated && line > check.last_certain() {
            torn_bytes = piece.end - piece.start;
            break;
        }
        let next = tip.follow_piece(&piece, &lines.bytes).map_err(|why| VerifyError::Broken { line, why })?;
        if !piece.terminated {
            return Err(VerifyError::Broken { line, why: LineFault::Malformed("no newline at its end") });
        }
        check.check_line(next).map_err(|why| VerifyError::Broken { line, why })?;
        tip = next;
    }
    check.check_end(tip).map_err(|why| VerifyError::Broken { line: tip.seq + 1, why })?;
    if head.is_anchored && anchors.is_some() && check.own_anchors().next().is_none() {
        return Err(VerifyError::NoAnchor { dir: dir.to_owned() });
    }
    Ok(VerifyReport {
        entries: tip.seq,
        head: (LineNumber(tip.seq), tip.hash),
        log: check.first,
        durable: LineNumber(head.durable.seq),
        signed: key.is_some().then_some(LineNumber(head.last.seq)),
        key,
        anchored: check.own_anchors().map(|anchor| LineNumber(anchor.seq)).max(),
        lost: head.lost,
        torn_bytes,
        torn_files: list_torn_files(dir)?,
    })
}

fn take_snapshot(dir: &Path, anchors: Option<&[LogAnchor]>) -> Result<LogSnapshot, VerifyError> {
    let anchored = anchors.unwrap_or_default().iter().map(|anchor| anchor.seq).max();
    let missing_lines =
        |last, end_source| VerifyError::Broken { line: 1, why: LineFault::Missing { last, count: last, end_source } };
    let no_log = || match anchored {
        Some(last) => missing_lines(last, LogEndSource::Store),
        None => VerifyError::NoLog { dir: dir.to_owned() },
    };
    if matches!(dir.symlink_metadata(), Err(e) if e.kind() == io::ErrorKind::NotFound) {
        return Err(no_log());
    }
    let directory = LogDirectory::open_existing(dir)?;
    let path = dir.join(LOG_NAME);
    let head_broken = || VerifyError::Head { dir: dir.to_owned() };
    let head_file = directory.open_to_read(HEAD_NAME)?;
    let read = |file: &std::fs::File| head::read_bytes(file).map_err(system_error("read", &dir.join(HEAD_NAME)));
    let keys = KeyFiles::of_log(dir)?;
    let stored = keys.as_ref().map(KeyFiles::load_key).transpose()?.flatten();
    let Some(log) = directory.open_to_read(LOG_NAME)? else {
        let head = head_file.as_ref().map(read).transpose()?.map(|bytes| head::parse_head(&bytes));
        return Err(match head.as_ref().and_then(HeadContent::last_line) {
            Some(last) if last > 0 => missing_lines(last, LogEndSource::Head),
            _ => no_log(),
        });
    };
    let head_file = head_file.ok_or_else(head_broken)?;
    // With the lock, no append is incomplete, and the head matches the size.
    let lock = FileLock::lock_shared(&log, &path)?;
    let size = log.metadata().map_err(system_error("examine", &path))?.len();
    let bytes = read(&head_file)?;
    drop(lock);
    let is_new = stored.as_ref().is_none_or(|stored| stored.is_pending);
    let (head, key) = match (head::parse_head(&bytes), stored) {
        (HeadContent::Signed(signed), Some(stored)) => {
            let key = hex_digits(stored.key.public_key());
            (signed.verify_signature(&stored.key).ok_or_else(head_broken)?, Some(key))
        }
        (HeadContent::Signed(_), None) => {
            let key = keys.map_or_else(|| dir.to_owned(), |keys| keys.path());
            return Err(VerifyError::Key { dir: dir.to_owned(), key });
        }
        // A log of an earlier version, to which nothing was appended since.
        (HeadContent::Unsigned(tip), _) if is_new => {
            (HeadNote { last: tip, durable: tip, ..HeadNote::for_empty_log(BootId::read_current()) }, None)
        }
        (HeadContent::Unsigned(_) | HeadContent::Empty | HeadContent::Broken, _) => return Err(head_broken()),
    };
    Ok(LogSnapshot { log, size, head, key })
}

/// Data to compare the lines of a log with.
struct ChainCheck<'a> {
    head: HeadNote,
    now: BootId,
    anchors: &'a [LogAnchor],
    /// Hash of the first line.
    first: Option<LineHash>,
}

impl ChainCheck<'_> {
    /// Returns the anchors of this log.
    fn own_anchors(&self) -> impl Iterator<Item = &LogAnchor> {
        self.anchors.iter().filter(|anchor| Some(anchor.log) == self.first)
    }

    /// Returns the last line that no crash can have lost.
    fn last_certain(&self) -> u64 {
        let head = if self.head.boot.is_same(self.now) { self.head.last } else { self.head.durable };
        let anchors = self.own_anchors().filter(|anchor| !anchor.may_be_lost(self.now)).map(|anchor| anchor.seq);
        anchors.fold(head.seq, u64::max)
    }

    /// Checks the next line.
    fn check_line(&mut self, tip: LogTip) -> Result<(), LineFault> {
        if tip.seq == 1 {
            self.first = Some(tip.hash);
        }
        if [self.head.durable, self.head.last].iter().any(|named| named.seq == tip.seq && *named != tip) {
            return Err(LineFault::NotHead);
        }
        match self.own_anchors().any(|anchor| anchor.seq == tip.seq && anchor.tip() != tip) {
            true => Err(LineFault::NotAnchor),
            false => Ok(()),
        }
    }

    /// Checks the end: `tip` is the last complete line.
    fn check_end(&self, tip: LogTip) -> Result<(), LineFault> {
        let missing = |last: u64, end_source| LineFault::Missing { last, count: last - tip.seq, end_source };
        // An empty log has no identifier: any anchored log may have been this one.
        let is_own = |anchor: &&LogAnchor| tip.seq == 0 || Some(anchor.log) == self.first;
        let anchors = self.anchors.iter().filter(is_own);
        let certain = anchors.filter(|anchor| !anchor.may_be_lost(self.now)).map(|anchor| anchor.seq).max();
        let by_store = certain.filter(|&seq| seq > tip.seq);
        if tip.seq < self.head.durable.seq || (tip.seq < self.head.last.seq && self.head.boot.is_same(self.now)) {
            return Err(missing(self.head.last.seq.max(by_store.unwrap_or(0)), LogEndSource::Head));
        }
        if let Some(last) = by_store {
            return Err(missing(last, LogEndSource::Store));
        }
        // If an opening of the log recorded the loss, the head has the line before.
        let last = self.head.last.seq;
        if tip.seq < last { Err(LineFault::LostOrCut { last, count: last - tip.seq }) } else { Ok(()) }
    }
}

fn list_torn_files(dir: &Path) -> Result<Vec<PathBuf>, LogFileError> {
    let prefix = format!("{LOG_NAME}.torn-");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(system_error("list", dir))? {
        let path = entry.map_err(system_error("list", dir))?.path();
        let ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix));
        if ours && found.len() < MAX_LISTED_TORN_FILES {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

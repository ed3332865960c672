//! Appending to a log: one chain for all processes that write it. Nothing is acknowledged that
//! could still be lost.
//!
//! An append locks the file, reads the lines of other processes, and writes complete lines. An
//! incomplete write is removed. A commit makes everything appended so far durable, once for all
//! waiting threads, and then moves the head.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, OFlags, Stat};
use rustix::io::Errno;
use stockade_model::{Event, RawText};

use crate::anchor::{AnchorState, LogAnchor, first_line_hash, holds_tip};
use crate::head::{self, BootId, HEAD_NAME, HeadContent, HeadNote};
use crate::key::{KeyFiles, SigningKey};
use crate::line::{self, LineFault, LineHash, LogEndSource, MAX_LINE_BYTES};
use crate::log_directory::{FileLock, LogDirectory, LogFileError, system_error};
use crate::opening::{OpenedLog, open_log};
use crate::scan::{self, ChainBreak, ChainEnd, LOG_NAME, LogTip};

/// Largest batch, in bytes of its lines.
pub const MAX_BATCH_BYTES: usize = 16 << 20;

/// Time-out of a commit for another thread's sync, in milliseconds. A slower disk cannot be trusted
/// with a decision.
const COMMIT_WAIT_MS: u64 = 30_000;

/// Most torn pieces that are stored for one line number.
const MAX_TORN_FILES: u32 = 100;

/// Number of a line, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineNumber(pub u64);

/// Incomplete piece at the end of a log, which was moved to a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The number that the line would have.
    pub seq: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Path of its file.
    pub file: PathBuf,
}

/// Error if a log cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum LogOpenError {
    /// The directory or a file is unsuitable.
    #[error(transparent)]
    LogFile(#[from] LogFileError),
    /// The chain is broken.
    #[error("the audit log in `{}` is broken at line {line}: {fault}\nhint: keep it as evidence: move the directory away, and Stockade starts a new log", RawText::from(dir.as_path()))]
    Broken {
        /// Directory of the log.
        dir: PathBuf,
        /// Number of the line.
        line: u64,
        /// The fault.
        fault: LineFault,
    },
    /// The key that signed the head is missing.
    #[error("the key `{}` that signs the audit log in `{}` is missing\nhint: put it back; or keep the log as evidence: move the directory away, and Stockade starts a new log", RawText::from(key.as_path()), RawText::from(dir.as_path()))]
    Key {
        /// Directory of the log.
        dir: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The head is missing, unreadable or not signed although there is a log.
    #[error("the head of the audit log in `{}` is missing or was changed\nhint: keep the log as evidence: move the directory away, and Stockade starts a new log", RawText::from(dir.as_path()))]
    Head {
        /// Directory of the log.
        dir: PathBuf,
    },
}

/// Error if nothing was appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The lock or a file failed.
    #[error(transparent)]
    LogFile(#[from] LogFileError),
    /// The disk, the quota or the file size limit is reached.
    #[error("there is no space for the audit log in `{}`: {source}\nhint: make space there (`stockade cache clear --all` may), then try again", RawText::from(dir.as_path()))]
    NoSpace {
        /// Directory of the log.
        dir: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The write failed for another reason.
    #[error("cannot write the audit log in `{}`: {source}\nhint: check the disk", RawText::from(dir.as_path()))]
    Write {
        /// Directory of the log.
        dir: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// An event is larger than a line may be.
    #[error(
        "event {index} of this batch (`{kind}` of {request}) makes a line of {bytes} bytes; at most {MAX_LINE_BYTES} are recorded\nhint: make the command or its arguments shorter"
    )]
    TooLarge {
        /// Index in the batch, from 0.
        index: usize,
        /// Type of the event.
        kind: String,
        /// Request of the event.
        request: String,
        /// Length of its line.
        bytes: usize,
    },
    /// All events together are larger than a batch may be.
    #[error("a batch of more than {MAX_BATCH_BYTES} bytes\nhint: append it in parts")]
    BatchTooLarge,
    /// An event cannot be written as JSON.
    #[error("event {index} of this batch cannot be written as JSON: {source}")]
    Json {
        /// Index in the batch, from 0.
        index: usize,
        /// Error of the conversion.
        source: serde_json::Error,
    },
    /// Another program changed the log.
    #[error("the audit log in `{}` was changed by another program at line {line}: {fault}\nhint: keep it as evidence: move the directory away, and Stockade starts a new log", RawText::from(dir.as_path()))]
    Broken {
        /// Directory of the log.
        dir: PathBuf,
        /// Number of the line.
        line: u64,
        /// The fault.
        fault: LineFault,
    },
    /// The open file is no longer the log.
    #[error("the audit log in `{}` was removed or replaced while it was open\nhint: start again; lines appended so far may be lost", RawText::from(dir.as_path()))]
    Replaced {
        /// Directory of the log.
        dir: PathBuf,
    },
    /// A sync failed earlier, so that later writes may not be durable.
    #[error("an earlier sync of the audit log failed\nhint: check the disk and start again")]
    Poisoned,
}

/// Error if durability is not certain.
#[derive(Debug, thiserror::Error)]
pub enum LogCommitError {
    /// The lock or the head failed.
    #[error(transparent)]
    LogFile(#[from] LogFileError),
    /// The sync failed, now or earlier. The kernel reports a lost write only once, so a log that
    /// failed to sync stays failed until it is opened again.
    #[error("the audit log in `{}` could not be synced to the disk{}\nhint: check the disk and start again", RawText::from(dir.as_path()), cause_suffix(source))]
    Sync {
        /// Directory of the log.
        dir: PathBuf,
        /// Error of the system call; `None` if an earlier sync failed.
        source: Option<io::Error>,
    },
    /// The open file is no longer the log.
    #[error("the audit log in `{}` was removed or replaced while it was open\nhint: start again; lines appended so far may be lost", RawText::from(dir.as_path()))]
    Replaced {
        /// Directory of the log.
        dir: PathBuf,
    },
    /// Another thread's sync did not end in time.
    #[error("the disk took more than {COMMIT_WAIT_MS} ms to sync the audit log\nhint: check the disk")]
    Slow,
}

fn cause_suffix(source: &Option<io::Error>) -> String {
    source.as_ref().map_or_else(String::new, |e| format!(": {e}"))
}

/// Open log. Threads share it by reference.
#[derive(Debug)]
pub struct AuditLogWriter {
    directory: LogDirectory,
    path: PathBuf,
    file: File,
    /// Device and inode of `file`.
    identity: (u64, u64),
    head: File,
    key: SigningKey,
    boot: BootId,
    state: Mutex<LogWriterState>,
    synced: Condvar,
}

#[derive(Debug)]
struct LogWriterState {
    /// The last known line.
    tip: LogTip,
    /// Content of the head when it was last read or written.
    note: HeadNote,
    /// The bytes of the head at that time: equal bytes need no second check.
    head_bytes: Vec<u8>,
    syncing: bool,
    failed: bool,
    torn: Option<TornTail>,
}

impl AuditLogWriter {
    /// Opens the log in `dir`, and begins one if there is none. The directory gets mode 0700, its
    /// files 0600. A torn end is moved to a file of its own, see [`recovered_tail`](Self::recovered_tail).
    ///
    /// Checks the head and everything after it, not the whole chain; [`verify_audit_log`](crate::verify_audit_log) does
    /// that.
    ///
    /// # Errors
    /// [`LogOpenError`] if others than the caller can access the path, the chain is broken, or the end
    /// is missing.
    pub fn open(dir: &Path) -> Result<Self, LogOpenError> {
        let directory = LogDirectory::open_or_create(dir)?;
        let path = dir.join(LOG_NAME);
        let missing = || system_error("open", &path)(io::ErrorKind::NotFound);
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let file = directory.open_private(LOG_NAME, flags)?.ok_or_else(missing)?;
        let lock = FileLock::lock_exclusive(&file, &path)?;
        let stat = rustix::fs::fstat(&file).map_err(system_error("examine", &path))?;
        let no_name = || system_error("open", dir)(io::ErrorKind::InvalidInput);
        let keys = KeyFiles::of_log(dir)?.ok_or_else(no_name)?;
        let OpenedLog { head, key, note, head_bytes, tip, torn } = open_log(&directory, &keys, &file, size_of(&stat))?;
        drop(lock);
        let boot = note.boot;
        let state = Mutex::new(LogWriterState { tip, note, head_bytes, syncing: false, failed: false, torn });
        let identity = (stat.st_dev, stat.st_ino);
        Ok(Self { directory, path, file, identity, head, key, boot, state, synced: Condvar::new() })
    }

    /// Returns the last torn piece that was moved, when the log was opened or later.
    pub fn recovered_tail(&self) -> Option<TornTail> {
        self.lock_state().torn.clone()
    }

    /// Returns the last line that this log knows: its number and hash; 0 if there is none. Keep it
    /// elsewhere to detect forgeries reliably.
    pub fn last_line(&self) -> (LineNumber, LineHash) {
        let tip = self.lock_state().tip;
        (LineNumber(tip.seq), tip.hash)
    }

    /// Appends one event. It survives the end of this process, and a loss of power after
    /// [`commit_lines`](Self::commit_lines).
    ///
    /// # Errors
    /// [`AppendError`] if nothing was appended: an incomplete write was removed, or is found torn
    /// and moved later.
    pub fn append_event(&self, event: &Event) -> Result<LineNumber, AppendError> {
        self.append_all(std::slice::from_ref(event)).map(LineNumber)
    }

    /// Appends events as adjacent lines, all or none. Returns the number of the last; `None` for no
    /// events.
    ///
    /// # Errors
    /// As for [`append_event`](Self::append_event); [`AppendError::BatchTooLarge`].
    pub fn append_batch(&self, events: &[Event]) -> Result<Option<LineNumber>, AppendError> {
        if events.is_empty() {
            return Ok(None);
        }
        self.append_all(events).map(|seq| Some(LineNumber(seq)))
    }

    fn append_all(&self, events: &[Event]) -> Result<u64, AppendError> {
        let bodies = encode_events(events)?;
        let mut state = self.lock_state();
        if state.failed {
            return Err(AppendError::Poisoned);
        }
        let _lock = FileLock::lock_exclusive(&self.file, &self.path)?;
        self.catch_up(&mut state)?;
        self.read_head(&mut state)?;
        self.require_end(&state)?;
        let mut tip = state.tip;
        let mut lines = Vec::with_capacity(bodies.iter().map(|body| body.len() + 256).sum());
        for (index, body) in bodies.iter().enumerate() {
            let start = lines.len();
            tip.seq += 1;
            tip.hash = line::push_line(&mut lines, tip.seq, tip.hash, body);
            let bytes = lines.len() - start;
            if bytes > MAX_LINE_BYTES {
                return Err(too_large(index, &events[index], bytes));
            }
        }
        tip.end += lines.len() as u64;
        (&self.file).write_all(&lines).map_err(|source| self.take_back(state.tip, source))?;
        let note = HeadNote { last: tip, boot: self.boot, ..state.note };
        self.write_head(&mut state, note).map_err(|source| self.take_back(state.tip, source))?;
        state.tip = tip;
        Ok(tip.seq)
    }

    /// Makes everything appended so far durable, and moves the head. Threads that call this during
    /// a sync share the next one.
    ///
    /// # Errors
    /// [`LogCommitError`] if durability is not certain; then nothing that depends on it may start.
    pub fn commit_lines(&self) -> Result<(), LogCommitError> {
        let deadline = Instant::now() + Duration::from_millis(COMMIT_WAIT_MS);
        let mut state = self.lock_state();
        let target = state.tip.end;
        loop {
            if state.failed {
                return Err(LogCommitError::Sync { dir: self.directory.path.clone(), source: None });
            }
            if state.note.durable.end >= target {
                return Ok(());
            }
            if !state.syncing {
                break;
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(LogCommitError::Slow);
            }
            state = self.synced.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.syncing = true;
        let tip = state.tip;
        drop(state);
        let synced = self.file.sync_data();
        let mut state = self.lock_state();
        state.syncing = false;
        self.synced.notify_all();
        if let Err(source) = synced {
            state.failed = true;
            return Err(LogCommitError::Sync { dir: self.directory.path.clone(), source: Some(source) });
        }
        if self.size_in_place()?.is_none() {
            return Err(LogCommitError::Replaced { dir: self.directory.path.clone() });
        }
        self.move_head(&mut state, tip)?;
        Ok(())
    }

    /// Moves the head. Called with the state locked, because the file lock does not exclude two
    /// threads of one process.
    fn move_head(&self, state: &mut LogWriterState, tip: LogTip) -> Result<(), LogFileError> {
        let _lock = FileLock::lock_exclusive(&self.file, &self.path)?;
        self.read_head(state)?;
        let note = state.note;
        if note.durable.end >= tip.end {
            // Another process got further.
            return Ok(());
        }
        let last = if note.last.end < tip.end { tip } else { note.last };
        self.write_head(state, HeadNote { last, durable: tip, ..note })
            .map_err(system_error("write", &self.head_path()))
    }

    /// Reads the changes of other processes to the head. The lock is held.
    fn read_head(&self, state: &mut LogWriterState) -> Result<(), LogFileError> {
        let path = self.head_path();
        let changed = || {
            let why = "it was changed by another program";
            system_error("use", &path)(io::Error::new(io::ErrorKind::InvalidData, why))
        };
        let bytes = head::read_bytes(&self.head).map_err(system_error("read", &path))?;
        if bytes == state.head_bytes {
            return Ok(());
        }
        let HeadContent::Signed(signed) = head::parse_head(&bytes) else { return Err(changed()) };
        let note = signed.verify_signature(&self.key).ok_or_else(changed)?;
        // A head only moves forward; an earlier signed one was restored.
        if note.last.seq < state.note.last.seq || note.durable.seq < state.note.durable.seq {
            return Err(changed());
        }
        (state.note, state.head_bytes) = (note, bytes);
        Ok(())
    }

    /// Writes the head. The lock is held.
    fn write_head(&self, state: &mut LogWriterState, note: HeadNote) -> io::Result<()> {
        let bytes = note.render_signed(&self.key);
        head::write_head_bytes(&self.head, &bytes)?;
        (state.note, state.head_bytes) = (note, bytes);
        Ok(())
    }

    fn head_path(&self) -> PathBuf {
        self.directory.path.join(HEAD_NAME)
    }

    /// Requires that the log contains the last line of the head. Another process may have appended
    /// that line, and it may have been removed since. The lock is held.
    fn require_end(&self, state: &LogWriterState) -> Result<(), AppendError> {
        let (tip, last) = (state.tip, state.note.last);
        let fault = match tip.seq.cmp(&last.seq) {
            std::cmp::Ordering::Less => {
                LineFault::Missing { last: last.seq, count: last.seq - tip.seq, end_source: LogEndSource::Head }
            }
            std::cmp::Ordering::Equal if tip != last => LineFault::NotHead,
            _ => return Ok(()),
        };
        Err(AppendError::Broken { dir: self.directory.path.clone(), line: last.seq, fault })
    }

    /// Returns the last line, to be kept elsewhere; `None` for an empty log.
    ///
    /// # Errors
    /// [`LogFileError`] if the log cannot be read.
    pub fn current_anchor(&self) -> Result<Option<LogAnchor>, LogFileError> {
        let state = self.lock_state();
        let (tip, note) = (state.tip, state.note);
        let first = first_line_hash(&self.file, tip.end).map_err(system_error("read", &self.path))?;
        let boot = self.boot;
        let anchor =
            |log| LogAnchor { log, seq: tip.seq, hash: tip.hash, end: tip.end, durable: note.durable.seq, boot };
        Ok(first.map(anchor))
    }

    /// Compares the log with a stored anchor.
    ///
    /// # Errors
    /// [`LogFileError`] if the log cannot be read.
    pub fn check_anchor(&self, anchor: &LogAnchor) -> Result<AnchorState, LogFileError> {
        let fail = |e| system_error("read", &self.path)(e);
        let size = self.file.metadata().map_err(fail)?.len();
        Ok(if first_line_hash(&self.file, size).map_err(fail)? != Some(anchor.log) {
            AnchorState::OtherLog
        } else if holds_tip(&self.file, size, anchor.tip()).map_err(fail)? {
            AnchorState::Holds
        } else if anchor.may_be_lost(self.boot) {
            AnchorState::MayBeLost
        } else {
            AnchorState::Missing
        })
    }

    /// Records in the head that an anchor of this log is kept elsewhere, so that its absence is
    /// detected from now on.
    ///
    /// # Errors
    /// [`LogFileError`] if the head cannot be written.
    pub fn note_anchored(&self) -> Result<(), LogFileError> {
        let mut state = self.lock_state();
        if state.note.is_anchored {
            return Ok(());
        }
        let _lock = FileLock::lock_exclusive(&self.file, &self.path)?;
        self.read_head(&mut state)?;
        let note = HeadNote { is_anchored: true, ..state.note };
        self.write_head(&mut state, note).map_err(system_error("write", &self.head_path()))
    }

    /// Reads the lines that other processes appended. The lock is held.
    fn catch_up(&self, state: &mut LogWriterState) -> Result<(), AppendError> {
        let dir = || self.directory.path.clone();
        let Some(size) = self.size_in_place()? else { return Err(AppendError::Replaced { dir: dir() }) };
        if size == state.tip.end {
            return Ok(());
        }
        if size < state.tip.end {
            let last = state.tip.seq;
            let there =
                crate::opening::count_whole_lines(&self.file, size).map_err(system_error("read", &self.path))?;
            let fault = LineFault::Missing { last, count: last.saturating_sub(there), end_source: LogEndSource::Head };
            return Err(AppendError::Broken { dir: dir(), line: last, fault });
        }
        match scan::follow_chain(&self.file, state.tip, size).map_err(system_error("read", &self.path))? {
            Ok(ChainEnd::Whole(tip)) => state.tip = tip,
            Ok(ChainEnd::Torn(tip)) => {
                state.torn = Some(set_aside(&self.directory, &self.file, tip, size)?);
                state.tip = tip;
            }
            Err(ChainBreak { line, fault }) => return Err(AppendError::Broken { dir: dir(), line, fault }),
        }
        Ok(())
    }

    /// Returns the log's length, if the open file still has its name.
    fn size_in_place(&self) -> Result<Option<u64>, LogFileError> {
        match rustix::fs::statat(&self.directory.fd, LOG_NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if (stat.st_dev, stat.st_ino) == self.identity => Ok(Some(size_of(&stat))),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(system_error("examine", &self.path)(e)),
        }
    }

    /// Removes the remains of a failed write. If this fails too, the next process that appends or
    /// opens finds the piece torn.
    fn take_back(&self, tip: LogTip, source: io::Error) -> AppendError {
        let _ = self.file.set_len(tip.end);
        let dir = self.directory.path.clone();
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::WriteZero => AppendError::NoSpace { dir, source },
            _ => AppendError::Write { dir, source },
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, LogWriterState> {
        // The next catch-up detects anything that a panic left incomplete.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn encode_events(events: &[Event]) -> Result<Vec<Vec<u8>>, AppendError> {
    let mut total = 0;
    let mut bodies = Vec::with_capacity(events.len());
    for (index, event) in events.iter().enumerate() {
        let body = line::value_json(event).map_err(|source| AppendError::Json { index, source })?;
        if body.len() > MAX_LINE_BYTES {
            return Err(too_large(index, event, body.len()));
        }
        total += body.len();
        if total > MAX_BATCH_BYTES {
            return Err(AppendError::BatchTooLarge);
        }
        bodies.push(body);
    }
    Ok(bodies)
}

fn too_large(index: usize, event: &Event, bytes: usize) -> AppendError {
    let kind = serde_json::to_value(&event.kind).ok();
    let kind = kind.and_then(|kind| Some(kind.get("type")?.as_str()?.to_owned())).unwrap_or_default();
    AppendError::TooLarge { index, kind, request: event.request.to_string(), bytes }
}

/// Moves the bytes after `tip` to a file of their own. The lock is held. The copy is durable before
/// the log is truncated, so a crash loses neither.
pub(crate) fn set_aside(
    directory: &LogDirectory,
    log: &File,
    tip: LogTip,
    size: u64,
) -> Result<TornTail, LogFileError> {
    let seq = tip.seq + 1;
    for attempt in 0..MAX_TORN_FILES {
        let name = match attempt {
            0 => format!("{LOG_NAME}.torn-{seq}"),
            n => format!("{LOG_NAME}.torn-{seq}.{n}"),
        };
        let path = directory.path.join(&name);
        let copy = match directory.open_private(&name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL) {
            Err(LogFileError::System { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(e),
            Ok(None) => continue,
            Ok(Some(copy)) => copy,
        };
        scan::copy_stretch(log, tip.end, size, &copy).map_err(system_error("write", &path))?;
        copy.sync_all().map_err(system_error("sync", &path))?;
        directory.sync_names()?;
        log.set_len(tip.end)
            .and_then(|()| log.sync_data())
            .map_err(system_error("cut", &directory.path.join(LOG_NAME)))?;
        return Ok(TornTail { seq, bytes: size - tip.end, file: path });
    }
    Err(system_error("move an incomplete last line to a file in", &directory.path)(io::ErrorKind::AlreadyExists))
}

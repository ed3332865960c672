//! Appending: one chain for every process that writes it, and nothing
//! acknowledged that could still be lost.
//!
//! An append takes the file's lock, catches up with what others wrote, and
//! writes whole lines; what cannot be written whole is taken away again. A
//! commit makes everything appended so far durable, once for all who wait, and
//! then moves the head.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, OFlags, Stat};
use rustix::io::Errno;
use stockade_model::{Event, RawText};

use crate::head::{self, Found, HEAD_NAME};
use crate::line::{self, Fault, Hash, MAX_LINE_BYTES};
use crate::place::{FileLock, Place, PlaceError, system};
use crate::scan::{self, Break, Followed, LOG_NAME, Tip};

/// The largest batch, in bytes of its lines.
pub const MAX_BATCH_BYTES: usize = 16 << 20;

/// How long a commit waits for another thread's sync, in milliseconds. A disk
/// that is slower than this is not to be trusted with a decision.
const COMMIT_WAIT_MS: u64 = 30_000;

/// How many pieces may be set aside under one number.
const MAX_TORN_FILES: u32 = 100;

/// Number of a line, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// A piece that was never wholly written, found at the end and set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The number of the line that would have stood there.
    pub seq: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where it lies now.
    pub file: PathBuf,
}

/// Why a log cannot be opened. In each case nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or a file cannot serve.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The chain is broken.
    #[error("the audit log in `{}` is broken at line {line}: {fault}\nhint: keep it as evidence: move the directory away, and a new log is begun", RawText::from(dir.as_path()))]
    Broken {
        /// Directory of the log.
        dir: PathBuf,
        /// Where.
        line: u64,
        /// What is wrong.
        fault: Fault,
    },
    /// The head is missing or unreadable although there is a log.
    #[error("the head of the audit log in `{}` is missing or was changed\nhint: keep the log as evidence: move the directory away, and a new log is begun", RawText::from(dir.as_path()))]
    Head {
        /// Directory of the log.
        dir: PathBuf,
    },
}

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The lock or a file failed.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The disk, the quota or the file size limit is reached.
    #[error("there is no space for the audit log in `{}`: {source}\nhint: make space there, then try again", RawText::from(dir.as_path()))]
    NoSpace {
        /// Directory of the log.
        dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The write failed for another reason.
    #[error("cannot write the audit log in `{}`: {source}\nhint: check the disk", RawText::from(dir.as_path()))]
    Write {
        /// Directory of the log.
        dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// An event is larger than a line may be.
    #[error(
        "event {index} of this batch (`{kind}` of {request}) makes a line of {bytes} bytes; at most {MAX_LINE_BYTES} are recorded\nhint: make the command or its arguments shorter"
    )]
    TooLarge {
        /// Its place in the batch, from 0.
        index: usize,
        /// Its type.
        kind: String,
        /// Its request.
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
        /// Its place in the batch, from 0.
        index: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// Somebody else changed the log.
    #[error("the audit log in `{}` was changed by somebody else at line {line}: {fault}\nhint: keep it as evidence: move the directory away, and a new log is begun", RawText::from(dir.as_path()))]
    Broken {
        /// Directory of the log.
        dir: PathBuf,
        /// Where.
        line: u64,
        /// What is wrong.
        fault: Fault,
    },
    /// The open file is no longer the log.
    #[error("the audit log in `{}` was removed or replaced while it was open\nhint: start again; lines appended so far may be lost", RawText::from(dir.as_path()))]
    Replaced {
        /// Directory of the log.
        dir: PathBuf,
    },
    /// A sync failed earlier: what was written since cannot be trusted to last.
    #[error("an earlier sync of the audit log failed\nhint: check the disk and start again")]
    Poisoned,
}

/// Why it is not certain that what was appended lasts.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The lock or the head failed.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The sync failed, now or earlier. The kernel reports a lost write once
    /// only, so a log that failed to sync stays failed until it is opened anew.
    #[error("the audit log in `{}` could not be made durable{}\nhint: check the disk and start again", RawText::from(dir.as_path()), because(source))]
    Sync {
        /// Directory of the log.
        dir: PathBuf,
        /// The system's answer; `None` where an earlier sync failed.
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

fn because(source: &Option<io::Error>) -> String {
    source.as_ref().map_or_else(String::new, |e| format!(": {e}"))
}

/// An open log. Share it between threads by reference.
#[derive(Debug)]
pub struct Log {
    place: Place,
    path: PathBuf,
    file: File,
    /// Device and inode of `file`.
    identity: (u64, u64),
    head: File,
    state: Mutex<State>,
    synced: Condvar,
}

#[derive(Debug)]
struct State {
    /// The last line known.
    tip: Tip,
    /// The last line known to be durable.
    durable: Tip,
    syncing: bool,
    failed: bool,
    torn: Option<Torn>,
}

impl Log {
    /// Opens the log in `dir`, and begins one where there is none. The
    /// directory becomes mode 0700, its files 0600. A torn end is set aside,
    /// see [`recovered`](Self::recovered).
    ///
    /// Checked are the head and everything behind it, not the whole chain: that
    /// is [`verify`](crate::verify)'s work.
    ///
    /// # Errors
    /// A place that is not the caller's alone, a broken chain, a missing end.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let place = Place::create(dir)?;
        let path = dir.join(LOG_NAME);
        let missing = || system("open", &path)(io::ErrorKind::NotFound.into());
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let file = place.open_private(LOG_NAME, flags)?.ok_or_else(missing)?;
        let lock = FileLock::exclusive(&file, &path)?;
        let stat = rustix::fs::fstat(&file).map_err(|e| system("examine", &path)(e.into()))?;
        let size = size_of(&stat);
        let (head, durable) = open_head(&place, &file, size)?;
        check_anchor(&place, &file, size, durable)?;
        let (tip, torn) = match scan::follow(&file, durable, size).map_err(system("read", &path))? {
            Ok(Followed::Whole(tip)) => (tip, None),
            Ok(Followed::Torn(tip)) => (tip, Some(set_aside(&place, &file, tip, size)?)),
            Err(Break { line, fault }) => return Err(OpenError::Broken { dir: dir.to_owned(), line, fault }),
        };
        drop(lock);
        let state = Mutex::new(State { tip, durable, syncing: false, failed: false, torn });
        Ok(Self { place, path, file, identity: (stat.st_dev, stat.st_ino), head, state, synced: Condvar::new() })
    }

    /// The torn piece that was set aside last, when the log was opened or since.
    pub fn recovered(&self) -> Option<Torn> {
        self.state().torn.clone()
    }

    /// The last line that this log knows of: its number and hash; 0 where there
    /// is none. Keep it elsewhere to be certain against a forger.
    pub fn head(&self) -> (Seq, Hash) {
        let tip = self.state().tip;
        (Seq(tip.seq), tip.hash)
    }

    /// Appends one event. It lasts over the end of this process, and over a
    /// loss of power after [`commit`](Self::commit).
    ///
    /// # Errors
    /// Nothing was appended then: what was written of it was taken away again,
    /// or is found torn and set aside later.
    pub fn append(&self, event: &Event) -> Result<Seq, AppendError> {
        self.append_all(std::slice::from_ref(event)).map(Seq)
    }

    /// Appends events as neighbouring lines, all or none. Returns the number of
    /// the last; `None` for no events.
    ///
    /// # Errors
    /// As [`append`](Self::append); [`AppendError::BatchTooLarge`].
    pub fn append_batch(&self, events: &[Event]) -> Result<Option<Seq>, AppendError> {
        if events.is_empty() {
            return Ok(None);
        }
        self.append_all(events).map(|seq| Some(Seq(seq)))
    }

    fn append_all(&self, events: &[Event]) -> Result<u64, AppendError> {
        let bodies = bodies(events)?;
        let mut state = self.state();
        if state.failed {
            return Err(AppendError::Poisoned);
        }
        let _lock = FileLock::exclusive(&self.file, &self.path)?;
        self.catch_up(&mut state)?;
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
        state.tip = tip;
        Ok(tip.seq)
    }

    /// Makes what was appended so far durable, and moves the head there.
    /// Threads that come during a sync share the next one.
    ///
    /// # Errors
    /// When it is not certain to last: then nothing that depends on it may start.
    pub fn commit(&self) -> Result<(), CommitError> {
        let deadline = Instant::now() + Duration::from_millis(COMMIT_WAIT_MS);
        let mut state = self.state();
        let target = state.tip.end;
        loop {
            if state.failed {
                return Err(CommitError::Sync { dir: self.place.path.clone(), source: None });
            }
            if state.durable.end >= target {
                return Ok(());
            }
            if !state.syncing {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CommitError::Slow);
            }
            state = self.synced.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.syncing = true;
        let tip = state.tip;
        drop(state);
        let synced = self.file.sync_data();
        let mut state = self.state();
        state.syncing = false;
        self.synced.notify_all();
        if let Err(source) = synced {
            state.failed = true;
            return Err(CommitError::Sync { dir: self.place.path.clone(), source: Some(source) });
        }
        if self.size_in_place()?.is_none() {
            return Err(CommitError::Replaced { dir: self.place.path.clone() });
        }
        self.move_head(tip)?;
        state.durable = tip;
        Ok(())
    }

    /// Called with the state locked, because the file lock does not keep two
    /// threads of one process apart.
    fn move_head(&self, tip: Tip) -> Result<(), PlaceError> {
        let path = self.place.path.join(HEAD_NAME);
        let _lock = FileLock::exclusive(&self.file, &self.path)?;
        match head::read(&self.head).map_err(system("read", &path))? {
            // Another process got further.
            Found::Tip(there) if there.end >= tip.end => Ok(()),
            Found::Tip(_) => head::write(&self.head, tip).map_err(system("write", &path)),
            Found::Empty | Found::Broken => Err(system("read", &path)(io::Error::new(
                io::ErrorKind::InvalidData,
                "it was changed by somebody else",
            ))),
        }
    }

    /// Takes in what other processes appended since. The lock is held.
    fn catch_up(&self, state: &mut State) -> Result<(), AppendError> {
        let dir = || self.place.path.clone();
        let Some(size) = self.size_in_place()? else { return Err(AppendError::Replaced { dir: dir() }) };
        if size == state.tip.end {
            return Ok(());
        }
        if size < state.tip.end {
            let fault = Fault::Missing { head: state.tip.seq };
            return Err(AppendError::Broken { dir: dir(), line: state.tip.seq, fault });
        }
        match scan::follow(&self.file, state.tip, size).map_err(system("read", &self.path))? {
            Ok(Followed::Whole(tip)) => state.tip = tip,
            Ok(Followed::Torn(tip)) => {
                state.torn = Some(set_aside(&self.place, &self.file, tip, size)?);
                state.tip = tip;
            }
            Err(Break { line, fault }) => return Err(AppendError::Broken { dir: dir(), line, fault }),
        }
        Ok(())
    }

    /// The log's length, if the open file is still the one that has its name.
    fn size_in_place(&self) -> Result<Option<u64>, PlaceError> {
        match rustix::fs::statat(&self.place.fd, LOG_NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if (stat.st_dev, stat.st_ino) == self.identity => Ok(Some(size_of(&stat))),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(system("examine", &self.path)(e.into())),
        }
    }

    /// Cuts off what a failed write left. Where even that fails, the piece is
    /// found torn by whoever appends or opens next.
    fn take_back(&self, tip: Tip, source: io::Error) -> AppendError {
        let _ = self.file.set_len(tip.end);
        let dir = self.place.path.clone();
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::WriteZero => AppendError::NoSpace { dir, source },
            _ => AppendError::Write { dir, source },
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves nothing half done that the next catch-up does not see.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn bodies(events: &[Event]) -> Result<Vec<Vec<u8>>, AppendError> {
    let mut total = 0;
    let mut bodies = Vec::with_capacity(events.len());
    for (index, event) in events.iter().enumerate() {
        let body = line::event_json(event).map_err(|source| AppendError::Json { index, source })?;
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

/// Opens the head, or makes it for a log that holds nothing yet. The lock is held.
fn open_head(place: &Place, log: &File, size: u64) -> Result<(File, Tip), OpenError> {
    let path = place.path.join(HEAD_NAME);
    let broken = || OpenError::Head { dir: place.path.clone() };
    if let Some(file) = place.open_private(HEAD_NAME, OFlags::RDWR)? {
        match head::read(&file).map_err(system("read", &path))? {
            Found::Tip(tip) => return Ok((file, tip)),
            // Its making was interrupted, and nothing was appended since.
            Found::Empty if size == 0 => {}
            Found::Empty | Found::Broken => return Err(broken()),
        }
    }
    if size != 0 {
        return Err(broken());
    }
    let file = place.open_private(HEAD_NAME, OFlags::RDWR | OFlags::CREATE)?.ok_or_else(broken)?;
    head::write(&file, Tip::START).map_err(system("write", &path))?;
    file.sync_all().map_err(system("sync", &path))?;
    log.sync_all().map_err(system("sync", &place.path.join(LOG_NAME)))?;
    place.sync()?;
    Ok((file, Tip::START))
}

/// Demands that the line which the head names ends where it says.
fn check_anchor(place: &Place, log: &File, size: u64, head: Tip) -> Result<(), OpenError> {
    if anchor_holds(log, size, head).map_err(system("read", &place.path.join(LOG_NAME)))? {
        return Ok(());
    }
    let fault = if size < head.end { Fault::Missing { head: head.seq } } else { Fault::NotHead };
    Err(OpenError::Broken { dir: place.path.clone(), line: head.seq, fault })
}

fn anchor_holds(log: &File, size: u64, head: Tip) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    if head == Tip::START {
        return Ok(true);
    }
    let mut expected = line::suffix(head.hash);
    expected.push(b'\n');
    let Some(start) = head.end.checked_sub(expected.len() as u64) else { return Ok(false) };
    let mut found = vec![0; expected.len()];
    if size < head.end {
        return Ok(false);
    }
    log.read_exact_at(&mut found, start)?;
    Ok(found == expected)
}

/// Moves what lies behind `tip` into a file of its own. The lock is held. The
/// copy is durable before the log is cut, so a crash loses neither.
fn set_aside(place: &Place, log: &File, tip: Tip, size: u64) -> Result<Torn, PlaceError> {
    let seq = tip.seq + 1;
    for attempt in 0..MAX_TORN_FILES {
        let name = match attempt {
            0 => format!("{LOG_NAME}.torn-{seq}"),
            n => format!("{LOG_NAME}.torn-{seq}.{n}"),
        };
        let path = place.path.join(&name);
        let copy = match place.open_private(&name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL) {
            Err(PlaceError::System { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(e),
            Ok(None) => continue,
            Ok(Some(copy)) => copy,
        };
        scan::copy_stretch(log, tip.end, size, &copy).map_err(system("write", &path))?;
        copy.sync_all().map_err(system("sync", &path))?;
        place.sync()?;
        log.set_len(tip.end).and_then(|()| log.sync_data()).map_err(system("cut", &place.path.join(LOG_NAME)))?;
        return Ok(Torn { seq, bytes: size - tip.end, file: path });
    }
    Err(system("set a torn end aside in", &place.path)(io::ErrorKind::AlreadyExists.into()))
}

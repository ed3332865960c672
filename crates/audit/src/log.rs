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

use crate::anchor::{Anchor, AnchorState, first_line_hash, holds_tip};
use crate::head::{self, Boot, Found, HEAD_NAME, HeadNote};
use crate::key::{KeyFiles, SigningKey};
use crate::line::{self, Fault, Hash, MAX_LINE_BYTES, Witness};
use crate::opening::{OpenedLog, open_log};
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
    /// The key that signed the head is gone.
    #[error("the key `{}` that signs the audit log in `{}` is missing\nhint: put it back; or keep the log as evidence: move the directory away, and a new log is begun", RawText::from(key.as_path()), RawText::from(dir.as_path()))]
    Key {
        /// Directory of the log.
        dir: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The head is missing, unreadable or not signed although there is a log.
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
    #[error("there is no space for the audit log in `{}`: {source}\nhint: make space there (`stockade cache clear --all` may), then try again", RawText::from(dir.as_path()))]
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
    key: SigningKey,
    boot: Boot,
    state: Mutex<State>,
    synced: Condvar,
}

#[derive(Debug)]
struct State {
    /// The last line known.
    tip: Tip,
    /// What the head said when it was last read or written.
    note: HeadNote,
    /// The bytes of the head then: the same bytes need no second check.
    head_bytes: Vec<u8>,
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
        let no_name = || system("open", dir)(io::ErrorKind::InvalidInput.into());
        let keys = KeyFiles::of_log(dir)?.ok_or_else(no_name)?;
        let OpenedLog { head, key, note, head_bytes, tip, torn } = open_log(&place, &keys, &file, size_of(&stat))?;
        drop(lock);
        let boot = note.boot;
        let state = Mutex::new(State { tip, note, head_bytes, syncing: false, failed: false, torn });
        let identity = (stat.st_dev, stat.st_ino);
        Ok(Self { place, path, file, identity, head, key, boot, state, synced: Condvar::new() })
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
        self.read_head(&mut state)?;
        self.demand_end(&state)?;
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
            if state.note.durable.end >= target {
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
        self.move_head(&mut state, tip)?;
        Ok(())
    }

    /// Called with the state locked, because the file lock does not keep two
    /// threads of one process apart.
    fn move_head(&self, state: &mut State, tip: Tip) -> Result<(), PlaceError> {
        let _lock = FileLock::exclusive(&self.file, &self.path)?;
        self.read_head(state)?;
        let note = state.note;
        if note.durable.end >= tip.end {
            // Another process got further.
            return Ok(());
        }
        let last = if note.last.end < tip.end { tip } else { note.last };
        self.write_head(state, HeadNote { last, durable: tip, ..note }).map_err(system("write", &self.head_path()))
    }

    /// Takes in what other processes wrote to the head since. The lock is held.
    fn read_head(&self, state: &mut State) -> Result<(), PlaceError> {
        let path = self.head_path();
        let changed = || {
            let why = "it was changed by another program";
            system("use", &path)(io::Error::new(io::ErrorKind::InvalidData, why))
        };
        let bytes = head::read_bytes(&self.head).map_err(system("read", &path))?;
        if bytes == state.head_bytes {
            return Ok(());
        }
        let Found::Signed(signed) = head::parse(&bytes) else { return Err(changed()) };
        let note = signed.checked(&self.key).ok_or_else(changed)?;
        // A head only moves forward; a signed one of earlier was put back.
        if note.last.seq < state.note.last.seq || note.durable.seq < state.note.durable.seq {
            return Err(changed());
        }
        (state.note, state.head_bytes) = (note, bytes);
        Ok(())
    }

    /// Writes the head. The lock is held.
    fn write_head(&self, state: &mut State, note: HeadNote) -> io::Result<()> {
        let bytes = note.render(&self.key);
        head::write(&self.head, &bytes)?;
        (state.note, state.head_bytes) = (note, bytes);
        Ok(())
    }

    fn head_path(&self) -> PathBuf {
        self.place.path.join(HEAD_NAME)
    }

    /// Demands that the log reaches the line which the head names: another process may
    /// have appended it, and it may have been cut off since. The lock is held.
    fn demand_end(&self, state: &State) -> Result<(), AppendError> {
        let (tip, last) = (state.tip, state.note.last);
        let fault = match tip.seq.cmp(&last.seq) {
            std::cmp::Ordering::Less => {
                Fault::Missing { last: last.seq, count: last.seq - tip.seq, witness: Witness::Head }
            }
            std::cmp::Ordering::Equal if tip != last => Fault::NotHead,
            _ => return Ok(()),
        };
        Err(AppendError::Broken { dir: self.place.path.clone(), line: last.seq, fault })
    }

    /// The last line, to be kept elsewhere; `None` of an empty log.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn anchor(&self) -> Result<Option<Anchor>, PlaceError> {
        let state = self.state();
        let (tip, note) = (state.tip, state.note);
        let first = first_line_hash(&self.file, tip.end).map_err(system("read", &self.path))?;
        let boot = self.boot;
        let anchor = |log| Anchor { log, seq: tip.seq, hash: tip.hash, end: tip.end, durable: note.durable.seq, boot };
        Ok(first.map(anchor))
    }

    /// Compares the log with an anchor that was kept.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn check_anchor(&self, anchor: &Anchor) -> Result<AnchorState, PlaceError> {
        let fail = |e| system("read", &self.path)(e);
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

    /// Notes in the head that an anchor of this log is kept elsewhere: its absence is
    /// found from then on.
    ///
    /// # Errors
    /// When the head cannot be written.
    pub fn note_anchored(&self) -> Result<(), PlaceError> {
        let mut state = self.state();
        if state.note.is_anchored {
            return Ok(());
        }
        let _lock = FileLock::exclusive(&self.file, &self.path)?;
        self.read_head(&mut state)?;
        let note = HeadNote { is_anchored: true, ..state.note };
        self.write_head(&mut state, note).map_err(system("write", &self.head_path()))
    }

    /// Takes in what other processes appended since. The lock is held.
    fn catch_up(&self, state: &mut State) -> Result<(), AppendError> {
        let dir = || self.place.path.clone();
        let Some(size) = self.size_in_place()? else { return Err(AppendError::Replaced { dir: dir() }) };
        if size == state.tip.end {
            return Ok(());
        }
        if size < state.tip.end {
            let last = state.tip.seq;
            let there = crate::opening::count_whole_lines(&self.file, size).map_err(system("read", &self.path))?;
            let fault = Fault::Missing { last, count: last.saturating_sub(there), witness: Witness::Head };
            return Err(AppendError::Broken { dir: dir(), line: last, fault });
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

/// Moves what lies behind `tip` into a file of its own. The lock is held. The
/// copy is durable before the log is cut, so a crash loses neither.
pub(crate) fn set_aside(place: &Place, log: &File, tip: Tip, size: u64) -> Result<Torn, PlaceError> {
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

//! Detached runs: a private directory each, in which its supervisor leaves what
//! it is, what it printed and how it ended.
//!
//! A run is alive as long as somebody holds the lock of its directory: the
//! kernel gives a lock back with the last process that has it, however that
//! ended, and never to another. Numbers of processes are kept for people to read
//! and are used for nothing.
//!
//! Absent on purpose: what a run does, how it is asked to end, clocks.

mod output;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stockade_model::{Command, Outcome, RawText, RequestId, SessionId};

use crate::place::{PlaceError, private_directory, put_in_place, system};

pub use output::{Output, OutputReader, Piece, Stream};

/// Runs that are over and still told of; older ones are forgotten when another
/// is begun.
pub const ENDED_KEPT: usize = 64;
/// The longest description or outcome that is read, in bytes.
const TEXT_LIMIT_BYTES: u64 = 64 << 20;

const LOCK: &str = "lock";
const ABOUT: &str = "run.json";
const OUTCOME: &str = "outcome.json";

/// What a detached run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Which.
    pub id: RequestId,
    /// The session, where it has one.
    pub session: Option<SessionId>,
    /// What was to be run.
    pub command: Command,
    /// The directory that may be written.
    pub workspace: RawText,
    /// The profile's name.
    pub profile: String,
    /// When it was begun, in milliseconds since the epoch.
    pub started_ms: u64,
    /// The process that watches over it; may be another's number once it is over.
    pub supervisor: u32,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Somebody watches over it.
    Running,
    /// It is over and told how.
    Ended(Box<Outcome>),
    /// It is over, and its supervisor ended without a word: it was killed.
    Lost,
}

/// All detached runs of a user.
#[derive(Clone, Debug)]
pub struct Runs {
    root: PathBuf,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    id: RequestId,
    path: PathBuf,
}

/// A run that this process watches over, until it ends.
#[derive(Debug)]
pub struct Watched {
    run: Run,
    _lock: File,
}

/// Why a name leads to no run.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// Nothing begins so.
    #[error("there is no run `{}`\nhint: `stockade ps --all` shows them", RawText::from(.0.as_str()).escaped())]
    Nothing(String),
    /// More than one does.
    #[error("more than one run begins with `{}`\nhint: write more of its id", RawText::from(.0.as_str()).escaped())]
    Several(String),
    /// The directory cannot be read.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

impl Runs {
    /// Those in this directory, which is made with the first of them.
    pub fn of(root: PathBuf) -> Self {
        Self { root }
    }

    /// Begins one: nobody sees its directory before it is locked. Forgets the
    /// oldest of those that are over.
    ///
    /// # Errors
    /// When the directory cannot be made, or is not the caller's own.
    pub fn begin(&self, id: &RequestId) -> Result<Watched, PlaceError> {
        let path = private_directory(&self.root.join(id.as_str()))?;
        self.forget_oldest()?;
        let hidden = path.with_file_name(format!(".{id}"));
        fs::DirBuilder::new().mode(0o700).create(&hidden).map_err(system("create", &hidden))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(hidden.join(LOCK), flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| system("create", &hidden)(e.into()))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| system("lock", &hidden)(e.into()))?;
        put_in_place(&hidden, &path)?;
        Ok(Watched { run: Run { id: id.clone(), path }, _lock: lock.into() })
    }

    /// All that are known, in no order.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn all(&self) -> Result<Vec<Run>, PlaceError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(system("read", &self.root)(e)),
        };
        let named = |entry: fs::DirEntry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            Some(Run { id, path: entry.path() })
        };
        Ok(entries.flatten().filter_map(named).collect())
    }

    /// The run whose id begins with `name`.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn find(&self, name: &str) -> Result<Run, FindError> {
        let mut found = self.all()?.into_iter().filter(|run| !name.is_empty() && run.id.as_str().starts_with(name));
        match (found.next(), found.next()) {
            (Some(run), None) => Ok(run),
            (None, _) => Err(FindError::Nothing(name.to_owned())),
            (Some(_), Some(_)) => Err(FindError::Several(name.to_owned())),
        }
    }

    fn forget_oldest(&self) -> Result<(), PlaceError> {
        let mut over: Vec<(u64, Run)> = self
            .all()?
            .into_iter()
            .filter(|run| !run.is_watched())
            .map(|run| (run.about().map_or(0, |about| about.started_ms), run))
            .collect();
        over.sort_by_key(|(started_ms, _)| std::cmp::Reverse(*started_ms));
        for (_, run) in over.into_iter().skip(ENDED_KEPT - 1) {
            run.remove()?;
        }
        Ok(())
    }
}

impl Run {
    /// Its id.
    pub fn id(&self) -> &RequestId {
        &self.id
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is, once that is known.
    pub fn about(&self) -> Option<About> {
        self.read(ABOUT)
    }

    /// Whether somebody watches over it, which is whether it can be alive.
    pub fn is_watched(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(lock) = rustix::fs::open(self.path.join(LOCK), flags, Mode::empty()) else { return false };
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    }

    /// How far it is.
    pub fn standing(&self) -> Standing {
        // In this order: the outcome is written before the lock is given back.
        if self.is_watched() {
            return Standing::Running;
        }
        self.read(OUTCOME).map_or(Standing::Lost, |outcome| Standing::Ended(Box::new(outcome)))
    }

    /// What it printed, from the beginning.
    pub fn output(&self) -> OutputReader {
        OutputReader::new(self.path.clone())
    }

    /// Becomes readable when it prints more: an inotify instance, non-blocking,
    /// whose content tells nothing more.
    ///
    /// # Errors
    /// When the user has as many as may be.
    pub fn printing(&self) -> io::Result<OwnedFd> {
        let instance = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&instance, &self.path, WatchFlags::MODIFY | WatchFlags::CREATE)?;
        Ok(instance)
    }

    /// Forgets it.
    ///
    /// # Errors
    /// When its directory cannot be removed.
    pub fn remove(&self) -> Result<(), PlaceError> {
        fs::remove_dir_all(&self.path).map_err(system("remove", &self.path))
    }

    fn read<T: for<'a> Deserialize<'a>>(&self, name: &str) -> Option<T> {
        let mut bytes = Vec::new();
        File::open(self.path.join(name)).ok()?.take(TEXT_LIMIT_BYTES).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

impl Watched {
    /// The run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Says what it is.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn describe(&self, about: &About) -> Result<(), PlaceError> {
        self.write(ABOUT, about)
    }

    /// Says how it ended.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn finish(&self, outcome: &Outcome) -> Result<(), PlaceError> {
        self.write(OUTCOME, outcome)
    }

    /// Where what it prints is kept.
    pub fn output(&self) -> Output {
        Output::new(self.run.path.clone())
    }

    /// Writes a file whole or not at all.
    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), PlaceError> {
        let (path, unfinished) = (self.run.path.join(name), self.run.path.join(format!("{name}.partial")));
        let text = serde_json::to_vec(value).map_err(|e| system("write", &path)(e.into()))?;
        new_file(&unfinished).and_then(|mut file| file.write_all(&text)).map_err(system("write", &unfinished))?;
        put_in_place(&unfinished, &path)
    }
}

/// A private file that was not there.
fn new_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

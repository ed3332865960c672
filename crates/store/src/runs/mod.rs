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
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde::{Deserialize, Serialize};
use stockade_model::{Command, Outcome, RawText, RequestId, SessionId};

use crate::held;
use crate::place::{PlaceError, private_directory, system};

pub use output::{Output, OutputReader, Piece, Stream};

/// Runs that are over and still told of; older ones are forgotten when another
/// is begun.
pub const ENDED_KEPT: usize = 64;

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
        let lock = held::begin(&path, |_| Ok(()))?;
        Ok(Watched { run: Run { id: id.clone(), path }, _lock: lock })
    }

    /// All that are known, in no order.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn all(&self) -> Result<Vec<Run>, PlaceError> {
        Ok(held::all(&self.root)?.map(|(id, path)| Run { id, path }).collect())
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
        held::read(&self.path, ABOUT)
    }

    /// Whether somebody watches over it, which is whether it can be alive.
    pub fn is_watched(&self) -> bool {
        held::is_held(&self.path)
    }

    /// How far it is.
    pub fn standing(&self) -> Standing {
        // In this order: the outcome is written before the lock is given back.
        if self.is_watched() {
            return Standing::Running;
        }
        held::read(&self.path, OUTCOME).map_or(Standing::Lost, |outcome| Standing::Ended(Box::new(outcome)))
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
        held::write(&self.run.path, ABOUT, about)
    }

    /// Says how it ended.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn finish(&self, outcome: &Outcome) -> Result<(), PlaceError> {
        held::write(&self.run.path, OUTCOME, outcome)
    }

    /// Where what it prints is kept.
    pub fn output(&self) -> Output {
        Output::new(self.run.path.clone())
    }
}

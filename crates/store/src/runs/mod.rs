//! Detached runs: each has a private directory, in which its supervisor stores its description, its
//! output and its outcome.
//!
//! A run is alive as long as a process holds the lock of its directory. The kernel releases a lock
//! when the last process that holds it ends, for whatever reason, and never transfers it. Process
//! ids are stored for display only.
//!
//! This module does not know on purpose the command of a run, how to end it, or the time.

mod output;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde::{Deserialize, Serialize};
use stockade_model::{RawText, RequestCommand, RequestId, RunOutcome, SessionId};

use crate::database_path::{StoreFileError, private_directory};
use crate::live_directories::{self, LiveDirectory, SupervisedDirectory};

pub use output::{OutputPiece, OutputReader, OutputStream, OutputWriter};

/// Most ended runs that are kept; older ones are removed when another run begins.
pub const MAX_ENDED_RUNS: usize = 64;

const DESCRIPTION_FILE: &str = "run.json";
const OUTCOME_FILE: &str = "outcome.json";

/// Description of a detached run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunDescription {
    /// Identifier of the run.
    pub id: RequestId,
    /// The session, if it has one.
    pub session: Option<SessionId>,
    /// The command to run.
    pub command: RequestCommand,
    /// The writable directory.
    pub workspace: RawText,
    /// The profile's name.
    pub profile: String,
    /// Start time, in milliseconds since the epoch.
    pub started_ms: u64,
    /// Process id of its supervisor; may belong to another process after the run.
    pub supervisor: u32,
}

/// State of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetachedRunState {
    /// Its supervisor is running.
    Running,
    /// The run ended and has an outcome.
    Ended(Box<RunOutcome>),
    /// The run ended without an outcome, because its supervisor was killed.
    Lost,
}

/// All detached runs of a user.
#[derive(Clone, Debug)]
pub struct RunStore {
    root: PathBuf,
}

/// Detached run of a user.
pub type DetachedRun = LiveDirectory<RequestId>;

/// Run that this process supervises, until it ends.
pub type SupervisedRun = SupervisedDirectory<RequestId>;

/// Error if a name identifies no run.
#[derive(Debug, thiserror::Error)]
pub enum RunFindError {
    /// No id begins with the name.
    #[error("there is no run `{}`\nhint: `stockade ps --all` shows them", RawText::from(.0.as_str()).to_escaped())]
    Nothing(String),
    /// More than one id begins with it.
    #[error("more than one run begins with `{}`\nhint: write more of its id", RawText::from(.0.as_str()).to_escaped())]
    Several(String),
    /// The directory cannot be read.
    #[error(transparent)]
    StoreFile(#[from] StoreFileError),
}

impl RunStore {
    /// Returns the runs in this directory, which is created for the first run.
    pub fn at_root(root: PathBuf) -> Self {
        Self { root }
    }

    /// Begins a run: its directory is hidden until it is locked. Removes the oldest ended runs.
    ///
    /// # Errors
    /// [`StoreFileError`] if the directory cannot be created, or is not the caller's own.
    pub fn begin_run(&self, id: &RequestId) -> Result<SupervisedRun, StoreFileError> {
        let path = private_directory(&self.root.join(id.as_str()))?;
        self.forget_oldest()?;
        live_directories::create_supervised(id.clone(), path, |_| Ok(()))
    }

    /// Returns all known runs, in no order.
    ///
    /// # Errors
    /// [`StoreFileError`] if the directory cannot be read.
    pub fn list_runs(&self) -> Result<Vec<DetachedRun>, StoreFileError> {
        live_directories::list_directories(&self.root)
    }

    /// Returns the run whose id begins with `name`.
    ///
    /// # Errors
    /// [`RunFindError`] if there is none, or more than one.
    pub fn find_run(&self, name: &str) -> Result<DetachedRun, RunFindError> {
        let mut found =
            self.list_runs()?.into_iter().filter(|run| !name.is_empty() && run.id().as_str().starts_with(name));
        match (found.next(), found.next()) {
            (Some(run), None) => Ok(run),
            (None, _) => Err(RunFindError::Nothing(name.to_owned())),
            (Some(_), Some(_)) => Err(RunFindError::Several(name.to_owned())),
        }
    }

    fn forget_oldest(&self) -> Result<(), StoreFileError> {
        let mut over: Vec<(u64, DetachedRun)> = self
            .list_runs()?
            .into_iter()
            .filter(|run| !run.is_supervised())
            .map(|run| (run.read_description().map_or(0, |about| about.started_ms), run))
            .collect();
        over.sort_by_key(|(started_ms, _)| std::cmp::Reverse(*started_ms));
        for (_, run) in over.into_iter().skip(MAX_ENDED_RUNS - 1) {
            run.remove()?;
        }
        Ok(())
    }
}

impl DetachedRun {
    /// Returns its description, if it is stored already.
    pub fn read_description(&self) -> Option<RunDescription> {
        live_directories::read_json(self.path(), DESCRIPTION_FILE)
    }

    /// Returns its state.
    pub fn read_state(&self) -> DetachedRunState {
        // In this order, because the outcome is written before the lock is released.
        if self.is_supervised() {
            return DetachedRunState::Running;
        }
        live_directories::read_json(self.path(), OUTCOME_FILE)
            .map_or(DetachedRunState::Lost, |outcome| DetachedRunState::Ended(Box::new(outcome)))
    }

    /// Returns its output, from the beginning.
    pub fn open_output(&self) -> OutputReader {
        OutputReader::new(self.path().to_owned())
    }

    /// Returns a descriptor that becomes readable when there is more output: a non-blocking inotify
    /// instance, whose events carry no further information.
    ///
    /// # Errors
    /// [`io::Error`] if the user has too many of them.
    pub fn watch_output(&self) -> io::Result<OwnedFd> {
        let instance = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&instance, self.path(), WatchFlags::MODIFY | WatchFlags::CREATE)?;
        Ok(instance)
    }
}

impl SupervisedRun {
    /// Stores its description.
    ///
    /// # Errors
    /// [`StoreFileError`] if it cannot be written.
    pub fn write_description(&self, about: &RunDescription) -> Result<(), StoreFileError> {
        live_directories::write_json(self.path(), DESCRIPTION_FILE, about)
    }

    /// Stores its outcome.
    ///
    /// # Errors
    /// [`StoreFileError`] if it cannot be written.
    pub fn write_outcome(&self, outcome: &RunOutcome) -> Result<(), StoreFileError> {
        live_directories::write_json(self.path(), OUTCOME_FILE, outcome)
    }

    /// Returns the writer for its output.
    pub fn output_writer(&self) -> OutputWriter {
        OutputWriter::new(self.path().to_owned())
    }
}

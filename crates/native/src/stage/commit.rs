//! Commit, discard and recover.
//!
//! A commit prepares all new objects beside the workspace and writes a journal of its steps (the
//! decision). Then it only exchanges names and sets modes and times, and last removes its files.
//! Before the decision an interruption leaves the workspace unchanged. After the decision
//! [`Stage::recover`] finishes the commit, or undoes it if it cannot finish. So after recovery the
//! workspace is either in its old or in its new state.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fsync, openat, syncfs};
use stockade_model::{RawText, StageId};

use super::apply::{Ground, backward, forward};
use super::change::{Change, Changes, changes};
use super::conflict::{Conflict, Judge};
use super::depot::{DEPOT, Depot, clear_depots};
use super::error::{At, CommitError, PathError, StageError};
use super::journal::{self, Found, Journal};
use super::place::{Stage, Stages, UPPER, coarse};
use super::plan::prepare;
use super::select::{Guard, Held, choose, named};
use super::watch::{Point, Unwatched, Watch};
use stockade_files::object::{Object, directory_beneath};

/// Most directories that are flushed one by one.
const FLUSHED_SINGLY_MAX: usize = 32;

/// Paths to commit.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Paths relative to the workspace; empty for all changes.
    pub paths: Vec<PathBuf>,
    /// Protected paths that the user approved, relative to the workspace. As with grants, an
    /// approval ends at the next protected name.
    pub agreed: Vec<PathBuf>,
}

/// Result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Paths that now have the staged content.
    pub paths: Vec<PathBuf>,
    /// Changes left in the stage.
    pub held: Vec<Held>,
    /// True if nothing is staged any more, so the stage was removed.
    pub is_gone: bool,
}

/// Result of the recovery of an interrupted commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Id of the stage.
    pub id: StageId,
    /// How the commit ended.
    pub end: End,
}

/// How an interrupted commit ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The commit was finished: the workspace is in its new state.
    Finished,
    /// The commit was undone: the workspace is in its old state. The error is the reason why the
    /// commit could not be finished.
    Undone(PathError),
    /// The commit had not been decided: only its preparations were removed.
    Unbegun,
    /// A run without an overlay was interrupted: its changes are in the stage, and the workspace is
    /// in its old state.
    PutBack,
}

impl Stage {
    /// Returns the changes of the stage.
    ///
    /// # Errors
    /// [`StageError`] if the stage or workspace cannot be read.
    pub fn changes(&self) -> Result<Changes, StageError> {
        let upper = Object::of(self.part(UPPER)?).at(Path::new(UPPER))?;
        let lower = Object::of(self.open_workspace()?).at(self.workspace())?;
        let settled = journal::settled(self)?.iter().map(|path| path.as_path().to_owned()).collect();
        Ok(changes(upper, lower, &settled, self.meta.began)?)
    }

    /// Returns those of `changes` whose paths the workspace has changed meanwhile, too.
    ///
    /// # Errors
    /// [`StageError`] if the stage or workspace cannot be read.
    pub fn conflicts(&self, changes: &Changes) -> Result<Vec<Conflict>, StageError> {
        let list: Vec<&Change> = changes.list.iter().collect();
        Ok(self.conflicts_of(&list)?)
    }

    fn conflicts_of(&self, changes: &[&Change]) -> Result<Vec<Conflict>, PathError> {
        let (upper, lower) = (self.part(UPPER)?, self.open_workspace().map_err(unreadable)?);
        let judge = Judge::new(self)?;
        let mut found = Vec::new();
        for change in changes {
            let staged = match change.staged {
                Some(_) => Object::beneath(upper.as_fd(), &change.path).at(&change.path)?,
                None => None,
            };
            let present = Object::beneath(lower.as_fd(), &change.path).at(&change.path)?;
            found.extend(judge.conflict(change, staged.as_ref(), present.as_ref())?);
        }
        Ok(found)
    }

    /// Returns those of `changes` that a commit would leave in the stage.
    ///
    /// # Errors
    /// [`CommitError`] if the stage or workspace cannot be read.
    pub fn held(&self, changes: &Changes) -> Result<Vec<Held>, CommitError> {
        let (upper, lower) = (self.part(UPPER)?, self.open_workspace()?);
        Ok(choose(changes, &[], &Guard::new(self, &[], upper.as_fd(), lower.as_fd())?)?.held)
    }

    /// Puts the wanted changes into the workspace.
    ///
    /// # Errors
    /// [`CommitError`]; the workspace is unchanged, unless the error reports otherwise.
    pub fn commit(self, wanted: &Wanted, watch: &mut dyn Watch) -> Result<Committed, CommitError> {
        if journal::is_there(self.directory.as_fd()) {
            return Err(StageError::CutOff(self.id().clone()).into());
        }
        if self.may_be_torn() {
            return Err(StageError::Torn(self.id().clone()).into());
        }
        let all = self.changes()?;
        let (upper, lower) = (self.part(UPPER)?, self.open_workspace()?);
        let guard = Guard::new(&self, &wanted.agreed, upper.as_fd(), lower.as_fd())?;
        let chosen = choose(&all, &wanted.paths, &guard)?;
        let checked = coarse();
        let conflicts = self.conflicts_of(&chosen.changes)?;
        if !conflicts.is_empty() {
            return Err(CommitError::Conflicts(conflicts));
        }
        let paths: Vec<PathBuf> =
            chosen.changes.iter().filter(|change| !change.is_incidental).map(|change| change.path.clone()).collect();
        let is_all = chosen.are_all(&all);
        let held = chosen.held.clone();
        if chosen.changes.is_empty() && !is_all {
            return Ok(Committed { paths, held, is_gone: false });
        }
        let depot = Depot::make(&self, lower.as_fd()).map_err(CommitError::Prepare)?;
        let prepared = watch
            .reached(Point::Depot)
            .at(Path::new(DEPOT))
            .and_then(|()| prepare((&chosen, &all), (&upper, &lower), &depot, (&wanted.paths, self.meta.began), watch))
            .and_then(|steps| {
                let settled = chosen.changes.iter().map(|change| RawText::from(change.path.as_path())).collect();
                let agreed = wanted.agreed.iter().map(|path| RawText::from(path.as_path())).collect();
                let journal = Journal { depot: depot.place, checked, steps, settled, agreed, is_all };
                watch.reached(Point::Ready).at(Path::new(DEPOT))?;
                journal::decide(&self, &journal)?;
                Ok(journal)
            });
        let journal = match prepared {
            Ok(journal) => journal,
            Err(error) => {
                // The next recovery removes any remains.
                let _ = journal::forget(&self).and_then(|()| clear_depots(&self));
                return Err(CommitError::Prepare(error));
            }
        };
        let stays = looks_again(&guard, &journal);
        let ground = Ground { workspace: lower.as_fd(), depot: depot.directory.as_fd(), checked, stays: &stays };
        let done = watch
            .reached(Point::Decided)
            .at(Path::new(DEPOT))
            .and_then(|()| carry_out(&self, &ground, &journal, watch));
        if let Err(failed) = done {
            return Err(match undo(&self, &ground, &journal, watch) {
                Ok(()) => CommitError::Undone(failed),
                Err(undo) => CommitError::Stuck { failed, undo },
            });
        }
        let is_gone = finish(self, &journal, watch)?;
        Ok(Committed { paths, held, is_gone })
    }

    /// Discards the changes at and beneath the named paths, or all changes. Returns the discarded
    /// paths, and whether the stage was removed.
    ///
    /// # Errors
    /// [`CommitError::Nothing`] for a path at which nothing is staged.
    pub fn discard(self, paths: &[PathBuf]) -> Result<(Vec<PathBuf>, bool), CommitError> {
        if journal::is_there(self.directory.as_fd()) {
            return Err(StageError::CutOff(self.id().clone()).into());
        }
        let all = match self.changes() {
            // Discarding all changes must work even if the stage cannot be read.
            Err(_) if paths.is_empty() => {
                self.remove()?;
                return Ok((Vec::new(), true));
            }
            other => other?,
        };
        let chosen = named(&all, paths)?;
        let forgotten: Vec<PathBuf> =
            chosen.iter().filter(|change| !change.is_incidental).map(|change| change.path.clone()).collect();
        let is_gone = forgotten.len() == all.count();
        if is_gone {
            self.remove()?;
        } else {
            let settled: Vec<RawText> = chosen.iter().map(|change| RawText::from(change.path.as_path())).collect();
            journal::settle(&self, &settled)?;
        }
        Ok((forgotten, is_gone))
    }

    /// Finishes or undoes an interrupted commit. Returns `None` if there was none.
    ///
    /// # Errors
    /// [`CommitError::Stuck`] if neither is possible.
    pub fn recover(mut self, watch: &mut dyn Watch) -> Result<Option<Recovered>, CommitError> {
        let id = self.id().clone();
        if self.put_back().map_err(StageError::Read)? {
            return Ok(Some(Recovered { id, end: End::PutBack }));
        }
        let (journal, is_done) = match journal::find(&self)? {
            Found::Nothing => {
                let cleared = clear_depots(&self)?;
                return Ok(cleared.then_some(Recovered { id, end: End::Unbegun }));
            }
            Found::Decided(journal) => (journal, false),
            Found::Done(journal) => (journal, true),
        };
        if !is_done {
            let (upper, lower) = (self.part(UPPER)?, self.open_workspace()?);
            let agreed: Vec<PathBuf> = journal.agreed.iter().map(|path| path.as_path().to_owned()).collect();
            let guard = Guard::new(&self, &agreed, upper.as_fd(), lower.as_fd())?;
            let stays = looks_again(&guard, &journal);
            let depot = Depot::open(&self, lower.as_fd(), journal.depot)?;
            let depot = depot.directory.as_fd();
            let ground = Ground { workspace: lower.as_fd(), depot, checked: journal.checked, stays: &stays };
            if let Err(failed) = carry_out(&self, &ground, &journal, watch) {
                return match undo(&self, &ground, &journal, watch) {
                    Ok(()) => Ok(Some(Recovered { id, end: End::Undone(failed) })),
                    Err(undo) => Err(CommitError::Stuck { failed, undo }),
                };
            }
        }
        finish(self, &journal, watch)?;
        Ok(Some(Recovered { id, end: End::Finished }))
    }
}

/// Converts a [`StageError`] about a tree to the error of a path.
pub(super) fn unreadable(error: StageError) -> PathError {
    match error {
        StageError::Workspace { why, .. } | StageError::Read(why) => why,
        other => PathError::because(Path::new(""), &other.to_string()),
    }
}

/// Returns a function that checks again the object that a step just put at a path, with its
/// content.
fn looks_again(guard: &Guard<'_>, journal: &Journal) -> impl Fn(&Path, bool) -> Result<(), PathError> {
    let settled: BTreeSet<&Path> = journal.settled.iter().map(|path| path.as_path()).collect();
    move |put, is_new| {
        if is_new {
            guard.look_again(put)?;
        }
        let beneath = settled.range::<Path, _>((Bound::Excluded(put), Bound::Unbounded));
        beneath.take_while(|path| path.starts_with(put)).try_for_each(|path| guard.look_again(path))
    }
}

/// Carries out all steps and makes them durable.
fn carry_out(stage: &Stage, ground: &Ground<'_>, journal: &Journal, watch: &mut dyn Watch) -> Result<(), PathError> {
    forward(ground, &journal.steps, watch)?;
    flush(ground, journal)?;
    journal::mark_done(stage)?;
    watch.reached(Point::Done).at(Path::new(DEPOT))
}

fn undo(stage: &Stage, ground: &Ground<'_>, journal: &Journal, watch: &mut dyn Watch) -> Result<(), PathError> {
    // Recovery never undoes a commit that is marked as done.
    backward(ground, &journal.steps, watch)?;
    flush(ground, journal)?;
    journal::forget(stage)?;
    clear_depots(stage).map(drop)
}

/// Cleans up after a finished commit. Returns whether the stage was removed.
fn finish(stage: Stage, journal: &Journal, watch: &mut dyn Watch) -> Result<bool, CommitError> {
    clear_depots(&stage)?;
    watch.reached(Point::Emptied).at(Path::new(DEPOT))?;
    if journal.is_all {
        stage.remove()?;
        return Ok(true);
    }
    journal::settle(&stage, &journal.settled)?;
    watch.reached(Point::Settled).at(Path::new(DEPOT))?;
    journal::forget(&stage)?;
    Ok(false)
}

/// Flushes the changed directories to the disk.
fn flush(ground: &Ground<'_>, journal: &Journal) -> Result<(), PathError> {
    let root = Path::new("");
    let readable = |path: &Path| {
        let directory = directory_beneath(ground.workspace, path)?;
        openat(&directory, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    };
    let parents: BTreeSet<&Path> = journal.steps.iter().filter_map(|step| step.path().parent()).collect();
    let singly = parents.len() <= FLUSHED_SINGLY_MAX
        && parents.iter().all(|parent| readable(parent).is_ok_and(|directory| fsync(directory).is_ok()));
    if singly {
        return Ok(());
    }
    match readable(root) {
        Ok(directory) => syncfs(directory).at(root),
        Err(errno) => Err(PathError::new(root, errno)),
    }
}

/// Finishes or undoes every interrupted commit whose stage no process has locked. With `workspace`,
/// only those of that workspace.
///
/// # Errors
/// [`CommitError`] of the first commit that could be neither finished nor undone; later ones are
/// not examined.
pub fn recover_all(stages: &Stages, workspace: Option<&Path>) -> Result<Vec<Recovered>, CommitError> {
    stages.sweep();
    let mut found = Vec::new();
    for id in stages.unfinished()? {
        let stage = match stages.take(&id) {
            Err(StageError::Busy(_) | StageError::Absent(_)) => continue,
            other => other?,
        };
        if workspace.is_none_or(|workspace| workspace == stage.workspace()) {
            found.extend(stage.recover(&mut Unwatched)?);
        }
    }
    Ok(found)
}

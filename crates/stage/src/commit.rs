//! Commit, discard and recover.
//!
//! A commit prepares all new objects beside the workspace and writes a journal of its steps (the
//! decision). Then it only exchanges names and sets modes and times, and last removes its files.
//! Before the decision an interruption leaves the workspace unchanged. After the decision
//! [`OpenStage::recover_commit`] finishes the commit, or undoes it if it cannot finish. So after recovery the
//! workspace is either in its old or in its new state.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{fsync, syncfs};
use stockade_files::object::{TreeObject, directory_beneath};
use stockade_model::{RawText, StageId};

use super::apply::{CommitContext, carry_out_steps, undo_steps};
use super::change::{StageChange, StageChanges, compare_trees};
use super::commit_area::{COMMIT_AREA, CommitArea, clear_commit_areas};
use super::conflict::{ConflictCheck, StageConflict};
use super::error::{PathContext, PathError, StageCommitError, StageError};
use super::journal::{self, StageJournal};
use super::plan::prepare_steps;
use super::select::{CommitGuard, HeldChange, select_changes, select_named};
use super::stage_directory::{OpenStage, StageDirectory, UPPER_DIRECTORY, file_time_now};
use super::state_files::open_directory;
use super::watch::{CommitObserver, CommitPoint, SilentObserver};

/// Most directories that are flushed one by one.
const MAX_SINGLE_FLUSHES: usize = 32;

/// Paths to commit.
#[derive(Clone, Debug, Default)]
pub struct CommitRequest {
    /// Paths relative to the workspace; empty for all changes.
    pub paths: Vec<PathBuf>,
    /// Protected paths that the user approved, relative to the workspace. As with grants, an
    /// approval ends at the next protected name.
    pub agreed: Vec<PathBuf>,
}

/// Result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitResult {
    /// Paths that now have the staged content.
    pub paths: Vec<PathBuf>,
    /// Changes left in the stage.
    pub held: Vec<HeldChange>,
    /// True if nothing is staged any more, so the stage was removed.
    pub is_gone: bool,
}

/// Result of the recovery of an interrupted commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryResult {
    /// Id of the stage.
    pub id: StageId,
    /// How the commit ended.
    pub end: RecoveryEnd,
}

/// How an interrupted commit ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryEnd {
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

impl OpenStage {
    /// Returns the changes of the stage.
    ///
    /// # Errors
    /// [`StageError`] if the stage or workspace cannot be read.
    pub fn read_changes(&self) -> Result<StageChanges, StageError> {
        let upper = TreeObject::from_fd(self.open_part(UPPER_DIRECTORY)?).at_path(Path::new(UPPER_DIRECTORY))?;
        let lower = TreeObject::from_fd(self.open_workspace()?).at_path(self.workspace())?;
        let settled = journal::read_settled(self)?.iter().map(|path| path.as_path().to_owned()).collect();
        Ok(compare_trees(upper, lower, &settled, self.meta.began)?)
    }

    /// Returns those of `changes` whose paths the workspace has changed meanwhile, too.
    ///
    /// # Errors
    /// [`StageError`] if the stage or workspace cannot be read.
    pub fn find_conflicts(&self, changes: &StageChanges) -> Result<Vec<StageConflict>, StageError> {
        let list: Vec<&StageChange> = changes.list.iter().collect();
        Ok(self.conflicts_of(&list)?)
    }

    fn conflicts_of(&self, changes: &[&StageChange]) -> Result<Vec<StageConflict>, PathError> {
        let (upper, lower) = (self.open_part(UPPER_DIRECTORY)?, self.open_workspace().map_err(stage_path_error)?);
        let conflict_check = ConflictCheck::new(self)?;
        let mut found = Vec::new();
        for change in changes {
            let staged = match change.staged {
                Some(_) => TreeObject::open_beneath(upper.as_fd(), &change.path).at_path(&change.path)?,
                None => None,
            };
            let present = TreeObject::open_beneath(lower.as_fd(), &change.path).at_path(&change.path)?;
            found.extend(conflict_check.find_conflict(change, staged.as_ref(), present.as_ref())?);
        }
        Ok(found)
    }

    /// Returns those of `changes` that a commit would leave in the stage.
    ///
    /// # Errors
    /// [`StageCommitError`] if the stage or workspace cannot be read.
    pub fn find_held_changes(&self, changes: &StageChanges) -> Result<Vec<HeldChange>, StageCommitError> {
        let (upper, lower) = (self.open_part(UPPER_DIRECTORY)?, self.open_workspace()?);
        Ok(select_changes(changes, &[], &CommitGuard::new(self, &[], upper.as_fd(), lower.as_fd())?)?.held)
    }

    fn refuse_cut_off(&self) -> Result<(), StageError> {
        if journal::is_there(self.directory.as_fd()) { Err(StageError::CutOff(self.id().clone())) } else { Ok(()) }
    }

    /// Puts the wanted changes into the workspace.
    ///
    /// # Errors
    /// [`StageCommitError`]; the workspace is unchanged, unless the error reports otherwise.
    pub fn commit_changes(
        self,
        request: &CommitRequest,
        watch: &mut dyn CommitObserver,
    ) -> Result<CommitResult, StageCommitError> {
        self.refuse_cut_off()?;
        if self.may_be_torn() {
            return Err(StageError::Torn(self.id().clone()).into());
        }
        let all = self.read_changes()?;
        let (upper, lower) = (self.open_part(UPPER_DIRECTORY)?, self.open_workspace()?);
        let guard = CommitGuard::new(&self, &request.agreed, upper.as_fd(), lower.as_fd())?;
        let chosen = select_changes(&all, &request.paths, &guard)?;
        let checked = file_time_now();
        let conflicts = self.conflicts_of(&chosen.changes)?;
        if !conflicts.is_empty() {
            return Err(StageCommitError::Conflicts(conflicts));
        }
        let paths = visible_paths(&chosen.changes);
        let is_all = chosen.are_all(&all);
        let held = chosen.held.clone();
        if chosen.changes.is_empty() && !is_all {
            return Ok(CommitResult { paths, held, is_gone: false });
        }
        let commit_area = CommitArea::create_empty(&self, lower.as_fd()).map_err(StageCommitError::Prepare)?;
        let prepared = watch
            .on_point(CommitPoint::CommitArea)
            .at_path(Path::new(COMMIT_AREA))
            .and_then(|()| {
                prepare_steps((&chosen, &all), (&upper, &lower), &commit_area, (&request.paths, self.meta.began), watch)
            })
            .and_then(|steps| {
                let settled = chosen.changes.iter().map(|change| RawText::from(change.path.as_path())).collect();
                let agreed = request.agreed.iter().map(|path| RawText::from(path.as_path())).collect();
                let journal =
                    StageJournal { commit_area: commit_area.area_directory, checked, steps, settled, agreed, is_all };
                watch.on_point(CommitPoint::Ready).at_path(Path::new(COMMIT_AREA))?;
                journal::record_decision(&self, &journal)?;
                Ok(journal)
            });
        let journal = match prepared {
            Ok(journal) => journal,
            Err(error) => {
                // The next recovery removes any remains.
                let _ = journal::remove_journal(&self).and_then(|()| clear_commit_areas(&self));
                return Err(StageCommitError::Prepare(error));
            }
        };
        let ground = CommitContext::new(&self, &journal, (lower.as_fd(), commit_area.directory.as_fd()), &guard);
        ground.carry_out_or_undo(watch)?.map_err(StageCommitError::Undone)?;
        let is_gone = finish_commit(self, &journal, watch)?;
        Ok(CommitResult { paths, held, is_gone })
    }

    /// Discards the changes at and beneath the named paths, or all changes. Returns the discarded
    /// paths, and whether the stage was removed.
    ///
    /// # Errors
    /// [`StageCommitError::Nothing`] for a path at which nothing is staged.
    pub fn discard_changes(self, paths: &[PathBuf]) -> Result<(Vec<PathBuf>, bool), StageCommitError> {
        self.refuse_cut_off()?;
        let all = match self.read_changes() {
            // Discarding all changes must work even if the stage cannot be read.
            Err(_) if paths.is_empty() => {
                self.remove()?;
                return Ok((Vec::new(), true));
            }
            other => other?,
        };
        let chosen = select_named(&all, paths)?;
        let forgotten = visible_paths(&chosen);
        let is_gone = forgotten.len() == all.visible_count();
        if is_gone {
            self.remove()?;
        } else {
            let settled: Vec<RawText> = chosen.iter().map(|change| RawText::from(change.path.as_path())).collect();
            journal::add_settled(&self, &settled)?;
        }
        Ok((forgotten, is_gone))
    }

    /// Finishes or undoes an interrupted commit. Returns `None` if there was none.
    ///
    /// # Errors
    /// [`StageCommitError::Stuck`] if neither is possible.
    pub fn recover_commit(
        mut self,
        watch: &mut dyn CommitObserver,
    ) -> Result<Option<RecoveryResult>, StageCommitError> {
        let id = self.id().clone();
        if self.put_back().map_err(StageError::Read)? {
            return Ok(Some(RecoveryResult { id, end: RecoveryEnd::PutBack }));
        }
        let Some((journal, is_done)) = journal::read_state(&self)? else {
            let cleared = clear_commit_areas(&self)?;
            return Ok(cleared.then_some(RecoveryResult { id, end: RecoveryEnd::Unbegun }));
        };
        if !is_done {
            let (upper, lower) = (self.open_part(UPPER_DIRECTORY)?, self.open_workspace()?);
            let agreed: Vec<PathBuf> = journal.agreed.iter().map(|path| path.as_path().to_owned()).collect();
            let guard = CommitGuard::new(&self, &agreed, upper.as_fd(), lower.as_fd())?;
            let commit_area = CommitArea::open_interrupted(&self, lower.as_fd(), journal.commit_area)?;
            let ground = CommitContext::new(&self, &journal, (lower.as_fd(), commit_area.directory.as_fd()), &guard);
            if let Err(failed) = ground.carry_out_or_undo(watch)? {
                return Ok(Some(RecoveryResult { id, end: RecoveryEnd::Undone(failed) }));
            }
        }
        finish_commit(self, &journal, watch)?;
        Ok(Some(RecoveryResult { id, end: RecoveryEnd::Finished }))
    }
}

fn visible_paths(changes: &[&StageChange]) -> Vec<PathBuf> {
    changes.iter().filter(|change| !change.is_incidental).map(|change| change.path.clone()).collect()
}

/// Converts a [`StageError`] about a tree to the error of a path.
pub(super) fn stage_path_error(error: StageError) -> PathError {
    match error {
        StageError::Workspace { why, .. } | StageError::Read(why) => why,
        other => PathError::from_reason(Path::new(""), &other.to_string()),
    }
}

impl CommitContext<'_> {
    /// Carries out the commit. If that fails, undoes it and returns the failure.
    ///
    /// # Errors
    /// [`StageCommitError::Stuck`] if the undo fails, too.
    fn carry_out_or_undo(&self, watch: &mut dyn CommitObserver) -> Result<Result<(), PathError>, StageCommitError> {
        let done = self.carry_out_all(watch);
        if let Err(failed) = &done {
            let stuck = |undo| StageCommitError::Stuck { failed: failed.clone(), undo };
            self.undo_all(watch).map_err(stuck)?;
        }
        Ok(done)
    }

    /// Carries out all steps and makes them durable.
    fn carry_out_all(&self, watch: &mut dyn CommitObserver) -> Result<(), PathError> {
        watch.on_point(CommitPoint::Decided).at_path(Path::new(COMMIT_AREA))?;
        carry_out_steps(self, watch)?;
        self.flush()?;
        journal::mark_done(self.stage)?;
        watch.on_point(CommitPoint::Done).at_path(Path::new(COMMIT_AREA))
    }

    fn undo_all(&self, watch: &mut dyn CommitObserver) -> Result<(), PathError> {
        // Recovery never undoes a commit that is marked as done: it would take a half undone one
        // for done.
        journal::unmark_done(self.stage)?;
        undo_steps(self, watch)?;
        self.flush()?;
        journal::remove_journal(self.stage)?;
        clear_commit_areas(self.stage).map(drop)
    }

    /// Flushes the changed directories to the disk.
    fn flush(&self) -> Result<(), PathError> {
        let root = Path::new("");
        let readable = |path: &Path| open_directory(directory_beneath(self.workspace, path)?, c".");
        let parents: BTreeSet<&Path> = self.journal.steps.iter().filter_map(|step| step.path().parent()).collect();
        let singly = parents.len() <= MAX_SINGLE_FLUSHES
            && parents.iter().all(|parent| readable(parent).and_then(fsync).is_ok());
        if singly { Ok(()) } else { readable(root).and_then(syncfs).at_path(root) }
    }
}

/// Cleans up after a finished commit. Returns whether the stage was removed.
fn finish_commit(
    stage: OpenStage,
    journal: &StageJournal,
    watch: &mut dyn CommitObserver,
) -> Result<bool, StageCommitError> {
    clear_commit_areas(&stage)?;
    watch.on_point(CommitPoint::Emptied).at_path(Path::new(COMMIT_AREA))?;
    if journal.is_all {
        stage.remove()?;
        return Ok(true);
    }
    journal::add_settled(&stage, &journal.settled)?;
    watch.on_point(CommitPoint::Settled).at_path(Path::new(COMMIT_AREA))?;
    journal::remove_journal(&stage)?;
    Ok(false)
}

/// Finishes or undoes every interrupted commit whose stage no process has locked. With `workspace`,
/// only those of that workspace.
///
/// # Errors
/// [`StageCommitError`] of the first commit that could be neither finished nor undone; later ones are
/// not examined.
pub fn recover_all(stages: &StageDirectory, workspace: Option<&Path>) -> Result<Vec<RecoveryResult>, StageCommitError> {
    stages.remove_leftovers();
    let mut found = Vec::new();
    for id in stages.list_unfinished()? {
        let stage = match stages.open_for_changes(&id) {
            Err(StageError::Busy(_) | StageError::Absent(_)) => continue,
            other => other?,
        };
        if workspace.is_none_or(|workspace| workspace == stage.workspace()) {
            found.extend(stage.recover_commit(&mut SilentObserver)?);
        }
    }
    Ok(found)
}

//! Detects whether the workspace changed meanwhile at paths that a stage would change.
//!
//! The kernel has no hook for an overlay's copies, so there are two sources. Neither costs anything
//! for paths that are not touched:
//!
//! 1. **The time of the stage.** An object that was changed in the workspace since the stage was
//!    made has a later change time (`ctime`), which no program can set. Making a stage waits until
//!    the clock of file times has passed its time. Older objects are unchanged.
//! 2. **The baseline recorder** ([`BaselineRecorder`]). Every change that a run makes in its workspace
//!    passes through the broker. Before the first change of a path, the recorder notes the lower
//!    object: its mark and the digest of its content. A later time with the noted content (the
//!    object was touched, or changed and changed back) is no conflict. A noted object that no
//!    longer exists is a conflict.
//!
//! An index of the whole workspace at the start would give the same result, at the cost of a walk
//! before every run. A later time without a note is a conflict, and so is every undecidable case. A
//! false report costs a question, but a false overwrite costs a user's work. Two trees with equal
//! content are no conflict.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stockade_files::object::{ChangeMark, FileTime, ObjectKind, TreeObject, same_content};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::change::{ChangeKind, StageChange};
use super::digest::{digest_bytes, digest_file};
use super::error::{PathContext, PathError, StageError};
use super::stage_directory::OpenStage;
use super::state_files::{LIST_LIMITS, LineWriter, read_lines};

const NOTES_FILE: &str = "touched";
/// Size limit of files that are digested before their first change, because the writer waits
/// meanwhile. For larger files only the mark is noted.
const MAX_DIGEST_BYTES: u64 = 1 << 20;
/// Most paths that are noted; later ones are checked by their time alone.
const MAX_NOTES: usize = 200_000;
/// Most levels of a directory to be removed that are scanned.
const MAX_DEPTH: usize = 400;

/// A path that both the workspace and the stage changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageConflict {
    /// Path relative to the workspace.
    pub path: PathBuf,
    /// Type of the staged change.
    pub how: ChangeKind,
    /// Type of the change in the workspace.
    pub meanwhile: WorkspaceChange,
}

/// Change in the workspace since the stage was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceChange {
    /// An object was created.
    Created,
    /// The object was changed.
    Changed,
    /// The object was removed.
    Removed,
}

impl fmt::Display for StageConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meanwhile = match self.meanwhile {
            WorkspaceChange::Created => "created",
            WorkspaceChange::Changed => "changed",
            WorkspaceChange::Removed => "removed",
        };
        write!(f, "{} was {meanwhile} in the workspace", RawText::from(self.path.as_path()).to_escaped())
    }
}

/// The lower object at the first change of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BaselineNote {
    path: RawText,
    /// Absent if there was no object.
    mark: Option<ChangeMark>,
    /// Digest of the file's bytes or of the link's target.
    digest: Option<String>,
}

/// Baseline recorder: notes an object of the workspace before its first change in the stage.
#[derive(Debug)]
pub struct BaselineRecorder {
    workspace: OwnedFd,
    root: PathBuf,
    seen: HashSet<PathBuf>,
    out: LineWriter,
}

impl BaselineRecorder {
    /// Makes the recorder for the run that writes to `stage`.
    ///
    /// # Errors
    /// [`StageError`] if the workspace or the notes cannot be opened.
    pub fn new(stage: &OpenStage) -> Result<Self, StageError> {
        let workspace = stage.open_workspace()?;
        let out = LineWriter::open(stage.directory.as_fd(), NOTES_FILE, LIST_LIMITS).at_path(Path::new(NOTES_FILE))?;
        Ok(Self { workspace, root: stage.workspace().to_owned(), seen: HashSet::new(), out })
    }

    /// Notes the object at the absolute `path`; call it before the object is changed. Ignores paths
    /// outside the workspace.
    ///
    /// # Errors
    /// [`PathError`] if the note cannot be written: the change must not be made then.
    pub fn before_change(&mut self, path: &Path) -> Result<(), PathError> {
        let Ok(path) = path.strip_prefix(&self.root) else { return Ok(()) };
        if path.as_os_str().is_empty() || self.seen.len() >= MAX_NOTES || self.seen.contains(path) {
            return Ok(());
        }
        let note = note_object(self.workspace.as_fd(), path).at_path(path)?;
        self.out.append_line(&note).at_path(path)?;
        self.seen.insert(path.to_owned());
        Ok(())
    }
}

fn note_object(workspace: rustix::fd::BorrowedFd<'_>, path: &Path) -> Result<BaselineNote, Errno> {
    let object = match TreeObject::open_beneath(workspace, path) {
        // An object that cannot be read from outside cannot be checked later either.
        Err(Errno::ACCESS) => None,
        other => other?,
    };
    let digest = object.as_ref().map(digest_content).transpose()?.flatten();
    Ok(BaselineNote { path: path.into(), mark: object.map(|o| o.change_mark()), digest })
}

/// Returns the digest of an object's content; `None` if it is too large or unreadable.
fn digest_content(object: &TreeObject) -> Result<Option<String>, Errno> {
    match object.kind() {
        ObjectKind::Link => Ok(Some(digest_bytes(&object.link_text()?))),
        ObjectKind::File if object.size() <= MAX_DIGEST_BYTES => {
            let Ok(file) = object.open_file() else { return Ok(None) };
            digest_file(file, MAX_DIGEST_BYTES).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
        }
        _ => Ok(None),
    }
}

/// Conflict check of one stage.
pub(super) struct ConflictCheck {
    began: FileTime,
    notes: HashMap<PathBuf, BaselineNote>,
}

impl ConflictCheck {
    /// Reads the notes of the baseline recorder. Ignores an incomplete last line, because its
    /// change was never made.
    pub fn new(stage: &OpenStage) -> Result<Self, PathError> {
        let mut notes = HashMap::new();
        read_lines(stage.directory.as_fd(), NOTES_FILE, |note: Result<BaselineNote, _>| {
            let note = note?;
            notes.entry(note.path.as_path().to_owned()).or_insert(note);
            Ok(())
        })?;
        Ok(Self { began: stage.meta.compared.unwrap_or(stage.meta.began), notes })
    }

    /// Returns the conflict of `change`, given both objects as they are now.
    pub fn find_conflict(
        &self,
        change: &StageChange,
        staged: Option<&TreeObject>,
        present: Option<&TreeObject>,
    ) -> Result<Option<StageConflict>, PathError> {
        let found = match present {
            None => self.removal_conflict(change),
            Some(present) if self.has_same_content(change, staged, present)? => None,
            Some(present) if change.how == ChangeKind::Metadata && present.is_directory() => {
                self.mode_changed(change, present)
            }
            Some(present) => self.content_conflict(&change.path, present, goes_with_all(change, present), 0)?,
        };
        Ok(found.map(|(path, meanwhile)| StageConflict { path, how: change.how, meanwhile }))
    }

    fn removal_conflict(&self, change: &StageChange) -> Option<(PathBuf, WorkspaceChange)> {
        let was_there = self.notes.get(&change.path).is_some_and(|note| note.mark.is_some());
        let matters = change.staged.is_some() && (was_there || change.below.is_some());
        matters.then(|| (change.path.clone(), WorkspaceChange::Removed))
    }

    /// Returns whether both sides have the same content.
    fn has_same_content(
        &self,
        change: &StageChange,
        staged: Option<&TreeObject>,
        present: &TreeObject,
    ) -> Result<bool, PathError> {
        let Some(staged) = staged else { return Ok(false) };
        if staged.is_directory() || staged.mode() != present.mode() {
            return Ok(false);
        }
        staged.opened_up(|| same_content(staged, present)).at_path(&change.path)
    }

    /// Checks only the mode of a directory, because its times change with its entries.
    fn mode_changed(&self, change: &StageChange, present: &TreeObject) -> Option<(PathBuf, WorkspaceChange)> {
        let mark = self.notes.get(&change.path)?.mark?;
        (mark.mode != present.mode()).then(|| (change.path.clone(), WorkspaceChange::Changed))
    }

    fn content_conflict(
        &self,
        path: &Path,
        present: &TreeObject,
        with_all: bool,
        depth: usize,
    ) -> Result<Option<(PathBuf, WorkspaceChange)>, PathError> {
        let own = self.find_workspace_change(path, present)?.map(|meanwhile| (path.to_owned(), meanwhile));
        if !with_all {
            return Ok(own);
        }
        if depth > MAX_DEPTH {
            return Err(PathError::from_reason(path, "it is nested too deeply to be examined"));
        }
        for (name, inner) in present.entries().at_path(path)? {
            let path = path.join(name);
            let inner = inner.at_path(&path)?;
            if let Some(found) = self.content_conflict(&path, &inner, inner.is_directory(), depth + 1)? {
                return Ok(Some(found));
            }
        }
        // Reported for the directory only if no entry has a conflict.
        Ok(own)
    }

    fn find_workspace_change(&self, path: &Path, present: &TreeObject) -> Result<Option<WorkspaceChange>, PathError> {
        let note = self.notes.get(path);
        let older = present.changed_time() <= self.began;
        let Some(note) = note else {
            return Ok((!older).then_some(WorkspaceChange::Changed));
        };
        let Some(mark) = note.mark else { return Ok(Some(WorkspaceChange::Created)) };
        if present.is_directory() {
            // The times of a directory depend on its entries, which are checked separately.
            let same = mark.inode == present.inode() && mark.mode == present.mode();
            return Ok((!same).then_some(WorkspaceChange::Changed));
        }
        if mark == present.change_mark() && mark.changed <= self.began {
            return Ok(None);
        }
        // Changed before the run's first access, so the run may have used either content.
        let was_late = mark.changed > self.began;
        let same_kind = mark.kind == present.kind() && mark.mode == present.mode();
        let same = same_kind
            && match present.kind() {
                ObjectKind::Pipe | ObjectKind::Socket => true,
                _ => note.digest.is_some() && digest_content(present).at_path(path)? == note.digest,
            };
        Ok((was_late || !same).then_some(WorkspaceChange::Changed))
    }
}

/// Returns whether a directory is removed with all its content.
fn goes_with_all(change: &StageChange, present: &TreeObject) -> bool {
    present.is_directory() && matches!(change.how, ChangeKind::Removed | ChangeKind::Replaced)
}

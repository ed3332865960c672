//! Selects the changes at the named paths, and finds those that need a separate approval. Reads
//! only.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use stockade_files::object::{ObjectKind, TreeObject};
use stockade_model::DeniedOperation;
use stockade_permissions::guards::{RootView, RunSurveys, open_host_root};
use stockade_permissions::powers::{AttemptPermissions, PermissionVerdict, creates_name};

use super::change::{ChangeKind, StageChange, StageChanges};
use super::error::{PathContext, PathError, StageCommitError};
use super::stage_directory::OpenStage;

/// Most levels of a directory to be removed that are scanned.
const MAX_DEPTH: usize = 400;
const SET_ID_BITS: u32 = 0o6000;

/// A change that a commit leaves in the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldChange {
    /// Path relative to the workspace.
    pub path: PathBuf,
    /// Type of the change.
    pub how: ChangeKind,
    /// Reason for leaving it.
    pub why: HoldReason,
}

/// Reason why a change is left in the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldReason {
    /// The change needs a separate approval.
    Protected {
        /// Rule that protects the path, in words.
        rule: String,
        /// Path that the user must name for the approval, relative to the workspace.
        unit: PathBuf,
    },
    /// The object is of a kind that a commit never puts into a workspace.
    Special(&'static str),
}

/// The changes at the named paths.
pub(super) struct ChangeSelection<'c> {
    pub changes: Vec<&'c StageChange>,
    pub held: Vec<HeldChange>,
}

impl ChangeSelection<'_> {
    /// Returns whether these are all changes, so that nothing stays staged.
    pub fn are_all(&self, changes: &StageChanges) -> bool {
        self.held.is_empty() && self.changes.len() == changes.list.len()
    }
}

/// Returns whether `path` or a directory above it was named. An empty list names all paths.
pub(super) fn is_named(named: &[PathBuf], path: &Path) -> bool {
    named.is_empty() || named.iter().any(|name| path.starts_with(name))
}

/// Returns the changes at and beneath the named paths.
///
/// # Errors
/// [`StageCommitError::Nothing`] for a path at which nothing is staged.
pub(super) fn select_named<'c>(
    changes: &'c StageChanges,
    named: &[PathBuf],
) -> Result<Vec<&'c StageChange>, StageCommitError> {
    for name in named {
        let is_met = |change: &StageChange| change.path.starts_with(name) && !change.is_incidental;
        if !changes.list.iter().any(is_met) {
            let above = |change: &&StageChange| {
                matches!(change.how, ChangeKind::Removed | ChangeKind::Replaced) && name.starts_with(&change.path)
            };
            let within = changes.list.iter().find(above).map(|change| change.path.clone());
            return Err(StageCommitError::Nothing { path: name.clone(), within });
        }
        // Entries of a directory that replaces a file are committed together with the directory.
        let replaced = |change: &&StageChange| {
            change.how == ChangeKind::Replaced && change.path != *name && name.starts_with(&change.path)
        };
        if let Some(change) = changes.list.iter().find(replaced)
            && !is_named(named, &change.path)
        {
            return Err(StageCommitError::Nothing { path: name.clone(), within: Some(change.path.clone()) });
        }
    }
    Ok(changes.list.iter().filter(|change| is_named(named, &change.path)).collect())
}

/// Time at which a change is checked.
#[derive(Clone, Copy)]
enum CommitMoment {
    /// Before the commit, against the content that the workspace will have.
    Before,
    /// After the object was put at a name that was free before.
    After,
}

/// Protection of names at a commit: the rules of a run, without its grants, and the approvals of
/// this commit.
pub(super) struct CommitGuard<'a> {
    powers: AttemptPermissions,
    surveys: RunSurveys,
    root: PathBuf,
    upper: BorrowedFd<'a>,
    lower: BorrowedFd<'a>,
}

impl<'a> CommitGuard<'a> {
    /// Makes the check for one commit.
    ///
    /// # Errors
    /// [`PathError`] if the root directory cannot be opened.
    pub fn new(
        stage: &OpenStage,
        agreed: &[PathBuf],
        upper: BorrowedFd<'a>,
        lower: BorrowedFd<'a>,
    ) -> Result<Self, PathError> {
        let root = stage.workspace().to_owned();
        let mut powers = AttemptPermissions::for_workspace(&root, &stage.meta.protect);
        let mut surveys = RunSurveys::default();
        let host = open_host_root().at_path(&root)?;
        surveys.survey_new_roots(|_| RootView::new(host.as_fd()), powers.guarded_names(), powers.writable.paths());
        powers.writable.extend(agreed.iter().map(|path| root.join(path)));
        Ok(Self { powers, surveys, root, upper, lower })
    }

    /// Returns the reason why `change` must wait, or `None`.
    pub fn hold_reason(&self, change: &StageChange) -> Result<Option<HoldReason>, PathError> {
        if let Some(staged) = &change.staged {
            match staged.kind {
                ObjectKind::Device => return Ok(Some(HoldReason::Special("a device"))),
                ObjectKind::File if staged.mode & SET_ID_BITS != 0 => {
                    return Ok(Some(HoldReason::Special("it would run with its owner's powers (set-user-ID)")));
                }
                _ => {}
            }
        }
        let operation = match change.how {
            ChangeKind::Added | ChangeKind::Replaced => DeniedOperation::Create,
            ChangeKind::Removed => DeniedOperation::Remove,
            ChangeKind::Modified => DeniedOperation::Write,
            ChangeKind::Metadata => DeniedOperation::Metadata,
        };
        if let Some(why) = self.protection_reason(operation, &change.path).or_else(|| self.stands_above(change)) {
            return Ok(Some(why));
        }
        let goes = matches!(change.how, ChangeKind::Removed | ChangeKind::Replaced);
        if goes && change.present.is_some_and(|facts| facts.kind == ObjectKind::Directory) {
            let directory = TreeObject::open_beneath(self.lower, &change.path).at_path(&change.path)?;
            return directory.map_or(Ok(None), |directory| self.protects_beneath(&change.path, &directory, 0));
        }
        Ok(None)
    }

    /// Checks again an object that was just put at a new name. Together with files that another
    /// process made beside it meanwhile, the object may be protected.
    pub fn recheck_path(&self, path: &Path) -> Result<(), PathError> {
        let Some(why) = self.protects_at(CommitMoment::After, DeniedOperation::Create, path) else { return Ok(()) };
        let rule = match why {
            HoldReason::Protected { rule, .. } => rule,
            HoldReason::Special(rule) => rule.to_owned(),
        };
        let why = format!("it is protected together with a file that was just created beside it: {rule}");
        Err(PathError::from_reason(path, &why))
    }

    fn protection_reason(&self, operation: DeniedOperation, path: &Path) -> Option<HoldReason> {
        self.protects_at(CommitMoment::Before, operation, path)
    }

    fn protects_at(&self, moment: CommitMoment, operation: DeniedOperation, path: &Path) -> Option<HoldReason> {
        let whole = self.root.join(path);
        let exists = |candidate: &Path| {
            // A path that is about to be made counts as existing only if it existed before.
            let trees = match moment {
                CommitMoment::Before if candidate == whole => &[self.lower][..],
                CommitMoment::Before => &[self.upper, self.lower],
                CommitMoment::After if candidate == whole => &[],
                CommitMoment::After => &[self.lower],
            };
            let Ok(candidate) = candidate.strip_prefix(&self.root) else { return false };
            trees.iter().any(|tree| matches!(TreeObject::open_beneath(*tree, candidate), Ok(Some(_))))
        };
        let bytes = whole.as_os_str().as_encoded_bytes();
        let makes_file =
            !matches!(operation, DeniedOperation::Mkdir | DeniedOperation::Remove | DeniedOperation::Metadata);
        let of_path = || {
            let root_length = self.powers.root_length(bytes)?;
            let of_path = self.surveys.refusal_of(creates_name(operation), root_length, bytes, (&|_| false, &exists));
            of_path.or_else(|| self.surveys.refusal_at_address(bytes, false).filter(|_| makes_file))
        };
        let verdict = match self.powers.decide_operation(operation, &whole, &exists) {
            PermissionVerdict::Allow => of_path().map_or(PermissionVerdict::Allow, PermissionVerdict::Refuse),
            other => other,
        };
        match verdict {
            PermissionVerdict::Allow | PermissionVerdict::Private => None,
            PermissionVerdict::Refuse(refusal) => {
                let unit = match &refusal.grant {
                    Some(stockade_model::Grant::Write(unit)) => unit.strip_prefix(&self.root).ok().map(Path::to_owned),
                    _ => None,
                };
                Some(HoldReason::Protected { rule: refusal.rule, unit: unit.unwrap_or_else(|| path.to_owned()) })
            }
        }
    }

    /// Refuses a symbolic link that would replace a directory with protected names.
    fn stands_above(&self, change: &StageChange) -> Option<HoldReason> {
        let whole = self.root.join(&change.path);
        let is_agreed = self.powers.is_named(whole.as_os_str().as_encoded_bytes());
        let is_link = change.staged.is_some_and(|staged| staged.kind == ObjectKind::Link);
        (is_link && !is_agreed && !self.powers.units_carried_by(&whole).is_empty()).then(|| HoldReason::Protected {
            rule: "a link would replace a directory with protected names".to_owned(),
            unit: change.path.clone(),
        })
    }

    fn protects_beneath(
        &self,
        path: &Path,
        directory: &TreeObject,
        depth: usize,
    ) -> Result<Option<HoldReason>, PathError> {
        if depth > MAX_DEPTH {
            return Err(PathError::from_reason(path, "it is nested too deeply to be examined"));
        }
        for (name, inner) in directory.entries().at_path(path)? {
            let path = path.join(name);
            if let Some(why) = self.protection_reason(DeniedOperation::Remove, &path) {
                return Ok(Some(why));
            }
            let inner = inner.at_path(&path)?;
            if inner.is_directory()
                && let Some(why) = self.protects_beneath(&path, &inner, depth + 1)?
            {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }
}

/// Returns the named changes without those that wait. Entries of a new directory that waits, wait
/// with it.
pub(super) fn select_changes<'c>(
    changes: &'c StageChanges,
    paths: &[PathBuf],
    guard: &CommitGuard<'_>,
) -> Result<ChangeSelection<'c>, StageCommitError> {
    let mut chosen = ChangeSelection { changes: Vec::new(), held: Vec::new() };
    let mut above: Option<HeldChange> = None;
    for change in select_named(changes, paths)? {
        let with = above.as_ref().filter(|held| change.path.starts_with(&held.path));
        let why = match with {
            Some(held) => Some(held.why.clone()),
            None => guard.hold_reason(change)?,
        };
        let Some(why) = why else {
            chosen.changes.push(change);
            continue;
        };
        let held = HeldChange { path: change.path.clone(), how: change.how, why };
        if with.is_none() && matches!(change.how, ChangeKind::Added | ChangeKind::Replaced) {
            above = Some(held.clone());
        }
        if !change.is_incidental {
            chosen.held.push(held);
        }
    }
    Ok(chosen)
}

/// Returns the paths of `changes` and of the new directories above them.
pub(super) fn with_new_parents(changes: &[&StageChange], all: &StageChanges) -> BTreeSet<PathBuf> {
    let new: BTreeSet<&Path> =
        all.list.iter().filter(|change| change.how == ChangeKind::Added).map(|change| change.path.as_path()).collect();
    let mut target_paths = BTreeSet::new();
    for change in changes {
        let parents = change.path.ancestors().skip(1).filter(|parent| new.contains(parent));
        target_paths.extend(parents.map(Path::to_owned));
        target_paths.insert(change.path.clone());
    }
    target_paths
}

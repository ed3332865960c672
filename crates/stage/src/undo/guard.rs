//! Protects paths that a restoration would make guarded (executed or used as configuration). A path
//! that was guarded before the run is restored: it gets its original content again. A path that has
//! become guarded since is not restored, because its content may come from any run. Must not depend
//! on how an object is restored.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use stockade_files::object::{ObjectKind, to_os_str};
use stockade_model::{DeniedOperation, Grant};
use stockade_permissions::guards::{RootView, RunSurveys, open_host_root};
use stockade_permissions::powers::{AttemptPermissions, PermissionRefusal, PermissionVerdict};

use super::compare::{ComparedPath, RestoreAction, RunComparer, UndoConflict, is_beneath};
use super::paths::{path_and_above, split_path};
use super::reopen::RestoreOutcome;
use super::store::{UndoError, UndoRun};
use crate::PathError;

/// Reason for not restoring an object that leads to other guarded paths.
pub(super) const REOPENED_REASON: &str = "a path to which it leads has content that is newer than the start of the run";
const REPOSITORY_MARKERS: [&[u8]; 3] = [b"HEAD", b"objects", b"refs"];

/// Time at which a path is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RestoreMoment {
    /// Before the restoration, against the content that the workspace will have.
    Before,
    /// Now, against the present content, without the path itself.
    Now,
}

/// Protection of the workspace of a run, without the run's grants.
pub(super) struct RestoreGuard {
    powers: AttemptPermissions,
    pub(super) surveys: RunSurveys,
    root: PathBuf,
    /// Guarded paths, relative to the workspace.
    pub(super) guarded_paths: BTreeSet<Vec<u8>>,
}

impl RestoreGuard {
    pub fn new(run: &UndoRun) -> Result<Self, UndoError> {
        let root = run.meta.workspace.as_path().to_owned();
        let powers = AttemptPermissions::for_workspace(&root, &run.meta.protect);
        let mut surveys = RunSurveys::default();
        let host = open_host_root().map_err(|errno| PathError::new(&root, errno))?;
        surveys.survey_new_roots(|_| RootView::new(host.as_fd()), powers.guarded_names(), powers.writable.paths());
        let (guarded_paths, _) = surveys.guarded_beneath(root.as_os_str().as_bytes());
        let mut guard = Self { powers, surveys, root, guarded_paths: BTreeSet::new() };
        guard.guarded_paths = guarded_paths
            .iter()
            .filter_map(|guarded_path| guard.relative_path(Path::new(to_os_str(guarded_path))))
            .collect();
        Ok(guard)
    }

    fn relative_path(&self, path: &Path) -> Option<Vec<u8>> {
        path.strip_prefix(&self.root).ok().map(|path| path.as_os_str().as_bytes().to_vec())
    }

    pub(super) fn has_guarded_name(&self, path: &[u8]) -> bool {
        self.powers.has_guarded_name(self.root.join(to_os_str(path)).as_os_str().as_bytes())
    }

    /// Returns the reason why a run could not make this path without a grant.
    fn path_refusal(&self, path: &[u8], exists: &dyn Fn(&[u8]) -> bool) -> Option<PermissionRefusal> {
        let whole = self.root.join(to_os_str(path));
        let bytes = whole.as_os_str().as_bytes();
        let probe = |candidate: &Path| self.relative_path(candidate).is_some_and(|candidate| exists(&candidate));
        if let PermissionVerdict::Refuse(refusal) =
            self.powers.decide_operation(DeniedOperation::Create, &whole, &probe)
        {
            return Some(refusal);
        }
        let root_length = self.powers.root_length(bytes)?;
        let of_path = self.surveys.refusal_of(true, root_length, bytes, (&|_| false, &probe));
        of_path.or_else(|| self.surveys.refusal_in_work_tree(DeniedOperation::Create, root_length, bytes, &probe))
    }
}

impl RunComparer<'_> {
    /// Adds a conflict for every path that would be newly guarded.
    pub fn guard_all(&self, compared_paths: &mut [ComparedPath]) {
        let is_reopened = self.is_reopened(&RestoreOutcome::as_planned(compared_paths));
        for one in compared_paths.iter_mut() {
            let acts = one.conflict.is_none() && one.effect.is_some() && one.plan != RestoreAction::Remove;
            let Some(before) = one.before.as_ref().filter(|_| acts && !one.path.is_empty()) else { continue };
            // Restoring a mode alone is never refused, because the mode may hide the directory from
            // other users.
            if one.plan == RestoreAction::Stay && before.kind == ObjectKind::Directory {
                continue;
            }
            if let Some(rule) = self.leads_from_address(&one.path, before.kind) {
                one.conflict = Some(UndoConflict::Guarded(rule));
            } else if let Some(rule) = self.newly_guarded(&one.path, RestoreMoment::Before) {
                one.conflict = Some(match self.guard.surveys.survey_error() {
                    Some(error) => UndoConflict::Unsurveyed(error.to_string()),
                    None => UndoConflict::Guarded(rule),
                });
            } else if is_reopened && self.leads_on(&one.path, before.kind) {
                one.conflict = Some(UndoConflict::Guarded(REOPENED_REASON.to_owned()));
            }
        }
    }

    /// Returns the rule if the object would redirect git, which fetches from an address at or
    /// beneath the path.
    pub(super) fn leads_from_address(&self, path: &[u8], kind: ObjectKind) -> Option<String> {
        let whole = self.guard.root.join(to_os_str(path));
        let refusal = self.guard.surveys.refusal_at_address(whole.as_os_str().as_bytes(), true);
        refusal.filter(|_| kind != ObjectKind::Directory).map(|refusal| refusal.rule)
    }

    /// Returns the rule that guards this path, if it was not guarded before the run.
    pub fn newly_guarded(&self, path: &[u8], moment: RestoreMoment) -> Option<String> {
        let refusal = self.moment_refusal(path, moment)?;
        let unit = match &refusal.grant {
            Some(Grant::Write(unit)) => self.guard.relative_path(unit),
            _ => None,
        };
        let unit = unit.unwrap_or_else(|| path.to_vec());
        (!self.was_guarded(&unit)).then_some(refusal.rule)
    }

    fn moment_refusal(&self, path: &[u8], moment: RestoreMoment) -> Option<PermissionRefusal> {
        let is_there = |candidate: &[u8]| matches!(self.run.find_object(candidate), Ok(Some(_)));
        let will_be =
            |candidate: &[u8]| self.journal.entries.get(candidate).is_some_and(|entry| entry.before.is_some());
        self.guard.path_refusal(path, &|candidate| match moment {
            RestoreMoment::Before if candidate == path => is_there(candidate),
            RestoreMoment::Before => is_there(candidate) || will_be(candidate),
            RestoreMoment::Now => candidate != path && is_there(candidate),
        })
    }

    fn was_guarded(&self, unit: &[u8]) -> bool {
        self.guard.has_guarded_name(unit) || self.was_path(unit) || self.was_part(unit)
    }

    pub(super) fn was_path(&self, path: &[u8]) -> bool {
        self.journal.guarded.iter().any(|guarded_path| guarded_path == path || is_beneath(path, guarded_path))
    }

    /// Returns whether the path is a part of a former repository.
    fn was_part(&self, path: &[u8]) -> bool {
        let (above, name) = split_path(path);
        let parts = REPOSITORY_MARKERS.into_iter().chain(self.guard.surveys.trusted_parts().part_names());
        self.journal.repositories.contains(above) && parts.into_iter().any(|part| part.eq_ignore_ascii_case(name))
    }

    /// Returns whether git needs this path, or a path above it, to recognise a former repository.
    pub(super) fn completes_repository(&self, path: &[u8]) -> bool {
        path_and_above(path).any(|path| {
            let (above, name) = split_path(path);
            self.journal.repositories.contains(above)
                && REPOSITORY_MARKERS.iter().any(|mark| mark.eq_ignore_ascii_case(name))
        })
    }

    /// Returns whether a path is inside such a path, so that it completes no repository by itself.
    pub(super) fn is_within_mark(&self, path: &[u8]) -> bool {
        self.completes_repository(split_path(path).0)
    }

    /// Returns whether an object at this path may make other paths guarded.
    pub(super) fn leads_on(&self, path: &[u8], kind: ObjectKind) -> bool {
        let is_link_above = || {
            kind == ObjectKind::Link
                && !self.guard.powers.units_carried_by(&self.guard.root.join(to_os_str(path))).is_empty()
        };
        self.guard.has_guarded_name(path)
            || self.was_path(path)
            || path_and_above(path).any(|prefix| self.was_part(prefix))
            || is_link_above()
    }
}

//! Guarded paths that a run closed: they were executed or used as configuration before the run, and
//! are not now. Meanwhile every run could write to them. So no reference to such a path is restored
//! while it holds an unverified object. Must not depend on how an object is restored.

use std::collections::HashMap;
use std::os::fd::AsFd as _;

use stockade_files::object::{FileTime, ObjectKind, TreeObject, list_entries, to_os_str};

use super::compare::{ComparedPath, RestoreAction, RunComparer, is_beneath};
use super::content_copies::may_have_writer;
use super::journal::{ObjectKey, key_of};
use super::paths::{join_path, path_and_above, paths_above};

/// Most names that are checked in such paths.
const MAX_CHECKED_NAMES: usize = 100_000;

/// State of a workspace during a restoration.
pub(super) struct RestoreOutcome<'o> {
    compared_paths: HashMap<&'o [u8], &'o ComparedPath>,
    /// Objects restored until now, with their change times afterwards; all removals are done then.
    /// `None` before the restoration starts.
    put: Option<&'o HashMap<ObjectKey, FileTime>>,
}

impl<'o> RestoreOutcome<'o> {
    /// Makes the state that is planned, before the restoration starts.
    pub fn as_planned(compared_paths: &'o [ComparedPath]) -> Self {
        Self { compared_paths: compared_paths.iter().map(|one| (one.path.as_slice(), one)).collect(), put: None }
    }

    /// Makes the present state, after all new objects of the run are removed.
    pub fn as_reached(compared_paths: &'o [ComparedPath], put: &'o HashMap<ObjectKey, FileTime>) -> Self {
        Self { put: Some(put), ..Self::as_planned(compared_paths) }
    }

    fn was_put(&self, object: &TreeObject) -> bool {
        let at = self.put.and_then(|put| put.get(&key_of(object)));
        at.is_some_and(|at| object.is_directory() || object.changed_time() <= *at)
    }

    /// Returns whether a path will be removed because it, or a path above it, is new.
    fn will_remove(&self, path: &[u8]) -> bool {
        let goes = |one: &&ComparedPath| one.plan == RestoreAction::Remove && one.conflict.is_none();
        self.put.is_none() && path_and_above(path).any(|path| self.compared_paths.get(path).is_some_and(goes))
    }
}

impl RunComparer<'_> {
    /// Returns whether a path that was guarded before the run, and is not now, holds another object
    /// than before. The object would be executed or used as configuration.
    pub fn is_reopened(&self, outcome: &RestoreOutcome<'_>) -> bool {
        let is_guarded = |guarded_path: &[u8]| {
            self.guard.guarded_paths.iter().any(|now| now == guarded_path || is_beneath(guarded_path, now))
                || self.guard.has_guarded_name(guarded_path)
        };
        let guarded_paths = self
            .journal
            .guarded
            .iter()
            .filter(|guarded_path| !guarded_path.is_empty() && !is_guarded(guarded_path))
            .cloned();
        let parts = self.closed.iter();
        let parts =
            parts.flat_map(|path| self.guard.surveys.trusted_parts().part_names().map(|name| join_path(path, name)));
        let mut remaining_names = MAX_CHECKED_NAMES;
        guarded_paths.chain(parts).any(|guarded_path| self.is_newer_path(guarded_path, outcome, &mut remaining_names))
    }

    /// Returns the directories that were repositories before the run, and are not now.
    pub fn closed_repositories(&self) -> Vec<Vec<u8>> {
        let is_closed = |path: &&Vec<u8>| {
            let has = |name: &[u8]| matches!(self.run.find_object(&join_path(path, name)), Ok(Some(_)));
            !(has(b"HEAD") && (has(b"commondir") || has(b"objects") && has(b"refs")))
        };
        self.journal.repositories.iter().filter(is_closed).cloned().collect()
    }

    fn is_newer_path(&self, guarded_path: Vec<u8>, outcome: &RestoreOutcome<'_>, remaining_names: &mut usize) -> bool {
        for above in paths_above(&guarded_path).filter(|above| !self.guard.has_guarded_name(above)) {
            match self.run.find_object(above) {
                Ok(Some(object)) if self.is_newer_thing(above, &object, outcome) => return true,
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
        let mut waiting = match self.run.find_object(&guarded_path) {
            Ok(found) => found.into_iter().map(|object| (guarded_path.clone(), object)).collect::<Vec<_>>(),
            Err(_) => return true,
        };
        while let Some((path, object)) = waiting.pop() {
            if self.is_newer_thing(&path, &object, outcome) {
                return true;
            }
            let inner = if object.is_directory() { list_entries(object.fd.as_fd()) } else { Ok(Vec::new()) };
            let Ok(inner) = inner else { return true };
            let Some(rest) = remaining_names.checked_sub(inner.len() + 1) else { return true };
            *remaining_names = rest;
            for (name, _) in inner {
                match TreeObject::open_entry(object.fd.as_fd(), to_os_str(&name)) {
                    Ok(found) => waiting.extend(found.map(|found| (join_path(&path, &name), found))),
                    Err(_) => return true,
                }
            }
        }
        false
    }

    /// Returns whether an object is neither as it was when the run began nor restored. The end of
    /// the run proves nothing here: another run may have made the object while this one was
    /// running.
    fn is_newer_thing(&self, path: &[u8], object: &TreeObject, outcome: &RestoreOutcome<'_>) -> bool {
        if outcome.will_remove(path) {
            return self.newer.iter().any(|newer| newer == path);
        }
        // A descriptor opened while the path was unguarded can be written to later.
        if object.kind() == ObjectKind::File && may_have_writer(object) {
            return true;
        }
        let is_known = self.is_older_than_run(object) || self.is_left(object) || outcome.was_put(object);
        !is_known && !self.is_settled(path, object, outcome)
    }

    /// Returns whether an object that the run changed is, or will be, the original.
    fn is_settled(&self, path: &[u8], object: &TreeObject, outcome: &RestoreOutcome<'_>) -> bool {
        let Some(one) = outcome.compared_paths.get(path).filter(|one| one.conflict.is_none()) else { return false };
        let Some(before) = &one.before else { return false };
        if object.is_directory() {
            // The entries of a directory are checked separately.
            return before.is_same_object(object) && !self.journal.late.contains(path);
        }
        match one.plan {
            RestoreAction::Put(_) => outcome.put.is_none(),
            RestoreAction::Remove => false,
            // Only kept content proves that the content is the original.
            RestoreAction::Stay => {
                let is_same = before.kind == ObjectKind::Link || self.journal.slots.contains_key(&before.key());
                is_same && one.now.as_ref().is_some_and(|now| now.changed_time() == object.changed_time())
            }
        }
    }

    /// Returns the order in which objects that make other paths guarded are restored. Objects that
    /// complete a reference come last, so that the guarded content exists before.
    pub fn leading_order(&self, one: &ComparedPath) -> u8 {
        let kind = one.before.as_ref().map(|before| before.kind);
        if self.completes_repository(&one.path)
            || kind == Some(ObjectKind::Link)
            || one.path.ends_with(b".git") && kind == Some(ObjectKind::File)
        {
            3
        } else if kind == Some(ObjectKind::Directory) {
            0
        } else if self.was_path(&one.path) {
            1
        } else {
            2
        }
    }
}

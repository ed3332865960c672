//! Keeps the content that a call is about to change in the workspace, if the run can be undone. A
//! call whose object cannot be kept is refused, with the reason.
//!
//! This happens before the powers are checked. So a call that is refused afterwards was kept
//! needlessly, and no permitted change is missed.

use std::cell::RefCell;
use std::os::fd::AsFd;

use rustix::fs::RenameFlags;
use stockade_model::Operation;
use stockade_sys::Errno;

use super::deed::{Change, Deed};
use super::opens::Wish;
use super::service::{Failure, Service, refused};
use super::walk::{Object, Place};
use crate::powers::Refusal;
use crate::undo::{Recorder, Unkept};

/// Recorder of a run's changes.
pub(super) struct KeptForUndo {
    workspace: Vec<u8>,
    recorder: RefCell<Recorder>,
}

impl KeptForUndo {
    pub fn new(recorder: Recorder) -> Self {
        Self { workspace: recorder.workspace().to_vec(), recorder: RefCell::new(recorder) }
    }

    fn holds(&self, path: &[u8]) -> bool {
        path.strip_prefix(&self.workspace[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }
}

impl Service {
    /// Keeps the content that a call would change.
    pub(super) fn keep_for_undo(&self, deed: &Deed) -> Result<(), Failure> {
        let Some(undo) = &self.undo else { return Ok(()) };
        // A private tree does not belong to the workspace.
        let is_kept = |path: &[u8]| undo.holds(path) && !self.powers.in_private_tree(path);
        if changed_path(deed).is_some_and(|path| is_kept(&path)) {
            self.note_guarded(undo)?;
        }
        let mut recorder = undo.recorder.borrow_mut();
        let named = |place: &Place| Some(place.path()).filter(|path| !place.special && is_kept(path));
        match deed {
            Deed::Open { place, wish } => match named(place) {
                Some(path) => self.kept(wish.operation(), &path, open(&mut recorder, &path, *wish)),
                None => Ok(()),
            },
            Deed::Reopen { object, wish } if !wish.only_reads() => self.keep_object(&mut recorder, object),
            Deed::MakeDirectory { place, .. }
            | Deed::MakeNode { place, .. }
            | Deed::MakeLink { place, .. }
            | Deed::Bind { place, .. } => match named(place) {
                Some(path) => self.kept(Operation::Create, &path, recorder.before_create(&path)),
                None => Ok(()),
            },
            Deed::MakeName { source, new } => match named(new) {
                Some(path) => self.kept(Operation::Link, &path, recorder.before_link(&source.path, &path)),
                // The file could be written by its name elsewhere.
                None if is_kept(&source.path) && !source.is_placeless() => Err(Errno::XDEV.into()),
                None => Ok(()),
            },
            Deed::Remove { place, .. } => match named(place) {
                Some(path) => self.kept(Operation::Remove, &path, recorder.before_remove(&path)),
                None => Ok(()),
            },
            Deed::Rename { old, new, flags } => match (named(old), named(new)) {
                (Some(from), Some(to)) => {
                    let exchanges = flags.contains(RenameFlags::EXCHANGE);
                    self.kept(Operation::Rename, &from, recorder.before_rename(&from, &to, exchanges))
                }
                (None, None) => Ok(()),
                // Programs copy and remove instead, which is recorded.
                _ if old.special || new.special => Ok(()),
                _ => Err(Errno::XDEV.into()),
            },
            Deed::Change { object, change: Change::Length(_) } => self.keep_object(&mut recorder, object),
            Deed::Change { object, .. } if is_kept(&object.path) && !object.is_placeless() => {
                self.kept(Operation::Metadata, &object.path, recorder.before_metadata(&object.path))
            }
            Deed::Reopen { .. } | Deed::OpenUnnamed { .. } | Deed::Change { .. } | Deed::Connect(_) | Deed::Run(_) => {
                Ok(())
            }
        }
    }

    /// Keeps the content that an open of `path` would change.
    pub(super) fn keep_opened_for_undo(&self, path: &[u8], wish: Wish) -> Result<(), Failure> {
        match &self.undo {
            Some(undo) if undo.holds(path) && !self.powers.in_private_tree(path) => {
                if changes(wish) {
                    self.note_guarded(undo)?;
                }
                self.kept(wish.operation(), path, open(&mut undo.recorder.borrow_mut(), path, wish))
            }
            _ => Ok(()),
        }
    }

    /// Records the guarded places before the first change, so that restoring does not make a name
    /// guarded that was not before.
    fn note_guarded(&self, undo: &KeptForUndo) -> Result<(), Failure> {
        if undo.recorder.borrow().has_surveyed() {
            return Ok(());
        }
        self.make_surveys()?;
        let (places, repositories) = self.surveys.borrow().beneath(&undo.workspace);
        let noted = undo.recorder.borrow_mut().note_guarded(&places, &repositories);
        self.kept(Operation::Write, &undo.workspace, noted)
    }

    /// Keeps an object's content, even if the object has no name: it may be a file that the
    /// recorder keeps.
    fn keep_object(&self, recorder: &mut Recorder, object: &Object) -> Result<(), Failure> {
        if object.is_placeless() || self.powers.in_private_tree(&object.path) {
            return Ok(());
        }
        let held = object.fd.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        self.kept(Operation::Write, &object.path, recorder.before_rewrite(&object.path, held))
    }

    /// Refuses a call whose object cannot be kept. A refusal by the powers comes first.
    fn kept(&self, operation: Operation, path: &[u8], done: Result<(), Unkept>) -> Result<(), Failure> {
        let Err(unkept) = done else { return Ok(()) };
        self.permit(operation, path)?;
        Err(refused(operation, path, Refusal { rule: unkept.to_string(), grant: None }))
    }
}

fn changes(wish: Wish) -> bool {
    wish.creates() || !wish.only_reads()
}

/// Returns the path that a call changes, if it changes one.
fn changed_path(deed: &Deed) -> Option<Vec<u8>> {
    match deed {
        Deed::Open { place, wish } => changes(*wish).then(|| place.path()),
        Deed::Reopen { object, wish } => changes(*wish).then(|| object.path.clone()),
        Deed::MakeDirectory { place, .. }
        | Deed::MakeNode { place, .. }
        | Deed::MakeLink { place, .. }
        | Deed::Bind { place, .. }
        | Deed::MakeName { new: place, .. }
        | Deed::Rename { new: place, .. }
        | Deed::Remove { place, .. } => Some(place.path()),
        Deed::Change { object, .. } => Some(object.path.clone()),
        Deed::OpenUnnamed { .. } | Deed::Connect(_) | Deed::Run(_) => None,
    }
}

fn open(recorder: &mut Recorder, path: &[u8], wish: Wish) -> Result<(), Unkept> {
    recorder.before_open(path, wish.creates(), !wish.only_reads() && !wish.must_be_new())
}

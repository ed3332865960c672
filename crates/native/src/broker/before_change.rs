//! Keeps the content that a call is about to change in the workspace, if the run can be undone. A
//! call whose object cannot be kept is refused, with the reason.
//!
//! This happens before the powers are checked. So a call that is refused afterwards was kept
//! needlessly, and no permitted change is missed.

use std::cell::RefCell;
use std::os::fd::AsFd;

use rustix::fs::RenameFlags;
use stockade_model::DeniedOperation;
use stockade_stage::undo::{UndoRecordError, UndoRecorder};
use stockade_sys::Errno;

use super::brokered_call::{BrokeredCall, ObjectChange};
use super::call_result::{CallResult, refuse_always};
use super::opens::OpenRequest;
use super::service::BrokerService;
use super::walk::{ResolvedName, ResolvedObject};

/// Recorder of a run's changes.
pub(super) struct WorkspaceRecorder {
    workspace: Vec<u8>,
    recorder: RefCell<UndoRecorder>,
}

impl WorkspaceRecorder {
    pub fn new(recorder: UndoRecorder) -> Self {
        Self { workspace: recorder.workspace().to_vec(), recorder: RefCell::new(recorder) }
    }

    fn covers_path(&self, path: &[u8]) -> bool {
        path.strip_prefix(&self.workspace[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }
}

impl BrokerService {
    /// Keeps the content that a call would change.
    pub(super) fn keep_for_undo(&self, broker_call: &BrokeredCall) -> CallResult<()> {
        let Some(undo) = &self.undo else { return Ok(()) };
        // A private tree does not belong to the workspace.
        let is_kept = |path: &[u8]| undo.covers_path(path) && !self.powers.in_private_tree(path);
        if changed_path(broker_call).is_some_and(is_kept) {
            self.note_guarded(undo)?;
        }
        let mut recorder = undo.recorder.borrow_mut();
        let is_named = |resolved: &ResolvedName| !resolved.special && is_kept(&resolved.path);
        match broker_call {
            BrokeredCall::Open { resolved, open_request } if is_named(resolved) => {
                let done = record_open(&mut recorder, &resolved.path, *open_request);
                self.require_recorded(open_request.operation(), &resolved.path, done)
            }
            BrokeredCall::Reopen { object, open_request } if !open_request.only_reads() => {
                self.keep_object(&mut recorder, object)
            }
            BrokeredCall::MakeDirectory { resolved, .. }
            | BrokeredCall::MakeNode { resolved, .. }
            | BrokeredCall::MakeLink { resolved, .. }
            | BrokeredCall::Bind { resolved, .. }
                if is_named(resolved) =>
            {
                self.require_recorded(DeniedOperation::Create, &resolved.path, recorder.before_create(&resolved.path))
            }
            BrokeredCall::MakeName { source, new } if is_named(new) => {
                let done = recorder.before_link(&source.path, &new.path);
                self.require_recorded(DeniedOperation::Link, &new.path, done)
            }
            // The file could be written by its name elsewhere.
            BrokeredCall::MakeName { source, .. } if is_kept(&source.path) && !source.is_placeless() => {
                Err(Errno::XDEV.into())
            }
            BrokeredCall::Remove { resolved, .. } if is_named(resolved) => {
                self.require_recorded(DeniedOperation::Remove, &resolved.path, recorder.before_remove(&resolved.path))
            }
            BrokeredCall::Rename { old, new, flags } => match (is_named(old), is_named(new)) {
                (true, true) => {
                    let done = recorder.before_rename(&old.path, &new.path, flags.contains(RenameFlags::EXCHANGE));
                    self.require_recorded(DeniedOperation::Rename, &old.path, done)
                }
                (false, false) => Ok(()),
                // Programs copy and remove instead, which is recorded.
                _ if old.special || new.special => Ok(()),
                _ => Err(Errno::XDEV.into()),
            },
            BrokeredCall::Change { object, change: ObjectChange::Length(_) } => self.keep_object(&mut recorder, object),
            BrokeredCall::Change { object, .. } if is_kept(&object.path) && !object.is_placeless() => {
                self.require_recorded(DeniedOperation::Metadata, &object.path, recorder.before_metadata(&object.path))
            }
            // Every kind is named, so that a new one cannot be forgotten here.
            BrokeredCall::Open { .. }
            | BrokeredCall::Reopen { .. }
            | BrokeredCall::OpenUnnamed { .. }
            | BrokeredCall::MakeDirectory { .. }
            | BrokeredCall::MakeNode { .. }
            | BrokeredCall::MakeLink { .. }
            | BrokeredCall::MakeName { .. }
            | BrokeredCall::Bind { .. }
            | BrokeredCall::Remove { .. }
            | BrokeredCall::Change { .. }
            | BrokeredCall::Connect(_)
            | BrokeredCall::Run(_) => Ok(()),
        }
    }

    /// Keeps the content that an open of `path` would change.
    pub(super) fn keep_opened_for_undo(&self, path: &[u8], open_request: OpenRequest) -> CallResult<()> {
        match &self.undo {
            Some(undo) if undo.covers_path(path) && !self.powers.in_private_tree(path) => {
                if may_change_file(open_request) {
                    self.note_guarded(undo)?;
                }
                self.require_recorded(
                    open_request.operation(),
                    path,
                    record_open(&mut undo.recorder.borrow_mut(), path, open_request),
                )
            }
            _ => Ok(()),
        }
    }

    /// Records the guarded paths before the first change, so that restoring does not make a name
    /// guarded that was not before.
    fn note_guarded(&self, undo: &WorkspaceRecorder) -> CallResult<()> {
        if undo.recorder.borrow().has_surveyed() {
            return Ok(());
        }
        self.make_surveys()?;
        let (guarded_paths, repositories) = self.surveys.borrow().guarded_beneath(&undo.workspace);
        let noted = undo.recorder.borrow_mut().note_guarded(&guarded_paths, &repositories);
        self.require_recorded(DeniedOperation::Write, &undo.workspace, noted)
    }

    /// Keeps an object's content, even if the object has no name: it may be a file that the
    /// recorder keeps.
    fn keep_object(&self, recorder: &mut UndoRecorder, object: &ResolvedObject) -> CallResult<()> {
        if object.is_placeless() || self.powers.in_private_tree(&object.path) {
            return Ok(());
        }
        let held = object.fd.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        self.require_recorded(DeniedOperation::Write, &object.path, recorder.before_rewrite(&object.path, held))
    }

    /// Refuses a call whose object cannot be kept. A refusal by the powers comes first.
    fn require_recorded(
        &self,
        operation: DeniedOperation,
        path: &[u8],
        done: Result<(), UndoRecordError>,
    ) -> CallResult<()> {
        let Err(unkept) = done else { return Ok(()) };
        self.permit_operation(operation, path)?;
        Err(refuse_always(operation, path, unkept.to_string()))
    }
}

fn may_change_file(open_request: OpenRequest) -> bool {
    open_request.is_creating() || !open_request.only_reads()
}

/// Returns the path that a call changes, if it changes one.
fn changed_path(broker_call: &BrokeredCall) -> Option<&[u8]> {
    match broker_call {
        BrokeredCall::Open { open_request, .. } | BrokeredCall::Reopen { open_request, .. }
            if !may_change_file(*open_request) =>
        {
            None
        }
        BrokeredCall::Reopen { object, .. } | BrokeredCall::Change { object, .. } => Some(&object.path),
        BrokeredCall::Run(_) => None,
        // The new name of a rename is its last one.
        other => other.resolved_names().last().map(|name| &name.path[..]),
    }
}

fn record_open(recorder: &mut UndoRecorder, path: &[u8], open_request: OpenRequest) -> Result<(), UndoRecordError> {
    recorder.before_open(path, open_request.is_creating(), !open_request.only_reads() && !open_request.must_be_new())
}

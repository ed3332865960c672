//! Connects [`stockade_stage::undo`] to the backend, for one run from before its start to its end. It must
//! not know how changes are kept or restored.

use std::path::Path;

use stockade_backend_api::StartError;
use stockade_model::{AttemptPlan, LayerReport, LayerState, RawText};

use stockade_launch::is_staged;
use stockade_stage::undo::{NewUndoRun, UndoRecorder, UndoRun, UndoStore};

/// Begins to keep the changes of `plan`, if it requests that. Staged writes change nothing in the
/// workspace.
pub(crate) fn begin_undo_record(
    plan: &AttemptPlan,
    undo_root: Option<&Path>,
) -> Result<Option<(UndoRun, UndoRecorder)>, StartError> {
    let limit_bytes = plan.profile.filesystem.undo_bytes.filter(|_| !is_staged(plan));
    // Without a place the report states that nothing is kept.
    let (Some(limit_bytes), Some(undo_root)) = (limit_bytes, undo_root) else { return Ok(None) };
    let new = NewUndoRun {
        request: plan.request.clone(),
        command: RawText::from(plan.argv.iter().map(RawText::as_bytes).collect::<Vec<_>>().join(&b' ')),
        workspace: plan.workspace.as_path().to_owned(),
        limit_bytes,
        protect: plan.profile.filesystem.protect.clone(),
    };
    UndoStore::open_or_create(undo_root).and_then(|store| store.begin_run(&new)).map(Some).map_err(|error| StartError {
        what: format!("cannot keep the changes of this run for undo: {error}"),
        hint: Some("run without undo".to_owned()),
    })
}

/// Returns the enforcement report on undo, if the plan requests it.
pub(crate) fn undo_layer(plan: &AttemptPlan, undoing: Option<&UndoRun>) -> Option<(String, LayerReport)> {
    plan.profile.filesystem.undo_bytes?;
    let (state, detail) = match undoing {
        Some(_) => (
            LayerState::Enforced,
            "the broker keeps originals before changes: at each open for writing and at each change of a name or \
             its metadata; files that were opened before the run are not kept",
        ),
        None if is_staged(plan) => (LayerState::Enforced, "the workspace is not changed: writes are staged"),
        None => (LayerState::Absent, "this kind of sandbox does not keep what commands change"),
    };
    Some(("undo".to_owned(), LayerReport { state, detail: detail.to_owned() }))
}

//! The stage of one attempt, from its creation to its content at the end. Connects [`stockade_stage`]
//! to the backend. It must not know how changes are committed.

use std::path::Path;

use stockade_backend_api::{CommandEnd, StartError};
use stockade_launch::{OverlayWriteLayer, is_staged};
use stockade_model::{AttemptPlan, IsolationLevel, RawText, StagedChanges};
use stockade_stage::{BackupTree, BaselineRecorder, NewStage, OpenStage, PreWriteHook, StageDirectory, StageError};

use crate::errors::{map_hinted_error, map_launch_error};

/// A stage that an attempt writes to.
#[derive(Debug)]
pub(crate) struct AttemptStage {
    /// Absent once the attempt has ended.
    stage: Option<OpenStage>,
    /// Absent if the run writes in the workspace itself.
    overlay: Option<OverlayWriteLayer>,
}

impl Drop for AttemptStage {
    /// Removes the stage if nothing ran in it. If the monitor has panicked, the content is kept.
    fn drop(&mut self) {
        if let Some(mut stage) = self.stage.take().filter(|_| !std::thread::panicking()) {
            // The rest of the stage is removed later.
            let _ = stage.put_back().and_then(|_| stage.remove());
        }
    }
}

impl AttemptStage {
    /// Makes the stage that `plan` requests, if any. Staged changes of an earlier attempt of the
    /// same request are discarded first, so that nothing happens twice (L4).
    pub fn from_plan(plan: &AttemptPlan, stage_root: Option<&Path>) -> Result<Option<Self>, StartError> {
        if !is_staged(plan) {
            return Ok(None);
        }
        if plan.level == IsolationLevel::None {
            return Err(StartError {
                what: "a run without a sandbox cannot be staged".to_owned(),
                hint: Some("run at level full or restricted, or without a stage".to_owned()),
            });
        }
        let stage_root = stage_root.ok_or_else(|| StartError {
            what: "this backend has no directory for stages".to_owned(),
            hint: Some("run without a stage".to_owned()),
        })?;
        let stages = StageDirectory::open(stage_root).map_err(map_hinted_error)?;
        if plan.attempt > 1 {
            discard_earlier(&stages, plan)?;
        }
        let new = NewStage {
            request: plan.request.clone(),
            command: RawText::from(plan.argv.iter().map(RawText::as_bytes).collect::<Vec<_>>().join(&b' ')),
            workspace: plan.workspace.as_path().to_owned(),
            protect: plan.profile.filesystem.protect.clone(),
        };
        let stage = stages.create_stage(new).map_err(map_hinted_error)?;
        let (upper, work) = stage.overlay_directories();
        let overlay = (plan.level == IsolationLevel::Full).then(|| OverlayWriteLayer::new(&upper, &work));
        Ok(Some(Self { stage: Some(stage), overlay: overlay.transpose().map_err(map_launch_error)? }))
    }

    pub fn overlay(&self) -> Option<&OverlayWriteLayer> {
        self.overlay.as_ref()
    }

    /// Returns the hook that runs before the run's changes in its workspace.
    pub fn pre_write_hook(&self) -> Result<Option<PreWriteHook>, StartError> {
        let create_hook = |stage| match self.overlay {
            Some(_) => BaselineRecorder::new(stage).map(PreWriteHook::Noted),
            None => BackupTree::new(stage).map(PreWriteHook::BackUp),
        };
        self.stage.as_ref().map(create_hook).transpose().map_err(map_hinted_error)
    }

    /// Returns the changes to commit. A stage without changes is removed at once.
    pub fn finish_stage(mut self, end: &CommandEnd) -> Option<StagedChanges> {
        let stage = self.stage.as_mut()?;
        let changes = match stage.put_back().map_err(StageError::Read).and_then(|_| stage.read_changes()) {
            Ok(changes) if changes.is_empty() => return None,
            Ok(changes) => changes.visible_count() as u64,
            // A later look at the stage reports the reason.
            Err(_) => 0,
        };
        let mut stage = self.stage.take()?;
        let _ = stage.record_end(&describe_end(end));
        Some(StagedChanges { stage: stage.id().clone(), changes })
    }
}

fn describe_end(end: &CommandEnd) -> String {
    match end {
        CommandEnd::Exited(code) => format!("exited {code}"),
        CommandEnd::Signaled(signal) => format!("ended by signal {signal}"),
        CommandEnd::NotFound | CommandEnd::NotExecutable(_) => "nothing ran".to_owned(),
        CommandEnd::Lost(_) => "lost".to_owned(),
    }
}

fn discard_earlier(stages: &StageDirectory, plan: &AttemptPlan) -> Result<(), StartError> {
    for listed in stages.list_stages().map_err(map_hinted_error)? {
        if listed.meta.as_ref().is_some_and(|meta| meta.request == plan.request) {
            let stage = stages.open_for_changes(&listed.id).map_err(map_hinted_error)?;
            stage.remove().map_err(|error| map_hinted_error(StageError::Directory(error)))?;
        }
    }
    Ok(())
}

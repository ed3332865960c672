//! The stage of one attempt, from its creation to its content at the end. Connects [`crate::stage`]
//! to the backend. It must not know how changes are committed.

use std::path::Path;

use stockade_engine::{CommandEnd, StartError};
use stockade_model::{Level, Plan, RawText, Staged};

use crate::backend::unlaunched;
use crate::launch::{Overlay, is_staged};
use crate::stage::{Aside, NewStage, Precaution, Stage, StageError, Stages, Witness};

/// A stage that an attempt writes to.
#[derive(Debug)]
pub(crate) struct Staging {
    /// Absent once the attempt has ended.
    stage: Option<Stage>,
    /// Absent if the run writes in the workspace itself.
    overlay: Option<Overlay>,
}

impl Drop for Staging {
    /// Removes the stage if nothing ran in it. If the keeper has panicked, the content is kept.
    fn drop(&mut self) {
        if let Some(mut stage) = self.stage.take().filter(|_| !std::thread::panicking()) {
            // The rest of the stage is removed later.
            let _ = stage.put_back().and_then(|_| stage.remove());
        }
    }
}

impl Staging {
    /// Makes the stage that `plan` requests, if any. Staged changes of an earlier attempt of the
    /// same request are discarded first, so that nothing happens twice (L4).
    pub fn of(plan: &Plan, place: Option<&Path>) -> Result<Option<Self>, StartError> {
        if !is_staged(plan) {
            return Ok(None);
        }
        if plan.level == Level::None {
            return Err(StartError {
                what: "without a sandbox nothing can be staged".to_owned(),
                hint: Some("run at level full or restricted, or without a stage".to_owned()),
            });
        }
        let place = place.ok_or_else(|| StartError {
            what: "this backend was given no place for stages".to_owned(),
            hint: Some("run without a stage".to_owned()),
        })?;
        let stages = Stages::open(place).map_err(unstaged)?;
        if plan.attempt > 1 {
            discard_earlier(&stages, plan)?;
        }
        let new = NewStage {
            request: plan.request.clone(),
            command: RawText::from(plan.argv.iter().map(RawText::as_bytes).collect::<Vec<_>>().join(&b' ')),
            workspace: plan.workspace.as_path().to_owned(),
            protect: plan.profile.filesystem.protect.clone(),
        };
        let stage = stages.create(new).map_err(unstaged)?;
        let (upper, work) = stage.overlay_directories();
        let overlay = (plan.level == Level::Full).then(|| Overlay::new(&upper, &work));
        Ok(Some(Self { stage: Some(stage), overlay: overlay.transpose().map_err(unlaunched)? }))
    }

    pub fn overlay(&self) -> Option<&Overlay> {
        self.overlay.as_ref()
    }

    /// Returns the hook that runs before the run's changes in its workspace.
    pub fn precaution(&self) -> Result<Option<Precaution>, StartError> {
        let precaution = |stage| match self.overlay {
            Some(_) => Witness::new(stage).map(Precaution::Noted),
            None => Aside::new(stage).map(Precaution::PutAside),
        };
        self.stage.as_ref().map(precaution).transpose().map_err(unstaged)
    }

    /// Returns the changes to commit. A stage without changes is removed at once.
    pub fn end(mut self, end: &CommandEnd) -> Option<Staged> {
        let stage = self.stage.as_mut()?;
        let changes = match stage.put_back().map_err(StageError::Read).and_then(|_| stage.changes()) {
            Ok(changes) if changes.is_empty() => return None,
            Ok(changes) => changes.count() as u64,
            // A later look at the stage reports the reason.
            Err(_) => 0,
        };
        let mut stage = self.stage.take()?;
        let _ = stage.end(&ended(end));
        Some(Staged { stage: stage.id().clone(), changes })
    }
}

fn ended(end: &CommandEnd) -> String {
    match end {
        CommandEnd::Exited(code) => format!("exited {code}"),
        CommandEnd::Signaled(signal) => format!("ended by signal {signal}"),
        CommandEnd::NotFound | CommandEnd::NotExecutable(_) => "nothing ran".to_owned(),
        CommandEnd::Lost(_) => "lost".to_owned(),
    }
}

fn discard_earlier(stages: &Stages, plan: &Plan) -> Result<(), StartError> {
    for listed in stages.list().map_err(unstaged)? {
        if listed.meta.as_ref().is_some_and(|meta| meta.request == plan.request) {
            let stage = stages.take(&listed.id).map_err(unstaged)?;
            stage.remove().map_err(|error| unstaged(StageError::Place(error)))?;
        }
    }
    Ok(())
}

fn unstaged(error: StageError) -> StartError {
    let text = error.to_string();
    match text.split_once("\nhint: ") {
        Some((what, hint)) => StartError { what: what.to_owned(), hint: Some(hint.to_owned()) },
        None => StartError { what: text, hint: None },
    }
}

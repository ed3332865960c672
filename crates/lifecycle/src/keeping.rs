//! What is done with sandboxes as a whole.

use std::sync::Arc;

use stockade_engine::seams::Clock;
use stockade_engine::{Sandbox, SandboxError, SandboxEvents, SandboxPlan, Sandboxes, System};
use stockade_files::LeftOut;
use stockade_model::{
    AfterRestart, BackendChoice, Lifetime, Profile, SandboxId, SandboxRecord, SandboxSpec, SandboxState,
    WorkspaceSource,
};
use stockade_store::sandboxes::{Due, Sandboxes as Store, Use};

use crate::places::{self, Places};
use crate::{HiddenFiles, LifecycleError};

/// What is asked for, resolved as far as only the caller can.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What it is to be.
    pub spec: SandboxSpec,
    /// The profile that the specification names, its limits lowered to the specification's.
    pub profile: Profile,
    /// What no copy of a directory of the host takes along.
    pub hidden: HiddenFiles,
}

/// A sandbox that this process uses.
pub struct Opened {
    /// It.
    pub sandbox: Box<dyn Sandbox>,
    /// That it is used: given back with [`Lifecycle::leave`].
    pub used: Use,
    /// Whether its processes were gone and its walls are new, around what it keeps.
    pub is_anew: bool,
    /// Of one that was made now: why the kinds that are preferred to its own do not serve.
    pub passed_over: Vec<String>,
    /// What of the directory that its workspace is a copy of was left out.
    pub left_out: Vec<LeftOut>,
}

impl Opened {
    /// One that was made before.
    fn again(sandbox: Box<dyn Sandbox>, used: Use, is_anew: bool) -> Self {
        Self { sandbox, used, is_anew, passed_over: Vec::new(), left_out: Vec::new() }
    }
}

/// Why a sandbox is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Somebody said so.
    Asked,
    /// Its time to live is over.
    Expired,
    /// Nobody used it.
    Idle,
    /// The process that made or destroyed it was killed.
    Abandoned,
    /// It is not taken over after a restart.
    Restarted,
}

impl Why {
    /// As a person reads it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "its user asked for it",
            Self::Expired => "its time to live is over",
            Self::Idle => "its idle time is over",
            Self::Abandoned => "its owner process was killed",
            Self::Restarted => "it is not kept over a restart",
        }
    }
}

/// One sandbox that was to be destroyed because nobody wants it any more.
#[derive(Debug)]
pub struct Swept {
    /// Which.
    pub id: SandboxId,
    /// Why.
    pub why: Why,
    /// What came of it; what failed is tried again by the next.
    pub done: Result<(), LifecycleError>,
}

/// All sandboxes of a user, and the kinds that there are here.
pub struct Lifecycle {
    store: Arc<Store>,
    /// In the order in which they are preferred.
    kinds: Vec<Arc<dyn Sandboxes>>,
    clock: Arc<dyn Clock>,
    ended: Option<Ended>,
}

/// Told of one that was destroyed, with why.
type Ended = Box<dyn Fn(&SandboxRecord, &str) + Send + Sync>;

impl Lifecycle {
    /// Over a store, with kinds of which the first that serves is chosen.
    pub fn new(store: Arc<Store>, kinds: Vec<Arc<dyn Sandboxes>>, clock: Arc<dyn Clock>) -> Self {
        Self { store, kinds, clock, ended: None }
    }

    /// The same, and `ended` is told of each that was destroyed, with why.
    #[must_use]
    pub fn telling(self, ended: impl Fn(&SandboxRecord, &str) + Send + Sync + 'static) -> Self {
        Self { ended: Some(Box::new(ended)), ..self }
    }

    /// What is known of all of them.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Makes a sandbox: its directories, then its walls. A clone as its workspace is
    /// made by commands in it, see [`steps`](crate::steps).
    ///
    /// # Errors
    /// When it cannot be had. It is known as failed then, and nothing of it is left.
    pub fn create(&self, id: SandboxId, wanted: &Wanted, events: SandboxEvents) -> Result<Opened, LifecycleError> {
        let (kind, passed_over) = self.choose(&id, wanted)?;
        let claim = self.store.begin(id.clone(), wanted.spec.clone(), self.now_ms())?;
        let made = (|| {
            self.store.choose(&claim, kind.name())?;
            let spec = &wanted.spec;
            let hidden = wanted.hidden.clone();
            let (places, left_out) =
                Places::make(claim.path(), &id, (&spec.workspace, hidden), &wanted.profile.limits)?;
            let sandbox = kind.create(&plan(&id, wanted, places), events)?;
            self.store.change(&id, SandboxState::Ready, None, self.now_ms())?;
            Ok((sandbox, left_out))
        })();
        drop(claim);
        match made {
            Ok((sandbox, left_out)) => {
                let used = self.store.begin_use(&id, self.now_ms())?;
                Ok(Opened { sandbox, used, is_anew: false, passed_over, left_out })
            }
            Err(error) => {
                self.give_up(&id, &error);
                Err(error)
            }
        }
    }

    /// Begins to use one: it is found again, or its walls are made anew around what
    /// it keeps.
    ///
    /// # Errors
    /// When there is none, it is not ready, or its walls cannot be had.
    pub fn open(&self, id: &SandboxId, wanted: &Wanted, events: SandboxEvents) -> Result<Opened, LifecycleError> {
        let used = self.hold(id)?;
        let kind = self.kind_of(used.record())?;
        let places = Places::open(used.path(), &used.record().spec.workspace)?;
        let plan = plan(id, wanted, places);
        match kind.adopt(&plan, events.clone()) {
            Err(SandboxError::Gone(_)) if used.record().spec.after_restart == AfterRestart::Destroy => {
                self.release(used)?;
                self.destroy(id, Why::Restarted)?;
                Err(SandboxError::Gone(id.clone()).into())
            }
            Err(SandboxError::Gone(_)) => Ok(Opened::again(kind.create(&plan, events)?, used, true)),
            found => Ok(Opened::again(found?, used, false)),
        }
    }

    /// Begins to use what one keeps, without its walls: see [`files`](crate::files).
    ///
    /// # Errors
    /// When there is none, or it is not ready.
    pub fn hold(&self, id: &SandboxId) -> Result<Use, LifecycleError> {
        Ok(self.store.begin_use(id, self.now_ms())?)
    }

    /// Ends that.
    ///
    /// # Errors
    /// As [`leave`](Self::leave).
    pub fn release(&self, used: Use) -> Result<(), LifecycleError> {
        Ok(self.store.end_use(used, self.now_ms())?)
    }

    /// Lets one live so long from now.
    ///
    /// # Errors
    /// When there is none, or it is over.
    pub fn extend(&self, id: &SandboxId, ttl: Lifetime) -> Result<(), LifecycleError> {
        Ok(self.store.extend(id, self.now_ms().saturating_add(ttl.ms()))?)
    }

    /// Ends a use.
    ///
    /// # Errors
    /// When that cannot be noted; it is over all the same.
    pub fn leave(&self, opened: Opened) -> Result<(), LifecycleError> {
        drop(opened.sandbox);
        self.release(opened.used)
    }

    /// Stops every process of one that is open.
    ///
    /// # Errors
    /// When it cannot be: it goes on then.
    pub fn pause(&self, opened: &Opened) -> Result<(), LifecycleError> {
        opened.sandbox.pause()?;
        self.turn(opened, SandboxState::Paused)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it cannot be: it stays as it is then.
    pub fn resume(&self, opened: &Opened) -> Result<(), LifecycleError> {
        opened.sandbox.resume()?;
        self.turn(opened, SandboxState::Ready)
    }

    /// Lets one go on that is paused, whoever paused it. Where its processes are gone
    /// meanwhile the next use has new walls.
    ///
    /// # Errors
    /// When it is not paused, or cannot go on: it stays as it is then.
    pub fn go_on(&self, id: &SandboxId, wanted: &Wanted, events: SandboxEvents) -> Result<(), LifecycleError> {
        // Nobody uses what is paused, so there is no use to begin.
        let record = self.store.expect(id, SandboxState::Paused)?;
        if let Some(sandbox) = self.look(&record, wanted, events)? {
            sandbox.resume()?;
        }
        Ok(self.store.change(id, SandboxState::Ready, None, self.now_ms()).map(drop)?)
    }

    /// One as it is now, without using it; nothing where its processes are gone.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn look(
        &self,
        record: &SandboxRecord,
        wanted: &Wanted,
        events: SandboxEvents,
    ) -> Result<Option<Box<dyn Sandbox>>, LifecycleError> {
        let places = Places::of(&self.store.directory(&record.id), &record.spec.workspace);
        match self.kind_of(record)?.adopt(&plan(&record.id, wanted, places), events) {
            Err(SandboxError::Gone(_)) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    fn turn(&self, opened: &Opened, state: SandboxState) -> Result<(), LifecycleError> {
        Ok(self.store.change(opened.sandbox.id(), state, None, self.now_ms()).map(drop)?)
    }

    /// Destroys one: nobody begins to use it from now on, its processes are ended,
    /// what it keeps is removed. A workspace that is a directory of the host stays.
    ///
    /// # Errors
    /// When something is left of it, or somebody still uses it. It is being destroyed
    /// all the same, and the next sweep goes on with that.
    pub fn destroy(&self, id: &SandboxId, why: Why) -> Result<(), LifecycleError> {
        self.remove(id, why.as_str())
    }

    fn remove(&self, id: &SandboxId, why: &str) -> Result<(), LifecycleError> {
        let record = self.store.change(id, SandboxState::Destroying, Some(why), self.now_ms())?;
        match self.remove_all(&record) {
            // Somebody else who looked went on with it, and was faster.
            Err(_) if self.is_over(id) => return Ok(()),
            removed => removed?,
        }
        if let Some(ended) = &self.ended {
            ended(&record, why);
        }
        Ok(())
    }

    fn remove_all(&self, record: &SandboxRecord) -> Result<(), LifecycleError> {
        let ending = self.store.begin_end(&record.id)?;
        if record.backend.is_some() {
            self.kind_of(record)?.clear(&record.id)?;
        }
        drop(ending);
        self.remove_places(&record.id)
    }

    /// The end of one that has no walls any more.
    fn remove_places(&self, id: &SandboxId) -> Result<(), LifecycleError> {
        let claim = self.store.claim(id)?;
        places::remove(claim.path(), id)?;
        Ok(self.store.close(claim, self.now_ms())?)
    }

    /// Destroys those whose time is over and those that somebody left half made or
    /// half destroyed. For every use of sandboxes to begin with.
    ///
    /// # Errors
    /// When the store failed; what becomes of each is in the answer.
    pub fn sweep(&self) -> Result<Vec<Swept>, LifecycleError> {
        self.store.remove_strays()?;
        let abandoned = self.store.abandoned()?.into_iter().map(|record| (record, Why::Abandoned));
        let due = self.store.due(self.now_ms())?.into_iter().map(|(record, due)| match due {
            Due::Expired => (record, Why::Expired),
            Due::Idle => (record, Why::Idle),
        });
        let all: Vec<(SandboxRecord, Why)> = abandoned.chain(due).collect();
        Ok(all.into_iter().map(|(record, why)| self.swept(record.id, why)).collect())
    }

    /// The same once when an engine begins that is the only one of this store: what
    /// its predecessor left and is not to be taken over is destroyed as well.
    ///
    /// # Errors
    /// As [`sweep`](Self::sweep).
    pub fn recover(&self) -> Result<Vec<Swept>, LifecycleError> {
        let mut swept = self.sweep()?;
        for record in self.store.list()? {
            let stands = matches!(record.state, SandboxState::Ready | SandboxState::Paused | SandboxState::Lost);
            if stands && record.spec.after_restart == AfterRestart::Destroy {
                swept.push(self.swept(record.id, Why::Restarted));
            }
        }
        Ok(swept)
    }

    fn swept(&self, id: SandboxId, why: Why) -> Swept {
        let done = match self.destroy(&id, why) {
            // As in there, before it began.
            Err(_) if self.is_over(&id) => Ok(()),
            done => done,
        };
        Swept { id, why, done }
    }

    fn is_over(&self, id: &SandboxId) -> bool {
        let found = self.store.find(id);
        found.is_ok_and(|record| record.is_some_and(|record| record.state == SandboxState::Destroyed))
    }

    /// One that could not be made leaves nothing: whoever failed to make its walls has
    /// removed them, and may not even be there to be asked again.
    fn give_up(&self, id: &SandboxId, error: &LifecycleError) {
        let why = error.to_string();
        let ends = || {
            self.store.change(id, SandboxState::Failed, Some(&why), self.now_ms())?;
            self.store.change(id, SandboxState::Destroying, Some(&why), self.now_ms())?;
            self.remove_places(id)
        };
        if let Err(error) = ends() {
            tracing::warn!("what was made of the sandbox {id} is left to the next: {error}");
        }
    }

    /// The kind that was asked for, whether it serves or not, or the first that does;
    /// and those that were preferred, with why they do not.
    fn choose(&self, id: &SandboxId, wanted: &Wanted) -> Result<(&Arc<dyn Sandboxes>, Vec<String>), LifecycleError> {
        let asked = wanted.spec.backend;
        if asked != BackendChoice::Auto {
            return Ok((self.kind_named(asked.as_str())?, Vec::new()));
        }
        let plan = plan(id, wanted, Places::of(&self.store.directory(id), &wanted.spec.workspace));
        let mut passed_over = Vec::new();
        for kind in &self.kinds {
            match kind.serves(&plan) {
                Ok(()) => return Ok((kind, passed_over)),
                Err(error) => passed_over.push(error.to_string()),
            }
        }
        Err(LifecycleError::NoKind(passed_over.join("; ")))
    }

    fn kind_of(&self, record: &SandboxRecord) -> Result<&Arc<dyn Sandboxes>, LifecycleError> {
        self.kind_named(record.backend.as_deref().unwrap_or_default())
    }

    fn kind_named(&self, name: &str) -> Result<&Arc<dyn Sandboxes>, LifecycleError> {
        let found = self.kinds.iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| LifecycleError::NoKind(format!("there is no kind `{name}` here")))
    }

    fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }
}

fn plan(id: &SandboxId, wanted: &Wanted, places: Places) -> SandboxPlan {
    let mut profile = wanted.profile.clone();
    if !matches!(wanted.spec.workspace, WorkspaceSource::Bind { .. }) {
        // The host trusts no name in a workspace of the sandbox's own.
        profile.filesystem.protect.clear();
    }
    SandboxPlan {
        id: id.clone(),
        system: system(&wanted.spec),
        workspace: places.workspace,
        home: places.home,
        profile,
        level: wanted.spec.level,
        background: wanted.spec.background,
        runtime: wanted.spec.runtime.clone(),
    }
}

fn system(spec: &SandboxSpec) -> Option<System> {
    let tree = spec.root.as_ref().map(|root| System::Tree(root.as_raw().as_path().to_owned()));
    tree.or_else(|| spec.image.clone().map(System::Image))
}

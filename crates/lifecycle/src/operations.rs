//! Operations on whole sandboxes.

use std::sync::Arc;

use stockade_backend_api::{
    Clock, GuestSystem, Sandbox, SandboxError, SandboxEventSender, SandboxPlan, SandboxProvider,
};
use stockade_files::OmittedObject;
use stockade_model::{
    AfterRestart, BackendChoice, Profile, SandboxId, SandboxLifetime, SandboxRecord, SandboxSpec, SandboxState,
    WorkspaceSource,
};
use stockade_store::sandboxes::{DueReason, SandboxLease, SandboxStore as Store};

use crate::directories::{self, SandboxDirectories};
use crate::{HiddenFiles, LifecycleError};

/// Requested sandbox, resolved as far as only the caller can.
#[derive(Clone, Debug)]
pub struct SandboxRequest {
    /// Specification of the sandbox.
    pub spec: SandboxSpec,
    /// The profile that the specification names, with limits lowered to the specification's.
    pub profile: Profile,
    /// Files that are never copied from a directory of the host.
    pub hidden: HiddenFiles,
}

/// A sandbox that this process uses.
pub struct OpenSandbox {
    /// The sandbox.
    pub sandbox: Box<dyn Sandbox>,
    /// The use of the sandbox, which ends with [`Lifecycle::leave_sandbox`].
    pub used: SandboxLease,
    /// True if its processes were gone, so that it was recreated around its files.
    pub is_anew: bool,
    /// For a new sandbox: the reasons against the kinds that are preferred to its own.
    pub passed_over: Vec<String>,
    /// Files that were left out of the copy in its workspace.
    pub left_out: Vec<OmittedObject>,
}

impl OpenSandbox {
    /// Wraps an existing sandbox.
    fn from_existing(sandbox: Box<dyn Sandbox>, used: SandboxLease, is_anew: bool) -> Self {
        Self { sandbox, used, is_anew, passed_over: Vec::new(), left_out: Vec::new() }
    }
}

/// Reason for destroying a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestroyReason {
    /// A user requested it.
    Asked,
    /// The lifetime has ended.
    Expired,
    /// The sandbox was not used.
    Idle,
    /// The process that created or destroyed the sandbox was killed.
    Abandoned,
    /// The sandbox is not kept after a restart.
    Restarted,
}

impl DestroyReason {
    /// Returns the text for a user.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "its user requested it",
            Self::Expired => "its time to live has expired",
            Self::Idle => "its idle time has expired",
            Self::Abandoned => "its owner process was killed",
            Self::Restarted => "it does not survive a restart",
        }
    }
}

/// Result of destroying one sandbox in a sweep.
#[derive(Debug)]
pub struct SweepResult {
    /// Id of the sandbox.
    pub id: SandboxId,
    /// Reason.
    pub why: DestroyReason,
    /// Result; the next sweep retries a failure.
    pub done: Result<(), LifecycleError>,
}

/// All sandboxes of a user, and the kinds available on this machine.
pub struct Lifecycle {
    store: Arc<Store>,
    /// In order of preference.
    kinds: Vec<Arc<dyn SandboxProvider>>,
    clock: Arc<dyn Clock>,
    ended: Option<DestroyCallback>,
}

/// Callback for a destroyed sandbox, with the reason.
type DestroyCallback = Box<dyn Fn(&SandboxRecord, &str) + Send + Sync>;

impl Lifecycle {
    /// Creates a lifecycle over a store. The first kind that meets the requirements is chosen.
    pub fn new(store: Arc<Store>, kinds: Vec<Arc<dyn SandboxProvider>>, clock: Arc<dyn Clock>) -> Self {
        Self { store, kinds, clock, ended: None }
    }

    /// Sets a callback for each destroyed sandbox, with the reason.
    #[must_use]
    pub fn on_destroyed(self, ended: impl Fn(&SandboxRecord, &str) + Send + Sync + 'static) -> Self {
        Self { ended: Some(Box::new(ended)), ..self }
    }

    /// Returns the store of the sandboxes' records.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Creates a sandbox: its directories, then its isolation. Commands in it then clone a
    /// repository into the workspace, see [`clone_steps`](crate::clone_steps).
    ///
    /// # Errors
    /// [`LifecycleError`] if it cannot be created. Its record is marked as failed then, and its
    /// files are removed.
    pub fn create_sandbox(
        &self,
        id: SandboxId,
        request: &SandboxRequest,
        events: SandboxEventSender,
    ) -> Result<OpenSandbox, LifecycleError> {
        let (kind, passed_over) = self.choose_provider(&id, request)?;
        let claim = self.store.begin_sandbox(id.clone(), request.spec.clone(), self.now_ms())?;
        let made = (|| {
            self.store.set_backend(&claim, kind.name())?;
            let spec = &request.spec;
            let hidden = request.hidden.clone();
            let (sandbox_directories, left_out) = SandboxDirectories::create_directories(
                claim.path(),
                &id,
                (&spec.workspace, hidden),
                &request.profile.limits,
            )?;
            let sandbox = kind.create_sandbox(&make_plan(&id, request, sandbox_directories), events)?;
            self.store.change_state(&id, SandboxState::Ready, None, self.now_ms())?;
            Ok((sandbox, left_out))
        })();
        drop(claim);
        match made {
            Ok((sandbox, left_out)) => {
                let used = self.store.begin_use(&id, self.now_ms())?;
                Ok(OpenSandbox { sandbox, used, is_anew: false, passed_over, left_out })
            }
            Err(error) => {
                self.give_up(&id, &error);
                Err(error)
            }
        }
    }

    /// Starts using a sandbox. Finds its processes, or recreates it around its files.
    ///
    /// # Errors
    /// [`LifecycleError`] if there is no such sandbox, if it is not ready, or if its isolation
    /// cannot be set up.
    pub fn open_sandbox(
        &self,
        id: &SandboxId,
        request: &SandboxRequest,
        events: SandboxEventSender,
    ) -> Result<OpenSandbox, LifecycleError> {
        let used = self.use_files(id)?;
        let kind = self.kind_of(used.record())?;
        let sandbox_directories = SandboxDirectories::open_checked(used.path(), &used.record().spec.workspace)?;
        let plan = make_plan(id, request, sandbox_directories);
        match kind.adopt_sandbox(&plan, events.clone()) {
            Err(SandboxError::Gone(_)) if used.record().spec.after_restart == AfterRestart::Destroy => {
                self.release_files(used)?;
                self.destroy_sandbox(id, DestroyReason::Restarted)?;
                Err(SandboxError::Gone(id.clone()).into())
            }
            Err(SandboxError::Gone(_)) => {
                Ok(OpenSandbox::from_existing(kind.create_sandbox(&plan, events)?, used, true))
            }
            found => Ok(OpenSandbox::from_existing(found?, used, false)),
        }
    }

    /// Starts using the files of a sandbox, without its processes: see [`files`](crate::files).
    ///
    /// # Errors
    /// [`LifecycleError`] if there is no such sandbox, or if it is not ready.
    pub fn use_files(&self, id: &SandboxId) -> Result<SandboxLease, LifecycleError> {
        Ok(self.store.begin_use(id, self.now_ms())?)
    }

    /// Ends the use of the files.
    ///
    /// # Errors
    /// The errors of [`leave_sandbox`](Self::leave_sandbox).
    pub fn release_files(&self, used: SandboxLease) -> Result<(), LifecycleError> {
        Ok(self.store.end_use(used, self.now_ms())?)
    }

    /// Extends the lifetime of a sandbox, counted from now.
    ///
    /// # Errors
    /// [`LifecycleError`] if there is no such sandbox, or if it has ended.
    pub fn extend(&self, id: &SandboxId, ttl: SandboxLifetime) -> Result<(), LifecycleError> {
        Ok(self.store.extend(id, self.now_ms().saturating_add(ttl.as_millis()))?)
    }

    /// Ends a use.
    ///
    /// # Errors
    /// [`LifecycleError`] if the end cannot be recorded; the use ends nevertheless.
    pub fn leave_sandbox(&self, opened: OpenSandbox) -> Result<(), LifecycleError> {
        drop(opened.sandbox);
        self.release_files(opened.used)
    }

    /// Freezes every process of an open sandbox.
    ///
    /// # Errors
    /// [`LifecycleError`] if that fails: the processes continue then.
    pub fn pause_sandbox(&self, opened: &OpenSandbox) -> Result<(), LifecycleError> {
        opened.sandbox.pause()?;
        self.set_state(opened, SandboxState::Paused)
    }

    /// Thaws the processes of an open sandbox.
    ///
    /// # Errors
    /// [`LifecycleError`] if that fails: they stay frozen then.
    pub fn resume_sandbox(&self, opened: &OpenSandbox) -> Result<(), LifecycleError> {
        opened.sandbox.resume()?;
        self.set_state(opened, SandboxState::Ready)
    }

    /// Resumes a paused sandbox, whichever process paused it. If its processes are gone meanwhile,
    /// the next use recreates it.
    ///
    /// # Errors
    /// [`LifecycleError`] if it is not paused, or cannot be resumed: it stays paused then.
    pub fn go_on(
        &self,
        id: &SandboxId,
        request: &SandboxRequest,
        events: SandboxEventSender,
    ) -> Result<(), LifecycleError> {
        // A paused sandbox is not in use, so no use starts here.
        let record = self.store.require_state(id, SandboxState::Paused)?;
        if let Some(sandbox) = self.find_sandbox(&record, request, events)? {
            sandbox.resume()?;
        }
        Ok(self.store.change_state(id, SandboxState::Ready, None, self.now_ms()).map(drop)?)
    }

    /// Finds a sandbox without using it; `None` if its processes are gone.
    ///
    /// # Errors
    /// [`LifecycleError`] if its state cannot be read.
    pub fn find_sandbox(
        &self,
        record: &SandboxRecord,
        request: &SandboxRequest,
        events: SandboxEventSender,
    ) -> Result<Option<Box<dyn Sandbox>>, LifecycleError> {
        let sandbox_directories =
            SandboxDirectories::from_source(&self.store.sandbox_directory(&record.id), &record.spec.workspace);
        match self.kind_of(record)?.adopt_sandbox(&make_plan(&record.id, request, sandbox_directories), events) {
            Err(SandboxError::Gone(_)) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    fn set_state(&self, opened: &OpenSandbox, state: SandboxState) -> Result<(), LifecycleError> {
        Ok(self.store.change_state(opened.sandbox.id(), state, None, self.now_ms()).map(drop)?)
    }

    /// Destroys a sandbox: it cannot be used from now on, its processes are ended, its files are
    /// removed. A workspace that is a directory of the host stays.
    ///
    /// # Errors
    /// [`LifecycleError`] if some part remains, or if it is still in use. It stays marked for
    /// destruction, and the next sweep continues.
    pub fn destroy_sandbox(&self, id: &SandboxId, why: DestroyReason) -> Result<(), LifecycleError> {
        self.remove(id, why.as_str())
    }

    fn remove(&self, id: &SandboxId, why: &str) -> Result<(), LifecycleError> {
        let record = self.store.change_state(id, SandboxState::Destroying, Some(why), self.now_ms())?;
        match self.remove_all(&record) {
            // Another process that swept has destroyed it meanwhile.
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
        self.remove_directories(&record.id)
    }

    /// Removes the files of a sandbox without processes.
    fn remove_directories(&self, id: &SandboxId) -> Result<(), LifecycleError> {
        let claim = self.store.claim_sandbox(id)?;
        directories::remove(claim.path(), id)?;
        Ok(self.store.close_sandbox(claim, self.now_ms())?)
    }

    /// Destroys sandboxes whose lifetime has ended, and those that were abandoned while they were
    /// created or destroyed. To be called before every use of sandboxes.
    ///
    /// # Errors
    /// [`LifecycleError`] if the store failed; the result contains the outcome of each sandbox.
    pub fn sweep_sandboxes(&self) -> Result<Vec<SweepResult>, LifecycleError> {
        self.store.remove_strays()?;
        let abandoned = self.store.abandoned_sandboxes()?.into_iter().map(|record| (record, DestroyReason::Abandoned));
        let due = self.store.due_sandboxes(self.now_ms())?.into_iter().map(|(record, due)| match due {
            DueReason::Expired => (record, DestroyReason::Expired),
            DueReason::Idle => (record, DestroyReason::Idle),
        });
        let all: Vec<(SandboxRecord, DestroyReason)> = abandoned.chain(due).collect();
        Ok(all.into_iter().map(|(record, why)| self.sweep_sandbox(record.id, why)).collect())
    }

    /// Sweeps once at the start of an engine that is the only one of this store. It also destroys
    /// the predecessor's sandboxes that are not kept after a restart.
    ///
    /// # Errors
    /// The errors of [`sweep_sandboxes`](Self::sweep_sandboxes).
    pub fn recover_sandboxes(&self) -> Result<Vec<SweepResult>, LifecycleError> {
        let mut swept = self.sweep_sandboxes()?;
        for record in self.store.list_sandboxes()? {
            let stands = matches!(record.state, SandboxState::Ready | SandboxState::Paused | SandboxState::Lost);
            if stands && record.spec.after_restart == AfterRestart::Destroy {
                swept.push(self.sweep_sandbox(record.id, DestroyReason::Restarted));
            }
        }
        Ok(swept)
    }

    fn sweep_sandbox(&self, id: SandboxId, why: DestroyReason) -> SweepResult {
        let done = match self.destroy_sandbox(&id, why) {
            // As in `remove`, but before it started.
            Err(_) if self.is_over(&id) => Ok(()),
            done => done,
        };
        SweepResult { id, why, done }
    }

    fn is_over(&self, id: &SandboxId) -> bool {
        let found = self.store.find_sandbox(id);
        found.is_ok_and(|record| record.is_some_and(|record| record.state == SandboxState::Destroyed))
    }

    /// Removes a sandbox whose creation failed. The backend that failed has removed its own parts,
    /// and may not be available for another request.
    fn give_up(&self, id: &SandboxId, error: &LifecycleError) {
        let why = error.to_string();
        let ends = || {
            self.store.change_state(id, SandboxState::Failed, Some(&why), self.now_ms())?;
            self.store.change_state(id, SandboxState::Destroying, Some(&why), self.now_ms())?;
            self.remove_directories(id)
        };
        if let Err(error) = ends() {
            tracing::warn!("the files of the failed sandbox {id} are left for the next cleanup: {error}");
        }
    }

    /// Returns the requested kind without a check of its requirements, or the first kind that meets
    /// them. Also returns the reasons against the preferred kinds.
    fn choose_provider(
        &self,
        id: &SandboxId,
        request: &SandboxRequest,
    ) -> Result<(&Arc<dyn SandboxProvider>, Vec<String>), LifecycleError> {
        let backend_choice = request.spec.backend;
        if backend_choice != BackendChoice::Auto {
            return Ok((self.kind_named(&backend_choice.to_string())?, Vec::new()));
        }
        let plan = make_plan(
            id,
            request,
            SandboxDirectories::from_source(&self.store.sandbox_directory(id), &request.spec.workspace),
        );
        let mut passed_over = Vec::new();
        for kind in &self.kinds {
            match kind.check_plan(&plan) {
                Ok(()) => return Ok((kind, passed_over)),
                Err(error) => passed_over.push(error.to_string()),
            }
        }
        Err(LifecycleError::NoKind(passed_over.join("; ")))
    }

    fn kind_of(&self, record: &SandboxRecord) -> Result<&Arc<dyn SandboxProvider>, LifecycleError> {
        self.kind_named(record.backend.as_deref().unwrap_or_default())
    }

    fn kind_named(&self, name: &str) -> Result<&Arc<dyn SandboxProvider>, LifecycleError> {
        let found = self.kinds.iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| LifecycleError::NoKind(format!("there is no kind `{name}` here")))
    }

    fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }
}

fn make_plan(id: &SandboxId, request: &SandboxRequest, sandbox_directories: SandboxDirectories) -> SandboxPlan {
    let mut profile = request.profile.clone();
    if !matches!(request.spec.workspace, WorkspaceSource::Bind { .. }) {
        // The host trusts no name in a workspace of the sandbox's own.
        profile.filesystem.protect.clear();
    }
    SandboxPlan {
        id: id.clone(),
        system: guest_system(&request.spec),
        workspace: sandbox_directories.workspace,
        home: sandbox_directories.home,
        profile,
        level: request.spec.level,
        background: request.spec.background,
        runtime: request.spec.runtime.clone(),
    }
}

fn guest_system(spec: &SandboxSpec) -> Option<GuestSystem> {
    let tree = spec.root.as_ref().map(|root| GuestSystem::Tree(root.as_raw().as_path().to_owned()));
    tree.or_else(|| spec.image.clone().map(GuestSystem::Image))
}

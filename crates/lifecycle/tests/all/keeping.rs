//! What is made, found, swept and left alone.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stockade_backend_api::SandboxEventSender;
use stockade_lifecycle::{DestroyReason, HiddenFiles, Lifecycle, LifecycleError, OpenSandbox, SandboxRequest};
use stockade_model::{
    AfterRestart, BackendChoice, BackgroundPolicy, EnvironmentRules, FilesystemAccess, HostDirectory, Limits,
    NetworkAccess, Profile, RawText, SandboxId, SandboxSpec, SandboxState, WorkspaceSource,
};
use stockade_store::sandboxes::SandboxStore as Store;

use crate::fake_isolation::{FakeIsolation, Hands, Noted};

struct House {
    _dir: tempfile::TempDir,
    /// Where sandboxes are kept.
    root: PathBuf,
    /// A directory of the person.
    project: PathBuf,
    noted: Arc<Noted>,
    clock: Arc<Hands>,
    lifecycle: Lifecycle,
}

impl House {
    fn new() -> Self {
        Self::with_kinds(|noted| vec![FakeIsolation { name: "native", keeps_background: false, stands: false, noted }])
    }

    fn with_kinds(kinds: impl FnOnce(Arc<Noted>) -> Vec<FakeIsolation>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (root, project) = (base.join("state"), base.join("project"));
        fs::create_dir_all(project.join("src")).unwrap();
        fs::write(project.join("src/main"), "code").unwrap();
        symlink("/etc", project.join("link")).unwrap();
        let (noted, clock) = (Arc::<Noted>::default(), Arc::<Hands>::default());
        let store = Arc::new(Store::open(&root).unwrap());
        let kinds = kinds(Arc::clone(&noted)).into_iter().map(|provider| Arc::new(provider) as _).collect();
        let lifecycle = Lifecycle::new(store, kinds, Arc::clone(&clock) as _);
        Self { _dir: dir, root, project, noted, clock, lifecycle }
    }

    fn create(&self, n: u8, sandbox_request: &SandboxRequest) -> Result<OpenSandbox, LifecycleError> {
        self.lifecycle.create_sandbox(id(n), sandbox_request, SandboxEventSender::new(|_| {}))
    }

    fn open(&self, n: u8) -> Result<OpenSandbox, LifecycleError> {
        self.lifecycle.open_sandbox(&id(n), &sandbox_request(), SandboxEventSender::new(|_| {}))
    }

    fn made(&self, n: u8, sandbox_request: &SandboxRequest) {
        self.lifecycle.leave_sandbox(self.create(n, sandbox_request).unwrap()).unwrap();
        self.noted.calls();
    }

    fn state(&self, n: u8) -> (SandboxState, Option<String>) {
        let record = self.lifecycle.store().find_sandbox(&id(n)).unwrap().unwrap();
        (record.state, record.why)
    }

    fn kept_directory(&self, n: u8) -> PathBuf {
        self.root.join(id(n).as_str())
    }

    fn in_project(&self) -> HostDirectory {
        directory(&self.project)
    }
}

fn id(n: u8) -> SandboxId {
    SandboxId::from_random([n; 16])
}

fn directory(path: &Path) -> HostDirectory {
    RawText::from(path).try_into().unwrap()
}

fn sandbox_request() -> SandboxRequest {
    let profile = Profile {
        name: "workspace".to_owned(),
        sandboxed: true,
        filesystem: FilesystemAccess::default(),
        exec: Default::default(),
        network: NetworkAccess::None,
        egress: Default::default(),
        environment: EnvironmentRules::default(),
        limits: Limits::default(),
    };
    SandboxRequest { spec: SandboxSpec::of_profile("workspace"), profile, hidden: HiddenFiles::default() }
}

fn with_workspace(workspace: WorkspaceSource) -> SandboxRequest {
    SandboxRequest { spec: SandboxSpec { workspace, ..sandbox_request().spec }, ..sandbox_request() }
}

#[test]
fn one_is_made_used_and_destroyed() {
    let house = House::new();
    let opened = house.create(1, &sandbox_request()).unwrap();
    assert_eq!(house.state(1), (SandboxState::Ready, None));
    assert_eq!(opened.used.record().backend.as_deref(), Some("native"));
    for name in ["workspace", "home"] {
        assert_eq!(
            fs::metadata(house.kept_directory(1).join(name)).unwrap().permissions().mode() & 0o7777,
            0o700,
            "{name}"
        );
    }
    house.lifecycle.leave_sandbox(opened).unwrap();
    assert_eq!(house.noted.calls(), ["create"]);
    // Its isolation ended with its creator; its files remained.
    fs::write(house.kept_directory(1).join("workspace/file"), "kept").unwrap();
    house.lifecycle.leave_sandbox(house.open(1).unwrap()).unwrap();
    assert_eq!(house.noted.calls(), ["adopt", "create"]);
    assert_eq!(fs::read_to_string(house.kept_directory(1).join("workspace/file")).unwrap(), "kept");
    house.lifecycle.destroy_sandbox(&id(1), DestroyReason::Asked).unwrap();
    assert_eq!(house.noted.calls(), ["clear"]);
    assert_eq!(house.state(1), (SandboxState::Destroyed, Some("its user requested it".to_owned())));
    assert!(!house.kept_directory(1).exists());
    assert!(house.open(1).is_err());
}

#[test]
fn existing_namespaces_are_found_again() {
    let house =
        House::with_kinds(|noted| vec![FakeIsolation { name: "docker", keeps_background: true, stands: true, noted }]);
    house.made(1, &sandbox_request());
    let opened = house.open(1).unwrap();
    house.lifecycle.pause_sandbox(&opened).unwrap();
    assert_eq!(house.state(1).0, SandboxState::Paused);
    house.lifecycle.resume_sandbox(&opened).unwrap();
    assert_eq!(house.state(1).0, SandboxState::Ready);
    assert_eq!(house.noted.calls(), ["adopt", "pause", "resume"]);
}

#[test]
fn a_failed_creation_leaves_only_its_reason() {
    let house = House::new();
    *house.noted.refuses.lock().unwrap() = Some("create");
    let error = house.create(1, &sandbox_request()).err().unwrap();
    assert_eq!(error.to_string(), "create was refused");
    assert_eq!(house.state(1), (SandboxState::Destroyed, Some("create was refused".to_owned())));
    assert!(!house.kept_directory(1).exists());
    // The refusing process may have exited: nothing of its isolation was left.
    assert_eq!(house.noted.calls(), ["create"]);
}

#[test]
fn a_failed_removal_is_repeated_by_the_next() {
    let house = House::new();
    house.made(1, &sandbox_request());
    *house.noted.refuses.lock().unwrap() = Some("clear");
    assert!(house.lifecycle.destroy_sandbox(&id(1), DestroyReason::Asked).is_err());
    assert_eq!(house.state(1).0, SandboxState::Destroying);
    assert!(house.open(1).is_err(), "nobody begins to use it");
    assert!(house.kept_directory(1).join("workspace").exists(), "its processes may still be at it");
    *house.noted.refuses.lock().unwrap() = None;
    let swept = house.lifecycle.sweep_sandboxes().unwrap();
    assert_eq!(swept.len(), 1);
    assert!(swept[0].done.is_ok(), "{swept:?}");
    assert!(!house.kept_directory(1).exists());
    assert!(house.lifecycle.sweep_sandboxes().unwrap().is_empty());
}

#[test]
fn leftovers_of_a_killed_creator_are_removed_by_the_next_sweep() {
    let house = House::new();
    let claim = house.lifecycle.store().begin_sandbox(id(1), sandbox_request().spec, 0).unwrap();
    fs::create_dir(claim.path().join("workspace")).unwrap();
    fs::write(claim.path().join("workspace/half"), "x").unwrap();
    assert!(house.lifecycle.sweep_sandboxes().unwrap().is_empty(), "somebody is at it");
    drop(claim);
    let swept = house.lifecycle.sweep_sandboxes().unwrap();
    assert_eq!((swept.len(), swept[0].why), (1, DestroyReason::Abandoned));
    assert!(!house.kept_directory(1).exists());
}

#[test]
fn directories_locked_by_its_commands_are_removed_too() {
    let house = House::new();
    house.made(1, &sandbox_request());
    let deep = house.kept_directory(1).join("workspace/a/b");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "x").unwrap();
    symlink(&house.project, deep.join("link")).unwrap();
    for locked in [&deep, deep.parent().unwrap()] {
        fs::set_permissions(locked, fs::Permissions::from_mode(0o000)).unwrap();
    }
    house.lifecycle.destroy_sandbox(&id(1), DestroyReason::Asked).unwrap();
    assert!(!house.kept_directory(1).exists());
    assert!(house.project.join("src/main").exists(), "a link was followed");
}

#[test]
fn a_bound_workspace_stays_and_a_copied_one_is_a_copy() {
    let house = House::new();
    house.made(1, &with_workspace(WorkspaceSource::Bind { directory: house.in_project() }));
    assert!(!house.kept_directory(1).join("workspace").exists());
    house.lifecycle.destroy_sandbox(&id(1), DestroyReason::Asked).unwrap();
    assert_eq!(fs::read_to_string(house.project.join("src/main")).unwrap(), "code");
    house.made(2, &with_workspace(WorkspaceSource::Copy { directory: house.in_project() }));
    let copied = house.kept_directory(2).join("workspace");
    assert_eq!(fs::read_to_string(copied.join("src/main")).unwrap(), "code");
    assert_eq!(fs::read_link(copied.join("link")).unwrap(), Path::new("/etc"));
    fs::write(copied.join("src/main"), "changed").unwrap();
    assert_eq!(fs::read_to_string(house.project.join("src/main")).unwrap(), "code");
}

#[test]
fn a_workspace_is_the_intended_directory() {
    let house = House::new();
    let link = house.project.with_file_name("to-project");
    symlink(&house.project, &link).unwrap();
    for bad in [link.join("src"), link, house.project.join("src/main"), house.project.join("missing")] {
        for source in
            [WorkspaceSource::Bind { directory: directory(&bad) }, WorkspaceSource::Copy { directory: directory(&bad) }]
        {
            let n = 10;
            let error = house.create(n, &with_workspace(source)).err().unwrap();
            assert!(matches!(error, LifecycleError::Directory { .. }), "{error}");
            assert!(!house.kept_directory(n).exists());
            house.lifecycle.store().prune_records(u64::MAX).unwrap();
        }
    }
    let mut small = with_workspace(WorkspaceSource::Copy { directory: house.in_project() });
    small.profile.limits.disk_bytes = Some(3);
    assert!(matches!(house.create(1, &small).err(), Some(LifecycleError::Copy(_))));
    assert_eq!(house.state(1).0, SandboxState::Destroyed);
}

#[test]
fn time_and_restarts_end_temporary_approvals() {
    let house = House::new();
    let life = |spec: SandboxSpec| SandboxRequest { spec, ..sandbox_request() };
    let ttl = Some(10_000.try_into().unwrap());
    house.made(1, &life(SandboxSpec { ttl_ms: ttl, ..sandbox_request().spec }));
    house.made(2, &life(SandboxSpec { idle_ms: ttl, ..sandbox_request().spec }));
    house.made(3, &life(SandboxSpec { after_restart: AfterRestart::Destroy, ..sandbox_request().spec }));
    house.made(4, &sandbox_request());
    house.clock.0.store(5_000, Ordering::Relaxed);
    house.lifecycle.leave_sandbox(house.open(2).unwrap()).unwrap();
    house.clock.0.store(10_000, Ordering::Relaxed);
    let ended = |swept: Vec<stockade_lifecycle::SweepResult>| -> Vec<(SandboxId, DestroyReason)> {
        swept.into_iter().map(|swept| (swept.id, swept.done.map(|()| swept.why).unwrap())).collect()
    };
    assert_eq!(ended(house.lifecycle.sweep_sandboxes().unwrap()), [(id(1), DestroyReason::Expired)]);
    house.clock.0.store(15_000, Ordering::Relaxed);
    assert_eq!(
        ended(house.lifecycle.recover_sandboxes().unwrap()),
        [(id(2), DestroyReason::Idle), (id(3), DestroyReason::Restarted)]
    );
    assert_eq!(house.state(4).0, SandboxState::Ready);
}

#[test]
fn the_first_usable_kind_is_chosen_and_none_is_explained() {
    let kinds = |noted: Arc<Noted>| {
        let provider =
            |name, keeps_background| FakeIsolation { name, keeps_background, stands: false, noted: Arc::clone(&noted) };
        vec![provider("native", false), provider("docker", true)]
    };
    let house = House::with_kinds(kinds);
    let spec = |change: &dyn Fn(&mut SandboxSpec)| {
        let mut sandbox_request = sandbox_request();
        change(&mut sandbox_request.spec);
        sandbox_request
    };
    let backend = |n, sandbox_request: &SandboxRequest| {
        house.create(n, sandbox_request).map(|opened| opened.used.record().backend.clone().unwrap())
    };
    assert_eq!(backend(1, &sandbox_request()).unwrap(), "native");
    assert_eq!(backend(2, &spec(&|spec| spec.background = BackgroundPolicy::Keep)).unwrap(), "docker");
    assert_eq!(backend(3, &spec(&|spec| spec.runtime = Some("runsc".parse().unwrap()))).unwrap(), "docker");
    assert_eq!(backend(4, &spec(&|spec| spec.backend = BackendChoice::Docker)).unwrap(), "docker");
    let opened = house.create(5, &spec(&|spec| spec.background = BackgroundPolicy::Keep)).unwrap();
    assert_eq!(opened.passed_over, ["keeping is not supported by a native sandbox: it ends all"]);
    let neither = House::with_kinds(|noted| {
        vec![FakeIsolation { name: "native", keeps_background: false, stands: false, noted }]
    });
    let error =
        neither.create(6, &spec(&|spec| spec.background = BackgroundPolicy::Keep)).map(drop).unwrap_err().to_string();
    assert!(error.contains("keeping is not supported by a native sandbox: it ends all"), "{error}");
    assert_eq!(neither.lifecycle.store().find_sandbox(&id(6)).unwrap(), None, "nothing was begun");
}

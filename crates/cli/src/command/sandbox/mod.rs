//! `stockade sandbox`: persistent sandboxes, and commands in them. Each has a supervisor process of
//! its own (see [`keep`]); processes that a command leaves behind continue there.

pub mod containers;
mod copy;
mod copy_rules;
mod diff;
mod exec;
mod herald;
mod hidden;
mod keep;
mod snapshot;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stockade_engine::seams::SystemClock;
use stockade_engine::{self as engine, INSIDE_HOME, INSIDE_WORKSPACE, SandboxEvents};
use stockade_lifecycle::{HiddenFiles, Lifecycle, Wanted, Why, repository_grants};
use stockade_model::{
    BackendChoice, Background, Grant, HostDirectory, Labels, Level, Lifetime, RawText, SandboxId, SandboxRecord,
    SandboxSpec, SandboxState, WorkspaceSource,
};
use stockade_native::NativeSandboxes;
use stockade_policy::{NotifyOn, NotifySettings, Settings, resolve_profile};
use stockade_store::sandboxes::Sandboxes;

use self::diff::Difference;
use super::setting::{self, Setting};
use super::{Ended, OWN_PROGRAM, print, remark, variable};
use crate::failure::{Failure, quoted};
use crate::notify::{self, Notice};
use crate::places::{self, State};
use crate::render::{json, sandbox as text};
use crate::sandbox_args::{Kind, SandboxCommand, SandboxCreateArgs, SandboxRunArgs};
use crate::{exit, interrupts, meaning, trace};

/// Idle time-out of the sandbox of `sandbox run`, in case its process is killed: longer than one of
/// its steps takes on a loaded machine.
const LEFT_FOR: Duration = Duration::from_secs(10);

/// Runs a subcommand.
///
/// # Errors
/// [`Failure`] if Stockade itself failed.
pub fn sandbox(typed: SandboxCommand) -> Ended {
    trace::start(None)?;
    match typed {
        SandboxCommand::Create(typed) => create(&typed),
        SandboxCommand::Exec(typed) => exec::exec(typed),
        SandboxCommand::List { all, labels, json } => list(all, &labels_of(&labels)?, json),
        SandboxCommand::Show { id, json } => watch::show(&id, json),
        SandboxCommand::Copy { from, to, replace, grants } => copy::copy(&from, &to, replace, &grants),
        SandboxCommand::Extend { id, ttl } => {
            lifecycle()?.extend(&id, lifetime(ttl)?)?;
            Ok(exit::SUCCESS)
        }
        SandboxCommand::Destroy { ids } => destroy(&ids),
        SandboxCommand::Run(typed) => run(typed),
        SandboxCommand::Pause { id } => watch::pause(&id),
        SandboxCommand::Resume { id } => watch::resume(&id),
        SandboxCommand::Snapshot { id, directory } => snapshot::snapshot(&id, &directory),
        SandboxCommand::Logs { id, follow, json } => watch::logs(&id, follow, json),
        SandboxCommand::Top { once, json } => watch::top(once, json),
        SandboxCommand::Keep => keep::keep(),
    }
}

/// Opens the sandboxes of this user, and destroys those whose lifetime has ended.
fn lifecycle() -> Result<Lifecycle, Failure> {
    let lifecycle = told(lifecycle_of(&State::open(&places::state_path(&variable)?)?)?, notified);
    sweep(&lifecycle)?;
    Ok(lifecycle)
}

/// Opens the sandboxes of this state.
fn lifecycle_of(state: &State) -> Result<Lifecycle, Failure> {
    let store = Arc::new(Sandboxes::open(&state.sandboxes())?);
    let native = NativeSandboxes::default().kept_by(OWN_PROGRAM.into(), keep::arguments(), state.sandboxes());
    let mut kinds: Vec<Arc<dyn engine::Sandboxes>> = vec![Arc::new(native)];
    kinds.extend(containers::all(&state.sandboxes())?.map(|kind| Arc::new(kind) as Arc<dyn engine::Sandboxes>));
    Ok(Lifecycle::new(store, kinds, Arc::new(SystemClock::default())))
}

/// Adds notifications of the end of a sandbox. `whom` is called when one has ended.
fn told(lifecycle: Lifecycle, whom: impl Fn() -> Option<NotifySettings> + Send + Sync + 'static) -> Lifecycle {
    lifecycle.telling(move |record, why| notify::tell(whom().as_ref(), &Notice::new(NotifyOn::Ended, record, why)))
}

/// Returns the notification settings. They are never in a project's file, so none is read. An
/// unusable configuration must not prevent the destruction of a sandbox.
fn notified() -> Option<NotifySettings> {
    let loaded = setting::load(Path::new("/")).inspect_err(|failure| {
        let what = format!("nobody is told what becomes of sandboxes: {failure}");
        crate::complain(&Failure::new(what).or_hint(failure.hint.clone()));
    });
    loaded.ok()?.settings.notify.value.clone()
}

/// Destroys the sandboxes whose lifetime has ended.
fn sweep(lifecycle: &Lifecycle) -> Result<(), Failure> {
    for swept in lifecycle.sweep()? {
        if let Err(error) = swept.done {
            let what = format!("the sandbox {} is over ({}) and could not be destroyed", swept.id, swept.why.as_str());
            let said = Failure::from(error);
            crate::complain(&Failure::new(format!("{what}: {said}")).or_hint(said.hint));
        }
    }
    Ok(())
}

/// Returns a handler that ignores events, because the supervisor records them.
fn unheard() -> SandboxEvents {
    SandboxEvents::new(|_| {})
}

fn create(typed: &SandboxCreateArgs) -> Ended {
    let signals = interrupts::take()?;
    let setting = setting::load(&places::current_directory()?)?;
    let spec = SandboxSpec {
        ttl_ms: typed.ttl.map(lifetime).transpose()?,
        idle_ms: typed.idle_timeout.map(lifetime).transpose()?,
        ..spec(&typed.kind, &setting.settings)?
    };
    let lifecycle = lifecycle()?;
    let id = begin(&lifecycle, spec, &setting, typed.kind.from.as_deref())?;
    exec::clone_into(&lifecycle, &id, signals)?;
    print(&format!("{id}\n"))?;
    Ok(exit::SUCCESS)
}

/// Creates a sandbox, which continues without this process.
fn begin(
    lifecycle: &Lifecycle,
    spec: SandboxSpec,
    setting: &Setting,
    snapshot: Option<&Path>,
) -> Result<SandboxId, Failure> {
    let id = meaning::sandbox_id()?;
    let opened = lifecycle.create(id.clone(), &wanted(spec, &setting.settings)?, unheard())?;
    if let (false, Some(backend)) = (opened.passed_over.is_empty(), &opened.used.record().backend) {
        remark(&text::chosen(backend, &opened.passed_over));
    }
    remark(&text::left_out(&opened.left_out));
    let hidden = hidden_files(&setting.settings, &opened.used.record().spec.profile, INSIDE_WORKSPACE.as_ref())?;
    let filled = snapshot.map_or(Ok(()), |snapshot| snapshot::fill_home(&opened.used, snapshot, hidden));
    let kept = setting.settings.notify.value.as_ref().map_or(Ok(()), |told| notify::keep(told, opened.used.path()));
    let filled = filled.and(kept.map_err(|error| Failure::new(format!("cannot keep whom to tell of it: {error}"))));
    lifecycle.leave(opened)?;
    if filled.is_err() {
        lifecycle.destroy(&id, Why::Asked)?;
    }
    filled.map(|()| id)
}

fn run(typed: SandboxRunArgs) -> Ended {
    let [of_clone, of_command] = [interrupts::take()?, interrupts::take()?];
    let setting = setting::load(&places::current_directory()?)?;
    // If this process is killed, a later one destroys the sandbox.
    let spec = SandboxSpec { idle_ms: Some(lifetime(LEFT_FOR)?), ..spec(&typed.kind, &setting.settings)? };
    let lifecycle = lifecycle()?;
    let id = begin(&lifecycle, spec, &setting, typed.kind.from.as_deref())?;
    let ran = exec::clone_into(&lifecycle, &id, of_clone).and_then(|()| {
        let difference = typed.diff.as_deref().map(|file| Difference::begin(&lifecycle, &id, file)).transpose()?;
        let code = exec::run(&lifecycle, &id, typed.manner, typed.subject, of_command)?;
        difference.map_or(Ok(()), |difference| difference.tell(&lifecycle, &id))?;
        Ok(code)
    });
    let destroyed = lifecycle.destroy(&id, Why::Asked);
    let code = ran?;
    destroyed?;
    Ok(code)
}

fn destroy(ids: &[SandboxId]) -> Ended {
    let lifecycle = lifecycle()?;
    for id in ids {
        lifecycle.destroy(id, Why::Asked)?;
    }
    Ok(exit::SUCCESS)
}

fn list(all: bool, labels: &Labels, as_json: bool) -> Ended {
    let records = lifecycle()?.store().list()?;
    let shown =
        |record: &&SandboxRecord| (all || record.state != SandboxState::Destroyed) && record.spec.labels.hold(labels);
    let mut out = String::new();
    for record in records.iter().filter(shown) {
        out.push_str(&if as_json { json::line(record)? } else { text::listed(record) });
    }
    print(&out)?;
    super::remark_empty(&out, "no sandboxes");
    Ok(exit::SUCCESS)
}

fn find(lifecycle: &Lifecycle, id: &SandboxId) -> Result<SandboxRecord, Failure> {
    lifecycle
        .store()
        .find(id)?
        .ok_or_else(|| Failure::new(format!("there is no sandbox `{id}`")).hint("`stockade sandbox list` shows them"))
}

fn spec(kind: &Kind, settings: &Settings) -> Result<SandboxSpec, Failure> {
    let copied = kind.copy.clone().or_else(|| kind.from.as_deref().map(snapshot::workspace));
    let workspace = match (&copied, &kind.bind, &kind.repo) {
        (Some(directory), ..) => WorkspaceSource::Copy { directory: host_directory(directory, "the workspace")? },
        (_, Some(directory), _) => WorkspaceSource::Bind { directory: host_directory(directory, "the workspace")? },
        (.., Some(url)) => WorkspaceSource::Clone { url: url.clone(), revision: kind.rev.clone() },
        _ => WorkspaceSource::Empty,
    };
    let profile = kind.profile.as_ref().unwrap_or(&settings.profile.value);
    Ok(SandboxSpec {
        workspace,
        limits: meaning::limits(&kind.limits),
        labels: labels_of(&kind.labels)?,
        backend: kind.backend,
        runtime: kind.runtime.clone(),
        image: kind.image.clone(),
        root: kind.root.as_deref().map(|root| host_directory(root, "the root tree")).transpose()?,
        level: kind.level.map(Level::from).unwrap_or_default(),
        background: background(kind),
        ..SandboxSpec::of_profile(profile)
    })
}

/// Returns whether processes that a command leaves behind continue. They do if a supervisor
/// enforces their grants, but not in a container.
fn background(kind: &Kind) -> Background {
    let is_container = kind.image.is_some() || kind.runtime.is_some();
    match kind.backend {
        BackendChoice::Native => Background::Keep,
        BackendChoice::Auto if !is_container => Background::Keep,
        _ => Background::End,
    }
}

fn labels_of(pairs: &[(String, String)]) -> Result<Labels, Failure> {
    Ok(pairs.iter().cloned().collect::<BTreeMap<_, _>>().try_into()?)
}

fn lifetime(time: Duration) -> Result<Lifetime, Failure> {
    Ok(meaning::milliseconds(time).try_into()?)
}

fn host_directory(typed: &Path, what: &str) -> Result<HostDirectory, Failure> {
    let directory = places::real_directory(typed, what)?;
    Ok(RawText::from(directory.as_path()).try_into()?)
}

/// Returns the specification that the isolation of a sandbox is built from.
fn wanted(spec: SandboxSpec, settings: &Settings) -> Result<Wanted, Failure> {
    let hidden = demand_workspace(&spec, settings)?;
    let mut profile = resolve_profile(settings, &spec.profile, INSIDE_WORKSPACE.as_ref(), &own_grants(&spec))?;
    profile.filesystem.hide.extend(hidden);
    profile.filesystem.hide.sort();
    profile.filesystem.hide.dedup();
    profile.limits.lower_to(&spec.limits);
    // Relative paths of the profile refer to the directory that is copied.
    let source = match &spec.workspace {
        WorkspaceSource::Copy { directory } => directory.as_raw().as_path(),
        _ => Path::new(INSIDE_WORKSPACE),
    };
    let hidden = hidden_files(settings, &spec.profile, source)?;
    Ok(Wanted { spec, profile, hidden })
}

/// Returns the files of the host that a profile hides with this workspace.
fn hidden_files(settings: &Settings, profile: &str, workspace: &Path) -> Result<HiddenFiles, Failure> {
    let profile = resolve_profile(settings, profile, workspace, &[])?;
    Ok(HiddenFiles::of(profile.filesystem.hide.iter().map(|path| path.as_path().to_owned())))
}

/// Checks that a directory of the user may be bound or copied, which follows the rules for a
/// workspace of a run. It must not contain the home, credentials, Stockade's own files or the
/// system. Returns the paths inside that are hidden from runs.
fn demand_workspace(spec: &SandboxSpec, settings: &Settings) -> Result<Vec<RawText>, Failure> {
    let (WorkspaceSource::Bind { directory } | WorkspaceSource::Copy { directory }) = &spec.workspace else {
        return Ok(Vec::new());
    };
    let path = directory.as_raw().as_path();
    // The rules apply to the directory itself. A link may have replaced it since.
    if places::real_directory(path, "the workspace")? != path {
        let what = format!("a link is on the way to the workspace {}", quoted(path));
        return Err(Failure::new(what).hint("put the directory back, or destroy the sandbox"));
    }
    let profile = resolve_profile(settings, &spec.profile, path, &[])?;
    places::refuse_system(path, "the workspace")?;
    if matches!(spec.workspace, WorkspaceSource::Bind { .. }) {
        places::demand_own(path, "the workspace")?;
    }
    let hide = profile.filesystem.hide.iter().map(RawText::as_path);
    let beneath = hidden::beneath(path, hide)?;
    let inside = |hidden: &PathBuf| RawText::from(Path::new(INSIDE_WORKSPACE).join(hidden).as_path());
    Ok(beneath.iter().map(inside).collect())
}

/// Returns the grants of each command of a sandbox besides those of its profile.
fn own_grants(spec: &SandboxSpec) -> Vec<Grant> {
    let mut grants = vec![Grant::Write(INSIDE_HOME.into())];
    if !matches!(spec.workspace, WorkspaceSource::Bind { .. }) {
        grants.extend(repository_grants());
    }
    grants
}

//! `stockade sandbox`: persistent sandboxes, and commands in them. Each has a supervisor process of
//! its own (see [`supervisor`]); processes that a command leaves behind continue there.

pub mod containers;
mod copy;
mod copy_rules;
mod diff;
mod exec;
mod hidden;
mod notifier;
mod snapshot;
mod supervisor;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stockade_backend_api::{INSIDE_HOME, INSIDE_WORKSPACE, SandboxEventSender, SandboxProvider, SystemClock};
use stockade_lifecycle::{DestroyReason, HiddenFiles, Lifecycle, SandboxRequest, repository_grants};
use stockade_model::{
    BackendChoice, BackgroundPolicy, Grant, HostDirectory, RawText, SandboxId, SandboxLabels, SandboxLifetime,
    SandboxRecord, SandboxSpec, SandboxState, WorkspaceSource,
};
use stockade_native::NativeSandboxes;
use stockade_policy::{NotifyOn, NotifySettings, PolicySettings, resolve_profile};
use stockade_store::sandboxes::SandboxStore;

use self::diff::SandboxDiff;
use super::configuration::{self, WorkspaceConfig};
use super::{CommandResult, OWN_PROGRAM_PATH, print_each, print_output, print_remark, read_variable};
use crate::failure::{CliError, quote_path};
use crate::locations::{self, StateDirectory};
use crate::notify::{self, SandboxNotification};
use crate::render::sandbox as text;
use crate::sandbox_args::{SandboxCommand, SandboxCreateArgs, SandboxOptions, SandboxRunArgs};
use crate::{exit, interrupts, resolved_args, trace};

/// Idle time-out of the sandbox of `sandbox run`, in case its process is killed: longer than one of
/// its steps takes on a loaded machine.
const RUN_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a subcommand.
///
/// # Errors
/// [`CliError`] if Stockade itself failed.
pub fn dispatch_sandbox(typed: SandboxCommand) -> CommandResult {
    trace::start_tracing(None)?;
    match typed {
        SandboxCommand::Create(typed) => create_from_args(&typed),
        SandboxCommand::Exec(typed) => exec::exec_in_sandbox(typed),
        SandboxCommand::List { all, labels, json } => list_sandboxes(all, &labels_of(&labels)?, json),
        SandboxCommand::Show { id, json } => watch::show_sandbox(&id, json),
        SandboxCommand::Copy { from, to, replace, grants } => copy::copy_files(&from, &to, replace, &grants),
        SandboxCommand::Extend { id, ttl } => {
            open_lifecycle()?.extend(&id, parse_lifetime(ttl)?)?;
            Ok(exit::SUCCESS)
        }
        SandboxCommand::Destroy { ids } => destroy_sandboxes(&ids),
        SandboxCommand::Run(typed) => run_once_in_sandbox(typed),
        SandboxCommand::Pause { id } => watch::pause_sandbox(&id),
        SandboxCommand::Resume { id } => watch::resume_sandbox(&id),
        SandboxCommand::Snapshot { id, directory } => snapshot::create_snapshot(&id, &directory),
        SandboxCommand::Logs { id, follow, json } => watch::show_commands(&id, follow, json),
        SandboxCommand::Top { once, json } => watch::show_usage_table(once, json),
        SandboxCommand::Keep => supervisor::supervise_sandbox(),
    }
}

/// Opens the sandboxes of this user, and destroys those whose lifetime has ended.
fn open_lifecycle() -> Result<Lifecycle, CliError> {
    let lifecycle = add_end_notifications(
        lifecycle_of(&StateDirectory::open(&locations::state_path(&read_variable)?)?)?,
        load_notify_settings,
    );
    destroy_expired(&lifecycle)?;
    Ok(lifecycle)
}

/// Opens the sandboxes of this state.
fn lifecycle_of(state: &StateDirectory) -> Result<Lifecycle, CliError> {
    let store = Arc::new(SandboxStore::open(&state.sandboxes_directory())?);
    let native = NativeSandboxes::default().with_supervisor(
        OWN_PROGRAM_PATH.into(),
        supervisor::build_supervisor_args(),
        state.sandboxes_directory(),
    );
    let mut kinds: Vec<Arc<dyn SandboxProvider>> = vec![Arc::new(native)];
    kinds.extend(
        containers::list_container_backends(&state.sandboxes_directory())?
            .map(|kind| Arc::new(kind) as Arc<dyn SandboxProvider>),
    );
    Ok(Lifecycle::new(store, kinds, Arc::new(SystemClock::default())))
}

/// Adds notifications of the end of a sandbox. `read_settings` is called when one has ended.
fn add_end_notifications(
    lifecycle: Lifecycle,
    read_settings: impl Fn() -> Option<NotifySettings> + Send + Sync + 'static,
) -> Lifecycle {
    lifecycle.on_destroyed(move |record, why| {
        notify::deliver_notification(read_settings().as_ref(), &SandboxNotification::new(NotifyOn::Ended, record, why))
    })
}

/// Returns the notification settings. They are never in a project's file, so none is read. An
/// unusable configuration must not prevent the destruction of a sandbox.
fn load_notify_settings() -> Option<NotifySettings> {
    let loaded = configuration::load_config(Path::new("/")).inspect_err(|failure| {
        let what = format!("no notifications about sandboxes are sent: {failure}");
        crate::print_error(&CliError::new(what).or_hint(failure.hint.clone()));
    });
    loaded.ok()?.settings.notify.value.clone()
}

/// Destroys the sandboxes whose lifetime has ended.
fn destroy_expired(lifecycle: &Lifecycle) -> Result<(), CliError> {
    for swept in lifecycle.sweep_sandboxes()? {
        if let Err(error) = swept.done {
            let what =
                format!("the sandbox {} has ended ({}) and could not be destroyed", swept.id, swept.why.as_str());
            let cli_error = CliError::from(error);
            crate::print_error(&CliError::new(format!("{what}: {cli_error}")).or_hint(cli_error.hint));
        }
    }
    Ok(())
}

/// Returns a handler that ignores events, because the supervisor records them.
fn ignore_events() -> SandboxEventSender {
    SandboxEventSender::new(|_| {})
}

fn create_from_args(typed: &SandboxCreateArgs) -> CommandResult {
    let signals = interrupts::take_signals()?;
    let setting = configuration::load_config(&locations::current_directory()?)?;
    let spec = SandboxSpec {
        ttl_ms: typed.ttl.map(parse_lifetime).transpose()?,
        idle_ms: typed.idle_timeout.map(parse_lifetime).transpose()?,
        ..build_sandbox_spec(&typed.kind, &setting.settings)?
    };
    let lifecycle = open_lifecycle()?;
    let id = create_sandbox(&lifecycle, spec, &setting, typed.kind.from.as_deref())?;
    exec::clone_into(&lifecycle, &id, signals)?;
    print_output(&format!("{id}\n"))
}

/// Creates a sandbox, which continues without this process.
fn create_sandbox(
    lifecycle: &Lifecycle,
    spec: SandboxSpec,
    setting: &WorkspaceConfig,
    snapshot: Option<&Path>,
) -> Result<SandboxId, CliError> {
    let id = resolved_args::sandbox_id()?;
    let opened =
        lifecycle.create_sandbox(id.clone(), &build_isolation_spec(spec, &setting.settings)?, ignore_events())?;
    if let (false, Some(backend)) = (opened.passed_over.is_empty(), &opened.used.record().backend) {
        print_remark(&text::backend_message(backend, &opened.passed_over));
    }
    print_remark(&text::left_out(&opened.left_out));
    let hidden = hidden_files(&setting.settings, &opened.used.record().spec.profile, INSIDE_WORKSPACE.as_ref())?;
    let store_settings = |settings: &NotifySettings| notify::store_settings(settings, opened.used.path());
    let stored = setting.settings.notify.value.as_ref().map_or(Ok(()), store_settings);
    let filled = snapshot
        .map_or(Ok(()), |snapshot| snapshot::fill_home(&opened.used, snapshot, hidden))
        .and(stored.map_err(|error| CliError::new(format!("cannot store the notification settings: {error}"))));
    lifecycle.leave_sandbox(opened)?;
    if filled.is_err() {
        lifecycle.destroy_sandbox(&id, DestroyReason::Asked)?;
    }
    filled.map(|()| id)
}

fn run_once_in_sandbox(typed: SandboxRunArgs) -> CommandResult {
    let [of_clone, of_command] = [interrupts::take_signals()?, interrupts::take_signals()?];
    let setting = configuration::load_config(&locations::current_directory()?)?;
    // If this process is killed, a later one destroys the sandbox.
    let spec = SandboxSpec {
        idle_ms: Some(parse_lifetime(RUN_IDLE_TIMEOUT)?),
        ..build_sandbox_spec(&typed.kind, &setting.settings)?
    };
    let lifecycle = open_lifecycle()?;
    let id = create_sandbox(&lifecycle, spec, &setting, typed.kind.from.as_deref())?;
    let ran = exec::clone_into(&lifecycle, &id, of_clone).and_then(|()| {
        let difference =
            typed.diff.as_deref().map(|file| SandboxDiff::start_diff(&lifecycle, &id, file)).transpose()?;
        let code = exec::run_in_sandbox(&lifecycle, &id, typed.manner, typed.subject, of_command)?;
        difference.map_or(Ok(()), |difference| difference.write_diff(&lifecycle, &id))?;
        Ok(code)
    });
    let destroyed = lifecycle.destroy_sandbox(&id, DestroyReason::Asked);
    let code = ran?;
    destroyed?;
    Ok(code)
}

fn destroy_sandboxes(ids: &[SandboxId]) -> CommandResult {
    let lifecycle = open_lifecycle()?;
    for id in ids {
        lifecycle.destroy_sandbox(id, DestroyReason::Asked)?;
    }
    Ok(exit::SUCCESS)
}

fn list_sandboxes(all: bool, labels: &SandboxLabels, as_json: bool) -> CommandResult {
    let records = open_lifecycle()?.store().list_sandboxes()?;
    let shown = |record: &&SandboxRecord| {
        (all || record.state != SandboxState::Destroyed) && record.spec.labels.contains_all(labels)
    };
    let found: Vec<_> = records.iter().filter(shown).collect();
    super::remark_empty(found.is_empty(), "no sandboxes");
    print_each(&found, as_json, (|record| *record, |record| text::format_line(record)), "")
}

fn find_sandbox(lifecycle: &Lifecycle, id: &SandboxId) -> Result<SandboxRecord, CliError> {
    lifecycle.store().find_sandbox(id)?.ok_or_else(|| {
        CliError::new(format!("there is no sandbox `{id}`")).with_hint("`stockade sandbox list` shows them")
    })
}

fn build_sandbox_spec(kind: &SandboxOptions, settings: &PolicySettings) -> Result<SandboxSpec, CliError> {
    let copied = kind.copy.clone().or_else(|| kind.from.as_deref().map(snapshot::locate_workspace));
    let workspace = match (&copied, &kind.bind, &kind.repo) {
        (Some(directory), ..) => WorkspaceSource::Copy { directory: host_directory(directory, "the workspace")? },
        (_, Some(directory), _) => WorkspaceSource::Bind { directory: host_directory(directory, "the workspace")? },
        (.., Some(url)) => WorkspaceSource::Clone { url: url.clone(), revision: kind.rev.clone() },
        _ => WorkspaceSource::Empty,
    };
    let profile = kind.profile.as_ref().unwrap_or(&settings.profile.value);
    Ok(SandboxSpec {
        workspace,
        limits: resolved_args::combine_limits(&kind.limits),
        labels: labels_of(&kind.labels)?,
        backend: kind.backend,
        runtime: kind.runtime.clone(),
        image: kind.image.clone(),
        root: kind.root.as_deref().map(|root| host_directory(root, "the root tree")).transpose()?,
        level: kind.level.unwrap_or_default(),
        background: choose_background_mode(kind),
        ..SandboxSpec::of_profile(profile)
    })
}

/// Returns whether processes that a command leaves behind continue. They do if a supervisor
/// enforces their grants, but not in a container.
fn choose_background_mode(kind: &SandboxOptions) -> BackgroundPolicy {
    let is_container = kind.image.is_some() || kind.runtime.is_some();
    match kind.backend {
        BackendChoice::Native => BackgroundPolicy::Keep,
        BackendChoice::Auto if !is_container => BackgroundPolicy::Keep,
        _ => BackgroundPolicy::End,
    }
}

fn labels_of(pairs: &[(String, String)]) -> Result<SandboxLabels, CliError> {
    Ok(pairs.iter().cloned().collect::<BTreeMap<_, _>>().try_into()?)
}

fn parse_lifetime(time: Duration) -> Result<SandboxLifetime, CliError> {
    Ok(resolved_args::to_milliseconds(time).try_into()?)
}

fn host_directory(typed: &Path, what: &str) -> Result<HostDirectory, CliError> {
    let directory = locations::real_directory(typed, what)?;
    Ok(RawText::from(directory.as_path()).try_into()?)
}

/// Returns the specification that the isolation of a sandbox is built from.
fn build_isolation_spec(spec: SandboxSpec, settings: &PolicySettings) -> Result<SandboxRequest, CliError> {
    let hidden = require_workspace(&spec, settings)?;
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
    Ok(SandboxRequest { spec, profile, hidden })
}

/// Returns the files of the host that a profile hides with this workspace.
fn hidden_files(settings: &PolicySettings, profile: &str, workspace: &Path) -> Result<HiddenFiles, CliError> {
    let profile = resolve_profile(settings, profile, workspace, &[])?;
    Ok(HiddenFiles::from_paths(profile.filesystem.hide.iter().map(|path| path.as_path().to_owned())))
}

/// Checks that a directory of the user may be bound or copied, which follows the rules for a
/// workspace of a run. It must not contain the home, credentials, Stockade's own files or the
/// system. Returns the paths inside that are hidden from runs.
fn require_workspace(spec: &SandboxSpec, settings: &PolicySettings) -> Result<Vec<RawText>, CliError> {
    let (WorkspaceSource::Bind { directory } | WorkspaceSource::Copy { directory }) = &spec.workspace else {
        return Ok(Vec::new());
    };
    let path = directory.as_raw().as_path();
    // The rules apply to the directory itself. A link may have replaced it since.
    if locations::real_directory(path, "the workspace")? != path {
        let what = format!("the path of the workspace {} has a symbolic link", quote_path(path));
        return Err(CliError::new(what).with_hint("put the directory back, or destroy the sandbox"));
    }
    let profile = resolve_profile(settings, &spec.profile, path, &[])?;
    locations::refuse_system(path, "the workspace")?;
    if matches!(spec.workspace, WorkspaceSource::Bind { .. }) {
        locations::require_own(path, "the workspace")?;
    }
    let hide = profile.filesystem.hide.iter().map(RawText::as_path);
    let beneath = hidden::find_hidden_paths(path, hide)?;
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

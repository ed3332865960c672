//! `stockade doctor`: tests the isolation that this machine can enforce. First it tests each layer
//! alone. Then it builds a sandbox for each level, in which a command tries forbidden operations,
//! and checks their effects from outside. The command determines whether a level works; the layers
//! explain the reason if it does not. This module must not know how a layer is tested.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use stockade_backend_api::{AttemptEvent, AttemptEventSender, Backend, CommandEnd, SandboxProvider, StdioMode};
use stockade_container::{ContainerEngineInfo, ContainerSandboxes};
use stockade_engine::ports::PolicyEngine;
use stockade_model::{
    ApprovalMode, AttemptPlan, Denial, EnforcementReport, IsolationLevel, LayerReport, RawText, RequestCommand,
    RunRequest, SandboxPreference, shell_quoted,
};
use stockade_native::NativeBackend;
use stockade_native::doctor::{self as layers, HostDiagnosis};
use stockade_policy::ReviewSettings;

use super::configuration::{self, WorkspaceConfig};
use super::sandbox::containers;
use super::{CommandResult, print_result, read_variable, reviewer};
use crate::args::DoctorArgs;
use crate::failure::CliError;
use crate::{exit, locations, render, resolved_args};

/// Time-out for the command inside.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of its output that are kept.
const OUTPUT_LIMIT_BYTES: u64 = 4_096;
/// Hint if every layer is available but the sandbox fails to start.
const UNEXPLAINED_HINT: &str = "see the step that failed with STOCKADE_LOG=debug stockade doctor";
/// Hint if a sandbox was built but does not isolate.
const BROKEN_ISOLATION_HINT: &str = "do not rely on this level here, and report what `stockade doctor --json` shows";

/// Findings of the doctor. Public API with `--json`.
#[derive(Debug, Serialize)]
pub struct DoctorReport {
    /// Release of the kernel, as uname(2) returns it.
    pub kernel: String,
    /// User id of the caller.
    pub uid: u32,
    /// Strongest level that works; absent if none does.
    pub best: Option<IsolationLevel>,
    /// Each layer, tested alone, in order of importance.
    pub layers: Vec<LayerFinding>,
    /// Each level, the strongest first.
    pub levels: Vec<LevelFinding>,
    /// Container engines that can create sandboxes, in order of preference.
    pub engines: Vec<EngineFinding>,
    /// Configured reviewer of questions; absent if there is none.
    pub reviewer: Option<ReviewerFinding>,
}

/// Findings about one container engine. Nothing is created in it.
#[derive(Debug, Serialize)]
pub struct EngineFinding {
    /// Its name.
    pub name: &'static str,
    /// Its own description.
    #[serde(flatten)]
    pub info: ContainerEngineInfo,
    /// The reason why it cannot be used, if it cannot.
    pub problem: Option<String>,
}

/// Findings about the reviewer. No request is sent to it.
#[derive(Debug, Serialize)]
pub struct ReviewerFinding {
    /// Name of the model.
    pub model: String,
    /// Endpoint of the requests.
    pub endpoint: String,
    /// Reason why no request can be sent.
    pub problem: Option<String>,
}

/// Findings about one layer.
#[derive(Debug, Serialize)]
pub struct LayerFinding {
    /// Name of the layer.
    pub name: &'static str,
    /// Capabilities of the layer on this machine.
    #[serde(flatten)]
    pub report: LayerReport,
}

/// Findings about one level.
#[derive(Debug, Default, Serialize)]
pub struct LevelFinding {
    /// The level.
    pub level: IsolationLevel,
    /// True if the sandbox was built and passed every trial.
    pub works: bool,
    /// If the level does not work: the layers that are the cause, the first one first.
    pub missing: Vec<&'static str>,
    /// Reason why the sandbox was not built.
    pub error: Option<String>,
    /// If the level does not work: a hint for the user.
    pub hint: Option<String>,
    /// Enforcement report: the restrictions that the kernel has accepted.
    pub enforced: Option<EnforcementReport>,
    /// Trials inside the sandbox.
    pub tried: Vec<SandboxTrial>,
}

/// One trial inside a sandbox.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct SandboxTrial {
    /// Property that must hold.
    pub promise: &'static str,
    /// True if the property holds.
    pub holds: bool,
}

/// Tests each level and shows the findings.
///
/// # Errors
/// [`CliError`] if no directory for the test can be created.
pub fn run_doctor(typed: &DoctorArgs) -> CommandResult {
    let trial_directory = TrialDirectory::create_directory()?;
    let setting = configuration::load_config(&trial_directory.workspace)?;
    let diagnosis = layers::diagnose_host();
    let levels: Vec<_> = [IsolationLevel::Full, IsolationLevel::Restricted]
        .map(|level| add_explanation(test_level(level, &trial_directory, &setting), &diagnosis))
        .into();
    let findings = DoctorReport {
        kernel: RawText::from(rustix::system::uname().release().to_bytes()).to_escaped(),
        uid: rustix::process::getuid().as_raw(),
        best: levels.iter().find(|found| found.works).map(|found| found.level),
        layers: diagnosis.layers.into_iter().map(|(name, report)| LayerFinding { name, report }).collect(),
        levels,
        engines: containers::list_container_backends(&trial_directory.workspace)?.iter().map(found_engine).collect(),
        reviewer: setting.settings.review.value.as_ref().map(found_reviewer),
    };
    print_result(typed.json, &findings, || render::doctor::format_findings(&findings, crate::stdout_style()))?;
    Ok(if findings.best.is_some() { exit::SUCCESS } else { exit::NEGATIVE_RESULT })
}

fn found_engine(sandboxes: &ContainerSandboxes) -> EngineFinding {
    let name = sandboxes.name();
    match sandboxes.find_engine() {
        Ok(info) => EngineFinding { name, info, problem: None },
        Err(error) => EngineFinding { name, info: ContainerEngineInfo::default(), problem: Some(error.what) },
    }
}

fn found_reviewer(review: &ReviewSettings) -> ReviewerFinding {
    ReviewerFinding {
        model: review.model.clone(),
        endpoint: review.endpoint.to_string(),
        problem: reviewer::find_reviewer_problem(review),
    }
}

/// Directory and file for the trials; removed at the end.
struct TrialDirectory {
    /// Directory created for the test, which is the workspace.
    workspace: PathBuf,
    /// File in the user's home that could be created without a sandbox. Absent if it could not,
    /// because then a trial would prove nothing.
    outside: Option<PathBuf>,
}

impl TrialDirectory {
    fn create_directory() -> Result<Self, CliError> {
        let name = resolved_args::request_id()?.as_str().replacen("req_", "stockade-doctor-", 1);
        let workspace = std::env::temp_dir().join(&name);
        let cannot = |e: std::io::Error| {
            let shown = crate::failure::quote_path(&workspace);
            CliError::new(format!("cannot make {shown} for the checks: {e}"))
                .with_hint("set TMPDIR to a directory of yours")
        };
        fs::DirBuilder::new().mode(0o700).create(&workspace).map_err(cannot)?;
        let workspace = workspace.canonicalize().map_err(cannot)?;
        // In the home, because temporary directories are private inside.
        let outside = locations::find_home_directory(&read_variable)?.canonicalize().map_err(cannot)?.join(name);
        let can_be_made = fs::File::create_new(&outside).is_ok() && fs::remove_file(&outside).is_ok();
        Ok(Self { workspace, outside: can_be_made.then_some(outside) })
    }

    fn remove_trial_files(&self) {
        for path in [Some(self.workspace.join("made")), Some(self.workspace.join(".envrc")), self.outside.clone()] {
            let _ = path.map(fs::remove_file);
        }
    }
}

impl Drop for TrialDirectory {
    fn drop(&mut self) {
        self.remove_trial_files();
        let _ = fs::remove_dir(&self.workspace);
    }
}

/// Observations of the command inside, made from outside.
struct TrialObservations {
    enforced: EnforcementReport,
    denials: Vec<Denial>,
    end: Option<CommandEnd>,
    prints: String,
}

/// Runs the trials at `level`.
fn test_level(level: IsolationLevel, trial_directory: &TrialDirectory, setting: &WorkspaceConfig) -> LevelFinding {
    let mut found = LevelFinding { level, ..LevelFinding::default() };
    match plan_trials(level, trial_directory, setting).and_then(|plan| run_trials(&plan)) {
        Err(failure) => (found.error, found.hint) = (Some(failure.what), failure.hint),
        Ok(seen) => {
            found.tried = evaluate_trials(&seen, trial_directory);
            // The next level starts in the same state.
            trial_directory.remove_trial_files();
            found.works = found.tried.iter().all(|trial| trial.holds);
            found.enforced = Some(seen.enforced);
        }
    }
    found
}

/// Adds the layers that are the cause, and a hint, to a level that does not work. The hint of the
/// failed start takes precedence, because it knows the error.
fn add_explanation(mut found: LevelFinding, diagnosis: &HostDiagnosis) -> LevelFinding {
    if found.works {
        return found;
    }
    found.missing = diagnosis.missing_layers(found.level);
    // The last one, because layers that both levels need come last. The hint must not lead to
    // another level that is not available either.
    let general = match (found.missing.last(), &found.error) {
        (Some(layer), _) => layers::hint_for_layer(layer),
        (None, Some(_)) => None,
        (None, None) => Some(BROKEN_ISOLATION_HINT.to_owned()),
    };
    found.hint.get_or_insert_with(|| general.unwrap_or_else(|| UNEXPLAINED_HINT.to_owned()));
    found
}

fn plan_trials(
    level: IsolationLevel,
    trial_directory: &TrialDirectory,
    setting: &WorkspaceConfig,
) -> Result<AttemptPlan, CliError> {
    let outside = trial_directory.outside.as_deref().unwrap_or(Path::new("/stockade-doctor"));
    let outside = shell_quoted(&RawText::from(outside).to_escaped());
    // Only builtins of every shell; each line prints its result.
    let script = format!(
        "(echo x > made) && echo wrote\n(echo x > {outside}) && echo wrote-outside\n(echo x > .envrc) && echo wrote-protected\n\
         kill -0 {} && echo signalled\necho end",
        std::process::id(),
    );
    let workspace = &trial_directory.workspace;
    let request = RunRequest {
        id: resolved_args::request_id()?,
        session: None,
        command: RequestCommand::Argv(["/bin/sh", "-c", &script].map(RawText::from).into()),
        cwd: workspace.as_path().into(),
        workspace: workspace.as_path().into(),
        environment: resolved_args::collect_environment(std::env::vars_os()),
        profile: "workspace".to_owned(),
        grants: Vec::new(),
        requested: Vec::new(),
        level,
        approval_mode: ApprovalMode::Never,
        sandbox: SandboxPreference::Require,
        timeout_ms: None,
        limits: Default::default(),
        caller_approval: None,
    };
    Ok(setting.policy_engine().make_plan(&request, 1, &[])?.plan)
}

fn run_trials(plan: &AttemptPlan) -> Result<TrialObservations, CliError> {
    let cannot = |e: stockade_backend_api::StartError| CliError::from_text(&e.what).or_hint(e.hint);
    let (sender, events) = channel();
    let sender = AttemptEventSender::new(move |event| drop(sender.send(event)));
    let io = StdioMode::Capture { limit_bytes: OUTPUT_LIMIT_BYTES };
    let mut attempt = NativeBackend::default().prepare_attempt(plan, &io, false, sender).map_err(cannot)?;
    let enforced = attempt.enforcement_report().clone();
    attempt.release_command().map_err(cannot)?;
    let mut seen = TrialObservations { enforced, denials: Vec::new(), end: None, prints: String::new() };
    collect_events(&events, &mut seen);
    Ok(seen)
}

/// Follows the command to its end, no longer than [`TRIAL_TIMEOUT`].
fn collect_events(events: &Receiver<AttemptEvent>, seen: &mut TrialObservations) {
    let deadline = Instant::now() + TRIAL_TIMEOUT;
    while seen.end.is_none() {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(AttemptEvent::Denied(denial) | AttemptEvent::Breached(denial)) => seen.denials.push(denial),
            Ok(AttemptEvent::Ended(end)) => {
                seen.prints = end.stdout.map(|text| text.to_escaped()).unwrap_or_default();
                seen.end = Some(end.end);
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn evaluate_trials(seen: &TrialObservations, trial_directory: &TrialDirectory) -> Vec<SandboxTrial> {
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    let (made, protected) = (trial_directory.workspace.join("made"), trial_directory.workspace.join(".envrc"));
    // The output is escaped as one line.
    let prints = |word: &str| seen.prints.split("\\n").any(|line| line == word);
    let ended = seen.end == Some(CommandEnd::Exited(0)) && prints("end");
    let outside = trial_directory.outside.as_ref().map(|outside| {
        let named = seen.denials.iter().any(|denial| denial.object.as_path() == outside);
        [
            ("it cannot write elsewhere", !prints("wrote-outside") && !exists(outside)),
            ("what was refused is named", named),
        ]
    });
    let trials =
        [("a command runs to its end", ended), ("it can write its workspace", prints("wrote") && exists(&made))]
            .into_iter()
            .chain(outside.into_iter().flatten())
            .chain([
                ("it cannot make protected names", !prints("wrote-protected") && !exists(&protected)),
                ("it cannot signal processes outside", !prints("signalled")),
            ]);
    trials.map(|(promise, holds)| SandboxTrial { promise, holds }).collect()
}

#[cfg(test)]
mod tests {
    use stockade_model::LayerState;

    use super::*;

    #[test]
    fn a_level_that_fails_has_a_reason_and_advice() {
        let report = LayerReport { state: LayerState::Enforced, detail: String::new() };
        let diagnosis = |names: &[&'static str]| HostDiagnosis {
            layers: names.iter().map(|name| (*name, report.clone())).collect(),
        };
        let all = ["landlock", "seccomp", "notify", "pidfd"];
        let check =
            |names: &[&'static str], error: Option<&str>, hint: Option<&str>, missing: &[&str], advice: &str| {
                let found = LevelFinding {
                    level: IsolationLevel::Restricted,
                    works: false,
                    missing: Vec::new(),
                    error: error.map(str::to_owned),
                    hint: hint.map(str::to_owned),
                    enforced: None,
                    tried: Vec::new(),
                };
                let found = add_explanation(found, &diagnosis(names));
                assert_eq!(found.missing, missing);
                assert!(found.hint.unwrap().contains(advice));
            };
        check(&all[1..], Some("no Landlock"), Some("boot another"), &["landlock"], "boot another");
        check(&all[1..], Some("no Landlock"), None, &["landlock"], "lsm=");
        check(&all[3..], Some("no Landlock"), None, &all[..3], "supervisor");
        check(&all, Some("it broke"), None, &[], "STOCKADE_LOG");
        check(&all, None, None, &[], "do not rely");
    }
}

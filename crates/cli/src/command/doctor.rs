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
use stockade_container::{ContainerSandboxes, Engine};
use stockade_engine::seams::Judge;
use stockade_engine::{AttemptEvent, Backend, CommandEnd, Events, Io, Sandboxes};
use stockade_model::{
    ApprovalMode, Command, Denial, EnforcementReport, LayerReport, Level, Plan, RawText, Request, SandboxPreference,
    shell_quoted,
};
use stockade_native::NativeBackend;
use stockade_native::doctor::{self as layers, Diagnosis};
use stockade_policy::ReviewSettings;

use super::sandbox::containers;
use super::setting::{self, Setting};
use super::{Ended, print, reviewer, variable};
use crate::args::DoctorArgs;
use crate::failure::Failure;
use crate::{exit, meaning, places, render};

/// Time-out for the command inside.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of its output that are kept.
const OUTPUT_LIMIT_BYTES: u64 = 4_096;
/// Hint if every layer is available but the sandbox fails to start.
const UNEXPLAINED: &str = "see the step that failed with STOCKADE_LOG=debug stockade doctor";
/// Hint if a sandbox was built but does not isolate.
const UNHELD: &str = "do not rely on this level here, and report what `stockade doctor --json` shows";

/// Findings of the doctor. Public API with `--json`.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// Release of the kernel, as uname(2) returns it.
    pub kernel: String,
    /// User id of the caller.
    pub uid: u32,
    /// Strongest level that works; absent if none does.
    pub best: Option<Level>,
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
    /// Kind of the sandboxes that it creates.
    pub name: &'static str,
    /// Version, if the engine answers with one.
    pub version: Option<String>,
    /// True if the engine runs as an ordinary user.
    pub rootless: bool,
    /// Default runtime.
    pub runtime: Option<String>,
    /// Runtimes that can be named.
    pub runtimes: Vec<String>,
    /// Reason why it cannot be used.
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
#[derive(Debug, Serialize)]
pub struct LevelFinding {
    /// The level.
    pub level: Level,
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
    pub tried: Vec<Trial>,
}

/// One trial inside a sandbox.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Trial {
    /// Property that must hold.
    pub promise: &'static str,
    /// True if the property holds.
    pub holds: bool,
}

/// Tests each level and shows the findings.
///
/// # Errors
/// [`Failure`] if no directory for the test can be created.
pub fn doctor(typed: &DoctorArgs) -> Ended {
    let place = Place::make()?;
    let setting = setting::load(&place.workspace)?;
    let diagnosis = layers::doctor();
    let levels: Vec<_> =
        [Level::Full, Level::Restricted].map(|level| explain(examine(level, &place, &setting), &diagnosis)).into();
    let findings = Findings {
        kernel: RawText::from(rustix::system::uname().release().to_bytes()).escaped(),
        uid: rustix::process::getuid().as_raw(),
        best: levels.iter().find(|found| found.works).map(|found| found.level),
        layers: diagnosis.layers.into_iter().map(|(name, report)| LayerFinding { name, report }).collect(),
        levels,
        engines: containers::all(&place.workspace)?.iter().map(found_engine).collect(),
        reviewer: setting.settings.review.value.as_ref().map(found_reviewer),
    };
    let text = if typed.json {
        render::json::line(&findings)?
    } else {
        render::doctor::findings(&findings, crate::stdout_style())
    };
    print(&text)?;
    Ok(if findings.best.is_some() { exit::SUCCESS } else { exit::NEGATIVE })
}

fn found_engine(sandboxes: &ContainerSandboxes) -> EngineFinding {
    let name = sandboxes.name();
    match sandboxes.engine() {
        Ok(Engine { version, rootless, runtime, runtimes }) => {
            EngineFinding { name, version, rootless, runtime, runtimes, problem: None }
        }
        Err(error) => EngineFinding {
            name,
            version: None,
            rootless: false,
            runtime: None,
            runtimes: Vec::new(),
            problem: Some(error.what),
        },
    }
}

fn found_reviewer(review: &ReviewSettings) -> ReviewerFinding {
    ReviewerFinding {
        model: review.model.clone(),
        endpoint: review.endpoint.to_string(),
        problem: reviewer::problem(review),
    }
}

/// Directory and file for the trials; removed at the end.
struct Place {
    /// Directory created for the test, which is the workspace.
    workspace: PathBuf,
    /// File in the user's home that could be created without a sandbox. Absent if it could not,
    /// because then a trial would prove nothing.
    outside: Option<PathBuf>,
}

impl Place {
    fn make() -> Result<Self, Failure> {
        let name = meaning::request_id()?.as_str().replacen("req_", "stockade-doctor-", 1);
        let workspace = std::env::temp_dir().join(&name);
        let cannot = |e: std::io::Error| {
            let shown = crate::failure::quoted(&workspace);
            Failure::new(format!("cannot make {shown} to try in: {e}")).hint("set TMPDIR to a directory of yours")
        };
        fs::DirBuilder::new().mode(0o700).create(&workspace).map_err(cannot)?;
        let workspace = workspace.canonicalize().map_err(cannot)?;
        // In the home, because temporary directories are private inside.
        let outside = places::home(&variable)?.canonicalize().map_err(cannot)?.join(name);
        let can_be_made = fs::File::create_new(&outside).is_ok() && fs::remove_file(&outside).is_ok();
        Ok(Self { workspace, outside: can_be_made.then_some(outside) })
    }

    fn clean(&self) {
        for path in [Some(self.workspace.join("made")), Some(self.workspace.join(".envrc")), self.outside.clone()] {
            let _ = path.map(fs::remove_file);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clean();
        let _ = fs::remove_dir(&self.workspace);
    }
}

/// Observations of the command inside, made from outside.
struct Seen {
    enforced: EnforcementReport,
    denials: Vec<Denial>,
    end: Option<CommandEnd>,
    said: String,
}

/// Runs the trials at `level`.
fn examine(level: Level, place: &Place, setting: &Setting) -> LevelFinding {
    let mut found = LevelFinding {
        level,
        works: false,
        missing: Vec::new(),
        error: None,
        hint: None,
        enforced: None,
        tried: Vec::new(),
    };
    match plan(level, place, setting).and_then(|plan| attempt(&plan)) {
        Err(failure) => (found.error, found.hint) = (Some(failure.what), failure.hint),
        Ok(seen) => {
            found.tried = trials(&seen, place);
            // The next level starts in the same state.
            place.clean();
            found.works = found.tried.iter().all(|trial| trial.holds);
            found.enforced = Some(seen.enforced);
        }
    }
    found
}

/// Adds the layers that are the cause, and a hint, to a level that does not work. The hint of the
/// failed start takes precedence, because it knows the error.
fn explain(mut found: LevelFinding, diagnosis: &Diagnosis) -> LevelFinding {
    if found.works {
        return found;
    }
    found.missing = diagnosis.missing(found.level);
    // The last one, because layers that both levels need come last. The hint must not lead to
    // another level that is not available either.
    let general = match (found.missing.last(), &found.error) {
        (Some(layer), _) => layers::remedy(layer).unwrap_or(UNEXPLAINED),
        (None, Some(_)) => UNEXPLAINED,
        (None, None) => UNHELD,
    };
    found.hint.get_or_insert_with(|| general.to_owned());
    found
}

fn plan(level: Level, place: &Place, setting: &Setting) -> Result<Plan, Failure> {
    let outside = place.outside.as_deref().unwrap_or(Path::new("/stockade-doctor"));
    let outside = shell_quoted(&RawText::from(outside).escaped());
    // Only builtins of every shell; each line prints its result.
    let script = format!(
        "(echo x > made) && echo wrote\n(echo x > {outside}) && echo wrote-outside\n(echo x > .envrc) && echo wrote-protected\n\
         kill -0 {} && echo signalled\necho end",
        std::process::id(),
    );
    let workspace = &place.workspace;
    let request = Request {
        id: meaning::request_id()?,
        session: None,
        command: Command::Argv(["/bin/sh", "-c", &script].map(RawText::from).into()),
        cwd: workspace.as_path().into(),
        workspace: workspace.as_path().into(),
        environment: meaning::environment(std::env::vars_os()),
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
    let planned = setting.judge().plan(&request, 1, &[]).map_err(|e| Failure::from_text(&e.what).or_hint(e.hint))?;
    Ok(planned.plan)
}

fn attempt(plan: &Plan) -> Result<Seen, Failure> {
    let cannot = |e: stockade_engine::StartError| Failure::from_text(&e.what).or_hint(e.hint);
    let (sender, events) = channel();
    let sender = Events::new(move |event| drop(sender.send(event)));
    let io = Io::Capture { limit_bytes: OUTPUT_LIMIT_BYTES };
    let mut attempt = NativeBackend::default().prepare(plan, &io, false, sender).map_err(cannot)?;
    let enforced = attempt.enforced().clone();
    attempt.release().map_err(cannot)?;
    let mut seen = Seen { enforced, denials: Vec::new(), end: None, said: String::new() };
    watch(&events, &mut seen);
    Ok(seen)
}

/// Follows the command to its end, no longer than [`PATIENCE`].
fn watch(events: &Receiver<AttemptEvent>, seen: &mut Seen) {
    let deadline = Instant::now() + PATIENCE;
    while seen.end.is_none() {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(AttemptEvent::Denied(denial) | AttemptEvent::Breached(denial)) => seen.denials.push(denial),
            Ok(AttemptEvent::Ended(end)) => {
                seen.said = end.stdout.map(|text| text.escaped()).unwrap_or_default();
                seen.end = Some(end.end);
            }
            Ok(
                AttemptEvent::Executed { .. }
                | AttemptEvent::Held { .. }
                | AttemptEvent::Withdrawn(_)
                | AttemptEvent::Stopped(_)
                | AttemptEvent::Connection(_)
                | AttemptEvent::Signed { .. },
            ) => {}
            Err(_) => return,
        }
    }
}

fn trials(seen: &Seen, place: &Place) -> Vec<Trial> {
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    let (made, protected) = (place.workspace.join("made"), place.workspace.join(".envrc"));
    // The output is escaped as one line.
    let said = |word: &str| seen.said.split("\\n").any(|line| line == word);
    let ended = seen.end == Some(CommandEnd::Exited(0)) && said("end");
    let mut trials = vec![
        Trial { promise: "a command runs to its end", holds: ended },
        Trial { promise: "it can write its workspace", holds: said("wrote") && exists(&made) },
    ];
    if let Some(outside) = &place.outside {
        let named = seen.denials.iter().any(|denial| denial.object.as_path() == outside);
        trials.push(Trial { promise: "it cannot write elsewhere", holds: !said("wrote-outside") && !exists(outside) });
        trials.push(Trial { promise: "what was refused is named", holds: named });
    }
    trials.extend([
        Trial { promise: "it cannot make protected names", holds: !said("wrote-protected") && !exists(&protected) },
        Trial { promise: "it cannot signal processes outside", holds: !said("signalled") },
    ]);
    trials
}

#[cfg(test)]
mod tests {
    use stockade_model::LayerState;

    use super::*;

    #[test]
    fn a_level_that_fails_has_a_reason_and_advice() {
        let report = LayerReport { state: LayerState::Enforced, detail: String::new() };
        let diagnosis =
            |names: &[&'static str]| Diagnosis { layers: names.iter().map(|name| (*name, report.clone())).collect() };
        let all = ["landlock", "seccomp", "notify", "pidfd"];
        let check =
            |names: &[&'static str], error: Option<&str>, hint: Option<&str>, missing: &[&str], advice: &str| {
                let found = LevelFinding {
                    level: Level::Restricted,
                    works: false,
                    missing: Vec::new(),
                    error: error.map(str::to_owned),
                    hint: hint.map(str::to_owned),
                    enforced: None,
                    tried: Vec::new(),
                };
                let found = explain(found, &diagnosis(names));
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

//! `stockade doctor`: what this machine can enforce, proved by trying it. For
//! each level a sandbox is built and a command in it tries what it must not be
//! able to do; what came of it is looked at from outside.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use stockade_engine::seams::Judge;
use stockade_engine::{AttemptEvent, Backend, CommandEnd, Io};
use stockade_model::{
    ApprovalMode, Command, Denial, EnforcementReport, Level, Plan, RawText, Request, SandboxPreference,
};
use stockade_native::NativeBackend;

use super::setting::{self, Setting};
use super::{Ended, print, variable};
use crate::args::DoctorArgs;
use crate::failure::Failure;
use crate::{exit, meaning, places, render};

/// How long the command inside may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of its output that are kept.
const OUTPUT_LIMIT_BYTES: u64 = 4_096;

/// What was found. Public API with `--json`.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// The kernel's release, as uname(2) gives it.
    pub kernel: String,
    /// Who asked.
    pub uid: u32,
    /// The strongest level that works; absent where none does.
    pub best: Option<Level>,
    /// Each level, the strongest first.
    pub levels: Vec<LevelFinding>,
}

/// What was found of one level.
#[derive(Debug, Serialize)]
pub struct LevelFinding {
    /// The level.
    pub level: Level,
    /// Whether the sandbox could be built and everything tried was held.
    pub works: bool,
    /// Why it could not be built.
    pub error: Option<String>,
    /// What to do about that.
    pub hint: Option<String>,
    /// What the kernel took.
    pub enforced: Option<EnforcementReport>,
    /// What was tried inside.
    pub tried: Vec<Trial>,
}

/// One thing tried inside.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Trial {
    /// What has to be true.
    pub promise: &'static str,
    /// Whether it is.
    pub holds: bool,
}

/// Tries each level and shows what came of it.
///
/// # Errors
/// When there is no place to try in.
pub fn doctor(typed: &DoctorArgs) -> Ended {
    let place = Place::make()?;
    let setting = setting::load(&place.workspace)?;
    let levels: Vec<_> = [Level::Full, Level::Restricted].map(|level| examine(level, &place, &setting)).into();
    let findings = Findings {
        kernel: RawText::from(rustix::system::uname().release().to_bytes()).escaped(),
        uid: rustix::process::getuid().as_raw(),
        best: levels.iter().find(|found| found.works).map(|found| found.level),
        levels,
    };
    let text = if typed.json {
        render::json::line(&findings)?
    } else {
        render::doctor::findings(&findings, crate::stdout_style())
    };
    print(&text)?;
    Ok(if findings.best.is_some() { exit::SUCCESS } else { exit::NEGATIVE })
}

/// Where it is tried; nothing of it is left at the end.
struct Place {
    /// A directory of our own, the workspace.
    workspace: PathBuf,
    /// A file in the person's home that could be made without a sandbox; absent
    /// where it could not, so that nothing is proved by it.
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
        // The home, because temporary directories are private inside.
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

/// What happened inside, as seen from outside.
struct Seen {
    enforced: EnforcementReport,
    denials: Vec<Denial>,
    end: Option<CommandEnd>,
    said: String,
}

fn examine(level: Level, place: &Place, setting: &Setting) -> LevelFinding {
    let failed = |failure: Failure| LevelFinding {
        level,
        works: false,
        error: Some(failure.what),
        hint: failure.hint,
        enforced: None,
        tried: Vec::new(),
    };
    match plan(level, place, setting).and_then(|plan| attempt(&plan)) {
        Err(failure) => failed(failure),
        Ok(seen) => {
            let tried = trials(&seen, place);
            // The next level starts as this one did.
            place.clean();
            let works = tried.iter().all(|trial| trial.holds);
            LevelFinding { level, works, error: None, hint: None, enforced: Some(seen.enforced), tried }
        }
    }
}

fn plan(level: Level, place: &Place, setting: &Setting) -> Result<Plan, Failure> {
    let outside = place.outside.as_deref().unwrap_or(Path::new("/stockade-doctor"));
    let outside = render::shell_quoted(&RawText::from(outside).escaped());
    // Only what every shell has built in; each line says how it went.
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
        level,
        approval_mode: ApprovalMode::Never,
        sandbox: SandboxPreference::Require,
        timeout_ms: None,
        caller_approval: None,
    };
    let planned = setting.judge().plan(&request, 1, &[]).map_err(|e| Failure::from_text(&e.what).or_hint(e.hint))?;
    Ok(planned.plan)
}

fn attempt(plan: &Plan) -> Result<Seen, Failure> {
    let cannot = |e: stockade_engine::StartError| Failure::from_text(&e.what).or_hint(e.hint);
    let (sender, events) = channel();
    let io = Io::Capture { limit_bytes: OUTPUT_LIMIT_BYTES };
    let mut attempt = NativeBackend.prepare(plan, &io, sender).map_err(cannot)?;
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
            Ok(AttemptEvent::Denied(denial)) => seen.denials.push(denial),
            Ok(AttemptEvent::Executed { .. }) => {}
            Ok(AttemptEvent::Ended(end)) => {
                seen.said = end.stdout.map(|text| text.escaped()).unwrap_or_default();
                seen.end = Some(end.end);
            }
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

//! `stockade run`: runs one command through the engine.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, Mode, OFlags};
use stockade_engine::real::RuleJudge;
use stockade_engine::seams::{Recorder, SystemClock};
use stockade_engine::{Approver, Engine, Interrupts, Io};
use stockade_model::{
    Assessment, Command, Decision, Grant, Level, Outcome, RawText, Request, RequestId, Status, Tier, Verdict,
};
use stockade_native::launch::Nursery;
use stockade_native::{HostBackend, SigningPerson};
use stockade_policy::{BUILT_IN_NOTICE, Settings, resolve_profile};
use stockade_store::Remembered;
use stockade_sys::signals::Signals;
use tracing::info_span;

use super::detached::supervise::{self, Supervisor};
use super::place::Place;
use super::policy::lasting::Lasting;
use super::policy::write;
use super::setting::{self, Setting};
use super::{Ended, print, remark, reviewer, variable};
use crate::approver::TerminalApprover;
use crate::args::{RunArgs, Terms};
use crate::audit_log::AuditLog;
use crate::failure::{Failure, quoted};
use crate::interrupts::{Heard, Taken};
use crate::meaning::{self, Meant};
use crate::memory::LateMemory;
use crate::places::{self, State};
use crate::relay::{Given, Relay};
use crate::timings::Timings;
use crate::{exit, interrupts, relay, render, signing_names, terminal, trace};

/// Bytes of each stream that are kept if the profile sets no limit.
const OUTPUT_LIMIT_BYTES: u64 = 1 << 20;

/// Runs one command, here or detached. `start` is the start time of this program.
///
/// # Errors
/// [`Failure`] if Stockade itself failed.
pub fn run(typed: RunArgs, start: u64) -> Ended {
    let timings = typed.timings.then(|| Timings::begin(start)).transpose()?;
    trace::start(timings.as_ref())?;
    let id = meaning::request_id()?;
    if typed.detach {
        return supervise::detach(typed, id);
    }
    let here = |typed: &RunArgs| {
        let signals = interrupts::take()?;
        let terminal = Given::of(typed.tty)?;
        Ok(Front { signals, terminal, place: Place::Own(nursery(&typed.terms)), supervisor: None })
    };
    let (_, code) = complete(typed, id, here);
    if let Some(timings) = timings {
        remark(&timings.table());
    }
    Ok(code)
}

/// The process that supervises a run.
pub struct Front {
    /// Taken before any thread starts.
    pub signals: Taken,
    /// Terminal of the command.
    pub terminal: Given,
    /// Sandbox of the command.
    pub place: Place,
    /// Set if the run is detached.
    pub supervisor: Option<Arc<Supervisor>>,
}

/// Runs one command to its end and reports it. Returns its outcome and exit code. If Stockade
/// itself failed, the outcome contains the error.
pub fn complete(
    typed: RunArgs,
    id: RequestId,
    front: impl FnOnce(&RunArgs) -> Result<Front, Failure>,
) -> (Outcome, u8) {
    let report = Report::of(typed.json.as_ref());
    let mut standing = Vec::new();
    let mut workspace = None;
    let outcome = report.as_ref().map_err(Clone::clone).and_then(|_| {
        let front = front(&typed)?;
        standing = front.place.standing();
        if let Place::Own(_) = front.place {
            workspace = meaning::workspace_of(&typed.terms, &variable).ok();
        }
        attempt(typed, id.clone(), front)
    });
    let outcome = outcome.inspect(|outcome| tell(outcome, &standing, workspace.as_deref())).unwrap_or_else(|failure| {
        crate::complain(&failure);
        failed(id, &failure)
    });
    let code = match report.map(|report| report.deliver(&outcome)) {
        Ok(Err(failure)) => {
            crate::complain(&failure);
            exit::FAILURE
        }
        Ok(Ok(())) | Err(_) => exit::of(&outcome),
    };
    (outcome, code)
}

/// Prints the summary on standard error, without the grants that every command there has.
/// `workspace` is that of a command with the host's paths.
fn tell(outcome: &Outcome, standing: &[Grant], workspace: Option<&Path>) {
    // An approver that was interrupted by a signal may still hold the terminal.
    terminal::give_back();
    let home = places::home(&variable).unwrap_or_default();
    let remembered = remembered(outcome);
    // Most runs have no refusals, and need no hint.
    let has_refusals = outcome.attempts.last().is_some_and(|last| !last.denials.is_empty());
    let own_directories = if has_refusals { places::own_directories(&variable) } else { Vec::new() };
    let context = render::summary::SummaryContext {
        remembered: &remembered,
        standing,
        home: &home,
        workspace,
        own_directories: &own_directories,
    };
    let text = render::summary::summary(outcome, context, crate::stderr_style());
    remark(&text);
}

/// Returns the answers in force, if one of them was used. Unreadable answers are not shown.
fn remembered(outcome: &Outcome) -> Vec<Remembered> {
    if !outcome.approvals.iter().any(|given| given.by == "cache") {
        return Vec::new();
    }
    let answers = super::approvals::in_force().unwrap_or_default();
    // The newest one first, because it applies.
    answers.into_iter().rev().collect()
}

fn attempt(typed: RunArgs, id: RequestId, front: Front) -> Result<Outcome, Failure> {
    let captured = leaves_output(&typed)?;
    let place = front.place;
    let meant = info_span!("understand the request").in_scope(|| Meant::run(typed, &variable))?;
    let meant = place.within(meant)?;
    let setting = info_span!("read the policy").in_scope(|| setting::load(place.workspace(&meant)))?;
    let setting = if place.inside().is_some() { setting.without_mounts() } else { setting };
    setting.require_profile(meant.profile.as_deref())?;
    let state = State::open(&setting.sources.state_directory)?;
    places::make_configuration_directory(&setting.sources);
    info_span!("recover stages").in_scope(|| super::stage::recover(&state, Some(place.workspace(&meant))))?;
    tell_built_in(&setting, &state);
    let request = place.of(setting.request(&meant, id));
    let configured_ms = setting.settings.approval_timeout_ms.value;
    let question_timeout_ms = meant.approval_timeout.map_or(configured_ms, meaning::milliseconds);
    terminal::leave_input_to_foreground().map_err(|e| Failure::new(format!("cannot set standard input: {e}")))?;
    let Heard { interrupts, interrupter, wake, of_terminal } = front.signals.listen()?;
    let audit_log = Arc::new(info_span!("open the record").in_scope(|| AuditLog::open(&state))?);
    let log: Arc<dyn Recorder> = Arc::<AuditLog>::clone(&audit_log);
    let recorder = match &front.supervisor {
        Some(supervisor) => supervisor.oversee(&request, Arc::clone(&log))?,
        None => Arc::clone(&log),
    };
    let lasting = Lasting::new(setting.sources.clone(), Arc::clone(&setting.settings), request.clone());
    let lasting = Arc::new(lasting);
    let text = meaning::text_of(&request.command);
    let approver: Arc<Mutex<dyn Approver>> = match &front.supervisor {
        Some(supervisor) => Arc::new(Mutex::new(supervisor.approver(text))),
        None => {
            let terminal = TerminalApprover::new(text, crate::color_wanted(), Some(wake));
            Arc::new(Mutex::new(terminal.with_rules(Arc::clone(&lasting))))
        }
    };
    let inside = place.inside().map(Path::to_owned);
    let person = SigningPerson { agent: signing_names::agent(&variable), home: places::home(&variable)? };
    let backend = place.backend(&state, person);
    let sandbox_backend = backend.name();
    let engine = Engine {
        judge: Arc::new(RuleJudge {
            stage: meant.stage,
            undo: meant.undo,
            can_keep: inside.is_none(),
            trace: meant.trace,
            inside,
            sandbox_backend,
            ..setting.judge()
        }),
        backend,
        host: Some(Arc::new(HostBackend)),
        approver,
        reviewer: reviewer::configured(&setting.settings, &state),
        recorder,
        memory: Arc::new(LateMemory::new(state.approvals())),
        clock: Arc::new(SystemClock::default()),
        user: format!("uid {}", rustix::process::getuid().as_raw()),
        question_timeout_ms,
    };
    if let Some(supervisor) = &front.supervisor {
        let of_input = Engine { recorder: log, ..engine.clone() };
        supervisor.serve(interrupter, of_input, setting.judge(), &request)?;
    }
    let is_captured = captured && !matches!(front.terminal, Given::Held(_));
    let captured = is_captured.then(|| captured_io(&setting, &request));
    let (command, workspace) = (request.command.clone(), request.workspace.clone());
    let outcome = run_at_terminal(&engine, request, (front.terminal, of_terminal), captured, interrupts)?;
    keep_rules(&lasting, (&command, workspace.as_path()), &outcome, &setting.settings);
    info_span!("anchor the record").in_scope(|| audit_log.move_anchor());
    super::cache::keep_within_limit(&state);
    Ok(outcome)
}

/// Returns whether standard output gets the outcome instead of the command's output.
fn leaves_output(typed: &RunArgs) -> Result<bool, Failure> {
    let captured = matches!(typed.json, Some(None));
    if captured && typed.tty {
        return Err(Failure::new("a command with a terminal of its own leaves no standard output for its outcome")
            .hint("write --json=FILE"));
    }
    Ok(captured)
}

/// Runs the command with a terminal of its own, if it needs one.
fn run_at_terminal(
    engine: &Engine,
    request: Request,
    (given, of_terminal): (Given, Signals),
    captured: Option<Io>,
    interrupts: Interrupts,
) -> Result<Outcome, Failure> {
    let relay = Relay::begin(given, of_terminal, !engine.backend.mixes_streams())?;
    let io = captured.unwrap_or(if relay.is_some() { Io::Terminal } else { Io::Inherit });
    let outcome = engine.run(request, io, interrupts.standing_still(terminal::suspend).typed(relay::has_typed));
    if let Some(relay) = relay {
        relay.end();
    }
    Ok(outcome)
}

/// Reports once that no policy is configured: to a user, not into output that a program reads.
fn tell_built_in(setting: &Setting, state: &State) {
    let mut stderr = std::io::stderr().lock();
    if setting.settings.is_built_in() && stderr.is_terminal() && state.is_first_time("built-in-policy") {
        let _ = writeln!(stderr, "• {BUILT_IN_NOTICE}");
    }
}

/// Writes the rules that answers became, or prints how an answer could become a rule.
fn keep_rules(lasting: &Lasting, (command, workspace): (&Command, &Path), outcome: &Outcome, settings: &Settings) {
    let said = match lasting.write(outcome) {
        Ok(Some(file)) => format!("• written as a rule to {}\n", quoted(&file)),
        Ok(None) => match write::rule_hint(command, workspace, outcome, settings) {
            Some((reach, line)) => format!("• as a rule, for {reach}: {}\n", RawText::from(line).escaped()),
            None => return,
        },
        Err(failure) => return crate::complain(&failure),
    };
    remark(&said);
}

/// Starts a sandbox while the request is read, if the run probably needs one. If that fails, the
/// run's own start reports the reason.
pub fn nursery(terms: &Terms) -> Option<Nursery> {
    let wanted =
        terms.level.is_none_or(|level| Level::from(level) == Level::Full) && terms.profile.as_deref() != Some("host");
    wanted.then(|| info_span!("begin the sandbox").in_scope(Nursery::start))?.ok()
}

/// Captures as much output as the profile keeps.
fn captured_io(setting: &Setting, request: &Request) -> Io {
    let profile = resolve_profile(&setting.settings, &request.profile, request.workspace.as_path(), &request.grants);
    let mut limits = profile.map(|profile| profile.limits).unwrap_or_default();
    limits.lower_to(&request.limits);
    Io::Capture { limit_bytes: limits.output_bytes.unwrap_or(OUTPUT_LIMIT_BYTES) }
}

/// Returns the outcome of a run that did not start, for standard output and the engine.
fn failed(id: RequestId, failure: &Failure) -> Outcome {
    let why = failure.hint.as_ref().map_or_else(|| failure.what.clone(), |hint| format!("{failure}\nhint: {hint}"));
    Outcome {
        id,
        session: None,
        digest: None,
        status: Status::Error,
        exit_code: None,
        signal: None,
        error: Some(why),
        assessment: Assessment::bare(Tier::Ask),
        decision: Decision { verdict: Verdict::Deny, rule: "nothing was decided".to_owned(), reasons: Vec::new() },
        attempts: Vec::new(),
        approvals: Vec::new(),
        requested: Vec::new(),
    }
}

/// Destination of the outcome.
enum Report {
    Nowhere,
    StandardOutput,
    /// The directory is opened before the run, because the run may move it or replace it by a link.
    File {
        directory: OwnedFd,
        name: PathBuf,
    },
}

impl Report {
    fn of(json: Option<&Option<PathBuf>>) -> Result<Self, Failure> {
        match json {
            None => Ok(Self::Nowhere),
            Some(None) => Ok(Self::StandardOutput),
            Some(Some(file)) => Self::file(file),
        }
    }

    fn file(file: &Path) -> Result<Self, Failure> {
        let cannot = |why: &str| {
            let shown = quoted(file);
            Failure::new(format!("cannot write the outcome to {shown}: {why}"))
                .hint("write --json=FILE, in a directory that exists")
        };
        let name = file.file_name().ok_or_else(|| cannot("it names no file"))?.into();
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty()).map_err(|e| cannot(&e.to_string()))?;
        Ok(Self::File { directory, name })
    }

    fn deliver(&self, outcome: &Outcome) -> Result<(), Failure> {
        match self {
            Self::Nowhere => Ok(()),
            Self::StandardOutput => print(&render::json::line(outcome)?),
            Self::File { directory, name } => {
                let text = render::json::line(outcome)?;
                replace(directory, name, &text, outcome.id.as_str()).map_err(|e| {
                    Failure::new(format!(
                        "the run is over, but its outcome could not be written to {}: {e}",
                        quoted(name)
                    ))
                })
            }
        }
    }
}

/// Writes a file completely or not at all, readable by its owner only. A link of that name is
/// replaced, not followed.
fn replace(directory: &OwnedFd, name: &Path, text: &str, unique: &str) -> std::io::Result<()> {
    let temporary = format!(".{unique}.partial");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| Ok(rustix::fs::renameat(directory, &temporary, directory, name)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(directory, &temporary, AtFlags::empty());
    }
    written
}

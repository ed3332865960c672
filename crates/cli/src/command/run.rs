//! `stockade run`: runs one command through the engine.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, Mode, OFlags};
use stockade_backend_api::{Approver, StdioMode, SystemClock};
use stockade_engine::adapters::{RulePolicyEngine, StoreMemory};
use stockade_engine::ports::EventRecorder;
use stockade_engine::{InterruptReceiver, RequestEngine};
use stockade_launch::PrewarmedInit;
use stockade_model::{
    Assessment, Decision, FinalStatus, Grant, IsolationLevel, PolicyVerdict, RawText, RequestCommand, RequestId,
    RunOutcome, RunRequest, Tier,
};
use stockade_native::{HostBackend, SigningUser};
use stockade_policy::{BUILT_IN_NOTICE, PolicySettings, resolve_profile};
use stockade_store::ApprovalRecord;
use stockade_sys::signals::SignalDescriptor;
use tracing::info_span;

use super::configuration::{self, WorkspaceConfig};
use super::detached::supervise::{self, RunSupervisor};
use super::policy::remembered_rules::AnswerRules;
use super::policy::write;
use super::target_sandbox::RunSandbox;
use super::{CommandResult, print_output, print_remark, read_variable, reviewer};
use crate::approver::TerminalApprover;
use crate::args::{RunArgs, RunOptions};
use crate::audit_log::AuditLog;
use crate::failure::{CliError, quote_path};
use crate::interrupts::{BlockedSignals, SignalListener};
use crate::locations::{self, StateDirectory};
use crate::relay::{CommandTerminal, TerminalRelay};
use crate::resolved_args::{self, ResolvedArgs};
use crate::timings::StepTimings;
use crate::{exit, interrupts, relay, render, signing_names, terminal, trace};

/// Bytes of each stream that are kept if the profile sets no limit.
const DEFAULT_OUTPUT_BYTES: u64 = 1 << 20;

/// Runs one command, here or detached. `start` is the start time of this program.
///
/// # Errors
/// [`CliError`] if Stockade itself failed.
pub fn run_command(typed: RunArgs, start: u64) -> CommandResult {
    let timings = typed.timings.then(|| StepTimings::start_recording(start)).transpose()?;
    trace::start_tracing(timings.as_ref())?;
    let id = resolved_args::request_id()?;
    if typed.detach {
        return supervise::start_detached_run(typed, id);
    }
    let here = |typed: &RunArgs| {
        let signals = interrupts::take_signals()?;
        let terminal = CommandTerminal::from_tty_option(typed.tty)?;
        Ok(RunSetup {
            signals,
            terminal,
            run_sandbox: RunSandbox::Own(start_prewarmed_init(&typed.options)),
            supervisor: None,
        })
    };
    let (_, code) = run_to_end(typed, id, here);
    if let Some(timings) = timings {
        print_remark(&timings.format_table());
    }
    Ok(code)
}

/// The process that supervises a run.
pub struct RunSetup {
    /// Taken before any thread starts.
    pub signals: BlockedSignals,
    /// Terminal of the command.
    pub terminal: CommandTerminal,
    /// Sandbox of the command.
    pub run_sandbox: RunSandbox,
    /// Set if the run is detached.
    pub supervisor: Option<Arc<RunSupervisor>>,
}

/// Runs one command to its end and reports it. Returns its outcome and exit code. If Stockade
/// itself failed, the outcome contains the error.
pub fn run_to_end(
    typed: RunArgs,
    id: RequestId,
    setup: impl FnOnce(&RunArgs) -> Result<RunSetup, CliError>,
) -> (RunOutcome, u8) {
    let report = OutcomeSink::from_json_option(typed.json.as_ref());
    let mut sandbox_grants = Vec::new();
    let mut workspace = None;
    let outcome = report.as_ref().map_err(Clone::clone).and_then(|_| {
        let setup = setup(&typed)?;
        sandbox_grants = setup.run_sandbox.common_grants();
        if let RunSandbox::Own(_) = setup.run_sandbox {
            workspace = resolved_args::workspace_of(&typed.options, &read_variable).ok();
        }
        run_engine(typed, id.clone(), setup)
    });
    let outcome = outcome
        .inspect(|outcome| print_summary(outcome, &sandbox_grants, workspace.as_deref()))
        .unwrap_or_else(|failure| {
            crate::print_error(&failure);
            build_failed_outcome(id, &failure)
        });
    let code = match report.map(|report| report.write_outcome(&outcome)) {
        Ok(Err(failure)) => {
            crate::print_error(&failure);
            exit::STOCKADE_FAILURE
        }
        Ok(Ok(())) | Err(_) => exit::code_for_outcome(&outcome),
    };
    (outcome, code)
}

/// Prints the summary on standard error, without the grants that every command there has.
/// `workspace` is that of a command with the host's paths.
fn print_summary(outcome: &RunOutcome, sandbox_grants: &[Grant], workspace: Option<&Path>) {
    // An approver that was interrupted by a signal may still hold the terminal.
    terminal::give_back();
    let home = locations::find_home_directory(&read_variable).unwrap_or_default();
    let remembered = load_used_answers(outcome);
    // Most runs have no refusals, and need no hint.
    let has_refusals = outcome.attempts.last().is_some_and(|last| !last.denials.is_empty());
    let own_directories = if has_refusals { locations::own_directories(&read_variable) } else { Vec::new() };
    let context = render::summary::SummaryContext {
        remembered: &remembered,
        sandbox_grants,
        home: &home,
        workspace,
        own_directories: &own_directories,
    };
    let text = render::summary::format_summary(outcome, context, crate::stderr_style());
    print_remark(&text);
}

/// Returns the answers in force, if one of them was used. Unreadable answers are not shown.
fn load_used_answers(outcome: &RunOutcome) -> Vec<ApprovalRecord> {
    if !outcome.approvals.iter().any(|given| given.by == "cache") {
        return Vec::new();
    }
    let answers = super::approvals::in_force().unwrap_or_default();
    // The newest one first, because it applies.
    answers.into_iter().rev().collect()
}

fn run_engine(typed: RunArgs, id: RequestId, setup: RunSetup) -> Result<RunOutcome, CliError> {
    let captured = leaves_output(&typed)?;
    let run_sandbox = setup.run_sandbox;
    let request_args =
        info_span!("understand the request").in_scope(|| ResolvedArgs::from_run_args(typed, &read_variable))?;
    let request_args = run_sandbox.resolve_inside(request_args)?;
    let setting = info_span!("read the policy")
        .in_scope(|| configuration::load_config(run_sandbox.host_workspace(&request_args)))?;
    let setting = if run_sandbox.persistent_workspace().is_some() { setting.without_mounts() } else { setting };
    setting.require_profile(request_args.options.profile.as_deref())?;
    let state = StateDirectory::open(&setting.sources.state_directory)?;
    locations::make_configuration_directory(&setting.sources);
    info_span!("recover stages")
        .in_scope(|| super::stage::recover_commits(&state, Some(run_sandbox.host_workspace(&request_args))))?;
    tell_built_in(&setting, &state);
    let request = run_sandbox.adapt_request(setting.build_request(&request_args, id));
    let configured_ms = setting.settings.approval_timeout_ms.value;
    let question_timeout_ms =
        request_args.options.approval_timeout.map_or(configured_ms, resolved_args::to_milliseconds);
    terminal::leave_input_to_foreground().map_err(|e| CliError::new(format!("cannot set standard input: {e}")))?;
    let SignalListener { interrupts, interrupter, wake, of_terminal } = setup.signals.start_listening()?;
    let audit_log = Arc::new(info_span!("open the audit log").in_scope(|| AuditLog::open(&state))?);
    let log: Arc<dyn EventRecorder> = Arc::<AuditLog>::clone(&audit_log);
    let recorder = match &setup.supervisor {
        Some(supervisor) => supervisor.publish_run(&request, Arc::clone(&log))?,
        None => Arc::clone(&log),
    };
    let answer_rules = AnswerRules::new(setting.sources.clone(), Arc::clone(&setting.settings), request.clone());
    let answer_rules = Arc::new(answer_rules);
    let text = resolved_args::text_of(&request.command);
    let approver: Arc<Mutex<dyn Approver>> = match &setup.supervisor {
        Some(supervisor) => Arc::new(Mutex::new(supervisor.create_approver(text))),
        None => {
            let terminal = TerminalApprover::new(text, crate::wants_color(), Some(wake));
            Arc::new(Mutex::new(terminal.with_rules(Arc::clone(&answer_rules))))
        }
    };
    let inside = run_sandbox.persistent_workspace().map(Path::to_owned);
    let person = SigningUser {
        agent: signing_names::find_agent_socket(&read_variable),
        home: locations::find_home_directory(&read_variable)?,
    };
    let backend = run_sandbox.into_backend(&state, person);
    let rule_engine = build_policy_engine(&setting, &request_args, inside, backend.name());
    let engine = RequestEngine {
        rule_engine: Arc::new(rule_engine),
        backend,
        host: Some(Arc::new(HostBackend)),
        approver,
        reviewer: reviewer::create_reviewer(&setting.settings, &state),
        recorder,
        memory: Arc::new(StoreMemory::new(state.approvals_file())),
        clock: Arc::new(SystemClock::default()),
        user: format!("uid {}", rustix::process::getuid().as_raw()),
        question_timeout_ms,
    };
    if let Some(supervisor) = &setup.supervisor {
        let of_input = RequestEngine { recorder: log, ..engine.clone() };
        supervisor.serve_clients(interrupter, of_input, setting.policy_engine(), &request)?;
    }
    let is_captured = captured && !matches!(setup.terminal, CommandTerminal::Held(_));
    let captured = is_captured.then(|| captured_io(&setting, &request));
    let (command, workspace) = (request.command.clone(), request.workspace.clone());
    let outcome = run_at_terminal(&engine, request, (setup.terminal, of_terminal), captured, interrupts)?;
    store_rules(&answer_rules, (&command, workspace.as_path()), &outcome, &setting.settings);
    info_span!("anchor the audit log").in_scope(|| audit_log.move_anchor());
    super::cache::enforce_cache_limit(&state);
    Ok(outcome)
}

/// Returns the policy engine for the options of a run. `inside` is the workspace of a persistent
/// sandbox.
fn build_policy_engine(
    setting: &WorkspaceConfig,
    request_args: &ResolvedArgs,
    inside: Option<PathBuf>,
    sandbox_backend: &'static str,
) -> RulePolicyEngine {
    RulePolicyEngine {
        stage: request_args.options.stage,
        undo: request_args.options.undo,
        can_keep: inside.is_none(),
        trace: request_args.options.trace,
        inside,
        sandbox_backend,
        ..setting.policy_engine()
    }
}

/// Returns whether standard output gets the outcome instead of the command's output.
fn leaves_output(typed: &RunArgs) -> Result<bool, CliError> {
    let captured = matches!(typed.json, Some(None));
    if captured && typed.tty {
        return Err(CliError::new(
            "a command with its own terminal uses standard output, so the outcome cannot be written there",
        )
        .with_hint("write --json=FILE"));
    }
    Ok(captured)
}

/// Runs the command with a terminal of its own, if it needs one.
fn run_at_terminal(
    engine: &RequestEngine,
    request: RunRequest,
    (given, of_terminal): (CommandTerminal, SignalDescriptor),
    captured: Option<StdioMode>,
    interrupts: InterruptReceiver,
) -> Result<RunOutcome, CliError> {
    let relay = TerminalRelay::start_relay(given, of_terminal, !engine.backend.mixes_streams())?;
    let io = captured.unwrap_or(if relay.is_some() { StdioMode::Terminal } else { StdioMode::Inherit });
    let outcome = engine.run_request(
        request,
        io,
        interrupts.with_stop_handler(terminal::suspend_job).with_input_check(relay::has_typed),
    );
    if let Some(relay) = relay {
        relay.finish_relay();
    }
    Ok(outcome)
}

/// Reports once that no policy is configured: to a user, not into output that a program reads.
fn tell_built_in(setting: &WorkspaceConfig, state: &StateDirectory) {
    let mut stderr = std::io::stderr().lock();
    if setting.settings.is_built_in() && stderr.is_terminal() && state.is_first_time("built-in-policy") {
        let _ = writeln!(stderr, "• {BUILT_IN_NOTICE}");
    }
}

/// Writes the rules that answers became, or prints how an answer could become a rule.
fn store_rules(
    answer_rules: &AnswerRules,
    (command, workspace): (&RequestCommand, &Path),
    outcome: &RunOutcome,
    settings: &PolicySettings,
) {
    let remark = match answer_rules.write_accepted_rules(outcome) {
        Ok(Some(file)) => format!("• written as a rule to {}\n", quote_path(&file)),
        Ok(None) => match write::rule_hint(command, workspace, outcome, settings) {
            Some((reach, line)) => format!("• as a rule, for {reach}: {}\n", RawText::from(line).to_escaped()),
            None => return,
        },
        Err(failure) => return crate::print_error(&failure),
    };
    print_remark(&remark);
}

/// Starts a sandbox while the request is read, if the run probably needs one. If that fails, the
/// run's own start reports the reason.
pub fn start_prewarmed_init(options: &RunOptions) -> Option<PrewarmedInit> {
    let needs_sandbox =
        options.level.is_none_or(|level| level == IsolationLevel::Full) && options.profile.as_deref() != Some("host");
    needs_sandbox.then(|| info_span!("begin the sandbox").in_scope(PrewarmedInit::start))?.ok()
}

/// Captures as much output as the profile keeps.
fn captured_io(setting: &WorkspaceConfig, request: &RunRequest) -> StdioMode {
    let profile = resolve_profile(&setting.settings, &request.profile, request.workspace.as_path(), &request.grants);
    let mut limits = profile.map(|profile| profile.limits).unwrap_or_default();
    limits.lower_to(&request.limits);
    StdioMode::Capture { limit_bytes: limits.output_bytes.unwrap_or(DEFAULT_OUTPUT_BYTES) }
}

/// Returns the outcome of a run that did not start, for standard output and the engine.
fn build_failed_outcome(id: RequestId, failure: &CliError) -> RunOutcome {
    let why = failure.hint.as_ref().map_or_else(|| failure.what.clone(), |hint| format!("{failure}\nhint: {hint}"));
    RunOutcome {
        id,
        session: None,
        digest: None,
        status: FinalStatus::Error,
        exit_code: None,
        signal: None,
        error: Some(why),
        assessment: Assessment::without_findings(Tier::Ask),
        decision: Decision {
            verdict: PolicyVerdict::Deny,
            rule: "nothing was decided".to_owned(),
            reasons: Vec::new(),
        },
        attempts: Vec::new(),
        approvals: Vec::new(),
        requested: Vec::new(),
    }
}

/// Destination of the outcome.
enum OutcomeSink {
    Nowhere,
    StandardOutput,
    /// The directory is opened before the run, because the run may move it or replace it by a link.
    File {
        directory: OwnedFd,
        name: PathBuf,
    },
}

impl OutcomeSink {
    fn from_json_option(json: Option<&Option<PathBuf>>) -> Result<Self, CliError> {
        match json {
            None => Ok(Self::Nowhere),
            Some(None) => Ok(Self::StandardOutput),
            Some(Some(file)) => Self::open_file_sink(file),
        }
    }

    fn open_file_sink(file: &Path) -> Result<Self, CliError> {
        let cannot = |why: &str| {
            let shown = quote_path(file);
            CliError::new(format!("cannot write the outcome to {shown}: {why}"))
                .with_hint("write --json=FILE, in a directory that exists")
        };
        let name = file.file_name().ok_or_else(|| cannot("it names no file"))?.into();
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty()).map_err(|e| cannot(&e.to_string()))?;
        Ok(Self::File { directory, name })
    }

    fn write_outcome(&self, outcome: &RunOutcome) -> Result<(), CliError> {
        match self {
            Self::Nowhere => Ok(()),
            Self::StandardOutput => print_output(&render::json::to_json_line(outcome)?).map(drop),
            Self::File { directory, name } => {
                let text = render::json::to_json_line(outcome)?;
                replace_file(directory, name, &text, outcome.id.as_str()).map_err(|e| {
                    CliError::new(format!(
                        "the run is over, but its outcome could not be written to {}: {e}",
                        quote_path(name)
                    ))
                })
            }
        }
    }
}

/// Writes a file completely or not at all, readable by its owner only. A link of that name is
/// replaced, not followed.
fn replace_file(directory: &OwnedFd, name: &Path, text: &str, unique: &str) -> std::io::Result<()> {
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

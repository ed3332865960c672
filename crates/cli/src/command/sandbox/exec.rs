//! One command in a persistent sandbox: an ordinary run, with the sandbox's backend in place of a
//! new sandbox.

use std::sync::Arc;

use stockade_backend_api::INSIDE_WORKSPACE;
use stockade_lifecycle::{DestroyReason, Lifecycle, OpenSandbox, clone_steps};
use stockade_model::{
    CallerApproval, FinalStatus, Grant, IsolationLevel, RawText, RunOutcome, SandboxId, SandboxRecord, WorkspaceSource,
};
use stockade_store::sandboxes::CommandRecord;

use super::super::run::{RunSetup, run_to_end};
use super::super::target_sandbox::{PersistentRunContext, RunSandbox};
use super::super::{CommandResult, configuration, now_ms, print_remark};
use super::{build_isolation_spec, find_sandbox, ignore_events, load_notify_settings, open_lifecycle, own_grants};
use crate::args::{CommandArgs, RunArgs, RunOptions};
use crate::failure::CliError;
use crate::interrupts::{self, BlockedSignals};
use crate::locations;
use crate::relay::CommandTerminal;
use crate::render::sandbox as text;
use crate::sandbox_args::{SandboxExecArgs, SandboxExecOptions};
use crate::{exit, notify, resolved_args};

/// Runs one command.
///
/// # Errors
/// [`CliError`] if Stockade itself failed.
pub fn exec_in_sandbox(typed: SandboxExecArgs) -> CommandResult {
    let signals = interrupts::take_signals()?;
    run_in_sandbox(&open_lifecycle()?, &typed.id, typed.manner, typed.subject, signals)
}

/// Runs one command in an existing sandbox.
pub fn run_in_sandbox(
    lifecycle: &Lifecycle,
    id: &SandboxId,
    manner: SandboxExecOptions,
    subject: CommandArgs,
    signals: BlockedSignals,
) -> CommandResult {
    let terminal = CommandTerminal::from_tty_option(manner.tty)?;
    let opened = open_sandbox(lifecycle, id)?;
    let level = opened.used.record().spec.level;
    let record = opened.used.record().clone();
    let run_sandbox = RunSandbox::Lasting(Box::new(build_persistent_context(&record, &opened, Vec::new(), None)));
    let (text, started_ms) = (text_of(&subject), now_ms());
    let setup = |_: &RunArgs| Ok(RunSetup { signals, terminal, run_sandbox, supervisor: None });
    let (outcome, code) = run_to_end(run_args(manner, subject, level), resolved_args::request_id()?, setup);
    lifecycle.leave_sandbox(opened)?;
    notify::tell_breaches(load_notify_settings, &record, &outcome);
    lifecycle.store().note_command(id, record_of(&outcome, text, started_ms))?;
    Ok(code)
}

fn text_of(subject: &CommandArgs) -> String {
    let words = subject.script.iter().chain(&subject.words);
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Returns the record of a command. It does not contain the resource usage of the sandbox, because
/// a container engine takes a second to return it.
fn record_of(outcome: &RunOutcome, text: String, started_ms: u64) -> CommandRecord {
    let used = outcome.attempts.iter().map(|attempt| &attempt.usage);
    CommandRecord {
        request: outcome.id.clone(),
        user: format!("uid {}", rustix::process::getuid().as_raw()),
        text,
        started_ms,
        ended_ms: now_ms(),
        status: outcome.status,
        exit_code: outcome.exit_code,
        memory_peak_bytes: used.clone().filter_map(|usage| usage.tree_memory_peak_bytes).max(),
        processes_peak: used.filter_map(|usage| usage.processes_peak).max(),
    }
}

/// Clones the repository into the workspace, if the sandbox has one. A failed clone destroys the
/// sandbox.
///
/// # Errors
/// [`CliError`] if git failed.
pub fn clone_into(lifecycle: &Lifecycle, id: &SandboxId, signals: BlockedSignals) -> Result<(), CliError> {
    let record = find_sandbox(lifecycle, id)?;
    let WorkspaceSource::Clone { url, revision } = &record.spec.workspace else { return Ok(()) };
    let steps = clone_steps(url, revision.as_ref());
    let opened = open_sandbox(lifecycle, id)?;
    let by = "the person who named the repository";
    let cloned = run_steps(&opened, steps.commands, &steps.grants, by, Some(signals));
    lifecycle.leave_sandbox(opened)?;
    if cloned.is_err() {
        lifecycle.destroy_sandbox(id, DestroyReason::Asked)?;
    }
    cloned.map_err(|failure| {
        CliError::new(format!("the repository {url} was not cloned: {failure}")).or_hint(failure.hint)
    })
}

/// Runs commands of Stockade itself in a sandbox, until one fails.
///
/// # Errors
/// [`CliError`] if a command failed.
pub fn steps_inside(lifecycle: &Lifecycle, id: &SandboxId, commands: Vec<Vec<RawText>>) -> Result<(), CliError> {
    let opened = open_sandbox(lifecycle, id)?;
    let done = run_steps(&opened, commands, &[], "the user who requested the notification", None);
    lifecycle.leave_sandbox(opened)?;
    done
}

/// Runs commands with the approval of `by` until one fails. The first one may have its signals already.
fn run_steps(
    opened: &OpenSandbox,
    commands: Vec<Vec<RawText>>,
    grants: &[Grant],
    by: &str,
    mut signals: Option<BlockedSignals>,
) -> Result<(), CliError> {
    let record = opened.used.record();
    let agreed = CallerApproval { by: by.to_owned(), warnings: Vec::new() };
    commands.into_iter().try_for_each(|words| {
        let run_sandbox = build_persistent_context(record, opened, grants.to_vec(), Some(agreed.clone()));
        let signals = signals.take().map_or_else(interrupts::take_signals, Ok)?;
        one_step(words, run_sandbox, record.spec.level, signals)
    })
}

fn one_step(
    words: Vec<RawText>,
    run_sandbox: PersistentRunContext,
    level: IsolationLevel,
    signals: BlockedSignals,
) -> Result<(), CliError> {
    let subject = CommandArgs { script: None, words: words.iter().map(|word| word.as_os_str().to_owned()).collect() };
    let (terminal, run_sandbox) = (CommandTerminal::Own, RunSandbox::Lasting(Box::new(run_sandbox)));
    let args = run_args(SandboxExecOptions::default(), subject, level);
    let setup = |_: &RunArgs| Ok(RunSetup { signals, terminal, run_sandbox, supervisor: None });
    match run_to_end(args, resolved_args::request_id()?, setup) {
        (outcome, exit::SUCCESS) if outcome.status == FinalStatus::Exited => Ok(()),
        (outcome, code) => Err(CliError::new(match outcome.status {
            FinalStatus::Exited => format!("git ended with {code}"),
            FinalStatus::Refused => "it was refused".to_owned(),
            _ => "git did not finish".to_owned(),
        })),
    }
}

/// Opens a sandbox; its isolation is set up again if it is gone.
///
/// # Errors
/// [`CliError`] if there is no such sandbox, if it is not ready, or if its isolation cannot be set
/// up.
pub fn open_sandbox(lifecycle: &Lifecycle, id: &SandboxId) -> Result<OpenSandbox, CliError> {
    let record = find_sandbox(lifecycle, id)?;
    let setting = configuration::load_config(&locations::current_directory()?)?;
    let opened = lifecycle.open_sandbox(id, &build_isolation_spec(record.spec, &setting.settings)?, ignore_events())?;
    if opened.is_anew {
        print_remark(&text::recreated_message(id));
    }
    Ok(opened)
}

fn build_persistent_context(
    record: &SandboxRecord,
    opened: &OpenSandbox,
    more: Vec<Grant>,
    agreed: Option<CallerApproval>,
) -> PersistentRunContext {
    let spec = &record.spec;
    let mut grants = own_grants(spec);
    grants.extend(more.into_iter().filter(|grant| !grants.contains(grant)).collect::<Vec<_>>());
    let workspace = match &spec.workspace {
        WorkspaceSource::Bind { directory } => directory.as_raw().as_path().to_owned(),
        // Files that its commands write there do not affect the policy.
        _ => INSIDE_WORKSPACE.into(),
    };
    PersistentRunContext {
        backend: Arc::clone(&opened.sandbox.backend()),
        workspace,
        profile: spec.profile.clone(),
        grants,
        limits: spec.limits.clone(),
        agreed,
    }
}

fn run_args(manner: SandboxExecOptions, subject: CommandArgs, level: IsolationLevel) -> RunArgs {
    RunArgs {
        options: RunOptions {
            grants: manner.grants,
            requests: manner.requests,
            mode: manner.mode,
            // A command cannot get a higher level than its sandbox.
            level: (level == IsolationLevel::Restricted).then_some(level),
            timeout: manner.timeout,
            ..RunOptions::default()
        },
        tty: manner.tty,
        json: manner.json,
        subject,
        ..RunArgs::default()
    }
}

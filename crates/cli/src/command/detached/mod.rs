//! `stockade ps`, `logs`, `wait` and `kill`: detached runs, which continue without a terminal.
//! [`supervise`] starts one, [`attach`] attaches to it.

pub mod attach;
mod client;
mod input;
mod script_integrity;
mod service;
pub mod supervise;
mod terminal_client;

use std::io::{self, IsTerminal, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stockade_store::runs::{
    DetachedRun, DetachedRunState, OutputPiece, OutputReader, OutputStream, RunDescription, RunStore,
};

use super::{CommandResult, print_each, read_variable};
use crate::detached_args::{KillArgs, LogsArgs, PsArgs, WaitArgs};
use crate::failure::CliError;
use crate::locations::StateDirectory;
use crate::render::detached as text;
use crate::screen::TextOutputFilter;
use crate::{exit, locations};

/// Interval between two checks of an awaited run.
const RUN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time-out for a run to end after the request: its grace period, its killing, and its entry in the
/// audit log.
const END_TIMEOUT: Duration = Duration::from_secs(60);

fn open_runs() -> Result<RunStore, CliError> {
    Ok(RunStore::at_root(StateDirectory::open(&locations::state_path(&read_variable)?)?.runs_directory()))
}

/// Lists runs, the newest first.
///
/// # Errors
/// [`CliError`] if they cannot be read.
pub fn list_runs(typed: &PsArgs) -> CommandResult {
    let looked_at = |run: DetachedRun| {
        let (about, run_state) = (run.read_description(), run.read_state());
        (run, about, run_state)
    };
    let mut found: Vec<_> = open_runs()?.list_runs()?.into_iter().map(looked_at).collect();
    found.retain(|(.., run_state)| typed.all || *run_state == DetachedRunState::Running);
    found.sort_by_key(|(_, about, _)| std::cmp::Reverse(about.as_ref().map_or(u64::MAX, |about| about.started_ms)));
    super::remark_empty(found.is_empty(), "no detached runs");
    print_each(
        &found,
        typed.json,
        (
            |(run, about, run_state)| listed_json(run, about.as_ref(), run_state),
            |(run, about, run_state)| text::format_line(run.id(), about.as_ref(), run_state),
        ),
        "",
    )
}

fn listed_json(run: &DetachedRun, about: Option<&RunDescription>, run_state: &DetachedRunState) -> Value {
    let (state, status, exit_code) = match run_state {
        DetachedRunState::Running => ("running", None, None),
        DetachedRunState::Ended(outcome) => ("ended", Some(outcome.status), Some(exit::code_for_outcome(outcome))),
        DetachedRunState::Lost => ("lost", None, None),
    };
    json!({
        "id": run.id(),
        "state": state,
        "status": status,
        "exit_code": exit_code,
        "session": about.map(|about| &about.session),
        "command": about.map(|about| &about.command),
        "workspace": about.map(|about| &about.workspace),
        "profile": about.map(|about| &about.profile),
        "started_ms": about.map(|about| about.started_ms),
        "supervisor": about.map(|about| about.supervisor),
    })
}

/// Shows the output of a run, each stream on the same stream.
///
/// # Errors
/// [`CliError`] if there is no such run, or if its output cannot be read.
pub fn show_run_output(typed: &LogsArgs) -> CommandResult {
    let run = open_runs()?.find_run(&typed.id)?;
    let (mut output, mut shower) = (run.open_output(), OutputPrinter::default());
    loop {
        // Checked before the read: once the supervisor has exited, the output is complete.
        let over = !run.is_supervised();
        shower.print_available(&mut output)?;
        if over || !typed.follow {
            return Ok(exit::SUCCESS);
        }
        sleep(RUN_POLL_INTERVAL);
    }
}

/// Shows the output of a run. A terminal does not belong to the run, so it gets text and colours
/// only.
#[derive(Debug, Default)]
struct OutputPrinter {
    out: TextOutputFilter,
    err: TextOutputFilter,
}

impl OutputPrinter {
    /// Shows the available output.
    fn print_available(&mut self, output: &mut OutputReader) -> Result<(), CliError> {
        let cannot = |e: io::Error| CliError::new(format!("cannot show what the run printed: {e}"));
        let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr().lock());
        while let Some(piece) = output.next_piece().map_err(cannot)? {
            match piece {
                OutputPiece::Bytes(OutputStream::Out, bytes) if stdout.is_terminal() => {
                    stdout.write_all(&self.out.filter_bytes(&bytes))
                }
                OutputPiece::Bytes(OutputStream::Out, bytes) => stdout.write_all(&bytes),
                OutputPiece::Bytes(OutputStream::Err, bytes) if stderr.is_terminal() => {
                    stderr.write_all(&self.err.filter_bytes(&bytes))
                }
                OutputPiece::Bytes(OutputStream::Err, bytes) => stderr.write_all(&bytes),
                OutputPiece::LeftOut(bytes) => stderr.write_all(text::left_out(bytes).as_bytes()),
            }
            .map_err(cannot)?;
        }
        stdout.flush().map_err(cannot)
    }
}

/// Waits for a run; the exit code is that of the run.
///
/// # Errors
/// [`CliError`] if there is no such run, or if it ended without an outcome.
pub fn wait_for_run(typed: &WaitArgs) -> CommandResult {
    let run = open_runs()?.find_run(&typed.id)?;
    while run.is_supervised() {
        sleep(RUN_POLL_INTERVAL);
    }
    end_of(&run)
}

/// Returns the exit code of a run that has ended.
fn end_of(run: &DetachedRun) -> CommandResult {
    match run.read_state() {
        DetachedRunState::Ended(outcome) => Ok(exit::code_for_outcome(&outcome)),
        DetachedRunState::Lost | DetachedRunState::Running => Err(CliError::new(format!(
            "the supervisor of {} was killed; all processes of the run ended with it",
            run.id()
        ))
        .with_hint("`stockade logs` shows what it had printed")),
    }
}

/// Ends a run and waits until all its processes are gone.
///
/// # Errors
/// [`CliError`] if there is no such run, if it cannot be reached, or if it does not end.
pub fn kill_run(typed: &KillArgs) -> CommandResult {
    let run = open_runs()?.find_run(&typed.id)?;
    if let Err(failure) = client::request_run_end(&run, typed.signal.to_signal()) {
        if run.is_supervised() {
            return Err(failure);
        }
        crate::print_error(&CliError::new(format!("{} is over", run.id())));
        return Ok(exit::NEGATIVE_RESULT);
    }
    let deadline = Instant::now() + END_TIMEOUT;
    while run.is_supervised() {
        if Instant::now() >= deadline {
            let why = format!("{} did not end within {} s", run.id(), END_TIMEOUT.as_secs());
            return Err(CliError::new(why).with_hint("again with --signal kill"));
        }
        sleep(RUN_POLL_INTERVAL);
    }
    Ok(exit::SUCCESS)
}

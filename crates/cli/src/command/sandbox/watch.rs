//! Shows the resource usage of sandboxes and the commands run in them; pauses and resumes
//! sandboxes.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use stockade_lifecycle::Lifecycle;
use stockade_model::{SandboxId, SandboxRecord, SandboxState};
use stockade_store::sandboxes::CommandRecord;

use super::super::configuration::{self, WorkspaceConfig};
use super::super::{CommandResult, now_ms, print_output};
use super::{build_isolation_spec, exec, find_sandbox, ignore_events, open_lifecycle};
use crate::failure::CliError;
use crate::render::json;
use crate::render::sandbox::{self as text, SandboxUsageRow};
use crate::{exit, locations};

/// Interval between two updates of a live table.
const TABLE_REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between two reads of the commands.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Freezes every process of a sandbox.
///
/// # Errors
/// [`CliError`] if it is not ready, or cannot be frozen.
pub fn pause_sandbox(id: &SandboxId) -> CommandResult {
    let lifecycle = open_lifecycle()?;
    let opened = exec::open_sandbox(&lifecycle, id)?;
    let paused = lifecycle.pause_sandbox(&opened);
    lifecycle.leave_sandbox(opened)?;
    paused?;
    Ok(exit::SUCCESS)
}

/// Thaws the processes of a sandbox.
///
/// # Errors
/// [`CliError`] if it is not paused, or cannot be thawed.
pub fn resume_sandbox(id: &SandboxId) -> CommandResult {
    let (lifecycle, setting) = (open_lifecycle()?, load_current_config()?);
    let record = find_sandbox(&lifecycle, id)?;
    lifecycle.go_on(id, &build_isolation_spec(record.spec, &setting.settings)?, ignore_events())?;
    Ok(exit::SUCCESS)
}

/// Shows the commands run in a sandbox; with `follow` also later ones, until it ends.
///
/// # Errors
/// [`CliError`] if there is no such sandbox.
pub fn show_commands(id: &SandboxId, follow: bool, as_json: bool) -> CommandResult {
    let lifecycle = open_lifecycle()?;
    // Ordered by their ends, but a command may be recorded after one that ended later.
    let mut shown = BTreeSet::new();
    loop {
        // Checked before the commands are read, so that commands recorded before the end are shown.
        let is_over = find_sandbox(&lifecycle, id)?.state.is_ending();
        let commands = lifecycle.store().list_commands(id)?;
        let mut out = String::new();
        for command in commands.iter().filter(|command| !shown.contains(&command.request)) {
            out.push_str(&if as_json { json::to_json_line(command)? } else { text::format_command(command) });
        }
        print_output(&out)?;
        if is_over || !follow {
            return Ok(exit::SUCCESS);
        }
        shown = commands.into_iter().map(|command| command.request).collect();
        sleep(LOG_POLL_INTERVAL);
    }
}

/// Shows all details of a sandbox.
///
/// # Errors
/// [`CliError`] if there is no such sandbox.
pub fn show_sandbox(id: &SandboxId, as_json: bool) -> CommandResult {
    let lifecycle = open_lifecycle()?;
    let record = find_sandbox(&lifecycle, id)?;
    let row = build_usage_row(&lifecycle, &load_current_config()?, &record, &lifecycle.store().list_commands(id)?);
    print_output(&if as_json {
        let mut value = serde_json::to_value(&record)?;
        value["usage"] = usage_json(&row);
        json::to_json_line(&value)?
    } else {
        text::format_details(&record) + &text::format_usage(&row)
    })?;
    Ok(exit::SUCCESS)
}

/// Shows the resource usage of each sandbox.
///
/// # Errors
/// [`CliError`] if they cannot be read.
pub fn show_usage_table(once: bool, as_json: bool) -> CommandResult {
    let setting = load_current_config()?;
    let is_live = !once && !as_json && io::stdout().is_terminal();
    loop {
        let rows = collect_usage_rows(&setting)?;
        if as_json {
            print_output(&rows.iter().map(|row| json::to_json_line(&row_json(row))).collect::<Result<String, _>>()?)?;
        } else {
            print_output(&if is_live {
                text::format_screen(&rows, terminal_rows())
            } else {
                text::format_table(&rows)
            })?;
        }
        if !is_live {
            return Ok(exit::SUCCESS);
        }
        sleep(TABLE_REFRESH_INTERVAL);
    }
}

fn terminal_rows() -> usize {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_row).into()
}

fn load_current_config() -> Result<WorkspaceConfig, CliError> {
    configuration::load_config(&locations::current_directory()?)
}

fn collect_usage_rows(setting: &WorkspaceConfig) -> Result<Vec<SandboxUsageRow>, CliError> {
    let lifecycle = open_lifecycle()?;
    let records = lifecycle.store().list_sandboxes()?.into_iter().filter(|record| !record.state.is_ending());
    records
        .map(|record| Ok(build_usage_row(&lifecycle, setting, &record, &lifecycle.store().list_commands(&record.id)?)))
        .collect()
}

/// Returns the row of a sandbox, without resource usage if that cannot be read.
fn build_usage_row(
    lifecycle: &Lifecycle,
    setting: &WorkspaceConfig,
    record: &SandboxRecord,
    commands: &[CommandRecord],
) -> SandboxUsageRow {
    let stands = matches!(record.state, SandboxState::Ready | SandboxState::Paused);
    let look = || {
        let isolation_spec = build_isolation_spec(record.spec.clone(), &setting.settings).ok()?;
        lifecycle.find_sandbox(record, &isolation_spec, ignore_events()).ok()??.read_usage().ok()
    };
    let usage = stands.then(look).flatten();
    let peak =
        |now: Option<u64>, then: fn(&CommandRecord) -> Option<u64>| commands.iter().filter_map(then).chain(now).max();
    let now = now_ms();
    SandboxUsageRow {
        id: record.id.clone(),
        state: record.state,
        memory_peak_bytes: peak(usage.and_then(|usage| usage.total.tree_memory_peak_bytes), |c| c.memory_peak_bytes),
        processes_peak: peak(usage.and_then(|usage| usage.total.processes_peak), |c| c.processes_peak),
        usage,
        commands: commands.len(),
        age_ms: now.saturating_sub(record.created_ms),
        left_ms: record.ends_ms().map(|ends| ends.saturating_sub(now)),
    }
}

fn row_json(row: &SandboxUsageRow) -> Value {
    let mut value = usage_json(row);
    value["id"] = json!(row.id);
    value["state"] = json!(row.state);
    value["age_ms"] = json!(row.age_ms);
    value["left_ms"] = json!(row.left_ms);
    value
}

fn usage_json(row: &SandboxUsageRow) -> Value {
    json!({
        "processes": row.usage.and_then(|usage| usage.processes),
        "processes_peak": row.processes_peak,
        "memory_bytes": row.usage.and_then(|usage| usage.memory_bytes),
        "memory_peak_bytes": row.memory_peak_bytes,
        "cpu_ms": row.usage.map(|usage| usage.total.cpu_ms),
        "commands": row.commands,
    })
}

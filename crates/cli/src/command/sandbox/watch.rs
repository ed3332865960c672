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

use super::super::setting::{self, Setting};
use super::super::{Ended, now_ms, print};
use super::{exec, find, lifecycle, unheard, wanted};
use crate::failure::Failure;
use crate::render::json;
use crate::render::sandbox::{self as text, Row};
use crate::{exit, places};

/// Interval between two updates of a live table.
const AGAIN: Duration = Duration::from_secs(2);
/// Interval between two reads of the commands.
const FOLLOW_AGAIN: Duration = Duration::from_millis(500);

/// Freezes every process of a sandbox.
///
/// # Errors
/// [`Failure`] if it is not ready, or cannot be frozen.
pub fn pause(id: &SandboxId) -> Ended {
    let lifecycle = lifecycle()?;
    let opened = exec::open(&lifecycle, id)?;
    let paused = lifecycle.pause(&opened);
    lifecycle.leave(opened)?;
    paused?;
    Ok(exit::SUCCESS)
}

/// Thaws the processes of a sandbox.
///
/// # Errors
/// [`Failure`] if it is not paused, or cannot be thawed.
pub fn resume(id: &SandboxId) -> Ended {
    let (lifecycle, setting) = (lifecycle()?, setting()?);
    let record = find(&lifecycle, id)?;
    lifecycle.go_on(id, &wanted(record.spec, &setting.settings)?, unheard())?;
    Ok(exit::SUCCESS)
}

/// Shows the commands run in a sandbox; with `follow` also later ones, until it ends.
///
/// # Errors
/// [`Failure`] if there is no such sandbox.
pub fn logs(id: &SandboxId, follow: bool, as_json: bool) -> Ended {
    let lifecycle = lifecycle()?;
    // Ordered by their ends, but a command may be recorded after one that ended later.
    let mut shown = BTreeSet::new();
    loop {
        // Checked before the commands are read, so that commands recorded before the end are shown.
        let is_over = find(&lifecycle, id)?.state.is_ending();
        let commands = lifecycle.store().commands(id)?;
        let mut out = String::new();
        for command in commands.iter().filter(|command| !shown.contains(&command.request)) {
            out.push_str(&if as_json { json::line(command)? } else { text::command(command) });
        }
        print(&out)?;
        if is_over || !follow {
            return Ok(exit::SUCCESS);
        }
        shown = commands.into_iter().map(|command| command.request).collect();
        sleep(FOLLOW_AGAIN);
    }
}

/// Shows all details of a sandbox.
///
/// # Errors
/// [`Failure`] if there is no such sandbox.
pub fn show(id: &SandboxId, as_json: bool) -> Ended {
    let lifecycle = lifecycle()?;
    let record = find(&lifecycle, id)?;
    let row = row(&lifecycle, &setting()?, &record, &lifecycle.store().commands(id)?);
    print(&if as_json {
        let mut value = serde_json::to_value(&record)?;
        value["usage"] = usage_json(&row);
        json::line(&value)?
    } else {
        text::shown(&record) + &text::used(&row)
    })?;
    Ok(exit::SUCCESS)
}

/// Shows the resource usage of each sandbox.
///
/// # Errors
/// [`Failure`] if they cannot be read.
pub fn top(once: bool, as_json: bool) -> Ended {
    let setting = setting()?;
    let is_live = !once && !as_json && io::stdout().is_terminal();
    loop {
        let rows = rows(&setting)?;
        if as_json {
            print(&rows.iter().map(|row| json::line(&row_json(row))).collect::<Result<String, _>>()?)?;
        } else {
            print(&if is_live { text::screen(&rows, lines()) } else { text::table(&rows) })?;
        }
        if !is_live {
            return Ok(exit::SUCCESS);
        }
        sleep(AGAIN);
    }
}

fn lines() -> usize {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_row).into()
}

fn setting() -> Result<Setting, Failure> {
    setting::load(&places::current_directory()?)
}

fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let lifecycle = lifecycle()?;
    let records = lifecycle.store().list()?.into_iter().filter(|record| !record.state.is_ending());
    records.map(|record| Ok(row(&lifecycle, setting, &record, &lifecycle.store().commands(&record.id)?))).collect()
}

/// Returns the row of a sandbox, without resource usage if that cannot be read.
fn row(lifecycle: &Lifecycle, setting: &Setting, record: &SandboxRecord, commands: &[CommandRecord]) -> Row {
    let stands = matches!(record.state, SandboxState::Ready | SandboxState::Paused);
    let look = || {
        let wanted = wanted(record.spec.clone(), &setting.settings).ok()?;
        lifecycle.look(record, &wanted, unheard()).ok()??.usage().ok()
    };
    let usage = stands.then(look).flatten();
    let peak =
        |now: Option<u64>, then: fn(&CommandRecord) -> Option<u64>| commands.iter().filter_map(then).chain(now).max();
    let now = now_ms();
    Row {
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

fn row_json(row: &Row) -> Value {
    let mut value = usage_json(row);
    value["id"] = json!(row.id);
    value["state"] = json!(row.state);
    value["age_ms"] = json!(row.age_ms);
    value["left_ms"] = json!(row.left_ms);
    value
}

fn usage_json(row: &Row) -> Value {
    json!({
        "processes": row.usage.and_then(|usage| usage.processes),
        "processes_peak": row.processes_peak,
        "memory_bytes": row.usage.and_then(|usage| usage.memory_bytes),
        "memory_peak_bytes": row.memory_peak_bytes,
        "cpu_ms": row.usage.map(|usage| usage.total.cpu_ms),
        "commands": row.commands,
    })
}

//! `stockade changes` and `stockade undo`: shows the changes of a run in its workspace, and undoes
//! them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stockade_model::{EventKind, RawText, RequestId};
use stockade_stage::text::diff_objects;
use stockade_stage::undo::{
    RestoreResult, UndoChange, UndoComparison, UndoConflict, UndoEffect, UndoMeta, UndoRun, UndoStore,
};

use super::stage::outside_workspace_error;
use super::{CommandResult, print_each, print_output, print_remark, print_result, read_variable, report_negative};
use crate::audit_log::AuditLog;
use crate::failure::{CliError, quote_path};
use crate::locations::StateDirectory;
use crate::render::{self, count_noun, undo as text};
use crate::undo_args::{ChangesArgs, UndoArgs};
use crate::{exit, locations};

/// Shortest beginning of an id that counts as one.
const MIN_ID_PREFIX_CHARS: usize = 6;

/// Shows the changes of a run.
///
/// # Errors
/// [`CliError`] if the backups cannot be read.
pub fn show_changes(typed: &ChangesArgs) -> CommandResult {
    let Some(store) = open_undo_store(&open_state()?)? else { return nothing_here() };
    if typed.runs {
        return list_undo_runs(&store, typed.json);
    }
    let Some(target) = UndoTarget::parse_target(&store, &typed.target)? else { return nothing_here() };
    let run = store.open_run(&target.run.request)?;
    let found = run.compare_paths(&target.paths)?;
    if let Some(first) = target.paths.first().filter(|_| found.changes.is_empty() && found.conflicts.is_empty()) {
        return changed_nothing(&target.run.request, first);
    }
    let conflict_of = |path: &Path| found.conflicts.iter().find(|(other, _)| other == path).map(|(_, why)| why);
    let mut out = String::new();
    if typed.json {
        for change in &found.changes {
            let difference = if typed.diff { Some(format_change_diff(&run, change)?) } else { None };
            out += &render::json::to_json_line(&change_json(&run.meta, change, conflict_of(&change.path), difference))?;
        }
    } else {
        out += &text::format_run(&run.meta);
        if typed.diff {
            for change in &found.changes {
                out += &text::format_change(change, conflict_of(&change.path));
                out += &format_change_diff(&run, change)?;
            }
        } else {
            out += &text::format_changes(&found.changes, &conflict_of);
        }
        let is_named = |path: &PathBuf| found.changes.iter().any(|change| change.path == *path);
        let inner = found.conflicts.iter().filter(|(path, _)| !is_named(path));
        inner.for_each(|(path, why)| out += &text::format_conflict(path, why));
    }
    print_output(&out)?;
    tell_killed(&found);
    if found.is_restored {
        print_remark("this run is undone already\n");
    } else if found.changes.is_empty() && !typed.json {
        print_remark("no changes\n");
    }
    Ok(exit::SUCCESS)
}

/// Restores the files that a run changed, or removes its backups.
///
/// # Errors
/// [`CliError`] if the backups cannot be read, or the workspace cannot be written.
pub fn undo_run(typed: &UndoArgs) -> CommandResult {
    let state = open_state()?;
    let Some(store) = open_undo_store(&state)? else { return nothing_here() };
    let Some(target) = UndoTarget::parse_target(&store, &typed.target)? else { return nothing_here() };
    let id = target.run.request.as_str();
    // Opened before any change: a change that cannot be recorded is not made.
    let log = AuditLog::open(&state)?;
    if typed.forget {
        if !target.paths.is_empty() {
            return Err(
                CliError::new("the undo data of a run can only be removed as a whole").with_hint("name no paths")
            );
        }
        store.remove_run(&target.run.request)?;
        log.record_now(target.run.request.clone(), None, EventKind::Forgotten)?;
        let line = json!({ "run": id, "end": "forgotten" });
        return print_result(typed.json, &line, || format!("removed the undo data of run {id}\n"));
    }
    let run = store.open_run(&target.run.request)?;
    let done = run.restore_paths(&target.paths, typed.skip_conflicts, &mut |_| Ok(()))?;
    if done.is_done {
        let left = done.comparison.conflicts.len() + done.failed.len();
        let kind = EventKind::Undone { restored: done.restored, left: left as u64 };
        log.record_now(target.run.request.clone(), None, kind)?;
    }
    tell_killed(&done.comparison);
    if typed.json {
        print_output(&render::json::to_json_line(&restored_json(&target.run.request, &done))?)?;
    } else if let Some(first) = typed_in_vain(&target, &done) {
        return changed_nothing(&target.run.request, first);
    } else {
        print_output(&text::format_restoration(&done, id))?;
    }
    Ok(end_of(&done, typed.skip_conflicts))
}

fn changed_nothing(run: &RequestId, path: &Path) -> CommandResult {
    let what = format!("run {run} changed nothing at {}", quote_path(path));
    report_negative(&CliError::new(what).with_hint(format!("`stockade changes {run}` shows what it changed")))
}

/// Returns the first named path, if there was nothing to restore at any of them.
fn typed_in_vain<'t>(target: &'t UndoTarget, done: &RestoreResult) -> Option<&'t Path> {
    let is_empty = done.is_done && done.restored == 0 && done.failed.is_empty() && done.comparison.conflicts.is_empty();
    target.paths.first().filter(|_| is_empty).map(PathBuf::as_path)
}

/// Reports the paths that were not restored, and returns the exit code.
fn end_of(done: &RestoreResult, skips_conflicts: bool) -> u8 {
    if done.comparison.is_restored {
        print_remark("this run is undone already; name an earlier one: `stockade changes --runs` shows them\n");
        return exit::NEGATIVE_RESULT;
    }
    if !done.is_done {
        let count = count_noun(done.comparison.conflicts.len(), "path");
        let what = format!("{count} cannot be restored, so nothing was done");
        let hint = "undo with --skip-conflicts restores the rest; or name the paths to restore";
        crate::print_error(&CliError::new(what).with_hint(hint));
    }
    for failed in &done.failed {
        let failure = CliError::new(format!("not restored: {failed}"));
        // The current file may be removed already; the backup is kept until it is restored.
        crate::print_error(&if failed.is_full { failure.with_hint("free space and run it again") } else { failure });
    }
    let is_whole = done.is_done && done.failed.is_empty() && (done.comparison.conflicts.is_empty() || skips_conflicts);
    if is_whole { exit::SUCCESS } else { exit::NEGATIVE_RESULT }
}

fn tell_killed(found: &UndoComparison) {
    if found.was_killed {
        print_remark("• the run was killed: changes between its end and now count as its own\n");
    }
}

fn open_state() -> Result<StateDirectory, CliError> {
    StateDirectory::open(&locations::state_path(&read_variable)?)
}

fn open_undo_store(state: &StateDirectory) -> Result<Option<UndoStore>, CliError> {
    Ok(UndoStore::open(&state.undo_directory())?)
}

fn nothing_here() -> CommandResult {
    let what = "nothing is kept for undo of this workspace";
    report_negative(&CliError::new(what).with_hint("run with --undo, or say `undo = true` in a profile"))
}

/// A run and paths in its workspace, from the command line.
struct UndoTarget {
    run: UndoMeta,
    paths: Vec<PathBuf>,
}

impl UndoTarget {
    /// Parses `[RUN] [PATH]...`: a first word with the form of an id is one, unless a file of that
    /// name exists here. Without an id it selects the last run whose workspace contains the current
    /// directory.
    fn parse_target(store: &UndoStore, typed: &[OsString]) -> Result<Option<Self>, CliError> {
        let cwd = locations::current_directory()?;
        let named = typed.first().and_then(|first| first.to_str()).filter(|first| is_id(first, &cwd));
        let run = match named {
            Some(id) => Some(store.find_run(id)?),
            None => store.list_runs()?.into_iter().find(|meta| cwd.starts_with(meta.workspace.as_path())),
        };
        let Some(run) = run else { return Ok(None) };
        let typed = if named.is_some() { &typed[1..] } else { typed };
        let workspace = run.workspace.as_path();
        let paths =
            typed.iter().map(|path| make_workspace_relative(path, &cwd, workspace)).collect::<Result<_, _>>()?;
        Ok(Some(Self { run, paths }))
    }
}

fn is_id(typed: &str, cwd: &Path) -> bool {
    let has_form = typed.len() >= MIN_ID_PREFIX_CHARS && typed.bytes().all(|byte| byte.is_ascii_hexdigit());
    (typed.starts_with("req_") || has_form) && cwd.join(typed).symlink_metadata().is_err()
}

/// Converts a path of the command line to a path relative to the workspace. Links in its parent
/// directories are followed as a shell does; the path itself may be a link.
fn make_workspace_relative(typed: &OsString, cwd: &Path, workspace: &Path) -> Result<PathBuf, CliError> {
    let path = locations::expand_path(Path::new(typed), &|| locations::find_home_directory(&read_variable), cwd)?;
    let path = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => locations::canonical_prefix(parent).join(name),
        _ => path,
    };
    let inside = path.strip_prefix(workspace).map(Path::to_owned);
    inside.map_err(|_| outside_workspace_error(Path::new(typed), workspace))
}

fn list_undo_runs(store: &UndoStore, json: bool) -> CommandResult {
    print_each(&store.list_runs()?, json, (meta_json, text::format_run), "no run can be undone\n")
}

fn format_change_diff(run: &UndoRun, change: &UndoChange) -> Result<String, CliError> {
    let (before, now) = (run.open_original(&change.path)?, run.open_present(&change.path)?);
    if matches!(change.effect, UndoEffect::Metadata) || before.is_none() && now.is_none() {
        return Ok(String::new());
    }
    let difference = diff_objects(before.as_ref(), now.as_ref(), &change.path)?;
    Ok(render::stage::difference_between(&change.path, &difference, (before.is_some(), now.is_some())))
}

fn meta_json(meta: &UndoMeta) -> Value {
    json!({
        "run": meta.request,
        "workspace": meta.workspace,
        "command": meta.command,
        "started_ms": meta.started_ms,
    })
}

fn change_json(meta: &UndoMeta, change: &UndoChange, conflict: Option<&UndoConflict>, diff: Option<String>) -> Value {
    let mut value = json!({
        "run": meta.request,
        "path": RawText::from(change.path.as_path()),
        "effect": text::effect_word(change.effect),
        "kind": change.kind,
    });
    if let Some((before, now)) = change.modes {
        value["mode_before"] = json!(before);
        value["mode_now"] = json!(now);
    }
    if let Some(conflict) = conflict {
        value["conflict"] = json!(conflict.to_string());
    }
    if let Some(diff) = diff.filter(|diff| !diff.is_empty()) {
        value["diff"] = json!(diff);
    }
    value
}

fn restored_json(id: &RequestId, done: &RestoreResult) -> Value {
    let conflicts = done.comparison.conflicts.iter();
    let conflicts =
        conflicts.map(|(path, why)| json!({ "path": RawText::from(path.as_path()), "why": why.to_string() }));
    let failed = done.failed.iter();
    let failed = failed.map(|error| json!({ "path": RawText::from(error.path.as_path()), "why": error.why }));
    json!({
        "run": id,
        "end": if done.comparison.is_restored { "undone-before" } else if done.is_done { "undone" } else { "refused" },
        "restored": done.restored,
        "conflicts": conflicts.collect::<Vec<_>>(),
        "failed": failed.collect::<Vec<_>>(),
    })
}

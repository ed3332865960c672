//! `stockade changes` and `stockade undo`: shows the changes of a run in its workspace, and undoes
//! them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stockade_model::{Event, EventKind, RawText, RequestId};
use stockade_native::stage::text::between;
use stockade_native::undo::{Comparison, Conflict, Effect, Restored, UndoChange, UndoMeta, UndoRun, UndoStore};

use super::{Ended, now_ms, print, print_each, remark, variable};
use crate::audit_log::AuditLog;
use crate::failure::{Failure, quoted};
use crate::places::State;
use crate::render::{self, counted, undo as text};
use crate::undo_args::{ChangesArgs, UndoArgs};
use crate::{exit, places};

/// Shortest beginning of an id that counts as one.
const MIN_ID_CHARS: usize = 6;

/// Shows the changes of a run.
///
/// # Errors
/// [`Failure`] if the backups cannot be read.
pub fn changes(typed: &ChangesArgs) -> Ended {
    let Some(store) = store(&state()?)? else { return nothing_here() };
    if typed.runs {
        return list(&store, typed.json);
    }
    let Some(target) = Target::of(&store, &typed.target)? else { return nothing_here() };
    let run = store.take(&target.run.request)?;
    let found = run.compare(&target.paths)?;
    if let Some(first) = target.paths.first().filter(|_| found.changes.is_empty() && found.conflicts.is_empty()) {
        return Ok(changed_nothing(&target.run.request, first));
    }
    let conflict_of = |path: &Path| found.conflicts.iter().find(|(other, _)| other == path).map(|(_, why)| why);
    let mut out = String::new();
    if typed.json {
        for change in &found.changes {
            let difference = if typed.diff { Some(difference(&run, change)?) } else { None };
            out += &render::json::line(&change_json(&run.meta, change, conflict_of(&change.path), difference))?;
        }
    } else {
        out += &text::head(&run.meta);
        if typed.diff {
            for change in &found.changes {
                out += &text::change(change, conflict_of(&change.path));
                out += &difference(&run, change)?;
            }
        } else {
            out += &text::changes(&found.changes, &conflict_of);
        }
        let is_named = |path: &PathBuf| found.changes.iter().any(|change| change.path == *path);
        let inner = found.conflicts.iter().filter(|(path, _)| !is_named(path));
        inner.for_each(|(path, why)| out += &text::conflict(path, why));
    }
    print(&out)?;
    tell_killed(&found);
    if found.is_restored {
        remark("this run is undone already\n");
    } else if found.changes.is_empty() && !typed.json {
        remark("no changes\n");
    }
    Ok(exit::SUCCESS)
}

/// Restores the files that a run changed, or removes its backups.
///
/// # Errors
/// [`Failure`] if the backups cannot be read, or the workspace cannot be written.
pub fn undo(typed: &UndoArgs) -> Ended {
    let state = state()?;
    let Some(store) = store(&state)? else { return nothing_here() };
    let Some(target) = Target::of(&store, &typed.target)? else { return nothing_here() };
    let id = target.run.request.as_str();
    // Opened before any change: a change that cannot be recorded is not made.
    let log = AuditLog::open(&state)?;
    if typed.forget {
        if !target.paths.is_empty() {
            return Err(Failure::new("what is kept of a run is forgotten as a whole").hint("name no paths"));
        }
        store.forget(&target.run.request)?;
        record(&log, &target.run.request, EventKind::Forgotten)?;
        let line = json!({ "run": id, "end": "forgotten" });
        print(&if typed.json { render::json::line(&line)? } else { format!("forgot what run {id} changed\n") })?;
        return Ok(exit::SUCCESS);
    }
    let run = store.take(&target.run.request)?;
    let done = run.restore(&target.paths, typed.skip_conflicts, &mut |_| Ok(()))?;
    if done.is_done {
        let left = done.comparison.conflicts.len() + done.failed.len();
        record(&log, &target.run.request, EventKind::Undone { restored: done.restored, left: left as u64 })?;
    }
    tell_killed(&done.comparison);
    if typed.json {
        print(&render::json::line(&restored_json(&target.run.request, &done))?)?;
    } else if let Some(first) = typed_in_vain(&target, &done) {
        return Ok(changed_nothing(&target.run.request, first));
    } else {
        print(&text::restored(&done, id))?;
    }
    Ok(end_of(&done, typed.skip_conflicts))
}

fn changed_nothing(run: &RequestId, path: &Path) -> u8 {
    let what = format!("run {run} changed nothing at {}", quoted(path));
    crate::complain(&Failure::new(what).hint(format!("`stockade changes {run}` shows what it changed")));
    exit::NEGATIVE
}

/// Returns the first named path, if there was nothing to restore at any of them.
fn typed_in_vain<'t>(target: &'t Target, done: &Restored) -> Option<&'t Path> {
    let is_empty = done.is_done && done.restored == 0 && done.failed.is_empty() && done.comparison.conflicts.is_empty();
    target.paths.first().filter(|_| is_empty).map(PathBuf::as_path)
}

fn record(log: &AuditLog, request: &RequestId, kind: EventKind) -> Result<(), Failure> {
    log.append(&Event { time_ms: now_ms(), request: request.clone(), session: None, kind })?;
    Ok(log.commit()?)
}

/// Reports the paths that were not restored, and returns the exit code.
fn end_of(done: &Restored, skips_conflicts: bool) -> u8 {
    if done.comparison.is_restored {
        remark("this run is undone already; name an earlier one: `stockade changes --runs` shows them\n");
        return exit::NEGATIVE;
    }
    if !done.is_done {
        let count = counted(done.comparison.conflicts.len(), "path");
        let what = format!("{count} cannot be restored, so nothing was done");
        let hint = "undo with --skip-conflicts restores the rest; or name the paths to restore";
        crate::complain(&Failure::new(what).hint(hint));
    }
    for failed in &done.failed {
        let failure = Failure::new(format!("not restored: {failed}"));
        // The current file may be removed already; the backup is kept until it is restored.
        crate::complain(&if failed.is_full { failure.hint("make room and run it again") } else { failure });
    }
    let is_whole = done.is_done && done.failed.is_empty() && (done.comparison.conflicts.is_empty() || skips_conflicts);
    if is_whole { exit::SUCCESS } else { exit::NEGATIVE }
}

fn tell_killed(found: &Comparison) {
    if found.was_killed {
        remark("• the run was killed: what was changed between its end and now counts as its own\n");
    }
}

fn state() -> Result<State, Failure> {
    State::open(&places::state_path(&variable)?)
}

fn store(state: &State) -> Result<Option<UndoStore>, Failure> {
    Ok(UndoStore::open(&state.undo())?)
}

fn nothing_here() -> Ended {
    let what = "nothing is kept for undo of this workspace";
    crate::complain(&Failure::new(what).hint("run with --undo, or say `undo = true` in a profile"));
    Ok(exit::NEGATIVE)
}

/// A run and paths in its workspace, from the command line.
struct Target {
    run: UndoMeta,
    paths: Vec<PathBuf>,
}

impl Target {
    /// Parses `[RUN] [PATH]...`: a first word with the form of an id is one, unless a file of that
    /// name exists here. Without an id it selects the last run whose workspace contains the current
    /// directory.
    fn of(store: &UndoStore, typed: &[OsString]) -> Result<Option<Self>, Failure> {
        let cwd = places::current_directory()?;
        let named = typed.first().and_then(|first| first.to_str()).filter(|first| is_id(first, &cwd));
        let run = match named {
            Some(id) => Some(store.find(id)?),
            None => store.list()?.into_iter().find(|meta| cwd.starts_with(meta.workspace.as_path())),
        };
        let Some(run) = run else { return Ok(None) };
        let typed = if named.is_some() { &typed[1..] } else { typed };
        let workspace = run.workspace.as_path();
        let paths = typed.iter().map(|path| relative(path, &cwd, workspace)).collect::<Result<_, _>>()?;
        Ok(Some(Self { run, paths }))
    }
}

fn is_id(typed: &str, cwd: &Path) -> bool {
    let has_form = typed.len() >= MIN_ID_CHARS && typed.bytes().all(|byte| byte.is_ascii_hexdigit());
    (typed.starts_with("req_") || has_form) && cwd.join(typed).symlink_metadata().is_err()
}

/// Converts a path of the command line to a path relative to the workspace. Links in its parent
/// directories are followed as a shell does; the path itself may be a link.
fn relative(typed: &OsString, cwd: &Path, workspace: &Path) -> Result<PathBuf, Failure> {
    let path = places::expand(Path::new(typed), &|| places::home(&variable), cwd)?;
    let path = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => places::canonical_prefix(parent).join(name),
        _ => path,
    };
    let inside = path.strip_prefix(workspace).map(Path::to_owned);
    inside.map_err(|_| {
        Failure::new(format!("{} lies outside the workspace {}", quoted(Path::new(typed)), quoted(workspace)))
            .hint("name paths of the workspace")
    })
}

fn list(store: &UndoStore, json: bool) -> Ended {
    print_each(&store.list()?, json, (meta_json, text::head), "no run can be undone\n")
}

fn difference(run: &UndoRun, change: &UndoChange) -> Result<String, Failure> {
    let (before, now) = (run.before(&change.path)?, run.now(&change.path)?);
    if matches!(change.effect, Effect::Metadata) || before.is_none() && now.is_none() {
        return Ok(String::new());
    }
    let difference = between(before.as_ref(), now.as_ref(), &change.path)?;
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

fn change_json(meta: &UndoMeta, change: &UndoChange, conflict: Option<&Conflict>, diff: Option<String>) -> Value {
    let mut value = json!({
        "run": meta.request,
        "path": RawText::from(change.path.as_path()),
        "effect": text::effect(change.effect),
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

fn restored_json(id: &RequestId, done: &Restored) -> Value {
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

//! `stockade stage`: writes of runs in their workspace that the user has not reviewed yet. Commits
//! and discards are recorded in the audit log.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stockade_model::{Event, EventKind, RawText, StageId};
use stockade_native::stage::text::{Difference, difference};
use stockade_native::stage::{
    Change, CommitError, Conflict, End, Held, How, Listed, Recovered, Stage, StageError, Stages, Wanted, Watch, Why,
    recover_all,
};

use super::{Ended, now_ms, print, print_each, remark, variable};
use crate::args::StageCommand;
use crate::audit_log::AuditLog;
use crate::failure::{Failure, quoted};
use crate::places::State;
use crate::progress::Progress;
use crate::render::{self, counted, stage as text};
use crate::{exit, places};

/// Fewest steps with which a commit shows its progress.
const PROGRESS_FROM: usize = 500;

/// Lists, compares, commits, discards or recovers stages.
///
/// # Errors
/// [`Failure`] if a stage or its workspace cannot be used.
pub fn stage(typed: StageCommand) -> Ended {
    let state = State::open(&places::state_path(&variable)?)?;
    match typed {
        StageCommand::List { json } => {
            recover(&state, None)?;
            list(&state, json)
        }
        StageCommand::Recover { json } => recover_now(&state, json),
        StageCommand::Diff { target, summary, json } => {
            recover(&state, None)?;
            diff(&state, &target, summary, json)
        }
        StageCommand::Commit { target, protected, json } => {
            recover(&state, None)?;
            commit(&state, &target, &protected, json)
        }
        StageCommand::Discard { target, all, json } => {
            recover(&state, None)?;
            if all { discard_all(&state, json) } else { discard(&state, &target, json) }
        }
    }
}

/// Finishes or undoes interrupted commits, and reports it.
///
/// # Errors
/// [`Failure`] if neither is possible: a partial commit remains in the workspace then.
pub fn recover(state: &State, workspace: Option<&Path>) -> Result<(), Failure> {
    // Reading must not create the directory.
    if !state.stages().exists() {
        return Ok(());
    }
    for recovered in recover_all(&Stages::open(&state.stages())?, workspace)? {
        remark(&text::recovered(&recovered));
    }
    Ok(())
}

fn recover_now(state: &State, json: bool) -> Ended {
    let found = if state.stages().exists() { recover_all(&Stages::open(&state.stages())?, None)? } else { Vec::new() };
    print_each(&found, json, (recovered_json, text::recovered), "no commit was cut off\n")
}

fn recovered_json(recovered: &Recovered) -> Value {
    let (end, why) = match &recovered.end {
        End::Finished => ("finished", None),
        End::Undone(why) => ("undone", Some(why.to_string())),
        End::Unbegun => ("unbegun", None),
        End::PutBack => ("put-back", None),
    };
    json!({ "stage": recovered.id, "end": end, "why": why })
}

fn list(state: &State, json: bool) -> Ended {
    let found = if state.stages().exists() { Stages::open(&state.stages())?.list()? } else { Vec::new() };
    let mut out = String::new();
    for listed in &found {
        out += &if json { render::json::line(&listed_json(listed))? } else { text::listed(listed) };
    }
    print(&out)?;
    if found.is_empty() && !json {
        remark("nothing is staged\n");
    }
    Ok(exit::SUCCESS)
}

fn listed_json(listed: &Listed) -> Value {
    let Some(meta) = &listed.meta else { return json!({ "stage": listed.id, "state": "damaged" }) };
    json!({
        "stage": listed.id,
        "state": text::state(listed),
        "created_ms": meta.created_ms,
        "workspace": meta.workspace,
        "request": meta.request,
        "command": meta.command,
    })
}

/// A stage and paths in its workspace, from the command line.
struct Target {
    id: StageId,
    paths: Vec<PathBuf>,
}

impl Target {
    /// Parses `[ID] [PATH]...`: a first word with the form of an id is one. Without an id it
    /// selects the newest stage whose workspace contains the current directory, or with `alone` the
    /// only one.
    fn of(stages: &Stages, typed: &[OsString], alone: bool) -> Result<Option<Self>, Failure> {
        let cwd = places::current_directory()?;
        let named = typed.first().and_then(|first| first.to_str()?.parse::<StageId>().ok());
        let typed = if named.is_some() { &typed[1..] } else { typed };
        let id = match named {
            Some(id) => id,
            None => match here(stages, &cwd, alone)? {
                Some(id) => id,
                None => return Ok(None),
            },
        };
        let workspace = match stages.look(&id) {
            Ok(stage) => stage.workspace().to_owned(),
            // A damaged stage can only be selected as a whole.
            Err(StageError::Damaged { .. }) if typed.is_empty() => PathBuf::new(),
            Err(error) => return Err(error.into()),
        };
        let paths = typed.iter().map(|path| relative(path, &cwd, &workspace)).collect::<Result<_, _>>()?;
        Ok(Some(Self { id, paths }))
    }
}

fn here(stages: &Stages, cwd: &Path, alone: bool) -> Result<Option<StageId>, Failure> {
    let mut found = of_here(stages, cwd)?;
    let first = found.next();
    let others = found.count();
    if alone && others > 0 {
        let count = counted(others + 1, "stage");
        return Err(Failure::new(format!("there are {count} of this workspace"))
            .hint("name one; `stockade stage list` shows them"));
    }
    Ok(first)
}

/// Returns the stages that are not in use and whose workspace contains `cwd`.
fn of_here(stages: &Stages, cwd: &Path) -> Result<impl Iterator<Item = StageId>, Failure> {
    let around = |listed: &Listed| {
        listed.meta.as_ref().is_some_and(|meta| cwd.starts_with(meta.workspace.as_path())) && !listed.busy
    };
    let found: Vec<Listed> = stages.list()?.into_iter().filter(around).collect();
    Ok(found.into_iter().map(|listed| listed.id))
}

/// Converts a path of the command line to a path relative to the workspace.
fn relative(typed: &OsString, cwd: &Path, workspace: &Path) -> Result<PathBuf, Failure> {
    let path = places::expand(Path::new(typed), &|| places::home(&variable), cwd)?;
    let inside = path.strip_prefix(workspace).map(Path::to_owned);
    inside.map_err(|_| {
        Failure::new(format!("{} lies outside the workspace {}", quoted(Path::new(typed)), quoted(workspace)))
            .hint("name paths of the workspace")
    })
}

fn nothing_here() -> Ended {
    crate::complain(
        &Failure::new("nothing is staged of this workspace").hint("`stockade stage list` shows all stages"),
    );
    Ok(exit::NEGATIVE)
}

/// Opens the stages, if their directory exists.
fn stages(state: &State) -> Result<Option<Stages>, Failure> {
    Ok(if state.stages().exists() { Some(Stages::open(&state.stages())?) } else { None })
}

fn diff(state: &State, typed: &[OsString], summary: bool, json: bool) -> Ended {
    let Some(stages) = stages(state)? else { return nothing_here() };
    let Some(target) = Target::of(&stages, typed, false)? else { return nothing_here() };
    let stage = stages.look(&target.id)?;
    let changes = stage.changes()?;
    let held = stage.held(&changes)?;
    let conflicts = stage.conflicts(&changes)?;
    let mut out = String::new();
    let meant = |change: &&Change| {
        !change.is_incidental
            && (target.paths.is_empty() || target.paths.iter().any(|path| change.path.starts_with(path)))
    };
    for change in changes.list.iter().filter(meant) {
        let held = held.iter().find(|held| held.path == change.path);
        let conflict = conflicts.iter().find(|conflict| conflict.path == change.path);
        if json {
            out += &render::json::line(&change_json(change, held, conflict))?;
            continue;
        }
        out += &text::change(change, held, conflict, crate::stdout_style());
        if !summary && change.how != How::Metadata {
            out += &text::difference(&change.path, &lines(&stage, change)?, change);
        }
    }
    print(&out)?;
    if out.is_empty() && !json {
        remark("no changes\n");
    }
    Ok(exit::SUCCESS)
}

fn lines(stage: &Stage, change: &Change) -> Result<Difference, Failure> {
    difference(stage, change).map_err(Failure::from)
}

fn change_json(change: &Change, held: Option<&Held>, conflict: Option<&Conflict>) -> Value {
    json!({
        "path": RawText::from(change.path.as_path()),
        "how": change.how,
        "present": change.present,
        "staged": change.staged,
        "other_names": change.other_names,
        "waits": held.map(held_json),
        "conflict": conflict.map(|conflict| conflict.meanwhile),
    })
}

fn held_json(held: &Held) -> Value {
    let path = RawText::from(held.path.as_path());
    match &held.why {
        Why::Protected { rule, unit } => {
            json!({ "path": path, "why": rule, "protected": RawText::from(unit.as_path()) })
        }
        Why::Special(what) => json!({ "path": path, "why": what }),
    }
}

fn commit(state: &State, typed: &[OsString], protected: &[OsString], json: bool) -> Ended {
    let Some(stages) = stages(state)? else { return nothing_here() };
    let Some(target) = Target::of(&stages, typed, true)? else { return nothing_here() };
    let stage = stages.take(&target.id)?;
    let cwd = places::current_directory()?;
    let agreed = protected.iter().map(|path| relative(path, &cwd, stage.workspace())).collect::<Result<Vec<_>, _>>()?;
    // Opened before any change: a change that cannot be recorded is not made.
    let log = AuditLog::open(state)?;
    let request = stage.meta.request.clone();
    let wanted = Wanted { paths: target.paths, agreed };
    let mut told = Told(Progress::new());
    let result = stage.commit(&wanted, &mut told);
    told.0.clear();
    let committed = match result {
        Ok(committed) => committed,
        Err(CommitError::Conflicts(found)) => return conflicted(found, json),
        Err(error) => return Err(error.into()),
    };
    let kind = EventKind::Committed {
        stage: target.id.clone(),
        changes: committed.paths.len() as u64,
        agreed: wanted.agreed.iter().map(|path| path.as_path().into()).collect(),
        held: committed.held.len() as u64,
    };
    log.append(&Event { time_ms: now_ms(), request, session: None, kind })?;
    log.commit()?;
    let text = if json {
        let paths: Vec<RawText> = committed.paths.iter().map(|path| path.as_path().into()).collect();
        let held: Vec<Value> = committed.held.iter().map(held_json).collect();
        render::json::line(&json!({ "stage": target.id, "committed": paths, "left": held, "gone": committed.is_gone }))?
    } else {
        text::committed(&committed, target.id.as_str(), crate::stdout_style())
    };
    print(&text)?;
    Ok(if committed.held.is_empty() { exit::SUCCESS } else { exit::NEGATIVE })
}

/// Reports that nothing was committed, because the workspace changed meanwhile.
fn conflicted(found: Vec<Conflict>, json: bool) -> Ended {
    if json {
        let list: Vec<Value> = found
            .iter()
            .map(|conflict| json!({ "path": RawText::from(conflict.path.as_path()), "meanwhile": conflict.meanwhile }))
            .collect();
        print(&render::json::line(&json!({ "committed": [], "conflicts": list }))?)?;
    } else {
        crate::complain(&Failure::from(CommitError::Conflicts(found)));
    }
    Ok(exit::NEGATIVE)
}

fn discard(state: &State, typed: &[OsString], json: bool) -> Ended {
    let Some(stages) = stages(state)? else { return nothing_here() };
    let Some(target) = Target::of(&stages, typed, true)? else { return nothing_here() };
    discard_one(&stages, &target, &AuditLog::open(state)?, json)
}

fn discard_all(state: &State, json: bool) -> Ended {
    let Some(stages) = stages(state)? else { return nothing_here() };
    let ids: Vec<StageId> = of_here(&stages, &places::current_directory()?)?.collect();
    if ids.is_empty() {
        return nothing_here();
    }
    let log = AuditLog::open(state)?;
    for id in ids {
        discard_one(&stages, &Target { id, paths: Vec::new() }, &log, json)?;
    }
    Ok(exit::SUCCESS)
}

fn discard_one(stages: &Stages, target: &Target, log: &AuditLog, json: bool) -> Ended {
    let stage = match stages.take(&target.id) {
        Err(StageError::Damaged { .. }) => {
            stages.remove_damaged(&target.id)?;
            print(&format!("{} is gone\n", target.id))?;
            return Ok(exit::SUCCESS);
        }
        other => other?,
    };
    let request = stage.meta.request.clone();
    let (paths, is_gone) = stage.discard(&target.paths)?;
    let kind = EventKind::Discarded { stage: target.id.clone(), changes: paths.len() as u64 };
    log.append(&Event { time_ms: now_ms(), request, session: None, kind })?;
    log.commit()?;
    let text = if json {
        let list: Vec<RawText> = paths.iter().map(|path| path.as_path().into()).collect();
        render::json::line(&json!({ "stage": target.id, "discarded": list, "gone": is_gone }))?
    } else {
        format!("{} discarded\n", counted(paths.len(), "path"))
    };
    print(&text)?;
    Ok(exit::SUCCESS)
}

/// Progress of a long commit.
struct Told(Progress);

impl Watch for Told {
    fn progress(&mut self, done: usize, total: usize) {
        if total >= PROGRESS_FROM {
            self.0.say(|| format!("{done} of {total}"));
        }
    }
}

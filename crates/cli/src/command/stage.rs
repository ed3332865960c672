//! `stockade stage`: writes of runs in their workspace that the user has not reviewed yet. Commits
//! and discards are recorded in the audit log.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stockade_model::{EventKind, RawText, StageId};
use stockade_stage::text::diff_change;
use stockade_stage::{
    ChangeKind, CommitObserver, CommitRequest, HeldChange, HoldReason, RecoveryEnd, RecoveryResult, StageChange,
    StageCommitError, StageConflict, StageDirectory, StageError, StageListEntry, recover_all,
};

use super::{CommandResult, print_each, print_output, print_remark, print_result, read_variable, report_negative};
use crate::args::StageCommand;
use crate::audit_log::AuditLog;
use crate::failure::{CliError, quote_path};
use crate::locations::StateDirectory;
use crate::progress::ProgressLine;
use crate::render::{self, count_noun, stage as text};
use crate::{exit, locations};

/// Fewest steps with which a commit shows its progress.
const MIN_PROGRESS_STEPS: usize = 500;

/// Lists, compares, commits, discards or recovers stages.
///
/// # Errors
/// [`CliError`] if a stage or its workspace cannot be used.
pub fn manage_stages(typed: StageCommand) -> CommandResult {
    let state = StateDirectory::open(&locations::state_path(&read_variable)?)?;
    if !matches!(typed, StageCommand::Recover { .. }) {
        recover_commits(&state, None)?;
    }
    match typed {
        StageCommand::List { json } => list_stages(&state, json),
        StageCommand::Recover { json } => recover_now(&state, json),
        StageCommand::Diff { target, summary, json } => diff_stage(&state, &target, summary, json),
        StageCommand::Commit { target, protected, json } => commit_stage(&state, &target, &protected, json),
        StageCommand::Discard { all: true, json, .. } => discard_all(&state, json),
        StageCommand::Discard { target, json, .. } => discard_stage(&state, &target, json),
    }
}

/// Finishes or undoes interrupted commits, and reports it.
///
/// # Errors
/// [`CliError`] if neither is possible: a partial commit remains in the workspace then.
pub fn recover_commits(state: &StateDirectory, workspace: Option<&Path>) -> Result<(), CliError> {
    let Some(stages) = open_stages(state)? else { return Ok(()) };
    for recovered in recover_all(&stages, workspace)? {
        print_remark(&text::format_recovery(&recovered));
    }
    Ok(())
}

fn recover_now(state: &StateDirectory, json: bool) -> CommandResult {
    let found = open_stages(state)?.map(|stages| recover_all(&stages, None)).transpose()?.unwrap_or_default();
    print_each(&found, json, (recovered_json, text::format_recovery), "no commit was interrupted\n")
}

fn recovered_json(recovered: &RecoveryResult) -> Value {
    let (end, why) = match &recovered.end {
        RecoveryEnd::Finished => ("finished", None),
        RecoveryEnd::Undone(why) => ("undone", Some(why.to_string())),
        RecoveryEnd::Unbegun => ("unbegun", None),
        RecoveryEnd::PutBack => ("put-back", None),
    };
    json!({ "stage": recovered.id, "end": end, "why": why })
}

fn list_stages(state: &StateDirectory, json: bool) -> CommandResult {
    let found = open_stages(state)?.map(|stages| stages.list_stages()).transpose()?.unwrap_or_default();
    print_each(&found, json, (listed_json, text::format_line), "nothing is staged\n")
}

fn listed_json(listed: &StageListEntry) -> Value {
    let Some(meta) = &listed.meta else { return json!({ "stage": listed.id, "state": "damaged" }) };
    json!({
        "stage": listed.id,
        "state": text::describe_state(listed),
        "created_ms": meta.created_ms,
        "workspace": meta.workspace,
        "request": meta.request,
        "command": meta.command,
    })
}

/// A stage and paths in its workspace, from the command line.
struct StageTarget {
    id: StageId,
    paths: Vec<PathBuf>,
}

impl StageTarget {
    /// Parses `[ID] [PATH]...`: a first word with the form of an id is one. Without an id it
    /// selects the newest stage whose workspace contains the current directory, or with `alone` the
    /// only one.
    fn parse_target(stages: &StageDirectory, typed: &[OsString], alone: bool) -> Result<Option<Self>, CliError> {
        let cwd = locations::current_directory()?;
        let named = typed.first().and_then(|first| first.to_str()?.parse::<StageId>().ok());
        let typed = if named.is_some() { &typed[1..] } else { typed };
        let id = match named {
            Some(id) => id,
            None => match find_stage_here(stages, &cwd, alone)? {
                Some(id) => id,
                None => return Ok(None),
            },
        };
        let workspace = match stages.open_for_reading(&id) {
            Ok(stage) => stage.workspace().to_owned(),
            // A damaged stage can only be selected as a whole.
            Err(StageError::Damaged { .. }) if typed.is_empty() => PathBuf::new(),
            Err(error) => return Err(error.into()),
        };
        let paths =
            typed.iter().map(|path| make_workspace_relative(path, &cwd, &workspace)).collect::<Result<_, _>>()?;
        Ok(Some(Self { id, paths }))
    }
}

fn find_stage_here(stages: &StageDirectory, cwd: &Path, alone: bool) -> Result<Option<StageId>, CliError> {
    let mut found = of_here(stages, cwd)?;
    let first = found.next();
    let others = found.count();
    if alone && others > 0 {
        let count = count_noun(others + 1, "stage");
        return Err(CliError::new(format!("there are {count} of this workspace"))
            .with_hint("name one; `stockade stage list` shows them"));
    }
    Ok(first)
}

/// Returns the stages that are not in use and whose workspace contains `cwd`.
fn of_here(stages: &StageDirectory, cwd: &Path) -> Result<impl Iterator<Item = StageId>, CliError> {
    let around = |listed: &StageListEntry| {
        listed.meta.as_ref().is_some_and(|meta| cwd.starts_with(meta.workspace.as_path())) && !listed.busy
    };
    let found: Vec<StageListEntry> = stages.list_stages()?.into_iter().filter(around).collect();
    Ok(found.into_iter().map(|listed| listed.id))
}

/// Converts a path of the command line to a path relative to the workspace.
fn make_workspace_relative(typed: &OsString, cwd: &Path, workspace: &Path) -> Result<PathBuf, CliError> {
    let path = locations::expand_path(Path::new(typed), &|| locations::find_home_directory(&read_variable), cwd)?;
    let inside = path.strip_prefix(workspace).map(Path::to_owned);
    inside.map_err(|_| outside_workspace_error(Path::new(typed), workspace))
}

/// Returns the error for a path that is not in the workspace.
pub fn outside_workspace_error(typed: &Path, workspace: &Path) -> CliError {
    CliError::new(format!("{} lies outside the workspace {}", quote_path(typed), quote_path(workspace)))
        .with_hint("name paths of the workspace")
}

fn nothing_here() -> CommandResult {
    report_negative(
        &CliError::new("nothing is staged of this workspace").with_hint("`stockade stage list` shows all stages"),
    )
}

/// Opens the stages, if there are any: reading must not create the directory.
fn open_stages(state: &StateDirectory) -> Result<Option<StageDirectory>, CliError> {
    Ok(if state.stages_directory().exists() { Some(StageDirectory::open(&state.stages_directory())?) } else { None })
}

fn diff_stage(state: &StateDirectory, typed: &[OsString], summary: bool, json: bool) -> CommandResult {
    let Some(stages) = open_stages(state)? else { return nothing_here() };
    let Some(target) = StageTarget::parse_target(&stages, typed, false)? else { return nothing_here() };
    let stage = stages.open_for_reading(&target.id)?;
    let changes = stage.read_changes()?;
    let held = stage.find_held_changes(&changes)?;
    let conflicts = stage.find_conflicts(&changes)?;
    let mut out = String::new();
    let is_selected = |change: &&StageChange| {
        !change.is_incidental
            && (target.paths.is_empty() || target.paths.iter().any(|path| change.path.starts_with(path)))
    };
    for change in changes.list.iter().filter(is_selected) {
        let held = held.iter().find(|held| held.path == change.path);
        let conflict = conflicts.iter().find(|conflict| conflict.path == change.path);
        if json {
            out += &render::json::to_json_line(&change_json(change, held, conflict))?;
            continue;
        }
        out += &text::format_change(change, held, conflict, crate::stdout_style());
        if !summary && change.how != ChangeKind::Metadata {
            out += &text::format_difference(&change.path, &diff_change(&stage, change)?, change);
        }
    }
    print_output(&out)?;
    if out.is_empty() && !json {
        print_remark("no changes\n");
    }
    Ok(exit::SUCCESS)
}

fn change_json(change: &StageChange, held: Option<&HeldChange>, conflict: Option<&StageConflict>) -> Value {
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

fn held_json(held: &HeldChange) -> Value {
    let path = RawText::from(held.path.as_path());
    match &held.why {
        HoldReason::Protected { rule, unit } => {
            json!({ "path": path, "why": rule, "protected": RawText::from(unit.as_path()) })
        }
        HoldReason::Special(what) => json!({ "path": path, "why": what }),
    }
}

fn commit_stage(state: &StateDirectory, typed: &[OsString], protected: &[OsString], json: bool) -> CommandResult {
    let Some(stages) = open_stages(state)? else { return nothing_here() };
    let Some(target) = StageTarget::parse_target(&stages, typed, true)? else { return nothing_here() };
    let stage = stages.open_for_changes(&target.id)?;
    let cwd = locations::current_directory()?;
    let agreed = protected
        .iter()
        .map(|path| make_workspace_relative(path, &cwd, stage.workspace()))
        .collect::<Result<Vec<_>, _>>()?;
    // Opened before any change: a change that cannot be recorded is not made.
    let log = AuditLog::open(state)?;
    let request = stage.meta.request.clone();
    let commit_request = CommitRequest { paths: target.paths, agreed };
    let mut progress_display = CommitProgress(ProgressLine::new());
    let result = stage.commit_changes(&commit_request, &mut progress_display);
    progress_display.0.clear();
    let committed = match result {
        Ok(committed) => committed,
        Err(StageCommitError::Conflicts(found)) => return report_conflicts(found, json),
        Err(error) => return Err(error.into()),
    };
    let kind = EventKind::Committed {
        stage: target.id.clone(),
        changes: committed.paths.len() as u64,
        agreed: commit_request.agreed.iter().map(|path| path.as_path().into()).collect(),
        held: committed.held.len() as u64,
    };
    log.record_now(request, None, kind)?;
    let paths: Vec<RawText> = committed.paths.iter().map(|path| path.as_path().into()).collect();
    let held: Vec<Value> = committed.held.iter().map(held_json).collect();
    let value = json!({ "stage": target.id, "committed": paths, "left": held, "gone": committed.is_gone });
    print_result(json, &value, || text::format_commit(&committed, target.id.as_str(), crate::stdout_style()))?;
    Ok(if committed.held.is_empty() { exit::SUCCESS } else { exit::NEGATIVE_RESULT })
}

/// Reports that nothing was committed, because the workspace changed meanwhile.
fn report_conflicts(found: Vec<StageConflict>, json: bool) -> CommandResult {
    if !json {
        return report_negative(&StageCommitError::Conflicts(found).into());
    }
    let conflict_json = |conflict: &StageConflict| json!({ "path": RawText::from(conflict.path.as_path()), "meanwhile": conflict.meanwhile });
    let list: Vec<Value> = found.iter().map(conflict_json).collect();
    print_output(&render::json::to_json_line(&json!({ "committed": [], "conflicts": list }))?)?;
    Ok(exit::NEGATIVE_RESULT)
}

fn discard_stage(state: &StateDirectory, typed: &[OsString], json: bool) -> CommandResult {
    let Some(stages) = open_stages(state)? else { return nothing_here() };
    let Some(target) = StageTarget::parse_target(&stages, typed, true)? else { return nothing_here() };
    discard_one(&stages, &target, &AuditLog::open(state)?, json)
}

fn discard_all(state: &StateDirectory, json: bool) -> CommandResult {
    let Some(stages) = open_stages(state)? else { return nothing_here() };
    let ids: Vec<StageId> = of_here(&stages, &locations::current_directory()?)?.collect();
    if ids.is_empty() {
        return nothing_here();
    }
    let log = AuditLog::open(state)?;
    for id in ids {
        discard_one(&stages, &StageTarget { id, paths: Vec::new() }, &log, json)?;
    }
    Ok(exit::SUCCESS)
}

fn discard_one(stages: &StageDirectory, target: &StageTarget, log: &AuditLog, json: bool) -> CommandResult {
    let stage = match stages.open_for_changes(&target.id) {
        Err(StageError::Damaged { .. }) => {
            stages.remove_damaged(&target.id)?;
            return print_output(&format!("removed {}\n", target.id));
        }
        other => other?,
    };
    let request = stage.meta.request.clone();
    let (paths, is_gone) = stage.discard_changes(&target.paths)?;
    let kind = EventKind::Discarded { stage: target.id.clone(), changes: paths.len() as u64 };
    log.record_now(request, None, kind)?;
    let list: Vec<RawText> = paths.iter().map(|path| path.as_path().into()).collect();
    let value = json!({ "stage": target.id, "discarded": list, "gone": is_gone });
    print_result(json, &value, || format!("{} discarded\n", count_noun(paths.len(), "path")))
}

/// Progress of a long commit.
struct CommitProgress(ProgressLine);

impl CommitObserver for CommitProgress {
    fn on_progress(&mut self, done: usize, total: usize) {
        if total >= MIN_PROGRESS_STEPS {
            self.0.show_text(|| format!("{done} of {total}"));
        }
    }
}

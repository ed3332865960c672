//! `stockade cache`: the caches of tools that runs have written, by workspace.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use stockade_native::caches::{CacheStore, ClearResult, LayerServerProgram, WorkspaceCaches, serve_layers};

use super::{CommandResult, print_each, print_output, print_remark, read_variable};
use crate::cache_args::CacheCommand;
use crate::failure::{CliError, quote_path};
use crate::locations::StateDirectory;
use crate::render::{self, cache as text};
use crate::{exit, locations};

/// Limit for the caches of all workspaces. Once a day, after a run, the least recently used caches
/// above it are removed.
const MAX_CACHE_BYTES: u64 = 20 << 30;

/// Interval between two checks of the limit.
const LIMIT_CHECK_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Lists or removes caches.
///
/// # Errors
/// [`CliError`] if the caches cannot be read or removed.
pub fn manage_caches(typed: CacheCommand) -> CommandResult {
    // The server inherits nothing from its caller, and uses no state directory.
    if let CacheCommand::Hold { directory } = typed {
        serve_layers(&directory).map_err(|error| CliError::new(error.to_string()))?;
        return Ok(exit::SUCCESS);
    }
    let state = StateDirectory::open(&locations::state_path(&read_variable)?)?;
    let store = CacheStore::open(&state.caches_directory())?;
    match typed {
        CacheCommand::Hold { .. } => Ok(exit::SUCCESS),
        CacheCommand::List { json } => list_caches(store.as_ref(), json),
        CacheCommand::Clear { over: Some(limit_bytes), json, .. } => clear_over(store.as_ref(), limit_bytes, json),
        CacheCommand::Clear { workspace, all, json, .. } => {
            let only_workspace = if all { None } else { Some(workspace_of(workspace)?) };
            clear(store.as_ref(), only_workspace.as_deref(), json)
        }
    }
}

/// Returns the program that serves the layers of a workspace: this program, even if its file was
/// replaced.
pub fn describe_layer_server() -> LayerServerProgram {
    let arguments = ["cache", "hold"].map(Into::into).into();
    LayerServerProgram { program: super::OWN_PROGRAM_PATH.into(), arguments }
}

/// Keeps all caches within their limit, at most once a day. Removals are reported, because the run
/// that has ended waits for them.
pub fn enforce_cache_limit(state: &StateDirectory) {
    let stamp = state.caches_directory().join("checked");
    let age = |at: SystemTime| SystemTime::now().duration_since(at).unwrap_or_default();
    let checked = stamp.symlink_metadata().and_then(|found| found.modified());
    if !state.caches_directory().exists() || checked.is_ok_and(|at| age(at) < LIMIT_CHECK_INTERVAL) {
        return;
    }
    // Written first, so that concurrent runs do not all check.
    if std::fs::write(&stamp, "").is_err() {
        return;
    }
    let removed = CacheStore::open(&state.caches_directory()).and_then(|store| match store {
        Some(store) => store.keep_within(MAX_CACHE_BYTES),
        None => Ok(Vec::new()),
    });
    match removed {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => print_remark(&format!("• caches: {}", text::all_removed(&removed))),
        Err(error) => crate::print_error(&CliError::from(error)),
    }
}

fn workspace_of(typed: Option<PathBuf>) -> Result<PathBuf, CliError> {
    match typed {
        // The directory may have been deleted.
        Some(typed) => {
            let cwd = locations::current_directory()?;
            Ok(locations::canonical_prefix(&locations::expand_path(
                &typed,
                &|| locations::find_home_directory(&read_variable),
                &cwd,
            )?))
        }
        None => locations::current_directory(),
    }
}

fn list_caches(store: Option<&CacheStore>, json: bool) -> CommandResult {
    let found = store.map(CacheStore::list_workspaces).transpose()?.unwrap_or_default();
    print_each(&found, json, (caches_to_json, text::format_line), "no run has written to the caches of tools\n")
}

fn caches_to_json(caches: &WorkspaceCaches) -> Value {
    let tools: serde_json::Map<String, Value> =
        caches.tools.iter().map(|(tool, bytes)| (tool.clone(), json!(bytes))).collect();
    json!({
        "workspace": caches.workspace,
        "bytes": caches.allocated_bytes(),
        "used_ms": caches.used_ms,
        "in_use": caches.is_used,
        "gone": caches.is_gone,
        "tools": tools,
    })
}

fn clear(store: Option<&CacheStore>, workspace: Option<&Path>, json: bool) -> CommandResult {
    let found = store.map(CacheStore::list_workspaces).transpose()?.unwrap_or_default();
    let is_wanted =
        |caches: &&WorkspaceCaches| workspace.is_none_or(|only_workspace| caches.workspace.as_path() == only_workspace);
    let (mut out, mut used) = (String::new(), Vec::new());
    let mut count = 0;
    for caches in found.iter().filter(is_wanted) {
        count += 1;
        let Some(store) = store else { break };
        let end = store.clear(&caches.key)?;
        if end == ClearResult::Used {
            used.push(caches);
        }
        if json {
            out += &render::json::to_json_line(&clear_result_to_json(caches, end))?;
        } else if end == ClearResult::Removed {
            out += &text::format_removal(caches);
        }
    }
    print_output(&out)?;
    if count == 0 && !json {
        print_remark(&match workspace {
            Some(workspace) => format!("there are no caches of {}\n", quote_path(workspace)),
            None => "there are no caches\n".to_owned(),
        });
    }
    for caches in &used {
        let what = format!("the caches of {} are in use", quote_path(caches.workspace.as_path()));
        crate::print_error(&CliError::new(what).with_hint("wait until its runs have ended, or end them"));
    }
    Ok(if used.is_empty() { exit::SUCCESS } else { exit::NEGATIVE_RESULT })
}

fn clear_result_to_json(caches: &WorkspaceCaches, end: ClearResult) -> Value {
    let end = match end {
        ClearResult::Removed => "removed",
        ClearResult::Used => "in-use",
    };
    json!({ "workspace": caches.workspace, "bytes": caches.allocated_bytes(), "end": end })
}

fn clear_over(store: Option<&CacheStore>, limit_bytes: u64, json: bool) -> CommandResult {
    let removed = store.map(|store| store.keep_within(limit_bytes)).transpose()?.unwrap_or_default();
    let removed_json = |caches| clear_result_to_json(caches, ClearResult::Removed);
    print_each(&removed, json, (removed_json, text::format_removal), "nothing was removed\n")
}

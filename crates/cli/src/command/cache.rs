//! `stockade cache`: the caches of tools that runs have written, by workspace.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use stockade_native::caches::{CacheStore, ClearResult, LayerServerProgram, WorkspaceCaches, serve_layers};

use super::{Ended, print, print_each, remark, variable};
use crate::cache_args::CacheCommand;
use crate::failure::{Failure, quoted};
use crate::places::State;
use crate::render::{self, cache as text};
use crate::{exit, places};

/// Limit for the caches of all workspaces. Once a day, after a run, the least recently used caches
/// above it are removed.
const LIMIT_BYTES: u64 = 20 << 30;

/// Interval between two checks of the limit.
const LIMIT_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Lists or removes caches.
///
/// # Errors
/// [`Failure`] if the caches cannot be read or removed.
pub fn cache(typed: CacheCommand) -> Ended {
    // The server inherits nothing from its caller, and uses no state directory.
    if let CacheCommand::Hold { directory } = typed {
        serve_layers(&directory).map_err(|error| Failure::new(error.to_string()))?;
        return Ok(exit::SUCCESS);
    }
    let state = State::open(&places::state_path(&variable)?)?;
    let store = CacheStore::open(&state.caches())?;
    match typed {
        CacheCommand::Hold { .. } => Ok(exit::SUCCESS),
        CacheCommand::List { json } => list(store.as_ref(), json),
        CacheCommand::Clear { over: Some(limit_bytes), json, .. } => clear_over(store.as_ref(), limit_bytes, json),
        CacheCommand::Clear { workspace, all, json, .. } => {
            let wanted = if all { None } else { Some(workspace_of(workspace)?) };
            clear(store.as_ref(), wanted.as_deref(), json)
        }
    }
}

/// Returns the program that serves the layers of a workspace: this program, even if its file was
/// replaced.
pub fn holder() -> LayerServerProgram {
    let arguments = ["cache", "hold"].map(Into::into).into();
    LayerServerProgram { program: super::OWN_PROGRAM.into(), arguments }
}

/// Keeps all caches within their limit, at most once a day. Removals are reported, because the run
/// that has ended waits for them.
pub fn keep_within_limit(state: &State) {
    let stamp = state.caches().join("checked");
    let age = |at: SystemTime| SystemTime::now().duration_since(at).unwrap_or_default();
    let checked = stamp.symlink_metadata().and_then(|found| found.modified());
    if !state.caches().exists() || checked.is_ok_and(|at| age(at) < LIMIT_INTERVAL) {
        return;
    }
    // Written first, so that concurrent runs do not all check.
    if std::fs::write(&stamp, "").is_err() {
        return;
    }
    let removed = CacheStore::open(&state.caches()).and_then(|store| match store {
        Some(store) => store.keep_within(LIMIT_BYTES),
        None => Ok(Vec::new()),
    });
    match removed {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => remark(&format!("• caches: {}", text::all_removed(&removed))),
        Err(error) => crate::complain(&Failure::from(error)),
    }
}

fn workspace_of(typed: Option<PathBuf>) -> Result<PathBuf, Failure> {
    match typed {
        // The directory may have been deleted.
        Some(typed) => {
            let cwd = places::current_directory()?;
            Ok(places::canonical_prefix(&places::expand(&typed, &|| places::home(&variable), &cwd)?))
        }
        None => places::current_directory(),
    }
}

fn list(store: Option<&CacheStore>, json: bool) -> Ended {
    let found = store.map(CacheStore::list).transpose()?.unwrap_or_default();
    print_each(&found, json, (listed, text::line), "no run has written in the caches of tools\n")
}

fn listed(caches: &WorkspaceCaches) -> Value {
    let tools: serde_json::Map<String, Value> =
        caches.tools.iter().map(|(tool, bytes)| (tool.clone(), json!(bytes))).collect();
    json!({
        "workspace": caches.workspace,
        "bytes": caches.bytes(),
        "used_ms": caches.used_ms,
        "in_use": caches.is_used,
        "gone": caches.is_gone,
        "tools": tools,
    })
}

fn clear(store: Option<&CacheStore>, workspace: Option<&Path>, json: bool) -> Ended {
    let found = store.map(CacheStore::list).transpose()?.unwrap_or_default();
    let is_wanted = |caches: &&WorkspaceCaches| workspace.is_none_or(|wanted| caches.workspace.as_path() == wanted);
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
            out += &render::json::line(&cleared(caches, end))?;
        } else if end == ClearResult::Removed {
            out += &text::removed(caches);
        }
    }
    print(&out)?;
    if count == 0 && !json {
        remark(&match workspace {
            Some(workspace) => format!("there are none of {}\n", quoted(workspace)),
            None => "there are none\n".to_owned(),
        });
    }
    for caches in &used {
        let what = format!("the caches of {} are in use", quoted(caches.workspace.as_path()));
        crate::complain(&Failure::new(what).hint("wait until its runs are over, or end them"));
    }
    Ok(if used.is_empty() { exit::SUCCESS } else { exit::NEGATIVE })
}

fn cleared(caches: &WorkspaceCaches, end: ClearResult) -> Value {
    let end = match end {
        ClearResult::Removed => "removed",
        ClearResult::Used => "in-use",
    };
    json!({ "workspace": caches.workspace, "bytes": caches.bytes(), "end": end })
}

fn clear_over(store: Option<&CacheStore>, limit_bytes: u64, json: bool) -> Ended {
    let removed = store.map(|store| store.keep_within(limit_bytes)).transpose()?.unwrap_or_default();
    let mut out = String::new();
    for caches in &removed {
        out += &if json { render::json::line(&cleared(caches, ClearResult::Removed))? } else { text::removed(caches) };
    }
    print(&out)?;
    if removed.is_empty() && !json {
        remark("nothing was removed\n");
    }
    Ok(exit::SUCCESS)
}

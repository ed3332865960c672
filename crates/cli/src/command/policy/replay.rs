//! `stockade policy replay`: decides the requests of the audit log again, with the configuration in
//! force or a changed one. Runs no command.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::json;
use stockade_audit::EntryContent;
use stockade_model::{Assessment, Decision, EventKind, RequestId, RunRequest};
use stockade_policy::{PolicySettings, RequestContext, rule_in};

use super::load_settings;
use crate::command::{CommandResult, audit, print_output, print_remark};
use crate::failure::CliError;
use crate::policy_args::PolicyReplayArgs;
use crate::render::{self, count_noun, policy as text};
use crate::{exit, resolved_args};

/// Most open requests, which were made and not decided yet.
const MAX_OPEN_REQUESTS: usize = 100_000;

/// Decides the requests again.
///
/// # Errors
/// [`CliError`] if the audit log or the configuration cannot be used.
pub fn replay_decisions(typed: &PolicyReplayArgs) -> CommandResult {
    let filter = audit::filter_entries(None, typed.session.as_deref(), typed.since)?;
    let mut replay =
        DecisionReplay { typed, by_workspace: BTreeMap::new(), open: BTreeMap::new(), counts: ReplayCounts::default() };
    let mut shown = String::new();
    for entry in audit::query_own_log(filter)? {
        match entry?.content {
            EntryContent::Event { event, .. } => {
                let time_ms = event.time_ms;
                shown += &replay.handle_event(&event.request, time_ms, event.kind)?;
            }
            EntryContent::Unknown { .. } => {}
            EntryContent::Broken { .. } => replay.counts.broken += 1,
        }
    }
    print_output(&shown)?;
    let counts = &replay.counts;
    let mut summary = format!("{} decided again, {} changed", count_noun(counts.decided, "request"), counts.changed);
    if counts.milder > 0 {
        summary += &format!(", {} of them milder", counts.milder);
    }
    if counts.broken > 0 {
        summary += &format!("; {} of the audit log could not be read", count_noun(counts.broken, "line"));
    }
    print_remark(&(summary + "\n"));
    let fails = typed.fail_on_change && (counts.changed > 0 || counts.broken > 0);
    Ok(if fails { exit::NEGATIVE_RESULT } else { exit::SUCCESS })
}

#[derive(Default)]
struct ReplayCounts {
    decided: usize,
    changed: usize,
    milder: usize,
    broken: usize,
}

struct DecisionReplay<'a> {
    typed: &'a PolicyReplayArgs,
    /// Settings by workspace, because each has its project's file.
    by_workspace: BTreeMap<PathBuf, PolicySettings>,
    open: BTreeMap<RequestId, (RunRequest, Option<Assessment>)>,
    counts: ReplayCounts,
}

impl DecisionReplay<'_> {
    fn handle_event(&mut self, id: &RequestId, time_ms: u64, kind: EventKind) -> Result<String, CliError> {
        match kind {
            EventKind::Requested { request, .. } if self.open.len() < MAX_OPEN_REQUESTS => {
                self.open.insert(id.clone(), (*request, None));
            }
            EventKind::Assessed { assessment } => {
                if let Some(open) = self.open.get_mut(id) {
                    open.1 = Some(assessment);
                }
            }
            EventKind::Decided { decision } => {
                if let Some((request, Some(assessment))) = self.open.remove(id) {
                    return self.replay_decision(&request, &assessment, &decision, time_ms);
                }
            }
            EventKind::Finished { .. } => {
                self.open.remove(id);
            }
            _ => {}
        }
        Ok(String::new())
    }

    fn replay_decision(
        &mut self,
        request: &RunRequest,
        assessment: &Assessment,
        before: &Decision,
        time_ms: u64,
    ) -> Result<String, CliError> {
        let workspace = request.workspace.as_path().to_owned();
        if !self.by_workspace.contains_key(&workspace) {
            let settings = load_settings(&workspace, self.typed.policy.as_deref())?;
            self.by_workspace.insert(workspace.clone(), settings);
        }
        let Some(settings) = self.by_workspace.get(&workspace) else { return Ok(String::new()) };
        // The audit log does not contain the user of a run; it is this user's own log.
        let around =
            RequestContext { user: super::user_name(), tool: None, time_ms: Some(time_ms), keeps_changes: None };
        let after = rule_in(settings, request, assessment, true, &around).decision;
        self.counts.decided += 1;
        if after.verdict == before.verdict {
            return Ok(String::new());
        }
        self.counts.changed += 1;
        self.counts.milder += usize::from(after.verdict < before.verdict);
        let command = resolved_args::text_of(&request.command).to_escaped();
        if self.typed.json {
            let value = json!({
                "request": request.id, "time_ms": time_ms, "command": command,
                "before": { "verdict": before.verdict, "rule": before.rule },
                "after": { "verdict": after.verdict, "rule": after.rule, "reasons": after.reasons },
            });
            return Ok(render::json::to_json_line(&value)?);
        }
        Ok(text::format_change(&request.id.to_string(), &command, before, &after))
    }
}

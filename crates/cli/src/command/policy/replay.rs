//! `stockade policy replay`: decides the requests of the audit log again, with the configuration in
//! force or a changed one. Runs no command.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::json;
use stockade_audit::{Content, Filter};
use stockade_model::{Assessment, Decision, EventKind, Request, RequestId, Verdict};
use stockade_policy::{Circumstances, Settings, rule_in};

use super::settings;
use crate::command::{Ended, now_ms, print, remark, variable};
use crate::failure::Failure;
use crate::policy_args::PolicyReplayArgs;
use crate::render::{self, counted, policy as text};
use crate::{exit, meaning, places};

/// Most open requests, which were made and not decided yet.
const MAX_OPEN: usize = 100_000;

/// Decides the requests again.
///
/// # Errors
/// [`Failure`] if the audit log or the configuration cannot be used.
pub fn replay(typed: &PolicyReplayArgs) -> Ended {
    let dir = places::state_path(&variable)?.join("audit");
    let filter = Filter {
        session: typed.session.as_deref().map(meaning::session).transpose()?,
        since_ms: typed.since.map(|since| now_ms().saturating_sub(meaning::milliseconds(since))),
        ..Filter::default()
    };
    let mut replay = Replay { typed, by_workspace: BTreeMap::new(), open: BTreeMap::new(), counts: Counts::default() };
    let mut shown = String::new();
    for entry in stockade_audit::query(&dir, filter)? {
        match entry?.content {
            Content::Event { event, .. } => {
                let time_ms = event.time_ms;
                shown += &replay.take(&event.request, time_ms, event.kind)?;
            }
            Content::Unknown { .. } => {}
            Content::Broken { .. } => replay.counts.broken += 1,
        }
    }
    print(&shown)?;
    let counts = &replay.counts;
    let mut said = format!("{} decided again, {} changed", counted(counts.decided, "request"), counts.changed);
    if counts.milder > 0 {
        said += &format!(", {} of them milder", counts.milder);
    }
    if counts.broken > 0 {
        said += &format!("; {} of the record could not be read", counted(counts.broken, "line"));
    }
    remark(&(said + "\n"));
    let fails = typed.fail_on_change && (counts.changed > 0 || counts.broken > 0);
    Ok(if fails { exit::NEGATIVE } else { exit::SUCCESS })
}

#[derive(Default)]
struct Counts {
    decided: usize,
    changed: usize,
    milder: usize,
    broken: usize,
}

struct Replay<'a> {
    typed: &'a PolicyReplayArgs,
    /// Settings by workspace, because each has its project's file.
    by_workspace: BTreeMap<PathBuf, Settings>,
    open: BTreeMap<RequestId, (Request, Option<Assessment>)>,
    counts: Counts,
}

impl Replay<'_> {
    fn take(&mut self, id: &RequestId, time_ms: u64, kind: EventKind) -> Result<String, Failure> {
        match kind {
            EventKind::Requested { request, .. } if self.open.len() < MAX_OPEN => {
                self.open.insert(id.clone(), (*request, None));
            }
            EventKind::Assessed { assessment } => {
                if let Some(open) = self.open.get_mut(id) {
                    open.1 = Some(assessment);
                }
            }
            EventKind::Decided { decision } => {
                if let Some((request, Some(assessment))) = self.open.remove(id) {
                    return self.again(&request, &assessment, &decision, time_ms);
                }
            }
            EventKind::Finished { .. } => {
                self.open.remove(id);
            }
            _ => {}
        }
        Ok(String::new())
    }

    fn again(
        &mut self,
        request: &Request,
        assessment: &Assessment,
        before: &Decision,
        time_ms: u64,
    ) -> Result<String, Failure> {
        let workspace = request.workspace.as_path().to_owned();
        if !self.by_workspace.contains_key(&workspace) {
            let settings = settings(&workspace, self.typed.policy.as_deref())?;
            self.by_workspace.insert(workspace.clone(), settings);
        }
        let Some(settings) = self.by_workspace.get(&workspace) else { return Ok(String::new()) };
        // The audit log does not contain the user of a run; it is this user's own log.
        let around =
            Circumstances { user: super::user_name(), tool: None, time_ms: Some(time_ms), keeps_changes: None };
        let after = rule_in(settings, request, assessment, true, &around).decision;
        self.counts.decided += 1;
        if after.verdict == before.verdict {
            return Ok(String::new());
        }
        self.counts.changed += 1;
        self.counts.milder += usize::from(after.verdict < before.verdict);
        let command = meaning::text_of(&request.command).escaped();
        if self.typed.json {
            let name = |verdict: Verdict| render::check::verdict(verdict);
            let value = json!({
                "request": request.id, "time_ms": time_ms, "command": command,
                "before": { "verdict": name(before.verdict), "rule": before.rule },
                "after": { "verdict": name(after.verdict), "rule": after.rule, "reasons": after.reasons },
            });
            return Ok(render::json::line(&value)?);
        }
        Ok(text::changed(&request.id.to_string(), &command, before, &after))
    }
}

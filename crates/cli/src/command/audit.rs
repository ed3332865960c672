//! `stockade audit`: reads the audit log, never writes it.

use std::collections::VecDeque;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use stockade_audit::{EntryContent, EntryFilter, LogAnchor, LogEntry, LogQuery, VerifyError};
use stockade_model::{EVENT_TYPES, RawText};

use super::{CommandResult, now_ms, output_error, print_output, print_result, read_variable};
use crate::args::{AuditCommand, AuditQueryArgs};
use crate::audit_log::list_stored_anchors;
use crate::failure::CliError;
use crate::render::join_texts;
use crate::{exit, locations, render, resolved_args};

/// Most events that `--last` keeps in memory.
const MAX_LAST_EVENTS: usize = 100_000;

/// Shows, queries or verifies the audit log.
///
/// # Errors
/// [`CliError`] if there is no audit log or it cannot be read.
pub fn inspect_audit_log(typed: AuditCommand) -> CommandResult {
    match typed {
        AuditCommand::Show { last, json } => show_events(EntryFilter::default(), last, json),
        AuditCommand::Query(typed) => {
            let json = typed.json;
            show_events(build_filter(typed)?, None, json)
        }
        AuditCommand::Verify { json } => {
            let state = locations::state_path(&read_variable)?;
            verify_audit_log(&state.join("audit"), &state.join(locations::ANCHORS_FILE), json)
        }
    }
}

fn build_filter(typed: AuditQueryArgs) -> Result<EntryFilter, CliError> {
    if let Some(kind) = typed.kind.as_ref().filter(|kind| !EVENT_TYPES.contains(kind)) {
        let what = format!("there is no type of event `{}`", RawText::from(kind.as_str()).to_escaped());
        return Err(CliError::new(what).with_hint(format!("the types are {}", join_texts(EVENT_TYPES.names()))));
    }
    let filter = filter_entries(typed.request.as_deref(), typed.session.as_deref(), typed.since)?;
    Ok(EntryFilter { kind: typed.kind, text: typed.text, ..filter })
}

/// Returns the filter for the entries of a request and of a session, not older than `since`.
pub fn filter_entries(
    request: Option<&str>,
    session: Option<&str>,
    since: Option<Duration>,
) -> Result<EntryFilter, CliError> {
    Ok(EntryFilter {
        request: request.map(str::parse).transpose()?,
        session: session.map(resolved_args::parse_session_id).transpose()?,
        since_ms: since.map(|since| now_ms().saturating_sub(resolved_args::to_milliseconds(since))),
        ..EntryFilter::default()
    })
}

/// Starts a query of the user's audit log.
pub fn query_own_log(filter: EntryFilter) -> Result<LogQuery, CliError> {
    Ok(stockade_audit::query_log(&locations::state_path(&read_variable)?.join("audit"), filter)?)
}

fn show_events(filter: EntryFilter, last: Option<usize>, json: bool) -> CommandResult {
    if last.is_some_and(|last| last > MAX_LAST_EVENTS) {
        return Err(
            CliError::new(format!("--last takes at most {MAX_LAST_EVENTS}")).with_hint("leave it out to see all")
        );
    }
    let entries = query_own_log(filter)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut recent_texts = VecDeque::new();
    for entry in entries {
        let entry = entry?;
        let text = if json { json_line(&entry)? } else { render::audit::format_entry(&entry) + "\n" };
        match last {
            None => write_output(&mut out, &text)?,
            Some(last) => {
                recent_texts.push_back(text);
                if recent_texts.len() > last {
                    recent_texts.pop_front();
                }
            }
        }
    }
    for text in recent_texts {
        write_output(&mut out, &text)?;
    }
    write_output(&mut out, "")?;
    out.flush().map_err(output_error)?;
    Ok(exit::SUCCESS)
}

fn write_output(out: &mut impl Write, text: &str) -> Result<(), CliError> {
    out.write_all(text.as_bytes()).map_err(output_error)
}

/// Returns an entry as one JSON object on a line.
///
/// # Errors
/// [`CliError`] if it cannot be serialized.
pub fn json_line(entry: &LogEntry) -> Result<String, CliError> {
    let value = match &entry.content {
        EntryContent::Event { seq, event } => json!({ "line": entry.line, "seq": seq.0, "event": event }),
        EntryContent::Unknown { seq, event } => json!({ "line": entry.line, "seq": seq.0, "event": event }),
        EntryContent::Broken { why, bytes } => json!({ "line": entry.line, "error": why.to_string(), "bytes": bytes }),
    };
    Ok(render::json::to_json_line(&value)?)
}

fn verify_audit_log(dir: &Path, anchors: &Path, json: bool) -> CommandResult {
    let anchors = list_stored_anchors(anchors)?;
    match stockade_audit::verify_with(dir, &anchors) {
        Ok(found) => {
            let earlier: Vec<&LogAnchor> = anchors.iter().filter(|anchor| Some(anchor.log) != found.log).collect();
            let value = json!({
                "ok": true,
                "entries": found.entries,
                "seq": found.head.0.0,
                "head": found.head.1.to_string(),
                "durable": found.durable.0,
                "signed": found.signed.map(|seq| seq.0),
                "key": found.key,
                "anchored": found.anchored.map(|seq| seq.0),
                "lost": found.lost,
                "earlier_logs": earlier.iter().map(|anchor| anchor.seq).collect::<Vec<_>>(),
                "torn_bytes": found.torn_bytes,
                "set_aside": found.torn_files.len(),
            });
            print_result(json, &value, || render::audit::format_verification(&found, &earlier))
        }
        Err(e @ (VerifyError::LogFile(_) | VerifyError::NoLog { .. })) => Err(CliError::from(e)),
        Err(e) => {
            let line = match e {
                VerifyError::Broken { line, .. } => Some(line),
                _ => None,
            };
            let failure = CliError::from(e);
            if json {
                let value = json!({ "ok": false, "line": line, "error": failure.what, "hint": failure.hint });
                print_output(&render::json::to_json_line(&value)?)?;
            } else {
                crate::print_error(&failure);
            }
            Ok(exit::NEGATIVE_RESULT)
        }
    }
}

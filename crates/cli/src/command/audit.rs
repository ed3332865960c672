//! `stockade audit`: reads the audit log, never writes it.

use std::collections::VecDeque;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use stockade_audit::{Anchor, Content, Entry, Filter, VerifyError};
use stockade_model::{EVENT_TYPES, RawText};

use super::{Ended, now_ms, print, variable};
use crate::args::{AuditCommand, AuditQueryArgs};
use crate::audit_log::kept_anchors;
use crate::failure::Failure;
use crate::{exit, meaning, places, render};

/// Most events that `--last` keeps in memory.
const LAST_LIMIT: usize = 100_000;

/// Shows, queries or verifies the audit log.
///
/// # Errors
/// [`Failure`] if there is no audit log or it cannot be read.
pub fn audit(typed: AuditCommand) -> Ended {
    let state = places::state_path(&variable)?;
    let dir = state.join("audit");
    match typed {
        AuditCommand::Show { last, json } => show(dir, Filter::default(), last, json),
        AuditCommand::Query(typed) => {
            let json = typed.json;
            show(dir, filter(typed)?, None, json)
        }
        AuditCommand::Verify { json } => verify(&dir, &state.join(places::ANCHORS_FILE), json),
    }
}

fn filter(typed: AuditQueryArgs) -> Result<Filter, Failure> {
    if let Some(kind) = typed.kind.as_ref().filter(|kind| !EVENT_TYPES.contains(&kind.as_str())) {
        let what = format!("there is no type of event `{}`", RawText::from(kind.as_str()).escaped());
        return Err(Failure::new(what).hint(format!("the types are {}", EVENT_TYPES.join(", "))));
    }
    let request = typed.request.map(|id| id.parse()).transpose()?;
    let since_ms = typed.since.map(|since| now_ms().saturating_sub(meaning::milliseconds(since)));
    Ok(Filter {
        request,
        session: typed.session.as_deref().map(meaning::session).transpose()?,
        kind: typed.kind,
        since_ms,
        until_ms: None,
        text: typed.text,
    })
}

fn show(dir: PathBuf, filter: Filter, last: Option<usize>, json: bool) -> Ended {
    if last.is_some_and(|last| last > LAST_LIMIT) {
        return Err(Failure::new(format!("--last takes at most {LAST_LIMIT}")).hint("leave it out to see all"));
    }
    let entries = stockade_audit::query(&dir, filter)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut kept = VecDeque::new();
    for entry in entries {
        let entry = entry?;
        let text = if json { json_line(&entry)? } else { render::audit::entry(&entry) + "\n" };
        match last {
            None => write(&mut out, &text)?,
            Some(last) => {
                kept.push_back(text);
                if kept.len() > last {
                    kept.pop_front();
                }
            }
        }
    }
    for text in kept {
        write(&mut out, &text)?;
    }
    write(&mut out, "")?;
    out.flush().map_err(unwritable)?;
    Ok(exit::SUCCESS)
}

fn write(out: &mut impl Write, text: &str) -> Result<(), Failure> {
    out.write_all(text.as_bytes()).map_err(unwritable)
}

fn unwritable(e: io::Error) -> Failure {
    Failure::new(format!("cannot write to standard output: {e}"))
}

/// Returns an entry as one JSON object on a line.
///
/// # Errors
/// [`Failure`] if it cannot be serialized.
pub fn json_line(entry: &Entry) -> Result<String, Failure> {
    let value = match &entry.content {
        Content::Event { seq, event } => json!({ "line": entry.line, "seq": seq.0, "event": event }),
        Content::Unknown { seq, event } => json!({ "line": entry.line, "seq": seq.0, "event": event }),
        Content::Broken { why, bytes } => json!({ "line": entry.line, "error": why.to_string(), "bytes": bytes }),
    };
    Ok(render::json::line(&value)?)
}

fn verify(dir: &Path, anchors: &Path, json: bool) -> Ended {
    let anchors = kept_anchors(anchors)?;
    match stockade_audit::verify_with(dir, &anchors) {
        Ok(found) => {
            let earlier: Vec<&Anchor> = anchors.iter().filter(|anchor| Some(anchor.log) != found.log).collect();
            let text = if json {
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
                    "set_aside": found.set_aside.len(),
                });
                render::json::line(&value)?
            } else {
                render::audit::verified(&found, &earlier)
            };
            print(&text)?;
            Ok(exit::SUCCESS)
        }
        Err(e @ (VerifyError::Place(_) | VerifyError::NoLog { .. })) => Err(Failure::from(e)),
        Err(e) => {
            let line = match e {
                VerifyError::Broken { line, .. } => Some(line),
                _ => None,
            };
            let failure = Failure::from(e);
            if json {
                let value = json!({ "ok": false, "line": line, "error": failure.what, "hint": failure.hint });
                print(&render::json::line(&value)?)?;
            } else {
                crate::complain(&failure);
            }
            Ok(exit::NEGATIVE)
        }
    }
}

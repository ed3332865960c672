//! `stockade approvals`: remembered answers. A revocation is recorded in the audit log.

use std::path::PathBuf;

use stockade_model::{ApprovalId, Event, EventKind, SessionId};
use stockade_store::{Remembered, Store};

use super::{Ended, now_ms, print, remark, variable};
use crate::args::ApprovalsCommand;
use crate::audit_log::AuditLog;
use crate::failure::{Failure, quoted};
use crate::render::{self, approvals as text};
use crate::{exit, meaning, places};

/// Lists, shows or revokes answers.
///
/// # Errors
/// [`Failure`] if the answers cannot be read.
pub fn approvals(typed: ApprovalsCommand) -> Ended {
    match typed {
        ApprovalsCommand::List { session, all, json } => list(session.as_deref(), all, json),
        ApprovalsCommand::Show { id, json } => show(&parse(&id)?, json),
        ApprovalsCommand::Revoke { id } => revoke(&parse(&id)?),
    }
}

fn parse(id: &str) -> Result<ApprovalId, Failure> {
    id.parse().map_err(|e| Failure::new(e).hint("`stockade approvals list` shows the ids"))
}

/// Opens the store if it exists: reading must not create it.
fn store() -> Result<Option<Store>, Failure> {
    let path = path()?;
    let cannot = |e| Failure::new(format!("cannot look for the remembered answers at {}: {e}", quoted(&path)));
    Ok(if path.try_exists().map_err(cannot)? { Some(Store::open(&path)?) } else { None })
}

/// Ends the answers of a session, because another session may have its name later.
///
/// # Errors
/// [`Failure`] if there are answers and they cannot be changed.
pub fn end_session(session: &SessionId) -> Result<(), Failure> {
    if let Some(store) = store()? {
        store.end_session(session, now_ms())?;
    }
    Ok(())
}

fn path() -> Result<PathBuf, Failure> {
    Ok(places::state_path(&variable)?.join("approvals.db"))
}

/// Returns the answers in force, the oldest first.
///
/// # Errors
/// [`Failure`] if they cannot be read.
pub fn in_force() -> Result<Vec<Remembered>, Failure> {
    let answers = store()?.map(|store| store.list()).transpose()?.unwrap_or_default();
    Ok(answers.into_iter().filter(|answer| answer.in_force(now_ms())).collect())
}

fn list(session: Option<&str>, all: bool, json: bool) -> Ended {
    let session = session.map(meaning::session).transpose()?;
    let now_ms = now_ms();
    let answers = store()?.map(|store| store.list()).transpose()?.unwrap_or_default();
    let wanted =
        |answer: &&Remembered| (all || answer.in_force(now_ms)) && (session.is_none() || answer.session == session);
    let mut out = String::new();
    for answer in answers.iter().filter(wanted) {
        out += &if json { render::json::line(answer)? } else { text::line(answer, now_ms) };
    }
    print(&out)?;
    if out.is_empty() && !json {
        remark("nothing is remembered\n");
    }
    Ok(exit::SUCCESS)
}

fn show(id: &ApprovalId, json: bool) -> Ended {
    let Some(answer) = find(id)? else { return absent(id) };
    print(&if json { render::json::line(&answer)? } else { text::whole(&answer, now_ms(), crate::stdout_style()) })?;
    Ok(exit::SUCCESS)
}

fn find(id: &ApprovalId) -> Result<Option<Remembered>, Failure> {
    Ok(store()?.map(|store| store.show(id)).transpose()?.flatten())
}

fn revoke(id: &ApprovalId) -> Ended {
    let Some(answer) = find(id)? else { return absent(id) };
    let revoked = store()?.map(|store| store.revoke(id, now_ms())).transpose()?.unwrap_or(false);
    if !revoked {
        remark("it was taken back before\n");
        return Ok(exit::SUCCESS);
    }
    // Revoked before it is recorded: a failure to write the audit log must not keep a grant in
    // force.
    let state = places::State::open(&places::state_path(&variable)?)?;
    let log = AuditLog::open(&state)?;
    let kind = EventKind::Revoked { approval: id.to_string() };
    log.append(&Event { time_ms: now_ms(), request: answer.request, session: answer.session, kind })?;
    log.commit()?;
    print(&format!("revoked {id}\n"))?;
    Ok(exit::SUCCESS)
}

fn absent(id: &ApprovalId) -> Ended {
    crate::complain(&Failure::new(format!("there is no {id}")).hint("`stockade approvals list --all` shows the ids"));
    Ok(exit::NEGATIVE)
}

//! `stockade approvals`: remembered answers. A revocation is recorded in the audit log.

use std::path::PathBuf;

use stockade_model::{ApprovalId, EventKind, SessionId};
use stockade_store::{ApprovalRecord, ApprovalStore};

use super::{
    CommandResult, now_ms, print_each, print_output, print_remark, print_result, read_variable, report_negative,
};
use crate::args::ApprovalsCommand;
use crate::audit_log::AuditLog;
use crate::failure::{CliError, quote_path};
use crate::render::approvals as text;
use crate::{exit, locations, resolved_args};

/// Lists, shows or revokes answers.
///
/// # Errors
/// [`CliError`] if the answers cannot be read.
pub fn manage_approvals(typed: ApprovalsCommand) -> CommandResult {
    match typed {
        ApprovalsCommand::List { session, all, json } => list_approvals(session.as_deref(), all, json),
        ApprovalsCommand::Show { id, json } => show_approval(&parse_approval_id(&id)?, json),
        ApprovalsCommand::Revoke { id } => revoke_approval(&parse_approval_id(&id)?),
    }
}

fn parse_approval_id(id: &str) -> Result<ApprovalId, CliError> {
    id.parse().map_err(|e| CliError::new(e).with_hint("`stockade approvals list` shows the ids"))
}

/// Opens the store if it exists: reading must not create it.
fn open_existing_store() -> Result<Option<ApprovalStore>, CliError> {
    let path = locate_approvals_store()?;
    let cannot = |e| CliError::new(format!("cannot look up the remembered answers at {}: {e}", quote_path(&path)));
    Ok(if path.try_exists().map_err(cannot)? { Some(ApprovalStore::open(&path)?) } else { None })
}

/// Ends the answers of a session, because another session may have its name later.
///
/// # Errors
/// [`CliError`] if there are answers and they cannot be changed.
pub fn end_session(session: &SessionId) -> Result<(), CliError> {
    if let Some(store) = open_existing_store()? {
        store.end_session(session, now_ms())?;
    }
    Ok(())
}

fn locate_approvals_store() -> Result<PathBuf, CliError> {
    Ok(locations::state_path(&read_variable)?.join("approvals.db"))
}

/// Returns the answers in force, the oldest first.
///
/// # Errors
/// [`CliError`] if they cannot be read.
pub fn in_force() -> Result<Vec<ApprovalRecord>, CliError> {
    let answers = open_existing_store()?.map(|store| store.list_answers()).transpose()?.unwrap_or_default();
    Ok(answers.into_iter().filter(|answer| answer.in_force(now_ms())).collect())
}

fn list_approvals(session: Option<&str>, all: bool, json: bool) -> CommandResult {
    let session = session.map(resolved_args::parse_session_id).transpose()?;
    let now_ms = now_ms();
    let answers = open_existing_store()?.map(|store| store.list_answers()).transpose()?.unwrap_or_default();
    let is_selected =
        |answer: &&ApprovalRecord| (all || answer.in_force(now_ms)) && (session.is_none() || answer.session == session);
    let found: Vec<_> = answers.iter().filter(is_selected).collect();
    print_each(
        &found,
        json,
        (|answer| *answer, |answer| text::format_line(answer, now_ms)),
        "no answers are remembered\n",
    )
}

fn show_approval(id: &ApprovalId, json: bool) -> CommandResult {
    let Some(answer) = find_approval(id)? else { return report_absent_approval(id) };
    print_result(json, &answer, || text::format_details(&answer, now_ms(), crate::stdout_style()))
}

fn find_approval(id: &ApprovalId) -> Result<Option<ApprovalRecord>, CliError> {
    Ok(open_existing_store()?.map(|store| store.find_answer(id)).transpose()?.flatten())
}

fn revoke_approval(id: &ApprovalId) -> CommandResult {
    let Some(answer) = find_approval(id)? else { return report_absent_approval(id) };
    let revoked = open_existing_store()?.map(|store| store.revoke_answer(id, now_ms())).transpose()?.unwrap_or(false);
    if !revoked {
        print_remark("it was revoked before\n");
        return Ok(exit::SUCCESS);
    }
    // Revoked before it is recorded: a failure to write the audit log must not keep a grant in
    // force.
    let state = locations::StateDirectory::open(&locations::state_path(&read_variable)?)?;
    let log = AuditLog::open(&state)?;
    log.record_now(answer.request, answer.session, EventKind::Revoked { approval: id.to_string() })?;
    print_output(&format!("revoked {id}\n"))
}

fn report_absent_approval(id: &ApprovalId) -> CommandResult {
    report_negative(
        &CliError::new(format!("there is no {id}")).with_hint("`stockade approvals list --all` shows the ids"),
    )
}

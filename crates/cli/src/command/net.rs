//! `stockade net`: the network connections of runs, read from the audit log. A connection is
//! recorded once it has ended; a refusal and a held call are recorded at once.

use std::io::IsTerminal;
use std::time::Duration;

use stockade_audit::{EntryContent, LogEntry, LogQuery};
use stockade_model::EventKind;

use super::{CommandResult, audit, print_output};
use crate::args::{NetArgs, NetCommand};
use crate::failure::CliError;
use crate::render::network::{self, HostStatistics};
use crate::{exit, render};

/// Interval between two reads of the audit log.
const LOG_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Moves to the first position of a terminal and clears the rest (ECMA-48, CUP and ED).
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// Shows the connections.
///
/// # Errors
/// [`CliError`] if there is no audit log or it cannot be read.
pub fn show_network(typed: NetCommand) -> CommandResult {
    match typed {
        NetCommand::Log(typed) => show_connection_log(&typed),
        NetCommand::Top(typed) => show_host_table(&typed),
    }
}

/// Opens the audit log from its beginning, including entries that are appended meanwhile.
fn open_audit_query(typed: &NetArgs) -> Result<LogQuery, CliError> {
    let filter = audit::filter_entries(typed.request.as_deref(), typed.session.as_deref(), typed.since)?;
    audit::query_own_log(filter)
}

/// Returns the next entry about the network. An unreadable line counts as one, because it could be
/// about the network.
fn next(record: &mut LogQuery) -> Result<Option<LogEntry>, CliError> {
    for entry in record {
        let entry = entry?;
        let is_shown = match &entry.content {
            EntryContent::Event { event, .. } => is_about_network(&event.kind),
            EntryContent::Unknown { .. } => false,
            EntryContent::Broken { .. } => true,
        };
        if is_shown {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

fn is_about_network(kind: &EventKind) -> bool {
    match kind {
        EventKind::Connection { .. } => true,
        EventKind::Denied { denial } | EventKind::Held { denial, .. } => network::is_connect(denial),
        _ => false,
    }
}

/// Calls `show` with the audit log, and again after each interval if it is followed.
fn follow_log(typed: &NetArgs, mut show: impl FnMut(&mut LogQuery) -> Result<(), CliError>) -> CommandResult {
    let mut record = open_audit_query(typed)?;
    loop {
        show(&mut record)?;
        if !typed.follow {
            return Ok(exit::SUCCESS);
        }
        std::thread::sleep(LOG_POLL_INTERVAL);
        record.read_appended_lines()?;
    }
}

fn show_connection_log(typed: &NetArgs) -> CommandResult {
    follow_log(typed, |record| {
        while let Some(entry) = next(record)? {
            let line = if typed.json { audit::json_line(&entry)? } else { render::audit::format_entry(&entry) + "\n" };
            print_output(&line)?;
        }
        Ok(())
    })
}

fn show_host_table(typed: &NetArgs) -> CommandResult {
    let mut reached = HostStatistics::default();
    let clear = if typed.follow && !typed.json && std::io::stdout().is_terminal() { CLEAR_SCREEN } else { "" };
    let mut shown = None;
    follow_log(typed, |record| {
        while let Some(entry) = next(record)? {
            if let EntryContent::Event { event, .. } = &entry.content {
                reached.count_event(&event.kind);
            }
        }
        let text = if typed.json { render::json::to_json_line(&reached)? } else { network::format_table(&reached) };
        if shown.as_ref() != Some(&text) {
            print_output(&format!("{clear}{text}"))?;
            shown = Some(text);
        }
        Ok(())
    })
}

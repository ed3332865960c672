//! `stockade net`: the network connections of runs, read from the audit log. A connection is
//! recorded once it has ended; a refusal and a held call are recorded at once.

use std::io::IsTerminal;
use std::time::Duration;

use stockade_audit::{Content, Entry, Filter, Query};
use stockade_model::EventKind;

use super::{Ended, now_ms, print, variable};
use crate::args::{NetArgs, NetCommand};
use crate::failure::Failure;
use crate::render::network::{self, Reached};
use crate::{exit, meaning, places, render};

/// Interval between two reads of the audit log.
const AGAIN: Duration = Duration::from_secs(1);
/// Moves to the first position of a terminal and clears the rest (ECMA-48, CUP and ED).
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the connections.
///
/// # Errors
/// [`Failure`] if there is no audit log or it cannot be read.
pub fn net(typed: NetCommand) -> Ended {
    match typed {
        NetCommand::Log(typed) => log(typed),
        NetCommand::Top(typed) => top(typed),
    }
}

/// Opens the audit log from its beginning, including entries that are appended meanwhile.
fn record(typed: &NetArgs) -> Result<Query, Failure> {
    let filter = Filter {
        request: typed.request.as_deref().map(str::parse).transpose()?,
        session: typed.session.as_deref().map(meaning::session).transpose()?,
        since_ms: typed.since.map(|since| now_ms().saturating_sub(meaning::milliseconds(since))),
        ..Filter::default()
    };
    Ok(stockade_audit::query(&places::state_path(&variable)?.join("audit"), filter)?)
}

/// Returns the next entry about the network. An unreadable line counts as one, because it could be
/// about the network.
fn next(record: &mut Query) -> Result<Option<Entry>, Failure> {
    for entry in record {
        let entry = entry?;
        let wanted = match &entry.content {
            Content::Event { event, .. } => is_about_network(&event.kind),
            Content::Unknown { .. } => false,
            Content::Broken { .. } => true,
        };
        if wanted {
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

fn log(typed: NetArgs) -> Ended {
    let mut record = record(&typed)?;
    loop {
        while let Some(entry) = next(&mut record)? {
            let line = if typed.json { super::audit::json_line(&entry)? } else { render::audit::entry(&entry) + "\n" };
            print(&line)?;
        }
        if !typed.follow {
            return Ok(exit::SUCCESS);
        }
        std::thread::sleep(AGAIN);
        record.look_again()?;
    }
}

fn top(typed: NetArgs) -> Ended {
    let mut record = record(&typed)?;
    let mut reached = Reached::default();
    let clear = typed.follow && !typed.json && std::io::stdout().is_terminal();
    let mut shown = None;
    loop {
        while let Some(entry) = next(&mut record)? {
            if let Content::Event { event, .. } = &entry.content {
                reached.count(&event.kind);
            }
        }
        let text = if typed.json { render::json::line(&reached)? } else { network::table(&reached) };
        if shown.as_ref() != Some(&text) {
            print(&if clear { format!("{CLEAR}{text}") } else { text.clone() })?;
            shown = Some(text);
        }
        if !typed.follow {
            return Ok(exit::SUCCESS);
        }
        std::thread::sleep(AGAIN);
        record.look_again()?;
    }
}

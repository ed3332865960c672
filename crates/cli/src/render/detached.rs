//! Detached runs as text: one line for each run.

use stockade_model::{RawText, RequestId, Status};
use stockade_store::runs::{About, Standing};

use super::audit::utc;
use crate::detach_keys::DetachKeys;
use crate::{exit, meaning};

/// Characters of the command in a list.
const COMMAND_SHOWN: usize = 60;

/// Formats one run on one line.
pub fn listed(id: &RequestId, about: Option<&About>, standing: &Standing) -> String {
    let state = state(standing);
    let Some(about) = about else { return format!("{id}  {state}\n") };
    let command = meaning::text_of(&about.command).escaped();
    let mut short: String = command.chars().take(COMMAND_SHOWN).collect();
    if short.len() < command.len() {
        short.push('…');
    }
    format!("{id}  {}  {state}  {}  {short}\n", utc(about.started_ms), about.workspace.escaped())
}

/// Describes the state of a run in a few words.
fn state(standing: &Standing) -> String {
    let outcome = match standing {
        Standing::Running => return "running".to_owned(),
        Standing::Lost => return "lost: its supervisor was killed".to_owned(),
        Standing::Ended(outcome) => outcome,
    };
    let how = match outcome.status {
        Status::Exited => "exited",
        Status::Signaled => "ended by a signal",
        Status::TimedOut => "timed out",
        Status::Limit => "limit",
        Status::Refused => "refused",
        Status::Aborted => "aborted",
        Status::Error => "error",
    };
    format!("{how} ({})", exit::of(outcome))
}

/// Message for a user who has attached.
pub fn attached(id: &RequestId, takes_input: bool) -> String {
    let input = if takes_input { "Ctrl-D ends its input" } else { "it takes no input" };
    format!("• attached to {id}: Ctrl-C leaves it and lets it go on, {input}\n")
}

/// Message for a user who has attached to a run with a terminal.
pub fn seated(id: &RequestId, keys: &DetachKeys) -> String {
    format!("• attached to {id}: {keys} leaves it and lets it go on, all other keys are its own\n")
}

/// Message for a user who detaches.
pub fn left(id: &RequestId) -> String {
    format!("\n• {id} goes on\n")
}

/// Message for input that is not a complete command yet.
pub const WAITS: &str = "• waits for the rest of the command; to drop it, leave and attach again\n";

/// Message for input that cannot be written.
pub fn lost(why: &str) -> String {
    format!("• {}\n", RawText::from(why).escaped())
}

/// Message at the position of missing output.
pub fn left_out(bytes: u64) -> String {
    format!("\n• {bytes} bytes were printed here and not kept\n")
}

#[cfg(test)]
mod tests {
    use stockade_model::Command;

    use super::*;

    #[test]
    fn a_run_is_one_harmless_line() {
        let id = RequestId::from_random([1; 16]);
        let about = About {
            id: id.clone(),
            session: None,
            command: Command::Script("echo \x1b[2J\n".repeat(20).as_str().into()),
            workspace: "/w\n".into(),
            profile: "workspace".to_owned(),
            started_ms: 0,
            supervisor: 1,
        };
        let shown = listed(&id, Some(&about), &Standing::Lost);
        assert_eq!(shown.lines().count(), 1);
        assert!(!shown.contains('\x1b') && shown.contains('…'), "{shown}");
        assert!(shown.contains("  lost: its supervisor was killed  /w\\n  echo "), "{shown}");
        assert_eq!(listed(&id, None, &Standing::Running), format!("{id}  running\n"));
    }
}

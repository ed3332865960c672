//! Detached runs as text: one line for each run.

use stockade_model::{FinalStatus, RawText, RequestId};
use stockade_store::runs::{DetachedRunState, RunDescription};

use super::audit::format_utc;
use super::{cut_text, name_of};
use crate::detach_keys::DetachKeys;
use crate::{exit, resolved_args};

/// Characters of the command in a list.
const MAX_COMMAND_CHARS: usize = 60;

/// Formats one run on one line.
pub fn format_line(id: &RequestId, about: Option<&RunDescription>, run_state: &DetachedRunState) -> String {
    let state = describe_state(run_state);
    let Some(about) = about else { return format!("{id}  {state}\n") };
    let command = resolved_args::text_of(&about.command).to_escaped();
    let short = cut_text(&command, MAX_COMMAND_CHARS);
    format!("{id}  {}  {state}  {}  {short}\n", format_utc(about.started_ms), about.workspace.to_escaped())
}

/// Describes the state of a run in a few words.
fn describe_state(run_state: &DetachedRunState) -> String {
    let outcome = match run_state {
        DetachedRunState::Running => return "running".to_owned(),
        DetachedRunState::Lost => return "lost: its supervisor was killed".to_owned(),
        DetachedRunState::Ended(outcome) => outcome,
    };
    let how = match outcome.status {
        FinalStatus::Signaled => "ended by a signal".to_owned(),
        status => name_of(status),
    };
    format!("{how} ({})", exit::code_for_outcome(outcome))
}

/// Message for a user who has attached.
pub fn attached_message(id: &RequestId, takes_input: bool) -> String {
    let input = if takes_input { "Ctrl-D ends its input" } else { "it takes no input" };
    format!("• attached to {id}: Ctrl-C detaches and leaves it running, {input}\n")
}

/// Message for a user who has attached to a run with a terminal.
pub fn terminal_attached_message(id: &RequestId, keys: &DetachKeys) -> String {
    format!("• attached to {id}: {keys} detaches and leaves it running, all other keys go to it\n")
}

/// Message for a user who detaches.
pub fn detached_message(id: &RequestId) -> String {
    format!("\n• {id} continues\n")
}

/// Message for input that is not a complete command yet.
pub const INCOMPLETE_INPUT_MESSAGE: &str = "• waits for the rest of the command; to drop it, leave and attach again\n";

/// Message for input that cannot be written.
pub fn input_lost_message(why: &str) -> String {
    format!("• {}\n", RawText::from(why).to_escaped())
}

/// Message at the position of missing output.
pub fn left_out(bytes: u64) -> String {
    format!("\n• {bytes} bytes were printed here and not kept\n")
}

#[cfg(test)]
mod tests {
    use stockade_model::RequestCommand;

    use super::*;

    #[test]
    fn a_run_is_one_harmless_line() {
        let id = RequestId::from_random([1; 16]);
        let about = RunDescription {
            id: id.clone(),
            session: None,
            command: RequestCommand::Script("echo \x1b[2J\n".repeat(20).as_str().into()),
            workspace: "/w\n".into(),
            profile: "workspace".to_owned(),
            started_ms: 0,
            supervisor: 1,
        };
        let shown = format_line(&id, Some(&about), &DetachedRunState::Lost);
        assert_eq!(shown.lines().count(), 1);
        assert!(!shown.contains('\x1b') && shown.contains('…'), "{shown}");
        assert!(shown.contains("  lost: its supervisor was killed  /w\\n  echo "), "{shown}");
        assert_eq!(format_line(&id, None, &DetachedRunState::Running), format!("{id}  running\n"));
    }
}

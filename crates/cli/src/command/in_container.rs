//! Processes of this program in the containers of sandboxes.

use stockade_container::in_container::{reap_orphans, report_features, serve_command};

use super::CommandResult;
use crate::args::InsideCommand;
use crate::exit;
use crate::failure::CliError;

/// Runs one of the processes of a container.
///
/// # Errors
/// [`CliError`] if the parent process violates the protocol.
pub fn run_container_process(part: &InsideCommand) -> CommandResult {
    let done = match part {
        InsideCommand::Hold => reap_orphans(),
        InsideCommand::Serve => serve_command(),
        InsideCommand::Probe => report_features(),
    };
    done.map(|()| exit::SUCCESS).map_err(|error| CliError::new(format!("cannot serve a command: {error}")))
}

//! Processes of this program in the containers of sandboxes.

use stockade_container::inside::{hold, probe, serve};

use super::Ended;
use crate::args::InsideCommand;
use crate::exit;
use crate::failure::Failure;

/// Runs one of the processes of a container.
///
/// # Errors
/// [`Failure`] if the parent process violates the protocol.
pub fn inside(part: &InsideCommand) -> Ended {
    let done = match part {
        InsideCommand::Hold => hold(),
        InsideCommand::Serve => serve(),
        InsideCommand::Probe => probe(),
    };
    done.map(|()| exit::SUCCESS).map_err(|error| Failure::new(format!("cannot serve a command: {error}")))
}

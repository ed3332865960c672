//! What this program is in the containers of sandboxes.

use stockade_container::inside::{hold, probe, serve};

use super::Ended;
use crate::args::InsideCommand;
use crate::exit;
use crate::failure::Failure;

/// Is one of the processes of a container.
///
/// # Errors
/// When whoever started it does not speak as one should.
pub fn inside(part: &InsideCommand) -> Ended {
    let done = match part {
        InsideCommand::Hold => hold(),
        InsideCommand::Serve => serve(),
        InsideCommand::Probe => probe(),
    };
    done.map(|()| exit::SUCCESS).map_err(|error| Failure::new(format!("cannot serve a command: {error}")))
}

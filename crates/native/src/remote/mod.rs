//! Attempts in another process than their engine, on the same machine: see
//! [`stockade_engine::remote`] for the messages. Rules, questions and the audit log stay with the engine.
//!
//! This module must not know the purpose of the other process: a front of a session, or the keeper
//! of a sandbox.

mod wire;

use std::io;
use std::sync::Arc;

use stockade_engine::remote::{Line as _, Told, obey};
use stockade_engine::{Attempt, Events, StartError};

pub(crate) use wire::{Line, ORDER, from_file, own_umask, to_file};

/// Prepares an attempt and obeys its engine, until that closes the connection or is gone. The
/// attempt ends then.
pub(crate) fn serve(
    line: Line,
    prepare: impl FnOnce(Events) -> Result<Box<dyn Attempt>, StartError>,
) -> io::Result<()> {
    let line = Arc::new(line);
    let tells = Arc::clone(&line);
    // An engine that does not receive is gone, or its connection will soon break.
    let events = Events::new(move |event| drop(tells.send(&Told::Event(Box::new(event)))));
    let done = match prepare(events) {
        Ok(attempt) => {
            line.send(&Told::Prepared(Ok(attempt.enforced().clone())))?;
            obey(attempt, || line.receive(), |told| line.send(told))
        }
        Err(error) => line.send(&Told::Prepared(Err(error))),
    };
    // The events of background processes may still hold a reference to the connection.
    line.hang_up();
    done
}

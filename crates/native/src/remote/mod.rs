//! Attempts that are in another process than their engine, on this machine: see
//! [`stockade_engine::remote`] for what is said. Rules, questions and the record stay
//! with the engine.
//!
//! It must not know what the other process is for: a front of a session, the keeper
//! of a sandbox.

mod wire;

use std::io;
use std::sync::Arc;

use stockade_engine::remote::{Line as _, Told, obey};
use stockade_engine::{Attempt, Events, StartError};

pub(crate) use wire::{Line, ORDER, from_file, own_umask, to_file};

/// Makes an attempt and obeys until its engine has nothing more to say, or is gone:
/// the attempt ends with that.
pub(crate) fn serve(
    line: Line,
    prepare: impl FnOnce(Events) -> Result<Box<dyn Attempt>, StartError>,
) -> io::Result<()> {
    let line = Arc::new(line);
    let tells = Arc::clone(&line);
    // An engine that does not hear is gone, or soon broken off.
    let events = Events::new(move |event| drop(tells.send(&Told::Event(Box::new(event)))));
    let done = match prepare(events) {
        Ok(attempt) => {
            line.send(&Told::Prepared(Ok(attempt.enforced().clone())))?;
            obey(attempt, || line.receive(), |told| line.send(told))
        }
        Err(error) => line.send(&Told::Prepared(Err(error))),
    };
    // What a command left behind may still have something to tell with.
    line.hang_up();
    done
}

//! Attempts in another process than their engine, on the same machine: see
//! [`stockade_backend_api::remote`] for the messages. Rules, questions and the audit log stay with the engine.
//!
//! This module must not know the purpose of the other process: a front of a session, or the keeper
//! of a sandbox.

mod wire;

use std::io;
use std::sync::Arc;

use stockade_backend_api::remote::{AttemptChannel as _, AttemptMessage, serve_attempt};
use stockade_backend_api::{Attempt, AttemptEventSender, StartError};

pub use wire::own_umask;
pub(crate) use wire::{ORDER_BYTE, SocketChannel, receive_order, to_file};

/// Prepares an attempt and obeys its engine, until that closes the connection or is gone. The
/// attempt ends then.
pub(crate) fn serve_remote_attempt(
    line: SocketChannel,
    prepare: impl FnOnce(AttemptEventSender) -> Result<Box<dyn Attempt>, StartError>,
) -> io::Result<()> {
    let line = Arc::new(line);
    let tells = Arc::clone(&line);
    // An engine that does not receive is gone, or its connection will soon break.
    let events =
        AttemptEventSender::new(move |event| drop(tells.send_message(&AttemptMessage::Event(Box::new(event)))));
    let done = match prepare(events) {
        Ok(attempt) => {
            line.send_message(&AttemptMessage::Prepared(Ok(attempt.enforcement_report().clone())))?;
            serve_attempt(attempt, || line.receive_message(), |message| line.send_message(message))
        }
        Err(error) => line.send_message(&AttemptMessage::Prepared(Err(error))),
    };
    // The events of background processes may still hold a reference to the connection.
    line.hang_up();
    done
}

//! An attempt for an engine in another process: see [`stockade_backend_api::remote`] for the
//! messages. Rules, questions and the audit log stay with the engine.

use std::io;
use std::sync::Arc;

use stockade_backend_api::remote::{AttemptMessage, serve_attempt};
use stockade_backend_api::{Attempt, AttemptEventSender, StartError};

use crate::channel::{Channel, MAX_MESSAGE_BYTES};

/// Prepares an attempt and obeys its engine, until that closes the connection or is gone. The
/// attempt ends then.
///
/// # Errors
/// [`io::Error`] if the connection fails.
pub fn serve_remote_attempt(
    channel: Channel,
    prepare: impl FnOnce(AttemptEventSender) -> Result<Box<dyn Attempt>, StartError>,
) -> io::Result<()> {
    let channel = Arc::new(channel);
    let event_channel = Arc::clone(&channel);
    // An engine that does not receive is gone, or its connection will soon break.
    let events =
        AttemptEventSender::new(move |event| drop(event_channel.send(&AttemptMessage::Event(Box::new(event)))));
    let done = match prepare(events) {
        Ok(attempt) => {
            channel.send(&AttemptMessage::Prepared(Ok(attempt.enforcement_report().clone())))?;
            serve_attempt(attempt, || channel.receive(MAX_MESSAGE_BYTES), |message| channel.send(message))
        }
        Err(error) => channel.send(&AttemptMessage::Prepared(Err(error))),
    };
    // The events of background processes may still hold a reference to the connection.
    channel.hang_up();
    done
}

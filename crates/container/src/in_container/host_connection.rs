//! The launcher's end of the channel to the host.

use std::fs::File;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use rustix::io::ioctl_fionbio;
use serde::de::DeserializeOwned;
use stockade_backend_api::remote::AttemptMessage;
use tokio::io::{DuplexStream, join};
use tokio::net::unix::pipe;
use tokio::runtime::{Builder, Handle};

use super::launcher_messages::{INPUT_PATH, LauncherMessage, MESSAGES_PATH};
use crate::multiplexer::{
    MAX_MESSAGE_BYTES, MessageReceiver, connect_streams, encode_message, open_stream, read_message, receive_into,
    send_bytes, send_from,
};

/// Most events that wait to be sent; a further one blocks its sender.
const EVENTS_QUEUED_MAX: usize = 16;

/// Reads the order, which arrives on standard input in front of all streams.
///
/// # Errors
/// [`io::Error`] if the host is gone, or sends invalid data.
pub(super) fn receive_order<T: DeserializeOwned>() -> io::Result<T> {
    let input = File::from(rustix::stdio::stdin().try_clone_to_owned()?);
    Ok(serde_json::from_slice(&read_message(input, MAX_MESSAGE_BYTES)?)?)
}

/// Connection to the host, which a thread serves until the host is gone.
#[derive(Clone)]
pub(super) struct HostConnection {
    pub(super) requests: SendRequest<Bytes>,
    pub(super) runtime: Handle,
}

impl HostConnection {
    /// Opens it over standard input and output, which can be replaced afterwards.
    ///
    /// # Errors
    /// [`io::Error`] if they cannot be polled.
    pub(super) fn over_stdio() -> io::Result<Self> {
        let from = rustix::stdio::stdin().try_clone_to_owned()?;
        let to = rustix::stdio::stdout().try_clone_to_owned()?;
        ioctl_fionbio(&from, true)?;
        ioctl_fionbio(&to, true)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (requests, connection) = runtime.block_on(async {
            // A container runtime may use sockets.
            let from = pipe::Receiver::from_owned_fd_unchecked(from)?;
            let channel = join(from, pipe::Sender::from_owned_fd_unchecked(to)?);
            connect_streams(channel).await.map_err(io::Error::other)
        })?;
        let host = Self { requests, runtime: runtime.handle().clone() };
        // The runtime ends all of its tasks with the connection.
        let serve = move || drop(runtime.block_on(connection));
        thread::Builder::new().name("stockade-channel".to_owned()).spawn(serve)?;
        Ok(host)
    }

    /// Opens the stream of messages. `on_message` returns false if no more are expected; it is dropped
    /// when the host sends no more.
    ///
    /// # Errors
    /// [`io::Error`] if the host is gone.
    pub(super) fn open_messages(
        &self,
        mut on_message: impl FnMut(LauncherMessage) -> bool + Send + 'static,
    ) -> io::Result<EventSender> {
        let (response, mut sender) = self.runtime.block_on(open_stream(&self.requests, MESSAGES_PATH, false))?;
        self.runtime.spawn(async move {
            let Ok(response) = response.await else { return };
            let mut messages = MessageReceiver::new(response.into_body(), MAX_MESSAGE_BYTES);
            while let Ok(Some(message)) = messages.next_message().await
                && serde_json::from_slice(&message).is_ok_and(&mut on_message)
            {}
        });
        let (events, queue) = sync_channel::<Bytes>(EVENTS_QUEUED_MAX);
        let runtime = self.runtime.clone();
        // A thread, because events also come from threads that must not wait for a task.
        let send = move || {
            while let Ok(event) = queue.recv()
                && runtime.block_on(send_bytes(&mut sender, event)).is_ok()
            {}
        };
        thread::Builder::new().name("stockade-events".to_owned()).spawn(send)?;
        Ok(EventSender(events))
    }

    /// Sends an output of the command.
    pub(super) fn send_output(&self, path: &'static str, pipe: DuplexStream) {
        let requests = self.requests.clone();
        self.runtime.spawn(async move {
            // The host is gone, or the reader of the output, if this fails.
            let (_response, mut stream) = open_stream(&requests, path, false).await?;
            send_from(pipe, &mut stream).await
        });
    }

    /// Receives the input of the command. `inspect` is as for [`receive_into`].
    pub(super) fn receive_input(
        &self,
        pipe: DuplexStream,
        inspect: impl FnMut(Option<Bytes>) -> Bytes + Send + 'static,
    ) {
        let requests = self.requests.clone();
        self.runtime.spawn(async move {
            // The host is gone, or the command reads no more, if this fails.
            let (response, _stream) = open_stream(&requests, INPUT_PATH, true).await?;
            let response = response.await.map_err(io::Error::other)?;
            receive_into(response.into_body(), pipe, &mut BytesMut::new(), inspect).await
        });
    }
}

/// Sends the messages of the attempt.
#[derive(Clone)]
pub(super) struct EventSender(SyncSender<Bytes>);

impl EventSender {
    /// Sends a message once there is room for it.
    ///
    /// # Errors
    /// [`io::Error`] if the host is gone.
    pub(super) fn send_event(&self, attempt_message: &AttemptMessage) -> io::Result<()> {
        self.0.send(encode_message(attempt_message)?).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

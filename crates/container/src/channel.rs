//! Channel to the launcher of one command: streams over those of an exec of the container engine. A
//! command could have taken control of the sender. So the data is bounded, and trusted only for
//! statements about that command.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bytes::{Bytes, BytesMut};
use futures_util::future::{BoxFuture, pending, ready};
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use stockade_backend_api::remote::{self, AttemptChannel as _, AttemptMessage};
use stockade_backend_api::{AttemptEnd, AttemptEvent, CommandEnd};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinSet, yield_now};
use tokio_util::io::StreamReader;

use crate::client::{CALL_TIMEOUT, CallError, ContainerClient};
use crate::egress_requests::TUNNEL_PATH;
use crate::host_egress::HostEgress;
use crate::in_container::{INPUT_PATH, LauncherMessage, MESSAGES_PATH};
use crate::launcher::CommandLauncher;
use crate::lock_mutex;
use crate::multiplexer::{
    MessageReceiver, accept_streams, encode_message, finish_sending, receive_output, send_bytes, send_from, violation,
};
use crate::spec::{LAUNCHER_PATH, LAUNCHER_WORD};

/// Most messages that wait to be sent. A launcher that does not read is disconnected then.
const MESSAGES_QUEUED_MAX: usize = 4096;
/// Most messages that were received and not yet read.
const MESSAGES_MAX: usize = 16;
/// Most bytes that are kept of the launcher's standard error.
const MAX_COMPLAINT_BYTES: usize = 2048;
/// Most bytes of its answer, if it gives one and ends.
const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// Time-out for the caller's streams to accept the output of a killed command.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which output may still arrive after the container has ended: not every engine ends the
/// streams of an exec with it.
const LATE_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// Pipes of the command's streams, by their paths.
pub(crate) type StreamPipes = BTreeMap<&'static str, DuplexStream>;

/// Channel of one command.
pub(crate) struct LauncherChannel {
    sender: Mutex<Option<Sender<Bytes>>>,
    outside: Arc<HostEgress>,
    messages: Mutex<Receiver<BytesMut>>,
    complaint: Arc<Mutex<Vec<u8>>>,
    /// Serves all streams.
    task: AbortHandle,
    /// Disconnected when the caller's streams have accepted an output completely.
    outputs: Mutex<Vec<mpsc::Receiver<()>>>,
    /// True if the command was killed: there is a time limit for its output.
    killed: AtomicBool,
    /// Dropped at the end of the command.
    held_data: Mutex<Option<Box<dyn std::any::Any + Send>>>,
    launcher: CommandLauncher,
    /// True if the sandbox of the command is built, and its end was not reported.
    stands: AtomicBool,
}

type LauncherOutput = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;
type LauncherInput = Pin<Box<dyn AsyncWrite + Send>>;

/// A launcher that has its order.
pub(crate) struct AttachedLauncher {
    /// The engine's identifier of its exec.
    pub(crate) id: String,
    output: LauncherOutput,
    input: LauncherInput,
}

/// Starts a launcher with this subcommand as a user of a container, and sends this order to it.
pub(crate) async fn attach_launcher(
    docker: Docker,
    (container, user): (String, String),
    (subcommand, order): (&str, Bytes),
) -> Result<AttachedLauncher, Error> {
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        user: Some(user),
        cmd: Some([LAUNCHER_PATH, LAUNCHER_WORD, subcommand].map(str::to_owned).to_vec()),
        ..CreateExecOptions::default()
    };
    let made = docker.create_exec(&container, options).await?;
    let started = docker.start_exec(&made.id, Some(StartExecOptions::default())).await?;
    let StartExecResults::Attached { output, mut input } = started else {
        return Err(io::Error::other("it was started without its streams").into());
    };
    input.write_all(&order).await?;
    input.flush().await?;
    Ok(AttachedLauncher { id: made.id, output, input })
}

/// Starts a launcher, sends this order to it, and reads its output and its standard error to the
/// end, within the time-out of a call.
pub(crate) fn read_launcher_output(
    client: &ContainerClient,
    owner: (String, String),
    start: (&'static str, Bytes),
) -> Result<(Vec<u8>, String), CallError> {
    client.call(CALL_TIMEOUT, |docker| async move {
        let AttachedLauncher { output, input: _input, .. } = attach_launcher(docker, owner, start).await?;
        let (mut content, stderr) = (Vec::new(), Arc::default());
        let output = read_output(output, Arc::clone(&stderr), pending());
        output.take(MAX_ANSWER_BYTES).read_to_end(&mut content).await?;
        Ok((content, stderr_text(&stderr)))
    })
}

/// Returns the kept part of a launcher's standard error.
fn stderr_text(stderr: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&lock_mutex(stderr)).trim().to_owned()
}

/// Keeps a bounded part of a launcher's own text.
fn append_complaint(stderr: &Mutex<Vec<u8>>, text: &[u8]) {
    let mut stderr = lock_mutex(stderr);
    let room = MAX_COMPLAINT_BYTES.saturating_sub(stderr.len());
    stderr.extend_from_slice(&text[..text.len().min(room)]);
}

impl LauncherChannel {
    /// Serves the streams that a launcher opens, until its container has ended. Its messages have at
    /// most so many bytes.
    pub(crate) fn serve_launcher(
        (launcher, attached): (CommandLauncher, AttachedLauncher),
        has_ended: watch::Receiver<bool>,
        message_bytes: usize,
        (pipes, outside): (StreamPipes, Arc<HostEgress>),
    ) -> Arc<Self> {
        let (sender, queue) = channel(MESSAGES_QUEUED_MAX);
        let (messages_in, messages) = channel(MESSAGES_MAX);
        let complaint = Arc::<Mutex<Vec<u8>>>::default();
        let messages_out = Some((queue, messages_in));
        let streams = LauncherStreams { messages: messages_out, message_bytes, pipes, outside: Arc::clone(&outside) };
        let stderr = Arc::clone(&complaint);
        let output = read_output(attached.output, Arc::clone(&stderr), too_late(has_ended));
        let task = launcher.client.runtime_handle().spawn(async move {
            if let Err(error) = streams.serve_streams(tokio::io::join(output, attached.input)).await
                && error.kind() == io::ErrorKind::InvalidData
            {
                append_complaint(&stderr, error.to_string().as_bytes());
            }
        });
        Arc::new(Self {
            sender: Mutex::new(Some(sender)),
            outside,
            messages: Mutex::new(messages),
            complaint,
            task: task.abort_handle(),
            outputs: Mutex::default(),
            killed: AtomicBool::new(false),
            held_data: Mutex::default(),
            launcher,
            stands: AtomicBool::new(false),
        })
    }

    /// Keeps the caller's streams for as long as the command runs, because the processes at their
    /// other ends must see its end. The report of the end waits for these outputs.
    pub(crate) fn keep_alive(&self, carried: impl Send + 'static, outputs: Vec<mpsc::Receiver<()>>) {
        *lock_mutex(&self.held_data) = Some(Box::new(carried));
        *lock_mutex(&self.outputs) = outputs;
    }

    /// Returns the launcher's standard error.
    pub(crate) fn launcher_stderr(&self) -> String {
        stderr_text(&self.complaint)
    }

    /// Sends a message. A launcher that reads too slowly is disconnected, and its command ends.
    pub(crate) fn send_message(&self, message: &LauncherMessage) -> io::Result<()> {
        let message = encode_message(message)?;
        let sent = lock_mutex(&self.sender).as_ref().ok_or(io::ErrorKind::BrokenPipe)?.try_send(message);
        sent.map_err(|_| {
            self.hang_up();
            io::ErrorKind::BrokenPipe.into()
        })
    }

    /// Returns the end of a command whose launcher reported none.
    fn lost_command_end(&self) -> AttemptMessage {
        let why = self.launcher.ensure_ended();
        self.killed.store(true, Ordering::Release);
        self.end_streams();
        self.task.abort();
        AttemptMessage::Event(Box::new(AttemptEvent::Ended(AttemptEnd::from_command_end(CommandEnd::Lost(why)))))
    }

    /// Waits until the caller's streams have accepted all output of the command, or the command was
    /// killed and they accept nothing. Then ends its streams and its network access.
    fn end_streams(&self) {
        let outputs = std::mem::take(&mut *lock_mutex(&self.outputs));
        'outputs: for output in outputs {
            while output.recv_timeout(OUTPUT_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                if self.killed.load(Ordering::Acquire) {
                    break 'outputs;
                }
            }
        }
        lock_mutex(&self.held_data).take();
        self.outside.shut_down();
    }
}

impl remote::AttemptChannel for LauncherChannel {
    fn send_message(&self, content: &remote::EngineMessage) -> io::Result<()> {
        if *content == remote::EngineMessage::Kill {
            self.killed.store(true, Ordering::Release);
        }
        self.send_message(&LauncherMessage::Engine(content.clone())).inspect_err(|_| self.hang_up())
    }

    fn receive_message(&self) -> io::Result<Option<AttemptMessage>> {
        let message = lock_mutex(&self.messages).blocking_recv();
        let attempt_message = message.map(|message| serde_json::from_slice(&message)).transpose();
        match &attempt_message {
            Ok(Some(AttemptMessage::Event(event))) if matches!(**event, AttemptEvent::Ended(_)) => {
                self.stands.store(false, Ordering::Release);
                self.end_streams();
            }
            Ok(Some(AttemptMessage::Prepared(Ok(_)))) => self.stands.store(true, Ordering::Release),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                self.outside.shut_down();
                if self.stands.swap(false, Ordering::AcqRel) {
                    return Ok(Some(self.lost_command_end()));
                }
            }
        }
        Ok(attempt_message?)
    }

    fn fall_silent(&self) {
        lock_mutex(&self.sender).take();
    }

    fn hang_up(&self) {
        self.fall_silent();
        self.task.abort();
    }
}

impl Drop for LauncherChannel {
    fn drop(&mut self) {
        self.task.abort();
        self.outside.shut_down();
    }
}

/// Waits until no more data of an ended container is expected; forever if the container is not
/// watched.
async fn too_late(mut has_ended: watch::Receiver<bool>) {
    if has_ended.wait_for(|has_ended| *has_ended).await.is_ok() {
        return tokio::time::sleep(LATE_OUTPUT_TIMEOUT).await;
    }
    pending().await
}

/// Returns a reader of the launcher's standard output, until the future has ended. Keeps a part of
/// its standard error.
fn read_output(
    output: LauncherOutput,
    stderr: Arc<Mutex<Vec<u8>>>,
    until: impl Future<Output = ()> + Send + 'static,
) -> impl AsyncRead + Unpin + Send {
    let pieces = output.take_until(until).filter_map(move |piece| {
        let content = match piece {
            Ok(LogOutput::StdOut { message } | LogOutput::Console { message }) => Some(Ok(message)),
            Ok(LogOutput::StdErr { message }) => {
                append_complaint(&stderr, &message);
                None
            }
            Ok(LogOutput::StdIn { .. }) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        };
        yield_now().map(|()| content)
    });
    // The streams are accepted and emptied between two pieces, so that a flood of small pieces does
    // not collect, and before the end.
    let end = stream::once(yield_now()).filter_map(|()| ready(None));
    StreamReader::new(Box::pin(pieces.chain(end)))
}

/// The host's ends of the streams that a launcher opens.
struct LauncherStreams {
    /// `None` after the stream of messages was opened.
    messages: Option<(Receiver<Bytes>, Sender<BytesMut>)>,
    message_bytes: usize,
    /// Those of the command's streams that were not opened.
    pipes: StreamPipes,
    outside: Arc<HostEgress>,
}

impl LauncherStreams {
    /// Serves the streams until the launcher is gone, and writes what it sent before.
    ///
    /// # Errors
    /// [`io::Error`] of kind `InvalidData` if it violates the protocol: nothing more of it is used.
    async fn serve_streams(mut self, channel: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let mut accepted = accept_streams(channel).await.map_err(channel_error)?;
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                stream = accepted.accept() => match stream {
                    Some(Ok((request, respond))) => {
                        tasks.spawn(self.serve_stream(request, respond)?);
                        yield_now().await;
                    }
                    Some(Err(error)) if !error.is_io() => return Err(channel_error(error)),
                    Some(Err(_)) | None => break,
                },
                Some(served) = tasks.join_next() => require_no_violation(served)?,
            }
        }
        drop(self);
        let mut result = Ok(());
        while let Some(served) = tasks.join_next().await {
            result = result.and(require_no_violation(served));
        }
        result
    }

    /// Returns the task of a stream, which fails if the launcher violates the protocol.
    fn serve_stream(
        &mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> io::Result<BoxFuture<'static, io::Result<()>>> {
        let (head, receiver) = request.into_parts();
        let path = head.uri.path();
        if path == TUNNEL_PATH {
            return Ok(Arc::clone(&self.outside).serve_tunnel(receiver, respond).boxed());
        }
        let sends = path == MESSAGES_PATH || path == INPUT_PATH;
        let mut sender = respond.send_response(Response::new(()), !sends).map_err(io::Error::other)?;
        if path == MESSAGES_PATH {
            let (mut queue, messages) = self.messages.take().ok_or_else(|| violation("a second stream of messages"))?;
            let mut received = MessageReceiver::new(receiver, self.message_bytes);
            let send = async move {
                while let Some(message) = queue.recv().await {
                    send_bytes(&mut sender, message).await?;
                }
                finish_sending(&mut sender)
            };
            let receive = async move {
                while let Some(message) = received.next_message().await? {
                    messages.send(message).await.map_err(io::Error::other)?;
                }
                Ok(())
            };
            return Ok(async { tokio::try_join!(send, receive).map(drop) }.boxed());
        }
        let pipe = self.pipes.remove(path).ok_or_else(|| violation("data for an unknown stream"))?;
        if sends {
            return Ok(async move { send_from(pipe, &mut sender).await }.boxed());
        }
        Ok(receive_output(receiver, pipe).boxed())
    }
}

/// Passes on violations of the protocol: any other failure is the end of that stream alone.
fn require_no_violation(served: Result<io::Result<()>, JoinError>) -> io::Result<()> {
    served
        .unwrap_or(Ok(()))
        .or_else(|error| if error.kind() == io::ErrorKind::InvalidData { Err(error) } else { Ok(()) })
}

fn channel_error(error: h2::Error) -> io::Error {
    let kind = if error.is_io() { io::ErrorKind::BrokenPipe } else { io::ErrorKind::InvalidData };
    io::Error::new(kind, format!("the other side violates the protocol: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use tokio::io::{duplex, join, sink};
    use tokio::time::timeout;

    use crate::in_container::{ERRORS_PATH, OUTPUT_PATH};
    use crate::shared_tests::{data, last_data, open, plan, preface};

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Serves these bytes of a launcher. Returns the error, and the received output.
    fn serve(frames: &[Vec<u8>]) -> (io::Result<()>, Vec<u8>) {
        let (output, mut read_end) = duplex(64 << 10);
        let (queue, message_queue) = channel(1);
        let (messages, _unread) = channel(MESSAGES_MAX);
        let events = stockade_backend_api::AttemptEventSender::new(|_| {});
        let streams = LauncherStreams {
            messages: Some((message_queue, messages)),
            message_bytes: 100,
            pipes: [(OUTPUT_PATH, output)].into(),
            outside: Arc::new(HostEgress::for_plan(&plan(&[]), None, &events).unwrap()),
        };
        let pieces = std::iter::once(&preface()).chain(frames).cloned().map(Bytes::from).collect::<Vec<_>>();
        let pieces = pieces.into_iter().map(|message| Ok(LogOutput::StdOut { message }));
        let bytes = read_output(Box::pin(stream::iter(pieces)), Arc::default(), pending());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let served = timeout(TIMEOUT, streams.serve_streams(join(bytes, sink()))).await.unwrap();
            drop(queue);
            let mut written = Vec::new();
            timeout(TIMEOUT, read_end.read_to_end(&mut written)).await.unwrap().unwrap();
            (served, written)
        })
    }

    #[test]
    fn an_output_is_written_whole_and_ends_once() {
        let whole = [open(1, OUTPUT_PATH), data(1, b"te"), last_data(1, b"xt")];
        let (served, written) = serve(&whole);
        served.unwrap();
        assert_eq!(written, b"text");
        let (_, written) = serve(&[whole.concat(), data(1, b"more")]);
        assert_eq!(written, b"text");
        // A launcher that is killed ends no stream.
        let (served, written) = serve(&[open(1, OUTPUT_PATH), data(1, &[b'x'; 20_000])]);
        served.unwrap();
        assert_eq!(written, [b'x'; 20_000]);
    }

    #[test]
    fn a_launcher_that_violates_the_protocol_is_cut_off() {
        let small = data(1, &[0]);
        let messages = open(1, MESSAGES_PATH);
        for (frames, what) in [
            (vec![b"what is this?".to_vec()], "frame"),
            (vec![data(1, b"text")], ""),
            (vec![open(1, "/other")], "data for an unknown stream"),
            (vec![open(1, ERRORS_PATH)], "data for an unknown stream"),
            (vec![open(1, OUTPUT_PATH), open(3, OUTPUT_PATH)], "data for an unknown stream"),
            (vec![messages.clone(), open(3, MESSAGES_PATH)], "a second stream of messages"),
            (vec![messages.clone(), data(1, &101_u32.to_le_bytes())], "a message that is too long"),
            (vec![open(1, TUNNEL_PATH), data(1, b"\x01\0\0\0x")], "a malformed request"),
            // No reader takes these messages, so their pieces collect.
            (vec![messages, small.repeat(20_000)], "excessive load"),
        ] {
            let error = serve(&frames).0.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}

//! Channel to the launcher of one command: frames over the streams of an exec of the container
//! engine. A command could have taken control of the sender. So the data is bounded, and trusted
//! only for statements about that command.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures_util::{Stream, StreamExt};
use serde::de::DeserializeOwned;
use stockade_backend_api::remote::{self, AttemptMessage};
use stockade_backend_api::{AttemptEnd, AttemptEvent, CommandEnd};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::client::{CALL_TIMEOUT, CallError, ContainerClient};
use crate::frames::{ChannelFrame, FrameDecoder, FrameError};
use crate::host_egress::HostEgress;
use crate::launcher::CommandLauncher;
use crate::lock_mutex;
use crate::stream_copy::StdioStreamSet;
use crate::tunnel_streams::TunnelFrameSender;

/// Most frames that wait to be sent; frames of streams are bounded by their windows.
const FRAMES_MAX: usize = 4096;
/// Most frames of connections that wait to be sent; further senders wait.
const PIECES_QUEUED_MAX: usize = 16;
/// Most messages that were received and not yet read.
const MESSAGES_MAX: usize = 16;
/// Most bytes that are kept of the launcher's standard error.
const MAX_COMPLAINT_BYTES: usize = 2048;
/// Most bytes of its answer, if it gives one and ends.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Time-out for the caller's streams to accept the output of a killed command.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which output may still arrive after the container has ended: not every engine ends the
/// streams of an exec with it.
const LATE_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// Channel of one command.
pub(crate) struct LauncherChannel {
    sender: Arc<Mutex<Option<Sender<Vec<u8>>>>>,
    /// Frames of connections, which wait for room.
    pieces: Sender<Vec<u8>>,
    outside: Arc<OnceLock<Arc<HostEgress>>>,
    messages: Mutex<Receiver<Vec<u8>>>,
    streams: Arc<Mutex<StdioStreamSet>>,
    complaint: Arc<Mutex<Vec<u8>>>,
    tasks: [AbortHandle; 2],
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

/// Parameters to start a launcher.
pub(crate) struct LauncherExec {
    pub(crate) container: String,
    pub(crate) user: String,
    pub(crate) command: Vec<String>,
}

/// State of a container.
#[derive(Clone)]
pub(crate) struct ContainerLiveness {
    /// True once it has ended.
    pub(crate) has_ended: watch::Receiver<bool>,
    /// True if a command in it always ends with its launcher.
    pub(crate) has_isolation: bool,
}

type LauncherOutput = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;
type LauncherInput = Pin<Box<dyn AsyncWrite + Send>>;

/// Starts a launcher; returns the engine's identifier for it, and its streams.
async fn attach_launcher(docker: Docker, exec: LauncherExec) -> Result<(String, LauncherOutput, LauncherInput), Error> {
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        user: Some(exec.user),
        cmd: Some(exec.command),
        ..CreateExecOptions::default()
    };
    let made = docker.create_exec(&exec.container, options).await?;
    match docker.start_exec(&made.id, Some(StartExecOptions::default())).await? {
        StartExecResults::Attached { output, input } => Ok((made.id, output, input)),
        StartExecResults::Detached => Err(io::Error::other("it was started without its streams").into()),
    }
}

/// Output of a launcher that exited by itself.
pub(crate) struct LauncherExitOutput {
    pub(crate) output: Vec<u8>,
    pub(crate) complaint: String,
}

/// Starts a launcher, sends this frame to it, and reads its output to the end, within the time-out
/// of a call.
pub(crate) fn read_launcher_output(
    client: &ContainerClient,
    exec: LauncherExec,
    first: ChannelFrame,
) -> Result<LauncherExitOutput, CallError> {
    client.call(CALL_TIMEOUT, |docker| async move {
        let (_, mut output, mut input) = attach_launcher(docker, exec).await?;
        input.write_all(&first.encode_frame()).await?;
        input.flush().await?;
        let (mut content, mut complaint) = (Vec::new(), Vec::new());
        while let Some(piece) = output.next().await {
            match piece? {
                LogOutput::StdOut { message } => append_bounded(&mut content, &message, MAX_ANSWER_BYTES),
                LogOutput::StdErr { message } => append_bounded(&mut complaint, &message, MAX_COMPLAINT_BYTES),
                LogOutput::Console { .. } | LogOutput::StdIn { .. } => {}
            }
        }
        Ok(LauncherExitOutput { output: content, complaint: String::from_utf8_lossy(&complaint).trim().to_owned() })
    })
}

/// Keeps a bounded part of a launcher's text that is no frame.
fn append_bounded(held_data: &mut Vec<u8>, text: &[u8], most: usize) {
    let room = most.saturating_sub(held_data.len());
    held_data.extend_from_slice(&text[..text.len().min(room)]);
}

impl LauncherChannel {
    /// Starts a launcher whose messages have at most this many bytes.
    pub(crate) fn start_launcher(
        client: &ContainerClient,
        exec: LauncherExec,
        message_bytes: usize,
        fate: ContainerLiveness,
    ) -> Result<Self, CallError> {
        let container = exec.container.clone();
        let (id, output, input) = client.call(CALL_TIMEOUT, |docker| attach_launcher(docker, exec))?;
        let launcher =
            CommandLauncher { client: client.clone(), container, exec: id, has_isolation: fate.has_isolation };
        let (sender, queue) = channel(FRAMES_MAX);
        let (messages_in, messages) = channel(MESSAGES_MAX);
        let streams = Arc::<Mutex<StdioStreamSet>>::default();
        let complaint = Arc::<Mutex<Vec<u8>>>::default();
        let outside = Arc::<OnceLock<Arc<HostEgress>>>::default();
        let (pieces, piece_queue) = channel(PIECES_QUEUED_MAX);
        let incoming = LauncherReceiver {
            outside: Arc::clone(&outside),
            streams: Arc::clone(&streams),
            complaint: Arc::clone(&complaint),
            messages: messages_in,
            decoder: FrameDecoder::new(message_bytes),
        };
        let tasks = [
            client.spawn_task(send_queued_frames(queue, piece_queue, input)),
            client.spawn_task(incoming.receive_output(output, fate.has_ended)),
        ];
        Ok(Self {
            sender: Arc::new(Mutex::new(Some(sender))),
            pieces,
            outside,
            messages: Mutex::new(messages),
            streams,
            complaint,
            tasks,
            outputs: Mutex::default(),
            killed: AtomicBool::new(false),
            held_data: Mutex::default(),
            launcher,
            stands: AtomicBool::new(false),
        })
    }

    /// Returns the sender for frames of streams, valid as long as the channel exists. A launcher
    /// that reads too slowly is disconnected, and its command ends.
    pub(crate) fn stream_sender(&self) -> crate::stream_copy::FrameSender {
        let (sender, tasks) = (Arc::clone(&self.sender), self.tasks.clone());
        Arc::new(move |frame| {
            let mut sender = lock_mutex(&sender);
            if sender.as_ref().is_some_and(|sender| sender.try_send(frame.encode_frame()).is_err()) {
                sender.take();
                tasks.iter().for_each(AbortHandle::abort);
            }
        })
    }

    /// Returns the sender for frames of connections, which wait until they can be sent.
    pub(crate) fn tunnel_sender(&self) -> TunnelFrameSender {
        let pieces = self.pieces.clone();
        Arc::new(move |frame| {
            let pieces = pieces.clone();
            Box::pin(async move { pieces.send(frame.encode_frame()).await.is_ok() })
        })
    }

    /// Sets the receiver for network requests from the container; to be called before any message
    /// is sent.
    pub(crate) fn set_host_egress(&self, outside: Arc<HostEgress>) {
        // There is one for each channel.
        let _ = self.outside.set(outside);
    }

    fn close_outside(&self) {
        if let Some(outside) = self.outside.get() {
            outside.shut_down();
        }
    }

    /// Returns the command's streams, to be started before any message is sent.
    pub(crate) fn lock_streams(&self) -> MutexGuard<'_, StdioStreamSet> {
        lock_mutex(&self.streams)
    }

    /// Makes the report of the command's end wait for the end of this output.
    pub(crate) fn wait_for(&self, output: mpsc::Receiver<()>) {
        lock_mutex(&self.outputs).push(output);
    }

    /// Keeps the caller's streams for as long as the command runs, because the processes at their
    /// other ends must see its end.
    pub(crate) fn keep_alive(&self, carried: impl Send + 'static) {
        *lock_mutex(&self.held_data) = Some(Box::new(carried));
    }

    /// Returns the launcher's standard error.
    pub(crate) fn launcher_stderr(&self) -> String {
        String::from_utf8_lossy(&lock_mutex(&self.complaint)).trim().to_owned()
    }

    /// Sends a message of any kind.
    pub(crate) fn send_message(&self, message: &impl serde::Serialize) -> io::Result<()> {
        let frame = ChannelFrame::Message(serde_json::to_vec(message)?).encode_frame();
        let sender = lock_mutex(&self.sender);
        let sender = sender.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        sender.try_send(frame).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Returns the next message.
    pub(crate) fn receive_message<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let message = lock_mutex(&self.messages).blocking_recv();
        Ok(message.map(|message| serde_json::from_slice(&message)).transpose()?)
    }

    /// Returns the end of a command whose launcher reported none.
    fn lost_command_end(&self) -> AttemptMessage {
        let why = self.launcher.ensure_ended();
        lock_mutex(&self.streams).close_all();
        self.killed.store(true, Ordering::Release);
        self.end_streams();
        AttemptMessage::Event(Box::new(AttemptEvent::Ended(AttemptEnd::from_command_end(CommandEnd::Lost(why)))))
    }

    fn end_streams(&self) {
        self.wait_for_streams();
        drop(lock_mutex(&self.held_data).take());
        self.close_outside();
    }

    /// Waits until the caller's streams have accepted all output of the command, or the command was
    /// killed and they accept nothing.
    fn wait_for_streams(&self) {
        let ended = std::mem::take(&mut *lock_mutex(&self.outputs));
        for stream in ended {
            while stream.recv_timeout(OUTPUT_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                if self.killed.load(Ordering::Acquire) {
                    return;
                }
            }
        }
    }
}

impl remote::AttemptChannel for LauncherChannel {
    fn send_message(&self, content: &remote::EngineMessage) -> io::Result<()> {
        if *content == remote::EngineMessage::Kill {
            self.killed.store(true, Ordering::Release);
        }
        self.send_message(content).inspect_err(|_| self.hang_up())
    }

    fn receive_message(&self) -> io::Result<Option<AttemptMessage>> {
        let attempt_message = self.receive_message::<AttemptMessage>();
        match &attempt_message {
            Ok(Some(AttemptMessage::Event(event))) if matches!(**event, AttemptEvent::Ended(_)) => {
                self.stands.store(false, Ordering::Release);
                self.end_streams();
            }
            Ok(Some(AttemptMessage::Prepared(Ok(_)))) => self.stands.store(true, Ordering::Release),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                self.close_outside();
                if self.stands.swap(false, Ordering::AcqRel) {
                    return Ok(Some(self.lost_command_end()));
                }
            }
        }
        attempt_message
    }

    fn fall_silent(&self) {
        if let Some(sender) = lock_mutex(&self.sender).take() {
            let _ = sender.try_send(ChannelFrame::Over.encode_frame());
        }
    }

    fn hang_up(&self) {
        lock_mutex(&self.sender).take();
        self.tasks.iter().for_each(AbortHandle::abort);
        lock_mutex(&self.streams).close_all();
    }
}

impl Drop for LauncherChannel {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        lock_mutex(&self.streams).close_all();
        self.close_outside();
    }
}

/// Waits until no more data of an ended container is expected; forever if the container is not
/// watched.
async fn too_late(mut has_ended: watch::Receiver<bool>) {
    if has_ended.wait_for(|has_ended| *has_ended).await.is_ok() {
        return tokio::time::sleep(LATE_OUTPUT_TIMEOUT).await;
    }
    std::future::pending().await
}

/// Sends the waiting frames; those of connections last.
async fn send_queued_frames(mut queue: Receiver<Vec<u8>>, mut pieces: Receiver<Vec<u8>>, mut input: LauncherInput) {
    loop {
        let frame = tokio::select! {
            biased;
            frame = queue.recv() => frame,
            Some(piece) = pieces.recv() => Some(piece),
        };
        let Some(frame) = frame else { break };
        if input.write_all(&frame).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
    let _ = input.shutdown().await;
}

/// Data from a launcher.
struct LauncherReceiver {
    outside: Arc<OnceLock<Arc<HostEgress>>>,
    streams: Arc<Mutex<StdioStreamSet>>,
    complaint: Arc<Mutex<Vec<u8>>>,
    messages: Sender<Vec<u8>>,
    decoder: FrameDecoder,
}

impl LauncherReceiver {
    async fn receive_output(mut self, mut output: LauncherOutput, has_ended: watch::Receiver<bool>) {
        let mut too_late = std::pin::pin!(too_late(has_ended));
        loop {
            let piece = tokio::select! {
                piece = output.next() => piece,
                () = &mut too_late => None,
            };
            let Some(Ok(piece)) = piece else { break };
            match piece {
                LogOutput::StdErr { message } => self.append_complaint(&message),
                LogOutput::StdOut { message } | LogOutput::Console { message } => {
                    self.decoder.push(&message);
                    if !self.deliver_frames().await {
                        break;
                    }
                }
                LogOutput::StdIn { .. } => {}
            }
        }
        lock_mutex(&self.streams).close_all();
    }

    /// Returns false if the following frames cannot be decoded, or are not read.
    async fn deliver_frames(&mut self) -> bool {
        loop {
            match self.decoder.next_frame() {
                Ok(Some(ChannelFrame::Message(message))) => {
                    if self.messages.send(message).await.is_err() {
                        return false;
                    }
                }
                Ok(Some(frame)) => {
                    if let Err(error) = self.handle_frame(frame) {
                        self.append_complaint(error.to_string().as_bytes());
                        return false;
                    }
                }
                Ok(None) => return true,
                Err(error) => {
                    self.append_complaint(error.to_string().as_bytes());
                    return false;
                }
            }
        }
    }

    fn handle_frame(&self, frame: ChannelFrame) -> Result<(), FrameError> {
        if !frame.is_of_connections() {
            return lock_mutex(&self.streams).handle_frame(frame);
        }
        self.outside.get().ok_or(FrameError::UNKNOWN_STREAM)?.handle_frame(frame)
    }

    fn append_complaint(&self, text: &[u8]) {
        append_bounded(&mut lock_mutex(&self.complaint), text, MAX_COMPLAINT_BYTES);
    }
}

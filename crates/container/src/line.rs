//! Channel to the launcher of one command: frames over the streams of an exec of the container
//! engine. A command could have taken control of the sender. So the data is bounded, and trusted
//! only for statements about that command.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures_util::{Stream, StreamExt};
use serde::de::DeserializeOwned;
use stockade_engine::remote::{self, Told};
use stockade_engine::{AttemptEnd, AttemptEvent, CommandEnd};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::carry::Streams;
use crate::client::{ANSWERS_WITHIN, CallError, Client};
use crate::frames::{Decoder, Frame, FrameError};
use crate::launcher::Launcher;
use crate::outside::Outside;
use crate::passages::Post;

/// Most frames that wait to be sent; frames of streams are bounded by their windows.
const FRAMES_MAX: usize = 4096;
/// Most frames of connections that wait to be sent; further senders wait.
const PIECES_MAX: usize = 16;
/// Most messages that were received and not yet read.
const MESSAGES_MAX: usize = 16;
/// Most bytes that are kept of the launcher's standard error.
const COMPLAINT_BYTES: usize = 2048;
/// Most bytes of its answer, if it gives one and ends.
const ANSWER_BYTES: usize = 1 << 20;
/// Time-out for the caller's streams to accept the output of a killed command.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);
/// Time for which output may still arrive after the container has ended: not every engine ends the
/// streams of an exec with it.
const COMES_WITHIN: Duration = Duration::from_secs(2);

/// Channel of one command.
pub(crate) struct FrameLine {
    sender: Arc<Mutex<Option<Sender<Vec<u8>>>>>,
    /// Frames of connections, which wait for room.
    pieces: Sender<Vec<u8>>,
    outside: Arc<OnceLock<Arc<Outside>>>,
    messages: Mutex<Receiver<Vec<u8>>>,
    streams: Arc<Mutex<Streams>>,
    complaint: Arc<Mutex<Vec<u8>>>,
    tasks: [AbortHandle; 2],
    /// Disconnected when the caller's streams have accepted an output completely.
    outputs: Mutex<Vec<mpsc::Receiver<()>>>,
    /// True if the command was killed: there is a time limit for its output.
    killed: AtomicBool,
    /// Dropped at the end of the command.
    kept: Mutex<Option<Box<dyn std::any::Any + Send>>>,
    launcher: Launcher,
    /// True if the sandbox of the command is built, and its end was not reported.
    stands: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parameters to start a launcher.
pub(crate) struct Exec {
    pub(crate) container: String,
    pub(crate) user: String,
    pub(crate) command: Vec<String>,
}

/// State of a container.
#[derive(Clone)]
pub(crate) struct Fate {
    /// True once it has ended.
    pub(crate) gone: watch::Receiver<bool>,
    /// True if a command in it always ends with its launcher.
    pub(crate) has_walls: bool,
}

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// Starts a launcher; returns the engine's identifier for it, and its streams.
async fn attach(docker: Docker, exec: Exec) -> Result<(String, Output, Input), Error> {
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
pub(crate) struct Said {
    pub(crate) output: Vec<u8>,
    pub(crate) complaint: String,
}

/// Starts a launcher, sends this frame to it, and reads its output to the end, within the time-out
/// of a call.
pub(crate) fn all_said(client: &Client, exec: Exec, first: Frame) -> Result<Said, CallError> {
    client.call(ANSWERS_WITHIN, |docker| async move {
        let (_, mut output, mut input) = attach(docker, exec).await?;
        input.write_all(&first.encode()).await?;
        input.flush().await?;
        let (mut said, mut complaint) = (Vec::new(), Vec::new());
        while let Some(piece) = output.next().await {
            match piece? {
                LogOutput::StdOut { message } => keep_some(&mut said, &message, ANSWER_BYTES),
                LogOutput::StdErr { message } => keep_some(&mut complaint, &message, COMPLAINT_BYTES),
                LogOutput::Console { .. } | LogOutput::StdIn { .. } => {}
            }
        }
        Ok(Said { output: said, complaint: String::from_utf8_lossy(&complaint).trim().to_owned() })
    })
}

/// Keeps a bounded part of a launcher's text that is no frame.
fn keep_some(kept: &mut Vec<u8>, text: &[u8], most: usize) {
    let room = most.saturating_sub(kept.len());
    kept.extend_from_slice(&text[..text.len().min(room)]);
}

impl FrameLine {
    /// Starts a launcher whose messages have at most this many bytes.
    pub(crate) fn start(client: &Client, exec: Exec, message_bytes: usize, fate: Fate) -> Result<Self, CallError> {
        let container = exec.container.clone();
        let (id, output, input) = client.call(ANSWERS_WITHIN, |docker| attach(docker, exec))?;
        let launcher = Launcher { client: client.clone(), container, exec: id, has_walls: fate.has_walls };
        let (sender, queue) = channel(FRAMES_MAX);
        let (messages_in, messages) = channel(MESSAGES_MAX);
        let streams = Arc::<Mutex<Streams>>::default();
        let complaint = Arc::<Mutex<Vec<u8>>>::default();
        let outside = Arc::<OnceLock<Arc<Outside>>>::default();
        let (pieces, piece_queue) = channel(PIECES_MAX);
        let incoming = Incoming {
            outside: Arc::clone(&outside),
            streams: Arc::clone(&streams),
            complaint: Arc::clone(&complaint),
            messages: messages_in,
            decoder: Decoder::new(message_bytes),
        };
        let tasks = [client.spawn(send(queue, piece_queue, input)), client.spawn(incoming.receive(output, fate.gone))];
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
            kept: Mutex::default(),
            launcher,
            stands: AtomicBool::new(false),
        })
    }

    /// Returns the sender for frames of streams, valid as long as the channel exists. A launcher
    /// that reads too slowly is disconnected, and its command ends.
    pub(crate) fn sending(&self) -> crate::carry::Send {
        let (sender, tasks) = (Arc::clone(&self.sender), self.tasks.clone());
        Arc::new(move |frame| {
            let mut sender = lock(&sender);
            if sender.as_ref().is_some_and(|sender| sender.try_send(frame.encode()).is_err()) {
                sender.take();
                tasks.iter().for_each(AbortHandle::abort);
            }
        })
    }

    /// Returns the sender for frames of connections, which wait until they can be sent.
    pub(crate) fn posting(&self) -> Post {
        let pieces = self.pieces.clone();
        Arc::new(move |frame| {
            let pieces = pieces.clone();
            Box::pin(async move { pieces.send(frame.encode()).await.is_ok() })
        })
    }

    /// Sets the receiver for network requests from the container; to be called before any message
    /// is sent.
    pub(crate) fn lead(&self, outside: Arc<Outside>) {
        // There is one for each channel.
        let _ = self.outside.set(outside);
    }

    fn close_outside(&self) {
        if let Some(outside) = self.outside.get() {
            outside.close();
        }
    }

    /// Returns the command's streams, to be started before any message is sent.
    pub(crate) fn streams(&self) -> MutexGuard<'_, Streams> {
        lock(&self.streams)
    }

    /// Makes the report of the command's end wait for the end of this output.
    pub(crate) fn wait_for(&self, output: mpsc::Receiver<()>) {
        lock(&self.outputs).push(output);
    }

    /// Keeps the caller's streams for as long as the command runs, because the processes at their
    /// other ends must see its end.
    pub(crate) fn keep(&self, carried: impl Send + 'static) {
        *lock(&self.kept) = Some(Box::new(carried));
    }

    /// Returns the launcher's standard error.
    pub(crate) fn complaint(&self) -> String {
        String::from_utf8_lossy(&lock(&self.complaint)).trim().to_owned()
    }

    /// Sends a message of any kind.
    pub(crate) fn send(&self, message: &impl serde::Serialize) -> io::Result<()> {
        let frame = Frame::Message(serde_json::to_vec(message)?).encode();
        let sender = lock(&self.sender);
        let sender = sender.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        sender.try_send(frame).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Returns the next message.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let message = lock(&self.messages).blocking_recv();
        Ok(message.map(|message| serde_json::from_slice(&message)).transpose()?)
    }

    /// Returns the end of a command whose launcher reported none.
    fn lost(&self) -> Told {
        let why = self.launcher.bury();
        lock(&self.streams).close();
        self.killed.store(true, Ordering::Release);
        self.end_streams();
        Told::Event(Box::new(AttemptEvent::Ended(AttemptEnd::bare(CommandEnd::Lost(why)))))
    }

    fn end_streams(&self) {
        self.wait_for_streams();
        drop(lock(&self.kept).take());
        self.close_outside();
    }

    /// Waits until the caller's streams have accepted all output of the command, or the command was
    /// killed and they accept nothing.
    fn wait_for_streams(&self) {
        let ended = std::mem::take(&mut *lock(&self.outputs));
        for stream in ended {
            while stream.recv_timeout(TAKEN_WITHIN) == Err(RecvTimeoutError::Timeout) {
                if self.killed.load(Ordering::Acquire) {
                    return;
                }
            }
        }
    }
}

impl remote::Line for FrameLine {
    fn say(&self, said: &remote::Said) -> io::Result<()> {
        if *said == remote::Said::Kill {
            self.killed.store(true, Ordering::Release);
        }
        self.send(said).inspect_err(|_| self.hang_up())
    }

    fn hear(&self) -> io::Result<Option<Told>> {
        let told = self.receive::<Told>();
        match &told {
            Ok(Some(Told::Event(event))) if matches!(**event, AttemptEvent::Ended(_)) => {
                self.stands.store(false, Ordering::Release);
                self.end_streams();
            }
            Ok(Some(Told::Prepared(Ok(_)))) => self.stands.store(true, Ordering::Release),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                self.close_outside();
                if self.stands.swap(false, Ordering::AcqRel) {
                    return Ok(Some(self.lost()));
                }
            }
        }
        told
    }

    fn fall_silent(&self) {
        if let Some(sender) = lock(&self.sender).take() {
            let _ = sender.try_send(Frame::Over.encode());
        }
    }

    fn hang_up(&self) {
        lock(&self.sender).take();
        self.tasks.iter().for_each(AbortHandle::abort);
        lock(&self.streams).close();
    }
}

impl Drop for FrameLine {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        lock(&self.streams).close();
        self.close_outside();
    }
}

/// Waits until no more data of an ended container is expected; forever if the container is not
/// watched.
async fn too_late(mut gone: watch::Receiver<bool>) {
    if gone.wait_for(|gone| *gone).await.is_ok() {
        return tokio::time::sleep(COMES_WITHIN).await;
    }
    std::future::pending().await
}

/// Sends the waiting frames; those of connections last.
async fn send(mut queue: Receiver<Vec<u8>>, mut pieces: Receiver<Vec<u8>>, mut input: Input) {
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
struct Incoming {
    outside: Arc<OnceLock<Arc<Outside>>>,
    streams: Arc<Mutex<Streams>>,
    complaint: Arc<Mutex<Vec<u8>>>,
    messages: Sender<Vec<u8>>,
    decoder: Decoder,
}

impl Incoming {
    async fn receive(mut self, mut output: Output, gone: watch::Receiver<bool>) {
        let mut too_late = std::pin::pin!(too_late(gone));
        loop {
            let piece = tokio::select! {
                piece = output.next() => piece,
                () = &mut too_late => None,
            };
            let Some(Ok(piece)) = piece else { break };
            match piece {
                LogOutput::StdErr { message } => self.complain(&message),
                LogOutput::StdOut { message } | LogOutput::Console { message } => {
                    self.decoder.push(&message);
                    if !self.deliver().await {
                        break;
                    }
                }
                LogOutput::StdIn { .. } => {}
            }
        }
        lock(&self.streams).close();
    }

    /// Returns false if the following frames cannot be decoded, or are not read.
    async fn deliver(&mut self) -> bool {
        loop {
            match self.decoder.next_frame() {
                Ok(Some(Frame::Message(message))) => {
                    if self.messages.send(message).await.is_err() {
                        return false;
                    }
                }
                Ok(Some(frame)) => {
                    if let Err(error) = self.take(frame) {
                        self.complain(error.to_string().as_bytes());
                        return false;
                    }
                }
                Ok(None) => return true,
                Err(error) => {
                    self.complain(error.to_string().as_bytes());
                    return false;
                }
            }
        }
    }

    fn take(&self, frame: Frame) -> Result<(), FrameError> {
        if !frame.is_of_connections() {
            return lock(&self.streams).take(frame);
        }
        self.outside.get().ok_or(FrameError::NO_STREAM)?.take(frame)
    }

    fn complain(&self, text: &[u8]) {
        keep_some(&mut lock(&self.complaint), text, COMPLAINT_BYTES);
    }
}

//! The way to the launcher of one command: frames over the streams of an exec of the
//! container engine. What comes from there was sent by a process that a command could
//! have overwhelmed: it is bounded, and believed in nothing but what it says of that
//! command.

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

/// Frames that wait to be sent: those of streams are bounded by their windows.
const FRAMES_MAX: usize = 4096;
/// Frames of connections that wait to be sent: who has more waits.
const PIECES_MAX: usize = 16;
/// Messages that came and were not yet heard.
const MESSAGES_MAX: usize = 16;
/// What is kept of what the launcher says on its standard error.
const COMPLAINT_BYTES: usize = 2048;
/// The same of its answer, where it gives one and ends.
const ANSWER_BYTES: usize = 1 << 20;
/// How long the caller's streams may take what a command wrote that was killed.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);
/// How long what was written may still come when the container has ended: not every
/// engine ends the streams of an exec with it.
const COMES_WITHIN: Duration = Duration::from_secs(2);

/// One command's.
pub(crate) struct FrameLine {
    sender: Arc<Mutex<Option<Sender<Vec<u8>>>>>,
    /// Frames of connections, which wait for room.
    pieces: Sender<Vec<u8>>,
    outside: Arc<OnceLock<Arc<Outside>>>,
    messages: Mutex<Receiver<Vec<u8>>>,
    streams: Arc<Mutex<Streams>>,
    complaint: Arc<Mutex<Vec<u8>>>,
    tasks: [AbortHandle; 2],
    /// What hangs up when an output was taken by the caller's streams to its end.
    outputs: Mutex<Vec<mpsc::Receiver<()>>>,
    /// Whether the command was killed: its output is not waited for without a limit.
    killed: AtomicBool,
    /// Let go at the end of the command.
    kept: Mutex<Option<Box<dyn std::any::Any + Send>>>,
    launcher: Launcher,
    /// Whether the sandbox of the command stands, and its end was not told.
    stands: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a launcher is started as.
pub(crate) struct Exec {
    pub(crate) container: String,
    pub(crate) user: String,
    pub(crate) command: Vec<String>,
}

/// What becomes of a container.
#[derive(Clone)]
pub(crate) struct Fate {
    /// True once it has ended.
    pub(crate) gone: watch::Receiver<bool>,
    /// Whether a command in it ends with its launcher, whatever ended that.
    pub(crate) has_walls: bool,
}

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// Starts a launcher; what the engine calls it, and its streams.
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

/// What a launcher said that ended by itself.
pub(crate) struct Said {
    pub(crate) output: Vec<u8>,
    pub(crate) complaint: String,
}

/// Starts a launcher, says this to it, and hears it to its end, within the time of a call.
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

/// As much as is kept of what a launcher says that is no frame.
fn keep_some(kept: &mut Vec<u8>, text: &[u8], most: usize) {
    let room = most.saturating_sub(kept.len());
    kept.extend_from_slice(&text[..text.len().min(room)]);
}

impl FrameLine {
    /// Starts a launcher whose messages are no longer than so many bytes.
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

    /// Where frames of streams are put; as long as the line is there. A launcher that takes
    /// so little that there is no room for one is broken off, and its command with it.
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

    /// Where frames of connections are put, which wait until they can go.
    pub(crate) fn posting(&self) -> Post {
        let pieces = self.pieces.clone();
        Arc::new(move |frame| {
            let pieces = pieces.clone();
            Box::pin(async move { pieces.send(frame.encode()).await.is_ok() })
        })
    }

    /// What is asked inside for what is outside, it asks here; to be said before anything
    /// is.
    pub(crate) fn lead(&self, outside: Arc<Outside>) {
        // There is one for each line.
        let _ = self.outside.set(outside);
    }

    fn close_outside(&self) {
        if let Some(outside) = self.outside.get() {
            outside.close();
        }
    }

    /// The command's streams, to be begun before anything is said.
    pub(crate) fn streams(&self) -> MutexGuard<'_, Streams> {
        lock(&self.streams)
    }

    /// Lets the end of the command be told after that of this output.
    pub(crate) fn wait_for(&self, output: mpsc::Receiver<()>) {
        lock(&self.outputs).push(output);
    }

    /// Keeps the caller's streams for as long as the command goes on: who is at their
    /// other ends is to see its end.
    pub(crate) fn keep(&self, carried: impl Send + 'static) {
        *lock(&self.kept) = Some(Box::new(carried));
    }

    /// What the launcher complained of.
    pub(crate) fn complaint(&self) -> String {
        String::from_utf8_lossy(&lock(&self.complaint)).trim().to_owned()
    }

    /// Says a message of any kind.
    pub(crate) fn send(&self, message: &impl serde::Serialize) -> io::Result<()> {
        let frame = Frame::Message(serde_json::to_vec(message)?).encode();
        let sender = lock(&self.sender);
        let sender = sender.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        sender.try_send(frame).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// The next message.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let message = lock(&self.messages).blocking_recv();
        Ok(message.map(|message| serde_json::from_slice(&message)).transpose()?)
    }

    /// The end of a command whose launcher told none.
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

    /// Until all that the command wrote has been taken by the caller's streams, or it
    /// was killed and they take nothing.
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

/// When it is too late for anything of a container that ends; never, where nobody looks
/// at it any more.
async fn too_late(mut gone: watch::Receiver<bool>) {
    if gone.wait_for(|gone| *gone).await.is_ok() {
        return tokio::time::sleep(COMES_WITHIN).await;
    }
    std::future::pending().await
}

/// Sends what there is, connections after all else.
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

/// What comes from a launcher.
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

    /// False where nothing more can be understood, or nobody hears it.
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

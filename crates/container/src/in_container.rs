//! Processes in a container: a launcher as the first process, which reaps, and one for each
//! command. The latter gets its task over its standard streams and carries it out with the
//! available isolation.
//!
//! Commands run as the same user. So each launcher is closed to them: commands cannot trace it, and
//! none of its descriptors reaches them.

pub(crate) mod kernel;
mod launcher_messages;
mod mounts;
mod network;
mod proxy;
mod terminal;
mod tunnel;
mod usage;

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::fs::{Access, Mode, access};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, umask};
use serde::de::DeserializeOwned;
use stockade_backend_api::remote::{AttemptMessage, AttemptOrder, EngineMessage, serve_attempt};
use stockade_backend_api::{Attempt, AttemptEvent, AttemptEventSender, Backend, StdioMode};
use stockade_native::{NativeBackend, NativeOptions, prepare_enclosed_attempt};
use stockade_sys::reap::reap_any;
use stockade_sys::signals::SignalDescriptor;

pub(crate) use self::launcher_messages::{ContainerFeatures, LauncherOrder, ProbeOrder, ReachableObject};
pub(crate) use self::mounts::ContainerMounts;
#[cfg(test)]
pub(crate) use self::mounts::MountedObject;
pub(crate) use self::network::namespace_number as network_namespace;
use self::proxy::{CommandProxy, ProxiedAttempt};
use self::terminal::{LauncherTerminal, TerminalInput};
use self::tunnel::HostTunnel;
use self::usage::LimitCounters;
use crate::frames::{ChannelFrame, FrameDecoder, MAX_MESSAGE_BYTES, StdioStream, TerminalSize};
use crate::stream_copy::{StdioStreamSet, StreamEndCondition, end_signal_pipe};

/// Bytes of one read from the engine.
const READ_BYTES: usize = 64 << 10;
/// First descriptor after the standard streams.
const FIRST_FREE_DESCRIPTOR: i32 = 3;

/// Runs the launcher's subcommand of this name.
///
/// # Errors
/// As for that subcommand; [`io::Error`] if the name is unknown.
pub fn run_subcommand(part: &str) -> io::Result<()> {
    match part {
        "hold" => reap_orphans(),
        "serve" => serve_command(),
        "probe" => report_features(),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the launcher has no subcommand `{part}`"))),
    }
}

/// Runs as the first process of a container: reaps orphaned processes, until it is killed.
///
/// # Errors
/// Never in practice.
pub fn reap_orphans() -> io::Result<()> {
    close_to_others()?;
    let ends = SignalDescriptor::block_and_read(&[Signal::CHILD.as_raw()])?;
    loop {
        // A signal may stand for several.
        while let Ok(Some(_)) = reap_any() {}
        ends.next()?;
    }
}

/// Runs as the launcher of one command, until the engine closes the channel.
///
/// # Errors
/// [`io::Error`] if the engine sends invalid data, or is gone.
pub fn serve_command() -> io::Result<()> {
    let to = fcntl_dupfd_cloexec(rustix::stdio::stdout(), FIRST_FREE_DESCRIPTOR)?;
    let engine_channel = Arc::new(EngineChannel { to: Mutex::new(to) });
    let (order, frames) = receive_order()?;
    run_command(order, frames, &engine_channel)
}

/// Reads the order, which is the first message on standard input.
fn receive_order<T: DeserializeOwned>() -> io::Result<(T, EngineFrameReader)> {
    let from = fcntl_dupfd_cloexec(rustix::stdio::stdin(), FIRST_FREE_DESCRIPTOR)?;
    let mut frames =
        EngineFrameReader { from, decoder: FrameDecoder::new(MAX_MESSAGE_BYTES), buffer: vec![0; READ_BYTES] };
    let Some(ChannelFrame::Message(order)) = frames.next()? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    Ok((serde_json::from_slice(&order)?, frames))
}

/// Returns whether the kernel, which may be the runtime's own, has the features for level
/// `restricted`.
fn has_native_isolation() -> bool {
    stockade_sys::landlock::query_abi_version().is_ok_and(|abi| abi > 0)
}

/// Returns whether a filter of system calls applies to this process (proc_pid_status(5)).
fn is_filtered() -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2")))
}

/// Returns the container's own temporary directories, which contain nothing of the host.
fn own_directories() -> Vec<PathBuf> {
    ["/tmp", "/dev/shm"].map(PathBuf::from).into_iter().filter(|path| path.is_dir()).collect()
}

/// Reports the available features, a network, the mounts, and the reachable paths among those to
/// hide.
///
/// # Errors
/// [`io::Error`] if the engine is gone, or sends invalid data.
pub fn report_features() -> io::Result<()> {
    let (order, _) = receive_order::<ProbeOrder>()?;
    let reached = order.hidden.iter().filter_map(|path| find_reachable(path.as_path())).collect();
    let found = ContainerFeatures {
        native_isolation: has_native_isolation(),
        boot: kernel::boot_id(),
        filtered: is_filtered()?,
        // A runtime's own kernel may have no namespaces, and shares none then.
        namespace: network::namespace_number().ok(),
        network: network::find_routed_device()?,
        mounts: mounts::read_mounts(&order.paths)?,
        reached,
    };
    io::stdout().write_all(&serde_json::to_vec(&found)?)
}

/// Returns the file at this path, through symbolic links, if a command can read it.
fn find_reachable(path: &Path) -> Option<ReachableObject> {
    let path = path.canonicalize().ok()?;
    let is_directory = path.is_dir();
    let can = |how| access(&path, how).is_ok();
    (can(Access::READ_OK) || is_directory && can(Access::EXEC_OK))
        .then(|| ReachableObject { path: path.into(), is_directory })
}

fn close_to_others() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Channel to the engine.
struct EngineChannel {
    to: Mutex<OwnedFd>,
}

impl EngineChannel {
    fn send_frame(&self, frame: &ChannelFrame) -> io::Result<()> {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let mut to = std::fs::File::from(to.try_clone()?);
        to.write_all(&frame.encode_frame())
    }

    fn send_event(&self, attempt_message: &AttemptMessage) -> io::Result<()> {
        self.send_frame(&ChannelFrame::Message(serde_json::to_vec(attempt_message)?))
    }
}

/// Frames from the engine.
struct EngineFrameReader {
    from: OwnedFd,
    decoder: FrameDecoder,
    buffer: Vec<u8>,
}

impl EngineFrameReader {
    fn next(&mut self) -> io::Result<Option<ChannelFrame>> {
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return Ok(Some(frame));
            }
            match rustix::io::read(&self.from, &mut self.buffer) {
                Ok(0) => return Ok(None),
                Ok(length) => self.decoder.push(&self.buffer[..length]),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn run_command(order: LauncherOrder, frames: EngineFrameReader, engine_channel: &Arc<EngineChannel>) -> io::Result<()> {
    let LauncherOrder { order: AttemptOrder { plan, io, hold, umask: mask }, size, around, served } = order;
    umask(Mode::from_raw_mode(mask));
    let has_isolation = has_native_isolation();
    let mut ends = LauncherStdio::put_in_place(io, size, has_isolation)?;
    let (on_end, ended) = channel();
    let teller = Arc::clone(engine_channel);
    let events = AttemptEventSender::new(move |event| match event {
        // After all output of the command, which may take time.
        AttemptEvent::Ended(_) => drop(on_end.send(event)),
        event => drop(teller.send_event(&AttemptMessage::Event(Box::new(event)))),
    });
    let counted = LimitCounters::read_counters(around);
    let leads = Arc::new(HostTunnel::new(engine_channel));
    let mut proxy = None;
    let prepared = if has_isolation {
        let (connector, resolver) = (Arc::clone(&leads), Arc::clone(&leads));
        let options = NativeOptions {
            within: own_directories(),
            connector: Some(connector),
            served,
            resolver: Some(resolver),
            ..NativeOptions::default()
        };
        NativeBackend::with_options(None, options).prepare_attempt(&plan, &io, hold, events)
    } else {
        let mut plan = plan;
        let started = Arc::new(CommandProxy::start_proxy(&mut plan, hold, &events, &leads)?);
        proxy = Some(Arc::clone(&started));
        let attempt = prepare_enclosed_attempt(plan, io, events);
        attempt.map(|attempt| Box::new(ProxiedAttempt { attempt, proxy: started }) as Box<dyn Attempt>)
    };
    // Not earlier. The command is a copy of this process until its program begins, and the launcher
    // must read its memory. Landlock keeps other commands out meanwhile. Without Landlock, no code
    // of this command runs before it is released.
    close_to_others()?;
    // The command has its own copies; with these copies its streams would never end. Without
    // isolation, the command is started at the release and gets these.
    if has_isolation {
        detach_stdio()?;
    }
    let attempt = match prepared {
        Ok(attempt) => attempt,
        Err(error) => return engine_channel.send_event(&AttemptMessage::Prepared(Err(error))),
    };
    let mut streams = StdioStreamSet::default();
    let (waited, over) = end_signal_pipe()?;
    let over = EndSignal(Arc::new(Mutex::new(Some(over))));
    let outputs = ends.start_copying(&mut streams, &waited, engine_channel)?;
    thread::spawn({
        let (engine_channel, over, leads) = (Arc::clone(engine_channel), over.clone(), Arc::clone(&leads));
        move || report_end(&ended, &over, outputs, (proxy.as_deref(), &leads, &counted, &engine_channel))
    });
    let terminal = ends.terminal;
    let mut enforced = attempt.enforcement_report().clone();
    let of_terminal = terminal.as_ref().and_then(LauncherTerminal::layer_report);
    let unlike_linux = [("terminal", of_terminal), ("system-calls", kernel::kernel_report())];
    let unlike_linux = unlike_linux.into_iter().filter_map(|(name, layer)| Some((name.to_owned(), layer?)));
    enforced.layers.extend(unlike_linux);
    let (message_sender, hear) = channel();
    let listener = EngineFrameHandler {
        streams,
        terminal,
        leads,
        over,
        message_sender,
        engine_channel: Arc::clone(engine_channel),
    };
    thread::spawn(move || listener.handle_frames(frames));
    engine_channel.send_event(&AttemptMessage::Prepared(Ok(enforced)))?;
    // Disconnected when the engine is gone; the whole command then ends.
    serve_attempt(attempt, || Ok(hear.recv().ok()), |attempt_message| engine_channel.send_event(attempt_message))
}

/// Reports the end of the command after all its output was sent.
fn report_end(
    ended: &Receiver<AttemptEvent>,
    over: &EndSignal,
    outputs: Vec<Receiver<()>>,
    (proxy, leads, counted, engine_channel): (Option<&CommandProxy>, &HostTunnel, &LimitCounters, &EngineChannel),
) {
    if let Ok(event) = ended.recv() {
        over.signal_end();
        for output in outputs {
            // Nothing is ever sent: only the disconnection is awaited.
            let _ = output.recv();
        }
        if let Some(proxy) = proxy {
            proxy.stop_proxy();
        }
        leads.wait_until_drained();
        if let AttemptEvent::Ended(end) = &event {
            counted
                .events_since(end)
                .into_iter()
                .for_each(|event| drop(engine_channel.send_event(&AttemptMessage::Event(Box::new(event)))));
        }
        let _ = engine_channel.send_event(&AttemptMessage::Event(Box::new(event)));
    }
}

/// Signals the end to all threads that copy a stream.
#[derive(Clone)]
struct EndSignal(Arc<Mutex<Option<OwnedFd>>>);

impl EndSignal {
    fn signal_end(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Carries out the frames of the engine.
struct EngineFrameHandler {
    streams: StdioStreamSet,
    terminal: Option<LauncherTerminal>,
    leads: Arc<HostTunnel>,
    over: EndSignal,
    message_sender: Sender<EngineMessage>,
    engine_channel: Arc<EngineChannel>,
}

impl EngineFrameHandler {
    /// Runs until the channel is closed.
    fn handle_frames(mut self, mut frames: EngineFrameReader) {
        while let Ok(Some(frame)) = frames.next() {
            if !self.handle_frame(frame) {
                break;
            }
        }
        self.streams.close_all();
        self.leads.reset_all();
    }

    /// Returns false if the following frames cannot be decoded.
    fn handle_frame(&mut self, frame: ChannelFrame) -> bool {
        match frame {
            ChannelFrame::Message(message) => {
                serde_json::from_slice(&message).is_ok_and(|one| self.message_sender.send(one).is_ok())
            }
            ChannelFrame::Resized(size) => {
                let signal = self.terminal.as_ref().and_then(|terminal| terminal.set_size(size));
                self.send_signal(signal);
                true
            }
            ChannelFrame::Over => false,
            frame if frame.is_of_connections() => self.leads.handle_frame(frame).is_ok(),
            ChannelFrame::Data(StdioStream::Input, keys) if self.terminal.is_some() && !keys.is_empty() => {
                self.handle_keys(&keys).is_ok()
            }
            frame => {
                let hangs_up = frame == ChannelFrame::Data(StdioStream::Input, Vec::new());
                let is_accepted = self.streams.handle_frame(frame).is_ok();
                if let Some(terminal) = self.terminal.take_if(|_| hangs_up) {
                    self.send_signal(terminal.hang_up());
                    // This is the launcher's last copy, so the kernel signals the process at the
                    // other end.
                    self.over.signal_end();
                }
                is_accepted
            }
        }
    }

    /// Handles these keys as the terminal would.
    fn handle_keys(&self, keys: &[u8]) -> io::Result<()> {
        for keys in self.terminal.iter().flat_map(|terminal| terminal.interpret_keys(keys)) {
            match keys {
                TerminalInput::Typed(keys) => {
                    self.streams.handle_frame(ChannelFrame::Data(StdioStream::Input, keys.to_vec()))?
                }
                TerminalInput::Signal(signal) => {
                    self.send_signal(Some(signal));
                    // The key is not read by a process, so its byte is acknowledged here.
                    self.engine_channel.send_frame(&ChannelFrame::Taken(StdioStream::Input, 1))?;
                }
            }
        }
        Ok(())
    }

    /// Sends a signal to the command; the backend knows whether the command still runs.
    fn send_signal(&self, signal: Option<Signal>) {
        if let Some(signal) = signal {
            let _ = self.message_sender.send(EngineMessage::Signal(signal.as_raw()));
        }
    }
}

/// The launcher's ends of the command's streams.
struct LauncherStdio {
    input: Option<OwnedFd>,
    outputs: Vec<(StdioStream, OwnedFd)>,
    terminal: Option<LauncherTerminal>,
}

impl LauncherStdio {
    /// Creates them, and replaces this process's streams by the command's ends.
    fn put_in_place(io: StdioMode, size: Option<TerminalSize>, is_linux: bool) -> io::Result<Self> {
        if io == StdioMode::Terminal {
            let (terminal, inside) = LauncherTerminal::open_terminal(size, is_linux)?;
            rustix::stdio::dup2_stdin(&inside)?;
            rustix::stdio::dup2_stdout(&inside)?;
            rustix::stdio::dup2_stderr(&inside)?;
            let outputs = vec![(StdioStream::Output, terminal.duplicate_descriptor()?)];
            return Ok(Self { input: Some(terminal.duplicate_descriptor()?), outputs, terminal: Some(terminal) });
        }
        let (inside, input) = io::pipe()?;
        rustix::stdio::dup2_stdin(&inside)?;
        let mut outputs = Vec::new();
        if io == StdioMode::Inherit {
            let ((out, out_inside), (err, err_inside)) = (io::pipe()?, io::pipe()?);
            rustix::stdio::dup2_stdout(&out_inside)?;
            rustix::stdio::dup2_stderr(&err_inside)?;
            outputs = vec![(StdioStream::Output, out.into()), (StdioStream::Errors, err.into())];
        }
        Ok(Self { input: Some(input.into()), outputs, terminal: None })
    }

    /// Starts copying; the returned receivers are disconnected at the end of each output.
    fn start_copying(
        &mut self,
        streams: &mut StdioStreamSet,
        over: &Arc<OwnedFd>,
        engine_channel: &Arc<EngineChannel>,
    ) -> io::Result<Vec<Receiver<()>>> {
        let teller = Arc::clone(engine_channel);
        // An engine that does not read is gone; the listener detects this.
        let send: crate::stream_copy::FrameSender = Arc::new(move |frame| drop(teller.send_frame(&frame)));
        if let Some(input) = self.input.take() {
            streams.write_to(StdioStream::Input, input, Arc::clone(over), Arc::clone(&send))?;
        }
        let outputs = std::mem::take(&mut self.outputs).into_iter();
        outputs
            .map(|(stream, fd)| {
                streams.read_from(stream, fd, (Arc::clone(over), StreamEndCondition::Drained), Arc::clone(&send))
            })
            .collect()
    }
}

/// Replaces this process's standard streams by `/dev/null`.
fn detach_stdio() -> io::Result<()> {
    let nothing = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(nothing.as_fd())?;
    rustix::stdio::dup2_stdout(nothing.as_fd())?;
    rustix::stdio::dup2_stderr(nothing.as_fd())?;
    Ok(())
}

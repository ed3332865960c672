//! Processes in a container: a launcher as the first process, which reaps, and one for each
//! command. The latter gets its task over its standard streams and carries it out with the
//! available isolation.
//!
//! Commands run as the same user. So each launcher is closed to them: commands cannot trace it, and
//! none of its descriptors reaches them.

mod host_connection;
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
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::fs::{Access, Mode, access};
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, umask};
use stockade_backend_api::remote::{AttemptMessage, AttemptOrder, EngineMessage, serve_attempt};
use stockade_backend_api::{AttemptEvent, AttemptEventSender, Backend, StdioMode};
use stockade_native::{NativeBackend, NativeOptions, prepare_enclosed_attempt};
use stockade_sys::reap::reap_any;
use stockade_sys::signals::SignalDescriptor;

use self::host_connection::{EventSender, HostConnection, receive_order};
pub(crate) use self::launcher_messages::{
    ContainerFeatures, ERRORS_PATH, INPUT_PATH, LauncherMessage, LauncherOrder, MESSAGES_PATH, OUTPUT_PATH, ProbeOrder,
    ReachableObject, TerminalSize,
};
pub(crate) use self::mounts::ContainerMounts;
#[cfg(test)]
pub(crate) use self::mounts::MountedObject;
pub(crate) use self::network::namespace_number as network_namespace;
use self::proxy::CommandProxy;
use self::terminal::{LauncherTerminal, TerminalInput};
use self::tunnel::HostTunnel;
use self::usage::LimitCounters;
use crate::lock_mutex;
use crate::stream_copy::{StreamEndCondition, end_signal_pipe, read_from, write_to};

/// Time-out for the host to read the last message and close the channel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

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
    let order = receive_order()?;
    run_command(order, HostConnection::over_stdio()?)
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
    let order: ProbeOrder = receive_order()?;
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

fn run_command(order: LauncherOrder, host: HostConnection) -> io::Result<()> {
    let LauncherOrder { order: AttemptOrder { plan, io, hold, umask: mask }, size, around, served } = order;
    umask(Mode::from_raw_mode(mask));
    let has_isolation = has_native_isolation();
    let mut ends = LauncherStdio::put_in_place(io, size, has_isolation)?;
    let of_terminal = ends.terminal.as_ref().and_then(LauncherTerminal::layer_report);
    let (waited, over) = end_signal_pipe()?;
    let over: EndSignal = Arc::new(Mutex::new(Some(over)));
    let (host_events, hear, terminal) = open_messages(&host, ends.terminal.take(), over.clone())?;
    let (on_end, ended) = channel();
    let teller = host_events.clone();
    let events = AttemptEventSender::new(move |event| match event {
        // After all output of the command, which may take time.
        AttemptEvent::Ended(_) => drop(on_end.send(event)),
        event => drop(teller.send_event(&AttemptMessage::Event(Box::new(event)))),
    });
    let counted = LimitCounters::read_counters(around);
    let leads = Arc::new(HostTunnel::new(host.clone()));
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
        attempt.map(|attempt| started.observe_attempt(attempt))
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
        Err(error) => {
            host_events.send_event(&AttemptMessage::Prepared(Err(error)))?;
            // Until the host has read it and sends no more itself.
            while hear.recv_timeout(CLOSE_TIMEOUT).is_ok() {}
            return Ok(());
        }
    };
    let outputs = ends.start_copying(&waited, &host, terminal)?;
    thread::spawn({
        let events = host_events.clone();
        move || report_end(&ended, &over, outputs, (proxy.as_deref(), &leads, &counted, &events))
    });
    let mut enforced = attempt.enforcement_report().clone();
    let unlike_linux = [("terminal", of_terminal), ("system-calls", kernel::kernel_report())];
    let unlike_linux = unlike_linux.into_iter().filter_map(|(name, layer)| Some((name.to_owned(), layer?)));
    enforced.layers.extend(unlike_linux);
    host_events.send_event(&AttemptMessage::Prepared(Ok(enforced)))?;
    // Disconnected when the host sends no more; the whole command then ends.
    serve_attempt(attempt, || Ok(hear.recv().ok()), |attempt_message| host_events.send_event(attempt_message))
}

/// Opens the stream of messages, for a command with this terminal. The receiver is disconnected when
/// the host sends no more.
fn open_messages(
    host: &HostConnection,
    terminal: Option<LauncherTerminal>,
    over: EndSignal,
) -> io::Result<(EventSender, Receiver<EngineMessage>, Arc<TerminalControl>)> {
    let (message_sender, hear) = channel();
    let message_sender = Arc::new(message_sender);
    let signals = Arc::downgrade(&message_sender);
    let control = Arc::new(TerminalControl { terminal: Mutex::new(terminal), message_sender: signals, over });
    let resized = Arc::clone(&control);
    let host_events = host.open_messages(move |message| match message {
        LauncherMessage::Engine(message) => message_sender.send(message).is_ok(),
        LauncherMessage::Resized(size) => {
            resized.set_size(size);
            true
        }
    })?;
    Ok((host_events, hear, control))
}

/// Reports the end of the command after all its output was sent.
fn report_end(
    ended: &Receiver<AttemptEvent>,
    over: &EndSignal,
    outputs: Vec<Receiver<()>>,
    (proxy, leads, counted, events): (Option<&CommandProxy>, &HostTunnel, &LimitCounters, &EventSender),
) {
    if let Ok(event) = ended.recv() {
        lock_mutex(over).take();
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
                .for_each(|event| drop(events.send_event(&AttemptMessage::Event(Box::new(event)))));
        }
        let _ = events.send_event(&AttemptMessage::Event(Box::new(event)));
    }
}

/// The end for all threads that copy a stream, signalled when it is taken.
type EndSignal = Arc<Mutex<Option<OwnedFd>>>;

/// Terminal of the command, if it has one, for its sizes, keys and end.
struct TerminalControl {
    terminal: Mutex<Option<LauncherTerminal>>,
    message_sender: Weak<Sender<EngineMessage>>,
    over: EndSignal,
}

impl TerminalControl {
    fn set_size(&self, size: TerminalSize) {
        let signal = lock_mutex(&self.terminal).as_ref().and_then(|terminal| terminal.set_size(size));
        self.send_signal(signal);
    }

    /// Handles input as the terminal would, and returns what the command reads of it.
    fn inspect_input(&self, piece: Option<Bytes>) -> Bytes {
        let mut terminal = lock_mutex(&self.terminal);
        let Some(piece) = piece else {
            if let Some(terminal) = terminal.take() {
                self.send_signal(terminal.hang_up());
                // This is the launcher's last copy, so the kernel signals the process at the
                // other end.
                lock_mutex(&self.over).take();
            }
            return Bytes::new();
        };
        let Some(terminal) = &*terminal else { return piece };
        let mut typed = BytesMut::new();
        for keys in terminal.interpret_keys(&piece) {
            match keys {
                TerminalInput::Typed(keys) => typed.extend_from_slice(keys),
                TerminalInput::Signal(signal) => self.send_signal(Some(signal)),
            }
        }
        typed.freeze()
    }

    /// Sends a signal to the command; the backend knows whether the command still runs.
    fn send_signal(&self, signal: Option<Signal>) {
        if let (Some(signal), Some(message_sender)) = (signal, self.message_sender.upgrade()) {
            let _ = message_sender.send(EngineMessage::Signal(signal.as_raw()));
        }
    }
}

/// The launcher's ends of the command's streams.
struct LauncherStdio {
    input: OwnedFd,
    outputs: Vec<(&'static str, OwnedFd)>,
    terminal: Option<LauncherTerminal>,
}

impl LauncherStdio {
    /// Creates them, and replaces this process's streams by the command's ends.
    fn put_in_place(io: StdioMode, size: Option<TerminalSize>, is_linux: bool) -> io::Result<Self> {
        if io == StdioMode::Terminal {
            let (terminal, inside) = LauncherTerminal::open_terminal(size, is_linux)?;
            replace_stdio(&inside)?;
            let outputs = vec![(OUTPUT_PATH, terminal.duplicate_descriptor()?)];
            return Ok(Self { input: terminal.duplicate_descriptor()?, outputs, terminal: Some(terminal) });
        }
        let (inside, input) = io::pipe()?;
        rustix::stdio::dup2_stdin(&inside)?;
        let mut outputs = Vec::new();
        if io == StdioMode::Inherit {
            let ((out, out_inside), (err, err_inside)) = (io::pipe()?, io::pipe()?);
            rustix::stdio::dup2_stdout(&out_inside)?;
            rustix::stdio::dup2_stderr(&err_inside)?;
            outputs = vec![(OUTPUT_PATH, out.into()), (ERRORS_PATH, err.into())];
        }
        Ok(Self { input: input.into(), outputs, terminal: None })
    }

    /// Starts copying; the returned receivers are disconnected at the end of each output.
    fn start_copying(
        self,
        over: &Arc<OwnedFd>,
        host: &HostConnection,
        terminal: Arc<TerminalControl>,
    ) -> io::Result<Vec<Receiver<()>>> {
        let (pipe, _) = write_to(self.input, Arc::clone(over), &host.runtime)?;
        host.receive_input(pipe, move |piece| terminal.inspect_input(piece));
        let outputs = self.outputs.into_iter().map(|(path, fd)| {
            let (pipe, ended) = read_from(fd, Arc::clone(over), StreamEndCondition::Drained, &host.runtime)?;
            host.send_output(path, pipe);
            Ok(ended)
        });
        outputs.collect()
    }
}

/// Replaces this process's standard streams by `/dev/null`.
fn detach_stdio() -> io::Result<()> {
    replace_stdio(&std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?)
}

fn replace_stdio(by: impl AsFd) -> io::Result<()> {
    rustix::stdio::dup2_stdin(by.as_fd())?;
    rustix::stdio::dup2_stdout(by.as_fd())?;
    Ok(rustix::stdio::dup2_stderr(by.as_fd())?)
}

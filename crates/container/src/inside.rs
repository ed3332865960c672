//! Processes in a container: a launcher as the first process, which reaps, and one for each
//! command. The latter gets its task over its standard streams and carries it out with the
//! available isolation.
//!
//! Commands run as the same user. So each launcher is closed to them: commands cannot trace it, and
//! none of its descriptors reaches them.

pub(crate) mod kernel;
mod lead;
mod mounts;
mod network;
mod order;
mod proxy;
mod spent;
mod terminal;

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::fs::{Access, Mode, access};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, umask};
use stockade_engine::remote::{Order, Said, Told, obey};
use stockade_engine::{Attempt, AttemptEvent, Backend, Events, Io};
use stockade_native::{EnclosedBackend, NativeBackend};
use stockade_sys::reap::reap_any;
use stockade_sys::signals::Signals;

use self::lead::Leads;
pub(crate) use self::mounts::FoundMounts;
#[cfg(test)]
pub(crate) use self::mounts::FoundObject;
pub(crate) use self::network::namespace as network_namespace;
pub(crate) use self::order::{InsideOrder, ProbeOrder, Probed, Reached};
use self::proxy::{Proxied, Proxy};
use self::spent::Counted;
use self::terminal::{Keys, Terminal};
use crate::carry::{Streams, Until, ending};
use crate::frames::{Decoder, Frame, MESSAGE_BYTES, Size, Stream};

/// Bytes of one read from the engine.
const PIECE_BYTES: usize = 64 << 10;
/// First descriptor after the standard streams.
const BEYOND_STREAMS: i32 = 3;

/// Runs the launcher's subcommand of this name.
///
/// # Errors
/// As for that subcommand; [`io::Error`] if the name is unknown.
pub fn play(part: &str) -> io::Result<()> {
    match part {
        "hold" => hold(),
        "serve" => serve(),
        "probe" => probe(),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a launcher has no part `{part}`"))),
    }
}

/// Runs as the first process of a container: reaps orphaned processes, until it is killed.
///
/// # Errors
/// Never in practice.
pub fn hold() -> io::Result<()> {
    close_to_others()?;
    let ends = Signals::take(&[Signal::CHILD.as_raw()])?;
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
pub fn serve() -> io::Result<()> {
    let from = fcntl_dupfd_cloexec(rustix::stdio::stdin(), BEYOND_STREAMS)?;
    let to = fcntl_dupfd_cloexec(rustix::stdio::stdout(), BEYOND_STREAMS)?;
    let way = Arc::new(Way { to: Mutex::new(to) });
    let mut frames = Frames { from, decoder: Decoder::new(MESSAGE_BYTES), buffer: vec![0; PIECE_BYTES] };
    let Some(Frame::Message(order)) = frames.next()? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    let order: InsideOrder = serde_json::from_slice(&order)?;
    run(order, frames, &way)
}

/// Returns whether the kernel, which may be the runtime's own, has the features for level
/// `restricted`.
fn has_native_walls() -> bool {
    stockade_sys::landlock::abi().is_ok_and(|abi| abi > 0)
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
pub fn probe() -> io::Result<()> {
    let from = fcntl_dupfd_cloexec(rustix::stdio::stdin(), BEYOND_STREAMS)?;
    let mut frames = Frames { from, decoder: Decoder::new(MESSAGE_BYTES), buffer: vec![0; PIECE_BYTES] };
    let Some(Frame::Message(order)) = frames.next()? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    let order: ProbeOrder = serde_json::from_slice(&order)?;
    let reached = order.hidden.iter().filter_map(|path| reached(path.as_path())).collect();
    let found = Probed {
        native_walls: has_native_walls(),
        boot: kernel::boot(),
        filtered: is_filtered()?,
        // A runtime's own kernel may have no namespaces, and shares none then.
        namespace: network::namespace().ok(),
        network: network::device()?,
        mounts: mounts::find(&order.paths)?,
        reached,
    };
    io::stdout().write_all(&serde_json::to_vec(&found)?)
}

/// Returns the file at this path, through symbolic links, if a command can read it.
fn reached(path: &Path) -> Option<Reached> {
    let path = path.canonicalize().ok()?;
    let is_directory = path.is_dir();
    let can = |how| access(&path, how).is_ok();
    (can(Access::READ_OK) || is_directory && can(Access::EXEC_OK)).then(|| Reached { path: path.into(), is_directory })
}

fn close_to_others() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Channel to the engine.
struct Way {
    to: Mutex<OwnedFd>,
}

impl Way {
    fn send(&self, frame: &Frame) -> io::Result<()> {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let mut to = std::fs::File::from(to.try_clone()?);
        to.write_all(&frame.encode())
    }

    fn tell(&self, told: &Told) -> io::Result<()> {
        self.send(&Frame::Message(serde_json::to_vec(told)?))
    }
}

/// Frames from the engine.
struct Frames {
    from: OwnedFd,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl Frames {
    fn next(&mut self) -> io::Result<Option<Frame>> {
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

fn run(order: InsideOrder, frames: Frames, way: &Arc<Way>) -> io::Result<()> {
    let InsideOrder { order: Order { plan, io, hold, umask: mask }, size, around, served } = order;
    umask(Mode::from_raw_mode(mask));
    let has_walls = has_native_walls();
    let mut ends = Ends::put_in_place(io, size, has_walls)?;
    let (on_end, ended) = channel();
    let teller = Arc::clone(way);
    let events = Events::new(move |event| match event {
        // After all output of the command, which may take time.
        AttemptEvent::Ended(_) => drop(on_end.send(event)),
        event => drop(teller.tell(&Told::Event(Box::new(event)))),
    });
    let counted = Counted::now(around);
    let leads = Arc::new(Leads::new(way));
    let mut proxy = None;
    let prepared = if has_walls {
        let (lead, resolver) = (Arc::clone(&leads), Arc::clone(&leads));
        let backend = NativeBackend::default().within(own_directories()).led_by(lead, served).resolving(resolver);
        backend.prepare(&plan, &io, hold, events)
    } else {
        let mut plan = plan;
        let started = Arc::new(Proxy::start(&mut plan, hold, &events, &leads)?);
        proxy = Some(Arc::clone(&started));
        let attempt = EnclosedBackend.prepare(&plan, &io, hold, events);
        attempt.map(|attempt| Box::new(Proxied { attempt, proxy: started }) as Box<dyn Attempt>)
    };
    // Not earlier. The command is a copy of this process until its program begins, and the launcher
    // must read its memory. Landlock keeps other commands out meanwhile. Without Landlock, no code
    // of this command runs before it is released.
    close_to_others()?;
    // The command has its own copies; with these copies its streams would never end. Without
    // isolation, the command is started at the release and gets these.
    if has_walls {
        withdraw()?;
    }
    let attempt = match prepared {
        Ok(attempt) => attempt,
        Err(error) => return way.tell(&Told::Prepared(Err(error))),
    };
    let mut streams = Streams::default();
    let (waited, over) = ending()?;
    let over = Over(Arc::new(Mutex::new(Some(over))));
    let outputs = ends.begin(&mut streams, &waited, way)?;
    thread::spawn({
        let (way, over, leads) = (Arc::clone(way), over.clone(), Arc::clone(&leads));
        move || finish(&ended, &over, outputs, (proxy.as_deref(), &leads, &counted, &way))
    });
    let terminal = ends.terminal;
    let mut enforced = attempt.enforced().clone();
    let of_terminal = terminal.as_ref().and_then(Terminal::report);
    let unlike_linux = [("terminal", of_terminal), ("system-calls", kernel::report())];
    let unlike_linux = unlike_linux.into_iter().filter_map(|(name, layer)| Some((name.to_owned(), layer?)));
    enforced.layers.extend(unlike_linux);
    let (said, hear) = channel();
    let listener = Listener { streams, terminal, leads, over, said, way: Arc::clone(way) };
    thread::spawn(move || listener.listen(frames));
    way.tell(&Told::Prepared(Ok(enforced)))?;
    // Disconnected when the engine is gone; the whole command then ends.
    obey(attempt, || Ok(hear.recv().ok()), |told| way.tell(told))
}

/// Reports the end of the command after all its output was sent.
fn finish(
    ended: &Receiver<AttemptEvent>,
    over: &Over,
    outputs: Vec<Receiver<()>>,
    (proxy, leads, counted, way): (Option<&Proxy>, &Leads, &Counted, &Way),
) {
    if let Ok(event) = ended.recv() {
        over.say();
        for output in outputs {
            // Nothing is ever sent: only the disconnection is awaited.
            let _ = output.recv();
        }
        if let Some(proxy) = proxy {
            proxy.close();
        }
        leads.finish();
        if let AttemptEvent::Ended(end) = &event {
            counted.told(end).into_iter().for_each(|event| drop(way.tell(&Told::Event(Box::new(event)))));
        }
        let _ = way.tell(&Told::Event(Box::new(event)));
    }
}

/// Signals the end to all threads that copy a stream.
#[derive(Clone)]
struct Over(Arc<Mutex<Option<OwnedFd>>>);

impl Over {
    fn say(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Carries out the frames of the engine.
struct Listener {
    streams: Streams,
    terminal: Option<Terminal>,
    leads: Arc<Leads>,
    over: Over,
    said: Sender<Said>,
    way: Arc<Way>,
}

impl Listener {
    /// Runs until the channel is closed.
    fn listen(mut self, mut frames: Frames) {
        while let Ok(Some(frame)) = frames.next() {
            if !self.take(frame) {
                break;
            }
        }
        self.streams.close();
        self.leads.close();
    }

    /// Returns false if the following frames cannot be decoded.
    fn take(&mut self, frame: Frame) -> bool {
        match frame {
            Frame::Message(message) => serde_json::from_slice(&message).is_ok_and(|one| self.said.send(one).is_ok()),
            Frame::Resized(size) => {
                let signal = self.terminal.as_ref().and_then(|terminal| terminal.resize(size));
                self.send(signal);
                true
            }
            Frame::Over => false,
            frame if frame.is_of_connections() => self.leads.take(frame).is_ok(),
            Frame::Data(Stream::Input, keys) if self.terminal.is_some() && !keys.is_empty() => {
                self.press(&keys).is_ok()
            }
            frame => {
                let hangs_up = frame == Frame::Data(Stream::Input, Vec::new());
                let taken = self.streams.take(frame).is_ok();
                if let Some(terminal) = self.terminal.take_if(|_| hangs_up) {
                    self.send(terminal.hang_up());
                    // This is the launcher's last copy, so the kernel signals the process at the
                    // other end.
                    self.over.say();
                }
                taken
            }
        }
    }

    /// Handles these keys as the terminal would.
    fn press(&self, keys: &[u8]) -> io::Result<()> {
        for keys in self.terminal.iter().flat_map(|terminal| terminal.keys(keys)) {
            match keys {
                Keys::Typed(keys) => self.streams.take(Frame::Data(Stream::Input, keys.to_vec()))?,
                Keys::Signal(signal) => {
                    self.send(Some(signal));
                    // The key is not read by a process, so its byte is acknowledged here.
                    self.way.send(&Frame::Taken(Stream::Input, 1))?;
                }
            }
        }
        Ok(())
    }

    /// Sends a signal to the command; the backend knows whether the command still runs.
    fn send(&self, signal: Option<Signal>) {
        if let Some(signal) = signal {
            let _ = self.said.send(Said::Signal(signal.as_raw()));
        }
    }
}

/// The launcher's ends of the command's streams.
struct Ends {
    input: Option<OwnedFd>,
    outputs: Vec<(Stream, OwnedFd)>,
    terminal: Option<Terminal>,
}

impl Ends {
    /// Creates them, and replaces this process's streams by the command's ends.
    fn put_in_place(io: Io, size: Option<Size>, is_linux: bool) -> io::Result<Self> {
        if io == Io::Terminal {
            let (terminal, inside) = Terminal::make(size, is_linux)?;
            rustix::stdio::dup2_stdin(&inside)?;
            rustix::stdio::dup2_stdout(&inside)?;
            rustix::stdio::dup2_stderr(&inside)?;
            let outputs = vec![(Stream::Output, terminal.copy()?)];
            return Ok(Self { input: Some(terminal.copy()?), outputs, terminal: Some(terminal) });
        }
        let (inside, input) = io::pipe()?;
        rustix::stdio::dup2_stdin(&inside)?;
        let mut outputs = Vec::new();
        if io == Io::Inherit {
            let ((out, out_inside), (err, err_inside)) = (io::pipe()?, io::pipe()?);
            rustix::stdio::dup2_stdout(&out_inside)?;
            rustix::stdio::dup2_stderr(&err_inside)?;
            outputs = vec![(Stream::Output, out.into()), (Stream::Errors, err.into())];
        }
        Ok(Self { input: Some(input.into()), outputs, terminal: None })
    }

    /// Starts copying; the returned receivers are disconnected at the end of each output.
    fn begin(&mut self, streams: &mut Streams, over: &Arc<OwnedFd>, way: &Arc<Way>) -> io::Result<Vec<Receiver<()>>> {
        let teller = Arc::clone(way);
        // An engine that does not read is gone; the listener detects this.
        let send: crate::carry::Send = Arc::new(move |frame| drop(teller.send(&frame)));
        if let Some(input) = self.input.take() {
            streams.write(Stream::Input, input, Arc::clone(over), Arc::clone(&send))?;
        }
        let outputs = std::mem::take(&mut self.outputs).into_iter();
        outputs
            .map(|(stream, fd)| streams.read(stream, fd, (Arc::clone(over), Until::Drained), Arc::clone(&send)))
            .collect()
    }
}

/// Replaces this process's standard streams by `/dev/null`.
fn withdraw() -> io::Result<()> {
    let nothing = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(nothing.as_fd())?;
    rustix::stdio::dup2_stdout(nothing.as_fd())?;
    rustix::stdio::dup2_stderr(nothing.as_fd())?;
    Ok(())
}

//! A sandbox that stands: held before its command's first instruction, then
//! running, then ended.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getegid, geteuid, pidfd_send_signal};
use stockade_model::{EnforcementReport, Level, Usage};
use stockade_sys::clone::{Child, flags, fork_with};
use stockade_sys::passing::MAX_DESCRIPTORS;
use stockade_sys::ready::readable_before;
use stockade_sys::reap::{Ended, Used};
use stockade_sys::{Errno, fork_signals, passing};

use super::blueprint::{Blueprint, PrivateTree, Whose};
use super::child::{self, Inherited, STAGES};
use super::error::LaunchError;
use super::layout::MergedDirectory;
use super::leaving::{self, CLEANS_WITHIN};
use super::merge::allow_in_layer;
use super::message::{Message, Parts};
use super::network::{NetworkEnds, Sockets};
use super::restricted::PrivateDirectory;
use super::times;
use super::walls::Walls;

/// How long the building of a sandbox may take.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The walls of level full that the init is made with. It makes the others
/// itself, so that its caller need not wait for them.
pub(super) const NAMESPACES: u64 = flags::NEW_USER | flags::NEW_PID;

/// The command's descriptors 0, 1 and 2.
#[derive(Clone, Copy, Debug)]
pub struct Stdio<'fd> {
    /// Standard input.
    pub stdin: BorrowedFd<'fd>,
    /// Standard output.
    pub stdout: BorrowedFd<'fd>,
    /// Standard error.
    pub stderr: BorrowedFd<'fd>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// How the command ended.
    pub status: Ended,
    /// What all its processes used.
    pub usage: Usage,
    /// Why no program could be executed, where none could: then nothing ran,
    /// and `status` means nothing.
    pub exec_errno: Option<Errno>,
}

/// Tells which hidden path was opened. Watch number `n` (from 1) of the inotify
/// instance stands for `paths[n - 1]`; an event's name is a child of it.
#[derive(Debug)]
pub struct HiddenReads {
    /// The inotify instance (non-blocking).
    pub inotify: OwnedFd,
    /// The hidden paths.
    pub paths: Vec<PathBuf>,
}

/// A sandbox whose command stands before its exec, or runs. Dropping it ends
/// every process of it and waits for that.
#[derive(Debug)]
pub struct Launched {
    /// Absent once it was waited for, or left to go.
    init: Option<OwnedFd>,
    init_pid: u32,
    control: OwnedFd,
    gate: OwnedFd,
    listener: Option<OwnedFd>,
    temp: Option<OwnedFd>,
    hidden_reads: Option<HiddenReads>,
    network: Option<NetworkEnds>,
    walls: Option<Walls>,
    report: EnforcementReport,
    private_trees: Vec<PrivateTree>,
    missing: Vec<PathBuf>,
    unmerged: u32,
    umask: u32,
    wait_killable: bool,
    released: Option<Instant>,
    ended: Option<ExitReport>,
    stopped: Option<i32>,
    /// What the processes wrote that the init has reaped, where it counts that.
    written: Option<u64>,
    /// Why no program could be executed, once that is known.
    exec_errno: Option<Errno>,
    // Removes what is left of it, after the processes are gone.
    _private_directory: Option<PrivateDirectory>,
}

/// A sandbox that is being built, by its own init: meanwhile the caller can do
/// something else. Dropping it ends it.
#[derive(Debug)]
pub struct Launching {
    launched: Launched,
    blueprint: Held,
    knows_groups: bool,
}

/// A blueprint, for this process alone or published to an early init.
#[derive(Debug)]
enum Held {
    Own(Box<Blueprint>),
    Published(&'static Blueprint),
}

impl Deref for Held {
    type Target = Blueprint;

    fn deref(&self) -> &Blueprint {
        match self {
            Self::Own(blueprint) => blueprint,
            Self::Published(blueprint) => blueprint,
        }
    }
}

impl Launching {
    /// Trees that only the run sees, as it sees them.
    pub fn private_trees(&self) -> &[PrivateTree] {
        self.blueprint.private_trees()
    }

    /// Those in which Landlock lets the command make what it likes.
    pub(crate) fn floors(&self) -> impl Iterator<Item = PathBuf> {
        self.private_trees().iter().filter(|tree| tree.floor_allows).map(|tree| tree.path.clone())
    }

    /// Writable paths of the plan that did not exist and so are not attached.
    pub fn missing(&self) -> &[PathBuf] {
        self.blueprint.missing()
    }

    /// Process id of the init, as the host sees it.
    pub fn init_pid(&self) -> u32 {
        self.launched.init_pid
    }

    /// Hands over layers that another process holds, those of `merged`. The init waits for them
    /// where an outfit borrows any.
    ///
    /// # Errors
    /// [`LaunchError`], where they do not get there.
    pub(crate) fn lend(&self, layers: &[OwnedFd], merged: &[MergedDirectory]) -> Result<(), LaunchError> {
        // Here, while the init has much to do.
        if let Some(rules) = &self.blueprint.ruleset {
            for (layer, merged) in layers.iter().zip(merged) {
                let names = merged.directories.iter();
                allow_in_layer(layer.as_fd(), merged.is_whole(), names, |object, rights| rules.allow(object, rights))
                    .map_err(LaunchError::call("let the command change the layers"))?;
            }
        }
        let mut rest = layers.chunks(MAX_DESCRIPTORS).peekable();
        loop {
            let some = rest.next().unwrap_or_default();
            let is_last = rest.peek().is_none();
            let trees: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            match (Message::Layers { is_last }).send(self.launched.control.as_fd(), &trees) {
                // Its last word, why it is gone, is read by who waits for it.
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
                Err(errno) => return Err(LaunchError::call("hand over the layers")(errno)),
                Ok(()) if is_last => return Ok(()),
                Ok(()) => {}
            }
        }
    }

    /// Lets the command enter control groups: `entrances` are their files
    /// `cgroup.procs` or `tasks`, open for writing. Once at most.
    ///
    /// # Errors
    /// [`LaunchError`], where there are more than a message carries.
    pub fn enter(&mut self, entrances: &[OwnedFd]) -> Result<(), LaunchError> {
        self.knows_groups = true;
        let entrances: Vec<BorrowedFd<'_>> = entrances.iter().map(OwnedFd::as_fd).collect();
        match Message::Groups.send(self.launched.gate.as_fd(), &entrances) {
            // Its last word, why it is gone, is read by who waits for it.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(LaunchError::call("hand over the control groups")(errno)),
        }
    }

    /// Waits until the command stands before its first instruction. On an error
    /// nothing ran and nothing is left behind.
    ///
    /// # Errors
    /// [`LaunchError`] names the step and what the kernel said.
    pub fn finish(mut self) -> Result<Launched, LaunchError> {
        if !self.knows_groups {
            self.enter(&[])?;
        }
        self.stand()
    }

    /// As [`finish`](Self::finish), where there is no command to come.
    pub(super) fn stand(mut self) -> Result<Launched, LaunchError> {
        self.launched.await_ready(&self.blueprint)?;
        times::tell_building(&self.blueprint);
        Ok(self.launched)
    }
}

/// Builds the sandbox and stops before the command's first instruction. On an
/// error nothing ran and nothing is left behind.
///
/// # Errors
/// [`LaunchError`] names the step and what the kernel said.
pub fn launch(blueprint: Blueprint, stdio: Stdio<'_>) -> Result<Launched, LaunchError> {
    begin(blueprint, stdio)?.finish()
}

/// Starts building the sandbox.
///
/// # Errors
/// [`LaunchError`], where not even its first process could be had.
pub fn begin(mut blueprint: Blueprint, stdio: Stdio<'_>) -> Result<Launching, LaunchError> {
    let pair = || passing::pair().map_err(LaunchError::call("make a socket pair"));
    let ((control, control_inside), (gate, gate_inside)) = (pair()?, pair()?);
    let streams = [stdio.stdin, stdio.stdout, stdio.stderr];
    // 0, 1 and 2 are taken by the streams before anything else is done.
    let mut keep: Vec<RawFd> = vec![0, 1, 2, control_inside.as_raw_fd(), gate_inside.as_raw_fd()];
    keep.extend(blueprint.held());
    keep.sort_unstable();
    keep.dedup();

    let namespaces = blueprint.level == Level::Full && blueprint.walls == Whose::Own;
    let inherited =
        Inherited { control: control_inside.as_fd(), gate: gate_inside.as_fd(), stdio: streams, keep: &keep };
    let blocked = fork_signals::AllBlocked::new().map_err(LaunchError::call("block signals"))?;
    let init = fork_with(if namespaces { NAMESPACES } else { 0 }, 0, || child::init(&blueprint, &inherited))
        .map_err(|errno| LaunchError::Clone { errno, namespaces })?;
    drop(blocked);
    drop((control_inside, gate_inside));

    let private_directory = blueprint.private_directory.take();
    let launched = Launched::new(init, control, gate, &blueprint, private_directory);
    if blueprint.mapped_by_caller {
        map_identity(launched.init_pid, launched.control.as_fd())?;
    }
    Ok(Launching { launched, blueprint: Held::Own(Box::new(blueprint)), knows_groups: false })
}

/// Goes on with an init that was made early.
///
/// # Errors
/// [`LaunchError`] as [`Launching::finish`].
pub(super) fn begin_early(
    (init, control, gate): (Child, OwnedFd, OwnedFd),
    blueprint: &'static Blueprint,
    umask: Option<u32>,
    stdio: Stdio<'_>,
) -> Result<Launching, LaunchError> {
    let launched = Launched::new(init, control, gate, blueprint, None);
    let rules = blueprint.ruleset.as_ref().ok_or(LaunchError::Lost)?;
    let descriptors = [stdio.stdin, stdio.stdout, stdio.stderr, rules.as_fd()];
    match (Message::Plan { umask }).send(launched.control.as_fd(), &descriptors) {
        // Its last word, why it is gone, is read by who waits for it.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(LaunchError::call("hand over the plan")(errno)),
    }
    Ok(Launching { launched, blueprint: Held::Published(blueprint), knows_groups: false })
}

/// Writes the identity maps of a root that keeps its number inside.
pub(super) fn map_identity(init: u32, control: BorrowedFd<'_>) -> Result<(), LaunchError> {
    let map = |kind: &str, id: u32| {
        let file = format!("/proc/{init}/{kind}");
        std::fs::write(&file, format!("{id} {id} 1\n"))
            .map_err(|e| LaunchError::Path { path: file.into(), why: e.to_string() })
    };
    map("uid_map", geteuid().as_raw())?;
    map("gid_map", getegid().as_raw())?;
    Message::Mapped.send(control, &[]).map_err(|_| LaunchError::Lost)
}

impl Launched {
    fn new(
        init: Child,
        control: OwnedFd,
        gate: OwnedFd,
        blueprint: &Blueprint,
        private_directory: Option<PrivateDirectory>,
    ) -> Self {
        Self {
            init_pid: init.pid.as_raw_nonzero().get().unsigned_abs(),
            init: Some(init.pidfd),
            control,
            gate,
            listener: None,
            temp: None,
            hidden_reads: None,
            network: None,
            walls: None,
            report: EnforcementReport { level: blueprint.level, layers: BTreeMap::new() },
            private_trees: blueprint.private_trees().to_vec(),
            missing: blueprint.missing().to_vec(),
            unmerged: 0,
            umask: 0,
            wait_killable: false,
            released: None,
            ended: None,
            stopped: None,
            written: None,
            exec_errno: None,
            _private_directory: private_directory,
        }
    }

    /// The init's number, as the caller sees it.
    pub fn init_pid(&self) -> u32 {
        self.init_pid
    }

    /// Readable when the command has ended (or the init was lost): then
    /// [`try_wait`](Self::try_wait) has the answer.
    pub fn end_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// The descriptor on which trapped system calls arrive. Somebody must serve
    /// it from [`release`](Self::release) on: the exec itself is the first.
    pub fn take_listener(&mut self) -> Option<OwnedFd> {
        self.listener.take()
    }

    /// False where a signal disturbs a question that is being thought about
    /// (kernel before 5.19): then nothing may be held for long.
    pub fn wait_killable(&self) -> bool {
        self.wait_killable
    }

    /// The filesystem that holds the private temp at level full, and so all that
    /// is told of its space. Holding it keeps its memory.
    pub fn take_temp(&mut self) -> Option<OwnedFd> {
        self.temp.take()
    }

    /// Tells when a hidden path is opened, where there are any.
    pub fn take_hidden_reads(&mut self) -> Option<HiddenReads> {
        self.hidden_reads.take()
    }

    /// What of the run's own network is the caller's, at level full.
    pub fn take_network(&mut self) -> Option<NetworkEnds> {
        self.network.take()
    }

    /// What others can enter, where it stands by itself.
    pub(super) fn take_walls(&mut self) -> Option<Walls> {
        self.walls.take()
    }

    /// Whether the directory of this number in [`Outfit::merged`](super::Outfit::merged)
    /// could not be merged: then it is read-only.
    pub fn is_unmerged(&self, index: usize) -> bool {
        self.unmerged >> index & 1 == 1
    }

    /// What the kernel really took.
    pub fn report(&self) -> &EnforcementReport {
        &self.report
    }

    /// Trees that only the run sees, as it sees them.
    pub fn private_trees(&self) -> &[PrivateTree] {
        &self.private_trees
    }

    /// Writable paths of the plan that did not exist and so are not attached.
    pub fn missing(&self) -> &[PathBuf] {
        &self.missing
    }

    /// The file mode creation mask with which the command starts.
    pub fn umask(&self) -> u32 {
        self.umask
    }

    /// Lets the command go to its exec.
    ///
    /// # Errors
    /// [`LaunchError::Lost`] where the sandbox died while it was held.
    pub fn release(&mut self) -> Result<(), LaunchError> {
        self.released = Some(Instant::now());
        Message::Go.send(self.gate.as_fd(), &[]).map_err(|_| LaunchError::Lost)
    }

    /// The end, if it has come.
    ///
    /// # Errors
    /// [`LaunchError::Lost`] where the init was killed from outside: all its
    /// processes are gone, what they had done is unknown.
    pub fn try_wait(&mut self) -> Result<Option<ExitReport>, LaunchError> {
        self.wait(Duration::ZERO)
    }

    /// Waits for the end, at most so long. When it answers with a report, no
    /// process of the run is left.
    ///
    /// # Errors
    /// [`LaunchError::Lost`] as in [`try_wait`](Self::try_wait).
    pub fn wait(&mut self, at_most: Duration) -> Result<Option<ExitReport>, LaunchError> {
        let deadline = Instant::now() + at_most;
        while self.ended.is_none() {
            match Message::receive(self.control.as_fd(), false) {
                Ok(Some((Message::Ended { ended, used }, _))) => self.note_end(ended, used),
                Ok(Some((Message::Stopped { signal }, _))) => self.stopped = Some(signal),
                Ok(Some((Message::Written { bytes }, _))) => self.written = Some(bytes),
                Ok(None) => return Err(self.lost()),
                Ok(Some(_)) => {}
                Err(Errno::AGAIN) => {
                    if !readable_before(&[self.control.as_fd()], deadline).map_err(LaunchError::call("wait"))? {
                        return Ok(None);
                    }
                }
                Err(_) => return Err(self.lost()),
            }
        }
        Ok(self.ended)
    }

    /// The signal by which the command was stopped since this was last asked.
    pub(crate) fn was_stopped(&mut self) -> Option<i32> {
        self.stopped.take()
    }

    /// What the processes wrote that have ended and been reaped by the init, where it counts
    /// that: with a small limit of the disk.
    pub(crate) fn written_by_ended(&self) -> Option<u64> {
        self.written
    }

    /// The init, until it is let go.
    pub(crate) fn init(&self) -> Option<BorrowedFd<'_>> {
        self.init.as_ref().map(AsFd::as_fd)
    }

    /// Whether the end has been seen.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Sends a signal to the command's process group; best effort.
    pub fn signal(&self, signal: i32) {
        let _ = Message::Signal(signal).send(self.control.as_fd(), &[]);
    }

    /// Ends the command now, and with it everything in the sandbox. The end is
    /// still reported.
    pub fn kill(&self) {
        self.signal(Signal::KILL.as_raw());
    }

    /// Leaves to the kernel what it cannot end, and ends all else: an init that
    /// waits for such a command lets its other processes live. Without a PID
    /// namespace the init alone can do that, and goes on trying.
    pub(crate) fn abandon(&self) {
        if let (Some(init), Level::Full) = (&self.init, self.report.level) {
            let _ = pidfd_send_signal(init, Signal::KILL);
        }
    }

    fn note_end(&mut self, ended: Ended, used: Used) {
        times::tell_end();
        self.failed_to_execute();
        let wall = self.released.map(|at| at.elapsed()).unwrap_or_default();
        let usage = Usage {
            wall_ms: wall.as_millis() as u64,
            cpu_ms: used.cpu_us / 1000,
            memory_peak_bytes: used.memory_peak_bytes,
            ..Usage::default()
        };
        self.ended = Some(ExitReport { status: ended, usage, exec_errno: self.exec_errno });
    }

    /// The way to the command before its exec: it hangs up when its program runs.
    pub(crate) fn duplicate_gate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.gate, 3)
    }

    /// Whether the command said that no program could be executed.
    pub(crate) fn failed_to_execute(&mut self) -> bool {
        if let Ok(Some((Message::ExecFailed { errno }, _))) = Message::receive(self.gate.as_fd(), false) {
            self.exec_errno = Some(errno);
        }
        self.exec_errno.is_some()
    }

    fn lost(&mut self) -> LaunchError {
        self.end_now();
        LaunchError::Lost
    }

    /// Waits until the command stands before its exec, or for word of why not.
    fn await_ready(&mut self, blueprint: &Blueprint) -> Result<(), LaunchError> {
        let deadline = Instant::now() + READY_WITHIN;
        // Without a command nobody is behind the gate.
        let spoken_to = if blueprint.command.is_some() { 2 } else { 1 };
        let (mut gone, mut built, mut taken, mut ready) = (false, false, None, None);
        loop {
            for socket in [self.control.as_fd(), self.gate.as_fd()].into_iter().take(spoken_to) {
                match Message::receive(socket, false) {
                    Ok(Some((Message::Built { parts }, received))) => {
                        self.unmerged = parts.0 >> Parts::UNMERGED_SHIFT;
                        taken = Some((parts, received.descriptors));
                        built = true;
                    }
                    Ok(Some((Message::Ready { wait_killable, umask }, received))) => {
                        let [listener, ..] = received.descriptors;
                        self.listener = Some(listener.ok_or(LaunchError::Lost)?);
                        (self.umask, self.wait_killable) = (umask, wait_killable);
                        ready = Some(wait_killable);
                    }
                    Ok(Some((Message::Standing, received))) => {
                        self.walls = Some(Walls::of(received.descriptors).ok_or(LaunchError::Lost)?);
                        // No command is to come.
                        ready = Some(true);
                    }
                    Ok(Some((Message::StepFailed { index, errno }, _))) => {
                        let (step, detail) = blueprint.step_text(index);
                        return Err(LaunchError::Step { step, detail, errno });
                    }
                    Ok(Some((Message::StageFailed { index, errno }, _))) => {
                        let (step, detail) = STAGES.get(index as usize).copied().unwrap_or(("command", "start"));
                        return Err(LaunchError::Step { step, detail: detail.to_owned(), errno });
                    }
                    // The reason may still stand in the other socket: look once more.
                    Ok(None) | Err(Errno::PROTO | Errno::PIPE) if gone => return Err(LaunchError::Lost),
                    Ok(None) => gone = true,
                    Ok(Some(_)) | Err(_) => {}
                }
            }
            if let Some((parts, descriptors)) = taken.take() {
                self.take_parts(parts, descriptors, blueprint);
            }
            if let (true, Some(wait_killable)) = (built, ready) {
                let has_ipv6 = self.network.as_ref().map(NetworkEnds::has_ipv6);
                self.report = blueprint.report(wait_killable, has_ipv6, self.hidden_reads.is_some());
                return Ok(());
            }
            let sockets = [self.control.as_fd(), self.gate.as_fd()];
            if !readable_before(&sockets[..spoken_to], deadline).map_err(LaunchError::call("wait"))? {
                return Err(LaunchError::TimedOut(READY_WITHIN.as_millis() as u64));
            }
        }
    }

    /// Takes what the init handed over.
    fn take_parts(&mut self, parts: Parts, descriptors: [Option<OwnedFd>; MAX_DESCRIPTORS], blueprint: &Blueprint) {
        let mut descriptors = descriptors.into_iter();
        let mut next = |part| if parts.has(part) { descriptors.next().flatten() } else { None };
        self.temp = next(Parts::SCRATCH);
        let paths = blueprint.hidden.clone();
        self.hidden_reads = next(Parts::WATCHES).map(|inotify| HiddenReads { inotify, paths });
        let names = next(Parts::NAMES);
        let unreachable = [next(Parts::UNREACHABLE), next(Parts::UNREACHABLE_V6)];
        let sockets = next(Parts::SOCKETS);
        self.network = names.zip(sockets).map(|(names, sockets)| NetworkEnds {
            names,
            unreachable: unreachable.into_iter().flatten().collect(),
            sockets: Sockets::new(sockets),
            ipv6: parts.has(Parts::IPV6),
        });
    }

    /// Ends the init, and with it everything. One that has reported the end has
    /// nothing left but to go, which it does when its caller hangs up. With a
    /// PID namespace the kernel ends the others; without, the init does, also
    /// when its caller hangs up, and is given time for it.
    fn end_now(&mut self) {
        let Some(init) = self.init.take() else { return };
        if self.ended.is_some() || self.report.level != Level::Full {
            let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        }
        if self.ended.is_some() {
            return leaving::let_go(init);
        }
        if self.report.level != Level::Full {
            let _ = readable_before(&[init.as_fd()], Instant::now() + CLEANS_WITHIN);
        }
        let _ = pidfd_send_signal(&init, Signal::KILL);
        leaving::wait(&init);
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.end_now();
    }
}

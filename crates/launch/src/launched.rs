//! A sandbox that is built: held before its command's first instruction, then running, then ended.

mod ending;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{getegid, geteuid};
use stockade_model::{EnforcementReport, IsolationLevel, ResourceUsage};
use stockade_sys::clone::{ClonedChild, flags, fork_with};
use stockade_sys::fd_passing::MAX_DESCRIPTORS;
use stockade_sys::ready::readable_before;
use stockade_sys::reap::{ProcessExit, ProcessUsage};
use stockade_sys::{Errno, fd_passing, fork_signals};

use super::blueprint::{Blueprint, NamespaceOwner, PrivateTree};
use super::child::{self, COMMAND_STAGES, InheritedDescriptors};
use super::error::LaunchError;
use super::layout::MergedDirectory;
use super::merge::allow_in_layer;
use super::message::{BuiltFlags, LaunchMessage};
use super::namespaces::NamespaceSet;
use super::network::{NamespaceSockets, NetworkSockets};
use super::restricted::PrivateDirectory;
use super::times;

/// Time-out for the building of a sandbox.
const BUILD_TIMEOUT: Duration = Duration::from_secs(10);

/// Namespaces of level full in which the init is created. The init makes the others itself, so that
/// the caller need not wait for them.
pub(super) const INIT_NAMESPACES: u64 = flags::NEW_USER | flags::NEW_PID;

/// The command's descriptors 0, 1 and 2.
#[derive(Clone, Copy, Debug)]
pub struct CommandStdio<'fd> {
    /// Standard input.
    pub stdin: BorrowedFd<'fd>,
    /// Standard output.
    pub stdout: BorrowedFd<'fd>,
    /// Standard error.
    pub stderr: BorrowedFd<'fd>,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// The end of the command.
    pub status: ProcessExit,
    /// Resources used by all its processes.
    pub usage: ResourceUsage,
    /// The error if no program could be executed. Then nothing ran, and `status` is meaningless.
    pub exec_errno: Option<Errno>,
}

/// Reports the openings of hidden paths. Watch number `n` (from 1) of the inotify instance belongs
/// to `paths[n - 1]`; the name in an event is a child of that path.
#[derive(Debug)]
pub struct HiddenReads {
    /// The inotify instance (non-blocking).
    pub inotify: OwnedFd,
    /// The hidden paths.
    pub paths: Vec<PathBuf>,
}

/// A sandbox with a command that is held before its exec, or runs. Dropping it kills every process
/// in it and waits for their end.
#[derive(Debug)]
pub struct LaunchedSandbox {
    /// Absent after the init was waited for or left to exit by itself.
    init: Option<OwnedFd>,
    init_pid: u32,
    control: OwnedFd,
    gate: OwnedFd,
    listener: Option<OwnedFd>,
    temp: Option<OwnedFd>,
    hidden_reads: Option<HiddenReads>,
    network: Option<NetworkSockets>,
    isolation: Option<NamespaceSet>,
    report: EnforcementReport,
    private_trees: Vec<PrivateTree>,
    missing: Vec<PathBuf>,
    unmerged: u32,
    umask: u32,
    wait_killable: bool,
    released: Option<Instant>,
    ended: Option<ExitReport>,
    stopped: Option<i32>,
    /// Bytes written by the processes that the init has reaped, if the init counts them.
    written: Option<u64>,
    /// The error if no program could be executed, once it is known.
    exec_errno: Option<Errno>,
    // Removes the rest of the directory after the processes are gone.
    _private_directory: Option<PrivateDirectory>,
}

/// A sandbox that its own init is building, while the caller can do other work. Dropping it ends
/// the sandbox.
#[derive(Debug)]
pub struct LaunchingSandbox {
    launched: LaunchedSandbox,
    blueprint: BlueprintHandle,
    knows_groups: bool,
}

/// A blueprint, of this process alone or published to an early init.
#[derive(Debug)]
enum BlueprintHandle {
    Own(Box<Blueprint>),
    Published(&'static Blueprint),
}

impl Deref for BlueprintHandle {
    type Target = Blueprint;

    fn deref(&self) -> &Blueprint {
        match self {
            Self::Own(blueprint) => blueprint,
            Self::Published(blueprint) => blueprint,
        }
    }
}

impl LaunchingSandbox {
    /// Returns the trees that only the run sees, with their paths in the run.
    pub fn private_trees(&self) -> &[PrivateTree] {
        self.blueprint.private_trees()
    }

    /// Returns the private trees in which Landlock allows the command every change.
    pub fn kernel_enforced_trees(&self) -> impl Iterator<Item = PathBuf> {
        self.private_trees().iter().filter(|tree| tree.kernel_allows).map(|tree| tree.path.clone())
    }

    /// Returns the writable paths of the plan that did not exist and so are not attached.
    pub fn missing_paths(&self) -> &[PathBuf] {
        self.blueprint.missing_paths()
    }

    /// Returns the process ID of the init, as the host sees it.
    pub fn init_pid(&self) -> u32 {
        self.launched.init_pid
    }

    /// Passes the layers of `merged` that another process holds. The init waits for them if the
    /// launch options borrow any.
    ///
    /// # Errors
    /// [`LaunchError`] if the layers cannot be passed.
    pub fn lend_layers(&self, layers: &[OwnedFd], merged: &[MergedDirectory]) -> Result<(), LaunchError> {
        // Done here, because the init has much other work meanwhile.
        if let Some(rules) = &self.blueprint.parts.ruleset {
            for (layer, merged) in layers.iter().zip(merged) {
                let names = merged.directories.iter();
                allow_in_layer(layer.as_fd(), merged.is_whole(), names, |object, rights| {
                    rules.allow_beneath(object, rights)
                })
                .map_err(LaunchError::call_error("let the command change the layers"))?;
            }
        }
        let mut rest = layers.chunks(MAX_DESCRIPTORS).peekable();
        loop {
            let some = rest.next().unwrap_or_default();
            let is_last = rest.peek().is_none();
            let trees: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            let layers = LaunchMessage::Layers { is_last };
            hand_over(layers, self.launched.control.as_fd(), &trees, "hand over the layers")?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Lets the command enter control groups. `entrances` are their files `cgroup.procs` or
    /// `tasks`, open for writing. May be called once.
    ///
    /// # Errors
    /// [`LaunchError`] if there are more files than a message can carry.
    pub fn enter_groups(&mut self, entrances: &[OwnedFd]) -> Result<(), LaunchError> {
        self.knows_groups = true;
        let entrances: Vec<BorrowedFd<'_>> = entrances.iter().map(OwnedFd::as_fd).collect();
        hand_over(LaunchMessage::Groups, self.launched.gate.as_fd(), &entrances, "hand over the control groups")
    }

    /// Waits until the command is held before its first instruction. On an error nothing ran and
    /// nothing is left behind.
    ///
    /// # Errors
    /// [`LaunchError`] names the step and the kernel's error.
    pub fn finish_launch(mut self) -> Result<LaunchedSandbox, LaunchError> {
        if !self.knows_groups {
            self.enter_groups(&[])?;
        }
        self.finish_without_command()
    }

    /// As [`finish_launch`](Self::finish_launch), for a sandbox without a command.
    pub(super) fn finish_without_command(mut self) -> Result<LaunchedSandbox, LaunchError> {
        self.launched.await_ready(&self.blueprint)?;
        times::tell_building(&self.blueprint);
        Ok(self.launched)
    }
}

/// Builds the sandbox and stops before the command's first instruction. On an error nothing ran and
/// nothing is left behind.
///
/// # Errors
/// [`LaunchError`] names the step and the kernel's error.
pub fn launch_sandbox(blueprint: Blueprint, stdio: CommandStdio<'_>) -> Result<LaunchedSandbox, LaunchError> {
    begin_launch(blueprint, stdio)?.finish_launch()
}

/// Starts building the sandbox.
///
/// # Errors
/// [`LaunchError`] if not even the first process could be made.
pub fn begin_launch(mut blueprint: Blueprint, stdio: CommandStdio<'_>) -> Result<LaunchingSandbox, LaunchError> {
    let pair = || fd_passing::socket_pair().map_err(LaunchError::call_error("make a socket pair"));
    let ((control, control_inside), (gate, gate_inside)) = (pair()?, pair()?);
    let streams = [stdio.stdin, stdio.stdout, stdio.stderr];
    // The streams get 0, 1 and 2 before anything else is done.
    let mut open_fds: Vec<RawFd> = vec![0, 1, 2, control_inside.as_raw_fd(), gate_inside.as_raw_fd()];
    open_fds.extend(blueprint.held_descriptors());
    open_fds.sort_unstable();
    open_fds.dedup();

    let namespaces = blueprint.level == IsolationLevel::Full && blueprint.isolation == NamespaceOwner::Own;
    let inherited = InheritedDescriptors {
        control: control_inside.as_fd(),
        gate: gate_inside.as_fd(),
        stdio: streams,
        open_fds: &open_fds,
    };
    let blocked = fork_signals::SignalBlockGuard::new().map_err(LaunchError::call_error("block signals"))?;
    let init = fork_with(if namespaces { INIT_NAMESPACES } else { 0 }, 0, || child::run_init(&blueprint, &inherited))
        .map_err(|errno| LaunchError::Clone { errno, namespaces })?;
    drop(blocked);
    drop((control_inside, gate_inside));

    let private_directory = blueprint.parts.private_directory.take();
    let launched = LaunchedSandbox::new(init, control, gate, &blueprint, private_directory);
    if blueprint.parts.mapped_by_caller {
        map_identity(launched.init_pid, launched.control.as_fd())?;
    }
    Ok(LaunchingSandbox { launched, blueprint: BlueprintHandle::Own(Box::new(blueprint)), knows_groups: false })
}

/// Continues with an init that was made early.
///
/// # Errors
/// [`LaunchError`] as for [`LaunchingSandbox::finish_launch`].
pub(super) fn begin_early(
    (init, control, gate): (ClonedChild, OwnedFd, OwnedFd),
    blueprint: &'static Blueprint,
    umask: Option<u32>,
    stdio: CommandStdio<'_>,
) -> Result<LaunchingSandbox, LaunchError> {
    let launched = LaunchedSandbox::new(init, control, gate, blueprint, None);
    let rules = blueprint.parts.ruleset.as_ref().ok_or(LaunchError::Lost)?;
    let descriptors = [stdio.stdin, stdio.stdout, stdio.stderr, rules.as_fd()];
    hand_over(LaunchMessage::Plan { umask }, launched.control.as_fd(), &descriptors, "hand over the plan")?;
    Ok(LaunchingSandbox { launched, blueprint: BlueprintHandle::Published(blueprint), knows_groups: false })
}

/// Sends a message to the init or the command. If the receiver is gone, its last message has the
/// reason, and is read by the function that waits for it.
fn hand_over(
    message: LaunchMessage,
    socket: BorrowedFd<'_>,
    descriptors: &[BorrowedFd<'_>],
    what: &'static str,
) -> Result<(), LaunchError> {
    match message.send(socket, descriptors) {
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(errno) => Err(LaunchError::call_error(what)(errno)),
    }
}

/// Writes the identity maps of a root user that keeps its number inside.
pub(super) fn map_identity(init: u32, control: BorrowedFd<'_>) -> Result<(), LaunchError> {
    let map = |kind: &str, id: u32| {
        let file = format!("/proc/{init}/{kind}");
        std::fs::write(&file, format!("{id} {id} 1\n"))
            .map_err(|e| LaunchError::Path { path: file.into(), why: e.to_string() })
    };
    map("uid_map", geteuid().as_raw())?;
    map("gid_map", getegid().as_raw())?;
    LaunchMessage::Mapped.send(control, &[]).map_err(|_| LaunchError::Lost)
}

impl LaunchedSandbox {
    fn new(
        init: ClonedChild,
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
            isolation: None,
            report: EnforcementReport { level: blueprint.level, layers: BTreeMap::new() },
            private_trees: blueprint.private_trees().to_vec(),
            missing: blueprint.missing_paths().to_vec(),
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

    /// Returns the process ID of the init, as the caller sees it.
    pub fn init_pid(&self) -> u32 {
        self.init_pid
    }

    /// Returns a descriptor that is readable when the command has ended or the init was lost. Then
    /// [`try_wait`](Self::try_wait) returns the result.
    pub fn end_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Returns the descriptor on which trapped system calls arrive. The caller must serve it from
    /// [`release_command`](Self::release_command) on, because the exec itself is the first call.
    pub fn take_listener(&mut self) -> Option<OwnedFd> {
        self.listener.take()
    }

    /// Returns false if a signal interrupts a held call (kernel before 5.19). Then no call may be
    /// held for long.
    pub fn wait_killable(&self) -> bool {
        self.wait_killable
    }

    /// Returns the filesystem that holds the private temporary directory at level full. All reports
    /// on its space describe this filesystem. An open descriptor keeps its memory allocated.
    pub fn take_temp(&mut self) -> Option<OwnedFd> {
        self.temp.take()
    }

    /// Returns the reports on openings of hidden paths, if there are hidden paths.
    pub fn take_hidden_reads(&mut self) -> Option<HiddenReads> {
        self.hidden_reads.take()
    }

    /// Returns the caller's sockets of the run's network, at level full.
    pub fn take_network(&mut self) -> Option<NetworkSockets> {
        self.network.take()
    }

    /// Returns the namespaces that later commands enter, for a persistent sandbox.
    pub(super) fn take_namespaces(&mut self) -> Option<NamespaceSet> {
        self.isolation.take()
    }

    /// Returns whether the directory of this number in [`LaunchOptions::merged`](super::LaunchOptions::merged)
    /// could not be merged. It is then read-only.
    pub fn is_unmerged(&self, index: usize) -> bool {
        self.unmerged >> index & 1 == 1
    }

    /// Returns the report on the layers that the kernel enforces.
    pub fn report(&self) -> &EnforcementReport {
        &self.report
    }

    /// Returns the trees that only the run sees, with their paths in the run.
    pub fn private_trees(&self) -> &[PrivateTree] {
        &self.private_trees
    }

    /// Returns the writable paths of the plan that did not exist and so are not attached.
    pub fn missing_paths(&self) -> &[PathBuf] {
        &self.missing
    }

    /// Returns the file mode creation mask with which the command starts.
    pub fn umask(&self) -> u32 {
        self.umask
    }

    /// Lets the command execute its program.
    ///
    /// # Errors
    /// [`LaunchError::Lost`] if the sandbox died while it was held.
    pub fn release_command(&mut self) -> Result<(), LaunchError> {
        self.released = Some(Instant::now());
        LaunchMessage::Go.send(self.gate.as_fd(), &[]).map_err(|_| LaunchError::Lost)
    }

    /// Returns the end of the run, if it has ended.
    ///
    /// # Errors
    /// [`LaunchError::Lost`] if the init was killed from outside. All its processes are gone, and
    /// their effects are unknown.
    pub fn try_wait(&mut self) -> Result<Option<ExitReport>, LaunchError> {
        self.wait_for_end(Duration::ZERO)
    }

    /// Waits for the end of the run, for at most this time. When it returns a report, no process of
    /// the run is left.
    ///
    /// # Errors
    /// [`LaunchError::Lost`] as for [`try_wait`](Self::try_wait).
    pub fn wait_for_end(&mut self, at_most: Duration) -> Result<Option<ExitReport>, LaunchError> {
        let deadline = Instant::now() + at_most;
        while self.ended.is_none() {
            match LaunchMessage::receive_from(self.control.as_fd(), false) {
                Ok(Some((LaunchMessage::Ended { ended, used }, _))) => self.note_end(ended, used),
                Ok(Some((LaunchMessage::Stopped { signal }, _))) => self.stopped = Some(signal),
                Ok(Some((LaunchMessage::Written { bytes }, _))) => self.written = Some(bytes),
                Ok(None) => return Err(self.lost_error()),
                Ok(Some(_)) => {}
                Err(Errno::AGAIN) => {
                    if !readable_before(&[self.control.as_fd()], deadline).map_err(LaunchError::call_error("wait"))? {
                        return Ok(None);
                    }
                }
                Err(_) => return Err(self.lost_error()),
            }
        }
        Ok(self.ended)
    }

    /// Returns the signal that has stopped the command since the last call.
    pub fn was_stopped(&mut self) -> Option<i32> {
        self.stopped.take()
    }

    /// Returns the bytes written by the processes that the init has reaped. The init counts them
    /// only if the limit of the disk is small.
    pub fn written_by_ended(&self) -> Option<u64> {
        self.written
    }

    /// Returns the init, until it is left to exit by itself.
    pub fn init_pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.init.as_ref().map(AsFd::as_fd)
    }

    /// Returns whether the end has been received.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    fn note_end(&mut self, ended: ProcessExit, used: ProcessUsage) {
        times::tell_end();
        self.failed_to_execute();
        let wall_time = self.released.map(|at| at.elapsed()).unwrap_or_default();
        let usage = ResourceUsage {
            wall_ms: wall_time.as_millis() as u64,
            cpu_ms: used.cpu_us / 1000,
            memory_peak_bytes: used.memory_peak_bytes,
            ..ResourceUsage::default()
        };
        self.ended = Some(ExitReport { status: ended, usage, exec_errno: self.exec_errno });
    }

    /// Returns the socket to the command before its exec. The peer hangs up when the program runs.
    pub fn duplicate_gate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.gate, 3)
    }

    /// Returns whether the command has reported that no program could be executed.
    pub fn failed_to_execute(&mut self) -> bool {
        if let Ok(Some((LaunchMessage::ExecFailed { errno }, _))) =
            LaunchMessage::receive_from(self.gate.as_fd(), false)
        {
            self.exec_errno = Some(errno);
        }
        self.exec_errno.is_some()
    }

    fn lost_error(&mut self) -> LaunchError {
        self.end_now();
        LaunchError::Lost
    }

    /// Waits until the command is held before its exec, or for a message with the reason of a
    /// failure.
    fn await_ready(&mut self, blueprint: &Blueprint) -> Result<(), LaunchError> {
        let deadline = Instant::now() + BUILD_TIMEOUT;
        // Without a command the gate has no peer.
        let spoken_to = if blueprint.command.is_some() { 2 } else { 1 };
        let (mut socket_closed, mut built, mut built_parts, mut ready) = (false, false, None, None);
        loop {
            for socket in [self.control.as_fd(), self.gate.as_fd()].into_iter().take(spoken_to) {
                match LaunchMessage::receive_from(socket, false) {
                    Ok(Some((LaunchMessage::Built { parts }, received))) => {
                        self.unmerged = parts.0 >> BuiltFlags::UNMERGED_SHIFT;
                        built_parts = Some((parts, received.descriptors));
                        built = true;
                    }
                    Ok(Some((LaunchMessage::Ready { wait_killable, umask }, received))) => {
                        let [listener, ..] = received.descriptors;
                        self.listener = Some(listener.ok_or(LaunchError::Lost)?);
                        (self.umask, self.wait_killable) = (umask, wait_killable);
                        ready = Some(wait_killable);
                    }
                    Ok(Some((LaunchMessage::Persistent, received))) => {
                        self.isolation = Some(NamespaceSet::from_fds(received.descriptors).ok_or(LaunchError::Lost)?);
                        // No command will come.
                        ready = Some(true);
                    }
                    Ok(Some((LaunchMessage::StepFailed { index, errno }, _))) => {
                        let (step, detail) = blueprint.step_text(index);
                        return Err(LaunchError::Step { step, detail, errno });
                    }
                    Ok(Some((LaunchMessage::StageFailed { index, errno }, _))) => {
                        let (step, detail) =
                            COMMAND_STAGES.get(index as usize).copied().unwrap_or(("command", "start"));
                        return Err(LaunchError::Step { step, detail: detail.to_owned(), errno });
                    }
                    // The reason may still be in the other socket: read once more.
                    Ok(None) | Err(Errno::PROTO | Errno::PIPE) if socket_closed => return Err(LaunchError::Lost),
                    Ok(None) => socket_closed = true,
                    Ok(Some(_)) | Err(_) => {}
                }
            }
            if let Some((parts, descriptors)) = built_parts.take() {
                self.take_parts(parts, descriptors, blueprint);
            }
            if let (true, Some(wait_killable)) = (built, ready) {
                let has_ipv6 = self.network.as_ref().map(NetworkSockets::has_ipv6);
                self.report = blueprint.build_report(wait_killable, has_ipv6, self.hidden_reads.is_some());
                return Ok(());
            }
            let sockets = [self.control.as_fd(), self.gate.as_fd()];
            if !readable_before(&sockets[..spoken_to], deadline).map_err(LaunchError::call_error("wait"))? {
                return Err(LaunchError::TimedOut(BUILD_TIMEOUT.as_millis() as u64));
            }
        }
    }

    /// Takes over the descriptors from the init.
    fn take_parts(
        &mut self,
        parts: BuiltFlags,
        descriptors: [Option<OwnedFd>; MAX_DESCRIPTORS],
        blueprint: &Blueprint,
    ) {
        let mut descriptors = descriptors.into_iter();
        let mut next = |part| if parts.has_flag(part) { descriptors.next().flatten() } else { None };
        self.temp = next(BuiltFlags::SCRATCH);
        let paths = blueprint.parts.hidden.clone();
        self.hidden_reads = next(BuiltFlags::HIDDEN_WATCHES).map(|inotify| HiddenReads { inotify, paths });
        let names = next(BuiltFlags::DNS_SOCKET);
        let unreachable = [next(BuiltFlags::UNREACHABLE_V4), next(BuiltFlags::UNREACHABLE_V6)];
        let sockets = next(BuiltFlags::SOCKET_REQUESTS);
        self.network = names.zip(sockets).map(|(names, sockets)| NetworkSockets {
            names,
            unreachable: unreachable.into_iter().flatten().collect(),
            sockets: NamespaceSockets::new(sockets),
            ipv6: parts.has_flag(BuiltFlags::IPV6),
        });
    }
}

//! Client of a supervisor process: a sandbox in another process. Starts, finds and ends such
//! processes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::stdio::{stderr, stdin, stdout};
use serde::de::DeserializeOwned;
use stockade_backend_api::remote::{AttemptOrder, RemoteAttempt};
use stockade_backend_api::{
    Attempt, AttemptEventSender, Backend, Sandbox, SandboxError, SandboxEvent, SandboxEventSender, SandboxPlan,
    SandboxTree, StartError, StdioMode,
};
use stockade_model::SandboxUsage;
use stockade_model::{AttemptPlan, EnforcementReport, Grant, IsolationLevel, SandboxId};
use stockade_permissions::guards::settings_variables;
use stockade_supervisor::{
    Channel, MAX_MESSAGE_BYTES, Refusal, Reply, Request, connect_in, exec_supervisor, own_umask,
};
use stockade_sys::ready::readable_before;

use super::super::command::supports_grant;
use super::super::{BACKEND_NAME, failed_error, open_tree, tree_path_inside, unsupported_error};

/// Time-out for the creation of a sandbox, by this process or another.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out for an answer of a supervisor.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time-out for the end of a sandbox and its supervisor, before the supervisor is killed.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(25);
/// Time-out for the exit of a killed process.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Lock file that serialises the start of a supervisor.
const START_LOCK_FILE: &str = "supervisor.lock";
/// Interval between two attempts to take that lock.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(5);
/// Name of a supervisor in lists of processes, because its program may be `/proc/self/exe`.
const PROCESS_NAME: &str = "stockade";

/// Program of the supervisors, and the directory in which they are found.
#[derive(Clone, Debug)]
pub(in super::super) struct SupervisorProgram {
    pub(in super::super) program: PathBuf,
    pub(in super::super) arguments: Vec<OsString>,
    /// The directory with one directory per sandbox, named by its id.
    pub(in super::super) root: PathBuf,
}

impl SupervisorProgram {
    /// Creates a sandbox, unless another process has just created it.
    pub(in super::super) fn create_sandbox(
        &self,
        plan: &SandboxPlan,
        events: SandboxEventSender,
    ) -> Result<SupervisedSandbox, SandboxError> {
        let directory = self.sandbox_directory(&plan.id);
        let cannot =
            |error: io::Error| failed_error(format!("cannot start the supervisor of the sandbox {}: {error}", plan.id));
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(cannot(e)),
            _ => {}
        }
        let _alone = lock_exclusively(&directory.join(START_LOCK_FILE)).map_err(cannot)?;
        match self.connect_sandbox(plan, events.clone()) {
            Err(SandboxError::Gone(_)) => {}
            found => return found,
        }
        let supervisor = self.start_supervisor(plan, &directory)?;
        // This process is the parent, so it must reap the supervisor.
        let reap = move || drop({ supervisor }.wait());
        let reaper = thread::Builder::new().name("supervisor-end".to_owned()).spawn(reap);
        drop(reaper.map_err(cannot)?);
        self.connect_sandbox(plan, events)
    }

    /// Connects to a sandbox that is kept.
    pub(in super::super) fn connect_sandbox(
        &self,
        plan: &SandboxPlan,
        events: SandboxEventSender,
    ) -> Result<SupervisedSandbox, SandboxError> {
        let address = SupervisorAddress { id: plan.id.clone(), directory: self.sandbox_directory(&plan.id) };
        let enforced = address.call_supervisor(&Request::Enforced, "its report")?;
        let destroyed = Arc::new(AtomicBool::new(false));
        let watch = Arc::new(address.send_request(&Request::Watch, &[])?);
        let (incoming, ended) = (Arc::clone(&watch), Arc::clone(&destroyed));
        let listen = move || forward_events(&incoming, &events, &ended);
        let thread = thread::Builder::new().name("sandbox-events".to_owned()).spawn(listen);
        drop(thread.map_err(|error| failed_error(format!("cannot start a thread: {error}")))?);
        let trees = [plan.workspace.clone(), plan.home.clone()];
        Ok(SupervisedSandbox { address, enforced, trees, watch, destroyed })
    }

    /// Ends a remaining supervisor and its sandbox.
    pub(in super::super) fn clear(&self, id: &SandboxId) -> Result<(), SandboxError> {
        SupervisorAddress { id: id.clone(), directory: self.sandbox_directory(id) }.end_supervisor()?;
        // If the supervisor was killed, its processes have ended, but its control group remains.
        stockade_limits::remove_orphans();
        Ok(())
    }

    fn sandbox_directory(&self, id: &SandboxId) -> PathBuf {
        self.root.join(id.as_str())
    }

    #[allow(clippy::disallowed_methods, reason = "a program of this project's own, and nothing of a run")]
    fn start_supervisor(&self, plan: &SandboxPlan, directory: &Path) -> Result<Child, SandboxError> {
        let cannot =
            |error: io::Error| failed_error(format!("cannot start the supervisor of the sandbox {}: {error}", plan.id));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory_fd = rustix::fs::open(directory, flags, Mode::empty()).map_err(|e| cannot(e.into()))?;
        let mut command = Command::new(&self.program);
        let (mut supervisor, channel) =
            exec_supervisor(command.arg0(PROCESS_NAME).args(&self.arguments)).map_err(cannot)?;
        let response = channel
            .send_request(&(plan, settings_variables()), &[directory_fd.as_fd()])
            .and_then(|()| channel.receive_within::<Result<(), StartError>>(CREATE_TIMEOUT));
        match response {
            Ok(Some(Ok(()))) => Ok(supervisor),
            other => {
                // The supervisor has exited by itself, or must not continue.
                let _ = supervisor.kill();
                let _ = supervisor.wait();
                Err(match other {
                    Ok(Some(Err(error))) => SandboxError::Failed(error),
                    Ok(_) => failed_error(format!(
                        "the supervisor of the sandbox {} ended before the sandbox was created",
                        plan.id
                    )),
                    Err(error) => cannot(error),
                })
            }
        }
    }
}

/// Takes the exclusive lock of a file.
fn lock_exclusively(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let give_up = Instant::now() + CREATE_TIMEOUT;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < give_up => thread::sleep(LOCK_RETRY_DELAY),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Forwards the events of the supervisor, and reports its end if that was not requested.
fn forward_events(channel: &Channel, events: &SandboxEventSender, destroyed: &AtomicBool) {
    let mut is_lost = false;
    while let Ok(Some(event)) = channel.receive::<SandboxEvent>(MAX_MESSAGE_BYTES) {
        is_lost |= matches!(event, SandboxEvent::Lost(_));
        events.send_event(event);
    }
    if !is_lost && !destroyed.load(Ordering::Acquire) {
        events.send_event(SandboxEvent::Lost("its supervisor has ended".to_owned()));
    }
}

/// Address of a supervisor.
#[derive(Clone, Debug)]
struct SupervisorAddress {
    id: SandboxId,
    directory: PathBuf,
}

impl SupervisorAddress {
    fn connect(&self) -> Result<Channel, SandboxError> {
        connect_in(&self.directory).map_err(|error| match error.kind() {
            // No directory, no socket, or no listener.
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => SandboxError::Gone(self.id.clone()),
            _ => self.unreachable_error(&error),
        })
    }

    fn unreachable_error(&self, why: &dyn std::fmt::Display) -> SandboxError {
        failed_error(format!("the supervisor of the sandbox {} cannot be reached: {why}", self.id))
    }

    fn send_request(&self, request: &Request, along: &[BorrowedFd<'_>]) -> Result<Channel, SandboxError> {
        let channel = self.connect()?;
        channel.send_request(request, along).map_err(|error| self.connection_error(&error))?;
        Ok(channel)
    }

    /// Returns the error for a broken connection: the supervisor is gone, or soon will be.
    fn connection_error(&self, error: &io::Error) -> SandboxError {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
                SandboxError::Gone(self.id.clone())
            }
            io::ErrorKind::TimedOut => self.unreachable_error(&"it does not answer"),
            _ => self.unreachable_error(error),
        }
    }

    /// Sends a request and receives the response. `what` names the operation in errors.
    fn call_supervisor<T: DeserializeOwned>(&self, request: &Request, what: &'static str) -> Result<T, SandboxError> {
        let channel = self.send_request(request, &[])?;
        self.receive_response(&channel, RESPONSE_TIMEOUT, what)
    }

    fn receive_response<T: DeserializeOwned>(
        &self,
        channel: &Channel,
        within: Duration,
        what: &'static str,
    ) -> Result<T, SandboxError> {
        match channel.receive_within::<Reply<T>>(within) {
            Ok(Some(answer)) => answer.map_err(|refusal| match refusal {
                Refusal::Unsupported(why) => unsupported_error(what, why),
                Refusal::Gone => SandboxError::Gone(self.id.clone()),
                Refusal::Failed(error) => SandboxError::Failed(error),
            }),
            Ok(None) => Err(SandboxError::Gone(self.id.clone())),
            Err(error) => Err(self.connection_error(&error)),
        }
    }

    /// Ends the supervisor, and with it the sandbox. Does nothing if there is no supervisor.
    fn end_supervisor(&self) -> Result<(), SandboxError> {
        let channel = match self.connect() {
            Err(SandboxError::Gone(_)) => return Ok(()),
            other => other?,
        };
        let supervisor = process_of(channel.stream());
        let request = channel.send_request(&Request::End(None), &[]).map_err(|error| self.connection_error(&error));
        let done = request.and_then(|()| self.receive_response::<()>(&channel, DESTROY_TIMEOUT, "its end"));
        match (done, supervisor) {
            // The supervisor exits after this answer.
            (Ok(()) | Err(SandboxError::Gone(_)), Some(supervisor)) if has_ended(&supervisor) => Ok(()),
            (Ok(()) | Err(SandboxError::Gone(_)), None) => Ok(()),
            (_, Some(supervisor)) => {
                // The init exits with the supervisor.
                let _ = pidfd_send_signal(&supervisor, Signal::KILL);
                if has_ended(&supervisor) { Ok(()) } else { Err(self.unreachable_error(&"it cannot be ended")) }
            }
            (Err(error), None) => Err(error),
        }
    }
}

/// Returns the process at the other end. The process lives at least as long as the connection, so
/// its number is not reused while the connection is open.
fn process_of(stream: &UnixStream) -> Option<OwnedFd> {
    let supervisor = pidfd_open(socket_peercred(stream).ok()?.pid, PidfdFlags::empty()).ok()?;
    let hung_up = readable_before(&[stream.as_fd()], Instant::now());
    matches!(hung_up, Ok(false)).then_some(supervisor)
}

fn has_ended(process: &OwnedFd) -> bool {
    matches!(readable_before(&[process.as_fd()], Instant::now() + EXIT_TIMEOUT), Ok(true))
}

/// A sandbox that another process keeps. Dropping this value does not end the sandbox.
#[derive(Debug)]
pub(in super::super) struct SupervisedSandbox {
    address: SupervisorAddress,
    enforced: EnforcementReport,
    /// Workspace and home, as paths on the host.
    trees: [PathBuf; 2],
    watch: Arc<Channel>,
    destroyed: Arc<AtomicBool>,
}

impl Sandbox for SupervisedSandbox {
    fn id(&self) -> &SandboxId {
        &self.address.id
    }

    fn enforcement_report(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(SupervisedBackend(self.address.clone()))
    }

    fn pause(&self) -> Result<(), SandboxError> {
        self.address.call_supervisor(&Request::Pause, "a pause")
    }

    fn resume(&self) -> Result<(), SandboxError> {
        self.address.call_supervisor(&Request::Resume, "going on")
    }

    fn snapshot_files(&self, _to: &Path) -> Result<(), SandboxError> {
        Err(unsupported_error("a snapshot", "its directories are on the host: copy them while it is paused"))
    }

    fn read_usage(&self) -> Result<SandboxUsage, SandboxError> {
        self.address.call_supervisor(&Request::Usage, "its usage")
    }

    fn open_tree(&self, which: SandboxTree) -> Result<OwnedFd, SandboxError> {
        let [workspace, home] = &self.trees;
        open_tree(tree_path_inside(which), if which == SandboxTree::Workspace { workspace } else { home })
    }

    fn destroy(&self) -> Result<(), SandboxError> {
        self.destroyed.store(true, Ordering::Release);
        self.address.end_supervisor()
    }
}

impl Drop for SupervisedSandbox {
    fn drop(&mut self) {
        // The end of the connection must not be reported as a loss.
        self.destroyed.store(true, Ordering::Release);
        self.watch.hang_up();
    }
}

/// Backend for commands in a sandbox that another process keeps.
struct SupervisedBackend(SupervisorAddress);

impl Backend for SupervisedBackend {
    fn name(&self) -> &'static str {
        BACKEND_NAME
    }

    fn supports_grant(&self, grant: &Grant, level: IsolationLevel) -> bool {
        supports_grant(grant, level)
    }

    fn prepare_attempt(
        &self,
        plan: &AttemptPlan,
        io: &StdioMode,
        hold: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError> {
        let cannot = |what: &dyn std::fmt::Display| StartError { what: what.to_string(), hint: None };
        let umask = own_umask().map_err(|e| cannot(&e))?;
        let order = AttemptOrder { plan: plan.clone(), io: *io, hold, umask };
        let channel = self
            .0
            .send_request(&Request::Run(Box::new(order)), &[stdin(), stdout(), stderr()])
            .map_err(|e| cannot(&e))?;
        Ok(Box::new(RemoteAttempt::await_sandbox(Arc::new(channel), events)?))
    }
}

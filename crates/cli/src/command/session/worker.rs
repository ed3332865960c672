//! Worker process of a session: it is forked ahead, prepares a sandbox, and
//! waits for a client. Then it runs the command as any other run, with the client's directory,
//! variables, streams and terminal. It exits with the command, so the next command finds no state
//! of it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, fchdir, getpid, getppid, kill_process, set_parent_process_death_signal, umask};
use stockade_launch::MountTableWatch;
use stockade_model::{RawText, SessionId};
use stockade_sys::session::replace_environment;

use super::super::run::{self, RunSetup};
use super::super::target_sandbox::RunSandbox;
use super::cache_warm_up::warm_up_caches;
use super::wire::{ExecRequest, OutcomeDestination, SessionChannel, SessionListener, SessionMessage};
use crate::args::{CommandArgs, RunArgs, RunOptions};
use crate::failure::CliError;
use crate::relay::CommandTerminal;
use crate::{exit, interrupts, resolved_args, terminal, trace};

/// Messages of a worker to its supervisor, in this order.
pub mod note {
    /// A sandbox is ready.
    pub const READY: u8 = b'r';
    /// A client has sent a command.
    pub const TAKEN: u8 = b't';
    /// A client has requested the end of the session.
    pub const END: u8 = b'e';
}

/// Signals that a client passes on.
const FORWARDED_SIGNALS: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::WINCH, Signal::CONT];
/// Signals raised when the client has disconnected: the first is passed to the command, the next
/// ends it. Three, so that two arrive even if the session ignores one of them.
const DISCONNECT_SIGNALS: [Signal; 3] = [Signal::HUP, Signal::TERM, Signal::INT];

/// Common parameters of all workers of a session.
#[derive(Debug)]
pub struct WorkerParameters {
    /// Listener for clients.
    pub listener: SessionListener,
    /// The session.
    pub session: SessionId,
    /// Options of its commands.
    pub options: RunOptions,
}

/// Runs a worker, in a process of its own with one thread. Returns its exit code.
pub fn run_worker(parameters: WorkerParameters, supervisor: Pid, tell: OwnedFd) -> u8 {
    let mut tell = File::from(tell);
    match wait_and_run(parameters, supervisor, &mut tell) {
        Ok(()) => exit::SUCCESS,
        // No client is connected that could get the error.
        Err(_) => exit::STOCKADE_FAILURE,
    }
}

fn wait_and_run(parameters: WorkerParameters, supervisor: Pid, tell: &mut File) -> Result<(), CliError> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(supervisor) {
        return Ok(());
    }
    // Before any thread starts.
    let signals = interrupts::take_signals()?;
    let mounts = MountTableWatch::start_watching()?;
    let prewarmed_init = run::start_prewarmed_init(&parameters.options);
    warm_up_caches(&parameters.options);
    tell.write_all(&[note::READY])?;
    let Some(line) = await_caller(&parameters.listener, &mounts)? else { return Ok(()) };
    let Some((word, descriptors)) = line.hear_soon()? else { return Ok(()) };
    match word {
        SessionMessage::End => {
            // In this order, because the supervisor ends the sender of `END`.
            let send_result = line.send_message(SessionMessage::Accepted, &[]);
            tell.write_all(&[note::END])?;
            Ok(send_result?)
        }
        SessionMessage::Exec => {
            tell.write_all(&[note::TAKEN])?;
            let line = Arc::new(line);
            let job = Arc::new(ClientJob::default());
            let code = match take_over(parameters, descriptors.into_iter().flatten(), &line, &job) {
                Ok((typed, mask)) => {
                    let prewarmed_init = prewarmed_init.map(|prewarmed_init| prewarmed_init.with_umask(mask));
                    run_for(
                        (&line, job),
                        typed,
                        RunSetup {
                            signals,
                            terminal: CommandTerminal::Own,
                            run_sandbox: RunSandbox::Own(prewarmed_init),
                            supervisor: None,
                        },
                    )?
                }
                Err(failure) => {
                    crate::print_error(&failure);
                    exit::STOCKADE_FAILURE
                }
            };
            Ok(line.send_message(SessionMessage::Over(code), &[])?)
        }
        SessionMessage::Signal(_) | SessionMessage::Accepted | SessionMessage::Over(_) | SessionMessage::Stopped => {
            Err(CliError::new("a client sent a malformed request"))
        }
    }
}

/// Waits for the first client. Returns `None` if a mount has changed meanwhile, which the prepared
/// sandbox does not see.
fn await_caller(listener: &SessionListener, mounts: &MountTableWatch) -> io::Result<Option<SessionChannel>> {
    loop {
        let mut waited = [PollFd::new(listener, PollFlags::IN), PollFd::new(mounts, PollFlags::PRI)];
        // Without a limit, because this process ends with the supervisor.
        poll(&mut waited, None)?;
        let [called, remounted] = waited.map(|fd| !fd.revents().is_empty());
        if called && let Some(line) = listener.accept_client()? {
            return Ok(Some(line));
        }
        if remounted {
            return Ok(None);
        }
    }
}

/// Takes the client's environment: the streams first, so that errors are printed there. Returns the
/// command line, and the client's file mode creation mask.
fn take_over(
    parameters: WorkerParameters,
    mut descriptors: impl Iterator<Item = OwnedFd>,
    line: &Arc<SessionChannel>,
    job: &Arc<ClientJob>,
) -> Result<(RunArgs, u32), CliError> {
    let cannot = |error: io::Error| CliError::new(format!("the session received a malformed request: {error}"));
    let mut next = || descriptors.next().ok_or_else(|| cannot(io::ErrorKind::InvalidData.into()));
    let (request, cwd, stdin, stdout, stderr) = (next()?, next()?, next()?, next()?, next()?);
    rustix::stdio::dup2_stderr(stderr).map_err(|e| cannot(e.into()))?;
    rustix::stdio::dup2_stdout(stdout).map_err(|e| cannot(e.into()))?;
    rustix::stdio::dup2_stdin(stdin).map_err(|e| cannot(e.into()))?;
    fchdir(cwd).map_err(|e| CliError::new(format!("cannot enter the current directory: {e}")))?;
    let request = ExecRequest::from_file(request).map_err(cannot)?;
    umask(Mode::from_raw_mode(request.umask));
    let variable = |(name, value): &(RawText, RawText)| (name.as_os_str().to_owned(), value.as_os_str().to_owned());
    let environment: Vec<_> = request.environment.iter().map(variable).collect();
    replace_environment(&environment).map_err(cannot)?;
    if let Some(person) = descriptors.next() {
        let (line, job) = (Arc::clone(line), Arc::clone(job));
        terminal::use_lent_terminal(person, move || job.stop_client(&line));
    }
    trace::start_tracing(None)?;
    let mut options = parameters.options;
    options.requests.extend(request.requests.iter().map(|typed| typed.as_os_str().to_owned()));
    let typed = RunArgs {
        options,
        session: Some(parameters.session.to_string()),
        json: match request.report {
            OutcomeDestination::Nowhere => None,
            OutcomeDestination::StandardOutput => Some(None),
            OutcomeDestination::File(file) => Some(Some(file.as_path().to_owned())),
        },
        subject: CommandArgs {
            script: request.script.map(|script| script.as_os_str().to_owned()),
            words: request.words.iter().map(|word| word.as_os_str().to_owned()).collect(),
        },
        ..RunArgs::default()
    };
    Ok((typed, request.umask))
}

/// Runs the command as `run` does. The run is cancelled if the client has disconnected already.
fn run_for(
    (line, job): (&Arc<SessionChannel>, Arc<ClientJob>),
    typed: RunArgs,
    setup: RunSetup,
) -> Result<u8, CliError> {
    let id = resolved_args::request_id()?;
    line.send_message(SessionMessage::Accepted, &[])?;
    let caller = Arc::clone(line);
    thread::Builder::new().name("stockade-caller".to_owned()).spawn(move || pass_on(&caller, &job))?;
    Ok(run::run_to_end(typed, id, |_| Ok(setup)).1)
}

/// Passes on the client's signals, and its disconnection.
fn pass_on(caller: &SessionChannel, job: &ClientJob) {
    let raise = |signal: Signal| {
        // The signal is for this process itself.
        let _ = kill_process(getpid(), signal);
    };
    while let Ok(Some((word, _))) = caller.receive_message() {
        let SessionMessage::Signal(number) = word else { break };
        FORWARDED_SIGNALS.into_iter().filter(|signal| signal.as_raw() == number).for_each(raise);
        // Any message means that the job runs, because a stopped job passes no signal on.
        job.become_state(JobState::Running);
    }
    job.become_state(JobState::Gone);
    DISCONNECT_SIGNALS.into_iter().for_each(raise);
}

/// The client's job, which stops with the command.
#[derive(Debug, Default)]
struct ClientJob {
    state: Mutex<JobState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum JobState {
    #[default]
    Running,
    Stopped,
    Gone,
}

impl ClientJob {
    /// Stops the client, and waits until it continues or disconnects. Without a limit, because a
    /// user may return to a job at any time.
    fn stop_client(&self, line: &SessionChannel) {
        let mut state = self.lock_state();
        if *state == JobState::Gone || line.send_message(SessionMessage::Stopped, &[]).is_err() {
            return;
        }
        *state = JobState::Stopped;
        let _running = self.changed.wait_while(state, |state| *state == JobState::Stopped);
    }

    fn become_state(&self, new_state: JobState) {
        *self.lock_state() = new_state;
        self.changed.notify_all();
    }

    fn lock_state(&self) -> MutexGuard<'_, JobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

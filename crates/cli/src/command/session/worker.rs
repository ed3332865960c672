//! Worker process of a session: it is forked ahead, prepares a sandbox, and
//! waits for a client. Then it runs the command as any other run, with the client's directory,
//! variables, streams and terminal. It exits with the command, so the next command finds no state
//! of it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, fchdir, getpid, kill_process};
use stockade_launch::MountTableWatch;
use stockade_model::{RawText, SessionId};
use stockade_supervisor::{
    Channel, ClientMessage, ExecRequest, Listener, MAX_CLIENT_MESSAGE_BYTES, OutcomeDestination, Refusal, Reply,
    Request, RunMessage, WorkerNote, WorkerNotes, take_over_streams,
};
use stockade_sys::session::replace_environment;

use super::super::run::{self, RunSetup};
use super::super::target_sandbox::RunSandbox;
use super::cache_warm_up::warm_up_caches;
use crate::args::{CommandArgs, RunArgs, RunOptions};
use crate::failure::CliError;
use crate::relay::CommandTerminal;
use crate::{exit, interrupts, resolved_args, terminal, trace};

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
    pub listener: Listener,
    /// The session.
    pub session: SessionId,
    /// Options of its commands.
    pub options: RunOptions,
}

/// Runs a worker, in a process of its own with one thread. Returns its exit code.
pub fn run_worker(parameters: WorkerParameters, notes: WorkerNotes) -> u8 {
    // No client is connected that could get an error.
    wait_and_run(parameters, notes).map_or(exit::STOCKADE_FAILURE, |()| exit::SUCCESS)
}

fn wait_and_run(parameters: WorkerParameters, mut notes: WorkerNotes) -> Result<(), CliError> {
    // Before any thread starts.
    let signals = interrupts::take_signals()?;
    let mounts = MountTableWatch::start_watching()?;
    let prewarmed_init = run::start_prewarmed_init(&parameters.options);
    warm_up_caches(&parameters.options);
    notes.send(WorkerNote::Ready)?;
    let Some(channel) = await_client(&parameters.listener, &mounts)? else { return Ok(()) };
    let Some((request, along)) = channel.accept_request()? else { return Ok(()) };
    match request {
        Request::End(_) => {
            // In this order, because the supervisor ends the sender of `End`.
            let send_result = channel.send(&Reply::Ok(()));
            notes.send(WorkerNote::End)?;
            Ok(send_result?)
        }
        Request::Exec(request) => {
            notes.send(WorkerNote::Taken)?;
            let channel = Arc::new(channel);
            let job = Arc::new(ClientJob::default());
            let code = match take_over(parameters, *request, along, &channel, &job) {
                Ok((typed, mask)) => {
                    let prewarmed_init = prewarmed_init.map(|prewarmed_init| prewarmed_init.with_umask(mask));
                    run_for(
                        (&channel, job),
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
                    channel.send(&Reply::Ok(()))?;
                    exit::STOCKADE_FAILURE
                }
            };
            Ok(channel.send(&RunMessage::Over(code))?)
        }
        _ => Ok(channel.send(&Reply::<()>::Err(Refusal::unknown_request()))?),
    }
}

/// Waits for the first client. Returns `None` if a mount has changed meanwhile, which the prepared
/// sandbox does not see.
fn await_client(listener: &Listener, mounts: &MountTableWatch) -> io::Result<Option<Channel>> {
    loop {
        let mut waited = [PollFd::new(listener, PollFlags::IN), PollFd::new(mounts, PollFlags::PRI)];
        // Without a limit, because this process ends with the supervisor.
        poll(&mut waited, None)?;
        let [called, remounted] = waited.map(|fd| !fd.revents().is_empty());
        if called && let Some(channel) = listener.accept_client()? {
            return Ok(Some(channel));
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
    request: ExecRequest,
    along: Vec<OwnedFd>,
    channel: &Arc<Channel>,
    job: &Arc<ClientJob>,
) -> Result<(RunArgs, u32), CliError> {
    let cannot = |error: io::Error| CliError::new(format!("the session received a malformed request: {error}"));
    let mut along = along.into_iter();
    let mut next = || along.next().ok_or_else(|| cannot(io::ErrorKind::InvalidData.into()));
    let (cwd, stdin, stdout, stderr) = (next()?, next()?, next()?, next()?);
    take_over_streams([stdin, stdout, stderr], request.umask).map_err(cannot)?;
    fchdir(cwd).map_err(|e| CliError::new(format!("cannot enter the current directory: {e}")))?;
    let variable = |(name, value): &(RawText, RawText)| (name.as_os_str().to_owned(), value.as_os_str().to_owned());
    let environment: Vec<_> = request.environment.iter().map(variable).collect();
    replace_environment(&environment).map_err(cannot)?;
    if let Some(person) = along.next() {
        let (channel, job) = (Arc::clone(channel), Arc::clone(job));
        terminal::use_lent_terminal(person, move || job.stop_client(&channel));
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
fn run_for((channel, job): (&Arc<Channel>, Arc<ClientJob>), typed: RunArgs, setup: RunSetup) -> Result<u8, CliError> {
    let id = resolved_args::request_id()?;
    channel.send(&Reply::Ok(()))?;
    let caller = Arc::clone(channel);
    thread::Builder::new().name("stockade-caller".to_owned()).spawn(move || pass_on(&caller, &job))?;
    Ok(run::run_to_end(typed, id, |_| Ok(setup)).1)
}

/// Passes on the client's signals, and its disconnection.
fn pass_on(caller: &Channel, job: &ClientJob) {
    let raise = |signal: Signal| {
        // The signal is for this process itself.
        let _ = kill_process(getpid(), signal);
    };
    while let Ok(Some(ClientMessage::Signal(number))) = caller.receive(MAX_CLIENT_MESSAGE_BYTES) {
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
    fn stop_client(&self, channel: &Channel) {
        let mut state = self.lock_state();
        if *state == JobState::Gone || channel.send(&RunMessage::Stopped).is_err() {
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

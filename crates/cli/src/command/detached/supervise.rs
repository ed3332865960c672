//! `stockade run --detach`: forks the supervisor of the run into a session of its own, and stores
//! the output in the run's directory. The launcher waits until the command has started, and prints
//! the run's id.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::isatty;
use stockade_engine::adapters::RulePolicyEngine;
use stockade_engine::ports::{EventRecorder, RecordError};
use stockade_engine::{InterruptSender, RequestEngine};
use stockade_model::{EnforcementReport, Event, EventKind, RawText, RequestId, RunRequest};
use stockade_store::runs::{DetachedRun, OutputStream, OutputWriter, RunDescription, RunStore, SupervisedRun};
use stockade_supervisor::{
    AttachedApprover, Channel, ClientRegistry, EndSignal, RunInput, StartReport, Supervisor, fork_supervisor,
    open_dev_null, release_streams,
};
use stockade_sys::descriptors::close_all_but;

use super::super::run::{self, RunSetup};
use super::super::target_sandbox::RunSandbox;
use super::super::{CommandResult, now_ms, print_output, read_variable};
use super::input::InputGate;
use super::service::RunService;
use crate::args::RunArgs;
use crate::failure::CliError;
use crate::locations::StateDirectory;
use crate::relay::{CommandTerminal, note_typed, open_terminal_pair};
use crate::{exit, interrupts, locations};

/// Time-out for the start of the command. No question is asked before.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Time-out for storing the last output after the end.
const OUTPUT_STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes read from a pipe at once: its whole capacity.
const PIPE_BUFFER_BYTES: usize = 64 << 10;

/// Starts a detached run, and prints its id.
///
/// # Errors
/// [`CliError`] if it cannot be started.
pub fn start_detached_run(typed: RunArgs, id: RequestId) -> CommandResult {
    if matches!(typed.json, Some(None)) {
        return Err(
            CliError::new("a detached run has no standard output for its outcome").with_hint("write --json=FILE")
        );
    }
    // Only descriptors of the caller are open besides, which the supervisor must not keep open.
    close_all_but(&[0, 1, 2]).map_err(detach_error)?;
    let state = StateDirectory::open(&locations::state_path(&read_variable)?)?;
    let watched = RunStore::at_root(state.runs_directory()).begin_run(&id)?;
    let run = watched.run().clone();
    // The supervisor has a copy of the lock, which is released with the last one.
    match fork_supervisor(|launcher| run_supervisor(typed, id, watched, launcher)) {
        Ok((_, supervisor)) => await_start(&supervisor, &run),
        Err(error) => {
            run.remove()?;
            Err(detach_error(error))
        }
    }
}

fn detach_error(error: impl std::fmt::Display) -> CliError {
    CliError::new(format!("cannot detach the run: {error}"))
}

/// Runs the launcher.
fn await_start(supervisor: &Channel, run: &DetachedRun) -> CommandResult {
    match supervisor.receive_within::<StartReport>(START_TIMEOUT) {
        Ok(Some(Ok(()))) => {
            print_output(&format!("{}\n", run.id()))?;
            Ok(exit::SUCCESS)
        }
        Ok(Some(Err(code))) => {
            // The command did not run: the messages are shown here, and nothing is stored.
            super::OutputPrinter::default().print_available(&mut run.open_output())?;
            run.remove()?;
            Ok(code)
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let why = format!("the command was not started within {} s", START_TIMEOUT.as_secs());
            Err(CliError::new(why).with_hint(format!("stockade kill {}", run.id())))
        }
        Ok(None) | Err(_) => Err(CliError::new("the supervisor of the run ended before the command was started")
            .with_hint(format!("stockade logs {}", run.id()))),
    }
}

/// Runs the supervisor. Only the launcher sees its exit code.
fn run_supervisor(typed: RunArgs, id: RequestId, watched: SupervisedRun, launcher: Channel) -> u8 {
    let output = watched.output_writer();
    let mut supervisor = RunSupervisor {
        watched,
        launcher: Mutex::new(Some(launcher)),
        clients: Arc::default(),
        input: None,
        enforced: Arc::default(),
    };
    // Before any thread starts.
    let begun = interrupts::take_signals().and_then(|signals| {
        let CommandStreams { input, terminal, shown } = CommandStreams::redirect_input(&typed)?;
        supervisor.input = input.map(Arc::new);
        Ok((signals, terminal, OutputRecorder::start_recording(output, shown)?))
    });
    let (signals, terminal, recording) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            crate::print_error(&failure);
            supervisor.notify_launcher(Err(exit::STOCKADE_FAILURE));
            return exit::STOCKADE_FAILURE;
        }
    };
    let supervisor = Arc::new(supervisor);
    let setup = RunSetup {
        signals,
        terminal: terminal.map_or(CommandTerminal::Own, CommandTerminal::Held),
        run_sandbox: RunSandbox::Own(None),
        supervisor: Some(Arc::clone(&supervisor)),
    };
    let (outcome, code) = run::run_to_end(typed, id, |_| Ok(setup));
    if let Err(error) = supervisor.watched.write_outcome(&outcome) {
        crate::print_error(&error.into());
    }
    recording.finish_recording();
    supervisor.notify_launcher(Err(code));
    code
}

/// Standard streams of the command.
#[derive(Default)]
struct CommandStreams {
    input: Option<RunInput>,
    /// The command's side of its terminal, if it has one.
    terminal: Option<OwnedFd>,
    /// The other side of the terminal, to read its output.
    shown: Option<OwnedFd>,
}

impl CommandStreams {
    /// Replaces standard input by the command's input. A terminal replaces it later; it is created
    /// with the modes and size of the launcher's.
    fn redirect_input(typed: &RunArgs) -> Result<Self, CliError> {
        if typed.tty {
            let stdin = io::stdin();
            let (ours, inner) = open_terminal_pair(isatty(&stdin).then(|| stdin.as_fd())).map_err(detach_error)?;
            let shown = ours.try_clone().map_err(detach_error)?;
            rustix::stdio::dup2_stdin(open_dev_null().map_err(detach_error)?).map_err(detach_error)?;
            return Ok(Self {
                input: Some(RunInput::from_terminal(ours, note_typed)),
                terminal: Some(inner),
                shown: Some(shown),
            });
        }
        if typed.interactive {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(detach_error)?;
            rustix::stdio::dup2_stdin(read).map_err(detach_error)?;
            return Ok(Self {
                input: Some(RunInput::from_pipe(write, note_typed).map_err(detach_error)?),
                ..Self::default()
            });
        }
        rustix::stdio::dup2_stdin(open_dev_null().map_err(detach_error)?).map_err(detach_error)?;
        Ok(Self::default())
    }
}

/// Parts of a detached run: a directory, a socket, clients that attach and detach, and a launcher
/// that waits for the start.
#[derive(Debug)]
pub struct RunSupervisor {
    watched: SupervisedRun,
    launcher: Mutex<Option<Channel>>,
    clients: Arc<ClientRegistry>,
    input: Option<Arc<RunInput>>,
    /// Enforcement report of the command, once it has started.
    enforced: Arc<Mutex<Option<EnforcementReport>>>,
}

impl RunSupervisor {
    /// Lets other processes see the run from here on. Returns the recorder that detects its start.
    ///
    /// # Errors
    /// [`CliError`] if its directory cannot be written.
    pub fn publish_run(
        self: &Arc<Self>,
        request: &RunRequest,
        recorder: Arc<dyn EventRecorder>,
    ) -> Result<Arc<dyn EventRecorder>, CliError> {
        self.watched.write_description(&RunDescription {
            id: request.id.clone(),
            session: request.session.clone(),
            command: request.command.clone(),
            workspace: request.workspace.clone(),
            profile: request.profile.clone(),
            started_ms: now_ms(),
            supervisor: std::process::id(),
        })?;
        Ok(Arc::new(LauncherNotifier { recorder, supervisor: Arc::clone(self) }))
    }

    /// Returns the attached clients as the approver. The spans of findings refer to `text`.
    pub fn create_approver(&self, text: RawText) -> AttachedApprover {
        AttachedApprover::new(Arc::clone(&self.clients), text)
    }

    /// Lets other processes end the run and attach clients from here on. `policy_engine` decides on their
    /// input, and `engine` handles it.
    ///
    /// # Errors
    /// [`CliError`] if no socket can be created.
    pub fn serve_clients(
        &self,
        interrupter: InterruptSender,
        engine: RequestEngine,
        policy_engine: RulePolicyEngine,
        request: &RunRequest,
    ) -> Result<(), CliError> {
        let gate = InputGate::new(
            engine,
            policy_engine,
            request.clone(),
            Arc::clone(&self.clients),
            Arc::clone(&self.enforced),
        );
        let cannot = |e: io::Error| CliError::new(format!("cannot listen in the directory of the run: {e}"));
        let (clients, input) = (Arc::clone(&self.clients), self.input.clone());
        let service = Arc::new(RunService { clients, input, gate, interrupter });
        let end = Arc::new(EndSignal::new().map_err(cannot)?);
        let supervisor = Supervisor::listen_in(self.watched.run().path(), service, end).map_err(cannot)?;
        // The end of this process ends the thread.
        let serve = move || supervisor.serve_until_end(|| Some(Duration::MAX), || Ok(()));
        thread::Builder::new().name("stockade-control".to_owned()).spawn(serve).map(drop).map_err(cannot)
    }

    fn note_start(&self, enforced: &EnforcementReport) {
        *self.enforced.lock().unwrap_or_else(PoisonError::into_inner) = Some(enforced.clone());
        self.notify_launcher(Ok(()));
    }

    /// Sends the first message to the launcher, and ignores later ones. A launcher that has exited
    /// does not need it.
    fn notify_launcher(&self, report: StartReport) {
        if let Some(launcher) = self.launcher.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = launcher.send(&report);
        }
    }
}

/// Notifies the launcher once the start of the command is recorded in the audit log.
struct LauncherNotifier {
    recorder: Arc<dyn EventRecorder>,
    supervisor: Arc<RunSupervisor>,
}

impl EventRecorder for LauncherNotifier {
    fn record_events(&self, events: &[Event]) -> Result<(), RecordError> {
        self.recorder.record_events(events)?;
        for event in events {
            if let EventKind::Started { enforced, .. } = &event.kind {
                self.supervisor.note_start(enforced);
            }
        }
        Ok(())
    }

    fn commit_events(&self) -> Result<(), RecordError> {
        self.recorder.commit_events()
    }
}

/// Stores the standard streams of this process, on a thread of its own.
struct OutputRecorder {
    stored_output: Receiver<()>,
}

impl OutputRecorder {
    /// Replaces standard output and error by pipes. Output of a terminal counts as standard output.
    fn start_recording(output: OutputWriter, terminal: Option<OwnedFd>) -> Result<Self, CliError> {
        let (out, from_out) = pipe_with(PipeFlags::CLOEXEC).map_err(detach_error)?;
        let (err, from_err) = pipe_with(PipeFlags::CLOEXEC).map_err(detach_error)?;
        let (on_drop, stored_output) = channel::<()>();
        let record_streams = move || {
            let all = [(OutputStream::Out, out), (OutputStream::Err, err)]
                .into_iter()
                .chain(terminal.map(|shown| (OutputStream::Out, shown)));
            store_output(all.collect(), output);
            drop(on_drop);
        };
        thread::Builder::new().name("stockade-output".to_owned()).spawn(record_streams).map_err(detach_error)?;
        rustix::stdio::dup2_stdout(from_out).map_err(detach_error)?;
        rustix::stdio::dup2_stderr(from_err).map_err(detach_error)?;
        Ok(Self { stored_output })
    }

    /// Returns when all output is stored. No process of the run is left that could print.
    fn finish_recording(self) {
        if release_streams().is_ok() {
            // Disconnected by the end of the thread; a time-out means that its disk does not
            // respond.
            let _ = self.stored_output.recv_timeout(OUTPUT_STORE_TIMEOUT);
        }
    }
}

/// Stores the output of these descriptors until all are closed. They are drained even if storing
/// fails, because a full disk must not stop the command.
fn store_output(mut open: Vec<(OutputStream, OwnedFd)>, mut output: OutputWriter) {
    let mut buffer = vec![0; PIPE_BUFFER_BYTES];
    while !open.is_empty() {
        let mut waited: Vec<PollFd<'_>> = open.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)).collect();
        // Without a limit, because the end of this process ends the thread.
        let _ = poll(&mut waited, None);
        let ready: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        open.retain(|(stream, pipe)| {
            !ready.next().unwrap_or(false) || store_available_output(*stream, pipe, &mut buffer, &mut output)
        });
    }
}

/// Stores the available output. Returns false at the end, which a terminal reports by EIO (pty(7)).
fn store_available_output(stream: OutputStream, pipe: &OwnedFd, buffer: &mut [u8], output: &mut OutputWriter) -> bool {
    match rustix::io::read(pipe, &mut *buffer) {
        Ok(0) => false,
        Ok(length) => {
            if let Err(error) = output.append_output(stream, &buffer[..length]) {
                tracing::warn!(%error, "the output could not be stored");
            }
            true
        }
        Err(error) => error == Errno::INTR || error == Errno::AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn both_streams_are_kept_to_their_ends() {
        let dir = tempfile::tempdir().unwrap();
        let id = RequestId::from_random([7; 16]);
        let watched = RunStore::at_root(dir.path().join("runs")).begin_run(&id).unwrap();
        let (out, mut from_out) = io::pipe().unwrap();
        let (err, mut from_err) = io::pipe().unwrap();
        from_out.write_all(b"to out").unwrap();
        from_err.write_all(b"to err").unwrap();
        drop((from_out, from_err));
        store_output(vec![(OutputStream::Out, out.into()), (OutputStream::Err, err.into())], watched.output_writer());
        let mut stored_output = watched.run().open_output();
        let pieces: Vec<_> = std::iter::from_fn(|| stored_output.next_piece().unwrap()).collect();
        assert_eq!(pieces.len(), 2, "{pieces:?}");
    }
}

//! `stockade run --detach`: forks the supervisor of the run into a session of its own, and stores
//! the output in the run's directory. The launcher waits until the command has started, and prints
//! the run's id.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::isatty;
use stockade_engine::real::RuleJudge;
use stockade_engine::seams::{RecordError, Recorder};
use stockade_engine::{Engine, Interrupter};
use stockade_model::{EnforcementReport, Event, EventKind, RawText, Request, RequestId};
use stockade_store::runs::{About, Output, Run, Runs, Stream, Watched};
use stockade_sys::descriptors::close_all_but;
use stockade_sys::session::{Side, fork_into_session};

use super::super::place::Place;
use super::super::run::{self, Front};
use super::super::{Ended, now_ms, print, variable};
use super::clients::{AttachedApprover, Clients};
use super::control;
use super::input::{Gate, Input};
use super::served::Desk;
use crate::args::RunArgs;
use crate::failure::Failure;
use crate::places::State;
use crate::relay::{Given, pair};
use crate::{exit, interrupts, places};

/// Time-out for the start of the command. No question is asked before.
const STARTS_WITHIN: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };
/// Time-out for storing the last output after the end.
const KEPT_WITHIN: Duration = Duration::from_secs(10);
/// Bytes read from a pipe at once: its whole capacity.
const PIPE_BYTES: usize = 64 << 10;
/// Message to the launcher: the command has started.
const STARTED: u8 = b's';
/// Message to the launcher: the command did not start; the exit code follows.
const ENDED: u8 = b'e';

/// Starts a detached run, and prints its id.
///
/// # Errors
/// [`Failure`] if it cannot be started.
pub fn detach(typed: RunArgs, id: RequestId) -> Ended {
    if matches!(typed.json, Some(None)) {
        return Err(Failure::new("a detached run has no standard output for its outcome").hint("write --json=FILE"));
    }
    // Only descriptors of the caller are open besides, which the supervisor must not keep open.
    close_all_but(&[0, 1, 2]).map_err(cannot)?;
    let state = State::open(&places::state_path(&variable)?)?;
    let watched = Runs::of(state.runs()).begin(&id)?;
    let (told, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(cannot)?;
    match fork_into_session() {
        Ok(Side::Child) => {
            drop(told);
            Ok(supervise(typed, id, watched, tell))
        }
        Ok(Side::Parent(_)) => {
            drop(tell);
            let run = watched.run().clone();
            // The supervisor has a copy: the lock is released with the last one.
            drop(watched);
            await_start(told, &run)
        }
        Err(error) => {
            watched.run().remove()?;
            Err(cannot(error))
        }
    }
}

fn cannot(error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("cannot detach the run: {error}"))
}

/// Runs the launcher.
fn await_start(told: OwnedFd, run: &Run) -> Ended {
    let mut waited = [PollFd::new(&told, PollFlags::IN)];
    if poll(&mut waited, Some(&STARTS_WITHIN)).map_err(cannot)? == 0 {
        let why = format!("the command was not started within {} s", STARTS_WITHIN.tv_sec);
        return Err(Failure::new(why).hint(format!("stockade kill {}", run.id())));
    }
    // One read suffices, because so few bytes are written atomically (pipe(7)).
    let mut message = [0; 2];
    let length = File::from(told).read(&mut message).map_err(cannot)?;
    match message[..length] {
        [STARTED, ..] => {
            print(&format!("{}\n", run.id()))?;
            Ok(exit::SUCCESS)
        }
        [ENDED, code] => {
            // The command did not run: the messages are shown here, and nothing is stored.
            super::Shower::default().show(&mut run.output())?;
            run.remove()?;
            Ok(code)
        }
        _ => Err(Failure::new("the supervisor of the run ended before the command was started")
            .hint(format!("stockade logs {}", run.id()))),
    }
}

/// Runs the supervisor. Only the launcher sees its exit code.
fn supervise(typed: RunArgs, id: RequestId, watched: Watched, tell: OwnedFd) -> u8 {
    let output = watched.output();
    let mut supervisor = Supervisor {
        watched,
        launcher: Mutex::new(Some(tell.into())),
        clients: Arc::default(),
        input: None,
        enforced: Arc::default(),
    };
    // Before any thread starts.
    let begun = interrupts::take().and_then(|signals| {
        let Streams { input, terminal, shown } = Streams::of(&typed)?;
        supervisor.input = input.map(Arc::new);
        Ok((signals, terminal, Recording::begin(output, shown)?))
    });
    let (signals, terminal, recording) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            crate::complain(&failure);
            supervisor.tell(&[ENDED, exit::FAILURE]);
            return exit::FAILURE;
        }
    };
    let supervisor = Arc::new(supervisor);
    let front = Front {
        signals,
        terminal: terminal.map_or(Given::Own, Given::Held),
        place: Place::Own(None),
        supervisor: Some(Arc::clone(&supervisor)),
    };
    let (outcome, code) = run::complete(typed, id, |_| Ok(front));
    if let Err(error) = supervisor.watched.finish(&outcome) {
        crate::complain(&error.into());
    }
    recording.end();
    supervisor.tell(&[ENDED, code]);
    code
}

/// Standard streams of the command.
#[derive(Default)]
struct Streams {
    input: Option<Input>,
    /// The command's side of its terminal, if it has one.
    terminal: Option<OwnedFd>,
    /// The other side of the terminal, to read its output.
    shown: Option<OwnedFd>,
}

impl Streams {
    /// Replaces standard input by the command's input. A terminal replaces it later; it is created
    /// with the modes and size of the launcher's.
    fn of(typed: &RunArgs) -> Result<Self, Failure> {
        if typed.tty {
            let stdin = std::io::stdin();
            let (ours, inner) = pair(isatty(&stdin).then(|| stdin.as_fd())).map_err(cannot)?;
            let shown = ours.try_clone().map_err(cannot)?;
            rustix::stdio::dup2_stdin(nothing()?).map_err(cannot)?;
            return Ok(Self { input: Some(Input::at(ours)), terminal: Some(inner), shown: Some(shown) });
        }
        if typed.interactive {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(cannot)?;
            rustix::stdio::dup2_stdin(read).map_err(cannot)?;
            return Ok(Self { input: Some(Input::through(write).map_err(cannot)?), ..Self::default() });
        }
        rustix::stdio::dup2_stdin(nothing()?).map_err(cannot)?;
        Ok(Self::default())
    }
}

/// Parts of a detached run: a directory, a socket, clients that attach and detach, and a launcher
/// that waits for the start.
#[derive(Debug)]
pub struct Supervisor {
    watched: Watched,
    launcher: Mutex<Option<File>>,
    clients: Arc<Clients>,
    input: Option<Arc<Input>>,
    /// Enforcement report of the command, once it has started.
    enforced: Arc<Mutex<Option<EnforcementReport>>>,
}

impl Supervisor {
    /// Lets other processes see the run from here on. Returns the recorder that detects its start.
    ///
    /// # Errors
    /// [`Failure`] if its directory cannot be written.
    pub fn oversee(
        self: &Arc<Self>,
        request: &Request,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Arc<dyn Recorder>, Failure> {
        self.watched.describe(&About {
            id: request.id.clone(),
            session: request.session.clone(),
            command: request.command.clone(),
            workspace: request.workspace.clone(),
            profile: request.profile.clone(),
            started_ms: now_ms(),
            supervisor: std::process::id(),
        })?;
        Ok(Arc::new(Announcer { recorder, supervisor: Arc::clone(self) }))
    }

    /// Returns the attached clients as the approver. The spans of findings refer to `text`.
    pub fn approver(&self, text: RawText) -> AttachedApprover {
        AttachedApprover::new(Arc::clone(&self.clients), text)
    }

    /// Lets other processes end the run and attach clients from here on. `judge` decides on their
    /// input, and `engine` handles it.
    ///
    /// # Errors
    /// [`Failure`] if no socket can be created.
    pub fn serve(
        &self,
        interrupter: Interrupter,
        engine: Engine,
        judge: RuleJudge,
        request: &Request,
    ) -> Result<(), Failure> {
        let gate = Gate::new(engine, judge, request.clone(), Arc::clone(&self.clients), Arc::clone(&self.enforced));
        let desk = Arc::new(Desk::new(Arc::clone(&self.clients), self.input.clone(), gate));
        control::serve(self.watched.run(), interrupter, desk)
    }

    fn note_start(&self, enforced: &EnforcementReport) {
        *self.enforced.lock().unwrap_or_else(PoisonError::into_inner) = Some(enforced.clone());
        self.tell(&[STARTED]);
    }

    /// Sends the first message to the launcher, and ignores later ones. A launcher that has exited
    /// does not need it.
    fn tell(&self, message: &[u8]) {
        if let Some(mut launcher) = self.launcher.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = launcher.write_all(message);
        }
    }
}

/// Notifies the launcher once the start of the command is recorded in the audit log.
struct Announcer {
    recorder: Arc<dyn Recorder>,
    supervisor: Arc<Supervisor>,
}

impl Recorder for Announcer {
    fn record(&self, events: &[Event]) -> Result<(), RecordError> {
        self.recorder.record(events)?;
        for event in events {
            if let EventKind::Started { enforced, .. } = &event.kind {
                self.supervisor.note_start(enforced);
            }
        }
        Ok(())
    }

    fn commit(&self) -> Result<(), RecordError> {
        self.recorder.commit()
    }
}

/// Stores the standard streams of this process, on a thread of its own.
struct Recording {
    kept: Receiver<()>,
}

impl Recording {
    /// Replaces standard output and error by pipes. Output of a terminal counts as standard output.
    fn begin(output: Output, terminal: Option<OwnedFd>) -> Result<Self, Failure> {
        let (out, from_out) = pipe_with(PipeFlags::CLOEXEC).map_err(cannot)?;
        let (err, from_err) = pipe_with(PipeFlags::CLOEXEC).map_err(cannot)?;
        let (on_drop, kept) = channel::<()>();
        let keep = move || {
            let all =
                [(Stream::Out, out), (Stream::Err, err)].into_iter().chain(terminal.map(|shown| (Stream::Out, shown)));
            keep(all.collect(), output);
            drop(on_drop);
        };
        thread::Builder::new().name("stockade-output".to_owned()).spawn(keep).map_err(cannot)?;
        rustix::stdio::dup2_stdout(from_out).map_err(cannot)?;
        rustix::stdio::dup2_stderr(from_err).map_err(cannot)?;
        Ok(Self { kept })
    }

    /// Returns when all output is stored. No process of the run is left that could print.
    fn end(self) {
        let closed = nothing().and_then(|nothing| {
            rustix::stdio::dup2_stdout(&nothing).map_err(cannot)?;
            rustix::stdio::dup2_stderr(&nothing).map_err(cannot)
        });
        if closed.is_ok() {
            // Disconnected by the end of the thread; a time-out means that its disk does not
            // respond.
            let _ = self.kept.recv_timeout(KEPT_WITHIN);
        }
    }
}

fn nothing() -> Result<OwnedFd, Failure> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(cannot)
}

/// Stores the output of these descriptors until all are closed. They are drained even if storing
/// fails, because a full disk must not stop the command.
fn keep(mut open: Vec<(Stream, OwnedFd)>, mut output: Output) {
    let mut buffer = vec![0; PIPE_BYTES];
    while !open.is_empty() {
        let mut waited: Vec<PollFd<'_>> = open.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)).collect();
        // Without a limit, because the end of this process ends the thread.
        let _ = poll(&mut waited, None);
        let ready: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        open.retain(|(stream, pipe)| !ready.next().unwrap_or(false) || take(*stream, pipe, &mut buffer, &mut output));
    }
}

/// Stores the available output. Returns false at the end, which a terminal reports by EIO (pty(7)).
fn take(stream: Stream, pipe: &OwnedFd, buffer: &mut [u8], output: &mut Output) -> bool {
    match rustix::io::read(pipe, &mut *buffer) {
        Ok(0) => false,
        Ok(length) => {
            if let Err(error) = output.append(stream, &buffer[..length]) {
                tracing::warn!(%error, "what was printed could not be kept");
            }
            true
        }
        Err(error) => error == Errno::INTR || error == Errno::AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn both_streams_are_kept_to_their_ends() {
        let dir = tempfile::tempdir().unwrap();
        let id = RequestId::from_random([7; 16]);
        let watched = Runs::of(dir.path().join("runs")).begin(&id).unwrap();
        let (out, mut from_out) = io::pipe().unwrap();
        let (err, mut from_err) = io::pipe().unwrap();
        from_out.write_all(b"to out").unwrap();
        from_err.write_all(b"to err").unwrap();
        drop((from_out, from_err));
        keep(vec![(Stream::Out, out.into()), (Stream::Err, err.into())], watched.output());
        let mut kept = watched.run().output();
        let pieces: Vec<_> = std::iter::from_fn(|| kept.next_piece().unwrap()).collect();
        assert_eq!(pieces.len(), 2, "{pieces:?}");
    }
}

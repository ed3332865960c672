//! `stockade run --detach`: the front of the run is forked into a session of its
//! own, where it watches over the run; what is printed there is kept in the run's
//! directory. The launcher waits until the command was started, and says so with
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

/// How long the command may take to be started. Nobody is asked meanwhile.
const STARTS_WITHIN: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };
/// How long what was printed may take to be kept after the end.
const KEPT_WITHIN: Duration = Duration::from_secs(10);
/// Bytes taken from a pipe at once: all that it holds.
const PIPE_BYTES: usize = 64 << 10;
/// What the launcher is told: the command was started.
const STARTED: u8 = b's';
/// It never was; the exit code follows.
const ENDED: u8 = b'e';

/// Starts a run that lives on, and prints its id.
///
/// # Errors
/// When it cannot be started.
pub fn detach(typed: RunArgs, id: RequestId) -> Ended {
    if matches!(typed.json, Some(None)) {
        return Err(Failure::new("a detached run has no standard output for its outcome").hint("write --json=FILE"));
    }
    // Nothing is open but what the caller left: no supervisor may keep that open.
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
            // The supervisor has it: the lock goes with the last who does.
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

/// The launcher's part.
fn await_start(told: OwnedFd, run: &Run) -> Ended {
    let mut waited = [PollFd::new(&told, PollFlags::IN)];
    if poll(&mut waited, Some(&STARTS_WITHIN)).map_err(cannot)? == 0 {
        let why = format!("the command was not started within {} s", STARTS_WITHIN.tv_sec);
        return Err(Failure::new(why).hint(format!("stockade kill {}", run.id())));
    }
    // In one read: so few bytes are never written in parts (pipe(7)).
    let mut message = [0; 2];
    let length = File::from(told).read(&mut message).map_err(cannot)?;
    match message[..length] {
        [STARTED, ..] => {
            print(&format!("{}\n", run.id()))?;
            Ok(exit::SUCCESS)
        }
        [ENDED, code] => {
            // Nothing ran: what there is to say is said here, and nothing is kept.
            super::Shower::default().show(&mut run.output())?;
            run.remove()?;
            Ok(code)
        }
        _ => Err(Failure::new("the supervisor of the run ended before the command was started")
            .hint(format!("stockade logs {}", run.id()))),
    }
}

/// The supervisor's part: an exit code, for nobody but the launcher.
fn supervise(typed: RunArgs, id: RequestId, watched: Watched, tell: OwnedFd) -> u8 {
    let output = watched.output();
    let mut supervisor = Supervisor {
        watched,
        launcher: Mutex::new(Some(tell.into())),
        clients: Arc::default(),
        input: None,
        enforced: Arc::default(),
    };
    // Before any thread.
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

/// What the command is given.
#[derive(Default)]
struct Streams {
    input: Option<Input>,
    /// Its side of its terminal, where it has one.
    terminal: Option<OwnedFd>,
    /// Where that shows what is printed there.
    shown: Option<OwnedFd>,
}

impl Streams {
    /// Puts in the place of standard input what the command reads from. A terminal
    /// takes its place later, and is made like the launcher's.
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

/// What a run has that nobody waits for: a directory, a socket, clients that come
/// and go, a launcher that wants to know when it starts.
#[derive(Debug)]
pub struct Supervisor {
    watched: Watched,
    launcher: Mutex<Option<File>>,
    clients: Arc<Clients>,
    input: Option<Arc<Input>>,
    /// What holds where the command runs, once it does.
    enforced: Arc<Mutex<Option<EnforcementReport>>>,
}

impl Supervisor {
    /// From here on the run can be looked at by others. Gives the recorder that
    /// notices its start.
    ///
    /// # Errors
    /// When its directory takes nothing.
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

    /// Those attached, as who is asked. `text` is what the findings' spans point
    /// into.
    pub fn approver(&self, text: RawText) -> AttachedApprover {
        AttachedApprover::new(Arc::clone(&self.clients), text)
    }

    /// From here on the run can be ended by others, and clients be attached. What
    /// they write is judged by this judge and taken further by this engine.
    ///
    /// # Errors
    /// When there can be no socket.
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

    /// The first message counts; a launcher that is gone does not want it.
    fn tell(&self, message: &[u8]) {
        if let Some(mut launcher) = self.launcher.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = launcher.write_all(message);
        }
    }
}

/// Tells the launcher once it is on record that the command was started.
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

/// The standard streams of this process, kept by a thread of its own.
struct Recording {
    kept: Receiver<()>,
}

impl Recording {
    /// Puts pipes in the place of standard output and error. What a terminal shows
    /// counts as standard output.
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

    /// Returns when all is kept. Nothing of the run is left that could print.
    fn end(self) {
        let closed = nothing().and_then(|nothing| {
            rustix::stdio::dup2_stdout(&nothing).map_err(cannot)?;
            rustix::stdio::dup2_stderr(&nothing).map_err(cannot)
        });
        if closed.is_ok() {
            // Hung up by the thread's end; or its disk does not answer.
            let _ = self.kept.recv_timeout(KEPT_WITHIN);
        }
    }
}

fn nothing() -> Result<OwnedFd, Failure> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(cannot)
}

/// Keeps what comes through these until all are closed. They are drained whether or
/// not it can be kept: a full disk must not stop what runs.
fn keep(mut open: Vec<(Stream, OwnedFd)>, mut output: Output) {
    let mut buffer = vec![0; PIPE_BYTES];
    while !open.is_empty() {
        let mut waited: Vec<PollFd<'_>> = open.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)).collect();
        // Without a limit: at the end of this process there is nothing to wait for.
        let _ = poll(&mut waited, None);
        let ready: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        open.retain(|(stream, pipe)| !ready.next().unwrap_or(false) || take(*stream, pipe, &mut buffer, &mut output));
    }
}

/// Takes what is there. False at the end, which a terminal tells by EIO (pty(7)).
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

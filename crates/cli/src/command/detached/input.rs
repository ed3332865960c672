//! The standard input of a detached run. If the command takes code from it, each piece of input is
//! itself a request: it is decided by the rules, approval and audit log of the run, and its attempt
//! is the write. A piece reaches the command completely or not at all.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::termios::{SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize};
use stockade_engine::core::{Planned, Ruling, shown_command};
use stockade_engine::real::RuleJudge;
use stockade_engine::seams::{HeldRule, Judge, PlanError, RecordError};
use stockade_engine::{
    Attempt, AttemptEnd, AttemptEvent, Backend, CommandEnd, Engine, Events, Io, StartError, interrupts,
};
use stockade_model::{
    Assessment, Command, Decision, Denial, Digest, EnforcementReport, Event, EventKind, Grant, LayerReport, LayerState,
    Level, Plan, Request, RequestId, Status, Verdict,
};
use stockade_shell::{Context, Takes, is_understood, takes};

use super::clients::{AttachedApprover, Clients};
use super::faithful::altered;
use super::wire::{Fate, INPUT_BYTES, Intake, Line, Piece};
use crate::meaning;
use crate::render::{self, Style};

/// Name of the backend whose attempts are writes.
const BACKEND: &str = "input";
/// Layer of its report that names the run.
const LAYER: &str = "input";
/// Keys that end a line: Enter, Ctrl-J, Ctrl-C.
const LINE_ENDS: [u8; 3] = [b'\r', b'\n', 3];
const CTRL_D: u8 = 4;

/// Writing end of a run's standard input: of a pipe, or of the run's terminal.
#[derive(Debug)]
pub struct Input {
    intake: Intake,
    end: Mutex<End>,
}

#[derive(Debug)]
struct End {
    fd: Option<OwnedFd>,
    /// True if keys were pressed after the last end of a line.
    begun: bool,
}

impl Input {
    /// Writes to this pipe, which becomes non-blocking.
    ///
    /// # Errors
    /// None in practice.
    pub fn through(pipe: OwnedFd) -> std::io::Result<Self> {
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(Self::of(Intake::Pipe, pipe))
    }

    /// Writes to this end of a terminal, which is non-blocking.
    pub fn at(terminal: OwnedFd) -> Self {
        Self::of(Intake::Terminal, terminal)
    }

    fn of(intake: Intake, fd: OwnedFd) -> Self {
        Self { intake, end: Mutex::new(End { fd: Some(fd), begun: false }) }
    }

    /// Returns the kind of the input.
    pub fn intake(&self) -> Intake {
        self.intake
    }

    /// Changes the size of the terminal, if it is one.
    pub fn resize(&self, rows: u16, columns: u16, again: bool) {
        let end = self.lock();
        let Some(terminal) = end.fd.as_ref().filter(|_| self.intake == Intake::Terminal) else { return };
        if rows == 0 || columns == 0 {
            return;
        }
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        if again {
            // The kernel does not report an unchanged size to the command, so another size is set
            // first.
            let _ = tcsetwinsize(terminal, Winsize { ws_row: rows.saturating_add(1), ..size });
        }
        // Fails if the command's side is closed and has no reader.
        let _ = tcsetwinsize(terminal, size);
    }

    /// Writes all bytes, as fast as they are read; one writer at a time. Gives up if the client has
    /// disconnected.
    fn write(&self, bytes: &[u8], client: &UnixStream) -> Result<(), String> {
        self.lock().write(bytes, client)
    }

    /// Writes keys that a user pressed at a terminal.
    fn press(&self, keys: &[u8], client: &UnixStream) -> Result<(), String> {
        if self.intake != Intake::Terminal {
            return Err("the run has no terminal".to_owned());
        }
        let mut end = self.lock();
        end.begun = keys.last().is_some_and(|last| !LINE_ENDS.contains(last));
        end.write(keys, client)
    }

    /// Writes text that was assessed by itself. It must not follow a line that a user has started
    /// to type.
    fn submit(&self, text: &[u8], client: &UnixStream) -> Result<(), String> {
        let mut end = self.lock();
        if end.begun {
            return Err("a line is begun at the terminal: it would become part of that".to_owned());
        }
        end.write(text, client)
    }

    /// Closes the input: a terminal gets Ctrl-D, as from a user.
    fn close(&self, client: &UnixStream) -> Result<(), String> {
        let mut end = self.lock();
        match &end.fd {
            Some(terminal) if self.intake == Intake::Terminal => {
                let key = tcgetattr(terminal).map_or(CTRL_D, |modes| modes.special_codes[SpecialCodeIndex::VEOF]);
                end.write(&[key], client)
            }
            _ => {
                end.fd = None;
                Ok(())
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl End {
    fn write(&mut self, mut rest: &[u8], client: &UnixStream) -> Result<(), String> {
        let fd = self.fd.as_ref().ok_or("the standard input of the run has ended")?;
        crate::relay::note_typed();
        while !rest.is_empty() {
            match rustix::io::write(fd, rest) {
                Ok(written @ 1..) => rest = rest.get(written..).unwrap_or_default(),
                Ok(_) | Err(Errno::AGAIN) => await_room(fd, client)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(format!("cannot write to the standard input of the run: {e}")),
            }
        }
        Ok(())
    }
}

/// Waits without a limit, because the end of the client or of the run ends the wait.
fn await_room(pipe: &OwnedFd, client: &UnixStream) -> Result<(), String> {
    let mut waited = [PollFd::new(pipe, PollFlags::OUT), PollFd::new(client, PollFlags::empty())];
    match poll(&mut waited, None) {
        Ok(_) if waited[1].revents().contains(PollFlags::HUP) => Err("whoever wrote it has gone".to_owned()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(format!("cannot wait for the run to read: {e}")),
    }
}

/// Decides on input with the same policy as the run's own request.
pub struct Gate {
    engine: Engine,
    judge: Arc<dyn Judge>,
    request: Request,
    takes: Takes,
    clients: Arc<Clients>,
    enforced: Arc<Mutex<Option<EnforcementReport>>>,
}

impl Gate {
    /// Creates the gate for the run of this request. `enforced` is the run's enforcement report,
    /// once it has started.
    pub fn new(
        engine: Engine,
        judge: RuleJudge,
        request: Request,
        clients: Arc<Clients>,
        enforced: Arc<Mutex<Option<EnforcementReport>>>,
    ) -> Self {
        let context = Context {
            cwd: request.cwd.clone(),
            home: judge.settings.home().into(),
            workspace: request.workspace.clone(),
            neutralised: false,
        };
        let takes = takes(&request.command, &context);
        // The command has its environment already, so no variable can be removed for it.
        let judge = RuleJudge {
            neutralised: false,
            stage: false,
            undo: false,
            can_keep: false,
            trace: false,
            sandbox_backend: BACKEND,
            host_backend: BACKEND,
            ..judge
        };
        Self { engine, judge: Arc::new(InputJudge(judge)), request, takes, clients, enforced }
    }

    /// Records an event of the run's input in the audit log.
    ///
    /// # Errors
    /// [`RecordError`] if it cannot be written.
    pub fn note(&self, kind: EventKind) -> Result<(), RecordError> {
        let Request { id, session, .. } = &self.request;
        let time_ms = self.engine.clock.wall_ms();
        self.engine.recorder.record(&[Event { time_ms, request: id.clone(), session: session.clone(), kind }])
    }

    fn request(&self, text: &[u8]) -> Request {
        let command = match self.takes {
            Takes::Program => program(&self.request.command, text),
            Takes::Commands | Takes::Data => Command::Script(text.into()),
        };
        Request { command, grants: Vec::new(), requested: Vec::new(), timeout_ms: None, ..self.request.clone() }
    }

    /// Returns whether the text is a complete command, as far as that is known.
    fn is_whole(&self, text: &[u8]) -> bool {
        self.takes == Takes::Program || is_understood(&self.judge.assess(&self.request(text)))
    }

    fn pass(&self, input: &Arc<Input>, line: &Arc<Line>, text: &[u8]) -> Fate {
        let id = match meaning::request_id() {
            Ok(id) => id,
            Err(failure) => return Fate::Refused(render::failure::failure(&failure, Style::PIPE)),
        };
        let request = Request { id, ..self.request(text) };
        let backend = Arc::new(Writing {
            input: Arc::clone(input),
            line: Arc::clone(line),
            text: text.to_vec(),
            run: self.request.id.clone(),
            enforced: self.enforced.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        });
        let approver = AttachedApprover::new(Arc::clone(&self.clients), meaning::text_of(&request.command));
        let engine = Engine {
            judge: Arc::clone(&self.judge),
            backend: Arc::clone(&backend) as Arc<dyn Backend>,
            host: Some(backend),
            approver: Arc::new(Mutex::new(approver)),
            ..self.engine.clone()
        };
        let (_interrupter, interrupts) = interrupts();
        let outcome = engine.run(request, Io::Inherit, interrupts);
        match outcome.status {
            Status::Exited => Fate::Taken,
            _ => {
                let home = crate::places::home(&super::super::variable).unwrap_or_default();
                let context = render::summary::SummaryContext {
                    remembered: &[],
                    standing: &[],
                    home: &home,
                    workspace: None,
                    own_directories: &crate::places::own_directories(&super::super::variable),
                };
                Fate::Refused(render::summary::summary(&outcome, context, Style::PIPE))
            }
        }
    }
}

/// Returns a program as the interpreter gets it: as a here-document of its command.
fn program(command: &Command, text: &[u8]) -> Command {
    let before = match command {
        Command::Argv(_) => shown_command(command).as_bytes().to_vec(),
        Command::Script(script) => [b"{ ", script.as_bytes(), b"\n}"].concat(),
    };
    let is_in_text = |mark: &String| text.split(|byte| *byte == b'\n').any(|line| line == mark.as_bytes());
    let mut marks = (0_u64..).map(|number| format!("INPUT{number}"));
    let mark = marks.find(|mark| !is_in_text(mark)).unwrap_or_default();
    let end = if text.ends_with(b"\n") { "" } else { "\n" };
    Command::Script(
        [&before, format!(" <<'{mark}'\n").as_bytes(), text, format!("{end}{mark}\n").as_bytes()].concat().into(),
    )
}

/// Input of one client.
pub struct Writer {
    input: Arc<Input>,
    line: Arc<Line>,
    /// Process id of the client.
    client: u32,
    /// Text not passed on yet: an incomplete line or command.
    held: Vec<u8>,
    unjudged_bytes: u64,
}

impl Writer {
    /// Creates the writer to this input, for the client of this connection.
    pub fn new(input: Arc<Input>, line: Arc<Line>, client: u32) -> Self {
        Self { input, line, client, held: Vec::new(), unjudged_bytes: 0 }
    }

    /// Returns how many of its bytes were not assessed.
    pub fn unjudged_bytes(&self) -> u64 {
        self.unjudged_bytes
    }

    /// Passes bytes on without an assessment. Records that in the audit log before the first byte.
    fn pass_unjudged(&mut self, gate: &Gate, keys: bool, bytes: &[u8]) -> Fate {
        if self.unjudged_bytes == 0
            && !bytes.is_empty()
            && let Err(error) = gate.note(EventKind::Typed { client: self.client, keys })
        {
            return Fate::Lost(format!("cannot put it on record: {error}"));
        }
        self.unjudged_bytes = self.unjudged_bytes.saturating_add(bytes.len() as u64);
        let client = self.line.stream();
        let passed = if keys { self.input.press(bytes, client) } else { self.input.write(bytes, client) };
        passed.map_or_else(Fate::Lost, |()| Fate::Taken)
    }

    /// Handles a piece, and returns its result.
    pub fn take(&mut self, piece: Piece, gate: &Gate) -> Fate {
        let (bytes, ends) = match &piece {
            Piece::Keys(keys) => return self.pass_unjudged(gate, true, keys.as_bytes()),
            Piece::Bytes(bytes) => (bytes.as_bytes(), false),
            Piece::Rest | Piece::Close => (&[][..], true),
        };
        if self.held.len() + bytes.len() > INPUT_BYTES {
            self.held.clear();
            return Fate::Refused(format!("• refused, nothing of it was passed on: longer than {INPUT_BYTES} bytes\n"));
        }
        self.held.extend_from_slice(bytes);
        let fate = self.pass_on(gate, ends);
        if piece == Piece::Close && fate == Fate::Taken {
            return self.input.close(self.line.stream()).map_or_else(Fate::Lost, |()| Fate::Taken);
        }
        fate
    }

    fn pass_on(&mut self, gate: &Gate, ends: bool) -> Fate {
        if gate.takes == Takes::Data {
            let data = mem::take(&mut self.held);
            return self.pass_unjudged(gate, false, &data);
        }
        // The next piece must not continue text that was assessed.
        if ends && self.held.last().is_some_and(|last| *last != b'\n') {
            self.held.push(b'\n');
        }
        let at_terminal = self.input.intake() == Intake::Terminal;
        if let Some(why) = altered(&self.held, gate.takes == Takes::Commands, at_terminal) {
            self.held.clear();
            return Fate::Refused(format!("• refused, nothing of it was passed on: {why}\n"));
        }
        let length = self.held.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text = &self.held[..length];
        if text.trim_ascii().is_empty() {
            return match self.submit(length) {
                Fate::Taken if !self.held.is_empty() => Fate::Waits,
                fate => fate,
            };
        }
        if gate.is_whole(text) {
            let text: Vec<u8> = self.held.drain(..length).collect();
            return gate.pass(&self.input, &self.line, &text);
        }
        if ends {
            self.held.clear();
            return Fate::Refused("• refused, nothing of it was passed on: it is no whole command\n".to_owned());
        }
        Fate::Waits
    }

    fn submit(&mut self, length: usize) -> Fate {
        let text: Vec<u8> = self.held.drain(..length).collect();
        self.input.submit(&text, self.line.stream()).map_or_else(Fate::Lost, |()| Fate::Taken)
    }
}

/// The run's policy engine, but it denies rules with other grants or limits: the running command
/// has its profile, grants and limits already.
struct InputJudge(RuleJudge);

impl Judge for InputJudge {
    fn assess(&self, request: &Request) -> Assessment {
        self.0.assess(request)
    }

    fn rule(&self, request: &Request, assessment: &Assessment) -> Ruling {
        let ruling = self.0.rule(request, assessment);
        if ruling.wanted.is_none() {
            return ruling;
        }
        let why = "the rule gives other powers or limits, and what runs already has its own";
        let decision = Decision { verdict: Verdict::Deny, reasons: vec![why.to_owned()], ..ruling.decision };
        Ruling { decision, questions: Vec::new(), by_caller: None, wanted: None, ..ruling }
    }

    fn plan(&self, request: &Request, attempt: u32, grants: &[Grant]) -> Result<Planned, PlanError> {
        self.0.plan(request, attempt, grants)
    }

    fn escalation(&self, _: &Request, _: &Plan, _: &Grant) -> Vec<Grant> {
        Vec::new()
    }

    fn held_rule(&self, _: &Request, _: &Plan, _: &Denial) -> Option<HeldRule> {
        None
    }

    fn governed(&self, request: &Request, grant: &Grant) -> Option<Decision> {
        self.0.governed(request, grant)
    }

    fn is_guarded(&self, grant: &Grant) -> bool {
        self.0.is_guarded(grant)
    }

    fn directory(&self, _: &Request, _: &Plan, _: &Grant) -> Vec<Grant> {
        Vec::new()
    }

    fn policy(&self, request: &Request) -> Digest {
        self.0.policy(request)
    }
}

/// Backend of one piece of input: its attempt is the write, into an existing sandbox.
struct Writing {
    input: Arc<Input>,
    line: Arc<Line>,
    text: Vec<u8>,
    run: RequestId,
    enforced: Option<EnforcementReport>,
}

impl Backend for Writing {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn honours(&self, _: &Grant, _: Level) -> bool {
        false
    }

    fn prepare(&self, _: &Plan, _: &Io, _: bool, events: Events) -> Result<Box<dyn Attempt>, StartError> {
        let Some(enforced) = &self.enforced else {
            return Err(StartError { what: format!("{} was not started yet", self.run), hint: None });
        };
        let detail = format!("written to the standard input of {}", self.run);
        let layer = LayerReport { state: LayerState::Enforced, detail };
        let layers = enforced.layers.clone().into_iter().chain([(LAYER.to_owned(), layer)]).collect::<BTreeMap<_, _>>();
        Ok(Box::new(Write {
            input: Arc::clone(&self.input),
            line: Arc::clone(&self.line),
            text: self.text.clone(),
            enforced: EnforcementReport { level: enforced.level, layers },
            events,
        }))
    }
}

struct Write {
    input: Arc<Input>,
    line: Arc<Line>,
    text: Vec<u8>,
    enforced: EnforcementReport,
    events: Events,
}

impl Attempt for Write {
    fn enforced(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release(&mut self) -> Result<(), StartError> {
        self.input.submit(&self.text, self.line.stream()).map_err(|what| StartError { what, hint: None })?;
        self.events.tell(AttemptEvent::Ended(AttemptEnd::bare(CommandEnd::Exited(0))));
        Ok(())
    }

    fn signal(&self, _: i32) {}

    fn kill(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &Command, text: &str, wanted: &str) {
        assert_eq!(program(command, text.as_bytes()), Command::Script(wanted.into()));
    }

    #[test]
    fn a_program_is_a_here_document_that_it_cannot_end() {
        let python = Command::Argv(vec!["python3".into(), "a b".into()]);
        check(&python, "print(1)\n", "python3 'a b' <<'INPUT0'\nprint(1)\nINPUT0\n");
        check(&python, "x\nINPUT0\nrm", "python3 'a b' <<'INPUT1'\nx\nINPUT0\nrm\nINPUT1\n");
        check(&Command::Script("cd x; node".into()), "1\n", "{ cd x; node\n} <<'INPUT0'\n1\nINPUT0\n");
    }
}

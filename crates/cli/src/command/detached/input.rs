//! The standard input of a detached run. If the command takes code from it, each piece of input is
//! itself a request: it is decided by the rules, approval and audit log of the run, and its attempt
//! is the write. A piece reaches the command completely or not at all.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_backend_api::{
    Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, Backend, CommandEnd, StartError, StdioMode,
};
use stockade_engine::adapters::RulePolicyEngine;
use stockade_engine::core::{BoundPlan, ConsentRuling, shown_command};
use stockade_engine::ports::{HeldRule, PlanError, PolicyEngine, RecordError};
use stockade_engine::{RequestEngine, interrupt_channel};
use stockade_model::{
    Assessment, AttemptPlan, Decision, Denial, Digest, EnforcementReport, Event, EventKind, FinalStatus, Grant,
    IsolationLevel, LayerReport, LayerState, PolicyVerdict, RequestCommand, RequestId, RunRequest,
};
use stockade_shell::{CommandContext, StdinUse, is_understood, stdin_use};
use stockade_supervisor::{
    AttachedApprover, Channel, ClientRegistry, InputKind, InputPiece, InputResult, MAX_INPUT_BYTES, RunInput,
};

use super::script_integrity::find_alteration;
use crate::render::{self, TextLayout};
use crate::resolved_args;

/// Name of the backend whose attempts are writes.
const INPUT_BACKEND_NAME: &str = "input";
/// Layer of its report that names the run.
const INPUT_LAYER_NAME: &str = "input";

/// Decides on input with the same policy as the run's own request.
pub struct InputGate {
    engine: RequestEngine,
    rule_engine: Arc<dyn PolicyEngine>,
    request: RunRequest,
    takes: StdinUse,
    clients: Arc<ClientRegistry>,
    enforced: Arc<Mutex<Option<EnforcementReport>>>,
}

impl InputGate {
    /// Creates the gate for the run of this request. `enforced` is the run's enforcement report,
    /// once it has started.
    pub fn new(
        engine: RequestEngine,
        rule_engine: RulePolicyEngine,
        request: RunRequest,
        clients: Arc<ClientRegistry>,
        enforced: Arc<Mutex<Option<EnforcementReport>>>,
    ) -> Self {
        let context = CommandContext {
            cwd: request.cwd.clone(),
            home: rule_engine.settings.home().into(),
            workspace: request.workspace.clone(),
            sanitized: false,
        };
        let takes = stdin_use(&request.command, &context);
        // The command has its environment already, so no variable can be removed for it.
        let rule_engine = RulePolicyEngine {
            sanitized: false,
            stage: false,
            undo: false,
            can_keep: false,
            trace: false,
            sandbox_backend: INPUT_BACKEND_NAME,
            host_backend: INPUT_BACKEND_NAME,
            ..rule_engine
        };
        Self { engine, rule_engine: Arc::new(InputPolicyEngine(rule_engine)), request, takes, clients, enforced }
    }

    /// Records an event of the run's input in the audit log.
    ///
    /// # Errors
    /// [`RecordError`] if it cannot be written.
    pub fn record_event(&self, kind: EventKind) -> Result<(), RecordError> {
        let RunRequest { id, session, .. } = &self.request;
        let time_ms = self.engine.clock.wall_ms();
        self.engine.recorder.record_events(&[Event { time_ms, request: id.clone(), session: session.clone(), kind }])
    }

    fn build_text_request(&self, text: &[u8]) -> RunRequest {
        let command = match self.takes {
            StdinUse::Program => wrap_in_here_document(&self.request.command, text),
            StdinUse::Commands | StdinUse::Data => RequestCommand::Script(text.into()),
        };
        RunRequest { command, grants: Vec::new(), requested: Vec::new(), timeout_ms: None, ..self.request.clone() }
    }

    /// Returns whether the text is a complete command, as far as that is known.
    fn is_whole(&self, text: &[u8]) -> bool {
        self.takes == StdinUse::Program
            || is_understood(&self.rule_engine.assess_request(&self.build_text_request(text)))
    }

    fn submit_request(&self, input: &Arc<RunInput>, channel: &Arc<Channel>, text: &[u8]) -> InputResult {
        let id = match resolved_args::request_id() {
            Ok(id) => id,
            Err(failure) => return InputResult::Refused(render::failure::format_error(&failure, TextLayout::PIPE)),
        };
        let request = RunRequest { id, ..self.build_text_request(text) };
        let backend = Arc::new(InputBackend {
            input: Arc::clone(input),
            channel: Arc::clone(channel),
            text: text.to_vec(),
            run: self.request.id.clone(),
            enforced: self.enforced.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        });
        let approver = AttachedApprover::new(Arc::clone(&self.clients), resolved_args::text_of(&request.command));
        let engine = RequestEngine {
            rule_engine: Arc::clone(&self.rule_engine),
            backend: Arc::clone(&backend) as Arc<dyn Backend>,
            host: Some(backend),
            approver: Arc::new(Mutex::new(approver)),
            ..self.engine.clone()
        };
        let (_interrupter, interrupts) = interrupt_channel();
        let outcome = engine.run_request(request, StdioMode::Inherit, interrupts);
        match outcome.status {
            FinalStatus::Exited => InputResult::Taken,
            _ => {
                let home = crate::locations::find_home_directory(&super::super::read_variable).unwrap_or_default();
                let context = render::summary::SummaryContext {
                    remembered: &[],
                    sandbox_grants: &[],
                    home: &home,
                    workspace: None,
                    own_directories: &crate::locations::own_directories(&super::super::read_variable),
                };
                InputResult::Refused(render::summary::format_summary(&outcome, context, TextLayout::PIPE))
            }
        }
    }
}

/// Returns a program as the interpreter gets it: as a here-document of its command.
fn wrap_in_here_document(command: &RequestCommand, text: &[u8]) -> RequestCommand {
    let before = match command {
        RequestCommand::Argv(_) => shown_command(command).as_bytes().to_vec(),
        RequestCommand::Script(script) => [b"{ ", script.as_bytes(), b"\n}"].concat(),
    };
    let is_in_text = |mark: &String| text.split(|byte| *byte == b'\n').any(|line| line == mark.as_bytes());
    let mut marks = (0_u64..).map(|number| format!("INPUT{number}"));
    let mark = marks.find(|mark| !is_in_text(mark)).unwrap_or_default();
    let end = if text.ends_with(b"\n") { "" } else { "\n" };
    RequestCommand::Script(
        [&before, format!(" <<'{mark}'\n").as_bytes(), text, format!("{end}{mark}\n").as_bytes()].concat().into(),
    )
}

/// Input of one client.
pub struct ClientInputWriter {
    input: Arc<RunInput>,
    channel: Arc<Channel>,
    /// Process id of the client.
    client: u32,
    /// Text not passed on yet: an incomplete line or command.
    held: Vec<u8>,
    unjudged_bytes: u64,
}

impl ClientInputWriter {
    /// Creates the writer to this input, for the client of this connection.
    pub fn new(input: Arc<RunInput>, channel: Arc<Channel>, client: u32) -> Self {
        Self { input, channel, client, held: Vec::new(), unjudged_bytes: 0 }
    }

    /// Returns how many of its bytes were not assessed.
    pub fn unjudged_bytes(&self) -> u64 {
        self.unjudged_bytes
    }

    /// Passes bytes on without an assessment. Records that in the audit log before the first byte.
    fn pass_unjudged(&mut self, gate: &InputGate, keys: bool, bytes: &[u8]) -> InputResult {
        if self.unjudged_bytes == 0
            && !bytes.is_empty()
            && let Err(error) = gate.record_event(EventKind::Typed { client: self.client, keys })
        {
            return InputResult::Lost(format!("cannot record it: {error}"));
        }
        self.unjudged_bytes = self.unjudged_bytes.saturating_add(bytes.len() as u64);
        let client = self.channel.stream();
        let passed = if keys { self.input.write_keys(bytes, client) } else { self.input.write_bytes(bytes, client) };
        passed.map_or_else(InputResult::Lost, |()| InputResult::Taken)
    }

    /// Handles a piece, and returns its result.
    pub fn handle_piece(&mut self, piece: InputPiece, gate: &InputGate) -> InputResult {
        let (bytes, ends) = match &piece {
            InputPiece::Keys(keys) => return self.pass_unjudged(gate, true, keys.as_bytes()),
            InputPiece::Bytes(bytes) => (bytes.as_bytes(), false),
            InputPiece::Rest | InputPiece::Close => (&[][..], true),
        };
        if self.held.len() + bytes.len() > MAX_INPUT_BYTES {
            self.held.clear();
            return InputResult::Refused(format!(
                "• refused, and none of it was passed on: longer than {MAX_INPUT_BYTES} bytes\n"
            ));
        }
        self.held.extend_from_slice(bytes);
        let fate = self.pass_on(gate, ends);
        if piece == InputPiece::Close && fate == InputResult::Taken {
            return self
                .input
                .close_input(self.channel.stream())
                .map_or_else(InputResult::Lost, |()| InputResult::Taken);
        }
        fate
    }

    fn pass_on(&mut self, gate: &InputGate, ends: bool) -> InputResult {
        if gate.takes == StdinUse::Data {
            let data = mem::take(&mut self.held);
            return self.pass_unjudged(gate, false, &data);
        }
        // The next piece must not continue text that was assessed.
        if ends && self.held.last().is_some_and(|last| *last != b'\n') {
            self.held.push(b'\n');
        }
        let at_terminal = self.input.input_kind() == InputKind::Terminal;
        if let Some(why) = find_alteration(&self.held, gate.takes == StdinUse::Commands, at_terminal) {
            self.held.clear();
            return InputResult::Refused(format!("• refused, and none of it was passed on: {why}\n"));
        }
        let length = self.held.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text = &self.held[..length];
        if text.trim_ascii().is_empty() {
            return match self.write_held_text(length) {
                InputResult::Taken if !self.held.is_empty() => InputResult::Waits,
                fate => fate,
            };
        }
        if gate.is_whole(text) {
            let text: Vec<u8> = self.held.drain(..length).collect();
            return gate.submit_request(&self.input, &self.channel, &text);
        }
        if ends {
            self.held.clear();
            return InputResult::Refused(
                "• refused, and none of it was passed on: it is not a complete command\n".to_owned(),
            );
        }
        InputResult::Waits
    }

    fn write_held_text(&mut self, length: usize) -> InputResult {
        let text: Vec<u8> = self.held.drain(..length).collect();
        self.input
            .write_assessed_text(&text, self.channel.stream())
            .map_or_else(InputResult::Lost, |()| InputResult::Taken)
    }
}

/// The run's policy engine, but it denies rules with other grants or limits: the running command
/// has its profile, grants and limits already.
struct InputPolicyEngine(RulePolicyEngine);

impl PolicyEngine for InputPolicyEngine {
    fn assess_request(&self, request: &RunRequest) -> Assessment {
        self.0.assess_request(request)
    }

    fn apply_rules(&self, request: &RunRequest, assessment: &Assessment) -> ConsentRuling {
        let ruling = self.0.apply_rules(request, assessment);
        if ruling.requirements.is_none() {
            return ruling;
        }
        let why = "the rule gives other powers or limits, and the run already has its own";
        let decision = Decision { verdict: PolicyVerdict::Deny, reasons: vec![why.to_owned()], ..ruling.decision };
        ConsentRuling { decision, questions: Vec::new(), by_caller: None, requirements: None, ..ruling }
    }

    fn make_plan(&self, request: &RunRequest, attempt: u32, grants: &[Grant]) -> Result<BoundPlan, PlanError> {
        self.0.make_plan(request, attempt, grants)
    }

    fn escalation_powers(&self, _: &RunRequest, _: &AttemptPlan, _: &Grant) -> Vec<Grant> {
        Vec::new()
    }

    fn held_rule(&self, _: &RunRequest, _: &AttemptPlan, _: &Denial) -> Option<HeldRule> {
        None
    }

    fn governed_refusal(&self, request: &RunRequest, grant: &Grant) -> Option<Decision> {
        self.0.governed_refusal(request, grant)
    }

    fn is_guarded(&self, grant: &Grant) -> bool {
        self.0.is_guarded(grant)
    }

    fn directory_powers(&self, _: &RunRequest, _: &AttemptPlan, _: &Grant) -> Vec<Grant> {
        Vec::new()
    }

    fn policy_digest(&self, request: &RunRequest) -> Digest {
        self.0.policy_digest(request)
    }
}

/// Backend of one piece of input: its attempt is the write, into an existing sandbox.
struct InputBackend {
    input: Arc<RunInput>,
    channel: Arc<Channel>,
    text: Vec<u8>,
    run: RequestId,
    enforced: Option<EnforcementReport>,
}

impl Backend for InputBackend {
    fn name(&self) -> &'static str {
        INPUT_BACKEND_NAME
    }

    fn supports_grant(&self, _: &Grant, _: IsolationLevel) -> bool {
        false
    }

    fn prepare_attempt(
        &self,
        _: &AttemptPlan,
        _: &StdioMode,
        _: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError> {
        let Some(enforced) = &self.enforced else {
            return Err(StartError { what: format!("{} was not started yet", self.run), hint: None });
        };
        let detail = format!("written to the standard input of {}", self.run);
        let layer = LayerReport { state: LayerState::Enforced, detail };
        let layers = enforced
            .layers
            .clone()
            .into_iter()
            .chain([(INPUT_LAYER_NAME.to_owned(), layer)])
            .collect::<BTreeMap<_, _>>();
        Ok(Box::new(InputAttempt {
            input: Arc::clone(&self.input),
            channel: Arc::clone(&self.channel),
            text: self.text.clone(),
            enforced: EnforcementReport { level: enforced.level, layers },
            events,
        }))
    }
}

struct InputAttempt {
    input: Arc<RunInput>,
    channel: Arc<Channel>,
    text: Vec<u8>,
    enforced: EnforcementReport,
    events: AttemptEventSender,
}

impl Attempt for InputAttempt {
    fn enforcement_report(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release_command(&mut self) -> Result<(), StartError> {
        self.input
            .write_assessed_text(&self.text, self.channel.stream())
            .map_err(|what| StartError { what, hint: None })?;
        self.events.send_event(AttemptEvent::Ended(AttemptEnd::from_command_end(CommandEnd::Exited(0))));
        Ok(())
    }

    fn send_signal(&self, _: i32) {}

    fn kill_processes(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &RequestCommand, text: &str, requirements: &str) {
        assert_eq!(wrap_in_here_document(command, text.as_bytes()), RequestCommand::Script(requirements.into()));
    }

    #[test]
    fn a_program_is_a_here_document_that_it_cannot_end() {
        let python = RequestCommand::Argv(vec!["python3".into(), "a b".into()]);
        check(&python, "print(1)\n", "python3 'a b' <<'INPUT0'\nprint(1)\nINPUT0\n");
        check(&python, "x\nINPUT0\nrm", "python3 'a b' <<'INPUT1'\nx\nINPUT0\nrm\nINPUT1\n");
        check(&RequestCommand::Script("cd x; node".into()), "1\n", "{ cd x; node\n} <<'INPUT0'\n1\nINPUT0\n");
    }
}

//! A program that links the library and runs many commands in one session: what its
//! tests tell it, a line each.
//!
//! `many-commands LEVEL`, and then on standard input: a script to run in the current
//! directory and wait for, `& SCRIPT` to run without waiting, `kill` for the last of
//! those, `drop` to end the session while they run. It answers a line each: the exit
//! code, or how it ended. Held calls are granted what they lack where LEVEL ends with
//! `+`. With LEVEL `threads` it tries to begin a session too late.

use std::collections::BTreeMap;
use std::io::{BufRead as _, stdin};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use stockade_backend_api::{Attempt, AttemptEvent, AttemptEventSender, Backend, CommandEnd, HeldAnswer, StdioMode};
use stockade_model::{
    AttemptPlan, EnvironmentRules, ExecRules, FilesystemAccess, IsolationLevel, Limits, NetworkAccess, Profile,
    RawText, RequestId,
};
use stockade_native::{ArenaAllocator, NativeSession};

#[global_allocator]
static ALLOCATOR: ArenaAllocator = ArenaAllocator;

const WAIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let (hang_up, hold_on) = channel::<()>();
    let other = (mode == "threads").then(|| std::thread::spawn(move || hold_on.recv()));
    let session = match NativeSession::start() {
        Ok(session) => session,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    drop((hang_up, other));
    let (level, hold) = match mode.as_str() {
        "restricted" => (IsolationLevel::Restricted, false),
        "restricted+" => (IsolationLevel::Restricted, true),
        "full+" => (IsolationLevel::Full, true),
        _ => (IsolationLevel::Full, false),
    };
    let mut running: Vec<Running> = Vec::new();
    let mut session = Some(session);
    println!("ready");
    for line in stdin().lock().lines().map_while(Result::ok) {
        match (line.as_str(), &session) {
            ("drop", _) => {
                session = None;
                running.drain(..).for_each(|command| println!("{}", command.end(false)));
            }
            ("kill", _) => {
                let Some(command) = running.pop() else { return ExitCode::FAILURE };
                command.attempt.kill_processes();
                println!("{}", command.end(hold));
            }
            (script, Some(session)) => {
                let (script, waits) = script.strip_prefix("& ").map_or((script, true), |script| (script, false));
                match Running::start(session, level, hold, script) {
                    Ok(command) if waits => println!("{}", command.end(hold)),
                    Ok(command) => {
                        running.push(command);
                        println!("started");
                    }
                    Err(error) => println!("{error}"),
                }
            }
            (_, None) => return ExitCode::FAILURE,
        }
    }
    ExitCode::SUCCESS
}

/// A command of the session.
struct Running {
    attempt: Box<dyn Attempt>,
    events: Receiver<AttemptEvent>,
}

impl Running {
    fn start(session: &NativeSession, level: IsolationLevel, hold: bool, script: &str) -> Result<Self, String> {
        let (tell, events): (Sender<AttemptEvent>, _) = channel();
        let events_of = AttemptEventSender::new(move |event| drop(tell.send(event)));
        let mut attempt = session
            .prepare_attempt(&plan(level, script).map_err(|e| e.to_string())?, &StdioMode::Inherit, hold, events_of)
            .map_err(|e| e.to_string())?;
        assert_eq!(attempt.enforcement_report().level, level);
        attempt.release_command().map_err(|e| e.to_string())?;
        Ok(Self { attempt, events })
    }

    /// Waits for the end.
    fn end(self, grants: bool) -> String {
        loop {
            match self.events.recv_timeout(WAIT) {
                Ok(AttemptEvent::Held { id, denial }) if grants => {
                    self.attempt.answer_call(id, HeldAnswer::Granted(denial.grant.into_iter().collect()));
                }
                Ok(AttemptEvent::Ended(end)) => {
                    return match end.end {
                        CommandEnd::Exited(code) => code.to_string(),
                        other => format!("{other:?}"),
                    };
                }
                Ok(_) => {}
                Err(error) => return error.to_string(),
            }
        }
    }
}

fn plan(level: IsolationLevel, script: &str) -> std::io::Result<AttemptPlan> {
    let workspace = std::env::current_dir()?;
    Ok(AttemptPlan {
        request: RequestId::from_random([7; 16]),
        attempt: 1,
        argv: ["sh", "-c", script].map(RawText::from).into(),
        environment: BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".into())]),
        cwd: workspace.clone().into(),
        workspace: workspace.clone().into(),
        profile: Profile {
            name: "workspace".to_owned(),
            sandboxed: true,
            filesystem: FilesystemAccess { write: vec![workspace.into()], ..FilesystemAccess::default() },
            exec: ExecRules::default(),
            network: NetworkAccess::None,
            egress: Default::default(),
            environment: EnvironmentRules::default(),
            limits: Limits { temp_bytes: Some(64 << 20), ..Limits::default() },
        },
        grants: Vec::new(),
        effects: Vec::new(),
        level,
        backend: "native".to_owned(),
    })
}

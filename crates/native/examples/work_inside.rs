//! Runs a command at level full, with the broker or without it, to measure
//! what asking costs: `work_inside asked|traced|unasked WORKSPACE [WRITABLE]... -- CMD
//! [ARG]...`. Needs feature `measure`; `bench/inside.py` builds and runs it.
//!
//! No protected names: both must be able to do the same.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use stockade_engine::{AttemptEvent, Backend, CommandEnd, Events, Io};
use stockade_model::{Environment, Filesystem, Level, Limits, Network, Plan, Profile, RawText, RequestId};
use stockade_native::NativeBackend;
use stockade_native::launch::{Blueprint, Ended, Stdio, launch};

/// Longer than any of the work that is measured.
const PATIENCE: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dashes = arguments.iter().position(|a| a == "--").expect("`--` before the command");
    let writable: Vec<PathBuf> = arguments[1..dashes].iter().map(|p| Path::new(p).canonicalize().unwrap()).collect();
    let mut plan = plan(&writable, &arguments[dashes + 1..]);
    plan.profile.filesystem.trace = arguments[0] == "traced";
    let code = if arguments[0] == "unasked" { unasked(&plan) } else { asked(&plan) };
    ExitCode::from(u8::try_from(code).unwrap_or(255))
}

fn asked(plan: &Plan) -> i32 {
    let (sender, events) = channel();
    let sender = Events::new(move |event| drop(sender.send(event)));
    let mut attempt = NativeBackend::default().prepare(plan, &Io::Inherit, false, sender).unwrap();
    attempt.release().unwrap();
    loop {
        match events.recv_timeout(PATIENCE).unwrap() {
            AttemptEvent::Ended(end) => match end.end {
                CommandEnd::Exited(code) => return code,
                other => panic!("{other:?}"),
            },
            AttemptEvent::Denied(denial) => eprintln!("refused: {denial:?}"),
            _ => {}
        }
    }
}

fn unasked(plan: &Plan) -> i32 {
    let blueprint = Blueprint::prepare(plan).unwrap().unasked().unwrap();
    let stdio =
        Stdio { stdin: rustix::stdio::stdin(), stdout: rustix::stdio::stdout(), stderr: rustix::stdio::stderr() };
    let mut launched = launch(blueprint, stdio).unwrap();
    launched.release().unwrap();
    match launched.wait(PATIENCE).unwrap().expect("it ends").status {
        Ended::Exited(code) => code,
        Ended::Signaled(signal) => panic!("ended by signal {signal}"),
    }
}

fn plan(writable: &[PathBuf], command: &[String]) -> Plan {
    let workspace = RawText::from(writable[0].as_path());
    Plan {
        request: RequestId::from_random([7; 16]),
        attempt: 1,
        argv: command.iter().map(|a| RawText::from(a.as_str())).collect(),
        environment: std::env::vars()
            .map(|(name, value)| (name, RawText::from(value.as_str())))
            .collect::<BTreeMap<_, _>>(),
        cwd: workspace.clone(),
        workspace,
        profile: Profile {
            name: "workspace".to_owned(),
            sandboxed: true,
            filesystem: Filesystem {
                write: writable.iter().map(|p| RawText::from(p.as_path())).collect(),
                ..Filesystem::default()
            },
            exec: stockade_model::ExecRules::default(),
            network: Network::None,
            egress: Default::default(),
            environment: Environment::default(),
            limits: Limits::default(),
        },
        grants: Vec::new(),
        level: Level::Full,
        backend: "native".to_owned(),
    }
}

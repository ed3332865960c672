//! One command in a container, with this program's own streams: what a test that looks
//! from outside starts. `one_command SOCKET IMAGE ID WORKSPACE HOME LAUNCHER TERMINAL SCRIPT`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's program stops where its expectation fails")]

use std::env::args;
use std::sync::mpsc::channel;

use stockade_container::{ContainerSandboxes, Kind, Settings};
use stockade_engine::{
    AttemptEvent, CommandEnd, Events, Io, SandboxError, SandboxEvents, SandboxPlan, Sandboxes, System,
};
use stockade_model::{Background, Filesystem, Level, Limits, Network, Plan, Profile, RequestId};

fn main() {
    let given: Vec<String> = args().skip(1).collect();
    let [socket, accounts, image, id, workspace, home, launcher, terminal, script] =
        given.try_into().expect("nine arguments");
    let settings = Settings {
        socket: Some(socket.into()),
        launcher: launcher.into(),
        accounts: accounts.into(),
        owner: "tests".to_owned(),
    };
    let kind = ContainerSandboxes::new(Kind::Docker, settings);
    let plan = SandboxPlan {
        id: id.parse().unwrap(),
        system: Some(System::Image(image.parse().unwrap())),
        workspace: workspace.into(),
        home: home.into(),
        profile: profile(),
        level: Level::Full,
        background: Background::End,
        runtime: None,
    };
    let sandbox = match kind.adopt(&plan, SandboxEvents::new(|_| {})) {
        Err(SandboxError::Gone(_)) => kind.create(&plan, SandboxEvents::new(|_| {})).unwrap(),
        found => found.unwrap(),
    };
    let (sender, events) = channel();
    let sink = Events::new(move |event| drop(sender.send(event)));
    let io = if terminal == "terminal" { Io::Terminal } else { Io::Inherit };
    let mut attempt = sandbox.backend().prepare(&command(&script), &io, false, sink).unwrap();
    attempt.release().unwrap();
    let end = events.iter().find_map(|event| match event {
        AttemptEvent::Ended(end) => Some(end.end),
        _ => None,
    });
    drop(attempt);
    match end.unwrap() {
        CommandEnd::Exited(code) => std::process::exit(code),
        other => panic!("{other:?}"),
    }
}

fn profile() -> Profile {
    Profile {
        name: "workspace".to_owned(),
        sandboxed: true,
        filesystem: Filesystem { write: vec!["/workspace".into(), "/home/agent".into()], ..Filesystem::default() },
        exec: stockade_model::ExecRules::default(),
        network: Network::None,
        egress: stockade_model::Egress::default(),
        environment: stockade_model::Environment::default(),
        limits: Limits { memory_bytes: Some(256 << 20), processes: Some(200), ..Limits::default() },
    }
}

fn command(script: &str) -> Plan {
    Plan {
        request: RequestId::from_random([7; 16]),
        attempt: 1,
        argv: ["/bin/sh", "-c", script].map(Into::into).into(),
        environment: [("PATH", "/bin"), ("TERM", "xterm")].map(|(name, value)| (name.to_owned(), value.into())).into(),
        cwd: "/workspace".into(),
        workspace: "/workspace".into(),
        profile: profile(),
        grants: Vec::new(),
        effects: Vec::new(),
        level: Level::Full,
        backend: "docker".to_owned(),
    }
}

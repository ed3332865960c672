//! One command in a container, with this program's own streams: what a test that looks
//! from outside starts. `one_command SOCKET IMAGE ID WORKSPACE HOME LAUNCHER TERMINAL SCRIPT`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's program stops where its expectation fails")]

use std::env::args;
use std::sync::mpsc::channel;

use stockade_backend_api::{
    AttemptEvent, AttemptEventSender, CommandEnd, GuestSystem, SandboxError, SandboxEventSender, SandboxPlan,
    SandboxProvider, StdioMode,
};
use stockade_container::{ContainerEngineKind, ContainerSandboxes, ContainerSettings};
use stockade_model::{
    AttemptPlan, BackgroundPolicy, FilesystemAccess, IsolationLevel, Limits, NetworkAccess, Profile, RequestId,
};

fn main() {
    let arguments: Vec<String> = args().skip(1).collect();
    let [socket, accounts, image, id, workspace, home, launcher, terminal, script] =
        arguments.try_into().expect("nine arguments");
    let settings = ContainerSettings {
        socket: Some(socket.into()),
        launcher: launcher.into(),
        accounts: accounts.into(),
        owner: "tests".to_owned(),
    };
    let kind = ContainerSandboxes::new(ContainerEngineKind::Docker, settings);
    let plan = SandboxPlan {
        id: id.parse().unwrap(),
        system: Some(GuestSystem::Image(image.parse().unwrap())),
        workspace: workspace.into(),
        home: home.into(),
        profile: profile(),
        level: IsolationLevel::Full,
        background: BackgroundPolicy::End,
        runtime: None,
    };
    let sandbox = match kind.adopt_sandbox(&plan, SandboxEventSender::new(|_| {})) {
        Err(SandboxError::Gone(_)) => kind.create_sandbox(&plan, SandboxEventSender::new(|_| {})).unwrap(),
        found => found.unwrap(),
    };
    let (sender, events) = channel();
    let sink = AttemptEventSender::new(move |event| drop(sender.send(event)));
    let io = if terminal == "terminal" { StdioMode::Terminal } else { StdioMode::Inherit };
    let mut attempt = sandbox.backend().prepare_attempt(&command(&script), &io, false, sink).unwrap();
    attempt.release_command().unwrap();
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
        filesystem: FilesystemAccess {
            write: vec!["/workspace".into(), "/home/agent".into()],
            ..FilesystemAccess::default()
        },
        exec: stockade_model::ExecRules::default(),
        network: NetworkAccess::None,
        egress: stockade_model::EgressRules::default(),
        environment: stockade_model::EnvironmentRules::default(),
        limits: Limits { memory_bytes: Some(256 << 20), processes: Some(200), ..Limits::default() },
    }
}

fn command(script: &str) -> AttemptPlan {
    AttemptPlan {
        request: RequestId::from_random([7; 16]),
        attempt: 1,
        argv: ["/bin/sh", "-c", script].map(Into::into).into(),
        environment: [("PATH", "/bin"), ("TERM", "xterm")].map(|(name, value)| (name.to_owned(), value.into())).into(),
        cwd: "/workspace".into(),
        workspace: "/workspace".into(),
        profile: profile(),
        grants: Vec::new(),
        effects: Vec::new(),
        level: IsolationLevel::Full,
        backend: "docker".to_owned(),
    }
}

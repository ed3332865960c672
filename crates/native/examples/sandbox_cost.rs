//! What sandboxes that last cost: how long one takes to be made, a command in it and
//! its end, and how much memory each has while nothing runs in it.
//!
//! `cargo run --release -p stockade-native --example sandbox_cost [SANDBOXES]`
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use stockade_backend_api::{
    AttemptEvent, AttemptEventSender, Sandbox, SandboxEventSender, SandboxPlan, SandboxProvider, StdioMode,
};
use stockade_model::{
    AttemptPlan, BackgroundPolicy, DEFAULT_PROTECTED_NAMES, EnvironmentRules, FilesystemAccess, IsolationLevel, Limits,
    NetworkAccess, Profile, RawText, RequestId, SandboxId,
};
use stockade_native::NativeSandboxes;

/// Commands run in each sandbox.
const COMMANDS: usize = 3;

fn main() {
    let count = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(50);
    let top = tempfile::tempdir().unwrap();
    let (before, kinds) = (own_memory_kib(), NativeSandboxes::default());
    let mut times: [Vec<Duration>; 3] = Default::default();
    let mut all = Vec::new();
    for number in 0..count {
        let begin = Instant::now();
        all.push(kinds.create_sandbox(&sandbox(top.path(), number), SandboxEventSender::new(|_| {})).unwrap());
        times[0].push(begin.elapsed());
    }
    let inits: u64 = children().iter().map(|pid| memory_kib(*pid)).sum();
    let own = own_memory_kib() - before;
    for sandbox in all.iter().cycle().take(count * COMMANDS) {
        let begin = Instant::now();
        run(sandbox.as_ref());
        times[1].push(begin.elapsed());
    }
    for sandbox in all {
        let begin = Instant::now();
        sandbox.destroy().unwrap();
        times[2].push(begin.elapsed());
    }
    for (name, times) in ["create", "command", "destroy"].iter().zip(&mut times) {
        times.sort_unstable();
        println!("{name:8} median {:>9.3?}  minimum {:>9.3?}", times[times.len() / 2], times[0]);
    }
    let count = count as u64;
    println!("memory of each, idle: {} KiB its init, {} KiB in its keeper", inits / count, own / count);
}

fn run(sandbox: &dyn Sandbox) {
    let (sender, events) = channel();
    let event_sink = AttemptEventSender::new(move |event| drop(sender.send(event)));
    let mut attempt = sandbox
        .backend()
        .prepare_attempt(&plan(), &StdioMode::Capture { limit_bytes: 4096 }, false, event_sink)
        .unwrap();
    attempt.release_command().unwrap();
    while !matches!(events.recv().unwrap(), AttemptEvent::Ended(_)) {}
}

fn sandbox(top: &Path, number: usize) -> SandboxPlan {
    let directory = |kind: &str| {
        let path = top.join(format!("{kind}{number}"));
        fs::create_dir(&path).unwrap();
        path
    };
    SandboxPlan {
        id: SandboxId::from_random((number as u128).to_be_bytes()),
        system: None,
        workspace: directory("work"),
        home: directory("home"),
        profile: plan().profile,
        level: IsolationLevel::Full,
        background: BackgroundPolicy::Keep,
        runtime: None,
    }
}

fn plan() -> AttemptPlan {
    AttemptPlan {
        request: RequestId::from_random([7; 16]),
        attempt: 1,
        argv: vec![RawText::from("true")],
        environment: BTreeMap::from([("PATH".to_owned(), RawText::from("/usr/bin:/bin"))]),
        cwd: "/workspace".into(),
        workspace: "/workspace".into(),
        profile: Profile {
            name: "workspace".to_owned(),
            sandboxed: true,
            filesystem: FilesystemAccess {
                write: vec!["/workspace".into(), "/home/agent".into()],
                protect: DEFAULT_PROTECTED_NAMES.iter().map(|n| (*n).to_owned()).collect(),
                ..FilesystemAccess::default()
            },
            exec: stockade_model::ExecRules::default(),
            network: NetworkAccess::None,
            egress: Default::default(),
            environment: EnvironmentRules::default(),
            limits: Limits { processes: Some(200), ..Limits::default() },
        },
        grants: Vec::new(),
        effects: Vec::new(),
        level: IsolationLevel::Full,
        backend: "native".to_owned(),
    }
}

/// Of this process, by all of its threads.
fn children() -> Vec<u32> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()).collect()
}

/// What a process has for itself, and its share of the rest.
fn memory_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn own_memory_kib() -> u64 {
    memory_kib(std::process::id())
}

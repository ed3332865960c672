//! What a start costs, phase by phase, over plain fork and exec: `true`, at
//! each level, every question answered with "go on".
//!
//! `cargo run --release -p stockade-native --example start_cost [EXECUTION_MARKS]`
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use stockade_launch::{Blueprint, CommandStdio, launch_sandbox};
use stockade_model::{
    AttemptPlan, DEFAULT_PROTECTED_NAMES, EnvironmentRules, FilesystemAccess, IsolationLevel, Limits, NetworkAccess,
    Profile, RawText, RequestId,
};
use stockade_sys::notify::{NotificationAnswer, SeccompNotifier};

const PHASES: [&str; 6] = ["prepare", "launch", "release to end", "drop", "all", "plain fork and exec"];

fn main() {
    let runs = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(200);
    for level in [IsolationLevel::Full, IsolationLevel::Restricted] {
        let mut times: [Vec<Duration>; 6] = Default::default();
        for _ in 0..runs {
            for (all, one) in times.iter_mut().zip(start(level)) {
                all.push(one);
            }
        }
        println!("level {level}");
        for (name, times) in PHASES.iter().zip(&mut times) {
            times.sort_unstable();
            println!("  {name:20} median {:>9.3?}  minimum {:>9.3?}", times[times.len() / 2], times[0]);
        }
    }
}

fn start(level: IsolationLevel) -> [Duration; 6] {
    let plan = plan(level);
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let stdio = CommandStdio { stdin: null.as_fd(), stdout: null.as_fd(), stderr: null.as_fd() };
    let begin = Instant::now();
    let blueprint = Blueprint::prepare(&plan).unwrap();
    let prepared = Instant::now();
    let mut launched = launch_sandbox(blueprint, stdio).unwrap();
    let built = Instant::now();
    let notifier = SeccompNotifier::new(launched.take_listener().unwrap()).unwrap();
    let answers = thread::spawn(move || {
        let _ = notifier.wake_synchronously();
        let mut space = notifier.allocate_buffer();
        while let Ok(request) = notifier.receive_notification(&mut space) {
            let _ = notifier.answer_call(request.id, NotificationAnswer::Continue);
        }
    });
    launched.release_command().unwrap();
    launched.wait_for_end(Duration::from_secs(10)).unwrap().expect("it ends");
    let ended = Instant::now();
    drop(launched);
    let dropped = Instant::now();
    drop(answers);
    let plain = Instant::now();
    std::process::Command::new("/bin/true").status().unwrap();
    [prepared - begin, built - prepared, ended - built, dropped - ended, dropped - begin, plain.elapsed()]
}

fn plan(level: IsolationLevel) -> AttemptPlan {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    AttemptPlan {
        request: RequestId::from_random([7; 16]),
        attempt: 1,
        argv: vec![RawText::from("true")],
        environment: BTreeMap::from([("PATH".to_owned(), RawText::from("/usr/bin:/bin"))]),
        cwd: workspace.clone().into(),
        workspace: workspace.clone().into(),
        profile: Profile {
            name: "workspace".to_owned(),
            sandboxed: true,
            filesystem: FilesystemAccess {
                write: vec![workspace.into()],
                protect: DEFAULT_PROTECTED_NAMES.iter().map(|n| (*n).to_owned()).collect(),
                ..FilesystemAccess::default()
            },
            exec: stockade_model::ExecRules::default(),
            network: NetworkAccess::None,
            egress: Default::default(),
            environment: EnvironmentRules::default(),
            limits: Limits::default(),
        },
        grants: Vec::new(),
        effects: Vec::new(),
        level,
        backend: "native".to_owned(),
    }
}

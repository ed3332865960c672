//! The native backend as the engine sees it: prepare, release, events, end.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its expectation fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use stockade_backend_api::{Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, Backend, CommandEnd, StdioMode};
use stockade_model::{
    AttemptPlan, DEFAULT_PROTECTED_NAMES, Denial, DeniedOperation, EnvironmentRules, FilesystemAccess, Grant,
    IsolationLevel, Limits, NetworkAccess, Profile, RequestId,
};
use stockade_native::NativeBackend;
use tempfile::TempDir;

const CAPTURE: StdioMode = StdioMode::Capture { limit_bytes: 1 << 20 };

/// Not in a temp directory: those are private inside.
fn scratch() -> TempDir {
    let directory = if rustix::process::geteuid().is_root() { "/home".into() } else { std::env::var("HOME").unwrap() };
    tempfile::Builder::new().prefix("stockade-backend-").tempdir_in(directory).unwrap()
}

fn plan(top: &Path, level: IsolationLevel, argv: &[&str]) -> AttemptPlan {
    let workspace = top.join("ws");
    fs::create_dir_all(&workspace).unwrap();
    fs::create_dir_all(top.join("home/.ssh")).unwrap();
    fs::write(top.join("home/.ssh/id"), "SECRET").unwrap();
    let path = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".into())]);
    AttemptPlan {
        request: RequestId::from_random([1; 16]),
        attempt: 1,
        argv: argv.iter().map(|&a| a.into()).collect(),
        environment: path,
        cwd: workspace.clone().into(),
        workspace: workspace.clone().into(),
        profile: Profile {
            name: "workspace".to_owned(),
            sandboxed: true,
            filesystem: FilesystemAccess {
                write: vec![workspace.into()],
                hide: vec![top.join("home/.ssh").into()],
                protect: DEFAULT_PROTECTED_NAMES.iter().map(|&n| n.to_owned()).collect(),
                ..FilesystemAccess::default()
            },
            exec: stockade_model::ExecRules::default(),
            network: NetworkAccess::None,
            egress: Default::default(),
            environment: EnvironmentRules::default(),
            limits: Limits { temp_bytes: Some(64 << 20), ..Limits::default() },
        },
        grants: Vec::new(),
        effects: Vec::new(),
        level,
        backend: "native".to_owned(),
    }
}

fn channel_of_events() -> (AttemptEventSender, Receiver<AttemptEvent>) {
    let (sender, receiver) = channel();
    (AttemptEventSender::new(move |event| drop(sender.send(event))), receiver)
}

fn drain(events: &Receiver<AttemptEvent>) -> (AttemptEnd, Vec<Denial>) {
    let mut denials = Vec::new();
    loop {
        match events.recv_timeout(Duration::from_secs(30)).expect("the attempt ends") {
            AttemptEvent::Denied(denial) | AttemptEvent::Breached(denial) => denials.push(denial),
            AttemptEvent::Executed { .. } | AttemptEvent::Connection(_) | AttemptEvent::Signed { .. } => {}
            AttemptEvent::Held { .. } | AttemptEvent::Withdrawn(_) | AttemptEvent::Stopped(_) => {
                panic!("it was not told to hold")
            }
            AttemptEvent::Ended(end) => return (end, denials),
        }
    }
}

fn run(plan: &AttemptPlan) -> (AttemptEnd, Vec<Denial>) {
    let (sender, events) = channel_of_events();
    let mut attempt = NativeBackend::default().prepare_attempt(plan, &CAPTURE, false, sender).unwrap();
    assert_eq!(attempt.enforcement_report().level, plan.level);
    attempt.release_command().unwrap();
    drain(&events)
}

fn each_level(test: impl Fn(&Path, IsolationLevel)) {
    for level in [IsolationLevel::Full, IsolationLevel::Restricted] {
        let top = scratch();
        test(top.path(), level);
    }
}

#[test]
fn output_exit_code_and_usage_come_back() {
    each_level(|top, level| {
        let (end, denials) = run(&plan(top, level, &["sh", "-c", "echo out; echo err >&2; exit 7"]));
        assert_eq!(end.end, CommandEnd::Exited(7));
        assert_eq!(end.stdout.unwrap().as_bytes(), b"out\n");
        assert_eq!(end.stderr.unwrap().as_bytes(), b"err\n");
        assert!(end.usage.memory_peak_bytes > 0);
        assert_eq!(denials, []);
    });
}

#[test]
fn a_missing_program_is_not_found_and_no_denial() {
    each_level(|top, level| {
        let (end, denials) = run(&plan(top, level, &["no-such-program"]));
        assert_eq!(end.end, CommandEnd::NotFound);
        assert_eq!(denials, []);
    });
}

#[test]
fn work_in_the_workspace_is_done_and_the_outside_is_refused_by_name() {
    each_level(|top, level| {
        let outside = top.join("home/new");
        let script =
            format!("echo a > f && mkdir d && mv f d/g && cat d/g; echo x > {}; mkdir .idea", outside.display());
        let (end, denials) = run(&plan(top, level, &["sh", "-c", &script]));
        assert_eq!(end.stdout.unwrap().as_bytes(), b"a\n", "{:?}", end.stderr);
        assert_eq!(fs::read_to_string(top.join("ws/d/g")).unwrap(), "a\n");
        assert!(!outside.exists() && !top.join("ws/.idea").exists());
        let found: Vec<_> =
            denials.iter().map(|d| (d.operation, d.object.as_path().to_owned(), d.grant.clone())).collect();
        let protected = top.join("ws/.idea");
        assert_eq!(
            found,
            [
                (DeniedOperation::Create, outside.clone(), Some(Grant::Write(outside))),
                (DeniedOperation::Mkdir, protected.clone(), Some(Grant::Write(protected))),
            ]
        );
    });
}

/// A path that does not exist yet can be granted: exactly it can be made.
#[test]
fn a_grant_for_a_new_file_is_enough_to_make_it() {
    each_level(|top, level| {
        let outside = top.join("home/new");
        let script = format!("echo x >> {0}; echo x >> {0}; chmod 600 {0}; echo y > {0}2", outside.display());
        let mut plan = plan(top, level, &["sh", "-c", &script]);
        plan.grants = vec![Grant::Write(outside.clone())];
        plan.profile.filesystem.write.push(outside.clone().into());
        let (end, denials) = run(&plan);
        assert_eq!(fs::read_to_string(&outside).unwrap_or_default(), "x\nx\n", "{level}: {:?}", end.stderr);
        assert_eq!(denials.len(), 1, "{denials:?}");
        assert!(!top.join("home/new2").exists());
    });
}

#[test]
fn an_opened_credential_is_evidence() {
    let top = scratch();
    let secret = top.path().join("home/.ssh/id");
    let (end, denials) = run(&plan(top.path(), IsolationLevel::Full, &["cat", secret.to_str().unwrap()]));
    assert!(!end.stdout.unwrap().to_escaped().contains("SECRET"));
    assert_eq!(denials.len(), 1, "{denials:?}");
    assert_eq!((denials[0].operation, denials[0].object.as_path()), (DeniedOperation::Read, secret.as_path()));
}

#[test]
fn a_full_private_temp_is_evidence() {
    let top = scratch();
    let (end, denials) = run(&plan(top.path(), IsolationLevel::Full, &["sh", "-c", "cat /dev/zero > /tmp/fill"]));
    assert_eq!(end.end, CommandEnd::Exited(1));
    let operations = |denials: &[Denial]| denials.iter().map(|d| d.operation).collect::<Vec<_>>();
    // And what was made there is gone.
    assert_eq!(operations(&denials), [DeniedOperation::Limit, DeniedOperation::Create], "{denials:?}");
    let (_, denials) =
        run(&plan(top.path(), IsolationLevel::Full, &["sh", "-c", "head -c 1000000 /dev/zero > /tmp/fill"]));
    assert_eq!(operations(&denials), [DeniedOperation::Create], "{denials:?}");
}

#[test]
fn dropping_or_killing_an_attempt_ends_it() {
    each_level(|top, level| {
        let (sender, events) = channel_of_events();
        let mut attempt = NativeBackend::default()
            .prepare_attempt(&plan(top, level, &["sleep", "600"]), &CAPTURE, false, sender)
            .unwrap();
        attempt.release_command().unwrap();
        attempt.kill_processes();
        assert_eq!(drain(&events).0.end, CommandEnd::Signaled(9));

        let (sender, events) = channel_of_events();
        let held: Box<dyn Attempt> = NativeBackend::default()
            .prepare_attempt(&plan(top, level, &["touch", "ran"]), &CAPTURE, false, sender)
            .unwrap();
        drop(held);
        drain(&events);
        assert!(!top.join("ws/ran").exists(), "a held command ran");
    });
}

//! Runs a command at level full, with the broker or without it, to measure
//! what asking costs: `work_inside asked|traced|unasked|least WORKSPACE [WRITABLE]... --
//! CMD [ARG]...`. Needs feature `measure`; `bench/inside.py` builds and runs it.
//!
//! `least` is no broker but the least that could be one: it reads the path, opens what
//! is asked for and puts the descriptor in place, and decides nothing. What it costs is
//! the kernel's part.
//!
//! No protected names: all must be able to do the same.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_backend_api::{AttemptEvent, AttemptEventSender, Backend, CommandEnd, StdioMode};
use stockade_launch::{Blueprint, CommandStdio, LaunchedSandbox, ProcessExit, launch_sandbox};
use stockade_model::{
    AttemptPlan, EnvironmentRules, FilesystemAccess, IsolationLevel, Limits, NetworkAccess, Profile, RawText, RequestId,
};
use stockade_native::NativeBackend;
use stockade_sys::memory::read_c_string;
use stockade_sys::notify::{NotificationAnswer, SeccompNotifier};

/// Longer than any of the work that is measured.
const TIMEOUT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dashes = arguments.iter().position(|a| a == "--").expect("`--` before the command");
    let writable: Vec<PathBuf> = arguments[1..dashes].iter().map(|p| Path::new(p).canonicalize().unwrap()).collect();
    let mut plan = plan(&writable, &arguments[dashes + 1..]);
    plan.profile.filesystem.trace = arguments[0] == "traced";
    let code = match arguments[0].as_str() {
        "unasked" => unasked(&plan),
        "least" => least(&plan),
        _ => run_in_backend(&plan),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(255))
}

fn run_in_backend(plan: &AttemptPlan) -> i32 {
    let (sender, events) = channel();
    let sender = AttemptEventSender::new(move |event| drop(sender.send(event)));
    let mut attempt = NativeBackend::default().prepare_attempt(plan, &StdioMode::Inherit, false, sender).unwrap();
    attempt.release_command().unwrap();
    loop {
        match events.recv_timeout(TIMEOUT).unwrap() {
            AttemptEvent::Ended(end) => match end.end {
                CommandEnd::Exited(code) => return code,
                other => panic!("{other:?}"),
            },
            AttemptEvent::Denied(denial) => eprintln!("refused: {denial:?}"),
            _ => {}
        }
    }
}

fn unasked(plan: &AttemptPlan) -> i32 {
    ended(launch_sandbox(Blueprint::prepare(plan).unwrap().without_broker().unwrap(), own_streams()).unwrap())
}

fn least(plan: &AttemptPlan) -> i32 {
    let mut launched = launch_sandbox(Blueprint::prepare(plan).unwrap(), own_streams()).unwrap();
    let notifier = SeccompNotifier::new(launched.take_listener().unwrap()).unwrap();
    notifier.wake_synchronously().unwrap();
    std::thread::spawn(move || {
        let mut space = notifier.allocate_buffer();
        while let Ok(request) = notifier.receive_notification(&mut space) {
            let opens = i64::from(request.call) == libc::SYS_openat && request.args[2] as i32 & libc::O_ACCMODE != 0;
            // It fails only where the caller is gone.
            let _ = if opens {
                let path = read_c_string(request.pid, request.args[1], libc::PATH_MAX as usize).unwrap();
                let flags = OFlags::from_bits_retain(request.args[2] as u32) | OFlags::CLOEXEC;
                let file = openat(CWD, path, flags, Mode::from_bits_retain(request.args[3] as u32)).unwrap();
                notifier.answer_with_descriptor(request.id, file.as_fd(), true)
            } else {
                notifier.answer_call(request.id, NotificationAnswer::Continue)
            };
        }
    });
    ended(launched)
}

fn own_streams() -> CommandStdio<'static> {
    CommandStdio { stdin: rustix::stdio::stdin(), stdout: rustix::stdio::stdout(), stderr: rustix::stdio::stderr() }
}

fn ended(mut launched: LaunchedSandbox) -> i32 {
    launched.release_command().unwrap();
    match launched.wait_for_end(TIMEOUT).unwrap().expect("it ends").status {
        ProcessExit::Exited(code) => code,
        ProcessExit::Signaled(signal) => panic!("ended by signal {signal}"),
    }
}

fn plan(writable: &[PathBuf], command: &[String]) -> AttemptPlan {
    let workspace = RawText::from(writable[0].as_path());
    AttemptPlan {
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
            filesystem: FilesystemAccess {
                write: writable.iter().map(|p| RawText::from(p.as_path())).collect(),
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
        level: IsolationLevel::Full,
        backend: "native".to_owned(),
    }
}

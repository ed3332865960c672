//! Sandboxes that are each kept by a process of its own: they go on without whoever
//! made them, are found again, and nothing of one outlives its keeper.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its expectation fails")]
#![allow(clippy::disallowed_methods, reason = "a test makes what it needs")]

mod sandbox_support;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, getsid, kill_process};
use sandbox_support::{CAPTURE, Ran, TIMEOUT, drain, groups_of, has_groups, hearing, inside, sandbox_plan};
use stockade_backend_api::{
    Attempt, AttemptEvent, AttemptEventSender, CommandEnd, HeldAnswer, Sandbox, SandboxError, SandboxEvent,
    SandboxPlan, SandboxProvider, SandboxTree,
};
use stockade_model::{AttemptPlan, RequestId, SandboxId};
use stockade_native::{NativeSandboxes, SupervisorHooks, run_sandbox_supervisor};
use support::{in_each_role, processes_with, wait_until};
use tempfile::TempDir;

/// This program, as a keeper starts it: the last argument is a sandbox's id.
#[test]
fn acts_as_supervisor() {
    if !std::env::args().any(|argument| argument == SUPERVISOR) {
        return;
    }
    let begin = |id: &SandboxId, _: &Path| {
        // A file in the place of a time that is over.
        let over = over(id);
        let next_check_delay = move || (!over.exists()).then_some(Duration::from_millis(50));
        Ok(SupervisorHooks { events: hearing().0, next_check_delay: Box::new(next_check_delay) })
    };
    run_sandbox_supervisor(begin).unwrap();
}

/// Says that this program is to keep a sandbox.
const SUPERVISOR: &str = "keeper-of-a-test";

fn over(id: &SandboxId) -> PathBuf {
    std::env::temp_dir().join(format!("over-{id}"))
}

/// A place for sandboxes, and one in it that is planned.
struct Estate {
    top: TempDir,
    kinds: NativeSandboxes,
    plan: SandboxPlan,
}

impl Estate {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut SandboxPlan)) -> Self {
        let top = tempfile::Builder::new().prefix("sandbox-").tempdir().unwrap();
        // Longer than the name of a socket may be.
        let root = top.path().join("r".repeat(120));
        fs::create_dir(&root).unwrap();
        let mut plan = sandbox_plan(top.path());
        let mut random = [3; 16];
        random[..4].copy_from_slice(&std::process::id().to_le_bytes());
        plan.id = SandboxId::from_random(random);
        change(&mut plan);
        let arguments =
            ["--exact", "acts_as_supervisor", "--nocapture", "--test-threads", "1", SUPERVISOR].map(Into::into);
        let kinds =
            NativeSandboxes::default().with_supervisor(std::env::current_exe().unwrap(), arguments.into(), root);
        Self { top, kinds, plan }
    }

    #[track_caller]
    fn create(&self) -> (Box<dyn Sandbox>, Receiver<SandboxEvent>) {
        let (events, event_channel) = hearing();
        (self.kinds.create_sandbox(&self.plan, events).unwrap(), event_channel)
    }

    fn adopt(&self) -> Result<(Box<dyn Sandbox>, Receiver<SandboxEvent>), SandboxError> {
        let (events, event_channel) = hearing();
        Ok((self.kinds.adopt_sandbox(&self.plan, events)?, event_channel))
    }

    /// What the sandbox keeps.
    fn directory(&self) -> PathBuf {
        self.top.path().join("r".repeat(120)).join(self.plan.id.as_str())
    }

    /// The processes that keep the sandbox: each holds its directory.
    fn supervisor_pids(&self) -> Vec<u32> {
        let holds = |process: &PathBuf| {
            let held = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            held.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|path| path.starts_with(self.directory()))
        };
        let number = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
        processes_with(SUPERVISOR).into_iter().filter(holds).filter_map(number).collect()
    }

    #[track_caller]
    fn supervisor_pid(&self) -> u32 {
        let supervisor_pids = self.supervisor_pids();
        let [supervisor_pid] = supervisor_pids[..] else { panic!("not one keeper: {supervisor_pids:?}") };
        supervisor_pid
    }

    fn is_kept(&self) -> bool {
        !self.supervisor_pids().is_empty()
    }
}

impl Drop for Estate {
    fn drop(&mut self) {
        self.kinds.clear(&self.plan.id).unwrap();
        assert!(!self.is_kept());
    }
}

fn begin(sandbox: &dyn Sandbox, plan: &AttemptPlan, hold: bool) -> (Box<dyn Attempt>, Receiver<AttemptEvent>) {
    let (sender, events) = channel();
    let event_channel = AttemptEventSender::new(move |event| drop(sender.send(event)));
    let mut attempt = sandbox.backend().prepare_attempt(plan, &CAPTURE, hold, event_channel).unwrap();
    attempt.release_command().unwrap();
    (attempt, events)
}

#[track_caller]
fn run(sandbox: &dyn Sandbox, script: &str) -> Ran {
    let (attempt, events) = begin(sandbox, &inside(script), false);
    let report = attempt.enforcement_report().clone();
    let (end, denials) = drain(&events);
    Ran { end, denials, report }
}

fn kill(process: u32) {
    kill_process(Pid::from_raw(process.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

fn sleeping(mark: &str) -> usize {
    processes_with(&format!("sleep\0{mark}")).len()
}

#[test]
fn a_sandbox_continues_without_its_creator_and_is_found_again() {
    in_each_role("a_sandbox_continues_without_its_creator_and_is_found_again", || {
        let estate = Estate::new();
        assert!(estate.kinds.capabilities().adopts);
        assert!(matches!(estate.adopt(), Err(SandboxError::Gone(_))));
        let (made, _event_channel) = estate.create();
        let mark = format!("85{:07}", std::process::id());
        run(made.as_ref(), &format!("echo temp > /tmp/temp; (setsid sleep {mark} >/dev/null 2>&1 &); true")).ok();
        drop(made);
        let (found, event_channel) = estate.adopt().unwrap();
        assert_eq!(run(found.as_ref(), "cat /tmp/temp").ok(), "temp\n");
        assert_eq!(sleeping(&mark), 1);
        assert!(found.enforcement_report().layers.contains_key("limits"));
        assert!(found.open_tree(SandboxTree::Home).is_ok());
        // It leads a session, so nobody's terminal reaches it, and has nothing of its maker's.
        let supervisor_pid = estate.supervisor_pid();
        let number = Pid::from_raw(supervisor_pid.cast_signed());
        assert_eq!(getsid(number).ok(), number);
        assert_eq!(fs::read(format!("/proc/{supervisor_pid}/environ")).unwrap(), b"");
        // Whoever asks for it again gets it, not a second one.
        let (second, _) = estate.create();
        assert_eq!(
            (run(second.as_ref(), "cat /tmp/temp").ok().as_str(), estate.supervisor_pid()),
            ("temp\n", supervisor_pid)
        );
        second.destroy().unwrap();
        assert_eq!(sleeping(&mark), 0);
        assert!(!estate.is_kept());
        assert!(matches!(found.read_usage(), Err(SandboxError::Gone(_))));
        second.destroy().unwrap();
        assert!(matches!(event_channel.recv_timeout(TIMEOUT).unwrap(), SandboxEvent::Lost(_)));
        assert!(estate.top.path().join("work").exists(), "the directories are the caller's");
    });
}

#[test]
fn a_command_has_the_streams_and_the_umask_of_its_caller() {
    in_each_role("a_command_has_the_streams_and_the_umask_of_its_caller", || {
        let estate = Estate::new();
        let (sandbox, _event_channel) = estate.create();
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o027));
        let out = run(sandbox.as_ref(), "umask; echo x > file; echo err >&2; exit 3");
        rustix::process::umask(before);
        assert_eq!(out.end.end, CommandEnd::Exited(3));
        assert_eq!(out.end.stdout.unwrap().as_bytes(), b"0027\n");
        assert_eq!(out.end.stderr.unwrap().as_bytes(), b"err\n");
        let mode = fs::metadata(estate.top.path().join("work/file")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    });
}

#[test]
fn a_call_waits_for_the_answer_of_another_process() {
    in_each_role("a_call_waits_for_the_answer_of_another_process", || {
        let estate = Estate::new();
        let (sandbox, _event_channel) = estate.create();
        let (attempt, events) = begin(sandbox.as_ref(), &inside("echo x > .bashrc && cat .bashrc"), true);
        let end = loop {
            match events.recv_timeout(TIMEOUT).unwrap() {
                AttemptEvent::Held { id, denial } => {
                    attempt.answer_call(id, HeldAnswer::Granted(vec![denial.grant.unwrap()]));
                }
                AttemptEvent::Ended(end) => break end,
                _ => {}
            }
        };
        assert_eq!((end.end, end.stdout.unwrap().as_bytes()), (CommandEnd::Exited(0), &b"x\n"[..]));
        assert_eq!(run(sandbox.as_ref(), "echo y > .bashrc").denials.len(), 1);
        let never = AttemptPlan { grants: vec![sandbox_support::grant("read /etc/shadow")], ..inside("true") };
        let (sender, _events) = channel();
        let event_channel = AttemptEventSender::new(move |event| drop(sender.send(event)));
        let refused = sandbox.backend().prepare_attempt(&never, &CAPTURE, false, event_channel).err().unwrap();
        assert!(refused.what.contains("cannot be given"), "{refused:?}");
    });
}

#[test]
fn events_between_commands_are_reported_to_the_user_of_the_sandbox() {
    in_each_role("events_between_commands_are_reported_to_the_user_of_the_sandbox", || {
        let estate = Estate::new();
        let (sandbox, event_channel) = estate.create();
        let leftover_script =
            "(setsid bash -c 'while [ ! -e /tmp/go ]; do sleep 0.02; done; echo x > .bashrc' >/dev/null 2>&1 &)";
        let (attempt, events) = begin(sandbox.as_ref(), &inside(leftover_script), false);
        assert_eq!(drain(&events).0.end, CommandEnd::Exited(0));
        drop(attempt);
        run(sandbox.as_ref(), "touch /tmp/go").ok();
        let denied = event_channel.recv_timeout(TIMEOUT).unwrap();
        let SandboxEvent::Denied { request, denial } = denied else { panic!("{denied:?}") };
        assert_eq!(request, RequestId::from_random([1; 16]));
        assert_eq!(denial.object.to_escaped(), "/workspace/.bashrc");
    });
}

#[test]
fn a_sandbox_is_paused_and_resumed_by_any_of_its_users() {
    in_each_role("a_sandbox_is_paused_and_resumed_by_any_of_its_users", || {
        if !has_groups() {
            return;
        }
        let estate = Estate::new();
        let (sandbox, _event_channel) = estate.create();
        run(sandbox.as_ref(), "(setsid bash -c 'while true; do echo >> n; done' >/dev/null 2>&1 &); true").ok();
        let length = || fs::metadata(estate.top.path().join("work/n")).map_or(0, |n| n.len());
        wait_until("it counts", || length() > 10);
        estate.adopt().unwrap().0.pause().unwrap();
        let stood_at = length();
        let (sender, _events) = channel();
        let event_channel = AttemptEventSender::new(move |event| drop(sender.send(event)));
        let refused = sandbox.backend().prepare_attempt(&inside("true"), &CAPTURE, false, event_channel).err().unwrap();
        assert!(refused.what.contains("is paused"), "{refused:?}");
        assert_eq!(length(), stood_at);
        sandbox.resume().unwrap();
        wait_until("it goes on", || length() > stood_at);
        assert!(sandbox.read_usage().unwrap().processes.unwrap() >= 1);
        // A paused one can be ended.
        sandbox.pause().unwrap();
        sandbox.destroy().unwrap();
    });
}

#[test]
fn the_end_of_a_sandbox_is_that_of_commands_in_it() {
    in_each_role("the_end_of_a_sandbox_is_that_of_commands_in_it", || {
        let estate = Estate::new();
        let (sandbox, _event_channel) = estate.create();
        let mark = format!("86{:07}", std::process::id());
        let (attempt, events) = begin(sandbox.as_ref(), &inside(&format!("sleep {mark}")), false);
        wait_until("it runs", || sleeping(&mark) == 1);
        estate.kinds.clear(&estate.plan.id).unwrap();
        assert!(matches!(drain(&events).0.end, CommandEnd::Lost(_) | CommandEnd::Signaled(9)));
        drop(attempt);
        assert_eq!(sleeping(&mark), 0);
        // What it keeps is there, and walls can be made around it anew.
        let (sandbox, _event_channel) = estate.create();
        assert_eq!(run(sandbox.as_ref(), "echo ok").ok(), "ok\n");
    });
}

#[test]
fn a_killed_supervisor_ends_all_processes_and_the_next_use_recreates_it() {
    in_each_role("a_killed_supervisor_ends_all_processes_and_the_next_use_recreates_it", || {
        let estate = Estate::new();
        let (sandbox, event_channel) = estate.create();
        let mark = format!("87{:07}", std::process::id());
        run(sandbox.as_ref(), &format!("echo kept > kept; (setsid sleep {mark} >/dev/null 2>&1 &); true")).ok();
        let (_attempt, events) = begin(sandbox.as_ref(), &inside(&format!("sleep {mark}")), false);
        wait_until("both run", || sleeping(&mark) == 2);
        let supervisor_pid = estate.supervisor_pid();
        kill(supervisor_pid);
        assert!(matches!(drain(&events).0.end, CommandEnd::Lost(_)));
        assert!(matches!(event_channel.recv_timeout(TIMEOUT).unwrap(), SandboxEvent::Lost(_)));
        wait_until("nothing is left", || sleeping(&mark) == 0);
        assert!(matches!(estate.adopt(), Err(SandboxError::Gone(_))));
        wait_until("no control group is left", || {
            estate.kinds.clear(&estate.plan.id).unwrap();
            groups_of(supervisor_pid).is_empty()
        });
        let (anew, _event_channel) = estate.create();
        assert_eq!(run(anew.as_ref(), "cat kept; ls /tmp").ok(), "kept\n");
    });
}

/// Set in the process that uses a sandbox and is killed.
const VICTIM: &str = "STOCKADE_TEST_USER_OF_SANDBOX";

#[test]
fn a_killed_user_ends_its_command_and_nothing_else() {
    let test = "a_killed_user_ends_its_command_and_nothing_else";
    in_each_role(test, || {
        if let Some(sandbox_directory) = std::env::var_os(VICTIM) {
            let sandbox_directory = sandbox_directory.into_string().unwrap();
            let (root, mark) = sandbox_directory.split_once(' ').unwrap();
            let plan: SandboxPlan = serde_json::from_str(&fs::read_to_string(format!("{root}/plan")).unwrap()).unwrap();
            let kinds = NativeSandboxes::default().with_supervisor("/no/such/program".into(), Vec::new(), root.into());
            let sandbox = kinds.adopt_sandbox(&plan, hearing().0).unwrap();
            let (_attempt, events) = begin(sandbox.as_ref(), &inside(&format!("sleep {mark}")), false);
            drain(&events);
            return;
        }
        let estate = Estate::new();
        let (sandbox, _event_channel) = estate.create();
        let (stays, goes) = (format!("88{:07}", std::process::id()), format!("89{:07}", std::process::id()));
        run(sandbox.as_ref(), &format!("(setsid sleep {stays} >/dev/null 2>&1 &); true")).ok();
        let root = estate.top.path().join("r".repeat(120));
        fs::write(root.join("plan"), serde_json::to_vec(&estate.plan).unwrap()).unwrap();
        let mut user = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .env(VICTIM, format!("{} {goes}", root.display()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("it runs", || sleeping(&goes) == 1);
        user.kill().unwrap();
        user.wait().unwrap();
        wait_until("its command is gone", || sleeping(&goes) == 0);
        assert_eq!(sleeping(&stays), 1);
        assert_eq!(run(sandbox.as_ref(), "echo on").ok(), "on\n");
    });
}

#[test]
fn an_unused_or_unreachable_supervisor_ends() {
    in_each_role("an_unused_or_unreachable_supervisor_ends", || {
        let estate = Estate::new();
        let (sandbox, _event_channel) = estate.create();
        let mark = format!("90{:07}", std::process::id());
        run(sandbox.as_ref(), &format!("(setsid sleep {mark} >/dev/null 2>&1 &); true")).ok();
        let over = over(&estate.plan.id);
        fs::write(&over, "").unwrap();
        wait_until("its time is over", || !estate.is_kept() && sleeping(&mark) == 0);
        fs::remove_file(&over).unwrap();
        let (_sandbox, _event_channel) = estate.create();
        assert!(estate.is_kept());
        fs::remove_dir_all(estate.directory()).unwrap();
        wait_until("nobody could find it", || !estate.is_kept());
    });
}

#[test]
fn a_failed_creation_leaves_nothing_and_a_stopped_supervisor_is_ended() {
    in_each_role("a_failed_creation_leaves_nothing_and_a_stopped_supervisor_is_ended", || {
        let estate = Estate::with(|plan| plan.workspace = "/no/such/directory".into());
        let refused = estate.kinds.create_sandbox(&estate.plan, hearing().0).err().unwrap();
        assert!(refused.to_string().contains("/no/such/directory"), "{refused}");
        wait_until("it has ended", || !estate.is_kept());
        let none =
            NativeSandboxes::default().with_supervisor("/no/such/program".into(), Vec::new(), estate.top.path().into());
        let refused = none.create_sandbox(&estate.plan, hearing().0).err().unwrap();
        assert!(refused.to_string().contains("cannot start the supervisor"), "{refused}");
    });
}

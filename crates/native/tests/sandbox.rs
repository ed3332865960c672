//! Sandboxes that last, as the engine sees them: made, used by many commands, stopped,
//! ended. Everything that a run has is there for each of the commands.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its expectation fails")]
#![allow(clippy::disallowed_methods, reason = "a test makes what it needs")]

mod sandbox_support;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use sandbox_support::{CAPTURE, TIMEOUT, TestSandbox, drain, grant, groups_of, has_groups, inside};
use stockade_backend_api::{
    AttemptEvent, AttemptEventSender, CommandEnd, GuestSystem, HeldAnswer, SandboxError, SandboxEvent, SandboxPlan,
    SandboxTree,
};
use stockade_model::{AttemptPlan, BackgroundPolicy, DenialLayer, IsolationLevel, RawText, RequestId};
use support::{in_each_role, processes_with, wait_until};

#[test]
fn commands_write_where_they_may_and_the_next_finds_it() {
    in_each_role("commands_write_where_they_may_and_the_next_finds_it", || {
        let test_sandbox = TestSandbox::new();
        test_sandbox.run("echo one > a; mkdir d; echo home > ~/h; echo temp > /tmp/t; ln a d/b; mv d e").ok();
        assert_eq!(test_sandbox.run("cat a e/b ~/h /tmp/t; pwd; id -un").ok().lines().count(), 6);
        assert_eq!(fs::read_to_string(test_sandbox.top.path().join("work/e/b")).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(test_sandbox.top.path().join("home/h")).unwrap(), "home\n");
        for (script, end) in [
            ("exit 42", CommandEnd::Exited(42)),
            ("kill -TERM $$", CommandEnd::Signaled(15)),
            ("exec /no/such/program", CommandEnd::Exited(127)),
        ] {
            assert_eq!(test_sandbox.run(script).end.end, end);
        }
        let absent = AttemptPlan { argv: vec!["no-such-program".into()], ..inside("") };
        assert_eq!(test_sandbox.run_plan(&absent).end.end, CommandEnd::NotFound);
        let out = test_sandbox.run("echo to-out; echo to-err >&2; cat");
        assert_eq!(out.end.stderr.as_ref().unwrap().as_bytes(), b"to-err\n");
    });
}

#[test]
fn a_denial_is_exact_and_leads_to_nothing_on_the_host() {
    in_each_role("a_denial_is_exact_and_leads_to_nothing_on_the_host", || {
        let test_sandbox = TestSandbox::new();
        let ran = test_sandbox.run("mkdir .hg; echo x > .bashrc; echo x > /home/x; cat /etc/shadow; true");
        let objects: Vec<String> = ran.denials.iter().map(|d| d.object.to_escaped().to_string()).collect();
        assert_eq!(objects, ["/workspace/.hg", "/workspace/.bashrc", "/home/x"], "{ran:#?}");
        let denied_grant = ran.denials[0].grant.clone().unwrap();
        assert_eq!(denied_grant, grant("write /workspace/.hg"));
        // What is beyond the sandbox cannot be given, and is never asked about.
        let backend = test_sandbox.sandbox.backend();
        assert!(backend.supports_grant(&denied_grant, IsolationLevel::Full));
        for never in [
            "write /usr/x",
            "read /etc/shadow",
            "write /etc",
            "socket /run/docker.sock",
            "sign SHA256:n2Qkj1yQp3Q3nGkkNUnGhUBGTFkFrp1Bw0dmz6qYmNA for git",
        ] {
            assert!(!backend.supports_grant(&grant(never), IsolationLevel::Full), "{never}");
            let plan = AttemptPlan { grants: vec![grant(never)], ..inside("true") };
            assert!(
                test_sandbox.begin(&plan, CAPTURE, false).err().unwrap().what.contains("cannot be given"),
                "{never}"
            );
        }
        // With the grant it goes, for this command alone.
        let mut plan = inside("mkdir .hg");
        plan.grants = vec![denied_grant.clone()];
        plan.profile.filesystem.write.push("/workspace/.hg".into());
        test_sandbox.run_plan(&plan).ok();
        assert_eq!(test_sandbox.run("touch .hg/x").denials.len(), 1);
    });
}

#[test]
fn a_call_that_lacks_a_power_waits_for_its_answer() {
    in_each_role("a_call_that_lacks_a_power_waits_for_its_answer", || {
        let test_sandbox = TestSandbox::new();
        let (mut attempt, events) =
            test_sandbox.begin(&inside("echo x > .bashrc && cat .bashrc"), CAPTURE, true).unwrap();
        attempt.release_command().unwrap();
        let end = loop {
            match events.recv_timeout(TIMEOUT).unwrap() {
                AttemptEvent::Held { id, denial } => {
                    attempt.answer_call(id, HeldAnswer::Granted(vec![denial.grant.unwrap()]));
                }
                AttemptEvent::Ended(end) => break end,
                _ => {}
            }
        };
        assert_eq!(end.end, CommandEnd::Exited(0));
        assert_eq!(fs::read_to_string(test_sandbox.top.path().join("work/.bashrc")).unwrap(), "x\n");
        // It was given to that command, not to the sandbox.
        assert_eq!(test_sandbox.run("echo y > .bashrc").denials.len(), 1);
    });
}

#[test]
fn background_processes_keep_their_powers_and_get_no_more() {
    in_each_role("background_processes_keep_their_powers_and_get_no_more", || {
        let test_sandbox = TestSandbox::new();
        let leftover_script = "(setsid bash -c 'while [ ! -e /tmp/go ]; do sleep 0.02; done; echo late > late; echo x > .bashrc; \
                    echo done > done' >/dev/null 2>&1 &)";
        let (mut attempt, events) = test_sandbox.begin(&inside(leftover_script), CAPTURE, true).unwrap();
        attempt.release_command().unwrap();
        assert_eq!(drain(&events).0.end, CommandEnd::Exited(0));
        drop(attempt);
        test_sandbox.run("touch /tmp/go").ok();
        let denied = test_sandbox.event_channel.recv_timeout(TIMEOUT).unwrap();
        let SandboxEvent::Denied { request, denial } = denied else { panic!("{denied:?}") };
        assert_eq!(request, RequestId::from_random([1; 16]));
        assert_eq!(denial.object, RawText::from("/workspace/.bashrc"));
        wait_until("it has ended", || test_sandbox.top.path().join("work/done").exists());
        assert_eq!(fs::read_to_string(test_sandbox.top.path().join("work/late")).unwrap(), "late\n");
        assert!(!test_sandbox.top.path().join("work/.bashrc").exists());
        // A later command finds and ends what an earlier one left.
        test_sandbox.run("(setsid sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid); true").ok();
        test_sandbox.run("pkill -x sleep").ok();
    });
}

#[test]
fn a_server_is_reached_by_later_commands_and_a_host_only_by_grant() {
    in_each_role("a_server_is_reached_by_later_commands_and_a_host_only_by_grant", || {
        let test_sandbox = TestSandbox::new();
        let serve = "import os,socket
s=socket.socket(); s.bind(('127.0.0.1',8080)); s.listen()
u=socket.socket(socket.AF_UNIX); u.bind('/tmp/u'); u.listen()
w=socket.socket(socket.AF_UNIX); w.bind('/workspace/w'); w.listen()
if os.fork(): os._exit(0)
n=os.open('/dev/null',2); [os.dup2(n,i) for i in (0,1,2)]
while True: s.accept()[0].sendall(b'hello')";
        let python =
            |code: &str| AttemptPlan { argv: ["python3", "-c", code].map(RawText::from).to_vec(), ..inside("") };
        test_sandbox.run_plan(&python(serve)).ok();
        let ask = "import socket; print(socket.create_connection(('127.0.0.1',8080)).recv(9).decode())
for name in ('/tmp/u', '/workspace/w'): socket.socket(socket.AF_UNIX).connect(name)";
        assert_eq!(test_sandbox.run_plan(&python(ask)).ok(), "hello\n");
        // Another sandbox with the same port does not meet it.
        let other = TestSandbox::new();
        assert_eq!(other.run_plan(&python(ask)).end.end, CommandEnd::Exited(1));

        // A socket of the host's in the workspace is no command's.
        let host = test_sandbox.top.path().join("work/host");
        let _host = std::os::unix::net::UnixListener::bind(&host).unwrap();
        let knock = python("import socket; socket.socket(socket.AF_UNIX).connect('/workspace/host')");
        let knocked = test_sandbox.run_plan(&knock);
        assert_eq!(knocked.denials[0].grant, Some(grant("socket /workspace/host")), "{knocked:#?}");

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                use std::io::Write;
                let _ = stream.write_all(b"outside");
            }
        });
        let reach = format!("import socket; print(socket.create_connection(('127.0.0.2',{port})).recv(9).decode())");
        let refused = test_sandbox.run_plan(&python(&reach));
        assert_eq!(refused.end.end, CommandEnd::Exited(1), "{refused:#?}");
        let mut plan = python(&format!(
            "import socket; s=socket.socket(); s.connect(('host.test',{port})); print(s.recv(9).decode())"
        ));
        assert_eq!(test_sandbox.run_plan(&plan).denials[0].layer, DenialLayer::Network);
        plan.grants = vec![grant(&format!("connect host.test:{port}"))];
        let ran = test_sandbox.run_plan(&plan);
        assert!(ran.denials.is_empty(), "{ran:#?}");
    });
}

#[test]
fn a_command_ends_with_all_it_started_and_no_other_does() {
    in_each_role("a_command_ends_with_all_it_started_and_no_other_does", || {
        if !has_groups() {
            return;
        }
        let test_sandbox = TestSandbox::new();
        let (one, two) = (format!("81{:07}", std::process::id()), format!("82{:07}", std::process::id()));
        test_sandbox.run(&format!("(setsid sleep {one} >/dev/null 2>&1 &); true")).ok();
        let sleeping = |mark: &str| processes_with(&format!("sleep\0{mark}")).len();
        let (mut attempt, events) =
            test_sandbox.begin(&inside(&format!("(setsid sleep {two} &); sleep {two}")), CAPTURE, false).unwrap();
        attempt.release_command().unwrap();
        wait_until("all run", || sleeping(&one) == 1 && sleeping(&two) == 2);
        attempt.kill_processes();
        assert_eq!(drain(&events).0.end, CommandEnd::Signaled(9));
        wait_until("it is gone", || sleeping(&two) == 0);
        assert_eq!(sleeping(&one), 1);
        // Where background processes are to end they end with the command.
        let test_sandbox = TestSandbox::with(|plan| plan.background = BackgroundPolicy::End);
        test_sandbox.run(&format!("(setsid sleep {two} >/dev/null 2>&1 &); true")).ok();
        wait_until("what it left is gone", || sleeping(&two) == 0);
    });
}

#[test]
fn a_paused_sandbox_is_frozen_until_it_is_resumed() {
    in_each_role("a_paused_sandbox_is_frozen_until_it_is_resumed", || {
        if !has_groups() {
            return;
        }
        let test_sandbox = TestSandbox::new();
        let count = "(setsid bash -c 'while true; do echo >> /workspace/n; done' >/dev/null 2>&1 &); true";
        test_sandbox.run(count).ok();
        let length = || fs::metadata(test_sandbox.top.path().join("work/n")).map_or(0, |n| n.len());
        wait_until("it counts", || length() > 10);
        test_sandbox.sandbox.pause().unwrap();
        let stood_at = length();
        let refused = test_sandbox.begin(&inside("true"), CAPTURE, false).err().unwrap();
        assert!(refused.what.contains("is paused"), "{refused:?}");
        assert_eq!(length(), stood_at);
        test_sandbox.sandbox.resume().unwrap();
        wait_until("it goes on", || length() > stood_at);
        assert!(test_sandbox.sandbox.read_usage().unwrap().processes.unwrap() >= 1);
        // A paused one can be ended.
        test_sandbox.sandbox.pause().unwrap();
        test_sandbox.sandbox.destroy().unwrap();
    });
}

#[test]
fn limits_hold_for_all_commands_together() {
    in_each_role("limits_hold_for_all_commands_together", || {
        if !has_groups() {
            return;
        }
        let test_sandbox = TestSandbox::with(|plan| plan.profile.limits.processes = Some(20));
        test_sandbox.run("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 >/dev/null 2>&1 & done; true").ok();
        let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 >/dev/null 2>&1 & done; true";
        let full = test_sandbox.run(script);
        let output_text = full.end.stderr.as_ref().unwrap().to_escaped().to_string();
        assert!(output_text.contains("fork"), "{full:#?}");
        assert!(full.report.layers["limits"].detail.contains("processes 200: control group"), "{full:#?}");
        assert!(
            test_sandbox.sandbox.enforcement_report().layers["limits"].detail.contains("processes 20: control group")
        );
    });
}

#[test]
fn the_end_leaves_nothing_and_is_reported() {
    in_each_role("the_end_leaves_nothing_and_is_reported", || {
        let test_sandbox = TestSandbox::new();
        let mark = format!("83{:07}", std::process::id());
        let sleeping = || processes_with(&format!("sleep\0{mark}")).len();
        test_sandbox.run(&format!("(setsid sleep {mark} >/dev/null 2>&1 &); true")).ok();
        let (mut attempt, events) = test_sandbox.begin(&inside(&format!("sleep {mark}")), CAPTURE, false).unwrap();
        attempt.release_command().unwrap();
        wait_until("both run", || sleeping() == 2);
        test_sandbox.sandbox.destroy().unwrap();
        assert_eq!(sleeping(), 0);
        assert!(matches!(drain(&events).0.end, CommandEnd::Lost(_) | CommandEnd::Signaled(9)));
        drop(attempt);
        test_sandbox.sandbox.destroy().unwrap();
        let error = test_sandbox.begin(&inside("true"), CAPTURE, false).err().unwrap();
        assert!(error.what.contains("is gone"), "{error:?}");
        assert!(matches!(test_sandbox.sandbox.read_usage(), Err(SandboxError::Gone(_))));
        assert_eq!(
            test_sandbox.event_channel.try_iter().filter(|event| matches!(event, SandboxEvent::Lost(_))).count(),
            0
        );
        assert!(test_sandbox.top.path().join("work").exists(), "the directories are the caller's");
    });
}

#[test]
fn many_commands_run_at_once_and_none_meets_another_sandbox() {
    in_each_role("many_commands_run_at_once_and_none_meets_another_sandbox", || {
        let places = [TestSandbox::new(), TestSandbox::new()];
        std::thread::scope(|scope| {
            for (number, test_sandbox) in places.iter().enumerate() {
                for command in 0..10 {
                    let script = format!("echo {number} > f{command}; cat f*; ls /proc | grep -c '^[0-9]'");
                    let (sender, events) = channel();
                    let event_channel = AttemptEventSender::new(move |event| drop(sender.send(event)));
                    let backend = test_sandbox.sandbox.backend();
                    scope.spawn(move || {
                        let mut attempt =
                            backend.prepare_attempt(&inside(&script), &CAPTURE, false, event_channel).unwrap();
                        attempt.release_command().unwrap();
                        assert_eq!(drain(&events).0.end, CommandEnd::Exited(0));
                    });
                }
            }
        });
        for (number, test_sandbox) in places.iter().enumerate() {
            let all = test_sandbox.run("cat f*; ls f* | wc -l").ok();
            assert_eq!(all, format!("{number}\n").repeat(10) + "10\n");
        }
    });
}

/// Set in the process that plays the keeper which is killed.
const VICTIM: &str = "STOCKADE_TEST_KEEPER";

#[test]
fn a_killed_supervisor_ends_all_processes_and_the_directories_stay() {
    let test = "a_killed_supervisor_ends_all_processes_and_the_directories_stay";
    in_each_role(test, || {
        if let Some(mark) = std::env::var_os(VICTIM) {
            let mark = mark.into_string().unwrap();
            let test_sandbox = TestSandbox::new();
            test_sandbox.run(&format!("echo kept > kept; (setsid sleep {mark} >/dev/null 2>&1 &); true")).ok();
            let (mut attempt, events) = test_sandbox.begin(&inside(&format!("sleep {mark}")), CAPTURE, false).unwrap();
            attempt.release_command().unwrap();
            println!("top {}", test_sandbox.top.path().display());
            drain(&events);
            return;
        }
        let mark = format!("84{:07}", std::process::id());
        let mut supervisor = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .env(VICTIM, &mark)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let sleeping = || processes_with(&format!("sleep\0{mark}")).len();
        wait_until("all run", || sleeping() == 2);
        let pid = supervisor.id();
        if has_groups() {
            assert_ne!(groups_of(pid), Vec::<PathBuf>::new());
        }
        supervisor.kill().unwrap();
        let output = supervisor.wait_with_output().unwrap();
        wait_until("nothing is left", || sleeping() == 0);
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let top = Path::new(output.lines().find_map(|line| line.split("top ").nth(1)).unwrap());
        assert_eq!(fs::read_to_string(top.join("work/kept")).unwrap(), "kept\n");
        fs::remove_dir_all(top).unwrap();
        // Whoever makes the next takes away the control groups that are left, once the
        // kernel has ended what was in them.
        wait_until("no control group is left", || {
            drop(TestSandbox::new());
            groups_of(pid).is_empty()
        });
    });
}

#[test]
fn a_root_tree_is_all_of_the_system_there_is() {
    in_each_role("a_root_tree_is_all_of_the_system_there_is", || {
        let tree = tempfile::Builder::new().prefix("tree-").tempdir().unwrap();
        let copy = "cd $0 && mkdir -p usr/bin etc var && ln -s usr/bin bin && echo mine > etc/os-release && \
                    cp /bin/bash usr/bin/bash && for lib in $(ldd /bin/bash | grep -o '/[^ ]*'); do \
                    mkdir -p .$(dirname $lib) && cp -L $lib .$lib; done";
        let made = Command::new("bash").args(["-ec", copy]).arg(tree.path()).status().unwrap();
        assert!(made.success());
        let test_sandbox = TestSandbox::with(|plan| plan.system = Some(GuestSystem::Tree(tree.path().to_owned())));
        let ran = test_sandbox.run("echo $(</etc/os-release) /*; echo x > a; [ -e /usr/bin/env ] || echo none");
        let output_text = ran.ok();
        assert!(output_text.starts_with("mine /bin /dev /etc "), "{output_text}");
        assert!(output_text.ends_with("none\n"), "{output_text}");
        assert_ne!(test_sandbox.run("echo x > /etc/os-release").end.end, CommandEnd::Exited(0));
        assert_eq!(fs::read_to_string(tree.path().join("etc/os-release")).unwrap(), "mine\n");
    });
}

#[test]
fn unavailable_features_are_clear_errors() {
    let text = |made: Result<TestSandbox, SandboxError>| made.err().unwrap().to_string();
    for (expected, change) in [
        ("a level below `full`", (|plan| plan.level = IsolationLevel::Restricted) as fn(&mut SandboxPlan)),
        ("a runtime", |plan| plan.runtime = Some("runsc".parse().unwrap())),
        ("an image", |plan| {
            plan.system = Some(GuestSystem::Image(format!("sha256:{}", "0".repeat(64)).parse().unwrap()));
        }),
        ("a profile without a sandbox", |plan| plan.profile.sandboxed = false),
    ] {
        let output_text = text(TestSandbox::make(change));
        assert!(output_text.contains(expected) && output_text.contains("native"), "{output_text}");
    }
    let empty = tempfile::tempdir().unwrap();
    let output_text = text(TestSandbox::make(|plan| plan.system = Some(GuestSystem::Tree(empty.path().to_owned()))));
    assert!(output_text.contains("is not a root tree: it has no `usr`"), "{output_text}");
    let test_sandbox = TestSandbox::new();
    assert!(matches!(
        test_sandbox.sandbox.snapshot_files(Path::new("/nowhere")),
        Err(SandboxError::Unsupported { .. })
    ));
    let output_text = test_sandbox.begin(
        &{
            let mut plan = inside("true");
            plan.profile.filesystem.hide.push("/usr/lib".into());
            plan
        },
        CAPTURE,
        false,
    );
    assert!(output_text.err().unwrap().what.contains("without /usr/lib being hidden"));
    assert!(rustix::fs::fstat(test_sandbox.sandbox.open_tree(SandboxTree::Home).unwrap()).is_ok());
}

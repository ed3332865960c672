//! Sandboxes by the Docker Engine with `runc`, on an engine of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its expectation fails")]
#![allow(clippy::disallowed_methods, reason = "a test makes what it needs")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use stockade_backend_api::{
    AttemptEvent, CommandEnd, GuestSystem, HeldAnswer, SandboxError, SandboxEventSender, SandboxProvider, SandboxTree,
};
use stockade_model::{BackgroundPolicy, DeniedOperation, Grant, IsolationLevel, LayerState, SandboxId};
use support::{CAPTURE, Engine, TIMEOUT, TestSandbox, begun, drain, inside, plan};

type Change = fn(&mut stockade_backend_api::SandboxPlan);

fn grant(text: &str) -> Grant {
    text.parse().unwrap()
}

#[test]
fn a_command_runs_in_the_namespaces_and_its_files_are_the_hosts() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    fs::write(test_sandbox.plan.workspace.join("given"), "from outside\n").unwrap();
    let ran = test_sandbox.run("cat given; id -u; echo made > made; echo home > $HOME/h; pwd; exit 3");
    assert_eq!(ran.end.end, CommandEnd::Exited(3), "{ran:#?}");
    assert_eq!(ran.stdout(), "from outside\n1000\n/workspace\n");
    assert_eq!(fs::read_to_string(test_sandbox.plan.workspace.join("made")).unwrap(), "made\n");
    assert_eq!(fs::read_to_string(test_sandbox.plan.home.join("h")).unwrap(), "home\n");
    let layers = &ran.report.layers;
    for layer in ["container", "container-privileges", "container-files", "landlock", "seccomp", "broker"] {
        assert_eq!(layers.get(layer).map(|l| l.state), Some(LayerState::Enforced), "{layer}: {layers:#?}");
    }

    let held = rustix::fs::openat(
        test_sandbox.sandbox.open_tree(SandboxTree::Workspace).unwrap(),
        "made",
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    );
    assert!(held.is_ok(), "a tree is reached by descriptor");
    let used = test_sandbox.sandbox.read_usage().unwrap();
    assert!(used.memory_bytes.unwrap() > 0 && used.processes.unwrap() >= 1, "{used:?}");

    test_sandbox.sandbox.destroy().unwrap();
    test_sandbox.sandbox.destroy().unwrap();
    assert!(matches!(test_sandbox.sandbox.pause(), Err(SandboxError::Gone(_))));
    assert_eq!(engine.containers(), Vec::<String>::new());
    assert!(test_sandbox.plan.workspace.join("made").exists(), "the directories stay");
    engine.sandboxes().clear(&test_sandbox.plan.id).unwrap();
}

#[test]
fn refusals_are_reported_and_held_calls_can_be_granted() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    // The control: the same is possible beside.
    assert_eq!(test_sandbox.run("mkdir -p d && echo x > d/f && cat d/f").ok(), "x\n");
    let ran = test_sandbox.run("echo evil > .bashrc; echo evil > /etc/x; echo $?");
    assert_ne!(ran.stdout(), "0\n");
    let refused: Vec<_> =
        ran.denials.iter().map(|d| (d.operation, d.grant.as_ref().map(ToString::to_string))).collect();
    assert!(
        refused.contains(&(DeniedOperation::Create, Some("write /workspace/.bashrc".to_owned()))),
        "{:#?}",
        ran.denials
    );
    assert!(!test_sandbox.plan.workspace.join(".bashrc").exists());

    let (mut attempt, events) =
        test_sandbox.begin(&inside("echo agreed > .bashrc && cat .bashrc"), CAPTURE, true).unwrap();
    attempt.release_command().unwrap();
    let end = loop {
        match events.recv_timeout(TIMEOUT).unwrap() {
            AttemptEvent::Held { id, denial } => {
                assert_eq!(denial.grant, Some(grant("write /workspace/.bashrc")), "{denial:#?}");
                attempt.answer_call(id, HeldAnswer::Granted(vec![grant("write /workspace/.bashrc")]));
            }
            AttemptEvent::Ended(end) => break end,
            _ => {}
        }
    };
    assert_eq!(end.end, CommandEnd::Exited(0));
    assert_eq!(fs::read_to_string(test_sandbox.plan.workspace.join(".bashrc")).unwrap(), "agreed\n");

    for power in ["listen 8080", "read /etc/shadow", "memory 1GiB", "write /etc"] {
        let mut plan = inside("true");
        plan.grants.push(grant(power));
        let refused = test_sandbox.begin(&plan, CAPTURE, false).map(drop).unwrap_err();
        assert!(refused.what.contains(power) && refused.hint.is_some(), "{refused:?}");
    }
}

#[test]
fn nothing_of_the_host_is_inside() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    assert_eq!(test_sandbox.run("ls /sys/class/net").ok(), "lo\n");
    // The engine would give it the host's.
    assert_eq!(test_sandbox.run("cat /etc/hostname /etc/resolv.conf").ok(), "sandbox\nnameserver 198.18.0.1\n");
    assert!(test_sandbox.run("cat /etc/hosts").ok().starts_with("127.0.0.1\tlocalhost sandbox\n"));
    assert_eq!(
        test_sandbox
            .run("ps -o pid= | wc -l | tr -d ' '; ps")
            .ok()
            .lines()
            .next()
            .map(|n| n.parse::<u32>().unwrap() < 12),
        Some(true)
    );
    let mounts = engine.command(&[
        "inspect",
        "-f",
        "{{range .Mounts}}{{.Source}} {{end}}",
        &format!("stockade-{}", test_sandbox.plan.id),
    ]);
    let mounts = String::from_utf8(mounts.stdout).unwrap();
    // Two directories, the launcher, and the files that say who and where its user is.
    assert_eq!(mounts.split_whitespace().count(), 8, "{mounts}");
    assert!(!mounts.contains("socket") && !mounts.contains(".sock"), "{mounts}");
    let ran = test_sandbox.run("grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t '; mount -t tmpfs x /tmp; echo $?");
    let text = ran.stdout();
    for line in ["CapEff:0000000000000000", "CapBnd:0000000000000000", "NoNewPrivs:1", "Seccomp:2"] {
        assert!(text.contains(line), "{text}");
    }
    assert!(!text.ends_with("\n0\n"), "{text}");
}

#[test]
fn the_container_has_a_filter_of_its_own_beneath_that_of_commands() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    assert!(engine.lets_make_namespaces(None), "the control: nothing else refuses it");
    assert!(!engine.lets_make_namespaces(Some(&test_sandbox.plan)));
    let layer = &test_sandbox.run("true").report.layers["container-filter"];
    assert_eq!(layer.state, LayerState::Enforced, "{layer:?}");
}

#[test]
fn servers_of_two_sandboxes_have_the_same_port_and_do_not_meet() {
    let Some(engine) = Engine::docker() else { return };
    let (one, other) = (TestSandbox::new(&engine), TestSandbox::new(&engine));
    let knock = "for n in $(seq 100); do nc 127.0.0.1 8080 < /dev/null && exit; sleep 0.1; done; exit 1";
    let serving: Vec<_> = [(&one, "one"), (&other, "other")]
        .map(|(test_sandbox, name)| {
            let serve = format!("echo {name} | nc -l -p 8080");
            let (mut attempt, events) = test_sandbox.begin(&inside(&serve), CAPTURE, false).unwrap();
            attempt.release_command().unwrap();
            (attempt, events)
        })
        .into();
    assert_eq!((one.run(knock).ok(), other.run(knock).ok()), ("one\n".to_owned(), "other\n".to_owned()));
    for (_attempt, events) in &serving {
        assert_eq!(drain(events).0.end, CommandEnd::Exited(0));
    }
    // Both have gone: what is left is nobody.
    assert_eq!(one.run("nc 127.0.0.1 8080 < /dev/null || echo refused").ok(), "refused\n");
}

#[test]
fn a_command_ends_with_all_that_it_started() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    // Three: the first process of the container is always there.
    let before = engine.processes(&test_sandbox.plan).len();
    assert_eq!(before, 1, "{:?}", engine.processes(&test_sandbox.plan));
    test_sandbox.run("setsid sleep 4321 > /dev/null 2>&1 < /dev/null & sleep 4321 & echo begun").ok();
    assert_eq!(engine.processes(&test_sandbox.plan).len(), 1, "{:?}", engine.processes(&test_sandbox.plan));

    let (mut attempt, events) = test_sandbox
        .begin(&inside("trap 'exit 7' TERM; echo > up; while :; do sleep 1; done"), CAPTURE, false)
        .unwrap();
    attempt.release_command().unwrap();
    while !test_sandbox.plan.workspace.join("up").exists() {
        std::thread::yield_now();
    }
    attempt.send_signal(15);
    assert_eq!(drain(&events).0.end, CommandEnd::Exited(7));
    drop(attempt);

    let (mut attempt, events) = test_sandbox.begin(&inside("sleep 4321"), CAPTURE, false).unwrap();
    attempt.release_command().unwrap();
    attempt.kill_processes();
    assert!(matches!(drain(&events).0.end, CommandEnd::Signaled(9)));
    drop(attempt);
    assert_eq!(engine.processes(&test_sandbox.plan).len(), 1, "{:?}", engine.processes(&test_sandbox.plan));

    let (attempt, events) = test_sandbox.begin(&inside("echo never > never"), CAPTURE, false).unwrap();
    drop(attempt);
    let _ = drain(&events);
    assert!(!test_sandbox.plan.workspace.join("never").exists());
    assert_eq!(engine.processes(&test_sandbox.plan).len(), 1, "{:?}", engine.processes(&test_sandbox.plan));
}

#[test]
fn streams_pass_whole_and_bounded() {
    let Some(engine) = Engine::docker() else { return };
    let top = tempfile::tempdir().unwrap();
    let plan = plan(&engine, top.path());
    let mut many = engine.one_command(&plan, "inherit", "cat; echo errors >&2; exit 5");
    let mut child = many.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let sent: Vec<u8> = (0..3 << 20_u32).map(|n| (n % 251) as u8).collect();
    let mut stdin = child.stdin.take().unwrap();
    let text = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&text).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == sent, "{} of {} bytes", output.stdout.len(), sent.len());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "errors\n");

    // Who reads no more ends who writes, as with a pipe.
    let mut endless = engine.one_command(&plan, "inherit", "yes; echo $? > ended");
    let mut child = endless.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut some = vec![0; 100_000];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert!(child.wait().unwrap().success());
    assert_ne!(fs::read_to_string(plan.workspace.join("ended")).unwrap().trim(), "0");

    let test_sandbox = TestSandbox::new(&engine);
    let ran = test_sandbox.run("yes 0123456789 | head -c 5000000; echo end");
    let out = ran.end.stdout.unwrap();
    let (length, tail) = (out.as_bytes().len(), out.as_bytes().ends_with(b"end\n"));
    assert!(ran.end.truncated && length < 2 << 20 && tail, "{} {length} {tail}", ran.end.truncated);
}

#[test]
fn a_terminal_is_made_inside() {
    let Some(engine) = Engine::docker() else { return };
    let top = tempfile::tempdir().unwrap();
    let plan = plan(&engine, top.path());
    let ours = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&ours).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
    let open = || fs::OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let size = |rows, columns| rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&ours, size(33, 99)).unwrap();
    let script = "tty; stty size; trap 'stty size; exit 4' WINCH; echo ready; read line; echo got $line; while :; do sleep 0.1; done";
    let mut child = engine
        .one_command(&plan, "terminal", script)
        .stdin(open())
        .stdout(open())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut ours = fs::File::from(ours);
    let mut lines = BufReader::new(ours.try_clone().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("/dev/pts/"));
    assert_eq!(lines.next().unwrap(), "33 99");
    assert_eq!(lines.next().unwrap(), "ready");
    ours.write_all(b"typed\r").unwrap();
    // Shown by the terminal inside, and read from it by the command.
    assert_eq!(lines.next().unwrap(), "typed");
    assert_eq!(lines.next().unwrap(), "got typed");
    rustix::termios::tcsetwinsize(&ours, size(12, 34)).unwrap();
    assert_eq!(lines.next().unwrap(), "12 34");
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn a_sandbox_is_found_again_by_its_owner_alone() {
    let Some(engine) = Engine::docker() else { return };
    let top = tempfile::tempdir().unwrap();
    let plan = plan(&engine, top.path());
    // Killed in the middle of a command.
    let mut first = engine.one_command(&plan, "inherit", "echo begun; sleep 4321");
    let mut child = first.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    child.kill().unwrap();
    child.wait().unwrap();

    let nobody = SandboxEventSender::new(|_| {});
    let other = engine.sandboxes_of("somebody else");
    assert!(matches!(other.adopt_sandbox(&plan, nobody.clone()), Err(SandboxError::Gone(_))));
    other.clear(&plan.id).unwrap();
    let unknown = SandboxId::from_random([9; 16]);
    engine.sandboxes().clear(&unknown).unwrap();
    assert_eq!(engine.containers().len(), 1, "nobody else's is removed");

    let (sandbox, event_receiver) =
        begun(&plan, |plan, events| engine.sandboxes().adopt_sandbox(plan, events)).unwrap();
    // The command whose stream was lost has ended, and all of it.
    let deadline = std::time::Instant::now() + TIMEOUT;
    while engine.processes(&plan).len() > 1 {
        assert!(std::time::Instant::now() < deadline, "{:?}", engine.processes(&plan));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let test_sandbox = TestSandbox { top, plan, sandbox, event_receiver };
    assert_eq!(test_sandbox.run("echo again").ok(), "again\n");

    test_sandbox.sandbox.pause().unwrap();
    let state = engine.command(&["inspect", "-f", "{{.State.Paused}}", &engine.containers()[0]]);
    assert_eq!(String::from_utf8_lossy(&state.stdout), "true\n");
    let refused = test_sandbox.begin(&inside("true"), CAPTURE, false).map(drop).unwrap_err();
    assert!(refused.what.contains("paused"), "{refused:?}");
    test_sandbox.sandbox.resume().unwrap();
    test_sandbox.sandbox.resume().unwrap();
    assert_eq!(test_sandbox.run("echo on").ok(), "on\n");

    test_sandbox.is_lost_when_killed(&engine);
    // Made anew around what it keeps.
    let sandbox = engine.sandboxes().create_sandbox(&test_sandbox.plan, nobody).unwrap();
    assert_eq!(engine.containers().len(), 1);
    sandbox.destroy().unwrap();
}

#[test]
fn unavailable_features_are_refused_and_leave_nothing() {
    let Some(engine) = Engine::docker() else { return };
    let unsupported: [(&str, Change); 4] = [
        ("the host's system", |plan| plan.system = None),
        ("a root tree", |plan| plan.system = Some(GuestSystem::Tree("/".into()))),
        ("a profile without a sandbox", |plan| plan.profile.sandboxed = false),
        ("keeping background", |plan| plan.background = BackgroundPolicy::Keep),
    ];
    for (what, change) in unsupported {
        let refused = TestSandbox::with(&engine, change).map(drop).unwrap_err();
        assert!(matches!(refused, SandboxError::Unsupported { .. }) && refused.to_string().contains(what), "{refused}");
    }
    let image = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
    let failed =
        TestSandbox::with(&engine, |plan| plan.system = Some(GuestSystem::Image(image))).map(drop).unwrap_err();
    assert!(failed.to_string().contains("no image") && failed.hint().is_some(), "{failed}");
    let failed =
        TestSandbox::with(&engine, |plan| plan.runtime = Some("none-such".parse().unwrap())).map(drop).unwrap_err();
    assert!(failed.to_string().contains("none-such"), "{failed}");
    let failed = TestSandbox::with(&engine, |plan| plan.level = IsolationLevel::None).map(drop).unwrap_err();
    assert!(matches!(failed, SandboxError::Unsupported { .. }), "{failed}");
    assert_eq!(engine.containers(), Vec::<String>::new());
}

/// A kernel of the runtime's own: it has no Landlock and no listener for system calls.
#[test]
fn within_gvisor_the_lower_level_has_to_be_named() {
    let Some(engine) = Engine::docker() else { return };
    let runsc = || Some("runsc".parse().unwrap());
    let refused = TestSandbox::with(&engine, |plan| plan.runtime = runsc()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("Landlock"), "{refused}");
    assert!(refused.hint().unwrap().contains("--level restricted"), "{refused:?}");
    assert_eq!(engine.containers(), Vec::<String>::new());

    let lower = |plan: &mut stockade_backend_api::SandboxPlan| {
        plan.runtime = runsc();
        plan.level = IsolationLevel::Restricted;
    };
    // Names that the host trusts would be open.
    let refused = TestSandbox::with(&engine, lower).map(drop).unwrap_err();
    assert!(refused.to_string().contains("could be written"), "{refused}");
    assert_eq!(engine.containers(), Vec::<String>::new());
    let test_sandbox = TestSandbox::with(&engine, |plan| {
        lower(plan);
        plan.profile.filesystem.protect.clear();
    })
    .unwrap();
    let restricted = |script: &str| stockade_model::AttemptPlan { level: IsolationLevel::Restricted, ..inside(script) };
    let ran =
        test_sandbox.run_plan(&restricted("cat /proc/version; id -u; echo made > made; ls /sys/class/net; exit 3"));
    assert_eq!(ran.end.end, CommandEnd::Exited(3), "{ran:#?}");
    assert!(ran.stdout().starts_with("Linux version 4.4.0 ") && ran.stdout().contains("\n1000\n"), "{ran:#?}");
    assert_eq!(fs::read_to_string(test_sandbox.plan.workspace.join("made")).unwrap(), "made\n");
    assert_eq!(ran.report.level, IsolationLevel::Restricted);
    assert_eq!(ran.report.layers["broker"].state, LayerState::Absent, "{:#?}", ran.report);
    assert_eq!(ran.report.layers["container"].state, LayerState::Enforced);
    assert_eq!(ran.report.layers["container-limits"].state, LayerState::Partial);
    assert_eq!(ran.report.layers["container-filter"].state, LayerState::Absent);
    assert!(test_sandbox.run_plan(&restricted("echo x > /etc/x || echo refused")).ok().ends_with("refused\n"));

    let leftovers = restricted("setsid sleep 4321 & sleep 4321 & echo begun");
    assert_eq!(test_sandbox.run_plan(&leftovers).ok(), "begun\n");
    let listed = test_sandbox.run_plan(&restricted("ps")).ok();
    assert!(!listed.contains("sleep"), "{listed}");
    let (mut attempt, events) = test_sandbox.begin(&restricted("sleep 4321"), CAPTURE, false).unwrap();
    attempt.release_command().unwrap();
    attempt.kill_processes();
    assert_eq!(drain(&events).0.end, CommandEnd::Signaled(9));
    drop(attempt);
    test_sandbox.sandbox.destroy().unwrap();
    assert_eq!(engine.containers(), Vec::<String>::new());
}

/// What an image has the engine start by itself is started by nobody.
#[test]
fn an_images_health_check_does_not_run() {
    let Some(engine) = Engine::docker() else { return };
    let image = engine.image();
    let run_engine = |words: &[&str]| String::from_utf8(engine.command(words).stdout).unwrap().trim().to_owned();
    let container = run_engine(&["create", image.as_str(), "/bin/sleep", "30"]);
    let checks = "HEALTHCHECK --interval=1s CMD echo x > /workspace/planted";
    let checked = run_engine(&["commit", "--change", checks, &container]);
    engine.command(&["rm", &container]);
    let checked = || checked.parse().unwrap();

    let test_sandbox = TestSandbox::with(&engine, |plan| plan.system = Some(GuestSystem::Image(checked()))).unwrap();
    assert!(test_sandbox.run("sleep 4").end.end == CommandEnd::Exited(0));
    assert!(!test_sandbox.plan.workspace.join("planted").exists());

    // Without Stockade it does.
    let at = format!("{}:/workspace", test_sandbox.plan.workspace.display());
    let bare = run_engine(&["run", "-d", "--network=none", "-v", &at, checked().as_str(), "/bin/sleep", "30"]);
    std::thread::sleep(std::time::Duration::from_secs(4));
    engine.command(&["rm", "-f", &bare]);
    assert!(test_sandbox.plan.workspace.join("planted").exists(), "the control");
    test_sandbox.sandbox.destroy().unwrap();
}

/// Nothing that an image has the engine do is done, and it cannot be taken for another.
#[test]
fn an_images_own_ways_to_start_something_are_not_used() {
    let Some(engine) = Engine::docker() else { return };
    let plant = "echo x > /workspace/planted";
    let image = engine.image_with(&[
        &format!("HEALTHCHECK --interval=1s CMD {plant}"),
        &format!("ENTRYPOINT {plant}"),
        &format!("CMD {plant}"),
        &format!("ONBUILD RUN {plant}"),
        "STOPSIGNAL SIGCHLD",
        "USER 0",
        "SHELL [\"/bin/false\"]",
        "WORKDIR /etc",
        "ENV LD_PRELOAD=/x",
        "LABEL stockade.sandbox=sbx_00000000000000000000000000000000",
        "LABEL stockade.owner=another",
        "VOLUME /planted",
    ]);
    let test_sandbox =
        TestSandbox::with(&engine, |plan| plan.system = Some(GuestSystem::Image(image.clone()))).unwrap();
    assert_eq!(test_sandbox.run("id -u; pwd; echo $LD_PRELOAD; sleep 3").ok(), "1000\n/workspace\n\n");
    assert!(
        engine.sandboxes().adopt_sandbox(&test_sandbox.plan, SandboxEventSender::new(|_| {})).is_ok(),
        "it is its own"
    );
    assert!(!test_sandbox.plan.workspace.join("planted").exists());
    test_sandbox.sandbox.destroy().unwrap();
    assert_eq!(engine.containers(), Vec::<String>::new());
    // The control.
    let at = format!("{}:/workspace", test_sandbox.plan.workspace.display());
    engine.command(&["run", "--rm", "--network=none", "-v", &at, image.as_str()]);
    assert!(test_sandbox.plan.workspace.join("planted").exists());
}

/// Each container differs from the sandbox's own in one thing.
#[test]
fn a_container_that_differs_in_anything_is_not_taken_for_the_sandbox() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    let name = format!("stockade-{}", test_sandbox.plan.id);
    let adopt = || engine.sandboxes().adopt_sandbox(&test_sandbox.plan, SandboxEventSender::new(|_| {})).map(drop);
    assert!(adopt().is_ok(), "the control");
    let own = exact_words(&engine, &name);
    let other = engine.image_with(&["LABEL of=another"]);
    let image = engine.image();
    let replace_container = |more: &[&str], image: &str, program: &[&str]| {
        engine.command(&["rm", "-f", &name]);
        let mut words: Vec<&str> = vec!["run", "-d"];
        words.extend(own.iter().map(String::as_str));
        words.extend(more);
        words.push(image);
        words.extend(program);
        let made = engine.command(&words);
        assert!(made.status.success(), "{more:?} {made:?}");
    };
    let program = ["inside", "hold"];
    replace_container(&[], image.as_str(), &program);
    assert!(adopt().is_ok(), "the control: made by hand, in every thing the same: {:?}", adopt());
    for more in [
        &["-v", "/etc:/srv:ro"][..],
        &["-v", "/etc:/workspace/etc:ro"],
        &["-v", "named:/srv"],
        &["-v", "/srv"],
        &["--tmpfs", "/srv"],
        &["--tmpfs", "/workspace/x"],
        &["--device=/dev/null:/dev/x"],
        &["--restart=always"],
        &["--group-add=0"],
        &["--init"],
        &["--pid=host"],
        &["--ipc=host"],
        &["--cap-add=CHOWN"],
        &["--security-opt=systempaths=unconfined"],
        &["--sysctl=net.ipv4.ip_forward=1"],
        &["--health-cmd=true", "--no-healthcheck=false"],
        &["--user=0:0"],
        &["--pids-limit=-1"],
        &["--memory=1g", "--memory-swap=1g"],
        &["--oom-kill-disable"],
    ] {
        replace_container(more, image.as_str(), &program);
        assert!(adopt().is_err(), "{more:?}");
    }
    replace_container(&[], other.as_str(), &program);
    assert!(adopt().unwrap_err().to_string().contains("image"), "another image");
    replace_container(&[], image.as_str(), &["inside", "serve"]);
    assert!(adopt().is_err(), "another program");
    engine.command(&["rm", "-f", &name]);
}

/// The words with which Docker's own client makes a container like this one.
fn exact_words(engine: &Engine, name: &str) -> Vec<String> {
    let shown = engine.command(&["inspect", name]).stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    let (host, config) = (&shown[0]["HostConfig"], &shown[0]["Config"]);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let filter = host["SecurityOpt"].as_array().unwrap().iter().map(text).find(|o| o.starts_with("seccomp=")).unwrap();
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap().into_temp_path().keep().unwrap();
    fs::write(&file, filter.strip_prefix("seccomp=").unwrap()).unwrap();
    let mut words: Vec<String> = ["--network=none", "--cap-drop=ALL", "--read-only", "--ipc=private"]
        .into_iter()
        .chain(["--cgroupns=private", "--security-opt=no-new-privileges", "--no-healthcheck", "--log-driver=none"])
        .map(str::to_owned)
        .collect();
    words.push(format!("--security-opt=seccomp={}", file.display()));
    words.push(format!("--user={}", text(&config["User"])));
    words.push(format!("--entrypoint={}", text(&config["Entrypoint"][0])));
    words.push(format!("--name={name}"));
    words.extend(["--workdir=/".to_owned(), "--hostname=sandbox".to_owned()]);
    words.push(format!("--memory={}", host["Memory"]));
    words.push(format!("--memory-swap={}", host["MemorySwap"]));
    words.push(format!("--pids-limit={}", host["PidsLimit"]));
    for (key, value) in config["Labels"].as_object().unwrap() {
        words.push(format!("--label={key}={}", text(value)));
    }
    for (at, how) in host["Tmpfs"].as_object().unwrap() {
        words.push(format!("--tmpfs={at}:{}", text(how)));
    }
    for one in host["Ulimits"].as_array().unwrap() {
        words.push(format!("--ulimit={}={}:{}", text(&one["Name"]), one["Soft"], one["Hard"]));
    }
    for mount in host["Mounts"].as_array().unwrap() {
        let read_only = if mount["ReadOnly"] == true { ",readonly" } else { "" };
        let (from, to) = (text(&mount["Source"]), text(&mount["Target"]));
        words.push(format!("--mount=type=bind,source={from},target={to}{read_only},bind-propagation=rprivate"));
    }
    words
}

/// A command's own plan knows the path on the host, which is another.
#[test]
fn the_sandboxs_hidden_paths_are_hidden_from_each_command() {
    let Some(engine) = Engine::docker() else { return };
    let look = "cat secret 2>/dev/null; cp secret copied 2>/dev/null; mv secret moved 2>/dev/null; cat copied moved \
                2>/dev/null; true";
    for hide in [vec![], vec!["/workspace/secret".into()]] {
        let is_hidden = !hide.is_empty();
        let test_sandbox = TestSandbox::with(&engine, |plan| plan.profile.filesystem.hide = hide).unwrap();
        fs::write(test_sandbox.plan.workspace.join("secret"), "credential\n").unwrap();
        std::os::unix::fs::chown(test_sandbox.plan.workspace.join("secret"), Some(1000), Some(1000)).unwrap();
        assert_eq!(test_sandbox.run(look).stdout().contains("credential"), !is_hidden, "{is_hidden}");
        test_sandbox.sandbox.destroy().unwrap();
    }
}

/// A process that another user of the engine started in the sandbox's container.
#[test]
fn foreign_processes_in_the_container_are_noticed() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    let name = format!("stockade-{}", test_sandbox.plan.id);
    let adopt = || engine.sandboxes().adopt_sandbox(&test_sandbox.plan, SandboxEventSender::new(|_| {})).map(drop);
    // The control: a command of the sandbox's own.
    let (mut attempt, events) = test_sandbox.begin(&inside("echo > up; sleep 30"), CAPTURE, false).unwrap();
    attempt.release_command().unwrap();
    while !test_sandbox.plan.workspace.join("up").exists() {
        std::thread::yield_now();
    }
    assert!(adopt().is_ok(), "{:?}", adopt());
    attempt.kill_processes();
    let _ = drain(&events);
    engine.command(&["exec", "-d", "-u", "0:0", &name, "/bin/sleep", "300"]);
    let refused = adopt().unwrap_err().to_string();
    assert!(refused.contains("did not start"), "{refused}");
    test_sandbox.sandbox.destroy().unwrap();
}

#[test]
fn an_image_makes_nothing_on_the_host() {
    let Some(engine) = Engine::docker() else { return };
    support::an_image_makes_nothing_on_the_host(&engine);
}

#[test]
fn volumes_of_an_image_can_be_read_alone() {
    let Some(engine) = Engine::docker() else { return };
    support::volumes_of_an_image_can_be_read_alone(&engine, |_| {}, IsolationLevel::Full);
    let within_gvisor = |plan: &mut stockade_backend_api::SandboxPlan| {
        plan.runtime = Some("runsc".parse().unwrap());
        plan.level = IsolationLevel::Restricted;
        plan.profile.filesystem.protect.clear();
    };
    support::volumes_of_an_image_can_be_read_alone(&engine, within_gvisor, IsolationLevel::Restricted);
}

#[test]
fn a_workspace_that_is_exchanged_is_not_another_users() {
    let Some(engine) = Engine::docker() else { return };
    support::a_workspace_that_is_exchanged_is_not_another_users(&engine);
}

/// Judged by the list of processes: a refusal leaves none of the runtime's.
#[test]
fn a_refused_sandbox_within_gvisor_leaves_no_process() {
    let Some(engine) = Engine::docker() else { return };
    let of_runtime = || {
        let ours = engine.processes_of("runsc");
        ours.into_iter()
            .filter(|line| line.contains("runsc-sandbox") || line.contains("runsc-gofer"))
            .collect::<Vec<_>>()
    };
    let runsc = |plan: &mut stockade_backend_api::SandboxPlan| plan.runtime = Some("runsc".parse().unwrap());
    let changes: [Change; 3] = [
        |_| {},
        |plan| plan.level = IsolationLevel::Restricted,
        |plan| {
            plan.level = IsolationLevel::Restricted;
            plan.profile.filesystem.protect.clear();
            plan.profile.limits.inodes = Some(10);
        },
    ];
    for change in changes.into_iter().cycle().take(9) {
        let refused = TestSandbox::with(&engine, |plan| {
            runsc(plan);
            change(plan);
        });
        assert!(refused.is_err());
        let leftovers = of_runtime();
        assert!(leftovers.is_empty(), "{leftovers:?}");
    }
    // The control.
    let test_sandbox = TestSandbox::with(&engine, |plan| {
        runsc(plan);
        plan.level = IsolationLevel::Restricted;
        plan.profile.filesystem.protect.clear();
    })
    .unwrap();
    assert!(!of_runtime().is_empty());
    test_sandbox.sandbox.destroy().unwrap();
    assert_eq!(of_runtime(), Vec::<String>::new());
}

/// One that stands in the place of a sandbox's, with more of the host in it.
#[test]
fn a_container_that_was_exchanged_is_not_taken_for_the_sandbox() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    let name = format!("stockade-{}", test_sandbox.plan.id);
    let adopt = || engine.sandboxes().adopt_sandbox(&test_sandbox.plan, SandboxEventSender::new(|_| {})).map(drop);
    assert!(adopt().is_ok(), "the control");
    let format = "{{range $key, $value := .Config.Labels}}--label={{$key}}={{$value}} {{end}}";
    let labels = String::from_utf8(engine.command(&["inspect", "--format", format, &name]).stdout).unwrap();
    let labels: Vec<&str> = labels.split_whitespace().collect();
    let image = engine.image();
    for more in [&["-v", "/:/host"][..], &["--privileged"], &["--user=0:0"], &["--device=/dev/null:/dev/x"], &[]] {
        engine.command(&["rm", "-f", &name]);
        let mut words = vec!["run", "-d", "--network=none", "--name", &name];
        words.extend(&labels);
        words.extend(more);
        words.extend([image.as_str(), "/bin/sleep", "30"]);
        engine.command(&words);
        assert!(adopt().is_err(), "{more:?}");
    }
    engine.command(&["rm", "-f", &name]);
}

//! Sandboxes by Podman with `runc`, on a service of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its expectation fails")]
#![allow(clippy::disallowed_methods, reason = "a test makes what it needs")]

mod support;

use std::fs;
use std::path::Path;

use stockade_backend_api::{CommandEnd, GuestSystem, SandboxError, SandboxProvider};
use stockade_model::{DeniedOperation, LayerState};
use support::{Engine, PROCESS_LIMIT, TestSandbox, begun, inside};

#[test]
fn a_command_runs_in_the_namespaces_and_all_its_processes_end() {
    let Some(engine) = Engine::podman() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    let mut plan = inside("id -u; echo made > made; echo evil > .bashrc; ls /sys/class/net; exit 3");
    plan.backend = "podman".to_owned();
    let ran = test_sandbox.run_plan(&plan);
    assert_eq!(ran.end.end, CommandEnd::Exited(3), "{ran:#?}");
    assert_eq!(ran.stdout(), "1000\nlo\n");
    assert_eq!(fs::read_to_string(test_sandbox.plan.workspace.join("made")).unwrap(), "made\n");
    assert_eq!(
        ran.denials.iter().map(|d| d.operation).collect::<Vec<_>>(),
        [DeniedOperation::Create],
        "{:#?}",
        ran.denials
    );
    for layer in ["container", "container-privileges", "container-files", "landlock", "seccomp", "broker"] {
        let state = ran.report.layers.get(layer).map(|l| l.state);
        assert_eq!(state, Some(LayerState::Enforced), "{layer}: {:#?}", ran.report);
    }
    let text = test_sandbox.run("grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t '").ok();
    for line in ["CapEff:0000000000000000", "CapBnd:0000000000000000", "NoNewPrivs:1", "Seccomp:2"] {
        assert!(text.contains(line), "{text}");
    }
    test_sandbox.run("setsid sleep 4321 > /dev/null 2>&1 < /dev/null & echo begun").ok();

    test_sandbox.sandbox.pause().unwrap();
    test_sandbox.sandbox.resume().unwrap();
    let (sandbox, _event_receiver) =
        begun(&test_sandbox.plan, |plan, events| engine.sandboxes().adopt_sandbox(plan, events)).unwrap();
    assert_eq!(test_sandbox.run("echo on").ok(), "on\n");
    let used = sandbox.read_usage().unwrap();
    assert!(used.memory_bytes.is_some(), "{used:?}");

    test_sandbox.is_lost_when_killed(&engine);
    test_sandbox.sandbox.destroy().unwrap();
    assert_eq!(engine.containers(), Vec::<String>::new());
}

#[test]
fn the_container_has_a_filter_of_its_own_beneath_that_of_commands() {
    let Some(engine) = Engine::podman() else { return };
    let test_sandbox = TestSandbox::new(&engine);
    assert!(engine.lets_make_namespaces(None), "the control: nothing else refuses it");
    assert!(!engine.lets_make_namespaces(Some(&test_sandbox.plan)));
}

/// What the engine's configuration adds to every container is seen inside, whether the
/// engine reports it or not.
#[test]
fn additions_of_the_engines_configuration_are_refused() {
    let hook = |test_sandbox: &Path| {
        let hooks = test_sandbox.join("hooks");
        fs::create_dir(&hooks).unwrap();
        let text = r#"{"version": "1.0.0", "hook": {"path": "/bin/sh", "args": ["sh", "-c",
            "root=$(grep -o 'overlay[^ ]*' /dev/null; cat /proc/self/mountinfo | awk '$4 == \"/\" && $5 ~ /merged$/ {print $5}' | tail -1); mount --bind /etc $root/srv"]},
            "when": {"always": true}, "stages": ["createContainer"]}"#;
        fs::write(hooks.join("mount.json"), text).unwrap();
        format!("[engine]\nhooks_dir = [\"{}\"]\n", hooks.display())
    };
    let of_text = |text: &'static str| move |_: &Path| text.to_owned();
    let started = [
        ("a volume", Engine::podman_with(of_text("[containers]\nvolumes = [\"/etc:/srv:ro\"]\n"))),
        ("a device", Engine::podman_with(of_text("[containers]\ndevices = [\"/dev/kmsg:/dev/kmsg:r\"]\n"))),
        ("a hook", Engine::podman_with(hook)),
    ];
    for (what, engine) in started {
        let Some(engine) = engine else { return };
        // The control: the engine adds it to a container of its own command line.
        let words = [
            "run",
            "--rm",
            "--network=none",
            "--ulimit=nofile=1024:1024",
            PROCESS_LIMIT,
            engine.image().as_str(),
            "/bin/sh",
            "-c",
        ]
        .map(str::to_owned);
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.push("cat /srv/passwd; ls /dev; cat /proc/1/cmdline");
        let shown = String::from_utf8_lossy(&engine.own_command(&words).stdout).into_owned();
        let refused = TestSandbox::new_refused(&engine);
        eprintln!("{what}: {refused:?}; without: {shown}");
        assert_eq!(engine.containers(), Vec::<String>::new(), "{what}");
        assert!(shown.contains("root:x:0:0:root") || shown.contains("kmsg"), "the control: {what} {shown}");
        let refused = refused.unwrap_or_else(|| panic!("{what} was not seen"));
        assert!(refused.contains("was not requested") || refused.contains("did not provide"), "{what}: {refused}");
    }
}

/// Variables of the engine's configuration are no command's.
#[test]
fn variables_of_the_engine_and_the_image_reach_no_command() {
    let Some(engine) = Engine::podman_with(|_| "[containers]\nenv = [\"ENGINE=1\"]\n".to_owned()) else { return };
    let image = engine.image_with(&["ENV IMAGE=1"]);
    let test_sandbox = TestSandbox::with(&engine, |plan| plan.system = Some(GuestSystem::Image(image))).unwrap();
    let shown = test_sandbox.run("env").ok();
    assert!(!shown.contains("ENGINE=1") && !shown.contains("IMAGE=1"), "{shown}");
    let environment = engine.own_command(&["exec", &format!("stockade-{}", test_sandbox.plan.id), "/bin/env"]);
    assert!(String::from_utf8_lossy(&environment.stdout).contains("IMAGE=1"), "the control");
}

#[test]
fn volumes_of_an_image_can_be_read_alone() {
    let Some(engine) = Engine::podman() else { return };
    support::volumes_of_an_image_can_be_read_alone(&engine, |_| {}, stockade_model::IsolationLevel::Full);
}

#[test]
fn a_workspace_that_is_exchanged_is_not_another_users() {
    let Some(engine) = Engine::podman() else { return };
    support::a_workspace_that_is_exchanged_is_not_another_users(&engine);
}

#[test]
fn a_runtime_that_its_service_was_not_started_with_is_refused() {
    let Some(engine) = Engine::podman() else { return };
    let refused =
        TestSandbox::with(&engine, |plan| plan.runtime = Some("runsc".parse().unwrap())).map(drop).unwrap_err();
    assert!(matches!(refused, SandboxError::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("runc"), "{refused}");
    assert_eq!(engine.containers(), Vec::<String>::new());
}

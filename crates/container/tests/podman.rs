//! Sandboxes by Podman with `runc`, on a service of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its expectation fails")]
#![allow(clippy::disallowed_methods, reason = "a test makes what it needs")]

mod support;

use std::fs;

use stockade_engine::{CommandEnd, SandboxError, Sandboxes};
use stockade_model::{LayerState, Operation};
use support::{Engine, Place, begun, inside};

#[test]
fn a_command_runs_within_the_walls_and_all_of_it_goes() {
    let Some(engine) = Engine::podman() else { return };
    let place = Place::new(&engine);
    let mut plan = inside("id -u; echo made > made; echo evil > .bashrc; ls /sys/class/net; exit 3");
    plan.backend = "podman".to_owned();
    let ran = place.run_plan(&plan);
    assert_eq!(ran.end.end, CommandEnd::Exited(3), "{ran:#?}");
    assert_eq!(ran.stdout(), "1000\nlo\n");
    assert_eq!(fs::read_to_string(place.plan.workspace.join("made")).unwrap(), "made\n");
    assert_eq!(ran.denials.iter().map(|d| d.operation).collect::<Vec<_>>(), [Operation::Create], "{:#?}", ran.denials);
    for layer in ["container", "container-privileges", "container-files", "landlock", "seccomp", "broker"] {
        let state = ran.report.layers.get(layer).map(|l| l.state);
        assert_eq!(state, Some(LayerState::Enforced), "{layer}: {:#?}", ran.report);
    }
    let text = place.run("grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t '").ok();
    for line in ["CapEff:0000000000000000", "CapBnd:0000000000000000", "NoNewPrivs:1", "Seccomp:2"] {
        assert!(text.contains(line), "{text}");
    }
    place.run("setsid sleep 4321 > /dev/null 2>&1 < /dev/null & echo begun").ok();

    place.sandbox.pause().unwrap();
    place.sandbox.resume().unwrap();
    let (sandbox, _told) = begun(&place.plan, |plan, events| engine.sandboxes().adopt(plan, events)).unwrap();
    assert_eq!(place.run("echo on").ok(), "on\n");
    let used = sandbox.usage().unwrap();
    assert!(used.memory_bytes.is_some(), "{used:?}");

    place.is_lost_when_killed(&engine);
    place.sandbox.destroy().unwrap();
    assert_eq!(engine.containers(), Vec::<String>::new());
}

#[test]
fn the_container_has_a_filter_of_its_own_beneath_that_of_commands() {
    let Some(engine) = Engine::podman() else { return };
    let place = Place::new(&engine);
    assert!(engine.lets_make_namespaces(None), "the control: nothing else refuses it");
    assert!(!engine.lets_make_namespaces(Some(&place.plan)));
}

#[test]
fn a_runtime_that_its_service_was_not_started_with_is_refused() {
    let Some(engine) = Engine::podman() else { return };
    let refused = Place::with(&engine, |plan| plan.runtime = Some("runsc".parse().unwrap())).map(drop).unwrap_err();
    assert!(matches!(refused, SandboxError::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("runc"), "{refused}");
    assert_eq!(engine.containers(), Vec::<String>::new());
}

//! Sandboxes by the Docker Engine with `runc`, on an engine of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its expectation fails")]
#![allow(clippy::disallowed_methods, reason = "a test makes what it needs")]

mod support;

use std::fs;

use stockade_engine::{CommandEnd, SandboxError, Sandboxes};
use stockade_model::LayerState;
use support::{Engine, Place};

#[test]
fn a_command_runs_within_the_walls_and_its_files_are_the_hosts() {
    let engine = Engine::docker();
    let place = Place::new(&engine);
    fs::write(place.plan.workspace.join("given"), "from outside\n").unwrap();
    let ran = place.run("cat given; id -u; echo made > made; echo home > $HOME/h; pwd; exit 3");
    assert_eq!(ran.end.end, CommandEnd::Exited(3), "{ran:#?}");
    assert_eq!(ran.stdout(), "from outside\n1000\n/workspace\n");
    assert_eq!(fs::read_to_string(place.plan.workspace.join("made")).unwrap(), "made\n");
    assert_eq!(fs::read_to_string(place.plan.home.join("h")).unwrap(), "home\n");
    let layers = &ran.report.layers;
    for layer in ["container", "container-privileges", "container-files", "landlock", "seccomp", "broker"] {
        assert_eq!(layers.get(layer).map(|l| l.state), Some(LayerState::Enforced), "{layer}: {layers:#?}");
    }
    place.sandbox.destroy().unwrap();
    place.sandbox.destroy().unwrap();
    assert!(matches!(place.sandbox.pause(), Err(SandboxError::Gone(_))));
    assert_eq!(String::from_utf8(engine.command(&["ps", "-aq"]).stdout).unwrap(), "");
    assert!(place.plan.workspace.join("made").exists(), "the directories stay");
    engine.sandboxes().clear(&place.plan.id).unwrap();
}

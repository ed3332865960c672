//! Sandboxes of container engines from the command line: made, used, stopped, destroyed,
//! and what is said where an engine or an image is not there.

use std::fs;

use serde_json::Value;
use stockade_testkit::{ContainerEngine, EngineKind, ProgramEnd, ProgramOutput, TestCommand, TestUser};

use crate::containers::root_archive;
use crate::life::engine_directory;
use crate::world::{World, binary};

/// The command line of somebody who has one engine.
pub struct SandboxFixture {
    pub world: World,
    variable: &'static str,
    socket: String,
}

impl SandboxFixture {
    pub fn of(engine: &ContainerEngine, variable: &'static str) -> Self {
        let socket = format!("unix://{}", engine.socket_path().display());
        Self { world: World::new(TestUser::Root), variable, socket }
    }

    pub fn command(&self, arguments: &[&str]) -> TestCommand {
        let program = binary();
        let words = [&[program.as_str(), "sandbox"], arguments].concat();
        self.world.bare(&words).env(self.variable, &self.socket)
    }

    pub fn run(&self, arguments: &[&str]) -> ProgramOutput {
        self.world.run(&self.command(arguments))
    }

    #[track_caller]
    pub fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.ended, ProgramEnd::Code(0), "{arguments:?}\n{}", output.combined_text());
        output.stdout
    }

    /// Nothing was done: why, and the remedy.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str], why: &str, hint: Option<&str>) {
        let output = self.run(arguments);
        assert_eq!(output.ended, ProgramEnd::Code(125), "{arguments:?}\n{}", output.combined_text());
        assert!(output.stderr.contains(why), "{arguments:?}\n{}", output.stderr);
        if let Some(hint) = hint {
            let hint_text =
                output.stderr.lines().find_map(|line| line.trim().strip_prefix("hint: ")).unwrap_or_default();
            assert!(hint_text.contains(hint), "{arguments:?}\n{}", output.stderr);
        }
    }

    #[track_caller]
    fn exec(&self, id: &str, script: &str) -> String {
        self.done(&["exec", "--mode", "never", id, "-c", script])
    }
}

#[test]
fn a_sandbox_of_docker_is_used_from_the_command_line() {
    is_used(EngineKind::Docker, "docker", "DOCKER_HOST");
}

#[test]
fn a_sandbox_of_podman_is_used_from_the_command_line() {
    is_used(EngineKind::Podman, "podman", "CONTAINER_HOST");
}

fn is_used(kind: EngineKind, name: &str, variable: &'static str) {
    if !TestUser::available_users().contains(&TestUser::Root) {
        eprintln!("not run: a container engine needs root");
        return;
    }
    let directory = engine_directory();
    let engine =
        ContainerEngine::start(kind, &directory.path().join("engine")).expect("it is installed by the test command");
    let image = engine.import_image(&root_archive(directory.path())).unwrap();
    let client = SandboxFixture::of(&engine, variable);
    names_missing_parts(&client, name, &image);

    let id = client.done(&["create", "--backend", name, "--image", &image, "--limit", "memory=512MiB"]);
    let id = id.trim_end();
    assert_eq!(client.exec(id, "id -u; pwd; echo ~; echo made > file"), "0\n/workspace\n/home/agent\n");
    reports_enforced_layers(&client, id, name);
    names_the_limit(&client, id);
    takes_and_gives_files(&client, id);

    client.done(&["pause", id]);
    client.refused(&["exec", "--mode", "never", id, "-c", "touch ran"], "is paused", Some("resume"));
    client.done(&["resume", id]);
    assert_eq!(client.exec(id, "ls; echo on"), "file\ngiven\non\n");

    client.done(&["destroy", id]);
    client.refused(&["exec", id, "--", "true"], "is destroyed", None);
    assert_eq!(engine.run_client(&["ps", "--all", "--quiet"]).unwrap(), "");
}

fn names_missing_parts(client: &SandboxFixture, name: &str, image: &str) {
    let absent = format!("sha256:{}", "0".repeat(64));
    client.refused(&["create", "--backend", name, "--image", &absent], &absent, Some("load it"));
    client.refused(&["create", "--backend", name], "name an image", None);
    let create = client.command(&["create", "--backend", name, "--image", image]);
    let output = client.world.run(&create.env(client.variable, "unix:///nowhere/socket"));
    assert_eq!(output.ended, ProgramEnd::Code(125), "{}", output.combined_text());
    assert!(output.stderr.contains("/nowhere/socket") && output.stderr.contains("hint: start it"), "{}", output.stderr);
    assert_eq!(client.done(&["list"]), "", "what could not be made is not listed");
}

/// A refusal is exact, and the report says which layer does what.
fn reports_enforced_layers(client: &SandboxFixture, id: &str, name: &str) {
    let exec_output = client.run(&["exec", "--mode", "never", "--json", id, "-c", "echo x > .bashrc; true"]);
    let outcome: Value = serde_json::from_str(&exec_output.stdout)
        .unwrap_or_else(|why| panic!("{why}: {}", exec_output.combined_text()));
    let attempt = &outcome["attempts"][0];
    assert_eq!(attempt["backend"], name, "{outcome:#}");
    assert_eq!(attempt["denials"][0]["grant"], "write /workspace/.bashrc", "{outcome:#}");
    let layers = &attempt["enforced"]["layers"];
    for layer in ["container", "container-privileges", "container-files", "landlock", "seccomp", "broker"] {
        assert_eq!(layers[layer]["state"], "enforced", "{layer}: {layers:#}");
    }
    let held = layers["container-limits"]["detail"].as_str().unwrap();
    assert!(held.contains("memory (bytes) 536870912"), "{layers:#}");
}

/// The engine holds it, and the kernel tells nobody but the groups inside.
fn names_the_limit(client: &SandboxFixture, id: &str) {
    let outcome = |script: &str| -> Value {
        let exec_output = client.run(&["exec", "--mode", "never", "--json", id, "-c", script]);
        serde_json::from_str(&exec_output.stdout).unwrap_or_else(|why| panic!("{why}: {}", exec_output.combined_text()))
    };
    let hungry = "python3 -c 'held = b\"x\" * (700 << 20)'";
    let ended = outcome(&format!("exec {hungry}"));
    assert_eq!(ended["status"], "limit", "{ended:#}");
    let why = ended["error"].as_str().unwrap();
    assert!(why.starts_with("limit memory: at most 512MiB; out of memory"), "{why}");
    let survived = outcome(&format!("{hungry}; true"));
    assert_eq!(survived["status"], "exited", "{survived:#}");
    assert_eq!(survived["attempts"][0]["denials"][0]["object"], "memory", "{survived:#}");
    assert_eq!(outcome("true")["attempts"][0]["denials"], serde_json::json!([]), "what was is not told again");
}

fn takes_and_gives_files(client: &SandboxFixture, id: &str) {
    let host_file = client.world.file("ws/given", "from outside\n");
    let back = client.world.workspace().join("back");
    client.done(&["copy", host_file.to_str().unwrap(), &format!("{id}:given")]);
    assert_eq!(client.exec(id, "cat given"), "from outside\n");
    client.done(&["copy", &format!("{id}:file"), back.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(back).unwrap(), "made\n");
}

//! Container engines in a lane's lab, and sandboxes made by them. Must not know what is
//! tried in them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use stockade_testkit::{ContainerEngine, EngineKind, ProgramEnd, TestCommand};
use tempfile::TempDir;

use crate::lab::Lab;
use crate::world::{World, binary};

/// Longest that one step may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What makes the sandboxes; this machine's own kernel where nothing is said.
#[derive(Default)]
pub struct Maker {
    options: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Maker {
    /// The options that say so to `sandbox create`.
    pub fn options(&self) -> impl Iterator<Item = &str> {
        self.options.iter().map(String::as_str)
    }

    /// A command of the program under test, or of another, that finds the engine.
    pub fn command(&self, world: &World, argv: &[&str]) -> TestCommand {
        let command = world.bare(argv).timeout(TIMEOUT);
        self.environment.iter().fold(command, |command, (name, value)| command.env(name, value))
    }

    /// `stockade sandbox`, and what it prints.
    pub fn run(&self, world: &World, arguments: &[&str]) -> Result<String> {
        let program = binary();
        let output = world.run(&self.command(world, &[&[program.as_str(), "sandbox"], arguments].concat()));
        if output.ended != ProgramEnd::Code(0) {
            bail!("{arguments:?}: {:?}\n{}", output.ended, output.combined_text());
        }
        Ok(output.stdout)
    }
}

/// An engine of the lane's own, with the image; gone with it.
pub struct Containers {
    engine: ContainerEngine,
    image: String,
    kind: EngineKind,
    _directory: TempDir,
}

impl Containers {
    /// Starts it.
    pub fn start(lab: &Lab, kind: EngineKind) -> Result<Self> {
        let directory = tempfile::tempdir_in("/var/tmp")?;
        let engine = ContainerEngine::start(kind, &directory.path().join("engine"))?;
        let image = engine.import_image(Path::new(&lab.text("$SHARED/image.tar")))?.trim().to_owned();
        Ok(Self { engine, image, kind, _directory: directory })
    }

    /// What makes sandboxes of it, with these options more.
    pub fn maker(&self, more: &[&str]) -> Maker {
        let (name, variable) = match self.kind {
            EngineKind::Docker => ("docker", "DOCKER_HOST"),
            EngineKind::Podman => ("podman", "CONTAINER_HOST"),
        };
        let options = [&["--backend", name, "--image", self.image.as_str()], more].concat();
        Maker {
            options: options.into_iter().map(str::to_owned).collect(),
            environment: vec![(variable, format!("unix://{}", self.engine.socket_path().display()))],
        }
    }

    /// That no container is left.
    pub fn require_empty(&self) -> Result<()> {
        let container_list = self.engine.run_client(&["ps", "--all", "--quiet"])?;
        ensure!(container_list.is_empty(), "containers are left: {container_list}");
        Ok(())
    }
}

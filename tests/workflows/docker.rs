//! A Docker engine of the suite's own with an image that has the tools, and the sandboxes
//! that are made of it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;
use stockade_testkit::{ContainerEngine, EngineKind, ProgramEnd, ProgramOutput, make_image};
use tempfile::TempDir;

use crate::world::{World, sysroot};

/// Where commands find programs, the last of them where Debian has those of a database server.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/lib/postgresql/15/bin";
/// What of the machine's Rust toolchain is in the image: what builds and runs.
const TOOLCHAIN: &str = "bin/cargo bin/rustc bin/rustdoc lib/*.so* lib/rustlib/$HOST";
/// Where a sandbox has its workspace.
const WORKSPACE: &str = "/workspace";

/// Which tools an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tools {
    /// Those of [`FEW`]; made in a minute, of packages that are unpacked and not set up.
    Few,
    /// Those of all workflows.
    All,
}

/// The programs of the smaller image, which runs where nothing more is asked for.
const FEW: &[&str] = &[
    "git",
    "make",
    "cc",
    "python3",
    "pytest",
    "curl",
    "sqlite3",
    "redis-server",
    "redis-cli",
    "ssh-keygen",
    "openssl",
    "tar",
    "patch",
    "diff",
];

impl Tools {
    /// Whether a workflow that needs these is played with it.
    pub fn suffice(self, needs: &[&str]) -> bool {
        self == Self::All || needs.iter().all(|program| FEW.contains(program))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Few => "few",
            Self::All => "all",
        }
    }

    /// For `cargo xtask image`.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Few => &[
                "--small",
                "--with",
                "diffutils,gcc,gzip,libc6-dev,make,openssh-client,openssl,patch,python3-pip,python3-pytest,python3-venv,\
                 redis-server,redis-tools,sqlite3",
            ],
            Self::All => &[
                "--with",
                "chromium-headless-shell,cmake,default-jdk-headless,git-lfs,golang-go,jupyter-nbconvert,\
                 maven-debian-helper,node-typescript,openssh-client,openssl,postgresql,pre-commit,python3-ipykernel,\
                 python3-poetry,python3-pytest,redis-server,redis-tools,sqlite3",
            ],
        }
    }

    /// The archive of its image, which is made once on a machine and stays beside what cargo
    /// builds.
    fn archive(self) -> Result<PathBuf> {
        let mut key = DefaultHasher::new();
        for part in ["image.rs", "image/build.sh", "image/packages", "image/small_packages"] {
            let part = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/src").join(part);
            fs::read(&part).with_context(|| format!("reading {}", part.display()))?.hash(&mut key);
        }
        self.options().hash(&mut key);
        let (top, begin) = (Path::new(env!("CARGO_TARGET_TMPDIR")), format!("workflows-{}-", self.name()));
        let path = top.join(format!("{begin}{:016x}.tar", key.finish()));
        if path.exists() {
            return Ok(path);
        }
        fs::create_dir_all(top)?;
        // Those of other recipes, and what a killed run left.
        for other in fs::read_dir(top)? {
            let other = other?;
            if other.file_name().to_string_lossy().starts_with(&begin) {
                fs::remove_file(other.path())?;
            }
        }
        let made = top.join(format!("{begin}{}.tar", std::process::id()));
        make_image(self.options(), &made)?;
        fs::rename(&made, &path)?;
        Ok(path)
    }
}

/// The engine with its image. All of it ends with this.
pub struct Docker {
    engine: ContainerEngine,
    image: String,
    programs: BTreeSet<String>,
    _place: TempDir,
}

impl Docker {
    pub fn start(tools: Tools) -> Result<Self> {
        let archive = tools.archive()?;
        let engine_directory = tempfile::Builder::new().prefix("stockade-engine-").tempdir_in("/var/tmp")?;
        let engine = ContainerEngine::start(EngineKind::Docker, &engine_directory.path().join("engine"))?;
        // As where an ordinary user may use the engine of the machine.
        for directory in [engine_directory.path(), &engine_directory.path().join("engine")] {
            fs::set_permissions(directory, Permissions::from_mode(0o755))?;
        }
        fs::set_permissions(engine.socket_path(), Permissions::from_mode(0o666))?;
        let mut image = engine.import_image(&archive)?;
        if tools == Tools::All {
            image = with_toolchain(&engine, &image)?;
        }
        let look = format!("IFS=:; for place in {PATH}; do ls $place 2>/dev/null; done; true");
        let programs = engine.run_client(&["run", "--rm", "--network", "none", &image, "sh", "-c", &look])?;
        let programs: BTreeSet<String> = programs.lines().map(str::to_owned).collect();
        if tools == Tools::Few {
            let missing: Vec<&&str> = FEW.iter().filter(|program| !programs.contains(**program)).collect();
            ensure!(missing.is_empty(), "the image was to have {missing:?}");
        }
        Ok(Self { engine, image, programs, _place: engine_directory })
    }

    /// Whether a program is in the image.
    pub fn has(&self, program: &str) -> bool {
        self.programs.contains(program)
    }
}

/// An engine that is started for the first workflow that asks for it.
pub struct Lazy {
    tools: Tools,
    docker: OnceLock<Result<Docker>>,
}

impl Lazy {
    pub fn new(tools: Tools) -> Self {
        Self { tools, docker: OnceLock::new() }
    }

    /// # Errors
    /// Where it could not be started.
    pub fn docker(&self) -> Result<&Docker> {
        self.docker.get_or_init(|| Docker::start(self.tools)).as_ref().map_err(|why| anyhow!("no Docker: {why:#}"))
    }

    /// That no container is left of whatever was played.
    ///
    /// # Errors
    /// Which are.
    pub fn require_empty(&self) -> Result<()> {
        let Some(Ok(docker)) = self.docker.get() else { return Ok(()) };
        let container_list = docker.engine.run_client(&["ps", "--all", "--quiet"])?;
        ensure!(container_list.is_empty(), "containers are left: {container_list}");
        Ok(())
    }
}

/// The same image with the Rust toolchain of this machine: what is made ready on the host
/// is of its edition, which is newer than Debian's.
fn with_toolchain(engine: &ContainerEngine, image: &str) -> Result<String> {
    let container = engine.run_client(&["create", "--network", "none", image, "true"])?;
    let container = container.trim();
    let pack = format!(
        "HOST=$(rustc -vV | sed -n 's/^host: //p') && cd \"$1\" && \
         tar --create --owner=0 --group=0 --transform 's,^,usr/local/,' {TOOLCHAIN}"
    );
    let mut packing = Program::new("sh");
    let mut packing = packing.args(["-c", &pack, "sh"]).arg(sysroot()?).stdout(Stdio::piped()).spawn()?;
    let archive = packing.stdout.take().context("what is packed is read")?;
    let words = engine.client_words();
    let copied = Program::new(&words[0])
        .args(&words[1..])
        .args(["cp", "-", &format!("{container}:/")])
        .stdin(archive)
        .status()
        .context("copying the toolchain")?;
    ensure!(packing.wait()?.success() && copied.success(), "the toolchain was not copied");
    let made = engine.run_client(&["commit", container])?;
    engine.run_client(&["rm", container])?;
    Ok(made.trim().to_owned())
}

/// A sandbox that works in a directory of the host.
pub struct Sandbox<'a> {
    world: &'a World,
    docker: &'a Docker,
    id: String,
    /// Where the project is inside.
    inside: String,
}

/// What a command said, and its outcome.
pub struct CommandReport {
    pub output: ProgramOutput,
    pub outcome: Value,
}

impl<'a> Sandbox<'a> {
    /// With the project as its workspace, or what lies beside the project too: of a path
    /// outside its workspace a container has nothing. The person's name for commits is brought.
    pub fn create(docker: &'a Docker, world: &'a World, has_beside: bool) -> Result<Self> {
        let project = world.workspace();
        let (bound, inside) = match has_beside {
            true => (world.around(), format!("{WORKSPACE}/project")),
            false => (project.as_path(), WORKSPACE.to_owned()),
        };
        let mut sandbox = Self { world, docker, id: String::new(), inside };
        let bound = bound.display().to_string();
        let made = sandbox.done(&["create", "--backend", "docker", "--image", &docker.image, "--bind", &bound])?;
        made.trim().clone_into(&mut sandbox.id);
        let settings = world.home().join(".gitconfig").display().to_string();
        sandbox.done(&["copy", &settings, &format!("{}:/home/agent/.gitconfig", sandbox.id)])?;
        Ok(sandbox)
    }

    /// Runs a script. Nobody is there to be asked.
    pub fn run(&self, grants: &[String], script: &str) -> Result<CommandReport> {
        let report = self.world.home().join("outcome.json");
        let json = format!("--json={}", report.display());
        let script = format!("export PATH={PATH}; cd {}\n{script}", self.inside);
        let mut words = vec!["exec", "--mode", "never", &json];
        words.extend(grants.iter().flat_map(|grant| ["--grant", grant]));
        words.extend([&self.id, "--", "sh", "-c", &script]);
        let output = self.sandbox(&words)?;
        let outcome = fs::read_to_string(&report).with_context(|| format!("no outcome: {}", output.combined_text()))?;
        Ok(CommandReport { output, outcome: serde_json::from_str(&outcome)? })
    }

    /// The directory that commands have as their home.
    pub fn home(&self) -> PathBuf {
        self.world.home().join(".local/state/stockade/sandboxes").join(&self.id).join("home")
    }

    pub fn destroy(self) -> Result<()> {
        self.done(&["destroy", &self.id]).map(drop)
    }

    fn sandbox(&self, arguments: &[&str]) -> Result<ProgramOutput> {
        let address = format!("unix://{}", self.docker.engine.socket_path().display());
        self.world.stockade_with(&[("DOCKER_HOST", &address)], &[&["sandbox"], arguments].concat())
    }

    fn done(&self, arguments: &[&str]) -> Result<String> {
        let output = self.sandbox(arguments)?;
        if output.ended != ProgramEnd::Code(0) {
            bail!("{arguments:?}: {:?}\n{}", output.ended, output.combined_text());
        }
        Ok(output.stdout)
    }
}

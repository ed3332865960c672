//! The same attempts within containers: sandboxes made by the program under test with
//! container engines of the suite's own. What is judged on the host is what is judged
//! for runs; beside it, that nothing of the sandbox is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use stockade_testkit::{
    Account, Command, Ended, Engine, EngineKind, Lab, Output, User, processes_at, run_as, slowness, small_image,
};
use stockade_tests::Level;

use crate::plan::Task;
use crate::row::{Behind, Row, Verdict};
use crate::unplayed;
use crate::way::{Kind, Way};
use crate::world::{BEGIN, Places, World, did_not_run, launch};

/// The workspace inside.
const WORKSPACE: &str = "/workspace";
/// Where the probes lie in it: a path that both the host and the sandbox have.
const PROBES: &str = "probes";
/// The program under test, as it is inside.
const LAUNCHER: &str = "/.stockade";
/// Its home is its own, and says nobody's name.
const IDENTITY: &str = "export GIT_{AUTHOR,COMMITTER}_NAME=Lab GIT_{AUTHOR,COMMITTER}_EMAIL=lab@localhost";
/// How long what a command left behind may take to go.
const GOES_WITHIN: Duration = Duration::from_secs(5);

/// The engines of a run of the suite, with one image; gone with it.
pub struct Engines {
    running: Vec<Engine>,
    missing: BTreeMap<&'static str, String>,
}

impl Engines {
    /// Starts what these tasks need.
    pub fn start(session: &Path, tasks: &[Task]) -> Result<Self> {
        let mut engines = Self { running: Vec::new(), missing: BTreeMap::new() };
        for engine in [EngineKind::Docker, EngineKind::Podman] {
            let kind = tasks.iter().find_map(|task| task.container().filter(|kind| kind.engine == engine));
            if kind.is_some()
                && let Err(error) = engines.add(engine, session)
            {
                engines.missing.insert(directory(engine), format!("{error:#}"));
            }
        }
        Ok(engines)
    }

    fn add(&mut self, kind: EngineKind, session: &Path) -> Result<()> {
        let made = session.join("image.tar");
        let archive = if made.exists() { made } else { small_image(session)? };
        let engine = Engine::start(kind, &session.join(directory(kind)))?;
        fs::write(image_file(session, kind), engine.import(&archive)?)?;
        self.running.push(engine);
        Ok(())
    }

    /// Why a task cannot be played here.
    pub fn missing(&self, task: &Task) -> Option<&str> {
        self.missing.get(directory(task.container()?.engine)).map(String::as_str)
    }

    /// That no container is left.
    pub fn demand_empty(&self) -> Result<()> {
        for engine in &self.running {
            let left = engine.command(&["ps", "--all", "--quiet"])?;
            ensure!(left.trim().is_empty(), "containers are left: {left}");
        }
        Ok(())
    }
}

fn directory(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Docker => "docker",
        EngineKind::Podman => "podman",
    }
}

fn image_file(session: &Path, kind: EngineKind) -> PathBuf {
    session.join(format!("{}.image", directory(kind)))
}

fn socket(session: &Path, kind: EngineKind) -> String {
    format!("unix://{}", session.join(directory(kind)).join("socket").display())
}

/// Why a row is not played in containers of this kind.
pub fn why_not(row: &Row, kind: &Kind) -> Option<&'static str> {
    unplayed::why(row, kind)
}

/// That no process has anything of a task's worlds any more; asked from outside of the
/// namespaces that it was played in.
pub fn demand_gone(task: &Task, session: &Path) -> Result<()> {
    if task.container().is_none() {
        return Ok(());
    }
    let labs = task.labs(session);
    let give_up = Instant::now() + GOES_WITHIN * slowness();
    loop {
        let left = processes_at(&labs);
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < give_up, "left behind: {}", left.join(", "));
        sleep(Duration::from_millis(20));
    }
}

impl Task {
    /// The kind of containers that it is played in, if it is.
    pub fn container(&self) -> Option<&'static Kind> {
        match self.run {
            Some((_, Way::Container(kind))) => Some(kind),
            _ => None,
        }
    }
}

/// Runs a row in a sandbox of its own.
pub fn attempt(world: &World, row: &Row, kind: &'static Kind) -> Result<Verdict> {
    let mut lab = world.lab()?;
    (row.prepare)(&mut lab).context("preparing the world")?;
    bring_probes(world, &lab)?;
    let written = write(world, row, &lab)?;
    let before = world.before(&lab);
    let place = Place::make(world, &lab, kind, row, written)?;
    let output = run_as(&place.root, &place.attack(row)?)?;
    let outcome = World::outcome(&lab);
    let left = place.left()?;
    place.destroy()?;
    if let Some(why) = did_not_run(&output, outcome.as_ref(), kind.level()) {
        return Ok(Verdict::NotRun(why));
    }
    // The walls of the command itself are those of the lower level.
    let behind = Behind { level: Some(Level::Restricted), in_container: true };
    let verdict = world.judge(row, &mut lab, &before, &output, outcome.as_ref(), behind);
    Ok(match verdict {
        Verdict::Breached(breaches) => Verdict::Breached([breaches, left].concat()),
        Verdict::Contained => Verdict::from_breaches(left),
        other => other,
    })
}

/// Copies, so that an attempt that gets through changes nobody else's.
fn bring_probes(world: &World, lab: &Lab) -> Result<()> {
    let (from, to) = (world.session.join("probes"), lab.path("ws").join(PROBES));
    let status = std::process::Command::new("cp").arg("-a").args([&from, &to]).status().context("starting cp")?;
    ensure!(status.success(), "the probes were not copied");
    Ok(())
}

/// Writes what the row runs, and gives the words that run it inside.
fn write(world: &World, row: &Row, lab: &Lab) -> Result<Vec<String>> {
    let probes = format!("{WORKSPACE}/{PROBES}");
    let (text, python) = world.written(
        row,
        lab,
        &Places { probes: probes.clone(), engine: LAUNCHER.to_owned(), workspace: WORKSPACE.to_owned() },
    );
    let (program, name, text) = if python {
        ("/usr/bin/python3", "probe.py", format!("print('{BEGIN}', flush=True)\n{text}\n"))
    } else {
        ("/bin/bash", "probe.sh", format!("PATH={probes}:$PATH\n{IDENTITY}\necho {BEGIN}\n{text}\n"))
    };
    lab.write(&format!("ws/{PROBES}/{name}"), &text)?;
    Ok(vec![program.to_owned(), format!("{probes}/{name}")])
}

impl Kind {
    /// The level that its sandboxes are made at, and say that they have.
    fn level(&self) -> Level {
        if self.has_native_walls() { Level::Full } else { Level::Restricted }
    }
}

/// A sandbox of one attempt.
struct Place<'a> {
    world: &'a World,
    lab: &'a Lab,
    kind: &'static Kind,
    /// Whose the engine is.
    root: Account,
    id: String,
    written: Vec<String>,
}

impl<'a> Place<'a> {
    fn make(world: &'a World, lab: &'a Lab, kind: &'static Kind, row: &Row, written: Vec<String>) -> Result<Self> {
        let root = Account::of(User::Root)?;
        let mut place = Self { world, lab, kind, root, id: String::new(), written };
        let image =
            fs::read_to_string(image_file(&world.session, kind.engine)).context("reading the image's digest")?;
        let profile = world.profile(row);
        // Where nothing keeps protected names nothing is bound that the host trusts.
        let work = if kind.has_native_walls() { "--bind" } else { "--copy" };
        let mut command = place
            .stockade("create")
            .args(["--backend", directory(kind.engine), "--image", image.trim()])
            .args(["--profile", profile, "--level", kind.level().word(), work])
            .arg(lab.workspace())
            .args(options(row, |name| name == "--limit"));
        if let Some(runtime) = kind.runtime {
            command = command.args(["--runtime", runtime]);
        }
        place.id = place.done(&command)?.trim().to_owned();
        Ok(place)
    }

    fn stockade(&self, part: &str) -> Command {
        let socket = socket(&self.world.session, self.kind.engine);
        let command = self.lab.command(&self.world.engine().display().to_string()).args(["sandbox", part]);
        // What the engine is to read lies where it sees it: `/tmp` is the row's own.
        let command = command.env("TMPDIR", self.lab.path("state"));
        command.env("DOCKER_HOST", &socket).env("CONTAINER_HOST", socket).timeout(Duration::from_secs(120))
    }

    /// The attempt, from the command line.
    fn attack(&self, row: &Row) -> Result<Command> {
        let options = options(row, |name| name != "--limit");
        let options = options.iter().map(|option| self.lab.names.replace(&option.replace("$WS", WORKSPACE)));
        let command = self
            .stockade("exec")
            .args(["--mode", "never"])
            .arg(format!("--json={}", self.lab.path("state/outcome.json").display()))
            .args(options)
            .args([self.id.as_str(), "--"])
            .args(&self.written);
        launch(row.launch, self.lab, command)
    }

    /// What goes on in the container beside its first process, for which everybody has
    /// the time that they need to go. gVisor's processes are its own.
    fn left(&self) -> Result<Vec<String>> {
        if !self.kind.has_native_walls() {
            return Ok(Vec::new());
        }
        let top = Command::new("docker", "/")
            .args(["-H", &socket(&self.world.session, self.kind.engine), "top"])
            .arg(format!("stockade-{}", self.id))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin");
        let give_up = Instant::now() + GOES_WITHIN * slowness();
        loop {
            let listed = self.done(&top)?;
            let left: Vec<String> = listed.lines().skip(2).map(|line| format!("left running: {line}")).collect();
            if left.is_empty() || Instant::now() > give_up {
                return Ok(left);
            }
        }
    }

    fn destroy(&self) -> Result<()> {
        self.done(&self.stockade("destroy").arg(&self.id)).map(drop)
    }

    fn done(&self, command: &Command) -> Result<String> {
        let output: Output = run_as(&self.root, command)?;
        ensure!(output.ended == Ended::Code(0), "{:?} ended with {:?}: {}", command.argv, output.ended, output.text());
        Ok(output.stdout)
    }
}

/// The options of a row whose name is wanted, each with its value.
fn options(row: &Row, wanted: impl Fn(&str) -> bool) -> Vec<&'static str> {
    row.options.chunks(2).filter(|pair| wanted(pair[0])).flatten().copied().collect()
}

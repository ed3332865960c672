//! The same attempts within containers: sandboxes made by the program under test with
//! container engines of the suite's own. What is judged on the host is what is judged
//! for runs; beside it, that nothing of the sandbox is left.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use stockade_testkit::{
    EngineKind, TestCommand, TestLab, TestUser, UserAccount, processes_at, run_as, slowness_factor,
};
use stockade_tests::Level;
use stockade_tests::engines::SuiteEngines;

use crate::plan::Task;
use crate::row::{Behind, Row, Verdict};
use crate::test_sandboxes::{self, TestSandbox, options};
use crate::unplayed;
use crate::way::{Kind, Way};
use crate::world::{BEGIN, NamedPaths, World, did_not_run, launch};

/// The workspace inside.
const WORKSPACE: &str = "/workspace";
/// Where the probes lie in it: a path that both the host and the sandbox have.
const PROBES: &str = "probes";
/// The program under test, as it is inside.
const LAUNCHER: &str = "/.stockade";
/// Its home is its own, and says nobody's name.
const IDENTITY: &str = "export GIT_{AUTHOR,COMMITTER}_NAME=Lab GIT_{AUTHOR,COMMITTER}_EMAIL=lab@localhost";
/// Takes away what an earlier attempt has left beside the workspace, and runs what
/// follows.
const AFRESH: &str = "{ find /tmp /dev/shm \"$HOME\" -mindepth 1 -delete; ipcrm --all; } 2>/dev/null; exec \"$@\"\n";
/// How long what a command left behind may take to go.
pub const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the engines that these tasks need.
pub fn start_engines(session: &Path, tasks: &[Task]) -> Result<SuiteEngines> {
    test_sandboxes::open(session)?;
    let needed: Vec<EngineKind> = tasks.iter().filter_map(|task| Some(task.container()?.engine)).collect();
    Ok(SuiteEngines::start(session, &needed))
}

/// Destroys the sandboxes that rows had one after another; then no container is left.
pub fn end_engines(engines: &SuiteEngines, session: &Path) -> Result<()> {
    test_sandboxes::close(session)?;
    engines.require_empty()
}

/// Why a row is not played in containers of this kind.
pub fn why_not(row: &Row, kind: &Kind) -> Option<&'static str> {
    unplayed::why(row, kind)
}

/// That no process has anything of a task's worlds any more; asked from outside of the
/// namespaces that it was played in.
pub fn require_gone(task: &Task, session: &Path) -> Result<()> {
    if task.container().is_none() {
        return Ok(());
    }
    require_unused(&task.labs(session))
}

/// That no process has anything of this directory.
pub fn require_unused(directory: &Path) -> Result<()> {
    let give_up = Instant::now() + REMOVAL_TIMEOUT * slowness_factor();
    loop {
        let leftovers = processes_at(directory);
        if leftovers.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < give_up, "left behind: {}", leftovers.join(", "));
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

/// Runs a row in a sandbox.
pub fn attempt(world: &World, row: &Row, kind: &'static Kind) -> Result<Verdict> {
    let mut lab = world.lab()?;
    (row.prepare)(&mut lab).context("preparing the world")?;
    bring_probes(world, &lab)?;
    let written = write(world, row, &lab, kind)?;
    let test_sandbox = TestSandbox::of(world, &lab, kind, row)?;
    let verdict = test_sandbox.furnish(&lab).and_then(|()| play(world, row, &mut lab, &test_sandbox, &written));
    let ended = test_sandbox.end(world, &lab, matches!(verdict, Ok(Verdict::Contained)));
    verdict.and_then(|verdict| ended.map(|()| verdict))
}

fn play(
    world: &World,
    row: &Row,
    lab: &mut TestLab,
    test_sandbox: &TestSandbox,
    written: &[String],
) -> Result<Verdict> {
    let before = world.before(lab);
    let output = run_as(&UserAccount::for_user(TestUser::Root)?, &attack(test_sandbox, lab, row, written)?)?;
    let outcome = World::outcome(lab);
    let leftovers = test_sandbox.leftovers()?;
    if let Some(why) = did_not_run(&output, outcome.as_ref(), test_sandbox.level()) {
        return Ok(Verdict::NotRun(why));
    }
    // The isolation of the command itself is that of the lower level.
    let behind = Behind { level: Some(Level::Restricted), in_container: true };
    Ok(match world.check_result(row, lab, &before, &output, outcome.as_ref(), behind) {
        Verdict::Breached(breaches) => Verdict::Breached([breaches, leftovers].concat()),
        Verdict::Contained => Verdict::from_breaches(leftovers),
        other => other,
    })
}

/// The attempt, from the command line.
fn attack(test_sandbox: &TestSandbox, lab: &TestLab, row: &Row, written: &[String]) -> Result<TestCommand> {
    let options = options(row, |name| name != "--limit");
    let options = options.iter().map(|option| lab.names.replace_names(&option.replace("$WS", WORKSPACE)));
    let program = lab.build_command(&test_sandbox.program().display().to_string());
    let command = test_sandbox
        .stockade(program, "exec")
        .args(["--mode", "never"])
        .arg(format!("--json={}", lab.path("state/outcome.json").display()))
        .args(options)
        .args([test_sandbox.id(), "--"])
        .args(written);
    launch(row.launch, lab, command)
}

/// Copies, so that an attempt that gets through changes nobody else's.
fn bring_probes(world: &World, lab: &TestLab) -> Result<()> {
    let (from, to) = (world.session.join("probes"), lab.path("ws").join(PROBES));
    let status = std::process::Command::new("cp").arg("-a").args([&from, &to]).status().context("starting cp")?;
    ensure!(status.success(), "the probes were not copied");
    Ok(())
}

/// Writes what the row runs, and gives the words that run it inside.
fn write(world: &World, row: &Row, lab: &TestLab, kind: &Kind) -> Result<Vec<String>> {
    let probes = format!("{WORKSPACE}/{PROBES}");
    let (text, python) = world.written(
        row,
        lab,
        &NamedPaths { probes: probes.clone(), engine: LAUNCHER.to_owned(), workspace: WORKSPACE.to_owned() },
    );
    let (program, name, text) = if python {
        ("/usr/bin/python3", "probe.py", format!("print('{BEGIN}', flush=True)\n{text}\n"))
    } else {
        ("/bin/bash", "probe.sh", format!("PATH={probes}:$PATH\n{IDENTITY}\necho {BEGIN}\n{text}\n"))
    };
    lab.write_file(&format!("ws/{PROBES}/{name}"), &text)?;
    // In files, as the attempt itself: the suite tests the isolation, not the classifier.
    lab.write_file(&format!("ws/{PROBES}/afresh.sh"), AFRESH)?;
    let attempt = [program.to_owned(), format!("{probes}/{name}")];
    let afresh = ["/bin/sh".to_owned(), format!("{probes}/afresh.sh")];
    // gVisor takes its time for each program: there it has run by then.
    Ok(if kind.has_native_isolation() { afresh.into_iter().chain(attempt).collect() } else { attempt.into() })
}

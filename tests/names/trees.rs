//! The property: whatever several processes of two runs play in a tree at random, the
//! real tools then run and obey nothing of theirs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use stockade_testkit::{TestCommand, TestUser};
use stockade_tests::Level;

use crate::board::Board;
use crate::counts::Counts;
use crate::oracle::{Depth, Oracle, Tool};
use crate::scene::{IsolationKind, Scene, Session, directories_of};

/// Runs at once in one workspace.
const RUNS: usize = 2;
/// Processes of each.
const PROCESSES: usize = 2;
/// What each process plays in a tree.
const ROUNDS: usize = 10;
/// Trees that are asked about before anything was played.
const APPROVED_BEFORE: usize = 24;
/// Share of trees that must be planted in where nothing stands against it.
const CONTROL_SHARE_PERCENT: usize = 20;
/// More than one user plays at a level.
const TREES_MAX: usize = 1_000_000;
/// Plants that are printed.
const SHOWN_MAX: usize = 20;
const PLAY_TIMEOUT: Duration = Duration::from_secs(25 * 60);

/// What the trees are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Git,
    Cargo,
    Npm,
}

pub const KINDS: [Kind; 3] = [Kind::Git, Kind::Cargo, Kind::Npm];

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Git => "git",
            Self::Cargo => "cargo",
            Self::Npm => "npm",
        }
    }

    fn tools(self) -> &'static [Tool] {
        match self {
            Self::Git => &[Tool::Git, Tool::Reader],
            Self::Cargo => &[Tool::Cargo, Tool::Reader],
            Self::Npm => &[Tool::Npm, Tool::Reader],
        }
    }
}

/// Some trees: this many of a user at a level.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub kind: Kind,
    pub number: usize,
    pub trees: usize,
}

impl Part {
    /// All parts of a kind.
    pub fn all(kind: Kind, counts: &Counts) -> Vec<Self> {
        let sizes = counts.parts(kind == Kind::Git).into_iter().enumerate();
        sizes.map(|(number, trees)| Self { kind, number, trees }).collect()
    }
}

/// Plays them, and says what was planted.
pub fn play(
    session: &Session,
    user: TestUser,
    isolation: IsolationKind,
    part: Part,
    counts: &Counts,
) -> Result<Vec<String>> {
    let Part { kind, number, trees } = part;
    // Each user at each level plays other trees; the control has some of the same.
    let number_of_isolation = match isolation {
        IsolationKind::None | IsolationKind::Run(Level::Restricted) => 0,
        IsolationKind::Run(Level::Full) => 1,
        IsolationKind::Kept => 2,
    };
    let first = TREES_MAX * (number_of_isolation + 3 * usize::from(user == TestUser::Root)) + number * trees;
    let mut scene = Scene::new(session, user, isolation)?;
    scene.open()?;
    let played = Played { scene: &scene, kind, first, trees, seed: counts.seed };
    scene.run_together(&[played.ship()])?;
    let before = played.planted(APPROVED_BEFORE)?;
    ensure!(before.is_empty(), "planted before anything was played: {before:?}");
    let board = Board::new(&scene, trees)?;
    let began = Instant::now();
    scene.run_together(&(0..RUNS).map(|run| played.run(run)).collect::<Vec<_>>())?;
    let (totals, playing) = (board.read()?, began.elapsed());
    let mut found = played.planted(trees)?;
    println!(
        "        trees-{}-{number}/{}/{}: {trees} trees, seed {}, {} calls tried, {} refused, {} done, planted in {} \
         ({} s playing, {} s asking)",
        kind.word(),
        user.word(),
        isolation,
        counts.seed,
        totals.tried,
        totals.refused,
        totals.done,
        found.len(),
        playing.as_secs(),
        (began.elapsed() - playing).as_secs(),
    );
    ensure!(totals.done > 0, "nothing was played");
    if isolation.is_control() {
        ensure!(
            found.len() * 100 >= trees * CONTROL_SHARE_PERCENT,
            "planted in {} of {trees} trees only: the seeds prove little",
            found.len()
        );
    }
    found.truncate(SHOWN_MAX);
    Ok(found)
}

struct Played<'a> {
    scene: &'a Scene<'a>,
    kind: Kind,
    first: usize,
    trees: usize,
    seed: u64,
}

impl Played<'_> {
    fn arguments(&self, verb: &str, base: &Path, further: &[usize]) -> Vec<String> {
        let scene = self.scene;
        let mut arguments = vec![verb.to_owned(), self.kind.word().to_owned(), base.display().to_string()];
        arguments.extend([self.first.to_string(), self.trees.to_string(), self.seed.to_string()]);
        arguments.push(scene.path("probe/canary.sh").display().to_string());
        arguments.extend(further.iter().map(usize::to_string));
        arguments
    }

    fn ship(&self) -> TestCommand {
        let arguments = self.arguments("ship", &self.scene.workspace(), &[]);
        self.scene.command(self.scene.session.path("play")).args(arguments).timeout(PLAY_TIMEOUT)
    }

    fn run(&self, run: usize) -> TestCommand {
        let (scene, isolation) = (self.scene, self.scene.isolation);
        let command = scene.behind(isolation, &format!("play{run}"), "", &[], &[&isolation.helper(scene, "play")]);
        let further = [run, PROCESSES, RUNS * PROCESSES, ROUNDS];
        command.args(self.arguments("play", &isolation.workspace(scene), &further)).timeout(PLAY_TIMEOUT)
    }

    /// One line for each of the first trees in which something is planted, or in what
    /// is around them.
    fn planted(&self, trees: usize) -> Result<Vec<String>> {
        let oracle = Oracle::new(self.scene, Depth::Settings);
        let top = self.scene.workspace();
        let mut found = oracle.ask(std::slice::from_ref(&top), self.kind.tools())?;
        found.truncate(1);
        for tree in self.first..self.first + trees.min(self.trees) {
            found.extend(oracle.ask(&tree_directories(&top, tree), self.kind.tools())?.into_iter().next());
        }
        Ok(found)
    }
}

fn tree_directories(top: &Path, tree: usize) -> Vec<PathBuf> {
    directories_of(&top.join(format!("t{tree}")))
}

//! Races of two runs in one workspace: a name is made while what it lies in is renamed.
//! A watcher outside counts what it sees meanwhile; what is left decides.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use stockade_testkit::{TestCommand, TestUser, slowness_factor};
use stockade_tests::Level;

use crate::board::Board;
use crate::counts::Counts;
use crate::oracle::{Depth, Oracle, Tool};
use crate::scene::{IsolationKind, Scene, Session, directories_of};

/// Runs at once.
const RUNS: usize = 2;
/// Processes of each, of both roles.
const PROCESSES: usize = 2;
/// How long each race takes at least where nothing stands against it.
const CONTROL_PHASE_MIN: Duration = Duration::from_secs(1);
/// In so long every race is won there; in less a busy machine may keep some from it.
const SURE_PHASE: Duration = Duration::from_secs(3);
/// Until both runs have started.
const START_DELAY: Duration = Duration::from_secs(2);

/// Each race of `race.c` in its order, and the names that are all there where it is won.
const RACES: &[(&str, &[&str])] = &[
    ("rename", &[".cargo/config.toml"]),
    ("link", &[".cargo/config.toml"]),
    ("exchange", &[".cargo/config.toml"]),
    ("way", &[".cargo/config.toml"]),
    ("parent", &["q/sub/.cargo/config.toml"]),
    ("home", &[".config/git/config"]),
    ("head", &["r/HEAD", "r/config"]),
    ("moved", &["r/HEAD", "r/config"]),
    ("refs", &["r/refs", "r/config"]),
    ("common", &["r/HEAD", "r/commondir"]),
    ("hooks", &["r/HEAD", "r/hooks/pre-commit"]),
    ("include", &["conf/shared.cfg"]),
];

/// Lets them race, and says what was left planted.
pub fn play(session: &Session, user: TestUser, isolation: IsolationKind, counts: &Counts) -> Result<Vec<String>> {
    let mut scene = Scene::new(session, user, isolation)?;
    scene.open()?;
    let board = Board::new(&scene, RACES.len())?;
    let ship = scene.command(session.path("race")).args(arguments(&scene, "ship", &scene.workspace(), &[]));
    scene.run_together(&[ship])?;
    let planted_races = planted_races(&scene)?;
    ensure!(planted_races.is_empty(), "planted before the races: {planted_races:?}");
    let races = u32::try_from(RACES.len())?;
    let phase = (counts.race / races).max(if isolation.is_control() { CONTROL_PHASE_MIN } else { Duration::ZERO });
    let start = SystemTime::now().duration_since(UNIX_EPOCH)? + START_DELAY * slowness_factor();
    let times = [start.as_millis().to_string(), phase.as_millis().to_string(), PROCESSES.to_string()];
    // Beside commands of a persistent sandbox a run is at the same workspace.
    let behind = if isolation == IsolationKind::Kept {
        vec![isolation, isolation, IsolationKind::Run(Level::Full)]
    } else {
        vec![isolation; RUNS]
    };
    let command = |(run, isolation): (usize, IsolationKind)| {
        let command = scene.behind(isolation, &format!("race{run}"), "", &[], &[&isolation.helper(&scene, "race")]);
        let arguments = arguments(&scene, "play", &isolation.workspace(&scene), &times);
        command.args(arguments).timeout(phase * races + Duration::from_secs(60))
    };
    let runs: Vec<TestCommand> = behind.into_iter().enumerate().map(command).collect();
    let top = scene.workspace();
    let over = AtomicBool::new(false);
    let (ran, seen) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&top, &over));
        let ran = scene.run_together(&runs);
        over.store(true, Ordering::SeqCst);
        (ran, watcher.join().unwrap_or_default())
    });
    ran?;
    let planted_races = self::planted_races(&scene)?;
    let totals = board.read()?;
    println!(
        "        races/{}/{}: {} s, {} calls tried, {} refused, {} done, goals seen inside {}, outside {}, left {}",
        user.word(),
        isolation,
        (phase * races).as_secs(),
        totals.tried,
        totals.refused,
        totals.done,
        totals.wins,
        seen.iter().map(|(race, times)| format!("{race}:{times}")).collect::<Vec<_>>().join(" "),
        planted_races.len(),
    );
    ensure!(totals.done > 0, "nothing raced");
    if isolation.is_control() {
        let lost: Vec<&str> =
            RACES.iter().map(|(race, _)| *race).filter(|race| !planted_races.contains_key(race)).collect();
        let may_be_lost = if phase >= SURE_PHASE { 0 } else { RACES.len() / 4 };
        ensure!(lost.len() <= may_be_lost, "never won, so that they prove nothing: {lost:?}");
    }
    Ok(planted_races.into_values().collect())
}

fn arguments(scene: &Scene<'_>, verb: &str, base: &Path, further: &[String]) -> Vec<String> {
    let canary = scene.path("probe/canary.sh").display().to_string();
    [&[verb.to_owned(), base.display().to_string(), canary], further].concat()
}

/// Races in whose directory something is planted now.
fn planted_races(scene: &Scene<'_>) -> Result<BTreeMap<&'static str, String>> {
    let oracle = Oracle::new(scene, Depth::Settings);
    let mut planted_races = BTreeMap::new();
    for (race, _) in RACES {
        let directories = directories_of(&scene.workspace().join(race));
        let found = oracle.ask(&directories, &[Tool::Git, Tool::GitHome, Tool::Cargo, Tool::Reader])?;
        planted_races.extend(found.into_iter().next().map(|line| (*race, line)));
    }
    Ok(planted_races)
}

/// How often each goal was there when looked at, until it is over.
fn watch(top: &Path, over: &AtomicBool) -> BTreeMap<&'static str, u64> {
    let goals: Vec<(&str, Vec<PathBuf>)> = RACES
        .iter()
        .map(|(race, names)| (*race, names.iter().map(|name| top.join(race).join(name)).collect()))
        .collect();
    let mut seen = BTreeMap::new();
    while !over.load(Ordering::SeqCst) {
        for (race, names) in &goals {
            // The first once more: all were there at the same moment, most likely.
            if names.iter().chain(names.first()).all(|name| fs::metadata(name).is_ok()) {
                *seen.entry(*race).or_default() += 1;
            }
        }
        thread::yield_now();
    }
    seen
}

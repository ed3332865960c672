//! Races of two runs in one workspace: a name is made while what it lies in is renamed.
//! A watcher outside counts what it sees meanwhile; what is left decides.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use stockade_testkit::{Command, User, slowness};
use stockade_tests::Level;

use crate::board::Board;
use crate::counts::Counts;
use crate::oracle::{Depth, Oracle, Tool};
use crate::scene::{Scene, Session, directories_of};

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
pub fn play(session: &Session, user: User, level: Option<Level>, counts: &Counts) -> Result<Vec<String>> {
    let scene = Scene::new(session, user)?;
    let board = Board::new(&scene, RACES.len())?;
    scene.run_together(&[racer(&scene, "ship", &[])])?;
    let left = left(&scene)?;
    ensure!(left.is_empty(), "planted before the races: {left:?}");
    let races = u32::try_from(RACES.len())?;
    let phase = (counts.race / races).max(if level.is_none() { CONTROL_PHASE_MIN } else { Duration::ZERO });
    let start = SystemTime::now().duration_since(UNIX_EPOCH)? + START_DELAY * slowness();
    let times = [start.as_millis().to_string(), phase.as_millis().to_string(), PROCESSES.to_string()];
    let runs: Vec<Command> = (0..RUNS)
        .map(|run| {
            let program = session.path("race");
            let command = scene.sandboxed(level, &format!("race{run}"), "", &[], &[&program]);
            command.args(arguments(&scene, "play", &times)).timeout(phase * races + Duration::from_secs(60))
        })
        .collect();
    let top = scene.workspace();
    let over = AtomicBool::new(false);
    let (ran, seen) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&top, &over));
        let ran = scene.run_together(&runs);
        over.store(true, Ordering::SeqCst);
        (ran, watcher.join().unwrap_or_default())
    });
    ran?;
    let left = self::left(&scene)?;
    let said = board.read()?;
    println!(
        "        races/{}/{}: {} s, {} calls tried, {} refused, {} done, goals seen inside {}, outside {}, left {}",
        user.word(),
        level.map_or("control", Level::word),
        (phase * races).as_secs(),
        said.tried,
        said.refused,
        said.done,
        said.wins,
        seen.iter().map(|(race, times)| format!("{race}:{times}")).collect::<Vec<_>>().join(" "),
        left.len(),
    );
    ensure!(said.done > 0, "nothing raced");
    if level.is_none() {
        let lost: Vec<&str> = RACES.iter().map(|(race, _)| *race).filter(|race| !left.contains_key(race)).collect();
        let may_be_lost = if phase >= SURE_PHASE { 0 } else { RACES.len() / 4 };
        ensure!(lost.len() <= may_be_lost, "never won, so that they prove nothing: {lost:?}");
    }
    Ok(left.into_values().collect())
}

fn arguments(scene: &Scene<'_>, verb: &str, further: &[String]) -> Vec<String> {
    let canary = scene.path("probe/canary.sh").display().to_string();
    [&[verb.to_owned(), scene.workspace().display().to_string(), canary], further].concat()
}

fn racer(scene: &Scene<'_>, verb: &str, further: &[String]) -> Command {
    scene.command(scene.session.path("race")).args(arguments(scene, verb, further))
}

/// Races in whose directory something is planted now.
fn left(scene: &Scene<'_>) -> Result<BTreeMap<&'static str, String>> {
    let oracle = Oracle::new(scene, Depth::Settings);
    let mut left = BTreeMap::new();
    for (race, _) in RACES {
        let directories = directories_of(&scene.workspace().join(race));
        let found = oracle.ask(&directories, &[Tool::Git, Tool::GitHome, Tool::Cargo, Tool::Reader])?;
        left.extend(found.into_iter().next().map(|line| (*race, line)));
    }
    Ok(left)
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
